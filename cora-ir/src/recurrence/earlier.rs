//! Whether an index is of an earlier position, by linear arithmetic on what is known where it stands.
//!
//! Known are the extents of the operator's dimensions, the conditions that a value is used under, the declared ranges of
//! parameters, functions and index inputs, and what `min`, `max`, `//` and `%` say of themselves. What does not follow from a
//! few of these is unknown.

use super::Place;
use crate::affine::{Poly, poly};
use crate::env::Env;
use crate::expr::Expr;
use crate::ids::{ExprId, VarId};
use crate::types::{BinOp, ScalarType, UnOp};

/// How many facts a proof may use.
const MOST_STEPS: usize = 6;
/// How many combinations of facts are looked at.
const MOST_TRIES: usize = 2000;

/// What is known at a place of an operator's value.
#[derive(Clone)]
pub(super) struct Known<'a> {
    env: &'a Env,
    /// Polynomials that are not negative.
    facts: Vec<Poly>,
    /// Polynomials that are not zero.
    nonzero: Vec<Poly>,
    /// Conditions that hold.
    held: Vec<ExprId>,
}

impl<'a> Known<'a> {
    /// That variables are in their extents.
    pub(super) fn in_extents(env: &'a Env, vars: &[(VarId, ExprId)]) -> Self {
        let mut known = Known { env, facts: Vec::new(), nonzero: Vec::new(), held: Vec::new() };
        for (var, extent) in vars {
            if let Some(var) = env.pool.lookup(&Expr::Var(*var)) {
                known.least_difference(*extent, var, 1);
            }
        }
        known
    }

    /// Adds that a condition holds, or that it does not.
    pub(super) fn assume(&mut self, cond: ExprId, holds: bool) {
        if holds {
            self.held.push(cond);
        }
        match *self.env.pool.get(cond) {
            Expr::Un(UnOp::Not, a) => self.assume(a, !holds),
            Expr::Bin(BinOp::And, a, b) if holds => [a, b].into_iter().for_each(|c| self.assume(c, true)),
            Expr::Bin(BinOp::Or, a, b) if !holds => [a, b].into_iter().for_each(|c| self.assume(c, false)),
            Expr::Bin(op, a, b) if self.env.pool.ty(a).scalar == ScalarType::Index => match (op, holds) {
                (BinOp::Lt, true) => self.least_difference(b, a, 1),
                (BinOp::Le, true) => self.least_difference(b, a, 0),
                (BinOp::Lt, false) => self.least_difference(a, b, 0),
                (BinOp::Le, false) => self.least_difference(a, b, 1),
                (BinOp::Eq, true) | (BinOp::Ne, false) => {
                    self.least_difference(a, b, 0);
                    self.least_difference(b, a, 0);
                }
                (BinOp::Ne, true) | (BinOp::Eq, false) => self.differ(a, b),
                _ => {}
            },
            _ => {}
        }
    }

    /// Adds that two differ.
    fn differ(&mut self, a: ExprId, b: ExprId) {
        for (a, b) in [(a, b), (b, a)] {
            let Some(apart) = self.difference(a, b, 0) else { continue };
            if self.follows(&apart) {
                self.fact(plus(&apart, 1, -1));
            }
            self.nonzero.push(apart);
        }
    }

    /// Where an index is, seen from the position `at`.
    pub(super) fn place(mut self, index: &[ExprId], at: &[VarId]) -> Place {
        let mut first = Vec::new();
        for (n, &var) in at.iter().enumerate() {
            let own = self.env.pool.lookup(&Expr::Var(var));
            let before = own.zip(index.get(n)).and_then(|(own, &i)| self.difference(own, i, 0));
            let Some(before) = before else { return Place::Unknown };
            if before.as_constant() == Some(0) {
                continue;
            }
            first.push(n);
            let (Some(less), Some(after)) = (plus(&before, 1, -1), plus(&before, -1, 0)) else { return Place::Unknown };
            if self.follows(&less) || self.nonzero.contains(&before) && self.follows(&before) {
                return Place::Before(first);
            }
            if !self.follows(&before) {
                return Place::Unknown;
            }
            // Less, or the same, and then what comes next decides.
            self.fact(Some(after));
        }
        if first.is_empty() { Place::Same } else { Place::Unknown }
    }

