//! `unroll S.i`: a copy of a loop's body for each iteration.
//!
//! Requires: a serial loop with a small constant bound. Ensures: only the loop's kind changes.

use super::inits::place_init;
use super::serial_loop::serial_loop;
use super::tree::{Path, check_no_hoisting, enclosing, find_loop, loop_at, loop_at_mut};
use cora_ir::Diagnostic;
use cora_ir::loops::{For, LoopKind, LoopModule, Stmt};
use cora_ir::schedule::LoopRef;

/// Greatest trip count that may be unrolled.
const MAX_COPIES: i64 = 1024;
/// Greatest number of copies of one statement, over all unrolled loops around it.
const MAX_PRODUCT: i64 = 4096;
/// A longer vector is several.
const LANES: i64 = 16;

/// Replicates a loop's body for each iteration.
///
/// # Errors
/// `E0442` no constant bound on the extent, one above 1024, or too many copies with the loops around
/// and inside.
pub fn unroll(m: &mut LoopModule, target: &LoopRef) -> Result<(), Diagnostic> {
    let path = find_loop(m, target)?;
    check_copies(m, &path, target)?;
    let l = loop_at_mut(&mut m.body, &path);
    l.kind = LoopKind::Unroll;
    let stage = l.stage;
    place_init(m, stage);
    Ok(())
}

/// Whether a serial loop's iterations can be written out one by one.
///
/// # Errors
/// `E0411` not serial, `E0442` no constant bound on the extent, one above 1024, or too many copies with the loops
/// around and inside.
pub(super) fn check_copies(m: &LoopModule, path: &Path, target: &LoopRef) -> Result<(), Diagnostic> {
    let l = serial_loop(m, path, target)?;
    check_no_hoisting(&m.env, l, target)?;
    match m.env.pool.constant_bound(l.extent) {
        Some(b) if b <= MAX_COPIES => check_product(m, path, target, b),
        _ => Err(Diagnostic::new(
            "E0442",
            format!(
                "loop `{}.{}` has no constant bound (at most {MAX_COPIES}) to unroll to",
                target.stage, target.name
            ),
        )
        .hint("split it by a constant and unroll the inner loop")),
    }
}

/// Copies multiply along a nest.
fn check_product(m: &LoopModule, path: &Path, target: &LoopRef, own: i64) -> Result<(), Diagnostic> {
    let of = |l: &For| match l.kind {
        LoopKind::Unroll => m.env.pool.constant_bound(l.extent).unwrap_or(1).max(1),
        LoopKind::Vector => (m.env.pool.constant_bound(l.extent).unwrap_or(1).max(1) - 1) / LANES + 1,
        _ => 1,
    };
    let around: i64 = enclosing(&m.body, path).into_iter().map(of).fold(1, i64::saturating_mul);
    let all = around.saturating_mul(own.max(1)).saturating_mul(copies(&loop_at(&m.body, path).body, &of));
    if all <= MAX_PRODUCT {
        return Ok(());
    }
    Err(Diagnostic::new(
        "E0442",
        format!("with `{}.{}` unrolled, the body of the nest would be copied {all} times", target.stage, target.name),
    )
    .note(format!("unrolled loops inside one another multiply; at most {MAX_PRODUCT} copies are made"))
    .hint("unroll fewer of the loops, or split one by a smaller constant and unroll the inner loop"))
}

/// The greatest number of copies of a statement below.
fn copies(stmts: &[Stmt], of: &impl Fn(&For) -> i64) -> i64 {
    let inside = |s: &Stmt| match s {
        Stmt::For(l) => of(l).saturating_mul(copies(&l.body, of)),
        Stmt::Block(_) => 1,
    };
    stmts.iter().map(inside).max().unwrap_or(1)
}
