//! Offsets and volumes of ragged boxes, by the dimension graph (paper section B.2, generalised).
//!
//! For a dimension `d`, the dimensions inside it fall into connected components. Components that
//! do not depend on `d` contribute a factor; those that do are summed over the indices below:
//! `D_d = product(volumes without parent d) * sum over i < b_d of product(volumes with parent d)`.
//! A table has one entry for each combination of indices it depends on, and there is none at all
//! where no dimension depends on `d` or where the sum has a closed form.
//!
//! The same expressions serve tensors (storage extents) and fused loops (loop extents), so equal
//! ones share their tables.

use super::sign::as_size;
use cora_ir::expr::ExprPool;
use cora_ir::{Env, Expr, ExprId};

/// A box with dimensions `0..n`; extent `j` is over `Arg(0..j)`.
pub struct Layout<'a> {
    /// Extents, outermost first, none of them negative (see [`sizes`]).
    pub extents: &'a [ExprId],
    /// Base of the names of the functions that are made.
    pub name: &'a str,
}

/// The term of one dimension's index in an offset: `factor * sum(index)`.
pub struct Term {
    /// Volume of the inner components that do not depend on this dimension, over `Arg(0..d)`.
    pub factor: ExprId,
    /// What is summed over the indices below, over `Arg(0..=d)`.
    pub body: ExprId,
}

/// The sizes of a box whose extents are `extents`: a negative extent counts as zero.
pub fn sizes(env: &mut Env, extents: &[ExprId]) -> Vec<ExprId> {
    let mut ranges: Vec<(ExprId, ExprId)> = Vec::new();
    for (d, &extent) in extents.iter().enumerate() {
        let size = as_size(env, &ranges, extent);
        ranges.push((env.pool.arg(d as u32), size));
    }
    ranges.into_iter().map(|r| r.1).collect()
}

fn depends(pool: &ExprPool, e: ExprId, d: usize) -> bool {
    pool.any(e, &mut |x| *x == Expr::Arg(d as u32))
}

impl Layout<'_> {
    /// Connected components of the graph restricted to `dims` (ascending), each ascending.
    fn components(&self, pool: &ExprPool, dims: &[usize]) -> Vec<Vec<usize>> {
        let mut comps: Vec<Vec<usize>> = Vec::new();
        for &d in dims {
            let (mut joined, rest): (Vec<_>, Vec<_>) =
                comps.into_iter().partition(|c| c.iter().any(|&p| depends(pool, self.extents[d], p)));
            comps = rest;
            let mut merged: Vec<usize> = joined.drain(..).flatten().collect();
            merged.push(d);
            merged.sort_unstable();
            comps.push(merged);
        }
        comps.sort_by_key(|c| c[0]);
        comps
    }

    /// Volume of a connected set of dimensions, over the arguments outside it.
    fn component_volume(&self, env: &mut Env, comp: &[usize]) -> ExprId {
        let d = comp[0];
        let mut body = env.pool.int(1);
        for inner in self.components(&env.pool, &comp[1..]) {
            let v = self.component_volume(env, &inner);
            body = env.pool.mul(body, v);
        }
        let outer: Vec<ExprId> = (0..d as u32).map(|a| env.pool.arg(a)).collect();
        env.sum_upto(self.name, &self.extents[..=d], body, &outer, self.extents[d])
    }

    /// Number of elements of the dimensions `from..`, over `Arg(0..from)`.
    pub fn volume(&self, env: &mut Env, from: usize) -> ExprId {
        let dims: Vec<usize> = (from..self.extents.len()).collect();
        let mut v = env.pool.int(1);
        for comp in self.components(&env.pool, &dims) {
            let c = self.component_volume(env, &comp);
            v = env.pool.mul(v, c);
        }
        cora_ir::affine::normalize(&mut env.pool, v)
    }

    /// The term of dimension `d`.
    pub fn term(&self, env: &mut Env, d: usize) -> Term {
        let dims: Vec<usize> = (d + 1..self.extents.len()).collect();
        let (mut factor, mut body) = (env.pool.int(1), env.pool.int(1));
        for comp in self.components(&env.pool, &dims) {
            let v = self.component_volume(env, &comp);
            if comp.iter().any(|&c| depends(&env.pool, self.extents[c], d)) {
                body = env.pool.mul(body, v);
            } else {
                factor = env.pool.mul(factor, v);
            }
        }
        Term { factor, body }
    }

    /// Flat offset of the element at `Arg(0..n)`.
    pub fn offset(&self, env: &mut Env) -> ExprId {
        self.offset_within(env, 0)
    }

    /// Position of the element at `Arg(0..n)` among those with the same indices `Arg(0..from)`.
    pub fn offset_within(&self, env: &mut Env, from: usize) -> ExprId {
        let mut sum = env.pool.int(0);
        for d in from..self.extents.len() {
            let t = self.term(env, d);
            let outer: Vec<ExprId> = (0..d as u32).map(|a| env.pool.arg(a)).collect();
            let x = env.pool.arg(d as u32);
            let s = env.sum_before(self.name, &self.extents[..=d], t.body, &outer, x);
            let term = env.pool.mul(t.factor, s);
            sum = env.pool.add(sum, term);
        }
        cora_ir::affine::normalize(&mut env.pool, sum)
    }

    /// The indices of the element at flat position `flat` of the dimensions `from..`, given the
    /// outer indices `outer`: the inverse of [`Layout::offset`] (the paper's `f_fo`, `f_fi`).
    ///
    /// A dimension on which inner ones depend is found by a search in its table of sums; the others
    /// by division. Valid for `0 <= flat < volume(from)`.
    pub fn unflatten(&self, env: &mut Env, from: usize, outer: &[ExprId], flat: ExprId) -> Vec<ExprId> {
        let mut index = outer.to_vec();
        let mut rest = flat;
        for d in from..self.extents.len() {
            if d + 1 == self.extents.len() {
                index.push(rest);
                break;
            }
            let t = self.term(env, d);
            let factor = env.pool.instantiate(t.factor, &index);
            let i = if depends(&env.pool, t.body, d) {
                let position = env.pool.floor_div(rest, factor);
                let i = env.search_row(self.name, &self.extents[..=d], t.body, &index, position);
                let below = env.sum_before(self.name, &self.extents[..=d], t.body, &index, i);
                let below = env.pool.mul(below, factor);
                rest = env.pool.sub(rest, below);
                i
            } else {
                let body = env.pool.instantiate(t.body, &index);
                let stride = env.pool.mul(factor, body);
                let i = env.pool.floor_div(rest, stride);
                rest = env.pool.modulo(rest, stride);
                i
            };
            index.push(i);
        }
        index.split_off(outer.len()).into_iter().map(|e| cora_ir::affine::normalize(&mut env.pool, e)).collect()
    }
}
