//! `compute_at P at S.i`: a producer is computed inside its consumer's loop, just the region that
//! one iteration reads, into a local buffer.
//!
//! The region is inferred backwards: each read's index, through the reader's bindings, over the
//! loops inside `i`. Where that is a box (a range in each dimension), the new nest runs over the
//! box. Where it is not (a tile of a fused loop covers parts of several rows) and each reader reads
//! one element an iteration, all the same ones in the same order, the new nest copies a reader's own loops and the
//! buffer is indexed by them; where readers differ it runs over the positions that they read (`positions`). So it does
//! where two dimensions' indices depend on one loop, whether or not the constants at hand make that a box. What is read
//! whole, rows of one position of the dimensions around, is run through as it is; of parts of several rows in an order of
//! their own (halves, rows from their end) each iteration's element is computed for it, or its few (`mirrored`). So it is
//! where readers gather, at positions that other tensors give, if these are fewer than the elements of the whole.
//!
//! Loops and dimensions have the names that the form gives them, and where a dimension and a loop of the reader correspond
//! also those that the other form would: which form it is may depend on the program's constants, and schedules need
//! not. For the same reason a loop of the reader with one iteration still has its loop.
//!
//! Requires: a producer whose own loops are not scheduled yet, every reader inside the loop.
//! Ensures: the same values; the tensor's scope is `local`; its loops can be scheduled afterwards.

use super::compute_inline::guard_loads;
use super::inits::place_init;
use super::mirrored::{build_pointwise, few_each, mirrored_extents, pointwise};
use super::padded_reads::guard_padded_reads;
use super::positions::build_positions;
use super::read_ranges::{Range, Spans, clipped, indices, range_of_dim, spanned};
use super::readers::{Access, Reader, collect_readers, element_reads, mark_conditional, read_whole, shared_mask};
use super::region::bound_above;
use super::results::{ask_for, ask_in, ask_no_more, companion, reads_whole, without_marks};
use super::slots::wrap;
use super::tree::{
    Path, body_at_mut, find_loop, find_stage, is_reduction_var, loop_at, reads, stages_below, steered_by, writes_below,
    written_by,
};
use crate::lower::sign::never_negative;
use crate::simplify::{Facts, interval};
use cora_ir::affine::{greatest_operands, normalize, shift_min};
use cora_ir::loops::{Block, BlockRole, For, IterKind, LoopKind, LoopModule, Stmt};
use cora_ir::schedule::LoopRef;
use cora_ir::{Diagnostic, Env, Expr, ExprId, ExprPool, Role, Scope, TensorId, VarId};
use rustc_hash::FxHashMap;

/// Moves stage `name` into the loop `at`.
///
/// # Errors
/// `E0401`/`E0402` unknown stage or loop, `E0450` an output of which not all would be computed there, `E0451` a producer
/// that is already scheduled or attached, `E0452` a reader outside the loop, `E0453` nobody reads it there.
pub fn compute_at(m: &mut LoopModule, name: &str, at: &LoopRef) -> Result<(), Diagnostic> {
    let stage = find_stage(m, name)?;
    if at.stage == name {
        return Err(Diagnostic::new("E0453", format!("loop `{name}.{}` is `{name}`'s own", at.name))
            .hint("attach it at a loop of a stage that reads it"));
    }
    if m.env.tensors[stage].role != Role::Output {
        return attach(m, name, at);
    }
    let readers: Vec<Block> =
        m.blocks_reading(stage).into_iter().filter(|b| m.env.pool.reads(b.value, stage)).cloned().collect();
    if readers.is_empty() {
        return beside(m, stage, at);
    }
    let path = find_loop(m, at)?;
    check_readers(m, stage, &path, name, at)?;
    if readers.iter().any(|b| reads_whole(m, stage, b, &[IterKind::Spatial, IterKind::Reduce])) {
        return attach(m, name, at);
    }
    attach_asked(m, stage, at, &path)
}

