//! Arithmetic on scalar and vector registers.

use crate::interp::instr::{LANES, Opd};
use crate::interp::ops;
use crate::interp::regs::{File, Reg, Regs, Src, Und, lane_of, src};
use crate::types::{BinOp, Combiner, ScalarType, UnOp, round_float};

#[inline]
fn zip1<T: Copy, U: Copy>(dst: &mut [U], a: Src<'_, T>, f: impl Fn(T) -> U) {
    match a {
        Src::V(a) => dst.iter_mut().zip(a).for_each(|(d, &x)| *d = f(x)),
        Src::S(x) => dst.fill(f(x)),
    }
}

#[inline]
fn zip2<T: Copy, U: Copy>(dst: &mut [U], a: Src<'_, T>, b: Src<'_, T>, f: impl Fn(T, T) -> U) {
    match (a, b) {
        (Src::V(a), Src::V(b)) => dst.iter_mut().zip(a).zip(b).for_each(|((d, &x), &y)| *d = f(x, y)),
        (Src::V(a), Src::S(y)) => dst.iter_mut().zip(a).for_each(|(d, &x)| *d = f(x, y)),
        (Src::S(x), Src::V(b)) => dst.iter_mut().zip(b).for_each(|(d, &y)| *d = f(x, y)),
        (Src::S(x), Src::S(y)) => dst.fill(f(x, y)),
    }
}

fn bin_f_lanes(op: BinOp, dst: &mut [f64], a: Src<'_, f64>, b: Src<'_, f64>) {
    match op {
        BinOp::Add => zip2(dst, a, b, |x, y| x + y),
        BinOp::Sub => zip2(dst, a, b, |x, y| x - y),
        BinOp::Mul => zip2(dst, a, b, |x, y| x * y),
        BinOp::Div => zip2(dst, a, b, |x, y| x / y),
        BinOp::Min => zip2(dst, a, b, ops::fmin),
        BinOp::Max => zip2(dst, a, b, ops::fmax),
        _ => zip2(dst, a, b, |x, y| ops::bin_f(op, x, y)),
    }
}

fn cmp_f_lanes(op: BinOp, dst: &mut [i64], a: Src<'_, f64>, b: Src<'_, f64>) {
    match op {
        BinOp::Lt => zip2(dst, a, b, |x, y| i64::from(x < y)),
        BinOp::Le => zip2(dst, a, b, |x, y| i64::from(x <= y)),
        BinOp::Eq => zip2(dst, a, b, |x, y| i64::from(x == y)),
        _ => zip2(dst, a, b, |x, y| i64::from(x != y)),
    }
}

fn bin_i_lanes(op: BinOp, ty: ScalarType, dst: &mut [i64], a: Src<'_, i64>, b: Src<'_, i64>) {
    match op {
        BinOp::Add => zip2(dst, a, b, i64::wrapping_add),
        BinOp::Sub => zip2(dst, a, b, i64::wrapping_sub),
        BinOp::Mul => zip2(dst, a, b, i64::wrapping_mul),
        BinOp::Min => return zip2(dst, a, b, i64::min),
        BinOp::Max => return zip2(dst, a, b, i64::max),
        BinOp::And => return zip2(dst, a, b, |x, y| i64::from(x != 0 && y != 0)),
        BinOp::Or => return zip2(dst, a, b, |x, y| i64::from(x != 0 || y != 0)),
        BinOp::Lt => return zip2(dst, a, b, |x, y| i64::from(x < y)),
        BinOp::Le => return zip2(dst, a, b, |x, y| i64::from(x <= y)),
        BinOp::Eq => return zip2(dst, a, b, |x, y| i64::from(x == y)),
        BinOp::Ne => return zip2(dst, a, b, |x, y| i64::from(x != y)),
        _ => return zip2(dst, a, b, |x, y| ops::bin_i(op, ty, x, y)),
    }
    if ops::wraps(ty) {
        dst.iter_mut().for_each(|d| *d = ops::wrap(ty, *d));
    }
}

