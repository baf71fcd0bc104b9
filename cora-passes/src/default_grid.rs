//! Schedules nests for a grid by rules about their shape: what a program gets on a GPU that has no
//! schedule of its own.
//!
//! A contraction is computed in tiles that pass through shared memory (`tiles`); a reduction along neighbours by the
//! lanes of a warp (`lanes`), together with what it is for in the same row (`rows`). Of anything else all spatial loops
//! around a stage's block are fused, as far as they can be, and split into blocks of 256 threads; each thread computes one
//! element, a reduction being its own serial loop, and what alone reads its result is computed with it. Where loops cannot
//! be fused, the outermost ones become blocks and the innermost threads. Every rule is a list of scheduling steps; a refusal
//! means that it does not fit the nest, and the next one is tried.

mod ends;
mod lanes;
mod rows;
mod tiles;

use crate::default_schedule::nest::Nest;
use crate::default_schedule::{attempt, inline_cheap, stages, step};
use crate::schedule::bind::bind;
use crate::schedule::fuse::fuse;
use crate::schedule::readers::element_reads;
use crate::schedule::split::split;
use crate::schedule::tree::{is_reduction_var, loop_at, stage_loops};
use cora_ir::loops::{Axis, Block, BlockRole, LoopModule};
use cora_ir::schedule::{Binding, LoopRef, StepKind, Tail};
use cora_ir::{Role, Scope, TensorId, VarId};

const THREADS: i64 = 256;

/// Schedules every top-level nest.
pub fn default_grid_schedule(m: &mut LoopModule) {
    inline_cheap(m);
    let mut done: Vec<TensorId> =
        stages(m).into_iter().rev().filter(|&stage| attempt(m, |m| rows::rows(m, stage))).collect();
    for stage in stages(m) {
        if done.contains(&stage) || Nest::of(m, stage).is_none_or(|n| n.attached) {
            continue;
        }
        if tiles::tiles(m, stage).is_some() || attempt(m, |m| lanes::lanes(m, stage)) {
            continue;
        }
        if let Some(reader) = reader_of_elements(m, stage).filter(|r| !done.contains(r))
            && attempt(m, |m| beside(m, stage, reader))
        {
            done.push(reader);
            continue;
        }
        let _ = elements(m, stage);
    }
}

/// Spreads a stage's elements over threads: the loop over those of a block. A refusal only means that the rule does not fit.
fn elements(m: &mut LoopModule, stage: TensorId) -> Option<LoopRef> {
    let all = fuse_spatial(m, stage)?;
    let name = |suffix: &str| fresh(m, stage, &format!("{}_{suffix}", all.name));
    let (outer, inner) = (name("block"), name("thread"));
    split(m, &all, THREADS, (&outer, &inner), Tail::Exact).ok()?;
    let r = |name: &str| LoopRef { stage: all.stage.clone(), name: name.to_owned() };
    let _ = bind(m, &r(&outer), Binding::Axis(Axis::BlockX), false);
    let _ = bind(m, &r(&inner), Binding::Axis(Axis::ThreadX), false);
    Some(r(&inner))
}

/// The stage that alone reads what `stage` reduces to, each of its elements at its own place.
fn reader_of_elements(m: &LoopModule, stage: TensorId) -> Option<TensorId> {
    let own = Nest::of(m, stage)?;
    let blocks = m.blocks();
    let reads = |b: &&&Block| b.stage != stage && !element_reads(&m.env.pool, b, stage).is_empty();
    let readers: Vec<&&Block> = blocks.iter().filter(reads).collect();
    let [reader] = readers.as_slice() else { return None };
    let same = element_reads(&m.env.pool, reader, stage).iter().all(|(index, _)| *index == reader.index);
    let fits = m.env.tensors[stage].role == Role::Temp
        && matches!(own.block.role, BlockRole::Update(_))
        && reader.role == BlockRole::Compute
        && Nest::of(m, reader.stage).is_some_and(|n| !n.attached);
    (fits && same).then_some(reader.stage)
}

/// Reduces in a register of the thread that computes the reader's element.
fn beside(m: &mut LoopModule, stage: TensorId, reader: TensorId) -> Option<()> {
    let at = elements(m, reader)?;
    if stage_loops(m, reader).len() > 2 {
        return None;
    }
    let name = m.env.tensors[stage].name.clone();
    step(m, StepKind::ComputeAt { stage: name.clone(), at })?;
    step(m, StepKind::SetScope { stage: name, scope: Scope::Reg })
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
