//! Contractions in tiles of 64 x 64 elements, 128 threads of 4 x 8 each, which stay in registers while 32 steps of the
//! reduction at a time pass through shared memory.
//!
//! Where rows of a tile end elsewhere, as those of a triangle do, all go on to the end of the tile's last step, terms after a
//! row's own end left out by conditions. A thread's rows are among 16 neighbours then, and 16 steps are unrolled: only the
//! last of these have conditions.

use super::ends;
use crate::default_schedule::contraction::{Contraction, Read, names};
use crate::default_schedule::nest::Loop;
use crate::default_schedule::{attempt, step};
use crate::schedule::tree::{is_condition, loop_at, stage_loops};
use cora_ir::loops::{Axis, BlockRole, LoopModule};
use cora_ir::schedule::{Binding, Formula, LayoutDim, LoopRef, StepKind, Tail};
use cora_ir::{Expr, ExprId, Scope, TensorId, VarId};

/// Rows and columns of a tile.
const TILE: i64 = 64;
/// Reduced iterations that are in shared memory at a time.
const STEPS: i64 = 32;
/// Threads along the rows, and along the columns, of a block.
const HIGH: i64 = 16;
const WIDE: i64 = 8;
/// Neighbouring elements that one thread copies or computes.
const VECTOR: i64 = 4;
/// Of the threads along the rows, those in a warp.
const NEAR: i64 = 4;
/// Fewer columns than this leave most of a tile empty.
const FEW: i64 = 32;

/// Tiles a contraction. All tiles are one loop over blocks, so that there are no more blocks than tiles. Where that loop does
/// not tell where a tile ends, as with unrelated extents of rows and columns, or columns that end elsewhere in each row, both
/// have blocks of their own.
pub(super) fn tiles(m: &mut LoopModule, stage: TensorId) -> Option<()> {
    [true, false].into_iter().any(|fused| attempt(m, |m| tiled(m, stage, fused))).then_some(())
}

fn tiled(m: &mut LoopModule, stage: TensorId, fused: bool) -> Option<()> {
    let c = Contraction::of(m, stage)?;
    let narrow = |m: &LoopModule, e: ExprId| m.env.pool.constant_bound(e).is_some_and(|n| n < FEW);
    let k = c.reduced.last()?.name.clone();
    if c.nest.attached || c.rows.is_empty() || narrow(m, c.inner.extent) {
        return None;
    }
    let steers = |m: &LoopModule, l: &Loop| c.reduced.iter().any(|k| m.env.pool.uses_var(k.extent, l.var));
    // Of rows that end elsewhere a tile has neighbours in one loop, and tiles for each iteration of the others.
    let uneven = c.rows.iter().rposition(|l| steers(m, l));
    let mut s = Steps { m, stage: c.nest.stage.clone(), near: uneven.is_some(), apart: false };
    let tiled = [uneven.map(|n| c.rows[n].var), steers(s.m, &c.inner).then_some(c.inner.var)];
    s.pad(&c.reduced, &tiled.into_iter().flatten().collect::<Vec<_>>())?;
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
    let own = reduced.iter().cloned().chain(["ri".to_owned(), "ci".to_owned()]);
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
    let sums = s.m.env.fresh_tensor_name(&format!("{}.acc", c.nest.stage));
    let at = s.named(blocks.last()?.0);
    step(s.m, StepKind::CacheWrite { stage: s.stage.clone(), name: sums.clone(), scope: Scope::Reg, at })?;
    let mut a = Steps { m: s.m, stage: sums, near: s.near, apart: false };
    a.split(&k, STEPS, "ko", "ki", Tail::Exact)?;
    let outer = reduced[..reduced.len() - 1].iter().cloned();
    a.reorder(outer.chain(["ko", "ri", "ci", "ki"].map(str::to_owned)).collect())?;
    let ks = run_by(a.m, &c, &c.reduced[c.reduced.len() - 1..]);
    // The first copy is read in the place of the tensor, where both factors are of one.
    let second = if c.a.0 == c.b.0 { None } else { c.nest.access(a.m, &c.b) };
    let first = c.nest.access(a.m, &c.a);
    let copies = [copy(&mut a, &c, &c.a, first, &ks)?, copy(&mut a, &c, &c.b, second, &ks)?];
    a.apart = copies[1].wide == copies[1].along;
    a.warps(Tail::Exact)?;
    for l in ["ki", if a.near { "rs" } else { "ri" }, "ci"] {
        step(a.m, StepKind::Relax { target: a.named(l), zero: false })?;
    }
    for Copy { stage, high, wide, along } in copies {
        let mut s = Steps { m: a.m, stage, near: a.near, apart: a.apart };
        // Steps beyond the last are zeros.
        let zero = |l: &String| *l == along;
        s.full(&high, HIGH, "ys", "yt", zero(&high))?;
        s.full(&wide, WIDE, "xs", "xt", zero(&wide))?;
        if s.near {
            s.split("yt", NEAR, "tz", "ty", Tail::Exact)?;
        }
        s.bind_threads(if s.near { "ty" } else { "yt" }, "xt")?;
    }
    // Rows of a thread that end elsewhere end in the same iteration.
    let at_once = if a.near { HIGH } else { VECTOR };
    a.full("ki", at_once, "kq", "kv", false)?;
    a.spread(Tail::Exact)?;
    let elements = a.elements();
    a.threads_between(&["kq"], &[&["kv"], elements].concat())?;
    a.bind_threads("ty", "tx")?;
    a.unroll(&[&["kv"], elements].concat())?;
    let mut s = Steps { m: a.m, stage: c.nest.stage.clone(), near: a.near, apart: a.apart };
    s.warps(Tail::Mask)?;
    s.spread(Tail::Mask)?;
    s.threads_between(&[], elements)?;
    s.bind_threads("ty", "tx")?;
    s.unroll(elements)?;
    blocks.iter().try_for_each(|&(l, axis)| s.bind(l, axis))
}

