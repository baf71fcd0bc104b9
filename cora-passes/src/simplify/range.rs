//! Intervals and residues of integers as values, with the arithmetic on them.

use cora_ir::affine::gcd;
use cora_ir::expr::{floor_div, floor_mod};

/// The integers from `lo` to `hi`, both inclusive; an end that is absent is not bounded (or does
/// not fit in an `i64`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interval {
    /// Greatest known lower bound.
    pub lo: Option<i64>,
    /// Least known upper bound.
    pub hi: Option<i64>,
}

fn narrow(v: i128) -> Option<i64> {
    i64::try_from(v).ok()
}

impl Interval {
    /// Every integer.
    pub const ALL: Self = Self { lo: None, hi: None };

    /// `lo..=hi`
    pub fn new(lo: Option<i64>, hi: Option<i64>) -> Self {
        Self { lo, hi }
    }
    /// One integer.
    pub fn point(v: i64) -> Self {
        Self { lo: Some(v), hi: Some(v) }
    }
    /// The integer, if there is only one.
    pub fn as_point(self) -> Option<i64> {
        self.lo.filter(|_| self.lo == self.hi)
    }
    /// Whether all members are at least `v`.
    pub fn at_least(self, v: i64) -> bool {
        self.lo.is_some_and(|lo| lo >= v)
    }
    /// Whether all members are at most `v`.
    pub fn at_most(self, v: i64) -> bool {
        self.hi.is_some_and(|hi| hi <= v)
    }
    /// Whether no integer is in it: the facts contradict each other.
    pub fn is_empty(self) -> bool {
        matches!((self.lo, self.hi), (Some(l), Some(h)) if l > h)
    }
    /// Whether `v` is a member.
    pub fn contains(self, v: i64) -> bool {
        self.lo.is_none_or(|l| l <= v) && self.hi.is_none_or(|h| v <= h)
    }
    /// Members of both.
    #[must_use]
    pub fn intersect(self, o: Self) -> Self {
        Self { lo: self.lo.max(o.lo), hi: pick(self.hi, o.hi, i64::min) }
    }
    /// The least interval around both.
    #[must_use]
    pub fn hull(self, o: Self) -> Self {
        Self { lo: self.lo.and_then(|a| o.lo.map(|b| a.min(b))), hi: self.hi.and_then(|a| o.hi.map(|b| a.max(b))) }
    }
    /// Sums of members.
    #[must_use]
    pub fn plus(self, o: Self) -> Self {
        let end = |a: Option<i64>, b: Option<i64>| a.and_then(|a| b.and_then(|b| a.checked_add(b)));
        Self { lo: end(self.lo, o.lo), hi: end(self.hi, o.hi) }
    }
    /// The members with the other sign.
    #[must_use]
    pub fn negate(self) -> Self {
        Self { lo: self.hi.and_then(i64::checked_neg), hi: self.lo.and_then(i64::checked_neg) }
    }
    /// Products of members.
    #[must_use]
    pub fn times(self, o: Self) -> Self {
        if self.as_point() == Some(0) || o.as_point() == Some(0) {
            return Self::point(0);
        }
        // Ends as i128 with infinities far outside i64 whose products still fit.
        let corners = [(self.lo, o.lo), (self.lo, o.hi), (self.hi, o.lo), (self.hi, o.hi)];
        if let [(Some(a), Some(b)), _, _, (Some(c), Some(d))] = corners {
            let all = [(a, b), (a, d), (c, b), (c, d)].map(|(x, y)| i128::from(x) * i128::from(y));
            let lo = all.into_iter().min().and_then(narrow);
            return Self { lo, hi: all.into_iter().max().and_then(narrow) };
        }
        let (s, t) = (self, o);
        let non_negative = s.at_least(0) && t.at_least(0);
        let non_positive = (s.at_least(0) && t.at_most(0)) || (s.at_most(0) && t.at_least(0));
        let mul = |a: Option<i64>, b: Option<i64>| a.and_then(|a| b.and_then(|b| a.checked_mul(b)));
        if non_negative {
            Self { lo: Some(mul(s.lo, t.lo).unwrap_or(0).max(0)), hi: mul(s.hi, t.hi) }
        } else if non_positive {
            Self { lo: None, hi: Some(0) }
        } else if s.at_most(0) && t.at_most(0) {
            Self { lo: Some(mul(s.hi, t.hi).unwrap_or(0).max(0)), hi: mul(s.lo, t.lo) }
        } else {
            Self::ALL
        }
    }
    /// Multiples of members by a constant.
    #[must_use]
    pub fn scale(self, k: i64) -> Self {
        self.times(Self::point(k))
    }
    /// Quotients rounded to minus infinity, 0 for a divisor of 0.
    #[must_use]
    pub fn floor_div(self, o: Self) -> Self {
        if !o.at_least(0) {
            return Self::ALL;
        }
        let positive = Self { lo: o.lo.map(|l| l.max(1)), hi: o.hi };
        // The least quotient has the least numerator, over the divisor that makes it least.
        let low = |n: i64| {
            if n >= 0 {
                positive.hi.map_or(Some(0), |d| Some(floor_div(n, d)))
            } else {
                positive.lo.map(|d| floor_div(n, d))
            }
        };
        let high = |n: i64| {
            if n >= 0 {
                positive.lo.map(|d| floor_div(n, d))
            } else {
                positive.hi.map_or(Some(-1), |d| Some(floor_div(n, d)))
            }
        };
        let q = if positive.is_empty() {
            Self::point(0)
        } else {
            Self { lo: self.lo.and_then(low), hi: self.hi.and_then(high) }
        };
        if o.contains(0) { q.hull(Self::point(0)) } else { q }
    }
    /// Remainders with the sign of the divisor, 0 for a divisor of 0.
    #[must_use]
    pub fn modulo(self, o: Self) -> Self {
        if let Some(c) = o.as_point().filter(|&c| c > 0)
            && let (Some(l), Some(h)) = (self.lo, self.hi)
            && floor_div(l, c) == floor_div(h, c)
        {
            return Self { lo: Some(floor_mod(l, c)), hi: Some(floor_mod(h, c)) };
        }
        if !o.at_least(0) {
            return Self::ALL;
        }
        let below = Self { lo: Some(0), hi: o.hi.map(|h| (h - 1).max(0)) };
        let numerator = if self.at_least(0) { self.hi } else { None };
        Self { lo: Some(0), hi: pick(below.hi, numerator, i64::min) }
    }
    /// The smaller of a member of each.
    #[must_use]
    pub fn min(self, o: Self) -> Self {
        Self { lo: self.lo.and_then(|a| o.lo.map(|b| a.min(b))), hi: pick(self.hi, o.hi, i64::min) }
    }
    /// The larger of a member of each.
    #[must_use]
    pub fn max(self, o: Self) -> Self {
        Self { lo: self.lo.max(o.lo), hi: self.hi.and_then(|a| o.hi.map(|b| a.max(b))) }
    }
}

