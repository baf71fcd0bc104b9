//! Reductions over all that comes before or after each position, in two levels of blocks.
//!
//! ```text
//! c[t] = sum(s < t + 1) X[s]
//!   =>  c.blocks[o] = sum(i < min(32, n - 32 * o)) X[32 * o + i]
//!       c.before[o] = sum(p < o) c.blocks[p]
//!       c.within[t] = sum(i < t % 32 + 1) X[t / 32 * 32 + i]
//!       c[t] = c.before[t / 32] + c.within[t]
//! ```
//!
//! Of `sum(r < n - t) X[t + r]`, and of `sum(s) (if t <= s then X[s] else 0)`, the same is made with the blocks after each one
//! and what is behind the position in its own.
//!
//! Each position would go through all before it: n positions take n * n / 2 terms, in blocks of 32 some 19 n and, for blocks
//! before them, n * n / 2048. Combiners are associative, and the order of terms stays.
//!
//! Requires: a checked graph. Ensures: the same results but for how they are rounded.

use super::narrow_masked::loops_around;
use crate::lower::declared::{Indices, bounds};
use cora_ir::affine::{normalize, poly};
use cora_ir::graph::Op;
use cora_ir::recurrence::recurrences;
use cora_ir::{BinOp, Dim, DimId, Env, Expr, ExprId, Graph, Reduction, Tensor, TensorDim, TensorId, VarId};
use rustc_hash::FxHashMap;

/// Positions of a block.
pub const BLOCK: i64 = 32;

/// Blocks that a dimension may have from which on reductions are split.
const BLOCKS: i64 = 8;

/// Splits every such reduction of `graph` whose dimension may have many blocks of so many positions.
pub fn split_prefixes(graph: &mut Graph, block: i64) {
    let mut ops = Vec::new();
    let recurrences = recurrences(graph);
    for (n, op) in std::mem::take(&mut graph.ops).into_iter().enumerate() {
        let alone = !recurrences.iter().any(|r| r.ops.contains(&n));
        match Run::of(&mut graph.env, &op, block).filter(|_| alone) {
            Some(run) => ops.extend(run.split(&mut graph.env, op, block)),
            None => ops.push(op),
        }
    }
    graph.ops = ops;
}

/// Which positions a result is made of.
#[derive(Clone, Copy)]
enum Side {
    /// Those before it, and so many from its own on.
    Before(i64),
    /// Those after it, without so many from its own on: 0 or 1.
    After(i64),
}

/// A reduction whose terms are the positions on one side of each of its results.
struct Run {
    /// Which of the dimensions of the result that is, and which of those reduced over has the positions.
    at: usize,
    over: usize,
    side: Side,
    /// The term of the position that the variable of the latter is.
    term: ExprId,
    combiner: Reduction,
}

impl Run {
    fn of(env: &mut Env, op: &Op, block: i64) -> Option<Self> {
        let combiner = op.combiner?;
        for (over, &s) in op.reduce.iter().enumerate() {
            for (at, &t) in op.spatial.iter().enumerate() {
                let Some((side, term)) = side(env, op, t, s) else { continue };
                let (t_var, s_var) = (env.dims[t].var, env.dims[s].var);
                let all = op.spatial.iter().chain(&op.reduce);
                let others: Vec<ExprId> = all.filter(|&&d| d != t && d != s).map(|&d| env.dims[d].extent).collect();
                let moved = |v: VarId| others.iter().any(|&e| env.pool.uses_var(e, v));
                if env.pool.uses_var(term, t_var) || moved(t_var) || moved(s_var) {
                    continue;
                }
                let whole = env.dims[t].extent;
                let loops = loops_around(env, &[whole])?;
                let most = bounds(env, whole, Indices { args: &[], loops: &loops }).hi;
                if most.is_none_or(|n| n >= BLOCKS * block) {
                    return Some(Self { at, over, side, term, combiner });
                }
            }
        }
        None
    }