/// Definedness of `and`/`or`: one defined operand may decide the result.
fn decided(op: BinOp, und: Und, f: &File<i64>, a: Opd, b: Opd, n: usize) -> Und {
    if !und.any || !matches!(op, BinOp::And | BinOp::Or) {
        return und;
    }
    let (ua, ub) = (f.und(a), f.und(b));
    let (va, vb) = (f.src(a, n), f.src(b, n));
    let by = op == BinOp::Or;
    let mut out = und;
    for l in 0..n {
        if (!ua.at(l) && (va.at(l) != 0) == by) || (!ub.at(l) && (vb.at(l) != 0) == by) {
            out.clear(l);
        }
    }
    out
}

/// Marks the lanes in which an index leaves 64 bits; whether there is one that was defined.
fn mark_overflow(op: BinOp, und: &mut Und, a: Src<'_, i64>, b: Src<'_, i64>, n: usize) -> bool {
    if !matches!(op, BinOp::Add | BinOp::Sub | BinOp::Mul | BinOp::FloorDiv) {
        return false;
    }
    let mut any = false;
    for l in 0..n {
        if ops::checked_i(op, ScalarType::Index, a.at(l), b.at(l)).is_none() {
            any |= !und.at(l);
            und.set(l);
        }
    }
    any
}

impl Regs {
    pub fn bin(&mut self, op: BinOp, ty: ScalarType, dst: Opd, a: Opd, b: Opd, w: u32) {
        match (dst, ty.is_float(), op.is_comparison()) {
            (Opd::S(d), true, false) => {
                let und = self.f.und(a).any || self.f.und(b).any;
                let x = ops::bin_f(op, self.f.src(a, 1).at(0), self.f.src(b, 1).at(0));
                self.f.set(d, x, und);
            }
            (Opd::S(d), true, true) => {
                let und = self.f.und(a).any || self.f.und(b).any;
                let x = ops::cmp_f(op, self.f.src(a, 1).at(0), self.f.src(b, 1).at(0));
                self.i.set(d, x.into(), und);
            }
            (Opd::S(d), false, _) => {
                let (Opd::S(ra), Opd::S(rb)) = (a, b) else { return };
                let (ra, rb) = (ra as usize, rb as usize);
                let x = ops::checked_i(op, ty, self.i.s[ra], self.i.s[rb]);
                let und = self.i.sund[ra] || self.i.sund[rb];
                let und = und && decided(op, Und::ALL, &self.i, a, b, 1).at(0);
                self.overflow |= x.is_none() && !und;
                self.i.set(d, x.unwrap_or(0), und || x.is_none());
            }
            (Opd::V(d), true, false) => {
                let n = self.width(w);
                self.f.vund[d as usize] = self.f.und(a).or(&self.f.und(b));
                let (out, s, v) = self.f.split(d, n);
                bin_f_lanes(op, out, src(s, v, a, n), src(s, v, b, n));
            }
            (Opd::V(d), true, true) => {
                let n = self.width(w);
                self.i.vund[d as usize] = self.f.und(a).or(&self.f.und(b));
                let (out, _, _) = self.i.split(d, n);
                cmp_f_lanes(op, out, self.f.src(a, n), self.f.src(b, n));
            }
            (Opd::V(d), false, _) => {
                let n = self.width(w);
                let und = self.i.und(a).or(&self.i.und(b));
                let mut und = decided(op, und, &self.i, a, b, n);
                if ty == ScalarType::Index {
                    self.overflow |= mark_overflow(op, &mut und, self.i.src(a, n), self.i.src(b, n), n);
                }
                self.i.vund[d as usize] = und;
                let (out, s, v) = self.i.split(d, n);
                bin_i_lanes(op, ty, out, src(s, v, a, n), src(s, v, b, n));
            }
            (Opd::A { .. }, _, _) => {}
        }
    }

