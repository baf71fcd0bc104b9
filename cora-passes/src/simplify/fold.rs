//! Folding decided by intervals, residues and symbolic inequalities: `x % c` becomes `x` where
//! `0 <= x < c`, `min(a, b)` becomes `a` where `a <= b`, a search in a row finds that row.
//!
//! Conditions are used inside what they guard only where nothing is read: both sides of a select
//! are evaluated, so an index must stay valid where the condition is false too.

use super::context::Cx;
use super::range::Interval;
use cora_ir::affine::{self, Poly, gcd};
use cora_ir::expr::{Args, floor_div, floor_mod};
use cora_ir::{BinOp, Expr, ExprId, UfDef, UfId, UnOp};

impl Cx<'_> {
    /// An expression with the same value where the facts hold; one pass, operands first.
    pub(super) fn fold(&mut self, e: ExprId) -> ExprId {
        let key = (self.id, e);
        if let Some(&done) = self.cache.folded.get(&key) {
            return done;
        }
        let kids = self.fold_children(e);
        let same = kids == self.env.pool.children(e);
        let rebuilt = if same { e } else { self.env.pool.with_children(e, &kids) };
        let out = self.fold_node(rebuilt).unwrap_or(rebuilt);
        self.cache.folded.insert(key, out);
        out
    }

    fn fold_children(&mut self, e: ExprId) -> Args {
        match self.env.pool.get(e).clone() {
            Expr::Select(c, a, b) => {
                let c = self.fold(c);
                let a = self.fold_where(c, true, a);
                let b = self.fold_where(c, false, b);
                [c, a, b].into_iter().collect()
            }
            Expr::Bin(op @ (BinOp::And | BinOp::Or), a, b) => {
                let a = self.fold(a);
                let b = self.fold_where(a, op == BinOp::And, b);
                [a, b].into_iter().collect()
            }
            Expr::Load { index, guard: Some((c, other)), .. } => {
                let c = self.fold(c);
                let mut kids: Args = index.iter().map(|&i| self.fold_where(c, true, i)).collect();
                kids.extend([c, self.fold_where(c, false, other)]);
                kids
            }
            _ => self.env.pool.children(e).into_iter().map(|k| self.fold(k)).collect(),
        }
    }

    /// Folds what matters only where `cond` has that value.
    fn fold_where(&mut self, cond: ExprId, holds: bool, e: ExprId) -> ExprId {
        let scalar = self.env.pool.ty(cond).lanes == 1 && self.env.pool.as_bool(cond).is_none();
        let reads = |x: &Expr| matches!(x, Expr::Call(..) | Expr::Load { .. } | Expr::Search { .. });
        let plain = !self.env.pool.children(e).is_empty() && !self.env.pool.any(e, &mut |x| reads(x));
        if !scalar || !plain || self.facts.assumptions.len() >= 8 {
            return self.fold(e);
        }
        let fact = if holds { cond } else { self.env.pool.un(UnOp::Not, cond) };
        let facts = self.facts.assuming(fact);
        self.under(&facts, |cx| cx.fold(e))
    }

    fn fold_node(&mut self, e: ExprId) -> Option<ExprId> {
        if self.is_scalar_index(e)
            && self.env.pool.as_int(e).is_none()
            && let Some(v) = self.bounds(e).as_point()
        {
            return Some(self.env.pool.int(v));
        }
        match self.env.pool.get(e).clone() {
            Expr::Bin(BinOp::FloorDiv, a, b) if self.is_scalar_index(e) => self.fold_div(a, b),
            Expr::Bin(BinOp::Mod, a, b) if self.is_scalar_index(e) => self.fold_mod(a, b),
            Expr::Bin(op @ (BinOp::Min | BinOp::Max), a, b) if self.is_index(e) => {
                let le = self.env.pool.le(a, b);
                let ge = self.env.pool.le(b, a);
                let (first, second) = if op == BinOp::Min { (a, b) } else { (b, a) };
                let lanes = self.env.pool.ty(e).lanes;
                let kept = if self.proves(le, true) {
                    first
                } else if self.proves(ge, true) {
                    second
                } else {
                    return None;
                };
                Some(self.env.pool.splat(kept, lanes))
            }
            Expr::Bin(op, a, b) if op.is_comparison() && self.is_index(a) => self.fold_comparison(e, op, a, b),
            Expr::Bin(BinOp::Add | BinOp::Sub | BinOp::Mul, ..) if self.is_scalar_index(e) => self.fold_sum(e),
            Expr::Call(f, args) => match self.env.ufs[f].def {
                UfDef::Search { sum } if self.is_scalar_index(e) => self.fold_search(sum, &args),
                UfDef::PrefixSum { .. } if args.last().and_then(|&x| self.env.pool.as_int(x)) == Some(0) => {
                    Some(self.env.pool.int(0))
                }
                _ => None,
            },
            _ => None,
        }
    }

    fn build(&mut self, p: &Poly) -> ExprId {
        affine::build(&mut self.env.pool, p)
    }

    /// Whether `0 <= e < n` is proved.
    fn within(&mut self, e: ExprId, n: ExprId) -> bool {
        let zero = self.env.pool.int(0);
        let (low, high) = (self.env.pool.le(zero, e), self.env.pool.lt(e, n));
        self.proves(low, true) && self.proves(high, true)
    }

    fn fold_div(&mut self, a: ExprId, b: ExprId) -> Option<ExprId> {
        let Some(c) = self.env.pool.as_int(b) else { return self.divide_symbolic(a, b).map(|(q, _)| q) };
        if c <= 0 {
            return None;
        }
        let x = self.bounds(a);
        if let (Some(l), Some(h)) = (x.lo, x.hi)
            && floor_div(l, c) == floor_div(h, c)
        {
            return Some(self.env.pool.int(floor_div(l, c)));
        }
        // (x // d) // c = x // (d*c)
        if let Expr::Bin(BinOp::FloorDiv, y, d) = *self.env.pool.get(a)
            && let Some(dc) = self.env.pool.as_int(d).filter(|&d| d > 0).and_then(|d| d.checked_mul(c))
        {
            let dc = self.env.pool.int(dc);
            return Some(self.env.pool.floor_div(y, dc));
        }
        if let Some(one) = self.divided_twice(a, c) {
            return Some(one);
        }
        if self.is_half_known(x, c) && self.within(a, b) {
            return Some(self.env.pool.int(0));
        }
        let (g, high, _) = self.split_common(a, c)?;
        let q = self.env.pool.int(c / g);
        let high = self.build(&high);
        Some(self.env.pool.floor_div(high, q))
    }

    fn fold_mod(&mut self, a: ExprId, b: ExprId) -> Option<ExprId> {
        let Some(c) = self.env.pool.as_int(b) else { return self.divide_symbolic(a, b).map(|(_, r)| r) };
        if c <= 0 {
            return None;
        }
        if let Some(r) = self.stride(a).residue_of(c) {
            return Some(self.env.pool.int(r));
        }
        let x = self.bounds(a);
        if let (Some(l), Some(h)) = (x.lo, x.hi)
            && floor_div(l, c) == floor_div(h, c)
        {
            let whole = self.env.pool.int(floor_div(l, c).checked_mul(c)?);
            return Some(self.env.pool.sub(a, whole));
        }
        // (x % (c*d)) % c = x % c
        if let Expr::Bin(BinOp::Mod, y, d) = *self.env.pool.get(a)
            && self.env.pool.as_int(d).is_some_and(|d| d > 0 && d % c == 0)
        {
            return Some(self.env.pool.modulo(y, b));
        }
        if self.is_half_known(x, c) && self.within(a, b) {
            return Some(a);
        }
        let (g, high, low) = self.split_common(a, c)?;
        let (q, g) = (self.env.pool.int(c / g), self.env.pool.int(g));
        let (high, low) = (self.build(&high), self.build(&low));
        let m = self.env.pool.modulo(high, q);
        let m = self.env.pool.mul(m, g);
        Some(self.env.pool.add(m, low))
    }

    /// Whether constants show one of `0 <= a < c` and contradict neither, so that the other is worth a proof: the
    /// lesser of a position and of the last one, say.
    fn is_half_known(&self, a: Interval, c: i64) -> bool {
        let possible = a.lo.is_none_or(|l| l < c) && a.hi.is_none_or(|h| h >= 0);
        possible && (a.at_least(0) || a.at_most(c - 1))
    }

    /// `(x // d + k) // c = (x + k*d) // (d*c)` for constants.
    fn divided_twice(&mut self, a: ExprId, c: i64) -> Option<ExprId> {
        let p = self.poly(a);
        let mut atoms = p.terms.iter().filter(|(m, _)| !m.is_empty());
        let (Some((m, &1)), None) = (atoms.next(), atoms.next()) else { return None };
        let [atom] = m.as_slice() else { return None };
        let Expr::Bin(BinOp::FloorDiv, x, d) = *self.env.pool.get(*atom) else { return None };
        let d = self.env.pool.as_int(d).filter(|&d| d > 0)?;
        let k = p.terms.get(&Vec::new()).copied().unwrap_or(0).checked_mul(d)?;
        let shifted = self.poly(x).checked_add_scaled(&Poly::constant(k), 1)?;
        let shifted = self.build(&shifted);
        let by = self.env.pool.int(d.checked_mul(c)?);
        Some(self.env.pool.floor_div(shifted, by))
    }

    /// `(g, y, r)` with `a = g*y + r`, `0 <= r < g`, and `g > 1` a divisor of c.
    fn split_common(&mut self, a: ExprId, c: i64) -> Option<(i64, Poly, Poly)> {
        let p = self.poly(a);
        let mut factors: Vec<i64> = p.terms.iter().filter(|(m, _)| !m.is_empty()).map(|(_, &k)| gcd(k, c)).collect();
        factors.sort_unstable();
        factors.dedup();
        for g in factors.into_iter().rev().filter(|&g| g > 1) {
            let (mut high, mut low) = (Poly::default(), Poly::default());
            for (m, &k) in &p.terms {
                if m.is_empty() {
                    high.add_term(m.clone(), floor_div(k, g));
                    low.add_term(m.clone(), floor_mod(k, g));
                } else if k % g == 0 {
                    high.add_term(m.clone(), k / g);
                } else {
                    low.add_term(m.clone(), k);
                }
            }
            let low_expr = self.build(&low);
            let range: Interval = self.bounds(low_expr);
            if range.at_least(0) && range.at_most(g - 1) {
                return Some((g, high, low));
            }
        }
        None
    }

    /// `(a // b, a % b)` where b is one product, proved positive, that divides part of a.
    fn divide_symbolic(&mut self, a: ExprId, b: ExprId) -> Option<(ExprId, ExprId)> {
        let divisor = self.poly(b);
        let (m, &k) = divisor.terms.iter().next()?;
        let (mut whole, mut rest) = (Poly::default(), Poly::default());
        if divisor.terms.len() == 1 && k > 0 {
            for (n, &c) in &self.poly(a).terms {
                match (c % k == 0).then(|| without(n, m)).flatten() {
                    Some(quotient) => whole.add_term(quotient, c / k),
                    None => rest.add_term(n.clone(), c),
                };
            }
        } else {
            rest = self.poly(a);
        }
        let (q, r) = (self.build(&whole), self.build(&rest));
        let one = self.env.pool.int(1);
        let positive = self.env.pool.le(one, b);
        if self.within(r, b) {
            return Some((q, r));
        }
        if whole.terms.is_empty() || !self.proves(positive, true) {
            return None;
        }
        let low = self.env.pool.floor_div(r, b);
        Some((self.env.pool.add(q, low), self.env.pool.modulo(r, b)))
    }

    fn fold_comparison(&mut self, e: ExprId, op: BinOp, a: ExprId, b: ExprId) -> Option<ExprId> {
        let lanes = self.env.pool.ty(e).lanes;
        for value in [true, false] {
            if self.proves(e, value) {
                let c = self.env.pool.bool(value);
                return Some(self.env.pool.splat(c, lanes));
            }
        }
        if lanes != 1 {
            return None;
        }
        // Divide by the common factor of all but the constant: 14*q < 20 is q < 2.
        let (pa, pb) = (self.poly(a), self.poly(b));
        let mut d = pa.checked_add_scaled(&pb, -1)?;
        let g = d.terms.iter().filter(|(m, _)| !m.is_empty()).fold(0, |g, (_, &k)| gcd(g, k));
        if g <= 1 {
            return None;
        }
        let c = d.terms.get(&Vec::new()).copied().unwrap_or(0);
        // g*x + c < 0 is x < -c/g: round so that the integers x are the same.
        let c = match op {
            BinOp::Lt => floor_div(c.checked_neg()?.checked_add(g - 1)?, g).checked_neg()?,
            BinOp::Le => floor_div(c.checked_neg()?, g).checked_neg()?,
            _ if c % g == 0 => c / g,
            _ => return Some(self.env.pool.bool(op == BinOp::Ne)),
        };
        d.terms.remove(&Vec::new());
        d.terms.values_mut().for_each(|k| *k /= g);
        d.add_term(Vec::new(), c);
        let left = self.build(&d);
        let zero = self.env.pool.int(0);
        let out = self.env.pool.bin(op, left, zero);
        Some(affine::normalize(&mut self.env.pool, out))
    }

    /// `P(x + 1) - P(x)` is the term at x, and a quotient times its divisor and the remainder are what is divided.
    fn fold_sum(&mut self, e: ExprId) -> Option<ExprId> {
        let p = self.poly(e);
        if let Some(q) = self.put_together(&p) {
            let out = self.build(&q);
            return Some(self.fold_sum(out).unwrap_or(out));
        }
        let sums: Vec<_> = p.terms.keys().filter(|m| m.len() == 1 && self.as_sum(m[0]).is_some()).cloned().collect();
        for high in &sums {
            for low in &sums {
                let (k, minus) = (p.terms[high], p.terms[low]);
                if high == low || Some(minus) != k.checked_neg() {
                    continue;
                }
                let Some(term) = self.difference(high[0], low[0]) else { continue };
                let mut q = p.clone();
                q.terms.remove(high);
                q.terms.remove(low);
                let q = q.checked_add_scaled(&self.poly(term), k)?;
                let out = self.build(&q);
                return Some(self.fold_sum(out).unwrap_or(out));
            }
        }
        None
    }

    /// `k * r * (x // y * y + x % y)` as `k * r * x`, where y is one product that is proved positive.
    fn put_together(&mut self, p: &Poly) -> Option<Poly> {
        for (m, &k) in &p.terms {
            for (at, &atom) in m.iter().enumerate() {
                let Expr::Bin(BinOp::Mod, x, y) = *self.env.pool.get(atom) else { continue };
                let Some(quotient) = self.env.pool.lookup(&Expr::Bin(BinOp::FloorDiv, x, y)) else { continue };
                let divisor = self.poly(y);
                let (Some((factors, &c)), 1) = (divisor.terms.iter().next(), divisor.terms.len()) else { continue };
                let mut rest = m.clone();
                rest.remove(at);
                let mut whole = rest.clone();
                whole.extend(factors.iter().copied().chain([quotient]));
                whole.sort_unstable();
                if k.checked_mul(c).is_none_or(|kc| p.terms.get(&whole) != Some(&kc)) {
                    continue;
                }
                let one = self.env.pool.int(1);
                let positive = self.env.pool.le(one, y);
                if !self.proves(positive, true) {
                    continue;
                }
                let mut q = p.clone();
                q.terms.remove(m);
                q.terms.remove(&whole);
                let mut scale = Poly::default();
                scale.add_term(rest, k);
                return q.checked_add_scaled(&scale.checked_mul(&self.poly(x))?, 1);
            }
        }
        None
    }

    fn as_sum(&self, e: ExprId) -> Option<(UfId, ExprId, Args)> {
        let Expr::Call(f, args) = self.env.pool.get(e) else { return None };
        let UfDef::PrefixSum { body } = self.env.ufs[*f].def else { return None };
        Some((*f, body, args.clone()))
    }

    /// `high - low` of two calls of one prefix sum whose last arguments differ by 1.
    fn difference(&mut self, high: ExprId, low: ExprId) -> Option<ExprId> {
        let (f, body, h) = self.as_sum(high)?;
        let (g, _, l) = self.as_sum(low)?;
        let (&y, outer) = h.split_last()?;
        let (&x, outer_low) = l.split_last()?;
        if f != g || outer != outer_low {
            return None;
        }
        let (py, px) = (self.poly(y), self.poly(x));
        if py.checked_add_scaled(&px, -1)?.as_constant() != Some(1) || !self.calls_in_domain(f, &l) {
            return None;
        }
        let term = self.env.pool.instantiate(body, &l);
        Some(affine::normalize(&mut self.env.pool, term))
    }

    fn calls_in_domain(&mut self, f: UfId, args: &[ExprId]) -> bool {
        (0..args.len()).all(|j| match self.domain_at(f, j, args) {
            Some(extent) => self.within(args[j], extent),
            None => false,
        })
    }

    /// `S(P(x) + i)` is x where `0 <= x < rows` and `0 <= i < term(x)`.
    fn fold_search(&mut self, sum: UfId, args: &Args) -> Option<ExprId> {
        let (&r, outer) = args.split_last()?;
        let p = self.poly(r);
        let UfDef::PrefixSum { body } = self.env.ufs[sum].def else { return None };
        for (m, &k) in &p.terms {
            if m.len() != 1 || k != 1 {
                continue;
            }
            let Some((f, _, sargs)) = self.as_sum(m[0]) else { continue };
            if f != sum || sargs[..outer.len()] != *outer || !self.calls_in_domain(sum, &sargs) {
                continue;
            }
            let rest = p.clone().checked_add_scaled(&Poly::atom(m[0]), -1)?;
            let rest = self.build(&rest);
            let term = self.env.pool.instantiate(body, &sargs);
            let term = affine::normalize(&mut self.env.pool, term);
            if self.within(rest, term) {
                return sargs.last().copied();
            }
        }
        None
    }
}

/// The monomial `n / m`.
fn without(n: &[ExprId], m: &[ExprId]) -> Option<Vec<ExprId>> {
    let mut rest = n.to_vec();
    for a in m {
        let at = rest.iter().position(|x| x == a)?;
        rest.remove(at);
    }
    Some(rest)
}
