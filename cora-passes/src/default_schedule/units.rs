//! Contractions by tensor instructions of a processor: those for tiles of rows and columns in registers of their own, and
//! those for the columns of one row.
//!
//! The factor of the columns is constant and packed once, in blocks as the instruction finds them. For an instruction that
//! takes several rows those of a task are copied, so that the last tile is whole too; of a convolution, whose rows are
//! of one batch then, once for all taps. A task is up to 128 rows and eight panels of columns.

use super::columns::column_tiles;
use super::constants::{compute_in_copy, is_constant};
use super::contraction::{Contraction, names, row_tiles};
use super::copies::outside;
use super::nest::{Loop, Nest};
use super::steps::Steps;
use super::{attempt, lowers_alone, step};
use crate::schedule::tree::{find_loop, loop_at, stage_loops};
use cora_ir::intrinsic::{Read, Vectors};
use cora_ir::loops::LoopModule;
use cora_ir::schedule::{CopyAt, Formula, LayoutDim, LoopRef, StepKind, Tail};
use cora_ir::{BinOp, Expr, ExprId, IntrinsicId, ScalarType, Scope, TensorId, VarId};

/// Rows of a task, at most.
pub(super) const TASK: i64 = 128;
/// Panels of columns of a task.
pub(super) const PANELS: i64 = 8;
/// Tiles of an instruction for several rows that are in registers at a time, along the rows and along the columns.
pub(super) const TILES: [i64; 2] = [2, 2];
/// The same of an instruction for one row: as many columns as divide, the better ones first.
const LINES: [[i64; 2]; 5] = [[6, 4], [5, 5], [8, 3], [12, 2], [16, 1]];
/// The same where a line of sums is half as long, and so are registers, of which there are 16.
const SHORT_LINES: [[i64; 2]; 2] = [[4, 2], [8, 1]];

/// Tiles of an instruction for one row of so many columns.
pub(super) fn lines(columns: i64) -> &'static [[i64; 2]] {
    if columns < 16 { &SHORT_LINES } else { &LINES }
}

/// The instruction among those that `has` allows, that computes what `stage` sums.
pub(crate) fn unit(m: &LoopModule, stage: TensorId, has: impl Fn(IntrinsicId) -> bool) -> Option<IntrinsicId> {
    let nest = Nest::of(m, stage)?;
    let Expr::Bin(BinOp::Mul, x, y) = *m.env.pool.get(nest.block.value) else { return None };
    let (ty, read) = entry(m, x)?;
    let same = entry(m, y)? == (ty, read);
    let fits = |&id: &IntrinsicId| {
        let i = id.get();
        [i.a.ty, i.b.ty, i.c.ty] == [ty, ty, m.env.tensors[stage].ty] && i.read == read && has(id)
    };
    IntrinsicId::ALL.into_iter().find(fits).filter(|_| same)
}

/// The same among those of one thread for tiles of several rows.
pub(super) fn of_rows(m: &LoopModule, stage: TensorId, has: impl Fn(IntrinsicId) -> bool) -> Option<IntrinsicId> {
    unit(m, stage, |i| i.get().lanes == 1 && i.get().tile[0] > 1 && has(i))
}

/// The same for one row.
pub(super) fn of_row(m: &LoopModule, stage: TensorId, has: impl Fn(IntrinsicId) -> bool) -> Option<IntrinsicId> {
    unit(m, stage, |i| i.get().lanes == 1 && i.get().tile[0] == 1 && has(i))
}

/// The type of the elements of a factor, and how they enter the product.
fn entry(m: &LoopModule, factor: ExprId) -> Option<(ScalarType, Read)> {
    let (read, element) = match *m.env.pool.get(factor) {
        Expr::Cast(ty, e) => (Read::Converted(ty), e),
        Expr::Un(op, e) => (Read::Rounded(op), e),
        _ => return None,
    };
    match m.env.pool.get(element) {
        Expr::Load { tensor, .. } => Some((m.env.tensors[*tensor].ty, read)),
        _ => None,
    }
}

/// Whether the nest with the loop `tile` can be lowered.
pub(crate) fn holds(m: &mut LoopModule, tile: &LoopRef) -> bool {
    find_loop(m, tile).is_ok_and(|path| lowers_alone(m, path[0], |_| true))
}

/// A contraction of rows with a constant factor, by an instruction for tiles of rows or else one for a row.
pub(super) fn unit_tiles(m: &mut LoopModule, stage: TensorId, has: impl Fn(IntrinsicId) -> bool) -> Option<()> {
    let tiled = [true, false].into_iter().any(|several| {
        let of_thread = |i: IntrinsicId| i.get().lanes == 1 && (i.get().tile[0] > 1) == several && has(i);
        unit(m, stage, of_thread).is_some_and(|unit| attempt(m, |m| tiles_of(m, stage, unit)))
    });
    tiled.then_some(())
}

