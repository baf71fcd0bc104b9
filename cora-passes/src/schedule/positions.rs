//! Regions of positions: what a tile of a fused loop reads of the two dimensions that are fused, where its readers have
//! no loops in common.
//!
//! ```text
//! P[at(p), p - F(at(p))]      for the positions p from lo to hi
//!   =>  for %i in 0..hi - lo + 1 { P[%i] = ..[at(lo + %i), lo + %i - F(at(lo + %i))].. }    readers: P[p - lo]
//! ```
//!
//! Rows of one length are found by division instead. The tile covers parts of several rows, which are no box of the two
//! dimensions; they are one range of positions (paper section 5.2, figure on ranges of fused loops). The buffer has that
//! range as one dimension in the place of the two.

use super::compute_at::Naive;
use super::defined::is_defined;
use super::read_ranges::{Range, clipped, never_above, range_of_dim, spanned};
use super::readers::{Access, Reader};
use super::region::{bound_above, range_over};
use super::slots::{read_slots, wrap, write_slots};
use crate::simplify::{Facts, Prover};
use cora_ir::affine::{least_operands, normalize};
use cora_ir::loops::{IterKind, LoopModule, Stmt};
use cora_ir::{BinOp, Env, Expr, ExprId, ExprPool, Role, TensorDim, TensorId, UfDef, UfId, VarId};
use rustc_hash::FxHashMap;

/// How the loop over two dimensions finds row and column of a position.
#[derive(Clone)]
enum Way {
    /// By search in the offsets of ragged rows; what the functions depend on besides the position.
    Search { sum: UfId, search: UfId, outer: Vec<ExprId> },
    /// By division by the length of rows that are all of one length.
    Divide(ExprId),
}

impl Way {
    /// The way that an index of rows shows, if it does not depend on a reader's inner loops.
    fn of(env: &Env, row: ExprId, readers: &[Reader]) -> Option<Self> {
        let (way, fixed) = match env.pool.get(row).clone() {
            Expr::Bin(BinOp::FloorDiv, _, by) => (Self::Divide(by), vec![by]),
            Expr::Call(search, args) => {
                let UfDef::Search { sum } = env.ufs[search].def else { return None };
                let outer = args[..args.len() - 1].to_vec();
                (Self::Search { sum, search, outer: outer.clone() }, outer)
            }
            _ => return None,
        };
        let mut inner = readers.iter().flat_map(|r| &r.loops[r.outer..]);
        (!inner.any(|l| fixed.iter().any(|&e| env.pool.uses_var(e, l.0)))).then_some(way)
    }

    /// The position with this row and column.
    fn position(&self, env: &mut Env, row: ExprId, column: ExprId) -> Option<ExprId> {
        let position = match (self, env.pool.get(row).clone()) {
            (Self::Divide(by), Expr::Bin(BinOp::FloorDiv, p, n)) if n == *by => p,
            (Self::Search { search, outer, .. }, Expr::Call(f, args)) if f == *search => {
                let (&p, others) = args.split_last()?;
                if others != *outer {
                    return None;
                }
                p
            }
            _ => return None,
        };
        // A neighbour in the row is a neighbour among positions: what is read is in its row.
        let own = self.element(env, position).1;
        let off = env.pool.sub(column, own);
        let off = normalize(&mut env.pool, off);
        let moves = env.pool.vars_of(position).into_iter().any(|v| env.pool.uses_var(off, v));
        (!moves).then(|| env.pool.add(position, off))
    }

    /// Row and column of a position.
    fn element(&self, env: &mut Env, position: ExprId) -> (ExprId, ExprId) {
        match self {
            Self::Divide(by) => (env.pool.floor_div(position, *by), env.pool.modulo(position, *by)),
            Self::Search { sum, search, outer } => {
                let row = env.pool.call(*search, outer.iter().copied().chain([position]));
                let start = env.pool.call(*sum, outer.iter().copied().chain([row]));
                (row, env.pool.sub(position, start))
            }
        }
    }

    /// How many positions a row has.
    fn length(&self, env: &mut Env, row: ExprId) -> Option<ExprId> {
        match self {
            Self::Divide(by) => Some(*by),
            Self::Search { sum, outer, .. } => {
                let body = env.ufs[*sum].def.body()?;
                let at: Vec<ExprId> = outer.iter().copied().chain([row]).collect();
                Some(env.pool.instantiate(body, &at))
            }
        }
    }

