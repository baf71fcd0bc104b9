//! `parallel S.i`: a loop's iterations are spread over the workers.
//!
//! Requires: the outermost loop of its nest, serial, with independent iterations. Ensures: only the loop's kind changes.

use super::independent::{Among, conflict};
use super::serial_loop::serial_loop;
use super::tree::{blocks_below, enclosing, find_loop, is_reduction_var, loop_at, loop_at_mut};
use cora_ir::loops::{For, LoopKind, LoopModule};
use cora_ir::schedule::LoopRef;
use cora_ir::{Diagnostic, VarId};

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
        .hint(if can_fuse(m, &outer, loop_at(&m.body, &path)) {
            format!(
                "reorder it outermost, or fuse it with the loops around it: `fuse {} {}.{} -> {}`",
                around.join(" "),
                target.stage,
                target.name,
                target.name
            )
        } else {
            format!("make the outermost one parallel: `parallel {}`", around[0])
        }));
    }
    loop_at_mut(&mut m.body, &path).kind = LoopKind::Parallel;
    Ok(())
}

/// Whether the loops around a loop have nothing else inside, and none of them all is reduced over.
fn can_fuse(m: &LoopModule, outer: &[&For], own: &For) -> bool {
    let alone = |l: &For| l.body.len() == 1 && l.stage == own.stage;
    let blocks = blocks_below(&own.body);
    let reduced = |v: VarId| blocks.iter().any(|b| is_reduction_var(&m.env.pool, b, v));
    outer.iter().all(|l| alone(l) && !reduced(l.var)) && !reduced(own.var)
}
