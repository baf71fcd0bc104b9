//! Signs of index expressions, from their form, declared ranges and the loops around them.
//!
//! What primitives and layouts must know without a prover: that an extent is not negative, that a
//! tile is not empty, that an index stays inside a box. Incomplete, cheap, and never wrong.

use cora_ir::affine::{Monomial, Poly, build, normalize, poly};
use cora_ir::{BinOp, Env, Expr, ExprId, UfDef, UfId};

/// How many bounds may be put in one after another.
const STEPS: usize = 16;

/// An index (a variable or an `Arg`) and its extent; outer ones come first.
pub type Range = (ExprId, ExprId);

/// Whether `e >= 0` is plain wherever each index is in `0..extent`.
pub fn never_negative(env: &mut Env, ranges: &[Range], e: ExprId) -> bool {
    prove(env, ranges, e, STEPS)
}

/// `e`, or `max(e, 0)` unless `e` is plainly not negative: a negative extent counts as zero.
pub fn as_size(env: &mut Env, ranges: &[Range], e: ExprId) -> ExprId {
    if never_negative(env, ranges, e) {
        return e;
    }
    let zero = env.pool.int(0);
    env.pool.max(e, zero)
}

/// Whether `0 <= e < size` is plain wherever each index is in its range.
pub fn inside(env: &mut Env, ranges: &[Range], e: ExprId, size: ExprId) -> bool {
    let one = env.pool.int(1);
    let last = env.pool.sub(size, one);
    let above = env.pool.sub(last, e);
    never_negative(env, ranges, e) && never_negative(env, ranges, above)
}

fn prove(env: &mut Env, ranges: &[Range], e: ExprId, steps: usize) -> bool {
    let e = normalize(&mut env.pool, e);
    let p = poly(&env.pool, e);
    if sum_of_least(env, &p).is_some_and(|v| v >= 0) {
        return true;
    }
    if steps == 0 {
        return false;
    }
    if let Some(cases) = min_max_cases(env, &p) {
        let (all, sides) = cases;
        let mut holds = sides.into_iter().map(|s| prove(env, ranges, s, steps / 2));
        return if all { holds.all(|h| h) } else { holds.any(|h| h) };
    }
    match below_search(env, ranges, &p)
        .or_else(|| below_greatest(env, &p))
        .or_else(|| below_rows(env, &p))
        .or_else(|| below_index(env, ranges, &p))
        .or_else(|| below_quotient(env, &p))
    {
        Some(lower) => prove(env, ranges, lower, steps - 1),
        None => false,
    }
}

/// The sum of the terms' least values; every coefficient must be positive.
fn sum_of_least(env: &Env, p: &Poly) -> Option<i64> {
    let mut sum = 0i64;
    for (m, &c) in &p.terms {
        let mut product = 1i64;
        for &a in m {
            product = product.checked_mul(env.least(a).filter(|&v| v >= 0)?)?;
        }
        let positive = c > 0 || m.is_empty();
        sum = sum.checked_add(product.checked_mul(c).filter(|_| positive)?)?;
    }
    Some(sum)
}

fn with_term(env: &mut Env, p: &Poly, m: &Monomial, instead: &Poly) -> Option<ExprId> {
    let mut rest = p.clone();
    let c = rest.terms.remove(m)?;
    let sum = rest.checked_add_scaled(instead, c)?;
    Some(build(&mut env.pool, &sum))
}

/// The first term that is a multiple of `min` or `max`: the two expressions with either operand, and
/// whether both must hold.
fn min_max_cases(env: &mut Env, p: &Poly) -> Option<(bool, [ExprId; 2])> {
    let (m, op, x, y) = p.terms.keys().find_map(|m| match m.as_slice() {
        [a] => match *env.pool.get(*a) {
            Expr::Bin(op @ (BinOp::Min | BinOp::Max), x, y) => Some((m.clone(), op, x, y)),
            _ => None,
        },
        _ => None,
    })?;
    let positive = p.terms[&m] > 0;
    let (px, py) = (poly(&env.pool, x), poly(&env.pool, y));
    let sides = [with_term(env, p, &m, &px)?, with_term(env, p, &m, &py)?];
    Some((positive == (op == BinOp::Min), sides))
}

/// `.. + c * max - c * f(a)` with the greatest value of `f`: that is no less. A lower bound of the whole.
fn below_greatest(env: &mut Env, p: &Poly) -> Option<ExprId> {
    let calls = |m: &Monomial| match m.as_slice() {
        &[a] => match env.pool.get(a) {
            Expr::Call(f, args) => Some((*f, args.to_vec())),
            _ => None,
        },
        _ => None,
    };
    let all: Vec<(Monomial, i64, UfId, Vec<ExprId>)> =
        p.terms.iter().filter_map(|(m, &c)| calls(m).map(|(f, args)| (m.clone(), c, f, args))).collect();
    for (most, c, f, _) in all.iter().filter(|t| t.1 > 0) {
        let UfDef::Max { body } = env.ufs[*f].def else { continue };
        for (less, d, g, args) in all.iter().filter(|t| t.1 < 0) {
            let formals: Vec<ExprId> = (0..args.len() as u32).map(|a| env.pool.arg(a)).collect();
            if env.pool.call(*g, formals) != body {
                continue;
            }
            let times = (*c).min(d.checked_neg()?);
            let mut rest = p.clone();
            rest.add_term(most.clone(), -times);
            rest.add_term(less.clone(), times);
            return Some(build(&mut env.pool, &rest));
        }
    }
    None
}

