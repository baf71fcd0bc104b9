//! The loops over batches outside of others, where elements are computed of the products of each batch.
//!
//! ```text
//! T[b, q, h, d] = sum(k) P[b, h, q, k] * V[b, k, h, d];  for b { for q { for h { for d { Y[b, q, h, d] = f(T[b, q, h, d]) } } } }
//!   =>  for b { for h { for q { for d { Y[b, q, h, d] = f(T[b, q, h, d]) } } } }
//! ```
//!
//! The products of one batch are then computed beside their elements, and batches of both loops are tasks.

use super::contraction::{Contraction, names, reorder};
use super::nest::{Loop, Nest};
use cora_ir::loops::{BlockRole, LoopModule};
use cora_ir::{ExprId, Role, TensorId};

/// Moves the loops of a stage of elements that are the batches of what it reads outside of its others.
pub(super) fn batches_first(m: &mut LoopModule, stage: TensorId) -> Option<()> {
    let nest = Nest::of(m, stage).filter(|n| !n.attached && n.block.role == BlockRole::Compute)?;
    let batches = nest.reads(m).iter().find_map(|(t, index)| batches_of(m, &nest, *t, index))?;
    let others = nest.loops.iter().filter(|l| !batches.iter().any(|b| b.var == l.var));
    let order = [&names(&batches)[..], &others.map(|l| l.name.clone()).collect::<Vec<_>>()].concat();
    if order == names(&nest.loops) {
        return None;
    }
    reorder(m, &nest, order)
}

/// The loops of the nest that are the batches of a contraction which it reads alone.
fn batches_of(m: &LoopModule, nest: &Nest, read: TensorId, index: &[ExprId]) -> Option<Vec<Loop>> {
    let alone = m.blocks_reading(read).into_iter().all(|b| b.stage == nest.block.stage);
    let c = Contraction::of(m, read).filter(|c| c.has_batches() && !c.rows.is_empty())?;
    if m.env.tensors[read].role != Role::Temp || !alone {
        return None;
    }
    let own = |l: &Loop| {
        let iter = m.env.pool.as_var(*index.get(c.nest.dim_of(m, l.var)?)?)?;
        nest.loops.iter().find(|l| nest.iterator(m, l.var) == Some(iter)).cloned()
    };
    c.batches.iter().map(own).collect()
}