    pub fn un(&mut self, op: UnOp, ty: ScalarType, dst: Opd, a: Opd, w: u32) {
        if ty.is_float() {
            self.map(dst, a, w, |x: f64| ops::un_f(op, x));
            return;
        }
        // The source may be the destination's own register.
        let n = if dst.is_scalar() { 1 } else { self.width(w) };
        let values = self.i.src(a, n);
        let outside: Vec<usize> = match ty {
            ScalarType::Index => (0..n).filter(|&l| ops::checked_un_i(op, ty, values.at(l)).is_none()).collect(),
            _ => Vec::new(),
        };
        self.map(dst, a, w, |x: i64| ops::un_i(op, ty, x));
        for l in outside {
            self.overflow = true;
            match dst {
                Opd::S(d) => self.i.sund[d as usize] = true,
                Opd::V(d) => self.i.vund[d as usize].set(l),
                Opd::A { .. } => {}
            }
        }
    }

    /// `dst = f(a)` within one file.
    fn map<T: Reg>(&mut self, dst: Opd, a: Opd, w: u32, f: impl Fn(T) -> T) {
        let n = self.width(w);
        let file = T::file_mut(self);
        match dst {
            Opd::S(d) => {
                let (x, und) = (file.src(a, 1).at(0), file.und(a).any);
                file.set(d, f(x), und);
            }
            Opd::V(d) => {
                file.vund[d as usize] = file.und(a);
                let (out, s, v) = file.split(d, n);
                zip1(out, src(s, v, a, n), f);
            }
            Opd::A { .. } => {}
        }
    }

    pub fn cast(&mut self, from: ScalarType, to: ScalarType, dst: Opd, a: Opd, w: u32) {
        let n = self.width(w);
        match (from.is_float(), to.is_float()) {
            (true, true) => self.map(dst, a, w, |x: f64| round_float(to, x)),
            (false, false) => self.map(dst, a, w, |x: i64| ops::wrap(to, x)),
            (true, false) => convert(&mut self.i, &self.f, dst, a, n, |x| ops::cast_fi(to, x)),
            (false, true) => convert(&mut self.f, &self.i, dst, a, n, |x| ops::cast_if(to, x)),
        }
    }

    pub fn select<T: Reg>(&mut self, dst: Opd, cond: Opd, a: Opd, b: Opd, w: u32) {
        let n = if matches!(dst, Opd::V(_)) { self.width(w) } else { 1 };
        let (uc, ua, ub) = (self.i.und(cond), T::file(self).und(a), T::file(self).und(b));
        let mut und = uc;
        if ua.any || ub.any {
            let c = self.i.src(cond, n);
            for l in 0..n {
                if if c.at(l) != 0 { ua.at(l) } else { ub.at(l) } {
                    und.set(l);
                }
            }
        }
        match (dst, self.i.src(cond, n)) {
            (Opd::S(d), c) => {
                let chosen = if c.at(0) != 0 { a } else { b };
                let x = T::file(self).src(chosen, 1).at(0);
                T::file_mut(self).set(d, x, und.at(0));
            }
            (Opd::V(d), Src::S(c)) => {
                self.map(dst, if c != 0 { a } else { b }, w, |x: T| x);
                T::file_mut(self).vund[d as usize] = und;
            }
            (Opd::V(d), Src::V(_)) => {
                let mut mask = [false; LANES];
                zip1(&mut mask[..n], self.i.src(cond, n), |c| c != 0);
                let file = T::file_mut(self);
                file.vund[d as usize] = und;
                let (out, s, v) = file.split(d, n);
                let (a, b) = (src(s, v, a, n), src(s, v, b, n));
                for (l, (d, &m)) in out.iter_mut().zip(&mask).enumerate() {
                    *d = if m { a.at(l) } else { b.at(l) };
                }
            }
            (Opd::A { .. }, _) => {}
        }
    }

