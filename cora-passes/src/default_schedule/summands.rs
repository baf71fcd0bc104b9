//! Sums of several products, each of which is a sum by itself.
//!
//! ```text
//! Y[i, j] = sum(k) (A[i, k] * B[k, j] - C[i, k] * D[k, j])
//!   =>  S[i, j] = sum(k) (A[i, k] * B[k, j]);  T[i, j] = sum(k) (-(C[i, k] * D[k, j]));  Y[i, j] = S[i, j] + T[i, j]
//! ```
//!
//! A tile has one factor of its columns. Products that share it are left together: their sum is a product, too. Where tiles
//! of the sums are the same, they are added up in one (see `joined`).

use super::contraction::{Read, split_factors};
use super::products::sums_before;
use crate::schedule::precompute::naive;
use cora_ir::loops::{Block, BlockRole, IterKind, LoopModule};
use cora_ir::{BinOp, Combiner, Expr, ExprId, ExprPool, Reduction, ScalarType, TensorId, UnOp, VarId};

/// Sums that are made of one, at most.
const MOST: usize = 4;
/// Terms for which a sum is worth a tensor of its own.
const TERMS: i64 = 8;

/// Sums products of several factors of the columns one by one.
pub(super) fn summands(m: &mut LoopModule, stage: TensorId) -> Option<()> {
    let (_, block) = naive(m, stage)?;
    let ty = m.env.tensors[stage].ty;
    let sums = block.role == BlockRole::Update(Reduction::Op(Combiner::Sum));
    if !sums || !matches!(ty, ScalarType::F32 | ScalarType::F64) || m.env.pool.ty(block.value).scalar != ty {
        return None;
    }
    let pool = &mut m.env.pool;
    let column = pool.as_var(*block.index.last()?)?;
    let few = |n: i64, e: ExprId| pool.as_int(e).and_then(|e| n.checked_mul(e));
    let reduced = block.iters.iter().filter(|i| i.kind == IterKind::Reduce);
    if reduced.map(|i| i.extent).try_fold(1, few).is_some_and(|n| n < TERMS) {
        return None;
    }
    let mut addends = Vec::new();
    split_addends(pool, block.value, false, &mut addends);
    // Those that share a factor of the columns, and what has none, to go with the first.
    let (mut products, mut rest): (Vec<(Read, ExprId)>, Option<ExprId>) = Default::default();
    for (e, negative) in addends {
        let e = if negative { pool.un(UnOp::Neg, e) } else { e };
        if !pool.uses_var(e, column) {
            rest = Some(rest.map_or(e, |r| pool.add(r, e)));
            continue;
        }
        let factor = product(pool, &block, e, column)?;
        match products.iter_mut().find(|p| p.0 == factor) {
            Some(p) => p.1 = pool.add(p.1, e),
            None => products.push((factor, e)),
        }
    }
    if !(2..=MOST).contains(&products.len()) {
        return None;
    }
    if let Some(rest) = rest {
        products[0].1 = pool.add(products[0].1, rest);
    }
    let terms: Vec<ExprId> = products.into_iter().map(|p| p.1).collect();
    sums_before(m, stage, &terms, None, |pool, sums| sums.iter().copied().reduce(|a, b| pool.add(a, b)))
}

/// What is added up in `e`, with whether it is subtracted.
fn split_addends(pool: &ExprPool, e: ExprId, negative: bool, out: &mut Vec<(ExprId, bool)>) {
    match *pool.get(e) {
        Expr::Bin(op @ (BinOp::Add | BinOp::Sub), a, b) => {
            split_addends(pool, a, negative, out);
            split_addends(pool, b, negative != (op == BinOp::Sub), out);
        }
        Expr::Un(UnOp::Neg, a) => split_addends(pool, a, !negative, out),
        _ => out.push((e, negative)),
    }
}

/// The factor of the columns, where `e` is a product of it and of what rows have to themselves.
fn product(pool: &ExprPool, block: &Block, e: ExprId, column: VarId) -> Option<Read> {
    let (left, right) = split_factors(pool, e, column)?;
    let uses = |es: &[ExprId], v: VarId| es.iter().any(|&e| pool.uses_var(e, v));
    let row = |v: VarId| uses(&left, v) && !uses(&right.1, v);
    let mut spatial = block.iters.iter().filter(|i| i.kind == IterKind::Spatial);
    spatial.any(|i| row(i.var)).then_some(right)
}
