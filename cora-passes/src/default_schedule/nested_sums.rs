//! Reductions of sums: the terms of one are sums of products, each element of which it alone reads.
//!
//! ```text
//! S[t, n, g] = sum(k) X[t, g, k] * W[n, g, k];  Y[t, n] = sum(g) f(S[t, n, g], ..)
//!   =>  for tiles of t, n { for g { acc = sum(k) ..;  acc' += f(acc, ..) } }
//! ```
//!
//! Products scaled in groups are such, and scores of several heads that are added up. The sums of one iteration of the outer
//! reduction are a tile in registers, as those of a contraction are (see `contraction`), and never stored.

use super::attach::readers;
use super::constants::is_constant;
use super::contraction::{Contraction, accumulate, fuse, names, reorder, split};
use super::copies::{copy_along, outside, pack};
use super::nest::{Loop, Nest, is_along};
use super::steps::Steps;
use super::tiles::Tile;
use super::{Registers, attempt, step, units};
use crate::schedule::compute_inline::compute_inline;
use cora_ir::intrinsic::Features;
use cora_ir::loops::{BlockRole, LoopModule};
use cora_ir::schedule::{CopyAt, LoopRef, StepKind, Tail};
use cora_ir::{ExprId, IntrinsicId, Reduction, Role, Scope, TensorId, VarId};
use rustc_hash::FxHashMap;

/// Vectors of a tile of the inner sums, which leaves registers for the outer ones, and how many of them are side by side.
const VECTORS: i64 = 12;
const WIDE: i64 = 2;
/// Fewer rows than this would leave much of a tile empty.
const FEW_ROWS: i64 = 3;
/// Inner terms that are unrolled.
const UNROLL: i64 = 4;

/// Tiles a reduction together with the sums that are its terms, or that elements are computed of which are; gives the stage of
/// these sums.
pub(super) fn nested_sums(m: &mut LoopModule, stage: TensorId, features: Features) -> Option<TensorId> {
    let plan = match Plan::of(m, stage, features) {
        Some(plan) => plan,
        None => {
            let nest = Nest::of(m, stage)?;
            let elements = nest.reads(m).into_iter().find(|r| is_own(m, &nest, r, false))?;
            if readers(m, elements.0).len() > 1 {
                return None;
            }
            let name = m.env.tensors[elements.0].name.clone();
            compute_inline(m, &name).ok()?;
            Plan::of(m, stage, features)?
        }
    };
    let has = |i: IntrinsicId| i.get().lanes == 1 && i.get().tile[0] == 1 && features.contain(i);
    let unit = units::unit(m, plan.sums, has);
    if !unit.is_some_and(|unit| attempt(m, |m| plan.apply(m, Some(unit)))) {
        plan.apply(m, None)?;
    }
    Some(plan.sums)
}

/// Whether sums are terms of a reduction that would be tiled together with them.
pub(super) fn are_terms(m: &mut LoopModule, sums: TensorId, features: Features) -> bool {
    let mut stage = sums;
    loop {
        let all = readers(m, stage);
        let [reader] = all.as_slice() else { return false };
        let (reader, index) = (reader.block.stage, reader.raw.clone());
        let Some(nest) = Nest::of(m, reader) else { return false };
        if !at_own(m, &nest, &index) {
            return false;
        }
        stage = reader;
        if matches!(nest.block.role, BlockRole::Update(_)) {
            break;
        }
    }
    let mut tiled = None;
    attempt(m, |m| {
        tiled = nested_sums(m, stage, features);
        None
    });
    tiled == Some(sums)
}

/// Whether a nest reads an intermediate, sums or else elements, that has a place of its own for each iteration of all loops.
fn is_own(m: &LoopModule, nest: &Nest, (tensor, index): &(TensorId, Vec<ExprId>), sums: bool) -> bool {
    let kind = |n: Nest| matches!(n.block.role, BlockRole::Update(_)) == sums;
    m.env.tensors[*tensor].role == Role::Temp && Nest::of(m, *tensor).is_some_and(kind) && at_own(m, nest, index)
}

