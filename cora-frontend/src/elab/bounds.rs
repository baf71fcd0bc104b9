//! The condition that an access is inside its tensor, for accesses with `else`.

use cora_ir::{Env, Expr, ExprId, TensorId};

/// `0 <= i < extent` for each position `i` of `index`, except where `i` is a dimension's own index
/// and that dimension has the very same extent there.
pub(crate) fn in_bounds(env: &mut Env, tensor: TensorId, index: &[ExprId]) -> ExprId {
    let zero = env.pool.int(0);
    let one = env.pool.int(1);
    let mut conds = Vec::new();
    // What extents are evaluated at: positions that may be outside are clamped, since an extent
    // function has no value outside its domain.
    let mut safe: Vec<ExprId> = Vec::new();
    for (j, &i) in index.iter().enumerate() {
        let extent = env.extent_at(tensor, j, &safe);
        if is_own_index(env, i, extent) {
            safe.push(i);
            continue;
        }
        conds.push(env.pool.le(zero, i));
        conds.push(env.pool.lt(i, extent));
        let last = env.pool.sub(extent, one);
        let low = env.pool.min(i, last);
        safe.push(env.pool.max(low, zero));
    }
    env.pool.all(conds)
}

fn is_own_index(env: &Env, i: ExprId, extent: ExprId) -> bool {
    match (env.pool.get(i), env.pool.get(extent)) {
        (Expr::Int(i), Expr::Int(n)) => (0..*n).contains(i),
        (Expr::Var(v), _) => env.dims.iter().any(|(_, d)| d.var == *v && d.extent == extent),
        _ => false,
    }
}
