//! `precompute S.X -> F`: the factor of a stage's terms that reads X, computed once for each of its positions.
//!
//! ```text
//! for i { for j { S[i, j] = 0; for k { S[i, j] += exp(X[i, k]) * W[k, j] } } }
//!   =>  for i { for k { F[i, k] = exp(X[i, k]) } }
//!       for i { for j { S[i, j] = 0; for k { S[i, j] += F[i, k] * W[k, j] } } }
//! ```
//!
//! The factor is the largest part of the product that moves with no more of the stage's loops than what reads X does, which
//! may be all of it; of a term that is no product, the whole of it; of a tuple, that of one component. It is the opposite
//! of `compute_inline`, for what a program wrote in place. A factor that moves with a sum of loops, as in a convolution, has
//! one dimension for the sum: what is read beside the ends of a tensor is stored with it then. One whose loop is as long as
//! another loop says that it does not move with, as in a triangle, is computed for all that its tensor has there.
//!
//! ```text
//! for t { for u in 0..3 { S[t] += (X[t + u - 1] else 0) * W[u] } }
//!   =>  for w in 0..n + 2 { F[w] = X[w - 1] else 0 };  for t { for u in 0..3 { S[t] += F[t + u] * W[u] } }
//! ```
//!
//! Requires: a stage that is not scheduled or attached, and a factor that has a value wherever its own loops run. Ensures:
//! the same values but for the rounding of what is stored; the new stage is elementwise, and stands before the stage.

use super::defined::in_domain;
use super::tree::find_stage;
use super::windows::windowed;
use crate::simplify::{Facts, Prover};
use cora_ir::loops::{Block, BlockRole, For, Iter, IterKind, LoopKind, LoopModule, Stmt};
use cora_ir::{BinOp, Diagnostic, Env, Expr, ExprId, ExprPool, ScalarType, Scope, Tensor, TensorDim, TensorId, VarId};
use rustc_hash::FxHashMap;

/// Has the new stage `name` compute the factor of `stage`'s terms that reads `tensor`.
///
/// # Errors
/// `E0401` unknown stage, `E0404` no factor that reads the tensor, several that do, or one that is nothing but a read of what
/// is there, `E0408` a stage that is scheduled or attached, or a factor that has no value by itself, `E0460` the name is taken.
pub fn precompute(m: &mut LoopModule, stage: &str, tensor: &str, name: &str) -> Result<(), Diagnostic> {
    let id = find_stage(m, stage)?;
    let (_, block) = naive(m, id).ok_or_else(|| scheduled(stage))?;
    let read = m.env.tensor_named(tensor).filter(|&t| reads(&m.env.pool, block.value, t));
    let refused = |what: String, hint: &str| Err(Diagnostic::new("E0404", what).hint(hint));
    let Some(read) = read else {
        return refused(
            format!("`{stage}` does not read `{tensor}`"),
            "name a tensor that a factor of its terms reads",
        );
    };
    let Some(factor) = factor_reading(&mut m.env, &block, read) else {
        let what = format!("several factors of `{stage}` read `{tensor}`");
        return refused(
            what,
            "name a tensor that only the one which is meant reads, or name the factor in the program",
        );
    };
    let read = match m.env.pool.get(factor) {
        Expr::Load { guard, .. } => Some(guard.is_some()),
        _ => None,
    };
    if read.is_some_and(|guarded| !guarded || windowed(&mut m.env, &block, factor).is_none()) {
        let what = format!("the factor of `{stage}` that reads `{tensor}` computes nothing");
        return refused(what, "`cache_read` copies what is read");
    }
    precompute_factor(m, id, factor, name)
}

