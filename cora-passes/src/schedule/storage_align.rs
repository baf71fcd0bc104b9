//! `storage_align T.i 16 offset 4`: neighbours in a stored dimension lie a multiple of 16 elements and 4 apart.
//!
//! ```text
//! T[i: n, j: 50]  =>  element (i, j) at i * 52 + j      (52 = 3 * 16 + 4)
//! ```
//!
//! What lies inside one position of the dimension, its row, gets room up to the next such distance. Buffers begin at
//! addresses that are multiples of 64 bytes, so with no offset every row begins at a multiple of the distance's bytes.
//! Unlike `pad_dim` nothing gains positions: the row is rounded as a whole, whatever dimensions it has, and no loop may
//! use the room.
//!
//! Requires: a tensor that is neither input nor output, a dimension with others inside. Ensures: the same values; the
//! dimensions inside are stored as one.

use super::MAX_PADDING;
use super::layout_dims::Target;
use cora_ir::Diagnostic;
use cora_ir::layout::LayoutStep;
use cora_ir::loops::LoopModule;

/// Sets the distance of neighbours in `dim` of `tensor`.
///
/// # Errors
/// `E0463` unknown tensor, `E0475` input or output, `E0470` unknown dimension, `E0471` a multiple below 1 or too large, `E0413` an
/// offset that is not below the multiple, or a dimension with nothing inside.
pub fn storage_align(
    m: &mut LoopModule,
    tensor: &str,
    dim: &str,
    multiple: i64,
    offset: i64,
) -> Result<(), Diagnostic> {
    let target = Target::find(m, tensor)?;
    let d = target.position(m, dim)?;
    if !(1..=MAX_PADDING).contains(&multiple) {
        return Err(Diagnostic::new("E0471", format!("cannot align to multiples of {multiple}"))
            .hint(format!("align to a positive number of elements, at most {MAX_PADDING}")));
    }
    if !(0..multiple).contains(&offset) {
        return Err(Diagnostic::new("E0413", format!("an offset of {offset} from multiples of {multiple}"))
            .hint("an offset is from 0 to one less than the multiple"));
    }
    if d + 1 == target.names.len() {
        return Err(Diagnostic::new("E0413", format!("nothing lies inside dimension `{dim}` of `{tensor}`"))
            .note(format!("its stored dimensions are: {}", target.names.join(", ")))
            .hint("name the dimension whose rows are to be aligned; its neighbours are one row apart"));
    }
    target.push(m, LayoutStep::Align { dim: d, multiple, offset });
    Ok(())
}
