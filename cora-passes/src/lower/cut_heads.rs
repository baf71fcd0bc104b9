//! Innermost loops begin where a mask begins to hold, and run without it from where it holds for all.
//!
//! ```text
//! for %k in 0..n {
//!   @acc[ramp(0, 1, 8)] = @acc[ramp(0, 1, 8)] + select(splat(%i <= %k, 8), a, splat(0.0, 8))
//!   @acc[ramp(8, 1, 8)] = @acc[ramp(8, 1, 8)] + select(splat(%i + 1 <= %k, 8), b, splat(0.0, 8))
//! }
//!   =>  for %k in 0..1 { .. at %i + %k .. }
//!       for %k in 0..n - %i - 1 { @acc[ramp(0, 1, 8)] = @acc[ramp(0, 1, 8)] + a  .. at %i + 1 + %k .. }
//! ```
//!
//! A condition counts if it is of the form `b < x + a * %k` with positive `a`, or says nothing of `%k`: then it holds from the
//! first iteration on or in none. The iterations before the first choice has its conditions in any lane are left out where no
//! statement changes anything there: terms of a sum that are 0, of a maximum that are its identity. (A sum that begins with 0 is
//! never -0, which adding 0 would change.) Conditions that cease to hold are those of `cut-tails`, which finds both loops.
//!
//! Not on a grid, where threads that go different ways run one after the other.
//!
//! Requires: no vector or unrolled loops. Ensures: the same values of the same statements in the same order, of which those that
//! change nothing are gone.

use super::Simplifier;
use super::cut_tails::{copy, differences, in_parts, without};
use super::place::{Place, Rewrite, Tables};
use cora_ir::affine::{Poly, build, normalize, poly};
use cora_ir::loops::LoopKind;
use cora_ir::storage::{Stmt, StorageModule};
use cora_ir::{BinOp, Combiner, Env, Expr, ExprId, TensorId, VarId};
use rustc_hash::{FxHashMap, FxHashSet};

/// Loops of no more iterations are left as they are.
const FEW: i64 = 16;
/// A loop with more beginnings that do not differ by numbers is left as it is.
const MOST_BEGINNINGS: usize = 4;

/// Cuts such loops in every kernel that is none of a grid.
pub fn cut_heads(m: &mut StorageModule, simplifier: &mut dyn Simplifier) {
    let tables = Tables::of(m);
    for k in m.kernels.iter_mut().filter(|k| !k.is_grid()) {
        let mut cx = Cut { env: &mut m.env, simplifier, place: Place::new(&tables), proved: FxHashMap::default() };
        let body = std::mem::take(&mut k.body);
        k.body = cx.body(body);
    }
}

struct Cut<'a> {
    env: &'a mut Env,
    simplifier: &'a mut dyn Simplifier,
    place: Place<'a>,
    /// What was asked about one loop.
    proved: FxHashMap<ExprId, bool>,
}

/// `rest + step * %k`, which is positive where a condition holds.
#[derive(Clone)]
struct Begin {
    rest: Poly,
    /// 0 where the condition says nothing of the iteration.
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
    /// The parts of a loop, if there is something to gain.
    fn cut(&mut self, var: VarId, extent: ExprId, body: &[Stmt]) -> Option<Vec<Stmt>> {
        if self.env.pool.as_int(extent).is_some_and(|n| n <= FEW) {
            return None;
        }
        self.proved.clear();
        let named: FxHashSet<VarId> = names(body);
        // Conditions that begin to hold, and choices that they are part of.
        let (mut holds, mut begun) = (FxHashSet::default(), FxHashSet::default());
        let (mut all, mut any) = (Vec::new(), Vec::new());
        for choice in choices(self.env, body) {
            let mut first = Vec::new();
            for c in self.env.pool.conjuncts(choice) {
                let speaks = |v: VarId| self.env.pool.uses_var(c, v);
                if named.iter().any(|&v| speaks(v)) || self.place.reads_elements(self.env, c) {
                    continue;
                }
                if let (Some(own), Some(some)) = (self.begins(var, c, true), self.begins(var, c, false)) {
                    holds.insert(c);
                    own.into_iter().for_each(|b| add(&mut all, vec![b], false));
                    first.extend(some);
                }
            }
            if !first.is_empty() {
                begun.insert(choice);
                add(&mut any, first, true);
            }
        }
        if holds.is_empty() || all.len().max(any.len()) > MOST_BEGINNINGS {
            return None;
        }
        let zero = self.env.pool.int(0);
        let from = self.where_all_do(&all.concat(), extent);
        let whole = self.within(from, zero, extent);
        let (define_whole, whole) = self.named(var, whole);
        let after = without(self.env, body, &holds);
        let mut out = vec![define_whole];
        let mut begin = zero;
        if body.iter().all(|s| is_idle(self.env, s, &begun)) {
            let firsts: Vec<ExprId> = any.iter().map(|choice| self.where_all_do(choice, extent)).collect();
            let first = firsts.into_iter().reduce(|a, b| self.env.pool.min(a, b)).unwrap_or(extent);
            if first == from {
                // All begin to hold at once.
                out.push(self.part(var, (whole, extent), &after));
                return Some(out);
            }
            let first = self.within(first, zero, whole);
            let (define, first) = self.named(var, first);
            begin = first;
            out.push(define);
        }
        out.push(self.part(var, (begin, whole), body));
        out.push(self.part(var, (whole, extent), &after));
        Some(out)
    }