/// Has the new stage `name` compute `factor`, any part of the value of a stage's block.
///
/// # Errors
/// As [`precompute`].
pub(crate) fn precompute_factor(
    m: &mut LoopModule,
    stage: TensorId,
    factor: ExprId,
    name: &str,
) -> Result<(), Diagnostic> {
    let shown = m.env.tensors[stage].name.clone();
    if m.env.tensor_named(name).is_some() {
        return Err(Diagnostic::new("E0460", format!("there already is a tensor `{name}`"))
            .hint("choose another name for the new stage"));
    }
    let (top, block) = naive(m, stage).ok_or_else(|| scheduled(&shown))?;
    let by_itself = |why: &str| {
        Diagnostic::new("E0408", format!("a factor of `{shown}` cannot be computed before: {why}")).hint(
            "state where it is read, `T[..] else x`, or name it in the program for just the positions that there are",
        )
    };
    let ty = m.env.pool.ty(factor).scalar;
    if !ScalarType::ELEMENTS.contains(&ty) {
        return Err(by_itself("it is an index, which no tensor holds"));
    }
    let mut local = false;
    m.env.pool.walk(factor, &mut |_, n| {
        local |= matches!(n, Expr::Load { tensor, .. } if m.env.tensors[*tensor].scope != Scope::Global);
    });
    if local {
        return Err(by_itself("it reads what is computed beside the stage"));
    }
    let over_windows =
        windowed(&mut m.env, &block, factor).map(|w| (w.value, own_iters(&m.env.pool, &w.iters, w.value), w.sums));
    let mut prover = Prover::new();
    let of_reads = over_reads(&mut m.env, &mut prover, &block.iters, factor).map(|used| (factor, used, Vec::new()));
    let plain = (factor, own_iters(&m.env.pool, &block.iters, factor), Vec::new());
    let computable = |(value, used, _): &(ExprId, Vec<Iter>, _)| {
        let facts = Facts::in_loops(used.iter().map(|i| (i.var, i.extent)));
        has_value(&mut m.env, &mut prover, &facts, *value)
    };
    let Some((value, used, sums)) = over_windows.into_iter().chain(of_reads).chain([plain]).find(computable) else {
        return Err(by_itself("where other loops of the stage do not run it may have no value"));
    };
    let new = declare(&mut m.env, &used, ty, name);
    let nest = nest(&mut m.env, &used, value, new);
    let sums: FxHashMap<VarId, ExprId> = sums.into_iter().collect();
    let at: Vec<ExprId> =
        used.iter().map(|i| sums.get(&i.var).copied().unwrap_or_else(|| m.env.pool.var(i.var))).collect();
    let read = m.env.element(new, &at);
    m.body[top].blocks_mut(&mut |b| {
        if b.stage == stage && b.role != BlockRole::Init {
            b.value = m.env.pool.rewrite(b.value, &mut |_, e| (e == factor).then_some(read));
        }
    });
    m.body.insert(top, nest);
    Ok(())
}

fn scheduled(stage: &str) -> Diagnostic {
    Diagnostic::new("E0408", format!("stage `{stage}` is already scheduled or attached"))
        .hint("precompute comes before the steps that schedule the stage's own loops")
}

/// The top-level nest of a stage as it was lowered, and its block: each iterator is a loop of just its extent.
pub(crate) fn naive(m: &mut LoopModule, stage: TensorId) -> Option<(usize, Block)> {
    let (top, nest) = m.body.iter().enumerate().find(|(_, s)| matches!(s, Stmt::For(l) if l.stage == stage))?;
    let (mut block, mut plain) = (None, true);
    let mut loops: FxHashMap<VarId, ExprId> = FxHashMap::default();
    nest.walk(&mut |s| match s {
        Stmt::For(l) => {
            plain &= l.stage == stage && l.kind == LoopKind::Serial;
            loops.insert(l.var, l.extent);
        }
        Stmt::Block(b) => {
            plain &= b.stage == stage && b.tensor == stage && b.predicate.is_empty();
            if b.role != BlockRole::Init {
                block = Some(b.clone());
            }
        }
    });
    let block = block.filter(|_| plain)?;
    let pool = &mut m.env.pool;
    let bindings: FxHashMap<VarId, ExprId> = block.iters.iter().map(|i| (i.var, i.binding)).collect();
    let whole = |i: &Iter| {
        let extent = pool.as_var(i.binding).and_then(|v| loops.get(&v).copied());
        extent.is_some_and(|e| e == pool.substitute(i.extent, &bindings))
    };
    block.iters.iter().all(whole).then_some((top, block))
}

fn reads(pool: &ExprPool, e: ExprId, tensor: TensorId) -> bool {
    pool.any(e, &mut |n| matches!(n, Expr::Load { tensor: t, .. } if *t == tensor))
}

