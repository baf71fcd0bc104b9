//! Tiles of reductions that accumulate in registers.
//!
//! In `C[.., i, .., j] += A[.., i, .., k] * B[.., k, .., j]` the loops of the result are *rows*, on which
//! only A depends, *columns*, on which only B depends, and *batches*, on which both do. A tile of rows
//! and columns reads each element of A and B once and uses it for all columns or rows of the tile.

use super::columns::neighbours;
use super::constants::{is_constant, is_of_batch};
use super::copies::{around, copy_block, copy_rows, outside, pack, transpose};
use super::flat::one_after_another;
use super::nest::{Loop, Nest, is_along, moves_by_one};
use super::tiles::Tile;
use super::{Registers, attempt, dots, row_tasks, step};
use crate::schedule::tree::{loop_at, stage_loops};
use cora_ir::intrinsic::Vectors;
use cora_ir::loops::{Block, BlockRole, Iter, IterKind, LoopModule};
use cora_ir::schedule::{CopyAt, LayoutDim, LoopRef, StepKind, Tail};
use cora_ir::{BinOp, Combiner, Expr, ExprId, ExprPool, Reduction, Role, ScalarType, Scope, TensorId, UnOp, VarId};
use rustc_hash::FxHashSet;

/// Reduced iterations that are unrolled.
pub(super) const UNROLL: i64 = 4;

/// Terms of which the factors of a tile stay near for its neighbours; more are summed in blocks of so many, with partial
/// sums in the result.
const LONG: i64 = 4096;
const BLOCK: i64 = 256;
/// Terms whose factor of the columns is read whole before the next ones, where it is read once.
const NEXT: i64 = 8;
/// Tiles of rows for which no factor is copied that is read in vectors.
const FEW_TILES: i64 = 3;
/// Elements that each task may copy.
const FEW_ELEMENTS: i64 = 1 << 14;
/// Elements between rows of a factor that are better copied side by side.
const APART: i64 = 256;
/// Bytes that stay near, in most processors' L2 caches.
const NEAR: i64 = 1 << 19;
/// Panels of columns from which on they are tasks enough.
pub(super) const PANELS: i64 = 8;
/// Rows that had better be tiled for each of a few others by themselves than together with those.
const MANY_ROWS: i64 = 128;

/// A read: the tensor and its index over the block's iterators.
pub(crate) type Read = (TensorId, Vec<ExprId>);

/// Whether a block adds its values up.
fn sums(b: &Block) -> bool {
    b.role == BlockRole::Update(Reduction::Op(Combiner::Sum))
}

/// What is read there and nothing else, converted or not.
fn read(pool: &ExprPool, e: ExprId) -> Option<Read> {
    match pool.get(e) {
        Expr::Load { tensor, index, .. } => Some((*tensor, index.to_vec())),
        Expr::Cast(_, e) | Expr::Un(UnOp::Tf32, e) => match pool.get(*e) {
            Expr::Load { tensor, index, .. } => Some((*tensor, index.to_vec())),
            _ => None,
        },
        _ => None,
    }
}

/// The two reads whose product a block sums, if it does that.
pub(crate) fn factors(m: &LoopModule, b: &Block) -> Option<[Read; 2]> {
    let Expr::Bin(BinOp::Mul, x, y) = *m.env.pool.get(b.value) else { return None };
    let both = || Some([read(&m.env.pool, x)?, read(&m.env.pool, y)?]);
    sums(b).then(both)?
}

/// Whether a condition speaks of positions alone.
pub(super) fn is_of_positions(pool: &ExprPool, cond: ExprId) -> bool {
    let reads = |e: &Expr| matches!(e, Expr::Load { .. } | Expr::Search { .. });
    pool.ty(cond).scalar == ScalarType::Bool && !pool.any(cond, &mut |e| reads(e))
}

/// What there is in a term: all that does not move with the columns, and the one read that does.
pub(super) fn split_factors(pool: &ExprPool, term: ExprId, column: VarId) -> Option<(Vec<ExprId>, Read)> {
    let (mut left, mut right, mut rest) = (Vec::new(), None, vec![term]);
    let mut seen = FxHashSet::default();
    while let Some(e) = rest.pop() {
        if !seen.insert(e) {
            continue;
        }
        if !pool.uses_var(e, column) {
            left.push(e);
        } else if let Some(found) = read(pool, e) {
            if right.get_or_insert_with(|| found.clone()) != &found {
                return None;
            }
        } else if let Expr::Select(cond, x, other) = *pool.get(e)
            && pool.uses_var(cond, column)
        {
            // A tile's loop goes without such a mask where it holds for all; of others each row would have its own.
            if !is_of_positions(pool, cond) {
                return None;
            }
            rest.extend([x, other]);
        } else {
            rest.extend(pool.children(e));
        }
    }
    (!left.is_empty()).then_some((left, right?))
}