/// Computes a result that nobody reads in a loop of a stage that has its dimensions.
fn beside(m: &mut LoopModule, result: TensorId, at: &LoopRef) -> Result<(), Diagnostic> {
    let path = find_loop(m, at)?;
    let host = loop_at(&m.body, &path).stage;
    let name = m.env.tensors[result].name.clone();
    if let Some(late) = computed_from(m, result, path[0]) {
        let late = &m.env.tensors[late].name;
        let what = format!("`{name}` reads `{late}`, which is not there yet in loop `{}.{}`", at.stage, at.name);
        let hint = format!("attach it at a stage that comes after `{late}`, or define it before");
        return Err(Diagnostic::new("E0452", what).hint(hint));
    }
    let Some((block, iters)) = companion(m, result, host) else { return attach_asked(m, result, at, &path) };
    let asked = m.env.new_var("asked");
    ask_for(m, result, (&block, &iters), asked);
    attach(m, &name, at)?;
    let LoopModule { env, body, .. } = m;
    for s in body {
        s.blocks_mut(&mut |b| b.value = without_marks(&mut env.pool, b.value, asked));
    }
    Ok(())
}

/// Computes a result in a loop whose iterations do not all read it, or read all of it.
fn attach_asked(m: &mut LoopModule, result: TensorId, at: &LoopRef, path: &Path) -> Result<(), Diagnostic> {
    let name = m.env.tensors[result].name.clone();
    let asked = ask_in(m, result, path).ok_or_else(|| not_whole(&name, at))?;
    attach(m, &name, at)?;
    ask_no_more(m, asked);
    Ok(())
}

/// What a stage reads that nest `n`, or one between that and its own, computes.
fn computed_from(m: &LoopModule, stage: TensorId, n: usize) -> Option<TensorId> {
    let own = m.body.iter().position(|s| match s {
        Stmt::For(l) => l.stage == stage,
        Stmt::Block(b) => b.stage == stage,
    })?;
    let written = writes_below(m.body.get(n..own)?);
    let blocks = m.blocks_of(stage);
    written.into_iter().find(|&t| t != stage && blocks.iter().any(|b| m.env.pool.reads(b.value, t)))
}

fn not_whole(name: &str, at: &LoopRef) -> Diagnostic {
    let (stage, l) = (&at.stage, &at.name);
    Diagnostic::new("E0450", format!("`{name}` is an output, and loop `{stage}.{l}` would not compute all of it"))
        .hint(format!(
            "attach an output at a loop of a whole stage that is, as are those around it, over dimensions that both have, by the \
             same names and extents, and not fused with others; or at a stage that has all of its dimensions and reads it at its \
             own positions or not at all, outside of loops that may have no iterations; or use cache_write to compute `{name}` \
             through a local buffer"
        ))
}

fn attach(m: &mut LoopModule, name: &str, at: &LoopRef) -> Result<(), Diagnostic> {
    let stage = find_stage(m, name)?;
    let tensor = stage;
    let result = m.env.tensors[tensor].role == Role::Output;
    if !result && m.env.tensors[tensor].role != Role::Temp {
        return Err(not_whole(name, at));
    }
    let path = find_loop(m, at)?;
    let own = naive_nest(m, stage).ok_or_else(|| match held_by(m, stage) {
        Some(held) => {
            let held = &m.env.tensors[held].name;
            let what = format!("stage `{held}` is attached in the loops of `{name}`, which cannot be attached with it");
            Diagnostic::new("E0451", what).hint(format!(
                "attach `{name}` first: `compute_at {name} at {}.{}`, then `{held}` at a loop of `{name}`",
                at.stage, at.name
            ))
        }
        None => Diagnostic::new("E0451", format!("stage `{name}` is already scheduled or attached"))
            .hint("compute_at comes before the steps that schedule the stage's own loops"),
    })?;
    check_readers(m, tensor, &path, name, at)?;
    guard_padded_reads(m, tensor, None);
    let mut readers = collect_readers(m, tensor, &path);
    if readers.is_empty() {
        return Err(Diagnostic::new("E0453", format!("nothing in loop `{}.{}` reads `{name}`", at.stage, at.name))
            .hint("attach it at a loop of a stage that reads it"));
    }
    let mask = shared_mask(m, &path, &readers);
    let unproved = mark_conditional(m, tensor, &mut readers, &mask);
    if !result {
        m.env.tensors[tensor].scope = Scope::Local;
    }
    let (region, masks) = region_under(m, tensor, &readers, &mask, unproved);
    let held: &[ExprId] = if masks { &mask } else { &[] };
    // Where no box will do: the loops that the readers have in common, or the positions that they read.
    let tile = |m: &mut LoopModule| {
        let mirrored = pointwise(m, tensor, &readers).and_then(|r| build_pointwise(m, stage, &own, r, &mask));
        mirrored.or_else(|| build_positions(m, stage, &own, &readers, &mask))
    };
    let mut nest = match region {
        Some(region) if !masks && correlated(m, &readers) => {
            tile(m).unwrap_or_else(|| build_box(m, stage, &own, (&region, &readers)))
        }
        Some(region) => build_box(m, stage, &own, (&region, &readers)),
        None if !masks && read_whole(m, tensor, &readers) => {
            let full = full_region(m, tensor, &readers, &mask, held);
            build_box(m, stage, &own, (&full, &readers))
        }
        None => tile(m).unwrap_or_else(|| {
            let full = full_region(m, tensor, &readers, &mask, held);
            // Parts of several rows, in an order of their own: all rows would be too many.
            let rows = takes_all_rows(m, tensor, &full) && correlated(m, &readers);
            let few = if rows { few_each(m, tensor, &readers) } else { None };
            let few = few.or_else(|| gathers_fewer(m, tensor, &readers, &full).then_some(readers.as_slice()));
            let mirrored = few.and_then(|r| build_pointwise(m, stage, &own, r, &mask));
            mirrored.unwrap_or_else(|| build_box(m, stage, &own, (&full, &readers)))
        }),
    };
    if masks && !mask.is_empty() {
        nest = masked(&mut m.env, stage, nest, &mask);
    }
    let first = loop_at(&m.body, &path).body.iter().position(|s| reads(&m.env.pool, s, tensor)).unwrap_or(0);
    body_at_mut(&mut m.body, &path).insert(first, nest);
    m.body.remove(own.top);
    place_init(m, stage);
    Ok(())
}

