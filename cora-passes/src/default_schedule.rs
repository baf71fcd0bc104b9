//! Schedules nests that no step has touched, by rules about their shape.
//!
//! First, numbers are applied to sums in the place of their terms (`products`), zero points of integers are taken out
//! of sums (`distribute`), products of factors that no tile has both are summed one by one (`summands`), results are
//! computed in the order of what is read (`result_order`), factors of sums that repeat work get a stage (`factors`),
//! positions that share a factor in groups become rows (`shared_rows`), and a stage is given to the lanes of what a
//! user's combiner makes of neighbours (`lanes`) and to parts of long sums of few results (`partial_sums`). Sums that
//! are a reduction's terms are tiled together with it (`nested_sums`). Where a batch is more than stays near, its
//! rows are split into tasks (`row_tasks`), and so are rows of elements that are computed of their own row
//! (`rows_of_elements`). From the last stage to the first: a stage is attached beside its readers where that repeats
//! no work (`attach`); a contraction, or another reduction of neighbouring elements, is tiled so that it accumulates
//! in registers (`contraction`, `columns`), where factors of neighbours lie apart with a copy of these
//! (`side_by_side`), one of few rows in dot products (`dots`); terms that count where a position is what is read go there (`matches`); results of few terms are lanes (`few_terms`), columns
//! that share elements in groups vectors (`groups`); copies that change the order of dimensions go in squares, and so
//! do tiles of what other elements read across (`squares`); of anything else the innermost loop becomes vector code
//! where it writes (or, for a reduction, reads) neighbouring elements, and where what it reads is near each other.
//! Elements of results are computed where these leave the registers (`epilogues`), and sums that are added up there
//! are one sum (`joined`). At last rows that lie as they are counted become one loop (`flat`), and the outermost
//! loops are spread over the workers. Every rule is a list of scheduling steps; a refusal means that it does not fit
//! the nest, and the next one is tried.

mod attach;
mod batches;
mod chains;
mod columns;
mod constants;
pub(crate) mod contraction;
mod copies;
mod distribute;
mod dots;
pub(crate) mod ends;
mod epilogues;
mod factors;
mod few_rows;
mod few_terms;
mod flat;
mod groups;
mod joined;
mod lanes;
mod matches;
pub(crate) mod nest;
mod nested_sums;
pub mod own_names;
pub(crate) mod partial_sums;
mod products;
mod recurrences;
mod result_order;
mod row_tasks;
mod rows_of_elements;
mod sequences;
mod shared_rows;
mod side_by_side;
mod side_results;
mod squares;
pub(crate) mod steps;
mod summands;
mod sums_beside;
mod tiles;
mod triangles;
mod unit_products;
pub(crate) mod units;

use crate::lower::AffineSimplifier;
use crate::lower::to_storage::{lower_to_storage, lowered_alone};
use crate::schedule::apply_step;
use crate::schedule::compute_inline::compute_inline;
use crate::schedule::recurrent::is_recurrent;
use crate::schedule::relax::relax_register_tails;
use crate::schedule::tensorize::REFUSALS;
use crate::standard::StandardSimplifier;
use cora_ir::intrinsic::{Features, Vectors};
use cora_ir::loops::{Block, BlockRole, For, IterKind, LoopKind, LoopModule, Stmt};
use cora_ir::schedule::{LoopRef, Step, StepKind, Tail};
use cora_ir::storage::StorageModule;
use cora_ir::{Expr, ExprId, Role, TensorId, UnOp};
use nest::Nest;
use rustc_hash::{FxHashMap, FxHashSet};

/// How elements of a stage lie in the processor's vector registers.
#[derive(Clone, Copy)]
struct Registers {
    /// Elements of one, which are computed in 32 bits at least.
    lanes: i64,
    vectors: Vectors,
}

/// What tiles depend on.
enum Form {
    /// 32 registers of 32 bytes or more.
    Long,
    /// 32 shorter ones.
    Short,
    /// 16 of any length.
    Few,
}

impl Registers {
    fn of(m: &LoopModule, stage: TensorId, vectors: Vectors) -> Self {
        let bytes = m.env.tensors[stage].ty.bytes().max(4) as i64;
        Self { lanes: vectors.bytes / bytes, vectors }
    }

