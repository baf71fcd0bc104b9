//! The products that a sum is over, so that as little as possible is done for each term.
//!
//! ```text
//! Y[i, j] = sum(k) (A[i, k] * B[k, j] * 0.5)       =>   T[i, j] = sum(k) (A[i, k] * B[k, j]);  Y[i, j] = T[i, j] * 0.5
//! Y[i, j] = sum(k) (A[i, k] * B[k, j] / s[i])      =>   Y[i, j] = sum(k) (A[i, k] / s[i] * B[k, j])
//! ```
//!
//! A sum binds as a product does: what follows its terms is a part of them. Numbers are applied to the sum. Any other
//! divisor stays in the terms, since a sum of none is 0 whatever it would be divided by; it divides the factor with which
//! it moves least, which may then be a stage of its own (see `factors`).

use super::constants::is_constant;
use crate::schedule::inits::place_init;
use crate::schedule::precompute::{declare, naive, nest};
use cora_ir::loops::{Block, BlockRole, Iter, IterKind, LoopModule};
use cora_ir::{BinOp, Combiner, Expr, ExprId, ExprPool, Literal, Reduction, ScalarType, TensorId, UnOp, VarId};

/// Numbers that a sum may be multiplied by in the place of its terms.
const MODERATE: std::ops::RangeInclusive<f64> = 1e-30..=1e30;

/// A product of factors over divisors, and of numbers.
struct Product {
    factors: Vec<ExprId>,
    divisors: Vec<ExprId>,
    number: f64,
}

impl Product {
    fn of(pool: &ExprPool, e: ExprId) -> Self {
        let mut all = Self { factors: Vec::new(), divisors: Vec::new(), number: 1.0 };
        all.add(pool, e, false);
        all
    }

    fn add(&mut self, pool: &ExprPool, e: ExprId, below: bool) {
        match *pool.get(e) {
            Expr::Bin(BinOp::Mul, x, y) => {
                self.add(pool, x, below);
                self.add(pool, y, below);
            }
            Expr::Bin(BinOp::Div, x, y) => {
                self.add(pool, x, below);
                self.add(pool, y, !below);
            }
            Expr::Un(UnOp::Neg, x) => {
                self.number = -self.number;
                self.add(pool, x, below);
            }
            Expr::Lit(n) if below => self.number /= n.as_f64(),
            Expr::Lit(n) => self.number *= n.as_f64(),
            _ if below => self.divisors.push(e),
            _ => self.factors.push(e),
        }
    }
}

/// Has a stage that is a sum of products do less for each term.
pub(super) fn regroup(m: &mut LoopModule, stage: TensorId) -> Option<()> {
    let (_, block) = naive(m, stage)?;
    let ty = m.env.tensors[stage].ty;
    let sums = block.role == BlockRole::Update(Reduction::Op(Combiner::Sum));
    if !sums || !matches!(ty, ScalarType::F32 | ScalarType::F64) || m.env.pool.ty(block.value).scalar != ty {
        return None;
    }
    let Product { mut factors, divisors, number } = Product::of(&m.env.pool, block.value);
    if factors.is_empty() || !MODERATE.contains(&number.abs()) {
        return None;
    }
    let all = moves(&m.env.pool, &block, block.value).len();
    let mut rest = Vec::new();
    for d in divisors {
        let pool = &m.env.pool;
        let together = |f: ExprId| {
            let mut loops = moves(pool, &block, f);
            let more: Vec<VarId> = moves(pool, &block, d).into_iter().filter(|v| !loops.contains(v)).collect();
            loops.extend(more);
            loops.len()
        };
        let least = (0..factors.len()).min_by_key(|&n| together(factors[n]))?;
        if together(factors[least]) < all {
            factors[least] = m.env.pool.bin(BinOp::Div, factors[least], d);
        } else {
            rest.push(d);
        }
    }
    if factors.len() > 2 {
        while let Some((small, large)) = together(m, &block, &factors, all) {
            let (with, f) = (factors[large], factors[small]);
            factors[large] = m.env.pool.bin(BinOp::Mul, with, f);
            factors.remove(small);
        }
    }
    let pool = &mut m.env.pool;
    let product = factors.into_iter().reduce(|a, b| pool.bin(BinOp::Mul, a, b))?;
    let term = rest.into_iter().fold(product, |a, d| pool.bin(BinOp::Div, a, d));
    // A term is subtracted as fast as it is added.
    let term = if number == -1.0 { pool.un(UnOp::Neg, term) } else { term };
    if number.abs() != 1.0 {
        let number = m.env.pool.lit(Literal::float(ty, number));
        return sums_before(m, stage, &[term], None, |pool, sum| Some(pool.bin(BinOp::Mul, sum[0], number)));
    }
    let changed = term != block.value;
    m.body.iter_mut().for_each(|s| {
        s.blocks_mut(&mut |b| {
            if b.stage == stage && b.role == block.role {
                b.value = term;
            }
        });
    });
    changed.then_some(())
}

