//! Copies that change the order of dimensions, in squares of vectors, which code generation loads and stores whole.
//!
//! ```text
//! for d { for t { Y[d, t] = X[t, d] } }
//!   =>  for do { for to { for di in 0..16 (unrolled) { for ti in 0..16 (lanes) { Y[d, t] = X[t, d] } } } }
//! ```
//!
//! Where rows of a variable length are read along, what is left of a row is copied element by element.

use super::contraction::Read;
use super::copies::{copy_along, in_squares};
use super::nest::{Loop, Nest, is_along};
use super::steps::Steps;
use super::tiles::Tile;
use super::{Registers, step};
use cora_ir::intrinsic::Vectors;
use cora_ir::loops::{BlockRole, LoopModule};
use cora_ir::schedule::{CopyAt, StepKind, Tail};
use cora_ir::{Expr, TensorId};

/// Lanes of a square, at least.
pub(super) const FEWEST: i64 = 4;
/// Vectors of a line of a tile of elements.
const WIDE: i64 = 16;

/// Squares of the loops along which a copy reads and along which it writes.
pub(super) fn squares(m: &mut LoopModule, stage: TensorId, vectors: Vectors) -> Option<()> {
    let lanes = Registers::of(m, stage, vectors).lanes;
    let nest = Nest::of(m, stage)?;
    if nest.block.role != BlockRole::Compute {
        return None;
    }
    let Expr::Load { index, .. } = m.env.pool.get(nest.block.value) else { return None };
    // The loop that moves a last position, and moves it by one.
    let last = |e| nest.loops.iter().find(|l| nest.iterator(m, l.var).is_some_and(|v| m.env.pool.as_var(e) == Some(v)));
    let (read, written) = (last(*index.last()?)?.clone(), last(*nest.block.index.last()?)?.clone());
    let others = nest.loops.iter().filter(|l| l.var != read.var && l.var != written.var).map(|l| l.name.clone());
    let Some(count) = m.env.pool.as_int(read.extent) else {
        let whole = m.env.pool.as_int(written.extent).is_some_and(|n| n % lanes == 0);
        let order = others.chain([read.name, written.name]).collect();
        if lanes < FEWEST || !whole {
            return None;
        }
        return in_parts(&mut Steps { m, stage: nest.stage }, order, lanes, true);
    };
    let long = |l: &Loop| m.env.pool.constant_bound(l.extent).is_none_or(|n| n >= lanes);
    // Rows of a variable length are variably far apart, and each lane of a part of a square would ask whether it is there.
    let lanes = (FEWEST.ilog2()..=lanes.ilog2()).rev().map(|n| 1 << n).find(|n| count % n == 0)?;
    let apart = !m.env.pool.uses_var(written.extent, read.var);
    if read.var == written.var || !long(&written) || !apart {
        return None;
    }
    let mut s = Steps { m, stage: nest.stage.clone() };
    s.split(&read.name, lanes, "ro", "ri", Tail::Exact)?;
    s.split(&written.name, lanes, "wo", "wi", Tail::Exact)?;
    let order = others.chain(["ro", "wo", "ri", "wi"].map(str::to_owned)).collect();
    s.reorder(order)?;
    s.unroll(&["ri"])?;
    s.vectorize("wi", Some(lanes))
}

/// Elements of something that lies across their own order: a tile of that is copied in squares, and read along.
pub(super) fn elements_across(m: &mut LoopModule, stage: TensorId, vectors: Vectors) -> Option<()> {
    let registers = Registers::of(m, stage, vectors);
    let (nest, lanes) = (Nest::of(m, stage)?, registers.lanes);
    let column = m.env.pool.as_var(*nest.block.index.last()?)?;
    let across: Vec<Read> = nest.reads(m).into_iter().filter(|r| !is_along(m, r, column)).collect();
    let over = m.env.pool.as_var(*across.first()?.1.last()?)?;
    let moved = |r: &Read, v| r.1.iter().filter(|&&e| m.env.pool.uses_var(e, v)).count();
    let turned =
        |r: &Read| m.env.pool.as_var(r.1[r.1.len() - 1]) == Some(over) && moved(r, over) == 1 && moved(r, column) == 1;
    let of = |v| nest.loops.iter().find(|l| nest.iterator(m, l.var) == Some(v));
    let (read, written) = (of(over)?, of(column)?);
    let fits = |l: &Loop, by: &Loop| {
        m.env.pool.as_int(l.extent).is_none_or(|n| n % lanes == 0) && !m.env.pool.uses_var(l.extent, by.var)
    };
    if nest.block.role != BlockRole::Compute || lanes < FEWEST || !across.iter().all(turned) {
        return None;
    }
    if !fits(read, written) || !fits(written, read) {
        return None;
    }
    // A tile has a vector of rows of a variable length, and all of the other dimension that stays near.
    let longer = m.env.pool.as_int(read.extent).is_none() || m.env.pool.as_int(written.extent).is_some();
    let other = m.env.pool.as_int(if longer { written.extent } else { read.extent });
    let divides = |w: &i64| other.is_none_or(|n| n % w == 0);
    let line = (1..=WIDE).rev().map(|n| n * lanes).find(divides)?;
    let (high, wide) = if longer { (lanes, line) } else { (line, lanes) };
    let others = nest.loops.iter().filter(|l| l.var != read.var && l.var != written.var).map(|l| l.name.clone());
    let mut s = Steps { m, stage: nest.stage.clone() };
    s.split(&read.name, high, "ro", "ri", Tail::Exact)?;
    s.split(&written.name, wide, "wo", "wi", Tail::Exact)?;
    let outer = if longer { ["ro", "wo"] } else { ["wo", "ro"] };
    s.reorder(others.chain(outer.into_iter().chain(["ri", "wi"]).map(str::to_owned)).collect())?;
    let at = CopyAt::Loop(s.named(outer[1]));
    let tile = Tile { columns: wide, ..registers.broad() };
    for read in across {
        let copy = copy_along(m, &nest, &read, column, at.clone())?;
        let copy = Nest::of(m, copy)?;
        in_squares(m, &copy, tile)?;
    }
    Steps { m, stage: nest.stage }.vectorize("wi", Some(lanes))
}

/// Squares of the last two loops in an order, of which the first, of a variable extent, fills some, and the other whole ones.
/// All loops but those of a square are one if they are to be `fused`.
pub(super) fn in_parts(s: &mut Steps, mut order: Vec<String>, lanes: i64, fused: bool) -> Option<()> {
    let (other, longer) = (order.pop()?, order.pop()?);
    s.split(&other, lanes, "wo", "wi", Tail::Exact)?;
    s.split(&longer, lanes, "ro", "ri", Tail::Exact)?;
    order.push("ro".to_owned());
    s.reorder(order.iter().cloned().chain(["wo", "wi", "ri"].map(str::to_owned)).collect())?;
    let mut parts = "ro";
    if fused && order.len() > 1 {
        s.fuse(&order, "row")?;
        parts = "row";
    }
    step(s.m, StepKind::Peel { target: s.named(parts), few: None })?;
    let mut main = Steps { m: s.m, stage: format!("{}.main", s.stage) };
    main.unroll(&["wi"])?;
    main.vectorize("ri", Some(lanes))
}