    fn form(self) -> Form {
        match self.vectors {
            Vectors { registers: ..32, .. } => Form::Few,
            Vectors { bytes: ..32, .. } => Form::Short,
            _ => Form::Long,
        }
    }

    /// A few whole tiles of rows, of those that tiles may have.
    fn whole_tiles(self) -> i64 {
        match self.form() {
            // Of 14 rows and of 6.
            Form::Long => 42,
            Form::Short | Form::Few => 48,
        }
    }
}

/// Outermost loops of fewer iterations than this are fused with the next one.
const FEW: i64 = 32;
/// Loops nested in an iteration that is a task by itself.
const MUCH: usize = 4;
/// Iterations of a task, where each is a row, and where each is a vector.
const TASK_ROWS: i64 = 32;
const TASK_VECTORS: i64 = 256;
/// Operations that are cheaper to repeat than to store.
const CHEAP: usize = 2;

/// How many rows begin together that windows are long along, of elements of 32 bits: whole register tiles of them.
pub fn rows_of_windows(features: Features) -> i64 {
    let vectors = features.vectors();
    Registers { lanes: vectors.bytes / 4, vectors }.whole_tiles()
}

/// Schedules every top-level nest for a processor with these features. Where a buffer of the tiles would have no bound,
/// loops are made vectors and spread over the workers only.
pub fn default_schedule(m: &mut LoopModule, features: Features) {
    own_names::keep_apart(m);
    let naive = m.clone();
    let mut elements = tiled(m, features, true);
    let mut lowers = can_be_lowered(m);
    if !lowers {
        *m = naive.clone();
        elements = tiled(m, features, false);
        lowers = can_be_lowered(m);
    }
    if !lowers {
        *m = naive;
        // They are of the module that is given up.
        elements.clear();
        for stage in stages(m) {
            let _ = innermost(m, stage, features.vectors());
        }
    }
    let serial = m.clone();
    for n in 0..m.body.len() {
        to_workers(m, n, &elements, features.vectors());
    }
    if can_be_lowered(m) {
        attempt(m, |m| (!few_rows::few_rows(m) || can_be_lowered(m)).then_some(()));
        return;
    }
    // Of fused loops less may be known than of each.
    *m = serial;
    for n in 0..m.body.len() {
        let lowers = attempt(m, |m| {
            to_workers(m, n, &elements, features.vectors());
            lowers_alone(m, n, |_| true).then_some(())
        });
        if !lowers && let Stmt::For(outer) = &m.body[n] {
            let target = loop_ref(m, outer);
            let _ = step(m, StepKind::Parallel { target });
        }
    }
}

/// Spreads a nest over the workers, its elements as one loop where that fits.
fn to_workers(m: &mut LoopModule, n: usize, elements: &FxHashMap<TensorId, Stmt>, vectors: Vectors) {
    if matches::spread_around(m, n) {
        return;
    }
    let alone = elements.iter().find(|e| matches!(&m.body[n], Stmt::For(l) if l.stage == *e.0)).map(|e| e.1);
    let flat = |m: &mut LoopModule| flat::flat_elements(m, n, alone?, vectors);
    if !attempt(m, flat) && !attempt(m, |m| flat::flat_rows(m, n)) {
        spread(m, n);
    }
}

fn loop_ref(m: &LoopModule, l: &For) -> LoopRef {
    LoopRef { stage: m.env.tensors[l.stage].name.clone(), name: m.env.vars[l.var].name.clone() }
}

/// Whether all buffers have a bound, and all else that storage asks for.
fn can_be_lowered(m: &LoopModule) -> bool {
    let mut lowered = m.clone();
    relax_register_tails(&mut lowered);
    match lower_to_storage(&lowered, &mut AffineSimplifier) {
        // Offsets in a tile take more to be seen as affine.
        Err(d) if REFUSALS.contains(&d.code) => lower_to_storage(&lowered, &mut StandardSimplifier::new()).is_ok(),
        outcome => outcome.is_ok(),
    }
}

/// Whether a nest by itself can be lowered to storage of which `holds` is true.
fn lowers_alone(m: &mut LoopModule, nest: usize, holds: impl FnOnce(&StorageModule) -> bool) -> bool {
    lowered_alone(m, &[nest], relax_register_tails, |lowered| lowered.is_ok_and(|s| holds(s)))
}

