//! The conditions in statements, and copies of the statements where some of them are known to hold or to fail.

use cora_ir::storage::Stmt;
use cora_ir::{BinOp, Env, Expr, ExprId, VarId};
use rustc_hash::{FxHashMap, FxHashSet};

pub(super) fn guards(env: &Env, e: ExprId, out: &mut Vec<ExprId>) {
    let mut found = Vec::new();
    env.pool.walk(e, &mut |_, n| {
        if let Expr::Load { guard: Some((c, _)), .. } = n {
            found.push(*c);
        }
    });
    out.extend(found.into_iter().flat_map(|c| env.pool.conjuncts(c)));
}

/// The conjuncts of `c` that are not in `hold`; nothing if none is left.
fn left_of(env: &mut Env, c: ExprId, hold: &FxHashSet<ExprId>) -> Option<ExprId> {
    match *env.pool.get(c) {
        Expr::Bin(BinOp::And, a, b) => match (left_of(env, a, hold), left_of(env, b, hold)) {
            (Some(x), Some(y)) => Some(if (x, y) == (a, b) { c } else { env.pool.bin(BinOp::And, x, y) }),
            (x, y) => x.or(y),
        },
        _ => (!hold.contains(&c)).then_some(c),
    }
}

/// A copy of the statements where the conditions in `hold` hold.
pub(in crate::lower) fn without(env: &mut Env, body: &[Stmt], hold: &FxHashSet<ExprId>) -> Vec<Stmt> {
    let mut out = Vec::new();
    for s in body {
        match s {
            Stmt::If { cond, then, other } => {
                let then = without(env, then, hold);
                match left_of(env, *cond, hold) {
                    None => out.extend(then),
                    Some(cond) => out.push(Stmt::If { cond, then, other: without(env, other, hold) }),
                }
            }
            Stmt::Let { var, value } => out.push(Stmt::Let { var: *var, value: unguarded(env, *value, hold) }),
            Stmt::Store { tensor, index, value, mask, rest } => out.push(Stmt::Store {
                tensor: *tensor,
                index: unguarded(env, *index, hold),
                value: unguarded(env, *value, hold),
                mask: mask.and_then(|m| left_of(env, m, hold)),
                rest: rest.iter().map(|r| (r.0, unguarded(env, r.1, hold))).collect(),
            }),
            Stmt::Prefetch { tensor, index, locality } => {
                let index = unguarded(env, *index, hold);
                out.push(Stmt::Prefetch { tensor: *tensor, index, locality: *locality });
            }
            s => out.push(s.clone()),
        }
    }
    out
}

/// The statements where the conditions in `fails` fail, without what they keep from running.
pub(super) fn skipping(env: &Env, body: &[Stmt], fails: &FxHashSet<ExprId>) -> Vec<Stmt> {
    let mut out = Vec::new();
    for s in body {
        match s {
            Stmt::If { cond, then, other } => {
                let mut own = Vec::new();
                own.extend(env.pool.conjuncts(*cond));
                if own.iter().any(|c| fails.contains(c)) {
                    out.extend(skipping(env, other, fails));
                } else {
                    let (then, other) = (skipping(env, then, fails), skipping(env, other, fails));
                    out.push(Stmt::If { cond: *cond, then, other });
                }
            }
            s => out.push(s.clone()),
        }
    }
    // Names that nothing is left to use.
    if out.iter().all(|s| matches!(s, Stmt::Let { .. })) { Vec::new() } else { out }
}

