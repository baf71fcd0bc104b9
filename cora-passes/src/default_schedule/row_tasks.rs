//! Tasks of a few rows, where all that is computed of a batch is more than stays near.
//!
//! ```text
//! S[b, q, k] = sum(d) ..;  P[b, q, k] = f(S[b, q, k]);  O[b, q, d] = sum(k) P[b, q, k] * ..
//!   =>  for b { for task in tiles of q { S, P, O of the rows of that tile } }
//! ```
//!
//! So are rows of a contraction without batches, of many columns of a const factor, if only what is reduced over these is left.
//!
//! Beside its readers a batch of a contraction is computed as a whole (see `attach`), since in a tile of rows its other
//! factor would be copied again for each tile. Where the results of a batch may be too many to stay near, rows are split into
//! tasks first, and the stages from that contraction to its last reader, which all have these rows, are attached there. The
//! other factor is copied by a nest of its own (see `contraction`).

use super::attach::{Reader, readers};
use super::constants::is_constant;
use super::contraction::Contraction;
use super::epilogues::is_epilogue;
use super::matches::goes_to_positions;
use super::nest::Nest;
use super::side_results::is_intermediate;
use super::unit_products::{rows_of_task, unit_of};
use super::{Registers, attempt, stages, step};
use crate::schedule::tree::{loop_at, stage_loops};
use cora_ir::intrinsic::Features;
use cora_ir::loops::{For, IterKind, LoopModule, Stmt};
use cora_ir::schedule::{LoopRef, StepKind, Tail};
use cora_ir::{Role, TensorId, VarId};
use rustc_hash::FxHashMap;

/// Elements of a buffer that stay near.
const NEAR: i64 = 1 << 18;
/// Columns of a const factor from which on rows of them are not stored.
const MANY_COLUMNS: i64 = 512;
/// The loop over tiles of rows.
pub(super) const TASK: &str = "task";

/// Where dimensions of a result are in the index of a stage that it is computed from.
pub(super) type Positions = FxHashMap<usize, usize>;

/// Whether a loop is over tiles of rows.
pub(super) fn is_task(l: &LoopRef) -> bool {
    l.name == TASK
}

/// Whether a stage has such a loop of its own.
pub(super) fn has_task(m: &LoopModule, stage: TensorId) -> bool {
    stage_loops(m, stage).iter().any(|p| m.env.vars[loop_at(&m.body, p).var].name == TASK)
}

/// Gives every result whose contractions are too large such tasks.
pub(super) fn row_tasks(m: &mut LoopModule, features: Features) {
    let all = stages(m);
    let large: Vec<Contraction> = all.iter().filter_map(|&s| large(m, s)).collect();
    if large.is_empty() {
        return;
    }
    let batches = large.iter().any(Contraction::has_batches);
    let mut done: Vec<TensorId> = Vec::new();
    for root in all.into_iter().rev() {
        if done.contains(&root) {
            continue;
        }
        let mut members = Vec::new();
        if attempt(m, |m| {
            members = tasks_of(m, root, features, batches)?;
            Some(())
        }) {
            done.extend(members);
        }
    }
}

/// An intermediate contraction whose results in a batch may be too many to stay near.
fn large(m: &LoopModule, stage: TensorId) -> Option<Contraction> {
    let contraction = || Contraction::of(m, stage).filter(|c| in_tasks(m, c));
    let c = (m.env.tensors[stage].role == Role::Temp).then(contraction).flatten()?;
    (c.nest.most(m, c.rows.iter().chain(&c.columns).chain([&c.inner])) > NEAR).then_some(c)
}

/// Whether a contraction is one of batches, or one of many columns of a const factor.
fn in_tasks(m: &LoopModule, c: &Contraction) -> bool {
    c.has_batches() || has_many_columns(m, c)
}

/// Whether it has rows, and many columns of a const factor.
fn has_many_columns(m: &LoopModule, c: &Contraction) -> bool {
    let constant = is_constant(m, c.b.0) && !c.has_batches();
    let many = || m.env.pool.as_int(c.inner.extent).is_some_and(|n| n >= MANY_COLUMNS);
    constant && !c.rows.is_empty() && c.columns.is_empty() && many()
}

/// Whether elements are computed of results of such a contraction.
fn reads_many_columns(m: &LoopModule, stage: TensorId) -> bool {
    let many = |t: TensorId| Contraction::of(m, t).is_some_and(|c| has_many_columns(m, &c));
    Nest::of(m, stage).is_some_and(|n| n.reads(m).iter().any(|r| many(r.0)))
}

