//! The form of an attached stage that copies its reader's loops: what is read is no box, and each iteration of the reader
//! reads one element, or a few. The buffer is indexed by those loops, after which of the reads it is for.
//!
//! ```text
//! for f { U[at(f), f - F(at(f))] = P[at(f), f - F(at(f))] }
//!   =>  for %f { P[%f] = ..[at(%f), %f - F(at(%f))].. }      reader: P[f]
//! for f { U[at(f), f - F(at(f))] = P[at(f), 2 * (f - F(at(f)))] + P[at(f), 2 * (f - F(at(f))) + 1] }
//!   =>  for %read in 0..2 { for %f { P[%read, %f] = ..[at(%f), 2 * (%f - F(at(%f))) + %read].. } }
//!                                                            reader: P[0, f] + P[1, f]
//! ```

use super::compute_at::{Naive, all_in_turn};
use super::conditions::is_condition;
use super::defined::is_defined;
use super::readers::{Access, Reader};
use super::region::bound_above;
use super::slots::{read_slots, wrap, write_slots};
use super::tree::stmt_at;
use crate::simplify::{Facts, Prover};
use cora_ir::affine::normalize;
use cora_ir::loops::{IterKind, LoopModule, Stmt};
use cora_ir::{BinOp, Env, Expr, ExprId, ExprPool, Role, TensorDim, TensorId, VarId};
use rustc_hash::FxHashMap;

/// The readers, if each reads one element an iteration at its own iterators, or at constants.
pub(super) fn pointwise<'a>(m: &LoopModule, tensor: TensorId, readers: &'a [Reader]) -> Option<&'a [Reader]> {
    // A layout is one of the producer's own dimensions.
    if !m.env.tensors[tensor].layout.is_empty() {
        return None;
    }
    let plain = |r: &Reader| {
        let [Access { raw, .. }] = r.accesses.as_slice() else { return false };
        let (at_iterators, others): (Vec<ExprId>, Vec<ExprId>) =
            raw.iter().partition(|&&e| m.env.pool.as_var(e).is_some());
        let constant = others.iter().all(|&e| m.env.pool.as_int(e).is_some());
        let distinct = (1..at_iterators.len()).all(|i| !at_iterators[..i].contains(&at_iterators[i]));
        constant && distinct && m.env.tensors[tensor].dims.len() == raw.len()
    };
    readers.iter().all(plain).then_some(readers)
}

/// A reader that reads more elements an iteration has no form of its own.
const MOST_READS: usize = 4;

/// The readers, if each reads one element an iteration of its own spatial loops, or as many as the others of a few: no more
/// than that many for each that it computes.
pub(super) fn few_each<'a>(m: &LoopModule, tensor: TensorId, readers: &'a [Reader]) -> Option<&'a [Reader]> {
    if !m.env.tensors[tensor].layout.is_empty() {
        return None;
    }
    let reads = readers.first()?.accesses.len();
    let few = |r: &Reader| {
        let Some(Stmt::Block(block)) = stmt_at(&m.body, &r.block) else { return false };
        let pool = &m.env.pool;
        let loads = |e: ExprId| pool.any(e, &mut |n| matches!(n, Expr::Load { .. }));
        let over = |v: &VarId| block.iters.iter().any(|i| i.var == *v && i.kind == IterKind::Reduce);
        let reduced = |e: ExprId| pool.vars_of(e).iter().any(over);
        // A guard says of one of them whether there is such an element.
        let guarded = reads > 1 && r.accesses.iter().any(|a| a.guard.is_some());
        let own = |a: &Access| !a.raw.iter().any(|&e| loads(e) || reduced(e));
        r.accesses.len() == reads && !guarded && r.accesses.iter().all(own)
    };
    (reads <= MOST_READS && readers.iter().all(few)).then_some(readers)
}

/// The variables of the reader's inner loops that `exprs` depend on.
fn used_loops<'a>(env: &Env, r: &Reader, exprs: impl Iterator<Item = &'a ExprId>) -> Vec<VarId> {
    let exprs: Vec<ExprId> = exprs.copied().collect();
    let mut used: Vec<VarId> = Vec::new();
    for &(v, extent) in r.loops[r.outer..].iter().rev() {
        if exprs.iter().any(|&e| env.pool.uses_var(e, v)) || used.contains(&v) {
            used.push(v);
            used.extend(env.pool.vars_of(extent));
        }
    }
    used
}

/// The extents of the reader's inner loops that its one access depends on.
pub(super) fn mirrored_extents(env: &Env, r: &Reader) -> Vec<ExprId> {
    let used = used_loops(env, r, r.accesses[0].index.iter());
    r.loops[r.outer..].iter().filter(|(v, _)| used.contains(v)).map(|l| l.1).collect()
}

/// The inner loops of a reader that say which element it reads, and under which conditions it reads one.
struct Mirrored {
    loops: Vec<(VarId, ExprId)>,
    masks: Vec<ExprId>,
    /// Of these, loops of the reader that are conditions and are not among `loops`: inside them functions have values.
    around: Vec<ExprId>,
}

