//! Neighbouring branches on one condition become one branch.
//!
//! ```text
//! if %k < %n { @R[0] = .. }  if %k < %n { @R[1] = .. }   =>  if %k < %n { @R[0] = ..  @R[1] = .. }
//! ```
//!
//! The elements of an unrolled tile that share a row share its condition. A branch for each would be as many choices
//! between the old value and the new one; for all it is one, which a GPU puts before the instructions as their predicate.
//!
//! Requires: nothing. Ensures: the same statements in the same order, a condition that still holds not asked for again.

use cora_ir::storage::{Stmt, StorageModule};
use cora_ir::{Env, Expr, ExprId};

/// Merges branches in every kernel.
pub fn merge_branches(m: &mut StorageModule) {
    for k in &mut m.kernels {
        let body = std::mem::take(&mut k.body);
        k.body = merged(&m.env, body);
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

/// Whether `cond` has the same value after `body`.
fn holds_after(env: &Env, cond: ExprId, body: &[Stmt]) -> bool {
    let changes = |t| body.iter().any(|s| s.any(&mut |s| s.writes().contains(&t)));
    !env.pool.any(cond, &mut |n| matches!(n, Expr::Load { tensor, .. } if changes(*tensor)))
}
