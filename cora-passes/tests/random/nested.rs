//! Reductions of sums of products, such as products scaled in groups and scores of several heads that are added up.

use super::graphs::{Gen, OpDim};
use super::values::Val;
use cora_ir::{BinOp, Combiner, ExprId, Role, ScalarType, UnOp};
use rand::prelude::*;

impl Gen<'_> {
    /// The inner sums, in half of the cases elements of them, and the reduction of these; with an operator over its results in
    /// a third.
    pub fn nested(&mut self) {
        use ScalarType::{BF16, F32, F64, I8, I32};
        self.dims.clear();
        let rows = self.shapes.rows;
        let b = self.add_dim(rows);
        let q = self.side(Some(b), None);
        let of_rows = self.rng.random_bool(0.4).then_some(b);
        let columns = self.side(of_rows, None);
        let groups = *[1, 2, 3, 5].choose(self.rng).expect("not empty");
        let groups = self.int(groups);
        let g = self.add_dim(groups);
        let size = *[1, 4, 5, 8].choose(self.rng).expect("not empty");
        let (constant, ragged) = (self.int(size), self.shapes.row_extent(&mut self.g.env, b.index));
        let terms = if self.rng.random_bool(0.8) { constant } else { ragged };
        let k = self.add_dim(terms);
        let (read, summed) = *[(F32, F32), (F32, F32), (F64, F64), (BF16, F32), (I8, I32), (I32, I32)]
            .choose(self.rng)
            .expect("not empty");
        let flat = self.rng.random_bool(0.5) && k.extent == constant;
        let x = self.factor(read, &[b, q], [g, k], flat.then_some(size));
        let batched = self.g.env.pool.uses_var(columns.extent, b.var) || self.rng.random_bool(0.2);
        let of: Vec<OpDim> = if batched { vec![b, columns] } else { vec![columns] };
        let w = self.factor(read, &of, [g, k], flat.then_some(size));
        let [x, y] = [x, w].map(|e| Val { e: self.env().pool.cast(summed, e), bound: 4.0, exact: true });
        let term = self.arith(BinOp::Mul, x, y);
        let sums = self.define_with(summed, &[k.dim], Some(Combiner::Sum), term);
        self.dims = vec![b, q, columns, g];
        let mut value = self.own(sums);
        let ty = if summed == I32 && self.rng.random_bool(0.7) { F32 } else { summed };
        value.e = self.env().pool.cast(ty, value.e);
        if self.rng.random_bool(0.3) {
            value.e = self.env().pool.un(UnOp::Abs, value.e);
        }
        for of in [vec![columns, g], vec![b, q, g]] {
            if self.rng.random_bool(0.5) {
                let scale = self.operand(ty, &of);
                value = self.arith(BinOp::Mul, value, Val { e: scale, bound: 4.0, exact: true });
            }
        }
        if self.rng.random_bool(0.3) {
            let named = self.define_with(ty, &[], None, value);
            self.dims = vec![b, q, columns, g];
            value = self.own(named);
        }
        let combiner = if self.rng.random_bool(0.7) { Combiner::Sum } else { Combiner::Max };
        self.define_with(ty, &[g.dim], Some(combiner), value);
        if self.rng.random_bool(0.3) {
            self.op();
        }
    }

    /// A factor of some dimensions and the terms in groups: of two dimensions, or one in groups of `size`.
    fn factor(&mut self, ty: ScalarType, of: &[OpDim], [g, k]: [OpDim; 2], size: Option<i64>) -> ExprId {
        let Some(size) = size else {
            let mut dims = [of, &[g, k]].concat();
            if self.rng.random_bool(0.3) {
                dims.rotate_right(2);
            }
            return self.operand(ty, &dims);
        };
        let n = self.int(size);
        let pool = &mut self.g.env.pool;
        let (first, all) = (pool.mul(g.index, n), pool.mul(g.extent, n));
        let term = pool.add(first, k.index);
        let role = if self.rng.random_bool(0.5) { Role::ConstInput } else { Role::Input };
        let mut extents = self.over_args(of);
        extents.push(all);
        let t = self.declare_input(ty, role, &extents, None);
        let index = of.iter().map(|d| d.index).chain([term]);
        self.env().load(t, index)
    }
}
