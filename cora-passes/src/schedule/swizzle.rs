//! `swizzle Xs`: of each 8 neighbouring lines of 128 bytes the pieces of 16 bytes are permuted, piece `p` of line `l` lying
//! where piece `p xor l % 8` would.
//!
//! ```text
//! Xs[i: 128, k: 64] of bf16  =>  element (i, k) at i * 64 + (k / 8 xor i % 8) * 8 + k % 8
//! ```
//!
//! So 8 lines' pieces of the same number, which a tensor instruction reads together, lie in all banks of shared memory.
//! Only the copy engine writes such a buffer and only instructions that read shared memory by themselves read it: both do
//! the permutation, in terms of addresses, and everything else speaks of elements as they would lie without it.
//!
//! Requires: a tensor that is neither input nor output. Ensures: the same values. That nothing else accesses it, and that
//! its lines have 128 bytes, lowering checks.

use super::layout_dims::Target;
use cora_ir::Diagnostic;
use cora_ir::layout::LayoutStep;
use cora_ir::loops::LoopModule;

/// Permutes the pieces of a tensor's lines.
///
/// # Errors
/// `E0463` unknown tensor, `E0475` input or output, `E0429` swizzled already.
pub fn swizzle(m: &mut LoopModule, tensor: &str) -> Result<(), Diagnostic> {
    let target = Target::find(m, tensor)?;
    let done = m.env.tensors.iter().any(|(_, t)| t.name == tensor && t.layout.contains(&LayoutStep::Swizzle));
    if done {
        return Err(Diagnostic::new("E0429", format!("`{tensor}` is swizzled already")).hint("leave out the step"));
    }
    target.push(m, LayoutStep::Swizzle);
    Ok(())
}
