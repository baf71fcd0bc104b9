//! Sums that begin with zeros in AMX's tile registers: a register is cleared, where else zeros would be written to memory
//! and be waited for.
//!
//! ```text
//! for %i in 0..16 { @C[ramp(%i * 16, 1, 16)] = splat(0.0:f32, 16) }
//! for %k in 0..%n { tile amx.m16n16k32.f32.bf16 @C[..] = .. }
//!   =>  a cleared register before the second loop, whose end writes all of @C
//! ```

use std::collections::BTreeSet;

use cora_ir::affine::normalize;
use cora_ir::loops::LoopKind;
use cora_ir::storage::{Matrix, Stmt};
use cora_ir::{ExprId, TensorId, VarId};

use super::amx::SUMS;
use super::expr::Emitter;
use super::lanes::affine;

/// Iterations of the loops that write zeros, at most: the elements of all registers.
const MOST: i64 = 8 * 256;

impl Emitter<'_> {
    /// How many statements at the front of `body` write zeros to just the tiles that the loop after them adds to and carries in
    /// registers. They need not be emitted: those registers will be cleared.
    pub(super) fn cleared(&mut self, body: &[Stmt]) -> Option<usize> {
        let tensor = self.zeros_of(body.first()?)?;
        let count = body.iter().take_while(|s| self.zeros_of(s) == Some(tensor)).count();
        let Stmt::For { extent, kind: LoopKind::Serial, body: adds, .. } = body.get(count)? else { return None };
        if self.pool.reads(*extent, tensor) {
            return None;
        }
        let tiles: Vec<Matrix> = self.added_to(adds).into_iter().filter(|c| c.tensor == tensor).collect();
        let mut of_tiles = BTreeSet::new();
        for c in &tiles {
            let (at, [rows, columns]) = (self.pool.as_int(c.offset)?, SUMS);
            let pitch = self.pool.as_int(c.blocks?[0])?;
            of_tiles.extend((0..rows).flat_map(|i| (0..columns).map(move |j| at + i * pitch + j)));
        }
        let mut written = BTreeSet::new();
        for s in &body[..count] {
            self.places_of_zeros(s, &mut Vec::new(), MOST, &mut written)?;
        }
        if of_tiles.is_empty() || written != of_tiles {
            return None;
        }
        self.clear_tiles(tiles);
        Some(count)
    }

    /// The tensor to which a statement writes zeros, and nothing else.
    fn zeros_of(&self, s: &Stmt) -> Option<TensorId> {
        match s {
            Stmt::For { kind: LoopKind::Serial, body, .. } if body.len() == 1 => self.zeros_of(&body[0]),
            Stmt::Store { tensor, value, mask: None, rest, .. }
                if rest.is_empty() && self.pool.is_zero_bits(*value) =>
            {
                Some(*tensor)
            }
            _ => None,
        }
    }

    /// The places that it writes in at most `most` iterations, with loops at `at`, if they are numbers.
    fn places_of_zeros(
        &mut self,
        s: &Stmt,
        at: &mut Vec<(VarId, ExprId)>,
        most: i64,
        written: &mut BTreeSet<i64>,
    ) -> Option<()> {
        match s {
            Stmt::For { var, extent, body, .. } => {
                let count = self.pool.as_int(*extent).filter(|n| (1..=most).contains(n))?;
                for n in 0..count {
                    at.push((*var, self.pool.int(n)));
                    body.iter().try_for_each(|s| self.places_of_zeros(s, at, most / count, written))?;
                    at.pop();
                }
            }
            Stmt::Store { index, .. } => {
                let lanes = i64::from(self.pool.ty(*index).lanes);
                let places = affine(self, *index)?;
                let first = self.pool.substitute(places.base, &at.iter().copied().collect());
                let first = normalize(self.pool, first);
                let first = self.pool.as_int(first)?;
                written.extend((0..lanes).map(|l| first + l * places.stride));
            }
            _ => return None,
        }
        Some(())
    }
}
