//! One query in each sequence, whose heads share keys and values in groups: what has no rows until the heads of a group are.

use super::graphs::{Gen, OpDim};
use super::values::Val;
use cora_ir::{BinOp, Combiner, ExprId, Role, ScalarType, TensorId};
use rand::prelude::*;

impl Gen<'_> {
    /// Scores, weights and what they weigh; in half of the cases one more operator over that, or a product of all heads.
    pub fn decoding(&mut self) {
        use ScalarType::F32;
        self.in_order = true;
        let (rows, groups) = (self.shapes.rows, self.rng.random_range(2..=4));
        let by = *[2, 3, 4].choose(self.rng).expect("not empty");
        let depth = *[1, 3, 8, 16, 17].choose(self.rng).expect("not empty");
        let [heads, groups, by, depth] = [by * groups, groups, by, depth].map(|n| self.int(n));
        let a0 = self.env().pool.arg(0);
        let row = self.shapes.row_extent(&mut self.g.env, a0);
        let queries = self.declare_input(F32, Role::Input, &[rows, heads, depth], None);
        let [keys, values] = [0; 2].map(|_| self.declare_input(F32, Role::Input, &[rows, row, groups, depth], None));
        let [b, h, k] = self.decoding_dims(rows, heads);
        let d = self.add_dim(depth);
        let (x, y) = (self.read(queries, &[b, h, d]), self.read_shared(keys, [b, k, h, d], by));
        let term = self.arith(BinOp::Mul, x, y);
        let scores = self.define_with(F32, &[d.dim], Some(Combiner::Sum), term);
        let [b, h, k] = self.decoding_dims(rows, heads);
        let score = self.read(scores, &[b, h, k]);
        let exp = self.exp(score);
        let weights = self.define_with(F32, &[], None, exp);
        let [b, h, k] = self.decoding_dims(rows, heads);
        let d = self.add_dim(depth);
        let (x, y) = (self.read(weights, &[b, h, k]), self.read_shared(values, [b, k, h, d], by));
        let term = self.arith(BinOp::Mul, x, y);
        let result = self.define_with(F32, &[k.dim], Some(Combiner::Sum), term);
        match self.rng.random_range(0..4) {
            0 => {
                let weight = self.declare_input(F32, Role::ConstInput, &[heads, depth, depth], None);
                self.dims.clear();
                let [b, e, h, d] = [rows, depth, heads, depth].map(|n| self.add_dim(n));
                let (x, y) = (self.read(result, &[b, h, d]), self.read(weight, &[h, d, e]));
                let term = self.arith(BinOp::Mul, x, y);
                self.define_with(F32, &[h.dim, d.dim], Some(Combiner::Sum), term);
            }
            1 => self.op(),
            _ => {}
        }
    }

    /// Sequence, head and position.
    fn decoding_dims(&mut self, rows: ExprId, heads: ExprId) -> [OpDim; 3] {
        self.dims.clear();
        let [b, h] = [rows, heads].map(|n| self.add_dim(n));
        let row = self.shapes.row_extent(&mut self.g.env, b.index);
        [b, h, self.add_dim(row)]
    }

    /// The element that a head shares with those of its group.
    fn read_shared(&mut self, t: TensorId, [b, k, h, d]: [OpDim; 4], by: ExprId) -> Val {
        let group = self.env().pool.floor_div(h.index, by);
        let e = self.env().load(t, [b.index, k.index, group, d.index]);
        Val { e, bound: 4.0, exact: true }
    }
}