/// A nest as a contraction.
#[derive(Clone)]
pub(crate) struct Contraction {
    pub nest: Nest,
    /// The iterator of the last dimension of the result, and the loop that runs it.
    pub column: VarId,
    pub inner: Loop,
    pub batches: Vec<Loop>,
    pub rows: Vec<Loop>,
    pub columns: Vec<Loop>,
    pub reduced: Vec<Loop>,
    /// The factor that does not move with the columns, where it is a read.
    pub a: Option<Read>,
    /// The one that does.
    pub b: Read,
}

impl Contraction {
    pub(crate) fn of(m: &LoopModule, stage: TensorId) -> Option<Self> {
        let block = m.blocks_of(stage).into_iter().find(|b| b.role != BlockRole::Init)?;
        Self::of_column(m, stage, m.env.pool.as_var(*block.index.last()?)?)
    }

    /// The same with another dimension of the result, that of an iterator, for its columns.
    pub(super) fn of_column(m: &LoopModule, stage: TensorId, column: VarId) -> Option<Self> {
        let nest = Nest::of(m, stage)?;
        let pool = &m.env.pool;
        let (left, b) = sums(&nest.block).then(|| split_factors(pool, nest.block.value, column))??;
        let a = match left.as_slice() {
            [one] => read(pool, *one),
            _ => None,
        };
        let uses = |es: &[ExprId], v: VarId| es.iter().any(|&e| pool.uses_var(e, v));
        let (mut batches, mut rows, mut columns, mut reduced, mut inner) = (vec![], vec![], vec![], vec![], None);
        for l in &nest.loops {
            let iters: Vec<VarId> =
                nest.block.iters.iter().filter(|i| pool.uses_var(i.binding, l.var)).map(|i| i.var).collect();
            let of = |es: &[ExprId]| iters.iter().any(|&v| uses(es, v));
            if l.reduced {
                reduced.push(l.clone());
            } else if iters == [column] {
                inner = Some(l.clone());
            } else {
                match (of(&left), of(&b.1)) {
                    (true, false) => rows.push(l.clone()),
                    (false, _) => columns.push(l.clone()),
                    (true, true) => batches.push(l.clone()),
                }
            }
        }
        let inner = inner?;
        // Rows of one length each are tiled by themselves, for each of those that share their lengths; and so are many rows of
        // a product of batches for each of a few.
        let longer = |r: &Loop| reduced.iter().chain([&inner]).any(|l| pool.uses_var(l.extent, r.var));
        let many = |r: &Loop| pool.as_int(r.extent).is_none() && nest.most(m, [r]) >= MANY_ROWS;
        let few = |r: &Loop| pool.as_int(r.extent).is_some();
        let alone = |of: &dyn Fn(&Loop) -> bool| rows.len() > 1 && rows.iter().filter(|r| of(r)).count() == 1;
        let apart: Option<&dyn Fn(&Loop) -> bool> = if alone(&longer) {
            Some(&longer)
        } else if !batches.is_empty() && alone(&many) && rows.iter().all(|r| many(r) || few(r)) {
            Some(&many)
        } else {
            None
        };
        if let Some(apart) = apart {
            let (own, shared): (Vec<Loop>, Vec<Loop>) = rows.into_iter().partition(apart);
            rows = own;
            batches.extend(shared);
        }
        let mut c = Self { inner, nest, column, batches, rows, columns, reduced, a, b };
        if !c.rows.is_empty() && !c.side_by_side(m) {
            // A copy holds what a gather takes, not all that it may take.
            let gathering = c.gathering(m);
            let gathers = |l: &Loop| gathering.contains(&l.var);
            let (gathered, columns): (Vec<Loop>, Vec<Loop>) = c.columns.into_iter().partition(gathers);
            c.batches.extend(gathered);
            c.columns = columns;
        }
        Some(c)
    }

