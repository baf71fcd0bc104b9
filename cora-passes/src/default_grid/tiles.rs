//! Contractions in tiles of 64 x 64 elements, which stay in registers while 32 steps of the reduction at a time pass
//! through shared memory: by warps with a tensor instruction, where the GPU has one that computes such terms (`units`), else
//! by threads (`threads`).
//!
//! Where rows of a tile end elsewhere, as those of a triangle do, all go on to the end of the tile's last step, terms after a
//! row's own end left out by conditions.

mod threads;
mod units;

use super::elements;
use super::lanes::LANES;
use crate::default_schedule::contraction::{Contraction, Read, names};
use crate::default_schedule::nest::{Loop, Nest};
use crate::default_schedule::steps::Steps;
use crate::default_schedule::units::{holds, unit};
use crate::default_schedule::{attempt, ends, step};
use crate::schedule::conditions::is_condition;
use crate::schedule::tree::{loop_at, stage_loops};
use cora_ir::loops::{Axis, BlockRole, LoopModule};
use cora_ir::schedule::{CopyAt, Formula, LayoutDim, LoopRef, StepKind, Tail};
use cora_ir::{Expr, ExprId, IntrinsicId, Scope, TensorId, VarId};

/// Rows and columns of a tile.
const TILE: i64 = 64;
/// Reduced iterations that are in shared memory at a time.
const STEPS: i64 = 32;
/// Elements of a copy, those between its rows with them, at most.
const SLOT: i64 = (STEPS + 8) * (TILE + 8);
/// Bytes of shared memory of a block of which a multiprocessor has several at a time.
const ROOM: i64 = 48 << 10;
/// Fewer columns than this leave most of a tile empty.
const FEW: i64 = 32;

/// Tiles a contraction. All tiles are one loop over blocks, so that there are no more blocks than tiles. Where that loop does
/// not tell where a tile ends, as with unrelated extents of rows and columns, or columns that end elsewhere in each row, both
/// have blocks of their own.
///
/// What alone reads the sums, each at its own place, is computed from the registers: the last stage of a tile, which is given
/// back. `taken` are stages that have a schedule.
pub(super) fn tiles(m: &mut LoopModule, stage: TensorId, taken: &[TensorId], gpu: Option<&str>) -> Option<TensorId> {
    let unit = gpu.and_then(|gpu| unit(m, stage, |i| i.get().lanes == LANES && i.get().needs.on_gpu(gpu)));
    let reader = elements::reader(m, stage).filter(|r| !taken.contains(r));
    let units = unit.map(Some).into_iter().chain([None]);
    let lasts = || reader.into_iter().chain([stage]);
    let mut forms = units.flat_map(|unit| lasts().flat_map(move |last| [(unit, last, true), (unit, last, false)]));
    let fits = |&(unit, last, fused): &(_, _, _)| attempt(m, |m| tiled(m, stage, last, unit, fused));
    forms.find(fits).map(|form| form.1)
}

