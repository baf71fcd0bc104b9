//! Tensors that are the same for all batches: const inputs, and what is computed of nothing else, once for given weights.

use crate::schedule::compute_inline::compute_inline;
use cora_ir::loops::{BlockRole, LoopModule, Stmt};
use cora_ir::{Expr, ExprId, Role, Scope, TensorId};
use rustc_hash::FxHashMap;

/// Whether a tensor is a const input, or an intermediate of constant shape whose nests read nothing else.
pub(super) fn is_constant(m: &LoopModule, tensor: TensorId) -> bool {
    known(m, tensor, &mut FxHashMap::default())
}

/// Whether a tensor is computed for each batch.
pub(super) fn is_of_batch(m: &LoopModule, tensor: TensorId) -> bool {
    m.env.tensors[tensor].role == Role::Temp && !is_constant(m, tensor)
}

fn known(m: &LoopModule, tensor: TensorId, seen: &mut FxHashMap<TensorId, bool>) -> bool {
    if let Some(&known) = seen.get(&tensor) {
        return known;
    }
    // Of a recurrence nothing is said by itself.
    seen.insert(tensor, false);
    let t = &m.env.tensors[tensor];
    let whole = t.role == Role::Temp && t.scope == Scope::Global;
    let constant = t.role == Role::ConstInput || whole && computed_of_constants(m, tensor, seen);
    seen.insert(tensor, constant);
    constant
}

fn computed_of_constants(m: &LoopModule, tensor: TensorId, seen: &mut FxHashMap<TensorId, bool>) -> bool {
    let mut written = false;
    for s in m.body.iter().filter(|s| s.concerned().may_have(tensor)) {
        let (mut own, mut used, mut exprs) = (false, Vec::new(), Vec::new());
        s.walk(&mut |s| match s {
            Stmt::For(l) => exprs.push(l.extent),
            Stmt::Block(b) => {
                own |= b.tensor == tensor;
                used.push(b.tensor);
                exprs.push(b.value);
                exprs.extend(b.iters.iter().map(|i| i.binding).chain(b.predicate.iter().copied()));
            }
        });
        if own {
            written = true;
            // What is computed beside it is so of the same.
            let mut reads = Vec::new();
            if exprs.into_iter().any(|e| of_batch(m, e, &mut reads)) {
                return false;
            }
            reads.retain(|t| !used.contains(t));
            if !reads.into_iter().all(|t| known(m, t, seen)) {
                return false;
            }
        }
    }
    written
}

/// Whether a value needs sizes that come with a batch; collects what it reads.
fn of_batch(m: &LoopModule, e: ExprId, reads: &mut Vec<TensorId>) -> bool {
    let mut found = false;
    m.env.pool.walk(e, &mut |_, n| match n {
        Expr::Load { tensor, .. } => reads.push(*tensor),
        Expr::Param(_) | Expr::Call(..) | Expr::Search { .. } => found = true,
        _ => {}
    });
    found
}

/// Computes elements of which only `copy` is made in their place there, rather than to store them twice.
pub(super) fn compute_in_copy(m: &mut LoopModule, copy: TensorId) {
    let elements = |m: &LoopModule| {
        let block = m.blocks_of(copy).into_iter().find(|b| b.role == BlockRole::Compute)?;
        let mut reads = Vec::new();
        of_batch(m, block.value, &mut reads);
        let alone = |t: TensorId| m.blocks_reading(t).iter().all(|b| b.stage == copy);
        let stored = |t: TensorId| m.env.tensors[t].role == Role::Temp && m.env.tensors[t].scope == Scope::Global;
        let plain = |t: TensorId| m.blocks_of(t).iter().all(|b| b.role == BlockRole::Compute);
        let found = reads.into_iter().find(|&t| stored(t) && plain(t) && alone(t))?;
        Some(m.env.tensors[found].name.clone())
    };
    while let Some(name) = elements(m) {
        if compute_inline(m, &name).is_err() {
            return;
        }
    }
}