/// The largest part of a block's product that reads a tensor and moves with no more than the smallest does.
fn factor_reading(env: &mut Env, b: &Block, tensor: TensorId) -> Option<ExprId> {
    let pool = &env.pool;
    // Of a tuple, the component that does.
    let terms: Vec<ExprId> = pool.components(b.value).iter().copied().filter(|&e| reads(pool, e, tensor)).collect();
    let &[term] = terms.as_slice() else { return None };
    let mut path = vec![term];
    while let Expr::Bin(BinOp::Mul, x, y) = *pool.get(*path.last()?) {
        match (reads(pool, x, tensor), reads(pool, y, tensor)) {
            (true, false) => path.push(x),
            (false, true) => path.push(y),
            _ => break,
        }
    }
    let smallest = *path.last()?;
    let several = matches!(env.pool.get(smallest), Expr::Bin(BinOp::Mul, ..));
    let least = moves(env, b, smallest);
    let found = path.into_iter().find(|&e| moves(env, b, e) == least)?;
    (found != term || !several).then_some(found)
}

/// The iterators that an expression moves with, and the sums of iterators.
fn moves(env: &mut Env, b: &Block, e: ExprId) -> Vec<ExprId> {
    let (iters, value, sums) = match windowed(env, b, e) {
        Some(w) => (w.iters, w.value, w.sums),
        None => (b.iters.clone(), e, Vec::new()),
    };
    let used = iters.iter().map(|i| i.var).filter(|&v| env.pool.uses_var(value, v)).collect::<Vec<_>>();
    let of = |v: VarId| sums.iter().find(|s| s.0 == v).map(|s| s.1);
    used.into_iter().map(|v| of(v).unwrap_or_else(|| env.pool.var(v))).collect()
}

/// The iterators that a factor moves with, and those that their extents need.
pub(super) fn own_iters(pool: &ExprPool, iters: &[Iter], factor: ExprId) -> Vec<Iter> {
    let mut used: Vec<Iter> = Vec::new();
    for i in iters.iter().rev() {
        if pool.uses_var(factor, i.var) || used.iter().any(|u| pool.uses_var(u.extent, i.var)) {
            used.push(i.clone());
        }
    }
    used.reverse();
    in_order_of_reads(pool, factor, used)
}

/// The iterators that a factor moves with alone, where the extent of one needs others that the factor does not move with, as
/// `k < q + 1` in a triangle: of as many positions as what is read there has, if none beyond is asked for, as in padded rows.
fn over_reads(env: &mut Env, prover: &mut Prover, iters: &[Iter], factor: ExprId) -> Option<Vec<Iter>> {
    let mut used: Vec<Iter> = iters.iter().filter(|i| env.pool.uses_var(factor, i.var)).cloned().collect();
    let vars: Vec<VarId> = used.iter().map(|i| i.var).collect();
    let needs_others =
        |pool: &ExprPool, e: ExprId| iters.iter().any(|o| !vars.contains(&o.var) && pool.uses_var(e, o.var));
    let (mut loads, mut always) = (Vec::new(), true);
    env.pool.walk(factor, &mut |_, n| match n {
        Expr::Load { tensor, index, guard: None, .. } => loads.push((*tensor, index.to_vec())),
        // What is read under a condition may have fewer positions than the loop.
        Expr::Load { .. } | Expr::Select(..) => always = false,
        _ => {}
    });
    if !always {
        return None;
    }
    let mut changed = false;
    let around = Facts::in_loops(iters.iter().map(|i| (i.var, i.extent)));
    for i in &mut used {
        if !needs_others(&env.pool, i.extent) {
            continue;
        }
        let place = |(t, index): &(TensorId, Vec<ExprId>)| {
            let d = index.iter().position(|&e| env.pool.as_var(e) == Some(i.var))?;
            Some((*t, d, index.clone()))
        };
        let (tensor, d, index) = loads.iter().find_map(place)?;
        let extent = env.extent_at(tensor, d, &index);
        if needs_others(&env.pool, extent) || env.pool.uses_var(extent, i.var) {
            return None;
        }
        let v = env.pool.var(i.var);
        let inside = env.pool.lt(v, extent);
        if !prover.prove(env, &around, inside).is_proved() {
            return None;
        }
        i.extent = extent;
        changed = true;
    }
    changed.then(|| in_order_of_reads(&env.pool, factor, used))
}

