//! Outputs that are computed in a loop of another stage: beside what is made of them, or of the same as they are.
//!
//! An output is written whole. So it may be attached where a stage that has all of its elements, once each iteration at least,
//! reads it at positions of its own: what such an iteration reads is computed for it. A result that nobody reads is read in a
//! *mark* while it is attached, which says no more than that it is asked for:
//!
//! ```text
//! O[b, q, d] = f(..)   =>   O[b, q, d] = max(f(..), L[b, q] - %asked)   =>   O[b, q, d] = f(..)
//! ```
//!
//! Where that stage may have no element at a position, or has not all dimensions, a nest of its own asks for the result
//! while it is attached: over the loops that the two have in common, and all of what the result has besides.

use super::readers::block_paths;
use super::slots::wrap;
use super::tree::{Path, body_at_mut, enclosing, loop_at, stage_loops, stmt_at};
use crate::simplify::{Facts, Prover};
use cora_ir::loops::{Block, BlockRole, Iter, IterKind, LoopModule, Stmt};
use cora_ir::{BinOp, Expr, ExprId, ExprPool, Role, ScalarType, TensorId, VarId};
use rustc_hash::FxHashMap;

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

/// Puts a nest into the loop at `path` that asks for every element of result `t`, each in one iteration of the loops around
/// it; its outermost variable. There is none where these iterations are not all of `t`'s, or are several for one element.
pub(super) fn ask_in(m: &mut LoopModule, t: TensorId, path: &[usize]) -> Option<VarId> {
    let host = loop_at(&m.body, path).stage;
    let below = block_paths(&loop_at(&m.body, path).body, path);
    let elements = |p: &Vec<usize>| match stmt_at(&m.body, p) {
        Some(Stmt::Block(b)) => b.stage == host && b.role != BlockRole::Init,
        _ => false,
    };
    let at = below.into_iter().find(elements)?;
    let Some(Stmt::Block(b)) = stmt_at(&m.body, &at) else { return None };
    let b = b.clone();
    if host == t || !is_whole(m, &b) || m.env.tensors[t].tuple.is_some() {
        return None;
    }
    let loops: Vec<(VarId, ExprId)> = enclosing(&m.body, &at).iter().map(|l| (l.var, l.extent)).collect();
    // The result's dimensions, as iterators of that stage or loops of their own.
    let mut index: Vec<ExprId> = Vec::new();
    let mut shared: Vec<Iter> = Vec::new();
    let mut own: Vec<(VarId, ExprId)> = Vec::new();
    for d in 0..m.env.tensors[t].dims.len() {
        let (name, extent) = (m.env.tensors[t].dims[d].name.clone(), m.env.tensors[t].dims[d].extent);
        let extent = m.env.pool.instantiate(extent, &index);
        let same = |i: &&Iter| i.kind == IterKind::Spatial && m.env.vars[i.var].name == name && i.extent == extent;
        let var = match b.iters.iter().find(same).filter(|i| !shared.iter().any(|s| s.var == i.var)) {
            Some(i) => {
                shared.push(i.clone());
                i.var
            }
            None => {
                let var = m.env.new_var(name);
                own.push((var, extent));
                var
            }
        };
        index.push(m.env.pool.var(var));
    }
    let pool = &m.env.pool;
    let is_shared = |i: &Iter| shared.iter().any(|s| s.var == i.var);
    let used: Vec<VarId> = shared.iter().flat_map(|i| pool.vars_of(i.binding)).collect();
    let within = |e: ExprId| pool.vars_of(e).iter().all(|v| used.contains(v));
    let apart = |e: ExprId| !pool.vars_of(e).iter().any(|v| used.contains(v));
    let (around, inside) = loops.split_at(path.len());
    let inside: Vec<_> = inside.iter().filter(|l| used.contains(&l.0)).copied().collect();
    let product = around.iter().all(|l| used.contains(&l.0))
        && inside.iter().all(|l| within(l.1))
        && b.iters.iter().all(|i| is_shared(i) || apart(i.binding));
    if !product {
        return None;
    }
    let mut predicate: Vec<ExprId> = b.predicate.iter().copied().filter(|&p| within(p)).collect();
    let env = &mut m.env;
    // Loops of its own, as those of the stage.
    let mut fresh = FxHashMap::default();
    let mut nest = Vec::new();
    for (var, extent) in inside {
        let (name, extent) = (env.vars[var].name.clone(), env.pool.substitute(extent, &fresh));
        let new = env.new_var(name);
        fresh.insert(var, env.pool.var(new));
        nest.push((new, extent));
    }
    for i in &mut shared {
        i.binding = env.pool.substitute(i.binding, &fresh);
    }
    predicate.iter_mut().for_each(|p| *p = env.pool.substitute(*p, &fresh));
    let mut positions: FxHashMap<VarId, ExprId> = shared.iter().map(|i| (i.var, i.binding)).collect();
    for (iter, extent) in own {
        let at = env.pool.substitute(extent, &positions);
        let var = env.new_var(env.vars[iter].name.clone());
        let binding = env.pool.var(var);
        positions.insert(iter, binding);
        nest.push((var, at));
        shared.push(Iter { var: iter, kind: IterKind::Spatial, extent, binding });
    }
    let read = env.pool.load(t, env.tensors[t].ty, index);
    let zero = env.pool.int(0);
    let asking = Block { iters: shared, predicate, value: read, index: vec![zero; b.index.len()], ..b };
    let nest = wrap(env, host, asking, &nest);
    let Stmt::For(first) = &nest else { return None };
    let asked = first.var;
    body_at_mut(&mut m.body, path).insert(at[path.len()], nest);
    Some(asked)
}

/// Takes the nest that `ask_in` made out again.
pub(super) fn ask_no_more(m: &mut LoopModule, asked: VarId) {
    fn holder(body: &[Stmt], asked: VarId, path: &mut Path) -> bool {
        body.iter().enumerate().any(|(n, s)| match s {
            Stmt::For(l) if l.var == asked => true,
            Stmt::For(l) => {
                path.push(n);
                let found = holder(&l.body, asked, path);
                if !found {
                    path.pop();
                }
                found
            }
            Stmt::Block(_) => false,
        })
    }
    let mut path = Path::new();
    if holder(&m.body, asked, &mut path) {
        body_at_mut(&mut m.body, &path).retain(|s| !matches!(s, Stmt::For(l) if l.var == asked));
    }
}
