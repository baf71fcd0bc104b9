//! Bounds that the rows of a tile have in common.

use super::{Bound, dims_of, less, loops_around, not_negative};
use crate::lower::Simplifier;
use crate::lower::declared::{Indices, bounds as bounds_of};
use cora_ir::affine::normalize;
use cora_ir::{BinOp, DimId, Env, Expr, ExprId, VarId};
use rustc_hash::FxHashMap;

/// A tile begins at a multiple of this, if it is that high, so that it reads whole panels of what is copied in an order of its
/// own.
const PANEL: i64 = 32;
/// Windows pay for the positions that not all rows of a tile have if they are so many times its rows.
const WINDOW: i64 = 2;
/// At most one in so many positions of a dimension is in a window.
const FEW: i64 = 2;

/// Where a tile of rows begins and ends, over the same as the bounds of a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tiles {
    pub beginning: ExprId,
    pub end: ExprId,
}

impl Tiles {
    /// Those of about so many `rows` of a dimension that begins at `from` and ends at `end`, if that is a window which moves
    /// along rows.
    pub fn of(env: &mut Env, simplifier: &mut dyn Simplifier, from: Bound, end: ExprId, rows: i64) -> Option<Self> {
        let whole = env.dims[from.dim].extent;
        let outer = dims_of(env, from.at)?;
        let mut moved = outer.into_iter().filter(|&d| may_move(env, d, from.at, end));
        let (row, None) = (moved.next()?, moved.next()) else { return None };
        let row = env.dims[row].var;
        let loops = loops_around(env, &[from.at, end, whole])?;
        let most = |env: &Env, e| bounds_of(env, e, Indices { args: &[], loops: &loops }).hi;
        let window = less(env, end, from.at);
        let (window, whole) = (most(env, window)?, most(env, whole));
        if whole.is_some_and(|w| window.saturating_mul(FEW) > w) {
            return None;
        }
        let chunk = chunk(env, from.at, row);
        let rows = chunk.map_or(rows, |c| rows_of_chunks(c, rows));
        let mut at_row = |env: &mut Env, e: ExprId, n: i64| {
            let moved = at_row(env, e, (row, rows), n);
            simplifier.simplify(env, &loops, moved)
        };
        // The bound of each row has to be within that of its tile.
        let (first, last) = (at_row(env, from.at, 0), at_row(env, end, rows - 1));
        // Rows of a chunk that is no longer than they are have half of it on average.
        let mut is_window = window >= WINDOW * rows;
        if is_window && chunk.is_some() {
            let (together, enough) = (env.pool.sub(last, first), env.pool.int(window.saturating_mul(3) / 2));
            let few = env.pool.le(together, enough);
            is_window = simplifier.prove(env, &loops, &[], few);
        }
        let (earlier, later) = (env.pool.le(first, from.at), env.pool.le(end, last));
        if !is_window || !simplifier.prove(env, &loops, &[], earlier) || !simplifier.prove(env, &loops, &[], later) {
            return None;
        }
        let panel = env.pool.int(PANEL.min(1 << rows.ilog2()));
        let positive = not_negative(env, &mut |env, goal| simplifier.prove(env, &loops, &[], goal), first);
        let number = env.pool.floor_div(positive, panel);
        let beginning = env.pool.mul(number, panel);
        Some(Self { beginning: simplifier.simplify(env, &loops, beginning), end: last })
    }
}

/// `e` at one of the rows of the tile that a row is in, of so many.
fn at_row(env: &mut Env, e: ExprId, (row, rows): (VarId, i64), n: i64) -> ExprId {
    let (var, rows, n) = (env.pool.var(row), env.pool.int(rows), env.pool.int(n));
    let tile = env.pool.floor_div(var, rows);
    let first = env.pool.mul(tile, rows);
    let there = env.pool.add(first, n);
    let moved = env.pool.substitute(e, &FxHashMap::from_iter([(row, there)]));
    normalize(&mut env.pool, moved)
}

/// How many rows a bound stays the same for, where it moves by quotients by a number.
fn chunk(env: &Env, bound: ExprId, row: VarId) -> Option<i64> {
    let pool = &env.pool;
    let mut found = None;
    pool.walk(bound, &mut |_, e| match *e {
        Expr::Bin(BinOp::FloorDiv, x, c) if pool.uses_var(x, row) => {
            found = found.or(pool.as_int(c).filter(|&c| c > 1))
        }
        _ => {}
    });
    found
}

/// About so many `rows`: those of whole chunks, or a part of one.
fn rows_of_chunks(chunk: i64, rows: i64) -> i64 {
    match chunk {
        c if c <= rows => rows / c * c,
        c => (rows / 2..=rows).rev().chain(rows..=2 * rows).find(|n| c % n == 0).unwrap_or(rows),
    }
}

/// Whether bounds move with a dimension by numbers alone: of a function nothing is known beyond its domain.
fn may_move(env: &Env, dim: DimId, from: ExprId, end: ExprId) -> bool {
    let (pool, var) = (&env.pool, env.dims[dim].var);
    let in_call =
        |e| pool.any(e, &mut |n| matches!(n, Expr::Call(_, args) if args.iter().any(|&a| pool.uses_var(a, var))));
    let plain = |e| !pool.any(e, &mut |n| matches!(n, Expr::Bin(BinOp::Mod, ..)));
    [from, end].into_iter().all(|e| pool.uses_var(e, var) && !in_call(e) && plain(e))
}
