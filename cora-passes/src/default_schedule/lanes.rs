//! Lanes of reductions by a user's combiner, which no vector instruction combines.
//!
//! ```text
//! T[b] = f(k)(X[b, k])
//!   =>  P[b, ki] = f(ko)(X[b, 16 * ko + ki]);  Q[b, hi] = f(ho)(P[b, 8 * ho + hi]);  ..;  T[b] = f(hi)(R[b, hi])
//! ```
//!
//! Each lane of a vector combines the terms of its own, and then half as many lanes combine what two of them found, until
//! one is left. The new stages are reductions of neighbours like others.

use super::columns::neighbours;
use super::few_terms::FEW;
use super::nest::{Nest, moves_by_one};
use super::{Registers, step};
use cora_ir::intrinsic::Vectors;
use cora_ir::loops::{BlockRole, IterKind, LoopModule};
use cora_ir::schedule::{StepKind, Tail};
use cora_ir::{Reduction, TensorId};

/// Gives a stage that combines the tuples of neighbours, in any order, lanes of its own.
pub(super) fn lanes_of_tuples(m: &mut LoopModule, stage: TensorId, vectors: Vectors) -> Option<()> {
    let nest = Nest::of(m, stage)?;
    let BlockRole::Update(reduction @ Reduction::Tuple(_)) = nest.block.role else { return None };
    let last = nest.loops.last().filter(|l| l.reduced)?;
    let pool = &m.env.pool;
    let mut reduced = nest.block.iters.iter().filter(|i| i.kind == IterKind::Reduce);
    let iter = reduced.find(|i| pool.as_var(i.binding) == Some(last.var))?.var;
    let moved = |r: &(TensorId, Vec<_>)| r.1.iter().any(|&e| pool.uses_var(e, iter));
    let reads = nest.reads(m);
    let side_by_side = reads.iter().any(moved) && reads.iter().all(|r| moves_by_one(m, &r.1, iter));
    let lanes = Registers::of(m, stage, vectors).lanes;
    let few = pool.constant_bound(last.extent).is_some_and(|n| n <= lanes);
    // Results side by side are lanes already.
    if nest.attached || !m.env.is_commutative(reduction) || !side_by_side || few || neighbours(m, &nest).is_some() {
        return None;
    }
    let mut inner = factor(m, &nest, &last.name, lanes)?;
    let mut width = lanes / 2;
    while width > 1 {
        inner = factor(m, &nest, &inner, width)?;
        width /= 2;
    }
    Some(())
}

/// Unrolls the loops of a stage that combine a few tuples: it begins with the first of them, if they are partial results.
pub(super) fn few_tuples(m: &mut LoopModule, stage: TensorId) -> Option<()> {
    let nest = Nest::of(m, stage)?;
    if !matches!(nest.block.role, BlockRole::Update(Reduction::Tuple(_))) {
        return None;
    }
    let reduced: Vec<_> = nest.loops.iter().filter(|l| l.reduced).collect();
    let terms = reduced.iter().try_fold(1_i64, |n, l| n.checked_mul(m.env.pool.as_int(l.extent)?))?;
    if terms > FEW {
        return None;
    }
    reduced.into_iter().try_for_each(|l| step(m, StepKind::Unroll { target: nest.at(l) }))
}

/// Combines each `width`-th term in a stage of its own, and gives the loop that combines those of the stage.
fn factor(m: &mut LoopModule, nest: &Nest, l: &str, width: i64) -> Option<String> {
    let (outer, inner) = (format!("{l}o"), format!("{l}i"));
    let target = nest.named(l);
    step(m, StepKind::Split { target, factor: width, outer, inner: inner.clone(), tail: Tail::Exact })?;
    let name = m.env.fresh_tensor_name(&format!("{}.lanes", nest.stage));
    step(m, StepKind::Rfactor { target: nest.named(&inner), name })?;
    Some(inner)
}
