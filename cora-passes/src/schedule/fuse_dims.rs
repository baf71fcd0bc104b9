//! `fuse_dims T: b i -> t`: neighbouring stored dimensions become one.
//!
//! ```text
//! T[b: M, i: lens(b), d: 64]  =>  T[t: row(M), d: 64], T[b, i, d] at [row(b) + i, d]
//! ```
//!
//! By itself it moves nothing: the fused dimension counts elements in the order in which they were.
//! It is the step before a split across rows, or a reorder of several dimensions as one.
//!
//! Requires: a tensor that is neither input nor output; neighbours, in their order. Ensures: the
//! same values; loops and accesses stay, storage lowering changes the offsets.

use super::layout_dims::Target;
use cora_ir::Diagnostic;
use cora_ir::layout::LayoutStep;
use cora_ir::loops::LoopModule;

/// Fuses `dims` of `tensor`, outermost first.
///
/// # Errors
/// `E0463` unknown tensor, `E0475` input or output, `E0470` unknown dimension, `E0476` fewer than
/// two dimensions or ones that are no neighbours in that order, `E0478` a name that is taken.
pub fn fuse_dims(m: &mut LoopModule, tensor: &str, dims: &[String], name: &str) -> Result<(), Diagnostic> {
    let target = Target::find(m, tensor)?;
    let positions = dims.iter().map(|d| target.position(m, d)).collect::<Result<Vec<_>, _>>()?;
    let first = positions.first().copied().unwrap_or(0);
    if positions.len() < 2 || !positions.iter().copied().eq(first..first + positions.len()) {
        return Err(Diagnostic::new(
            "E0476",
            format!("the dimensions {} of `{tensor}` are not neighbours in that order", dims.join(", ")),
        )
        .note(format!("its stored dimensions are: {}", target.names.join(", ")))
        .hint("name two or more neighbours, outermost first; reorder_dims can bring them together"));
    }
    target.fresh(m, name, &positions)?;
    target.push(m, LayoutStep::Fuse { first, count: positions.len(), name: name.to_owned() });
    Ok(())
}
