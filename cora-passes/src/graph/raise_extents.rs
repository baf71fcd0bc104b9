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
use cora_ir::recurrence::recurrences;
use cora_ir::{BinOp, Diagnostic, Env, Expr, ExprId, Graph, UfDef, UfId, VarId};
use rustc_hash::FxHashMap;

/// Raises every extent function in the extents of `graph`'s loops and tensors.
///
/// # Errors
/// `E0256` an extent that does not grow with the lengths in it, and whose greatest value no function gives; a recurrence whose
/// reads are not known to be of earlier positions any more.
pub fn raise_extents(graph: &mut Graph) -> Result<(), Diagnostic> {
    let env = &mut graph.env;
    let truth: Vec<(VarId, ExprId)> = env.dims.iter().map(|(_, d)| (d.var, d.extent)).collect();
    for d in env.dims.ids().collect::<Vec<_>>() {
        let e = env.dims[d].extent;
        env.dims[d].extent = raise(env, e)?;
    }
    for t in env.tensors.ids().collect::<Vec<_>>() {
        for d in 0..env.tensors[t].dims.len() {
            let storage = env.tensors[t].dims[d].storage;
            env.tensors[t].dims[d].storage = raise(env, storage)?;
        }
    }
    let truth: FxHashMap<VarId, ExprId> = truth.into_iter().collect();
    for op in &mut graph.ops {
        let vars: Vec<VarId> = op.spatial.iter().chain(&op.reduce).map(|&d| env.dims[d].var).collect();
        let reduced: Vec<VarId> = op.reduce.iter().map(|&d| env.dims[d].var).collect();
        op.value = guard_computed_reads(env, op.value, &vars, &truth)?;
        if let Some(c) = op.combiner {
            let valid = validity(env, &reduced, &truth)?;
            let identity = env.reduction_identity(c, op.tensor);
            let parts = env.pool.components(op.value).into_iter().zip(env.pool.components(identity));
            let parts: Vec<ExprId> = parts.map(|(v, id)| env.pool.select(valid, v, id)).collect();
            op.value = if env.tensors[op.tensor].tuple.is_some() { env.pool.make_tuple(&parts) } else { parts[0] };
        }
    }
    in_order(graph)
}

/// That recurrences still read what is computed before.
fn in_order(graph: &Graph) -> Result<(), Diagnostic> {
    let unordered = recurrences(graph).iter().find_map(|r| r.unordered(graph).into_iter().next());
    let Some((reader, read)) = unordered else { return Ok(()) };
    let [reader, read] = [reader, read.tensor].map(|t| &graph.env.tensors[t].name);
    let d = Diagnostic::new("E0256", format!("the padded form of `{reader}` may read `{read}` before it is computed"));
    Err(d.hint("limit the position that is read: `min(p, t - 1)`"))
}

/// The greatest value of an extent over the batch, or more: calls of extent functions replaced by their greatest values
/// where it grows with them, else the greatest value of all of it.
fn raise(env: &mut Env, e: ExprId) -> Result<ExprId, Diagnostic> {
    let calls = extent_calls(env, e);
    if calls.is_empty() {
        return Ok(e);
    }
    if !grows(env, e) {
        return greatest(env, e, &calls).ok_or_else(|| no_greatest(env, e));
    }
    let mut raised: FxHashMap<UfId, ExprId> = FxHashMap::default();
    for (f, _) in calls {
        let domain = env.ufs[f].domain.clone();
        let args: Vec<ExprId> = (0..domain.len() as u32).map(|a| env.pool.arg(a)).collect();
        let body = env.pool.call(f, args);
        raised.insert(f, maximum(env, f, body));
    }
    // Loop variables that only a raised call mentioned disappear with it.
    Ok(env.pool.rewrite(e, &mut |p, n| match p.get(n) {
        Expr::Call(f, _) => raised.get(f).copied(),
        _ => None,
    }))
}

/// The greatest value of `body`, over the arguments of `f`, in the domain of `f`.
fn maximum(env: &mut Env, f: UfId, body: ExprId) -> ExprId {
    let (name, domain) = (format!("{}.max", env.ufs[f].name), env.ufs[f].domain.clone());
    let max = env.uf(&name, domain, UfDef::Max { body });
    env.pool.call(max, [])
}

/// The calls of extent functions in `e`.
fn extent_calls(env: &Env, e: ExprId) -> Vec<(UfId, Vec<ExprId>)> {
    let mut calls = Vec::new();
    env.pool.walk(e, &mut |_, n| {
        if let Expr::Call(f, args) = n
            && matches!(env.ufs[*f].def, UfDef::Extent { .. })
        {
            calls.push((*f, args.to_vec()));
        }
    });
    calls
}

