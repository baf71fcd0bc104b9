//! `set_scope P reg`: which memory holds the buffer of an attached stage.
//!
//! Requires: a stage that is attached in a loop. Ensures: only the scope of its tensor changes.

use super::tree::{find_stage, written_by};
use cora_ir::loops::LoopModule;
use cora_ir::{Diagnostic, Scope};

/// Moves an attached stage's buffer.
///
/// # Errors
/// `E0401` unknown stage, `E0481` a stage that is not attached, or a global scope.
pub fn set_scope(m: &mut LoopModule, stage: &str, scope: Scope) -> Result<(), Diagnostic> {
    let t = find_stage(m, stage)?;
    let t = written_by(m, t);
    if m.env.tensors[t].scope == Scope::Global || scope == Scope::Global {
        return Err(Diagnostic::new(
            "E0481",
            format!("the scope of `{stage}` can change only once it is attached in a loop"),
        )
        .hint("compute_at or cache_write first; then choose `local`, `shared` or `reg`"));
    }
    m.env.tensors[t].scope = scope;
    Ok(())
}
