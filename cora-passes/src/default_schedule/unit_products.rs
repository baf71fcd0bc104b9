//! Products of two factors that come with each call, by an instruction for tiles of rows or else one for a row: scores of
//! attention, sums of what they weight, products of batches, one product of two matrices.
//!
//! ```text
//! Z[b, i, j] = sum(k) f32(X[b, i, k]) * f32(Y[b, k, j])
//! ```
//!
//! The factor of the columns is copied in the instruction's blocks for each batch, zeros beside its last columns and after its
//! last terms; the rows of a tile are copied, too, with zeros after their last terms, so that the last tiles are whole, unless an
//! instruction for a row finds whole terms where they lie. Rows with more columns than those before end in one column for each
//! tile; of more terms those that a tile's rows have in common are in tiles.

use super::columns::column_tiles;
use super::constants::is_constant;
use super::contraction::{Contraction, Read, names};
use super::copies::around;
use super::nest::{Loop, Nest, is_along};
use super::row_tasks::is_task;
use super::steps::Steps;
use super::units::{PANELS, TASK, TILES, holds, lines, near, of_row, of_rows, side_by_side};
use super::{attempt, ends, step};
use crate::schedule::split::divisible;
use cora_ir::intrinsic::Vectors;
use cora_ir::loops::LoopModule;
use cora_ir::schedule::{CopyAt, Formula, LayoutDim, LoopRef, StepKind, Tail};
use cora_ir::{Expr, IntrinsicId, Scope, TensorId};

/// Rows of a task in which several stages are computed, at most.
const TASK_ROWS: i64 = 64;
/// Rows, at least, for which one product's columns are copied.
const MANY_ROWS: i64 = 32;
/// Terms of a row that are copied at a time for an instruction that takes fewer.
const COPIED: i64 = 32;
/// Columns of a task of its own, whose copy stays near for all rows.
const PANEL: i64 = 256;

/// Rows and columns, in tiles of an instruction for one row, that are in registers at a time, where their number is unknown:
/// the better ones first, narrow ones where no wide panel begins with the columns. Those of rows of which each has more columns
/// than the one before divide the columns.
const LINES: [[i64; 2]; 2] = [[6, 4], [12, 2]];
const SLANTED_LINES: [[i64; 2]; 1] = [[8, 3]];

/// The instruction for such a product, if its shape suits one.
pub(super) fn unit_of(m: &LoopModule, c: &Contraction, has: impl Fn(IntrinsicId) -> bool) -> Option<IntrinsicId> {
    units_of(m, c, has).into_iter().next()
}

/// Those that it suits, the better one first.
fn units_of(m: &LoopModule, c: &Contraction, has: impl Fn(IntrinsicId) -> bool) -> Vec<IntrinsicId> {
    let Some(stage) = m.env.tensor_named(&c.nest.stage) else { return Vec::new() };
    let all = [of_rows(m, stage, &has), of_row(m, stage, has)];
    all.into_iter().flatten().filter(|&unit| suits(m, c, unit) == Some(true)).collect()
}

/// Whether the shape of a product suits an instruction.
fn suits(m: &LoopModule, c: &Contraction, unit: IntrinsicId) -> Option<bool> {
    let [k] = c.reduced.as_slice() else { return None };
    let pool = &m.env.pool;
    let uses = |l: &Loop| c.rows.iter().any(|row| pool.uses_var(l.extent, row.var));
    let variable = match c.rows.as_slice() {
        // Rows with more columns and more terms than others have no tiles in common.
        [_] => uses(&c.inner) && uses(k),
        rows => rows.is_empty() || !is_alone(c) || uses(&c.inner) || uses(k),
    };
    let slanted = pool.uses_var(k.extent, c.inner.var) || c.rows.iter().any(|r| pool.uses_var(r.extent, c.inner.var));
    // Fewer would leave much of a tile empty.
    let most = [c.nest.most(m, &c.rows), c.nest.most(m, [&c.inner]), c.nest.most(m, [k])];
    let enough = |sizes: [i64; 3]| most.into_iter().zip(sizes).all(|(n, tile)| n >= tile);
    let few = !sizes(unit, pool.as_int(c.inner.extent), uses(&c.inner)).into_iter().any(enough);
    // What is copied for one product is little beside what many rows compute of it.
    let copied = c.many_products(m) || is_alone(c) && most[0] >= MANY_ROWS;
    // Of terms whose number varies zeros follow, where they are counted from the same place in both.
    let constant = pool.as_int(k.extent).is_some();
    let term = c.nest.iterator(m, k.var)?;
    let counted = |r: &Read| r.1.iter().any(|&e| pool.as_var(e) == Some(term));
    let fits = c.columns.is_empty()
        && c.a.as_ref().is_some_and(|a| constant || counted(a) && counted(&c.b))
        && !is_constant(m, c.b.0)
        && copied
        && !variable
        && !slanted
        && !few
        && !c.scattered(m);
    Some(fits)
}

