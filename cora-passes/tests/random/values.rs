//! Random element expressions: loads in bounds, arithmetic whose rounding is known.

use super::graphs::{EXACT, Gen, Known};
use super::shapes::{in_bounds, is_fixed_size};
use cora_ir::{BinOp, ExprId, Literal, ScalarType, UnOp};
use rand::prelude::*;

/// Values greater than this are brought down before they are multiplied or summed.
const LARGE: f64 = 4000.0;

/// Products and sums of values up to this are whole numbers that the type has.
fn large(ty: ScalarType) -> f64 {
    match ty {
        ScalarType::BF16 => 16.0,
        ScalarType::F16 => 45.0,
        _ => LARGE,
    }
}

/// An expression and what is known of its value.
#[derive(Clone, Copy)]
pub struct Val {
    pub e: ExprId,
    /// Greatest finite magnitude.
    pub bound: f64,
    /// Whether it is a whole number, an infinity or NaN, whatever the order of evaluation.
    pub exact: bool,
}

impl Gen<'_> {
    /// A load of `t` over the operator's dimensions; a dimension is added with chance `open`.
    pub fn load(&mut self, t: Known, open: f64) -> Option<Val> {
        let dims = self.g.env.tensors[t.id].dims.clone();
        let ty = self.g.env.tensors[t.id].ty;
        let (mut index, mut guards, mut unsafe_outer): (Vec<ExprId>, Vec<ExprId>, bool) = Default::default();
        for (d, dim) in dims.iter().enumerate() {
            let extent = self.g.env.pool.instantiate(dim.extent, &index);
            let steers = dims[d + 1..]
                .iter()
                .any(|x| self.g.env.pool.any(x.extent, &mut |n| *n == cora_ir::Expr::Arg(d as u32)));
            let same: Vec<ExprId> = self.dims.iter().filter(|x| x.extent == extent).map(|x| x.index).collect();
            // Two positions of one tensor that are the same index are rarer than different ones.
            let fresh: Vec<ExprId> = same.iter().copied().filter(|i| !index.contains(i)).collect();
            let direct = fresh.choose(self.rng).or(same.choose(self.rng)).copied();
            let chance = if steers { 0.02 } else { 0.15 };
            let i = if !unsafe_outer
                && !steers
                && is_fixed_size(&self.g.env, extent, &self.shapes)
                && self.rng.random_bool(0.12)
            {
                self.gathered(extent)?
            } else if let Some(own) = self.dims.iter().copied().find(|x| x.extent == extent)
                && !unsafe_outer
                && !steers
                && self.rng.random_bool(0.06)
            {
                // There is a position where there is one of the dimension.
                self.gather_by(&[own], extent)
            } else if let Some(c) = self.g.env.pool.as_int(extent).filter(|&c| c > 0)
                && self.rng.random_bool(0.1)
            {
                let c = self.rng.random_range(0..c);
                self.int(c)
            } else if !self.rng.random_bool(chance) && direct.is_some() {
                direct?
            } else if !unsafe_outer && self.dims.len() < 5 && self.rng.random_bool(open) {
                self.add_dim(extent).index
            } else if steers && !self.rng.random_bool(0.25) {
                return None;
            } else {
                let i = self.neighbour(extent)?;
                guards.push(in_bounds(&mut self.g.env, i, extent));
                unsafe_outer |= steers;
                i
            };
            index.push(i);
        }
        if self.rng.random_bool(0.05)
            && let Some(below) = self.dims.choose(self.rng).map(|d| d.index)
            && let Some(count) = self.computed_index()
        {
            guards.push(self.env().pool.lt(below, count));
        }
        let guard = if guards.is_empty() {
            None
        } else {
            let other = self.rng.random_range(-1..=1);
            let other = self.literal(ty, other);
            Some((self.env().pool.all(guards), other))
        };
        let e = self.env().pool.load_guarded((t.id, 0), ty, index, guard);
        Some(Val { e, bound: t.bound, exact: t.exact })
    }

    /// An index into a size of `extent` that an input gives, for each position of one or two dimensions.
    fn gathered(&mut self, extent: ExprId) -> Option<ExprId> {
        let mut by = vec![self.dims.choose(self.rng).copied()?];
        if self.rng.random_bool(0.5) {
            by.extend(self.dims.choose(self.rng).copied());
        }
        Some(self.gather_by(&by, extent))
    }

    /// An index that may be out of bounds.
    fn neighbour(&mut self, extent: ExprId) -> Option<ExprId> {
        if self.rng.random_bool(0.2)
            && let Some(e) = self.computed_index()
        {
            return Some(e);
        }
        let d = self.dims.choose(self.rng).copied()?;
        let (one, two) = (self.int(1), self.int(2));
        let pool = &mut self.g.env.pool;
        Some(match self.rng.random_range(0..8) {
            0 | 1 => pool.sub(d.index, one),
            2 | 3 => pool.add(d.index, one),
            4 => pool.floor_div(d.index, two),
            5 => {
                let twice = pool.mul(d.index, two);
                pool.add(twice, one)
            }
            6 => {
                let last = pool.sub(extent, one);
                pool.sub(last, d.index)
            }
            _ => d.index,
        })
    }

    /// An element of type `ty` from loads, indices and literals.
    pub fn value(&mut self, loads: &[Val], ty: ScalarType) -> Val {
        if ty == ScalarType::Bool {
            return self.truth(loads);
        }
        let mut terms: Vec<Val> = loads.iter().map(|&v| self.convert(v, ty)).collect();
        if terms.is_empty() || self.rng.random_bool(0.15) {
            let v = self.rng.random_range(-2..=3);
            let lit = Val { e: self.literal(ty, v), bound: 3.0, exact: true };
            terms.push(lit);
        }
        if let Some(d) = self.dims.choose(self.rng).copied()
            && self.rng.random_bool(0.1)
        {
            let e = self.env().pool.cast(ty, d.index);
            // A size that is a literal folds to something that is no index.
            terms.push(Val { e, bound: 64.0, exact: true });
        }
        let mut acc = terms[0];
        for &t in &terms[1..] {
            acc = self.combine(ty, acc, t);
        }
        let wide = !matches!(ty, ScalarType::F16 | ScalarType::BF16);
        if ty.is_float() && wide && self.rng.random_bool(0.12) {
            acc = self.exp(acc);
        } else if ty.is_float() && self.rng.random_bool(0.05) {
            acc = self.small(acc, large(ty));
            acc.e = self.env().pool.un(UnOp::Abs, acc.e);
        }
        acc
    }

    fn convert(&mut self, v: Val, ty: ScalarType) -> Val {
        let from = self.g.env.pool.ty(v.e).scalar;
        // The greatest element of nothing is a very large integer.
        let v = if from.is_int() && ty.is_float() { self.small(Val { bound: f64::MAX, ..v }, 7.0) } else { v };
        let v = if large(ty) < LARGE { self.small(v, large(ty)) } else { v };
        let e = self.env().pool.cast(ty, v.e);
        Val { e, ..v }
    }

    fn combine(&mut self, ty: ScalarType, a: Val, b: Val) -> Val {
        let exact = a.exact && b.exact;
        let (a, b) = if large(ty) < LARGE { (self.small(a, large(ty)), self.small(b, large(ty))) } else { (a, b) };
        match self.rng.random_range(0..9) {
            0..=2 => {
                let (a, b) = (self.small(a, LARGE), self.small(b, LARGE));
                self.arith(BinOp::Mul, a, b)
            }
            op @ 3..=4 => {
                let (a, b) = (self.small(a, EXACT / 4.0), self.small(b, EXACT / 4.0));
                self.arith(if op == 3 { BinOp::Add } else { BinOp::Sub }, a, b)
            }
            5 => self.arith(BinOp::Min, a, b),
            6 => self.arith(BinOp::Max, a, b),
            n => {
                let cond = if n == 7 && exact { self.env().pool.lt(a.e, b.e) } else { self.index_condition(ty) };
                let e = self.env().pool.select(cond, a.e, b.e);
                Val { e, bound: a.bound.max(b.bound), exact }
            }
        }
    }

    /// A condition on the operator's indices.
    fn index_condition(&mut self, _ty: ScalarType) -> ExprId {
        let (Some(&a), Some(&b)) = (self.dims.choose(self.rng), self.dims.choose(self.rng)) else {
            return self.env().pool.bool(true);
        };
        let (two, zero) = (self.int(2), self.int(0));
        let pool = &mut self.g.env.pool;
        match self.rng.random_range(0..3) {
            0 => pool.le(a.index, b.index),
            1 => pool.lt(a.index, two),
            _ => {
                let parity = pool.modulo(a.index, two);
                pool.bin(BinOp::Eq, parity, zero)
            }
        }
    }

    /// A truth value.
    fn truth(&mut self, loads: &[Val]) -> Val {
        let mut conds: Vec<ExprId> = Vec::new();
        for v in loads {
            let from = self.g.env.pool.ty(v.e).scalar;
            if from == ScalarType::Bool {
                conds.push(v.e);
            } else {
                let one = self.literal(from, 1);
                conds.push(self.env().pool.lt(v.e, one));
            }
        }
        if conds.is_empty() || self.rng.random_bool(0.3) {
            conds.push(self.index_condition(ScalarType::Bool));
        }
        let mut acc = conds[0];
        for &c in &conds[1..] {
            let op = *[BinOp::And, BinOp::Or, BinOp::Ne].choose(self.rng).unwrap_or(&BinOp::And);
            acc = self.env().pool.bin(op, acc, c);
        }
        if self.rng.random_bool(0.2) {
            acc = self.env().pool.un(UnOp::Not, acc);
        }
        Val { e: acc, bound: 1.0, exact: true }
    }

    /// `a op b`, its magnitude and exactness.
    pub fn arith(&mut self, op: BinOp, a: Val, b: Val) -> Val {
        let bound = match op {
            BinOp::Mul => a.bound * b.bound,
            BinOp::Add | BinOp::Sub => a.bound + b.bound,
            _ => a.bound.max(b.bound),
        };
        let exact = a.exact && b.exact && op != BinOp::Div;
        Val { e: self.env().pool.bin(op, a.e, b.e), bound, exact }
    }

    /// e to the power of a value brought to at most 3.
    pub fn exp(&mut self, v: Val) -> Val {
        let ty = self.g.env.pool.ty(v.e).scalar;
        let (lo, hi) = (self.literal(ty, -3), self.literal(ty, 3));
        let low = self.env().pool.max(v.e, lo);
        let clamped = self.env().pool.min(low, hi);
        Val { e: self.env().pool.un(UnOp::Exp, clamped), bound: 21.0, exact: false }
    }

    /// The value itself if it is at most `limit`, else one made from it that is.
    pub fn small(&mut self, v: Val, limit: f64) -> Val {
        if v.bound <= limit {
            return v;
        }
        let ty = self.g.env.pool.ty(v.e).scalar;
        if ty.is_int() {
            let seven = self.literal(ty, 7);
            return Val { e: self.env().pool.modulo(v.e, seven), bound: 7.0, exact: true };
        }
        if !v.exact {
            let scale = self.g.env.pool.lit(Literal::float(ty, 1.0 / v.bound));
            let scaled = self.env().pool.mul(v.e, scale);
            return Val { e: scaled, bound: 1.0, exact: false };
        }
        // x - 7 * floor(x / 7) of the value between plus and minus ten thousand.
        let [lo, hi, seven] = [-10_000, 10_000, 7].map(|c| self.literal(ty, c));
        let pool = &mut self.g.env.pool;
        let low = pool.max(v.e, lo);
        let x = pool.min(low, hi);
        let q = pool.bin(BinOp::Div, x, seven);
        let q = pool.un(UnOp::Floor, q);
        let whole = pool.mul(q, seven);
        Val { e: pool.sub(x, whole), bound: 7.0, exact: true }
    }

    /// One of -1, 1 and 2, by the value: products of these are exact.
    pub fn power_of_two(&mut self, v: Val) -> Val {
        let ty = self.g.env.pool.ty(v.e).scalar;
        let [zero, two, minus, one] = [0, 2, -1, 1].map(|c| self.literal(ty, c));
        let pool = &mut self.g.env.pool;
        let (negative, little) = (pool.lt(v.e, zero), pool.lt(v.e, two));
        let positive = pool.select(little, one, two);
        Val { e: pool.select(negative, minus, positive), bound: 2.0, exact: true }
    }
}
