//! Products with weights that are added up in an element: two or three, of rows of their own or the same ones.

use super::graphs::{Gen, OpDim};
use cora_ir::{BinOp, Combiner, ExprId, Role, ScalarType};
use rand::prelude::*;

impl Gen<'_> {
    /// The products, and what sums them; beside the last in half of the cases, or an operator of its own.
    pub fn added(&mut self) {
        use ScalarType::{BF16, F32, F64};
        let ty = *[F32, F32, F32, F64, BF16].choose(self.rng).expect("not empty");
        let rows = self.shapes.rows;
        let a0 = self.env().pool.arg(0);
        let row = self.shapes.row_extent(&mut self.g.env, a0);
        let n = *[1, 7, 16, 17, 33, 40].choose(self.rng).expect("not empty");
        let n = self.int(n);
        let mut sums = Vec::new();
        for _ in 0..self.rng.random_range(2..=3) {
            let k = *[1, 2, 5, 8, 12].choose(self.rng).expect("not empty");
            let k = self.int(k);
            // Of a sequence, or of an element.
            let whole = self.rng.random_bool(0.2);
            let extents = if whole { vec![rows, k] } else { vec![rows, row, k] };
            let x = self.declare_input(ty, Role::Input, &extents, None);
            let role = if self.rng.random_bool(0.5) { Role::ConstInput } else { Role::Input };
            let w = self.declare_input(ty, role, &[k, n], None);
            let [b, q, o] = self.added_dims(n);
            let k = self.add_dim(k);
            let x = if whole { self.read(x, &[b, k]) } else { self.read(x, &[b, q, k]) };
            let y = self.read(w, &[k, o]);
            let term = self.arith(BinOp::Mul, x, y);
            sums.push(self.define_with(ty, &[k.dim], Some(Combiner::Sum), term));
        }
        let [b, q, o] = self.added_dims(n);
        let mut values = Vec::new();
        for s in sums {
            values.push(self.read(s, &[b, q, o]));
        }
        if self.rng.random_bool(0.4) {
            let bias = self.declare_input(ty, Role::Input, &[n], None);
            values.push(self.read(bias, &[o]));
        }
        values.shuffle(self.rng);
        let op = |rng: &mut SmallRng| if rng.random_bool(0.85) { BinOp::Add } else { BinOp::Sub };
        let mut all = values.into_iter();
        let mut value = all.next().expect("two or more");
        for v in all {
            let op = op(self.rng);
            value = self.arith(op, value, v);
        }
        self.define_with(ty, &[], None, value);
        if self.rng.random_bool(0.3) {
            self.op();
        }
    }

    /// Sequence, position and column.
    fn added_dims(&mut self, n: ExprId) -> [OpDim; 3] {
        self.dims.clear();
        let b = self.add_dim(self.shapes.rows);
        let row = self.shapes.row_extent(&mut self.g.env, b.index);
        [b, self.add_dim(row), self.add_dim(n)]
    }
}