    /// How many positions `rows` rows have, which are all that there are.
    fn size(&self, env: &mut Env, rows: Option<ExprId>) -> Option<ExprId> {
        match self {
            Self::Divide(by) => rows.map(|n| env.pool.mul(n, *by)),
            Self::Search { sum, outer, .. } => {
                let all = *env.ufs[*sum].domain.last()?;
                let all = env.pool.instantiate(all, outer);
                Some(env.pool.call(*sum, outer.iter().copied().chain([all])))
            }
        }
    }
}

/// Two dimensions, or what is made of dimensions, that every read goes through by one fused loop.
struct Fused {
    rows: usize,
    /// In its place is the position from then on.
    columns: usize,
    way: Way,
}

/// A read of the tensor, and its index: the position in the place of the column of what is fused, nothing in that of the
/// row.
struct Read<'a> {
    reader: &'a Reader,
    access: &'a Access,
    index: Vec<Option<ExprId>>,
}

/// Which dimensions are fused, the ones that are fused first before others, and what is read then. Nothing where none are.
/// What the program itself divides is none of them: those are blocks, with names of their own.
fn fused<'a>(env: &mut Env, readers: &'a [Reader]) -> Option<(Vec<Fused>, Vec<Read<'a>>)> {
    let mut reads: Vec<Read> = Vec::new();
    for reader in readers {
        let whole = |a: &Access| a.index.iter().copied().map(Some).collect();
        reads.extend(reader.accesses.iter().map(|access| Read { reader, access, index: whole(access) }));
    }
    // Partial results are over the loops themselves: no program names the row that holds a position.
    let searches = |e: ExprId| {
        env.pool.any(e, &mut |n| matches!(n, Expr::Call(f, _) if matches!(env.ufs[*f].def, UfDef::Search { .. })))
    };
    let by_loops = |d: &usize| reads.iter().map(|r| r.access.raw[*d]).all(|e| near_var(&env.pool, e) || searches(e));
    let dims: Vec<usize> = (0..reads.first()?.index.len()).filter(by_loops).collect();
    let mut steps = Vec::new();
    while let Some(step) = next_fused(env, readers, &reads, &dims) {
        reads.iter_mut().try_for_each(|r| step.apply(env, &mut r.index))?;
        steps.push(step);
    }
    (!steps.is_empty()).then_some((steps, reads))
}

/// Whether an index is an iterator, or how far it is from one does not move with it.
fn near_var(pool: &ExprPool, e: ExprId) -> bool {
    match *pool.get(e) {
        Expr::Var(_) => true,
        Expr::Bin(BinOp::Add | BinOp::Sub, a, b) => {
            near_var(pool, a) && pool.vars_of(a).into_iter().all(|v| !pool.uses_var(b, v))
        }
        _ => false,
    }
}

fn next_fused(env: &mut Env, readers: &[Reader], reads: &[Read], dims: &[usize]) -> Option<Fused> {
    for &rows in dims {
        // One row in which all reads are is no part of a tile.
        let tile = |r: &Read| {
            let inner = &r.reader.loops[r.reader.outer..];
            r.index[rows].is_some_and(|e| inner.iter().any(|l| env.pool.uses_var(e, l.0)))
        };
        if !reads.iter().any(tile) {
            continue;
        }
        let Some(way) = reads[0].index[rows].and_then(|e| Way::of(env, e, readers)) else { continue };
        for &columns in dims.iter().filter(|&&d| d != rows) {
            let step = Fused { rows, columns, way: way.clone() };
            if reads.iter().all(|r| step.apply(env, &mut r.index.clone()).is_some()) {
                return Some(step);
            }
        }
    }
    None
}

impl Fused {
    /// Puts the position in the place of row and column.
    fn apply(&self, env: &mut Env, index: &mut [Option<ExprId>]) -> Option<()> {
        let position = self.way.position(env, index[self.rows]?, index[self.columns]?)?;
        index[self.rows] = None;
        index[self.columns] = Some(position);
        Some(())
    }

    /// Puts row and column in the place of the position, if that is known.
    fn undo(&self, env: &mut Env, index: &mut [Option<ExprId>]) -> Option<()> {
        let (row, column) = self.way.element(env, index[self.columns]?);
        index[self.rows] = Some(row);
        index[self.columns] = Some(column);
        Some(())
    }
}

