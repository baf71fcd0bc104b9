//! Of which loops around a table of orders depends: the arguments that it has besides the place.
//!
//! ```text
//! for b in 0..M { for i in 0..lens(b) { .. } }     sorted by pi(b, i):   order(b, x),  b < M, x < lens(b)
//! for f in 0..row(M) { let b = row.at(f) .. }      the same:             order(row.at(f), x)
//! for o in 0..4 { for t in 0..8 { .. } }           sorted by key(o, t):  order(o, x)
//! ```
//!
//! What extent functions are called with are arguments: the table has then a row for each row of the batch, however the loops
//! over them were split and fused. What varies otherwise are variables of loops.

use crate::lower::sign::as_size;
use crate::simplify::{Facts, Prover};
use cora_ir::{Env, Expr, ExprId, UfDef, VarId};
use rustc_hash::FxHashMap;

/// What a loop is sorted by, over the arguments of its table.
pub(super) struct Rows {
    /// The arguments at the loop but the last, which is the place.
    pub args: Vec<ExprId>,
    /// How many values the j-th of them has, over `Arg(0..j)`.
    pub domain: Vec<ExprId>,
    /// The number of iterations, over those arguments.
    pub extent: ExprId,
    /// The key, over those and the iteration.
    pub key: ExprId,
}

/// The rows of the loop `(var, extent)`, inside the loops `around` (outermost first), by a `key` that reads no tensor.
pub(super) fn rows(env: &mut Env, around: &[(VarId, ExprId)], (var, extent): (VarId, ExprId), key: ExprId) -> Rows {
    let own = env.pool.var(var);
    let called = arguments_of_functions(env, around, (var, extent), key);
    let of_functions = with_loops(env, around, called, own, extent, key);
    if open_vars(env, &of_functions).is_empty() && are_inside(env, around, (var, extent), &of_functions) {
        return of_functions;
    }
    with_loops(env, around, Vec::new(), own, extent, key)
}

/// The rows over `args` and the loops around that vary otherwise.
fn with_loops(
    env: &mut Env,
    around: &[(VarId, ExprId)],
    args: Vec<(ExprId, ExprId)>,
    own: ExprId,
    extent: ExprId,
    key: ExprId,
) -> Rows {
    let mut loops: Vec<(VarId, ExprId)> = Vec::new();
    loop {
        let more = loops.iter().map(|&(v, e)| (env.pool.var(v), as_size(env, &[], e))).collect::<Vec<_>>();
        let all: Vec<(ExprId, ExprId)> = args.iter().copied().chain(more).collect();
        let rows = over(env, &all, own, extent, key);
        let open = open_vars(env, &rows);
        let is_new = |l: &&(VarId, ExprId)| open.contains(&l.0) && !loops.iter().any(|k| k.0 == l.0);
        let Some(&next) = around.iter().rfind(is_new) else { return rows };
        // Loops around others come first.
        loops.insert(0, next);
    }
}

/// The arguments with which extent functions are called there that vary in the loops around but not in the loop itself, with
/// the number of their values.
fn arguments_of_functions(
    env: &mut Env,
    around: &[(VarId, ExprId)],
    (var, extent): (VarId, ExprId),
    key: ExprId,
) -> Vec<(ExprId, ExprId)> {
    let mut found: Vec<(ExprId, ExprId)> = Vec::new();
    let mut open = vec![key, extent];
    while let Some(e) = open.pop() {
        let mut inside = env.pool.children(e).to_vec();
        if let Expr::Call(f, args) = env.pool.get(e).clone()
            && matches!(env.ufs[f].def, UfDef::Extent { .. })
        {
            for (n, &a) in args.iter().enumerate() {
                let vars = env.pool.vars_of(a);
                if vars.contains(&var) || !around.iter().any(|l| vars.contains(&l.0)) {
                    continue;
                }
                inside.retain(|&k| k != a);
                if !found.iter().any(|l| l.0 == a) {
                    let size = env.pool.instantiate(env.ufs[f].domain[n], &args);
                    found.push((a, as_size(env, &[], size)));
                }
            }
        }
        open.extend(inside);
    }
    found
}

/// `extent` and `key` over those of `args` (with the numbers of their values) that they depend on and the iteration `own`.
fn over(env: &mut Env, args: &[(ExprId, ExprId)], own: ExprId, extent: ExprId, key: ExprId) -> Rows {
    // An argument is found before what it consists of.
    let mut formals: FxHashMap<ExprId, ExprId> = FxHashMap::default();
    let mut domain = Vec::new();
    for (n, &(a, size)) in args.iter().enumerate() {
        domain.push(env.pool.rewrite_memo(size, &mut formals.clone(), &mut |_, _| None));
        formals.insert(a, env.pool.arg(n as u32));
    }
    let of_row = env.pool.rewrite_memo(extent, &mut formals.clone(), &mut |_, _| None);
    formals.insert(own, env.pool.arg(args.len() as u32));
    let of_place = env.pool.rewrite_memo(key, &mut formals, &mut |_, _| None);
    let unused = (0..args.len()).rev().find(|&n| {
        let formal = Expr::Arg(n as u32);
        let after = domain[n..].iter().chain([&of_row, &of_place]);
        !after.copied().any(|e| env.pool.any(e, &mut |x| *x == formal))
    });
    if let Some(n) = unused {
        let mut fewer = args.to_vec();
        fewer.remove(n);
        return over(env, &fewer, own, extent, key);
    }
    Rows { args: args.iter().map(|a| a.0).collect(), domain, extent: of_row, key: of_place }
}

/// The variables there besides the arguments.
fn open_vars(env: &Env, rows: &Rows) -> Vec<VarId> {
    rows.domain.iter().chain([&rows.extent, &rows.key]).flat_map(|&e| env.pool.vars_of(e)).collect()
}

/// Whether each argument is proved to be below the number of its values wherever the loop runs.
fn are_inside(env: &mut Env, around: &[(VarId, ExprId)], own: (VarId, ExprId), rows: &Rows) -> bool {
    let facts = Facts::in_loops(around.iter().copied().chain([own]));
    let mut prover = Prover::new();
    rows.args.iter().zip(&rows.domain).all(|(&a, &size)| {
        let size = env.pool.instantiate(size, &rows.args);
        let zero = env.pool.int(0);
        let goals = [env.pool.le(zero, a), env.pool.lt(a, size)];
        goals.into_iter().all(|g| prover.prove(env, &facts, g).is_proved())
    })
}
