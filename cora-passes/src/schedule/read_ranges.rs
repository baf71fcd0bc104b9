//! The positions of a tensor that readers need at a loop: what a stage is computed for where it is attached
//! (paper section 5.2).

use super::defined::is_defined;
use super::readers::{Access, Reader};
use super::region::{choices, plainly_below, range_over, without_greater, without_lesser};
use crate::lower::sign::{as_size, never_negative};
use crate::simplify::{Facts, Prover, interval};
use cora_ir::affine::{normalize, shift_min};
use cora_ir::{Env, Expr, ExprId, UfDef, VarId};
use rustc_hash::FxHashMap;

/// The positions of one dimension that are read.
#[derive(Clone, Copy)]
pub(super) struct Range {
    pub(super) lo: ExprId,
    pub(super) hi: ExprId,
    /// Whether some of them may lie outside the dimension.
    pub(super) clip: bool,
}

impl Range {
    /// The least range around both.
    fn hull(env: &mut Env, a: Option<Self>, b: Self) -> Self {
        let Some(a) = a else { return b };
        let pool = &mut env.pool;
        let lo = match (plainly_below(pool, a.lo, b.lo), plainly_below(pool, b.lo, a.lo)) {
            (true, _) => a.lo,
            (_, true) => b.lo,
            // The first position of all is below any, which are not negative then.
            _ if pool.as_int(a.lo) == Some(0) && never_negative(env, &[], b.lo) => a.lo,
            _ if env.pool.as_int(b.lo) == Some(0) && never_negative(env, &[], a.lo) => b.lo,
            _ => env.pool.min(a.lo, b.lo),
        };
        let pool = &mut env.pool;
        let hi = match (plainly_below(pool, b.hi, a.hi), plainly_below(pool, a.hi, b.hi)) {
            (true, _) => a.hi,
            (_, true) => b.hi,
            _ => pool.max(a.hi, b.hi),
        };
        Self { lo, hi, clip: a.clip || b.clip }
    }
}

/// The range of an access's index in dimension `d` over the reader's inner loops, if it is known where
/// the nest is attached, under the conditions `held`: an index that is itself read from an attached
/// stage is not, nor one without a value in iterations that do not read. Readers are certain under `mask`.
fn known_range(
    env: &mut Env,
    r: &Reader,
    access: &Access,
    d: usize,
    mask: &[ExprId],
    held: &[ExprId],
) -> Option<Range> {
    let (lo, hi) = range_over(env, access.index[d], &r.loops, r.outer)?;
    let hi = last_counted(env, r, access, d, hi).unwrap_or(hi);
    if r.reads_attached(env, lo) || r.reads_attached(env, hi) {
        return None;
    }
    if !r.certain || access.guard.is_some() || mask.len() != held.len() {
        let mut facts = Facts::in_loops(r.loops[..r.outer].iter().copied());
        facts.assumptions.extend(held);
        let prover = &mut Prover::new();
        if !is_defined(env, prover, &facts, lo) || !is_defined(env, prover, &facts, hi) {
            return None;
        }
    }
    Some(Range { lo, hi, clip: access.conditional[d] })
}

/// Minima and maxima in a bound that may have a plainer form.
const MANY_CHOICES: usize = 3;

/// The last position of the iterator that an index is, if that is as low a bound as `hi`, which has many choices: loops over
/// tiles have them for tiles that are not whole.
fn last_counted(env: &mut Env, r: &Reader, access: &Access, d: usize, hi: ExprId) -> Option<ExprId> {
    if choices(&env.pool, hi) < MANY_CHOICES {
        return None;
    }
    let iter = env.pool.as_var(access.raw[d])?;
    let extent = r.iters.iter().find(|i| i.var == iter)?.extent;
    let bindings: FxHashMap<VarId, ExprId> = r.iters.iter().map(|i| (i.var, i.binding)).collect();
    let count = env.pool.substitute(extent, &bindings);
    let inner = &r.loops[r.outer..];
    // Rows are searched for positions that are clamped elsewhere.
    let searches = |n: &Expr| matches!(n, Expr::Call(f, _) if matches!(env.ufs[*f].def, UfDef::Search { .. }));
    if inner.iter().any(|l| env.pool.uses_var(count, l.0)) || env.pool.any(count, &mut |n| searches(n)) {
        return None;
    }
    let one = env.pool.int(1);
    let last = env.pool.sub(count, one);
    let last = normalize(&mut env.pool, last);
    let (around, facts) =
        (Facts::in_loops(r.loops[..r.outer].iter().copied()), Facts::in_loops(r.loops.iter().copied()));
    let goals = [env.pool.lt(access.index[d], count), env.pool.le(last, hi)];
    let mut prover = Prover::new();
    let holds = choices(&env.pool, last) < choices(&env.pool, hi)
        && is_defined(env, &mut prover, &around, last)
        && goals.into_iter().all(|g| prover.prove(env, &facts, g).is_proved());
    holds.then_some(last)
}

