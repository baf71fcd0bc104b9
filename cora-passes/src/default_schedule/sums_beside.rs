//! Sums over all rows beside elements that are made of the same rows: the gradients of a norm's weights, or of a bias, beside
//! those of what it was applied to.
//!
//! ```text
//! for b { for t { for d { dX[b, t, d] = f(dY[b, t, d], ..) } } };  dw[d] = sum(b, t) dY[b, t, d] * X[b, t, d]
//!   =>  for task { for row of the task { dX of the row };  parts[task, d] = sum(row of the task) .. };  dw[d] = sum(task) parts[task, d]
//! ```
//!
//! The rows of a task are near when their sums are added, so that a pass over them in memory is less. The parts are combined in
//! order, whoever adds them.

use super::epilogues::is_epilogue;
use super::flat::{finds_no_row, lies_as};
use super::nest::{Loop, Nest};
use super::partial_sums::in_parts;
use super::rows_of_elements::{rows_of, rows_of_task};
use super::side_results::{made_of, place};
use super::{attempt, stages, step};
use crate::schedule::tree::substitute;
use cora_ir::affine::normalize;
use cora_ir::loops::{BlockRole, LoopModule, Stmt};
use cora_ir::schedule::{StepKind, Tail};
use cora_ir::{ExprId, Reduction, Role, TensorId, VarId};
use rustc_hash::{FxHashMap, FxHashSet};

/// Rows of a task from which on the parts are little beside what is summed.
const FEWEST_ROWS: i64 = 8;

/// Has such sums computed in parts beside elements.
pub(super) fn sums_beside(m: &mut LoopModule) {
    for host in stages(m).into_iter().rev() {
        attempt(m, |m| beside(m, host));
    }
}

/// What a stage reads, each with its index.
type Reads = Vec<(TensorId, Vec<ExprId>)>;

fn beside(m: &mut LoopModule, host: TensorId) -> Option<()> {
    let nest = Nest::of(m, host).filter(|n| !n.attached && n.block.role == BlockRole::Compute)?;
    if is_epilogue(m, host) || m.env.tensors[host].tuple.is_some() {
        return None;
    }
    let constant = |l: &Loop| m.env.pool.as_int(l.extent);
    let depth = nest.loops.iter().rposition(|l| constant(l).is_none())? + 1;
    let inside: i64 = nest.loops[depth..].iter().filter_map(constant).fold(1, i64::saturating_mul);
    let own: Vec<VarId> = nest.loops[..depth].iter().filter_map(|l| nest.iterator(m, l.var)).collect();
    let plain = nest.block.index.iter().zip(&own).all(|(&e, &v)| m.env.pool.as_var(e) == Some(v));
    let factor = rows_of_task(inside);
    if own.len() != depth || !plain || depth == nest.loops.len() || factor < FEWEST_ROWS {
        return None;
    }
    let rows: Vec<VarId> = nest.loops[..depth].iter().map(|l| l.var).collect();
    if !lies_as(m, &nest.block, &rows) {
        return None;
    }
    let mut reads = nest.reads(m);
    reads.push((host, nest.block.index.clone()));
    let sums: Vec<TensorId> =
        stages(m).into_iter().filter(|&s| is_sum_beside(m, s, (&nest, depth, inside), (&own, &reads))).collect();
    if sums.is_empty() || !in_order(m, host, &sums) {
        return None;
    }
    if !attempt(m, |m| rows_of(m, host)) {
        let row = if depth > 1 { "flat".to_owned() } else { nest.loops[0].name.clone() };
        if depth > 1 {
            let loops = nest.loops[..depth].iter().map(|l| nest.at(l)).collect();
            step(m, StepKind::Fuse { loops, name: row.clone(), pad: 1 })?;
        }
        let (outer, inner) = ("task".to_owned(), "row".to_owned());
        step(m, StepKind::Split { target: nest.named(&row), factor, outer, inner, tail: Tail::Exact })?;
    }
    for s in sums {
        let own = Nest::of(m, s)?;
        let reduced: Vec<Loop> = own.loops.iter().filter(|l| l.reduced).cloned().collect();
        let parts = in_parts(m, &own, &reduced, factor)?;
        join(m, host, parts)?;
    }
    let n = place(m, host)?;
    finds_no_row(m, n).then_some(())
}

