//! Squares of elements that are read along one dimension and written along the other: whole vectors both ways, and
//! shuffles between them.
//!
//! ```text
//! @Y[ramp(%p, 1, 4)] = @X[ramp(%q, %ld, 4)]            // ... one for each of four neighbours %q
//! @Y[ramp(%r, 1, 4)] = @X[ramp(%q + 1, %ld, 4)]
//!   =>  four loads of @X[ramp(%q + %ld * row, 1, 4)], two rounds of shuffles of pairs, four stores
//! ```
//!
//! Likewise where neighbours are read and what is written lies apart.

use cora_ir::affine::poly;
use cora_ir::storage::Stmt;
use cora_ir::{Expr, ExprId, TensorId};

use super::EmitFault;
use super::builder::{Ty, Val};
use super::convert::memory_elem;
use super::expr::Emitter;
use super::lanes::{Affine, affine};
use super::slots::Slot;

/// Lanes of the vectors that are shuffled, at most.
const MOST: u32 = 16;

/// A copy of a vector.
struct Copy {
    to: (TensorId, ExprId),
    from: (TensorId, ExprId),
    lanes: u32,
}

/// As many copies as a vector has lanes: of neighbours on one side.
pub(super) struct Square {
    copies: Vec<Copy>,
    /// The elements of the first copy on the other side: where the vectors there begin.
    apart: Affine,
    reads_apart: bool,
}

impl Square {
    /// How many statements it stands for.
    pub(super) fn len(&self) -> usize {
        self.copies.len()
    }
}

impl Emitter<'_> {
    /// The square with which statements begin, if they do.
    pub(super) fn square(&mut self, body: &[Stmt]) -> Option<Square> {
        let first = self.vector_copy(body.first()?)?;
        let lanes = first.lanes;
        if !(4..=MOST).contains(&lanes) || !lanes.is_power_of_two() || body.len() < lanes as usize {
            return None;
        }
        let (to, from) = (affine(self, first.to.1)?, affine(self, first.from.1)?);
        let reads_apart = match (to.stride, from.stride) {
            (1, s) if s.unsigned_abs() > 1 => true,
            // Vectors that overlap would have to be written in order.
            (s, 1) if s.unsigned_abs() >= u64::from(lanes) => false,
            _ => return None,
        };
        let apart = if reads_apart { from } else { to };
        let mut copies = vec![first];
        for (n, s) in body.iter().enumerate().take(lanes as usize).skip(1) {
            let next = self.vector_copy(s)?;
            let same = (next.to.0, next.from.0, next.lanes) == (copies[0].to.0, copies[0].from.0, lanes);
            let (to, from) = (affine(self, next.to.1)?, affine(self, next.from.1)?);
            let (other, side) = if reads_apart { (to, from) } else { (from, to) };
            if !same
                || other.stride != 1
                || side.stride != apart.stride
                || !self.follows(apart.base, side.base, n as i64)
            {
                return None;
            }
            copies.push(next);
        }
        Some(Square { copies, apart, reads_apart })
    }

    /// A statement as an unconditional copy of a vector from one tensor in memory to another of its type.
    fn vector_copy(&self, s: &Stmt) -> Option<Copy> {
        let Stmt::Store { tensor, index, value, mask: None, rest } = s else { return None };
        let Expr::Load { tensor: from, index: ref at, guard: None, .. } = *self.pool.get(*value) else { return None };
        let [at] = at[..] else { return None };
        let lanes = self.pool.ty(*index).lanes;
        let of = |t: TensorId| self.module.env.tensors[t].ty;
        let in_memory = |t: TensorId| matches!(self.slots.get(t), Some(Slot::Buffer(_) | Slot::Table(_)));
        let fits = rest.is_empty()
            && self.threads.is_none()
            && *tensor != from
            && of(*tensor) == of(from)
            && in_memory(*tensor)
            && in_memory(from)
            && self.pool.ty(at).lanes == lanes;
        fits.then_some(Copy { to: (*tensor, *index), from: (from, at), lanes })
    }

    /// Whether `next` is `base + distance`.
    pub(super) fn follows(&mut self, base: ExprId, next: ExprId, distance: i64) -> bool {
        let (base, next) = (poly(self.pool, base), poly(self.pool, next));
        next.checked_add_scaled(&base, -1).and_then(|d| d.as_constant()) == Some(distance)
    }

    /// Copies the square.
    pub(super) fn transposed(&mut self, square: &Square) -> Result<(), EmitFault> {
        let Some(first) = square.copies.first() else { return Ok(()) };
        let ((to, _), (from, _), lanes) = (first.to, first.from, first.lanes);
        let ty = Ty { elem: memory_elem(self.module.env.tensors[to].ty), lanes };
        let Affine { base, stride } = square.apart;
        let mut far = Vec::new();
        for row in 0..i64::from(lanes) {
            let row = self.pool.int(row.wrapping_mul(stride));
            let at = self.pool.add(base, row);
            far.push(self.pool.ramp(at, 1, lanes));
        }
        let near = |of: fn(&Copy) -> ExprId| square.copies.iter().map(of).collect::<Vec<_>>();
        let (reads, writes) = if square.reads_apart { (far, near(|c| c.to.1)) } else { (near(|c| c.from.1), far) };
        let rows = reads.into_iter().map(|at| self.load_all(from, at, lanes)).collect::<Result<Vec<_>, _>>()?;
        for (v, at) in self.transpose(rows, ty).into_iter().zip(writes) {
            self.write(to, at, v, None)?;
        }
        self.forget(&[to]);
        Ok(())
    }

    /// The columns of a square as vectors: halves, quarters and so on change places across the diagonal.
    fn transpose(&mut self, mut rows: Vec<Val>, ty: Ty) -> Vec<Val> {
        let lanes = ty.lanes;
        let mut half = lanes / 2;
        while half > 0 {
            for row in (0..lanes).filter(|r| r & half == 0) {
                let (a, b) = (rows[row as usize], rows[(row + half) as usize]);
                let low = (0..lanes).map(|l| if l & half == 0 { l } else { lanes + l - half });
                let high = (0..lanes).map(|l| if l & half == 0 { l + half } else { lanes + l });
                rows[row as usize] = self.shuffled(a, b, ty, low);
                rows[(row + half) as usize] = self.shuffled(a, b, ty, high);
            }
            half /= 2;
        }
        rows
    }

    /// Lanes of `a`, counted from 0, and of `b`, a vector of the same type, counted on.
    pub(super) fn shuffled(&mut self, a: Val, b: Val, ty: Ty, lanes: impl Iterator<Item = u32>) -> Val {
        let (from, lanes) = (self.b.ty(a), lanes.map(|l| l.to_string()).collect::<Vec<_>>());
        self.b.op(ty, &format!("llvm.shufflevector {a}, {b} [{}] : {from}", lanes.join(", ")))
    }
}