/// Whether a stage's columns are only reduced over, as those of logits are that only the maximum and the sum are taken of: by
/// itself, or where elements that are there already (the `known` ones but the first) are computed of it. A contraction that
/// reads them has tiles of its own.
fn is_used_up(m: &mut LoopModule, stage: TensorId, known: &[(TensorId, Positions)]) -> bool {
    let all = readers(m, stage);
    let there = |s: TensorId| known.iter().skip(1).any(|k| k.0 == s) && is_epilogue(m, s);
    let stays = |r: &Reader| {
        let column = r.raw.last().and_then(|&e| m.env.pool.as_var(e));
        r.block.iters.iter().any(|i| Some(i.var) == column && i.kind == IterKind::Spatial)
    };
    all.iter().all(|r| (there(r.block.stage) || !stays(r)) && Contraction::of(m, r.block.stage).is_none())
}

/// Splits the rows of `root` and attaches what it is computed from; gives those stages. Contractions of `batches` are reason
/// enough.
fn tasks_of(m: &mut LoopModule, root: TensorId, features: Features, batches: bool) -> Option<Vec<TensorId>> {
    let nest = Nest::of(m, root).filter(|n| !n.attached)?;
    let own = own_positions(m, &nest)?;
    let all = computed_from(m, root, &own, &[], false);
    let (row, around) = all.iter().find_map(|(s, at)| rows_and_batches(m, *s, at))?;
    let outer = [&around[..], &[row]].concat();
    let members = computed_from(m, root, &own, &outer, false);
    let many = |s: TensorId| Contraction::of(m, s).is_some_and(|c| has_many_columns(m, &c));
    if members.len() == 1 || !batches && !members.iter().skip(1).any(|(s, _)| many(*s)) {
        return None;
    }
    let most = members.iter().filter_map(|(s, at)| columns(m, *s, at, &outer)).max()?;
    let of = |p: usize| nest.loops.iter().find(|l| nest.dim_of(m, l.var) == Some(p)).cloned();
    let (rows, around) = (of(row)?, around.iter().map(|&b| of(b)).collect::<Option<Vec<_>>>()?);
    if nest.most(m, [&rows]).saturating_mul(most) <= NEAR {
        return None;
    }
    let unit = |s: TensorId| unit_of(m, &Contraction::of(m, s)?, |i| features.contain(i));
    let few = match members.iter().find_map(|(s, _)| unit(*s)) {
        Some(unit) => rows_of_task(unit),
        None => Registers::of(m, root, features.vectors()).whole_tiles(),
    };
    let height = if most.saturating_mul(2 * few) <= NEAR { 2 * few } else { few };
    let mut order: Vec<String> = around.iter().map(|l| l.name.clone()).chain([rows.name.clone()]).collect();
    order.extend(nest.loops.iter().map(|l| l.name.clone()).filter(|n| !order.contains(n)).collect::<Vec<_>>());
    super::contraction::reorder(m, &nest, order)?;
    let (outer, inner) = (TASK.to_owned(), "near".to_owned());
    step(m, StepKind::Split { target: nest.at(&rows), factor: height, outer, inner, tail: Tail::Exact })?;
    let task = nest.named(TASK);
    for (s, _) in members.iter().skip(1) {
        let at = row_of_reader(m, *s, &members, row).unwrap_or_else(|| task.clone());
        step(m, StepKind::ComputeAt { stage: m.env.tensors[*s].name.clone(), at })?;
    }
    Some(members.into_iter().map(|(s, _)| s).collect())
}

pub(super) fn own_positions(m: &LoopModule, nest: &Nest) -> Option<Positions> {
    let found: Positions =
        nest.loops.iter().filter(|l| !l.reduced).filter_map(|l| nest.dim_of(m, l.var)).map(|p| (p, p)).collect();
    (!found.is_empty()).then_some(found)
}

/// `root` and the intermediates that only it and one another read, consumers first, at the same positions of all the
/// dimensions in `outer`; a contraction must have batches, or, if
/// `plain`, nothing that several rows share; one of many columns is there only if what is left of it has none. Terms that go to
/// positions are not looked through for those of a few rows.
pub(super) fn computed_from(
    m: &mut LoopModule,
    root: TensorId,
    own: &Positions,
    outer: &[usize],
    plain: bool,
) -> Vec<(TensorId, Positions)> {
    let mut found = vec![(root, own.clone())];
    for s in stages(m).into_iter().rev().filter(|&s| s != root) {
        let Some(at) = positions(m, s, &found) else { continue };
        if is_constant(m, s)
            || !is_intermediate(m, s)
            || goes_to_positions(m, s)
            || Nest::of(m, s).is_none_or(|n| n.attached)
        {
            continue;
        }
        let (own, epilogue) = (Contraction::of(m, s), is_epilogue(m, s));
        let many = |c: &Contraction| has_many_columns(m, c);
        let of_columns = !plain && own.as_ref().map_or_else(|| epilogue && reads_many_columns(m, s), many);
        let fits = |c: &Contraction| c.has_batches() || of_columns || plain && c.rows.is_empty();
        if epilogue && !of_columns || own.is_some_and(|c| !fits(&c)) {
            continue;
        }
        if outer.iter().all(|p| at.contains_key(p)) && (!of_columns || is_used_up(m, s, &found)) {
            found.push((s, at));
        }
    }
    found
}

