//! Rows of elements, with what is computed of each row beside it.
//!
//! ```text
//! M[b, q] = sum(d) X[b, q, d];  Y[b, q, d] = X[b, q, d] - M[b, q]
//!   =>  for task { for row of the task { M of the row; for d { Y of the row } } }
//! ```
//!
//! A row is then read from memory once, where a pass for each stage over the rows of a batch reads it again, and a lone
//! batch has work for all workers. The loops over rows become one, if no row has to be found in it (see `flat`).

use super::contraction::Contraction;
use super::epilogues::is_epilogue;
use super::flat::{finds_no_row, lies_as};
use super::nest::{Loop, Nest};
use super::row_tasks::{computed_from, own_positions};
use super::{TASK_ROWS, attempt, stages, step};
use cora_ir::loops::{BlockRole, LoopModule, Stmt};
use cora_ir::schedule::{StepKind, Tail};
use cora_ir::{TensorId, VarId};

/// Elements of a task.
const TASK_ELEMENTS: i64 = 1 << 13;

/// Gives every result that is computed of its own rows such tasks.
pub(super) fn rows_of_elements(m: &mut LoopModule) {
    for root in stages(m).into_iter().rev() {
        attempt(m, |m| rows_of(m, root));
    }
}

/// Gives the rows of a result such tasks.
pub(super) fn rows_of(m: &mut LoopModule, root: TensorId) -> Option<()> {
    let nest = Nest::of(m, root).filter(|n| !n.attached && n.block.role == BlockRole::Compute)?;
    if is_epilogue(m, root) {
        return None;
    }
    let own = own_positions(m, &nest)?;
    if own.len() != nest.loops.len() || !nest.loops.iter().enumerate().all(|(d, l)| nest.dim_of(m, l.var) == Some(d)) {
        return None;
    }
    let constant = |m: &LoopModule, d: usize| m.env.pool.as_int(nest.loops[d].extent);
    // What is left inside has the same size in each row.
    let least = (0..nest.loops.len()).rev().take_while(|&d| constant(m, d).is_some()).last()?.max(1);
    let depth = (least..nest.loops.len()).rev().find(|&d| {
        let outer: Vec<usize> = (0..d).collect();
        computed_from(m, root, &own, &outer, true).len() > 1
    })?;
    let outer: Vec<usize> = (0..depth).collect();
    let members: Vec<TensorId> =
        computed_from(m, root, &own, &outer, true).into_iter().skip(1).map(|(s, _)| s).collect();
    if members.iter().any(|&s| Contraction::of(m, s).is_some_and(|c| !c.rows.is_empty())) {
        return None;
    }
    // So is what is computed of a row: a task is several.
    let of_constant_size = |&s: &TensorId| {
        let own = Nest::of(m, s)?;
        let row = |l: &Loop| own.dim_of(m, l.var).is_some_and(|d| d < depth);
        Some(own.loops.iter().all(|l| row(l) || m.env.pool.as_int(l.extent).is_some()))
    };
    if !members.iter().all(|s| of_constant_size(s) == Some(true)) {
        return None;
    }
    let inside = (depth..nest.loops.len()).map(|d| constant(m, d).unwrap_or(1)).fold(1, i64::saturating_mul);
    let vars: Vec<VarId> = nest.loops[..depth].iter().map(|l| l.var).collect();
    // What reads no other member reads from memory, in tasks without a pause for what is made of it.
    let first: Vec<TensorId> = members.iter().copied().filter(|&s| !reads_any(m, s, &members)).collect();
    let mut rows = nest.loops[0].name.clone();
    if depth > 1 {
        if !lies_as(m, &nest.block, &vars) {
            return None;
        }
        rows = "flat".to_owned();
        let loops = nest.loops[..depth].iter().map(|l| nest.at(l)).collect();
        step(m, StepKind::Fuse { loops, name: rows.clone(), pad: 1 })?;
    }
    let mut tasks = rows.clone();
    let factor = rows_of_task(inside);
    if factor > 1 {
        let (outer, inner) = ("task".to_owned(), "row".to_owned());
        let target = nest.named(&rows);
        (tasks, rows) = (outer.clone(), inner.clone());
        step(m, StepKind::Split { target, factor, outer, inner, tail: Tail::Exact })?;
    }
    for s in members {
        let at = nest.named(if first.contains(&s) { &tasks } else { &rows });
        step(m, StepKind::ComputeAt { stage: m.env.tensors[s].name.clone(), at })?;
    }
    let n = m.body.iter().position(|s| matches!(s, Stmt::For(l) if l.stage == root))?;
    finds_no_row(m, n).then_some(())
}

/// How many rows of so many elements are a task.
pub(super) fn rows_of_task(elements: i64) -> i64 {
    (TASK_ELEMENTS / elements.max(1)).min(TASK_ROWS)
}

fn reads_any(m: &LoopModule, stage: TensorId, of: &[TensorId]) -> bool {
    let blocks = m.blocks_of(stage);
    of.iter().any(|&t| t != stage && blocks.iter().any(|b| m.env.pool.reads(b.value, t)))
}
