//! Dimensions end where a mask begins, and begin where one ends: what a comparison of positions makes the identity of the
//! reductions over it is not computed.
//!
//! ```text
//! dim q = lens(b), k = lens(b)                       dim k' = q + 1
//! S[b, q, k] = if k <= q then .. else -inf           S[b, q, k'] = ..
//! m[b, q] = max(k) S                            =>   m[b, q] = max(k') S
//! e[b, q, k] = exp(S - m)                            e[b, q, k'] = exp(S - m)
//! s[b, q] = sum(k) e                                 s[b, q] = sum(k') e
//! ```
//!
//! Comparisons in the program give a dimension bounds that dimensions outside of it determine. Beyond a bound tensors along
//! the dimension may be constant (`narrow_masked/outside.rs`). A reduction whose term is its identity there ends at the bound,
//! and so does a temporary that only such reductions and other such temporaries read, each at its own position. What is left
//! is an extent, which tiles, tables and the balance of work follow.
//!
//! A bound from below is a beginning: positions are counted from it on, and what stays whole is read that much farther on.
//! Rows that begin at positions of their own share nothing that they read, so it has to leave little of the dimension. On a
//! processor the rows of a tile begin and end together where a window along them is longer than the tile
//! (`narrow_masked/tiles.rs`); the mask stays, for what the others have.
//!
//! In a recurrence dimensions inside of its positions end, not these: they are those of all its operators.
//!
//! Infinities and NaN that would arise beyond the bound alone, from infinite inputs, from what overflows, from a division by 0
//! or a root of less than 0, do not.
//!
//! Requires: checked accesses. Ensures: the same results; tensors and dimensions keep their names. Runs for programs without a
//! schedule: steps speak of the loops that were written.

mod outside;
mod tiles;

use crate::lower::Simplifier;
use crate::lower::declared::{Indices, bounds as bounds_of};
use cora_ir::affine::{normalize, with_remainders};
use cora_ir::env::{Dim, Role};
use cora_ir::recurrence::recurrences;
use cora_ir::tuple::Reduction;
use cora_ir::{BinOp, DimId, Env, Expr, ExprId, Graph, Op, TensorId, VarId};
use outside::{Outside, Region, Side, both_ways, compared};
use rustc_hash::{FxHashMap, FxHashSet};
use tiles::Tiles;

/// Decides conditions.
type Prove<'a> = dyn FnMut(&mut Env, ExprId) -> bool + 'a;

/// So many bounds of a program are used: each takes walks through all of it.
const MOST_BOUNDS: usize = 8;
/// A dimension begins later only where at most one in so many of its positions may be left.
const LITTLE: i64 = 8;

/// Where dimensions begin that a mask leaves a window of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Windows {
    /// Each row where its own window begins, if that is little of the dimension.
    OfRows,
    /// The rows of a tile of so many together where windows are longer than that; otherwise as of rows.
    OfTiles(i64),
    /// Each row where its own window begins: what is counted as useful.
    Counted,
}

/// Ends dimensions of `graph` where masks begin, and has them begin where masks end.
pub fn narrow_masked(graph: &mut Graph, simplifier: &mut dyn Simplifier, windows: Windows) {
    let mut done = FxHashSet::default();
    if let Windows::OfTiles(rows) = windows {
        for from in bounds(graph).into_iter().filter(|b| b.side == Side::From) {
            done.extend(in_tiles(graph, simplifier, from, rows));
        }
    }
    let mut tried = FxHashSet::default();
    for _ in 0..MOST_BOUNDS {
        let mut new = bounds(graph).into_iter().filter(|b| !done.contains(&b.dim) && tried.insert(*b));
        let Some(ended) = new.find_map(|b| Ended::of(graph, simplifier, b, windows)) else { return };
        let before = graph.clone();
        ended.apply(graph);
        // The condition may have said that what a recurrence reads is there, and not the extent.
        if recurrences(graph).iter().any(|r| !r.unordered(graph).is_empty()) {
            *graph = before;
        }
    }
}

