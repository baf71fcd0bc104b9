//! Reductions of neighbouring elements that are no products of rows and columns: tiles of one row.
//!
//! ```text
//! for q { for h { for d { O[q, h, d] += P[h, q, w] * V[q - w, h, d] } } }                // for w, reduced
//!   =>  for task in tiles of q { for h { for q of the task { for d in tiles { for w { .. } } } } }
//! ```
//!
//! The elements of a tile are accumulated in registers. Where the terms' window moves along a loop, neighbours of a task share
//! most of theirs, which stay near for one iteration of the loops inside.

use super::contraction::{accumulate, names, reorder, split};
use super::nest::{Loop, Nest};
use super::{Registers, TASK_ROWS, row_tasks, step};
use cora_ir::intrinsic::Vectors;
use cora_ir::loops::{BlockRole, IterKind, LoopModule};
use cora_ir::schedule::StepKind;
use cora_ir::{Expr, ExprId, TensorId, VarId};

/// Vectors of a tile of one row.
const WIDE: i64 = 4;
/// And where so many divide all columns: more of them are added to while one is.
const WIDEST: i64 = 8;
/// Terms that are added in a buffer as fast as in registers, where masks of vectors need not be the same for a tile.
const FEW_TERMS: i64 = 16;

/// The loop over the last dimension of a reduction of neighbours: every access that moves with it goes
/// from neighbour to neighbour, and some do.
pub(super) fn neighbours(m: &LoopModule, nest: &Nest) -> Option<Loop> {
    if !matches!(nest.block.role, BlockRole::Update(_)) {
        return None;
    }
    let pool = &m.env.pool;
    let column = pool.as_var(*nest.block.index.last()?)?;
    let binding = nest.block.iters.iter().find(|i| i.var == column)?.binding;
    let inner = nest.loops.iter().find(|l| pool.as_var(binding) == Some(l.var))?;
    let moved = nest.reads(m).iter().any(|r| r.1.iter().any(|&e| pool.uses_var(e, column)));
    // One alone has no neighbour.
    let several = pool.as_int(inner.extent) != Some(1);
    (moved && several && nest.contiguous(m, column) && !inner.reduced).then(|| inner.clone())
}

/// A reduction of neighbours in tiles of one row, or, of a few terms, in a row's own buffer.
pub(super) fn column_tiles(m: &mut LoopModule, stage: TensorId, vectors: Vectors) -> Option<()> {
    let registers = Registers::of(m, stage, vectors);
    let nest = Nest::of(m, stage)?;
    let inner = neighbours(m, &nest)?;
    let (reduced, own): (Vec<Loop>, Vec<Loop>) = nest.loops.iter().cloned().partition(|l| l.reduced);
    let own = own.into_iter().filter(|l| l.var != inner.var).collect::<Vec<_>>();
    // Of one row there may be too few tiles for the workers.
    let several = nest.attached || !own.is_empty();
    let divides = |vectors: i64| m.env.pool.as_int(inner.extent).is_some_and(|n| n % (vectors * registers.lanes) == 0);
    let wide = registers.lanes * if several && divides(WIDEST) { WIDEST } else { WIDE };
    let (mut order, summed) = (names(&own), names(&reduced));
    let terms = reduced.iter().try_fold(1_i64, |n, l| n.checked_mul(m.env.pool.as_int(l.extent)?));
    if nest.attached && terms.is_some_and(|n| n <= FEW_TERMS) {
        reorder(m, &nest, [order, summed, vec![inner.name.clone()]].concat())?;
        return step(m, StepKind::Vectorize { target: nest.at(&inner), width: Some(registers.lanes) });
    }
    if !nest.attached
        && !row_tasks::has_task(m, stage)
        && let Some(l) = window(m, &nest, &own)
    {
        // Neighbours of a task share most of their windows: for one iteration of the loops between they stay near.
        let (task, near) = ("task", "near");
        split(m, &nest, &l.name, TASK_ROWS, task, near)?;
        order.iter_mut().filter(|o| **o == l.name).for_each(|o| task.clone_into(o));
        order.push(near.to_owned());
    }
    let bound = m.env.pool.constant_bound(inner.extent);
    let mut lanes = inner.name.clone();
    if bound.is_none_or(|b| b > wide) {
        split(m, &nest, &inner.name, wide, "co", "ci")?;
        order.push("co".to_owned());
        lanes = "ci".to_owned();
    }
    let at = order.last().cloned();
    order.extend(summed);
    order.push(lanes.clone());
    reorder(m, &nest, order)?;
    match at {
        Some(at) => accumulate(m, &nest, &at, &[], (&lanes, registers.lanes, true), None).map(|_| ()),
        // One tile beside its reader: its own buffer is near enough.
        None => {
            let few = bound.filter(|b| *b < registers.lanes && b.count_ones() == 1);
            step(m, StepKind::Vectorize { target: nest.named(&lanes), width: few.or(Some(registers.lanes)) })
        }
    }
}

/// The loop along which a window of terms moves, as `q` in `V[b, q - w, h, d]`, with others of `loops` inside it.
fn window(m: &LoopModule, nest: &Nest, loops: &[Loop]) -> Option<Loop> {
    let pool = &m.env.pool;
    let terms: Vec<VarId> = nest.block.iters.iter().filter(|i| i.kind == IterKind::Reduce).map(|i| i.var).collect();
    let reads = nest.reads(m);
    // What is gathered is another place for each iteration.
    let gathers = |e: ExprId| pool.any(e, &mut |n| matches!(n, Expr::Load { .. }));
    let moved = |v: VarId| {
        let mut places = reads.iter().flat_map(|r| r.1.iter().copied());
        places.any(|e| pool.uses_var(e, v) && terms.iter().any(|&t| pool.uses_var(e, t)) && !gathers(e))
    };
    let (_, outer) = loops.split_last()?;
    let needed = |l: &Loop| loops.iter().any(|o| pool.uses_var(o.extent, l.var));
    let long = |l: &Loop| nest.most(m, [l]) > TASK_ROWS && !needed(l);
    outer.iter().rev().find(|l| nest.iterator(m, l.var).is_some_and(moved) && long(l)).cloned()
}
