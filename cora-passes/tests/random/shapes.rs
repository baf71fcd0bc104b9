//! Extents: declared parameters and functions, and random expressions over them.

use super::graphs::OpDim;
use cora_ir::{BinOp, Env, Expr, ExprId, Param, UfDef, UfId};
use rand::prelude::*;

/// The sizes that a graph is made of.
pub struct Shapes {
    /// The number of rows.
    pub rows: ExprId,
    /// A size that is not empty.
    pub size: ExprId,
    lens: UfId,
    left: UfId,
    right: UfId,
    words: UfId,
}

impl Shapes {
    /// Declares parameters and extent functions in `env`.
    pub fn declare(env: &mut Env, rng: &mut SmallRng) -> Self {
        let m = env.params.push(Param { name: "M".to_owned(), lo: i64::from(rng.random_bool(0.1)), hi: 64 });
        let rows = env.pool.param(m);
        let n = env.params.push(Param { name: "N".to_owned(), lo: 1, hi: 4 });
        let size = env.pool.param(n);
        let lo = i64::from(rng.random_bool(0.15));
        // Of many positions there may be tiles of instructions.
        let most = *[20, 20, 20, 150].choose(rng).expect("not empty");
        let lens = extent(env, "lens", &[rows], lo, most);
        let left = extent(env, "la", &[rows], 0, 9);
        let right = extent(env, "lb", &[rows], 0, 9);
        let a0 = env.pool.arg(0);
        let row = env.pool.call(lens, [a0]);
        let words = extent(env, "words", &[rows, row], 0, 4);
        Self { rows, size, lens, left, right, words }
    }

    /// The length of row `b`.
    pub fn row_extent(&self, env: &mut Env, b: ExprId) -> ExprId {
        env.pool.call(self.lens, [b])
    }

    /// Random extents of a tensor, each over the `Arg`s before it.
    pub fn random(&self, env: &mut Env, rng: &mut SmallRng, rank: usize) -> Vec<ExprId> {
        let mut out: Vec<(ExprId, ExprId)> = Vec::new();
        for j in 0..rank {
            let extent = self.extent(env, rng, &out);
            let index = env.pool.arg(j as u32);
            out.push((index, extent));
        }
        out.into_iter().map(|d| d.1).collect()
    }

    /// A random extent of one more dimension of an operator.
    pub fn extent_of_dims(&self, env: &mut Env, rng: &mut SmallRng, dims: &[OpDim]) -> ExprId {
        let outer: Vec<(ExprId, ExprId)> = dims.iter().map(|d| (d.index, d.extent)).collect();
        self.extent(env, rng, &outer)
    }

    /// A random extent inside dimensions given as `(index, extent)`.
    fn extent(&self, env: &mut Env, rng: &mut SmallRng, outer: &[(ExprId, ExprId)]) -> ExprId {
        let constant = |env: &mut Env, rng: &mut SmallRng| env.pool.int([1, 2, 2, 3, 4, 5][rng.random_range(0..6)]);
        if outer.is_empty() {
            return match rng.random_range(0..10) {
                0 => constant(env, rng),
                1 => self.size,
                _ => self.rows,
            };
        }
        let rows: Vec<ExprId> = outer.iter().filter(|d| d.1 == self.rows).map(|d| d.0).collect();
        // Each with its length and what that is the length of.
        let positions = |of: UfId| -> Vec<(ExprId, ExprId, ExprId)> {
            let called = |&(i, e): &(ExprId, ExprId)| match env.pool.get(e) {
                Expr::Call(f, args) if *f == of => Some((i, e, args[0])),
                _ => None,
            };
            outer.iter().filter_map(called).collect()
        };
        let (in_rows, in_sentences) = (positions(self.lens), positions(self.words));
        if let Some(&(w, length, _)) = in_sentences.choose(rng)
            && rng.random_bool(0.3)
        {
            return inside(env, rng, length, w);
        }
        if let Some(&(s, _, b)) = in_rows.choose(rng)
            && rng.random_bool(0.5)
        {
            return self.inside_row(env, rng, b, s);
        }
        match rows.choose(rng) {
            Some(&b) if rng.random_bool(0.75) => self.of_row(env, rng, b),
            _ if rng.random_bool(0.25) => self.size,
            _ => constant(env, rng),
        }
    }

