//! Contractions with a loop whose extent depends on the row: more terms from row to row, or more columns.

use super::columns::column_tiles;
use super::contraction::{
    Contraction, PANELS, UNROLL, accumulate, fuse, names, panels, reorder, row_tiles, split, unroll_steps,
};
use super::copies::{around, pack};
use super::nest::{Loop, Nest};
use super::tiles::Tile;
use super::{Registers, attempt, ends, innermost, step};
use cora_ir::affine::{normalize, poly};
use cora_ir::intrinsic::Vectors;
use cora_ir::loops::LoopModule;
use cora_ir::schedule::{CopyAt, StepKind};
use cora_ir::{ExprId, TensorId};

/// A contraction whose reduced loop grows by one from row to row: padded to the rows of a tile, so that all rows of a
/// tile reduce equally long.
fn stairs(m: &mut LoopModule, c: &Contraction, row: &str, reduced: &str, tile: Tile) -> Option<()> {
    let count = m.env.pool.constant_bound(c.inner.extent).map(|n| n / tile.columns);
    if !c.has_batches() && count.is_some_and(|n| n < PANELS) {
        return None;
    }
    step(m, StepKind::PadLoop { target: c.nest.named(reduced), multiple: tile.rows })?;
    panels(m, c, row, tile, Some(tile.rows))
}

/// A contraction whose reduced loop is longer from row to row, as in a triangle: up to what the rows of a tile have in
/// common it is tiled, and the rest of each row goes on from there.
pub(super) fn triangle(m: &mut LoopModule, stage: TensorId, vectors: Vectors) -> Option<()> {
    let registers = Registers::of(m, stage, vectors);
    let c = Contraction::of(m, stage)?;
    let ([row], [reduced]) = (c.rows.as_slice(), c.reduced.as_slice()) else { return None };
    if !m.env.pool.uses_var(reduced.extent, row.var) || c.is_thin(m, registers.lanes) {
        return None;
    }
    if attempt(m, |m| stairs(m, &c, &row.name, &reduced.name, registers.broad())) {
        return Some(());
    }
    let tile = c.tile(m, registers, c.side_by_side(m));
    let least = without_constant(m, reduced.extent);
    let common = ends::least(m, least, &[row.var], tile.rows)?;
    step(m, StepKind::OpSplit { points: vec![(c.nest.named(&reduced.name), common)] })?;
    let part = |m: &LoopModule, name: &str| m.env.tensor_named(&format!("{}.{name}", c.nest.stage));
    let (main, tail) = (part(m, "main")?, part(m, "tail")?);
    row_tiles(m, main, vectors)?;
    column_tiles(m, tail, vectors)
}

/// A contraction whose reduced loop is longer from column to column, as in a triangle on the right: up to what the columns of a
/// tile have in common it is tiled; of the rest all columns of a tile are given as many terms, some of which are none of
/// theirs.
pub(super) fn leaning(m: &mut LoopModule, stage: TensorId, vectors: Vectors) -> Option<()> {
    let registers = Registers::of(m, stage, vectors);
    let c = Contraction::of(m, stage)?;
    let [reduced] = c.reduced.as_slice() else { return None };
    let uses = |l: &Loop| m.env.pool.uses_var(reduced.extent, l.var);
    if c.rows.is_empty() || !uses(&c.inner) || c.rows.iter().any(uses) || c.is_thin(m, registers.lanes) {
        return None;
    }
    let tile = c.tile(m, registers, true);
    let least = without_constant(m, reduced.extent);
    let common = ends::least(m, least, &[c.inner.var], tile.columns)?;
    let most = ends::greatest(m, reduced.extent, &[c.inner.var], tile.columns)?;
    step(m, StepKind::PadLoopTo { target: c.nest.at(reduced), extent: most })?;
    step(m, StepKind::OpSplit { points: vec![(c.nest.named(&reduced.name), common)] })?;
    let part = |m: &LoopModule, name: &str| m.env.tensor_named(&format!("{}.{name}", c.nest.stage));
    let (main, tail) = (part(m, "main")?, part(m, "tail")?);
    let whole = attempt(m, |m| row_tiles(m, main, vectors));
    if !whole {
        tiles(m, &c, main, tile)?;
    }
    tiles(m, &c, tail, tile)
}

/// A part of a contraction in tiles of rows and columns, which reads both factors where they are, or a copy of those columns.
fn tiles(m: &mut LoopModule, c: &Contraction, part: TensorId, tile: Tile) -> Option<()> {
    let nest = Nest::of(m, part)?;
    let (row, rows) = c.rows.split_last()?;
    split(m, &nest, &row.name, tile.rows, "ro", "ri")?;
    split(m, &nest, &c.inner.name, tile.columns, "co", "ci")?;
    let around = [names(&c.batches), names(rows), names(&c.columns)].concat();
    let own = [names(&c.reduced), vec!["ri".to_owned(), "ci".to_owned()]].concat();
    let [ro, co] = ["ro", "co"].map(str::to_owned);
    if c.side_by_side(m) {
        reorder(m, &nest, [around, vec![ro, co], own].concat())?;
        accumulate(m, &nest, "co", &["ri"], ("ci", tile.lanes, tile.whole), None)?;
    } else {
        reorder(m, &nest, [around, vec![co, ro], own].concat())?;
        // The terms of the rest begin elsewhere in each column: by itself it would be taken for no contraction.
        let b = nest.reads(m).into_iter().find(|r| r.0 == c.b.0)?;
        let column = m.env.pool.as_var(*nest.block.index.last()?)?;
        let at = CopyAt::Loop(nest.named("co"));
        let part = Contraction { nest, column, b, ..c.clone() };
        pack(m, &part, tile, at)?;
        accumulate(m, &part.nest, "ro", &["ri"], ("ci", tile.lanes, tile.whole), None)?;
    }
    Some(())
}

