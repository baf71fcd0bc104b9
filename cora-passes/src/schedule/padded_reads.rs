//! Guards for reads of storage padding that a step is about to take away.
//!
//! A padded loop reads what is stored with the same padding without a guard (`pad_loop`): the surplus position exists.
//! A step that puts something else in the place of the storage, an expression, a copy or a buffer attached in a loop,
//! first makes those reads guarded ones. What they give where nothing is read reaches surplus elements only.

use super::compute_inline::zero_of;
use super::tree::{loop_at, loop_at_mut};
use crate::simplify::{Facts, Prover};
use cora_ir::loops::{Block, BlockRole, LoopModule, Stmt};
use cora_ir::{Env, Expr, ExprId, TensorDim, TensorId, VarId};
use rustc_hash::FxHashMap;

/// The reads that a copy serves.
#[derive(Clone, Copy)]
pub(super) struct Redirected<'a> {
    /// The reading stage.
    pub stage: TensorId,
    /// The loop below which it reads; nothing = anywhere.
    pub below: Option<&'a [usize]>,
    /// Which read of the tensor in a block, in order of appearance; nothing = all.
    pub access: Option<usize>,
}

/// Guards every read of `tensor` in a value that is not proved to be, in each padded dimension, at a position that is
/// there without its storage: one of its own, or one beyond them that its stage computes too, as in the fully padded
/// form. `copied` are the reads that a copy is to serve; nothing = all, which are to be served by the formula.
pub(super) fn guard_padded_reads(m: &mut LoopModule, tensor: TensorId, copied: Option<Redirected<'_>>) {
    let dims = &m.env.tensors[tensor].dims;
    let padded: Vec<usize> = (0..dims.len()).filter(|&d| dims[d].storage != dims[d].extent).collect();
    if padded.is_empty() {
        return;
    }
    let padded: Vec<Padded> =
        padded.into_iter().map(|dim| Padded { dim, computed: computed(m, tensor, dim) }).collect();
    let mut prover = Prover::new();
    let LoopModule { env, body, .. } = m;
    let mut loops = Vec::new();
    let body = match copied.and_then(|c| c.below) {
        Some(path) => {
            loops_on(body, path, &mut loops);
            &mut loop_at_mut(body, path).body
        }
        None => body,
    };
    below(env, &mut prover, body, (tensor, &mut loops), &mut |env, prover, b, loops| {
        if copied.is_none_or(|c| c.stage == b.stage) {
            guard_block(env, prover, b, loops, (tensor, copied.and_then(|c| c.access), &padded));
        }
    });
}

/// Where each dimension of `tensor` ends, over the indices before it: further out than the dimension itself where the
/// tensor's stage computes more and stores it as padding.
pub(super) fn computed_ends(m: &mut LoopModule, tensor: TensorId) -> Vec<ExprId> {
    let dims = m.env.tensors[tensor].dims.clone();
    let end = |(d, dim): (usize, &TensorDim)| {
        if dim.storage == dim.extent { dim.extent } else { computed(m, tensor, d).unwrap_or(dim.extent) }
    };
    dims.iter().enumerate().map(end).collect()
}

/// The loops on a path, outermost first.
fn loops_on(body: &[Stmt], path: &[usize], out: &mut Vec<(VarId, ExprId)>) {
    for n in 1..=path.len() {
        let l = loop_at(body, &path[..n]);
        out.push((l.var, l.extent));
    }
}

/// A dimension whose storage is padded.
struct Padded {
    dim: usize,
    /// How far the tensor's own stage computes it, over the indices before it.
    computed: Option<ExprId>,
}

/// The extent, over formal arguments, to which every block that computes `tensor` does so in dimension `d`; nothing where
/// they differ, or compute it at positions that are not their own dimensions.
fn computed(m: &mut LoopModule, tensor: TensorId, d: usize) -> Option<ExprId> {
    let mut found: Option<ExprId> = None;
    let writing = m.blocks_writing(tensor).into_iter().filter(|b| b.role != BlockRole::Init);
    let blocks: Vec<Block> = writing.cloned().collect();
    for b in blocks {
        let mut args: FxHashMap<VarId, ExprId> = FxHashMap::default();
        for (n, &e) in b.index[..d].iter().enumerate() {
            let arg = m.env.pool.arg(n as u32);
            args.insert(m.env.pool.as_var(e)?, arg);
        }
        let own = m.env.pool.as_var(b.index[d])?;
        let extent = b.iters.iter().find(|i| i.var == own)?.extent;
        let extent = m.env.pool.substitute(extent, &args);
        let left = m.env.pool.vars_of(extent);
        if !left.is_empty() || found.is_some_and(|f| f != extent) {
            return None;
        }
        found = Some(extent);
    }
    found
}

