//! Attention whose scores are masked by comparisons of positions, in the ways in which people write masks.

use super::graphs::{Gen, OpDim};
use super::values::Val;
use cora_ir::{BinOp, Combiner, DimId, ExprId, Literal, ScalarType, TensorId, UnOp};
use rand::prelude::*;

const TY: ScalarType = ScalarType::F32;

impl Gen<'_> {
    /// Masked scores, and in turn what becomes of them: sums, greatest scores, a softmax, what it weighs.
    pub fn masked(&mut self) {
        let rows = self.shapes.rows;
        self.dims.clear();
        let b = self.add_dim(rows);
        let row = self.shapes.row_extent(&mut self.g.env, b.index);
        let q = self.add_dim(row);
        let keys = if self.rng.random_bool(0.8) { row } else { self.int(9) };
        let (k, d) = (self.add_dim(keys), self.int(4));
        let d = self.add_dim(d);
        let (x, y) = (self.operand(TY, &[b, q, d]), self.operand(TY, &[b, k, d]));
        let product = self.arith(BinOp::Mul, whole(x), whole(y));
        self.dims = vec![b, q, k, d];
        let scores = self.define_with(TY, &[d.dim], Some(Combiner::Sum), product);
        self.dims = vec![b, q, k];
        let score = self.own(scores);
        let below = self.below(b, q, k);
        if self.rng.random_bool(0.3) {
            return self.masked_sums(score, below, [b, q, k]);
        }
        let masked = self.masked_score(score, below);
        let masked = self.define_with(TY, &[], None, masked);
        let score = self.own(masked);
        let greatest = self.define_with(TY, &[k.dim], Some(Combiner::Max), score);
        let m = self.own(greatest);
        let shifted = self.arith(BinOp::Sub, score, m);
        // At most 1: no score is greater.
        let mut exp = Val { e: self.env().pool.un(UnOp::Exp, shifted.e), bound: 1.0, exact: false };
        if self.rng.random_bool(0.3) {
            let zero = self.literal(TY, 0);
            exp.e = self.env().pool.select(below, exp.e, zero);
        }
        let exp = self.define_with(TY, &[], None, exp);
        let mut weight = self.own(exp);
        if self.rng.random_bool(0.7) {
            let total = self.define_with(TY, &[k.dim], Some(Combiner::Sum), weight);
            let total = self.own(total);
            weight = Val { bound: 1.0, ..self.arith(BinOp::Div, weight, total) };
            if self.rng.random_bool(0.5) {
                let weights = self.define_with(TY, &[], None, weight);
                weight = self.own(weights);
            }
        }
        self.weighed(weight, [b, q, k, d]);
    }

    /// The element of an operator's result at the positions that the dimensions it was defined over have.
    pub fn own(&mut self, t: TensorId) -> Val {
        let spatial = self.g.op_of(t).map(|op| op.spatial.clone()).unwrap_or_default();
        let all: Vec<OpDim> = spatial.into_iter().map(|dim| self.dim_as_made(dim)).collect();
        self.read(t, &all)
    }

    fn dim_as_made(&mut self, dim: DimId) -> OpDim {
        let (var, extent) = (self.g.env.dims[dim].var, self.g.env.dims[dim].extent);
        OpDim { dim, var, index: self.env().pool.var(var), extent }
    }

    /// What the weights weigh.
    fn weighed(&mut self, weight: Val, [b, q, k, d]: [OpDim; 4]) {
        let values = self.operand(TY, &[b, k, d]);
        let term = Val { bound: 8.0, ..self.arith(BinOp::Mul, weight, whole(values)) };
        self.dims = vec![b, q, k, d];
        self.define_with(TY, &[k.dim], Some(Combiner::Sum), term);
    }

    /// Reductions whose terms are the mask's choice between a score and what changes nothing.
    fn masked_sums(&mut self, score: Val, below: ExprId, [b, q, k]: [OpDim; 3]) {
        let all = [(Combiner::Sum, 0.0), (Combiner::Max, f64::NEG_INFINITY), (Combiner::Min, f64::INFINITY)];
        for _ in 0..self.rng.random_range(1..=2) {
            let (combiner, other) = *all.choose(self.rng).expect("not empty");
            let other = self.env().pool.lit(Literal::float(TY, other));
            let term = Val { e: self.env().pool.select(below, score.e, other), ..score };
            self.dims = vec![b, q, k];
            self.define_with(TY, &[k.dim], Some(combiner), term);
        }
    }

    /// Minus infinity where the mask is false: chosen, or added.
    fn masked_score(&mut self, score: Val, below: ExprId) -> Val {
        let none = self.env().pool.lit(Literal::float(TY, f64::NEG_INFINITY));
        let zero = self.literal(TY, 0);
        let pool = &mut self.g.env.pool;
        let e = match self.rng.random_range(0..4) {
            0 => {
                let bias = pool.select(below, zero, none);
                pool.add(score.e, bias)
            }
            1 => {
                let above = pool.un(UnOp::Not, below);
                pool.select(above, none, score.e)
            }
            _ => pool.select(below, score.e, none),
        };
        Val { e, ..score }
    }

    /// A mask: mostly one that is true up to a bound that grows with the row's position.
    fn below(&mut self, b: OpDim, q: OpDim, k: OpDim) -> ExprId {
        let n = *[1, 2, 3, 8].choose(self.rng).expect("not empty");
        let n = self.int(n);
        let row = q.extent;
        let form = self.rng.random_range(0..10);
        let data = self.rng.random_bool(0.15).then(|| {
            let (read, zero) = (self.operand(ScalarType::I32, &[b, k]), self.literal(ScalarType::I32, 0));
            self.env().pool.lt(zero, read)
        });
        let pool = &mut self.g.env.pool;
        let mask = match form {
            0..4 => pool.le(k.index, q.index),
            4 => pool.lt(k.index, q.index),
            5 => {
                let farther = pool.add(q.index, n);
                pool.lt(k.index, farther)
            }
            6 => {
                let (x, y) = (pool.floor_div(k.index, n), pool.floor_div(q.index, n));
                pool.le(x, y)
            }
            7 => {
                let scaled = pool.mul(k.index, n);
                pool.le(scaled, q.index)
            }
            8 => {
                let sum = pool.add(k.index, q.index);
                pool.lt(sum, row)
            }
            _ => pool.le(q.index, k.index),
        };
        let mask = match self.rng.random_range(0..10) {
            7 => {
                let chunks = [k, q].map(|d| pool.floor_div(d.index, n));
                let near = pool.bin(BinOp::Eq, chunks[0], chunks[1]);
                pool.and(mask, near)
            }
            8 => {
                let (one, chunk) = (pool.int(1), pool.floor_div(q.index, n));
                let before = pool.sub(chunk, one);
                let first = pool.mul(before, n);
                let near = pool.le(first, k.index);
                pool.and(mask, near)
            }
            9 => {
                let inside = pool.modulo(q.index, n);
                let first = pool.sub(q.index, inside);
                let near = pool.le(first, k.index);
                pool.and(mask, near)
            }
            0..2 => {
                let near = pool.add(k.index, n);
                let near = pool.le(q.index, near);
                pool.and(mask, near)
            }
            2 => {
                let few = pool.lt(k.index, n);
                pool.bin(BinOp::Or, mask, few)
            }
            _ => mask,
        };
        match data {
            Some(data) => pool.and(mask, data),
            None => mask,
        }
    }
}

/// An element of an input.
fn whole(e: ExprId) -> Val {
    Val { e, bound: 4.0, exact: true }
}
