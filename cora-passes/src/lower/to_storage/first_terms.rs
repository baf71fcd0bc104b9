//! The first of a few tuples is taken as it is, where all loops that reduce are unrolled.
//!
//! ```text
//! T = f(identity, t(0));  T = f(T, t(1))   =>   T = t(0);  T = f(T, t(1))
//! ```
//!
//! A combiner's identity is neutral, which no rule of arithmetic finds out of what the combiner computes.

use cora_ir::loops::{Block, BlockRole, For, IterKind, LoopKind, Stmt};
use cora_ir::{Env, Reduction, TensorId, VarId};
use rustc_hash::FxHashMap;

/// For tensors of tuples with unrolled reductions, the loops of the reduction: where all are zero is the first term.
pub(super) fn unrolled_reductions(env: &Env, body: &[Stmt]) -> FxHashMap<TensorId, Vec<VarId>> {
    let mut found: FxHashMap<TensorId, Option<Vec<VarId>>> = FxHashMap::default();
    let mut around = Vec::new();
    for s in body {
        collect(env, s, &mut around, &mut found);
    }
    found.into_iter().filter_map(|(t, loops)| Some((t, loops?))).collect()
}

fn collect<'a>(env: &Env, s: &'a Stmt, around: &mut Vec<&'a For>, found: &mut FxHashMap<TensorId, Option<Vec<VarId>>>) {
    match s {
        Stmt::For(l) => {
            around.push(l);
            l.body.iter().for_each(|s| collect(env, s, around, found));
            around.pop();
        }
        Stmt::Block(b) if matches!(b.role, BlockRole::Update(Reduction::Tuple(_))) => {
            // Of the parts of a reduction each goes on with what those before left.
            let alone = !found.contains_key(&b.tensor);
            found.insert(b.tensor, reduced(env, b, around).filter(|_| alone));
        }
        Stmt::Block(_) => {}
    }
}

/// The loops over the block's terms, if all of them are unrolled and each has its first iteration.
fn reduced(env: &Env, b: &Block, around: &[&For]) -> Option<Vec<VarId>> {
    let terms = b.iters.iter().filter(|i| i.kind == IterKind::Reduce).map(|i| i.binding);
    let terms: Vec<_> = terms.collect();
    let of: Vec<&&For> = around.iter().filter(|l| terms.iter().any(|&e| env.pool.uses_var(e, l.var))).collect();
    let unrolled = |l: &&&For| l.kind == LoopKind::Unroll && env.pool.as_int(l.extent).is_some_and(|n| n > 0);
    (b.predicate.is_empty() && !b.atomic && !of.is_empty() && of.iter().all(unrolled))
        .then(|| of.iter().map(|l| l.var).collect())
}