/// Whether a comparison gives a dimension of `graph` a beginning.
pub fn has_windows(graph: &mut Graph) -> bool {
    bounds(graph).iter().any(|b| b.side == Side::From)
}

/// Has the rows of a tile begin and end together where a window begins at `from`; gives the dimension that does.
fn in_tiles(graph: &mut Graph, simplifier: &mut dyn Simplifier, from: Bound, rows: i64) -> Option<DimId> {
    let whole = graph.env.dims[from.dim].extent;
    let mut ends = bounds(graph).into_iter().filter(|b| b.dim == from.dim && b.side == Side::Below);
    let (tiles, end) = ends.find_map(|end| {
        let tiles = Tiles::of(&mut graph.env, simplifier, from, end.at, rows)?;
        let (zero, at) = (graph.env.pool.int(0), tiles.end);
        let narrow = |env: &mut Env, prove: &mut Prove, _: &_| Some((zero, narrower(env, prove, at, whole)?));
        let ended = Ended::where_narrow(graph, simplifier, (end, true), narrow)?;
        // Rows that share what they read are those of a sum for each position.
        let sums = graph.ops.iter().any(|op| ended.along.contains(&op.tensor) && op.combiner.is_some());
        sums.then_some((tiles, (end, ended.extent)))
    })?;
    let first = tiles.beginning;
    let began = Ended::where_narrow(graph, simplifier, (from, true), |env, prove, _| later(env, prove, first, whole))?;
    let (first, began) = (began.first, began.apply(graph));
    let (bound, extent) = end;
    let env = &mut graph.env;
    let [at, left] = [bound.at, extent].map(|e| env.pool.sub(e, first)).map(|e| normalize(&mut env.pool, e));
    let narrow = |env: &mut Env, prove: &mut Prove, _: &_| Some((env.pool.int(0), not_negative(env, prove, left)));
    let end = Bound { dim: began, at, ..bound };
    let ended = Ended::where_narrow(graph, simplifier, (end, true), narrow);
    Some(ended.map_or(began, |ended| ended.apply(graph)))
}

/// A position of a dimension, over the variables of other dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Bound {
    dim: DimId,
    at: ExprId,
    side: Side,
}

/// The bounds that comparisons in `graph` give its dimensions, each once: ends before beginnings, which are fewer.
fn bounds(graph: &mut Graph) -> Vec<Bound> {
    let mut found = Vec::new();
    for op in &graph.ops {
        let mut comparisons = Vec::new();
        graph.env.pool.walk(op.value, &mut |id, e| {
            if matches!(e, Expr::Bin(BinOp::Lt | BinOp::Le | BinOp::Eq | BinOp::Or, ..)) {
                comparisons.push(id);
            }
        });
        let comparisons: Vec<ExprId> =
            comparisons.into_iter().flat_map(|c| both_ways(&mut graph.env.pool, c)).collect();
        for c in comparisons {
            for &dim in op.spatial.iter().chain(&op.reduce) {
                let var = graph.env.dims[dim].var;
                found.extend(compared(&mut graph.env, c, var).map(|(at, _)| (dim, at)));
            }
        }
    }
    let on = |side| found.iter().map(move |&(dim, at)| Bound { dim, at, side });
    let mut seen = FxHashSet::default();
    on(Side::Below).chain(on(Side::From)).filter(|b| seen.insert(*b)).collect()
}

/// What ends, or begins, at a bound.
struct Ended {
    region: Region,
    dim: DimId,
    /// The first position that is left, over the variables of dimensions.
    first: ExprId,
    /// How many are left, over the same.
    extent: ExprId,
    /// The temporaries along the dimension.
    along: FxHashSet<TensorId>,
    /// The results of reductions over it.
    reductions: FxHashSet<TensorId>,
    /// Whether others than what the mask leaves do too.
    in_tiles: bool,
}