/// Where a stage has dimensions of the result, if only stages that are `known` read it: where each of them reads the
/// position that it computes.
fn positions(m: &mut LoopModule, stage: TensorId, known: &[(TensorId, Positions)]) -> Option<Positions> {
    let mut common: Option<Positions> = None;
    for r in readers(m, stage) {
        let (_, at) = known.iter().find(|k| k.0 == r.block.stage)?;
        let read = at.iter().filter_map(|(&p, &own)| {
            let v = m.env.pool.as_var(*r.block.index.get(own)?)?;
            let mut same = (0..r.raw.len()).filter(|&j| m.env.pool.as_var(r.raw[j]) == Some(v));
            let j = same.next()?;
            same.next().is_none().then_some((p, j))
        });
        let read: Positions = read.collect();
        match &mut common {
            Some(all) => all.retain(|p, j| read.get(p) == Some(j)),
            None => common = Some(read),
        }
    }
    common
}

/// Of a contraction with batches, which dimensions of the result are its rows and its batches.
fn rows_and_batches(m: &LoopModule, stage: TensorId, at: &Positions) -> Option<(usize, Vec<usize>)> {
    let c = Contraction::of(m, stage).filter(|c| in_tasks(m, c))?;
    let dim = |l: VarId| {
        let own = c.nest.dim_of(m, l)?;
        at.iter().find(|p| *p.1 == own).map(|p| *p.0)
    };
    // Of several, such as the heads that share what they read, the longest.
    let longest = c.rows.iter().max_by_key(|l| c.nest.most(m, [*l]));
    let row = if c.has_batches() { longest } else { c.rows.last() }?;
    let mut batches: Vec<usize> = c.batches.iter().map(|l| dim(l.var)).collect::<Option<_>>()?;
    let others = c.rows.iter().filter(|l| !c.has_batches() && l.var != row.var);
    batches.extend(others.map(|l| dim(l.var)).collect::<Option<Vec<_>>>()?);
    // A result has few columns where it has those of one iteration of a loop over groups of them.
    batches.extend(c.columns.iter().filter_map(|l| dim(l.var)));
    Some((dim(row.var)?, batches))
}

/// How many elements an intermediate contraction has in a row, at most; of one that only contractions read, or that has more
/// of them from row to row, nothing: it has tiles of its own.
fn columns(m: &mut LoopModule, stage: TensorId, at: &Positions, outer: &[usize]) -> Option<i64> {
    let c = Contraction::of(m, stage).filter(|_| m.env.tensors[stage].role == Role::Temp)?;
    let between = readers(m, stage).iter().any(|r| Contraction::of(m, r.block.stage).is_none());
    let slanted = c.rows.iter().any(|r| m.env.pool.uses_var(c.inner.extent, r.var));
    if !between || slanted {
        return None;
    }
    let inside = c.nest.loops.iter().filter(|l| {
        let own = c.nest.dim_of(m, l.var);
        !l.reduced && !outer.iter().any(|p| at.get(p).copied() == own)
    });
    Some(c.nest.most(m, inside))
}

/// The loop over rows of the one stage that reads a stage which is no contraction, if that is none either: a row is near
/// there.
fn row_of_reader(
    m: &mut LoopModule,
    stage: TensorId,
    members: &[(TensorId, Positions)],
    row: usize,
) -> Option<LoopRef> {
    let all = readers(m, stage);
    let reader = all.first()?.block.stage;
    let contraction = |m: &LoopModule, s: TensorId| Contraction::of(m, s).is_some();
    if all.iter().any(|r| r.block.stage != reader) || contraction(m, stage) || contraction(m, reader) {
        return None;
    }
    let (_, at) = members.iter().find(|k| k.0 == reader)?;
    let nest = Nest::of(m, reader)?;
    let iter = m.env.pool.as_var(*nest.block.index.get(*at.get(&row)?)?)?;
    let binding = nest.block.iters.iter().find(|i| i.var == iter)?.binding;
    let inner = nest.loops.iter().rev().find(|l| m.env.pool.uses_var(binding, l.var))?;
    Some(nest.at(inner))
}

/// The loops of a nest down to its tasks, where there are loops between its first one and those.
pub(super) fn down_to_task<'a>(m: &LoopModule, outer: &'a For) -> Option<Vec<&'a For>> {
    let mut loops = vec![outer];
    loop {
        let last = *loops.last()?;
        if m.env.vars[last.var].name == TASK {
            return (loops.len() > 2).then_some(loops);
        }
        let [Stmt::For(inner)] = last.body.as_slice() else { return None };
        loops.push(inner);
    }
}
