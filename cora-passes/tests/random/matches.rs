//! Terms that count at one position of the results, which is read.

use super::graphs::{Gen, OpDim};
use cora_ir::{BinOp, Combiner, DimId, ExprId, ScalarType};
use rand::prelude::*;

impl Gen<'_> {
    /// Now and then the terms of a reduction count where one of its positions is what a tensor says for the term, which may be
    /// none of them.
    pub fn at_positions(&mut self, ty: ScalarType, reduced: &[DimId], combiner: Combiner, term: ExprId) -> ExprId {
        let (inner, outer): (Vec<OpDim>, Vec<OpDim>) =
            self.dims.iter().copied().partition(|d| reduced.contains(&d.dim));
        let (Some(&r), Some(&d)) = (inner.choose(self.rng), outer.choose(self.rng)) else { return term };
        if !self.rng.random_bool(0.12) {
            return term;
        }
        let size = *[1, 3, 7, 40].choose(self.rng).expect("not empty");
        let size = self.int(size);
        let at = self.gather_by(&[r], size);
        let (shift, first) = (self.rng.random_range(-1..=2), self.rng.random_range(0..=3));
        let (shift, first) = (self.int(shift), self.int(first));
        let (guarded, apart, swapped) =
            (self.rng.random_bool(0.3), self.rng.random_bool(0.5), self.rng.random_bool(0.3));
        let pool = &mut self.env().pool;
        let at = pool.sub(at, shift);
        let here = if swapped { pool.bin(BinOp::Eq, d.index, at) } else { pool.bin(BinOp::Eq, at, d.index) };
        let later = pool.le(first, r.index);
        let none = pool.lit(combiner.identity(ty));
        match (guarded, apart) {
            (false, _) => pool.select(here, term, none),
            (true, false) => {
                let both = pool.and(later, here);
                pool.select(both, term, none)
            }
            (true, true) => {
                let inner = pool.select(later, term, none);
                pool.select(here, inner, none)
            }
        }
    }
}