/// One dimension of the buffer.
struct Slot {
    name: String,
    also: Option<String>,
    /// The producer's loop, and the first index that is read.
    var: VarId,
    lo: ExprId,
    bound: ExprId,
    /// The dimension of the tensor, the column's of those that are fused.
    dim: usize,
}

/// What is read along a dimension or along positions.
struct Along {
    lo: ExprId,
    /// The greatest of these is the last.
    ends: Vec<ExprId>,
    clip: bool,
    /// The last that there is.
    last: ExprId,
    /// Whether it is one index of one dimension.
    single: bool,
}

/// The nest over the positions, and over a box in the other dimensions; each reader then reads the buffer by how far its
/// index is from the first that is read. Nothing where the readers are not at positions of one fused loop, or where no size
/// for the buffer is known.
pub(super) fn build_positions(
    m: &mut LoopModule,
    stage: TensorId,
    own: &Naive,
    readers: &[Reader],
    mask: &[ExprId],
) -> Option<Stmt> {
    // A layout is one of the producer's own dimensions.
    if !m.env.tensors[stage].layout.is_empty() {
        return None;
    }
    let env = &mut m.env;
    let (steps, reads) = fused(env, readers)?;
    let around = readers.first()?.loops[..readers[0].outer].to_vec();
    let facts = Facts::in_loops(around.iter().copied());
    let mut block = own.main.clone();
    let mut map: FxHashMap<VarId, ExprId> = FxHashMap::default();
    let (mut loops, mut slots) = (around.clone(), Vec::new());
    let mut bindings: Vec<Option<ExprId>> = vec![None; reads[0].index.len()];
    let mut rows: Vec<Option<ExprId>> = vec![None; steps.len()];
    let mut dim = 0;
    for (it, &extent) in block.iters.iter_mut().zip(&own.extents) {
        let extent = env.pool.substitute(extent, &map);
        if it.kind == IterKind::Reduce {
            let var = env.new_var(env.vars[it.var].name.clone());
            loops.push((var, extent));
            it.binding = env.pool.var(var);
            map.insert(it.var, it.binding);
            continue;
        }
        if bindings[dim].is_none() {
            let at = steps.iter().fold(dim, |d, s| if s.rows == d { s.columns } else { d });
            let read: Vec<(&Reader, ExprId)> = reads.iter().filter_map(|r| Some((r.reader, r.index[at]?))).collect();
            let along = if steps.iter().any(|s| s.columns == at) {
                // How many positions there are.
                let mut sizes: Vec<Option<ExprId>> = vec![None; bindings.len()];
                sizes[dim] = Some(extent);
                for s in &steps {
                    sizes[s.columns] = s.way.size(env, sizes[s.rows]);
                }
                along_positions(env, &read, &facts, sizes[at]?)?
            } else {
                let known = range_of_dim(env, readers, dim, mask, &[]);
                along_dimension(env, known, extent)
            };
            if env.pool.vars_of(along.last).iter().any(|v| own.main.iters.iter().any(|i| i.var == *v)) {
                return None;
            }
            let spans = spanned(env, &read);
            let mut element = vec![None; bindings.len()];
            element[at] = Some(if along.single && !spans.unit {
                along.lo
            } else {
                let name = env.tensors[stage].dims[at].name.clone();
                let also = spans.name(env).filter(|n| *n != name);
                let (lo, size, bound) = along.sizes(env, &facts, &loops)?;
                let var = env.new_var(name.clone());
                env.vars[var].also.clone_from(&also);
                loops.push((var, size));
                slots.push(Slot { name, also, var, lo, bound, dim: at });
                let v = env.pool.var(var);
                env.pool.add(lo, v)
            });
            for (s, row) in steps.iter().zip(&mut rows).rev() {
                if s.undo(env, &mut element).is_some() {
                    *row = element[s.rows];
                }
            }
            bindings.iter_mut().zip(element).for_each(|(b, e)| *b = b.or(e));
        }
        it.binding = bindings[dim]?;
        // Positions that only pad a row are no columns, nor are those of a row that is another dimension's too.
        if let Some((s, &row)) = steps.iter().zip(&rows).find(|(s, _)| s.columns == dim) {
            let length = s.way.length(env, row?)?;
            if normalize(&mut env.pool, length) != normalize(&mut env.pool, extent) {
                return None;
            }
        }
        dim += 1;
        map.insert(it.var, it.binding);
    }
    own.add_terms(env, &mut block, &map);
    let inner = loops.split_off(around.len());
    // An output stays where it is.
    if env.tensors[stage].role == Role::Output {
        return Some(wrap(env, stage, block, &inner));
    }
    let by: Vec<_> = slots.iter().map(|s| (s.name.clone(), s.bound, env.pool.var(s.var))).collect();
    write_slots(env, &mut block, &by);
    let dim_of = |s: &Slot| TensorDim { also: s.also.clone(), ..TensorDim::new(s.name.clone(), s.bound) };
    env.tensors[stage].dims = slots.iter().map(dim_of).collect();
    for r in &reads {
        let mut by = Vec::new();
        for s in &slots {
            let index = m.env.pool.sub(r.index[s.dim]?, s.lo);
            by.push((s.name.clone(), normalize(&mut m.env.pool, index)));
        }
        read_slots(m, stage, (r.reader, r.access), &by);
    }
    Some(wrap(&mut m.env, stage, block, &inner))
}