impl Ended {
    /// What of `graph` ends at `bound`; nothing if no reduction does.
    fn of(graph: &mut Graph, simplifier: &mut dyn Simplifier, bound: Bound, windows: Windows) -> Option<Self> {
        let whole = graph.env.dims[bound.dim].extent;
        Self::where_narrow(graph, simplifier, (bound, false), |env, prove, loops| match bound.side {
            Side::Below => Some((env.pool.int(0), narrower(env, prove, bound.at, whole)?)),
            Side::From => later(env, prove, bound.at, whole)
                .filter(|l| windows == Windows::Counted || is_little(env, loops, l.1, whole)),
        })
    }

    /// What ends at `bound`, of all rows of a tile or of each, if it does so by the first position that is left and how many
    /// are.
    fn where_narrow(
        graph: &mut Graph,
        simplifier: &mut dyn Simplifier,
        (bound, in_tiles): (Bound, bool),
        narrow: impl FnOnce(&mut Env, &mut Prove, &[(VarId, ExprId)]) -> Option<(ExprId, ExprId)>,
    ) -> Option<Self> {
        let Bound { dim, at, side } = bound;
        let outer = dims_of(&graph.env, at)?;
        let vars = outer.iter().map(|&d| graph.env.dims[d].var).collect();
        // The positions of a recurrence are those of all its operators, and tiles have rows that are not computed yet.
        let recurrences = recurrences(graph);
        let free = |n: usize| !recurrences.iter().any(|r| r.ops.contains(&n) && (in_tiles || r.dims.contains(&dim)));
        let fitting = graph.ops.iter().enumerate().filter(|(n, op)| free(*n) && fits(&graph.env, op, dim, &outer));
        let fitting: FxHashSet<TensorId> = fitting.map(|(_, op)| op.tensor).collect();
        // Most bounds end nothing: that is known without a proof.
        let mut region = Region { var: graph.env.dims[dim].var, bound: at, side, outer: vars, never_empty: true };
        let mut reductions = ending(graph, &region, &fitting);
        if reductions.is_empty() {
            return None;
        }
        let env = &mut graph.env;
        let whole = env.dims[dim].extent;
        let loops = loops_around(env, &[at, whole])?;
        let mut prove = |env: &mut Env, goal| simplifier.prove(env, &loops, &[], goal);
        let (first, extent) = narrow(env, &mut prove, &loops)?;
        let zero = env.pool.int(0);
        let (any, some) = (env.pool.lt(zero, whole), env.pool.lt(zero, extent));
        region.never_empty = simplifier.prove(env, &loops, &[any], some);
        if !region.never_empty {
            reductions = ending(graph, &region, &fitting);
        }
        if reductions.is_empty() {
            return None;
        }
        let own = |op: &&Op| graph.env.tensors[op.tensor].role == Role::Temp && op.spatial.contains(&dim);
        let along = graph.ops.iter().filter(own).map(|op| op.tensor).filter(|t| fitting.contains(t)).collect();
        let mut ended = Self { region, dim, first, extent, along, reductions, in_tiles };
        while ended.keep_what_is_read_elsewhere(graph) {}
        Some(ended)
    }

    /// Takes out temporaries that are read by what does not end, or at other positions than the reader's; false if there are
    /// none.
    fn keep_what_is_read_elsewhere(&mut self, graph: &Graph) -> bool {
        let mut elsewhere = FxHashSet::default();
        for op in &graph.ops {
            let ends = self.along.contains(&op.tensor) || self.reductions.contains(&op.tensor);
            graph.env.pool.walk(op.value, &mut |_, e| {
                if let Expr::Load { tensor, index, .. } = e
                    && self.along.contains(tensor)
                    && !(ends && self.region.is_own(graph, *tensor, index))
                {
                    elsewhere.insert(*tensor);
                }
            });
        }
        self.along.retain(|t| !elsewhere.contains(t));
        !elsewhere.is_empty()
    }