/// What is done to a block inside loops.
type OfBlock<'a> = &'a mut dyn FnMut(&mut Env, &mut Prover, &mut Block, &[(VarId, ExprId)]);

/// Every block that may read `tensor`, with the loops around it.
fn below(
    env: &mut Env,
    prover: &mut Prover,
    body: &mut [Stmt],
    (tensor, loops): (TensorId, &mut Vec<(VarId, ExprId)>),
    f: OfBlock<'_>,
) {
    for s in body {
        match s {
            s if !s.read(&env.pool).may_have(tensor) => {}
            Stmt::For(l) => {
                loops.push((l.var, l.extent));
                below(env, prover, &mut l.body, (tensor, loops), f);
                loops.pop();
            }
            Stmt::Block(b) => f(env, prover, b, loops),
        }
    }
}

fn guard_block(
    env: &mut Env,
    prover: &mut Prover,
    b: &mut Block,
    loops: &[(VarId, ExprId)],
    (tensor, access, padded): (TensorId, Option<usize>, &[Padded]),
) {
    let mut reads = Vec::new();
    env.pool.walk(b.value, &mut |id, n| {
        if let Expr::Load { tensor: t, index, guard, .. } = n
            && *t == tensor
        {
            reads.push((id, index.to_vec(), guard.map(|g| g.0)));
        }
    });
    let mut conditions: FxHashMap<ExprId, ExprId> = FxHashMap::default();
    let chosen = reads.into_iter().enumerate().filter(|(n, _)| access.is_none_or(|a| a == *n));
    for (_, (id, index, guard)) in chosen {
        let unproved = unproved(env, prover, b, loops, (&index, guard), (tensor, padded));
        if !unproved.is_empty() {
            conditions.insert(id, env.pool.all(unproved));
        }
    }
    if conditions.is_empty() {
        return;
    }
    b.value = env.pool.rewrite(b.value, &mut |p, x| {
        let &valid = conditions.get(&x)?;
        let Expr::Load { tensor, part, index, guard } = p.get(x).clone() else { return None };
        let ty = p.ty(x).scalar;
        let guard = match guard {
            Some((c, o)) => (p.and(valid, c), o),
            None => (valid, zero_of(p, ty)),
        };
        Some(p.load_guarded((tensor, part), ty, index, Some(guard)))
    });
}

/// The conditions, over the block's iterators, that the position is a valid one in `padded` dimensions and that do not
/// follow from the loops, the block's predicate and the read's own guard.
fn unproved(
    env: &mut Env,
    prover: &mut Prover,
    b: &Block,
    loops: &[(VarId, ExprId)],
    (index, guard): (&[ExprId], Option<ExprId>),
    (tensor, padded): (TensorId, &[Padded]),
) -> Vec<ExprId> {
    let map: FxHashMap<VarId, ExprId> = b.iters.iter().map(|i| (i.var, i.binding)).collect();
    let mut facts = Facts::in_loops(loops.iter().copied());
    facts.assumptions.extend(b.predicate.iter().copied());
    if let Some(g) = guard {
        facts.assumptions.push(env.pool.substitute(g, &map));
    }
    let mut out = Vec::new();
    for p in padded {
        let d = p.dim;
        if let Some(computed) = p.computed {
            let end = env.pool.instantiate(computed, index);
            let own = b.iters.iter().find(|i| env.pool.as_var(index[d]) == Some(i.var));
            if own.is_some_and(|i| i.extent == end) {
                continue;
            }
            let there = env.pool.lt(index[d], end);
            let goal = env.pool.substitute(there, &map);
            if prover.prove(env, &facts, goal).is_proved() {
                continue;
            }
        }
        let extent = env.extent_at(tensor, d, index);
        let valid = env.pool.lt(index[d], extent);
        let goal = env.pool.substitute(valid, &map);
        if !prover.prove(env, &facts, goal).is_proved() {
            out.push(valid);
        }
    }
    out
}