/// Whether it is one product of two matrices, which nothing is computed beside.
fn is_alone(c: &Contraction) -> bool {
    !c.has_batches() && !c.nest.attached
}

/// Rows, columns and steps of the tiles that may be in registers at a time, the better ones first. Those of `slanted` rows, of
/// which each has more columns than the one before, end in one column, which is of the last panel of columns then.
fn sizes(unit: IntrinsicId, count: Option<i64>, slanted: bool) -> Vec<[i64; 3]> {
    let [rows, columns, steps] = unit.get().tile;
    let whole: Vec<[i64; 2]> = match count {
        Some(n) => lines(columns).iter().copied().filter(|[_, wide]| n % (wide * columns) == 0).collect(),
        None => Vec::new(),
    };
    let tiles: &[[i64; 2]] = match columns {
        _ if rows > 1 => &[TILES],
        _ if !whole.is_empty() => &whole,
        ..16 => lines(columns),
        _ if slanted => &SLANTED_LINES,
        _ => &LINES,
    };
    tiles.iter().map(|[high, wide]| [high * rows, wide * columns, steps]).collect()
}

/// Rows of a task in which several stages are computed: whole tiles of either kind.
pub(super) fn rows_of_task(unit: IntrinsicId) -> i64 {
    let whole = |rows: i64| {
        let first = [false, true].into_iter().filter_map(|slanted| sizes(unit, None, slanted).into_iter().next());
        first.into_iter().all(|[high, ..]| rows % high == 0)
    };
    (1..=TASK_ROWS).rev().find(|&rows| whole(rows)).unwrap_or(TASK_ROWS)
}

/// Tiles of rows and columns of such a product. Where rows have more terms than others, of those that the rows of a tile have
/// in common.
pub(super) fn unit_products(
    m: &mut LoopModule,
    stage: TensorId,
    has: impl Fn(IntrinsicId) -> bool,
    vectors: Vectors,
) -> Option<()> {
    let c = Contraction::of(m, stage)?;
    let units = units_of(m, &c, has);
    let [k] = c.reduced.as_slice() else { return None };
    let uses = |m: &LoopModule, l: &Loop| c.rows.iter().any(|row| m.env.pool.uses_var(l.extent, row.var));
    let slanted = uses(m, &c.inner);
    let count = m.env.pool.as_int(c.inner.extent);
    let mut all = units.into_iter().flat_map(|unit| sizes(unit, count, slanted).into_iter().map(move |s| (unit, s)));
    all.any(|(unit, sizes)| {
        attempt(m, |m| match uses(m, k) {
            true => triangle(m, &c, (unit, sizes), vectors),
            false => tiles(m, stage, (unit, sizes)),
        })
    })
    .then_some(())
}

