//! Neighbouring branches on one condition become one branch, and what all statements of a serial loop ask for is asked before it.
//!
//! ```text
//! if %k < %n { @R[0] = .. }  if %k < %n { @R[1] = .. }   =>  if %k < %n { @R[0] = ..  @R[1] = .. }
//! for %i in 0..%n { if %b < M { for %k in .. { .. } } }  =>  if %b < M { for %i in 0..%n { for %k in .. { .. } } }
//! ```
//!
//! The elements of an unrolled tile that share a row share its condition. A branch for each would be as many choices
//! between the old value and the new one; for all it is one, which a GPU puts before the instructions as their predicate. The
//! mask of a loop outside is in the statements inside; on a grid `threads-outward` has moved it already.
//!
//! Requires: nothing. Ensures: the same statements in the same order, a condition that still holds not asked for again.

use cora_ir::loops::LoopKind;
use cora_ir::storage::{Stmt, StorageModule};
use cora_ir::{Env, Expr, ExprId, VarId};

/// Merges branches in every kernel.
pub fn merge_branches(m: &mut StorageModule) {
    for k in &mut m.kernels {
        let on_cpu = !k.is_grid();
        let mut body = merged(&m.env, std::mem::take(&mut k.body));
        if on_cpu {
            body = before_loops(&mut m.env, body);
            body = merged(&m.env, body);
        }
        k.body = body;
    }
}

fn merged(env: &Env, body: Vec<Stmt>) -> Vec<Stmt> {
    let mut out: Vec<Stmt> = Vec::with_capacity(body.len());
    for s in body {
        match (out.last_mut(), s) {
            (Some(Stmt::If { cond, then, other }), Stmt::If { cond: again, then: more, other: else_more })
                if *cond == again && holds_after(env, again, then) && holds_after(env, again, other) =>
            {
                then.extend(more);
                other.extend(else_more);
            }
            (_, s) => out.push(s),
        }
    }
    for inner in out.iter_mut().flat_map(Stmt::bodies_mut) {
        *inner = merged(env, std::mem::take(inner));
    }
    out
}

fn before_loops(env: &mut Env, body: Vec<Stmt>) -> Vec<Stmt> {
    let mut out = Vec::with_capacity(body.len());
    for mut s in body {
        for inner in s.bodies_mut() {
            *inner = before_loops(env, std::mem::take(inner));
        }
        out.push(match s {
            Stmt::For { var, extent, kind: LoopKind::Serial, body } => before_loop(env, (var, extent), body),
            Stmt::If { cond, then, other } => nested(env, cond, then, other),
            s => s,
        });
    }
    out
}

/// A branch around nothing but another one asks for both conditions, where asking for the second one is harmless.
fn nested(env: &mut Env, cond: ExprId, mut then: Vec<Stmt>, other: Vec<Stmt>) -> Stmt {
    match then.as_mut_slice() {
        [Stmt::If { cond: second, then: inner, other: none }]
            if other.is_empty() && none.is_empty() && !reads(env, *second) =>
        {
            let cond = env.pool.all([cond, *second]);
            Stmt::If { cond, then: std::mem::take(inner), other }
        }
        _ => Stmt::If { cond, then, other },
    }
}

/// The serial loop, inside a branch on what all its statements ask for in each iteration.
fn before_loop(env: &mut Env, (var, extent): (VarId, ExprId), body: Vec<Stmt>) -> Stmt {
    let mut names = vec![var];
    let mut shared: Option<Vec<ExprId>> = None;
    for s in &body {
        match s {
            Stmt::Let { var, .. } => names.push(*var),
            Stmt::If { cond, other, .. } if other.is_empty() => {
                let asked = env.pool.conjuncts(*cond);
                shared = Some(match shared {
                    None => asked,
                    Some(so_far) => so_far.into_iter().filter(|c| asked.contains(c)).collect(),
                });
            }
            _ => return Stmt::For { var, extent, kind: LoopKind::Serial, body },
        }
    }
    // What it reads may be there only where the loop runs.
    let fixed = |c: &ExprId| !names.iter().any(|&v| env.pool.uses_var(*c, v)) && !reads(env, *c);
    let shared: Vec<ExprId> = shared.unwrap_or_default().into_iter().filter(fixed).collect();
    if shared.is_empty() {
        return Stmt::For { var, extent, kind: LoopKind::Serial, body };
    }
    let mut inside = Vec::with_capacity(body.len());
    for s in body {
        match s {
            Stmt::If { cond, then, other } => {
                let rest = env.pool.conjuncts(cond).into_iter().filter(|c| !shared.contains(c));
                let rest: Vec<ExprId> = rest.collect();
                if rest.is_empty() {
                    inside.extend(then);
                } else {
                    inside.push(Stmt::If { cond: env.pool.all(rest), then, other });
                }
            }
            s => inside.push(s),
        }
    }
    let then = vec![Stmt::For { var, extent, kind: LoopKind::Serial, body: inside }];
    Stmt::If { cond: env.pool.all(shared), then, other: Vec::new() }
}

fn reads(env: &Env, cond: ExprId) -> bool {
    env.pool.any(cond, &mut |n| matches!(n, Expr::Load { .. } | Expr::Search { .. }))
}

/// Whether `cond` has the same value after `body`.
fn holds_after(env: &Env, cond: ExprId, body: &[Stmt]) -> bool {
    let changes = |t| body.iter().any(|s| s.any(&mut |s| s.writes().contains(&t)));
    !env.pool.any(cond, &mut |n| matches!(n, Expr::Load { tensor, .. } if changes(*tensor)))
}
