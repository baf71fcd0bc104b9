//! What values index expressions can have, from the declared ranges of parameters and lengths.
//!
//! Decides which tables fit 32 bits, and which formulas fit 64. An end that is not known is `None`.

use cora_ir::{BinOp, Env, Expr, ExprId, ScalarType, UfDef, UfId, UnOp, VarId};

/// The least and the greatest value, as far as they are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// No value is less.
    pub lo: Option<i64>,
    /// No value is greater.
    pub hi: Option<i64>,
}

/// What the variables of an expression count: a formal argument or a loop is in `0..extent`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Indices<'a> {
    /// The greatest extent of each formal argument.
    pub args: &'a [i64],
    /// Loops, outermost first, with their extents over outer ones.
    pub loops: &'a [(VarId, ExprId)],
}

/// Every value of `f` inside its domain.
pub fn bounds_of(env: &Env, f: UfId) -> Bounds {
    let uf = &env.ufs[f];
    let over = |domain: &[ExprId], body: ExprId| {
        let args = domain_bounds(env, domain)?;
        Some(bounds(env, body, Indices { args: &args, loops: &[] }))
    };
    let index = |domain: &[ExprId]| {
        let rows = domain_bounds(env, domain).and_then(|n| n.last().copied());
        Bounds { lo: Some(0), hi: rows.map(|n| (n - 1).max(0)) }
    };
    let unknown = Bounds { lo: None, hi: None };
    match uf.def {
        UfDef::Extent { lo, hi } => {
            let none = Indices::default();
            Bounds { lo: bounds(env, lo, none).lo, hi: bounds(env, hi, none).hi }
        }
        UfDef::PrefixSum { body } => {
            let terms = domain_bounds(env, &uf.domain).and_then(|n| n.last().copied());
            let most = over(&uf.domain, body).and_then(|b| b.hi).map(|b| b.max(0));
            Bounds { lo: Some(0), hi: terms.zip(most).and_then(|(n, b)| n.checked_mul(b)) }
        }
        UfDef::Max { body } => {
            let hi = over(&uf.domain, body).and_then(|b| b.hi).map(|b| b.max(0));
            Bounds { lo: Some(0), hi }
        }
        UfDef::Map { body } => over(&uf.domain, body).unwrap_or(unknown),
        UfDef::SortDesc { .. } => index(&uf.domain),
        // The row that is found is one of those that the sum counts.
        UfDef::Search { sum } => index(&env.ufs[sum].domain),
    }
}

/// The greatest number of values of each argument of a function.
fn domain_bounds(env: &Env, domain: &[ExprId]) -> Option<Vec<i64>> {
    let mut args: Vec<i64> = Vec::new();
    for &d in domain {
        let most = bounds(env, d, Indices { args: &args, loops: &[] }).hi?;
        args.push(most.max(0));
    }
    Some(args)
}

/// The values of `e` wherever its variables count what `at` says and functions are called inside their domains.
pub fn bounds(env: &Env, e: ExprId, at: Indices<'_>) -> Bounds {
    let of = |e| bounds(env, e, at);
    let exactly = |v| Bounds { lo: Some(v), hi: Some(v) };
    let index = |most: Option<i64>| Bounds { lo: Some(0), hi: most.map(|n| (n - 1).max(0)) };
    match *env.pool.get(e) {
        Expr::Int(v) => exactly(v),
        Expr::Param(p) => Bounds { lo: Some(env.params[p].lo), hi: Some(env.params[p].hi) },
        Expr::Arg(n) => index(at.args.get(n as usize).copied()),
        Expr::Var(v) => index(at.loops.iter().find(|l| l.0 == v).and_then(|l| of(l.1).hi)),
        Expr::Call(f, _) => bounds_of(env, f),
        Expr::Un(UnOp::Neg, a) => minus(exactly(0), of(a)),
        Expr::Bin(BinOp::Add, a, b) => {
            let (a, b) = (of(a), of(b));
            Bounds { lo: both(a.lo, b.lo, i64::checked_add), hi: both(a.hi, b.hi, i64::checked_add) }
        }
        Expr::Bin(BinOp::Sub, a, b) => minus(of(a), of(b)),
        Expr::Bin(BinOp::Mul, a, b) => times(of(a), of(b)),
        Expr::Bin(BinOp::FloorDiv, a, b) => quotient(of(a), of(b)),
        Expr::Bin(BinOp::Mod, a, b) => remainder(of(a), of(b)),
        Expr::Bin(BinOp::Min, a, b) => {
            let (a, b) = (of(a), of(b));
            Bounds { lo: least(a.lo, b.lo), hi: a.hi.into_iter().chain(b.hi).min() }
        }
        Expr::Bin(BinOp::Max, a, b) => {
            let (a, b) = (of(a), of(b));
            Bounds { lo: a.lo.into_iter().chain(b.lo).max(), hi: greatest(a.hi, b.hi) }
        }
        Expr::Select(_, a, b) => {
            let (a, b) = (of(a), of(b));
            Bounds { lo: least(a.lo, b.lo), hi: greatest(a.hi, b.hi) }
        }
        Expr::Cast(ScalarType::Index, a) => of(a),
        Expr::Load { tensor, .. } => match env.tensors[tensor].ty {
            ScalarType::I8 | ScalarType::I16 | ScalarType::I32 => {
                Bounds { lo: Some(i32::MIN.into()), hi: Some(i32::MAX.into()) }
            }
            _ => Bounds { lo: None, hi: None },
        },
        _ => Bounds { lo: None, hi: None },
    }
}

