//! Products of two factors that come with each call, by an instruction for tiles of rows: scores of attention, sums of what
//! they weight, products of batches.
//!
//! ```text
//! Z[b, i, j] = sum(k) f32(X[b, i, k]) * f32(Y[b, k, j])
//! ```
//!
//! The factor of the columns is copied in the instruction's blocks for each batch, zeros beside its last columns and after its
//! last terms; the rows of a tile are copied, too, with zeros after their last terms, so that the last tiles are whole.

use super::contraction::{Contraction, Read, names};
use super::copies::around;
use super::nest::Nest;
use super::row_tasks::is_task;
use super::step;
use super::steps::Steps;
use super::units::{TILES, holds, near, of_rows, side_by_side};
use cora_ir::loops::LoopModule;
use cora_ir::schedule::{CopyAt, LayoutDim, LoopRef, StepKind, Tail};
use cora_ir::{IntrinsicId, Role, Scope, TensorId};

/// Rows of a task in which several stages are computed: whole tiles.
pub(super) const TASK_ROWS: i64 = 64;
/// Columns of a task of its own, whose copy stays near for all rows.
const PANEL: i64 = 256;

/// The instruction for such a product, if its shape suits one.
pub(super) fn unit_of(m: &LoopModule, c: &Contraction, has: impl Fn(IntrinsicId) -> bool) -> Option<IntrinsicId> {
    let stage = m.env.tensor_named(&c.nest.stage)?;
    let unit = of_rows(m, stage, has)?;
    let ([row], [k]) = (c.rows.as_slice(), c.reduced.as_slice()) else { return None };
    let pool = &m.env.pool;
    let variable = [&c.inner, k].into_iter().any(|l| pool.uses_var(l.extent, row.var));
    let slanted = pool.uses_var(k.extent, c.inner.var) || pool.uses_var(row.extent, c.inner.var);
    // Fewer would leave much of a tile empty.
    let few = [row, &c.inner, k].into_iter().zip(tile_of(unit)).any(|(l, tile)| c.nest.most(m, [l]) < tile);
    // Of terms whose number varies zeros follow, where they are counted from the same place in both.
    let constant = pool.as_int(k.extent).is_some();
    let term = c.nest.iterator(m, k.var)?;
    let counted = |r: &Read| r.1.iter().any(|&e| pool.as_var(e) == Some(term));
    let fits = c.columns.is_empty()
        && c.a.as_ref().is_some_and(|a| constant || counted(a) && counted(&c.b))
        && m.env.tensors[c.b.0].role != Role::ConstInput
        && c.many_products(m)
        && !variable
        && !slanted
        && !few
        && !c.scattered(m);
    fits.then_some(unit)
}

/// Rows, columns and steps of the tiles that are in registers at a time.
fn tile_of(unit: IntrinsicId) -> [i64; 3] {
    let [rows, columns, steps] = unit.get().tile;
    [TILES[0] * rows, TILES[1] * columns, steps]
}

/// Tiles of rows and columns of such a product.
pub(super) fn unit_products(m: &mut LoopModule, stage: TensorId, has: impl Fn(IntrinsicId) -> bool) -> Option<()> {
    let c = Contraction::of(m, stage)?;
    let unit = unit_of(m, &c, has)?;
    let ([rows, columns, _], [high, wide, steps]) = (unit.get().tile, tile_of(unit));
    let ([row], [k]) = (c.rows.as_slice(), c.reduced.as_slice()) else { return None };
    let (given, nest) = (c.given(m), &c.nest);
    let whole = m.env.pool.as_int(k.extent).is_some_and(|n| n % steps == 0);
    let mut s = Steps { m, stage: nest.stage.clone() };
    let mut batch = names(&c.batches);
    let all = [batch.clone(), names(&[row.clone(), c.inner.clone(), k.clone()])].concat();
    s.reorder(all)?;
    if batch.len() > 1 {
        s.fuse(&batch, "batches")?;
        batch = vec!["batches".to_owned()];
    }
    let mut inner = c.inner.name.clone();
    let at = if !nest.attached && given {
        // Panels of columns are tasks.
        if nest.most(s.m, [&c.inner]) > PANEL {
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
        around(s.m, stage).map(|l| if is_task(&l) && whole { CopyAt::Before } else { CopyAt::Loop(l) })?
    };
    let copy = columns_in_blocks(s.m, &c, unit, at)?;
    s.split(&row.name, high, "ro", "ri", Tail::Exact)?;
    s.split(&inner, wide, "co", "ci", Tail::Exact)?;
    s.reorder(["ro", "co", "ri", "ci", &k.name].map(str::to_owned).to_vec())?;
    let sums = s.m.env.fresh_tensor_name(&format!("{}.acc", nest.stage));
    let (stage, at) = (nest.stage.clone(), s.named("co"));
    step(s.m, StepKind::CacheWrite { stage, name: sums.clone(), scope: Scope::Reg, at })?;
    rows_of_tile(s.m, &c, (&sums, nest.named("ro")), (steps, whole))?;
    let mut a = Steps { m: s.m, stage: sums };
    a.reorder(["ri", "ci", &k.name].map(str::to_owned).to_vec())?;
    a.relax("ri", false)?;
    a.relax("ci", false)?;
    a.split("ri", rows, "rr", "mi", Tail::Exact)?;
    a.split("ci", columns, "cc", "mj", Tail::Exact)?;
    a.split(&k.name, steps, "ko", "mk", Tail::Exact)?;
    if !whole {
        a.relax("mk", false)?;
    }
    a.reorder(["ko", "rr", "cc", "mi", "mj", "mk"].map(str::to_owned).to_vec())?;
    let tile = a.named("mi");
    step(a.m, StepKind::Tensorize { target: tile.clone(), intrinsic: unit })?;
    a.unroll(&["rr", "cc"])?;
    let mut s = Steps { m: a.m, stage: nest.stage.clone() };
    s.split("ci", columns, "cv", "cl", Tail::Exact)?;
    s.vectorize("cl", Some(columns))?;
    s.unroll(&["cv"])?;
    copied_in_order(s.m, &copy, unit, c.side_by_side(s.m))?;
    holds(m, &tile).then_some(())
}

/// Copies the factor of the columns: panels of columns, in which blocks of terms follow each other, those that the instruction
/// takes together side by side for each column. Gives the copy and its loop over columns.
fn columns_in_blocks(m: &mut LoopModule, c: &Contraction, unit: IntrinsicId, at: CopyAt) -> Option<(String, String)> {
    let [_, wide, steps] = tile_of(unit);
    let together = side_by_side(unit)?;
    let layout = c.in_panels(m, wide, |summed, column| match summed {
        &[step] => Some(vec![LayoutDim::whole(step), column]),
        _ => None,
    })?;
    let name = m.env.fresh_tensor_name(&format!("{}.packed", m.env.tensors[c.b.0].name));
    let (stage, tensor) = (c.nest.stage.clone(), m.env.tensors[c.b.0].name.clone());
    let scope = if at.as_loop().is_some() { Scope::Local } else { Scope::Global };
    let access = c.nest.access(m, &c.b);
    step(m, StepKind::CacheRead { stage, tensor, name: name.clone(), scope, at, layout, access })?;
    let copy = m.env.tensor_named(&name)?;
    let mut loops = names(&Nest::of(m, copy)?.loops);
    let (column, term) = (loops.pop()?, loops.pop()?);
    let dims: Vec<String> = m.env.tensors[copy].dims.iter().map(|d| d.name.clone()).collect();
    let [outer @ .., term_dim, column_dim] = dims.as_slice() else { return None };
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
