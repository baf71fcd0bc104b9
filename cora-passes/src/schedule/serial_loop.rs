//! A loop that a step gives its kind.

use super::tree::loop_at;
use cora_ir::Diagnostic;
use cora_ir::loops::{For, LoopKind, LoopModule};
use cora_ir::schedule::LoopRef;

/// The loop, which is still to be given a kind.
///
/// # Errors
/// `E0411` it has one already.
pub(super) fn serial_loop<'a>(m: &'a LoopModule, path: &[usize], r: &LoopRef) -> Result<&'a For, Diagnostic> {
    let l = loop_at(&m.body, path);
    if l.kind != LoopKind::Serial {
        return Err(Diagnostic::new("E0411", format!("loop `{}.{}` is already {}", r.stage, r.name, l.kind.name()))
            .hint("a loop has one kind; split it first to give its parts different ones"));
    }
    Ok(l)
}
