//! Some of the loops that a product is summed over, summed first: a product of several factors in two steps.
//!
//! ```text
//! for i { for l { for j { for k { Y[i, l] += A[i, j] * B[j, k] * C[k, l] } } } }
//!   =>  for j { for l { for k { T[j, l] += B[j, k] * C[k, l] } } }
//!       for i { for l { for j { Y[i, l] += A[i, j] * T[j, l] } } }
//! ```
//!
//! Requires: a sum that is not scheduled or attached, of a product whose inner factors have a value wherever their own loops
//! run. Ensures: the same sums in another order; the new stage stands before the stage.

use super::inits::place_init;
use super::precompute::{declare, has_value, naive, nest, own_iters};
use crate::simplify::{Facts, Prover};
use cora_ir::loops::{Block, BlockRole, Iter, IterKind, LoopModule};
use cora_ir::{BinOp, Combiner, Expr, ExprId, ExprPool, Reduction, TensorId, VarId};

/// A way to take a sum in two steps.
#[derive(Clone, Debug)]
pub(crate) struct InnerSum {
    /// The iterators that are summed over first.
    pub summed: Vec<VarId>,
    /// The factors that move with them.
    pub factors: Vec<ExprId>,
    /// The iterators that the new stage has besides.
    pub own: Vec<Iter>,
}

/// The factors of a block that sums products, outermost first.
pub(crate) fn factors(pool: &ExprPool, b: &Block) -> Option<Vec<ExprId>> {
    fn go(pool: &ExprPool, e: ExprId, out: &mut Vec<ExprId>) {
        match *pool.get(e) {
            Expr::Bin(BinOp::Mul, x, y) => {
                go(pool, x, out);
                go(pool, y, out);
            }
            _ => out.push(e),
        }
    }
    if b.role != BlockRole::Update(Reduction::Op(Combiner::Sum)) {
        return None;
    }
    let mut out = Vec::new();
    go(pool, b.value, &mut out);
    Some(out)
}

impl InnerSum {
    /// The sum over `summed` first; nothing where other terms are counted by these, or all factors move with them.
    pub(crate) fn of(pool: &ExprPool, b: &Block, summed: &[VarId]) -> Option<Self> {
        let all = factors(pool, b)?;
        let moves = |e: ExprId| summed.iter().any(|&v| pool.uses_var(e, v));
        if b.iters.iter().any(|i| !summed.contains(&i.var) && moves(i.extent)) {
            return None;
        }
        let (inner, outer): (Vec<ExprId>, Vec<ExprId>) = all.into_iter().partition(|&e| moves(e));
        if outer.is_empty() || inner.is_empty() {
            return None;
        }
        let own = own_of(pool, &b.iters, summed, &inner);
        Some(Self { summed: summed.to_vec(), factors: inner, own })
    }
}

/// Has the new stage `name` compute the inner sum of `stage`; nothing where it may have no value by itself.
pub(crate) fn sum_inside(m: &mut LoopModule, stage: TensorId, sum: &InnerSum, name: &str) -> Option<()> {
    let (_, block) = naive(m, stage)?;
    let term = product(&mut m.env.pool, &sum.factors)?;
    let summed = |i: &&Iter| sum.summed.contains(&i.var);
    let reduced: Vec<Iter> = block.iters.iter().filter(summed).cloned().collect();
    let read = sum_of(m, stage, &sum.own, &reduced, term, name)?;
    let (top, _) = naive(m, stage)?;
    let rest: Vec<ExprId> =
        factors(&m.env.pool, &block)?.into_iter().filter(|e| !sum.factors.contains(e)).chain([read]).collect();
    let value = product(&mut m.env.pool, &rest)?;
    let outer: Vec<Iter> = block.iters.iter().filter(|i| !summed(i)).cloned().collect();
    let mut second = nest(&mut m.env, &outer, value, stage);
    second.blocks_mut(&mut |b| {
        b.role = BlockRole::Update(Reduction::Op(Combiner::Sum));
        b.iters.iter_mut().zip(&outer).for_each(|(i, o)| i.kind = o.kind);
        let spatial = b.iters.iter().filter(|i| i.kind == IterKind::Spatial);
        b.index = spatial.map(|i| m.env.pool.var(i.var)).collect();
    });
    m.body[top] = second;
    place_init(m, stage);
    Some(())
}

/// The iterators that a sum of these factors over the `summed` ones has besides: those that they move with, and those that
/// extents need.
pub(crate) fn own_of(pool: &ExprPool, iters: &[Iter], summed: &[VarId], factors: &[ExprId]) -> Vec<Iter> {
    let mut used: Vec<&Iter> = Vec::new();
    for i in iters.iter().rev() {
        let by_factors = factors.iter().any(|&e| pool.uses_var(e, i.var));
        if by_factors || summed.contains(&i.var) || used.iter().any(|u| pool.uses_var(u.extent, i.var)) {
            used.push(i);
        }
    }
    used.into_iter().rev().filter(|i| !summed.contains(&i.var)).cloned().collect()
}

/// Has the new stage `name`, before `stage`, sum `term` over `summed`, an element for each iteration of `own`; gives the
/// element that an iteration of `stage` reads. Nothing where the term may have no value by itself.
pub(crate) fn sum_of(
    m: &mut LoopModule,
    stage: TensorId,
    own: &[Iter],
    summed: &[Iter],
    term: ExprId,
    name: &str,
) -> Option<ExprId> {
    let (top, _) = naive(m, stage)?;
    let ty = m.env.pool.ty(term).scalar;
    if ty != m.env.tensors[stage].ty {
        return None;
    }
    let used: Vec<Iter> = own.iter().chain(summed).cloned().collect();
    // Wherever its own loops run, others need not.
    let facts = Facts::in_loops(used.iter().map(|i| (i.var, i.extent)));
    if own_iters(&m.env.pool, &used, term).len() > used.len()
        || !has_value(&mut m.env, &mut Prover::new(), &facts, term)
    {
        return None;
    }
    let new = declare(&mut m.env, own, ty, name);
    let at: Vec<ExprId> = own.iter().map(|i| m.env.pool.var(i.var)).collect();
    let read = m.env.element(new, &at);
    let mut sum = nest(&mut m.env, &used, term, new);
    sum.blocks_mut(&mut |b| {
        b.role = BlockRole::Update(Reduction::Op(Combiner::Sum));
        b.iters[own.len()..].iter_mut().for_each(|i| i.kind = IterKind::Reduce);
        b.index.truncate(own.len());
    });
    m.body.insert(top, sum);
    place_init(m, new);
    Some(read)
}

/// The product of these factors; nothing of none.
pub(crate) fn product(pool: &mut ExprPool, factors: &[ExprId]) -> Option<ExprId> {
    let (&first, rest) = factors.split_first()?;
    Some(rest.iter().fold(first, |a, &b| pool.bin(BinOp::Mul, a, b)))
}
