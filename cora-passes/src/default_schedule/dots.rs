//! Contractions of few rows, of which both factors have their terms side by side: several dot products at a time.
//!
//! ```text
//! for j { for k { S[i, j] += A[i, k] * B[j, k] } }
//!   =>  for jo { for ko { for i, ji (unrolled) { for ki (lanes) { S[i, j] += A[i, k] * B[j, k] } } } }
//! ```
//!
//! A copy of B with its columns side by side, as tiles of vectors read it, would take longer than what few rows compute of it.

use super::contraction::{Contraction, names};
use super::nest::{Loop, moves_by_one};
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
    let sums = match registers.form() {
        Form::Few => 8,
        Form::Short | Form::Long => 16,
    };
    let columns = (sums / rows.max(1)).min(8);
    // As the elements of the columns' factor lie, so that they are read in order.
    let place =
        |l: &&Loop| c.b.1.iter().position(|&e| c.nest.iterator(m, l.var).is_some_and(|v| m.env.pool.uses_var(e, v)));
    let mut tiles: Vec<Loop> = c.batches.iter().chain(&c.columns).chain([&c.inner]).cloned().collect();
    tiles.sort_by_key(|l| place(&l).map_or(0, |p| p + 1));
    let mut tiles = names(&tiles);
    let (at, inner) = (tiles.iter().position(|l| *l == c.inner.name)?, c.inner.name.clone());
    let (row, outer, term) = (names(&c.rows), names(outer), term.name.clone());
    let mut s = Steps { m, stage: c.nest.stage.clone() };
    s.split(&inner, columns, "co", "ci", Tail::Exact)?;
    "co".clone_into(&mut tiles[at]);
    let own = [&row[..], &["ci".to_owned()]].concat();
    s.reorder([&tiles[..], &own, &outer, std::slice::from_ref(&term)].concat())?;
    let name = s.m.env.fresh_tensor_name(&format!("{}.acc", s.stage));
    let (of, near) = (s.stage.clone(), s.named(tiles.last()?));
    step(s.m, StepKind::CacheWrite { stage: of, name: name.clone(), scope: Scope::Reg, at: near })?;
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    let mut a = s.of(&name);
    a.split(&term, registers.lanes, "ko", "ki", Tail::Exact)?;
    let inside = [&["ko"][..], &own, &["ki"]].concat();
    a.reorder(outer.iter().map(String::as_str).chain(inside).map(str::to_owned).collect())?;
    a.vectorize("ki", Some(registers.lanes))?;
    a.unroll(&own)?;
    s.unroll(&own)
}
