//! Innermost loops run without conditions where all hold: a loop whose masks, guards and branches fail from some
//! iteration on is cut there.
//!
//! ```text
//! for %o in 0..(n + 15) // 16 { @S[ramp(%o * 16, 1, 16)] = v mask ramp(0, 1, 16) < splat(min(16, n - %o * 16), 16) }
//!   =>  for %o in 0..n // 16 { @S[ramp(%o * 16, 1, 16)] = v }
//!       if n // 16 < (n + 15) // 16 { @S[ramp(n // 16 * 16, 1, 16)] = v mask .. }
//! ```
//!
//! Where an iteration after the first failure no condition holds any more, there is one partial iteration, a branch. What
//! lanes filled up beyond the tail still do after it is a loop of their own, without conditions too.
//!
//! A condition counts if it is of the form `x < b - a * %o` with positive `a` (or a conjunction, minimum or maximum of
//! such) and reads nothing but tables, so that the iterations where it holds come first. The others stay as they are, in
//! both parts. Branches that are decided where a partial iteration is known are gone.
//!
//! In kernels of a grid a loop of which nothing is left after the cut ends there; otherwise only loops with several
//! conditions are cut, which a thread's unrolled tile has: threads that go different ways run one after the other, and a
//! second loop takes its time.
//!
//! Requires: no vector or unrolled loops. Ensures: the same statements in the same order. Runs after `hoist-loads`, since
//! reads in the tail are valid only where it runs.

mod conditions;

use super::Simplifier;
use super::decide::decide_branches;
use super::place::{Place, Rewrite, Tables};
pub(super) use conditions::{copy, failing, without};
use conditions::{guards, skipping};
use cora_ir::affine::{Poly, build, least_operands, poly};
use cora_ir::loops::LoopKind;
use cora_ir::storage::{Stmt, StorageModule};
use cora_ir::{BinOp, Env, Expr, ExprId, ScalarType, VarId};
use rustc_hash::{FxHashMap, FxHashSet};

/// Conditions that end at unrelated iterations: a loop with more of them is not cut.
const MOST_ENDS: usize = 3;
/// On a grid, where a tail costs registers, fewer conditions are left where they are.
const FEWEST_ON_GRID: usize = 4;
/// So many are compared to see which of them come first, as those of the unrolled rows of a tile do.
const MOST_COMPARED: usize = 16;
/// After so many comparisons of one loop without a proof the loop is left as it is, and others of its kernel that have as many
/// conditions: each takes the solver its full time.
const MOST_UNPROVED: usize = 24;
/// So it is after so many without any proof.
const MOST_IN_VAIN: usize = 8;

/// Cuts such loops in every kernel.
pub fn cut_tails(m: &mut StorageModule, simplifier: &mut dyn Simplifier) {
    let tables = Tables::of(m);
    for k in &mut m.kernels {
        let (grid, place, inner) = (k.is_grid(), Place::new(&tables), FxHashMap::default());
        let mut cx = Cut { env: &mut m.env, simplifier, grid, place, inner, given_up: usize::MAX };
        let body = std::mem::take(&mut k.body);
        let body = cx.body(body);
        k.body = decide_branches(&mut m.env, body);
    }
}

struct Cut<'a> {
    env: &'a mut Env,
    simplifier: &'a mut dyn Simplifier,
    /// Whether the kernel runs on a grid.
    grid: bool,
    /// What is known there, but for what is inside the loop.
    place: Place<'a>,
    /// What names inside the loop stand for.
    inner: FxHashMap<VarId, ExprId>,
    /// The conditions of the smallest loop of the kernel that was given up.
    given_up: usize,
}

/// Holds in the first `ceil(rest / step)` iterations.
#[derive(Clone, PartialEq)]
struct End {
    rest: Poly,
    step: i64,
}

impl<'a> Rewrite<'a> for Cut<'a> {
    fn at(&mut self) -> (&mut Env, &mut Place<'a>) {
        (self.env, &mut self.place)
    }

    fn replaced(&mut self, s: Stmt) -> Result<Vec<Stmt>, Stmt> {
        in_parts(s, |var, extent, body| self.cut(var, extent, body))
    }
}

