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
use super::builder::Val;
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
        let mut vectors = sums.0.iter().map(|s| self.emit(s.vector)).collect::<Result<Vec<_>, _>>()?;
        // In each vector lie the lanes that are left of one after the other, `width` of each.
        let mut width = lanes;
        while width > 1 {
            width /= 2;
            let others = vectors.split_off(vectors.len().div_ceil(2));
            for (n, v) in vectors.iter_mut().enumerate() {
                *v = self.halves(tensor, combiner, (*v, others.get(n).copied()), width)?;
            }
        }
        let count = sums.0.len() as u32;
        let at = self.pool.ramp(index, 1, count);
        let old = self.load_all(tensor, at, count)?;
        let new = self.combined(tensor, combiner, (old, vectors[0]))?;
        self.write(tensor, at, new, None)?;
        self.forget(&[tensor]);
        Ok(())
    }

    /// The lower and the upper `width` lanes of each part of a vector combined, those of another vector's in turn.
    fn halves(
        &mut self,
        tensor: TensorId,
        combiner: Combiner,
        (v, other): (Val, Option<Val>),
        width: u32,
    ) -> Result<Val, EmitFault> {
        let from = self.b.ty(v);
        let (vectors, other) = other.map_or((1, v), |o| (2, o));
        let ty = from.with_lanes(from.lanes / 2 * vectors);
        let lane = |l: u32, upper: u32| {
            let part = l / width;
            part % vectors * from.lanes + (part / vectors * 2 + upper) * width + l % width
        };
        let [low, high] = [0, 1].map(|upper| self.shuffled(v, other, ty, (0..ty.lanes).map(|l| lane(l, upper))));
        self.combined(tensor, combiner, (low, high))
    }

    fn combined(&mut self, tensor: TensorId, combiner: Combiner, values: (Val, Val)) -> Result<Val, EmitFault> {
        let ty = self.module.env.tensors[tensor].ty;
        arith::binary(&mut self.b, self.library, ty, combiner.op(), values, Facts::default())
    }
}