    /// The operators in the place of one.
    fn split(self, env: &mut Env, op: Op, block: i64) -> Vec<Op> {
        let (t, s) = (op.spatial[self.at], op.reduce[self.over]);
        let (whole, size) = (env.dims[t].extent, env.pool.int(block));
        let (t_pos, s_var) = (env.pool.var(env.dims[t].var), env.dims[s].var);
        let dim = |env: &mut Env, d: DimId, extent: ExprId| {
            let var = env.copy_var(env.dims[d].var);
            let extent = normalize(&mut env.pool, extent);
            env.dims.push(Dim { name: env.dims[d].name.clone(), extent, var })
        };
        let with = |list: &[DimId], at: usize, d: DimId| {
            let mut list = list.to_vec();
            list[at] = d;
            list
        };
        let stored = env.tensors[op.tensor].dims[self.at].extent;
        let term = |env: &mut Env, first: ExprId, i: DimId| {
            let inside = env.pool.var(env.dims[i].var);
            let there = env.pool.add(first, inside);
            env.pool.substitute(self.term, &FxHashMap::from_iter([(s_var, there)]))
        };
        let [all_blocks, all_stored] = [whole, stored].map(|n| env.pool.ceil_div(n, block));
        let (zero, one) = (env.pool.int(0), env.pool.int(1));
        // After none is the first block, whose positions may be before the first term.
        let after_first = |env: &mut Env, n: ExprId| {
            let n = env.pool.sub(n, one);
            env.pool.max(n, zero)
        };
        let [count, stored_count] = match self.side {
            Side::Before(_) => [all_blocks, all_stored],
            Side::After(_) => [all_blocks, all_stored].map(|n| after_first(env, n)),
        };

        let o = dim(env, t, count);
        let blocks = self.tensor(env, op.tensor, "blocks", stored_count);
        let first = env.pool.var(env.dims[o].var);
        let mut first = env.pool.mul(first, size);
        // The last position may be before no other one, and then its term need not be there.
        let mut left = whole;
        match self.side {
            Side::Before(more) => {
                let beyond = env.pool.int(1 - more.min(1));
                left = env.pool.sub(left, beyond);
            }
            Side::After(_) => first = env.pool.add(first, size),
        }
        let left = env.pool.sub(left, first);
        let left = env.pool.min(size, left);
        let i = dim(env, s, left);
        let value = term(env, first, i);
        let of_blocks = self.reduction(blocks, with(&op.spatial, self.at, o), with(&op.reduce, self.over, i), value);

        let o = dim(env, t, all_blocks);
        let own = env.pool.var(env.dims[o].var);
        let (what, far) = match self.side {
            Side::Before(_) => ("before", own),
            Side::After(_) => ("after", env.pool.sub(count, own)),
        };
        let p = dim(env, s, far);
        let others = self.tensor(env, op.tensor, what, all_stored);
        let mut index = self.index(env, &with(&op.spatial, self.at, p));
        if let Side::After(_) = self.side {
            index[self.at] = env.pool.add(own, index[self.at]);
        }
        let value = env.element(blocks, &index);
        let of_others = self.reduction(others, with(&op.spatial, self.at, o), vec![p], value);

        let (number, place) = (env.pool.floor_div(t_pos, size), env.pool.bin(BinOp::Mod, t_pos, size));
        let (first, count) = match self.side {
            Side::Before(more) => {
                let more = env.pool.int(more);
                (env.pool.mul(number, size), env.pool.add(place, more))
            }
            Side::After(skipped) => {
                let skipped = env.pool.int(skipped);
                let (in_block, in_all) = (env.pool.sub(size, place), env.pool.sub(whole, t_pos));
                let count = env.pool.min(in_block, in_all);
                (env.pool.add(t_pos, skipped), env.pool.sub(count, skipped))
            }
        };
        let i = dim(env, s, count);
        let within = self.tensor(env, op.tensor, "within", stored);
        let value = term(env, first, i);
        let of_within = self.reduction(within, op.spatial.clone(), with(&op.reduce, self.over, i), value);

        let own = self.index(env, &op.spatial);
        let mut index = own.clone();
        index[self.at] = number;
        let (far, near) = (env.element(others, &index), env.element(within, &own));
        let value = match self.side {
            Side::Before(_) => env.combined(self.combiner, far, near),
            Side::After(_) => env.combined(self.combiner, near, far),
        };
        vec![of_blocks, of_others, of_within, Op { reduce: Vec::new(), combiner: None, value, ..op }]
    }

