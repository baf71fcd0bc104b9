//! Polynomial normal form of `Index` expressions: sums of integer multiples of monomials.
//!
//! `(row(b) + (f - row(b))) * 512` becomes `512 * f`; `x // c * c + x % c` becomes `x`. This is the
//! cheap decision procedure that runs before equality saturation and before the solver.

use crate::expr::{Expr, ExprPool};
use crate::ids::{ExprId, VarId};
use crate::types::{BinOp, ScalarType, UnOp};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// A product of atoms, sorted by id; empty is the constant 1.
pub type Monomial = Vec<ExprId>;

/// `constant + sum of coefficient * monomial`, no zero coefficient stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Poly {
    /// Coefficient of each monomial; the empty monomial is the constant term.
    pub terms: BTreeMap<Monomial, i64>,
}

const MAX_TERMS: usize = 64;

impl Poly {
    /// A constant.
    pub fn constant(c: i64) -> Self {
        let mut p = Self::default();
        p.add_term(Vec::new(), c);
        p
    }

    /// One atom.
    pub fn atom(e: ExprId) -> Self {
        let mut p = Self::default();
        p.add_term(vec![e], 1);
        p
    }

    /// Adds a term; false (and nothing added) if the coefficient leaves the range of `i64`.
    pub fn add_term(&mut self, m: Monomial, c: i64) -> bool {
        match self.terms.entry(m) {
            Entry::Occupied(mut o) => {
                let Some(sum) = o.get().checked_add(c) else { return false };
                if sum == 0 {
                    o.remove();
                } else {
                    *o.get_mut() = sum;
                }
            }
            Entry::Vacant(v) => {
                if c != 0 {
                    v.insert(c);
                }
            }
        }
        true
    }

    /// `self + k * other`, or nothing if a coefficient leaves the range of `i64`.
    pub fn checked_add_scaled(mut self, other: &Self, k: i64) -> Option<Self> {
        for (m, c) in &other.terms {
            if !self.add_term(m.clone(), c.checked_mul(k)?) {
                return None;
            }
        }
        Some(self)
    }

    /// The product, or nothing if it is too long or a coefficient leaves the range of `i64`.
    pub fn checked_mul(&self, other: &Self) -> Option<Self> {
        if self.terms.len() * other.terms.len() > MAX_TERMS {
            return None;
        }
        let mut out = Self::default();
        for (ma, ca) in &self.terms {
            for (mb, cb) in &other.terms {
                let mut m = ma.clone();
                m.extend(mb);
                m.sort_unstable();
                if !out.add_term(m, ca.checked_mul(*cb)?) {
                    return None;
                }
            }
        }
        Some(out)
    }

    /// The value, if there is no monomial but the constant.
    pub fn as_constant(&self) -> Option<i64> {
        match self.terms.len() {
            0 => Some(0),
            1 => self.terms.get(&Vec::new()).copied(),
            _ => None,
        }
    }
}

/// The polynomial of a scalar `Index` expression; what is not `+ - *` becomes an atom, and so does
/// an operation whose coefficients would not fit.
pub fn poly(pool: &ExprPool, e: ExprId) -> Poly {
    let p = match *pool.get(e) {
        Expr::Int(v) => Some(Poly::constant(v)),
        Expr::Bin(op @ (BinOp::Add | BinOp::Sub), a, b) => {
            let pa = poly(pool, a);
            pa.checked_add_scaled(&poly(pool, b), if op == BinOp::Add { 1 } else { -1 })
        }
        Expr::Un(UnOp::Neg, a) => Poly::default().checked_add_scaled(&poly(pool, a), -1),
        Expr::Bin(BinOp::Mul, a, b) => {
            let pa = poly(pool, a);
            pa.checked_mul(&poly(pool, b))
        }
        _ => None,
    };
    p.unwrap_or_else(|| Poly::atom(e))
}

/// Joins `k*m*c*(x // c) + k*m*(x % c)` into `k*m*x` for constants c.
fn join_div_mod(pool: &mut ExprPool, mut p: Poly) -> Poly {
    loop {
        let Some(found) = find_div_mod(pool, &p) else { return p };
        let Some(joined) = join(pool, &p, found) else { return p };
        p = joined;
    }
}

