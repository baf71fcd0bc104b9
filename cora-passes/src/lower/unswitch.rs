//! Innermost loops with a condition that they do not change become a branch around two loops.
//!
//! ```text
//! for %d in 0..4 { @C[ramp(%d * 16, 1, 16)] = select(splat(%k < %n, 16), a, b) }
//!   =>  if %k < %n { for %d in 0..4 { @C[ramp(%d * 16, 1, 16)] = a } } else { for %d in 0..4 { @C[ramp(%d * 16, 1, 16)] = b } }
//! ```
//!
//! The choice between two values, a guarded read and a mask are work in each iteration, of all lanes; the branch is one for all
//! iterations. On a grid threads would run both loops one after the other, and a predicate costs little: there they stay.
//!
//! Requires: no vector or unrolled loops, reads of tables outside of the loops. Ensures: the same statements in the same
//! order.

use super::cut_tails::{copy, is_innermost};
use cora_ir::loops::LoopKind;
use cora_ir::storage::{Stmt, StorageModule};
use cora_ir::{BinOp, Env, Expr, ExprId, UnOp, VarId};
use rustc_hash::{FxHashMap, FxHashSet};

/// Conditions of one loop that become branches: each doubles what it holds.
const MOST_CONDITIONS: usize = 2;
/// Loops with more statements are copied at a price.
const MOST_STATEMENTS: usize = 16;

/// Moves such conditions out of loops, in every kernel that is none of a grid.
pub fn unswitch(m: &mut StorageModule) {
    for k in m.kernels.iter_mut().filter(|k| !k.is_grid()) {
        let body = std::mem::take(&mut k.body);
        k.body = in_body(&mut m.env, body);
    }
}

fn in_body(env: &mut Env, stmts: Vec<Stmt>) -> Vec<Stmt> {
    let mut out = Vec::with_capacity(stmts.len());
    for s in stmts {
        match s {
            Stmt::For { var, extent, kind: LoopKind::Serial, body } if is_innermost(&body) => {
                out.extend(loops(env, (var, extent), body, MOST_CONDITIONS));
            }
            mut s => {
                for inner in s.bodies_mut() {
                    *inner = in_body(env, std::mem::take(inner));
                }
                out.push(s);
            }
        }
    }
    out
}

/// A loop without the first such condition, once where it holds and once where it does not.
fn loops(env: &mut Env, (var, extent): (VarId, ExprId), body: Vec<Stmt>, left: usize) -> Vec<Stmt> {
    let again = |body| Stmt::For { var, extent, kind: LoopKind::Serial, body };
    let mut statements = 0;
    body.iter().for_each(|s| s.walk(&mut |_| statements += 1));
    let found = if left == 0 || statements > MOST_STATEMENTS { None } else { condition(env, var, &body) };
    let Some(cond) = found else { return vec![again(body)] };
    let parts = [true, false].map(|holds| {
        let truth = truth(env, cond, holds);
        let mut own = Vec::new();
        where_known(env, &body, &truth, &mut own);
        if own.iter().all(|s| matches!(s, Stmt::Let { .. })) {
            return Vec::new();
        }
        // Each loop has names of its own.
        let name = env.vars[var].name.clone();
        let (v, map) = if holds {
            (var, FxHashMap::default())
        } else {
            let v = env.new_var(name);
            (v, [(var, env.pool.var(v))].into_iter().collect())
        };
        let own = if holds { own } else { copy(env, &own, &map) };
        loops(env, (v, extent), own, left - 1)
    });
    let [then, other] = parts;
    vec![Stmt::If { cond, then, other }]
}

/// The first condition, of one lane, that decides something in the body and is known before the loop.
fn condition(env: &Env, var: VarId, body: &[Stmt]) -> Option<ExprId> {
    let mut own: FxHashSet<VarId> = [var].into_iter().collect();
    let mut all = Vec::new();
    for s in body {
        s.walk(&mut |s| {
            if let Stmt::If { cond, .. } = s {
                all.push(*cond);
            }
            if let Stmt::Store { mask: Some(m), .. } = s {
                all.push(*m);
            }
            if let Stmt::Let { var, .. } = s {
                own.insert(*var);
            }
            for e in s.exprs() {
                env.pool.walk(e, &mut |_, n| match n {
                    Expr::Load { guard: Some((c, _)), .. } | Expr::Select(c, ..) => all.push(*c),
                    _ => {}
                });
            }
        });
    }
    let known = |c: &ExprId| {
        let reads = env.pool.any(*c, &mut |n| matches!(n, Expr::Load { .. } | Expr::Search { .. }));
        let compares = matches!(env.pool.get(*c), Expr::Bin(BinOp::Lt | BinOp::Le | BinOp::Eq | BinOp::Ne, ..));
        compares && env.pool.ty(*c).lanes == 1 && !reads && !own.iter().any(|&v| env.pool.uses_var(*c, v))
    };
    all.into_iter().flat_map(|c| env.pool.conjuncts(c)).map(|c| single(env, c)).find(known)
}

