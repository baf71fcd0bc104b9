//! Ground instances of what uninterpreted functions are defined to be, as conditions.
//!
//! Each instance is a consequence of the definition (under the convention of [`super::atom_bounds`]
//! for arguments outside the domain), so it may be assumed in any proof.

use cora_ir::affine::normalize;
use cora_ir::expr::Args;
use cora_ir::{BinOp, Env, Expr, ExprId, UfDef, UfId, UnOp};

/// A call, taken apart.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) expr: ExprId,
    f: UfId,
    args: Args,
}

impl Call {
    pub(super) fn of(env: &Env, expr: ExprId) -> Option<Self> {
        match env.pool.get(expr) {
            Expr::Call(f, args) if env.pool.ty(expr).lanes == 1 => Some(Self { expr, f: *f, args: args.clone() }),
            _ => None,
        }
    }

    /// Whether its values are given with the batch rather than defined.
    pub(super) fn is_free(&self, env: &Env) -> bool {
        matches!(env.ufs[self.f].def, UfDef::Extent { .. })
    }
}

fn implies(env: &mut Env, premise: ExprId, conclusion: ExprId) -> ExprId {
    let not = env.pool.un(UnOp::Not, premise);
    env.pool.bin(BinOp::Or, not, conclusion)
}

fn inside(env: &mut Env, e: ExprId, extent: ExprId) -> ExprId {
    let zero = env.pool.int(0);
    let (low, high) = (env.pool.le(zero, e), env.pool.lt(e, extent));
    env.pool.and(low, high)
}

/// The first `count` arguments are in the function's domain.
fn in_domain(env: &mut Env, f: UfId, args: &[ExprId], count: usize) -> ExprId {
    let mut all = env.pool.bool(true);
    for j in 0..count {
        let extent = env.ufs[f].domain[j];
        let extent = env.pool.instantiate(extent, &args[..j]);
        let one = inside(env, args[j], extent);
        all = env.pool.and(all, one);
    }
    all
}

fn rows(env: &mut Env, sum: UfId, outer: &[ExprId]) -> ExprId {
    let n = env.ufs[sum].domain[outer.len()];
    let n = env.pool.instantiate(n, outer);
    normalize(&mut env.pool, n)
}

fn body_at(env: &mut Env, body: ExprId, outer: &[ExprId], x: ExprId) -> ExprId {
    let args: Vec<ExprId> = outer.iter().copied().chain([x]).collect();
    let e = env.pool.instantiate(body, &args);
    normalize(&mut env.pool, e)
}

fn with_last(env: &mut Env, f: UfId, outer: &[ExprId], x: ExprId) -> ExprId {
    env.pool.call(f, outer.iter().copied().chain([x]))
}

/// What the definition says about one call.
pub(super) fn about_call(env: &mut Env, call: &Call) -> Vec<ExprId> {
    let (f, args, e) = (call.f, &call.args, call.expr);
    let zero = env.pool.int(0);
    match env.ufs[f].def.clone() {
        UfDef::Extent { lo, hi } => vec![env.pool.le(lo, e), env.pool.le(e, hi)],
        UfDef::PrefixSum { body } => {
            let Some((&x, outer)) = args.split_last() else { return Vec::new() };
            let starts = env.pool.bin(BinOp::Eq, x, zero);
            let nothing = env.pool.bin(BinOp::Eq, e, zero);
            let domain = in_domain(env, f, args, args.len());
            let term = body_at(env, body, outer, x);
            let term = env.pool.le(zero, term);
            vec![env.pool.le(zero, e), implies(env, starts, nothing), implies(env, domain, term)]
        }
        UfDef::Search { sum } => {
            let Some((&r, outer)) = args.split_last() else { return Vec::new() };
            let UfDef::PrefixSum { body } = env.ufs[sum].def else { return Vec::new() };
            let n = rows(env, sum, outer);
            let total = with_last(env, sum, outer, n);
            let range = inside(env, r, total);
            let domain = in_domain(env, sum, outer, outer.len());
            let premise = env.pool.and(range, domain);
            let start = with_last(env, sum, outer, e);
            let term = body_at(env, body, outer, e);
            let end = env.pool.add(start, term);
            let found = inside(env, e, n);
            let (low, high) = (env.pool.le(start, r), env.pool.lt(r, end));
            let all = env.pool.all([found, low, high]);
            vec![env.pool.le(zero, e), implies(env, premise, all)]
        }
        UfDef::Map { body } => {
            let domain = in_domain(env, f, args, args.len());
            let value = env.pool.instantiate(body, args);
            let same = env.pool.bin(BinOp::Eq, e, value);
            vec![implies(env, domain, same)]
        }
        UfDef::Max { .. } => vec![env.pool.le(zero, e)],
        UfDef::SortDesc { .. } => {
            let Some((_, outer)) = args.split_last() else { return Vec::new() };
            let domain = in_domain(env, f, args, args.len());
            let n = rows(env, f, outer);
            let found = inside(env, e, n);
            vec![implies(env, domain, found)]
        }
    }
}