/// The iterators of the stage's block that these loops run.
fn run_by(m: &LoopModule, c: &Contraction, loops: &[Loop]) -> Vec<VarId> {
    let run = |b: ExprId| loops.iter().any(|l| m.env.pool.uses_var(b, l.var));
    c.nest.block.iters.iter().filter(|i| run(i.binding)).map(|i| i.var).collect()
}

/// A copy in shared memory, and which of its loops the threads of a block share by rows, and which by neighbours.
struct Copy {
    stage: String,
    high: String,
    wide: String,
    /// The one of both that runs over the steps of the reduction.
    along: String,
}

/// Copies what a tile reads of a factor in the steps at hand to shared memory, zeros beyond the last step.
fn copy(a: &mut Steps<'_>, c: &Contraction, read: &Read, access: Option<usize>, ks: &[VarId]) -> Option<Copy> {
    let tensor = a.m.env.tensors[read.0].name.clone();
    let name = a.m.env.fresh_tensor_name(&format!("{tensor}.shared"));
    let (stage, scope, at) = (a.stage.clone(), Scope::Shared, Some(a.named("ko")));
    let steps: Vec<bool> = read.1.iter().map(|&e| ks.iter().any(|&k| a.m.env.pool.uses_var(e, k))).collect();
    let tile: Vec<VarId> = if read.1 == c.a.1 { run_by(a.m, c, &c.rows) } else { vec![c.column] };
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
    let s = Steps { m: a.m, stage: name, near: a.near, apart: a.apart };
    for (l, zero) in [(&along, true), (&across, false)] {
        step(s.m, StepKind::Relax { target: s.named(l), zero })?;
    }
    let last_is_step = *steps.last()?;
    if last_is_step {
        // Rows apart by a few elements, so that neighbouring ones fall into different banks: where each thread of eight
        // reads its own row, vectors of them; otherwise, as they are written, eight elements of each.
        let dim = s.m.env.tensors[copied].dims.last()?.name.clone();
        let apart = if read.1 == c.a.1 { 2 * VECTOR } else { VECTOR };
        let (tensor, factor) = (s.stage.clone(), STEPS + apart);
        let (outer, inner) = ("pitch".to_owned(), "kp".to_owned());
        step(s.m, StepKind::SplitDim { tensor, dim, factor, outer, inner })?;
    }
    let (high, wide) = if last_is_step { (across, along.clone()) } else { (along.clone(), across) };
    Some(Copy { stage: s.stage, high, wide, along })
}

/// Each loop of a copy, the dimensions of the copied tensor that it runs over, and whether it has one iteration at most.
fn loops_of_copy(m: &LoopModule, copy: TensorId, of: TensorId) -> Option<Vec<(String, Vec<usize>, bool)>> {
    let block = m.blocks().into_iter().find(|b| b.stage == copy && b.role == BlockRole::Compute)?;
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

/// Steps on the loops of one stage.
struct Steps<'a> {
    m: &'a mut LoopModule,
    stage: String,
    /// Whether a thread's rows are neighbours.
    near: bool,
    /// Whether a thread's columns are not: those of neighbouring threads are rows of a copy then, which fall into different
    /// banks.
    apart: bool,
}