    /// What is positive where a condition holds in all lanes, or where it may hold in any; nothing if that is not its form.
    fn begins(&mut self, var: VarId, c: ExprId, all: bool) -> Option<Vec<Begin>> {
        let mut found = Vec::new();
        differences(self.env, c, all, &mut found)?;
        let v = self.env.pool.var(var);
        let mut out = Vec::new();
        for d in found {
            let d = normalize(&mut self.env.pool, d);
            let mut rest = poly(&self.env.pool, d);
            let step = rest.terms.remove(&vec![v]).unwrap_or(0);
            if step < 0 || rest.terms.keys().flatten().any(|&a| self.env.pool.uses_var(a, var)) {
                return None;
            }
            out.push(Begin { rest: self.bounded(rest, all), step });
        }
        Some(out)
    }

    /// The least that `p` may be, or the most, where it has positions that end with the last one: those of the rows and columns of
    /// a tile then differ by numbers.
    fn bounded(&mut self, mut p: Poly, least: bool) -> Poly {
        for (term, by) in p.terms.clone() {
            let &[atom] = term.as_slice() else { continue };
            let Expr::Bin(BinOp::Min, a, b) = *self.env.pool.get(atom) else { continue };
            let (n, last) = match (self.env.pool.as_int(a), self.env.pool.as_int(b)) {
                (Some(n), None) => (n, b),
                (None, Some(n)) => (n, a),
                _ => continue,
            };
            let bound = if (by < 0) == least {
                n
            } else if n >= 0 && self.is_position(last) {
                0
            } else {
                continue;
            };
            let mut other = p.clone();
            other.terms.remove(&term);
            p = other.checked_add_scaled(&Poly::constant(bound), by).unwrap_or(p);
        }
        p
    }

    fn is_position(&mut self, e: ExprId) -> bool {
        let zero = self.env.pool.int(0);
        let goal = self.env.pool.le(zero, e);
        if let Some(&known) = self.proved.get(&goal) {
            return known;
        }
        let proved = self.place.proved(self.env, self.simplifier, goal);
        self.proved.insert(goal, proved);
        proved
    }

    /// The iteration, perhaps a negative one, from which on all are positive; `never` where one says nothing of the iteration and
    /// is not.
    fn where_all_do(&mut self, begins: &[Begin], never: ExprId) -> ExprId {
        let pool = &mut self.env.pool;
        let (zero, one) = (pool.int(0), pool.int(1));
        let (mut held, mut from) = (pool.bool(true), None);
        for b in begins {
            let rest = build(pool, &b.rest);
            if b.step == 0 {
                let holds = pool.lt(zero, rest);
                held = pool.and(held, holds);
                continue;
            }
            let (missing, step) = (pool.sub(zero, rest), pool.int(b.step));
            let last = pool.floor_div(missing, step);
            let first = pool.add(last, one);
            let first = normalize(pool, first);
            from = Some(from.map_or(first, |f| pool.max(f, first)));
        }
        pool.select(held, from.unwrap_or(zero), never)
    }

    /// A number of iterations, of which there are some from `least` to `most`.
    fn within(&mut self, n: ExprId, least: ExprId, most: ExprId) -> ExprId {
        let pool = &mut self.env.pool;
        let n = pool.max(n, least);
        let n = pool.min(n, most);
        self.simplifier.simplify(self.env, self.place.loops(), n)
    }

    /// A statement that gives a name to `value`, and the name.
    fn named(&mut self, like: VarId, value: ExprId) -> (Stmt, ExprId) {
        let name = self.env.vars[like].name.clone();
        let var = self.env.new_var(name);
        self.place.define(self.env, var, value);
        (Stmt::Let { var, value }, self.env.pool.var(var))
    }