/// Tiles of the terms that their rows have in common; each row goes on from there.
fn triangle(
    m: &mut LoopModule,
    c: &Contraction,
    (unit, sizes): (IntrinsicId, [i64; 3]),
    vectors: Vectors,
) -> Option<()> {
    let ([row], [k]) = (c.rows.as_slice(), c.reduced.as_slice()) else { return None };
    let [high, _, steps] = sizes;
    let least = ends::least(m, k.extent, &[row.var], high)?;
    let whole = Formula::Call("floordiv".to_owned(), vec![least, Formula::Int(steps)]);
    let common = Formula::Bin('*', Box::new(whole), Box::new(Formula::Int(steps)));
    step(m, StepKind::OpSplit { points: vec![(c.nest.named(&k.name), common)] })?;
    let part = |m: &LoopModule, name: &str| m.env.tensor_named(&format!("{}.{name}", c.nest.stage));
    let (main, tail) = (part(m, "main")?, part(m, "tail")?);
    tiles(m, main, (unit, sizes))?;
    column_tiles(m, tail, vectors)
}

/// The same of rows with equally many terms, or whose tiles have.
fn tiles(m: &mut LoopModule, stage: TensorId, (unit, sizes): (IntrinsicId, [i64; 3])) -> Option<()> {
    let c = Contraction::of(m, stage)?;
    let ([rows, columns, _], [.., steps]) = (unit.get().tile, sizes);
    let ([k], nest) = (c.reduced.as_slice(), &c.nest) else { return None };
    let term = nest.iterator(m, k.var)?;
    let whole = divisible(&mut m.env.pool, k.extent, steps);
    let mut s = Steps { m, stage: nest.stage.clone() };
    let copy = if is_alone(&c) {
        in_tasks(&mut s, &c, (unit, sizes), whole)?
    } else {
        of_batches(&mut s, &c, (unit, sizes), whole)?
    };
    let sums = s.m.env.fresh_tensor_name(&format!("{}.acc", nest.stage));
    let [own, around] = if is_alone(&c) { ["ro", "tile"] } else { ["co", "ro"] };
    let (stage, at) = (nest.stage.clone(), s.named(own));
    step(s.m, StepKind::CacheWrite { stage, name: sums.clone(), scope: Scope::Reg, at })?;
    let as_it_lies = |a: &Read| is_along(s.m, a, term) && !reads_under_condition(s.m, &c, a.0);
    if !(rows == 1 && whole && c.a.as_ref().is_some_and(as_it_lies)) {
        // An instruction for one row takes few terms: more are copied at a time.
        let steps = if rows == 1 { COPIED } else { steps };
        rows_of_tile(s.m, &c, (&sums, nest.named(around)), (steps, whole))?;
    }
    let mut a = Steps { m: s.m, stage: sums };
    a.reorder(["ri", "ci", &k.name].map(str::to_owned).to_vec())?;
    a.relax("ri", false)?;
    a.relax("ci", false)?;
    a.split("ci", columns, "cc", "mj", Tail::Exact)?;
    a.split(&k.name, steps, "ko", "mk", Tail::Exact)?;
    if !whole {
        a.relax("mk", false)?;
    }
    let mut order = vec!["ko", "ri", "cc", "mj", "mk"];
    if rows > 1 {
        a.split("ri", rows, "rr", "mi", Tail::Exact)?;
        order = vec!["ko", "rr", "cc", "mi", "mj", "mk"];
    }
    a.reorder(order.iter().map(|&l| l.to_owned()).collect())?;
    let tile = a.named(order[3]);
    step(a.m, StepKind::Tensorize { target: tile.clone(), intrinsic: unit })?;
    a.unroll(&order[1..3])?;
    let mut s = Steps { m: a.m, stage: nest.stage.clone() };
    s.split("ci", columns, "cv", "cl", Tail::Exact)?;
    s.vectorize("cl", Some(columns))?;
    s.unroll(&["cv"])?;
    copied_in_order(s.m, &copy, unit, c.side_by_side(s.m))?;
    holds(m, &tile).then_some(())
}

