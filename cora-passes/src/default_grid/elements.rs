//! Elements by themselves: a thread computes one, with what is reduced for it alone.

use crate::default_schedule::nest::Nest;
use crate::default_schedule::units::holds;
use crate::default_schedule::{attempt, step};
use crate::schedule::bind::bind;
use crate::schedule::fuse::fuse;
use crate::schedule::readers::element_reads;
use crate::schedule::recurrent::{is_free, is_recurrent};
use crate::schedule::split::split;
use crate::schedule::tree::{is_reduction_var, loop_at, stage_loops, stages_below};
use cora_ir::loops::{Axis, Block, BlockRole, LoopModule, Stmt};
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

/// Spreads the outermost loops of a recurrence that none of its reads crosses: over blocks, whose threads share the elements of
/// each position, or over threads.
pub(super) fn recurrence(m: &mut LoopModule, n: usize) -> Option<()> {
    let mut loops = Vec::new();
    let mut body = std::slice::from_ref(&m.body[n]);
    let mut stage = None;
    while let [Stmt::For(l)] = body
        && is_recurrent(m, l.stage)
        && is_free(m, l)
    {
        stage = Some(l.stage);
        loops.push(LoopRef { stage: m.env.tensors[l.stage].name.clone(), name: m.env.vars[l.var].name.clone() });
        body = &l.body;
    }
    let (stage, first) = (stage?, loops.first()?.clone());
    let all = match loops.len() {
        1 => first,
        _ => {
            let name = fresh(m, stage, "all");
            fuse(m, &loops, &name, 1).ok()?;
            LoopRef { stage: first.stage, name }
        }
    };
    if attempt(m, |m| by_blocks(m, n, &all)) {
        return Some(());
    }
    by_threads(m, stage, &all).map(|_| ())
}

/// A block for each of the iterations of `all`, whose threads compute what each stage has at a position.
fn by_blocks(m: &mut LoopModule, n: usize, all: &LoopRef) -> Option<()> {
    bind(m, all, Binding::Axis(Axis::BlockX), false).ok()?;
    for stage in stages_below(&m.body[n..=n]) {
        let nest = Nest::of(m, stage)?;
        let own: Vec<LoopRef> = nest.loops.iter().take_while(|l| !l.reduced).map(|l| nest.at(l)).collect();
        let inside = nest.attached || nest.loops.len() > 2;
        let last = own.last().filter(|_| inside)?.clone();
        let split = StepKind::Split {
            target: last.clone(),
            factor: THREADS,
            outer: fresh(m, stage, &format!("{}_pass", last.name)),
            inner: fresh(m, stage, &format!("{}_thread", last.name)),
            tail: Tail::Exact,
        };
        let StepKind::Split { inner, .. } = &split else { return None };
        let target = LoopRef { stage: last.stage, name: inner.clone() };
        step(m, split)?;
        step(m, StepKind::Bind { target: target.clone(), to: Binding::Axis(Axis::ThreadX), atomic: false })?;
        if matches!(nest.block.role, BlockRole::Update(_)) {
            let name = m.env.fresh_tensor_name(&format!("{}.acc", m.env.tensors[stage].name));
            let stage = target.stage.clone();
            attempt(m, |m| step(m, StepKind::CacheWrite { stage, name, scope: Scope::Reg, at: target }));
        }
    }
    Some(())
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
    (fits && same && !is_recurrent(m, reader.stage)).then_some(reader.stage)
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
    let first = loops.first().filter(|_| !is_recurrent(m, stage))?.clone();
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
