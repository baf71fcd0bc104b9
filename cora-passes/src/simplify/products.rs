//! Lemmas about products and about quotients by variables, for a solver that knows neither.
//!
//! The solver sees each product of atoms as an unknown integer. What it needs to know of it are
//! instances of "a number times a positive number keeps its sign, and its size": for differences d
//! that matter (of quotients, of factors, of the two sides of a comparison) and factors f that
//! occur, the polynomial `d * f` is at least f where `d >= 1` and `f >= 1`, and so on.

use cora_ir::affine::{self, Monomial, Poly};
use cora_ir::{BinOp, Env, Expr, ExprId, UnOp};

/// Lemmas made at most, each about one difference and one factor.
const PAIRS: usize = 240;

/// A quotient by something that is not a constant.
struct Quotient {
    value: ExprId,
    of: ExprId,
    by: ExprId,
}

#[derive(Default)]
struct Found {
    quotients: Vec<Quotient>,
    products: Vec<Monomial>,
    differences: Vec<Poly>,
}

fn add<T: PartialEq>(list: &mut Vec<T>, item: T) {
    if !list.contains(&item) {
        list.push(item);
    }
}

fn collect(env: &mut Env, cond: ExprId, found: &mut Found) {
    let mut nodes = Vec::new();
    env.pool.walk(cond, &mut |e, _| nodes.push(e));
    for e in nodes {
        if env.pool.ty(e).lanes != 1 {
            continue;
        }
        match *env.pool.get(e) {
            Expr::Bin(BinOp::FloorDiv | BinOp::Mod, x, y) if env.pool.as_int(y).is_none() => {
                let value = env.pool.floor_div(x, y);
                if found.quotients.iter().all(|q| q.value != value) {
                    found.quotients.push(Quotient { value, of: x, by: y });
                }
                let product = env.pool.mul(value, y);
                collect_products(env, product, found);
            }
            Expr::Bin(BinOp::Add | BinOp::Sub | BinOp::Mul, ..) => collect_products(env, e, found),
            Expr::Bin(op, a, b) if op.is_comparison() && env.pool.ty(a).scalar == cora_ir::ScalarType::Index => {
                let (a, b) = (without_remainders(env, a, None), without_remainders(env, b, None));
                let d = env.pool.sub(a, b);
                let d = affine::poly(&env.pool, d);
                collect_monomials(&d, found);
                add(&mut found.differences, d);
            }
            _ => {}
        }
    }
}

/// `x % y` as `x - y * (x // y)`, which is so unless y is 0, for variable y (or only for one) in a sum.
fn without_remainders(env: &mut Env, e: ExprId, only: Option<ExprId>) -> ExprId {
    let mut out = e;
    for _ in 0..4 {
        let p = affine::poly(&env.pool, out);
        let before = out;
        for (m, &k) in &p.terms {
            for (at, &atom) in m.iter().enumerate() {
                let Expr::Bin(BinOp::Mod, x, y) = *env.pool.get(atom) else { continue };
                if env.pool.as_int(y).is_some() || only.is_some_and(|o| o != y) {
                    continue;
                }
                // k * rest * (x % y)  becomes  k * rest * (x - y * (x // y))
                let mut rest = m.clone();
                rest.remove(at);
                let mut scale = Poly::default();
                scale.add_term(rest, k);
                let scale = affine::build(&mut env.pool, &scale);
                let longer = remainder(env, x, y);
                let change = env.pool.sub(longer, atom);
                let change = env.pool.mul(scale, change);
                out = env.pool.add(out, change);
                break;
            }
        }
        out = affine::normalize(&mut env.pool, out);
        if out == before {
            break;
        }
    }
    out
}

/// `x - y * (x // y)`
pub(super) fn remainder(env: &mut Env, x: ExprId, y: ExprId) -> ExprId {
    let q = env.pool.floor_div(x, y);
    let m = env.pool.mul(q, y);
    env.pool.sub(x, m)
}

fn collect_products(env: &mut Env, e: ExprId, found: &mut Found) {
    let p = affine::poly(&env.pool, e);
    collect_monomials(&p, found);
}

fn collect_monomials(p: &Poly, found: &mut Found) {
    for m in p.terms.keys().filter(|m| m.len() > 1) {
        add(&mut found.products, m.clone());
    }
}

fn minus(a: &Poly, b: &Poly) -> Option<Poly> {
    a.clone().checked_add_scaled(b, -1)
}

/// `p / f` where f is one product that divides every term.
fn quotient(p: &Poly, f: &Poly) -> Option<Poly> {
    let (m, &k) = f.terms.iter().next()?;
    if f.terms.len() != 1 || m.is_empty() || p.terms.is_empty() {
        return None;
    }
    let mut out = Poly::default();
    for (n, &c) in &p.terms {
        let mut rest = n.clone();
        for a in m {
            let at = rest.iter().position(|x| x == a)?;
            rest.remove(at);
        }
        if c % k != 0 {
            return None;
        }
        out.add_term(rest, c / k);
    }
    Some(out)
}

