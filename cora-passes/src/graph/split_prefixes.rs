//! Reductions over all that comes before each position, in two levels of blocks.
//!
//! ```text
//! c[t] = sum(s < t + 1) X[s]
//!   =>  c.blocks[o] = sum(i < min(32, n - 32 * o)) X[32 * o + i]
//!       c.before[o] = sum(p < o) c.blocks[p]
//!       c.within[t] = sum(i < t % 32 + 1) X[t / 32 * 32 + i]
//!       c[t] = c.before[t / 32] + c.within[t]
//! ```
//!
//! Each position would go through all before it: n positions take n * n / 2 terms, in blocks of 32 some 19 n and, for blocks
//! before them, n * n / 2048. Combiners are associative, and the order of terms stays.
//!
//! Requires: a checked graph. Ensures: the same results but for how they are rounded.

use super::narrow_masked::loops_around;
use crate::lower::declared::{Indices, bounds};
use cora_ir::affine::{normalize, poly};
use cora_ir::graph::Op;
use cora_ir::{BinOp, Dim, DimId, Env, ExprId, Graph, Reduction, Tensor, TensorDim, TensorId, VarId};
use rustc_hash::FxHashMap;

/// Positions of a block.
pub const BLOCK: i64 = 32;

/// Blocks that a dimension may have from which on reductions are split.
const BLOCKS: i64 = 8;

/// Splits every such reduction of `graph` whose dimension may have many blocks of so many positions.
pub fn split_prefixes(graph: &mut Graph, block: i64) {
    let mut ops = Vec::new();
    for op in std::mem::take(&mut graph.ops) {
        match Prefix::of(&mut graph.env, &op, block) {
            Some(prefix) => ops.extend(prefix.split(&mut graph.env, op, block)),
            None => ops.push(op),
        }
    }
    graph.ops = ops;
}

/// A reduction whose terms are the positions before one of its results, and some after it.
struct Prefix {
    /// Which of the dimensions of the result that is, and which of those reduced over has the positions.
    at: usize,
    over: usize,
    /// The number of positions at the first one.
    first: i64,
    combiner: Reduction,
}

impl Prefix {
    fn of(env: &mut Env, op: &Op, block: i64) -> Option<Self> {
        let combiner = op.combiner?;
        let var = |env: &Env, d: DimId| env.dims[d].var;
        for (over, &s) in op.reduce.iter().enumerate() {
            let extent = poly(&mut env.pool, env.dims[s].extent);
            let found = op.spatial.iter().enumerate().find_map(|(at, &t)| {
                let mut rest = extent.clone();
                let position = env.pool.var(var(env, t));
                rest.add_term(vec![position], -1);
                rest.as_constant().filter(|&first| first >= 0).map(|first| (at, t, first))
            });
            let Some((at, t, first)) = found else { continue };
            let (t_var, s_var) = (var(env, t), var(env, s));
            let all = op.spatial.iter().chain(&op.reduce);
            let others: Vec<ExprId> = all.filter(|&&d| d != t && d != s).map(|&d| env.dims[d].extent).collect();
            let moved = |v: VarId| others.iter().any(|&e| env.pool.uses_var(e, v));
            if env.pool.uses_var(op.value, t_var) || moved(t_var) || moved(s_var) {
                continue;
            }
            let whole = env.dims[t].extent;
            let loops = loops_around(env, &[whole])?;
            let most = bounds(env, whole, Indices { args: &[], loops: &loops }).hi;
            if most.is_none_or(|n| n >= BLOCKS * block) {
                return Some(Self { at, over, first, combiner });
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
            env.pool.substitute(op.value, &FxHashMap::from_iter([(s_var, there)]))
        };

        let [count, stored_count] = [whole, stored].map(|n| env.pool.ceil_div(n, block));
        let o = dim(env, t, count);
        let blocks = self.tensor(env, op.tensor, "blocks", stored_count);
        let first = env.pool.var(env.dims[o].var);
        let first = env.pool.mul(first, size);
        // The last position may be before no other one, and then its term need not be there.
        let beyond = env.pool.int(1 - self.first.min(1));
        let left = env.pool.sub(whole, beyond);
        let left = env.pool.sub(left, first);
        let left = env.pool.min(size, left);
        let i = dim(env, s, left);
        let value = term(env, first, i);
        let of_blocks = self.reduction(blocks, with(&op.spatial, self.at, o), with(&op.reduce, self.over, i), value);

        let o = dim(env, t, count);
        let earlier = env.pool.var(env.dims[o].var);
        let p = dim(env, s, earlier);
        let before = self.tensor(env, op.tensor, "before", stored_count);
        let index = self.index(env, &with(&op.spatial, self.at, p));
        let value = env.element(blocks, &index);
        let of_before = self.reduction(before, with(&op.spatial, self.at, o), vec![p], value);

        let (number, place) = (env.pool.floor_div(t_pos, size), env.pool.bin(BinOp::Mod, t_pos, size));
        let more = env.pool.int(self.first);
        let count = env.pool.add(place, more);
        let i = dim(env, s, count);
        let within = self.tensor(env, op.tensor, "within", stored);
        let first = env.pool.mul(number, size);
        let value = term(env, first, i);
        let of_within = self.reduction(within, op.spatial.clone(), with(&op.reduce, self.over, i), value);

        let own = self.index(env, &op.spatial);
        let mut index = own.clone();
        index[self.at] = number;
        let (old, new) = (env.element(before, &index), env.element(within, &own));
        let value = env.combined(self.combiner, old, new);
        vec![of_blocks, of_before, of_within, Op { reduce: Vec::new(), combiner: None, value, ..op }]
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
