//! Results side by side of a few terms each, as lengths of vectors of two or three components are: a lane for each result.
//!
//! ```text
//! for t { for c in 0..2 { S[t] += X[t, c] * X[t, c] } }
//!   =>  for to { for c in 0..2 unroll { for ti in 0..16 vector { S[16 * to + ti] += .. } } }
//! ```
//!
//! Terms in the lanes would leave most of them empty, and have to be summed across.

use super::contraction::{names, reorder};
use super::nest::{Loop, Nest, is_along, strides};
use super::{Registers, step};
use cora_ir::affine::normalize;
use cora_ir::intrinsic::Vectors;
use cora_ir::loops::{BlockRole, LoopModule};
use cora_ir::schedule::{StepKind, Tail};
use cora_ir::{Reduction, TensorId};

/// Terms that are few, all reduced loops together.
pub(super) const FEW: i64 = 4;
/// Terms that are few where lanes take them from neighbours, as the taps of a window in each channel: a tile of several
/// vectors gives each of them nothing to share but a factor.
pub(super) const FEW_TAPS: i64 = 16;

/// Makes the innermost loop over results vectors, around whose statements the terms, `most` of them, are unrolled.
pub(super) fn few_terms(m: &mut LoopModule, stage: TensorId, vectors: Vectors, most: i64) -> Option<()> {
    let nest = Nest::of(m, stage)?;
    if !matches!(nest.block.role, BlockRole::Update(Reduction::Op(_))) {
        return None;
    }
    let (reduced, own): (Vec<Loop>, Vec<Loop>) = nest.loops.iter().cloned().partition(|l| l.reduced);
    let terms = reduced.iter().try_fold(1_i64, |n, l| n.checked_mul(m.env.pool.as_int(l.extent)?))?;
    let (inner, outer) = own.split_last()?;
    // Where the stage is attached the loop is a part of the rows.
    let moved = nest.block.iters.iter().filter(|i| m.env.pool.uses_var(i.binding, inner.var));
    let [moved] = moved.collect::<Vec<_>>()[..] else { return None };
    let (iter, binding) = (moved.var, moved.binding);
    let var = m.env.pool.var(inner.var);
    let rest = m.env.pool.sub(binding, var);
    let rest = normalize(&mut m.env.pool, rest);
    if m.env.pool.uses_var(rest, inner.var) {
        return None;
    }
    let written = (nest.block.tensor, nest.block.index.clone());
    let side_by_side = is_along(m, &written, iter) && written.1.iter().any(|&e| m.env.pool.uses_var(e, iter));
    if reduced.is_empty() || terms > most || !side_by_side {
        return None;
    }
    if !nest.reads(m).iter().all(|r| strides(m, r, iter)) {
        return None;
    }
    let lanes = Registers::of(m, stage, vectors).lanes;
    let (mut order, mut last) = (names(outer), inner.name.clone());
    if m.env.pool.constant_bound(inner.extent).is_none_or(|n| n > lanes) {
        let (outer, inner) = ("to".to_owned(), "ti".to_owned());
        step(m, StepKind::Split { target: nest.named(&last), factor: lanes, outer, inner, tail: Tail::Exact })?;
        order.push("to".to_owned());
        last = "ti".to_owned();
    }
    order.extend(names(&reduced));
    order.push(last.clone());
    reorder(m, &nest, order)?;
    step(m, StepKind::Vectorize { target: nest.named(&last), width: Some(lanes) })?;
    reduced.iter().try_for_each(|l| step(m, StepKind::Unroll { target: nest.at(l) }))
}