/// Attaches and tiles, `in_tasks` where a batch may be large; gives the nests of elements as they were before.
fn tiled(m: &mut LoopModule, features: Features, in_tasks: bool) -> FxHashMap<TensorId, Stmt> {
    choose_stages(m, Some(features));
    // A recurrence's nest makes the results of several stages.
    let asked = if m.env.recurrent.is_empty() { side_results::ask_for_results(m) } else { None };
    let mut elements = attached_and_tiled(m, features, in_tasks);
    if let Some(asked) = asked {
        side_results::forget(m, &mut elements, asked);
    }
    elements
}

/// [`tiled`], of stages as they are.
fn attached_and_tiled(m: &mut LoopModule, features: Features, in_tasks: bool) -> FxHashMap<TensorId, Stmt> {
    let vectors = features.vectors();
    shared_rows::shared_rows(m);
    if in_tasks && m.env.recurrent.is_empty() {
        sums_beside::sums_beside(m);
    }
    // Beside a reader one worker would sum all parts.
    let mut summed_apart: Vec<TensorId> = Vec::new();
    for stage in stages(m) {
        if matches::goes_to_positions(m, stage) {
            continue;
        }
        attempt(m, |m| lanes::lanes_of_tuples(m, stage, vectors));
        attempt(m, |m| {
            let parts = partial_sums::partial_sums(m, stage, partial_sums::TERMS, Some(vectors))?;
            summed_apart.extend([stage, parts]);
            Some(())
        });
    }
    let elements = flat::elementwise(m);
    let epilogues: FxHashSet<TensorId> = stages(m).into_iter().filter(|&s| epilogues::is_epilogue(m, s)).collect();
    let mut done: Vec<TensorId> = Vec::new();
    for stage in stages(m) {
        let before = stages(m);
        attempt(m, |m| {
            done.extend([stage, nested_sums::nested_sums(m, stage, features)?]);
            done.extend(stages(m).into_iter().filter(|s| !before.contains(s)));
            Some(())
        });
    }
    if in_tasks {
        row_tasks::row_tasks(m, features);
        rows_of_elements::rows_of_elements(m);
    }
    for stage in stages(m).into_iter().rev().filter(|s| !done.contains(s)) {
        if !summed_apart.contains(&stage) {
            attach::attach(m, stage, &epilogues);
        }
        attempt(m, |m| batches::batches_first(m, stage));
        attempt(m, |m| side_by_side::side_by_side(m, stage));
        let shape = contraction::Shape::of(m, stage);
        let rows = [
            contraction::row_tiles,
            triangles::triangle,
            triangles::leaning,
            triangles::slanted,
            triangles::slanted_beyond,
        ];
        let _ = attempt(m, |m| matches::to_positions(m, stage, vectors))
            || attempt(m, |m| units::unit_parts(m, stage, &|i| features.contain(i), vectors))
            || attempt(m, |m| units::unit_tiles(m, stage, |i| features.contain(i)))
            || attempt(m, |m| unit_products::unit_products(m, stage, |i| features.contain(i), vectors))
            || attempt(m, |m| dots::dot_tiles(m, stage, vectors))
            || attempt(m, |m| dots::dots_of_rows(m, stage, vectors))
            || (shape.rows && rows.into_iter().any(|rule| attempt(m, |m| rule(m, stage, vectors))))
            || (shape.neighbours
                && !shape.rows
                && attempt(m, |m| few_terms::few_terms(m, stage, vectors, few_terms::FEW_TAPS)))
            || (shape.neighbours && attempt(m, |m| columns::column_tiles(m, stage, vectors)))
            || attempt(m, |m| few_terms::few_terms(m, stage, vectors, few_terms::FEW))
            || attempt(m, |m| groups::vectors_of_groups(m, stage, vectors))
            || is_of_rows(m, stage)
            || innermost(m, stage, vectors).is_some()
            || attempt(m, |m| squares::squares(m, stage, vectors))
            || attempt(m, |m| squares::elements_across(m, stage, vectors));
        attempt(m, |m| lanes::few_tuples(m, stage));
    }
    sequences::side_by_side(m);
    recurrences::vectors_of_recurrences(m, vectors);
    epilogues::epilogues(m, &elements);
    // Those that others were attached to are rows, or that were attached.
    let alone = |stage: TensorId| {
        let nest = m.body.iter().find(|s| matches!(s, Stmt::For(l) if l.stage == stage));
        nest.is_some_and(|s| !nest::has_others(std::slice::from_ref(s), stage))
    };
    elements.into_iter().filter(|e| alone(e.0)).collect()
}