    /// Gives the dimension that takes the place of the one that ends.
    fn apply(self, graph: &mut Graph) -> DimId {
        let ends = |op: &Op| self.along.contains(&op.tensor) || self.reductions.contains(&op.tensor);
        let ended: Vec<usize> = (0..graph.ops.len()).filter(|&n| ends(&graph.ops[n])).collect();
        // Masks may be tensors, whose operators have to be as they were written.
        let inside = |graph: &mut Graph, value| if self.in_tiles { value } else { self.region.inside(graph, value) };
        let values: Vec<ExprId> = ended.iter().map(|&n| inside(graph, graph.ops[n].value)).collect();
        let place = |op: &Op| op.spatial.iter().position(|&d| d == self.dim).map(|p| (op.tensor, p));
        let places: FxHashMap<TensorId, usize> =
            graph.ops.iter().filter(|op| self.along.contains(&op.tensor)).filter_map(place).collect();
        let env = &mut graph.env;
        let (name, old) = (env.dims[self.dim].name.clone(), env.dims[self.dim].var);
        let var = env.copy_var(old);
        let dim = env.dims.push(Dim { name, extent: self.extent, var });
        let position = env.pool.var(var);
        let there = env.pool.add(self.first, position);
        for (n, value) in ended.into_iter().zip(values) {
            let op = &mut graph.ops[n];
            if let Some(&p) = places.get(&op.tensor) {
                let positions: FxHashMap<VarId, ExprId> =
                    (0..p).map(|n| (env.dims[op.spatial[n]].var, env.pool.arg(n as u32))).collect();
                let extent = env.pool.substitute(self.extent, &positions);
                let stored = &mut env.tensors[op.tensor].dims[p];
                (stored.extent, stored.storage) = (extent, extent);
            }
            for d in op.spatial.iter_mut().chain(&mut op.reduce).filter(|d| **d == self.dim) {
                *d = dim;
            }
            // What has fewer positions itself counts them from the same one.
            op.value = env.pool.rewrite(value, &mut |pool, e| match pool.get(e).clone() {
                Expr::Var(v) if v == old => Some(there),
                Expr::Load { tensor, part, index, guard } => {
                    let &p = places.get(&tensor)?;
                    let mut index = index.to_vec();
                    index[p] = position;
                    let ty = pool.ty(e).scalar;
                    Some(pool.load_guarded((tensor, part), ty, index, guard))
                }
                _ => None,
            });
        }
        dim
    }
}

/// The reductions over the region's dimension, of those that fit, that lose nothing by an end at its bound.
fn ending(graph: &mut Graph, region: &Region, fitting: &FxHashSet<TensorId>) -> FxHashSet<TensorId> {
    let mut outside = Outside::new(region);
    for n in 0..graph.ops.len() {
        let op = graph.ops[n].clone();
        outside.add(graph, &op, fitting.contains(&op.tensor));
    }
    outside.into_reductions()
}

/// The dimensions that `e` is over; nothing if it is over anything else that varies.
fn dims_of(env: &Env, e: ExprId) -> Option<Vec<DimId>> {
    if env.pool.any(e, &mut |n| matches!(n, Expr::Load { .. } | Expr::Arg(_) | Expr::Operand(..))) {
        return None;
    }
    let dim = |v: VarId| env.dims.iter().find(|(_, d)| d.var == v).map(|(id, _)| id);
    env.pool.vars_of(e).into_iter().map(dim).collect()
}

/// The dimensions that `es` are over and those that their extents are over, outermost first.
pub(super) fn loops_around(env: &Env, es: &[ExprId]) -> Option<Vec<(VarId, ExprId)>> {
    let mut out: Vec<(VarId, ExprId)> = Vec::new();
    for &e in es {
        for d in dims_of(env, e)? {
            let (var, extent) = (env.dims[d].var, env.dims[d].extent);
            let around = loops_around(env, &[extent])?;
            for l in around.into_iter().chain([(var, extent)]) {
                if !out.contains(&l) {
                    out.push(l);
                }
            }
        }
    }
    Some(out)
}