fn tiled(m: &mut LoopModule, stage: TensorId, last: TensorId, unit: Option<IntrinsicId>, fused: bool) -> Option<()> {
    let mut c = Contraction::of(m, stage)?;
    let rows = c.a.clone()?;
    let narrow = |m: &LoopModule, e: ExprId| m.env.pool.constant_bound(e).is_some_and(|n| n < FEW);
    let k = c.reduced.last()?.name.clone();
    if c.nest.attached || c.rows.is_empty() || narrow(m, c.inner.extent) {
        return None;
    }
    let steers = |m: &LoopModule, l: &Loop| c.reduced.iter().any(|k| m.env.pool.uses_var(k.extent, l.var));
    // Of rows that end elsewhere a tile has neighbours in one loop, and tiles for each iteration of the others.
    let uneven = c.rows.iter().rposition(|l| steers(m, l));
    let tiled = [uneven.map(|n| c.rows[n].var), steers(m, &c.inner).then_some(c.inner.var)];
    let tiled: Vec<VarId> = tiled.into_iter().flatten().collect();
    // Terms under conditions are computed by threads, and what reads the sums by a kernel of its own.
    if !tiled.is_empty() && (unit.is_some() || last != stage) {
        return None;
    }
    pad(m, &c, &tiled)?;
    if last != stage {
        as_in(&mut c, &Nest::of(m, last)?)?;
    }
    let result = m.env.tensors[last].name.clone();
    let mut s = Steps { m, stage: result.clone() };
    let (mut row, mut others) = (names(&c.rows), Vec::new());
    if let Some(n) = uneven {
        others = row;
        row = vec![others.remove(n)];
    }
    if row.len() > 1 {
        s.fuse(&row, "row")?;
        row = vec!["row".to_owned()];
    }
    s.split(&row[0], TILE, "ro", "ri", Tail::Exact)?;
    s.split(&c.inner.name, TILE, "co", "ci", Tail::Exact)?;
    let outer = [names(&c.batches), others].concat();
    let tasks = [outer.clone(), vec!["ro".to_owned()], names(&c.columns), vec!["co".to_owned()]].concat();
    let reduced = names(&c.reduced);
    let summed = if last == stage { &reduced[..] } else { &[] };
    let own = summed.iter().cloned().chain(["ri".to_owned(), "ci".to_owned()]);
    s.reorder(tasks.iter().cloned().chain(own).collect())?;
    let blocks: &[_] = if fused {
        s.fuse(&tasks, "tile")?;
        &[("tile", Axis::BlockX)]
    } else if c.columns.is_empty() && !outer.is_empty() {
        s.fuse(&outer, "tile")?;
        &[("tile", Axis::BlockX), ("ro", Axis::BlockY), ("co", Axis::BlockZ)]
    } else {
        return None;
    };
    let mut sums = c.nest.stage.clone();
    let at = s.named(blocks.last()?.0);
    if last == stage {
        sums = s.m.env.fresh_tensor_name(&format!("{sums}.acc"));
        step(s.m, StepKind::CacheWrite { stage: result.clone(), name: sums.clone(), scope: Scope::Reg, at })?;
    } else {
        step(s.m, StepKind::ComputeAt { stage: sums.clone(), at })?;
        step(s.m, StepKind::SetScope { stage: sums.clone(), scope: Scope::Reg })?;
    }
    let mut a = Steps { m: s.m, stage: sums.clone() };
    a.split(&k, STEPS, "ko", "ki", Tail::Exact)?;
    let outer = reduced[..reduced.len() - 1].iter().cloned();
    a.reorder(outer.chain(["ko", "ri", "ci", "ki"].map(str::to_owned)).collect())?;
    let ks = run_by(a.m, &c, &c.reduced[c.reduced.len() - 1..]);
    // The first copy is read in the place of the tensor, where both factors are of one.
    let second = if rows.0 == c.b.0 { None } else { c.nest.access(a.m, &c.b) };
    let first = c.nest.access(a.m, &rows);
    let across = run_by(a.m, &c, &c.rows);
    let copies = [copy(&mut a, &rows, first, &across, &ks)?, copy(&mut a, &c.b, second, &[c.column], &ks)?];
    match unit {
        Some(unit) => units::by_warps(&mut a, &result, &copies, unit)?,
        None => threads::by_threads(&mut a, &result, &copies, uneven.is_some())?,
    }
    let mut s = Steps { m, stage: result };
    blocks.iter().try_for_each(|&(l, axis)| s.bind(l, axis))?;
    // Refused, there is one slot.
    attempt(m, |m| ahead(m, &copies));
    let tile = LoopRef { stage: sums, name: "mi".to_owned() };
    unit.is_none_or(|_| holds(m, &tile)).then_some(())
}

/// Makes the copies of later steps while those at hand are used, as far ahead as there is room.
fn ahead(m: &mut LoopModule, copies: &[Copy; 2]) -> Option<()> {
    let bytes = copies.iter().map(|c| m.env.tensors[c.of].ty.bytes() as i64 * SLOT).sum::<i64>();
    let slots = if 3 * bytes <= ROOM { 3 } else { 2 };
    copies.iter().try_for_each(|c| step(m, StepKind::DoubleBuffer { stage: c.stage.clone(), slots }))
}

/// Names the spatial loops as those of a stage that reads the sums, each at its own place.
fn as_in(c: &mut Contraction, reader: &Nest) -> Option<()> {
    let spatial: Vec<VarId> = c.nest.loops.iter().filter(|l| !l.reduced).map(|l| l.var).collect();
    if reader.loops.len() != spatial.len() {
        return None;
    }
    let own = [&mut c.batches[..], &mut c.rows, &mut c.columns, std::slice::from_mut(&mut c.inner)];
    for l in own.into_iter().flatten() {
        l.name = reader.loops[spatial.iter().position(|&v| v == l.var)?].name.clone();
    }
    Some(())
}

/// Pads reduced loops that end elsewhere in a tile of the loops `tiled` to where the last one ends.
fn pad(m: &mut LoopModule, c: &Contraction, tiled: &[VarId]) -> Option<()> {
    for k in &c.reduced {
        if tiled.iter().any(|&v| m.env.pool.uses_var(k.extent, v)) {
            let most = ends::greatest(m, k.extent, tiled, TILE)?;
            let steps = Formula::Call("ceildiv".to_owned(), vec![most, Formula::Int(STEPS)]);
            let extent = Formula::Bin('*', Box::new(steps), Box::new(Formula::Int(STEPS)));
            step(m, StepKind::PadLoopTo { target: c.nest.at(k), extent })?;
        }
    }
    Some(())
}

/// The iterators of the stage's block that these loops run.
fn run_by(m: &LoopModule, c: &Contraction, loops: &[Loop]) -> Vec<VarId> {
    let run = |b: ExprId| loops.iter().any(|l| m.env.pool.uses_var(b, l.var));
    c.nest.block.iters.iter().filter(|i| run(i.binding)).map(|i| i.var).collect()
}