/// What is cheaper to repeat than to store is inlined; what repeats more work than that gets a stage, in an element only on
/// a `processor`, where it is near what reads it.
pub(crate) fn choose_stages(m: &mut LoopModule, processor: Option<Features>) {
    let is_near = processor.is_some();
    for stage in stages(m) {
        attempt(m, |m| products::regroup(m, stage));
        attempt(m, |m| distribute::distribute(m, stage));
    }
    for stage in stages(m) {
        if !processor.is_some_and(|features| nested_sums::are_terms(m, stage, features)) {
            attempt(m, |m| result_order::as_read(m, stage));
        }
    }
    for stage in stages(m) {
        if attempt(m, |m| summands::summands(m, stage)) {
            for stage in stages(m) {
                attempt(m, |m| products::regroup(m, stage));
            }
        }
    }
    inline_cheap(m, is_near);
    for stage in stages(m) {
        chains::in_steps(m, stage);
    }
    for stage in stages(m) {
        // Terms that go to positions are compared with none.
        if !(is_near && matches::goes_to_positions(m, stage)) {
            factors::precompute_factors(m, stage, processor);
        }
    }
    if let Some(features) = processor {
        for stage in stages(m) {
            attempt(m, |m| factors::widen(m, stage, features));
        }
    }
}

/// Inlines what is cheaper to repeat than to store, on a processor but for epilogues, which cost less still.
fn inline_cheap(m: &mut LoopModule, is_near: bool) {
    for stage in stages(m) {
        if cheap(m, stage) && !(is_near && epilogues::is_epilogue(m, stage)) {
            let name = m.env.tensors[stage].name.clone();
            // A refusal only means that the rule does not fit this stage.
            let _ = compute_inline(m, &name);
        }
    }
}

/// The stages of the nests in order, but for those of recurrences.
pub(crate) fn stages(m: &LoopModule) -> Vec<TensorId> {
    let mut seen = FxHashSet::default();
    m.blocks().into_iter().map(|b| b.stage).filter(|&s| !is_recurrent(m, s) && seen.insert(s)).collect()
}

/// Applies a rule, or leaves the module as it is.
pub(crate) fn attempt(m: &mut LoopModule, rule: impl FnOnce(&mut LoopModule) -> Option<()>) -> bool {
    let saved = m.checkpoint();
    if rule(m).is_some() {
        return true;
    }
    m.restore(saved);
    false
}

/// Applies a step; nothing if it is refused.
pub(crate) fn step(m: &mut LoopModule, kind: StepKind) -> Option<()> {
    apply_step(m, &Step::from(kind)).ok()
}

/// An intermediate of a few operations on few elements, none of them slow, that no sum of products reads again for other
/// results.
fn cheap(m: &LoopModule, stage: TensorId) -> bool {
    if m.env.tensors[stage].role != Role::Temp {
        return false;
    }
    let Some(nest) = m.body.iter().find(|s| matches!(s, Stmt::For(l) if l.stage == stage)) else {
        return false;
    };
    let mut ops = 0;
    let mut slow = false;
    nest.walk(&mut |s| {
        if let Stmt::Block(b) = s {
            slow |= b.role != BlockRole::Compute;
            m.env.pool.walk(b.value, &mut |_, n| match n {
                Expr::Un(UnOp::Neg | UnOp::Abs | UnOp::Not, _) | Expr::Bin(..) | Expr::Select(..) => ops += 1,
                Expr::Un(..) | Expr::Call(..) => slow = true,
                _ => {}
            });
        }
    });
    let summed = |b: &Block| {
        let again = |factors: [contraction::Read; 2]| {
            let [x, y] = factors.map(|r| (r.0 == stage).then(|| repeats(m, b, &r.1)));
            // What says where others are read is neither of them.
            x.or(y).is_none() || x == Some(true) || y == Some(true)
        };
        b.stage != stage
            && matches!(b.role, BlockRole::Update(_))
            && m.env.pool.reads(b.value, stage)
            && contraction::factors(m, b).is_some_and(again)
    };
    !slow && ops <= CHEAP && !m.blocks_reading(stage).into_iter().any(summed)
}