/// What the definitions say about two calls together, in either order.
pub(super) fn about_pair(env: &mut Env, a: &Call, b: &Call) -> Vec<ExprId> {
    let (da, db) = (env.ufs[a.f].def.clone(), env.ufs[b.f].def.clone());
    match (da, db) {
        (UfDef::PrefixSum { body }, UfDef::PrefixSum { .. }) if a.f == b.f => {
            let mut out = sums_in_order(env, body, a, b);
            out.extend(sums_in_order(env, body, b, a));
            out
        }
        (UfDef::Search { .. }, UfDef::Search { .. }) if a.f == b.f => {
            let mut out = searches_in_order(env, a, b);
            out.extend(searches_in_order(env, b, a));
            out
        }
        (UfDef::Search { sum }, UfDef::PrefixSum { body }) if sum == b.f => row_found(env, body, a, b),
        (UfDef::PrefixSum { body }, UfDef::Search { sum }) if sum == a.f => row_found(env, body, b, a),
        (UfDef::Max { body }, _) => below_maximum(env, body, a, b),
        (_, UfDef::Max { body }) => below_maximum(env, body, b, a),
        (UfDef::SortDesc { key }, UfDef::SortDesc { .. }) if a.f == b.f => sorted_apart(env, key, a, b),
        _ => Vec::new(),
    }
}

/// Two places of one row have different indices, and their keys do not ascend.
fn sorted_apart(env: &mut Env, key: ExprId, a: &Call, b: &Call) -> Vec<ExprId> {
    let (Some((&x, outer)), Some((&y, outer_b))) = (a.args.split_last(), b.args.split_last()) else {
        return Vec::new();
    };
    if outer != outer_b {
        return Vec::new();
    }
    let n = a.args.len();
    let (dx, dy) = (in_domain(env, a.f, &a.args, n), in_domain(env, b.f, &b.args, n));
    let premise = env.pool.and(dx, dy);
    let (ex, ee) = (env.pool.bin(BinOp::Eq, x, y), env.pool.bin(BinOp::Eq, a.expr, b.expr));
    let not = env.pool.un(UnOp::Not, ee);
    let apart = env.pool.bin(BinOp::Or, not, ex);
    let (ka, kb) = (body_at(env, key, outer, a.expr), body_at(env, key, outer, b.expr));
    let (xy, yx) = (env.pool.le(x, y), env.pool.le(y, x));
    let (down, up) = (env.pool.le(kb, ka), env.pool.le(ka, kb));
    let (first, second) = (implies(env, xy, down), implies(env, yx, up));
    let all = env.pool.all([apart, first, second]);
    vec![implies(env, premise, all)]
}

/// `x <= y` gives `P(x) <= P(y)`; `x < y`, x a row, gives `P(x) + term(x) <= P(y)`.
fn sums_in_order(env: &mut Env, body: ExprId, a: &Call, b: &Call) -> Vec<ExprId> {
    let (Some((&x, outer)), Some((&y, outer_b))) = (a.args.split_last(), b.args.split_last()) else {
        return Vec::new();
    };
    if outer != outer_b {
        return Vec::new();
    }
    let (le, lt) = (env.pool.le(x, y), env.pool.lt(x, y));
    let monotone = env.pool.le(a.expr, b.expr);
    let row = in_domain(env, a.f, &a.args, a.args.len());
    let premise = env.pool.and(lt, row);
    let term = body_at(env, body, outer, x);
    let end = env.pool.add(a.expr, term);
    let one = env.pool.int(1);
    let next = env.pool.add(x, one);
    let adjacent = env.pool.bin(BinOp::Eq, next, y);
    let step = env.pool.and(adjacent, row);
    let (below, exactly) = (env.pool.le(end, b.expr), env.pool.bin(BinOp::Eq, end, b.expr));
    vec![implies(env, le, monotone), implies(env, premise, below), implies(env, step, exactly)]
}

/// Searches do not decrease.
fn searches_in_order(env: &mut Env, a: &Call, b: &Call) -> Vec<ExprId> {
    let (Some((&r, outer)), Some((&t, outer_b))) = (a.args.split_last(), b.args.split_last()) else {
        return Vec::new();
    };
    if outer != outer_b {
        return Vec::new();
    }
    let domain = in_domain(env, a.f, &a.args, a.args.len());
    let domain_b = in_domain(env, b.f, &b.args, b.args.len());
    let le = env.pool.le(r, t);
    let premise = env.pool.all([domain, domain_b, le]);
    let ordered = env.pool.le(a.expr, b.expr);
    vec![implies(env, premise, ordered)]
}

/// A row x with `P(x) <= r < P(x) + term(x)` is the row found.
fn row_found(env: &mut Env, body: ExprId, search: &Call, sum: &Call) -> Vec<ExprId> {
    let (Some((&r, outer)), Some((&x, outer_b))) = (search.args.split_last(), sum.args.split_last()) else {
        return Vec::new();
    };
    if outer != outer_b {
        return Vec::new();
    }
    let row = in_domain(env, sum.f, &sum.args, sum.args.len());
    let term = body_at(env, body, outer, x);
    let end = env.pool.add(sum.expr, term);
    let (low, high) = (env.pool.le(sum.expr, r), env.pool.lt(r, end));
    let premise = env.pool.all([row, low, high]);
    let found = env.pool.bin(BinOp::Eq, search.expr, x);
    vec![implies(env, premise, found)]
}

/// The body of a maximum at the arguments of a call in it is at most the maximum.
fn below_maximum(env: &mut Env, body: ExprId, max: &Call, call: &Call) -> Vec<ExprId> {
    let n = env.ufs[max.f].domain.len();
    let formals: Args = (0..n).map(|j| env.pool.arg(j as u32)).collect();
    let general = Expr::Call(call.f, formals);
    if call.args.len() != n || !env.pool.any(body, &mut |x| *x == general) {
        return Vec::new();
    }
    let domain = in_domain(env, max.f, &call.args, n);
    let value = env.pool.instantiate(body, &call.args);
    let below = env.pool.le(value, max.expr);
    vec![implies(env, domain, below)]
}
