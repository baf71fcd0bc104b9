//! Moves thread loops, and conditions that every iteration shares, out of serial loops.
//!
//! ```text
//! for %k in 0..16 { for %t in 0..8 thread.x { if %t < %n { @R[0] = @R[0] + @S[%k * 8 + %t] } } }
//!   =>  for %t in 0..8 thread.x { if %t < %n { for %k in 0..16 { @R[0] = @R[0] + @S[%k * 8 + %t] } } }
//! ```
//!
//! A thread then decides once whether it takes part, and the loop that is left has no branch. A loop
//! moves where its threads store only to what is private to each of them: no iteration sees what
//! another thread wrote in an earlier one.
//!
//! Requires: thread loops of constant extent. Ensures: the same accesses by the same threads. Runs
//! after `shape-blocks`, which makes the conditions, and before unrolling, which copies them.

use cora_ir::loops::LoopKind;
use cora_ir::storage::{Stmt, StorageModule};
use cora_ir::{Env, Expr, ExprId, Scope, TensorId, VarId};

/// Moves thread loops and conditions outward in every kernel that runs on a grid.
pub fn threads_outward(m: &mut StorageModule) {
    let env = &m.env;
    for k in m.kernels.iter_mut().filter(|k| k.is_grid()) {
        let body = std::mem::take(&mut k.body);
        k.body = outward(env, body);
    }
}

fn outward(env: &Env, body: Vec<Stmt>) -> Vec<Stmt> {
    body.into_iter().map(|s| stmt(env, s)).collect()
}

fn stmt(env: &Env, s: Stmt) -> Stmt {
    match s {
        Stmt::For { var, extent, kind, body } => {
            let body = outward(env, body);
            if kind == LoopKind::Serial {
                sink(env, (var, extent), body)
            } else {
                Stmt::For { var, extent, kind, body }
            }
        }
        Stmt::If { cond, then, other } => Stmt::If { cond, then: outward(env, then), other: outward(env, other) },
        s => s,
    }
}

/// The serial loop over `body`, inside the thread loop or the condition that is all of it where it may be.
fn sink(env: &Env, (var, extent): (VarId, ExprId), mut body: Vec<Stmt>) -> Stmt {
    match body.as_mut_slice() {
        [Stmt::For { var: thread, extent: threads, kind, body: inner }]
            if kind.is_thread() && !env.pool.uses_var(*threads, var) && private_stores(env, inner) =>
        {
            let inner = vec![sink(env, (var, extent), std::mem::take(inner))];
            Stmt::For { var: *thread, extent: *threads, kind: *kind, body: inner }
        }
        [Stmt::If { cond, then, other }] if other.is_empty() && unchanged(env, *cond, var, then) => {
            let then = vec![sink(env, (var, extent), std::mem::take(then))];
            Stmt::If { cond: *cond, then, other: Vec::new() }
        }
        _ => Stmt::For { var, extent, kind: LoopKind::Serial, body },
    }
}

fn stores(body: &[Stmt]) -> Vec<TensorId> {
    let mut out = Vec::new();
    for s in body {
        s.walk(&mut |s| out.extend(s.writes()));
    }
    out
}

fn private_stores(env: &Env, body: &[Stmt]) -> bool {
    stores(body).iter().all(|&t| matches!(env.tensors[t].scope, Scope::Local | Scope::Reg))
}

/// Whether `cond` is the same in every iteration of a loop over `var` around `body`.
fn unchanged(env: &Env, cond: ExprId, var: VarId, body: &[Stmt]) -> bool {
    let stored = stores(body);
    !env.pool.uses_var(cond, var)
        && !env.pool.any(cond, &mut |n| matches!(n, Expr::Load { tensor, .. } if stored.contains(tensor)))
}