/// `.. + c * P(a, S) - c * x` with `S` the row that holds position x: `x - P(a, S)` is less than the
/// row's size. A lower bound of the whole.
fn below_search(env: &mut Env, ranges: &[Range], p: &Poly) -> Option<ExprId> {
    for (m, &c) in &p.terms {
        let [a] = m.as_slice() else { continue };
        let Expr::Call(sum, args) = env.pool.get(*a).clone() else { continue };
        let (Some((&row, outer)), true) = (args.split_last(), c > 0) else { continue };
        let Expr::Call(search, at) = env.pool.get(row).clone() else { continue };
        let UfDef::Search { sum: inverted } = env.ufs[search].def else { continue };
        let UfDef::PrefixSum { body } = env.ufs[sum].def else { continue };
        let Some((&x, same)) = at.split_last() else { continue };
        if inverted != sum || same != outer {
            continue;
        }
        // Only positions that exist: with bulk padding there are more.
        let rows = *env.ufs[sum].domain.last()?;
        let rows = env.pool.instantiate(rows, outer);
        let total = env.pool.call(sum, outer.iter().copied().chain([rows]));
        if !inside(env, ranges, x, total) {
            continue;
        }
        let position = poly(&env.pool, x);
        let atom = Poly::atom(*a);
        let inside = position.checked_add_scaled(&atom, -1)?;
        let body = env.pool.instantiate(body, &args);
        let one = env.pool.int(1);
        let last = env.pool.sub(body, one);
        let last = poly(&env.pool, last);
        let lower = p.clone().checked_add_scaled(&inside, c)?.checked_add_scaled(&last, c.checked_neg()?)?;
        return Some(build(&mut env.pool, &lower));
    }
    None
}

/// `.. - c * f(..)` where f gives a row: a search, or a sorted order. It is one of the rows.
fn below_rows(env: &mut Env, p: &Poly) -> Option<ExprId> {
    let (m, rows, outer) = p.terms.iter().find_map(|(m, &c)| match m.as_slice() {
        [a] if c < 0 => match env.pool.get(*a) {
            Expr::Call(f, args) => {
                let rows = match env.ufs[*f].def {
                    UfDef::Search { sum } => *env.ufs[sum].domain.last()?,
                    UfDef::SortDesc { .. } => *env.ufs[*f].domain.last()?,
                    _ => return None,
                };
                Some((m.clone(), rows, args[..args.len() - 1].to_vec()))
            }
            _ => None,
        },
        _ => None,
    })?;
    let rows = env.pool.instantiate(rows, &outer);
    let one = env.pool.int(1);
    let last = env.pool.sub(rows, one);
    let last = poly(&env.pool, last);
    with_term(env, p, &m, &last)
}

/// The innermost index that stands alone in its term, at the end of its range that makes the whole least.
fn below_index(env: &mut Env, ranges: &[Range], p: &Poly) -> Option<ExprId> {
    for &(index, extent) in ranges.iter().rev() {
        let alone = vec![index];
        let Some(&c) = p.terms.get(&alone) else { continue };
        let node = env.pool.get(index).clone();
        let hidden = p.terms.keys().filter(|m| **m != alone).flatten().any(|&a| env.pool.any(a, &mut |n| *n == node));
        if hidden {
            continue;
        }
        let end = if c > 0 {
            Poly::constant(0)
        } else {
            let one = env.pool.int(1);
            let last = env.pool.sub(extent, one);
            poly(&env.pool, last)
        };
        return with_term(env, p, &alone, &end);
    }
    None
}

/// `-c * (a // k)` is at least `-(c / k) * a`, and `c * (a // k)` at least `(c / k) * (a - k + 1)`.
fn below_quotient(env: &mut Env, p: &Poly) -> Option<ExprId> {
    let (m, c, a, k) = p.terms.iter().find_map(|(m, &c)| match m.as_slice() {
        [q] => match *env.pool.get(*q) {
            Expr::Bin(BinOp::FloorDiv, a, b) => {
                let k = env.pool.as_int(b).filter(|&k| k > 0 && c % k == 0)?;
                Some((m.clone(), c, a, k))
            }
            _ => None,
        },
        _ => None,
    })?;
    let mut bound = poly(&env.pool, a);
    if c > 0 {
        bound = bound.checked_add_scaled(&Poly::constant(1 - k), 1)?;
    }
    let mut rest = p.clone();
    rest.terms.remove(&m);
    let sum = rest.checked_add_scaled(&bound, c / k)?;
    Some(build(&mut env.pool, &sum))
}
