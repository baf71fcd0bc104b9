//! Lowers the op graph to the loop dialect: each operator becomes its naive nest.
//!
//! ```text
//! S[b, q] = sum(d) A[b, q, d]   =>   for b { for q { S[b,q] = 0; for d { S[b,q] += A[b,q,d] } } }
//! ```
//!
//! The operators of a recurrence are nests inside common loops over its positions.
//!
//! Requires: a verified graph. Ensures: executable loops; a reduction is two blocks, `init` and
//! `update`, and `pow(x, 2.0)` is `x * x`. Runs first: everything after it is a rewrite of loops.

use cora_ir::loops::{Block, BlockRole, For, Iter, IterKind, LoopKind, LoopModule, Stmt};
use cora_ir::recurrence::{Recurrence, recurrences};
use cora_ir::{BinOp, DimId, Env, Expr, ExprId, ExprPool, Graph, Op, VarId};
use rustc_hash::FxHashMap;
use std::ops::Range;

/// The naive loop nests of `graph`, in the order of its operators.
pub fn lower_to_loops(graph: &Graph) -> LoopModule {
    let mut env = graph.env.clone();
    let follows = |op: &Op| graph.env.recurrent.iter().any(|f| f.0 == op.tensor);
    // With what follows each.
    let recurrences: Vec<(Recurrence, Range<usize>)> = recurrences(graph)
        .into_iter()
        .map(|r| {
            let after = graph.ops[r.ops.end..].iter().take_while(|op| follows(op)).count();
            let all = r.ops.start..r.ops.end + after;
            (r, all)
        })
        .collect();
    for (r, _) in &recurrences {
        env.recurrent.extend(graph.ops[r.ops.clone()].iter().map(|op| (op.tensor, r.dims.len())));
    }
    let mut body = Vec::new();
    for (n, op) in graph.ops.iter().enumerate() {
        match recurrences.iter().find(|r| r.1.contains(&n)) {
            Some((r, all)) if all.start == n => body.push(lower_recurrence(&mut env, &graph.ops[all.clone()], r)),
            Some(_) => {}
            None => body.push(lower_op(&mut env, op)),
        }
    }
    LoopModule { name: graph.name.clone(), env, body: body.into() }
}

/// The nests of a recurrence, and of what follows it, one after the other at each of its positions. The loops over these are
/// of its last stage.
fn lower_recurrence(env: &mut Env, ops: &[Op], r: &Recurrence) -> Stmt {
    let last = &ops[r.ops.len() - 1];
    let shared = make_loops(env, &r.dims, &[]);
    let body = ops.iter().flat_map(|op| lower_inside(env, op, &shared)).collect();
    shared.into_iter().rev().fold(body, |body, l| vec![wrap(last, body, l)]).remove(0)
}

fn lower_op(env: &mut Env, op: &Op) -> Stmt {
    let mut body = lower_inside(env, op, &[]);
    // A scalar result with an initialiser is two statements without a loop; a loop of one holds them.
    if body.len() == 1 { body.remove(0) } else { one_trip(env, op, body) }
}

/// Loops over dimensions, after those `around`.
fn make_loops(env: &mut Env, dims: &[DimId], around: &[(VarId, ExprId)]) -> Vec<(VarId, ExprId)> {
    let mut map: FxHashMap<VarId, ExprId> = FxHashMap::default();
    let mut loops: Vec<(VarId, ExprId)> = around.to_vec();
    for (n, &dim) in dims.iter().enumerate() {
        if let Some(&(var, _)) = around.get(n) {
            let e = env.pool.var(var);
            map.insert(env.dims[dim].var, e);
            continue;
        }
        let (name, extent, dim_var) = (env.dims[dim].name.clone(), env.dims[dim].extent, env.dims[dim].var);
        let extent = env.pool.substitute(extent, &map);
        let var = env.new_var(name);
        let e = env.pool.var(var);
        map.insert(dim_var, e);
        loops.push((var, extent));
    }
    loops
}

/// A loop of an operator.
fn wrap(op: &Op, stmts: Vec<Stmt>, (var, extent): (VarId, ExprId)) -> Stmt {
    let (kind, prefetch) = (LoopKind::Serial, vec![]);
    Stmt::For(For { var, stage: op.tensor, extent, kind, prefetch, init: false, body: stmts.into() })
}

/// The statements of an operator inside loops over its first dimensions.
fn lower_inside(env: &mut Env, op: &Op, around: &[(VarId, ExprId)]) -> Vec<Stmt> {
    let dims: Vec<DimId> = op.spatial.iter().chain(&op.reduce).copied().collect();
    let loops = make_loops(env, &dims, around);
    let spatial = op.spatial.len();
    let role = match op.combiner {
        Some(c) => BlockRole::Update(c),
        None => BlockRole::Compute,
    };
    let main = make_block(env, op, &loops, loops.len(), role);
    let mut body = vec![Stmt::Block(main)];
    for &l in loops[spatial..].iter().rev() {
        body = vec![wrap(op, body, l)];
    }
    if op.combiner.is_some() {
        let init = make_block(env, op, &loops, spatial, BlockRole::Init);
        body.insert(0, Stmt::Block(init));
    }
    for &l in loops[around.len()..spatial].iter().rev() {
        body = vec![wrap(op, body, l)];
    }
    body
}

fn one_trip(env: &mut Env, op: &Op, body: Vec<Stmt>) -> Stmt {
    let once = (env.new_var("once"), env.pool.int(1));
    wrap(op, body, once)
}

/// Squares and cubes as products.
fn powers(pool: &mut ExprPool, value: ExprId) -> ExprId {
    pool.rewrite(value, &mut |pool, e| {
        let Expr::Bin(BinOp::Pow, x, n) = *pool.get(e) else { return None };
        let Expr::Lit(n) = pool.get(n) else { return None };
        let times = [2.0, 3.0].into_iter().position(|f| f == n.as_f64())? + 1;
        Some((0..times).fold(x, |product, _| pool.bin(BinOp::Mul, product, x)))
    })
}

fn make_block(env: &mut Env, op: &Op, loops: &[(VarId, ExprId)], count: usize, role: BlockRole) -> Block {
    let dims: Vec<_> = op.spatial.iter().chain(&op.reduce).copied().take(count).collect();
    let mut map: FxHashMap<VarId, ExprId> = FxHashMap::default();
    let mut iters = Vec::new();
    for (j, dim) in dims.into_iter().enumerate() {
        let (name, extent, dim_var) = (env.dims[dim].name.clone(), env.dims[dim].extent, env.dims[dim].var);
        let extent = env.pool.substitute(extent, &map);
        let var = env.new_var(name);
        let e = env.pool.var(var);
        map.insert(dim_var, e);
        let kind = if j < op.spatial.len() { IterKind::Spatial } else { IterKind::Reduce };
        iters.push(Iter { var, kind, extent, binding: env.pool.var(loops[j].0) });
    }
    let index = iters[..op.spatial.len()].iter().map(|i| env.pool.var(i.var)).collect();
    let value = match (role, op.combiner) {
        (BlockRole::Init, Some(c)) => env.reduction_identity(c, op.tensor),
        _ => {
            let value = env.pool.substitute(op.value, &map);
            powers(&mut env.pool, value)
        }
    };
    Block {
        stage: op.tensor,
        role,
        continues: false,
        atomic: false,
        iters,
        predicate: Vec::new(),
        tensor: op.tensor,
        index,
        value,
    }
}
