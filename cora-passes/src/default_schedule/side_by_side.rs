//! Factors of neighbouring results that lie apart, in a copy where they are side by side.
//!
//! ```text
//! for t { for c { for w { Y[t, c] += X[t + w, c] * K[c, w] } } }
//!   =>  Kc[w, c] = K[c, w];  for t { for c { for w { Y[t, c] += X[t + w, c] * Kc[w, c] } } }
//! ```
//!
//! As it is, a vector of results would gather its factors.

use super::contraction::{Contraction, Read};
use super::copies::{copy_along, outside};
use super::nest::{Loop, Nest, is_along, moves_by_one, strides};
use cora_ir::loops::{BlockRole, LoopModule};
use cora_ir::{TensorId, VarId};

/// Results that share a factor, at least.
const SHARED: i64 = 16;

/// Copies factors of a reduction that move with its last dimension by more than a few elements, if others share them.
pub(super) fn side_by_side(m: &mut LoopModule, stage: TensorId) -> Option<()> {
    let nest = Nest::of(m, stage)?;
    let column = m.env.pool.as_var(*nest.block.index.last()?)?;
    if !matches!(nest.block.role, BlockRole::Update(_)) || Contraction::of(m, stage).is_some_and(|c| !c.rows.is_empty())
    {
        return None;
    }
    let mut apart = Vec::new();
    for read in nest.reads(m) {
        if is_along(m, &read, column) || strides(m, &read, column) {
            continue;
        }
        if !is_shared(m, &nest, &read) || !moves_one_dim(m, &read, column) {
            return None;
        }
        apart.push(read);
    }
    if apart.is_empty() {
        return None;
    }
    for read in apart {
        let (nest, at) = (Nest::of(m, stage)?, outside(m, read.0));
        copy_along(m, &nest, &read, column, at)?;
    }
    Some(())
}

/// Whether many results read the same elements, as those do along a loop that these do not move with.
fn is_shared(m: &LoopModule, nest: &Nest, (_, index): &Read) -> bool {
    let pool = &m.env.pool;
    let moves = |l: &Loop| {
        let mut iters = nest.block.iters.iter().filter(|i| pool.uses_var(i.binding, l.var));
        iters.any(|i| index.iter().any(|&e| pool.uses_var(e, i.var)))
    };
    nest.loops.iter().any(|l| !l.reduced && !moves(l) && nest.most(m, [l]) >= SHARED)
}

/// Whether a column is a position in one dimension of what is read.
fn moves_one_dim(m: &LoopModule, (_, index): &Read, column: VarId) -> bool {
    let mut moved = index.iter().filter(|&&e| m.env.pool.uses_var(e, column));
    moved.next().is_some_and(|&e| moves_by_one(m, &[e], column)) && moved.next().is_none()
}
