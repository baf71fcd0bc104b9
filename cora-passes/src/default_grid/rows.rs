//! Rows that are read several times, as those of a softmax or a norm are: the warp that writes a row reduces it too, so that
//! neither what it reduces to nor what is computed on the way goes through memory.

use super::lanes::{LANES, WARPS};
use crate::default_schedule::nest::{Loop, Nest, moves_by_one};
use crate::default_schedule::step;
use crate::schedule::readers::element_reads;
use cora_ir::loops::{Axis, Block, BlockRole, LoopModule};
use cora_ir::schedule::{Binding, LoopRef, StepKind, Tail};
use cora_ir::{ExprId, Role, Scope, TensorId, VarId};

/// Stages between the reductions are computed again where they are read; more of them are too much.
const MOST_REPEATED: usize = 4;

/// A stage of the group.
struct Member {
    tensor: TensorId,
    /// The position in the row, if it has one element for each; of a reduction the reduced one.
    column: Option<VarId>,
    reduces: bool,
    block: Block,
}

/// Computes what `stage` reads of its own rows beside it, a warp a row.
pub(super) fn rows(m: &mut LoopModule, stage: TensorId) -> Option<()> {
    let nest = Nest::of(m, stage)?;
    let (last, spatial) = nest.loops.split_last()?;
    let column = m.env.pool.as_var(*nest.block.index.last()?)?;
    let runs = nest.block.iters.iter().any(|i| i.var == column && m.env.pool.as_var(i.binding) == Some(last.var));
    let short = m.env.pool.constant_bound(last.extent).is_some_and(|n| n < LANES);
    if nest.attached || nest.block.role != BlockRole::Compute || spatial.is_empty() || !runs || short {
        return None;
    }
    let rank = nest.block.index.len() - 1;
    let first = Member { tensor: stage, column: Some(column), reduces: false, block: nest.block.clone() };
    let group = group(m, first, rank)?;
    let (repeated, kept): (Vec<&Member>, Vec<&Member>) =
        group[1..].iter().partition(|x| x.column.is_some() && !x.reduces);
    if repeated.len() > MOST_REPEATED || !kept.iter().any(|x| x.reduces) || !group.iter().all(|x| is_along(m, x)) {
        return None;
    }
    for x in repeated {
        step(m, StepKind::ComputeInline { stage: m.env.tensors[x.tensor].name.clone() })?;
    }
    let row = match spatial {
        [one] => one.name.clone(),
        _ => {
            let loops = spatial.iter().map(|l: &Loop| nest.at(l)).collect();
            step(m, StepKind::Fuse { loops, name: "row".to_owned(), pad: 1 })?;
            "row".to_owned()
        }
    };
    split(m, nest.named(&row), WARPS, ("block", "warp"), Tail::Exact)?;
    for x in kept {
        let name = m.env.tensors[x.tensor].name.clone();
        step(m, StepKind::ComputeAt { stage: name.clone(), at: nest.named("warp") })?;
        step(m, StepKind::SetScope { stage: name.clone(), scope: Scope::Reg })?;
        if x.reduces {
            let own = Nest::of(m, x.tensor)?;
            let k = own.loops.iter().find(|l| l.reduced)?.name.clone();
            over_lanes(m, &name, &k)?;
        }
    }
    over_lanes(m, &nest.stage, &last.name)?;
    bind(m, nest.named("warp"), Axis::ThreadY)?;
    bind(m, nest.named("block"), Axis::BlockX)
}

/// The stage and all temporary ones that it reads at its own row, directly or through such stages, and that nobody else reads:
/// each after its readers.
fn group(m: &LoopModule, first: Member, rank: usize) -> Option<Vec<Member>> {
    let mut group = vec![first];
    let mut stages: Vec<TensorId> = m.blocks().iter().map(|b| b.stage).collect();
    stages.dedup();
    let until = stages.iter().position(|&s| s == group[0].tensor)?;
    for &tensor in stages[..until].iter().rev() {
        let reads = |b: &Block| !element_reads(&m.env.pool, b, tensor).is_empty();
        let inside = |s: TensorId| group.iter().any(|x| x.tensor == s);
        let blocks = m.blocks();
        let readers: Vec<&Block> = blocks.into_iter().filter(|b| b.stage != tensor && reads(b)).collect();
        if readers.is_empty() || !readers.iter().all(|b| inside(b.stage)) {
            continue;
        }
        if let Some(member) = member(m, tensor, rank).filter(|x| group.iter().all(|r| at_its_row(m, r, x, rank))) {
            group.push(member);
        }
    }
    Some(group)
}

/// A stage with an element, or a sum, for each row, or for each element of a row.
fn member(m: &LoopModule, tensor: TensorId, rank: usize) -> Option<Member> {
    let nest = Nest::of(m, tensor)?;
    let (block, pool) = (nest.block.clone(), &m.env.pool);
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
    Some(Member { tensor, column, reduces: matches!(block.role, BlockRole::Update(_)), block })
}

/// Whether `reader` reads of `x` nothing but what belongs to its own row, and of elements only the one of its own position.
fn at_its_row(m: &LoopModule, reader: &Member, x: &Member, rank: usize) -> bool {
    let reads = element_reads(&m.env.pool, &reader.block, x.tensor);
    reads.iter().all(|(index, _)| {
        let own = |e: &ExprId, d: usize| match reader.block.index.get(d) {
            Some(r) if d < rank => e == r,
            _ => m.env.pool.as_var(*e).is_some() && m.env.pool.as_var(*e) == reader.column,
        };
        index.iter().enumerate().all(|(d, e)| own(e, d))
    })
}

/// Whether what moves along the row goes from neighbour to neighbour.
fn is_along(m: &LoopModule, x: &Member) -> bool {
    let Some(column) = x.column else { return true };
    let Some(nest) = Nest::of(m, x.tensor) else { return false };
    nest.reads(m).iter().all(|r| moves_by_one(m, &r.1, column))
}

/// Every 32nd element of a row to a lane of a warp.
fn over_lanes(m: &mut LoopModule, stage: &str, k: &str) -> Option<()> {
    let named = |l: &str| LoopRef { stage: stage.to_owned(), name: l.to_owned() };
    split(m, named(k), LANES, ("steps", "lane"), Tail::Mask)?;
    step(m, StepKind::Reorder { stage: stage.to_owned(), order: vec!["lane".to_owned(), "steps".to_owned()] })?;
    bind(m, named("lane"), Axis::ThreadX)
}

fn split(m: &mut LoopModule, target: LoopRef, factor: i64, (outer, inner): (&str, &str), tail: Tail) -> Option<()> {
    step(m, StepKind::Split { target, factor, outer: outer.to_owned(), inner: inner.to_owned(), tail })
}

fn bind(m: &mut LoopModule, target: LoopRef, axis: Axis) -> Option<()> {
    step(m, StepKind::Bind { target, to: Binding::Axis(axis), atomic: false })
}
