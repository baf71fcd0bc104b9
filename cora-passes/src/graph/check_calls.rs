//! Proves every call of an extent function in a declaration inside the function's domain: what a batch gives is a table
//! of the domain's values, and there is none beside it.
//!
//! Calls in the values of operators are checked with their accesses (`check_accesses`), as they may stand under a
//! condition. Those of declarations are the extents of operators' loops, of tensors' dimensions and of functions'
//! arguments; tables are computed from them for each batch.

use crate::lower::Simplifier;
use crate::schedule::defined::in_domain;
use crate::simplify::Facts;
use crate::simplify::example::{breaking, could_not_prove};
use cora_ir::schedule::Span;
use cora_ir::{Diagnostic, Env, Expr, ExprId, Graph, Tensor, UfDef, UfId, VarId};

/// Checks what `graph` declares.
///
/// # Errors
/// `E0244` for each call that is not proved to be inside the function's domain.
pub(super) fn check_declared(graph: &mut Graph, simplifier: &mut dyn Simplifier) -> Vec<Diagnostic> {
    let mut errors: Vec<Diagnostic> = Vec::new();
    let mut report = |d: Diagnostic, span: Option<Span>| {
        if errors.iter().all(|e| e.message != d.message) {
            errors.push(match span {
                Some(span) => d.at(span),
                None => d,
            });
        }
    };
    for n in 0..graph.ops.len() {
        let op = graph.ops[n].clone();
        let env = &mut graph.env;
        let of_dim = |&d: &cora_ir::DimId| (env.dims[d].var, env.dims[d].extent, env.dims[d].name.clone());
        let loops: Vec<(VarId, ExprId, String)> = op.spatial.iter().chain(&op.reduce).map(of_dim).collect();
        if let Some(d) = check_loops(env, simplifier, &loops, None) {
            let whole = loops[0].1;
            report(d, graph.place_of(op.tensor, whole));
        }
    }
    let env = &mut graph.env;
    let extents = |t: &Tensor| -> Vec<(ExprId, String)> { t.dims.iter().map(|d| (d.extent, d.name.clone())).collect() };
    let tensors = env.tensors.iter().map(|(_, t)| (extents(t), None));
    // An end of a range is as the extent of one more dimension.
    let ends = env.tensors.iter().flat_map(|(_, t)| {
        let ends = t.range.into_iter().flat_map(|(lo, hi)| [lo, hi]);
        ends.map(move |e| {
            let dims = extents(t).into_iter().chain([(e, String::new())]).collect();
            (dims, Some(format!("the range of `{}`", t.name)))
        })
    });
    let functions = env.ufs.iter().filter(|(_, f)| matches!(f.def, UfDef::Extent { .. }));
    let arguments = |(_, f): (UfId, &cora_ir::Uf)| {
        (f.domain.iter().enumerate().map(|(n, &e)| (e, format!("{} of `{}`", n + 1, f.name))).collect(), None)
    };
    let declared = tensors.chain(ends).chain(functions.map(arguments));
    for (dims, place) in declared.collect::<Vec<_>>() {
        let mut loops: Vec<(VarId, ExprId, String)> = Vec::new();
        for (extent, name) in dims {
            let outer: Vec<ExprId> = loops.iter().map(|l| env.pool.var(l.0)).collect();
            let extent = env.pool.instantiate(extent, &outer);
            loops.push((env.new_var(name.clone()), extent, name));
        }
        if let Some(d) = check_loops(env, simplifier, &loops, place.as_deref()) {
            report(d, None);
        }
    }
    errors
}

/// The calls in the extents of `loops`, each inside those before it; the last may be another expression in that `place`.
fn check_loops(
    env: &mut Env,
    simplifier: &mut dyn Simplifier,
    loops: &[(VarId, ExprId, String)],
    place: Option<&str>,
) -> Option<Diagnostic> {
    for (n, (_, extent, name)) in loops.iter().enumerate() {
        let outer: Vec<(VarId, ExprId)> = loops[..n].iter().map(|l| (l.0, l.1)).collect();
        for (call, f, args) in calls(env, *extent) {
            for a in 0..args.len() {
                for goal in in_domain(env, f, &args, a) {
                    if !simplifier.prove(env, &outer, &[], goal) {
                        let facts = Facts::in_loops(outer);
                        let extent = format!("the extent of dimension `{name}`");
                        let place = place.filter(|_| n + 1 == loops.len()).unwrap_or(&extent);
                        return Some(refusal(env, place, call, f, (goal, &facts)));
                    }
                }
            }
        }
    }
    None
}

/// The calls of extent functions in `e`.
fn calls(env: &Env, e: ExprId) -> Vec<(ExprId, UfId, Vec<ExprId>)> {
    let mut out = Vec::new();
    env.pool.walk(e, &mut |id, n| {
        if let Expr::Call(f, args) = n
            && matches!(env.ufs[*f].def, UfDef::Extent { .. })
        {
            out.push((id, *f, args.to_vec()));
        }
    });
    out
}

/// Why `call` of `f` in `place` is refused: `goal` does not follow from the facts.
pub(super) fn refusal(
    env: &mut Env,
    place: &str,
    call: ExprId,
    f: UfId,
    (goal, facts): (ExprId, &Facts),
) -> Diagnostic {
    let example = breaking(env, facts, goal);
    let goal = cora_ir::affine::normalize(&mut env.pool, goal);
    let names = cora_ir::text::Names::of(env, &[call, goal]);
    let (shown, fact) = (cora_ir::text::print_expr(env, call, &names), cora_ir::text::print_expr(env, goal, &names));
    let name = &env.ufs[f].name;
    Diagnostic::new("E0244", format!("in {place}: {shown} is not proved to be a call inside the domain of `{name}`"))
        .note(could_not_prove(&fact, example))
        .hint(format!("`{name}` has values at positions of its dimensions only; limit the argument with `min` and `max`, or declare tighter ranges"))
}