impl Along {
    /// Where the loop begins, its extent, and a bound of that whatever `loops` are at.
    fn sizes(self, env: &mut Env, facts: &Facts, loops: &[(VarId, ExprId)]) -> Option<(ExprId, ExprId, ExprId)> {
        let Self { lo, ends, clip, last, .. } = self;
        let mut bound: Option<ExprId> = None;
        for &hi in &ends {
            let (_, size) = clipped(env, facts, Range { lo, hi, clip }, last);
            let one = bound_above(env, size, loops)?;
            bound = Some(bound.map_or(one, |b| env.pool.max(b, one)));
        }
        let bound = normalize(&mut env.pool, bound?);
        let hi = ends.into_iter().reduce(|a, b| env.pool.max(a, b))?;
        let (lo, size) = clipped(env, facts, Range { lo, hi, clip }, last);
        Some((lo, size, bound))
    }
}

/// A known range in a dimension, or all of it.
fn along_dimension(env: &mut Env, known: Option<Range>, extent: ExprId) -> Along {
    let (zero, last) = (env.pool.int(0), last_of(env, extent));
    let single = known.is_some_and(|k| k.lo == k.hi && !k.clip);
    let Range { lo, hi, clip } = known.unwrap_or(Range { lo: zero, hi: last, clip: false });
    Along { lo, ends: vec![hi], clip, last, single }
}

fn last_of(env: &mut Env, extent: ExprId) -> ExprId {
    let one = env.pool.int(1);
    let last = env.pool.sub(extent, one);
    normalize(&mut env.pool, last)
}

/// The positions of all reads among `size`, if they are known where the nest is attached.
fn along_positions(env: &mut Env, read: &[(&Reader, ExprId)], facts: &Facts, size: ExprId) -> Option<Along> {
    let prover = &mut Prover::new();
    let (mut first, mut ends): (Option<ExprId>, Vec<ExprId>) = (None, Vec::new());
    for (r, position) in read {
        let (lo, hi) = range_over(env, *position, &r.loops, r.outer)?;
        if [lo, hi].into_iter().any(|e| r.reads_attached(env, e) || !is_defined(env, prover, facts, e)) {
            return None;
        }
        first = Some(first.map_or(lo, |f| env.pool.min(f, lo)));
        if !ends.iter().any(|&e| never_beyond(env, prover, facts, hi, e)) {
            ends.retain(|&e| !never_beyond(env, prover, facts, e, hi));
            ends.push(hi);
        }
    }
    let (zero, last) = (env.pool.int(0), last_of(env, size));
    let lo = first?;
    // There is nothing before the first position that is read.
    let clip = !never_above(env, facts, zero, lo);
    Some(Along { lo, ends, clip, last, single: false })
}

/// Whether `a <= b`, where both may be minima: whatever bounds `b` has something in `a` that is no greater.
fn never_beyond(env: &mut Env, prover: &mut Prover, facts: &Facts, a: ExprId, b: ExprId) -> bool {
    let (a, b) = (least_operands(&mut env.pool, a), least_operands(&mut env.pool, b));
    b.iter().all(|&bound| {
        a.contains(&bound)
            || a.iter().any(|&e| {
                let goal = env.pool.le(e, bound);
                prover.prove(env, facts, goal).is_proved()
            })
    })
}