    /// An index as a polynomial; an element that is read where a condition holds is the element itself where that does.
    fn poly(&self, e: ExprId) -> Poly {
        let pool = &self.env.pool;
        let mut out = Poly::default();
        for (m, c) in poly(pool, e).terms {
            let plain = |&atom: &ExprId| {
                let Expr::Cast(ScalarType::Index, x) = *pool.get(atom) else { return atom };
                let Expr::Load { tensor, part, index, guard: Some((c, _)) } = pool.get(x) else { return atom };
                let element = Expr::Load { tensor: *tensor, part: *part, index: index.clone(), guard: None };
                let known = pool.lookup(&element).filter(|_| self.holds(*c));
                known.and_then(|x| pool.lookup(&Expr::Cast(ScalarType::Index, x))).unwrap_or(atom)
            };
            let mut m: Vec<ExprId> = m.iter().map(plain).collect();
            m.sort_unstable();
            if !out.add_term(m, c) {
                return Poly::atom(e);
            }
        }
        out
    }

    fn holds(&self, cond: ExprId) -> bool {
        self.env.pool.conjuncts(cond).iter().all(|c| self.held.contains(c))
    }

    /// `a - b + n`.
    fn difference(&self, a: ExprId, b: ExprId, n: i64) -> Option<Poly> {
        let p = self.poly(a).checked_add_scaled(&self.poly(b), -1)?;
        p.checked_add_scaled(&Poly::constant(n), 1)
    }

    /// Adds that `a - b` is at least `n`.
    fn least_difference(&mut self, a: ExprId, b: ExprId, n: i64) {
        let p = self.difference(a, b, -n);
        self.fact(p);
    }

    fn fact(&mut self, p: Option<Poly>) {
        let Some(p) = p.filter(|p| p.as_constant().is_none() && !self.facts.contains(p)) else { return };
        let said = self.of_atoms(&p);
        self.facts.push(p);
        said.into_iter().for_each(|p| self.fact(Some(p)));
    }

    /// What the atoms of a polynomial say of themselves.
    fn of_atoms(&self, p: &Poly) -> Vec<Poly> {
        let env = self.env;
        let mut out = Vec::new();
        for m in p.terms.keys() {
            let &[atom] = m.as_slice() else {
                out.extend(self.of_quotient(m));
                continue;
            };
            out.extend(env.least(atom).and_then(|n| {
                let least = Poly::constant(n);
                Poly::atom(atom).checked_add_scaled(&least, -1)
            }));
            match *env.pool.get(atom) {
                Expr::Bin(BinOp::Min, a, b) => {
                    out.extend([a, b].into_iter().filter_map(|x| self.difference(x, atom, 0)))
                }
                Expr::Bin(BinOp::Max, a, b) => {
                    out.extend([a, b].into_iter().filter_map(|x| self.difference(atom, x, 0)))
                }
                Expr::Bin(op @ (BinOp::FloorDiv | BinOp::Mod), a, b) => {
                    let Some(c) = env.pool.as_int(b).filter(|&c| c > 0) else { continue };
                    let rest = match op {
                        BinOp::Mod => Some(Poly::atom(atom)),
                        _ => self.poly(a).checked_add_scaled(&Poly::atom(atom), -c),
                    };
                    let Some(rest) = rest else { continue };
                    out.extend(Poly::constant(c - 1).checked_add_scaled(&rest, -1));
                    out.push(rest);
                }
                Expr::Cast(ScalarType::Index, x) => {
                    let Expr::Load { tensor, index, guard, .. } = env.pool.get(x) else { continue };
                    if guard.is_some_and(|(c, _)| !self.holds(c)) {
                        continue;
                    }
                    let Some((lo, hi)) = env.tensors[*tensor].range else { continue };
                    let element = self.poly(atom);
                    out.extend(self.instantiated(lo, index).and_then(|lo| element.clone().checked_add_scaled(&lo, -1)));
                    let most = self.instantiated(hi, index).and_then(|hi| hi.checked_add_scaled(&element, -1));
                    out.extend(most.and_then(|p| p.checked_add_scaled(&Poly::constant(1), -1)));
                }
                _ => {}
            }
        }
        out
    }

