//! `reorder_dims T: h b i`: permutes the named stored dimensions among the places they have.
//!
//! ```text
//! T[b: M, i: lens(b), h: 8]  =>  T[h: 8, b: M, i: lens(b)], T[b, i, h] at [h, b, i]
//! ```
//!
//! Requires: a tensor that is neither input nor output; every dimension stays inside those on whose
//! index its storage depends. Ensures: the same values; loops and accesses stay, storage lowering
//! changes the offsets.

use super::layout_dims::{Target, depends};
use cora_ir::Diagnostic;
use cora_ir::layout::LayoutStep;
use cora_ir::loops::LoopModule;

/// Permutes dimensions of `tensor`; those not named stay where they are.
///
/// # Errors
/// `E0463` unknown tensor, `E0475` input or output, `E0470` unknown dimension, `E0477` a dimension
/// named twice, or that would leave one on which its size depends.
pub fn reorder_dims(m: &mut LoopModule, tensor: &str, names: &[String]) -> Result<(), Diagnostic> {
    let target = Target::find(m, tensor)?;
    let named = names.iter().map(|d| target.position(m, d)).collect::<Result<Vec<_>, _>>()?;
    if let Some(n) = (1..named.len()).find(|&n| named[..n].contains(&named[n])) {
        return Err(Diagnostic::new("E0477", format!("dimension `{}` is named twice", names[n]))
            .hint("name each dimension once"));
    }
    let mut next = named.iter().copied();
    let order: Vec<usize> =
        (0..target.names.len()).map(|d| if named.contains(&d) { next.next().unwrap_or(d) } else { d }).collect();
    if let Some(extents) = target.extents(m) {
        for (at, &d) in order.iter().enumerate() {
            if let Some(&out) = order[at + 1..].iter().find(|&&o| depends(m, extents[d], o)) {
                let (inner, outer) = (&target.names[d], &target.names[out]);
                return Err(Diagnostic::new(
                    "E0477",
                    format!("dimension `{inner}` of `{tensor}` cannot be outside `{outer}`, on which its size depends"),
                )
                .hint(format!("keep `{inner}` inside `{outer}`, or fuse_dims the two and move them together")));
            }
        }
    }
    if !order.iter().copied().eq(0..order.len()) {
        target.push(m, LayoutStep::Reorder { order });
    }
    Ok(())
}
