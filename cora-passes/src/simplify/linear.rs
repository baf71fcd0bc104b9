//! Symbolic inequalities: `p >= 0` for a polynomial p over atoms, by replacing atoms by bounds.
//!
//! To prove `lens(b) - 14*qo - qi - 1 >= 0` the innermost atom `qi` is replaced by its greatest
//! value `min(14, lens(b) - 14*qo) - 1`, then the `min` by its second operand; 0 is left. Bounds
//! come from loop extents, assumptions, and the definitions of operators and functions
//! ([`super::atom_bounds`]). Everything is searched in a fixed order within a fixed budget.

use super::context::Cx;
use super::range::Interval;
use cora_ir::affine::{Monomial, Poly, gcd};
use cora_ir::expr::floor_div;
use cora_ir::{BinOp, EntityId, Expr, ExprId, UfDef, UnOp};
use rustc_hash::FxHashMap;

/// Polynomials looked at for one top-level question.
const BUDGET: u32 = 160;
/// Replacements in a row.
const DEPTH: u32 = 14;
/// Mark of polynomials proved in the present question.
const PROVED: u32 = u32::MAX;
/// Alternative atoms tried at one polynomial.
const WIDTH: usize = 4;
/// Longer polynomials are given up.
const MAX_TERMS: usize = 48;

/// `factor * atom <= bound` or `factor * atom >= bound`, with `factor >= 1`.
pub(super) struct Bound {
    pub(super) factor: i64,
    pub(super) bound: Poly,
}

/// One question under way.
pub(super) struct Linear<'c, 'a> {
    pub(super) cx: &'c mut Cx<'a>,
    /// Polynomials known to be at least 0: the facts', then those of the cases under way.
    pub(super) known: Vec<Poly>,
    /// How many of them are the facts'.
    facts_known: usize,
    budget: u32,
    /// The case under way (0: none), and how many there were: each knows other polynomials.
    case: u32,
    cases: u32,
    /// Polynomials looked at before, with the case then under way: how deeply in vain,
    /// or `PROVED`.
    seen: FxHashMap<(u32, Vec<(Monomial, i64)>), u32>,
}

impl Cx<'_> {
    /// Whether the condition is proved to hold (`positive`) or not to hold. Unknown is false.
    pub(super) fn proves(&mut self, cond: ExprId, positive: bool) -> bool {
        let goal = if positive { cond } else { self.env.pool.un(UnOp::Not, cond) };
        let key = (self.id, goal);
        if let Some(&done) = self.cache.proofs.get(&key) {
            return done;
        }
        if !self.cache.busy.insert(key) {
            return false;
        }
        let h = self.hypotheses();
        let cond = self.env.pool.substitute(cond, &h.lets);
        let cond = cora_ir::affine::normalize(&mut self.env.pool, cond);
        let done = self.proves_now(cond, positive);
        self.cache.busy.remove(&key);
        self.cache.proofs.insert(key, done);
        done
    }

    fn proves_now(&mut self, cond: ExprId, positive: bool) -> bool {
        if let Some(v) = self.env.pool.as_bool(cond) {
            return v == positive;
        }
        let h = self.hypotheses();
        let opposite = self.env.pool.lookup(&Expr::Un(UnOp::Not, cond));
        if positive && h.truths.contains(&cond) || !positive && opposite.is_some_and(|o| h.truths.contains(&o)) {
            return true;
        }
        match *self.env.pool.get(cond) {
            Expr::Un(UnOp::Not, a) => self.proves(a, !positive),
            Expr::Splat(a, _) => self.proves(a, positive),
            Expr::Bin(op @ (BinOp::And | BinOp::Or), a, b) => {
                if (op == BinOp::And) == positive {
                    self.proves(a, positive) && self.proves(b, positive)
                } else if self.proves(a, positive) || self.proves(b, positive) {
                    true
                } else {
                    // a or b: b where a does not hold.
                    let other = if positive { self.env.pool.un(UnOp::Not, a) } else { a };
                    let facts = self.facts.assuming(other);
                    facts.assumptions.len() > self.facts.assumptions.len()
                        && facts.assumptions.len() < 12
                        && self.under(&facts, |cx| cx.proves(b, positive))
                }
            }
            Expr::Bin(op, a, b) if op.is_comparison() && self.is_index(a) => self.proves_comparison(op, a, b, positive),
            Expr::Select(c, a, b) => {
                let not_c = self.env.pool.un(UnOp::Not, c);
                let (yes, no) = (self.facts.assuming(c), self.facts.assuming(not_c));
                self.under(&yes, |cx| cx.proves(a, positive)) && self.under(&no, |cx| cx.proves(b, positive))
            }
            _ => false,
        }
    }

    fn proves_comparison(&mut self, op: BinOp, a: ExprId, b: ExprId, positive: bool) -> bool {
        if matches!((op, positive), (BinOp::Ne, true) | (BinOp::Eq, false)) {
            return self.differ(a, b)
                || self.proves_comparison(BinOp::Lt, a, b, true)
                || self.proves_comparison(BinOp::Lt, b, a, true);
        }
        let polys = self.comparison_polys(op, a, b, positive);
        !polys.is_empty() && polys.into_iter().all(|p| self.non_negative(p))
    }

    /// Whether residues tell a from b.
    fn differ(&mut self, a: ExprId, b: ExprId) -> bool {
        let d = self.env.pool.sub(a, b);
        let s = self.stride(d);
        s.residue != 0 && s.modulus != 1
    }

    /// Whether `p >= 0` is proved.
    pub(super) fn non_negative(&mut self, p: Poly) -> bool {
        let known = self.hypotheses().polys.clone();
        let facts_known = known.len();
        Linear { cx: self, known, facts_known, budget: BUDGET, case: 0, cases: 0, seen: FxHashMap::default() }
            .non_negative(p, DEPTH)
    }
}