/// Whether several results of a block are made of what is read at `index`.
fn repeats(m: &LoopModule, b: &Block, index: &[ExprId]) -> bool {
    let mut own = b.iters.iter().filter(|i| i.kind == IterKind::Spatial);
    own.any(|i| !index.iter().any(|&e| m.env.pool.uses_var(e, i.var)))
}

/// Whether each element is made of what is computed of a row of its own: in a vector of elements a task would have the rows
/// of all its lanes.
fn is_of_rows(m: &LoopModule, stage: TensorId) -> bool {
    let Some(nest) = Nest::of(m, stage).filter(|n| !n.attached && n.loops.len() == 1) else { return false };
    let of_row = |t: TensorId| {
        let reduces = |n: &Nest| matches!(n.block.role, BlockRole::Update(_)) && columns::neighbours(m, n).is_none();
        let several = m.env.tensors[t].dims.len() > 1;
        m.env.tensors[t].role == Role::Temp && (several || Nest::of(m, t).is_some_and(|n| reduces(&n)))
    };
    let Some(iter) = nest.iterator(m, nest.loops[0].var) else { return false };
    let own = |index: &[ExprId]| index.first().is_some_and(|&e| m.env.pool.as_var(e) == Some(iter));
    nest.reads(m).iter().any(|r| of_row(r.0) && own(&r.1))
}

/// Vector code for the innermost loop, if all its accesses are to neighbours or do not move, in each vector at least.
fn innermost(m: &mut LoopModule, stage: TensorId, vectors: Vectors) -> Option<()> {
    let nest = Nest::of(m, stage)?;
    let last = nest.loops.last()?;
    let (iter, lanes) = (nest.iterator(m, last.var)?, Registers::of(m, stage, vectors).lanes);
    if !nest.contiguous(m, iter) {
        let count = m.env.pool.as_int(last.extent).filter(|n| n % lanes == 0);
        let written = nest::is_along(m, &(nest.block.tensor, nest.block.index.clone()), iter);
        let near = |m: &mut LoopModule, r: &(TensorId, Vec<ExprId>)| {
            let in_blocks = |m: &mut LoopModule| {
                count.is_some_and(|n| nest::moves_in_blocks(m, &r.1, iter, (n, lanes), !last.reduced))
            };
            nest::strides(m, r, iter) || !last.reduced && (nest::clamped(m, &r.1, iter) || in_blocks(m))
        };
        if !written || !nest.reads(m).iter().all(|r| near(m, r)) {
            return None;
        }
    }
    let width = Some(lanes);
    step(m, StepKind::Vectorize { target: nest.at(last), width })
}