/// Whether `e` never falls where calls of extent functions grow, by its form.
fn grows(env: &Env, e: ExprId) -> bool {
    if extent_calls(env, e).is_empty() {
        return true;
    }
    let pool = &env.pool;
    match *pool.get(e) {
        Expr::Call(..) => true,
        Expr::Bin(BinOp::Add | BinOp::Min | BinOp::Max, a, b) => grows(env, a) && grows(env, b),
        Expr::Bin(BinOp::Sub, a, b) => grows(env, a) && extent_calls(env, b).is_empty(),
        Expr::Bin(BinOp::Mul, a, b) => {
            let grows_by = |a, b| extent_calls(env, a).is_empty() || (grows(env, a) && never_negative(env, b));
            grows_by(a, b) && grows_by(b, a)
        }
        Expr::Bin(BinOp::FloorDiv, a, b) => grows(env, a) && pool.as_int(b).is_some_and(|c| c > 0),
        _ => false,
    }
}

/// Whether `e` is plainly at least 0.
fn never_negative(env: &Env, e: ExprId) -> bool {
    let least = |e: ExprId| env.pool.as_int(e).is_some_and(|c| c >= 0);
    match *env.pool.get(e) {
        Expr::Int(c) => c >= 0,
        Expr::Var(_) | Expr::Arg(_) => true,
        Expr::Param(p) => env.params[p].lo >= 0,
        Expr::Call(f, _) => matches!(env.ufs[f].def, UfDef::Extent { lo, .. } if least(lo)),
        Expr::Bin(BinOp::Add | BinOp::Mul | BinOp::Min, a, b) => never_negative(env, a) && never_negative(env, b),
        Expr::Bin(BinOp::Max, a, b) => never_negative(env, a) || never_negative(env, b),
        Expr::Bin(BinOp::FloorDiv, a, b) => never_negative(env, a) && env.pool.as_int(b).is_some_and(|c| c > 0),
        _ => false,
    }
}

/// The greatest value of all of `e`, where the arguments of one of its calls are all that it depends on.
fn greatest(env: &mut Env, e: ExprId, calls: &[(UfId, Vec<ExprId>)]) -> Option<ExprId> {
    let mut places = Vec::new();
    env.pool.walk(e, &mut |id, n| {
        if matches!(n, Expr::Var(_) | Expr::Arg(_)) {
            places.push(id);
        }
    });
    let plain = |args: &[ExprId]| {
        let own = |n: usize| places.contains(&args[n]) && !args[..n].contains(&args[n]);
        (0..args.len()).all(own) && places.iter().all(|p| args.contains(p))
    };
    let (f, args) = calls.iter().find(|(_, args)| plain(args))?.clone();
    let formal: FxHashMap<ExprId, ExprId> =
        args.into_iter().enumerate().map(|(n, a)| (a, env.pool.arg(n as u32))).collect();
    let body = env.pool.rewrite(e, &mut |_, n| formal.get(&n).copied());
    Some(maximum(env, f, body))
}

fn no_greatest(env: &Env, e: ExprId) -> Diagnostic {
    let names = cora_ir::text::Names::of(env, &[e]);
    let shown = cora_ir::text::print_expr(env, e, &names);
    Diagnostic::new("E0256", format!("the extent {shown} has no known greatest value to pad to"))
        .note("it does not grow with the lengths in it, and it depends on more than the dimensions of one of them")
        .hint("run the ragged form, or declare the extent as a function of its own")
}

/// Whether every variable is inside its true extent. Function arguments are kept inside their
/// domains, so that no table is read outside.
fn validity(env: &mut Env, vars: &[VarId], truth: &FxHashMap<VarId, ExprId>) -> Result<ExprId, Diagnostic> {
    let mut conds = Vec::new();
    for v in vars {
        let Some(&extent) = truth.get(v) else { continue };
        let x = env.pool.var(*v);
        let safe = clamp_arguments(&mut env.pool, extent, truth);
        let limit = raise(env, extent)?;
        if limit != extent {
            conds.push(env.pool.lt(x, safe));
        }
    }
    Ok(env.pool.all(conds))
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

/// Reads at computed positions, and under conditions on lengths or elements, are guarded by the validity of the variables
/// they use: positions computed from surplus ones may lie anywhere, lengths of surplus rows are nowhere, and surplus elements
/// have no value.
fn guard_computed_reads(
    env: &mut Env,
    e: ExprId,
    vars: &[VarId],
    truth: &FxHashMap<VarId, ExprId>,
) -> Result<ExprId, Diagnostic> {
    let computed = |p: &ExprPool, n: ExprId| match p.get(n) {
        Expr::Load { index, guard, .. } => {
            let steers = |x: &Expr| matches!(x, Expr::Call(..) | Expr::Load { .. });
            let in_guard = guard.is_some_and(|(c, _)| p.any(c, &mut |x| steers(x)));
            in_guard || index.iter().any(|&i| p.as_var(i).is_none() && !p.vars_of(i).is_empty())
        }
        _ => false,
    };
    let mut any = false;
    env.pool.walk(e, &mut |id, _| any = any || computed(&env.pool, id));
    if !any {
        return Ok(e);
    }
    let used: Vec<VarId> = vars.iter().copied().filter(|&v| env.pool.uses_var(e, v)).collect();
    let valid = validity(env, &used, truth)?;
    if env.pool.as_bool(valid) == Some(true) {
        return Ok(e);
    }
    Ok(env.pool.rewrite(e, &mut |p, n| {
        computed(p, n).then(|| {
            let guarded = guard_loads(p, n, valid);
            clamp_arguments(p, guarded, truth)
        })
    }))
}
