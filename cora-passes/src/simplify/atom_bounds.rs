//! Symbolic bounds of one atom: from loop extents, assumptions and definitions.
//!
//! Facts about a call hold for arguments in the function's domain only, so each is given after a
//! proof that they are. Two facts hold for all arguments, since a function is extended beyond its
//! domain so that they do: a prefix sum is not negative and does not decrease.

use super::context::Cx;
use super::linear::{Bound, Linear, by_atom};
use cora_ir::affine::{self, Poly};
use cora_ir::expr::{floor_div, floor_mod};
use cora_ir::{BinOp, Expr, ExprId, ScalarType, UfDef, UfId};

fn exact(bound: Poly) -> Bound {
    Bound { factor: 1, bound }
}

impl Cx<'_> {
    fn normal_poly(&mut self, e: ExprId) -> Poly {
        let e = affine::normalize(&mut self.env.pool, e);
        self.poly(e)
    }

    fn plus(&mut self, p: &Poly, c: i64) -> Option<Poly> {
        p.clone().checked_add_scaled(&Poly::constant(c), 1)
    }

    /// The term of a prefix sum at row `x`.
    fn term_at(&mut self, body: ExprId, outer: &[ExprId], x: ExprId) -> Poly {
        let args: Vec<ExprId> = outer.iter().copied().chain([x]).collect();
        let term = self.env.pool.instantiate(body, &args);
        self.normal_poly(term)
    }
}

impl Linear<'_, '_> {
    /// Whether `lo <= e < hi` is proved (`lo` 0).
    fn inside(&mut self, e: ExprId, extent: ExprId, depth: u32) -> bool {
        let (pe, px) = (self.cx.poly(e), self.cx.normal_poly(extent));
        let room = px.checked_add_scaled(&pe, -1).and_then(|d| self.cx.plus(&d, -1));
        self.side_question(Some(pe), depth) && self.side_question(room, depth)
    }

    /// Whether the first `count` arguments are proved to be in the function's domain.
    fn in_domain(&mut self, f: UfId, args: &[ExprId], count: usize, depth: u32) -> bool {
        (0..count).all(|j| match self.cx.domain_at(f, j, args) {
            Some(extent) => self.inside(args[j], extent, depth),
            None => false,
        })
    }

    /// Bounds from assumptions (and the cases under way) in which the atom occurs linearly.
    fn assumed(&mut self, atom: ExprId, upper: bool) -> Vec<Bound> {
        let mut out = Vec::new();
        for q in &self.known {
            let parts = by_atom(q, atom);
            let [(1, c)] = &parts.powers[..] else { continue };
            let Some(k) = c.as_constant() else { continue };
            // k * atom + rest >= 0
            if upper == (k < 0)
                && let Some(factor) = k.checked_abs()
                && let Some(bound) = Poly::default().checked_add_scaled(&parts.rest, if upper { 1 } else { -1 })
            {
                out.push(Bound { factor, bound });
            }
        }
        out
    }

    /// Polynomials L with `factor * atom >= L`, the most useful first.
    pub(super) fn lower_bounds(&mut self, atom: ExprId, p: &Poly, depth: u32) -> Vec<Bound> {
        let mut out = self.assumed(atom, false);
        self.definition_bounds(atom, p, false, depth, &mut out);
        if let Some(lo) = self.cx.bounds(atom).lo {
            out.push(exact(Poly::constant(lo)));
        }
        out
    }

    /// Polynomials U with `factor * atom <= U`, the most useful first.
    pub(super) fn upper_bounds(&mut self, atom: ExprId, p: &Poly, depth: u32) -> Vec<Bound> {
        let mut out = self.assumed(atom, true);
        self.definition_bounds(atom, p, true, depth, &mut out);
        if let Some(hi) = self.cx.bounds(atom).hi {
            out.push(exact(Poly::constant(hi)));
        }
        out
    }

