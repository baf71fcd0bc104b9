//! Outputs that are computed in a loop of another stage: beside what is made of them, or of the same as they are.
//!
//! An output is written whole. So it may be attached where a stage that has all of its elements, once each iteration at least,
//! reads it at positions of its own: what such an iteration reads is computed for it. A result that nobody reads is read in a
//! *mark* while it is attached, which says no more than that it is asked for:
//!
//! ```text
//! O[b, q, d] = f(..)   =>   O[b, q, d] = max(f(..), L[b, q] - %asked)   =>   O[b, q, d] = f(..)
//! ```

use super::tree::stage_loops;
use crate::simplify::{Facts, Prover};
use cora_ir::loops::{Block, BlockRole, IterKind, LoopModule};
use cora_ir::{BinOp, Expr, ExprId, ExprPool, Role, ScalarType, TensorId, VarId};

/// Whether a block has an iteration for each element of output `t`, and reads that element there whatever else holds, at
/// iterators of these kinds.
pub(crate) fn reads_whole(m: &mut LoopModule, t: TensorId, b: &Block, kinds: &[IterKind]) -> bool {
    // Not all terms may count.
    let terms = b.role != BlockRole::Compute && !b.predicate.is_empty();
    if b.role == BlockRole::Init || terms || !m.env.pool.reads(b.value, t) {
        return false;
    }
    let mut found = Vec::new();
    certain_reads(&m.env.pool, b.value, t, &mut found);
    found.into_iter().any(|index| {
        let iters: Option<Vec<VarId>> = index.iter().map(|&e| m.env.pool.as_var(e)).collect();
        let of_kinds = |v: &VarId| b.iters.iter().any(|i| i.var == *v && kinds.contains(&i.kind));
        iters.is_some_and(|iters| iters.iter().all(of_kinds) && covers(m, t, b, &iters))
    })
}

/// The indices at which `t` is read, but for reads that a condition decides on.
fn certain_reads(pool: &ExprPool, e: ExprId, t: TensorId, out: &mut Vec<Vec<ExprId>>) {
    match pool.get(e) {
        Expr::Select(cond, ..) => certain_reads(pool, *cond, t, out),
        Expr::Load { tensor, index, guard, .. } => {
            if *tensor == t && guard.is_none() {
                out.push(index.to_vec());
            }
            match guard {
                Some((cond, _)) => certain_reads(pool, *cond, t, out),
                None => index.iter().for_each(|&i| certain_reads(pool, i, t, out)),
            }
        }
        Expr::Bin(BinOp::And | BinOp::Or, first, _) => certain_reads(pool, *first, t, out),
        _ => pool.children(e).iter().for_each(|&k| certain_reads(pool, k, t, out)),
    }
}

/// Whether `b` has an iteration for each element of output `t`, if these iterators of `b` are its dimensions.
fn covers(m: &mut LoopModule, t: TensorId, b: &Block, iters: &[VarId]) -> bool {
    if !is_whole(m, b) || iters.len() != m.env.tensors[t].dims.len() {
        return false;
    }
    let extents: Vec<ExprId> = m.env.tensors[t].dims.iter().map(|d| d.extent).collect();
    let mut at: Vec<ExprId> = Vec::new();
    let mut facts = Facts::default();
    for (&v, extent) in iters.iter().zip(extents) {
        let Some(iter) = b.iters.iter().find(|i| i.var == v) else { return false };
        let extent = m.env.pool.instantiate(extent, &at);
        let again = at.contains(&m.env.pool.var(v));
        if extent != iter.extent || again {
            return false;
        }
        at.push(m.env.pool.var(v));
        facts.push_var(v, extent);
    }
    // Of the other dimensions there is something at each of its positions.
    let zero = m.env.pool.int(0);
    let mut prover = Prover::new();
    b.iters.iter().filter(|i| !iters.contains(&i.var)).all(|i| {
        let some = m.env.pool.lt(zero, i.extent);
        let as_one = facts.vars.iter().any(|v| v.1 == i.extent);
        let holds = as_one || prover.prove(&mut m.env, &facts, some).is_proved();
        facts.push_var(i.var, i.extent);
        holds
    })
}

/// Whether a block computes all of its tensor: the only one of an output, or of a stage with loops of its own.
fn is_whole(m: &LoopModule, b: &Block) -> bool {
    let alone = m.blocks_writing(b.tensor).into_iter().filter(|x| x.role != BlockRole::Init).count() == 1;
    let own = || stage_loops(m, b.stage).first().is_some_and(|p| p.len() == 1);
    alone && b.stage == b.tensor && (m.env.tensors[b.tensor].role == Role::Output || own())
}

/// The block of elements of a stage that can ask for result `t`, and its iterators that are called as the dimensions of `t`.
pub(crate) fn companion(m: &mut LoopModule, t: TensorId, stage: TensorId) -> Option<(Block, Vec<VarId>)> {
    let b = m.blocks_of(stage).into_iter().find(|b| b.role == BlockRole::Compute)?.clone();
    let numbers = !matches!(m.env.pool.ty(b.value).scalar, ScalarType::Bool | ScalarType::Index);
    if stage == t || !numbers || m.env.tensors[stage].tuple.is_some() || m.env.tensors[t].tuple.is_some() {
        return None;
    }
    let named = |name: &str| {
        let mut all = b.iters.iter().filter(|i| i.kind == IterKind::Spatial && m.env.vars[i.var].name == name);
        all.next().filter(|_| all.next().is_none()).map(|i| i.var)
    };
    let iters: Vec<VarId> = m.env.tensors[t].dims.iter().map(|d| named(&d.name)).collect::<Option<_>>()?;
    covers(m, t, &b, &iters).then_some((b, iters))
}

/// Has a block read `t` in a mark, at the positions that its iterators say.
pub(crate) fn ask_for(m: &mut LoopModule, t: TensorId, (b, iters): (&Block, &[VarId]), asked: VarId) {
    let pool = &mut m.env.pool;
    let to = pool.ty(b.value).scalar;
    let index: Vec<ExprId> = iters.iter().map(|&v| pool.var(v)).collect();
    let read = pool.load(t, m.env.tensors[t].ty, index);
    let (read, asked) = (pool.cast(to, read), pool.var(asked));
    let asked = pool.cast(to, asked);
    let mark = pool.sub(read, asked);
    let value = pool.max(b.value, mark);
    for s in &mut m.body {
        s.blocks_mut(&mut |x| {
            if x.stage == b.stage && x.role == b.role {
                x.value = value;
            }
        });
    }
}

/// `value` without the marks that name this variable.
pub(crate) fn without_marks(pool: &mut ExprPool, value: ExprId, asked: VarId) -> ExprId {
    pool.rewrite(value, &mut |pool, e| {
        let mut value = e;
        while let Expr::Bin(BinOp::Max, inner, mark) = *pool.get(value)
            && pool.uses_var(mark, asked)
        {
            value = inner;
        }
        (value != e).then_some(value)
    })
}