/// Another stage that is computed in the loops of a stage's own nest.
fn held_by(m: &LoopModule, stage: TensorId) -> Option<TensorId> {
    let own = m.body.iter().find(|s| matches!(s, Stmt::For(l) if l.stage == stage))?;
    stages_below(std::slice::from_ref(own)).into_iter().find(|&s| s != stage && written_by(m, s) != stage)
}

/// Whether one iteration of loop `at` reads a box of `tensor`, so that attached there its loops would be
/// its own dimensions. The module stays as it is.
pub fn reads_box(m: &mut LoopModule, tensor: TensorId, at: &LoopRef) -> bool {
    let Ok(path) = find_loop(m, at) else { return false };
    let saved = m.checkpoint();
    let mut readers = collect_readers(m, tensor, &path);
    let mask = shared_mask(m, &path, &readers);
    let unproved = mark_conditional(m, tensor, &mut readers, &mask);
    let found = !readers.is_empty() && region_under(m, tensor, &readers, &mask, unproved).0.is_some();
    m.restore(saved);
    found
}

/// The nest of a stage as first lowered.
pub(super) struct Naive {
    /// Its top-level index.
    top: usize,
    /// Its main block.
    pub(super) main: Block,
    /// The extent of each iterator's loop, by the iterators: one that has a value in surplus iterations too.
    pub(super) extents: Vec<ExprId>,
    /// Which of its terms count, by the iterators.
    terms: Vec<ExprId>,
}

impl Naive {
    /// Which terms count where the iterators are these; adds to what decides whether the block runs.
    pub(super) fn add_terms(&self, env: &mut Env, block: &mut Block, iters: &FxHashMap<VarId, ExprId>) {
        block.predicate.extend(self.terms.iter().map(|&p| env.pool.substitute(p, iters)));
    }
}

fn naive_nest(m: &mut LoopModule, stage: TensorId) -> Option<Naive> {
    let mut found = None;
    let mut loops = FxHashMap::default();
    for (i, s) in m.body.iter().enumerate().filter(|(_, s)| s.concerned().may_have(stage)) {
        let mut main = None;
        let mut naive = true;
        s.walk(&mut |s| match s {
            Stmt::For(l) => {
                naive &= l.stage == stage && l.kind == LoopKind::Serial;
                loops.insert(l.var, l.extent);
            }
            Stmt::Block(b) => {
                // A mask may say which terms of a sum count, as that of a factored loop does.
                let of_terms = |p: &ExprId| m.env.pool.vars_of(*p).iter().any(|&v| is_reduction_var(&m.env.pool, b, v));
                naive &= b.stage == stage && b.predicate.iter().all(of_terms) && b.tensor == stage;
                naive &= b.iters.iter().all(|i| m.env.pool.as_var(i.binding).is_some());
                let own = b.iters.iter().filter(|i| i.kind == IterKind::Spatial).map(|i| Some(i.var));
                naive &= own.eq(b.index.iter().map(|&e| m.env.pool.as_var(e)));
                if b.role != BlockRole::Init {
                    main = Some(b.clone());
                }
            }
        });
        if let (true, Some(b)) = (naive, main) {
            found = Some((i, b));
        }
    }
    let (top, mut main) = found?;
    let pool = &mut m.env.pool;
    let vars: Vec<(VarId, VarId)> = main.iters.iter().filter_map(|i| Some((pool.as_var(i.binding)?, i.var))).collect();
    let iters: FxHashMap<VarId, ExprId> = vars.iter().map(|&(l, i)| (l, pool.var(i))).collect();
    let extents: Vec<ExprId> = vars.iter().map(|(l, _)| pool.substitute(loops[l], &iters)).collect();
    let terms: Vec<ExprId> =
        std::mem::take(&mut main.predicate).into_iter().map(|p| pool.substitute(p, &iters)).collect();
    // A loop that is no iterator's, as that of one iteration around a sum, is not there where the stage is attached.
    let own = |&e: &ExprId| pool.vars_of(e).iter().all(|v| main.iters.iter().any(|i| i.var == *v));
    let alone = extents.iter().chain(&terms).all(own);
    alone.then_some(Naive { top, main, extents, terms })
}