/// A contraction with more columns from row to row, as a triangle of results: columns are padded to the rows of a tile, so
/// that all rows of a tile end in one column. All columns of a batch are copied in panels, zeros beside the last ones.
pub(super) fn slanted(m: &mut LoopModule, stage: TensorId, vectors: Vectors) -> Option<()> {
    let tile = Registers::of(m, stage, vectors).slanted();
    let c = Contraction::of(m, stage)?;
    let (nest, (row, others)) = (&c.nest, c.rows.split_last()?);
    let uses = |l: &Loop, of: &Loop| m.env.pool.uses_var(l.extent, of.var);
    if !uses(&c.inner, row) || c.reduced.iter().any(|k| uses(k, row)) || tile.columns % tile.rows != 0 {
        return None;
    }
    let mut tasks = [names(&c.batches), names(others), names(&c.columns)].concat();
    let own = [vec![row.name.clone(), c.inner.name.clone()], names(&c.reduced)].concat();
    reorder(m, nest, [tasks.clone(), own].concat())?;
    if tasks.len() > 1 {
        fuse(m, nest, &tasks, "tile")?;
        tasks = vec!["tile".to_owned()];
    }
    let at = match tasks.first() {
        Some(l) => nest.named(l),
        None => around(m, stage)?,
    };
    // Copied before columns are padded: what is filled beyond the last column is read as it is then.
    pack(m, &c, tile, CopyAt::Loop(at))?;
    let result = &m.env.tensors[stage];
    let (tensor, dim) = (result.name.clone(), result.dims.last()?.name.clone());
    step(m, StepKind::PadDim { tensor, dim, multiple: tile.rows })?;
    step(m, StepKind::PadLoop { target: nest.at(&c.inner), multiple: tile.rows })?;
    split(m, nest, &row.name, tile.rows, "ro", "ri")?;
    split(m, nest, &c.inner.name, tile.columns, "co", "ci")?;
    let [ro, co, ri, ci] = ["ro", "co", "ri", "ci"].map(str::to_owned);
    // The tasks hold the copy, too.
    reorder(m, nest, [vec![ro, co], names(&c.reduced), vec![ri, ci]].concat())?;
    let sums = accumulate(m, nest, "co", &["ri"], ("ci", tile.lanes, tile.whole), None)?;
    unroll_steps(m, &sums, &c.reduced.last()?.name, UNROLL)
}

/// One with more columns from row to row whose ends are not together in a tile, as where each row of a chunk reads what came
/// before the chunk, too: the columns that the rows of a tile have in common are tiled, the others computed one by one.
pub(super) fn slanted_beyond(m: &mut LoopModule, stage: TensorId, vectors: Vectors) -> Option<()> {
    let registers = Registers::of(m, stage, vectors);
    let c = Contraction::of(m, stage)?;
    let [row] = c.rows.as_slice() else { return None };
    let uses = |l: &Loop| m.env.pool.uses_var(l.extent, row.var);
    if !uses(&c.inner) || c.reduced.iter().any(uses) || c.is_thin(m, registers.lanes) {
        return None;
    }
    let tile = c.tile(m, registers, c.side_by_side(m));
    let least = without_constant(m, c.inner.extent);
    let common = ends::least(m, least, &[row.var], tile.rows)?;
    let outside = if c.batches.is_empty() { Some(around(m, stage)?) } else { None };
    step(m, StepKind::OpSplit { points: vec![(c.nest.at(&c.inner), common)] })?;
    let part = |m: &LoopModule, name: &str| m.env.tensor_named(&format!("{}.{name}", c.nest.stage));
    let (main, tail) = (part(m, "main")?, part(m, "tail")?);
    let c = Contraction::of(m, main)?;
    let tasks = [names(&c.batches), names(&c.columns)].concat();
    let own = [vec![row.name.clone(), c.inner.name.clone()], names(&c.reduced)].concat();
    reorder(m, &c.nest, [tasks.clone(), own].concat())?;
    let at = match outside {
        Some(at) => at,
        None => c.nest.named(tasks.last()?),
    };
    pack(m, &c, tile, CopyAt::Loop(at))?;
    split(m, &c.nest, &row.name, tile.rows, "ro", "ri")?;
    split(m, &c.nest, &c.inner.name, tile.columns, "co", "ci")?;
    let [ro, co, ri, ci] = ["ro", "co", "ri", "ci"].map(str::to_owned);
    reorder(m, &c.nest, [vec![ro, co], names(&c.reduced), vec![ri, ci]].concat())?;
    let sums = accumulate(m, &c.nest, "co", &["ri"], ("ci", tile.lanes, tile.whole), None)?;
    unroll_steps(m, &sums, &c.reduced.last()?.name, UNROLL)?;
    innermost(m, tail, vectors)
}

/// An extent without what it has more than nothing in any row: there is a last term, or column, of each row then beyond what
/// rows have in common.
fn without_constant(m: &mut LoopModule, extent: ExprId) -> ExprId {
    let pool = &mut m.env.pool;
    let p = poly(pool, extent);
    let constant = p.terms.get(&Vec::new()).copied().unwrap_or(0).max(0);
    let constant = pool.int(constant);
    let rest = pool.sub(extent, constant);
    normalize(pool, rest)
}
