//! Guards for reads of storage padding that a step is about to take away.
//!
//! A padded loop reads what is stored with the same padding without a guard (`pad_loop`): the surplus position exists.
//! A step that puts something else in the place of the storage, an expression, a copy or a buffer attached in a loop,
//! first makes those reads guarded ones. What they give where nothing is read reaches surplus elements only.

use super::compute_inline::zero_of;
use crate::simplify::{Facts, Prover};
use cora_ir::loops::{Block, LoopModule, Stmt};
use cora_ir::{Env, Expr, ExprId, TensorId, VarId};
use rustc_hash::FxHashMap;

/// Guards every read of `tensor` in a value that is not proved to be at a valid position in each padded dimension.
pub(super) fn guard_padded_reads(m: &mut LoopModule, tensor: TensorId) {
    let dims = &m.env.tensors[tensor].dims;
    let padded: Vec<usize> = (0..dims.len()).filter(|&d| dims[d].storage != dims[d].extent).collect();
    if padded.is_empty() {
        return;
    }
    let mut prover = Prover::new();
    let LoopModule { env, body, .. } = m;
    below(env, &mut prover, body, &mut Vec::new(), &mut |env, prover, b, loops| {
        guard_block(env, prover, b, loops, (tensor, &padded));
    });
}

/// What is done to a block inside loops.
type OfBlock<'a> = &'a mut dyn FnMut(&mut Env, &mut Prover, &mut Block, &[(VarId, ExprId)]);

/// Every block with the loops around it.
fn below(env: &mut Env, prover: &mut Prover, body: &mut [Stmt], loops: &mut Vec<(VarId, ExprId)>, f: OfBlock<'_>) {
    for s in body {
        match s {
            Stmt::For(l) => {
                loops.push((l.var, l.extent));
                below(env, prover, &mut l.body, loops, f);
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
    (tensor, padded): (TensorId, &[usize]),
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
    for (id, index, guard) in reads {
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
    (tensor, padded): (TensorId, &[usize]),
) -> Vec<ExprId> {
    let map: FxHashMap<VarId, ExprId> = b.iters.iter().map(|i| (i.var, i.binding)).collect();
    let mut facts = Facts::in_loops(loops.iter().copied());
    facts.assumptions.extend(b.predicate.iter().copied());
    if let Some(g) = guard {
        facts.assumptions.push(env.pool.substitute(g, &map));
    }
    let mut out = Vec::new();
    for &d in padded {
        let extent = env.extent_at(tensor, d, index);
        let valid = env.pool.lt(index[d], extent);
        let goal = env.pool.substitute(valid, &map);
        if !prover.prove(env, &facts, goal).is_proved() {
            out.push(valid);
        }
    }
    out
}