/// Nothing where a condition reads what is attached.
fn mirrored(env: &mut Env, r: &Reader, mask: &[ExprId]) -> Option<Mirrored> {
    let masks = r.predicate.iter().copied().filter(|c| !mask.contains(c));
    let access: Vec<ExprId> = r.accesses.iter().flat_map(|a| a.index.iter().copied()).collect();
    // Conditions without which an index may be out of bounds: those that share a variable with one.
    let indexed: Vec<VarId> = access.iter().flat_map(|&e| env.pool.vars_of(e)).collect();
    let relevant = |p: &ExprId| env.pool.vars_of(*p).iter().any(|v| indexed.contains(v));
    let mut masks: Vec<ExprId> = masks.chain(r.accesses[0].guard).filter(relevant).collect();
    if masks.iter().any(|&c| r.reads_attached(env, c)) {
        return None;
    }
    let used = used_loops(env, r, access.iter().chain(&masks));
    // A loop that is not copied may be what keeps the reader from running.
    let mut around = Vec::new();
    for (n, &(v, extent)) in r.loops.iter().enumerate().skip(r.outer) {
        if !used.contains(&v) && !r.runs(env, n) {
            let zero = env.pool.int(0);
            let runs = env.pool.lt(zero, extent);
            if !mask.contains(&runs) && env.pool.vars_of(runs).iter().any(|v| indexed.contains(v)) {
                masks.push(runs);
                around.extend(is_condition(&env.pool, extent).then_some(runs));
            }
        }
    }
    if masks.iter().any(|&c| r.reads_attached(env, c)) {
        return None;
    }
    let used = used_loops(env, r, access.iter().chain(&masks));
    let loops = r.loops[r.outer..].iter().filter(|(v, _)| used.contains(v)).copied().collect();
    Some(Mirrored { loops, masks, around })
}

/// Whether a reader with these loops reads the same elements, in the same order, as one with those of `first`.
fn reads_alike(env: &mut Env, (r, own): (&Reader, &Mirrored), (first, of): (&Reader, &Mirrored)) -> bool {
    let mut map: FxHashMap<VarId, ExprId> = FxHashMap::default();
    for (&(v, extent), &(w, other)) in own.loops.iter().zip(&of.loops) {
        if env.pool.substitute(extent, &map) != other {
            return false;
        }
        map.insert(v, env.pool.var(w));
    }
    let mut all = |from: &[ExprId], to: &[ExprId]| {
        from.len() == to.len() && from.iter().zip(to).all(|(&e, &f)| env.pool.substitute(e, &map) == f)
    };
    own.loops.len() == of.loops.len()
        && r.accesses.iter().zip(&first.accesses).all(|(a, b)| all(&a.index, &b.index))
        && all(&own.masks, &of.masks)
}