/// A copy of the statements where the conditions in `fails` fail in all lanes.
pub(in crate::lower) fn failing(env: &mut Env, body: &[Stmt], fails: &FxHashSet<ExprId>) -> Vec<Stmt> {
    let stopped = |env: &Env, c: ExprId| {
        let mut own = Vec::new();
        own.extend(env.pool.conjuncts(c));
        own.iter().any(|c| fails.contains(c))
    };
    let value = |env: &mut Env, e: ExprId| {
        let mut conds = Vec::new();
        env.pool.walk(e, &mut |_, n| match n {
            Expr::Load { guard: Some((c, _)), .. } | Expr::Select(c, ..) => conds.push(*c),
            _ => {}
        });
        conds.retain(|&c| stopped(env, c));
        env.pool.rewrite(e, &mut |p, x| match *p.get(x) {
            Expr::Load { guard: Some((c, other)), .. } | Expr::Select(c, _, other) => {
                conds.contains(&c).then_some(other)
            }
            _ => None,
        })
    };
    let mut out = Vec::new();
    for s in body {
        match s {
            Stmt::If { cond, other, .. } if stopped(env, *cond) => out.extend(failing(env, other, fails)),
            Stmt::If { cond, then, other } => {
                let (then, other) = (failing(env, then, fails), failing(env, other, fails));
                if !then.is_empty() || !other.is_empty() {
                    out.push(Stmt::If { cond: *cond, then, other });
                }
            }
            Stmt::Store { mask: Some(m), .. } if stopped(env, *m) => {}
            Stmt::Store { tensor, index, value: v, mask, rest } => out.push(Stmt::Store {
                tensor: *tensor,
                index: value(env, *index),
                value: value(env, *v),
                mask: *mask,
                rest: rest.iter().map(|r| (r.0, value(env, r.1))).collect(),
            }),
            Stmt::Let { var, value: v } => out.push(Stmt::Let { var: *var, value: value(env, *v) }),
            s => out.push(s.clone()),
        }
    }
    if out.iter().all(|s| matches!(s, Stmt::Let { .. } | Stmt::Prefetch { .. })) { Vec::new() } else { out }
}

fn unguarded(env: &mut Env, e: ExprId, hold: &FxHashSet<ExprId>) -> ExprId {
    let mut conds = Vec::new();
    env.pool.walk(e, &mut |_, n| match n {
        Expr::Load { guard: Some((c, _)), .. } | Expr::Select(c, ..) => conds.push(*c),
        _ => {}
    });
    let left: FxHashMap<ExprId, Option<ExprId>> = conds.into_iter().map(|c| (c, left_of(env, c, hold))).collect();
    env.pool.rewrite(e, &mut |p, x| match p.get(x).clone() {
        Expr::Load { tensor, part, index, guard: Some((c, other)) } => {
            let kept = *left.get(&c)?;
            let ty = p.ty(x).scalar;
            Some(p.load_guarded((tensor, part), ty, index.iter().copied(), kept.map(|c| (c, other))))
        }
        Expr::Select(c, a, b) => match *left.get(&c)? {
            None => Some(a),
            Some(kept) => Some(p.select(kept, a, b)),
        },
        _ => None,
    })
}

/// A copy of the statements with variables replaced, whose names are its own.
pub(in crate::lower) fn copy(env: &mut Env, body: &[Stmt], map: &FxHashMap<VarId, ExprId>) -> Vec<Stmt> {
    let mut map = map.clone();
    let mut out = Vec::new();
    for s in body {
        let sub = |env: &mut Env, e: ExprId, map: &FxHashMap<VarId, ExprId>| {
            let e = env.pool.substitute(e, map);
            cora_ir::affine::normalize(&mut env.pool, e)
        };
        out.push(match s {
            Stmt::Let { var, value } => {
                let value = sub(env, *value, &map);
                let name = env.vars[*var].name.clone();
                let fresh = env.new_var(name);
                let e = env.pool.var(fresh);
                map.insert(*var, e);
                Stmt::Let { var: fresh, value }
            }
            Stmt::If { cond, then, other } => {
                Stmt::If { cond: sub(env, *cond, &map), then: copy(env, then, &map), other: copy(env, other, &map) }
            }
            Stmt::Store { tensor, index, value, mask, rest } => Stmt::Store {
                tensor: *tensor,
                index: sub(env, *index, &map),
                value: sub(env, *value, &map),
                mask: mask.map(|m| sub(env, m, &map)),
                rest: rest.iter().map(|r| (r.0, sub(env, r.1, &map))).collect(),
            },
            Stmt::Prefetch { tensor, index, locality } => {
                Stmt::Prefetch { tensor: *tensor, index: sub(env, *index, &map), locality: *locality }
            }
            s => s.clone(),
        });
    }
    out
}