/// The same by one instruction.
fn tiles_of(m: &mut LoopModule, stage: TensorId, unit: IntrinsicId) -> Option<()> {
    let [rows, columns, steps] = unit.get().tile;
    let several = rows > 1;
    let c = Contraction::of(m, stage)?;
    let (k, outer) = c.reduced.split_last()?;
    let whole = |m: &LoopModule, e: ExprId, of: i64| m.env.pool.as_int(e).filter(|n| n % of == 0);
    let count = whole(m, c.inner.extent, columns)?;
    whole(m, k.extent, steps)?;
    if c.nest.attached || c.rows.is_empty() || !is_constant(m, c.b.0) {
        return None;
    }
    pack(m, &c, k.var, unit)?;
    let (outer_rows, inner_rows) = c.rows.split_at(if several && windows(m, &c) { c.rows.len() - 1 } else { 0 });
    let mut row = names(inner_rows);
    let divides = |[_, w]: &[i64; 2]| count % (w * columns) == 0;
    let [high, wide] = if several {
        (1..=TILES[1]).rev().map(|w| [TILES[0], w]).find(divides)?
    } else {
        lines(columns).iter().copied().find(divides)?
    };
    let wide = columns * wide;
    let mut s = Steps { m, stage: c.nest.stage.clone() };
    if row.len() > 1 {
        s.fuse(&row, "row")?;
        row = vec!["row".to_owned()];
    }
    let high = high * rows;
    s.split(&row[0], TASK / high * high, "task", "near", Tail::Exact)?;
    s.split("near", high, "ro", "ri", Tail::Exact)?;
    s.split(&c.inner.name, wide, "co", "ci", Tail::Exact)?;
    s.split("co", PANELS, "cb", "cp", Tail::Exact)?;
    let tasks =
        [names(&c.batches), names(outer_rows), vec!["task".to_owned()], names(&c.columns), vec!["cb".to_owned()]]
            .concat();
    let own = ["cp", "ro"].into_iter().map(str::to_owned).chain(names(&c.reduced));
    let own = own.chain(["ri", "ci"].map(str::to_owned));
    s.reorder(tasks.iter().cloned().chain(own).collect())?;
    s.fuse(&tasks, "tile")?;
    let sums = s.m.env.fresh_tensor_name(&format!("{}.acc", c.nest.stage));
    let (stage, at) = (c.nest.stage.clone(), s.named("ro"));
    step(s.m, StepKind::CacheWrite { stage, name: sums.clone(), scope: Scope::Reg, at })?;
    let mut a = Steps { m: s.m, stage: sums.clone() };
    // The copy has its dimensions in the order of these loops.
    let order = ["ri", "ci", &k.name].map(str::to_owned);
    a.reorder(names(outer).into_iter().chain(order).collect())?;
    let copied = if several { Some(near(a.m, &c, &sums, c.nest.named("tile"))?) } else { None };
    a.relax("ri", false)?;
    a.split("ci", columns, "cc", "mj", Tail::Exact)?;
    a.split(&k.name, steps, "ko", "mk", Tail::Exact)?;
    let mut inside = vec!["ko", "ri", "cc", "mj", "mk"];
    if several {
        a.split("ri", rows, "rr", "mi", Tail::Exact)?;
        inside = vec!["ko", "rr", "cc", "mi", "mj", "mk"];
    }
    let tile = a.named(inside[3]);
    a.reorder(names(outer).into_iter().chain(inside.iter().map(|l| (*l).to_owned())).collect())?;
    step(a.m, StepKind::Tensorize { target: tile.clone(), intrinsic: unit })?;
    a.unroll(&inside[1..3])?;
    let mut s = Steps { m: a.m, stage: c.nest.stage.clone() };
    s.split("ci", columns, "cv", "cl", Tail::Exact)?;
    s.vectorize("cl", Some(columns))?;
    s.unroll(&["cv"])?;
    if let Some((stage, last)) = copied {
        // A copy of what lies elsewhere is made element by element.
        let _ = Steps { m: s.m, stage }.vectorize(&last, Some(steps));
    }
    holds(m, &tile).then_some(())
}

