//! Loops that are conditions: what runs inside them, or whether it runs, is selected by their extents.

use cora_ir::expr::ExprPool;
use cora_ir::loops::{For, LoopModule};
use cora_ir::schedule::LoopRef;
use cora_ir::{Diagnostic, Env, Expr, ExprId};

/// Whether a loop decides if those inside it run at all: outside it, their extents may have no value.
pub fn is_condition(pool: &ExprPool, extent: ExprId) -> bool {
    pool.any(extent, &mut |n| matches!(n, Expr::Select(..)))
}

/// Whether a loop of this extent is a condition and nothing else: it has one iteration or none.
pub fn runs_once_or_never(pool: &ExprPool, extent: ExprId) -> bool {
    let at_most_one = |e| pool.as_int(e).is_some_and(|n| n == 0 || n == 1);
    matches!(*pool.get(extent), Expr::Select(_, a, b) if at_most_one(a) && at_most_one(b))
}

/// A loop that is a condition has nothing to be parted or joined.
///
/// # Errors
/// `E0423` it is one.
pub fn not_a_condition(m: &LoopModule, l: &For, target: &LoopRef) -> Result<(), Diagnostic> {
    if condition(&m.env.pool, l.extent).is_none() {
        return Ok(());
    }
    let what = format!("loop `{}.{}` is a condition for the loops inside it", target.stage, target.name);
    Err(Diagnostic::new("E0423", what).hint("name a loop inside it"))
}

/// The condition that a loop of this extent stands for: it has one iteration where that holds, else none.
fn condition(pool: &ExprPool, extent: ExprId) -> Option<ExprId> {
    match *pool.get(extent) {
        Expr::Select(c, one, none) if pool.as_int(one) == Some(1) && pool.as_int(none) == Some(0) => Some(c),
        _ => None,
    }
}

/// The condition under which a loop of this extent runs at all.
pub fn runs(env: &mut Env, extent: ExprId) -> ExprId {
    let zero = env.pool.int(0);
    condition(&env.pool, extent).unwrap_or_else(|| env.pool.lt(zero, extent))
}
