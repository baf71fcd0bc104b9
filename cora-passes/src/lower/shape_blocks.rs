//! Gives the blocks of grid kernels their shape: thread loops of constant extent.
//!
//! ```text
//! for %t in 0..min(256, %n) thread.x { .. }  =>  for %t in 0..256 thread.x { if %t < min(256, %n) { .. } }
//! ```
//!
//! Requires: functions lowered to tables. Ensures: thread loops have constant extents; a surplus
//! thread skips the body, together with the reads that it protects. Runs before hoisting, which would
//! give extents names.

use crate::schedule::bind::MAX_THREADS;
use cora_ir::storage::{Kernel, Stmt, StorageModule};
use cora_ir::{Diagnostic, Env};

/// Shapes the blocks of every kernel that runs on a grid.
///
/// # Errors
/// `E0497` more threads in a block than there can be.
pub fn shape_blocks(m: &mut StorageModule) -> Result<(), Diagnostic> {
    for k in &mut m.kernels {
        if k.is_grid() {
            check_threads(&m.env, k)?;
            constant_threads(&mut m.env, &mut k.body);
        }
    }
    Ok(())
}

fn check_threads(env: &Env, k: &Kernel) -> Result<(), Diagnostic> {
    let Some(threads) = k.threads(env) else {
        let what = format!("a thread loop of kernel `{}` has no constant bound", k.name);
        return Err(Diagnostic::new("E0497", what).hint("split the loop by a constant and bind the inner one"));
    };
    let total = threads.iter().try_fold(1i64, |n, &t| n.checked_mul(t));
    if total.is_some_and(|n| n <= MAX_THREADS) && threads[2] <= 64 {
        return Ok(());
    }
    let [x, y, z] = threads;
    Err(Diagnostic::new("E0497", format!("a block of kernel `{}` has {x} x {y} x {z} threads", k.name))
        .hint(format!("there are at most {MAX_THREADS} in all, and 64 along z: bind smaller tiles")))
}

/// `for t in 0..min(c, e)` becomes `for t in 0..c { if t < e { .. } }`.
fn constant_threads(env: &mut Env, body: &mut [Stmt]) {
    for s in body {
        s.bodies_mut().for_each(|b| constant_threads(env, b));
        if let Stmt::For { var, extent, kind, body } = s
            && kind.is_thread()
            && env.pool.as_int(*extent).is_none()
            && let Some(n) = env.pool.constant_bound(*extent)
        {
            let v = env.pool.var(*var);
            let cond = env.pool.lt(v, *extent);
            *extent = env.pool.int(n);
            let then = std::mem::take(body);
            *body = vec![Stmt::If { cond, then, other: Vec::new() }];
        }
    }
}