    /// The loops that say where the factor of the columns is gathered.
    fn gathering(&self, m: &LoopModule) -> Vec<VarId> {
        let pool = &m.env.pool;
        let loads = |e: ExprId| pool.any(e, &mut |n| matches!(n, Expr::Load { .. }));
        let gathers: Vec<ExprId> = self.b.1.iter().copied().filter(|&e| loads(e)).collect();
        let used = |i: &&Iter| gathers.iter().any(|&e| pool.uses_var(e, i.var));
        let iters = self.nest.block.iters.iter().filter(used);
        let moved = |l: &&Loop| iters.clone().any(|i| pool.uses_var(i.binding, l.var));
        self.nest.loops.iter().filter(moved).map(|l| l.var).collect()
    }

    /// Whether the factor of the columns is gathered from elsewhere again and again inside the batches: a copy made outside
    /// would be one of all that there is, and that is much.
    pub(super) fn scattered(&self, m: &LoopModule) -> bool {
        let dims = m.env.tensors[self.b.0].dims.iter();
        let all = dims.map(|d| m.env.pool.as_int(d.storage)).try_fold(1_i64, |n, d| n.checked_mul(d?));
        if all.is_some_and(|n| n <= FEW_ELEMENTS) {
            return false;
        }
        self.gathering(m).iter().any(|v| !self.batches.iter().any(|l| l.var == *v))
    }

    /// The positions in the result's index that a tile must leave: the last row's and the columns'.
    pub(super) fn tiled(&self, m: &LoopModule) -> Vec<usize> {
        let pool = &m.env.pool;
        let row = self.rows.last().and_then(|l| {
            let iter = self.nest.block.iters.iter().find(|i| pool.uses_var(i.binding, l.var))?;
            self.nest.block.index.iter().position(|&e| pool.uses_var(e, iter.var))
        });
        row.into_iter().chain([self.nest.block.index.len() - 1]).collect()
    }

    /// The layout of the factor of the columns in panels of `width` of them, inside which `panel` orders the reduced
    /// dimensions and the column; `None` unless one dimension alone moves with the columns.
    pub(super) fn in_panels(
        &self,
        m: &LoopModule,
        width: i64,
        panel: impl FnOnce(&[usize], LayoutDim) -> Option<Vec<LayoutDim>>,
    ) -> Option<Vec<LayoutDim>> {
        let uses = |d: usize, v: VarId| m.env.pool.uses_var(self.b.1[d], v);
        let reduced = |d: usize| {
            let mut iters = self.nest.block.iters.iter().filter(|i| i.kind == IterKind::Reduce);
            iters.any(|i| uses(d, i.var))
        };
        let (moved, others): (Vec<usize>, Vec<usize>) = (0..self.b.1.len()).partition(|&d| uses(d, self.column));
        let &[column] = moved.as_slice() else { return None };
        let (summed, others): (Vec<usize>, Vec<usize>) = others.into_iter().partition(|&d| reduced(d));
        let inside = panel(&summed, LayoutDim::modulo(column, width))?;
        let outside = others.into_iter().map(LayoutDim::whole).chain([LayoutDim::div(column, width)]);
        Some(outside.chain(inside).collect())
    }

    /// The tile that suits the columns, and the rows where these are few; `side_by_side`: as they are read.
    pub(super) fn tile(&self, m: &LoopModule, registers: Registers, side_by_side: bool) -> Tile {
        let tile = self.tile_of_columns(m, registers, side_by_side);
        let count = |n: i64, l: &Loop| n.checked_mul(m.env.pool.as_int(l.extent)?);
        let Some(rows) = self.rows.iter().try_fold(1, count) else { return tile };
        let (tile, whole) = (tile.of_rows(rows), registers.slanted());
        // Rows beyond the last one would each be asked for.
        let better = rows % tile.rows != 0 && rows % whole.rows == 0 && tile.columns < whole.columns;
        if better && m.env.pool.as_int(self.inner.extent).is_none() { whole } else { tile }
    }

    fn tile_of_columns(&self, m: &LoopModule, registers: Registers, side_by_side: bool) -> Tile {
        let (narrow, broad) = (registers.narrow(), registers.broad());
        let bound = m.env.pool.constant_bound(self.inner.extent);
        match m.env.pool.as_int(self.inner.extent) {
            Some(n) if side_by_side && n > narrow.columns => registers.fitting(n),
            _ if side_by_side && bound.is_some_and(|n| n >= broad.columns) => broad,
            _ => narrow,
        }
    }