impl Steps<'_> {
    fn named(&self, l: &str) -> LoopRef {
        LoopRef { stage: self.stage.clone(), name: l.to_owned() }
    }

    fn split(&mut self, l: &str, factor: i64, outer: &str, inner: &str, tail: Tail) -> Option<()> {
        let (outer, inner) = (outer.to_owned(), inner.to_owned());
        step(self.m, StepKind::Split { target: self.named(l), factor, outer, inner, tail })
    }

    /// Splits a loop into full parts: of a constant size that no part divides the surplus is computed, and not read.
    fn full(&mut self, l: &str, factor: i64, outer: &str, inner: &str, zero: bool) -> Option<()> {
        self.split(l, factor, outer, inner, Tail::Exact)?;
        step(self.m, StepKind::Relax { target: self.named(inner), zero })
    }

    /// Full parts of a tile in registers; of what leaves it only elements that there are.
    fn part(&mut self, l: &str, factor: i64, outer: &str, inner: &str, tail: Tail) -> Option<()> {
        match tail {
            Tail::Exact => self.full(l, factor, outer, inner, false),
            _ => self.split(l, factor, outer, inner, tail),
        }
    }

    fn fuse(&mut self, loops: &[String], name: &str) -> Option<()> {
        let loops = loops.iter().map(|l| self.named(l)).collect();
        step(self.m, StepKind::Fuse { loops, name: name.to_owned(), pad: 1 })
    }

    /// Pads reduced loops that end elsewhere in a tile of the loops `tiled` to where the last one ends.
    fn pad(&mut self, reduced: &[Loop], tiled: &[VarId]) -> Option<()> {
        for k in reduced {
            if tiled.iter().any(|&v| self.m.env.pool.uses_var(k.extent, v)) {
                let most = ends::greatest(self.m, k.extent, tiled, TILE)?;
                let steps = Formula::Call("ceildiv".to_owned(), vec![most, Formula::Int(STEPS)]);
                let extent = Formula::Bin('*', Box::new(steps), Box::new(Formula::Int(STEPS)));
                step(self.m, StepKind::PadLoopTo { target: self.named(&k.name), extent })?;
            }
        }
        Some(())
    }

    fn reorder(&mut self, order: Vec<String>) -> Option<()> {
        step(self.m, StepKind::Reorder { stage: self.stage.clone(), order })
    }

    fn bind(&mut self, l: &str, axis: Axis) -> Option<()> {
        step(self.m, StepKind::Bind { target: self.named(l), to: Binding::Axis(axis), atomic: false })
    }

    fn bind_threads(&mut self, y: &str, x: &str) -> Option<()> {
        if self.near {
            self.bind("tz", Axis::ThreadZ)?;
        }
        self.bind(y, Axis::ThreadY)?;
        self.bind(x, Axis::ThreadX)
    }

    fn unroll(&mut self, loops: &[&str]) -> Option<()> {
        loops.iter().try_for_each(|l| step(self.m, StepKind::Unroll { target: self.named(l) }))
    }

    /// Where a thread's rows are neighbours, a tile's rows over warps: one without rows does nothing.
    fn warps(&mut self, tail: Tail) -> Option<()> {
        if self.near { self.part("ri", HIGH, "tz", "rs", tail) } else { Some(()) }
    }

    /// The loops over a thread's elements.
    fn elements(&self) -> &'static [&'static str] {
        if self.apart { &["rr", "cc"] } else { &["rr", "cc", "cv"] }
    }

    /// A tile's rows and columns over the threads: every sixteenth row, or every fourth of a warp's sixteen neighbours, and
    /// of each 32 columns four neighbours, or every eighth column.
    fn spread(&mut self, tail: Tail) -> Option<()> {
        if self.near {
            self.part("rs", NEAR, "rr", "ty", tail)?;
        } else {
            self.part("ri", HIGH, "rr", "ty", tail)?;
        }
        if self.apart {
            return self.part("ci", WIDE, "cc", "tx", tail);
        }
        self.part("ci", WIDE * VECTOR, "cc", "cr", tail)?;
        self.split("cr", VECTOR, "tx", "cv", Tail::Exact)
    }

    /// The loops over threads inside the loops `outer`, and outside the loops `inner`.
    fn threads_between(&mut self, outer: &[&str], inner: &[&str]) -> Option<()> {
        let threads: &[&str] = if self.near { &["tz", "ty", "tx"] } else { &["ty", "tx"] };
        self.reorder([outer, threads, inner].concat().into_iter().map(str::to_owned).collect())
    }
}
