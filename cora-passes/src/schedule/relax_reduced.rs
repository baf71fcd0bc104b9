//! `relax S.k` of a loop that is reduced over: surplus terms are sums of products of zeros.
//!
//! ```text
//! for k in 0..min(32, R) { S += A[k] * B[k] }  =>  for k in 0..32 { S += A[k] * B[k] }
//! where A and B are copies of which positions R..32 hold zeros (`relax A.k zero`)
//! ```
//!
//! A sum takes a surplus 0 without a change, so the loop has no tail. That a surplus term is 0 follows from its form:
//! every element that it reads is one of the zeros that a copy was relaxed with, and sums, differences and products of
//! zeros are zero. An element that comes from elsewhere might be infinite, and infinity times 0 is not 0.
//!
//! Requires: a loop with extent `min(c, R)`, reduced over by a sum all of whose reads are of copies that were relaxed
//! with `zero` over the same tile. Ensures: constant extent, the same sums.

use super::filled::{Filled, base_of, collect_writers, filled_dims};
use super::relax::extents_below_use;
use super::tree::{Path, is_reduction_var, loop_at, loop_at_mut, place_init};
use cora_ir::affine::normalize;
use cora_ir::loops::{Block, BlockRole, Iter, IterKind, LoopModule, Stmt};
use cora_ir::{BinOp, Combiner, Env, Expr, ExprId, UnOp, VarId};

/// Whether a block below the loop reduces over it.
pub fn is_reduced(m: &LoopModule, path: &Path) -> bool {
    let l = loop_at(&m.body, path);
    blocks_below(&l.body).iter().any(|b| is_reduction_var(&m.env.pool, b, l.var))
}

/// Relaxes the loop at `path`, whose extent is `min(full, rest)`; else says why not.
pub fn relax_reduced(m: &mut LoopModule, path: &Path, (full, rest): (ExprId, ExprId)) -> Result<(), &'static str> {
    let l = loop_at(&m.body, path).clone();
    if extents_below_use(&m.env, &l.body, l.var) {
        return Err("loops inside depend on it");
    }
    let filled = zeros(m, full, rest);
    for b in blocks_below(&l.body) {
        if b.stage != l.stage || b.role != BlockRole::Update(cora_ir::Reduction::Op(Combiner::Sum)) {
            return Err("only a sum takes surplus terms of 0");
        }
        let steered: Vec<&Iter> = b.iters.iter().filter(|i| m.env.pool.uses_var(i.binding, l.var)).collect();
        if steered.iter().any(|i| i.kind == IterKind::Spatial)
            || b.predicate.iter().any(|&p| m.env.pool.uses_var(p, l.var))
        {
            return Err("its position says which elements are written");
        }
        let mut reduced = Vec::new();
        for i in steered {
            reduced.push((i.var, base_of(&mut m.env, i.binding, l.var).ok_or("its position is not read as it is")?));
        }
        if !is_zero(&m.env, b.value, &reduced, &filled) {
            return Err("surplus terms are not products of zeros");
        }
    }
    loop_at_mut(&mut m.body, path).extent = full;
    place_init(m, l.stage);
    Ok(())
}

pub(super) fn blocks_below(body: &[Stmt]) -> Vec<&Block> {
    let mut out = Vec::new();
    for s in body {
        s.walk(&mut |s| {
            if let Stmt::Block(b) = s {
                out.push(b);
            }
        });
    }
    out.retain(|b| b.role != BlockRole::Init);
    out
}

/// Dimensions of local buffers that are written for the full tile, zeros from position `rest` of it on; with the base.
fn zeros(m: &mut LoopModule, full: ExprId, rest: ExprId) -> Filled {
    let mut filled = filled_dims(m, full);
    let mut writers = Vec::new();
    for s in &m.body {
        collect_writers(&m.env, s, &mut Vec::new(), &mut writers);
    }
    for (b, _) in writers.iter().filter(|(b, _)| b.role != BlockRole::Init) {
        for d in 0..b.index.len() {
            let key = (b.tensor, d);
            if let Some(&base) = filled.get(&key)
                && !takes_zero(&mut m.env, b, d, base, (full, rest))
            {
                filled.remove(&key);
            }
        }
    }
    filled
}

/// Whether the block writes 0 in dimension `d` from position `base + rest` on.
fn takes_zero(env: &mut Env, b: &Block, d: usize, base: ExprId, (full, rest): (ExprId, ExprId)) -> bool {
    let Expr::Load { guard: Some((cond, other)), .. } = *env.pool.get(b.value) else { return false };
    if b.role != BlockRole::Compute {
        return false;
    }
    let ty = env.pool.ty(b.value).scalar;
    let binding = |e: ExprId| env.pool.as_var(e).and_then(|v| b.iters.iter().find(|i| i.var == v)).map(|i| i.binding);
    let Some(at) = binding(b.index[d]) else { return false };
    let mut bounds = Vec::new();
    let mut stack = vec![cond];
    while let Some(c) = stack.pop() {
        match *env.pool.get(c) {
            Expr::Bin(BinOp::And, x, y) => stack.extend([x, y]),
            Expr::Bin(BinOp::Lt, x, y) => bounds.extend(binding(x).zip(binding(y))),
            _ => {}
        }
    }
    if other != super::compute_inline::zero_of(&mut env.pool, ty) {
        return false;
    }
    let valid = env.pool.min(full, rest);
    let valid = normalize(&mut env.pool, valid);
    bounds.into_iter().any(|(lane, end)| {
        let lane = env.pool.add(base, lane);
        let (lane, at) = (normalize(&mut env.pool, lane), normalize(&mut env.pool, at));
        lane == at && normalize(&mut env.pool, end) == valid
    })
}

/// Whether the value is 0 where the iterators in `reduced`, each given with its base, are beyond the tile's valid part.
fn is_zero(env: &Env, e: ExprId, reduced: &[(VarId, ExprId)], filled: &Filled) -> bool {
    match env.pool.get(e) {
        Expr::Load { tensor, index, guard: None, .. } => index.iter().enumerate().any(|(d, &i)| {
            let base = env.pool.as_var(i).and_then(|v| reduced.iter().find(|r| r.0 == v)).map(|r| r.1);
            base.is_some_and(|base| filled.get(&(*tensor, d)) == Some(&base))
        }),
        Expr::Bin(BinOp::Add | BinOp::Sub | BinOp::Mul, a, b) => {
            is_zero(env, *a, reduced, filled) && is_zero(env, *b, reduced, filled)
        }
        // Conversions and roundings of zero are zero.
        Expr::Cast(_, a) | Expr::Un(UnOp::Neg | UnOp::Tf32, a) => is_zero(env, *a, reduced, filled),
        _ => false,
    }
}
