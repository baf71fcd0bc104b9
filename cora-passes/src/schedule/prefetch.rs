//! `prefetch S.A at S.k 2`: each iteration of a loop asks the caches for what stage S reads of A two iterations later.
//!
//! ```text
//! for k { S += A[k, ..] * .. }  =>  for k prefetch @S @A 2 { .. }, in the storage dialect
//!                                   for k { if k + 2 < K { for .. { prefetch @A[..] } }  .. }
//! ```
//!
//! With `in S.m` the iterations of a loop inside, `m`, ask: of what is read in that iteration of `m`, `k` moved on. Loops
//! between the two that the read does not depend on share the work: each of their iterations asks for some of the lines.
//! There the last iteration is asked for again where there is none so much later, which costs no condition. `m` may also be
//! a loop that does not lie around the read, of this stage or of another one: it does not matter to the read, so its
//! iterations share the work too.
//!
//! Nothing is read but the tables that an address is found by, and an iteration that there is not is not asked for. The
//! loops inside that the read depends on run once for each line of the cache; the others do not matter. A grid has no such
//! statement, so there the step has no effect.
//!
//! The tensor may be the one that the stage writes: its lines are then there when they are written.
//!
//! Requires: a loop around a read of the tensor in the stage, or around its write, which is not yet split further. Ensures:
//! loops, blocks and results stay.

use super::tree::{blocks_in, find_loop, find_stage, loop_at, loop_at_mut, writes_below};
use cora_ir::loops::{Block, BlockRole, For, LoopModule, Prefetch, Stmt};
use cora_ir::schedule::LoopRef;
use cora_ir::{Diagnostic, Expr, ExprPool, Scope, TensorId};

/// Greatest number of iterations ahead.
const MAX_DISTANCE: i64 = 1 << 16;

/// Marks loop `at`.
///
/// # Errors
/// `E0401`/`E0402` unknown stage or loop, `E0412` a distance below 1 or too large, a locality beyond 0 to 3, a tensor in
/// registers or one that the loop itself fills for the stage, `E0463` a tensor that the stage neither reads nor writes in
/// the loop.
pub fn prefetch(
    m: &mut LoopModule,
    stage: &str,
    tensor: &str,
    (at, inside): (&LoopRef, Option<&LoopRef>),
    (distance, locality): (i64, i64),
) -> Result<(), Diagnostic> {
    let of = find_stage(m, stage)?;
    let path = find_loop(m, at)?;
    let asks = match inside {
        Some(r) => find_loop(m, r)?,
        None => path.clone(),
    };
    if let Some(r) = inside
        && !asks.starts_with(&path)
    {
        return Err(Diagnostic::new(
            "E0402",
            format!("loop `{}.{}` is neither `{}.{}` nor inside it", r.stage, r.name, at.stage, at.name),
        )
        .hint("ask in a loop between the one whose iterations are counted and the read"));
    }
    if !(1..=MAX_DISTANCE).contains(&distance) || !(0..=3).contains(&locality) {
        return Err(Diagnostic::new(
            "E0412",
            format!("nothing is prefetched {distance} iterations ahead with locality {locality}"),
        )
        .hint(format!(
            "prefetch 1 to {MAX_DISTANCE} iterations ahead, with a locality from 0 (used once) to 3 (kept in all caches)"
        )));
    }
    let loops = (loop_at(&m.body, &asks), loop_at(&m.body, &path));
    let found = m.env.tensor_named(tensor).map(|t| (t, asked_for(&m.env.pool, loops, of, t)));
    let Some((t, blocks)) = found.filter(|(_, blocks)| !blocks.is_empty()) else {
        return Err(Diagnostic::new(
            "E0463",
            format!(
                "stage `{stage}` does not read or write a tensor `{tensor}` inside loop `{}.{}`",
                at.stage, at.name
            ),
        )
        .hint("name a tensor that the stage reads or writes there, and a loop around that"));
    };
    if m.env.tensors[t].scope == Scope::Reg {
        return Err(Diagnostic::new("E0412", format!("`{tensor}` is in registers, which no cache holds"))
            .hint("prefetch what is copied into the registers"));
    }
    let own = blocks.iter().all(|(b, _)| b.tensor == t);
    if !own && writes_below(&loop_at(&m.body, &path).body).contains(&t) {
        return Err(Diagnostic::new(
            "E0412",
            format!(
                "`{tensor}` is filled inside loop `{}.{}`: what a later iteration reads is not there yet",
                at.stage, at.name
            ),
        )
        .hint("prefetch at a loop inside the one where it is filled, or prefetch what it is filled from"));
    }
    let counted = inside.map(|_| loop_at(&m.body, &path).var);
    let mark = Prefetch { of: counted, stage: of, tensor: t, distance, locality };
    loop_at_mut(&mut m.body, &asks).prefetch.push(mark);
    Ok(())
}

