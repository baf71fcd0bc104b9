//! Scheduling primitives: each a check of facts, then a rewrite of the loop dialect.

pub mod atomic;
pub mod bind;
pub mod bulk_copy;
pub mod cache_read;
pub mod cache_write;
pub mod compute_at;
pub mod compute_inline;
pub mod conditions;
pub(crate) mod defined;
mod determines;
pub mod double_buffer;
mod filled;
mod formula;
pub mod fuse;
pub mod fuse_dims;
pub mod hfuse;
pub mod hoist_loads;
mod independent;
pub mod inits;
pub(crate) mod inner_sum;
mod key_parts;
mod key_rows;
mod layout_dims;
mod mirrored;
pub mod offload;
pub mod op_split;
mod overwrites;
pub mod pack;
pub mod pad_dim;
pub mod pad_loop;
mod padded_reads;
pub mod parallel;
pub(crate) mod parts;
pub mod peel;
mod positions;
pub mod precompute;
pub mod prefetch;
mod read_ranges;
pub(crate) mod readers;
pub(crate) mod recurrent;
pub mod region;
pub mod relax;
mod relax_reduced;
pub mod remap;
pub mod reorder;
pub mod reorder_dims;
pub(crate) mod results;
pub mod rfactor;
pub(crate) mod serial_loop;
pub mod set_scope;
mod slots;
mod solved;
pub mod split;
pub mod split_dim;
pub mod storage_align;
pub mod swizzle;
pub mod tensorize;
pub mod tile;
pub mod tree;
pub mod unroll;
pub mod vectorize;
pub(crate) mod windows;

use cora_ir::ids::Arena;
use cora_ir::loops::{LoopModule, Stmt};
use cora_ir::schedule::{DimRef, LayoutDim, PackDim, Schedule, Step, StepKind};
use cora_ir::{Diagnostic, Tensor, TensorId, TensorSet};
use rustc_hash::FxHashSet;

/// Greatest factor and number of pieces that loops are divided by.
pub const MAX_FACTOR: i64 = 1 << 31;
/// Greatest number of nodes of an extent, binding or predicate, written out as a tree.
const MAX_INDEX_SIZE: u64 = 2_000;
/// Greatest multiple that loops and dimensions are padded to: the surplus runs, or is stored.
pub const MAX_PADDING: i64 = 1 << 16;

/// The position of a dimension of a tensor as the tensor is now; what a step attached has its loop's name besides the
/// program's.
///
/// # Errors
/// `E0470` there is none of that name or position.
fn dimension(m: &LoopModule, tensor: TensorId, dim: &DimRef) -> Result<usize, Diagnostic> {
    let Tensor { name, dims, .. } = &m.env.tensors[tensor];
    let found = match dim {
        DimRef::At(position) => (*position < dims.len()).then_some(*position),
        DimRef::Named(name) => {
            let also = || dims.iter().position(|d| d.also.as_ref() == Some(name));
            dims.iter().position(|d| d.name == *name).or_else(also)
        }
    };
    found.ok_or_else(|| {
        let names: Vec<&str> = dims.iter().map(|d| d.name.as_str()).collect();
        let hint = if names.is_empty() {
            "it has one element there: take the step away, or do it before the stage is attached".to_owned()
        } else {
            format!("its dimensions are: {}", names.join(", "))
        };
        Diagnostic::new("E0470", format!("tensor `{name}` has no dimension `{dim}`")).hint(hint)
    })
}

/// The tensor called `name`.
///
/// # Errors
/// `E0463` there is none.
fn tensor_called(m: &LoopModule, name: &str) -> Result<TensorId, Diagnostic> {
    m.env.tensor_named(name).ok_or_else(|| {
        Diagnostic::new("E0463", format!("there is no tensor `{name}`"))
            .hint("name a tensor of the program or of an earlier step")
    })
}

/// Applies one step. On an error the module is unchanged.
///
/// # Errors
/// The primitive's own, with the step's span.
pub fn apply_step(m: &mut LoopModule, step: &Step) -> Result<(), Diagnostic> {
    let copies = parts::for_each_part(m, &step.kind).map_err(|d| d.at(step.span))?;
    let kinds = copies.unwrap_or_else(|| vec![step.kind.clone()]);
    let (saved, known) = ((m.body.clone(), m.env.tensors.clone()), m.env.recurrent.len());
    // Steps that change what is known of loops may have done so before they are refused.
    let marks = matches!(step.kind, StepKind::HoistLoads { .. } | StepKind::CacheWrite { .. });
    let marked = marks.then(|| m.env.vars.clone());
    for kind in &kinds {
        let outcome = apply_kind(m, kind).and_then(|()| check(m, (&saved.0, &saved.1)));
        if let Err(d) = outcome.and_then(|()| recurrent::made(m, kind)) {
            m.env.recurrent.truncate(known);
            (m.body, m.env.tensors) = saved;
            if let Some(vars) = marked {
                m.env.vars = vars;
            }
            return Err(d.at(step.span));
        }
    }
    Ok(())
}

