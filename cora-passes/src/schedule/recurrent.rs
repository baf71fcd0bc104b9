//! Recurrences keep the order of their positions.
//!
//! A loop over positions of which some read others is carried: its iterations stay in their order, and everything that is
//! computed there stays inside. Loops that all reads move along with are free of that, and so is, where iterations shall run
//! side by side, what is inside all loops that the reads differ in.
//!
//! What steps would do besides to the stages and results of a recurrence is refused.

use super::determines::determines;
use super::tree::{blocks_in, enclosing, find_loop, loop_at};
use cora_ir::loops::{Block, For, IterKind, LoopModule};
use cora_ir::recurrence::{Place, Read, reads};
use cora_ir::schedule::{LoopRef, StepKind, Tail};
use cora_ir::{Diagnostic, ExprId, Scope, TensorId, VarId};

/// Whether a stage is one of a recurrence.
pub(crate) fn is_recurrent(m: &LoopModule, stage: TensorId) -> bool {
    positions(m, stage).is_some()
}

/// How many of a stage's first dimensions are positions of its recurrence.
pub(crate) fn positions(m: &LoopModule, stage: TensorId) -> Option<usize> {
    m.env.recurrent.iter().find(|r| r.0 == stage).map(|r| r.1)
}

/// Whether a step leaves the recurrences of a module what they are.
///
/// # Errors
/// `E0499` it may not.
pub(super) fn check(m: &LoopModule, kind: &StepKind) -> Result<(), Diagnostic> {
    if m.env.recurrent.is_empty() {
        return Ok(());
    }
    let recurrent = |name: &String| m.env.tensor_named(name).is_some_and(|t| is_recurrent(m, t));
    let named: Vec<String> = kind.clone().stages_mut().into_iter().map(|n| n.clone()).collect();
    if !named.iter().any(recurrent) {
        return Ok(());
    }
    match kind {
        StepKind::Split { tail: Tail::Exact | Tail::Mask, .. } | StepKind::Fuse { .. } | StepKind::Unroll { .. } => {
            Ok(())
        }
        StepKind::SplitDim { .. }
        | StepKind::FuseDims { .. }
        | StepKind::ReorderDims { .. }
        | StepKind::PadDim { .. }
        | StepKind::StorageAlign { .. } => Ok(()),
        StepKind::ComputeAt { stage, .. } if !recurrent(stage) => Ok(()),
        StepKind::CacheWrite { stage, at, scope, .. }
            if recurrent(stage) && recurrent(&at.stage) && *scope != Scope::Global =>
        {
            let path = find_loop(m, at)?;
            let l = loop_at(&m.body, &path);
            let around: Vec<&For> = enclosing(&m.body, &path).into_iter().chain([l]).collect();
            earlier_around(m, l, &around).then_some(()).ok_or_else(|| {
                let d = carried(at);
                d.note("what is written there is copied only after they are read")
            })
        }
        StepKind::CacheRead { stage, tensor, .. } | StepKind::Pack { stage, tensor, .. }
            if !recurrent(stage) || !recurrent(tensor) =>
        {
            Ok(())
        }
        StepKind::Parallel { target }
        | StepKind::Vectorize { target, .. }
        | StepKind::Bind { target, .. }
        | StepKind::Remap { target, .. } => {
            let path = find_loop(m, target)?;
            let l = loop_at(&m.body, &path);
            side_by_side(m, l, &enclosing(&m.body, &path)).then_some(()).ok_or_else(|| carried(target))
        }
        StepKind::Reorder { stage, order } => reorder(m, stage, order),
        _ => {
            let name = named.iter().find(|&n| recurrent(n)).cloned().unwrap_or_default();
            let d = Diagnostic::new("E0499", format!("`{name}` is computed by a recurrence, which has no such step"));
            Err(d.hint(
                "its loops can be split, fused, reordered, unrolled, made vectors and parallel, and bound; other stages can be \
                 computed at them, and inputs copied",
            ))
        }
    }
}