    /// Multiply-adds of a row, if that is no matter of the batch.
    fn row_work(&self, m: &LoopModule) -> Option<i64> {
        let count = |n: i64, l: &Loop| n.checked_mul(m.env.pool.as_int(l.extent)?);
        self.columns.iter().chain([&self.inner]).chain(&self.reduced).try_fold(1, count)
    }

    /// How many panels of columns there are, if that is no matter of the batch.
    fn panels(&self, m: &LoopModule, tile: Tile) -> Option<i64> {
        let count = |n: i64, l: &Loop| n.checked_mul(m.env.pool.as_int(l.extent)?);
        let panels = m.env.pool.as_int(self.inner.extent)?.checked_add(tile.columns - 1)? / tile.columns;
        self.columns.iter().try_fold(panels, count)
    }

    /// Whether a tile reads more of the factors than stays near, the same steps as its neighbours.
    fn is_long(&self, m: &LoopModule) -> bool {
        let pool = &m.env.pool;
        let tiled = || self.rows.iter().chain(&self.columns).chain([&self.inner]);
        let apart = |k: &Loop| tiled().any(|l| pool.uses_var(k.extent, l.var));
        self.nest.most(m, &self.reduced) > LONG && !self.reduced.iter().any(apart)
    }

    /// Whether no stage computes what is read.
    pub(super) fn given(&self, m: &LoopModule) -> bool {
        self.nest.reads(m).iter().all(|r| !is_of_batch(m, r.0))
    }

    /// Whether columns would leave much of a vector empty, and are rows of terms side by side: dot products are faster.
    pub(super) fn is_thin(&self, m: &LoopModule, lanes: i64) -> bool {
        let count = |n: i64, l: &Loop| n.checked_mul(m.env.pool.as_int(l.extent)?);
        let columns = self.columns.iter().chain([&self.inner]).try_fold(1, count);
        let [term] = self.reduced.as_slice() else { return false };
        let iter = self.nest.iterator(m, term.var);
        let dots = iter.is_some_and(|i| self.nest.reads(m).iter().all(|r| is_along(m, r, i)));
        dots && columns.is_some_and(|n| n * 4 <= 3 * lanes)
            && m.env.pool.constant_bound(term.extent).is_none_or(|k| k >= 4 * lanes)
    }

    /// Whether one tile of rows reads the factor of the columns, which is another one for each batch: it is read once, and so
    /// had better be read in the order in which it lies.
    fn is_streamed(&self, m: &LoopModule) -> bool {
        self.many_products(m) && self.nest.most(m, &self.rows) <= dots::ROWS
    }

    /// Whether a copy of the columns would take much beside what so few rows compute of it.
    fn few_rows(&self, m: &LoopModule, registers: Registers) -> bool {
        self.nest.most(m, &self.rows) <= FEW_TILES * registers.broad().rows
    }

    /// Whether nothing that is read is a stage that may be attached in tiles, where it would find no box to compute, or be
    /// computed for each panel of columns.
    fn has_nothing_to_attach(&self, m: &LoopModule) -> bool {
        // What converts an input is cheap to store for all panels.
        let converts = |t: TensorId| {
            let value = Nest::of(m, t).filter(|n| n.block.role == BlockRole::Compute).map(|n| n.block.value);
            let cast = value.filter(|&v| matches!(m.env.pool.get(v), Expr::Cast(..)));
            cast.and_then(|v| read(&m.env.pool, v)).is_some_and(|r| !is_of_batch(m, r.0))
        };
        let apart = |t: TensorId| Contraction::of(m, t).is_some_and(|c| !c.has_batches()) || converts(t);
        self.nest.reads(m).iter().all(|r| !is_of_batch(m, r.0) || apart(r.0))
    }

    /// Whether neighbouring columns are neighbours in the factor that moves with them.
    pub(super) fn side_by_side(&self, m: &LoopModule) -> bool {
        moves_by_one(m, &self.b.1, self.column)
    }

    /// Whether what neighbouring terms read of the factor of the columns lies far apart.
    pub(super) fn terms_apart(&self, m: &LoopModule) -> bool {
        self.is_apart(m, &self.b)
    }