    fn definition_bounds(&mut self, atom: ExprId, p: &Poly, upper: bool, depth: u32, out: &mut Vec<Bound>) {
        match self.cx.env.pool.get(atom).clone() {
            Expr::Var(v) if upper => {
                if let Some(extent) = self.cx.facts.extent_of(v) {
                    let h = self.cx.hypotheses();
                    let extent = self.cx.env.pool.substitute(extent, &h.lets);
                    let e = self.cx.normal_poly(extent);
                    out.extend(self.cx.plus(&e, -1).map(exact));
                }
            }
            Expr::Bin(BinOp::Min, a, b) if upper => {
                for e in [a, b] {
                    out.push(exact(self.cx.poly(e)));
                }
            }
            Expr::Bin(BinOp::Max, a, b) if !upper => {
                for e in [a, b] {
                    out.push(exact(self.cx.poly(e)));
                }
            }
            Expr::Bin(BinOp::FloorDiv, x, c) => {
                self.quotient_bounds(x, c, upper, out);
                self.other_quotients(atom, p, upper, depth, out);
            }
            Expr::Bin(BinOp::Mod, x, c) => self.remainder_bounds(x, c, upper, out),
            Expr::Call(f, args) => self.call_bounds(f, &args, p, upper, depth, out),
            Expr::Ramp { base, stride, lanes } => {
                let steps = i64::from(lanes).saturating_sub(1).saturating_mul(stride);
                let step = if upper { steps.max(0) } else { steps.min(0) };
                let b = self.cx.poly(base);
                out.extend(self.cx.plus(&b, step).map(exact));
            }
            Expr::Splat(a, _) => out.push(exact(self.cx.poly(a))),
            Expr::Cast(ScalarType::Index, a) => {
                if let Expr::Load { tensor, index, guard: None, .. } = self.cx.env.pool.get(a).clone()
                    && let Some((lo, hi)) = self.cx.env.range_at(tensor, &index)
                {
                    let e = self.cx.normal_poly(if upper { hi } else { lo });
                    out.extend(self.cx.plus(&e, if upper { -1 } else { 0 }).map(exact));
                }
            }
            _ => {}
        }
    }

    /// `c * (x // c) = x - x % c` for a constant `c > 0`.
    fn quotient_bounds(&mut self, x: ExprId, c: ExprId, upper: bool, out: &mut Vec<Bound>) {
        let px = self.cx.poly(x);
        let Some(k) = self.cx.env.pool.as_int(c).filter(|&k| k > 0) else {
            // x // n <= x where neither is negative.
            if upper && self.cx.bounds(x).at_least(0) && self.cx.bounds(c).at_least(0) {
                out.push(exact(px));
            }
            return;
        };
        let remainder = if k == 2 && Cx::always_even(&px) {
            super::range::Interval::point(0)
        } else {
            let r = self.cx.env.pool.modulo(x, c);
            self.cx.bounds(r)
        };
        let end = if upper { remainder.lo } else { remainder.hi };
        if let Some(bound) = end.and_then(|r| self.cx.plus(&px, -r)) {
            out.push(Bound { factor: k, bound });
        }
    }

    /// `x // c <= y // c` where `x <= y` and `c > 0`, for other quotients in `p`; and what quotients by multiples of
    /// each other say.
    fn other_quotients(&mut self, atom: ExprId, p: &Poly, upper: bool, depth: u32, out: &mut Vec<Bound>) {
        let Expr::Bin(BinOp::FloorDiv, x, c) = *self.cx.env.pool.get(atom) else { return };
        let mut others: Vec<ExprId> = p.terms.keys().flatten().copied().filter(|&o| o != atom).collect();
        others.dedup();
        for other in others {
            let Expr::Bin(BinOp::FloorDiv, y, d) = *self.cx.env.pool.get(other) else { continue };
            out.extend(self.multiple_quotients((x, c), (y, d), other, upper));
            if c != d || !self.cx.bounds(c).at_least(1) {
                continue;
            }
            let (px, py) = (self.cx.poly(x), self.cx.poly(y));
            let gap = if upper { py.checked_add_scaled(&px, -1) } else { px.checked_add_scaled(&py, -1) };
            if self.side_question(gap, depth) {
                out.push(exact(Poly::atom(other)));
            }
        }
    }