fn check_readers(m: &LoopModule, tensor: TensorId, path: &Path, name: &str, at: &LoopRef) -> Result<(), Diagnostic> {
    fn go(m: &LoopModule, body: &[Stmt], tensor: TensorId, here: &mut Path, path: &Path) -> Option<TensorId> {
        let pool = &m.env.pool;
        for (i, s) in body.iter().enumerate().filter(|(_, s)| s.read(pool).may_have(tensor)) {
            here.push(i);
            let outside = match s {
                Stmt::For(l) if pool.reads(l.extent, tensor) => Some(l.stage),
                _ if here == path => None,
                Stmt::For(l) => go(m, &l.body, tensor, here, path),
                Stmt::Block(b) => reads(pool, s, tensor).then_some(b.stage),
            };
            here.pop();
            if outside.is_some() {
                return outside;
            }
        }
        None
    }
    let name_of = |t: TensorId| &m.env.tensors[t].name;
    let inside = &loop_at(&m.body, path).body;
    match (go(m, &m.body, tensor, &mut Vec::new(), path), steered_by(&m.env.pool, inside, tensor)) {
        (None, None) => Ok(()),
        (None, Some(reader)) => Err(Diagnostic::new(
            "E0452",
            format!(
                "which elements of `{}` are computed in loop `{}.{}` depends on values of `{name}`, so `{name}` must be there before",
                name_of(reader), at.stage, at.name
            ),
        )
        .hint(format!("attach `{name}` before the step that computes `{}` there, or inline it", name_of(reader)))),
        (Some(reader), _) => Err(Diagnostic::new(
            "E0452",
            format!("stage `{}` reads `{name}` outside loop `{}.{}`", name_of(reader), at.stage, at.name),
        )
        .hint(match output_of(m, reader).filter(|&o| o != at_stage(m, path) && !writes_below(inside).contains(&o)) {
            Some(output) => {
                let what = if output == reader { "it is".to_owned() } else { format!("`{}` is computed for", name_of(reader)) };
                let output = name_of(output);
                let all = if output == name_of(reader) { output.clone() } else { format!("{output} {}", name_of(reader)) };
                format!(
                    "{what} output `{output}`, which has loops of its own: keep `{name}` where it is, define it twice, or attach \
                     `{output}` there too if it has these dimensions: `compute_at {all} {name} at {}.{}`",
                    at.stage, at.name
                )
            }
            None if written_by(m, reader) != reader => format!(
                "`{}` is a part of a stage: attach `{name}` before the step that takes that apart, at the loop which the \
                 step names or one inside it, so that each part has its own; or inline it",
                name_of(reader)
            ),
            None => format!(
                "attach both in one step, what reads first: `compute_at {} {name} at {}.{}`",
                name_of(reader),
                at.stage,
                at.name
            ),
        })),
    }
}

/// The first output that a stage is, or is computed for.
fn output_of(m: &LoopModule, stage: TensorId) -> Option<TensorId> {
    let (mut seen, mut next) = (Vec::new(), vec![stage]);
    while let Some(t) = next.pop() {
        if m.env.tensors[t].role == Role::Output {
            return Some(t);
        }
        seen.push(t);
        let readers =
            m.blocks_reading(t).into_iter().filter(|b| !element_reads(&m.env.pool, b, t).is_empty()).map(|b| b.tensor);
        next.extend(readers.filter(|r| !seen.contains(r)));
    }
    None
}