/// Whether rows of a term lie between those of another, as in a convolution.
fn windows(m: &LoopModule, c: &Contraction) -> bool {
    let pool = &m.env.pool;
    let of = |l: &Loop| c.nest.iterator(m, l.var);
    let moves = |e: ExprId, ls: &[Loop]| ls.iter().filter_map(of).any(|v| pool.uses_var(e, v));
    c.a.as_ref().is_some_and(|a| a.1.iter().any(|&e| moves(e, &c.rows) && moves(e, &c.reduced)))
}

/// The same in two parts, where the columns fill no whole tiles: as many as do, and the others.
pub(super) fn unit_parts(
    m: &mut LoopModule,
    stage: TensorId,
    has: &dyn Fn(IntrinsicId) -> bool,
    vectors: Vectors,
) -> Option<()> {
    let unit = of_row(m, stage, has)?;
    let [_, columns, _] = unit.get().tile;
    let c = Contraction::of(m, stage)?;
    let count = m.env.pool.as_int(c.inner.extent)?;
    let lines = lines(columns);
    let widest = lines[0][1];
    let best = widest * columns;
    let main = if count >= best { count / best * best } else { count / columns * columns };
    let even = lines.iter().any(|[_, w]| 2 * w > widest && count % (w * columns) == 0);
    if c.nest.attached || even || main == 0 || main == count {
        return None;
    }
    step(m, StepKind::OpSplit { points: vec![(c.nest.at(&c.inner), Formula::Int(main))] })?;
    let part = |m: &LoopModule, name: &str| m.env.tensor_named(&format!("{}.{name}", c.nest.stage));
    let (main, tail) = (part(m, "main")?, part(m, "tail")?);
    unit_tiles(m, main, has)?;
    let rest = attempt(m, |m| unit_parts(m, tail, has, vectors))
        || attempt(m, |m| unit_tiles(m, tail, has))
        || attempt(m, |m| row_tiles(m, tail, vectors))
        || attempt(m, |m| column_tiles(m, tail, vectors));
    rest.then_some(())
}

/// Steps of a column that lie side by side in the instruction's blocks.
pub(super) fn side_by_side(unit: IntrinsicId) -> Option<i64> {
    unit.get().b.row.iter().find(|d| d.divisor == 1).map(|d| d.modulus)
}

/// Copies the factor once in blocks of the instruction, those of the reduction side by side.
pub(super) fn pack(m: &mut LoopModule, c: &Contraction, k: VarId, unit: IntrinsicId) -> Option<()> {
    let [_, wide, _] = unit.get().tile;
    let high = side_by_side(unit)?;
    let iter = c.nest.iterator(m, k)?;
    let step_of = c.b.1.iter().position(|&e| m.env.pool.uses_var(e, iter))?;
    let layout = c.in_panels(m, wide, |summed, column| {
        let outer = summed.iter().filter(|&&d| d != step_of).map(|&d| LayoutDim::whole(d));
        let block = [LayoutDim::div(step_of, high), column, LayoutDim::modulo(step_of, high)];
        Some(outer.chain(block).collect())
    })?;
    let tensor = m.env.tensors[c.b.0].name.clone();
    let name = m.env.fresh_tensor_name(&format!("{tensor}.packed"));
    let (stage, access, at) = (c.nest.stage.clone(), c.nest.access(m, &c.b), outside(m, c.b.0));
    step(m, StepKind::CacheRead { stage, tensor, name: name.clone(), scope: Scope::Global, at, layout, access })?;
    let copy = m.env.tensor_named(&name)?;
    compute_in_copy(m, copy);
    Some(())
}

/// Copies the rows of a tile or a task, surplus ones as the last: the copy and its innermost loop.
pub(super) fn near(m: &mut LoopModule, c: &Contraction, sums: &str, at: LoopRef) -> Option<(String, String)> {
    let rows = c.a.as_ref()?;
    let tensor = m.env.tensors[rows.0].name.clone();
    let name = m.env.fresh_tensor_name(&format!("{tensor}.near"));
    let (stage, layout, access) = (sums.to_owned(), Vec::new(), c.nest.access(m, rows));
    let (scope, at) = (Scope::Local, CopyAt::Loop(at));
    step(m, StepKind::CacheRead { stage, tensor, name: name.clone(), scope, at, layout, access })?;
    let mut loops = stage_loops(m, m.env.tensor_named(&name)?);
    loops.sort_by_key(Vec::len);
    let mut loops = loops.iter().map(|p| m.env.vars[loop_at(&m.body, p).var].name.clone()).collect::<Vec<_>>();
    let last = loops.pop()?;
    // Those of windows are called as what they are read from.
    let row = loops.iter().find(|l| *l == "ri").or(loops.last())?.clone();
    step(m, StepKind::Relax { target: LoopRef { stage: name.clone(), name: row }, zero: false })?;
    Some((name, last))
}
