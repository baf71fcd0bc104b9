//! Sums of products of integers of which a factor is a sum itself, as where zero points are subtracted.
//!
//! ```text
//! Y[i, j] = sum(k) ((X[i, k] - z[i]) * W[k, j])
//!   =>  S[i, j] = sum(k) (X[i, k] * W[k, j]);  C[j] = sum(k) W[k, j];  Y[i, j] = S[i, j] - z[i] * C[j]
//! ```
//!
//! One product is left for each element of the result, of factors as they are stored, which instructions for bytes take.
//! Integers wrap, so the results are the same; those of floats would be rounded otherwise.

use crate::schedule::inits::place_init;
use crate::schedule::inner_sum::{own_of, product, sum_of};
use crate::schedule::precompute::{naive, nest};
use cora_ir::loops::{BlockRole, Iter, IterKind, LoopModule};
use cora_ir::{BinOp, Combiner, Expr, ExprId, ExprPool, Literal, Reduction, ScalarType, TensorId, UnOp, VarId};

/// Products that a term is multiplied out to, at most.
const MOST: usize = 8;
/// How many elements of the result share what one of the other sums gives, at least.
const SHARED: i64 = 24;

/// A product: its factors, and whether it is subtracted.
type Product = (Vec<ExprId>, bool);

/// A part of the results: a sum, and what it is multiplied by.
struct Addend {
    factor: ExprId,
    /// Its term, and the iterators that it has an element for; nothing where just the terms are counted.
    sum: Option<(ExprId, Vec<Iter>)>,
}

/// Sums the products that a stage's terms are when multiplied out one by one, if all but one are of fewer elements than the
/// result.
pub(super) fn distribute(m: &mut LoopModule, stage: TensorId) -> Option<()> {
    let (_, block) = naive(m, stage)?;
    let ty = m.env.tensors[stage].ty;
    let sums = block.role == BlockRole::Update(Reduction::Op(Combiner::Sum));
    if !sums || !ty.is_int() || m.env.pool.ty(block.value).scalar != ty {
        return None;
    }
    let (own, reduced): (Vec<Iter>, Vec<Iter>) = block.iters.iter().cloned().partition(|i| i.kind == IterKind::Spatial);
    let over: Vec<VarId> = reduced.iter().map(|i| i.var).collect();
    let pool = &mut m.env.pool;
    // What is summed, with what each of its sums is multiplied by.
    let mut groups: Vec<(Vec<ExprId>, Vec<ExprId>)> = Vec::new();
    for (factors, negative) in products(pool, block.value)? {
        let moves = |&e: &ExprId| reduced.iter().any(|i| pool.uses_var(e, i.var));
        let (mut summed, still): (Vec<ExprId>, Vec<ExprId>) = factors.into_iter().partition(moves);
        summed.sort_unstable();
        let still = product(pool, &still).unwrap_or_else(|| pool.lit(Literal::int(ty, 1)));
        let still = if negative { pool.un(UnOp::Neg, still) } else { still };
        match groups.iter_mut().find(|g| g.0 == summed) {
            Some(g) => g.1.push(still),
            None => groups.push((summed, vec![still])),
        }
    }
    if groups.len() < 2 {
        return None;
    }
    let mut full = 0;
    let mut addends: Vec<Addend> = Vec::new();
    for (summed, still) in groups {
        let pool = &mut m.env.pool;
        let factor = still.into_iter().reduce(|a, b| pool.add(a, b))?;
        let Some(term) = product(pool, &summed) else {
            addends.push(Addend { factor, sum: None });
            continue;
        };
        let used = own_of(pool, &block.iters, &over, &summed);
        let others = own.iter().filter(|o| used.iter().all(|u| u.var != o.var));
        let shared = others.map(|i| pool.as_int(i.extent).unwrap_or(SHARED)).fold(1_i64, i64::saturating_mul);
        full += usize::from(shared < SHARED);
        addends.push(Addend { factor, sum: Some((term, used)) });
    }
    if full > 1 {
        return None;
    }
    let name = m.env.tensors[stage].name.clone();
    let mut value = None;
    for Addend { factor, sum } in addends {
        let sum = match sum {
            Some((term, used)) => {
                let name = m.env.fresh_tensor_name(&format!("{name}.sum"));
                sum_of(m, stage, &used, &reduced, term, &name)?
            }
            None => count(&mut m.env.pool, &reduced, ty)?,
        };
        let pool = &mut m.env.pool;
        let (factor, negative) = match *pool.get(factor) {
            Expr::Un(UnOp::Neg, f) => (f, true),
            _ => (factor, false),
        };
        let addend = match *pool.get(factor) {
            Expr::Lit(l) if l.as_i64() == 1 => sum,
            _ => pool.bin(BinOp::Mul, factor, sum),
        };
        value = Some(match (value, negative) {
            (Some(v), true) => pool.sub(v, addend),
            (Some(v), false) => pool.add(v, addend),
            (None, true) => pool.un(UnOp::Neg, addend),
            (None, false) => addend,
        });
    }
    let (top, _) = naive(m, stage)?;
    m.body[top] = nest(&mut m.env, &own, value?, stage);
    place_init(m, stage);
    Some(())
}

/// The products whose sum `e` is; nothing where it is too many.
fn products(pool: &ExprPool, e: ExprId) -> Option<Vec<Product>> {
    let all = match *pool.get(e) {
        Expr::Bin(op @ (BinOp::Add | BinOp::Sub), a, b) => {
            let (mut all, more) = (products(pool, a)?, products(pool, b)?);
            all.extend(more.into_iter().map(|(f, negative)| (f, negative != (op == BinOp::Sub))));
            all
        }
        Expr::Bin(BinOp::Mul, a, b) => {
            let (left, right) = (products(pool, a)?, products(pool, b)?);
            let both = |x: &Product, y: &Product| ([x.0.as_slice(), y.0.as_slice()].concat(), x.1 != y.1);
            left.iter().flat_map(|x| right.iter().map(move |y| both(x, y))).collect()
        }
        Expr::Un(UnOp::Neg, a) => products(pool, a)?.into_iter().map(|(f, negative)| (f, !negative)).collect(),
        _ => vec![(vec![e], false)],
    };
    (all.len() <= MOST).then_some(all)
}

/// How many terms there are over these iterators, if none has an extent that another one decides.
fn count(pool: &mut ExprPool, reduced: &[Iter], ty: ScalarType) -> Option<ExprId> {
    let (zero, mut all) = (pool.int(0), pool.int(1));
    for i in reduced {
        if reduced.iter().any(|o| pool.uses_var(i.extent, o.var)) {
            return None;
        }
        let there = pool.max(i.extent, zero);
        all = pool.mul(all, there);
    }
    Some(match pool.as_int(all) {
        Some(n) => pool.lit(Literal::int(ty, n)),
        None => pool.cast(ty, all),
    })
}
