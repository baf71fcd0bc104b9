//! Bounds that the rows of a tile have in common.

use super::{Bound, dims_of, less, loops_around};
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

/// The rows whose bounds are made the same in tiles, and how many are in one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tiles {
    row: VarId,
    rows: i64,
}

impl Tiles {
    /// Those of so many `rows` of a dimension that begins at `from` and ends at `end`, if that is a window which moves along
    /// rows.
    pub fn of(env: &mut Env, simplifier: &mut dyn Simplifier, from: Bound, end: ExprId, rows: i64) -> Option<Self> {
        let whole = env.dims[from.dim].extent;
        let outer = dims_of(env, from.at)?;
        let mut moved = outer.into_iter().filter(|&d| may_move(env, d, from.at, end));
        let (row, None) = (moved.next()?, moved.next()) else { return None };
        let loops = loops_around(env, &[from.at, end, whole])?;
        let most = |env: &Env, e| bounds_of(env, e, Indices { args: &[], loops: &loops }).hi;
        let window = less(env, end, from.at);
        let (window, whole) = (most(env, window)?, most(env, whole));
        let is_window = window >= WINDOW * rows && whole.is_none_or(|w| window.saturating_mul(FEW) <= w);
        let tiles = Self { row: env.dims[row].var, rows };
        // The bound of each row has to be within that of its tile.
        let (first, last) = (tiles.at_row(env, from.at, 0), tiles.end(env, end));
        let (earlier, later) = (env.pool.le(first, from.at), env.pool.le(end, last));
        (is_window && simplifier.prove(env, &loops, &[], earlier) && simplifier.prove(env, &loops, &[], later))
            .then_some(tiles)
    }

    /// Where the tile begins whose first row begins at `at`.
    pub fn beginning(self, env: &mut Env, at: ExprId) -> ExprId {
        let first = self.at_row(env, at, 0);
        let (zero, panel) = (env.pool.int(0), env.pool.int(PANEL.min(1 << self.rows.ilog2())));
        let positive = env.pool.max(first, zero);
        let number = env.pool.floor_div(positive, panel);
        let beginning = env.pool.mul(number, panel);
        normalize(&mut env.pool, beginning)
    }

    /// Where the tile ends whose last row ends at `at`.
    pub fn end(self, env: &mut Env, at: ExprId) -> ExprId {
        self.at_row(env, at, self.rows - 1)
    }

    /// `e` at a row of the tile.
    fn at_row(self, env: &mut Env, e: ExprId, row: i64) -> ExprId {
        let (var, rows, row) = (env.pool.var(self.row), env.pool.int(self.rows), env.pool.int(row));
        let tile = env.pool.floor_div(var, rows);
        let first = env.pool.mul(tile, rows);
        let there = env.pool.add(first, row);
        let moved = env.pool.substitute(e, &FxHashMap::from_iter([(self.row, there)]));
        normalize(&mut env.pool, moved)
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
