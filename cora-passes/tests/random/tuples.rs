//! Random reductions over tuples with combiners that are exact on whole numbers.

use super::graphs::{Gen, Known, OpDim};
use super::values::Val;
use cora_ir::graph::Op;
use cora_ir::tuple::Part;
use cora_ir::{BinOp, CombinerId, DimId, ExprId, Literal, Reduction, ScalarType, TensorId, TupleCombiner};
use rand::prelude::*;

impl Gen<'_> {
    /// Adds the reduction over `reduced` of tuples made of `value`, and an operator for each component.
    pub fn define_tuple(&mut self, ty: ScalarType, reduced: &[DimId], value: Val) {
        let v = self.tame(ty, value.e);
        let Some(first) = self.dims.iter().find(|d| reduced.contains(&d.dim)).copied() else { return };
        let (combiner, term) = match self.rng.random_range(0..3) {
            1 => {
                let zero = self.literal(ty, 0);
                let given = self.env().pool.le(zero, v);
                (self.last(ty), [v, given])
            }
            // Sums in 8 or 11 bits are soon rounded, and differently in another order.
            2 if !matches!(ty, ScalarType::BF16 | ScalarType::F16) => {
                let slope = self.sign(ty, v);
                (self.affine(ty), [slope, v])
            }
            _ => (self.greatest(ty), [v, self.position(first)]),
        };
        let term = self.env().pool.make_tuple(&term);
        let id = self.define_op(ty, reduced, Some(Reduction::Tuple(combiner)), term);
        self.g.env.tensors[id].tuple = Some(combiner);
        self.components(id);
    }

    /// An operator that copies each component, so that others may read it.
    fn components(&mut self, tuples: TensorId) {
        let Some(spatial) = self.g.ops.last().map(|o| o.spatial.clone()) else { return };
        let index: Vec<ExprId> =
            spatial.iter().map(|&d| self.g.env.dims[d].var).map(|v| self.g.env.pool.var(v)).collect();
        for (k, ty) in self.g.env.part_types(tuples).into_iter().enumerate() {
            let value = self.g.env.pool.load_guarded((tuples, k as u32), ty, index.iter().copied(), None);
            let name = format!("T{}", self.g.env.tensors.len());
            let copy = cora_ir::Tensor { name, ty, tuple: None, ..self.g.env.tensors[tuples].clone() };
            let id = self.g.env.tensors.push(copy);
            self.g.ops.push(Op { tensor: id, spatial: spatial.clone(), reduce: Vec::new(), combiner: None, value });
            let bound = if ty == ScalarType::Bool { 1.0 } else { 500_000.0 };
            self.known.push(Known { id, bound, exact: true });
        }
    }

    /// `v`, or 0 where that is no whole number of at most 100.
    fn tame(&mut self, ty: ScalarType, v: ExprId) -> ExprId {
        let [lo, hi, zero] = [-100, 100, 0].map(|c| self.literal(ty, c));
        let pool = &mut self.g.env.pool;
        let (above, below) = (pool.le(lo, v), pool.le(v, hi));
        let inside = pool.and(above, below);
        pool.select(inside, v, zero)
    }

    fn sign(&mut self, ty: ScalarType, v: ExprId) -> ExprId {
        let [minus, zero, one] = [-1, 0, 1].map(|c| self.literal(ty, c));
        let pool = &mut self.g.env.pool;
        let (negative, none) = (pool.lt(v, minus), pool.lt(v, one));
        let small = pool.select(none, zero, one);
        pool.select(negative, minus, small)
    }

    fn position(&mut self, d: OpDim) -> ExprId {
        self.env().pool.cast(ScalarType::I64, d.index)
    }

    fn operands(&mut self, types: [ScalarType; 2]) -> [ExprId; 4] {
        let types = [types, types].concat();
        [0, 1, 2, 3].map(|k| self.g.env.pool.operand(k as u32, types[k]))
    }

    fn new_combiner(&mut self, parts: [(&str, Literal); 2], body: [ExprId; 2], commutative: bool) -> CombinerId {
        let name = format!("f{}", self.g.env.combiners.len());
        let part = |(name, identity): (&str, Literal)| Part { name: name.to_owned(), ty: identity.ty, identity };
        let parts = parts.map(part).to_vec();
        self.g.env.combiners.push(TupleCombiner { name, parts, body: body.to_vec(), commutative })
    }

    /// The greatest value and its least position.
    fn greatest(&mut self, ty: ScalarType) -> CombinerId {
        let none = Literal::int(ScalarType::I64, i64::MAX);
        let [v, at, w, there] = self.operands([ty, ScalarType::I64]);
        let pool = &mut self.g.env.pool;
        let (above, same) = (pool.lt(v, w), pool.bin(BinOp::Eq, v, w));
        let first = pool.min(at, there);
        let one = pool.select(above, there, at);
        let body = [pool.max(v, w), pool.select(same, first, one)];
        let least = cora_ir::Combiner::Max.identity(ty);
        self.new_combiner([("v", least), ("at", none)], body, true)
    }

    /// The last value that counts, 0 if none does.
    fn last(&mut self, ty: ScalarType) -> CombinerId {
        let zero = if ty.is_float() { Literal::float(ty, 0.0) } else { Literal::int(ty, 0) };
        let [v, counts, w, later] = self.operands([ty, ScalarType::Bool]);
        let pool = &mut self.g.env.pool;
        let body = [pool.select(later, w, v), pool.bin(BinOp::Or, counts, later)];
        self.new_combiner([("v", zero), ("any", Literal::int(ScalarType::Bool, 0))], body, false)
    }

    /// Composition of `x -> a * x + b`, the first applied first.
    fn affine(&mut self, ty: ScalarType) -> CombinerId {
        let number = |v: i64| if ty.is_float() { Literal::float(ty, v as f64) } else { Literal::int(ty, v) };
        let [a, b, c, d] = self.operands([ty, ty]);
        let pool = &mut self.g.env.pool;
        let shifted = pool.mul(c, b);
        let body = [pool.mul(a, c), pool.add(shifted, d)];
        self.new_combiner([("a", number(1)), ("b", number(0))], body, false)
    }
}
