//! Reductions along neighbouring elements: the lanes of a warp take every 32nd, and combine their results.

use crate::default_schedule::nest::{Loop, Nest, moves_by_one};
use crate::default_schedule::step;
use cora_ir::loops::{Axis, BlockRole, LoopModule};
use cora_ir::schedule::{Binding, LoopRef, StepKind, Tail};
use cora_ir::{TensorId, VarId};

/// Lanes of a warp.
pub(super) const LANES: i64 = 32;
/// Warps of a block.
pub(super) const WARPS: i64 = 8;

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
    let named = |l: &str| LoopRef { stage: nest.stage.clone(), name: l.to_owned() };
    let mut row = spatial[0].name.clone();
    if spatial.len() > 1 {
        let loops = spatial.iter().map(|l| nest.at(l)).collect();
        row = "row".to_owned();
        step(m, StepKind::Fuse { loops, name: row.clone(), pad: 1 })?;
    }
    let split = |m: &mut LoopModule, l: &str, factor, outer: &str, inner: &str, tail| {
        let (outer, inner) = (outer.to_owned(), inner.to_owned());
        step(m, StepKind::Split { target: named(l), factor, outer, inner, tail })
    };
    split(m, &row, WARPS, "block", "warp", Tail::Exact)?;
    split(m, &k.name, LANES, "steps", "lane", Tail::Mask)?;
    let order = ["block", "warp", "lane", "steps"].map(str::to_owned).to_vec();
    step(m, StepKind::Reorder { stage: nest.stage.clone(), order })?;
    for (l, axis) in [("lane", Axis::ThreadX), ("warp", Axis::ThreadY), ("block", Axis::BlockX)] {
        step(m, StepKind::Bind { target: named(l), to: Binding::Axis(axis), atomic: false })?;
    }
    Some(())
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
