//! Neighbours that are each combined with the lanes of a vector of their own: one vector of them all.
//!
//! ```text
//! @S[%p] = @S[%p] + reduce_sum(%x)                     // vectors of 4 lanes
//! @S[%p + 1] = @S[%p + 1] + reduce_sum(%y)
//!   =>  %z = [%x.0, %x.1, %y.0, %y.1] + [%x.2, %x.3, %y.2, %y.3]
//!       @S[ramp(%p, 1, 2)] = @S[ramp(%p, 1, 2)] + ([%z.0, %z.2] + [%z.1, %z.3])
//! ```
//!
//! The lanes of each vector are combined in the order of [`arith::reduce`], to the same bits.

use cora_ir::storage::Stmt;
use cora_ir::{Combiner, Expr, ExprId, ScalarType, TensorId};

use super::EmitFault;
use super::arith::{self, Facts};
use super::builder::{Ty, Val};
use super::convert::memory_elem;
use super::expr::Emitter;

/// An element, and the vector whose lanes are combined with it.
struct Sum {
    tensor: TensorId,
    index: ExprId,
    combiner: Combiner,
    vector: ExprId,
    lanes: u32,
}

/// Such statements for neighbours, of which there are a power of two, at most as many as lanes.
pub(super) struct Sums(Vec<Sum>);

impl Sums {
    /// How many statements it stands for.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

impl Emitter<'_> {
    /// The sums of neighbours with which statements begin, if there are several.
    pub(super) fn sums(&mut self, body: &[Stmt]) -> Option<Sums> {
        let first = self.sum_of_lanes(body.first()?)?;
        let of = |s: &Sum| (s.tensor, s.combiner, s.lanes);
        let mut all = vec![first];
        for s in body.iter().skip(1).take(all[0].lanes as usize - 1) {
            let Some(next) = self.sum_of_lanes(s).filter(|next| of(next) == of(&all[0])) else { break };
            if !self.follows(all[0].index, next.index, all.len() as i64) {
                break;
            }
            all.push(next);
        }
        all.truncate(1 << all.len().ilog2());
        (all.len() > 1).then_some(Sums(all))
    }

    /// A statement that combines an element with all lanes of a vector, which is made without the tensor.
    fn sum_of_lanes(&self, s: &Stmt) -> Option<Sum> {
        let Stmt::Store { tensor, index, value, mask: None, rest } = s else { return None };
        let Expr::Bin(op, x, y) = *self.pool.get(*value) else { return None };
        let (old, combiner, vector) = match (self.pool.get(x), self.pool.get(y)) {
            (_, &Expr::Reduce(combiner, vector)) => (x, combiner, vector),
            (&Expr::Reduce(combiner, vector), _) => (y, combiner, vector),
            _ => return None,
        };
        let itself = match *self.pool.get(old) {
            Expr::Load { tensor: from, index: ref at, guard: None, .. } => from == *tensor && at[..] == [*index],
            _ => false,
        };
        let ty = self.pool.ty(vector);
        // In memory as in registers.
        let plain = matches!(ty.scalar, ScalarType::F32 | ScalarType::F64 | ScalarType::I32 | ScalarType::I64);
        let fits = rest.is_empty()
            && itself
            && plain
            && op == combiner.op()
            && self.threads.is_none()
            && self.pool.ty(*index).lanes == 1
            && ty.lanes.is_power_of_two()
            && ty.lanes > 1
            && !self.pool.reads(vector, *tensor);
        fits.then_some(Sum { tensor: *tensor, index: *index, combiner, vector, lanes: ty.lanes })
    }

    /// Computes them.
    pub(super) fn sum_together(&mut self, sums: &Sums) -> Result<(), EmitFault> {
        let Some(&Sum { tensor, index, combiner, lanes, .. }) = sums.0.first() else { return Ok(()) };
        let scalar = self.module.env.tensors[tensor].ty;
        let elem = memory_elem(scalar);
        let mut vectors = sums.0.iter().map(|s| self.emit(s.vector)).collect::<Result<Vec<_>, _>>()?;
        // In each vector lie the lanes that are left of one after the other, `width` of each.
        let mut width = lanes;
        while width > 1 {
            width /= 2;
            if vectors.len() > 1 {
                let upper = vectors.split_off(vectors.len() / 2);
                for (a, b) in vectors.iter_mut().zip(upper) {
                    let at = |upper: u32| {
                        let part = move |l: u32| l / (2 * width) * 2 * width + l % width + upper * width;
                        (0..lanes).map(move |l| part(l) + if l / width % 2 == 1 { lanes } else { 0 })
                    };
                    *a = self.halves(combiner, (*a, b), Ty { elem, lanes }, scalar, [at(0), at(1)])?;
                }
            } else {
                let v = vectors[0];
                let lanes = self.b.ty(v).lanes / 2;
                let at = |upper: u32| (0..lanes).map(move |l| l / width * 2 * width + l % width + upper * width);
                vectors[0] = self.halves(combiner, (v, v), Ty { elem, lanes }, scalar, [at(0), at(1)])?;
            }
        }
        let count = sums.0.len() as u32;
        let at = self.pool.ramp(index, 1, count);
        let old = self.load_all(tensor, at, count)?;
        let new = arith::binary(&mut self.b, self.library, scalar, combiner.op(), (old, vectors[0]), Facts::default())?;
        self.write(tensor, at, new, None)?;
        self.forget(&[tensor]);
        Ok(())
    }

    /// Lanes of two vectors combined with others of theirs.
    fn halves(
        &mut self,
        combiner: Combiner,
        (a, b): (Val, Val),
        ty: Ty,
        scalar: ScalarType,
        [low, high]: [impl Iterator<Item = u32>; 2],
    ) -> Result<Val, EmitFault> {
        let (low, high) = (self.shuffled(a, b, ty, low), self.shuffled(a, b, ty, high));
        arith::binary(&mut self.b, self.library, scalar, combiner.op(), (low, high), Facts::default())
    }
}