fn both(a: Option<i64>, b: Option<i64>, f: impl Fn(i64, i64) -> Option<i64>) -> Option<i64> {
    f(a?, b?)
}

fn least(a: Option<i64>, b: Option<i64>) -> Option<i64> {
    both(a, b, |a, b| Some(a.min(b)))
}

fn greatest(a: Option<i64>, b: Option<i64>) -> Option<i64> {
    both(a, b, |a, b| Some(a.max(b)))
}

fn minus(a: Bounds, b: Bounds) -> Bounds {
    Bounds { lo: both(a.lo, b.hi, i64::checked_sub), hi: both(a.hi, b.lo, i64::checked_sub) }
}

fn times(a: Bounds, b: Bounds) -> Bounds {
    let not_negative = |x: Bounds| x.lo.is_some_and(|v| v >= 0);
    let (Some(al), Some(ah), Some(bl), Some(bh)) = (a.lo, a.hi, b.lo, b.hi) else {
        let lo = if not_negative(a) && not_negative(b) { both(a.lo, b.lo, i64::checked_mul) } else { None };
        return Bounds { lo, hi: None };
    };
    let ends = [(al, bl), (al, bh), (ah, bl), (ah, bh)].map(|(x, y)| x.checked_mul(y));
    let all: Option<Vec<i64>> = ends.into_iter().collect();
    let (lo, hi) = all.map_or((None, None), |v| (v.iter().min().copied(), v.iter().max().copied()));
    Bounds { lo, hi }
}

/// By 0 it is 0; by anything else no further from 0 than what is divided, up to rounding down.
fn quotient(a: Bounds, b: Bounds) -> Bounds {
    match (b.lo, b.hi) {
        (Some(c), Some(d)) if c == d && c > 0 => {
            let by = |v: Option<i64>| v.map(|v| cora_ir::expr::floor_div(v, c));
            Bounds { lo: by(a.lo), hi: by(a.hi) }
        }
        (Some(c), _) if c >= 0 => Bounds { lo: a.lo.map(|v| v.min(0)), hi: a.hi.map(|v| v.max(0)) },
        _ => {
            let most = both(a.lo, a.hi, |l, h| l.checked_abs()?.max(h.checked_abs()?).checked_add(1));
            Bounds { lo: most.map(|m| -m), hi: most }
        }
    }
}

/// Between 0 and the divisor, and no greater than what is divided where neither is negative.
fn remainder(a: Bounds, b: Bounds) -> Bounds {
    let below = b.hi.map(|v| (v - 1).max(0));
    let whole = if a.lo.is_some_and(|v| v >= 0) && b.lo.is_some_and(|v| v >= 0) { a.hi } else { None };
    Bounds { lo: b.lo.map(|v| v.saturating_add(1).min(0)), hi: below.into_iter().chain(whole).min() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cora_ir::Param;

    fn env() -> (Env, ExprId, UfId) {
        let mut env = Env::default();
        let m = env.params.push(Param { name: "M".into(), lo: 2, hi: 10 });
        let m = env.pool.param(m);
        let (lo, hi) = (env.pool.int(0), env.pool.int(50));
        let lens = env.uf("lens", vec![m], UfDef::Extent { lo, hi });
        (env, m, lens)
    }

    fn of(env: &Env, e: ExprId, args: &[i64]) -> (Option<i64>, Option<i64>) {
        let b = bounds(env, e, Indices { args, loops: &[] });
        (b.lo, b.hi)
    }

    #[test]
    fn products_of_negative_numbers_are_positive() {
        let (mut env, m, _) = env();
        let three = env.pool.int(3);
        let a = env.pool.sub(three, m);
        let square = env.pool.mul(a, a);
        assert_eq!(of(&env, a, &[]), (Some(-7), Some(1)));
        assert_eq!(of(&env, square, &[]), (Some(-7), Some(49)));
    }

    #[test]
    fn a_negative_subtrahend_adds() {
        let (mut env, m, _) = env();
        let x = env.pool.arg(0);
        let a = env.pool.sub(x, m);
        let e = env.pool.sub(m, a);
        assert_eq!(of(&env, e, &[5]), (Some(0), Some(20)));
    }

    #[test]
    fn a_row_is_one_of_the_rows_inside() {
        let (mut env, m, lens) = env();
        let (x, y, hundred) = (env.pool.arg(0), env.pool.arg(1), env.pool.int(100));
        let len = env.pool.call(lens, [x]);
        let body = env.pool.add(len, y);
        let sum = env.uf("row", vec![m, hundred], UfDef::PrefixSum { body });
        let total = env.pool.call(sum, [x, hundred]);
        let at = env.uf("row.at", vec![m, total], UfDef::Search { sum });
        assert_eq!(bounds_of(&env, at), Bounds { lo: Some(0), hi: Some(99) });
        assert_eq!(bounds_of(&env, sum), Bounds { lo: Some(0), hi: Some(14_900) });
    }

    #[test]
    fn loops_count_from_0() {
        let (mut env, m, lens) = env();
        let (b, i) = (env.new_var("b"), env.new_var("i"));
        let vb = env.pool.var(b);
        let len = env.pool.call(lens, [vb]);
        let vi = env.pool.var(i);
        let e = env.pool.mul(vb, vi);
        let at = Indices { args: &[], loops: &[(b, m), (i, len)] };
        assert_eq!(bounds(&env, e, at), Bounds { lo: Some(0), hi: Some(9 * 49) });
    }
}