/// The condition that all lanes have in common, or the same.
fn single(env: &Env, c: ExprId) -> ExprId {
    match *env.pool.get(c) {
        Expr::Splat(c, _) => c,
        _ => c,
    }
}

/// What a condition that holds, or does not, says of itself and of its opposite.
fn truth(env: &mut Env, cond: ExprId, holds: bool) -> FxHashMap<ExprId, bool> {
    let opposite = match *env.pool.get(cond) {
        Expr::Bin(BinOp::Lt, a, b) => env.pool.le(b, a),
        Expr::Bin(BinOp::Le, a, b) => env.pool.lt(b, a),
        Expr::Bin(BinOp::Eq, a, b) => env.pool.bin(BinOp::Ne, a, b),
        Expr::Bin(BinOp::Ne, a, b) => env.pool.bin(BinOp::Eq, a, b),
        _ => env.pool.un(UnOp::Not, cond),
    };
    [(cond, holds), (opposite, !holds)].into_iter().collect()
}

/// The statements where these conditions are known.
fn where_known(env: &mut Env, body: &[Stmt], truth: &FxHashMap<ExprId, bool>, out: &mut Vec<Stmt>) {
    for s in body {
        match s {
            Stmt::If { cond, then, other } => {
                let cond = value(env, *cond, truth);
                match env.pool.as_bool(cond) {
                    Some(true) => where_known(env, then, truth, out),
                    Some(false) => where_known(env, other, truth, out),
                    None => {
                        let mut parts = [Vec::new(), Vec::new()];
                        where_known(env, then, truth, &mut parts[0]);
                        where_known(env, other, truth, &mut parts[1]);
                        let [then, other] = parts;
                        out.push(Stmt::If { cond, then, other });
                    }
                }
            }
            Stmt::Store { tensor, index, value: v, mask, rest } => {
                let mask = mask.map(|m| value(env, m, truth));
                let decided = mask.and_then(|m| env.pool.as_bool(single(env, m)));
                if decided == Some(false) {
                    continue;
                }
                out.push(Stmt::Store {
                    tensor: *tensor,
                    index: value(env, *index, truth),
                    value: value(env, *v, truth),
                    mask: mask.filter(|_| decided.is_none()),
                    rest: rest.iter().map(|r| (r.0, value(env, r.1, truth))).collect(),
                });
            }
            Stmt::Let { var, value: v } => out.push(Stmt::Let { var: *var, value: value(env, *v, truth) }),
            Stmt::Prefetch { tensor, index, locality } => {
                let index = value(env, *index, truth);
                out.push(Stmt::Prefetch { tensor: *tensor, index, locality: *locality });
            }
            s => out.push(s.clone()),
        }
    }
}

/// An expression where these conditions are known.
fn value(env: &mut Env, e: ExprId, truth: &FxHashMap<ExprId, bool>) -> ExprId {
    let decided = |p: &cora_ir::ExprPool, c: ExprId| match *p.get(c) {
        Expr::Splat(c, _) => p.as_bool(c),
        _ => p.as_bool(c),
    };
    env.pool.rewrite(e, &mut |p, x| match p.get(x).clone() {
        Expr::Bin(BinOp::And, a, b) => match (decided(p, a), decided(p, b)) {
            (Some(true), _) => Some(b),
            (_, Some(true)) => Some(a),
            (Some(false), _) => Some(a),
            (_, Some(false)) => Some(b),
            _ => None,
        },
        Expr::Select(c, a, b) => decided(p, c).map(|holds| if holds { a } else { b }),
        Expr::Load { tensor, part, index, guard: Some((c, other)) } => {
            let ty = p.ty(x).scalar;
            let plain = |p: &mut cora_ir::ExprPool| p.load_guarded((tensor, part), ty, index.iter().copied(), None);
            decided(p, c).map(|holds| if holds { plain(p) } else { other })
        }
        _ => truth.get(&x).map(|&t| p.bool(t)),
    })
}
