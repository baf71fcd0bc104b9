//! Queries of many positions, whose heads share keys and values: products of two factors that come with each call, as
//! instructions of processors take them, of rows with more columns or more terms than those before.

use super::graphs::{Gen, OpDim};
use super::values::Val;
use cora_ir::{BinOp, Combiner, ExprId, Role, ScalarType, TensorId};
use rand::prelude::*;

/// The sizes of such a graph.
#[derive(Clone, Copy)]
struct Heads {
    rows: ExprId,
    groups: ExprId,
    /// Heads of a group.
    heads: ExprId,
    depth: ExprId,
    /// How many positions from its own on a query sees; nothing: all.
    ahead: Option<ExprId>,
}

impl Gen<'_> {
    /// Scores, of which the greatest is taken, or what given weights make of values.
    pub fn heads(&mut self) {
        let (ty, sum) = *[
            (ScalarType::BF16, ScalarType::F32),
            (ScalarType::I8, ScalarType::I32),
            (ScalarType::F32, ScalarType::F32),
        ]
        .choose(self.rng)
        .expect("not empty");
        self.in_order = true;
        let depth = *[2, 8, 32, 32, 48, 64].choose(self.rng).expect("not empty");
        let [one, two, few, depth] = [1, 2, 3, depth].map(|n| self.int(n));
        let [groups, heads] = [0; 2].map(|_| *[one, two, few].choose(self.rng).expect("not empty"));
        let ahead = self.rng.random_bool(0.7).then_some(*[one, one, few].choose(self.rng).expect("not empty"));
        let of = Heads { rows: self.shapes.rows, groups, heads, depth, ahead };
        let a0 = self.env().pool.arg(0);
        let row = self.shapes.row_extent(&mut self.g.env, a0);
        let keys = self.declare_input(ty, Role::Input, &[of.rows, row, groups, depth], None);
        if self.rng.random_bool(0.5) {
            let queries = self.declare_input(ty, Role::Input, &[of.rows, row, groups, heads, depth], None);
            let [b, g, r, q, k, d] = self.heads_dims(of);
            let term = self.product_of(sum, (queries, [b, q, g, r, d]), (keys, [b, k, g, d]));
            let scores = self.define_with(sum, &[d.dim], Some(Combiner::Sum), term);
            let [b, g, r, q, k, _] = self.heads_dims(of);
            self.dims.truncate(5);
            let score = self.read(scores, &[b, g, r, q, k]);
            self.define_with(sum, &[k.dim], Some(Combiner::Max), score);
        } else {
            let last = self.env().pool.arg(3);
            let extent = self.columns_of(of, row, last);
            let weights = self.declare_input(ty, Role::Input, &[of.rows, groups, heads, row, extent], None);
            let [b, g, r, q, k, d] = self.heads_dims(of);
            let term = self.product_of(sum, (weights, [b, g, r, q, k]), (keys, [b, k, g, d]));
            self.define_with(sum, &[k.dim], Some(Combiner::Sum), term);
        }
    }

    /// How many positions a query sees.
    fn columns_of(&mut self, of: Heads, row: ExprId, q: ExprId) -> ExprId {
        let Some(ahead) = of.ahead else { return row };
        let pool = &mut self.g.env.pool;
        let end = pool.add(q, ahead);
        if pool.as_int(ahead) == Some(1) { end } else { pool.min(end, row) }
    }

    /// Sequence, group, head, position, position seen and depth.
    fn heads_dims(&mut self, of: Heads) -> [OpDim; 6] {
        self.dims.clear();
        let [b, g, r] = [of.rows, of.groups, of.heads].map(|n| self.add_dim(n));
        let row = self.shapes.row_extent(&mut self.g.env, b.index);
        let q = self.add_dim(row);
        let seen = self.columns_of(of, row, q.index);
        let k = self.add_dim(seen);
        [b, g, r, q, k, self.add_dim(of.depth)]
    }

    fn product_of<const N: usize, const K: usize>(
        &mut self,
        sum: ScalarType,
        (x, at): (TensorId, [OpDim; N]),
        (y, and): (TensorId, [OpDim; K]),
    ) -> Val {
        let [x, y] = [self.read(x, &at), self.read(y, &and)].map(|v| {
            let e = if self.env().pool.ty(v.e).scalar == sum { v.e } else { self.env().pool.cast(sum, v.e) };
            Val { e, ..v }
        });
        self.arith(BinOp::Mul, x, y)
    }
}
