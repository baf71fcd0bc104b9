//! Constant intervals and residues of index expressions under facts: the cheapest procedure.

use super::context::{Cache, Cx};
use super::facts::Facts;
use super::range::{Interval, Stride};
use cora_ir::expr::{Args, floor_mod};
use cora_ir::{BinOp, Env, Expr, ExprId, ScalarType, UfDef, UfId, UnOp};

/// A constant interval that holds every value of `e` (of every lane of it) where the facts hold.
pub fn bounds(env: &mut Env, facts: &Facts, e: ExprId) -> Interval {
    Cx::new(env, facts, &mut Cache::default()).bounds(e)
}

/// A residue class that holds every value of `e` where the facts hold.
pub fn modulus(env: &mut Env, facts: &Facts, e: ExprId) -> Stride {
    Cx::new(env, facts, &mut Cache::default()).stride(e)
}

impl Cx<'_> {
    /// See [`bounds`].
    pub(super) fn bounds(&mut self, e: ExprId) -> Interval {
        let key = (self.id, e);
        if let Some(&b) = self.cache.bounds.get(&key) {
            return b;
        }
        let known = self.hypotheses().atoms.get(&e).copied().unwrap_or(Interval::ALL);
        // A provisional answer, should a definition lead back here.
        self.cache.bounds.insert(key, known);
        let b = self.bounds_of_node(e).intersect(known);
        self.cache.bounds.insert(key, b);
        b
    }

    fn bounds_of_node(&mut self, e: ExprId) -> Interval {
        match self.env.pool.get(e).clone() {
            Expr::Int(v) => Interval::point(v),
            Expr::Lit(l) if l.ty.is_int() => Interval::point(l.as_i64()),
            Expr::Var(v) => {
                if let Some(value) = self.facts.value_of(v) {
                    return self.bounds(value);
                }
                match self.facts.extent_of(v) {
                    Some(extent) => self.below(extent),
                    None => Interval::ALL,
                }
            }
            Expr::Param(p) => {
                let p = &self.env.params[p];
                Interval::new(Some(p.lo), Some(p.hi))
            }
            Expr::Arg(n) => {
                let extent = self.body_of.and_then(|f| self.env.ufs[f].domain.get(n as usize).copied());
                match extent {
                    Some(extent) => self.below(extent),
                    None => Interval::ALL,
                }
            }
            Expr::Call(f, args) => self.bounds_of_call(f, &args),
            Expr::Un(op, a) if self.is_index(e) => self.bounds_of_un(op, a),
            Expr::Bin(op, a, b) if self.is_index(e) => self.bounds_of_bin(op, a, b),
            Expr::Select(c, a, b) if self.is_index(e) => self.bounds_of_select(c, a, b),
            // Conversions between integer types keep the value of what a range or a literal bounds.
            Expr::Cast(ScalarType::Index, a) => self.bounds_of_source(a),
            Expr::Ramp { base, stride, lanes } => {
                let b = self.bounds(base);
                let steps = Interval::new(Some(0), Some(i64::from(lanes) - 1)).scale(stride);
                b.plus(steps)
            }
            Expr::Splat(a, _) if self.is_index(e) => self.bounds(a),
            Expr::Search { len, .. } => {
                let hi = self.bounds(len).hi;
                Interval::new(Some(0), hi.map(|h| (h - 1).max(0)))
            }
            _ => Interval::ALL,
        }
    }

    /// `0..extent`, for an index that is known to be inside.
    fn below(&mut self, extent: ExprId) -> Interval {
        let hi = self.bounds(extent).hi;
        Interval::new(Some(0), hi.and_then(|h| h.checked_sub(1)))
    }

    fn bounds_of_call(&mut self, f: UfId, args: &Args) -> Interval {
        match self.env.ufs[f].def.clone() {
            UfDef::Extent { lo, hi } => Interval::new(self.bounds(lo).lo, self.bounds(hi).hi),
            UfDef::PrefixSum { body } => {
                let term = self.in_definition(f, |cx| cx.bounds(body)).max(Interval::point(0));
                let Some(&x) = args.last() else { return Interval::ALL };
                let rows = self.domain_at(f, args.len() - 1, args).map_or(Interval::ALL, |n| self.bounds(n));
                let count = self.bounds(x).min(rows).max(Interval::point(0));
                let total = Interval::new(Some(0), count.times(term).hi);
                if total.hi.is_none() { Interval::new(Some(0), None) } else { total }
            }
            UfDef::Search { sum } => {
                let outer = &args[..args.len().saturating_sub(1)];
                let rows = self.domain_at(sum, outer.len(), outer);
                let hi = rows.and_then(|n| self.bounds(n).hi);
                Interval::new(Some(0), hi.map(|h| (h - 1).max(0)))
            }
            UfDef::Max { body } => {
                let hi = self.in_definition(f, |cx| cx.bounds(body)).hi;
                Interval::new(Some(0), hi.map(|h| h.max(0)))
            }
            UfDef::Map { body } => self.in_definition(f, |cx| cx.bounds(body)),
            UfDef::SortDesc { .. } => {
                let hi = self.domain_at(f, args.len() - 1, args).and_then(|n| self.bounds(n).hi);
                Interval::new(Some(0), hi.map(|h| (h - 1).max(0)))
            }
        }
    }

    fn bounds_of_un(&mut self, op: UnOp, a: ExprId) -> Interval {
        let b = self.bounds(a);
        match op {
            UnOp::Neg => b.negate(),
            UnOp::Abs => b.max(b.negate()).max(Interval::point(0)),
            _ => Interval::ALL,
        }
    }

    fn bounds_of_bin(&mut self, op: BinOp, a: ExprId, b: ExprId) -> Interval {
        let (x, y) = (self.bounds(a), self.bounds(b));
        match op {
            BinOp::Add => x.plus(y),
            BinOp::Sub => x.plus(y.negate()),
            BinOp::Mul if a == b => x.times(y).max(Interval::point(0)),
            BinOp::Mul => x.times(y),
            BinOp::Min => x.min(y),
            BinOp::Max => x.max(y),
            BinOp::FloorDiv => x.floor_div(y),
            BinOp::Mod => {
                let r = x.modulo(y);
                let Some(c) = y.as_point().filter(|&c| c > 0) else { return r };
                // Residues r mod g leave r, r + g, ..., r + c - g.
                let s = self.stride(a).modulo(c);
                if s.modulus <= 1 {
                    return if s.modulus == 0 { Interval::point(s.residue) } else { r };
                }
                r.intersect(Interval::new(Some(s.residue), Some(c - s.modulus + s.residue)))
            }
            _ => Interval::ALL,
        }
    }

    fn bounds_of_select(&mut self, c: ExprId, a: ExprId, b: ExprId) -> Interval {
        match self.env.pool.as_bool(c) {
            Some(true) => self.bounds(a),
            Some(false) => self.bounds(b),
            None => {
                let x = self.bounds(a);
                x.hull(self.bounds(b))
            }
        }
    }

    /// Bounds of a value of another type that is used as an index.
    fn bounds_of_source(&mut self, e: ExprId) -> Interval {
        match self.env.pool.get(e).clone() {
            Expr::Load { tensor, index, guard, .. } => {
                let ty = self.env.tensors[tensor].ty;
                // Where the position is not known, its ends may still be the same everywhere.
                let all = self.env.tensors[tensor].range.filter(|_| self.body_of.is_none());
                let declared = self.env.range_at(tensor, &index).or(all);
                let range = match declared {
                    Some((lo, hi)) => {
                        Interval::new(self.bounds(lo).lo, self.bounds(hi).hi.and_then(|h| h.checked_sub(1)))
                    }
                    None if ty.is_int() => Interval::new(Some(ty.int_min()), Some(ty.int_max())),
                    None => Interval::ALL,
                };
                match guard {
                    Some((_, other)) => range.hull(self.bounds_of_source(other)),
                    None => range,
                }
            }
            Expr::Lit(l) if l.ty.is_int() => Interval::point(l.as_i64()),
            Expr::Splat(a, _) => self.bounds_of_source(a),
            Expr::Select(_, a, b) => {
                let x = self.bounds_of_source(a);
                x.hull(self.bounds_of_source(b))
            }
            _ => {
                let ty = self.env.pool.ty(e).scalar;
                if ty.is_int() { Interval::new(Some(ty.int_min()), Some(ty.int_max())) } else { Interval::ALL }
            }
        }
    }

    /// See [`modulus`].
    pub(super) fn stride(&mut self, e: ExprId) -> Stride {
        let key = (self.id, e);
        if let Some(&s) = self.cache.strides.get(&key) {
            return s;
        }
        let s = self.stride_of_node(e);
        self.cache.strides.insert(key, s);
        s
    }

    fn stride_of_node(&mut self, e: ExprId) -> Stride {
        if let Some(v) = self.bounds(e).as_point() {
            return Stride::point(v);
        }
        match self.env.pool.get(e).clone() {
            Expr::Var(v) => match self.facts.value_of(v) {
                Some(value) => self.stride(value),
                None => Stride::ALL,
            },
            Expr::Call(f, _) => match self.env.ufs[f].def {
                // Sums of multiples; the empty sum is 0, a multiple too.
                UfDef::PrefixSum { body } => self.in_definition(f, |cx| cx.stride(body)).hull(Stride::point(0)),
                UfDef::Max { body } => self.in_definition(f, |cx| cx.stride(body)).hull(Stride::point(0)),
                UfDef::Map { body } => self.in_definition(f, |cx| cx.stride(body)),
                _ => Stride::ALL,
            },
            Expr::Un(UnOp::Neg, a) if self.is_index(e) => self.stride(a).times(Stride::point(-1)),
            Expr::Bin(op, a, b) if self.is_index(e) => {
                let (x, y) = (self.stride(a), self.stride(b));
                match op {
                    BinOp::Add => x.plus(y),
                    BinOp::Sub => x.plus(y.times(Stride::point(-1))),
                    BinOp::Mul => x.times(y),
                    BinOp::Min | BinOp::Max => x.hull(y),
                    BinOp::FloorDiv if y.modulus == 0 => x.floor_div(y.residue),
                    BinOp::Mod if y.modulus == 0 => x.modulo(y.residue),
                    _ => Stride::ALL,
                }
            }
            Expr::Select(_, a, b) if self.is_index(e) => {
                let x = self.stride(a);
                x.hull(self.stride(b))
            }
            Expr::Splat(a, _) if self.is_index(e) => self.stride(a),
            Expr::Ramp { base, stride, .. } => {
                let steps = Stride { modulus: stride.saturating_abs(), residue: 0 };
                self.stride(base).plus(steps)
            }
            _ => Stride::ALL,
        }
    }

    /// Whether a polynomial with integer coefficients is even wherever its atoms are integers
    /// (`x * (x - 1)`): its values modulo 2 depend only on the parities of its atoms.
    pub(super) fn always_even(p: &cora_ir::affine::Poly) -> bool {
        let mut odd: std::collections::BTreeSet<Vec<ExprId>> = std::collections::BTreeSet::new();
        for (m, &k) in &p.terms {
            if floor_mod(k, 2) == 1 {
                let mut atoms = m.clone();
                atoms.dedup();
                if !odd.remove(&atoms) {
                    odd.insert(atoms);
                }
            }
        }
        odd.is_empty()
    }
}