impl Cut<'_> {
    /// The two parts of a loop, if there is something to gain.
    fn cut(&mut self, var: VarId, extent: ExprId, body: &[Stmt]) -> Option<Vec<Stmt>> {
        let (mut hold, mut ends) = (FxHashSet::default(), Vec::new());
        let mut found = Vec::new();
        for c in self.conditions(body) {
            if let Some(own) = self.ends(var, c) {
                hold.insert(c);
                own.iter().for_each(|e| add_end(&mut ends, e.clone()));
                found.push((c, own));
            }
        }
        let plain = |s: &Stmt| matches!(s, Stmt::Let { .. } | Stmt::If { .. } | Stmt::Store { .. });
        if self.grid && body.iter().any(|s| s.any(&mut |s| !plain(s))) {
            return None;
        }
        if ends.len() > 1 && ends.len() <= MOST_COMPARED {
            if ends.len() >= self.given_up {
                return None;
            }
            let many = ends.len();
            let Some(first) = self.earliest(ends) else {
                self.given_up = many;
                return None;
            };
            ends = first;
        }
        if ends.is_empty() || ends.len() > MOST_ENDS {
            return None;
        }
        // What ends first of all, or in the same iteration, fails from there on, unless it speaks of several lanes.
        let mut fails = FxHashSet::default();
        if let [first] = ends.as_slice() {
            let last = self.count(first);
            for (c, own) in &found {
                let scalar = self.env.pool.ty(*c).lanes == 1;
                if scalar && own.iter().any(|e| e == first || self.ends_by(e, last)) {
                    fails.insert(*c);
                }
            }
        }
        let one_partial = self.fail_together(&found, &ends);
        let (common, full, first) = self.full(extent, ends);
        let main = Stmt::For { var, extent: full, kind: LoopKind::Serial, body: without(self.env, body, &hold) };
        let rest = skipping(self.env, body, &fails);
        if rest.is_empty() {
            return Some(vec![main]);
        }
        if self.grid && found.len() < FEWEST_ON_GRID {
            return None;
        }
        let tail = self.tail((var, extent), first, &rest);
        let tail = match tail {
            Stmt::For { .. } if one_partial => self.partial((var, extent), (common, first), &rest, &hold),
            single => vec![single],
        };
        Some([vec![main], tail].concat())
    }

    /// Whether provably no condition holds in any lane an iteration after the first of them fails.
    fn fail_together(&mut self, found: &[(ExprId, Vec<End>)], ends: &[End]) -> bool {
        let first: Vec<ExprId> = ends.iter().map(|e| self.count(e)).collect();
        let one = self.env.pool.int(1);
        let mut known = FxHashMap::default();
        found.iter().all(|(c, own)| {
            if self.env.pool.ty(*c).lanes > 1 {
                return own.as_slice() == ends && ends.len() == 1 && self.fails_after_one(*c, &ends[0]);
            }
            let own: Vec<ExprId> = own.iter().map(|e| self.count(e)).collect();
            first.iter().all(|&f| {
                let last = self.env.pool.add(f, one);
                own.iter().any(|&e| {
                    let goal = self.env.pool.le(e, last);
                    *known.entry(goal).or_insert_with(|| self.proved(goal))
                })
            })
        })
    }

    /// Whether a condition on lanes that does not hold in all of them holds in none an iteration later.
    fn fails_after_one(&self, c: ExprId, end: &End) -> bool {
        let Expr::Bin(BinOp::Lt, a, b) = *self.env.pool.get(c) else { return false };
        let (Expr::Ramp { stride, lanes, .. }, Expr::Splat(..)) = (self.env.pool.get(a), self.env.pool.get(b)) else {
            return false;
        };
        *stride > 0 && stride.checked_mul(i64::from(*lanes) - 1).is_some_and(|span| span <= end.step)
    }

    /// The iteration at `first`, where some conditions hold or hold in some lanes, and those after it, where `none` do in
    /// any. `common` is where the first condition ends.
    fn partial(
        &mut self,
        (var, extent): (VarId, ExprId),
        (common, first): (ExprId, ExprId),
        body: &[Stmt],
        none: &FxHashSet<ExprId>,
    ) -> Vec<Stmt> {
        let after = failing(self.env, body, none);
        let (mut at, mut cond) = (first, self.env.pool.lt(first, extent));
        if after.is_empty() {
            // Nothing is done but in the iteration at which the first condition ends, if that is one.
            let zero = self.env.pool.int(0);
            let begun = self.env.pool.le(zero, common);
            at = common;
            cond = self.env.pool.lt(common, extent);
            if !self.proved(begun) {
                cond = self.env.pool.and(begun, cond);
            }
        }
        let map = [(var, at)].into_iter().collect();
        let once = Stmt::If { cond, then: copy(self.env, body, &map), other: Vec::new() };
        if after.is_empty() {
            return vec![once];
        }
        let one = self.env.pool.int(1);
        let next = self.env.pool.add(first, one);
        vec![once, self.tail((var, extent), next, &after)]
    }

    /// Without those that provably never come before another one; nothing where too few are comparable.
    fn earliest(&mut self, ends: Vec<End>) -> Option<Vec<End>> {
        let mut kept: Vec<End> = Vec::new();
        let (mut unproved, mut compared) = (0, false);
        for new in ends {
            let mut first = |cx: &mut Self, a: &End, b: &End| {
                let proved = cx.comes_first(a, b);
                unproved += usize::from(!proved);
                compared |= proved;
                proved
            };
            if kept.iter().any(|old| first(self, old, &new)) {
                continue;
            }
            kept.retain(|old| !first(self, &new, old));
            kept.push(new);
            let most = if compared { MOST_UNPROVED } else { MOST_IN_VAIN };
            if unproved > most && kept.len() > MOST_ENDS {
                return None;
            }
        }
        Some(kept)
    }

    fn comes_first(&mut self, a: &End, b: &End) -> bool {
        let (x, y) = (build(&mut self.env.pool, &a.rest), build(&mut self.env.pool, &b.rest));
        let goal = self.env.pool.le(x, y);
        if a.step == b.step && self.proved(goal) {
            return true;
        }
        let last = self.count(b);
        self.ends_by(a, last)
    }

    /// Whether a condition provably holds in no more than `last` iterations.
    fn ends_by(&mut self, end: &End, last: ExprId) -> bool {
        let count = self.count(end);
        let goal = self.env.pool.le(count, last);
        self.proved(goal)
    }

    /// The number of iterations in which a condition holds, perhaps negative.
    fn count(&mut self, end: &End) -> ExprId {
        let pool = &mut self.env.pool;
        let rest = build(pool, &end.rest);
        let up = pool.int(end.step - 1);
        let (up, step) = (pool.add(rest, up), pool.int(end.step));
        let count = pool.floor_div(up, step);
        self.simplifier.simplify(self.env, self.place.loops(), count)
    }

    /// How many iterations all conditions hold in: by their ends alone, perhaps negative or more than there are; as an
    /// extent; and the first iteration after them.
    fn full(&mut self, extent: ExprId, ends: Vec<End>) -> (ExprId, ExprId, ExprId) {
        let mut full = None;
        for end in &ends {
            let count = self.count(end);
            full = Some(full.map_or(count, |f| self.env.pool.min(f, count)));
        }
        let mut full = full.unwrap_or(extent);
        let common = full;
        let within = self.env.pool.le(full, extent);
        if !self.proved(within) {
            full = self.env.pool.min(full, extent);
        }
        let zero = self.env.pool.int(0);
        let exists = self.env.pool.le(zero, full);
        let first = if self.proved(exists) { full } else { self.env.pool.max(full, zero) };
        (common, full, first)
    }

    /// The iterations from `first` on: a loop, or a branch where there is at most one.
    fn tail(&mut self, (var, extent): (VarId, ExprId), first: ExprId, body: &[Stmt]) -> Stmt {
        let left = self.env.pool.sub(extent, first);
        let one = self.env.pool.int(1);
        let single = self.env.pool.le(left, one);
        if self.proved(single) {
            let map = [(var, first)].into_iter().collect();
            let cond = self.env.pool.lt(first, extent);
            return Stmt::If { cond, then: copy(self.env, body, &map), other: Vec::new() };
        }
        let name = self.env.vars[var].name.clone();
        let again = self.env.new_var(name);
        let v = self.env.pool.var(again);
        let at = self.env.pool.add(first, v);
        let map = [(var, at)].into_iter().collect();
        let extent = cora_ir::affine::normalize(&mut self.env.pool, left);
        Stmt::For { var: again, extent, kind: LoopKind::Serial, body: copy(self.env, body, &map) }
    }

    fn proved(&mut self, goal: ExprId) -> bool {
        self.place.proved(self.env, self.simplifier, goal)
    }

    /// The conjuncts of all conditions; names defined inside become known.
    fn conditions(&mut self, body: &[Stmt]) -> Vec<ExprId> {
        let mut found = Vec::new();
        self.inner.clear();
        for s in body {
            s.walk(&mut |s| match s {
                Stmt::If { cond, .. } => found.extend(self.env.pool.conjuncts(*cond)),
                Stmt::Let { var, value } => {
                    guards(self.env, *value, &mut found);
                    let value = self.env.pool.substitute(*value, &self.inner);
                    self.inner.insert(*var, value);
                }
                Stmt::Store { index, value, mask, rest, .. } => {
                    found.extend(mask.iter().flat_map(|&m| self.env.pool.conjuncts(m)));
                    guards(self.env, *index, &mut found);
                    guards(self.env, *value, &mut found);
                    rest.iter().for_each(|r| guards(self.env, r.1, &mut found));
                }
                Stmt::Prefetch { index, .. } => guards(self.env, *index, &mut found),
                _ => {}
            });
        }
        found
    }

    /// Where condition `c` ceases to hold as `var` grows; nothing if that is not its form.
    fn ends(&mut self, var: VarId, c: ExprId) -> Option<Vec<End>> {
        let c = self.env.pool.substitute(c, &self.inner);
        let mut pairs = Vec::new();
        differences(self.env, c, true, &mut pairs)?;
        let v = self.env.pool.var(var);
        let mut out = Vec::new();
        for d in pairs {
            let d = cora_ir::affine::normalize(&mut self.env.pool, d);
            if self.place.reads_elements(self.env, d) {
                return None;
            }
            for d in least_operands(&mut self.env.pool, d) {
                let mut rest = poly(&self.env.pool, d);
                match rest.terms.remove(&vec![v]) {
                    Some(a) if a < 0 && !uses(self.env, &rest, var) => out.push(End { rest, step: -a }),
                    None if rest.as_constant().is_some_and(|c| c > 0) => {}
                    _ => return None,
                }
            }
        }
        (!out.is_empty()).then_some(out)
    }
}

