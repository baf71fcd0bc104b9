//! The fully padded form of a program: every extent function raised to its greatest value in the
//! batch, the surplus masked. What users of dense compilers run today, for comparison.
//!
//! ```text
//! dim q = lens(batch)   =>   dim q = lens.max()      sum(k) x   =>   sum(k) select(k < lens(b), x, 0)
//! ```
//!
//! Requires: a checked graph. Ensures: the same results at valid positions; storage extents are the
//! raised ones; valid extents are unchanged.

use crate::schedule::compute_inline::guard_loads;
use cora_ir::expr::ExprPool;
use cora_ir::{Env, Expr, ExprId, Graph, UfDef, UfId, VarId};
use rustc_hash::FxHashMap;

/// Raises every extent function in the extents of `graph`'s loops and tensors.
pub fn raise_extents(graph: &mut Graph) {
    let env = &mut graph.env;
    let truth: Vec<(VarId, ExprId)> = env.dims.iter().map(|(_, d)| (d.var, d.extent)).collect();
    for d in env.dims.ids().collect::<Vec<_>>() {
        let e = env.dims[d].extent;
        env.dims[d].extent = raise(env, e);
    }
    for t in env.tensors.ids().collect::<Vec<_>>() {
        for d in 0..env.tensors[t].dims.len() {
            let storage = env.tensors[t].dims[d].storage;
            env.tensors[t].dims[d].storage = raise(env, storage);
        }
    }
    let truth: FxHashMap<VarId, ExprId> = truth.into_iter().collect();
    for op in &mut graph.ops {
        let vars: Vec<VarId> = op.spatial.iter().chain(&op.reduce).map(|&d| env.dims[d].var).collect();
        let reduced: Vec<VarId> = op.reduce.iter().map(|&d| env.dims[d].var).collect();
        op.value = guard_computed_reads(env, op.value, &vars, &truth);
        if let Some(c) = op.combiner {
            let valid = validity(env, &reduced, &truth);
            let identity = env.reduction_identity(c, op.tensor);
            let parts = env.pool.components(op.value).into_iter().zip(env.pool.components(identity));
            let parts: Vec<ExprId> = parts.map(|(v, id)| env.pool.select(valid, v, id)).collect();
            op.value = if env.tensors[op.tensor].tuple.is_some() { env.pool.make_tuple(&parts) } else { parts[0] };
        }
    }
}

/// Calls of extent functions replaced by their greatest value over the batch.
fn raise(env: &mut Env, e: ExprId) -> ExprId {
    let mut calls: Vec<UfId> = Vec::new();
    env.pool.walk(e, &mut |_, n| {
        if let Expr::Call(f, _) = n
            && !calls.contains(f)
        {
            calls.push(*f);
        }
    });
    let mut raised: FxHashMap<UfId, ExprId> = FxHashMap::default();
    for f in calls {
        if !matches!(env.ufs[f].def, UfDef::Extent { .. }) {
            continue;
        }
        let domain = env.ufs[f].domain.clone();
        let args: Vec<ExprId> = (0..domain.len() as u32).map(|a| env.pool.arg(a)).collect();
        let body = env.pool.call(f, args);
        let name = format!("{}.max", env.ufs[f].name);
        let max = env.uf(&name, domain, UfDef::Max { body });
        let call = env.pool.call(max, []);
        raised.insert(f, call);
    }
    // Loop variables that only a raised call mentioned disappear with it.
    env.pool.rewrite(e, &mut |p, n| match p.get(n) {
        Expr::Call(f, _) => raised.get(f).copied(),
        _ => None,
    })
}

/// Whether every variable is inside its true extent. Function arguments are kept inside their
/// domains, so that no table is read outside.
fn validity(env: &mut Env, vars: &[VarId], truth: &FxHashMap<VarId, ExprId>) -> ExprId {
    let mut conds = Vec::new();
    for v in vars {
        let Some(&extent) = truth.get(v) else { continue };
        let x = env.pool.var(*v);
        let safe = clamp_arguments(&mut env.pool, extent, truth);
        let limit = raise(env, extent);
        if limit != extent {
            conds.push(env.pool.lt(x, safe));
        }
    }
    env.pool.all(conds)
}

fn clamp_arguments(pool: &mut ExprPool, e: ExprId, truth: &FxHashMap<VarId, ExprId>) -> ExprId {
    pool.rewrite(e, &mut |p, n| {
        let Expr::Call(f, args) = p.get(n).clone() else { return None };
        let mut new = Vec::new();
        for a in args {
            let clamped = match p.as_var(a).and_then(|v| truth.get(&v).copied()) {
                Some(t) if p.any(t, &mut |x| matches!(x, Expr::Call(..))) => {
                    let t = clamp_arguments(p, t, truth);
                    let (zero, one) = (p.int(0), p.int(1));
                    let last = p.sub(t, one);
                    let low = p.min(a, last);
                    p.max(low, zero)
                }
                _ => a,
            };
            new.push(clamped);
        }
        Some(p.call(f, new))
    })
}

/// Reads at computed positions are guarded by the validity of the variables they use: positions
/// computed from surplus ones may lie anywhere.
fn guard_computed_reads(env: &mut Env, e: ExprId, vars: &[VarId], truth: &FxHashMap<VarId, ExprId>) -> ExprId {
    let computed = |p: &ExprPool, n: ExprId| match p.get(n) {
        Expr::Load { index, .. } => index.iter().any(|&i| p.as_var(i).is_none() && !p.vars_of(i).is_empty()),
        _ => false,
    };
    let mut any = false;
    env.pool.walk(e, &mut |id, _| any = any || computed(&env.pool, id));
    if !any {
        return e;
    }
    let used: Vec<VarId> = vars.iter().copied().filter(|&v| env.pool.uses_var(e, v)).collect();
    let valid = validity(env, &used, truth);
    if env.pool.as_bool(valid) == Some(true) {
        return e;
    }
    env.pool.rewrite(e, &mut |p, n| computed(p, n).then(|| guard_loads(p, n, valid)))
}
