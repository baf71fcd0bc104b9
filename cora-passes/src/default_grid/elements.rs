//! Elements by themselves: a thread computes one, with what is reduced for it alone.

use crate::default_schedule::nest::Nest;
use crate::default_schedule::step;
use crate::default_schedule::units::holds;
use crate::schedule::bind::bind;
use crate::schedule::fuse::fuse;
use crate::schedule::readers::element_reads;
use crate::schedule::split::split;
use crate::schedule::tree::{is_reduction_var, loop_at, stage_loops};
use cora_ir::loops::{Axis, Block, BlockRole, LoopModule};
use cora_ir::schedule::{Binding, LoopRef, StepKind, Tail};
use cora_ir::{Expr, Role, Scope, TensorId, VarId};

/// Threads of a block.
const THREADS: i64 = 256;

/// Neighbours that a thread computes together.
const VECTOR: i64 = 4;

/// Spreads a stage's elements over threads: the loop over those of a block.
pub(super) fn elements(m: &mut LoopModule, stage: TensorId) -> Option<LoopRef> {
    let all = fuse_spatial(m, stage)?;
    by_threads(m, stage, &all)
}

/// The same, a thread computes four neighbours where a row is whole vectors of them, which every access goes along.
pub(super) fn vectors(m: &mut LoopModule, stage: TensorId) -> Option<()> {
    let nest = Nest::of(m, stage).filter(|n| n.block.role == BlockRole::Compute)?;
    let column = m.env.pool.as_var(*nest.block.index.last()?)?;
    let iter = nest.block.iters.iter().find(|i| i.var == column)?;
    let whole = m.env.pool.as_int(iter.extent).is_some_and(|n| n % VECTOR == 0);
    let selects =
        m.env.pool.any(nest.block.value, &mut |n| matches!(n, Expr::Select(..) | Expr::Load { guard: Some(_), .. }));
    let wide = m.env.tensors[stage].ty.bytes() * VECTOR as usize <= 16;
    if !whole || !wide || selects || nest.loops.iter().any(|l| l.reduced) || !nest.contiguous(m, column) {
        return None;
    }
    let all = fuse_spatial(m, stage)?;
    let (outer, inner) = (fresh(m, stage, "vectors"), fresh(m, stage, "lane"));
    split(m, &all, VECTOR, (&outer, &inner), Tail::Exact).ok()?;
    let r = |name: &str| LoopRef { stage: all.stage.clone(), name: name.to_owned() };
    step(m, StepKind::Vectorize { target: r(&inner), width: None })?;
    by_threads(m, stage, &r(&outer)).map(|_| ())
}

/// A loop over blocks of threads; the one over a block's.
fn by_threads(m: &mut LoopModule, stage: TensorId, all: &LoopRef) -> Option<LoopRef> {
    let name = |suffix: &str| fresh(m, stage, &format!("{}_{suffix}", all.name));
    let (outer, inner) = (name("block"), name("thread"));
    split(m, all, THREADS, (&outer, &inner), Tail::Exact).ok()?;
    let r = |name: &str| LoopRef { stage: all.stage.clone(), name: name.to_owned() };
    let _ = bind(m, &r(&outer), Binding::Axis(Axis::BlockX), false);
    let _ = bind(m, &r(&inner), Binding::Axis(Axis::ThreadX), false);
    Some(r(&inner))
}

/// The stage that alone reads what `stage` reduces to, each of its elements at its own place.
pub(super) fn reader(m: &LoopModule, stage: TensorId) -> Option<TensorId> {
    let own = Nest::of(m, stage)?;
    let blocks = m.blocks_reading(stage);
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
pub(super) fn beside(m: &mut LoopModule, stage: TensorId, reader: TensorId) -> Option<()> {
    let at = elements(m, reader)?;
    if stage_loops(m, reader).len() > 2 {
        return None;
    }
    let name = m.env.tensors[stage].name.clone();
    step(m, StepKind::ComputeAt { stage: name.clone(), at: at.clone() })?;
    step(m, StepKind::SetScope { stage: name, scope: Scope::Reg })?;
    // That the register is one is not always seen.
    holds(m, &at).then_some(())
}

/// The loop that the stage's outermost spatial loops become.
fn fuse_spatial(m: &mut LoopModule, stage: TensorId) -> Option<LoopRef> {
    let loops = spatial(m, stage);
    let first = loops.first()?.clone();
    for count in (2..=loops.len()).rev() {
        let saved = m.checkpoint();
        let name = fresh(m, stage, "all");
        if fuse(m, &loops[..count], &name, 1).is_ok() {
            return Some(LoopRef { stage: first.stage, name });
        }
        m.restore(saved);
    }
    Some(first)
}

fn spatial(m: &LoopModule, stage: TensorId) -> Vec<LoopRef> {
    let Some(block) = m.blocks_of(stage).into_iter().find(|b| b.role != BlockRole::Init) else {
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
