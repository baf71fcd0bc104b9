//! Contractions of few rows, of which both factors have their terms side by side: several dot products at a time.
//!
//! ```text
//! for j { for k { S[i, j] += A[i, k] * B[j, k] } }
//!   =>  for jo { for ko { for i, ji (unrolled) { for ki (lanes) { S[i, j] += A[i, k] * B[j, k] } } } }
//! ```
//!
//! A copy of B with its columns side by side, as tiles of vectors read it, would take longer than what few rows compute of it.
//! Likewise contractions of few columns, with tiles of rows.

use super::contraction::{Contraction, names};
use super::copies::{copy_along, outside};
use super::nest::{Loop, is_along, moves_by_one};
use super::squares::FEWEST;
use super::steps::Steps;
use super::{Form, Registers, step};
use cora_ir::intrinsic::Vectors;
use cora_ir::loops::LoopModule;
use cora_ir::schedule::{StepKind, Tail};
use cora_ir::{Scope, TensorId};

/// Rows of which each column is read once for all.
pub(super) const ROWS: i64 = 4;

/// Tiles of all rows and a few columns, a lane of each for every term.
pub(super) fn dot_tiles(m: &mut LoopModule, stage: TensorId, vectors: Vectors) -> Option<()> {
    let registers = Registers::of(m, stage, vectors);
    let c = Contraction::of(m, stage)?;
    let (term, outer) = c.reduced.split_last()?;
    let iter = c.nest.iterator(m, term.var)?;
    let rows = c.nest.most(m, &c.rows);
    let side_by_side = c.a.is_some() && c.nest.reads(m).iter().all(|r| moves_by_one(m, &r.1, iter));
    let long = m.env.pool.as_int(term.extent).is_none_or(|n| n >= registers.lanes);
    // The dot products of a tile must be equally long.
    let mut tiled = c.rows.iter().chain(&c.columns).chain([&c.inner]);
    if rows > ROWS || !side_by_side || !long || tiled.any(|l| m.env.pool.uses_var(term.extent, l.var)) {
        return None;
    }
    let columns = (sums_of_tile(registers) / rows.max(1)).min(8);
    // As the elements of the columns' factor lie, so that they are read in order.
    let place =
        |l: &&Loop| c.b.1.iter().position(|&e| c.nest.iterator(m, l.var).is_some_and(|v| m.env.pool.uses_var(e, v)));
    let mut tiles: Vec<Loop> = c.batches.iter().chain(&c.columns).chain([&c.inner]).cloned().collect();
    tiles.sort_by_key(|l| place(&l).map_or(0, |p| p + 1));
    let (tiles, inner, outer) = (names(&tiles), c.inner.name.clone(), names(outer));
    let reduced = [&outer[..], std::slice::from_ref(&term.name)].concat();
    let mut s = Steps { m, stage: c.nest.stage.clone() };
    in_registers(&mut s, tiles, (&inner, columns, true), names(&c.rows), &reduced, registers.lanes)
}

/// Tiles of a few rows and all columns, of which there are few: a vector of columns would be half empty. Where the factor of
/// the columns has its terms apart, they are side by side in a copy.
pub(super) fn dots_of_rows(m: &mut LoopModule, stage: TensorId, vectors: Vectors) -> Option<()> {
    let registers = Registers::of(m, stage, vectors);
    let c = Contraction::of(m, stage).filter(|c| !c.nest.attached && c.a.is_some())?;
    let ([term], Some((row, others))) = (c.reduced.as_slice(), c.rows.split_last()) else { return None };
    let iter = c.nest.iterator(m, term.var)?;
    let count = |n: i64, l: &Loop| n.checked_mul(m.env.pool.as_int(l.extent)?);
    let columns =
        c.columns.iter().chain([&c.inner]).try_fold(1, count).filter(|n| (2..=registers.lanes / 2).contains(n))?;
    let long = m.env.pool.constant_bound(term.extent).is_none_or(|n| n >= 4 * registers.lanes);
    let rows_along = c.a.as_ref().is_some_and(|a| is_along(m, a, iter));
    if !rows_along || !long || c.nest.most(m, &c.rows) <= ROWS {
        return None;
    }
    if !is_along(m, &c.b, iter) {
        let at = outside(m, c.b.0);
        copy_along(m, &c.nest, &c.b, iter, at)?;
    }
    let tiles = names(&[&c.batches[..], others, std::slice::from_ref(row)].concat());
    let own = names(&[&c.columns[..], std::slice::from_ref(&c.inner)].concat());
    // The dot products of a tile must be equally long.
    let apart = m.env.pool.uses_var(term.extent, row.var);
    let rows = if apart { 1 } else { (sums_of_tile(registers) / columns).min(8) };
    let mut s = Steps { m, stage: c.nest.stage.clone() };
    in_registers(&mut s, tiles, (&row.name, rows, false), own, std::slice::from_ref(&term.name), registers.lanes)
}

/// How many vectors of sums a tile has.
fn sums_of_tile(registers: Registers) -> i64 {
    match registers.form() {
        Form::Few => 8,
        Form::Short | Form::Long => 16,
    }
}

/// Orders loops as `tiles`, of which `split` is cut in as many as said, around the dot products of `own` and of those, a lane
/// of each for every term. `neighbours`: those that are split are written side by side.
fn in_registers(
    s: &mut Steps,
    mut tiles: Vec<String>,
    (split, factor, neighbours): (&str, i64, bool),
    own: Vec<String>,
    reduced: &[String],
    lanes: i64,
) -> Option<()> {
    let mut own = own;
    if factor > 1 {
        let at = tiles.iter().position(|l| l == split)?;
        s.split(split, factor, "co", "ci", Tail::Exact)?;
        "co".clone_into(&mut tiles[at]);
        own.push("ci".to_owned());
    }
    let (term, outer) = reduced.split_last()?;
    s.reorder([&tiles[..], &own, reduced].concat())?;
    let name = s.m.env.fresh_tensor_name(&format!("{}.acc", s.stage));
    let (of, near) = (s.stage.clone(), s.named(tiles.last()?));
    step(s.m, StepKind::CacheWrite { stage: of, name: name.clone(), scope: Scope::Reg, at: near })?;
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    let mut a = s.of(&name);
    a.split(term, lanes, "ko", "ki", Tail::Exact)?;
    let inside = [&["ko"][..], &own, &["ki"]].concat();
    a.reorder(outer.iter().map(String::as_str).chain(inside).map(str::to_owned).collect())?;
    a.vectorize("ki", Some(lanes))?;
    a.unroll(&own)?;
    let (last, rows) = own.split_last()?;
    if neighbours && factor >= FEWEST && factor.count_ones() == 1 {
        s.vectorize(last, Some(factor))?;
    } else {
        s.unroll(&[last])?;
    }
    s.unroll(rows)?;
    // Where nobody else sees the results, a tile leaves the registers whole: no masks and no branches.
    for l in &own {
        let _ = s.of(&name).relax(l, false);
        let _ = s.relax(l, false);
    }
    Some(())
}