    /// The iterations from the first to before the last.
    fn part(&mut self, var: VarId, (first, last): (ExprId, ExprId), body: &[Stmt]) -> Stmt {
        let name = self.env.vars[var].name.clone();
        let again = self.env.new_var(name);
        let v = self.env.pool.var(again);
        let at = self.env.pool.add(first, v);
        let map = [(var, at)].into_iter().collect();
        let extent = self.env.pool.sub(last, first);
        let extent = normalize(&mut self.env.pool, extent);
        Stmt::For { var: again, extent, kind: LoopKind::Serial, body: copy(self.env, body, &map) }
    }
}

/// Of those that differ by numbers the least count, or the greatest.
fn add(begins: &mut Vec<Vec<Begin>>, new: Vec<Begin>, greatest: bool) {
    for old in begins.iter_mut().filter(|b| b.len() == new.len()) {
        let ahead = |(a, b): (&Begin, &Begin)| {
            let difference = a.rest.clone().checked_add_scaled(&b.rest, -1)?.as_constant()?;
            (a.step == b.step).then_some(difference)
        };
        if let Some(ahead) = new.iter().zip(old.iter()).map(ahead).collect::<Option<Vec<i64>>>() {
            let better = |d: i64| d != 0 && (d > 0) == greatest;
            for ((old, new), _) in old.iter_mut().zip(new).zip(ahead).filter(|(_, d)| better(*d)) {
                *old = new;
            }
            return;
        }
    }
    begins.push(new);
}

/// The names that statements give.
fn names(body: &[Stmt]) -> FxHashSet<VarId> {
    let mut all = FxHashSet::default();
    for s in body {
        s.walk(&mut |s| {
            if let Stmt::Let { var, .. } = s {
                all.insert(*var);
            }
        });
    }
    all
}

/// The conditions of choices between a value and the identity of what it is added to.
fn choices(env: &Env, body: &[Stmt]) -> Vec<ExprId> {
    let mut found = Vec::new();
    for s in body {
        s.walk(&mut |s| {
            let Stmt::Store { tensor, index, value, .. } = s else { return };
            let Some((combiner, term)) = added(env, (*tensor, *index), *value) else { return };
            env.pool.walk(term, &mut |_, n| match *n {
                Expr::Select(c, _, other) if is_identity(env, combiner, other) => found.push(c),
                _ => {}
            });
        });
    }
    found
}

/// What a statement adds to the element that it writes, and how.
fn added(env: &Env, (tensor, index): (TensorId, ExprId), value: ExprId) -> Option<(Combiner, ExprId)> {
    let Expr::Bin(op, a, b) = *env.pool.get(value) else { return None };
    let combiner = match op {
        BinOp::Add => Combiner::Sum,
        BinOp::Max => Combiner::Max,
        BinOp::Min => Combiner::Min,
        _ => return None,
    };
    let before = |e: ExprId| match env.pool.get(e) {
        Expr::Load { tensor: t, index: at, guard: None, .. } => *t == tensor && at.as_slice() == [index],
        _ => false,
    };
    match (before(a), before(b)) {
        (true, false) => Some((combiner, b)),
        (false, true) => Some((combiner, a)),
        _ => None,
    }
}

fn is_identity(env: &Env, combiner: Combiner, e: ExprId) -> bool {
    match *env.pool.get(e) {
        Expr::Splat(e, _) => is_identity(env, combiner, e),
        Expr::Lit(literal) => literal == combiner.identity(env.pool.ty(e).scalar),
        _ => false,
    }
}

/// Whether a statement changes nothing where choices fail.
fn is_idle(env: &Env, s: &Stmt, fail: &FxHashSet<ExprId>) -> bool {
    match s {
        Stmt::Store { tensor, index, value, rest, .. } => {
            rest.is_empty()
                && added(env, (*tensor, *index), *value).is_some_and(|(by, term)| is_left_out(env, by, term, fail))
        }
        Stmt::If { then, other, .. } => then.iter().chain(other).all(|s| is_idle(env, s, fail)),
        Stmt::Let { .. } | Stmt::Prefetch { .. } => true,
        _ => false,
    }
}

/// Whether a term is the identity where choices fail.
fn is_left_out(env: &Env, by: Combiner, term: ExprId, fail: &FxHashSet<ExprId>) -> bool {
    match *env.pool.get(term) {
        Expr::Select(c, x, other) => {
            is_identity(env, by, other) && (fail.contains(&c) || is_left_out(env, by, x, fail))
        }
        _ => is_identity(env, by, term),
    }
}
