//! Factors of sums, and other parts of their terms or of elements, that take more to compute than to read, computed once.
//!
//! ```text
//! Y[i, j] = sum(k) (tanh(X[i, k]) * W[k, j])   =>   F[i, k] = tanh(X[i, k]);  Y[i, j] = sum(k) (F[i, k] * W[k, j])
//! ```
//!
//! In its place such a part is computed again for each iteration of the loops that it does not move with. What windows
//! share that reach beyond a tensor's ends is copied with what is beside them, so that no term asks where they are.

use super::attempt;
use super::constants::is_constant;
use super::contraction::{Contraction, is_of_positions};
use super::nest::{Nest, moves_by_one};
use super::unit_products::unit_of;
use super::units::unit;
use crate::schedule::precompute::precompute_factor;
use crate::schedule::windows::windowed;
use cora_ir::intrinsic::Features;
use cora_ir::loops::{BlockRole, Iter, IterKind, LoopModule};
use cora_ir::{BinOp, Combiner, Expr, ExprId, ExprPool, Reduction, Role, TensorId, UnOp};
use rustc_hash::FxHashSet;

/// Operations that are cheaper to repeat than to store.
const CHEAP: i64 = 2;
/// Operations that a function or a division counts as.
const MANY: i64 = 8;
/// How often a part of an element is repeated, at least.
const FEW_TIMES: i64 = 4;
/// How often a product of one element is repeated, at least.
const MANY_TIMES: i64 = 256;
/// Columns for which an element of the rows is converted once, at least.
const MANY_COLUMNS: i64 = 128;
/// Operations that are saved for each one that is stored, at least.
const WORTH: i64 = 24;

/// Gives each part of a sum's terms, or of an element, that repeats work a stage of its own; functions in elements only on
/// a `processor`. What its instructions convert themselves stays as it is, and is copied where it is read under a condition.
pub(super) fn precompute_factors(m: &mut LoopModule, stage: TensorId, processor: Option<Features>) {
    let Some(nest) = Nest::of(m, stage) else { return };
    // Of elements only functions are worth a tensor: what else they repeat is done while memory is waited for.
    let (least, fewest) = match nest.block.role {
        BlockRole::Update(Reduction::Op(Combiner::Sum)) => (CHEAP + 1, 2),
        BlockRole::Compute if processor.is_some() => (MANY, FEW_TIMES),
        _ => return,
    };
    let summed = matches!(nest.block.role, BlockRole::Update(_));
    let by_unit = processor.is_some_and(|features| is_of_unit(m, stage, features));
    let (mut rest, mut seen) = (vec![nest.block.value], FxHashSet::default());
    while let Some(e) = rest.pop() {
        if !seen.insert(e) {
            continue;
        }
        // Computed again it takes less than it would to be read, and loops end and begin where it does.
        if is_of_positions(&m.env.pool, e) {
            continue;
        }
        if let (true, Expr::Cast(_, read)) = (by_unit, m.env.pool.get(e)) {
            rest.push(*read);
            continue;
        }
        if let Expr::Load { guard, .. } = *m.env.pool.get(e) {
            if summed && guard.is_some() && (by_unit || near_columns(m, &nest, e)) && shared_by_windows(m, &nest, e) {
                let name = m.env.fresh_tensor_name(&format!("{}.window", nest.stage));
                attempt(m, |m| precompute_factor(m, stage, e, &name).ok());
            }
            continue;
        }
        if let Some(times) = repeats(&m.env.pool, &nest.block.iters, e, WORTH).filter(|&t| t >= fewest) {
            let effort = effort(&m.env.pool, e);
            let in_place = || !summed || !is_in_the_way(m, &nest, e);
            let worth = effort.saturating_mul(times) >= WORTH && (effort >= least || effort > 0 && !in_place());
            let name = m.env.fresh_tensor_name(&format!("{}.factor", nest.stage));
            if !worth || attempt(m, |m| precompute_factor(m, stage, e, &name).ok()) {
                continue;
            }
        }
        rest.extend(m.env.pool.children(e));
    }
}

/// Converts factors of a contraction once, which its tiles would do for each term, where no instruction takes the terms as
/// they are (see `units`): both of products of two batches, and what many columns of a constant factor are multiplied by.
/// That one stays as it is: it is packed, and converted by whole vectors.
pub(super) fn widen(m: &mut LoopModule, stage: TensorId, features: Features) -> Option<()> {
    let c = Contraction::of(m, stage).filter(|c| !c.rows.is_empty())?;
    let pool = &m.env.pool;
    let Expr::Bin(BinOp::Mul, x, y) = *pool.get(c.nest.block.value) else { return None };
    let wider = |e: ExprId| match *pool.get(e) {
        Expr::Cast(to, from) if matches!(pool.get(from), Expr::Load { .. }) => {
            to.is_float() && pool.ty(from).scalar.is_float() && to.bytes() > pool.ty(from).scalar.bytes()
        }
        _ => false,
    };
    if ![x, y].into_iter().all(wider) {
        return None;
    }
    if unit_of(m, &c, |i| features.contain(i)).is_some() {
        return None;
    }
    let parts = if c.has_batches() {
        vec![x, y]
    } else {
        let constant = is_constant(m, c.b.0);
        let many = c.nest.most(m, c.columns.iter().chain([&c.inner])) >= MANY_COLUMNS;
        if !constant || !many || unit(m, stage, |i| features.contain(i)).is_some() {
            return None;
        }
        // A product of batches has tasks of its own, more of them than a nest beside which it would be computed.
        if c.a.as_ref().is_some_and(|a| is_of_batches(m, a.0)) {
            return None;
        }
        [x, y].into_iter().filter(|&e| !pool.uses_var(e, c.column)).collect()
    };
    for e in parts {
        let name = m.env.fresh_tensor_name(&format!("{}.wide", c.nest.stage));
        precompute_factor(m, stage, e, &name).ok()?;
    }
    Some(())
}