/// What a step made of a stage of a recurrence is one too.
///
/// # Errors
/// `E0499` it has other positions.
pub(super) fn made(m: &mut LoopModule, kind: &StepKind) -> Result<(), Diagnostic> {
    if let StepKind::CacheWrite { stage, name, .. } = kind
        && let (Some(of), Some(new)) = (m.env.tensor_named(stage), m.env.tensor_named(name))
        && let Some(count) = positions(m, of)
    {
        m.env.recurrent.push((new, count));
        let at = |b: &Block| -> Vec<&str> { own_vars(m, b).into_iter().map(|v| m.env.vars[v].name.as_str()).collect() };
        let blocks: Vec<Vec<&str>> = [of, new].iter().flat_map(|&s| m.blocks_of(s)).map(at).collect();
        if blocks.iter().any(|b| b.len() < count || *b != blocks[0]) {
            let d = Diagnostic::new(
                "E0499",
                format!("`{name}` would not be written at the positions of `{stage}`'s recurrence"),
            );
            return Err(
                d.hint("write it at a loop inside those over the positions, with none that is reduced over around it")
            );
        }
    }
    Ok(())
}

fn carried(target: &LoopRef) -> Diagnostic {
    let what = format!(
        "loop `{}.{}` is one of a recurrence: an iteration reads results of earlier ones",
        target.stage, target.name
    );
    Diagnostic::new("E0499", what).hint(
        "its iterations stay in their order, with those of loops that it was fused with; loops over dimensions along which \
         nothing is read before, and those inside the positions, are free",
    )
}

/// The blocks of recurrences inside a loop.
fn blocks<'a>(m: &LoopModule, l: &'a For) -> Vec<&'a Block> {
    blocks_in(&l.body).into_iter().map(|b| b.0).filter(|b| is_recurrent(m, b.stage)).collect()
}

/// What a block reads of recurrences, and where; buffers are what an iteration has for itself.
fn reads_in(m: &LoopModule, b: &Block) -> Vec<Read> {
    let shared = |r: &&(TensorId, usize)| m.env.tensors[r.0].scope == Scope::Global;
    let tensors: Vec<TensorId> = m.env.recurrent.iter().filter(shared).map(|r| r.0).collect();
    let vars: Vec<(VarId, ExprId)> = b.iters.iter().map(|i| (i.var, i.extent)).collect();
    reads(&m.env, b.value, &tensors, &vars, &own_vars(m, b))
}

/// The iterators that a block's own positions are: they come first, also where it writes a buffer.
fn own_vars(m: &LoopModule, b: &Block) -> Vec<VarId> {
    let count = positions(m, b.stage).unwrap_or(0);
    b.iters.iter().filter(|i| i.kind == IterKind::Spatial).map(|i| i.var).take(count).collect()
}

/// The iterators that a loop moves, of a block.
fn moved(m: &LoopModule, b: &Block, l: &For) -> Vec<VarId> {
    b.iters.iter().filter(|i| m.env.pool.uses_var(i.binding, l.var)).map(|i| i.var).collect()
}

/// Whether all that is read of recurrences inside a loop is of the iteration itself: every reader has the same for its own in
/// all positions that the loop moves, or in some that say which iteration it is.
pub(crate) fn is_free(m: &LoopModule, l: &For) -> bool {
    moves_along(m, l) || says_which(m, l)
}

/// Whether every reader has the same for its own in all positions that a loop moves.
fn moves_along(m: &LoopModule, l: &For) -> bool {
    let all = blocks(m, l);
    let shared = shared_positions(m, &all);
    all.iter().all(|b| {
        let own = own_vars(m, b);
        moved(m, b, l).into_iter().all(|v| own.iter().position(|&o| o == v).is_some_and(|p| shared.contains(&p)))
    })
}

/// Whether the positions that every reader has for its own say which iteration of a loop it is.
fn says_which(m: &LoopModule, l: &For) -> bool {
    let shared = shared_positions(m, &blocks(m, l));
    if shared.is_empty() {
        return false;
    }
    let mut env = m.env.clone();
    blocks_in(&l.body).into_iter().filter(|(b, _)| is_recurrent(m, b.stage)).all(|(b, inside)| {
        let own = own_vars(m, b);
        let binding = |&p: &usize| b.iters.iter().find(|i| i.var == own[p]).map(|i| i.binding);
        let values: Vec<ExprId> = shared.iter().filter_map(binding).collect();
        let moving: Vec<(VarId, ExprId)> = std::iter::once(l).chain(inside).map(|l| (l.var, l.extent)).collect();
        determines(&mut env, &values, &moving, l.var)
    })
}