    /// Whether what neighbouring terms read lies far apart: lines at such distances share few places of a cache.
    fn is_apart(&self, m: &LoopModule, read: &Read) -> bool {
        let Some(iter) = self.reduced.last().and_then(|k| self.nest.iterator(m, k.var)) else { return false };
        let Some(at) = read.1.iter().position(|&e| m.env.pool.as_var(e) == Some(iter)) else { return false };
        let inside = m.env.tensors[read.0].dims.iter().skip(at + 1);
        // What a length is not known of may be long.
        let long = |e| m.env.pool.as_int(e).unwrap_or(APART);
        inside.map(|d| long(d.storage)).fold(1, i64::saturating_mul) >= APART
    }

    /// The factor of the rows, where neighbouring rows are neighbours in it and neighbouring terms are far apart.
    fn rows_across(&self, m: &LoopModule) -> Option<&Read> {
        let [row] = self.rows.as_slice() else { return None };
        let row = self.nest.iterator(m, row.var)?;
        self.a.as_ref().filter(|a| moves_by_one(m, &a.1, row) && self.is_apart(m, a))
    }

    /// Whether one factor of the columns, which comes with each call, is more than stays near, its terms far apart.
    fn is_wide(&self, m: &LoopModule) -> bool {
        let t = &m.env.tensors[self.b.0];
        let mut sizes = t.dims.iter().map(|d| m.env.pool.as_int(d.storage));
        let bytes = sizes.try_fold(t.ty.bytes() as i64, |n, d| n.checked_mul(d?));
        let few_terms = self.nest.most(m, &self.reduced) <= LONG;
        t.role == Role::Input
            && !self.many_products(m)
            && self.terms_apart(m)
            && few_terms
            && bytes.is_none_or(|n| n > NEAR)
    }

    /// Whether tasks had better be panels of columns though a stage computes the rows: nothing will be attached.
    fn panels_first(&self, m: &LoopModule) -> bool {
        self.is_wide(m) && !self.has_batches() && !self.nest.attached && self.has_nothing_to_attach(m)
    }

    /// Whether the factor of the columns is another one for each iteration of a loop outside the tiles.
    pub(super) fn many_products(&self, m: &LoopModule) -> bool {
        let own = |v: VarId| self.nest.loops.iter().any(|l| l.var == v);
        let moved = |i: &Iter| m.env.pool.vars_of(i.binding).into_iter().any(|v| !own(v));
        let used = |i: &Iter| self.b.1.iter().any(|&e| m.env.pool.uses_var(e, i.var));
        self.has_batches() || self.nest.block.iters.iter().any(|i| used(i) && moved(i))
    }

    /// Whether the loops outside the nest after attaching would be batches.
    pub(super) fn has_batches(&self) -> bool {
        !self.batches.is_empty()
    }
}

/// Which tiles a stage may have.
pub(super) struct Shape {
    pub rows: bool,
    pub neighbours: bool,
}

impl Shape {
    pub(super) fn of(m: &LoopModule, stage: TensorId) -> Self {
        let rows = Contraction::of(m, stage).is_some_and(|c| !c.rows.is_empty());
        Self { rows, neighbours: Nest::of(m, stage).is_some_and(|n| neighbours(m, &n).is_some()) }
    }
}

pub(crate) fn names(loops: &[Loop]) -> Vec<String> {
    loops.iter().map(|l| l.name.clone()).collect()
}

pub(super) fn fuse(m: &mut LoopModule, nest: &Nest, loops: &[String], name: &str) -> Option<()> {
    let loops = loops.iter().map(|l| nest.named(l)).collect();
    step(m, StepKind::Fuse { loops, name: name.to_owned(), pad: 1 })
}

pub(super) fn split(m: &mut LoopModule, nest: &Nest, l: &str, factor: i64, outer: &str, inner: &str) -> Option<()> {
    let (outer, inner) = (outer.to_owned(), inner.to_owned());
    step(m, StepKind::Split { target: nest.named(l), factor, outer, inner, tail: Tail::Exact })
}