/// Spreads a top-level nest over the workers: its two outermost loops, fused where the outermost has few iterations, or
/// tiles of the second of all iterations of the first, which may be a lone one, or of the third where the second is short.
fn spread(m: &mut LoopModule, n: usize) {
    let Stmt::For(outer) = &m.body[n] else { return };
    let target = loop_ref(m, outer);
    let down = row_tasks::down_to_task(m, outer);
    if let Some(loops) = down.map(|loops| loops.into_iter().map(|l| loop_ref(m, l)).collect::<Vec<_>>()) {
        let all = |m: &mut LoopModule| {
            let target = LoopRef { name: "spread".to_owned(), ..target.clone() };
            step(m, StepKind::Fuse { loops, name: target.name.clone(), pad: 1 })?;
            step(m, StepKind::Parallel { target })
        };
        if attempt(m, all) {
            return;
        }
    }
    let Stmt::For(outer) = &m.body[n] else { return };
    let outer = outer.clone();
    if let [Stmt::For(inner)] = outer.body.as_slice()
        && inner.body.iter().any(|s| matches!(s, Stmt::For(_)))
    {
        let stage = target.stage.clone();
        let named = |name: &str| LoopRef { stage: stage.clone(), name: name.to_owned() };
        let (loops, tile) = (vec![target.clone(), loop_ref(m, inner)], tile_of_task(m, inner));
        // Of a batch there may be few as well, and of parts of a sum.
        let much = depth(&inner.body) >= MUCH && is_dimension(m, &outer) && is_dimension(m, inner);
        let parts = m.env.vars[outer.var].name == partial_sums::PART;
        let few = m.env.pool.as_int(outer.extent).map_or(tile.is_some() || much || parts, |e| e < FEW);
        let both = |m: &mut LoopModule| {
            let mut loops = loops.clone();
            if let Some(factor) = tile.filter(|&t| t > 1) {
                let (split, outer, inner) = (loops.remove(1), "task".to_owned(), "near".to_owned());
                loops.push(named(&outer));
                step(m, StepKind::Split { target: split, factor, outer, inner, tail: Tail::Exact })?;
            }
            step(m, StepKind::Fuse { loops, name: "spread".to_owned(), pad: 1 })?;
            step(m, StepKind::Parallel { target: named("spread") })
        };
        // Each iteration of the third may be much.
        let three = |m: &mut LoopModule| {
            let [Stmt::For(third)] = inner.body.as_slice() else { return None };
            if tile == Some(1) || depth(&third.body) < MUCH {
                return None;
            }
            let loops = vec![target.clone(), loop_ref(m, inner), loop_ref(m, third)];
            step(m, StepKind::Fuse { loops, name: "spread".to_owned(), pad: 1 })?;
            step(m, StepKind::Parallel { target: named("spread") })
        };
        // Of a short dimension that comes next, as heads are, all iterations may be few: tiles of the rows after it.
        let rows = |m: &mut LoopModule| {
            let [Stmt::For(third)] = inner.body.as_slice() else { return None };
            let constant = m.env.pool.as_int(inner.extent).is_some() && inner.kind == LoopKind::Serial;
            let nested = third.body.iter().any(|s| matches!(s, Stmt::For(_)));
            let factor = tile_of_task(m, third).filter(|&t| constant && tile.is_none() && nested && t > 1)?;
            let (row, outer, inner) = (loop_ref(m, third), "task".to_owned(), "near".to_owned());
            let loops = vec![target.clone(), loops[1].clone(), named(&outer)];
            step(m, StepKind::Split { target: row, factor, outer, inner, tail: Tail::Exact })?;
            step(m, StepKind::Fuse { loops, name: "spread".to_owned(), pad: 1 })?;
            step(m, StepKind::Parallel { target: named("spread") })
        };
        let few_alone = m.env.pool.as_int(outer.extent).is_some_and(|e| e < FEW);
        let unknown = m.env.pool.as_int(outer.extent).is_none();
        if few_alone && attempt(m, three) || few && attempt(m, both) || !few && unknown && attempt(m, rows) {
            return;
        }
    }
    let _ = step(m, StepKind::Parallel { target });
}

/// Whether a loop runs through a dimension of its stage as it is: no tile of it.
fn is_dimension(m: &LoopModule, l: &For) -> bool {
    let mut plain = false;
    for s in &l.body {
        s.walk(&mut |s| {
            if let Stmt::Block(b) = s {
                plain |= b.stage == l.stage && b.iters.iter().any(|i| m.env.pool.as_var(i.binding) == Some(l.var));
            }
        });
    }
    plain && l.kind == LoopKind::Serial
}

/// How many loops are nested in one another.
fn depth(body: &[Stmt]) -> usize {
    let of = |s: &Stmt| match s {
        Stmt::For(l) => 1 + depth(&l.body),
        Stmt::Block(_) => 0,
    };
    body.iter().map(of).max().unwrap_or(0)
}

/// How many iterations of a second loop a task takes, if it may have more than that.
fn tile_of_task(m: &LoopModule, l: &For) -> Option<i64> {
    // Tiles of rows are tasks already.
    if m.env.vars[l.var].name == "task" {
        return Some(1);
    }
    let vectors = |s: &Stmt| matches!(s, Stmt::For(l) if l.kind != LoopKind::Serial);
    let tile = if l.body.iter().all(vectors) { TASK_VECTORS } else { TASK_ROWS };
    let longer = m.env.pool.constant_bound(l.extent).is_none_or(|n| n > tile);
    (longer && l.kind == LoopKind::Serial).then_some(tile)
}
