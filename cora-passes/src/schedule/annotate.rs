//! `vectorize`, `unroll`, `parallel`: how a loop runs, after a check that it may.
//!
//! Requires: a serial loop. Ensures: only the loop's kind changes (`vectorize` with a width splits
//! first).

use super::independent::conflict;
use super::relax_reduced::blocks_below;
use super::split::split;
use super::tree::{Path, check_no_hoisting, enclosing, find_loop, is_reduction_var, loop_at, loop_at_mut, place_init};
use cora_ir::loops::{Block, BlockRole, For, LoopKind, LoopModule, Stmt};
use cora_ir::schedule::{LoopRef, Tail};
use cora_ir::{Diagnostic, Reduction};

/// Greatest trip count that may be unrolled or become lanes.
const MAX_COPIES: i64 = 1024;
/// Greatest number of copies of one statement, over all unrolled loops around it.
const MAX_PRODUCT: i64 = 4096;

fn serial_loop<'a>(m: &'a LoopModule, path: &[usize], r: &LoopRef) -> Result<&'a For, Diagnostic> {
    let l = loop_at(&m.body, path);
    if l.kind != LoopKind::Serial {
        return Err(Diagnostic::new("E0411", format!("loop `{}.{}` is already {}", r.stage, r.name, l.kind.name()))
            .hint("a loop has one kind; split it first to give its parts different ones"));
    }
    Ok(l)
}

/// Makes the iterations of an innermost loop the lanes of vectors of `width` elements; a longer or
/// variable loop is split by the width first, into `<name>_o` and `<name>`.
///
/// # Errors
/// `E0440` not innermost, `E0441` no constant width, `E0411` not serial, `E0438` a loop over which tuples are reduced.
pub fn vectorize(m: &mut LoopModule, target: &LoopRef, width: Option<i64>) -> Result<(), Diagnostic> {
    let path = find_loop(m, target)?;
    let l = serial_loop(m, &path, target)?;
    check_no_hoisting(&m.env, l, target)?;
    if l.body.iter().any(|s| matches!(s, Stmt::For(_))) {
        return Err(Diagnostic::new(
            "E0440",
            format!("loop `{}.{}` is not innermost, so it cannot become vector lanes", target.stage, target.name),
        )
        .hint("reorder it to the innermost place first"));
    }
    let tuples = |b: &&Block| matches!(b.role, BlockRole::Update(Reduction::Tuple(_)));
    if blocks_below(&l.body).into_iter().filter(tuples).any(|b| is_reduction_var(&m.env.pool, b, l.var)) {
        return Err(Diagnostic::new(
            "E0438",
            format!("loop `{}.{}` combines tuples, which lanes do not", target.stage, target.name),
        )
        .hint("make a spatial loop vector; `rfactor` makes one of a reduced loop whose extent is constant"));
    }
    let bound = m.env.pool.constant_bound(l.extent);
    let stage = l.stage;
    match (width, bound) {
        (Some(w), _) if !(1..=MAX_COPIES).contains(&w) => {
            Err(Diagnostic::new("E0441", format!("{w} is not a possible number of lanes"))
                .hint(format!("use 1 to {MAX_COPIES}, best a power of two")))
        }
        (Some(w), b) if b.is_none_or(|b| b > w) => {
            let outer = format!("{}_o", target.name);
            split(m, target, w, (&outer, &target.name), Tail::Exact)?;
            vectorize(m, target, None)
        }
        (_, Some(1..=MAX_COPIES)) => {
            loop_at_mut(&mut m.body, &path).kind = LoopKind::Vector;
            place_init(m, stage);
            Ok(())
        }
        _ => Err(Diagnostic::new(
            "E0441",
            format!("loop `{}.{}` has no constant extent to make lanes of", target.stage, target.name),
        )
        .hint("give a width, as in `vectorize S.i 16`")),
    }
}

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

/// Spreads a loop's iterations over the workers.
///
/// # Errors
/// `E0443` not the outermost loop of its nest, `E0444` iterations that are not independent: the
/// loop is reduced over, or different iterations write the same elements of a shared tensor.
pub fn parallel(m: &mut LoopModule, target: &LoopRef) -> Result<(), Diagnostic> {
    let path = find_loop(m, target)?;
    let l = serial_loop(m, &path, target)?;
    let outer = enclosing(&m.body, &path);
    if !outer.is_empty() {
        let names: Vec<&str> = outer.iter().map(|o| m.env.vars[o.var].name.as_str()).collect();
        let around = |o: &&For| format!("{}.{}", m.env.tensors[o.stage].name, m.env.vars[o.var].name);
        let around: Vec<String> = outer.iter().map(around).collect();
        return Err(Diagnostic::new(
            "E0443",
            format!(
                "loop `{}.{}` is inside `{}`; only the outermost loop can be parallel",
                target.stage,
                target.name,
                names.join(", ")
            ),
        )
        .hint(format!(
            "reorder it outermost, or fuse it with the loops around it: `fuse {} {}.{} -> {}`",
            around.join(" "),
            target.stage,
            target.name,
            target.name
        )));
    }
    if let Some(c) = conflict(m, l, true) {
        return Err(Diagnostic::new(
            "E0444",
            format!("loop `{}.{}` cannot be parallel: {}", target.stage, target.name, c.text(m)),
        )
        .hint(c.hint(m)));
    }
    loop_at_mut(&mut m.body, &path).kind = LoopKind::Parallel;
    Ok(())
}
