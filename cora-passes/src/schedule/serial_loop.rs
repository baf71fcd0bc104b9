//! A loop that a step gives its kind.

use super::tree::{Path, loop_at};
use cora_ir::Diagnostic;
use cora_ir::loops::{For, LoopKind, LoopModule};
use cora_ir::schedule::LoopRef;

/// The loop, which is still to be given a kind.
///
/// # Errors
/// `E0411` it has one already.
pub(super) fn serial_loop<'a>(m: &'a LoopModule, path: &[usize], r: &LoopRef) -> Result<&'a For, Diagnostic> {
    serial_or(m, path, r, "a loop has one kind; split it first to give its parts different ones")
}

/// The loop, which must not have been given a kind.
///
/// # Errors
/// `E0411` it has one, with this hint.
pub(super) fn serial_or<'a>(m: &'a LoopModule, path: &[usize], r: &LoopRef, hint: &str) -> Result<&'a For, Diagnostic> {
    let l = loop_at(&m.body, path);
    if l.kind != LoopKind::Serial {
        let said = format!("loop `{}.{}` is already {}", r.stage, r.name, l.kind.described());
        return Err(Diagnostic::new("E0411", said).hint(hint));
    }
    Ok(l)
}

/// The place of the loop at `path` in a module that has no nest but the one around it.
pub(super) fn in_nest(path: &[usize]) -> Path {
    [&[0], &path[1..]].concat()
}