    pub fn iota(&mut self, dst: u32, base: u32, stride: u32, w: u32) {
        let n = self.width(w);
        let (b, s) = (self.i.s[base as usize], self.i.s[stride as usize]);
        let mut und = if self.i.sund[base as usize] || self.i.sund[stride as usize] { Und::ALL } else { Und::NONE };
        // Lanes are in order, so the last one is the furthest away.
        if lane_of(b, s, n - 1).is_none() {
            self.overflow = true;
            (0..n).filter(|&l| lane_of(b, s, l).is_none()).for_each(|l| und.set(l));
        }
        self.i.vund[dst as usize] = und;
        let (out, _, _) = self.i.split(dst, n);
        for (l, d) in out.iter_mut().enumerate() {
            *d = b.wrapping_add(s.wrapping_mul(l as i64));
        }
    }

    pub fn acc_set<T: Reg>(&mut self, acc: Opd, value: Opd) {
        let file = T::file_mut(self);
        if let (Opd::V(d), Opd::V(s)) = (acc, value) {
            let from = s as usize * LANES;
            file.v.copy_within(from..from + LANES, d as usize * LANES);
            file.vund[d as usize] = file.vund[s as usize];
            return;
        }
        let (x, und) = (file.src(value, 1).at(0), file.und(value).any);
        match acc {
            Opd::S(d) => file.set(d, x, und),
            Opd::V(d) => {
                file.v[d as usize * LANES..][..LANES].fill(x);
                file.vund[d as usize] = if und { Und::ALL } else { Und::NONE };
            }
            Opd::A { .. } => {}
        }
    }

    pub fn acc_f(&mut self, c: Combiner, acc: Opd, value: Opd, w: u32) {
        let n = self.width(w);
        match c {
            Combiner::Sum => accumulate(&mut self.f, acc, value, n, 0.0, |x, y| x + y),
            Combiner::Prod => accumulate(&mut self.f, acc, value, n, 1.0, |x, y| x * y),
            Combiner::Max => accumulate(&mut self.f, acc, value, n, f64::NEG_INFINITY, ops::fmax),
            Combiner::Min => accumulate(&mut self.f, acc, value, n, f64::INFINITY, ops::fmin),
        }
    }

    pub fn acc_i(&mut self, c: Combiner, ty: ScalarType, acc: Opd, value: Opd, w: u32) {
        let n = self.width(w);
        let identity = c.identity(ty).as_i64();
        accumulate(&mut self.i, acc, value, n, identity, |x, y| ops::combine_i(c, ty, x, y));
    }

    /// `acc += a * b`, in one pass.
    pub fn mul_acc(&mut self, acc: Opd, a: Opd, b: Opd, w: u32) {
        let n = self.width(w);
        let (ua, ub) = (self.f.und(a), self.f.und(b));
        match acc {
            Opd::V(d) => {
                if ua.any || ub.any {
                    self.f.vund[d as usize] = self.f.vund[d as usize].or(&ua).or(&ub);
                }
                // The factors are computed after the accumulator is set, so they are behind it,
                // unless they do not vary in the loop.
                let first = (d as usize + 1) * LANES;
                let (lo, hi) = self.f.v.split_at_mut(first);
                let (lo, out) = lo.split_at_mut(d as usize * LANES);
                let pick = |o: Opd| match o {
                    Opd::V(r) if r > d => Src::V(&hi[r as usize * LANES - first..][..n]),
                    _ => src(&self.f.s, lo, o, n),
                };
                match (pick(a), pick(b)) {
                    (Src::V(a), Src::V(b)) => out.iter_mut().zip(a).zip(b).for_each(|((o, &x), &y)| *o += x * y),
                    (Src::V(a), Src::S(y)) | (Src::S(y), Src::V(a)) => {
                        out[..n].iter_mut().zip(a).for_each(|(o, &x)| *o += x * y);
                    }
                    (Src::S(x), Src::S(y)) => out[..n].iter_mut().for_each(|o| *o += x * y),
                }
            }
            Opd::S(d) => {
                let sum = match (self.f.src(a, n), self.f.src(b, n)) {
                    (Src::V(a), Src::V(b)) => dot(a, b),
                    (a, b) => (0..n).map(|l| a.at(l) * b.at(l)).sum(),
                };
                let und = self.f.sund[d as usize] || ua.first(0, n).is_some() || ub.first(0, n).is_some();
                self.f.set(d, self.f.s[d as usize] + sum, und);
            }
            Opd::A { .. } => {}
        }
    }
}