    /// A bound of `x // c` by `y // d`, where `y - x` is a constant g and one of the constants c and d is a multiple
    /// of the other: with `d = m*c`, `m * (y // d)` is at most `y // c` and more than `y // c - m`, and `y // c` is between
    /// `x // c + floor(g / c)` and `x // c + ceil(g / c)`.
    fn multiple_quotients(
        &mut self,
        (x, c): (ExprId, ExprId),
        (y, d): (ExprId, ExprId),
        other: ExprId,
        upper: bool,
    ) -> Option<Bound> {
        let constant = |cx: &Cx<'_>, e| cx.env.pool.as_int(e).filter(|&v| v > 0);
        let (c, d) = (constant(self.cx, c)?, constant(self.cx, d)?);
        let (px, py) = (self.cx.poly(x), self.cx.poly(y));
        let gap = py.checked_add_scaled(&px, -1)?.as_constant()?;
        let ceil = |v: i64, by: i64| floor_div(v, by).checked_add(i64::from(floor_mod(v, by) != 0));
        let quotient = Poly::atom(other);
        if d % c == 0 {
            let m = d / c;
            let by = if upper { (m - 1).checked_sub(floor_div(gap, c))? } else { ceil(gap, c)?.checked_neg()? };
            return Poly::constant(by).checked_add_scaled(&quotient, m).map(exact);
        }
        if c % d == 0 {
            // The same with the roles exchanged: m * (x // c) by y // d.
            let (m, gap) = (c / d, gap.checked_neg()?);
            let by = if upper { ceil(gap, d)? } else { floor_div(gap, d).checked_sub(m - 1)? };
            return Some(Bound { factor: m, bound: self.cx.plus(&quotient, by)? });
        }
        None
    }

    fn remainder_bounds(&mut self, x: ExprId, c: ExprId, upper: bool, out: &mut Vec<Bound>) {
        if !upper {
            return;
        }
        let (px, pc) = (self.cx.poly(x), self.cx.poly(c));
        if self.cx.bounds(c).at_least(1) {
            out.extend(self.cx.plus(&pc, -1).map(exact));
        }
        if self.cx.bounds(x).at_least(0) && self.cx.bounds(c).at_least(0) {
            out.push(exact(px));
        }
    }

    fn call_bounds(&mut self, f: UfId, args: &[ExprId], p: &Poly, upper: bool, depth: u32, out: &mut Vec<Bound>) {
        match self.cx.env.ufs[f].def.clone() {
            UfDef::Extent { lo, hi } => {
                if upper {
                    self.below_max(f, args, p, depth, out);
                } else if args.iter().any(|&row| self.empties(f, args, row, depth)) {
                    out.push(exact(Poly::constant(1)));
                }
                let e = if upper { hi } else { lo };
                if self.cx.env.pool.as_int(e).is_none() {
                    out.push(exact(self.cx.normal_poly(e)));
                }
            }
            UfDef::Map { body } => {
                if self.in_domain(f, args, args.len(), depth) {
                    let value = self.cx.env.pool.instantiate(body, args);
                    out.push(exact(self.cx.normal_poly(value)));
                }
            }
            UfDef::SortDesc { .. } => {
                if upper && self.in_domain(f, args, args.len(), depth) {
                    let Some(n) = self.cx.domain_at(f, args.len() - 1, args) else { return };
                    let n = self.cx.normal_poly(n);
                    out.extend(self.cx.plus(&n, -1).map(exact));
                }
            }
            UfDef::Search { sum } => {
                let Some((&r, outer)) = args.split_last() else { return };
                if upper && (self.rows_exist(sum, outer) || self.search_in_range(sum, outer, r, depth)) {
                    let Some(rows) = self.cx.domain_at(sum, outer.len(), outer) else { return };
                    let rows = self.cx.normal_poly(rows);
                    out.extend(self.cx.plus(&rows, -1).map(exact));
                }
            }
            UfDef::PrefixSum { body } => self.sum_bounds(f, body, args, p, upper, depth, out),
            UfDef::Max { .. } => {}
        }
    }

    /// Whether `row` is what a search found, a row that has elements, and has none where `f(args)` is 0 or less.
    fn empties(&mut self, f: UfId, args: &[ExprId], row: ExprId, depth: u32) -> bool {
        let Expr::Call(search, found) = self.cx.env.pool.get(row).clone() else { return false };
        let UfDef::Search { sum } = self.cx.env.ufs[search].def else { return false };
        let UfDef::PrefixSum { body } = self.cx.env.ufs[sum].def else { return false };
        let Some((&r, outer)) = found.split_last() else { return false };
        let call = self.cx.env.pool.call(f, args.iter().copied());
        if self.cx.env.pool.as_int(call).is_some() || !self.cx.bounds(call).at_least(0) {
            return false;
        }
        let term = self.cx.env.pool.instantiate(body, &[outer, &[row]].concat());
        let zero = self.cx.env.pool.int(0);
        let without = self.cx.env.pool.rewrite(term, &mut |_, e| (e == call).then_some(zero));
        without != term && self.cx.bounds(without).at_most(0) && self.search_in_range(sum, outer, r, depth)
    }