fn uses(env: &Env, p: &Poly, var: VarId) -> bool {
    p.terms.keys().flatten().any(|&a| env.pool.uses_var(a, var))
}

/// Of ends that differ by a constant only the first counts.
fn add_end(ends: &mut Vec<End>, new: End) {
    for old in ends.iter_mut().filter(|e| e.step == new.step) {
        let difference = new.rest.clone().checked_add_scaled(&old.rest, -1).and_then(|d| d.as_constant());
        if let Some(d) = difference {
            if d < 0 {
                *old = new;
            }
            return;
        }
    }
    ends.push(new);
}

/// Whether a statement is of the kinds that are copied below.
fn is_plain(s: &Stmt) -> bool {
    matches!(s, Stmt::If { .. } | Stmt::Let { .. } | Stmt::Store { .. } | Stmt::Prefetch { .. })
}

/// What `cut` makes of an innermost loop; the loop itself where that is nothing. Other statements are given back.
pub(super) fn in_parts(
    s: Stmt,
    cut: impl FnOnce(VarId, ExprId, &[Stmt]) -> Option<Vec<Stmt>>,
) -> Result<Vec<Stmt>, Stmt> {
    match &s {
        Stmt::For { var, extent, kind: LoopKind::Serial, body } if is_innermost(body) => {
            Ok(cut(*var, *extent, body).unwrap_or_else(|| vec![s]))
        }
        _ => Err(s),
    }
}