/// Whether an intermediate is a contraction with batches, or elements of one.
fn is_of_batches(m: &LoopModule, stage: TensorId) -> bool {
    let batches = |t: TensorId| Contraction::of(m, t).is_some_and(|c| c.has_batches());
    let own = Nest::of(m, stage).filter(|_| m.env.tensors[stage].role == Role::Temp);
    batches(stage) || own.is_some_and(|n| n.reads(m).iter().any(|r| batches(r.0)))
}

/// Whether a part of a term that takes little to compute keeps the products from being computed as such: several factors
/// that move with the columns, or a product in the place of an element, which the units that sum would compute as well.
fn is_in_the_way(m: &LoopModule, nest: &Nest, e: ExprId) -> bool {
    let pool = &m.env.pool;
    let Some(column) = nest.block.index.last().and_then(|&e| pool.as_var(e)) else { return false };
    let mut moving: Vec<ExprId> = Vec::new();
    let mut plain = true;
    pool.walk(e, &mut |x, n| match *n {
        Expr::Load { .. } if pool.uses_var(x, column) => moving.push(x),
        Expr::Cast(_, from) => plain &= pool.ty(from).scalar.is_float(),
        _ => {}
    });
    moving.dedup();
    let many = || repeats(pool, &nest.block.iters, e, MANY_TIMES).is_some_and(|t| t >= MANY_TIMES);
    let is_product = matches!(pool.get(e), Expr::Bin(BinOp::Mul, ..));
    moving.len() > 1 || is_product && plain && moving.is_empty() && many()
}

/// Whether an instruction of the processor computes the terms of a contraction with rows and a const factor.
fn is_of_unit(m: &LoopModule, stage: TensorId, features: Features) -> bool {
    let constant = |c: Contraction| !c.rows.is_empty() && is_constant(m, c.b.0);
    Contraction::of(m, stage).is_some_and(constant) && unit(m, stage, |i| features.contain(i)).is_some()
}

/// Whether columns are neighbours in what is read; others are copied anyway.
fn near_columns(m: &LoopModule, nest: &Nest, e: ExprId) -> bool {
    let column = nest.block.index.last().and_then(|&e| m.env.pool.as_var(e));
    let Expr::Load { index, .. } = m.env.pool.get(e) else { return false };
    column.is_none_or(|c| moves_by_one(m, index, c))
}

/// Whether many terms ask whether there is the same element.
fn shared_by_windows(m: &mut LoopModule, nest: &Nest, e: ExprId) -> bool {
    let Some(w) = windowed(&mut m.env, &nest.block, e) else { return false };
    w.times.saturating_mul(repeats(&m.env.pool, &nest.block.iters, e, WORTH).unwrap_or(1)) >= WORTH
}

/// How many iterations of spatial loops have the same value, if more than one; what is not constant is `usual`.
fn repeats(pool: &ExprPool, iters: &[Iter], e: ExprId, usual: i64) -> Option<i64> {
    let still = iters.iter().filter(|i| i.kind == IterKind::Spatial && !pool.uses_var(e, i.var));
    let times = still.map(|i| pool.as_int(i.extent).unwrap_or(usual)).fold(1_i64, |n, e| n.saturating_mul(e));
    (times > 1).then_some(times)
}

/// About how many operations a value takes; functions and divisions count as many, and where elements lie as none.
fn effort(pool: &ExprPool, e: ExprId) -> i64 {
    let own = match *pool.get(e) {
        Expr::Load { guard, .. } => return guard.map_or(0, |(_, other)| 1 + effort(pool, other)),
        Expr::Un(UnOp::Neg | UnOp::Abs | UnOp::Not | UnOp::Tf32, _) => 1,
        Expr::Un(..) => MANY,
        // An entry of a table.
        Expr::Call(..) => 1,
        Expr::Bin(BinOp::Div | BinOp::FloorDiv | BinOp::Mod | BinOp::Pow, ..) => MANY,
        Expr::Bin(..) | Expr::Select(..) => 1,
        // Those of floats are free where they are read.
        Expr::Cast(_, from) if !pool.ty(from).scalar.is_float() => 2,
        _ => 0,
    };
    // Expressions share parts, so counting ends where the answer is clear.
    let more = |sum: i64, &k: &ExprId| if sum < MANY { sum + effort(pool, k) } else { sum };
    pool.children(e).iter().fold(own, more)
}
