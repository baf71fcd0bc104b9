//! Prefix sums that are a stretch of another one: their values are differences of its entries, and there is no table.
//!
//! ```text
//! Y.f(b, x) = sum over i < x of lens(4*b + i)   =>   row(4*b + x) - row(4*b)   with row(x) = sum over i < x of lens(i)
//! ```
//!
//! So a fused loop over a few rows needs no copy of the offsets of all rows. Only functions that have a table anyway
//! stand in for others.

use super::Simplifier;
use super::layout::sizes;
use cora_ir::affine::normalize;
use cora_ir::storage::StorageModule;
use cora_ir::{Env, Expr, ExprId, UfDef, UfId, VarId};
use rustc_hash::FxHashMap;

/// A prefix sum by another one: `f(a.., x) = sum(outer.., start + x) - sum(outer.., start)`.
#[derive(Clone, Debug)]
pub(super) struct Shifted {
    /// The sum that has a table.
    pub sum: UfId,
    /// Its arguments but the last, over those of `f` but the last.
    pub outer: Vec<ExprId>,
    /// Where `f` begins, over the same.
    pub start: ExprId,
}

/// The prefix sums of `m` that need no table of their own.
pub(super) fn find(m: &mut StorageModule, simplifier: &mut dyn Simplifier) -> FxHashMap<UfId, Shifted> {
    let needed = needed(m);
    let sums: Vec<UfId> =
        needed.iter().copied().filter(|&f| matches!(m.env.ufs[f].def, UfDef::PrefixSum { .. })).collect();
    let mut found: FxHashMap<UfId, Shifted> = FxHashMap::default();
    for &f in &sums {
        if found.values().any(|s| s.sum == f) {
            continue;
        }
        let others = sums.iter().filter(|&&g| g != f && !found.contains_key(&g));
        let others: Vec<UfId> = others.copied().filter(|&g| !reaches(&m.env, g, f)).collect();
        if let Some(s) = others.into_iter().find_map(|g| shifted(&mut m.env, simplifier, f, g)) {
            found.insert(f, s);
        }
    }
    found
}

/// The functions that are called, also in the definitions of such, in the order of their declaration.
fn needed(m: &StorageModule) -> Vec<UfId> {
    let mut roots: Vec<ExprId> = m.buffers.iter().flat_map(|b| [Some(b.elems), b.offset]).flatten().collect();
    roots.extend(m.env.tensors.iter().flat_map(|(_, t)| &t.dims).flat_map(|d| [d.extent, d.storage]));
    roots.extend(m.env.tensors.iter().filter_map(|(_, t)| t.range).flat_map(|(lo, hi)| [lo, hi]));
    m.kernels.iter().flat_map(|k| &k.body).for_each(|s| s.walk(&mut |s| roots.extend(s.exprs())));
    closure(&m.env, roots.iter().flat_map(|&e| called(&m.env, e)).collect())
}

fn called(env: &Env, e: ExprId) -> Vec<UfId> {
    let mut out = Vec::new();
    env.pool.walk(e, &mut |_, n| {
        if let Expr::Call(f, _) = n {
            out.push(*f);
        }
    });
    out
}

/// What the definition of `f` calls.
fn calls_of(env: &Env, f: UfId) -> Vec<UfId> {
    let uf = &env.ufs[f];
    let inverted = match uf.def {
        UfDef::Search { sum } => Some(sum),
        _ => None,
    };
    uf.domain.iter().copied().chain(uf.def.body()).flat_map(|e| called(env, e)).chain(inverted).collect()
}

/// Whether the definition of `f` needs `g`.
fn reaches(env: &Env, f: UfId, g: UfId) -> bool {
    closure(env, vec![f]).contains(&g)
}

/// These functions and those that their definitions call.
fn closure(env: &Env, mut all: Vec<UfId>) -> Vec<UfId> {
    let mut at = 0;
    while let Some(&f) = all.get(at) {
        at += 1;
        for g in calls_of(env, f) {
            if !all.contains(&g) {
                all.push(g);
            }
        }
    }
    all.sort_unstable();
    all.dedup();
    all
}

/// `f` by `g`, if its terms are a stretch of those of `g` for all arguments.
fn shifted(env: &mut Env, simplifier: &mut dyn Simplifier, f: UfId, g: UfId) -> Option<Shifted> {
    let (uf, ug) = (env.ufs[f].clone(), env.ufs[g].clone());
    let (UfDef::PrefixSum { body }, UfDef::PrefixSum { body: whole }) = (uf.def, ug.def) else { return None };
    let (rank, of) = (uf.domain.len(), ug.domain.len());
    let mut bound = vec![None; of];
    if !matches(env, whole, body, &mut bound) {
        return None;
    }
    let mut outer: Vec<ExprId> = bound.into_iter().collect::<Option<_>>()?;
    // The last argument is where it begins plus the index that is summed over.
    let last = Expr::Arg(rank as u32 - 1);
    let index = env.pool.arg(rank as u32 - 1);
    let at = outer.pop()?;
    let start = env.pool.sub(at, index);
    let start = normalize(&mut env.pool, start);
    if outer.iter().chain([&start]).any(|&e| env.pool.any(e, &mut |n| *n == last)) {
        return None;
    }
    // For all arguments of `f`, its terms are among those of `g`.
    let own = sizes(env, &uf.domain);
    let vars: Vec<VarId> = (1..rank).map(|_| env.new_var("a")).collect();
    let args: Vec<ExprId> = vars.iter().map(|&v| env.pool.var(v)).collect();
    let size = env.pool.instantiate(own[rank - 1], &args);
    let loops: Vec<(VarId, ExprId)> =
        vars.iter().zip(&own).map(|(&v, &e)| (v, env.pool.instantiate(e, &args))).collect();
    let first = env.pool.instantiate(start, &args);
    let actual: Vec<ExprId> = outer.iter().map(|&e| env.pool.instantiate(e, &args)).collect();
    let zero = env.pool.int(0);
    let end = env.pool.add(first, size);
    let rows = env.pool.instantiate(ug.domain[of - 1], &actual);
    let mut goals = vec![env.pool.le(zero, first), env.pool.le(end, rows)];
    for (j, &a) in actual.iter().enumerate() {
        let extent = env.pool.instantiate(ug.domain[j], &actual);
        goals.extend([env.pool.le(zero, a), env.pool.lt(a, extent)]);
    }
    let holds = goals.into_iter().all(|goal| simplifier.prove(env, &loops, &[], goal));
    holds.then_some(Shifted { sum: g, outer, start })
}

/// Whether `e` is `pattern` with something for each of its formal arguments, which is put into `bound`.
fn matches(env: &mut Env, pattern: ExprId, e: ExprId, bound: &mut [Option<ExprId>]) -> bool {
    if let Expr::Arg(n) = *env.pool.get(pattern) {
        let slot = &mut bound[n as usize];
        return *slot.get_or_insert(e) == e;
    }
    let (p, q) = (env.pool.get(pattern).clone(), env.pool.get(e).clone());
    let (kids, others) = (env.pool.children(pattern), env.pool.children(e));
    if kids.is_empty() || others.is_empty() {
        return p == q;
    }
    // The same operator over other operands.
    std::mem::discriminant(&p) == std::mem::discriminant(&q)
        && kids.len() == others.len()
        && env.pool.with_children(pattern, &others) == e
        && kids.iter().zip(&others).all(|(&k, &o)| matches(env, k, o, bound))
}