pub(super) fn is_innermost(body: &[Stmt]) -> bool {
    let mut inner = true;
    for s in body {
        s.walk(&mut |s| inner &= is_plain(s));
    }
    inner
}

/// Index expressions that are all positive exactly where `c` holds, in `all` lanes or in any.
pub(super) fn differences(env: &mut Env, c: ExprId, all: bool, out: &mut Vec<ExprId>) -> Option<()> {
    match *env.pool.get(c) {
        Expr::Splat(c, _) => differences(env, c, all, out),
        Expr::Bin(BinOp::Eq, a, b) if env.pool.ty(a).scalar == ScalarType::Index => {
            let [below, above] = [env.pool.le(a, b), env.pool.le(b, a)];
            differences(env, below, all, out)?;
            differences(env, above, all, out)
        }
        Expr::Bin(op @ (BinOp::Lt | BinOp::Le), a, b) => {
            if env.pool.ty(a).scalar != ScalarType::Index {
                return None;
            }
            let (a, mut b) = (extreme_lane(env, a, all)?, extreme_lane(env, b, !all)?);
            if op == BinOp::Le {
                let one = env.pool.int(1);
                b = env.pool.add(b, one);
            }
            let mut above = Vec::new();
            operands(env, a, BinOp::Max, &mut above);
            let mut below = Vec::new();
            operands(env, b, BinOp::Min, &mut below);
            for &x in &above {
                for &y in &below {
                    out.push(env.pool.sub(y, x));
                }
            }
            Some(())
        }
        _ => None,
    }
}

/// The last lane where `last`, else the first, of lanes that do not fall.
fn extreme_lane(env: &mut Env, e: ExprId, last: bool) -> Option<ExprId> {
    match *env.pool.get(e) {
        Expr::Ramp { base, stride, lanes } if stride >= 0 => {
            let more = if last { stride.checked_mul(i64::from(lanes) - 1)? } else { 0 };
            let more = env.pool.int(more);
            Some(env.pool.add(base, more))
        }
        Expr::Splat(x, _) => Some(x),
        _ => (env.pool.ty(e).lanes == 1).then_some(e),
    }
}

fn operands(env: &Env, e: ExprId, op: BinOp, out: &mut Vec<ExprId>) {
    match *env.pool.get(e) {
        Expr::Bin(o, a, b) if o == op => {
            operands(env, a, op, out);
            operands(env, b, op, out);
        }
        _ => out.push(e),
    }
}