/// Tasks of rows and of panels of columns of one product of two matrices; gives the copy of the columns' factor, made before, and
/// its loop over columns.
fn in_tasks(
    s: &mut Steps<'_>,
    c: &Contraction,
    (unit, [high, wide, _]): (IntrinsicId, [i64; 3]),
    whole: bool,
) -> Option<(String, String)> {
    let mut row = names(&c.rows);
    s.reorder([&row[..], &names(&[c.inner.clone(), c.reduced.first()?.clone()])].concat())?;
    if row.len() > 1 {
        s.fuse(&row, "row")?;
        row = vec!["row".to_owned()];
    }
    let copy = columns_in_blocks(s.m, c, (unit, wide), (CopyAt::Before, whole))?;
    s.split(&row[0], TASK / high * high, "task", "near", Tail::Exact)?;
    s.split("near", high, "ro", "ri", Tail::Exact)?;
    s.split(&c.inner.name, wide, "co", "ci", Tail::Exact)?;
    s.split("co", PANELS, "cb", "cp", Tail::Exact)?;
    let k = c.reduced.first()?.name.clone();
    s.reorder(["task", "cb", "cp", "ro", "ri", "ci", &k].map(str::to_owned).to_vec())?;
    s.fuse(&["task", "cb"].map(str::to_owned), "tile")?;
    Some(copy)
}

/// Tiles of rows for each product of a batch, with a copy of its columns' factor; gives that and its loop over columns.
fn of_batches(
    s: &mut Steps<'_>,
    c: &Contraction,
    (unit, [high, wide, _]): (IntrinsicId, [i64; 3]),
    whole: bool,
) -> Option<(String, String)> {
    let ([row], [k], nest) = (c.rows.as_slice(), c.reduced.as_slice(), &c.nest) else { return None };
    let slanted = s.m.env.pool.uses_var(c.inner.extent, row.var);
    let mut batch = names(&c.batches);
    let all = [batch.clone(), names(&[row.clone(), c.inner.clone(), k.clone()])].concat();
    s.reorder(all)?;
    if batch.len() > 1 {
        s.fuse(&batch, "batches")?;
        batch = vec!["batches".to_owned()];
    }
    let mut inner = c.inner.name.clone();
    let at = if !nest.attached && c.given(s.m) {
        // Panels of columns are tasks.
        if !slanted && nest.most(s.m, [&c.inner]) > PANEL {
            s.split(&inner, PANEL, "cg", "cn", Tail::Exact)?;
            batch.push("cg".to_owned());
            inner = "cn".to_owned();
            s.reorder([&batch[..], &[row.name.clone(), inner.clone(), k.name.clone()]].concat())?;
            s.fuse(&batch, "tile")?;
            batch = vec!["tile".to_owned()];
        }
        CopyAt::Loop(nest.named(batch.last()?))
    } else if let Some(l) = batch.last() {
        CopyAt::Loop(nest.named(l))
    } else {
        // Of terms whose number varies a task's copy has its zeros; it takes little beside the task's rows.
        around(s.m, s.m.env.tensor_named(&s.stage)?)
            .map(|l| if is_task(&l) && whole { CopyAt::Before } else { CopyAt::Loop(l) })?
    };
    let copy = columns_in_blocks(s.m, c, (unit, wide), (at, whole))?;
    if slanted {
        // All rows of a tile end in one column.
        let result = &s.m.env.tensors[s.m.env.tensor_named(&s.stage)?];
        let (tensor, dim) = (result.name.clone(), result.dims.last()?.name.clone());
        step(s.m, StepKind::PadDim { tensor, dim, multiple: high })?;
        step(s.m, StepKind::PadLoop { target: nest.at(&c.inner), multiple: high })?;
    }
    s.split(&row.name, high, "ro", "ri", Tail::Exact)?;
    s.split(&inner, wide, "co", "ci", Tail::Exact)?;
    s.reorder(["ro", "co", "ri", "ci", &k.name].map(str::to_owned).to_vec())?;
    Some(copy)
}

/// Whether terms have an element of this factor only where a condition holds.
fn reads_under_condition(m: &LoopModule, c: &Contraction, factor: TensorId) -> bool {
    let guarded = |n: &Expr| matches!(n, Expr::Load { tensor, guard: Some(_), .. } if *tensor == factor);
    m.env.pool.any(c.nest.block.value, &mut |n| guarded(n))
}

