//! Terms that count at one position of the results, which is read.

use super::graphs::{Gen, OpDim};
use cora_ir::{BinOp, Combiner, DimId, ExprId, ScalarType};
use rand::prelude::*;

impl Gen<'_> {
    /// Now and then the terms of a reduction count where one or two of its positions are what tensors say for the term, which
    /// may be none of them.
    pub fn at_positions(&mut self, ty: ScalarType, reduced: &[DimId], combiner: Combiner, term: ExprId) -> ExprId {
        let (inner, mut outer): (Vec<OpDim>, Vec<OpDim>) =
            self.dims.iter().copied().partition(|d| reduced.contains(&d.dim));
        if !self.rng.random_bool(0.12) {
            return term;
        }
        outer.shuffle(self.rng);
        let count = if self.rng.random_bool(0.4) { 2 } else { 1 };
        let mut term = term;
        for d in outer.into_iter().take(count) {
            let Some(&r) = inner.choose(self.rng) else { break };
            term = self.at_position(ty, r, d, combiner, term);
        }
        term
    }

    /// The terms that a tensor over `r` says to be at the position of `d`.
    fn at_position(&mut self, ty: ScalarType, r: OpDim, d: OpDim, combiner: Combiner, term: ExprId) -> ExprId {
        let size = *[1, 3, 7, 40].choose(self.rng).expect("not empty");
        let size = self.int(size);
        let at = self.gather_by(&[r], size);
        let (shift, first) = (self.rng.random_range(-1..=2), self.rng.random_range(0..=3));
        let (shift, first) = (self.int(shift), self.int(first));
        let (guarded, apart, swapped) =
            (self.rng.random_bool(0.3), self.rng.random_bool(0.5), self.rng.random_bool(0.3));
        let (contrary, moved) = (self.rng.random_bool(0.2), self.rng.random_bool(0.2));
        let pool = &mut self.env().pool;
        // Either side may be moved.
        let (at, own) = if moved { (at, pool.add(d.index, shift)) } else { (pool.sub(at, shift), d.index) };
        let (x, y) = if swapped { (own, at) } else { (at, own) };
        let later = pool.le(first, r.index);
        let none = pool.lit(combiner.identity(ty));
        if contrary {
            let elsewhere = pool.bin(BinOp::Ne, x, y);
            return pool.select(elsewhere, none, term);
        }
        let here = pool.bin(BinOp::Eq, x, y);
        if ty == ScalarType::Bool && combiner == Combiner::Max && apart {
            return pool.and(here, term);
        }
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