/// A contraction in tiles of rows and columns, in tasks of several tiles of rows.
pub(super) fn row_tiles(m: &mut LoopModule, stage: TensorId, vectors: Vectors) -> Option<()> {
    let registers = Registers::of(m, stage, vectors);
    let c = Contraction::of(m, stage)?;
    if c.rows.is_empty() || c.is_thin(m, registers.lanes) {
        return None;
    }
    let (nest, mut batch) = (&c.nest, names(&c.batches));
    let all = [&c.batches[..], &c.rows, &c.columns, std::slice::from_ref(&c.inner), &c.reduced].concat();
    reorder(m, nest, names(&all))?;
    let mut row = names(&c.rows);
    if row.len() > 1 {
        fuse(m, nest, &row, "row")?;
        row = vec!["row".to_owned()];
    }
    let given = c.given(m);
    let constant = is_constant(m, c.b.0);
    let side_by_side = c.side_by_side(m);
    let packed =
        !side_by_side && constant && attempt(m, |m| pack(m, &c, c.tile(m, registers, true), outside(m, c.b.0)));
    let apart =
        side_by_side && !constant && !given && c.many_products(m) && c.terms_apart(m) && !c.few_rows(m, registers);
    let wide = side_by_side && c.is_wide(m) && !c.few_rows(m, registers);
    let copied = !side_by_side && !packed || apart || wide;
    if batch.len() > 1 && (copied || !given) {
        fuse(m, nest, &batch, "batches")?;
        batch = vec!["batches".to_owned()];
    }
    let alone_copied = copied && batch.is_empty() && !nest.attached;
    let few_panels = alone_copied && c.panels(m, c.tile(m, registers, true)).is_some_and(|n| n < PANELS);
    let few_panels = few_panels && m.env.pool.as_int(c.inner.extent).is_some_and(|n| n >= registers.lanes);
    let by_panels =
        if copied { alone_copied && !few_panels } else { !packed && c.many_products(m) && !c.few_rows(m, registers) };
    if (given || c.panels_first(m))
        && by_panels
        && let [row] = row.as_slice()
        && attempt(m, |m| panels(m, &c, row, c.tile(m, registers, true), None))
    {
        return Some(());
    }
    let tile = c.tile(m, registers, !copied || few_panels || apart || wide).of_work(c.row_work(m));
    let bound = |m: &LoopModule, l: &str| {
        let path = stage_loops(m, stage).into_iter().find(|p| m.env.vars[loop_at(&m.body, p).var].name == l)?;
        m.env.pool.constant_bound(loop_at(&m.body, &path).extent)
    };
    if side_by_side && constant {
        // One whose shape depends on the batch is read where it is.
        attempt(m, |m| pack(m, &c, tile, outside(m, c.b.0)));
    }
    let mut copied_before = false;
    if copied {
        let at = match batch.last() {
            Some(l) => Some(nest.named(l)),
            None => around(m, stage),
        };
        // Of a batch there may be one: with its copy inside it would be one task.
        let may_be_one = given && !nest.attached && batch.len() == 1 && c.gathering(m).is_empty();
        let outside = may_be_one || at.as_ref().is_none_or(row_tasks::is_task);
        copied_before = outside && attempt(m, |m| pack(m, &c, tile, CopyAt::Before));
        if !copied_before {
            let at = at?;
            let by_panels = bound(m, &c.inner.name).is_none_or(|b| b > tile.columns)
                && attempt(m, |m| pack(m, &c, tile, CopyAt::Loop(at.clone())));
            if !by_panels {
                transpose(m, &c, at)?;
            }
            // The loops inside are a nest by themselves, beside the copy's.
            batch.clear();
        }
    }
    let mut row = row.remove(0);
    let mut order = batch.clone();
    let alone = (!copied || copied_before) && !nest.attached && c.has_nothing_to_attach(m);
    let many_columns = bound(m, &c.inner.name).is_none_or(|b| b > tile.columns);
    let streamed = !copied && !packed && many_columns && c.is_streamed(m);
    let long = (c.is_long(m) && one_after_another(m, &c.nest.block, &c.reduced)) || streamed;
    let in_blocks = side_by_side && !constant && !c.many_products(m) && c.terms_apart(m) && !c.few_rows(m, registers);
    let in_blocks = in_blocks && long && alone && !streamed && many_columns;
    // A task of rows may be one already.
    let task = if in_blocks { 2 * tile.task } else { tile.task };
    if !row_tasks::has_task(m, stage) && bound(m, &row).is_none_or(|b| b > task) {
        split(m, nest, &row, task, "task", "near")?;
        order.push("task".to_owned());
        row = "near".to_owned();
    }
    let mut columns = names(&c.columns);
    let mut inner = c.inner.name.clone();
    let group = tile.group() * tile.columns;
    if in_blocks && bound(m, &inner).is_none_or(|b| b > group) {
        split(m, nest, &inner, group, "cg", "cn")?;
        columns.push("cg".to_owned());
        inner = "cn".to_owned();
    }
    if in_blocks {
        order.append(&mut columns);
    }
    if many_columns {
        split(m, nest, &inner, tile.columns, "co", "ci")?;
        columns.push("co".to_owned());
        inner = "ci".to_owned();
    }
    if alone && !in_blocks && !copied_before {
        // There may be few rows.
        order.append(&mut columns);
    }
    let task = order.len();
    // Blocks around all tiles would be one task.
    let long = long && (task > 0 || nest.attached);
    if long {
        let mut reduced = names(&c.reduced);
        if reduced.len() > 1 {
            fuse(m, nest, &reduced, "terms")?;
            reduced = vec!["terms".to_owned()];
        }
        split(m, nest, &reduced[0], if streamed { NEXT } else { BLOCK }, "kb", "kk")?;
        order.push("kb".to_owned());
    }
    // Of a block's terms both factors may be copied, that of the rows before it is in tiles.
    let mut outside = 0;
    let mut across = None;
    if in_blocks {
        let inside = [&columns[..], &["kk".to_owned(), row.clone(), inner.clone()]].concat();
        reorder(m, nest, [&order[..], &inside].concat())?;
        across = c.rows_across(m).filter(|a| attempt(m, |m| copy_rows(m, &c, a, tile, nest.named("kb"))));
        outside = order.len();
    }
    order.append(&mut columns);
    if bound(m, &row).is_none_or(|b| b > tile.rows) {
        split(m, nest, &row, tile.rows, "ro", "ri")?;
        order.push("ro".to_owned());
        row = "ri".to_owned();
    }
    let at = order.last()?.clone();
    let mut unrolled = None;
    if long {
        order.push("kk".to_owned());
    } else {
        unrolled = reduced_order(m, &c, &mut order);
    }
    order.extend([row.clone(), inner.clone()]);
    reorder(m, nest, order[outside..].to_vec())?;
    if in_blocks {
        let both = across.is_some_and(|a| a.0 == c.b.0);
        attempt(m, |m| copy_block(m, &c, tile, nest.named("kb"), both));
    }
    let as_it_is = unrolled.is_none() && !long;
    let sums = accumulate(m, nest, &at, &[&row], (&inner, tile.lanes, tile.whole), unrolled)?;
    if long && !streamed {
        unroll_steps(m, &sums, "kk", UNROLL)?;
    } else if let Some(k) = c.reduced.last().filter(|k| as_it_is && m.env.pool.as_int(k.extent).is_none()) {
        unroll_steps(m, &sums, &k.name, UNROLL)?;
    }
    if alone && task > 1 {
        // Tasks of all batches in one list; a refusal leaves them nested.
        let _ = fuse(m, nest, &order[..task], "tile");
    }
    Some(())
}

