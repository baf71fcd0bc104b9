//! Reductions along neighbouring elements: the lanes of a warp take every 32nd, and combine their results.

use crate::default_schedule::nest::{Loop, Nest, moves_by_one};
use crate::default_schedule::step;
use cora_ir::loops::{Axis, BlockRole, LoopModule};
use cora_ir::schedule::{Binding, LoopRef, StepKind, Tail};
use cora_ir::{TensorId, VarId};

/// Lanes of a warp.
pub(super) const LANES: i64 = 32;
/// Warps of a block.
const WARPS: i64 = 8;

/// Spreads a reduction over lanes.
pub(super) fn lanes(m: &mut LoopModule, stage: TensorId) -> Option<()> {
    let nest = Nest::of(m, stage)?;
    let (reduced, spatial): (Vec<&Loop>, Vec<&Loop>) = nest.loops.iter().partition(|l| l.reduced);
    let [k] = reduced.as_slice() else { return None };
    if nest.attached || spatial.is_empty() || !matches!(nest.block.role, BlockRole::Update(_)) {
        return None;
    }
    let short = m.env.pool.constant_bound(k.extent).is_some_and(|n| n < LANES);
    if short || !along(m, &nest, k) {
        return None;
    }
    let k = k.name.clone();
    warp_a_row(m, &nest, &spatial)?;
    over_lanes(m, &nest.stage, &k)?;
    bind_rows(m, &nest)
}

/// Makes the loops over rows one loop, and splits it into the warps of blocks.
pub(super) fn warp_a_row(m: &mut LoopModule, nest: &Nest, rows: &[&Loop]) -> Option<()> {
    let mut row = rows.first()?.name.clone();
    if rows.len() > 1 {
        let loops = rows.iter().map(|l| nest.at(l)).collect();
        row = "row".to_owned();
        step(m, StepKind::Fuse { loops, name: row.clone(), pad: 1 })?;
    }
    split(m, nest.named(&row), WARPS, ("block", "warp"), Tail::Exact)
}

/// Binds the loops of [`warp_a_row`].
pub(super) fn bind_rows(m: &mut LoopModule, nest: &Nest) -> Option<()> {
    bind(m, nest.named("warp"), Axis::ThreadY)?;
    bind(m, nest.named("block"), Axis::BlockX)
}

/// Every 32nd iteration of loop `k` of a stage to a lane of a warp.
pub(super) fn over_lanes(m: &mut LoopModule, stage: &str, k: &str) -> Option<()> {
    let named = |l: &str| LoopRef { stage: stage.to_owned(), name: l.to_owned() };
    split(m, named(k), LANES, ("steps", "lane"), Tail::Mask)?;
    step(m, StepKind::Reorder { stage: stage.to_owned(), order: vec!["lane".to_owned(), "steps".to_owned()] })?;
    bind(m, named("lane"), Axis::ThreadX)
}

fn split(m: &mut LoopModule, target: LoopRef, factor: i64, (outer, inner): (&str, &str), tail: Tail) -> Option<()> {
    step(m, StepKind::Split { target, factor, outer: outer.to_owned(), inner: inner.to_owned(), tail })
}

fn bind(m: &mut LoopModule, target: LoopRef, axis: Axis) -> Option<()> {
    step(m, StepKind::Bind { target, to: Binding::Axis(axis), atomic: false })
}

/// Whether what moves with the reduced loop goes from neighbour to neighbour, and something does.
fn along(m: &LoopModule, nest: &Nest, k: &Loop) -> bool {
    let iters: Vec<VarId> =
        nest.block.iters.iter().filter(|i| m.env.pool.uses_var(i.binding, k.var)).map(|i| i.var).collect();
    let [iter] = iters.as_slice() else { return false };
    let reads = nest.reads(m);
    let moved = reads.iter().any(|r| r.1.iter().any(|&e| m.env.pool.uses_var(e, *iter)));
    moved && reads.iter().all(|r| moves_by_one(m, &r.1, *iter))
}