/// The stage whose nest a loop is in.
fn at_stage(m: &LoopModule, path: &Path) -> TensorId {
    loop_at(&m.body, &path[..1]).stage
}

/// That all conditions hold: what one reads is there where those before it hold.
pub(super) fn all_in_turn(env: &mut Env, conds: &[ExprId]) -> ExprId {
    let mut all: Vec<ExprId> = Vec::new();
    for &c in conds {
        let before = env.pool.all(all.iter().copied());
        all.push(if all.is_empty() { c } else { guard_loads(&mut env.pool, c, before) });
    }
    env.pool.all(all)
}

/// The nest in a loop that runs once where all of `mask` holds, else not at all.
fn masked(env: &mut Env, stage: TensorId, nest: Stmt, mask: &[ExprId]) -> Stmt {
    let var = env.new_var("once");
    let holds = all_in_turn(env, mask);
    let (one, zero) = (env.pool.int(1), env.pool.int(0));
    let extent = env.pool.select(holds, one, zero);
    Stmt::For(For {
        var,
        stage,
        extent,
        kind: LoopKind::Serial,
        prefetch: vec![],
        init: false,
        body: vec![nest].into(),
    })
}

/// The range of each dimension; nothing = the whole extent.
type Region = Vec<Option<Range>>;

fn box_region(
    m: &mut LoopModule,
    tensor: TensorId,
    readers: &[Reader],
    mask: &[ExprId],
    held: &[ExprId],
) -> Option<Region> {
    let rank = m.env.tensors[tensor].dims.len();
    (0..rank).map(|d| range_of_dim(&mut m.env, readers, d, mask, held).map(Some)).collect()
}

/// The box that is read, and whether the nest has to be masked: where an access is not plainly in bounds (`unproved`),
/// or where the box has no value unless something is read.
fn region_under(
    m: &mut LoopModule,
    tensor: TensorId,
    readers: &[Reader],
    mask: &[ExprId],
    unproved: bool,
) -> (Option<Region>, bool) {
    if !unproved && let Some(region) = box_region(m, tensor, readers, mask, &[]) {
        return (Some(region), false);
    }
    let region = box_region(m, tensor, readers, mask, mask);
    let masks = unproved || region.is_some();
    (region, masks)
}

/// Each dimension's range, the whole extent where no rule gives one.
fn full_region(m: &mut LoopModule, tensor: TensorId, readers: &[Reader], mask: &[ExprId], held: &[ExprId]) -> Region {
    let rank = m.env.tensors[tensor].dims.len();
    (0..rank).map(|d| range_of_dim(&mut m.env, readers, d, mask, held)).collect()
}

/// Whether a region has whole rows, of any number of them.
fn takes_all_rows(m: &mut LoopModule, tensor: TensorId, region: &Region) -> bool {
    let pool = &mut m.env.pool;
    let few = |pool: &mut ExprPool, range: Option<Range>| {
        range.is_some_and(|r| {
            let steps = pool.sub(r.hi, r.lo);
            let steps = shift_min(pool, steps);
            pool.constant_bound(steps).is_some()
        })
    };
    m.env.tensors[tensor].dims.iter().enumerate().any(|(d, dim)| {
        let of = |e: &usize| pool.any(dim.extent, &mut |n| *n == Expr::Arg(*e as u32));
        let around: Vec<usize> = if region[d].is_none() { (0..d).filter(of).collect() } else { Vec::new() };
        around.into_iter().any(|e| !few(pool, region[e]))
    })
}

/// Whether readers that gather, at positions read from other tensors, have fewer iterations than the region has elements:
/// of a table of pages the few that a row names.
fn gathers_fewer(m: &mut LoopModule, tensor: TensorId, readers: &[Reader], region: &Region) -> bool {
    let [first, ..] = readers else { return false };
    if !m.env.tensors[tensor].layout.is_empty() {
        return false;
    }
    let env = &mut m.env;
    let gathered = |env: &Env, e: ExprId| env.pool.any(e, &mut |n| matches!(n, Expr::Load { .. }));
    let one = |r: &Reader| match r.accesses.as_slice() {
        [a] => !a.index.iter().any(|&e| r.reads_attached(env, e)),
        _ => false,
    };
    let gathers =
        region.iter().enumerate().any(|(d, range)| range.is_none() && gathered(env, first.accesses[0].index[d]));
    if !readers.iter().all(one) || !gathers {
        return false;
    }
    let most = |env: &mut Env, e: ExprId| interval::bounds(env, &Facts::new(), e).hi.map(|n| n.max(1));
    let around = &first.loops[..first.outer];
    let mut elements: i64 = 1;
    for (d, range) in region.iter().enumerate() {
        let extent = env.tensors[tensor].dims[d].extent;
        let Some(whole) = most(env, extent) else { return false };
        let part = range.and_then(|r| {
            let one = env.pool.int(1);
            let size = env.pool.sub(r.hi, r.lo);
            let size = env.pool.add(size, one);
            let size = bound_above(env, size, around)?;
            most(env, size)
        });
        elements = elements.saturating_mul(part.unwrap_or(whole).min(whole));
    }
    let mut iterations: i64 = 1;
    for extent in mirrored_extents(env, first) {
        let bound = bound_above(env, extent, &first.loops);
        let Some(n) = bound.and_then(|b| most(env, b)) else { return false };
        iterations = iterations.saturating_mul(n);
    }
    iterations < elements
}