/// What holds for every module holds after the step too. Where proofs are needed only what the step changed is looked at.
fn check(m: &LoopModule, before: (&[Stmt], &Arena<TensorId, Tensor>)) -> Result<(), Diagnostic> {
    let nests = changed(m, before);
    check_sizes(m, &nests)?;
    prefetch::check(m, &nests)?;
    independent::check_spread(m, &nests)?;
    atomic::check(m, &nests)
}

/// The nests that are not as they were, and those with tensors whose place is not or that such nests write.
fn changed<'a>(m: &'a LoopModule, (nests, tensors): (&[Stmt], &Arena<TensorId, Tensor>)) -> Vec<&'a Stmt> {
    let front = m.body.iter().zip(nests).take_while(|(new, old)| new == old).count();
    let back =
        m.body[front..].iter().rev().zip(nests[front..].iter().rev()).take_while(|(new, old)| new == old).count();
    let (old, new) = (front..nests.len() - back, front..m.body.len() - back);
    let same = |n: usize| !new.contains(&n) || nests[old.clone()].contains(&m.body[n]);
    let rest: Vec<usize> = (0..m.body.len()).filter(|&n| !same(n)).collect();
    let moved = |(t, now): &(TensorId, &Tensor)| {
        tensors.get(*t).is_some_and(|was| (was.scope, was.role) != (now.scope, now.role))
    };
    let others: FxHashSet<TensorId> = m.env.tensors.iter().filter(moved).map(|(t, _)| t).collect();
    let written: FxHashSet<TensorId> = rest.iter().flat_map(|&n| tree::writes_below(&m.body[n..=n])).collect();
    let reads_others = |s: &Stmt| others.iter().any(|&t| tree::reads(&m.env.pool, s, t));
    let writes = |t: &TensorId| others.contains(t) || written.contains(t);
    let may_be: TensorSet = others.iter().chain(&written).map(|&t| TensorSet::of(t)).collect();
    let uses = |n: usize| {
        let mut found = reads_others(&m.body[n]);
        if !found && m.body[n].concerned().meets(may_be) {
            m.body[n].walk(&mut |s| found = found || matches!(s, Stmt::Block(b) if writes(&b.tensor)));
        }
        found
    };
    (0..m.body.len()).filter(|&n| rest.contains(&n) || uses(n)).map(|n| &m.body[n]).collect()
}

/// Every extent, binding and predicate is small enough to be walked, proved about and written out.
///
/// # Errors
/// `E0414` one is not.
fn check_sizes(m: &LoopModule, nests: &[&Stmt]) -> Result<(), Diagnostic> {
    let mut memo = rustc_hash::FxHashMap::default();
    let mut most = 0;
    for s in nests {
        s.walk(&mut |s| {
            for e in tree::steering(s) {
                most = most.max(m.env.pool.measure_memo(e, &mut memo).1);
            }
        });
    }
    if most <= MAX_INDEX_SIZE {
        return Ok(());
    }
    Err(Diagnostic::new("E0414", format!("after this step an index would take {most} operations"))
        .note(format!("at most {MAX_INDEX_SIZE}; each change of order or fusion of loops that were changed before puts one expression into another"))
        .hint("change the order of a loop once, and fuse fewer loops that are themselves fused"))
}

