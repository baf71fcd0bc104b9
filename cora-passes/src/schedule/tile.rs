//! `tile S: i 14 j 32 -> io jo ii ji`: `split` of each loop with an exact tail, then `reorder`.
//!
//! Requires and ensures what those do.

use super::reorder::reorder;
use super::split::split;
use cora_ir::Diagnostic;
use cora_ir::loops::LoopModule;
use cora_ir::schedule::{LoopRef, Tail};

/// Tiles loops of `stage`; `names` are first those of the loops over tiles, then of those inside.
///
/// # Errors
/// `E0403` not two names a loop, and those of `split` and `reorder`.
pub fn tile(m: &mut LoopModule, stage: &str, loops: &[(String, i64)], names: &[String]) -> Result<(), Diagnostic> {
    if names.len() != 2 * loops.len() {
        return Err(Diagnostic::new(
            "E0403",
            format!(
                "tile of {} loops of `{stage}` makes {} loops, but {} names are given",
                loops.len(),
                2 * loops.len(),
                names.len()
            ),
        )
        .hint("name the loops over tiles first, then those inside, each in the order of the loops"));
    }
    let saved = m.body.clone();
    let mut go = || {
        for (n, (name, size)) in loops.iter().enumerate() {
            let target = LoopRef { stage: stage.to_owned(), name: name.clone() };
            split(m, &target, *size, (&names[n], &names[loops.len() + n]), Tail::Exact)?;
        }
        reorder(m, stage, names)
    };
    let result = go();
    if result.is_err() {
        m.body = saved;
    }
    result
}
