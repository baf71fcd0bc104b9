//! Whether an index expression has a value wherever some facts hold: functions are called inside
//! their domains only, tensors are read inside their extents only.
//!
//! A masked iteration may be beyond a function's domain. What is moved out from under the mask must
//! have a value there.

use crate::simplify::{Facts, Prover};
use cora_ir::{Env, Expr, ExprId, UfDef};

/// Whether `e` plainly has a value wherever `facts` hold. Conditions inside `e` are not taken into account.
pub(super) fn is_defined(env: &mut Env, prover: &mut Prover, facts: &Facts, e: ExprId) -> bool {
    let mut goals = Vec::new();
    collect(env, e, &mut goals);
    goals.into_iter().all(|g| prover.prove(env, facts, g).is_proved())
}

/// The conditions under which `e` has a value.
fn collect(env: &mut Env, e: ExprId, goals: &mut Vec<ExprId>) {
    match env.pool.get(e).clone() {
        Expr::Call(f, args) => {
            let sums = matches!(env.ufs[f].def, UfDef::PrefixSum { .. });
            // The prelude computes a maximum from the whole domain.
            let domain = if args.is_empty() { Vec::new() } else { env.ufs[f].domain.clone() };
            for (n, (&a, extent)) in args.iter().zip(domain).enumerate() {
                let extent = env.pool.instantiate(extent, &args);
                let to_end = sums && n + 1 == args.len();
                let below = if to_end { env.pool.le(a, extent) } else { env.pool.lt(a, extent) };
                let zero = env.pool.int(0);
                goals.extend([env.pool.le(zero, a), below]);
            }
        }
        Expr::Load { tensor, index, .. } => {
            for (d, &i) in index.iter().enumerate() {
                let extent = env.extent_at(tensor, d, &index);
                let zero = env.pool.int(0);
                goals.extend([env.pool.le(zero, i), env.pool.lt(i, extent)]);
            }
        }
        _ => {}
    }
    for k in env.pool.children(e) {
        collect(env, k, goals);
    }
}