    fn reduction(&self, tensor: TensorId, spatial: Vec<DimId>, reduce: Vec<DimId>, value: ExprId) -> Op {
        Op { tensor, spatial, reduce, combiner: Some(self.combiner), value }
    }

    fn index(&self, env: &mut Env, dims: &[DimId]) -> Vec<ExprId> {
        dims.iter().map(|&d| env.pool.var(env.dims[d].var)).collect()
    }

    /// An intermediate like a tensor, but for the size of the dimension that has the positions.
    fn tensor(&self, env: &mut Env, like: TensorId, what: &str, size: ExprId) -> TensorId {
        let of = &env.tensors[like];
        let mut dims: Vec<TensorDim> = of.dims.iter().map(|d| TensorDim { storage: d.extent, ..d.clone() }).collect();
        (dims[self.at].extent, dims[self.at].storage) = (size, size);
        let (name, ty, tuple) = (env.fresh_tensor_name(&format!("{}.{what}", of.name)), of.ty, of.tuple);
        env.tensors.push(Tensor { tuple, ..Tensor::temp(name, ty, dims) })
    }
}

/// On which side of `t` the positions are that `s` is reduced over, and the term of the position that its variable is.
fn side(env: &mut Env, op: &Op, t: DimId, s: DimId) -> Option<(Side, ExprId)> {
    let (own, there) = (env.pool.var(env.dims[t].var), env.pool.var(env.dims[s].var));
    let (whole, extent) = (env.dims[t].extent, env.dims[s].extent);
    let constant = |env: &mut Env, e: ExprId| poly(&env.pool, e).as_constant();
    let more = env.pool.sub(extent, own);
    if let Some(more) = constant(env, more).filter(|&n| n >= 0) {
        return Some((Side::Before(more), op.value));
    }
    let skipped = env.pool.sub(whole, own);
    let skipped = env.pool.sub(skipped, extent);
    if let Some(skipped) = constant(env, skipped).filter(|n| (0..=1).contains(n)) {
        // The position is `t + s`, or the next one.
        let by = env.pool.int(skipped);
        let from = env.pool.sub(there, own);
        let from = env.pool.sub(from, by);
        let term = env.pool.substitute(op.value, &FxHashMap::from_iter([(env.dims[s].var, from)]));
        return Some((Side::After(skipped), normalize(&mut env.pool, term)));
    }
    // All positions, of which those before count nothing.
    let Reduction::Op(combiner) = op.combiner? else { return None };
    let Expr::Select(cond, value, other) = *env.pool.get(op.value) else { return None };
    let same = env.pool.sub(whole, extent);
    if other != env.identity(combiner, env.pool.ty(op.value).scalar) || constant(env, same) != Some(0) {
        return None;
    }
    let mut conds = env.pool.conjuncts(cond);
    let after = |env: &Env, c: ExprId| match *env.pool.get(c) {
        Expr::Bin(BinOp::Le, x, y) if (x, y) == (own, there) => Some(0),
        Expr::Bin(BinOp::Lt, x, y) if (x, y) == (own, there) => Some(1),
        _ => None,
    };
    let (n, skipped) = conds.iter().enumerate().find_map(|(n, &c)| Some((n, after(env, c)?)))?;
    conds.remove(n);
    let mut term = value;
    for c in conds.into_iter().rev() {
        term = env.pool.select(c, term, other);
    }
    Some((Side::After(skipped), term))
}
