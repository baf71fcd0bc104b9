//! Recurrences: results that are made of results at earlier positions.

use super::graphs::{Gen, Known, OpDim};
use super::values::Val;
use cora_ir::graph::Op;
use cora_ir::{BinOp, Combiner, ExprId, Reduction, ScalarType, Tensor, TensorDim, TensorId};
use rand::prelude::*;

/// What results are kept within.
const MOST: i64 = 8;

impl Gen<'_> {
    /// A recurrence along rows, with other operators after it now and then.
    pub fn recurrence(&mut self) {
        let ty = *[ScalarType::F32, ScalarType::F32, ScalarType::I32, ScalarType::F64]
            .choose(self.rng)
            .unwrap_or(&ScalarType::F32);
        match self.rng.random_range(0..5) {
            0 => self.over_two(ty),
            1 => self.best_before(ty),
            2 => self.all_before(ty),
            _ => self.of_sums(ty),
        }
        for _ in 0..self.rng.random_range(0..=2) {
            self.op();
        }
    }

    /// Dimensions of batches and of rows.
    fn positions(&mut self) -> (OpDim, OpDim) {
        self.dims.clear();
        let rows = self.shapes.rows;
        let b = self.add_dim(rows);
        let row = self.shapes.row_extent(&mut self.g.env, b.index);
        (b, self.add_dim(row))
    }

    /// An element of an input, or of weights.
    fn given(&mut self, ty: ScalarType, dims: &[OpDim]) -> Val {
        let all = std::mem::replace(&mut self.dims, dims.to_vec());
        let e = self.operand(ty, dims);
        self.dims = all;
        Val { e, bound: 4.0, exact: true }
    }

    /// An element of what is reduced to before, or of an input.
    fn reduced_or_given(&mut self, ty: ScalarType, dims: &[OpDim]) -> Val {
        if self.rng.random_bool(0.6) {
            return self.given(ty, dims);
        }
        let size = self.rng.random_range(1..=5);
        let size = self.int(size);
        let all = dims.to_vec();
        self.dims.clone_from(&all);
        let over = self.add_dim(size);
        let x = self.given(ty, &[dims, &[over]].concat());
        let c = if self.rng.random_bool(0.5) { Combiner::Sum } else { Combiner::Max };
        let t = self.undefined(ty, dims);
        self.set(t, dims, &[over], Some(c), x.e);
        let e = self.env().load(t, dims.iter().map(|d| d.index));
        self.dims = all;
        Val { e, bound: 20.0, exact: true }
    }

    /// A tensor over dimensions, to be defined later.
    fn undefined(&mut self, ty: ScalarType, dims: &[OpDim]) -> TensorId {
        let extents = self.over_args(dims);
        let name = format!("T{}", self.g.env.tensors.len());
        let named = dims.iter().zip(extents);
        let named = named.map(|(d, e)| TensorDim::new(self.g.env.dims[d.dim].name.clone(), e)).collect();
        self.g.env.tensors.push(Tensor::temp(name, ty, named))
    }

    fn set(&mut self, tensor: TensorId, dims: &[OpDim], reduce: &[OpDim], combiner: Option<Combiner>, value: ExprId) {
        let [spatial, reduce] = [dims, reduce].map(|all| all.iter().map(|d| d.dim).collect());
        self.g.ops.push(Op { tensor, spatial, reduce, combiner: combiner.map(Reduction::Op), value });
    }

    /// The element of `t` that is `back` positions before in each dimension; a small number where there is none.
    fn before(&mut self, t: TensorId, dims: &[OpDim], back: &[i64]) -> Val {
        let (mut index, mut there) = (Vec::new(), Vec::new());
        for (d, &n) in dims.iter().zip(back) {
            let (zero, by) = (self.int(0), self.int(n));
            let at = self.env().pool.sub(d.index, by);
            if n > 0 {
                there.push(self.env().pool.le(zero, at));
            }
            index.push(at);
        }
        let ty = self.g.env.tensors[t].ty;
        let first = self.rng.random_range(-2..=2);
        let first = self.literal(ty, first);
        let there = self.env().pool.all(there);
        let e = self.env().pool.load_guarded((t, 0), ty, index, Some((there, first)));
        Val { e, bound: MOST as f64, exact: true }
    }

    fn kept(&mut self, ty: ScalarType, v: Val) -> ExprId {
        let (lo, hi) = (self.literal(ty, -MOST), self.literal(ty, MOST));
        let low = self.env().pool.max(v.e, lo);
        self.env().pool.min(low, hi)
    }

    fn known_result(&mut self, id: TensorId) {
        self.known.push(Known { id, bound: MOST as f64, exact: true });
    }

    /// Each element of those above, beside and before it, as in alignments.
    fn over_two(&mut self, ty: ScalarType) {
        let (b, i) = self.positions();
        let j = if self.rng.random_bool(0.5) { self.shapes.row_extent(&mut self.g.env, b.index) } else { self.int(5) };
        let dims = [b, i, self.add_dim(j)];
        let h = self.undefined(ty, &dims);
        let mut value = self.reduced_or_given(ty, &dims);
        for back in [[0, 1, 0], [0, 0, 1], [0, 1, 1]] {
            if self.rng.random_bool(0.7) {
                let before = self.before(h, &dims, &back);
                let op = *[BinOp::Add, BinOp::Sub, BinOp::Max].choose(self.rng).unwrap_or(&BinOp::Add);
                value = self.arith(op, value, before);
            }
        }
        let value = self.kept(ty, value);
        self.set(h, &dims, &[], None, value);
        self.known_result(h);
    }

    /// The best of the elements of the position before, as in the algorithm of Viterbi.
    fn best_before(&mut self, ty: ScalarType) {
        let (b, t) = self.positions();
        let states = self.int(5);
        let (s, r) = (self.add_dim(states), self.add_dim(states));
        let h = self.undefined(ty, &[b, t, s]);
        let (x, a) = (self.reduced_or_given(ty, &[b, t, s]), self.given(ty, &[s, r]));
        let back = self.rng.random_range(1..=2);
        let before = self.before(h, &[b, t, r], &[0, back, 0]);
        let moved = self.arith(BinOp::Sub, a, before);
        let moved = self.arith(BinOp::Add, moved, x);
        let value = self.kept(ty, moved);
        let best = if self.rng.random_bool(0.5) { Combiner::Max } else { Combiner::Min };
        self.set(h, &[b, t, s], &[r], Some(best), value);
        self.known_result(h);
    }

    /// What is made of all that was before, as where triangular systems are solved, or of some of it.
    fn all_before(&mut self, ty: ScalarType) {
        let (b, t) = self.positions();
        let width = self.rng.random_range(1..=6);
        let units = self.int(width);
        let c = self.add_dim(units);
        let whole = self.rng.random_bool(0.4);
        let s = if whole { self.shapes.row_extent(&mut self.g.env, b.index) } else { t.index };
        let s = self.add_dim(s);
        let (own, there) = ([b, t, c], [b, s, c]);
        let (h, best) = (self.undefined(ty, &own), self.undefined(ty, &own));
        let (x, w) = (self.reduced_or_given(ty, &own), self.given(ty, &[b, t, s]));
        let at: Vec<ExprId> = there.iter().map(|d| d.index).collect();
        let read = self.env().pool.load(h, ty, at);
        let mut term = self.arith(BinOp::Sub, Val { e: read, bound: MOST as f64, exact: true }, w);
        if whole || self.rng.random_bool(0.3) {
            let earlier = self.env().pool.lt(s.index, t.index);
            let zero = self.literal(ty, 0);
            term.e = self.env().pool.select(earlier, term.e, zero);
        }
        let combiner = *[Combiner::Sum, Combiner::Max].choose(self.rng).unwrap_or(&Combiner::Sum);
        self.set(best, &own, &[s], Some(combiner), term.e);
        let e = self.env().load(best, own.map(|d| d.index));
        // Least values of a maximum over nothing stay in bounds.
        let value = self.kept(ty, Val { e, bound: 1000.0, exact: true });
        let value = self.arith(BinOp::Sub, x, Val { e: value, bound: MOST as f64, exact: true });
        let value = self.kept(ty, value);
        self.set(h, &own, &[], None, value);
        self.known_result(h);
    }

    /// Sums of what was before with weights, and what is made of these, as in a recurrent network.
    fn of_sums(&mut self, ty: ScalarType) {
        let (b, t) = self.positions();
        let width = self.rng.random_range(1..=20);
        let units = self.int(width);
        let (j, k) = (self.add_dim(units), self.add_dim(units));
        let own = [b, t, j];
        let h = self.undefined(ty, &own);
        let mut value = self.reduced_or_given(ty, &own);
        // Their operators stand before those of the recurrence.
        let mut weights = Vec::new();
        for _ in 0..self.rng.random_range(1..=2) {
            let order = if self.rng.random_bool(0.5) { [j, k] } else { [k, j] };
            weights.push(self.given(ty, &order));
        }
        for u in weights {
            let sum = self.undefined(ty, &own);
            let before = self.before(h, &[b, t, k], &[0, 1, 0]);
            let term = self.arith(BinOp::Mul, before, u);
            self.set(sum, &own, &[k], Some(Combiner::Sum), term.e);
            let e = self.env().load(sum, own.map(|d| d.index));
            value = self.arith(BinOp::Add, value, Val { e, bound: 1000.0, exact: true });
        }
        if self.rng.random_bool(0.4) {
            let before = self.before(h, &own, &[0, 1, 0]);
            value = self.arith(BinOp::Sub, value, before);
        }
        let value = self.kept(ty, value);
        self.set(h, &own, &[], None, value);
        self.known_result(h);
    }
}