/// A task is a panel of columns of a batch, of several tiles side by side where these are narrow, or all columns where a
/// stage may be attached, which each panel would compute again. What it reads of the other factor is copied, with zeros
/// beside the last columns, to where it stays near for all tiles of rows. The last reduced loop is unrolled by `unrolled`,
/// if not as usual.
pub(super) fn panels(m: &mut LoopModule, c: &Contraction, row: &str, tile: Tile, unrolled: Option<i64>) -> Option<()> {
    let nest = &c.nest;
    split(m, nest, row, tile.rows, "ro", "ri")?;
    let group = tile.group();
    let given = c.given(m) || c.panels_first(m);
    let several = given && group > 1 && c.nest.most(m, [&c.inner]) > 2 * group * tile.columns;
    if several {
        split(m, nest, &c.inner.name, group * tile.columns, "co", "near")?;
        split(m, nest, "near", tile.columns, "cp", "ci")?;
    } else {
        split(m, nest, &c.inner.name, tile.columns, "co", "ci")?;
    }
    let panel = [names(&c.columns), vec!["co".to_owned()]].concat();
    let [ro, ri, ci] = ["ro", "ri", "ci"].map(str::to_owned);
    let own = [names(&c.reduced), vec![ri, ci]].concat();
    let (mut tasks, inside) = if given {
        let near = several.then(|| "cp".to_owned());
        ([names(&c.batches), panel].concat(), [ro].into_iter().chain(near).collect())
    } else {
        (names(&c.batches), [vec![ro], panel].concat())
    };
    let at = inside.last()?.clone();
    reorder(m, nest, [tasks.clone(), inside, own].concat())?;
    if tasks.len() > 1 {
        fuse(m, nest, &tasks, "tile")?;
        tasks = vec!["tile".to_owned()];
    }
    let in_task = nest.attached && around(m, m.env.tensor_named(&nest.stage)?).is_some_and(|l| row_tasks::is_task(&l));
    let copied = if in_task { CopyAt::Before } else { CopyAt::Loop(nest.named(tasks.first()?)) };
    pack(m, c, tile, copied)?;
    let stage = accumulate(m, nest, &at, &["ri"], ("ci", tile.lanes, tile.whole), None)?;
    unroll_steps(m, &stage, &c.reduced.last()?.name, unrolled.unwrap_or(UNROLL))?;
    if several && let Some((rows, _)) = &c.a {
        // The next rows come into the L2 cache while these are used.
        let (tensor, at) = (m.env.tensors[*rows].name.clone(), nest.named("ro"));
        let inside = Some(LoopRef { stage: stage.clone(), name: "ko".to_owned() });
        attempt(m, |m| step(m, StepKind::Prefetch { stage, tensor, at, inside, distance: 1, locality: 2 }));
    }
    Some(())
}