/// How far a dimension of extent `whole` goes below `end`; nothing if that is no less. Of a constant extent only what is always
/// enough is taken off: the border of a window is little of it.
fn narrower(env: &mut Env, prove: &mut Prove, end: ExprId, whole: ExprId) -> Option<ExprId> {
    let (beyond, within) = (env.pool.le(whole, end), env.pool.le(end, whole));
    if prove(env, beyond) {
        return None;
    }
    let constant = env.pool.as_int(whole).is_some();
    let least = match prove(env, within) {
        true => end,
        false if constant => return None,
        false => env.pool.min(whole, end),
    };
    Some(not_negative(env, prove, least))
}

/// `e`, or 0 where it may be less.
fn not_negative(env: &mut Env, prove: &mut Prove, e: ExprId) -> ExprId {
    let zero = env.pool.int(0);
    let positive = env.pool.le(zero, e);
    if prove(env, positive) { e } else { env.pool.max(e, zero) }
}

/// The first position of a dimension of extent `whole` that is not below `start`, and how many there are from it on; nothing
/// if those are all.
fn later(env: &mut Env, prove: &mut Prove, start: ExprId, whole: ExprId) -> Option<(ExprId, ExprId)> {
    let zero = env.pool.int(0);
    let (all, some_before) = (env.pool.le(start, zero), env.pool.le(zero, start));
    if prove(env, all) {
        return None;
    }
    let left = less(env, whole, start);
    let (first, left) = match prove(env, some_before) {
        true => (start, left),
        false => (env.pool.max(start, zero), env.pool.min(left, whole)),
    };
    Some((first, not_negative(env, prove, left)))
}

/// `a - b`, where a minimum or maximum stays one, of what may be simple.
fn less(env: &mut Env, a: ExprId, b: ExprId) -> ExprId {
    if let Expr::Bin(op @ (BinOp::Min | BinOp::Max), x, y) = *env.pool.get(a) {
        let (x, y) = (less(env, x, b), less(env, y, b));
        return env.pool.bin(op, x, y);
    }
    if let Expr::Bin(op @ (BinOp::Min | BinOp::Max), x, y) = *env.pool.get(b) {
        let (x, y) = (less(env, a, x), less(env, a, y));
        let other = if op == BinOp::Min { BinOp::Max } else { BinOp::Min };
        return env.pool.bin(other, x, y);
    }
    let difference = env.pool.sub(a, b);
    with_remainders(&mut env.pool, difference)
}

/// Whether what is left of a dimension is so little of it that this pays: rows that begin at positions of their own share
/// nothing that they read.
fn is_little(env: &Env, loops: &[(VarId, ExprId)], left: ExprId, whole: ExprId) -> bool {
    let most = |e| bounds_of(env, e, Indices { args: &[], loops }).hi;
    let (Some(left), whole) = (most(left), most(whole)) else { return false };
    left.checked_mul(LITTLE).is_some_and(|n| whole.is_none_or(|w| n <= w))
}

/// Whether the operator runs along `dim`, inside loops over `outer`, and no other of its loops depends on how far.
fn fits(env: &Env, op: &Op, dim: DimId, outer: &[DimId]) -> bool {
    let dims: Vec<DimId> = op.spatial.iter().chain(&op.reduce).copied().collect();
    let Some(at) = dims.iter().position(|&d| d == dim) else { return false };
    let depends = |d: &DimId| env.pool.uses_var(env.dims[*d].extent, env.dims[dim].var);
    let tuples = matches!(op.combiner, Some(Reduction::Tuple(_))) || env.tensors[op.tensor].tuple.is_some();
    !tuples && outer.iter().all(|d| dims[..at].contains(d)) && !dims.iter().any(depends)
}