/// Lemmas (conditions that always hold) that may help to decide the goal under the conditions.
pub(super) fn lemmas(env: &mut Env, conditions: &[ExprId], goal: ExprId) -> Vec<ExprId> {
    let mut found = Found::default();
    collect(env, goal, &mut found);
    for &c in conditions {
        collect(env, c, &mut found);
    }
    if found.products.is_empty() && found.quotients.is_empty() {
        return Vec::new();
    }
    let mut out = Vec::new();
    let mut factors: Vec<Poly> = Vec::new();
    let mut differences: Vec<Poly> = Vec::new();
    for q in &found.quotients {
        out.extend(about_quotient(env, q));
        add(&mut factors, affine::poly(&env.pool, q.by));
    }
    for m in &found.products {
        m.iter().for_each(|&a| add(&mut factors, Poly::atom(a)));
    }
    // The two sides of comparisons, and those without a common factor.
    for d in &found.differences {
        for f in &factors {
            if let Some(rest) = quotient(d, f).filter(|r| r.as_constant().is_none()) {
                add(&mut differences, rest);
            }
        }
    }
    for d in found.differences.into_iter().filter(|d| d.terms.len() <= 6) {
        add(&mut differences, d);
    }
    for (i, q) in found.quotients.iter().enumerate() {
        let p = affine::poly(&env.pool, q.value);
        for r in found.quotients[..i].iter().filter(|r| r.by == q.by) {
            differences.extend(minus(&p, &affine::poly(&env.pool, r.value)));
        }
        // The bounds of the remainder, to be multiplied by other factors.
        let rest = remainder(env, q.of, q.by);
        let rest = without_remainders(env, rest, None);
        let rest = affine::poly(&env.pool, rest);
        let by = affine::poly(&env.pool, q.by);
        let room = minus(&by, &rest).and_then(|r| minus(&r, &Poly::constant(1)));
        differences.push(rest.clone());
        differences.extend(room);
        let remainder = env.pool.modulo(q.of, q.by);
        differences.extend(minus(&affine::poly(&env.pool, remainder), &rest));
    }
    for (i, m) in found.products.iter().enumerate() {
        for &a in m {
            add(&mut differences, Poly::atom(a));
            let Some(x) = quotient(&monomial(m), &Poly::atom(a)) else { continue };
            add(&mut differences, x.clone());
            for n in &found.products[..i] {
                if let Some(y) = quotient(&monomial(n), &Poly::atom(a)) {
                    differences.extend(minus(&x, &y));
                }
            }
        }
    }
    let mut unique: Vec<Poly> = Vec::new();
    differences.into_iter().filter(|d| d.as_constant().is_none()).for_each(|d| add(&mut unique, d));
    let pairs = unique.iter().flat_map(|d| factors.iter().map(move |f| (d, f)));
    for (d, f) in pairs.take(PAIRS) {
        if let Some(p) = d.checked_mul(f) {
            out.extend(about_product(env, d, f, &p));
        }
    }
    out
}

fn monomial(m: &Monomial) -> Poly {
    let mut p = Poly::default();
    p.add_term(m.clone(), 1);
    p
}

fn implies(env: &mut Env, premises: &[ExprId], conclusion: ExprId) -> ExprId {
    let premise = env.pool.all(premises.iter().copied());
    let not = env.pool.un(UnOp::Not, premise);
    env.pool.bin(BinOp::Or, not, conclusion)
}

/// `y*q <= x < y*q + y` for positive y, the other way round for negative y, 0 for none.
fn about_quotient(env: &mut Env, q: &Quotient) -> Vec<ExprId> {
    let (zero, one) = (env.pool.int(0), env.pool.int(1));
    let rest = remainder(env, q.of, q.by);
    let rest = without_remainders(env, rest, Some(q.by));
    let (positive, negative) = (env.pool.le(one, q.by), env.pool.lt(q.by, zero));
    let none = env.pool.bin(BinOp::Eq, q.by, zero);
    let (low, high) = (env.pool.le(zero, rest), env.pool.lt(rest, q.by));
    let (low_n, high_n) = (env.pool.lt(q.by, rest), env.pool.le(rest, zero));
    let is_zero = env.pool.bin(BinOp::Eq, q.value, zero);
    vec![
        implies(env, &[positive], low),
        implies(env, &[positive], high),
        implies(env, &[negative], low_n),
        implies(env, &[negative], high_n),
        implies(env, &[none], is_zero),
    ]
}

/// What signs and sizes of d and f say of their product p.
fn about_product(env: &mut Env, d: &Poly, f: &Poly, p: &Poly) -> Vec<ExprId> {
    let (d, f, p) = (affine::build(&mut env.pool, d), affine::build(&mut env.pool, f), affine::build(&mut env.pool, p));
    let e = &mut env.pool;
    let (zero, one, less) = (e.int(0), e.int(1), e.int(-1));
    let minus_f = e.un(UnOp::Neg, f);
    let (f_pos, f_neg, f_zero) = (e.le(one, f), e.le(f, less), e.bin(BinOp::Eq, f, zero));
    let (d_pos, d_neg, d_zero) = (e.le(one, d), e.le(d, less), e.bin(BinOp::Eq, d, zero));
    let p_zero = e.bin(BinOp::Eq, p, zero);
    let (up, down) = (e.le(f, p), e.le(p, minus_f));
    let (up_n, down_n) = (e.le(minus_f, p), e.le(p, f));
    let wide = e.le(d, p);
    vec![
        implies(env, &[f_zero], p_zero),
        implies(env, &[d_zero], p_zero),
        implies(env, &[f_pos, d_pos], up),
        implies(env, &[f_pos, d_pos], wide),
        implies(env, &[f_pos, d_neg], down),
        implies(env, &[f_neg, d_pos], down_n),
        implies(env, &[f_neg, d_neg], up_n),
    ]
}