fn at_own(m: &LoopModule, nest: &Nest, index: &[ExprId]) -> bool {
    let vars: Vec<Option<VarId>> = index.iter().map(|&e| m.env.pool.as_var(e)).collect();
    let each = |v: VarId| vars.iter().filter(|x| **x == Some(v)).count() == 1;
    vars.len() == nest.loops.len() && nest.loops.iter().all(|l| nest.iterator(m, l.var).is_some_and(each))
}

struct Plan {
    /// The outer reduction's loops, the columns' iterator and innermost loop among them.
    nest: Nest,
    /// The stage of the inner sums, as a contraction.
    sums: TensorId,
    c: Contraction,
    column: VarId,
    reduced: Vec<Loop>,
    batches: Vec<Loop>,
    rows: Vec<Loop>,
    columns: Vec<Loop>,
    inner: Loop,
    tile: Tile,
}

impl Plan {
    fn of(m: &mut LoopModule, stage: TensorId, features: Features) -> Option<Self> {
        let nest = Nest::of(m, stage).filter(|n| !n.attached)?;
        if !matches!(nest.block.role, BlockRole::Update(Reduction::Op(_))) {
            return None;
        }
        let column = m.env.pool.as_var(*nest.block.index.last()?)?;
        let (sums, index) = nest.reads(m).into_iter().find(|r| is_own(m, &nest, r, true))?;
        if readers(m, sums).iter().any(|r| r.block.stage != stage || r.raw != index) {
            return None;
        }
        let written = Nest::of(m, sums).filter(|n| !n.attached)?.block.index;
        // The iterators of the sums by those of the reduction.
        let pair = |(&r, &w): (&ExprId, &ExprId)| Some((m.env.pool.as_var(r)?, m.env.pool.as_var(w)?));
        let of: FxHashMap<VarId, VarId> = index.iter().zip(&written).map(pair).collect::<Option<_>>()?;
        let c = Contraction::of_column(m, sums, *of.get(&column)?)?;
        let (reduced, spatial): (Vec<Loop>, Vec<Loop>) = nest.loops.iter().cloned().partition(|l| l.reduced);
        let inner = spatial.iter().find(|l| nest.iterator(m, l.var) == Some(column))?.clone();
        let role = |l: &Loop| nest.iterator(m, l.var).and_then(|i| of.get(&i)).copied();
        let among =
            |all: &[Loop], l: &Loop| all.iter().any(|x| c.nest.iterator(m, x.var).is_some_and(|i| role(l) == Some(i)));
        let of_kind = |all: &[Loop]| -> Vec<Loop> { spatial.iter().filter(|l| among(all, l)).cloned().collect() };
        let (batches, rows, columns) = (of_kind(&c.batches), of_kind(&c.rows), of_kind(&c.columns));
        if rows.is_empty() || batches.len() + rows.len() + columns.len() + 1 != spatial.len() {
            return None;
        }
        let registers = Registers::of(m, sums, features.vectors());
        let lanes = registers.lanes;
        let count = |n: i64, l: &Loop| n.checked_mul(m.env.pool.as_int(l.extent)?);
        let few = rows.iter().try_fold(1, count);
        if c.is_thin(m, lanes) || few.is_some_and(|n| n < FEW_ROWS) {
            return None;
        }
        let whole = |n: i64| n % (WIDE * lanes) == 0 || n % lanes != 0 && n > lanes;
        let wide = if m.env.pool.as_int(inner.extent).is_none_or(whole) { WIDE } else { 1 };
        let tile = Tile { rows: VECTORS / wide, columns: wide * lanes, ..registers.broad() };
        let tile = few.map_or(tile, |n| tile.of_rows(n));
        Some(Self { nest, sums, c, column, reduced, batches, rows, columns, inner, tile })
    }

