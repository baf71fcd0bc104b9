//! `vectorize S.i 16`: the iterations of a loop become the lanes of vectors.
//!
//! Requires: a serial, innermost loop over which no tuples are reduced. Ensures: only the loop's kind changes; with a width,
//! the loop is split first; of one that is no longer than that the outer loop runs once, so that a schedule which names it
//! stays valid whatever the extent.

use super::inits::place_init;
use super::serial_loop::serial_loop;
use super::split::split;
use super::tree::{check_fresh_loop, check_no_hoisting, combines_tuples, find_loop, loop_at_mut};
use cora_ir::loops::{For, LoopKind, LoopModule, Stmt};
use cora_ir::schedule::{LoopRef, Tail};
use cora_ir::{Diagnostic, MAX_LANES};

/// Greatest number of lanes.
const MAX: i64 = MAX_LANES as i64;

/// Makes the iterations of an innermost loop the lanes of vectors; with a width of at most that many, the loop being split
/// into `<name>_o` and `<name>`.
///
/// # Errors
/// `E0403` the name of the outer loop is taken, `E0440` not innermost, `E0441` no constant width, `E0411` not serial, `E0438` a loop over which tuples are reduced.
pub fn vectorize(m: &mut LoopModule, target: &LoopRef, width: Option<i64>) -> Result<(), Diagnostic> {
    let path = find_loop(m, target)?;
    let l = serial_loop(m, &path, target)?;
    check_no_hoisting(&m.env, l, target)?;
    if l.body.iter().any(|s| matches!(s, Stmt::For(_))) {
        return Err(Diagnostic::new(
            "E0440",
            format!("loop `{}.{}` is not innermost, so it cannot become vector lanes", target.stage, target.name),
        )
        .hint(if depended_on(m, l) {
            "loops inside have another extent for each of its iterations: make the innermost one of them vector"
        } else {
            "reorder it to the innermost place first"
        }));
    }
    if combines_tuples(&m.env.pool, l) {
        return Err(Diagnostic::new(
            "E0438",
            format!("loop `{}.{}` combines tuples, which lanes do not", target.stage, target.name),
        )
        .hint("make a spatial loop vector; `rfactor` makes one of a reduced loop whose extent is constant"));
    }
    let bound = m.env.pool.constant_bound(l.extent);
    let stage = l.stage;
    match (width, bound) {
        (Some(w), _) if !(1..=MAX).contains(&w) => {
            Err(Diagnostic::new("E0441", format!("{w} is not a possible number of lanes"))
                .hint(format!("use 1 to {MAX}, best a power of two")))
        }
        (Some(w), b) if b.is_none_or(|b| b > w) => {
            let outer = format!("{}_o", target.name);
            split(m, target, w, (&outer, &target.name), Tail::Exact)?;
            vectorize(m, target, None)
        }
        (Some(_), Some(0..)) => {
            let outer = format!("{}_o", target.name);
            check_fresh_loop(m, stage, &outer)?;
            let (var, extent) = (m.env.new_var(outer), m.env.pool.int(1));
            let whole = loop_at_mut(&mut m.body, &path);
            whole.kind = LoopKind::Vector;
            let body = vec![Stmt::For(whole.clone())];
            let kind = LoopKind::Serial;
            *whole = For { var, stage, extent, kind, prefetch: vec![], init: false, body: body.into() };
            place_init(m, stage);
            Ok(())
        }
        // Without an iteration there is nothing to make lanes of.
        (None, Some(..=0)) | (Some(_), Some(..0)) => Ok(()),
        (_, Some(1..=MAX)) => {
            loop_at_mut(&mut m.body, &path).kind = LoopKind::Vector;
            place_init(m, stage);
            Ok(())
        }
        _ => {
            let what = match bound {
                Some(n) if n > MAX => format!("may have {n} iterations, and a vector has at most {MAX} lanes"),
                _ => "has no constant extent to make lanes of".to_owned(),
            };
            Err(Diagnostic::new("E0441", format!("loop `{}.{}` {what}", target.stage, target.name))
                .hint("give a width, as in `vectorize S.i 16`"))
        }
    }
}

/// Whether the extent of a loop inside depends on the loop, so that no order has it inside that one.
fn depended_on(m: &LoopModule, l: &For) -> bool {
    let mut found = false;
    for s in &l.body {
        s.walk(&mut |s| found |= matches!(s, Stmt::For(inner) if m.env.pool.uses_var(inner.extent, l.var)));
    }
    found
}