fn apply_kind(m: &mut LoopModule, kind: &StepKind) -> Result<(), Diagnostic> {
    recurrent::check(m, kind)?;
    match kind {
        StepKind::Split { target, factor, outer, inner, tail } => {
            split::split_step(m, target, *factor, (outer, inner), *tail)
        }
        StepKind::Fuse { loops, name, pad } => fuse::fuse(m, loops, name, *pad),
        StepKind::Reorder { stage, order } => reorder::reorder(m, stage, order),
        StepKind::Vectorize { target, width } => vectorize::vectorize(m, target, *width),
        StepKind::Unroll { target } => unroll::unroll(m, target),
        StepKind::Parallel { target } => parallel::parallel(m, target),
        StepKind::Bind { target, to, atomic } => bind::bind(m, target, *to, *atomic),
        StepKind::PadLoop { target, multiple } => pad_loop::pad_loop(m, target, *multiple),
        StepKind::PadLoopTo { target, extent } => pad_loop::pad_loop_to(m, target, extent),
        StepKind::PadDim { tensor, dim, multiple } => pad_dim::pad_dim(m, tensor, dim, *multiple),
        StepKind::SplitDim { tensor, dim, factor, outer, inner } => {
            split_dim::split_dim(m, tensor, dim, *factor, (outer, inner))
        }
        StepKind::FuseDims { tensor, dims, name } => fuse_dims::fuse_dims(m, tensor, dims, name),
        StepKind::ReorderDims { tensor, order } => reorder_dims::reorder_dims(m, tensor, order),
        StepKind::ComputeAt { stage, at } => compute_at::compute_at(m, stage, at),
        StepKind::ComputeInline { stage } => compute_inline::compute_inline(m, stage),
        StepKind::Precompute { stage, tensor, name } => precompute::precompute(m, stage, tensor, name),
        StepKind::CacheWrite { stage, name, scope, at } => cache_write::cache_write(m, stage, name, *scope, at),
        StepKind::CacheRead { stage, tensor, name, scope, at, layout, access } => {
            let source = tensor_called(m, tensor)?;
            let dim = |l: &LayoutDim| Ok(LayoutDim { dim: dimension(m, source, &l.dim)?, part: l.part });
            let layout: Vec<LayoutDim<usize>> = layout.iter().map(dim).collect::<Result<_, _>>()?;
            let (scope, layout, access) = (*scope, &layout, *access);
            cache_read::cache_read(m, &cache_read::CacheRead { stage, tensor, name, scope, at, layout, access })
        }
        StepKind::Pack { stage, tensor, name, scope, at, tiles, access } => {
            let source = tensor_called(m, tensor)?;
            let dim = |t: &PackDim| Ok(PackDim { dim: dimension(m, source, &t.dim)?, size: t.size });
            let tiles: Vec<PackDim<usize>> = tiles.iter().map(dim).collect::<Result<_, _>>()?;
            let (scope, tiles, access) = (*scope, &tiles, *access);
            pack::pack(m, &pack::Pack { stage, tensor, name, scope, at, tiles, access })
        }
        StepKind::HoistLoads { target, on } => hoist_loads::hoist_loads(m, target, *on),
        StepKind::SetScope { stage, scope } => set_scope::set_scope(m, stage, *scope),
        StepKind::Rfactor { target, name } => rfactor::rfactor(m, target, name),
        StepKind::Relax { target, zero } => relax::relax(m, target, *zero),
        StepKind::Remap { target, policy } => remap::remap(m, target, policy),
        StepKind::OpSplit { points } => op_split::op_split(m, points),
        StepKind::Hfuse { loops, name } => hfuse::hfuse(m, loops, name),
        StepKind::Tile { stage, loops, names } => tile::tile(m, stage, loops, names),
        StepKind::Tensorize { target, intrinsic } => tensorize::tensorize(m, target, *intrinsic),
        StepKind::Offload { target } => offload::offload(m, target),
        StepKind::BulkCopy { target } => bulk_copy::bulk_copy(m, target),
        StepKind::Swizzle { tensor } => swizzle::swizzle(m, tensor),
        StepKind::Prefetch { stage, tensor, at, inside, distance, locality } => {
            prefetch::prefetch(m, stage, tensor, (at, inside.as_ref()), (*distance, *locality))
        }
        StepKind::DoubleBuffer { stage, slots } => double_buffer::double_buffer(m, stage, *slots),
        StepKind::StorageAlign { tensor, dim, multiple, offset } => {
            storage_align::storage_align(m, tensor, dim, *multiple, *offset)
        }
        StepKind::Peel { target, few } => peel::peel(m, target, *few),
    }
}

/// Applies every step of a schedule; `observe` sees the module after each.
///
/// # Errors
/// The first step's that is refused.
pub fn apply_schedule(
    m: &mut LoopModule,
    schedule: &Schedule,
    observe: &mut dyn FnMut(usize, &Step, &LoopModule),
) -> Result<(), Diagnostic> {
    for (n, step) in schedule.steps.iter().enumerate() {
        apply_step(m, step)?;
        observe(n, step, m);
    }
    Ok(())
}