fn convert<T: Copy + Default, U: Copy + Default>(
    to: &mut File<U>,
    from: &File<T>,
    dst: Opd,
    a: Opd,
    n: usize,
    f: impl Fn(T) -> U,
) {
    match dst {
        Opd::S(d) => to.set(d, f(from.src(a, 1).at(0)), from.und(a).any),
        Opd::V(d) => {
            to.vund[d as usize] = from.und(a);
            let (out, _, _) = to.split(d, n);
            zip1(out, from.src(a, n), f);
        }
        Opd::A { .. } => {}
    }
}

fn accumulate<T: Copy + Default>(
    file: &mut File<T>,
    acc: Opd,
    value: Opd,
    n: usize,
    identity: T,
    f: impl Fn(T, T) -> T,
) {
    let und = file.und(value);
    match acc {
        Opd::S(d) => {
            let total = match file.src(value, n) {
                Src::V(v) => fold(v, identity, &f),
                Src::S(x) => (0..n).fold(identity, |acc, _| f(acc, x)),
            };
            let undefined = file.sund[d as usize] || und.first(0, n).is_some();
            let x = f(file.s[d as usize], total);
            file.set(d, x, undefined);
        }
        Opd::V(d) => {
            file.vund[d as usize] = file.vund[d as usize].or(&und);
            let at = d as usize * LANES;
            match value {
                Opd::V(r) if r > d => {
                    let (lo, hi) = file.v.split_at_mut(r as usize * LANES);
                    lo[at..at + n].iter_mut().zip(&hi[..n]).for_each(|(o, &x)| *o = f(*o, x));
                }
                Opd::V(r) => {
                    let (lo, hi) = file.v.split_at_mut(at);
                    hi[..n].iter_mut().zip(&lo[r as usize * LANES..]).for_each(|(o, &x)| *o = f(*o, x));
                }
                _ => {
                    let x = file.src(value, n).at(0);
                    file.v[at..at + n].iter_mut().for_each(|o| *o = f(*o, x));
                }
            }
        }
        Opd::A { .. } => {}
    }
}

const WAYS: usize = 8;

/// All elements combined, in [`WAYS`] interleaved chains: an order fixed by the length alone.
fn fold<T: Copy>(v: &[T], identity: T, f: &impl Fn(T, T) -> T) -> T {
    let mut acc = [identity; WAYS];
    let chunks = v.chunks_exact(WAYS);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (a, &x) in acc.iter_mut().zip(chunk) {
            *a = f(*a, x);
        }
    }
    for (a, &x) in acc.iter_mut().zip(rest) {
        *a = f(*a, x);
    }
    acc.into_iter().fold(identity, f)
}

/// The sum of products, in [`WAYS`] interleaved chains.
pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut acc = [0.0; WAYS];
    let (ca, cb) = (a.chunks_exact(WAYS), b.chunks_exact(WAYS));
    let rest = ca.remainder().iter().zip(cb.remainder()).map(|(x, y)| x * y).sum::<f64>();
    for (x, y) in ca.zip(cb) {
        for l in 0..WAYS {
            acc[l] += x[l] * y[l];
        }
    }
    acc.into_iter().sum::<f64>() + rest
}
