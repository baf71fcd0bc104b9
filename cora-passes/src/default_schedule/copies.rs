//! Copies of a contraction's factors, mostly that of the columns, as a tile reads them.

use super::constants::{compute_in_copy, is_constant};
use super::contraction::{Contraction, Read, names, reorder};
use super::nest::{Loop, Nest};
use super::squares::{FEWEST, in_parts};
use super::steps::Steps;
use super::tiles::Tile;
use super::{attempt, step};
use crate::schedule::tree::{enclosing, stage_loops};
use cora_ir::loops::{Iter, LoopModule};
use cora_ir::schedule::{CopyAt, DimRef, LayoutDim, LoopRef, StepKind, Tail};
use cora_ir::{ExprId, Role, Scope, TensorId, VarId};

/// Copies the factor in panels of a tile's columns with the reduced dimensions outside them, so that a tile reads it in
/// order; with zeros beside the last columns.
pub(super) fn pack(m: &mut LoopModule, c: &Contraction, tile: Tile, at: CopyAt) -> Option<()> {
    let constant = at == CopyAt::Before && is_constant(m, c.b.0);
    let copy = copy_in_panels(m, c, tile, at)?;
    if constant {
        compute_in_copy(m, copy);
    }
    Some(())
}

fn copy_in_panels(m: &mut LoopModule, c: &Contraction, tile: Tile, at: CopyAt) -> Option<TensorId> {
    let near = at.as_loop().is_some();
    if near && c.scattered(m) {
        return None;
    }
    let mut layout = c.in_panels(m, tile.columns, |summed, column| {
        Some(summed.iter().copied().map(LayoutDim::whole).chain([column]).collect())
    })?;
    if at == CopyAt::Before {
        // Of a dimension in which one position is read, that one.
        let moves = |l: &LayoutDim| !matches!(l.dim, DimRef::At(d) if m.env.pool.as_int(c.b.1[d]).is_some());
        layout.retain(moves);
    }
    let name = m.env.fresh_tensor_name(&format!("{}.packed", m.env.tensors[c.b.0].name));
    let access = c.nest.access(m, &c.b);
    let (stage, tensor) = (c.nest.stage.clone(), m.env.tensors[c.b.0].name.clone());
    let scope = if near { Scope::Local } else { Scope::Global };
    step(m, StepKind::CacheRead { stage, tensor, name: name.clone(), scope, at: at.clone(), layout, access })?;
    let new = m.env.tensor_named(&name)?;
    let copy = Nest::of(m, new)?;
    let last = copy.loops.last()?.clone();
    let again = at != CopyAt::Setup;
    if again && attempt(m, |m| in_squares(m, &copy, tile)) {
        return Some(new);
    }
    // Panels are whole: the last one is read like the others.
    let whole = step(m, StepKind::Relax { target: copy.at(&last), zero: true });
    if near {
        whole?;
    }
    if again && let Some(order) = along_rows(m, &copy) {
        return reorder(m, &copy, order).map(|()| new);
    }
    // Written once: not worth a refusal.
    let _ = step(m, StepKind::Vectorize { target: copy.at(&last), width: Some(tile.lanes) });
    Some(new)
}

/// Copies a block of the factor's terms for the tiles of rows and columns inside a loop, which read it in order: as it is,
/// neighbouring terms share few places of a cache. `only`: another read of the same tensor is copied already.
pub(super) fn copy_block(m: &mut LoopModule, c: &Contraction, tile: Tile, at: LoopRef, only: bool) -> Option<()> {
    let access = if only { None } else { c.nest.access(m, &c.b) };
    copy_terms(m, c, (c.b.0, access), tile, at)
}

/// Copies a block of the terms of the rows' factor, whose rows are neighbours, for the tiles inside a loop.
pub(super) fn copy_rows(m: &mut LoopModule, c: &Contraction, a: &Read, tile: Tile, at: LoopRef) -> Option<()> {
    let access = c.nest.access(m, a);
    copy_terms(m, c, (a.0, access), tile, at)
}

fn copy_terms(
    m: &mut LoopModule,
    c: &Contraction,
    (tensor, access): (TensorId, Option<usize>),
    tile: Tile,
    at: LoopRef,
) -> Option<()> {
    let name = m.env.fresh_tensor_name(&format!("{}.block", m.env.tensors[tensor].name));
    let (stage, tensor) = (c.nest.stage.clone(), m.env.tensors[tensor].name.clone());
    let (scope, at, layout) = (Scope::Local, CopyAt::Loop(at), Vec::new());
    step(m, StepKind::CacheRead { stage, tensor, name: name.clone(), scope, at, layout, access })?;
    let copy = Nest::of(m, m.env.tensor_named(&name)?)?;
    let (mut order, inside): (Vec<Loop>, Vec<Loop>) = copy.loops.iter().cloned().partition(|l| l.name == "kk");
    order.extend(inside);
    reorder(m, &copy, names(&order))?;
    let last = order.last()?;
    // With zeros beside the last columns; a refusal leaves their masks.
    let _ = step(m, StepKind::Relax { target: copy.at(last), zero: true });
    Steps { m, stage: name }.vectorize(&last.name, Some(tile.lanes))
}

