//! Where in a buffer a kernel's part of it begins, if all that it accesses lies behind a constant: one of the matrices of a
//! tensor that holds those of all layers.
//!
//! ```text
//! @A[%k * 64 + %j + 8192], @A[%k * 64 + %j + 8208]   // of layer 2
//!   =>  a pointer to @A[8192], accessed at %k * 64 + %j and at %k * 64 + %j + 16
//! ```
//!
//! The private function takes that pointer, so that kernels of equal layers have the same text.

use std::collections::HashMap;

use cora_ir::storage::Stmt;
use cora_ir::{BinOp, Expr, ExprId, ExprPool, TensorId};

use super::convert::memory_elem;
use super::expr::Emitter;
use super::lanes::affine;
use super::slots::Slot;

/// Alignment of a buffer, which its parts keep, in bytes.
const ALIGN: i64 = 64;

/// An index without its constant terms, nothing if that is all there is, and these.
pub(super) fn constant_term(pool: &ExprPool, index: ExprId) -> (Option<ExprId>, i64) {
    let (mut rest, mut offset) = (Some(index), 0_i64);
    while let Some(e) = rest {
        let (next, step) = match *pool.get(e) {
            Expr::Int(k) => (None, k),
            Expr::Bin(BinOp::Add, x, k) if pool.as_int(k).is_some() => (Some(x), pool.as_int(k).unwrap_or(0)),
            Expr::Bin(BinOp::Add, k, x) if pool.as_int(k).is_some() => (Some(x), pool.as_int(k).unwrap_or(0)),
            Expr::Bin(BinOp::Sub, x, k) if pool.as_int(k).is_some() => {
                (Some(x), pool.as_int(k).unwrap_or(0).wrapping_neg())
            }
            _ => break,
        };
        offset = offset.wrapping_add(step);
        rest = next;
    }
    (rest, offset)
}

impl Emitter<'_> {
    /// Finds where the buffers' parts begin, in elements. What is accessed does not depend on it.
    pub(super) fn find_bases(&mut self, body: &[Stmt]) {
        let mut least: HashMap<TensorId, i64> = HashMap::new();
        for (tensor, index) in self.accesses(body) {
            let of_buffer = matches!(self.slots.get(tensor), Some(Slot::Buffer(_)));
            // That of a part that was found to begin at 0 stays there.
            if of_buffer && least.get(&tensor) != Some(&0) {
                let base = affine(self, index).map_or(0, |a| constant_term(self.pool, a.base).1.max(0));
                least.entry(tensor).and_modify(|l| *l = base.min(*l)).or_insert(base);
            }
        }
        for (tensor, first) in least {
            let bytes = i64::from(memory_elem(self.module.env.tensors[tensor].ty).bits() / 8);
            let base = first - first % (ALIGN / bytes);
            if base > 0 {
                self.bases.insert(tensor, base);
            }
        }
    }

    /// What the statements read and write, and at which index.
    fn accesses(&self, body: &[Stmt]) -> Vec<(TensorId, ExprId)> {
        let (mut all, mut seen) = (Vec::new(), Default::default());
        for s in body {
            s.walk(&mut |s| {
                match s {
                    Stmt::Store { tensor, index, rest, .. } => {
                        all.extend([*tensor].iter().chain(rest.iter().map(|r| &r.0)).map(|&t| (t, *index)));
                    }
                    Stmt::Prefetch { tensor, index, .. } | Stmt::Atomic { tensor, index, .. } => {
                        all.push((*tensor, *index))
                    }
                    Stmt::Gemm(g) => all.extend([&g.c, &g.a, &g.b].map(|m| (m.tensor, m.offset))),
                    Stmt::Tile(t) => all.extend([&t.c, &t.a, &t.b].map(|m| (m.tensor, m.offset))),
                    _ => {}
                }
                for e in s.exprs() {
                    self.pool.walk_seen(e, &mut seen, &mut |_, n| {
                        if let Expr::Load { tensor, index, .. } = n {
                            all.extend(index.first().map(|&i| (*tensor, i)));
                        }
                    });
                }
            });
        }
        all
    }
}
