//! Few results of many terms, in parts that workers sum side by side.
//!
//! ```text
//! mean[d] = sum(b, t) X[b, t, d]   =>   parts[part, d] = sum of `TERMS` terms;  mean[d] = sum(part) parts[part, d]
//! ```
//!
//! Where terms lie side by side as they are counted, the lanes of a vector sum them; where only those of a row do, rows are the
//! parts. The parts are combined in order, so the result does not depend on the number of workers.

use super::nest::{Loop, Nest};
use super::{FEW, Registers, attempt, flat, step};
use cora_ir::intrinsic::Vectors;
use cora_ir::loops::{BlockRole, LoopModule, Stmt};
use cora_ir::schedule::{StepKind, Tail};
use cora_ir::{Expr, ExprId, Reduction, TensorId};

/// Terms of a part that a worker sums.
pub(crate) const TERMS: i64 = 4096;

/// The loop over them.
pub(crate) const PART: &str = "part";

/// Sums a stage of few results and many terms in parts of so many terms, in vectors if there are any; gives the stage of the
/// parts. Of more results than terms a part would take more memory than what it sums.
pub(crate) fn partial_sums(
    m: &mut LoopModule,
    stage: TensorId,
    terms: i64,
    vectors: Option<Vectors>,
) -> Option<TensorId> {
    let nest = Nest::of(m, stage).filter(|n| !n.attached)?;
    if !matches!(nest.block.role, BlockRole::Update(Reduction::Op(_))) {
        return None;
    }
    let (reduced, own): (Vec<Loop>, Vec<Loop>) = nest.loops.iter().cloned().partition(|l| l.reduced);
    let results = own.iter().try_fold(1_i64, |n, l| n.checked_mul(m.env.pool.as_int(l.extent)?))?;
    if results > terms || nest.most(m, &reduced) <= 2 * terms {
        return None;
    }
    let side_by_side = results == 1 && flat::lies_side_by_side(m, &nest.block, &reduced);
    if vectors.is_some() && !side_by_side && results == 1 {
        let mut parts = None;
        if attempt(m, |m| {
            parts = Some(rows(m, &nest, &reduced)?);
            Some(())
        }) {
            return parts;
        }
    }
    let parts = in_parts(m, &nest, &reduced, terms)?;
    if let Some(vectors) = vectors.filter(|_| side_by_side) {
        let width = Some(Registers::of(m, stage, vectors).lanes);
        let target = Nest::of(m, parts)?.named("term");
        attempt(m, |m| step(m, StepKind::Vectorize { target, width }));
    }
    Some(parts)
}

/// Sums so many terms a part, of loops that are all reduced over; gives the stage of the parts, which are its outermost loop.
pub(super) fn in_parts(m: &mut LoopModule, nest: &Nest, reduced: &[Loop], terms: i64) -> Option<TensorId> {
    let all = one_loop(m, nest, reduced, "terms")?;
    let (outer, inner) = (PART.to_owned(), "term".to_owned());
    step(m, StepKind::Split { target: nest.named(&all), factor: terms, outer, inner, tail: Tail::Exact })?;
    let name = m.env.fresh_tensor_name(&format!("{}.parts", nest.stage));
    step(m, StepKind::Rfactor { target: nest.named(PART), name: name.clone() })?;
    let parts = m.env.tensor_named(&name)?;
    // Parts outermost, in memory too: they are what workers share, and results are neighbours as in what is summed.
    first_of_dims(m, parts)?;
    let nest = Nest::of(m, parts)?;
    let (first, others): (Vec<String>, Vec<String>) =
        nest.loops.iter().map(|l| l.name.clone()).partition(|l| l == PART);
    super::contraction::reorder(m, &nest, [first, others].concat())?;
    Some(parts)
}

/// Sums each row by itself, where the terms of a row lie side by side and rows are many.
fn rows(m: &mut LoopModule, nest: &Nest, reduced: &[Loop]) -> Option<TensorId> {
    let (last, outer) = reduced.split_last()?;
    let iter = nest.iterator(m, last.var)?;
    let many = outer.iter().any(|l| m.env.pool.constant_bound(l.extent).is_none_or(|n| n >= FEW));
    if !many || !nest.contiguous(m, iter) {
        return None;
    }
    let row = one_loop(m, nest, outer, "row")?;
    let name = m.env.fresh_tensor_name(&format!("{}.parts", nest.stage));
    step(m, StepKind::Rfactor { target: nest.named(&row), name: name.clone() })?;
    m.env.tensor_named(&name)
}

/// The name of the one loop, or of what several are fused to.
fn one_loop(m: &mut LoopModule, nest: &Nest, loops: &[Loop], fused: &str) -> Option<String> {
    if let [one] = loops {
        return Some(one.name.clone());
    }
    let loops = loops.iter().map(|l| nest.at(l)).collect();
    step(m, StepKind::Fuse { loops, name: fused.to_owned(), pad: 1 })?;
    Some(fused.to_owned())
}

/// Puts the last dimension of a tensor first, if no size depends on a position.
fn first_of_dims(m: &mut LoopModule, tensor: TensorId) -> Option<()> {
    let depends = |e: ExprId| m.env.pool.any(e, &mut |x| matches!(x, Expr::Arg(_)));
    if m.env.tensors[tensor].dims.iter().any(|d| depends(d.extent) || depends(d.storage)) {
        return None;
    }
    m.env.tensors[tensor].dims.rotate_right(1);
    let LoopModule { env, body, .. } = m;
    let uses = |s: &Stmt| s.concerned().may_have(tensor) || s.read(&env.pool).may_have(tensor);
    let users: Vec<usize> = (0..body.len()).filter(|&n| uses(&body[n])).collect();
    for n in users {
        body[n].blocks_mut(&mut |b| {
            if b.tensor == tensor {
                b.index.rotate_right(1);
            }
            let mut reads = Vec::new();
            env.pool.walk(b.value, &mut |e, x| {
                if let Expr::Load { tensor: t, index, .. } = x
                    && *t == tensor
                {
                    let mut index = index.to_vec();
                    index.rotate_right(1);
                    reads.push((e, index));
                }
            });
            for (e, index) in reads {
                let read = env.element(tensor, &index);
                b.value = env.pool.rewrite(b.value, &mut |_, x| (x == e).then_some(read));
            }
        });
    }
    Some(())
}