/// Unrolls so many iterations of a reduced loop, whose extent need not divide.
pub(super) fn unroll_steps(m: &mut LoopModule, stage: &str, reduced: &str, factor: i64) -> Option<()> {
    let named = |l: &str| LoopRef { stage: stage.to_owned(), name: l.to_owned() };
    let (target, outer, inner) = (named(reduced), "ko".to_owned(), "ku".to_owned());
    step(m, StepKind::Split { target, factor, outer, inner, tail: Tail::Exact })?;
    step(m, StepKind::Unroll { target: named("ku") })
}

/// Adds the reduced loops to the order; the last one is split for unrolling where it divides.
fn reduced_order(m: &mut LoopModule, c: &Contraction, order: &mut Vec<String>) -> Option<String> {
    let (last, outer) = c.reduced.split_last()?;
    order.extend(names(outer));
    let even = m.env.pool.as_int(last.extent).is_some_and(|e| e % UNROLL == 0 && e > UNROLL);
    if even && split(m, &c.nest, &last.name, UNROLL, "ko", "ku").is_some() {
        order.extend(["ko".to_owned(), "ku".to_owned()]);
        return Some("ku".to_owned());
    }
    order.push(last.name.clone());
    None
}

pub(super) fn reorder(m: &mut LoopModule, nest: &Nest, order: Vec<String>) -> Option<()> {
    if order.len() < 2 {
        return Some(());
    }
    step(m, StepKind::Reorder { stage: nest.stage.clone(), order })
}

/// Sums one iteration of loop `at` in registers, `rows` unrolled, `lanes` in vectors; the results leave as a `whole` tile where
/// nobody else sees them. Gives the stage that sums.
pub(super) fn accumulate(
    m: &mut LoopModule,
    nest: &Nest,
    at: &str,
    rows: &[&str],
    (lanes, width, whole): (&str, i64, bool),
    unrolled: Option<String>,
) -> Option<String> {
    let name = m.env.fresh_tensor_name(&format!("{}.acc", nest.stage));
    let (stage, scope) = (nest.stage.clone(), Scope::Reg);
    step(m, StepKind::CacheWrite { stage, name: name.clone(), scope, at: nest.named(at) })?;
    for of in [&name, &nest.stage] {
        let named = |l: &str| LoopRef { stage: of.clone(), name: l.to_owned() };
        step(m, StepKind::Vectorize { target: named(lanes), width: Some(width) })?;
        // There is no loop over vectors where one is enough.
        let _ = step(m, StepKind::Unroll { target: named(&format!("{lanes}_o")) });
        for row in rows {
            step(m, StepKind::Unroll { target: named(row) })?;
        }
    }
    if let Some(k) = unrolled {
        step(m, StepKind::Unroll { target: LoopRef { stage: name.clone(), name: k } })?;
    }
    if whole {
        for l in rows.iter().copied().chain([lanes, &format!("{lanes}_o")]) {
            attempt(m, |m| step(m, StepKind::Relax { target: nest.named(l), zero: false }));
        }
    }
    Some(name)
}
