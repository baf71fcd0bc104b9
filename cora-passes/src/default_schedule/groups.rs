//! Vectors of the columns of a group: what is read by `floordiv(column, 8)` is the same for eight neighbours.
//!
//! ```text
//! Y[c] += X[k, c] * s[c // 8]   =>   for co, cc: for ci in 0..8 vector { Y[..] += X[k, ..] * s[co * n + cc] }
//! ```

use super::contraction::{accumulate, names, reorder, split};
use super::nest::{Loop, Nest, moves_by_one};
use super::{Registers, step};
use cora_ir::intrinsic::Vectors;
use cora_ir::loops::{BlockRole, LoopModule};
use cora_ir::schedule::StepKind;
use cora_ir::{BinOp, Expr, ExprId, ExprPool, TensorId, VarId};

/// Vectors that one iteration of the reduced loops adds to.
const VECTORS: i64 = 4;
/// Lanes of the shortest vector that is worth while.
const LEAST: i64 = 4;

/// How many neighbouring columns every access has in common that does not go from one to the next; nothing if there is
/// none, or they differ.
fn group(m: &LoopModule, nest: &Nest, column: VarId) -> Option<i64> {
    let mut found = None;
    for (_, index) in nest.reads(m) {
        if moves_by_one(m, &index, column) {
            continue;
        }
        for e in index.into_iter().filter(|&e| m.env.pool.uses_var(e, column)) {
            let c = quotient(&m.env.pool, e, column)?;
            if *found.get_or_insert(c) != c {
                return None;
            }
        }
    }
    found.filter(|&c| c > 0 && moves_by_one(m, &nest.block.index, column))
}

/// `c` of `column // c`, and terms that do not move with the column.
fn quotient(pool: &ExprPool, e: ExprId, column: VarId) -> Option<i64> {
    match *pool.get(e) {
        Expr::Bin(BinOp::FloorDiv, x, c) if pool.as_var(x) == Some(column) => pool.as_int(c),
        Expr::Bin(BinOp::Add, x, y) => match (pool.uses_var(x, column), pool.uses_var(y, column)) {
            (true, false) => quotient(pool, x, column),
            (false, true) => quotient(pool, y, column),
            _ => None,
        },
        _ => None,
    }
}

/// A stage whose accesses share groups of columns, a group a vector; of a reduction some groups in registers.
pub(super) fn vectors_of_groups(m: &mut LoopModule, stage: TensorId, vectors: Vectors) -> Option<()> {
    let lanes = Registers::of(m, stage, vectors).lanes;
    let nest = Nest::of(m, stage)?;
    let column = m.env.pool.as_var(*nest.block.index.last()?)?;
    let size = group(m, &nest, column)?;
    // Whole vectors of a power of two of lanes.
    let width = lanes.min(size & size.wrapping_neg());
    if width < LEAST {
        return None;
    }
    let binding = nest.block.iters.iter().find(|i| i.var == column)?.binding;
    let inner = nest.loops.iter().find(|l| m.env.pool.as_var(binding) == Some(l.var) && !l.reduced)?.clone();
    let (reduced, own): (Vec<Loop>, Vec<Loop>) = nest.loops.iter().cloned().partition(|l| l.reduced);
    let own: Vec<Loop> = own.into_iter().filter(|l| l.var != inner.var).collect();
    let [co, cp, cc, ci] = ["co", "cp", "cc", "ci"].map(str::to_owned);
    if !matches!(nest.block.role, BlockRole::Update(_)) {
        split(m, &nest, &inner.name, size, &co, &ci)?;
        reorder(m, &nest, [names(&own), vec![co, ci]].concat())?;
        return step(m, StepKind::Vectorize { target: nest.named("ci"), width: Some(width) });
    }
    let groups = (VECTORS * lanes / size).max(1);
    split(m, &nest, &inner.name, groups * size, &co, &cp)?;
    split(m, &nest, &cp, size, &cc, &ci)?;
    reorder(m, &nest, [names(&own), vec![co], names(&reduced), vec![cc, ci]].concat())?;
    accumulate(m, &nest, "co", &["cc"], ("ci", width, true), None).map(|_| ())
}
