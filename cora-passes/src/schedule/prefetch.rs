//! `prefetch S.A at S.k 2`: each iteration of a loop asks the caches for what stage S reads of A two iterations later.
//!
//! ```text
//! for k { S += A[k, ..] * .. }  =>  for k prefetch @S @A 2 { .. }, in the storage dialect
//!                                   for k { if k + 2 < K { for .. { prefetch @A[..] } }  .. }
//! ```
//!
//! Nothing is read: interpreters skip it, and an iteration that there is not is not asked for. The loops inside that the
//! read depends on run once for each line of the cache; the others do not matter. A grid has no such statement, so there
//! the step has no effect.
//!
//! Requires: a loop around a read of the tensor in the stage, which is not yet split further. Ensures: loops, blocks and
//! results stay.

use super::tree::{find_loop, find_stage, loop_at, loop_at_mut, writes_below};
use cora_ir::loops::{Block, For, LoopModule, Prefetch, Stmt};
use cora_ir::schedule::LoopRef;
use cora_ir::{Diagnostic, Expr, ExprPool, Scope, TensorId};

/// Marks loop `at`.
///
/// # Errors
/// `E0401`/`E0402` unknown stage or loop, `E0412` a distance below 1, a locality beyond 0 to 3, a tensor in
/// registers or one that the loop itself fills, `E0463` a tensor that the stage does not read in the loop.
pub fn prefetch(
    m: &mut LoopModule,
    stage: &str,
    tensor: &str,
    at: &LoopRef,
    (distance, locality): (i64, i64),
) -> Result<(), Diagnostic> {
    let of = find_stage(m, stage)?;
    let path = find_loop(m, at)?;
    if distance < 1 || !(0..=3).contains(&locality) {
        return Err(Diagnostic::new(
            "E0412",
            format!("nothing is prefetched {distance} iterations ahead with locality {locality}"),
        )
        .hint("prefetch 1 or more iterations ahead, with a locality from 0 (used once) to 3 (kept in all caches)"));
    }
    let read = m.env.tensor_named(tensor);
    let Some(t) = read.filter(|&t| {
        readers(loop_at(&m.body, &path), of).iter().any(|(b, _)| reads(&m.env.pool, b, t).next().is_some())
    }) else {
        return Err(Diagnostic::new(
            "E0463",
            format!("stage `{stage}` does not read a tensor `{tensor}` inside loop `{}.{}`", at.stage, at.name),
        )
        .hint("name a tensor that the stage reads there, and a loop around that read"));
    };
    if m.env.tensors[t].scope == Scope::Reg {
        return Err(Diagnostic::new("E0412", format!("`{tensor}` is in registers, which no cache holds"))
            .hint("prefetch what is copied into the registers"));
    }
    if writes_below(&loop_at(&m.body, &path).body).contains(&t) {
        return Err(Diagnostic::new(
            "E0412",
            format!(
                "`{tensor}` is filled inside loop `{}.{}`: what a later iteration reads is not there yet",
                at.stage, at.name
            ),
        )
        .hint("prefetch at a loop inside the one where it is filled, or prefetch what it is filled from"));
    }
    loop_at_mut(&mut m.body, &path).prefetch.push(Prefetch { stage: of, tensor: t, distance, locality });
    Ok(())
}

/// The blocks of `stage` below `l`, with the loops between.
pub(crate) fn readers(l: &For, stage: TensorId) -> Vec<(&Block, Vec<&For>)> {
    fn go<'a>(body: &'a [Stmt], stage: TensorId, around: &mut Vec<&'a For>, out: &mut Vec<(&'a Block, Vec<&'a For>)>) {
        for s in body {
            match s {
                Stmt::Block(b) if b.stage == stage => out.push((b, around.clone())),
                Stmt::Block(_) => {}
                Stmt::For(l) => {
                    around.push(l);
                    go(&l.body, stage, around, out);
                    around.pop();
                }
            }
        }
    }
    let mut out = Vec::new();
    go(&l.body, stage, &mut Vec::new(), &mut out);
    out
}

/// A read: its index, and the condition under which it happens.
pub(crate) type Read = (Vec<cora_ir::ExprId>, Option<cora_ir::ExprId>);

/// The distinct reads of `tensor` in a block, in order.
pub(crate) fn reads(pool: &ExprPool, b: &Block, tensor: TensorId) -> impl Iterator<Item = Read> + use<> {
    let mut found: Vec<Read> = Vec::new();
    for &e in std::iter::once(&b.value).chain(&b.index) {
        pool.walk(e, &mut |_, n| {
            if let Expr::Load { tensor: t, index, guard } = n
                && *t == tensor
            {
                let read = (index.to_vec(), guard.map(|g| g.0));
                if !found.contains(&read) {
                    found.push(read);
                }
            }
        });
    }
    found.into_iter()
}
