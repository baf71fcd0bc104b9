//! Reductions of terms that count where a position is what is read: histograms, gradients of embeddings, messages along
//! edges.
//!
//! ```text
//! for v { for d { for t { E[v, d] += Y[t, d] if ids[t] == v } } }
//!   =>  for task { for v { for t { for d of the task { E[v, d] += .. } } } }
//! ```
//!
//! The loops are ordered so that storage has each term go to its position (`scatter-terms`): no loop over positions stands
//! around the one over terms. Each worker has columns, or positions, of its own.

use super::contraction::{names, reorder};
use super::nest::{Loop, Nest};
use super::row_tasks::TASK;
use super::{Registers, attempt, loop_ref, step};
use crate::lower::scatter_terms::{FEW, positions_of_terms};
use cora_ir::intrinsic::Vectors;
use cora_ir::loops::{Block, BlockRole, For, IterKind, LoopModule, Stmt};
use cora_ir::schedule::{LoopRef, StepKind, Tail};
use cora_ir::{ExprId, Reduction, TensorId, VarId};

/// Positions of which each term is compared with all, where terms are rows, and where they are elements.
const FEW_ROWS: i64 = 4;
const FEW_ELEMENTS: i64 = 32;
/// Tasks of an iteration of the loops around, each of which reads where all terms go.
const TASKS: i64 = 8;
/// Vectors of a task's rows, at least.
const VECTORS: i64 = 2;

/// Whether terms of a stage go to positions, and these are many.
pub(super) fn goes_to_positions(m: &LoopModule, stage: TensorId) -> bool {
    positions(m, stage).is_some()
}

/// The iterators over positions of a block, if its terms count at one of them each.
fn iterators(m: &LoopModule, b: &Block) -> Vec<VarId> {
    let spatial = |v| b.iters.iter().any(|i| i.var == v && i.kind == IterKind::Spatial);
    let BlockRole::Update(Reduction::Op(combiner)) = b.role else { return Vec::new() };
    positions_of_terms(&m.env.pool, combiner, b.value, spatial)
}

/// A stage's nest and its loops over positions, which are many.
fn positions(m: &LoopModule, stage: TensorId) -> Option<(Nest, Vec<Loop>)> {
    let nest = Nest::of(m, stage)?;
    let iterators = iterators(m, &nest.block);
    let loop_of = |iter: &VarId| {
        let binding = nest.block.iters.iter().find(|i| i.var == *iter)?.binding;
        nest.loops.iter().find(|l| m.env.pool.as_var(binding) == Some(l.var)).cloned()
    };
    let mut over: Vec<Loop> = iterators.iter().filter_map(loop_of).collect();
    over.sort_by_key(|l| nest.loops.iter().position(|o| o.var == l.var));
    // Storage keeps loops over few, and those that others depend on.
    let most = |l: &Loop| m.env.pool.constant_bound(l.extent).unwrap_or(i64::MAX);
    over.retain(|l| most(l) >= FEW && !nest.loops.iter().any(|o| m.env.pool.uses_var(o.extent, l.var)));
    let few = if columns(m, &nest, &over).is_some() { FEW_ROWS } else { FEW_ELEMENTS };
    let all = over.iter().map(most).fold(1, i64::saturating_mul);
    (!over.is_empty() && all >= few).then_some((nest, over))
}

/// The loop over neighbours that go to one position together.
fn columns(m: &LoopModule, nest: &Nest, over: &[Loop]) -> Option<Loop> {
    let last = nest.loops.iter().rfind(|l| !l.reduced)?;
    let iter = nest.iterator(m, last.var)?;
    let constant = m.env.pool.as_int(last.extent).is_some();
    let position = over.iter().any(|l| l.var == last.var);
    (constant && !position && nest.contiguous(m, iter)).then(|| last.clone())
}

/// Orders the loops of such a reduction.
pub(super) fn to_positions(m: &mut LoopModule, stage: TensorId, vectors: Vectors) -> Option<()> {
    let (nest, over) = positions(m, stage)?;
    let lanes = Registers::of(m, stage, vectors).lanes;
    let columns = columns(m, &nest, &over);
    let is = |l: &&Loop, of: &[Loop]| of.iter().any(|o| o.var == l.var);
    let around = nest.loops.iter().filter(|l| !l.reduced && !is(l, &over) && !is(l, columns.as_slice()));
    let mut order: Vec<String> = around.map(|l| l.name.clone()).collect();
    let mut positions: Vec<String> = over.iter().map(|l| l.name.clone()).collect();
    let mut row = columns.as_ref().map(|c| c.name.clone());
    let split = |m: &mut LoopModule, l: &Loop, factor: i64| {
        let (outer, inner) = (TASK.to_owned(), "near".to_owned());
        step(m, StepKind::Split { target: nest.at(l), factor, outer, inner, tail: Tail::Exact })
    };
    let of_row = columns.as_ref().and_then(|c| m.env.pool.as_int(c.extent));
    let share = of_row.map_or(0, |n| (n + TASKS - 1) / TASKS).max(VECTORS * lanes);
    let share = (share + lanes - 1) / lanes * lanes;
    let most = m.env.pool.as_int(over[0].extent);
    if let (false, Some(c)) = (nest.attached, &columns) {
        if of_row.is_some_and(|n| n > share) {
            split(m, c, share)?;
            order.push(TASK.to_owned());
            row = Some("near".to_owned());
        } else if let Some(n) = most {
            split(m, &over[0], (n + TASKS - 1) / TASKS)?;
            order.push(TASK.to_owned());
            positions[0] = "near".to_owned();
        }
    }
    order.extend(positions);
    order.extend(names(&nest.loops.iter().filter(|l| l.reduced).cloned().collect::<Vec<_>>()));
    order.extend(row.clone());
    reorder(m, &nest, order)?;
    if let Some(row) = row {
        step(m, StepKind::Vectorize { target: nest.named(&row), width: Some(lanes) })?;
    }
    Some(())
}

/// Spreads the loops around positions over the workers; whether the nest is such a reduction.
pub(super) fn spread_around(m: &mut LoopModule, n: usize) -> bool {
    let Stmt::For(outer) = &m.body[n] else { return false };
    let found = m.blocks_of(outer.stage).into_iter().map(|b| (iterators(m, b), b.clone())).find(|f| !f.0.is_empty());
    let Some((iterators, block)) = found else { return false };
    let bindings: Vec<ExprId> = block.iters.iter().filter(|i| iterators.contains(&i.var)).map(|i| i.binding).collect();
    let reduced =
        |l: &For| block.iters.iter().any(|i| i.kind == IterKind::Reduce && m.env.pool.uses_var(i.binding, l.var));
    let task = |l: &For| m.env.vars[l.var].name == TASK;
    let (mut around, mut at) = (Vec::new(), outer);
    while task(at) || !bindings.iter().any(|&b| m.env.pool.uses_var(b, at.var)) && !reduced(at) {
        around.push(loop_ref(m, at));
        let [Stmt::For(inner)] = at.body.as_slice() else { break };
        at = inner;
    }
    if around.len() > 1 {
        let target = LoopRef { name: "spread".to_owned(), ..around[0].clone() };
        let loops = around.clone();
        let all = |m: &mut LoopModule| {
            step(m, StepKind::Fuse { loops, name: target.name.clone(), pad: 1 })?;
            step(m, StepKind::Parallel { target: target.clone() })
        };
        if attempt(m, all) {
            return true;
        }
    }
    if let Some(target) = around.first() {
        let _ = step(m, StepKind::Parallel { target: target.clone() });
    }
    true
}
