//! Schedules nests for a grid by rules about their shape: what a program gets on a GPU that has no
//! schedule of its own.
//!
//! Few results of many terms are summed in parts, as on a CPU, if they are no tiles. A contraction is computed in tiles
//! that pass through shared memory (`tiles`); a reduction along neighbours by the lanes of a warp (`lanes`), together
//! with what it is for in the same row (`rows`). Of anything else all spatial loops around a stage's block are fused,
//! as far as they can be, and split into blocks of 256 threads; each thread computes one element, a reduction being its
//! own serial loop, and what alone reads its result is computed with it (`elements`). Where loops cannot be fused, the
//! outermost ones become blocks and the innermost threads. A recurrence is a block's for each of its batches, or a thread's. Every rule is a list of scheduling steps; a refusal means
//! that it does not fit the nest, and the next one is tried.

mod elements;
mod lanes;
mod rows;
mod tiles;

use crate::default_schedule::contraction::Contraction;
use crate::default_schedule::nest::Nest;
use crate::default_schedule::own_names::keep_apart;
use crate::default_schedule::partial_sums::partial_sums;
use crate::default_schedule::{attempt, choose_stages, stages};
use cora_ir::TensorId;
use cora_ir::loops::LoopModule;

/// Terms of a part that a warp, or a thread, sums of a long sum.
const TERMS: i64 = 1024;

/// Schedules every top-level nest, for GPUs of an architecture such as `sm_90a`, or for any.
pub fn default_grid_schedule(m: &mut LoopModule, gpu: Option<&str>) {
    keep_apart(m);
    choose_stages(m, None);
    // Tiles share what they read, which threads of parts would not.
    let tiled = |m: &LoopModule, s: TensorId| Contraction::of(m, s).is_some_and(|c| !c.rows.is_empty());
    for stage in stages(m).into_iter().filter(|&s| !tiled(m, s)).collect::<Vec<_>>() {
        while attempt(m, |m| partial_sums(m, stage, TERMS, None).map(|_| ())) {}
    }
    let mut done: Vec<TensorId> =
        stages(m).into_iter().rev().filter(|&stage| attempt(m, |m| rows::rows(m, stage))).collect();
    for stage in stages(m) {
        if done.contains(&stage) || Nest::of(m, stage).is_none_or(|n| n.attached) {
            continue;
        }
        if let Some(last) = tiles::tiles(m, stage, &done, gpu) {
            done.push(last);
            continue;
        }
        if attempt(m, |m| lanes::lanes(m, stage)) {
            continue;
        }
        if let Some(reader) = elements::reader(m, stage).filter(|r| !done.contains(r))
            && attempt(m, |m| elements::beside(m, stage, reader))
        {
            done.push(reader);
            continue;
        }
        // A refusal only means that the rule does not fit this nest.
        let _ = attempt(m, |m| elements::vectors(m, stage)) || elements::elements(m, stage).is_some();
    }
    for n in 0..m.body.len() {
        attempt(m, |m| elements::recurrence(m, n));
    }
}