fn join(pool: &mut ExprPool, p: &Poly, j: DivMod) -> Option<Poly> {
    let mut p = p.clone();
    p.terms.remove(&j.low);
    p.terms.remove(&j.high);
    let mut scale = Poly::default();
    scale.add_term(j.rest, j.k);
    p.checked_add_scaled(&scale.checked_mul(&poly(pool, j.x))?, 1)
}

/// A pair of terms `k * low = k * rest * (x % c)` and `high = k * rest * c * (x // c)`.
struct DivMod {
    low: Monomial,
    high: Monomial,
    k: i64,
    rest: Monomial,
    x: ExprId,
}

fn find_div_mod(pool: &mut ExprPool, p: &Poly) -> Option<DivMod> {
    for (m, &k) in &p.terms {
        for (pos, &atom) in m.iter().enumerate() {
            let Expr::Bin(BinOp::Mod, x, c) = *pool.get(atom) else { continue };
            // Only constants: `x // c` and `x % c` are both 0 where a variable c is 0.
            let Some(high_k) = pool.as_int(c).and_then(|c| k.checked_mul(c)) else { continue };
            for quotient in quotients(pool, x, c) {
                let mut rest = m.clone();
                rest.remove(pos);
                let mut high = rest.clone();
                high.push(quotient);
                high.sort_unstable();
                if p.terms.get(&high) == Some(&high_k) {
                    return Some(DivMod { low: m.clone(), high, k, rest, x });
                }
            }
        }
    }
    None
}

/// The forms that `x // c` is there in: as it is, and `y // (c / g)` where `x = g*y + r` with `0 <= r < g`.
fn quotients(pool: &mut ExprPool, x: ExprId, c: ExprId) -> Vec<ExprId> {
    let mut found: Vec<ExprId> = pool.lookup(&Expr::Bin(BinOp::FloorDiv, x, c)).into_iter().collect();
    let Some(c) = pool.as_int(c).filter(|&c| c > 0) else { return found };
    let whole = poly(pool, x);
    let g = whole.terms.iter().filter(|(m, _)| !m.is_empty()).fold(c, |g, (_, &k)| gcd(g, k));
    if g > 1 {
        let terms = whole.terms.into_iter().map(|(m, k)| (m, k.div_euclid(g))).filter(|t| t.1 != 0).collect();
        let y = build(pool, &Poly { terms });
        let divisor = pool.int(c / g);
        found.extend(pool.lookup(&Expr::Bin(BinOp::FloorDiv, y, divisor)));
    }
    found
}

/// `e` with remainders in the place of `x - x // c * c`, in normal form.
pub fn with_remainders(pool: &mut ExprPool, e: ExprId) -> ExprId {
    let p = poly(pool, e);
    // x // c * c = x - x % c
    let p = without(pool, p, BinOp::FloorDiv, |p, (x, quotient, remainder), c, k| {
        let times = (k % c == 0).then_some(k / c)?;
        let p = p.checked_add_scaled(&Poly::atom(quotient), k.checked_neg()?)?;
        p.checked_add_scaled(x, times)?.checked_add_scaled(&Poly::atom(remainder), times.checked_neg()?)
    });
    build(pool, &p)
}

/// `e` with quotients in the place of `x - x % c`, in normal form.
pub fn with_quotients(pool: &mut ExprPool, e: ExprId) -> ExprId {
    let p = poly(pool, e);
    let p = without(pool, p, BinOp::Mod, |p, (x, quotient, remainder), c, k| {
        let p = p.checked_add_scaled(&Poly::atom(remainder), k.checked_neg()?)?;
        p.checked_add_scaled(x, k)?.checked_add_scaled(&Poly::atom(quotient), k.checked_mul(c)?.checked_neg()?)
    });
    build(pool, &p)
}