/// Copies the factor of the columns: panels of columns, in which blocks of terms follow each other, those that the instruction
/// takes together side by side for each column. Gives the copy and its loop over columns.
fn columns_in_blocks(
    m: &mut LoopModule,
    c: &Contraction,
    (unit, wide): (IntrinsicId, i64),
    (at, whole): (CopyAt, bool),
) -> Option<(String, String)> {
    let [_, _, steps] = unit.get().tile;
    let together = side_by_side(unit)?;
    let layout = c.in_panels(m, wide, |summed, column| match summed {
        &[step] => Some(vec![LayoutDim::whole(step), column]),
        _ => None,
    })?;
    let name = m.env.fresh_tensor_name(&format!("{}.packed", m.env.tensors[c.b.0].name));
    let (stage, tensor) = (c.nest.stage.clone(), m.env.tensors[c.b.0].name.clone());
    let before = at.as_loop().is_none();
    let scope = if before { Scope::Global } else { Scope::Local };
    let access = c.nest.access(m, &c.b);
    step(m, StepKind::CacheRead { stage, tensor, name: name.clone(), scope, at, layout, access })?;
    let copy = m.env.tensor_named(&name)?;
    let mut loops = names(&Nest::of(m, copy)?.loops);
    let (column, term) = (loops.pop()?, loops.pop()?);
    let dims: Vec<String> = m.env.tensors[copy].dims.iter().map(|d| d.name.clone()).collect();
    let [outer @ .., term_dim, column_dim] = dims.as_slice() else { return None };
    if before && !whole {
        step(m, StepKind::PadDim { tensor: name.clone(), dim: term_dim.clone(), multiple: steps })?;
    }
    let mut s = Steps { m, stage: name.clone() };
    s.split(&term, steps, "to", "ti", Tail::Exact)?;
    s.relax("ti", true)?;
    s.relax(&column, true)?;
    let [blocks, each] = ["to", "tt"].map(str::to_owned);
    let (dim, factor, inner) = (term_dim.clone(), together, each.clone());
    step(m, StepKind::SplitDim { tensor: name.clone(), dim, factor, outer: blocks.clone(), inner })?;
    let order = [outer, &[blocks, column_dim.clone(), each]].concat();
    step(m, StepKind::ReorderDims { tensor: name.clone(), order })?;
    Some((name, column))
}

/// Neighbours that it reads are read together.
fn copied_in_order(
    m: &mut LoopModule,
    (copy, column): &(String, String),
    unit: IntrinsicId,
    across: bool,
) -> Option<()> {
    let [_, columns, _] = unit.get().tile;
    let together = side_by_side(unit)?;
    let nest = Nest::of(m, m.env.tensor_named(copy)?)?;
    let own = |l: &String| ["to", "ti", column].contains(&l.as_str());
    let mut order: Vec<String> = names(&nest.loops).into_iter().filter(|l| !own(l)).collect();
    let mut s = Steps { m, stage: copy.clone() };
    s.split("ti", together, "tb", "tt", Tail::Exact)?;
    if across {
        s.split(column, columns, "cv", "cl", Tail::Exact)?;
        order.extend(["to", "tb", "cv", "tt", "cl"].map(str::to_owned));
        s.reorder(order)?;
        s.unroll(&["tt"])?;
        let _ = s.vectorize("cl", Some(columns));
    } else {
        order.extend([column, "to", "tb", "tt"].map(str::to_owned));
        s.reorder(order)?;
        let _ = s.vectorize("tt", Some(together));
    }
    Some(())
}

/// Copies the rows of a tile, with zeros after their last terms unless these are `whole` tiles.
fn rows_of_tile(
    m: &mut LoopModule,
    c: &Contraction,
    (sums, at): (&str, LoopRef),
    (steps, whole): (i64, bool),
) -> Option<()> {
    let (stage, last) = near(m, c, sums, at)?;
    let mut s = Steps { m, stage };
    if whole {
        let _ = s.vectorize(&last, Some(steps));
        return Some(());
    }
    s.split(&last, steps, "to", "ti", Tail::Exact)?;
    s.relax("ti", true)?;
    let _ = s.vectorize("ti", None);
    Some(())
}