/// The range of all reads in dimension `d`, if each is known.
pub(super) fn range_of_dim(
    env: &mut Env,
    readers: &[Reader],
    d: usize,
    mask: &[ExprId],
    held: &[ExprId],
) -> Option<Range> {
    let mut range = None;
    for r in readers {
        for access in &r.accesses {
            let one = known_range(env, r, access, d, mask, held)?;
            range = Some(Range::hull(env, range, one));
        }
    }
    range
}

/// Whether by declared ranges a range may begin before the first position: that of a loop without iterations has no meaning.
fn may_be_negative(env: &mut Env, around: &Facts, lo: ExprId) -> bool {
    interval::bounds(env, around, lo).lo.is_some_and(|n| n < 0) && !is_position(env, around, lo)
}

fn is_position(env: &mut Env, around: &Facts, lo: ExprId) -> bool {
    let zero = env.pool.int(0);
    let goal = env.pool.le(zero, lo);
    Prover::new().prove(env, around, goal).is_proved()
}

/// Where a range begins and how long it is, without what lies outside `0..=last`.
pub(super) fn clipped(env: &mut Env, around: &Facts, Range { lo, hi, clip }: Range, last: ExprId) -> (ExprId, ExprId) {
    // Reads that no condition guards are in bounds: such a range is clipped only where it was
    // overestimated.
    let hi = if hi == last || never_above(env, around, hi, last) { hi } else { env.pool.min(hi, last) };
    let clipped = if clip { !is_position(env, around, lo) } else { may_be_negative(env, around, lo) };
    let lo = if clipped { as_size(env, &[], lo) } else { lo };
    let lo = without_lesser(&mut env.pool, lo);
    let one = env.pool.int(1);
    let size = env.pool.sub(hi, lo);
    let size = env.pool.add(size, one);
    let size = shift_min(&mut env.pool, size);
    (lo, without_greater(env, around, size))
}

/// The readers' inner loops that run through a dimension.
#[derive(Default)]
pub(super) struct Spans {
    /// The one loop, if the index of every read is a position plus its variable.
    one: Option<VarId>,
    /// Whether one that the index depends on has one iteration by the program's constants.
    pub(super) unit: bool,
}

impl Spans {
    pub(super) fn name(&self, env: &Env) -> Option<String> {
        self.one.map(|v| env.vars[v].name.clone())
    }
}

/// What runs through an index of the tensor that is read, given for each read.
pub(super) fn spanned(env: &mut Env, read: &[(&Reader, ExprId)]) -> Spans {
    let mut all = Vec::new();
    let mut unit = false;
    for &(r, index) in read {
        let used: Vec<_> = r.loops[r.outer..].iter().filter(|l| env.pool.uses_var(index, l.0)).copied().collect();
        unit |= used.iter().any(|l| env.pool.as_int(l.1) == Some(1));
        let one = if let [(v, _)] = used[..] { starts_at(env, index, v).then_some(v) } else { None };
        all.push(one);
    }
    let one = all.first().copied().flatten().filter(|_| all.iter().all(|v| *v == all[0]));
    Spans { one, unit }
}

/// The index of every read in dimension `d`.
pub(super) fn indices(readers: &[Reader], d: usize) -> Vec<(&Reader, ExprId)> {
    readers.iter().flat_map(|r| r.accesses.iter().map(move |a| (r, a.index[d]))).collect()
}

/// Whether `index` is `v` and something that does not depend on it.
fn starts_at(env: &mut Env, index: ExprId, v: VarId) -> bool {
    let e = env.pool.var(v);
    let rest = env.pool.sub(index, e);
    let rest = normalize(&mut env.pool, rest);
    !env.pool.uses_var(rest, v)
}

/// Whether `a <= b` by the ranges of the loops around.
pub(super) fn never_above(env: &mut Env, around: &Facts, a: ExprId, b: ExprId) -> bool {
    let distance = env.pool.sub(b, a);
    let distance = normalize(&mut env.pool, distance);
    interval::bounds(env, around, distance).lo.is_some_and(|lo| lo >= 0)
}
