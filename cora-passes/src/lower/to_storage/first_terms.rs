//! The first of a few partial results of tuples is taken as it is, where all loops that combine them are unrolled.
//!
//! ```text
//! T = f(identity, P(0));  T = f(T, P(1))   =>   T = P(0);  T = f(T, P(1))        where P(k) = f(identity, ..)
//! ```
//!
//! `f` is associative and `f(identity, identity)` the identity, so that another identity before P(0) changes nothing, which no
//! rule of arithmetic finds out of what `f` computes. A term that nothing was combined into may change: a combiner may give
//! all tuples that mean nothing one form.

use cora_ir::loops::{Block, BlockRole, For, IterKind, LoopKind, Stmt};
use cora_ir::{Env, Expr, Reduction, TensorId, VarId};
use rustc_hash::FxHashMap;

/// What the blocks of a module say of the tensors of tuples.
#[derive(Default)]
struct Found {
    /// The combiner that all blocks which write a tensor update or set up; `None` if they do otherwise, or differ.
    combined: FxHashMap<TensorId, Option<Reduction>>,
    /// The partial results that one block combines, and the loops that do.
    unrolled: Vec<(TensorId, TensorId, Vec<VarId>)>,
}

/// For tensors that combine partial results of tuples in unrolled loops, these: where all are zero is the first one.
pub(super) fn unrolled_reductions(env: &Env, body: &[Stmt]) -> FxHashMap<TensorId, Vec<VarId>> {
    let mut found = Found::default();
    let mut updates: FxHashMap<TensorId, usize> = FxHashMap::default();
    let mut around = Vec::new();
    for s in body {
        collect(env, s, &mut around, &mut found, &mut updates);
    }
    let Found { combined, unrolled } = found;
    let combiner = |t: TensorId| combined.get(&t).copied().flatten();
    // Of the parts of a reduction each goes on with what those before left.
    let alone = |t: TensorId| updates.get(&t) == Some(&1);
    unrolled
        .into_iter()
        .filter(|&(t, of, _)| alone(t) && combiner(t).is_some() && combiner(t) == combiner(of))
        .map(|(t, _, loops)| (t, loops))
        .collect()
}

fn collect<'a>(
    env: &Env,
    s: &'a Stmt,
    around: &mut Vec<&'a For>,
    found: &mut Found,
    updates: &mut FxHashMap<TensorId, usize>,
) {
    match s {
        Stmt::For(l) => {
            around.push(l);
            l.body.iter().for_each(|s| collect(env, s, around, found, updates));
            around.pop();
        }
        Stmt::Block(b) => {
            let combines = match b.role {
                BlockRole::Update(r @ Reduction::Tuple(_)) => {
                    *updates.entry(b.tensor).or_insert(0) += 1;
                    found.unrolled.extend(partial_results(env, b, around).map(|(of, loops)| (b.tensor, of, loops)));
                    Some(r)
                }
                BlockRole::Init => return,
                _ => None,
            };
            let entry = found.combined.entry(b.tensor).or_insert(combines);
            *entry = entry.filter(|&r| Some(r) == combines);
        }
    }
}

/// The tensor whose elements the block combines as they are, and the loops over them, if these are unrolled and have their
/// first iterations.
fn partial_results(env: &Env, b: &Block, around: &[&For]) -> Option<(TensorId, Vec<VarId>)> {
    let Expr::Tuple(parts) = env.pool.get(b.value) else { return None };
    let mut of = None;
    for (n, &e) in parts.iter().enumerate() {
        let Expr::Load { tensor, part, index, guard: None } = env.pool.get(e) else { return None };
        let same = of.is_none_or(|o| o == (*tensor, index));
        if *part as usize != n || !same {
            return None;
        }
        of = Some((*tensor, index));
    }
    let terms: Vec<_> = b.iters.iter().filter(|i| i.kind == IterKind::Reduce).map(|i| i.binding).collect();
    let loops: Vec<&&For> = around.iter().filter(|l| terms.iter().any(|&e| env.pool.uses_var(e, l.var))).collect();
    let unrolled = |l: &&&For| l.kind == LoopKind::Unroll && env.pool.as_int(l.extent).is_some_and(|n| n > 0);
    let fits = b.predicate.is_empty() && !b.atomic && !loops.is_empty() && loops.iter().all(unrolled);
    fits.then(|| Some((of?.0, loops.iter().map(|l| l.var).collect())))?
}
