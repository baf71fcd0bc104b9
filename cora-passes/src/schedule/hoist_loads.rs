//! `hoist_loads S.i off`: whether what does not vary in a loop is read before it, or in each of its iterations.
//!
//! ```text
//! for b { for i { B[row[b] + i] = .. } }
//!   hoist_loads B.i      =>  for b { let r = row[b]; for i { B[r + i] = .. } }
//!   hoist_loads B.i off  =>  for b { for i { let r = row[b]; B[r + i] = .. } }
//! ```
//!
//! Reads of the prelude's tables, searches in them and the bounds of masks appear only once offsets are flat. So the
//! step marks the loop, and `hoist-loads` carries it out (paper section 5.3). Loops without a mark follow that pass: it
//! hoists, or not if it is run as `hoist-loads{off}` (`--no-hoist-loads`), where `hoist_loads` asks for single loops.
//! An element of a tensor that does not vary is another thing: `cache_read .. reg` at the loop.
//!
//! Requires: a loop that will still be one then. Ensures: only the mark changes.

use super::tree::{find_loop, loop_at};
use cora_ir::Diagnostic;
use cora_ir::loops::{LoopKind, LoopModule};
use cora_ir::schedule::LoopRef;

/// Marks a loop.
///
/// # Errors
/// `E0401`/`E0402` unknown stage or loop, `E0411` a loop without iterations of its own in code.
pub fn hoist_loads(m: &mut LoopModule, target: &LoopRef, on: bool) -> Result<(), Diagnostic> {
    let path = find_loop(m, target)?;
    let l = loop_at(&m.body, &path);
    if matches!(l.kind, LoopKind::Vector | LoopKind::Unroll | LoopKind::Virtual | LoopKind::Offload | LoopKind::Bulk) {
        return Err(Diagnostic::new(
            "E0411",
            format!(
                "loop `{}.{}` is {}: it has no iterations to hoist out of",
                target.stage,
                target.name,
                l.kind.described()
            ),
        )
        .hint("name a loop around it that stays one"));
    }
    let var = l.var;
    m.env.vars[var].hoist = Some(on);
    Ok(())
}