/// The positions in which all that the blocks read of recurrences is at their own index.
fn shared_positions(m: &LoopModule, all: &[&Block]) -> Vec<usize> {
    let count = all.iter().map(|b| own_vars(m, b).len()).min().unwrap_or(0);
    let mut shared: Vec<usize> = (0..count).collect();
    for b in all {
        let own = own_vars(m, b);
        for read in reads_in(m, b) {
            shared.retain(|&p| read.index.get(p).and_then(|&e| m.env.pool.as_var(e)) == Some(own[p]));
        }
    }
    shared
}

/// Whether what is read of recurrences inside a loop may be of its earlier iterations.
fn is_carried(m: &LoopModule, l: &For) -> bool {
    let inside: Vec<TensorId> = blocks(m, l).into_iter().map(|b| b.tensor).collect();
    blocks(m, l).into_iter().any(|b| {
        let own = own_vars(m, b);
        reads_in(m, b).iter().any(|r| match &r.place {
            Place::Same => false,
            Place::Before(first) => first.iter().any(|&p| moved(m, b, l).contains(&own[p])),
            Place::Unknown => inside.contains(&r.tensor),
        })
    })
}

/// Whether iterations of a loop can run side by side: what they read of one another's is computed in iterations of loops
/// around.
fn side_by_side(m: &LoopModule, l: &For, around: &[&For]) -> bool {
    earlier_around(m, l, around) || is_free(m, l)
}

/// Whether all that is read inside a loop, but what is written beside it before, is of earlier iterations of loops `around`.
fn earlier_around(m: &LoopModule, l: &For, around: &[&For]) -> bool {
    let inside: Vec<TensorId> = blocks(m, l).into_iter().map(|b| b.tensor).collect();
    blocks(m, l).into_iter().all(|b| {
        let own = own_vars(m, b);
        let around = |&p: &usize| {
            let binding = b.iters.iter().find(|i| i.var == own[p]).map(|i| i.binding);
            let vars = binding.map(|e| m.env.pool.vars_of(e)).unwrap_or_default();
            !vars.is_empty() && vars.iter().all(|v| around.iter().any(|o| o.var == *v))
        };
        reads_in(m, b).iter().all(|r| match &r.place {
            Place::Before(first) => first.iter().all(around),
            // Of the same position, also of one that has other coordinates farther inside.
            Place::Same | Place::Unknown => !inside.contains(&r.tensor),
        })
    })
}

/// Loops that are carried keep their places among those that are not free of them.
fn reorder(m: &LoopModule, stage: &str, order: &[String]) -> Result<(), Diagnostic> {
    let at = |name: &String| find_loop(m, &LoopRef { stage: stage.to_owned(), name: name.clone() });
    let paths = order.iter().map(at).collect::<Result<Vec<_>, _>>()?;
    let Some(last) = paths.iter().max_by_key(|p| p.len()) else { return Ok(()) };
    let innermost = loop_at(&m.body, last);
    let old: Vec<&For> = enclosing(&m.body, last).into_iter().chain([innermost]).collect();
    let named: Vec<VarId> = paths.iter().map(|p| loop_at(&m.body, p).var).collect();
    let mut next = named.iter();
    let mut new = Vec::new();
    for l in &old {
        new.push(if named.contains(&l.var) { *next.next().unwrap_or(&l.var) } else { l.var });
    }
    let place = |v: VarId| new.iter().position(|&n| n == v);
    for (n, x) in old.iter().enumerate() {
        for y in old[n + 1..].iter().filter(|y| !is_free(m, x) && !is_free(m, y)) {
            if place(x.var) > place(y.var) && (is_carried(m, x) || is_carried(m, y)) {
                let name = m.env.vars[x.var].name.clone();
                return Err(carried(&LoopRef { stage: stage.to_owned(), name }));
            }
        }
    }
    Ok(())
}
