//! Positions of extremes are compared as `i32` where the dimension is that short.
//!
//! ```text
//! at[i] = min[k] select(X[i, k] == m[i], i64(k), 9223372036854775807:i64)
//!   =>  at[i] = min[k] select(X[i, k] == m[i], i32(k), 2147483647:i32)
//! ```
//!
//! What the language defines `argmax` and `argmin` by. A vector has twice as many `i32`, and processors have instructions for
//! their minimum. Readers see the former values: the identity stays the identity.
//!
//! Requires: checked accesses. Ensures: the same values, read through a conversion; the same operators.

use super::index_range::range;
use cora_ir::env::Role;
use cora_ir::tuple::Reduction;
use cora_ir::{BinOp, Combiner, Env, Expr, ExprId, Graph, Op, ScalarType, TensorId};

/// Narrows such reductions of `graph`.
pub fn narrow_positions(graph: &mut Graph) {
    for n in 0..graph.ops.len() {
        let Some((narrowed, combiner)) = narrowed(&mut graph.env, &graph.ops[n]) else { continue };
        let tensor = graph.ops[n].tensor;
        let guarded = |env: &Env, e: ExprId| {
            env.pool.any(e, &mut |n| matches!(n, Expr::Load { tensor: t, guard: Some(_), .. } if *t == tensor))
        };
        if graph.ops.iter().any(|op| guarded(&graph.env, op.value)) {
            continue;
        }
        graph.ops[n].value = narrowed;
        graph.env.tensors[tensor].ty = ScalarType::I32;
        for reader in n + 1..graph.ops.len() {
            let value = graph.ops[reader].value;
            graph.ops[reader].value = widened(&mut graph.env, value, tensor, combiner);
        }
    }
}

/// The term of `op` in 32 bits: a choice between a position and the identity.
fn narrowed(env: &mut Env, op: &Op) -> Option<(ExprId, Combiner)> {
    let Some(Reduction::Op(combiner @ (Combiner::Min | Combiner::Max))) = op.combiner else { return None };
    let tensor = &env.tensors[op.tensor];
    if tensor.role != Role::Temp || tensor.ty != ScalarType::I64 {
        return None;
    }
    let Expr::Select(c, a, b) = *env.pool.get(op.value) else { return None };
    let identity = |env: &Env, e: ExprId| *env.pool.get(e) == Expr::Lit(combiner.identity(ScalarType::I64));
    let (position, first) = if identity(env, b) { (a, true) } else { (b, false) };
    if !identity(env, if first { b } else { a }) {
        return None;
    }
    let Expr::Cast(ScalarType::I64, at) = *env.pool.get(position) else { return None };
    let least = i128::from(ScalarType::I32.int_min()) + 1..i128::from(ScalarType::I32.int_max());
    let (lo, hi) = range(env, at);
    if env.pool.ty(at).scalar != ScalarType::Index || !least.contains(&lo) || !least.contains(&hi) {
        return None;
    }
    let at = env.pool.cast(ScalarType::I32, at);
    let none = env.pool.lit(combiner.identity(ScalarType::I32));
    let value = if first { env.pool.select(c, at, none) } else { env.pool.select(c, none, at) };
    Some((value, combiner))
}

/// `value` with the former elements of `tensor`.
fn widened(env: &mut Env, value: ExprId, tensor: TensorId, combiner: Combiner) -> ExprId {
    env.pool.rewrite(value, &mut |pool, e| {
        let Expr::Load { tensor: t, index, guard: None, .. } = pool.get(e).clone() else { return None };
        if t != tensor {
            return None;
        }
        let read = pool.load(tensor, ScalarType::I32, index);
        let none = pool.lit(combiner.identity(ScalarType::I32));
        let is_none = pool.bin(BinOp::Eq, read, none);
        let (former, wide) = (pool.lit(combiner.identity(ScalarType::I64)), pool.cast(ScalarType::I64, read));
        Some(pool.select(is_none, former, wide))
    })
}
