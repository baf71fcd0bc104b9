//! Reductions along neighbouring elements: the lanes of a warp take every 32nd, or parts in order, and combine their results.

use crate::default_schedule::contraction::names;
use crate::default_schedule::nest::{Loop, Nest, moves_by_one};
use crate::default_schedule::steps::Steps;
use cora_ir::loops::{Axis, Block, BlockRole, LoopModule};
use cora_ir::schedule::Tail;
use cora_ir::{TensorId, VarId};

/// Lanes of a warp.
pub(super) const LANES: i64 = 32;
/// Terms next to each other that a lane takes where they stay in order.
const NEIGHBOURS: i64 = 4;
/// Warps of a block.
const WARPS: i64 = 8;

/// Spreads a reduction over lanes.
pub(super) fn lanes(m: &mut LoopModule, stage: TensorId) -> Option<()> {
    let nest = Nest::of(m, stage)?;
    let (reduced, spatial): (Vec<Loop>, Vec<Loop>) = nest.loops.iter().cloned().partition(|l| l.reduced);
    let [k] = reduced.as_slice() else { return None };
    if nest.attached || spatial.is_empty() || !matches!(nest.block.role, BlockRole::Update(_)) {
        return None;
    }
    let short = m.env.pool.constant_bound(k.extent).is_some_and(|n| n < LANES);
    if short || !along(m, &nest, k) {
        return None;
    }
    let mut s = Steps { m, stage: nest.stage };
    warp_a_row(&mut s, &names(&spatial))?;
    over_lanes(&mut s, &k.name, &nest.block)?;
    bind_rows(&mut s)
}

/// Makes the loops over rows one loop, and splits it into the warps of blocks.
pub(super) fn warp_a_row(s: &mut Steps<'_>, rows: &[String]) -> Option<()> {
    let mut row = rows.first()?.as_str();
    if rows.len() > 1 {
        row = "row";
        s.fuse(rows, row)?;
    }
    s.split(row, WARPS, "block", "warp", Tail::Exact)
}

/// Binds the loops of [`warp_a_row`].
pub(super) fn bind_rows(s: &mut Steps<'_>) -> Option<()> {
    s.bind("warp", Axis::ThreadY)?;
    s.bind("block", Axis::BlockX)
}

/// Every 32nd iteration of loop `k` to a lane of a warp. Terms of `block` that are not to be permuted: a few next to each
/// other to each lane, step by step.
pub(super) fn over_lanes(s: &mut Steps<'_>, k: &str, block: &Block) -> Option<()> {
    let in_order = matches!(block.role, BlockRole::Update(r) if !s.m.env.is_commutative(r));
    if in_order {
        s.split(k, LANES * NEIGHBOURS, "steps", "part", Tail::Mask)?;
        s.split("part", NEIGHBOURS, "lane", "term", Tail::Exact)?;
    } else {
        s.split(k, LANES, "steps", "lane", Tail::Mask)?;
        s.reorder(["lane", "steps"].map(str::to_owned).to_vec())?;
    }
    s.bind("lane", Axis::ThreadX)
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