/// A copy in shared memory, and which of its loops the threads of a block share by rows, and which by neighbours.
struct Copy {
    stage: String,
    /// The tensor that is copied.
    of: TensorId,
    high: String,
    wide: String,
    /// The one of both that runs over the steps of the reduction.
    along: String,
}

impl Copy {
    /// Whether neighbours are steps of the reduction.
    fn steps_are_near(&self) -> bool {
        self.wide == self.along
    }

    /// Places rows of the copy this many elements apart.
    fn pitch(&self, m: &mut LoopModule, elements: i64) -> Option<()> {
        let copied = m.env.tensor_named(&self.stage)?;
        let dim = m.env.tensors[copied].dims.last()?.name.clone();
        let (outer, inner) = ("pitch".to_owned(), "place".to_owned());
        step(m, StepKind::SplitDim { tensor: self.stage.clone(), dim, factor: elements, outer, inner })
    }
}

/// Copies what a tile, along the iterators `tile`, reads of a factor in the steps at hand, along `ks`, to shared memory,
/// zeros beyond the last step.
fn copy(a: &mut Steps<'_>, read: &Read, access: Option<usize>, tile: &[VarId], ks: &[VarId]) -> Option<Copy> {
    let tensor = a.m.env.tensors[read.0].name.clone();
    let name = a.m.env.fresh_tensor_name(&format!("{tensor}.shared"));
    let (stage, scope, at) = (a.stage.clone(), Scope::Shared, CopyAt::Loop(a.named("ko")));
    let steps: Vec<bool> = read.1.iter().map(|&e| ks.iter().any(|&k| a.m.env.pool.uses_var(e, k))).collect();
    let inside = |d: usize| steps[d] || tile.iter().any(|&v| a.m.env.pool.uses_var(read.1[d], v));
    let (own, others): (Vec<usize>, Vec<usize>) = (0..steps.len()).partition(|&d| inside(d));
    let layout = others.into_iter().chain(own).map(LayoutDim::whole).collect();
    step(a.m, StepKind::CacheRead { stage, tensor, name: name.clone(), scope, at, layout, access })?;
    let copied = a.m.env.tensor_named(&name)?;
    // Loops over the steps of the reduction, and those over rows or columns, innermost last.
    let (mut along, mut across) = (None, None);
    for (name, dims, unit) in loops_of_copy(a.m, copied, read.0)? {
        let over = |wanted: bool| dims.iter().any(|&d| steps[d] == wanted);
        match (unit, over(true), over(false)) {
            (true, ..) => {}
            (false, true, false) if along.is_none() => along = Some(name),
            (false, false, true) if across.is_none() => across = Some(name),
            _ => return None,
        }
    }
    let (along, across) = (along?, across?);
    let mut s = Steps { m: a.m, stage: name };
    s.relax(&along, true)?;
    s.relax(&across, false)?;
    // A copy of all positions that a gather may ask for has no room.
    let ty = s.m.env.tensors[copied].ty;
    let loops = stage_loops(s.m, copied).into_iter().map(|p| loop_at(&s.m.body, &p).extent);
    let elements = loops.filter_map(|n| s.m.env.pool.constant_bound(n)).fold(1_i64, i64::saturating_mul);
    (elements <= ROOM / 2 / ty.bytes() as i64).then_some(())?;
    let (high, wide) = if *steps.last()? { (across, along.clone()) } else { (along.clone(), across) };
    Some(Copy { stage: s.stage, of: read.0, high, wide, along })
}

/// Each loop of a copy, the dimensions of the copied tensor that it runs over, and whether it has one iteration at most.
fn loops_of_copy(m: &LoopModule, copy: TensorId, of: TensorId) -> Option<Vec<(String, Vec<usize>, bool)>> {
    let block = m.blocks_of(copy).into_iter().find(|b| b.role == BlockRole::Compute)?;
    let mut index = None;
    m.env.pool.walk(block.value, &mut |_, n| {
        if let Expr::Load { tensor, index: i, .. } = n
            && *tensor == of
        {
            index = Some(i.clone());
        }
    });
    let index = index?;
    let loops = stage_loops(m, copy).into_iter().map(|p| {
        let l = loop_at(&m.body, &p);
        let run: Vec<VarId> =
            block.iters.iter().filter(|i| m.env.pool.uses_var(i.binding, l.var)).map(|i| i.var).collect();
        let dims = (0..index.len()).filter(|&d| run.iter().any(|&v| m.env.pool.uses_var(index[d], v))).collect();
        let once = m.env.pool.as_int(l.extent) == Some(1) || is_condition(&m.env.pool, l.extent);
        (m.env.vars[l.var].name.clone(), dims, once)
    });
    Some(loops.collect())
}