fn pick(a: Option<i64>, b: Option<i64>, f: fn(i64, i64) -> i64) -> Option<i64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(f(a, b)),
        (a, b) => a.or(b),
    }
}

/// The integers congruent to `residue` modulo `modulus`; modulus 0 is the one integer `residue`,
/// modulus 1 every integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stride {
    /// At least 0.
    pub modulus: i64,
    /// In `0..modulus` unless the modulus is 0.
    pub residue: i64,
}

impl Stride {
    /// Every integer.
    pub const ALL: Self = Self { modulus: 1, residue: 0 };

    /// One integer.
    pub fn point(v: i64) -> Self {
        Self { modulus: 0, residue: v }
    }
    fn reduced(modulus: i64, residue: i64) -> Self {
        let residue = if modulus == 0 { residue } else { floor_mod(residue, modulus) };
        Self { modulus, residue }
    }
    /// The residue modulo `c > 0`, if it is always the same.
    pub fn residue_of(self, c: i64) -> Option<i64> {
        (c > 0 && self.modulus % c == 0).then(|| floor_mod(self.residue, c))
    }
    /// Sums of members.
    #[must_use]
    pub fn plus(self, o: Self) -> Self {
        match self.residue.checked_add(o.residue) {
            Some(r) => Self::reduced(gcd(self.modulus, o.modulus), r),
            None => Self::ALL,
        }
    }
    /// Products of members.
    #[must_use]
    pub fn times(self, o: Self) -> Self {
        // (m x + r)(n y + s) = mn xy + ms x + nr y + rs
        let mul = |a: i64, b: i64| a.checked_mul(b);
        let (Some(mn), Some(ms), Some(nr), Some(rs)) = (
            mul(self.modulus, o.modulus),
            mul(self.modulus, o.residue),
            mul(o.modulus, self.residue),
            mul(self.residue, o.residue),
        ) else {
            return Self::ALL;
        };
        Self::reduced(gcd(gcd(mn, ms), nr), rs)
    }
    /// The least set of this form around both.
    #[must_use]
    pub fn hull(self, o: Self) -> Self {
        let Some(d) = self.residue.checked_sub(o.residue) else { return Self::ALL };
        Self::reduced(gcd(gcd(self.modulus, o.modulus), d), self.residue)
    }
    /// Quotients of multiples of `c > 0`, remainders' set otherwise unknown.
    #[must_use]
    pub fn floor_div(self, c: i64) -> Self {
        if c <= 0 {
            return Self::ALL;
        }
        if self.modulus == 0 || self.modulus % c == 0 {
            return Self::reduced(self.modulus / c, floor_div(self.residue, c));
        }
        Self::ALL
    }
    /// Remainders modulo `c > 0`.
    #[must_use]
    pub fn modulo(self, c: i64) -> Self {
        if c <= 0 {
            return Self::ALL;
        }
        match self.residue_of(c) {
            Some(r) => Self::point(r),
            None => Self::reduced(gcd(self.modulus, c), self.residue),
        }
    }
}
