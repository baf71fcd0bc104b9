//! Whether an index expression has a value wherever some facts hold: functions are called inside
//! their domains only, tensors are read inside their extents only.
//!
//! A masked iteration may be beyond a function's domain. What is moved out from under the mask must
//! have a value there.

use crate::simplify::{Facts, Prover};
use cora_ir::{Env, Expr, ExprId, UfDef, UfId};

/// Whether `e` plainly has a value wherever `facts` hold. Conditions inside `e` are not taken into account.
pub(super) fn is_defined(env: &mut Env, prover: &mut Prover, facts: &Facts, e: ExprId) -> bool {
    let mut goals = Vec::new();
    collect(env, e, &mut goals);
    goals.into_iter().all(|g| prover.prove(env, facts, g).is_proved())
}

/// The first argument of `f` that is not proved to be in the function's domain, and what is not.
pub(super) fn first_outside(
    env: &mut Env,
    prover: &mut Prover,
    facts: &Facts,
    f: UfId,
    args: &[ExprId],
) -> Option<(usize, ExprId)> {
    (0..args.len()).find_map(|n| {
        let goals = in_domain(env, f, args, n);
        goals.into_iter().find(|&g| !prover.prove(env, facts, g).is_proved()).map(|g| (n, g))
    })
}

/// That argument `n` of `f` is in the function's domain.
pub(crate) fn in_domain(env: &mut Env, f: UfId, args: &[ExprId], n: usize) -> [ExprId; 2] {
    let extent = env.ufs[f].domain[n];
    let extent = env.pool.instantiate(extent, args);
    let to_end = matches!(env.ufs[f].def, UfDef::PrefixSum { .. }) && n + 1 == args.len();
    let below = if to_end { env.pool.le(args[n], extent) } else { env.pool.lt(args[n], extent) };
    let zero = env.pool.int(0);
    [env.pool.le(zero, args[n]), below]
}

/// The conditions under which `e` has a value.
fn collect(env: &mut Env, e: ExprId, goals: &mut Vec<ExprId>) {
    match env.pool.get(e).clone() {
        Expr::Call(f, args) => {
            // The prelude computes a maximum from the whole domain, whatever the arguments.
            for n in 0..args.len() {
                goals.extend(in_domain(env, f, &args, n));
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