/// Nothing if no size for the buffer is known, or readers read different elements.
pub(super) fn build_pointwise(
    m: &mut LoopModule,
    stage: TensorId,
    own: &Naive,
    readers: &[Reader],
    mask: &[ExprId],
) -> Option<Stmt> {
    let env = &mut m.env;
    let all: Vec<Mirrored> = readers.iter().map(|r| mirrored(env, r, mask)).collect::<Option<_>>()?;
    let (r, of) = (readers.first()?, all.first()?);
    if !readers.iter().zip(&all).all(|one| reads_alike(env, one, (r, of))) {
        return None;
    }
    let Mirrored { loops: mirrored, masks, around } = of;
    let mut access = r.accesses[0].index.clone();
    // Copies of the reader's loops, and the producer's indices through them.
    let mut map: FxHashMap<VarId, ExprId> = FxHashMap::default();
    let (mut loops, mut dims) = (Vec::new(), Vec::new());
    let old = env.tensors[stage].dims.clone();
    for (&(v, extent), d) in mirrored.iter().zip(dims_of_loops(env, &access, mirrored)) {
        let name = env.vars[v].name.clone();
        let also = d.map(|d| old[d].name.clone()).filter(|n| *n != name);
        let bound = bound_above(env, extent, &r.loops)?;
        dims.push(TensorDim { also: also.clone(), ..TensorDim::new(name.clone(), bound) });
        // It may have a value only inside a condition that is not copied.
        let inside = |e: ExprId| mirrored.iter().any(|l| env.pool.uses_var(e, l.0) && !map.contains_key(&l.0));
        let known: Vec<ExprId> = around.iter().copied().filter(|&c| !inside(c)).collect();
        let facts = Facts::in_loops(r.loops[..r.outer].iter().chain(mirrored).copied());
        let extent = if known.is_empty() || is_defined(env, &mut Prover::new(), &facts, extent) {
            extent
        } else {
            let (holds, zero) = (all_in_turn(env, &known), env.pool.int(0));
            env.pool.select(holds, extent, zero)
        };
        let extent = env.pool.substitute(extent, &map);
        let copy = env.new_var(name);
        env.vars[copy].also = also;
        let e = env.pool.var(copy);
        map.insert(v, e);
        loops.push((copy, extent));
    }
    let reads = r.accesses.len();
    if reads > 1 {
        let taken = |name: &str| block_names(env, own).chain(dims.iter().map(|d| d.name.as_str())).any(|n| n == name);
        let name = (0..).map(|n| if n == 0 { "read".to_owned() } else { format!("read{n}") }).find(|n| !taken(n))?;
        let var = env.new_var(name.clone());
        let (which, extent) = (env.pool.var(var), env.pool.int(reads as i64));
        for (d, e) in access.iter_mut().enumerate() {
            let of_each: Vec<ExprId> = r.accesses.iter().map(|a| a.index[d]).collect();
            *e = one_of(&mut env.pool, which, &of_each);
        }
        loops.insert(0, (var, extent));
        dims.insert(0, TensorDim::new(name, extent));
    }
    let mut block = own.main.clone();
    block.predicate = masks.iter().map(|&p| env.pool.substitute(p, &map)).collect();
    let mut bound: FxHashMap<VarId, ExprId> = FxHashMap::default();
    let mut access = access.iter();
    let mut reduce_loops = Vec::new();
    for (it, &extent) in block.iters.iter_mut().zip(&own.extents) {
        it.binding = match it.kind {
            IterKind::Spatial => env.pool.substitute(*access.next().expect("one index a dimension"), &map),
            IterKind::Reduce => {
                let extent = env.pool.substitute(extent, &bound);
                // Where the reader is masked the position may lie outside, and functions have no value.
                let here: Vec<ExprId> = masks.iter().map(|&c| env.pool.substitute(c, &map)).collect();
                let extent = if env.pool.any(extent, &mut |n| matches!(n, Expr::Call(..))) {
                    let (holds, zero) = (all_in_turn(env, &here), env.pool.int(0));
                    env.pool.select(holds, extent, zero)
                } else {
                    extent
                };
                let name = env.vars[it.var].name.clone();
                let var = env.new_var(name);
                reduce_loops.push((var, extent));
                env.pool.var(var)
            }
        };
        bound.insert(it.var, it.binding);
    }
    own.add_terms(env, &mut block, &bound);
    loops.extend(reduce_loops);
    // An output stays where it is.
    if env.tensors[stage].role == Role::Output {
        return Some(wrap(env, stage, block, &loops));
    }
    // The buffer is indexed by the loops: one more iterator for each, on both sides.
    let slots = loops.iter().zip(&dims).map(|(&(v, _), d)| (env.vars[v].name.clone(), d.extent, env.pool.var(v)));
    let slots: Vec<_> = slots.collect();
    write_slots(env, &mut block, &slots);
    env.tensors[stage].dims = dims;
    for (r, of) in readers.iter().zip(&all) {
        for (n, access) in r.accesses.iter().enumerate() {
            let which = (reads > 1).then(|| (m.env.tensors[stage].dims[0].name.clone(), m.env.pool.int(n as i64)));
            let by = of.loops.iter().map(|&(v, _)| (m.env.vars[v].name.clone(), m.env.pool.var(v)));
            let by: Vec<_> = which.into_iter().chain(by).collect();
            read_slots(m, stage, (r, access), &by);
        }
    }
    Some(wrap(&mut m.env, stage, block, &loops))
}

/// The names that the stage's own iterators have.
fn block_names<'a>(env: &'a Env, own: &'a Naive) -> impl Iterator<Item = &'a str> {
    own.main.iters.iter().map(|i| env.vars[i.var].name.as_str())
}

/// Of `all`, the one that `which` counts: a sum where they are as far from each other.
fn one_of(pool: &mut ExprPool, which: ExprId, all: &[ExprId]) -> ExprId {
    let (first, rest) = (all[0], &all[1..]);
    let apart = |pool: &mut ExprPool, (a, b): (ExprId, ExprId)| {
        let difference = pool.sub(b, a);
        let difference = normalize(pool, difference);
        pool.as_int(difference)
    };
    let steps: Vec<Option<i64>> = all.windows(2).map(|w| apart(pool, (w[0], w[1]))).collect();
    if let Some(step) = steps[0].filter(|_| steps.iter().all(|s| *s == steps[0])) {
        let step = pool.int(step);
        let farther = pool.mul(which, step);
        return pool.add(first, farther);
    }
    let mut chosen = first;
    for (n, &e) in rest.iter().enumerate() {
        let this = pool.int(n as i64 + 1);
        let is = pool.bin(BinOp::Eq, which, this);
        chosen = pool.select(is, e, chosen);
    }
    chosen
}

/// For each loop the last dimension whose index depends on it, if no other loop has that.
pub(super) fn dims_of_loops(env: &Env, index: &[ExprId], loops: &[(VarId, ExprId)]) -> Vec<Option<usize>> {
    let last = |v: VarId| index.iter().rposition(|&e| env.pool.uses_var(e, v));
    let all: Vec<_> = loops.iter().map(|l| last(l.0)).collect();
    let alone = |d: &Option<usize>| d.filter(|_| all.iter().filter(|x| *x == d).count() == 1);
    all.iter().map(alone).collect()
}