/// A copy of neighbours that it writes apart, in squares of vectors, which code generation loads and stores whole. Beside the
/// last columns it has others again.
pub(super) fn in_squares(m: &mut LoopModule, copy: &Nest, tile: Tile) -> Option<()> {
    let mut order = along_rows(m, copy)?;
    let (read, written) = (order.pop()?, copy.loops.last()?.name.clone());
    let long = m.env.pool.as_int(copy.loops.iter().find(|l| l.name == read)?.extent);
    if tile.lanes < FEWEST || long.is_some_and(|n| n % tile.lanes != 0) || tile.columns % tile.lanes != 0 {
        return None;
    }
    order.retain(|l| *l != written);
    let mut s = Steps { m, stage: copy.stage.clone() };
    s.relax(&written, false)?;
    if long.is_none() {
        return in_parts(&mut s, order.into_iter().chain([read, written]).collect(), tile.lanes, false);
    }
    s.split(&written, tile.lanes, "wo", "wi", Tail::Exact)?;
    s.split(&read, tile.lanes, "ro", "ri", Tail::Exact)?;
    s.reorder(order.into_iter().chain(["wo", "ro", "wi", "ri"].map(str::to_owned)).collect())?;
    s.unroll(&["wi"])?;
    s.vectorize("ri", Some(tile.lanes))
}

/// The order of a copy's loops in which it reads neighbours one after the other, if that is another one.
fn along_rows(m: &LoopModule, copy: &Nest) -> Option<Vec<String>> {
    let (pool, reads) = (&m.env.pool, copy.reads(m));
    let [(_, index)] = reads.as_slice() else { return None };
    let moves = |i: &Iter| pool.uses_var(*index.last()?, i.var).then_some(i.binding);
    let bindings: Vec<ExprId> = copy.block.iters.iter().filter_map(moves).collect();
    let moved = |l: &Loop| bindings.iter().any(|&b| pool.uses_var(b, l.var));
    let (neighbours, mut order): (Vec<Loop>, Vec<Loop>) = copy.loops.iter().cloned().partition(moved);
    let [neighbours] = neighbours.as_slice() else { return None };
    order.push(neighbours.clone());
    (neighbours.var != copy.loops.last()?.var).then(|| names(&order))
}

/// Copies the factor with the columns' dimension innermost, where all rows can use the copy.
pub(super) fn transpose(m: &mut LoopModule, c: &Contraction, at: LoopRef) -> Option<()> {
    let moved = c.b.1.iter().filter(|&&e| m.env.pool.uses_var(e, c.column)).count();
    if c.scattered(m) || moved != 1 {
        return None;
    }
    copy_along(m, &c.nest, &c.b, c.column, CopyAt::Loop(at)).map(|_| ())
}

/// Copies what a stage reads with the dimensions that move with an iterator innermost; gives the copy's stage.
pub(super) fn copy_along(m: &mut LoopModule, nest: &Nest, read: &Read, iter: VarId, at: CopyAt) -> Option<TensorId> {
    let (moved, others): (Vec<usize>, Vec<usize>) =
        (0..read.1.len()).partition(|&d| m.env.pool.uses_var(read.1[d], iter));
    let layout = others.into_iter().chain(moved).map(LayoutDim::whole).collect();
    let name = m.env.fresh_tensor_name(&format!("{}.copy", nest.stage));
    let scope = if at.as_loop().is_some() { Scope::Local } else { Scope::Global };
    let access = nest.access(m, read);
    let (stage, tensor) = (nest.stage.clone(), m.env.tensors[read.0].name.clone());
    step(m, StepKind::CacheRead { stage, tensor, name: name.clone(), scope, at, layout, access })?;
    m.env.tensor_named(&name)
}

/// Where a const input is copied once. What is computed of such only is so, too, though it is copied like anything else.
pub(super) fn outside(m: &LoopModule, tensor: TensorId) -> CopyAt {
    if m.env.tensors[tensor].role == Role::ConstInput { CopyAt::Setup } else { CopyAt::Before }
}

/// The loop around a stage's own.
pub(super) fn around(m: &LoopModule, stage: TensorId) -> Option<LoopRef> {
    let path = stage_loops(m, stage).into_iter().next()?;
    let l = *enclosing(&m.body, &path).last()?;
    Some(LoopRef { stage: m.env.tensors[l.stage].name.clone(), name: m.env.vars[l.var].name.clone() })
}