/// The iterators as they follow each other in the index of what the factor reads, each behind those that its extent needs:
/// so neighbours stay neighbours.
fn in_order_of_reads(pool: &ExprPool, factor: ExprId, mut used: Vec<Iter>) -> Vec<Iter> {
    let mut order: Vec<VarId> = Vec::new();
    pool.walk(factor, &mut |_, n| {
        if let Expr::Load { index, .. } = n {
            let own: Vec<VarId> = index.iter().flat_map(|&e| pool.vars_of(e)).collect();
            if own.len() > order.len() {
                order = own;
            }
        }
    });
    let place = |i: &Iter| order.iter().position(|&v| v == i.var).unwrap_or(0);
    let mut out: Vec<Iter> = Vec::new();
    while !used.is_empty() {
        let free = |i: &Iter| !used.iter().any(|u| pool.uses_var(i.extent, u.var));
        let next = (0..used.len()).filter(|&n| free(&used[n])).min_by_key(|&n| place(&used[n])).unwrap_or(0);
        out.push(used.remove(next));
    }
    out
}

/// Whether `e` has a value wherever `facts` hold: functions are called in their domains, tensors are read in their extents.
pub(super) fn has_value(env: &mut Env, prover: &mut Prover, facts: &Facts, e: ExprId) -> bool {
    let (mut facts, mut goals) = (facts.clone(), Vec::new());
    match env.pool.get(e).clone() {
        Expr::Call(f, args) => (0..args.len()).for_each(|n| goals.extend(in_domain(env, f, &args, n))),
        Expr::Load { tensor, index, guard, .. } => {
            if let Some((cond, other)) = guard {
                if !has_value(env, prover, &facts, cond) || !has_value(env, prover, &facts, other) {
                    return false;
                }
                facts.push_assumption(cond);
            }
            for (d, &i) in index.iter().enumerate() {
                let extent = env.extent_at(tensor, d, &index);
                let zero = env.pool.int(0);
                goals.extend([env.pool.le(zero, i), env.pool.lt(i, extent)]);
            }
            return index.iter().all(|&i| has_value(env, prover, &facts, i))
                && goals.into_iter().all(|g| prover.prove(env, &facts, g).is_proved());
        }
        _ => {}
    }
    goals.into_iter().all(|g| prover.prove(env, &facts, g).is_proved())
        && env.pool.children(e).into_iter().all(|k| has_value(env, prover, &facts, k))
}

/// The tensor of a factor: a dimension for each iterator.
pub(crate) fn declare(env: &mut Env, used: &[Iter], ty: ScalarType, name: &str) -> TensorId {
    let mut args: FxHashMap<VarId, ExprId> = FxHashMap::default();
    let mut dims = Vec::new();
    for (n, i) in used.iter().enumerate() {
        dims.push(TensorDim::new(env.vars[i.var].name.clone(), env.pool.substitute(i.extent, &args)));
        args.insert(i.var, env.pool.arg(n as u32));
    }
    env.tensors.push(Tensor::temp(name, ty, dims))
}

/// The nest that computes it.
pub(crate) fn nest(env: &mut Env, used: &[Iter], factor: ExprId, stage: TensorId) -> Stmt {
    let (mut own, mut vars) = (FxHashMap::default(), FxHashMap::default());
    let (mut iters, mut loops) = (Vec::new(), Vec::new());
    for i in used {
        let name = env.vars[i.var].name.clone();
        let (iter, var) = (env.new_var(name.clone()), env.new_var(name));
        let binding = env.pool.var(var);
        loops.push((var, env.pool.substitute(i.extent, &vars)));
        iters.push(Iter { var: iter, kind: IterKind::Spatial, extent: env.pool.substitute(i.extent, &own), binding });
        vars.insert(i.var, binding);
        own.insert(i.var, env.pool.var(iter));
    }
    if loops.is_empty() {
        loops.push((env.new_var("once"), env.pool.int(1)));
    }
    let block = Block {
        stage,
        role: BlockRole::Compute,
        continues: false,
        atomic: false,
        index: iters.iter().map(|i| env.pool.var(i.var)).collect(),
        iters,
        predicate: Vec::new(),
        tensor: stage,
        value: env.pool.substitute(factor, &own),
    };
    loops.into_iter().rev().fold(Stmt::Block(block), |body, (var, extent)| {
        let (kind, prefetch) = (LoopKind::Serial, Vec::new());
        Stmt::For(For { var, stage, extent, kind, prefetch, init: false, body: vec![body].into() })
    })
}
