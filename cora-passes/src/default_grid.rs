//! Schedules nests for a grid by rules about their shape: what a program gets on a GPU that has no
//! schedule of its own.
//!
//! A contraction is computed in tiles that pass through shared memory (`tiles`); a reduction along neighbours by the
//! lanes of a warp (`lanes`). Of anything else all spatial loops around a stage's block are fused, as far as they can
//! be, and split into blocks of 256 threads; each thread computes one element, a reduction being its own serial loop.
//! Where loops cannot be fused, the outermost ones become blocks and the innermost threads. Every rule is a list of
//! scheduling steps; a refusal means that it does not fit the nest, and the next one is tried.

mod ends;
mod lanes;
mod tiles;

use crate::default_schedule::attempt;
use crate::schedule::bind::bind;
use crate::schedule::fuse::fuse;
use crate::schedule::split::split;
use crate::schedule::tree::{is_reduction_var, loop_at, stage_loops};
use cora_ir::loops::{Axis, BlockRole, LoopModule};
use cora_ir::schedule::{Binding, LoopRef, Tail};
use cora_ir::{TensorId, VarId};

const THREADS: i64 = 256;

/// Schedules every top-level nest.
pub fn default_grid_schedule(m: &mut LoopModule) {
    let mut stages: Vec<TensorId> = m.blocks().iter().map(|b| b.stage).collect();
    stages.dedup();
    for stage in stages {
        if attempt(m, |m| tiles::tiles(m, stage)) || attempt(m, |m| lanes::lanes(m, stage)) {
            continue;
        }
        let Some(all) = fuse_spatial(m, stage) else { continue };
        let name = |suffix: &str| fresh(m, stage, &format!("{}_{suffix}", all.name));
        let (outer, inner) = (name("block"), name("thread"));
        // A refusal only means that the rule does not fit this nest.
        if split(m, &all, THREADS, (&outer, &inner), Tail::Exact).is_err() {
            continue;
        }
        let r = |name: &str| LoopRef { stage: all.stage.clone(), name: name.to_owned() };
        let _ = bind(m, &r(&outer), Binding::Axis(Axis::BlockX), false);
        let _ = bind(m, &r(&inner), Binding::Axis(Axis::ThreadX), false);
    }
}

/// The loop that the stage's outermost spatial loops become.
fn fuse_spatial(m: &mut LoopModule, stage: TensorId) -> Option<LoopRef> {
    let loops = spatial(m, stage);
    let first = loops.first()?.clone();
    for count in (2..=loops.len()).rev() {
        let saved = m.clone();
        let name = fresh(m, stage, "all");
        if fuse(m, &loops[..count], &name, 1).is_ok() {
            return Some(LoopRef { stage: first.stage, name });
        }
        *m = saved;
    }
    Some(first)
}

fn spatial(m: &LoopModule, stage: TensorId) -> Vec<LoopRef> {
    let Some(block) = m.blocks().into_iter().find(|b| b.stage == stage && b.role != BlockRole::Init) else {
        return Vec::new();
    };
    let var = |p: &Vec<usize>| -> VarId { loop_at(&m.body, p).var };
    stage_loops(m, stage)
        .iter()
        .take_while(|p| !is_reduction_var(&m.env.pool, block, var(p)))
        .map(|p| LoopRef { stage: m.env.tensors[stage].name.clone(), name: m.env.vars[var(p)].name.clone() })
        .collect()
}

/// A loop name that the stage does not have.
fn fresh(m: &LoopModule, stage: TensorId, base: &str) -> String {
    let taken = |n: &str| stage_loops(m, stage).iter().any(|p| m.env.vars[loop_at(&m.body, p).var].name == n);
    if !taken(base) {
        return base.to_owned();
    }
    (1..).map(|i| format!("{base}{i}")).find(|n| !taken(n)).unwrap_or_default()
}