    /// `g(args) <= max over g` for each such maximum in `p`.
    fn below_max(&mut self, g: UfId, args: &[ExprId], p: &Poly, depth: u32, out: &mut Vec<Bound>) {
        let formals: Vec<ExprId> = (0..args.len()).map(|j| self.cx.env.pool.arg(j as u32)).collect();
        let general = self.cx.env.pool.call(g, formals);
        for &other in p.terms.keys().flatten() {
            if let Expr::Call(m, _) = *self.cx.env.pool.get(other)
                && let UfDef::Max { body } = self.cx.env.ufs[m].def
                && body == general
                && self.cx.env.ufs[m].domain.len() == args.len()
                && self.in_domain(m, args, args.len(), depth)
            {
                out.push(exact(Poly::atom(other)));
            }
        }
    }

    /// Whether there is at least one row whatever position is looked for.
    fn rows_exist(&mut self, sum: UfId, outer: &[ExprId]) -> bool {
        match self.cx.domain_at(sum, outer.len(), outer) {
            Some(rows) => self.cx.bounds(rows).at_least(1),
            None => false,
        }
    }

    /// Whether `0 <= r < P(outer.., rows)` is proved, and the outer arguments are in their domain.
    pub(super) fn search_in_range(&mut self, sum: UfId, outer: &[ExprId], r: ExprId, depth: u32) -> bool {
        let Some(rows) = self.cx.domain_at(sum, outer.len(), outer) else { return false };
        let rows = affine::normalize(&mut self.cx.env.pool, rows);
        let total = self.cx.env.pool.call(sum, outer.iter().copied().chain([rows]));
        self.in_domain(sum, outer, outer.len(), depth) && self.inside(r, total, depth)
    }

    #[allow(clippy::too_many_arguments)]
    fn sum_bounds(
        &mut self,
        f: UfId,
        body: ExprId,
        args: &[ExprId],
        p: &Poly,
        upper: bool,
        depth: u32,
        out: &mut Vec<Bound>,
    ) {
        let Some((&x, outer)) = args.split_last() else { return };
        let px = self.cx.poly(x);
        // P(S(r)) <= r < P(S(r)) + body(S(r))
        if let Expr::Call(s, sargs) = self.cx.env.pool.get(x).clone()
            && matches!(self.cx.env.ufs[s].def, UfDef::Search { sum } if sum == f)
            && let Some((&r, souter)) = sargs.split_last()
            && souter == outer
            && self.search_in_range(f, outer, r, depth)
        {
            let pr = self.cx.poly(r);
            if upper {
                out.push(exact(pr));
            } else {
                let term = self.cx.term_at(body, outer, x);
                let low = pr.checked_add_scaled(&term, -1).and_then(|q| self.cx.plus(&q, 1));
                out.extend(low.map(exact));
            }
        }
        // Other values of the same sum: in the polynomial, and of the whole.
        let mut others: Vec<ExprId> = p.terms.keys().flatten().copied().collect();
        if upper && let Some(rows) = self.cx.domain_at(f, outer.len(), outer) {
            let rows = affine::normalize(&mut self.cx.env.pool, rows);
            others.push(self.cx.env.pool.call(f, outer.iter().copied().chain([rows])));
        }
        others.sort_unstable();
        others.dedup();
        for other in others {
            let Expr::Call(g, oargs) = self.cx.env.pool.get(other).clone() else { continue };
            let Some((&y, oouter)) = oargs.split_last() else { continue };
            if g != f || oouter != outer || y == x {
                continue;
            }
            let py = self.cx.poly(y);
            let (low, high) = if upper { (&px, &py) } else { (&py, &px) };
            let gap = high.clone().checked_add_scaled(low, -1);
            let strict = gap.as_ref().and_then(|g| self.cx.plus(g, -1));
            let value = Poly::atom(other);
            let low_row = if upper { x } else { y };
            let row_args: Vec<ExprId> = outer.iter().copied().chain([low_row]).collect();
            if self.side_question(strict, depth) && self.in_domain(f, &row_args, row_args.len(), depth) {
                // P(low) + body(low) <= P(high)
                let term = self.cx.term_at(body, outer, low_row);
                out.extend(value.checked_add_scaled(&term, if upper { -1 } else { 1 }).map(exact));
            } else if self.side_question(gap, depth) {
                out.push(exact(value));
            }
        }
        // P(x) <= x * (greatest term)
        let term = self.cx.in_definition(f, |cx| cx.bounds(body));
        if upper
            && let Some(hi) = term.hi
            && self.cx.bounds(x).at_least(0)
        {
            out.extend(Poly::default().checked_add_scaled(&px, hi.max(0)).map(exact));
        }
    }
}