/// Whether a stage sums, for few results, terms of all rows of the nest, and reads some of what that reads at its rows, or what
/// it computes.
fn is_sum_beside(
    m: &mut LoopModule,
    stage: TensorId,
    (host, depth, inside): (&Nest, usize, i64),
    (own, reads): (&[VarId], &Reads),
) -> bool {
    let Some(nest) = Nest::of(m, stage).filter(|n| !n.attached) else { return false };
    if !matches!(nest.block.role, BlockRole::Update(Reduction::Op(_))) || !nest.block.predicate.is_empty() {
        return false;
    }
    let (reduced, results): (Vec<&Loop>, Vec<&Loop>) = nest.loops.iter().partition(|l| l.reduced);
    let few = results.iter().try_fold(1_i64, |n, l| n.checked_mul(m.env.pool.as_int(l.extent)?));
    if reduced.len() != depth || few.is_none_or(|n| n < 2 || n > inside) {
        return false;
    }
    let mut map: FxHashMap<VarId, ExprId> = FxHashMap::default();
    for (l, of) in reduced.iter().zip(&host.loops) {
        if m.env.pool.substitute(l.extent, &map) != of.extent {
            return false;
        }
        map.insert(l.var, m.env.pool.var(of.var));
    }
    let terms: Vec<VarId> = reduced.iter().filter_map(|l| nest.iterator(m, l.var)).collect();
    let vars: Vec<VarId> = reduced.iter().map(|l| l.var).collect();
    if terms.len() != depth || !lies_as(m, &nest.block, &vars) {
        return false;
    }
    let pool = &m.env.pool;
    let at = |index: &[ExprId], rows: &[VarId]| {
        index.len() >= rows.len() && index.iter().zip(rows).all(|(&e, &v)| pool.as_var(e) == Some(v))
    };
    let mine = nest.reads(m);
    // What the host computes is there for the rows of the task only.
    let computed = mine.iter().filter(|r| m.env.tensors[r.0].role == Role::Temp || r.0 == host.block.tensor);
    let there = computed.clone().all(|r| at(&r.1, &terms));
    there && mine.iter().any(|r| at(&r.1, &terms) && reads.iter().any(|h| h.0 == r.0 && at(&h.1, own)))
}

/// Whether the sums may be computed where the host is: nothing it is made of reads them, and what they read is there before;
/// what reads them stands after it then.
fn in_order(m: &mut LoopModule, host: TensorId, sums: &[TensorId]) -> bool {
    let Some(here) = place(m, host) else { return false };
    let of_host: FxHashSet<TensorId> = made_of(m, host);
    if sums.iter().any(|s| of_host.contains(s)) {
        return false;
    }
    for &s in sums {
        let Some(own) = place(m, s) else { return false };
        let reads: Vec<TensorId> =
            Nest::of(m, s).map(|n| n.reads(m).into_iter().map(|r| r.0).collect()).unwrap_or_default();
        if own > here && reads.iter().any(|&t| t != host && place(m, t).is_some_and(|p| p > here)) {
            return false;
        }
    }
    // Sums before the host, and what is made of them, go behind it.
    let later: FxHashSet<TensorId> = stages(m)
        .into_iter()
        .filter(|&t| sums.contains(&t) || made_of(m, t).iter().any(|x| sums.contains(x)))
        .collect();
    if later.contains(&host) {
        return false;
    }
    let moves = |s: &Stmt| matches!(s, Stmt::For(l) if later.contains(&l.stage));
    let rest = m.body.split_off(here + 1);
    let (behind, before): (Vec<Stmt>, Vec<Stmt>) = std::mem::take(&mut m.body).into_iter().partition(moves);
    m.body = before.into_iter().chain(behind).chain(rest).collect();
    true
}

/// Puts the parts of a sum beside the rows of the host's tasks, if these are the same.
fn join(m: &mut LoopModule, host: TensorId, parts: TensorId) -> Option<()> {
    let (to, from) = (place(m, host)?, place(m, parts)?);
    let (Stmt::For(task), Stmt::For(part)) = (&m.body[to], &m.body[from]) else { return None };
    let (task, part) = (task.clone(), part.clone());
    if normalize(&mut m.env.pool, task.extent) != normalize(&mut m.env.pool, part.extent) || task.kind != part.kind {
        return None;
    }
    let map = FxHashMap::from_iter([(part.var, m.env.pool.var(task.var))]);
    let mut beside: Vec<Stmt> = part.body.iter().cloned().collect();
    substitute(&mut m.env.pool, &mut beside, &map);
    let mut joined = task;
    joined.body.extend(beside);
    m.body[to] = Stmt::For(joined);
    m.body.remove(from);
    Some(())
}
