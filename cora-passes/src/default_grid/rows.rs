//! Rows that are read several times, as those of a softmax or a norm are: the warp that writes a row reduces it too, so
//! that neither what it reduces to nor what is computed on the way goes through memory.

use super::lanes::{LANES, bind_rows, over_lanes, warp_a_row};
use crate::default_schedule::contraction::names;
use crate::default_schedule::nest::{Loop, Nest, moves_by_one};
use crate::default_schedule::step;
use crate::default_schedule::steps::Steps;
use crate::schedule::readers::element_reads;
use crate::schedule::tree::{Path, add_reads, first_block};
use cora_ir::loops::{Block, BlockRole, LoopModule};
use cora_ir::schedule::StepKind;
use cora_ir::{ExprId, Role, Scope, TensorId, VarId};
use std::collections::BTreeMap;

/// Stages between the reductions are computed again where they are read; more of them are too much.
const MOST_REPEATED: usize = 4;

/// A stage of the group.
struct Member {
    tensor: TensorId,
    nest: Nest,
    /// The position in the row, if it has one element for each; of a reduction the reduced one.
    column: Option<VarId>,
}

impl Member {
    /// The loop that is reduced over.
    fn reduced(&self) -> Option<&Loop> {
        self.nest.loops.iter().find(|l| l.reduced)
    }

    /// Whether it has an element for each position of the row.
    fn is_repeated(&self) -> bool {
        self.column.is_some() && self.reduced().is_none()
    }

    /// Whether what moves along the row goes from neighbour to neighbour.
    fn is_along(&self, m: &LoopModule) -> bool {
        self.column.is_none_or(|c| self.nest.reads(m).iter().all(|r| moves_by_one(m, &r.1, c)))
    }
}

/// Computes what `stage` reads of its own rows beside it, a warp a row.
pub(super) fn rows(m: &mut LoopModule, stage: TensorId) -> Option<()> {
    let nest = Nest::of(m, stage)?;
    let (last, rows) = nest.loops.split_last()?;
    let column = m.env.pool.as_var(*nest.block.index.last()?)?;
    let runs = nest.block.iters.iter().any(|i| i.var == column && m.env.pool.as_var(i.binding) == Some(last.var));
    let short = m.env.pool.constant_bound(last.extent).is_some_and(|n| n < LANES);
    if nest.attached || nest.block.role != BlockRole::Compute || rows.is_empty() || !runs || short {
        return None;
    }
    let group = group(m, Member { tensor: stage, nest, column: Some(column) })?;
    let nest = &group[0].nest;
    let (last, rows) = nest.loops.split_last()?;
    let (repeated, kept): (Vec<&Member>, Vec<&Member>) = group[1..].iter().partition(|x| x.is_repeated());
    let reduces = kept.iter().any(|x| x.reduced().is_some());
    if !reduces || !group.iter().all(|x| x.is_along(m)) {
        return None;
    }
    for x in repeated {
        step(m, StepKind::ComputeInline { stage: x.nest.stage.clone() })?;
    }
    let mut s = Steps { m, stage: nest.stage.clone() };
    warp_a_row(&mut s, &names(rows))?;
    for x in kept {
        let name = &x.nest.stage;
        step(s.m, StepKind::ComputeAt { stage: name.clone(), at: nest.named("warp") })?;
        step(s.m, StepKind::SetScope { stage: name.clone(), scope: Scope::Reg })?;
        if let Some(k) = x.reduced() {
            over_lanes(&mut s.of(name), &k.name, &x.nest.block)?;
        }
    }
    over_lanes(&mut s, &last.name, &nest.block)?;
    bind_rows(&mut s)
}

/// The stage and all temporary ones that it reads at its own row, directly or through such stages, and that nobody else
/// reads: each after its readers. Nothing if too many of them would be repeated.
fn group(m: &LoopModule, first: Member) -> Option<Vec<Member>> {
    let rank = first.nest.block.index.len() - 1;
    let end = first_block(m, first.tensor)?;
    // What the group reads and was not looked at, by its place.
    let mut next: BTreeMap<Path, TensorId> = BTreeMap::new();
    let add_reads = |next: &mut BTreeMap<Path, TensorId>, of: TensorId, before: &Path| {
        for tensor in reads_of(m, of) {
            next.extend(first_block(m, tensor).filter(|p| p < before).map(|p| (p, tensor)));
        }
    };
    add_reads(&mut next, first.tensor, &end);
    let mut group = vec![first];
    let mut repeated = 0;
    while let Some((place, tensor)) = next.pop_last() {
        let reads = |b: &Block| b.stage != tensor && !element_reads(&m.env.pool, b, tensor).is_empty();
        let inside = |b: &&Block| group.iter().any(|x| x.tensor == b.stage);
        let readers: Vec<&Block> = m.blocks_reading(tensor).into_iter().filter(|b| reads(b)).collect();
        if readers.is_empty() || !readers.iter().all(inside) {
            continue;
        }
        let own = |x: &Member| group.iter().all(|r| at_its_row(m, r, x.tensor, rank));
        if let Some(member) = member(m, tensor, rank).filter(own) {
            repeated += usize::from(member.is_repeated());
            if repeated > MOST_REPEATED {
                return None;
            }
            group.push(member);
            add_reads(&mut next, tensor, &place);
        }
    }
    Some(group)
}

/// The tensors that the elements of a stage are computed of.
fn reads_of(m: &LoopModule, stage: TensorId) -> Vec<TensorId> {
    let mut out = Vec::new();
    for b in m.blocks_of(stage) {
        for &e in b.index.iter().chain([&b.value]) {
            add_reads(&m.env.pool, e, &mut out);
        }
    }
    out
}

/// A stage with an element, or a sum, for each row, or with an element for each one of a row.
fn member(m: &LoopModule, tensor: TensorId, rank: usize) -> Option<Member> {
    let nest = Nest::of(m, tensor)?;
    let (block, pool) = (&nest.block, &m.env.pool);
    let reduced: Vec<&Loop> = nest.loops.iter().filter(|l| l.reduced).collect();
    let variables = block.index.iter().all(|&e| pool.as_var(e).is_some());
    if m.env.tensors[tensor].role != Role::Temp || nest.attached || !variables {
        return None;
    }
    let column = match (&block.role, reduced.as_slice(), block.index.len().checked_sub(rank)?) {
        (BlockRole::Compute, [], 0) => None,
        (BlockRole::Compute, [], 1) => Some(pool.as_var(*block.index.last()?)?),
        (BlockRole::Update(_), [k], 0) => Some(block.iters.iter().find(|i| pool.as_var(i.binding) == Some(k.var))?.var),
        _ => return None,
    };
    Some(Member { tensor, nest, column })
}

/// Whether `reader` reads of a tensor nothing but what belongs to its own row, and of a row only its own position.
fn at_its_row(m: &LoopModule, reader: &Member, tensor: TensorId, rank: usize) -> bool {
    let block = &reader.nest.block;
    element_reads(&m.env.pool, block, tensor).iter().all(|(index, _)| {
        let own = |e: &ExprId, d: usize| match block.index.get(d) {
            Some(r) if d < rank => e == r,
            _ => m.env.pool.as_var(*e).is_some() && m.env.pool.as_var(*e) == reader.column,
        };
        index.iter().enumerate().all(|(d, e)| own(e, d))
    })
}