    fn apply(&self, m: &mut LoopModule, unit: Option<IntrinsicId>) -> Option<()> {
        let (nest, c, tile) = (&self.nest, &self.c, self.tile);
        // What is read of a column apart from its neighbours.
        for read in nest.reads(m) {
            if read.0 != self.sums && !is_along(m, &read, self.column) {
                let at = outside(m, read.0);
                attempt(m, |m| copy_along(m, nest, &read, self.column, at).map(|_| ()));
            }
        }
        if let Some(unit) = unit {
            let [_, columns, steps] = unit.get().tile;
            let whole = |e: ExprId, of: i64| m.env.pool.as_int(e).is_some_and(|n| n % of == 0);
            if columns != tile.lanes
                || !whole(self.inner.extent, tile.columns)
                || !whole(c.reduced.last()?.extent, steps)
            {
                return None;
            }
            units::pack(m, c, c.reduced.last()?.var, unit)?;
        } else if !(is_constant(m, c.b.0) && attempt(m, |m| pack(m, c, tile, outside(m, c.b.0)))) {
            let side_by_side = c.side_by_side(m);
            let packed = (!side_by_side || c.terms_apart(m)) && attempt(m, |m| pack(m, c, tile, CopyAt::Before));
            if !side_by_side && !packed {
                copy_along(m, &c.nest, &c.b, c.column, outside(m, c.b.0))?;
            }
        }
        let all =
            [&self.batches[..], &self.rows, &self.columns, std::slice::from_ref(&self.inner), &self.reduced].concat();
        reorder(m, nest, names(&all))?;
        let mut row = names(&self.rows);
        if row.len() > 1 {
            fuse(m, nest, &row, "row")?;
            row = vec!["row".to_owned()];
        }
        split(m, nest, &row[0], tile.task, "task", "near")?;
        split(m, nest, "near", tile.rows, "ro", "ri")?;
        split(m, nest, &self.inner.name, tile.columns, "co", "ci")?;
        let tasks =
            [names(&self.batches), vec!["task".to_owned()], names(&self.columns), vec!["co".to_owned()]].concat();
        let inside = [vec!["ro".to_owned()], names(&self.reduced), vec!["ri".to_owned(), "ci".to_owned()]].concat();
        reorder(m, nest, [tasks.clone(), inside].concat())?;
        let acc = accumulate(m, nest, "ro", &["ri"], ("ci", tile.lanes, tile.whole), None)?;
        let at = LoopRef { stage: acc, name: self.reduced.last()?.name.clone() };
        let sums = m.env.tensors[self.sums].name.clone();
        step(m, StepKind::ComputeAt { stage: sums.clone(), at: at.clone() })?;
        step(m, StepKind::SetScope { stage: sums, scope: Scope::Reg })?;
        self.inside(m, unit)?;
        // Regions of a list of tasks are no boxes.
        fuse(m, nest, &tasks, "tile")?;
        units::holds(m, &at).then_some(())
    }

    /// The inner sums of a tile.
    fn inside(&self, m: &mut LoopModule, unit: Option<IntrinsicId>) -> Option<()> {
        let nest = Nest::of(m, self.sums)?;
        let column = nest.block.iters.iter().find(|i| i.var == self.c.column)?.binding;
        let spatial = nest.loops.iter().filter(|l| !l.reduced).cloned();
        let (columns, rows): (Vec<Loop>, Vec<Loop>) = spatial.partition(|l| m.env.pool.uses_var(column, l.var));
        let (mut own, last) = (names(&rows), columns.last()?.name.clone());
        let mut s = Steps { m, stage: nest.stage };
        let vectors = match columns.as_slice() {
            [_] => {
                let vectors = format!("{last}_o");
                s.split(&last, self.tile.lanes, &vectors, &last, Tail::Exact)?;
                vectors
            }
            [vectors, _] => vectors.name.clone(),
            _ => return None,
        };
        let rows = own.clone();
        own.extend([vectors.clone(), last.clone()]);
        let mut terms = names(&self.c.reduced);
        let k = terms.pop()?;
        let steps = unit.map_or(UNROLL, |unit| unit.get().tile[2]);
        s.split(&k, steps, "ko", "ku", Tail::Exact)?;
        terms.push("ko".to_owned());
        own.insert(if unit.is_some() { own.len() } else { 0 }, "ku".to_owned());
        s.reorder([terms, own].concat())?;
        match unit {
            Some(intrinsic) => step(s.m, StepKind::Tensorize { target: s.named(&last), intrinsic })?,
            None => {
                s.unroll(&["ku"])?;
                s.vectorize(&last, None)?;
            }
        }
        rows.iter().chain([&vectors]).try_for_each(|l| s.unroll(&[l]))
    }
}
