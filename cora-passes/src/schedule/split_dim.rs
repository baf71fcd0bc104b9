//! `split_dim T.i 32 -> io, ii`: a stored dimension becomes blocks and positions in a block.
//!
//! ```text
//! T[b: M, i: lens(b)]  =>  T[b: M, io: ceildiv(lens(b), 32), ii: 32], T[b, i] at [b, i // 32, i % 32]
//! ```
//!
//! Requires: a tensor that is neither input nor output; unless the blocks come out even, no inner
//! dimension whose size is a function of this index (it has no value in the padding of the last
//! block). Ensures: the same values; loops and accesses stay, storage lowering changes the offsets.

use super::MAX_PADDING;
use super::layout_dims::Target;
use super::pad_dim::calls_with_arg;
use super::split::divisible;
use cora_ir::Diagnostic;
use cora_ir::layout::LayoutStep;
use cora_ir::loops::LoopModule;

/// Splits dimension `dim` of `tensor`.
///
/// # Errors
/// `E0463` unknown tensor, `E0475` input or output, `E0470` unknown dimension, `E0410` a factor
/// below 1 or too large, `E0478` a name that is taken, `E0474` padding of a dimension that steers another one.
pub fn split_dim(
    m: &mut LoopModule,
    tensor: &str,
    dim: &str,
    factor: i64,
    (outer, inner): (&str, &str),
) -> Result<(), Diagnostic> {
    let target = Target::find(m, tensor)?;
    let d = target.position(m, dim)?;
    if !(1..=MAX_PADDING).contains(&factor) {
        return Err(Diagnostic::new("E0410", format!("cannot split by {factor}"))
            .hint(format!("split by a positive number, at most {MAX_PADDING}: the last block is stored whole")));
    }
    target.fresh(m, outer, &[d])?;
    target.fresh(m, inner, &[d])?;
    if outer == inner {
        return Err(Diagnostic::new("E0478", format!("both new dimensions are called `{outer}`"))
            .hint("choose another name for one of them"));
    }
    if let Some(extents) = target.extents(m)
        && !divisible(&mut m.env.pool, extents[d], factor)
        && let Some(at) = (d + 1..extents.len()).find(|&x| calls_with_arg(&m.env.pool, extents[x], d as u32))
    {
        let steered = &target.names[at];
        return Err(Diagnostic::new(
            "E0474",
            format!("dimension `{dim}` of `{tensor}` cannot be split: the size of `{steered}` depends on it"),
        )
        .note(format!("the last block has padding, and `{steered}` has no size there"))
        .hint(format!("fuse_dims `{dim}` with `{steered}` first, or split `{steered}`")));
    }
    target.push(m, LayoutStep::Split { dim: d, factor, outer: outer.to_owned(), inner: inner.to_owned() });
    Ok(())
}
