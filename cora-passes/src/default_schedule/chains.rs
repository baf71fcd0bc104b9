//! Products of several factors summed over several loops, in the steps that take the least work.
//!
//! ```text
//! Y[i, l] = sum(j, k) (A[i, j] * B[j, k] * C[k, l])   =>   T[j, l] = sum(k) (B[j, k] * C[k, l]);  Y[i, l] = sum(j) (A[i, j] * T[j, l])
//! ```
//!
//! What is taken as many operations, but has no tile of rows and columns as one sum, is a product of two factors inside.

use super::attempt;
use super::contraction::Shape;
use super::nest::Nest;
use crate::schedule::inner_sum::{InnerSum, factors, sum_inside};
use cora_ir::loops::{Iter, IterKind, LoopModule};
use cora_ir::{ExprPool, TensorId, VarId};

/// What a size that a batch decides counts as.
const USUAL_SIZE: f64 = 256.0;
/// Loops that a sum is over, of which all choices are looked at.
const MOST_REDUCED: usize = 5;
/// Work of one sum for each operation of two steps, from which on they pay.
const WORTH: f64 = 2.0;

/// Takes a stage's sum in steps, if that is less work or has tiles.
pub(super) fn in_steps(m: &mut LoopModule, stage: TensorId) {
    let Some(nest) = Nest::of(m, stage) else { return };
    let Some(all) = factors(&m.env.pool, &nest.block) else { return };
    let iters = &nest.block.iters;
    let moving = all.iter().filter(|&&e| iters.iter().any(|i| m.env.pool.uses_var(e, i.var))).count();
    let reduced: Vec<VarId> = iters.iter().filter(|i| i.kind == IterKind::Reduce).map(|i| i.var).collect();
    if moving < 3 || !(2..=MOST_REDUCED).contains(&reduced.len()) {
        return;
    }
    let whole = work(&m.env.pool, iters.iter());
    let mut choices: Vec<(f64, InnerSum)> = Vec::new();
    for chosen in 1..(1_usize << reduced.len()) - 1 {
        let summed: Vec<VarId> = (0..reduced.len()).filter(|n| chosen >> n & 1 == 1).map(|n| reduced[n]).collect();
        let Some(sum) = InnerSum::of(&m.env.pool, &nest.block, &summed) else { continue };
        let inner = iters.iter().filter(|i| summed.contains(&i.var));
        let first = work(&m.env.pool, sum.own.iter().chain(inner));
        let second = work(&m.env.pool, iters.iter().filter(|i| !summed.contains(&i.var)));
        choices.push((first + second, sum));
    }
    let Some((least, sum)) = choices.into_iter().min_by(|a, b| a.0.total_cmp(&b.0)) else { return };
    let tiled = !Shape::of(m, stage).rows && is_product(&m.env.pool, &sum);
    if whole < WORTH * least && !(tiled && least < WORTH * whole) {
        return;
    }
    let name = m.env.fresh_tensor_name(&format!("{}.inner", nest.stage));
    if attempt(m, |m| sum_inside(m, stage, &sum, &name))
        && let Some(new) = m.env.tensor_named(&name)
    {
        in_steps(m, new);
        in_steps(m, stage);
    }
}

/// About how many iterations these loops have.
fn work<'a>(pool: &ExprPool, iters: impl Iterator<Item = &'a Iter>) -> f64 {
    iters.map(|i| pool.as_int(i.extent).map_or(USUAL_SIZE, |n| n.max(1) as f64)).product()
}

/// Whether it is a product of matrices: two factors, each with loops that the other does not move with.
fn is_product(pool: &ExprPool, sum: &InnerSum) -> bool {
    let [a, b] = sum.factors[..] else { return false };
    let only = |x, y| sum.own.iter().any(|i| pool.uses_var(x, i.var) && !pool.uses_var(y, i.var));
    only(a, b) && only(b, a)
}
