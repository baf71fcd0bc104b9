//! Reductions whose results are in another order than what they read, in that order first.
//!
//! ```text
//! G[n, c, w] = sum(t) (D[t, n] * X[t + w, c])   =>   T[n, w, c] = sum(t) (D[t, n] * X[t + w, c]);  G[n, c, w] = T[n, w, c]
//! ```
//!
//! A vector of a short last dimension would be part full, and gather what it reads. There are many terms for each result that
//! is copied.

use super::nest::is_along;
use super::products::sums_before;
use crate::schedule::precompute::naive;
use cora_ir::loops::{BlockRole, IterKind, LoopModule};
use cora_ir::{Expr, Reduction, TensorId};

/// A last dimension shorter than this is short, others are long.
const LONG: i64 = 16;
/// Terms for which a copy of their results is worth it.
const TERMS: i64 = 16;

/// Reduces with the dimension last in which what is read lies side by side.
pub(super) fn as_read(m: &mut LoopModule, stage: TensorId) -> Option<()> {
    let (_, block) = naive(m, stage)?;
    let pool = &m.env.pool;
    let mut reads = Vec::new();
    pool.walk(block.value, &mut |_, n| {
        if let Expr::Load { tensor, index, .. } = n {
            reads.push((*tensor, index.to_vec()));
        }
    });
    let own: Vec<_> = block.iters.iter().filter(|i| i.kind == IterKind::Spatial).collect();
    let last = own.last()?;
    let constant = |e| pool.as_int(e);
    let mut terms = block.iters.iter().filter(|i| i.kind == IterKind::Reduce).map(|i| constant(i.extent));
    let few = terms.try_fold(1_i64, |n, e| n.checked_mul(e?)).is_some_and(|n| n < TERMS);
    let short = constant(last.extent).is_some_and(|n| n < LONG);
    let along = |v| reads.iter().all(|r| is_along(m, r, v));
    if !matches!(block.role, BlockRole::Update(Reduction::Op(_))) || few || !short || along(last.var) {
        return None;
    }
    // Nothing inside it has an extent of its own there.
    let free = |v| !own.iter().any(|i| pool.uses_var(i.extent, v));
    let moves = |v| reads.iter().any(|r| r.1.iter().any(|&e| pool.uses_var(e, v)));
    let long = |e| constant(e).is_none_or(|n| n >= LONG);
    let found = own.iter().rev().skip(1).find(|i| long(i.extent) && free(i.var) && moves(i.var) && along(i.var))?.var;
    sums_before(m, stage, &[block.value], Some(found), |_, sums| sums.first().copied())
}
