//! Results beside others that are made of the same: a row's mean beside its norm, the logarithm of a softmax's sum beside the
//! products with it.
//!
//! ```text
//! for b { for t { mean[b, t] = sum(d) X[b, t, d] / D } };  for b { for t { for d { Y[b, t, d] = X[b, t, d] - mean[b, t] } } }
//!   =>  for task { for row of the task { mean of the row; for d { Y of the row } } }
//! ```
//!
//! The rules attach, and take together, what a later stage reads. So a result that a later one reads at its own positions is an
//! intermediate to them, and one that nobody reads is read in a mark (see `schedule/results.rs`), until they are through, by a
//! stage that is made of the same intermediates.

use super::constants::is_constant;
use super::contraction::Contraction;
use super::epilogues::is_epilogue;
use super::nest::Nest;
use super::stages;
use crate::schedule::results::{ask_for, companion, reads_whole, without_marks};
use cora_ir::loops::{Block, BlockRole, IterKind, LoopModule, Stmt};
use cora_ir::{Expr, Role, Scope, TensorId, VarId};
use rustc_hash::{FxHashMap, FxHashSet};

/// Whether what is computed may be attached where it is read.
pub(super) fn is_intermediate(m: &mut LoopModule, t: TensorId) -> bool {
    match m.env.tensors[t].role {
        Role::Temp => true,
        Role::Output => {
            let readers: Vec<Block> = m.blocks_reading(t).into_iter().filter(|b| b.stage != t).cloned().collect();
            readers.iter().any(|b| {
                // A sum of products goes through what it reads in tiles that are tasks; another reduction would be one for all.
                let products = Contraction::of(m, b.stage).is_some_and(|c| c.has_batches());
                let kinds = if products { &[IterKind::Spatial, IterKind::Reduce][..] } else { &[IterKind::Spatial] };
                // Rows of any length would each be one task, where elements are many.
                let elements = b.role == BlockRole::Compute && b.index.len() == m.env.tensors[t].dims.len();
                !(elements && is_long(m, t)) && reads_whole(m, t, b, kinds)
            })
        }
        _ => false,
    }
}

/// Whether the last dimension has no constant size.
fn is_long(m: &LoopModule, t: TensorId) -> bool {
    m.env.tensors[t].dims.last().is_some_and(|d| m.env.pool.as_int(d.extent).is_none())
}

/// Has results that nobody reads be read by others, in marks that name the variable, if there are such results.
pub(super) fn ask_for_results(m: &mut LoopModule) -> Option<VarId> {
    let mut asked = None;
    for result in stages(m) {
        if is_plain(m, result)
            && let Some((block, iters)) = beside_another(m, result)
        {
            let asked = *asked.get_or_insert_with(|| m.env.new_var("asked"));
            ask_for(m, result, (&block, &iters), asked);
        }
    }
    asked
}

/// Takes the marks out of the module and out of other nests.
pub(super) fn forget(m: &mut LoopModule, nests: &mut FxHashMap<TensorId, Stmt>, asked: VarId) {
    let LoopModule { env, body, .. } = m;
    for s in body.iter_mut().chain(nests.values_mut()) {
        s.blocks_mut(&mut |b| b.value = without_marks(&mut env.pool, b.value, asked));
    }
}

/// Whether it is a result that nobody reads, with a nest of its own that has no tiles of registers.
fn is_plain(m: &LoopModule, result: TensorId) -> bool {
    let t = &m.env.tensors[result];
    let whole = t.role == Role::Output && t.tuple.is_none() && t.layout.is_empty() && t.scope == Scope::Global;
    let unread = || !m.blocks_reading(result).iter().any(|b| m.env.pool.reads(b.value, result));
    let alone = || Nest::of(m, result).is_some_and(|n| !n.attached && !n.loops.is_empty());
    whole && unread() && alone() && Contraction::of(m, result).is_none() && !is_epilogue(m, result)
}

/// The block of the largest stage of elements that has all of its dimensions and is made of an intermediate of which it is made,
/// and its iterators for these; the result's nest, with what it is made of, stands before that stage's then.
fn beside_another(m: &mut LoopModule, result: TensorId) -> Option<(Block, Vec<VarId>)> {
    let mine = made_of(m, result);
    let here = place(m, result)?;
    let rank = |m: &LoopModule, t: TensorId| m.env.tensors[t].dims.len();
    let mut found: Option<(usize, Block, Vec<VarId>)> = None;
    for host in stages(m).into_iter().filter(|&s| s != result) {
        let size = rank(m, host);
        // Of two of one size the first is made beside the second.
        let above = size > rank(m, result) || size == rank(m, result) && !is_long(m, result) && place(m, host)? > here;
        let larger = found.as_ref().is_none_or(|f| size >= f.0);
        let naive = Nest::of(m, host).is_some_and(|n| !n.attached && n.block.role == BlockRole::Compute);
        if !above || !larger || !naive || mine.contains(&host) {
            continue;
        }
        let theirs = made_of(m, host);
        if !theirs.is_disjoint(&mine)
            && !theirs.contains(&result)
            && let Some((block, iters)) = companion(m, result, host)
        {
            found = Some((size, block, iters));
        }
    }
    let (_, block, iters) = found?;
    let there = place(m, block.stage)?;
    // With what it is made of, none of which reads the host; constants are made of constants.
    if there < here {
        let moves = |s: &Stmt| matches!(s, Stmt::For(l) if l.stage == result || mine.contains(&l.stage) || is_constant(m, l.stage));
        let first: Vec<bool> = m.body[there..].iter().map(moves).collect();
        let nests = m.body.split_off(there).into_iter().zip(first);
        let (before, after): (Vec<_>, Vec<_>) = nests.partition(|n| n.1);
        m.body.extend(before.into_iter().chain(after).map(|n| n.0));
    }
    Some((block, iters))
}

/// Where the nest of a stage is.
pub(super) fn place(m: &LoopModule, stage: TensorId) -> Option<usize> {
    m.body.iter().position(|s| matches!(s, Stmt::For(l) if l.stage == stage))
}

/// The stages that a stage reads, and those that these read.
pub(super) fn made_of(m: &LoopModule, stage: TensorId) -> FxHashSet<TensorId> {
    let (mut seen, mut next) = (FxHashSet::default(), vec![stage]);
    while let Some(t) = next.pop() {
        for b in m.blocks_of(t) {
            m.env.pool.walk(b.value, &mut |_, n| {
                if let Expr::Load { tensor, .. } = n
                    && *tensor != t
                    && matches!(m.env.tensors[*tensor].role, Role::Temp | Role::Output)
                    && !is_constant(m, *tensor)
                    && seen.insert(*tensor)
                {
                    next.push(*tensor);
                }
            });
        }
    }
    seen
}
