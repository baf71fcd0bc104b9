//! Reductions over vectors keep their lanes apart until the loop ends.
//!
//! ```text
//! for %o in 0..n { @S[x] = @S[x] + reduce_sum(v(%o)) }
//!   =>  @S.lanes[ramp(0, 1, 16)] = splat(0, 16)
//!       for %o in 0..n { @S.lanes[ramp(0, 1, 16)] = @S.lanes[ramp(0, 1, 16)] + v(%o) }
//!       @S[x] = @S[x] + reduce_sum(@S.lanes[ramp(0, 1, 16)])
//! ```
//!
//! One vector operation an iteration instead of a tree over the lanes. The terms are combined in another, equally
//! fixed order. Extremes of 16-bit floats are carried in `f32`, which holds all of them, except on a grid.
//!
//! Requires: no vector loops are left. Ensures: the same statements but for loops that do nothing else than combine
//! lanes into places that stay the same; their partial results are new register buffers. Runs after
//! `vectorize-and-unroll`.

use cora_ir::loops::LoopKind;
use cora_ir::storage::{Buffer, Stmt, StorageModule};
use cora_ir::{Combiner, Env, Expr, ExprId, ScalarType, Scope, Tensor, TensorDim, TensorId, VarId};

/// Rewrites such loops in every kernel.
pub fn carry_lanes(m: &mut StorageModule) {
    let mut kernels = std::mem::take(&mut m.kernels);
    for k in &mut kernels {
        let body = std::mem::take(&mut k.body);
        k.body = stmts(m, k.is_grid(), body);
    }
    m.kernels = kernels;
}

fn stmts(m: &mut StorageModule, grid: bool, body: Vec<Stmt>) -> Vec<Stmt> {
    let mut out = Vec::new();
    for s in body {
        match s {
            Stmt::For { var, extent, kind, body } => {
                let found = if kind == LoopKind::Serial { sums(&m.env, var, &body) } else { None };
                if let Some(found) = found {
                    let loop_of = |body| Stmt::For { var, extent, kind, body };
                    let stmts = carried(m, grid, &found, loop_of);
                    out.extend(where_it_runs(m, extent, stmts));
                } else {
                    out.push(Stmt::For { var, extent, kind, body: stmts(m, grid, body) });
                }
            }
            Stmt::If { cond, then, other } => {
                out.push(Stmt::If { cond, then: stmts(m, grid, then), other: stmts(m, grid, other) });
            }
            s => out.push(s),
        }
    }
    out
}

/// `tensor[index] = tensor[index] op reduce_op(lanes)`.
struct Sum {
    tensor: TensorId,
    index: ExprId,
    combiner: Combiner,
    lanes: ExprId,
}

/// The statements of a loop's body if all of them combine lanes into places that neither change from one iteration to
/// the next nor are read otherwise.
fn sums(env: &Env, var: VarId, body: &[Stmt]) -> Option<Vec<Sum>> {
    let mut found = Vec::new();
    for s in body {
        found.push(sum(env, s)?);
    }
    let written: Vec<TensorId> = found.iter().map(|s| s.tensor).collect();
    let reads = |e| env.pool.any(e, &mut |n| matches!(n, Expr::Load { tensor, .. } if written.contains(tensor)));
    let carried = |s: &Sum| !env.pool.uses_var(s.index, var) && !reads(s.lanes) && !reads(s.index);
    (!found.is_empty() && found.iter().all(carried)).then_some(found)
}

fn sum(env: &Env, s: &Stmt) -> Option<Sum> {
    let Stmt::Store { tensor, index, value, mask: None, rest } = s else { return None };
    if !rest.is_empty() {
        return None;
    }
    let Expr::Bin(op, old, term) = *env.pool.get(*value) else { return None };
    let Expr::Reduce(combiner, lanes) = *env.pool.get(term) else { return None };
    let is_old = matches!(env.pool.get(old),
        Expr::Load { tensor: t, index: i, guard: None, .. } if t == tensor && i[..] == [*index]);
    (is_old && combiner.op() == op).then_some(Sum { tensor: *tensor, index: *index, combiner, lanes })
}

/// Where the loop does not run, the place may not exist.
fn where_it_runs(m: &mut StorageModule, extent: ExprId, stmts: Vec<Stmt>) -> Vec<Stmt> {
    if m.env.pool.as_int(extent).is_some_and(|n| n > 0) {
        return stmts;
    }
    let zero = m.env.pool.int(0);
    let cond = m.env.pool.lt(zero, extent);
    vec![Stmt::If { cond, then: stmts, other: Vec::new() }]
}

/// The loop with the sums' lanes carried in registers, what comes before it and what comes after.
fn carried(m: &mut StorageModule, grid: bool, sums: &[Sum], around: impl FnOnce(Vec<Stmt>) -> Stmt) -> Vec<Stmt> {
    let (mut before, mut updates, mut after) = (Vec::new(), Vec::new(), Vec::new());
    for s in sums {
        let ty = m.env.pool.ty(s.lanes);
        let lanes = if grid { ty.scalar } else { carried_type(s.combiner, ty.scalar) };
        let tensor = register(m, s.tensor, lanes, ty.lanes);
        let pool = &mut m.env.pool;
        let zero = pool.int(0);
        let index = pool.ramp(zero, 1, ty.lanes);
        let held = m.env.load(tensor, [index]);
        let identity = m.env.identity(s.combiner, lanes);
        let identity = m.env.pool.splat(identity, ty.lanes);
        before.push(Stmt::Store { tensor, index, value: identity, mask: None, rest: vec![] });
        let terms = m.env.pool.cast(lanes, s.lanes);
        let value = m.env.pool.bin(s.combiner.op(), held, terms);
        updates.push(Stmt::Store { tensor, index, value, mask: None, rest: vec![] });
        let old = m.env.load(s.tensor, [s.index]);
        let all = m.env.pool.reduce(s.combiner, held);
        let all = m.env.pool.cast(ty.scalar, all);
        let value = m.env.pool.bin(s.combiner.op(), old, all);
        after.push(Stmt::Store { tensor: s.tensor, index: s.index, value, mask: None, rest: vec![] });
    }
    before.push(around(updates));
    before.extend(after);
    before
}

/// What lanes of `ty` are carried in. Processors compare 16-bit numbers as `f32`, which holds all of them.
fn carried_type(combiner: Combiner, ty: ScalarType) -> ScalarType {
    match (combiner, ty) {
        (Combiner::Max | Combiner::Min, ScalarType::F16 | ScalarType::BF16) => ScalarType::F32,
        _ => ty,
    }
}

/// A register buffer of one vector for partial results of `of`.
fn register(m: &mut StorageModule, of: TensorId, ty: ScalarType, lanes: u32) -> TensorId {
    let base = format!("{}.lanes", m.env.tensors[of].name);
    let name = m.env.fresh_tensor_name(&base);
    let size = m.env.pool.int(i64::from(lanes));
    let dims = vec![TensorDim::new("lane", size)];
    let tensor = m.env.tensors.push(Tensor { scope: Scope::Reg, ..Tensor::temp(name, ty, dims) });
    m.buffers.push(Buffer { tensor, elems: size, offset: None });
    tensor
}