/// A polynomial as `sum of coefficient * atom^power + rest`, the atom in neither.
pub(super) struct ByAtom {
    pub(super) powers: Vec<(usize, Poly)>,
    pub(super) rest: Poly,
}

/// Collects the powers of `atom`.
pub(super) fn by_atom(p: &Poly, atom: ExprId) -> ByAtom {
    let (mut powers, mut rest): (Vec<(usize, Poly)>, Poly) = (Vec::new(), Poly::default());
    for (m, &k) in &p.terms {
        let others: Monomial = m.iter().copied().filter(|&a| a != atom).collect();
        let n = m.len() - others.len();
        if n == 0 {
            rest.add_term(others, k);
            continue;
        }
        match powers.iter_mut().find(|(q, _)| *q == n) {
            Some((_, c)) => {
                c.add_term(others, k);
            }
            None => {
                let mut c = Poly::default();
                c.add_term(others, k);
                powers.push((n, c));
            }
        }
    }
    ByAtom { powers, rest }
}

impl ByAtom {
    /// `factor * p` with `bound / factor` in the place of the atom.
    pub(super) fn replace(&self, b: &Bound) -> Option<Poly> {
        let mut out = Poly::default().checked_add_scaled(&self.rest, b.factor)?;
        for (n, c) in &self.powers {
            // A factor is used only where the atom occurs linearly.
            let mut term = c.clone();
            for _ in 0..*n {
                term = term.checked_mul(&b.bound)?;
            }
            out = out.checked_add_scaled(&term, 1)?;
        }
        Some(out)
    }

    pub(super) fn is_linear(&self) -> bool {
        self.powers.iter().all(|(n, _)| *n == 1)
    }
}

/// Divides by the common factor of all coefficients but the constant's: over the integers
/// `g*x + c >= 0` is `x + floor(c / g) >= 0`.
fn tighten(mut p: Poly) -> Poly {
    let g = p.terms.iter().filter(|(m, _)| !m.is_empty()).fold(0, |g, (_, &k)| gcd(g, k));
    if g > 1 {
        for k in p.terms.values_mut() {
            *k = floor_div(*k, g);
        }
        p.terms.retain(|_, k| *k != 0);
    }
    p
}

impl Linear<'_, '_> {
    /// A question that arises in another: fewer steps of the same budget.
    pub(super) fn side_question(&mut self, p: Option<Poly>, depth: u32) -> bool {
        p.is_some_and(|p| self.non_negative(p, depth.saturating_sub(1).min(6)))
    }

    pub(super) fn non_negative(&mut self, p: Poly, depth: u32) -> bool {
        let p = tighten(p);
        if let Some(c) = p.as_constant() {
            return c >= 0;
        }
        let range = self.poly_bounds(&p);
        if range.at_least(0) {
            return true;
        }
        if depth == 0 || self.budget == 0 || p.terms.len() > MAX_TERMS || range.hi.is_some_and(|h| h < 0) {
            return false;
        }
        if self.cx.falsified(&p, &self.known[self.facts_known..]) {
            return false;
        }
        // Replacements commute, so the same polynomial is met often.
        let key = (self.case, p.terms.iter().map(|(m, &k)| (m.clone(), k)).collect());
        match self.seen.get(&key) {
            Some(&PROVED) => return true,
            Some(&deepest) if deepest >= depth => return false,
            _ => {}
        }
        self.seen.insert(key.clone(), depth);
        self.budget -= 1;
        let proved = self.by_known(&p) || {
            let atoms = self.atoms_to_replace(&p);
            atoms.into_iter().take(WIDTH).any(|a| self.replacing(&p, a, depth))
        };
        if proved {
            self.seen.insert(key, PROVED);
        }
        proved
    }

    /// Whether p is a known polynomial and something not negative.
    fn by_known(&mut self, p: &Poly) -> bool {
        (0..self.known.len()).any(|i| {
            let rest = p.clone().checked_add_scaled(&self.known[i], -1);
            rest.is_some_and(|d| self.poly_bounds(&d).at_least(0))
        })
    }