/// Each loop of these nests whose iterations are counted still lies around the one that asks.
///
/// # Errors
/// `E0411` one does not.
pub fn check(m: &LoopModule, nests: &[&Stmt]) -> Result<(), Diagnostic> {
    fn go<'a>(
        m: &LoopModule,
        body: impl IntoIterator<Item = &'a Stmt>,
        around: &mut Vec<cora_ir::VarId>,
    ) -> Result<(), Diagnostic> {
        for s in body {
            let Stmt::For(l) = s else { continue };
            around.push(l.var);
            if let Some(p) = l.prefetch.iter().find(|p| p.of.is_some_and(|v| !around.contains(&v))) {
                let (env, name) = (&m.env, |v| &m.env.vars[v].name);
                let what = format!(
                    "loop `{}.{}` asks for `{}` of later iterations of loop `{}`, which would no longer lie around it",
                    env.tensors[l.stage].name,
                    name(l.var),
                    env.tensors[p.tensor].name,
                    p.of.map(name).map_or("", |n| n)
                );
                return Err(Diagnostic::new("E0411", what).hint("prefetch after loops are split, fused and in order"));
            }
            go(m, &l.body, around)?;
            around.pop();
        }
        Ok(())
    }
    go(m, nests.iter().copied(), &mut Vec::new())
}

/// The blocks of `stage` that read or write `tensor` inside `asks`, or where there are none inside `counted`, which is around
/// it; with the loops between.
pub(crate) fn asked_for<'a>(
    pool: &ExprPool,
    (asks, counted): (&'a For, &'a For),
    stage: TensorId,
    tensor: TensorId,
) -> Vec<(&'a Block, Vec<&'a For>)> {
    let below = |l: &'a For| {
        let mut found = blocks_in(&l.body);
        found.retain(|(b, _)| b.stage == stage && reads(pool, b, tensor).next().is_some());
        found
    };
    let here = below(asks);
    if here.is_empty() { below(counted) } else { here }
}

/// A read: the component, its index, and the condition under which it happens.
pub(crate) type Read = (u32, Vec<cora_ir::ExprId>, Option<cora_ir::ExprId>);

/// The distinct accesses to `tensor` in a block, in order: its reads, and the write.
pub(crate) fn reads(pool: &ExprPool, b: &Block, tensor: TensorId) -> impl Iterator<Item = Read> + use<> {
    let mut found: Vec<Read> = Vec::new();
    if b.tensor == tensor && b.role != BlockRole::Init {
        let parts = pool.components(b.value).len() as u32;
        found.extend((0..parts).map(|part| (part, b.index.clone(), None)));
    }
    for &e in std::iter::once(&b.value).chain(&b.index) {
        pool.walk(e, &mut |_, n| {
            if let Expr::Load { tensor: t, part, index, guard } = n
                && *t == tensor
            {
                let read = (*part, index.to_vec(), guard.map(|g| g.0));
                if !found.contains(&read) {
                    found.push(read);
                }
            }
        });
    }
    found.into_iter()
}
