//! Vectors that are written between each other: one vector of them all.
//!
//! ```text
//! @Y[ramp(%p, 2, 16)] = %x                             // pairs of a row of @X and the next
//! @Y[ramp(%p + 1, 2, 16)] = %y
//!   =>  @Y[ramp(%p, 1, 32)] = [%x.0, %y.0, %x.1, %y.1, ..]
//! ```

use cora_ir::storage::Stmt;
use cora_ir::{ExprId, TensorId};

use super::EmitFault;
use super::builder::Val;
use super::convert::memory_elem;
use super::expr::Emitter;
use super::lanes::affine;

/// How many vectors, at most, and bytes of them all.
const MOST: usize = 4;
const MOST_BYTES: u32 = 128;

/// What is written to neighbours in turn.
pub(super) struct Interleaved {
    tensor: TensorId,
    /// Where each vector is written.
    indices: Vec<ExprId>,
    values: Vec<ExprId>,
    /// Where the first lane of the first one is.
    first: ExprId,
    lanes: u32,
}

impl Interleaved {
    /// How many statements it stands for.
    pub(super) fn len(&self) -> usize {
        self.values.len()
    }
}

impl Emitter<'_> {
    /// The vectors between each other with which statements begin, if they do.
    pub(super) fn interleaved(&mut self, body: &[Stmt]) -> Option<Interleaved> {
        let (tensor, index, _) = self.vector_store(body.first()?)?;
        let (lanes, to) = (self.pool.ty(index).lanes, affine(self, index)?);
        let count = usize::try_from(to.stride).ok().filter(|n| n.is_power_of_two() && (2..=MOST).contains(n))?;
        let bytes = memory_elem(self.module.env.tensors[tensor].ty).bits() / 8;
        if body.len() < count || self.threads.is_some() || lanes * bytes * count as u32 > MOST_BYTES {
            return None;
        }
        let (mut indices, mut values) = (Vec::new(), Vec::new());
        for (n, s) in body.iter().take(count).enumerate() {
            let (t, index, value) = self.vector_store(s)?;
            let at = affine(self, index)?;
            let same = (t, self.pool.ty(index).lanes, at.stride) == (tensor, lanes, to.stride);
            // All values are computed before anything is written.
            if !same || self.pool.reads(value, tensor) || !self.follows(to.base, at.base, n as i64) {
                return None;
            }
            indices.push(index);
            values.push(value);
        }
        Some(Interleaved { tensor, indices, values, first: to.base, lanes })
    }

    /// An unconditional store of a vector: where, and what.
    fn vector_store(&self, s: &Stmt) -> Option<(TensorId, ExprId, ExprId)> {
        match s {
            Stmt::Store { tensor, index, value, mask: None, rest } if rest.is_empty() => {
                (self.pool.ty(*index).lanes > 1).then_some((*tensor, *index, *value))
            }
            _ => None,
        }
    }

    /// Writes them.
    pub(super) fn write_interleaved(&mut self, all: &Interleaved) -> Result<(), EmitFault> {
        let mut vectors = Vec::new();
        for (&index, &value) in all.indices.iter().zip(&all.values) {
            vectors.push(self.stored_value(all.tensor, index, value)?);
        }
        let v = self.in_turn(&vectors);
        let at = self.pool.ramp(all.first, 1, all.lanes * all.len() as u32);
        self.write(all.tensor, at, v, None)?;
        self.forget(&[all.tensor]);
        Ok(())
    }

    /// A lane of each in turn, of a power of two of vectors of one type.
    fn in_turn(&mut self, vectors: &[Val]) -> Val {
        let [v] = vectors else {
            let [even, odd] = [0, 1].map(|n| {
                let part: Vec<Val> = vectors.iter().skip(n).step_by(2).copied().collect();
                self.in_turn(&part)
            });
            let ty = self.b.ty(even);
            let lanes = (0..2 * ty.lanes).map(|l| l / 2 + l % 2 * ty.lanes);
            return self.shuffled(even, odd, ty.with_lanes(2 * ty.lanes), lanes);
        };
        *v
    }
}
