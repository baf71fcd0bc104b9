//! Copies that change the order of dimensions, in squares of vectors, which code generation loads and stores whole.
//!
//! ```text
//! for d { for t { Y[d, t] = X[t, d] } }
//!   =>  for do { for to { for di in 0..16 (unrolled) { for ti in 0..16 (lanes) { Y[d, t] = X[t, d] } } } }
//! ```

use super::Registers;
use super::nest::{Loop, Nest};
use super::steps::Steps;
use cora_ir::intrinsic::Vectors;
use cora_ir::loops::{BlockRole, LoopModule};
use cora_ir::schedule::Tail;
use cora_ir::{Expr, TensorId};

/// Lanes of a square, at least.
pub(super) const FEWEST: i64 = 4;

/// Squares of the loops along which a copy reads and along which it writes.
pub(super) fn squares(m: &mut LoopModule, stage: TensorId, vectors: Vectors) -> Option<()> {
    let lanes = Registers::of(m, stage, vectors).lanes;
    let nest = Nest::of(m, stage)?;
    if nest.block.role != BlockRole::Compute {
        return None;
    }
    let Expr::Load { index, .. } = m.env.pool.get(nest.block.value) else { return None };
    // The loop that moves a last position, and moves it by one.
    let last = |e| nest.loops.iter().find(|l| nest.iterator(m, l.var).is_some_and(|v| m.env.pool.as_var(e) == Some(v)));
    let (read, written) = (last(*index.last()?)?.clone(), last(*nest.block.index.last()?)?.clone());
    let count = m.env.pool.as_int(read.extent)?;
    let long = |l: &Loop| m.env.pool.constant_bound(l.extent).is_none_or(|n| n >= lanes);
    // Rows of a variable length are variably far apart, and each lane of a part of a square would ask whether it is there.
    let lanes = (FEWEST.ilog2()..=lanes.ilog2()).rev().map(|n| 1 << n).find(|n| count % n == 0)?;
    let apart = !m.env.pool.uses_var(written.extent, read.var);
    if read.var == written.var || !long(&written) || !apart {
        return None;
    }
    let mut s = Steps { m, stage: nest.stage.clone() };
    s.split(&read.name, lanes, "ro", "ri", Tail::Exact)?;
    s.split(&written.name, lanes, "wo", "wi", Tail::Exact)?;
    let others = nest.loops.iter().filter(|l| l.var != read.var && l.var != written.var).map(|l| l.name.clone());
    let order = others.chain(["ro", "wo", "ri", "wi"].map(str::to_owned)).collect();
    s.reorder(order)?;
    s.unroll(&["ri"])?;
    s.vectorize("wi", Some(lanes))
}