    /// Whether some bound of `atom` reduces `p >= 0` to something proved.
    fn replacing(&mut self, p: &Poly, atom: ExprId, depth: u32) -> bool {
        let parts = by_atom(p, atom);
        let signs: Vec<Interval> = parts.powers.iter().map(|(_, c)| self.poly_bounds(c)).collect();
        let up = signs.iter().all(|s| s.at_least(0));
        let down = signs.iter().all(|s| s.at_most(0));
        if up || down {
            let mut bounds = if up { self.lower_bounds(atom, p, depth) } else { self.upper_bounds(atom, p, depth) };
            if !parts.is_linear() {
                // Powers of bounds are bounds of powers where nothing is negative.
                if !self.cx.bounds(atom).at_least(0) {
                    return false;
                }
                bounds.retain(|b| b.factor == 1);
            }
            for b in bounds {
                if !parts.is_linear() && up && !self.poly_bounds(&b.bound).at_least(0) {
                    continue;
                }
                if let Some(q) = parts.replace(&b)
                    && q != *p
                    && self.non_negative(q, depth - 1)
                {
                    return true;
                }
            }
        }
        self.splitting(&parts, atom, depth)
    }

    /// Cases of a min, max or select.
    fn splitting(&mut self, parts: &ByAtom, atom: ExprId, depth: u32) -> bool {
        let (cond, yes, no) = match *self.cx.env.pool.get(atom) {
            Expr::Bin(BinOp::Min, a, b) => (self.cx.env.pool.le(a, b), a, b),
            Expr::Bin(BinOp::Max, a, b) => (self.cx.env.pool.le(b, a), a, b),
            Expr::Select(c, a, b) if self.cx.env.pool.ty(c).lanes == 1 => (c, a, b),
            _ => return false,
        };
        for (value, holds) in [(yes, true), (no, false)] {
            let bound = Bound { factor: 1, bound: self.cx.poly(value) };
            let Some(q) = parts.replace(&bound) else { return false };
            let (before, outer) = (self.known.len(), self.case);
            self.cases += 1;
            self.case = self.cases;
            if let Expr::Bin(op, a, b) = *self.cx.env.pool.get(cond)
                && op.is_comparison()
                && self.cx.is_index(a)
            {
                let more = self.cx.comparison_polys(op, a, b, holds);
                self.known.extend(more);
            }
            let proved = self.non_negative(q, depth - 1);
            self.known.truncate(before);
            self.case = outer;
            if !proved {
                return false;
            }
        }
        true
    }

    /// Innermost first: atoms over inner loop variables, and of those functions before variables.
    fn atoms_to_replace(&mut self, p: &Poly) -> Vec<ExprId> {
        let mut atoms: Vec<ExprId> = p.terms.keys().flatten().copied().collect();
        atoms.sort_unstable();
        atoms.dedup();
        let mut keyed: Vec<_> = atoms.into_iter().map(|a| (self.rank(a), self.kind_rank(a), a)).collect();
        keyed.sort_by_key(|&(rank, kind, a)| std::cmp::Reverse((rank, kind, a.index())));
        keyed.into_iter().map(|(_, _, a)| a).collect()
    }

    fn rank(&mut self, atom: ExprId) -> usize {
        let key = (self.cx.id, atom);
        if let Some(&r) = self.cx.cache.ranks.get(&key) {
            return r;
        }
        let h = self.cx.hypotheses();
        let vars = self.cx.env.pool.vars_of(atom);
        let r = vars.iter().filter_map(|v| h.positions.get(v)).copied().max().unwrap_or(0);
        self.cx.cache.ranks.insert(key, r);
        r
    }

    fn kind_rank(&self, atom: ExprId) -> u8 {
        match self.cx.env.pool.get(atom) {
            Expr::Call(f, _) => match self.cx.env.ufs[*f].def {
                UfDef::PrefixSum { .. } => 7,
                UfDef::Search { .. } => 6,
                UfDef::Map { .. } => 5,
                _ => 2,
            },
            Expr::Bin(BinOp::Min | BinOp::Max, ..) | Expr::Select(..) => 4,
            Expr::Bin(BinOp::FloorDiv | BinOp::Mod, ..) => 3,
            Expr::Var(_) => 0,
            _ => 1,
        }
    }

    /// An interval of a polynomial's values.
    pub(super) fn poly_bounds(&mut self, p: &Poly) -> Interval {
        let mut sum = Interval::point(0);
        for (m, &k) in &p.terms {
            let mut product = Interval::point(1);
            let mut i = 0;
            while i < m.len() {
                let b = self.cx.bounds(m[i]);
                // Squares are not negative.
                if i + 1 < m.len() && m[i] == m[i + 1] {
                    product = product.times(b.times(b).max(Interval::point(0)));
                    i += 2;
                } else {
                    product = product.times(b);
                    i += 1;
                }
            }
            sum = sum.plus(product.scale(k));
            if sum == Interval::ALL {
                break;
            }
        }
        sum
    }
}
