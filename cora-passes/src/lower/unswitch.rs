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

use super::cut_tails::{copy, failing, is_innermost, without};
use cora_ir::loops::LoopKind;
use cora_ir::storage::{Stmt, StorageModule};
use cora_ir::{BinOp, Env, Expr, ExprId, UnOp, VarId};
use rustc_hash::FxHashSet;

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
    let mut statements = 0;
    body.iter().for_each(|s| s.walk(&mut |_| statements += 1));
    let all = conditions(env, &body);
    let found = if left == 0 || statements > MOST_STATEMENTS { None } else { known_before(env, var, &body, &all) };
    let Some(cond) = found else { return vec![Stmt::For { var, extent, kind: LoopKind::Serial, body }] };
    let opposite = opposite(env, cond);
    let those = |c: ExprId| all.iter().copied().filter(|&a| single(env, a) == c).collect::<FxHashSet<_>>();
    let (own, other) = (those(cond), those(opposite));
    let then = without(env, &body, &own);
    let then = failing(env, &then, &other);
    let otherwise = without(env, &body, &other);
    let otherwise = failing(env, &otherwise, &own);
    // Each loop has names of its own.
    let again = env.new_var(env.vars[var].name.clone());
    let map = [(var, env.pool.var(again))].into_iter().collect();
    let otherwise = copy(env, &otherwise, &map);
    let [then, other] = [(var, then), (again, otherwise)].map(|(v, part)| match part.as_slice() {
        [] => Vec::new(),
        _ => loops(env, (v, extent), part, left - 1),
    });
    vec![Stmt::If { cond, then, other }]
}

/// The conditions of branches, masks, choices and guarded reads.
fn conditions(env: &Env, body: &[Stmt]) -> Vec<ExprId> {
    let mut all = Vec::new();
    for s in body {
        s.walk(&mut |s| {
            match s {
                Stmt::If { cond, .. } => all.push(*cond),
                Stmt::Store { mask: Some(m), .. } => all.push(*m),
                _ => {}
            }
            for e in s.exprs() {
                env.pool.walk(e, &mut |_, n| match n {
                    Expr::Load { guard: Some((c, _)), .. } | Expr::Select(c, ..) => all.push(*c),
                    _ => {}
                });
            }
        });
    }
    all.into_iter().flat_map(|c| env.pool.conjuncts(c)).collect()
}

/// The first condition, of one lane, that is known before the loop.
fn known_before(env: &Env, var: VarId, body: &[Stmt], all: &[ExprId]) -> Option<ExprId> {
    let mut own: FxHashSet<VarId> = [var].into_iter().collect();
    for s in body {
        s.walk(&mut |s| {
            if let Stmt::Let { var, .. } = s {
                own.insert(*var);
            }
        });
    }
    let known = |c: &ExprId| {
        let reads = env.pool.any(*c, &mut |n| matches!(n, Expr::Load { .. } | Expr::Search { .. }));
        // Of floats that are no numbers neither a comparison holds nor its opposite.
        let compares = match *env.pool.get(*c) {
            Expr::Bin(BinOp::Lt | BinOp::Le | BinOp::Eq | BinOp::Ne, a, _) => !env.pool.ty(a).scalar.is_float(),
            _ => false,
        };
        compares && env.pool.ty(*c).lanes == 1 && !reads && !own.iter().any(|&v| env.pool.uses_var(*c, v))
    };
    all.iter().map(|&c| single(env, c)).find(known)
}

/// What holds where a comparison of integers does not.
fn opposite(env: &mut Env, cond: ExprId) -> ExprId {
    match *env.pool.get(cond) {
        Expr::Bin(BinOp::Lt, a, b) => env.pool.le(b, a),
        Expr::Bin(BinOp::Le, a, b) => env.pool.lt(b, a),
        Expr::Bin(BinOp::Eq, a, b) => env.pool.bin(BinOp::Ne, a, b),
        Expr::Bin(BinOp::Ne, a, b) => env.pool.bin(BinOp::Eq, a, b),
        _ => env.pool.un(UnOp::Not, cond),
    }
}

/// The condition that all lanes have in common, or the same.
fn single(env: &Env, c: ExprId) -> ExprId {
    match *env.pool.get(c) {
        Expr::Splat(c, _) => c,
        _ => c,
    }
}