/// Two factors of which one moves with nothing that the other does not, and that with not all that the terms do: both may be
/// given beforehand, or none.
fn together(m: &LoopModule, block: &Block, factors: &[ExprId], all: usize) -> Option<(usize, usize)> {
    let pool = &m.env.pool;
    let given = |e: ExprId| !pool.any(e, &mut |n| matches!(n, Expr::Load { tensor, .. } if !is_constant(m, *tensor)));
    let of: Vec<Vec<VarId>> = factors.iter().map(|&f| moves(pool, block, f)).collect();
    let pairs = (0..factors.len()).flat_map(|a| (0..factors.len()).map(move |b| (a, b)));
    pairs
        .filter(|&(a, b)| a != b && of[b].len() < all && of[a].iter().all(|v| of[b].contains(v)))
        .min_by_key(|&(a, b)| (given(factors[a]) != given(factors[b]), of[b].len(), a))
}

/// Has a new stage sum each of these terms, and `stage` be what `combined` makes of their results. The dimension that an
/// iterator of `stage` runs may be the `last` one of theirs.
pub(super) fn sums_before(
    m: &mut LoopModule,
    stage: TensorId,
    terms: &[ExprId],
    last: Option<VarId>,
    combined: impl FnOnce(&mut ExprPool, &[ExprId]) -> Option<ExprId>,
) -> Option<()> {
    let (top, block) = naive(m, stage)?;
    let (own, reduced): (Vec<Iter>, Vec<Iter>) = block.iters.iter().cloned().partition(|i| i.kind == IterKind::Spatial);
    let at: Vec<ExprId> = own.iter().map(|i| m.env.pool.var(i.var)).collect();
    if at != block.index {
        return None;
    }
    let (mut ordered, innermost): (Vec<Iter>, Vec<Iter>) = own.iter().cloned().partition(|i| Some(i.var) != last);
    ordered.extend(innermost);
    let ty = m.env.tensors[stage].ty;
    let used: Vec<Iter> = ordered.iter().chain(&reduced).cloned().collect();
    let (mut new, mut nests) = (Vec::new(), Vec::new());
    for &term in terms {
        let name = m.env.fresh_tensor_name(&format!("{}.sum", m.env.tensors[stage].name));
        let tensor = declare(&mut m.env, &ordered, ty, &name);
        let mut sum = nest(&mut m.env, &used, term, tensor);
        sum.blocks_mut(&mut |b| {
            b.role = block.role;
            b.iters[own.len()..].iter_mut().for_each(|i| i.kind = IterKind::Reduce);
            b.index.truncate(own.len());
        });
        new.push(tensor);
        nests.push(sum);
    }
    let there: Vec<ExprId> = ordered.iter().map(|i| m.env.pool.var(i.var)).collect();
    let read: Vec<ExprId> = new.iter().map(|&t| m.env.element(t, &there)).collect();
    let value = combined(&mut m.env.pool, &read)?;
    m.body[top] = nest(&mut m.env, &own, value, stage);
    m.body.splice(top..top, nests);
    new.into_iter().for_each(|t| place_init(m, t));
    Some(())
}

/// The iterators that an expression moves with.
fn moves(pool: &ExprPool, block: &Block, e: ExprId) -> Vec<VarId> {
    block.iters.iter().map(|i| i.var).filter(|&v| pool.uses_var(e, v)).collect()
}
