//! `parallel S.i`: a loop's iterations are spread over the workers.
//!
//! Requires: the outermost loop of its nest, serial, with independent iterations. Ensures: only the loop's kind changes.

use super::independent::{Among, conflict};
use super::serial_loop::serial_loop;
use super::tree::{enclosing, find_loop, loop_at_mut};
use cora_ir::Diagnostic;
use cora_ir::loops::{For, LoopKind, LoopModule};
use cora_ir::schedule::LoopRef;

/// Spreads a loop's iterations over the workers.
///
/// # Errors
/// `E0443` not the outermost loop of its nest, `E0444` iterations that are not independent: the
/// loop is reduced over, or different iterations write the same elements of a shared tensor.
pub fn parallel(m: &mut LoopModule, target: &LoopRef) -> Result<(), Diagnostic> {
    let path = find_loop(m, target)?;
    let l = serial_loop(m, &path, target)?;
    if let Some(c) = conflict(m, l, Among::Workers) {
        return Err(Diagnostic::new(
            "E0444",
            format!("loop `{}.{}` cannot be parallel: {}", target.stage, target.name, c.text(m)),
        )
        .hint(c.hint(m)));
    }
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
    loop_at_mut(&mut m.body, &path).kind = LoopKind::Parallel;
    Ok(())
}