    /// A size that depends on row `b`.
    fn of_row(&self, env: &mut Env, rng: &mut SmallRng, b: ExprId) -> ExprId {
        let row = env.pool.call(self.lens, [b]);
        let (one, two, three) = (env.pool.int(1), env.pool.int(2), env.pool.int(3));
        let (left, right) = (env.pool.call(self.left, [b]), env.pool.call(self.right, [b]));
        match rng.random_range(0..17) {
            0 => env.pool.add(left, right),
            1 => env.pool.ceil_div(row, 2),
            2 => {
                let zero = env.pool.int(0);
                let less = env.pool.sub(row, two);
                env.pool.max(less, zero)
            }
            3 => env.pool.min(row, three),
            4 => env.pool.add(b, one),
            // Below zero where the row is short, which counts as zero.
            5 => env.pool.sub(row, two),
            6 => env.pool.mul(row, two),
            7 => env.pool.max(left, right),
            8 => env.pool.min(left, row),
            9 => env.pool.sub(row, left),
            10 => env.pool.floor_div(left, two),
            _ => row,
        }
    }

    /// A size that depends on position `s` of row `b`.
    fn inside_row(&self, env: &mut Env, rng: &mut SmallRng, b: ExprId, s: ExprId) -> ExprId {
        let row = env.pool.call(self.lens, [b]);
        let words = env.pool.call(self.words, [b, s]);
        let other = env.pool.call(self.left, [b]);
        let (one, two) = (env.pool.int(1), env.pool.int(2));
        match rng.random_range(0..20) {
            0..4 => words,
            4 => env.pool.add(words, one),
            5 => env.pool.mul(words, two),
            6 => env.pool.sub(words, one),
            7 => env.pool.min(words, two),
            8 => env.pool.min(s, other),
            9 => env.pool.add(s, other),
            10 => env.pool.sub(other, s),
            11 => env.pool.add(words, other),
            _ => inside(env, rng, row, s),
        }
    }
}

/// A size that depends on position `i` of a row of `length`.
fn inside(env: &mut Env, rng: &mut SmallRng, length: ExprId, i: ExprId) -> ExprId {
    let (one, three) = (env.pool.int(1), env.pool.int(3));
    match rng.random_range(0..10) {
        0..3 => env.pool.add(i, one),
        3 => {
            let end = env.pool.add(i, three);
            env.pool.min(end, length)
        }
        4 => env.pool.sub(length, i),
        5 => i,
        6 => env.pool.ceil_div(i, 2),
        7 => env.pool.min(i, three),
        8 => {
            let back = env.pool.sub(length, i);
            env.pool.min(back, three)
        }
        _ => length,
    }
}

fn extent(env: &mut Env, name: &str, domain: &[ExprId], lo: i64, hi: i64) -> UfId {
    let (lo, hi) = (env.pool.int(lo), env.pool.int(hi));
    env.uf(name, domain.to_vec(), UfDef::Extent { lo, hi })
}

/// Whether `e` is a size that a gathered index can be declared to stay below.
pub fn is_fixed_size(env: &Env, e: ExprId, shapes: &Shapes) -> bool {
    e == shapes.size || env.pool.as_int(e).is_some_and(|c| c > 0)
}

/// `0 <= index < extent`, without what is plain from the form.
pub fn in_bounds(env: &mut Env, index: ExprId, extent: ExprId) -> ExprId {
    let zero = env.pool.int(0);
    let below = env.pool.lt(index, extent);
    if matches!(env.pool.get(index), Expr::Var(_) | Expr::Int(0..) | Expr::Bin(BinOp::Mod, ..)) {
        return below;
    }
    let above = env.pool.le(zero, index);
    env.pool.and(above, below)
}