    /// An expression over formal arguments, at `index`; a call only if it is part of the program there.
    fn instantiated(&self, e: ExprId, index: &[ExprId]) -> Option<Poly> {
        let pool = &self.env.pool;
        let at = |e: ExprId| match *pool.get(e) {
            Expr::Arg(n) => index.get(n as usize).copied(),
            _ => (!pool.any(e, &mut |n| matches!(n, Expr::Arg(_)))).then_some(e),
        };
        let mut sum = Poly::default();
        for (m, c) in poly(pool, e).terms {
            let mut product = Poly::constant(1);
            for atom in m {
                let atom = match pool.get(atom) {
                    Expr::Call(f, args) => {
                        let args = args.iter().map(|&a| at(a)).collect::<Option<_>>()?;
                        pool.lookup(&Expr::Call(*f, args))?
                    }
                    _ => at(atom)?,
                };
                product = product.checked_mul(&self.poly(atom))?;
            }
            sum = sum.checked_add_scaled(&product, c)?;
        }
        Some(sum)
    }

    /// That `x // n * n` is no more than `x`, for a positive `n` that is not constant.
    fn of_quotient(&self, m: &[ExprId]) -> Option<Poly> {
        let &[a, b] = m else { return None };
        [(a, b), (b, a)].into_iter().find_map(|(quotient, n)| {
            let Expr::Bin(BinOp::FloorDiv, x, by) = *self.env.pool.get(quotient) else { return None };
            let positive = by == n && self.env.least(n)? > 0;
            let mut product = Poly::default();
            positive.then(|| product.add_term(m.to_vec(), 1))?;
            self.poly(x).checked_add_scaled(&product, -1)
        })
    }

    /// Whether a polynomial is not negative, whichever operands its `min` and `max` are.
    fn follows(&self, goal: &Poly) -> bool {
        let operands = goal.terms.iter().find_map(|(m, &c)| match (m.as_slice(), c) {
            (&[atom], 1 | -1) => match (self.env.pool.get(atom), c) {
                (Expr::Bin(BinOp::Min, a, b), 1) | (Expr::Bin(BinOp::Max, a, b), -1) => Some((atom, c, [*a, *b])),
                _ => None,
            },
            _ => None,
        });
        if let Some((atom, c, both)) = operands {
            let Some(rest) = goal.clone().checked_add_scaled(&Poly::atom(atom), -c) else { return false };
            let either = |x: ExprId| rest.clone().checked_add_scaled(&self.poly(x), c);
            return both.into_iter().all(|x| either(x).is_some_and(|goal| self.follows(&goal)));
        }
        let mut all = self.clone();
        all.of_atoms(goal).into_iter().for_each(|p| all.fact(Some(p)));
        sum_of(&all.facts, goal, MOST_STEPS, &mut MOST_TRIES.clone())
    }
}

/// `k * p + n`.
fn plus(p: &Poly, k: i64, n: i64) -> Option<Poly> {
    Poly::constant(n).checked_add_scaled(p, k)
}

/// Whether a polynomial is a sum of multiples of at most `steps` facts and of a number that is not negative.
fn sum_of(facts: &[Poly], goal: &Poly, steps: usize, tries: &mut usize) -> bool {
    if let Some(n) = goal.as_constant() {
        return n >= 0;
    }
    if steps == 0 {
        return false;
    }
    for (m, &c) in goal.terms.iter().filter(|t| !t.0.is_empty()) {
        for f in facts {
            let of = f.terms.get(m).copied().unwrap_or(0);
            if of.signum() != c.signum() {
                continue;
            }
            if *tries == 0 {
                return false;
            }
            *tries -= 1;
            let scaled = Poly::default().checked_add_scaled(goal, of.saturating_abs());
            let Some(rest) =
                scaled.and_then(|p| p.checked_add_scaled(f, c.saturating_neg().saturating_mul(of.signum())))
            else {
                continue;
            };
            if sum_of(facts, &rest, steps - 1, tries) {
                return true;
            }
        }
    }
    false
}