fn build_box(m: &mut LoopModule, stage: TensorId, own: &Naive, (region, readers): (&Region, &[Reader])) -> Stmt {
    let env = &mut m.env;
    let around = readers.first().map_or(&[][..], |r| &r.loops[..r.outer]);
    let around = Facts::in_loops(around.iter().copied());
    let mut block = own.main.clone();
    let mut map: FxHashMap<VarId, ExprId> = FxHashMap::default();
    let mut loops: Vec<(VarId, ExprId)> = Vec::new();
    let mut spatial = region.iter();
    let mut dim = 0;
    for (it, &extent) in block.iters.iter_mut().zip(&own.extents) {
        let name = env.vars[it.var].name.clone();
        let extent = env.pool.substitute(extent, &map);
        let one = env.pool.int(1);
        let last = env.pool.sub(extent, one);
        let last = normalize(&mut env.pool, last);
        let known = match it.kind {
            IterKind::Spatial => *spatial.next().expect("one range for each spatial iterator"),
            IterKind::Reduce => None,
        };
        let zero = env.pool.int(0);
        let Range { lo, hi, clip } = known.unwrap_or(Range { lo: zero, hi: last, clip: false });
        // One position is in bounds of the rows that are read, but perhaps not of all in a range.
        let steered = loops.iter().any(|&(v, _)| env.pool.uses_var(extent, v));
        let spans = if it.kind == IterKind::Spatial { spanned(env, &indices(readers, dim)) } else { Spans::default() };
        if it.kind == IterKind::Spatial {
            // The dimensions of an output are the program's.
            if env.tensors[stage].role == Role::Temp {
                env.tensors[stage].dims[dim].also = spans.name(env).filter(|n| *n != name);
            }
            dim += 1;
        }
        it.binding = if lo == hi && known.is_some() && !clip && !steered && !spans.unit {
            lo
        } else {
            // What is read in the longest row is all of a shorter one, if it is no tile of it.
            let steps = env.pool.sub(hi, lo);
            let steps = shift_min(&mut env.pool, steps);
            let all = hi != last && env.pool.constant_bound(steps).is_none() && {
                let inside: Vec<(VarId, ExprId)> = around.vars.iter().chain(&loops).copied().collect();
                let inside: Vec<_> = inside.into_iter().map(|(v, extent)| (env.pool.var(v), extent)).collect();
                greatest_operands(&mut env.pool, hi).into_iter().any(|h| {
                    let beyond = env.pool.sub(h, last);
                    never_negative(env, &inside, beyond)
                })
            };
            let (lo, size) = clipped(env, &around, Range { lo, hi: if all { last } else { hi }, clip }, last);
            let also = spans.name(env).filter(|n| *n != name);
            let var = env.new_var(name);
            env.vars[var].also = also;
            loops.push((var, size));
            let v = env.pool.var(var);
            env.pool.add(lo, v)
        };
        map.insert(it.var, it.binding);
    }
    own.add_terms(env, &mut block, &map);
    wrap(env, stage, block, &loops)
}

/// Whether the indices of two dimensions depend on one loop inside, as those of a fused loop do.
fn correlated(m: &LoopModule, readers: &[Reader]) -> bool {
    let uses = |a: &Access, v: VarId| a.index.iter().filter(|&&e| m.env.pool.uses_var(e, v)).count() > 1;
    let inside = |r: &Reader| r.loops[r.outer..].iter().any(|&(v, _)| r.accesses.iter().any(|a| uses(a, v)));
    readers.iter().any(inside)
}