/// The polynomial with every quotient, or remainder, replaced by what it is of `x`, the remainder or quotient, `c` and its
/// coefficient, where fewer terms are left.
fn without(
    pool: &mut ExprPool,
    mut p: Poly,
    op: BinOp,
    replaced: impl Fn(Poly, (&Poly, ExprId, ExprId), i64, i64) -> Option<Poly>,
) -> Poly {
    let atoms: Vec<ExprId> = p.terms.keys().filter(|m| m.len() == 1).map(|m| m[0]).collect();
    for atom in atoms {
        let Expr::Bin(found, x, divisor) = *pool.get(atom) else { continue };
        let Some(c) = pool.as_int(divisor).filter(|&c| c > 1 && found == op) else { continue };
        let Some(&k) = p.terms.get(&vec![atom]) else { continue };
        let (quotient, remainder) = (pool.floor_div(x, divisor), pool.modulo(x, divisor));
        let whole = poly(pool, x);
        let joined = replaced(p.clone(), (&whole, quotient, remainder), c, k);
        if let Some(joined) = joined.filter(|j| j.terms.len() < p.terms.len()) {
            p = joined;
        }
    }
    p
}

/// The greatest common divisor; 0 with 0 is 0.
pub fn gcd(a: i64, b: i64) -> i64 {
    let (mut a, mut b) = (a.unsigned_abs(), b.unsigned_abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    i64::try_from(a).unwrap_or(1)
}

/// The expression of a polynomial, in canonical order.
pub fn build(pool: &mut ExprPool, p: &Poly) -> ExprId {
    let mut acc: Option<ExprId> = None;
    let mut constant = 0;
    for (m, &c) in &p.terms {
        if m.is_empty() {
            constant = c;
            continue;
        }
        let mut prod = m[0];
        for &a in &m[1..] {
            prod = pool.mul(prod, a);
        }
        let (negative, size) = if c < 0 && c != i64::MIN { (true, -c) } else { (false, c) };
        let k = pool.int(size);
        let term = pool.mul(prod, k);
        acc = Some(match (acc, negative) {
            (None, false) => term,
            (None, true) => {
                let minus = pool.int(-size);
                pool.mul(prod, minus)
            }
            (Some(a), false) => pool.add(a, term),
            (Some(a), true) => pool.sub(a, term),
        });
    }
    match acc {
        None => pool.int(constant),
        Some(a) if constant < 0 && constant != i64::MIN => {
            let k = pool.int(-constant);
            pool.sub(a, k)
        }
        Some(a) => {
            let k = pool.int(constant);
            pool.add(a, k)
        }
    }
}

/// Splits `p` into `(divisible, rest)` by the constant `c`.
fn split_by(p: &Poly, c: i64) -> (Poly, Poly) {
    let (mut whole, mut rest) = (Poly::default(), Poly::default());
    for (m, &k) in &p.terms {
        let q = crate::expr::floor_div(k, c);
        let r = crate::expr::floor_mod(k, c);
        if m.is_empty() {
            whole.add_term(m.clone(), q);
            rest.add_term(m.clone(), r);
        } else if r == 0 {
            whole.add_term(m.clone(), q);
        } else {
            rest.add_term(m.clone(), k);
        }
    }
    (whole, rest)
}

/// Normalises every scalar `Index` subexpression of `e`; the value is unchanged for all inputs.
pub fn normalize(pool: &mut ExprPool, e: ExprId) -> ExprId {
    pool.rewrite_once(e, &mut |p, n| Some(normalize_node(p, n)))
}

fn is_index_scalar(pool: &ExprPool, e: ExprId) -> bool {
    let t = pool.ty(e);
    t.scalar == ScalarType::Index && t.lanes == 1
}

fn normalize_node(pool: &mut ExprPool, e: ExprId) -> ExprId {
    match pool.get(e).clone() {
        Expr::Bin(BinOp::Add | BinOp::Sub | BinOp::Mul, ..) | Expr::Un(UnOp::Neg, _) if is_index_scalar(pool, e) => {
            let p = poly(pool, e);
            let p = join_div_mod(pool, p);
            build(pool, &p)
        }
        Expr::Bin(op @ (BinOp::FloorDiv | BinOp::Mod), a, b) if is_index_scalar(pool, e) => {
            let Some(c) = pool.as_int(b).filter(|&c| c > 0) else { return e };
            if op == BinOp::FloorDiv
                && let Some(through) = div_through_min(pool, a, b)
            {
                return through;
            }
            let p = poly(pool, a);
            let (whole, rest) = split_by(&p, c);
            if whole.terms.is_empty() {
                return e;
            }
            let r = build(pool, &rest);
            let low = pool.bin(op, r, b);
            if op == BinOp::Mod {
                return low;
            }
            let w = build(pool, &whole);
            let sum = pool.add(w, low);
            let p = poly(pool, sum);
            build(pool, &p)
        }
        Expr::Bin(op @ (BinOp::Min | BinOp::Max), ..) if is_index_scalar(pool, e) => min_max(pool, op, e),
        Expr::Bin(op, a, b) if op.is_comparison() && is_index_scalar(pool, a) => {
            // a < b  as  (terms of a - b with positive coefficients) < (the others)
            let (pa, pb) = (poly(pool, a), poly(pool, b));
            let Some(d) = pa.checked_add_scaled(&pb, -1) else { return e };
            let d = join_div_mod(pool, d);
            if let Some(c) = d.as_constant() {
                return pool.bool(match op {
                    BinOp::Lt => c < 0,
                    BinOp::Le => c <= 0,
                    BinOp::Eq => c == 0,
                    _ => c != 0,
                });
            }
            let wide = |m: &[ExprId]| m.iter().any(|&a| pool.may_be_wide(a));
            let apart = d.terms.iter().filter(|(m, _)| wide(m)).map(|(m, &k)| (m.clone(), k)).collect::<Vec<_>>();
            if let [(m, k)] = &apart[..] {
                return wide_apart(pool, op, &d, m, *k).unwrap_or(e);
            }
            if !apart.is_empty() {
                return e;
            }
            let (mut left, mut right) = (Poly::default(), Poly::default());
            for (m, &k) in &d.terms {
                if k == i64::MIN {
                    return e;
                }
                let side = if k > 0 { &mut left } else { &mut right };
                side.add_term(m.clone(), k.abs());
            }
            let (l, r) = (build(pool, &left), build(pool, &right));
            pool.bin(op, l, r)
        }
        _ => e,
    }
}

/// `d op 0` with a wide term alone on a side, where nothing is added to it; nothing if it has a factor.
fn wide_apart(pool: &mut ExprPool, op: BinOp, d: &Poly, term: &Monomial, k: i64) -> Option<ExprId> {
    let one = Poly { terms: [(term.clone(), 1)].into_iter().collect() };
    let others = if k == 1 { one.clone().checked_add_scaled(d, -1)? } else { d.clone().checked_add_scaled(&one, 1)? };
    let (wide, others) = (build(pool, &one), build(pool, &others));
    match k {
        1 => Some(pool.bin(op, wide, others)),
        -1 => Some(pool.bin(op, others, wide)),
        _ => None,
    }
}

/// `(min(x, y) + r) // c` as `min((x + r) // c, (y + r) // c)`, so that constants show.
fn div_through_min(pool: &mut ExprPool, a: ExprId, c: ExprId) -> Option<ExprId> {
    let mut all = Vec::new();
    operands(pool, BinOp::Min, a, &Poly::default(), &mut all)?;
    if all.len() < 2 {
        return None;
    }
    let mut out: Option<ExprId> = None;
    for p in &all {
        let x = build(pool, p);
        let q = pool.floor_div(x, c);
        let q = normalize_node(pool, q);
        out = Some(match out {
            None => q,
            Some(o) => pool.min(o, q),
        });
    }
    let out = out?;
    Some(if matches!(pool.get(out), Expr::Bin(BinOp::Min, ..)) { min_max(pool, BinOp::Min, out) } else { out })
}

/// A tree of `min`s (or `max`es) as one flat list of polynomials without those that a constant
/// distance from another decides, in canonical order: `min(min(14, r) + 1, r, r + 3)` is
/// `min(15, r)`.
fn min_max(pool: &mut ExprPool, op: BinOp, e: ExprId) -> ExprId {
    let mut all: Vec<Poly> = Vec::new();
    if operands(pool, op, e, &Poly::default(), &mut all).is_none() {
        return e;
    }
    let mut kept: Vec<Poly> = Vec::new();
    for p in all {
        let beats = |q: &Poly, p: &Poly| {
            let d = p.clone().checked_add_scaled(q, -1).and_then(|d| d.as_constant());
            d.is_some_and(|d| if op == BinOp::Min { d >= 0 } else { d <= 0 })
        };
        if kept.iter().any(|q| beats(q, &p)) {
            continue;
        }
        kept.retain(|q| !beats(&p, q));
        kept.push(p);
    }
    kept.sort();
    let mut out: Option<ExprId> = None;
    for p in &kept {
        let x = build(pool, p);
        out = Some(match out {
            None => x,
            Some(o) => pool.bin(op, o, x),
        });
    }
    out.unwrap_or(e)
}

/// Gathers the operands plus `rest`; nothing where a coefficient overflows.
fn operands(pool: &mut ExprPool, op: BinOp, e: ExprId, rest: &Poly, out: &mut Vec<Poly>) -> Option<()> {
    if out.len() >= MAX_TERMS {
        let p = poly(pool, e);
        out.push(p.checked_add_scaled(rest, 1)?);
        return Some(());
    }
    if let Expr::Bin(o, a, b) = *pool.get(e)
        && o == op
    {
        operands(pool, op, a, rest, out)?;
        return operands(pool, op, b, rest, out);
    }
    let p = poly(pool, e);
    let inner = p.terms.iter().find_map(|(m, &k)| match m.as_slice() {
        [a] if k == 1 => matches!(pool.get(*a), Expr::Bin(o, ..) if *o == op).then_some(*a),
        _ => None,
    });
    // Nothing is added to what may be wide.
    let alone = p.terms.len() == 1 && rest.terms.is_empty();
    let inner = inner.filter(|&a| alone || !pool.may_be_wide(a));
    match inner {
        Some(atom) => {
            let others = p.checked_add_scaled(&Poly::atom(atom), -1)?.checked_add_scaled(rest, 1)?;
            operands(pool, op, atom, &others, out)
        }
        None => {
            let p = p.checked_add_scaled(rest, 1)?;
            out.push(join_div_mod(pool, p));
            Some(())
        }
    }
}

/// How far `e` goes when `var` goes one further, if that is the same everywhere.
pub fn slope(pool: &mut ExprPool, e: ExprId, var: VarId) -> Option<i64> {
    let (zero, one, whole) = (pool.int(0), pool.int(1), pool.var(var));
    let mut at = |n| {
        let here = pool.substitute(e, &FxHashMap::from_iter([(var, n)]));
        poly(pool, here)
    };
    let (first, next, all) = (at(zero), at(one), at(whole));
    let step = next.checked_add_scaled(&first, -1)?.as_constant()?;
    let moved = all.checked_add_scaled(&first, -1)?;
    (Some(moved) == Poly::default().checked_add_scaled(&Poly::atom(whole), step)).then_some(step)
}

/// `(slope, constant)` with `e = slope * Arg(n) + constant`, both free of `Arg(n)`.
pub fn affine_in_arg(pool: &mut ExprPool, e: ExprId, n: u32) -> Option<(ExprId, ExprId)> {
    let p = poly(pool, e);
    let (mut slope, mut constant) = (Poly::default(), Poly::default());
    for (m, &c) in &p.terms {
        let hits = m.iter().filter(|&&a| *pool.get(a) == Expr::Arg(n)).count();
        let hidden = m.iter().any(|&a| *pool.get(a) != Expr::Arg(n) && pool.any(a, &mut |x| *x == Expr::Arg(n)));
        if hits > 1 || hidden {
            return None;
        }
        if hits == 1 {
            let rest = m.iter().copied().filter(|&a| *pool.get(a) != Expr::Arg(n)).collect();
            slope.add_term(rest, c);
        } else {
            constant.add_term(m.clone(), c);
        }
    }
    Some((build(pool, &slope), build(pool, &constant)))
}

/// `2 * min(a, b) - c` as `min(2 * a - c, 2 * b - c)`, so that constants show; `c - max(a, b)` likewise.
pub fn shift_min(pool: &mut ExprPool, e: ExprId) -> ExprId {
    shift(pool, e, BinOp::Min)
}

/// `e` as a maximum, if a maximum is a term of it, or a minimum is subtracted.
pub fn shift_max(pool: &mut ExprPool, e: ExprId) -> ExprId {
    shift(pool, e, BinOp::Max)
}

fn shift(pool: &mut ExprPool, e: ExprId, op: BinOp) -> ExprId {
    let e = normalize(pool, e);
    // Less of the greater one is the lesser of both.
    let opposite = if op == BinOp::Min { BinOp::Max } else { BinOp::Min };
    let found = poly(pool, e).terms.iter().find_map(|(mono, &c)| match mono.as_slice() {
        [a] => match *pool.get(*a) {
            Expr::Bin(o, x, y) if o == if c > 0 { op } else { opposite } => Some((*a, c, x, y)),
            _ => None,
        },
        _ => None,
    });
    let Some((atom, c, x, y)) = found else { return e };
    let times = pool.int(c);
    let scaled = pool.mul(atom, times);
    let rest = pool.sub(e, scaled);
    let mut shifted = |x| {
        let x = pool.mul(x, times);
        let x = pool.add(x, rest);
        normalize(pool, x)
    };
    let (a, b) = (shifted(x), shifted(y));
    pool.bin(op, a, b)
}

/// `e` with `max(x, y) // c` as `max(x // c, y // c)` for constants `c > 0`, also of sums and multiples of the maximum: what
/// does not matter for one quotient shows. It is no normal form.
pub fn div_through_max(pool: &mut ExprPool, e: ExprId) -> ExprId {
    pool.rewrite(e, &mut |pool, n| {
        let Expr::Bin(BinOp::FloorDiv, a, c) = *pool.get(n) else { return None };
        pool.as_int(c).filter(|&c| c > 0)?;
        let operands = greatest_operands(pool, a);
        let quotients: Vec<ExprId> = operands.into_iter().map(|x| pool.floor_div(x, c)).collect();
        let (&first, rest) = quotients.split_first().filter(|(_, rest)| !rest.is_empty())?;
        Some(rest.iter().fold(first, |a, &b| pool.max(a, b)))
    })
}

/// What `e` is the least of, itself where it is no minimum.
pub fn least_operands(pool: &mut ExprPool, e: ExprId) -> Vec<ExprId> {
    all_operands(pool, e, BinOp::Min)
}

/// What `e` is the greatest of, itself where it is no maximum.
pub fn greatest_operands(pool: &mut ExprPool, e: ExprId) -> Vec<ExprId> {
    all_operands(pool, e, BinOp::Max)
}

fn all_operands(pool: &mut ExprPool, e: ExprId, op: BinOp) -> Vec<ExprId> {
    let (mut operands, mut left) = (Vec::new(), vec![e]);
    while let Some(e) = left.pop() {
        let e = shift(pool, e, op);
        match *pool.get(e) {
            Expr::Bin(o, a, b) if o == op => left.extend([b, a]),
            _ if operands.contains(&e) => {}
            _ => operands.push(e),
        }
    }
    operands
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::Env;
    use crate::ids::{EntityId, TensorId};

    /// Elements of 64 bits are compared, limited and divided as they are: no sum of one and a number arises.
    #[test]
    fn nothing_is_added_to_a_wide_element() {
        let mut env = Env::default();
        let i = env.new_var("i");
        let pool = &mut env.pool;
        let wide = pool.load(TensorId::from_index(0), ScalarType::I64, []);
        let (wide, i) = (pool.cast(ScalarType::Index, wide), pool.var(i));
        let [three, four, hundred] = [3, 4, 100].map(|n| pool.int(n));
        let limited = pool.min(wide, hundred);
        let limited = normalize(pool, limited);
        let sum = pool.add(limited, three);
        let quotient = pool.floor_div(sum, four);
        assert_eq!(normalize(pool, quotient), quotient);
        let greatest = pool.max(limited, i);
        let greatest = normalize(pool, greatest);
        let less = pool.sub(greatest, three);
        assert_eq!(normalize(pool, less), less);
        let within = pool.sub(i, three);
        let below = pool.le(within, wide);
        assert_eq!(normalize(pool, below), below);
    }
}
