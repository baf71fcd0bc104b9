//! `bulk_copy Xs.i`: a loop and the loops inside it become one copy of a box by a GPU's copy engine.
//!
//! ```text
//! for i in 0..128 { for k in 0..64 { Xs[i, k] = X[f*128 + i, o*64 + k] } }
//!   =>  for i bulk { for k bulk { .. } }, in the storage dialect  bulk @Xs[..] = @X[..]  await @Xs
//! ```
//!
//! One thread of the block asks for the box, and all threads wait for it: no thread computes an address or holds an
//! element. The box is described as data (`lower::bulk`), whatever is copied: sizes of the source come with the batch, and
//! what is outside of it is zero.
//!
//! Requires: the serial loops of a stage that copies elements of a global tensor into a shared buffer, in full tiles.
//! Ensures: only their kind changes. That they are a box is checked by lowering the nest as it is now, and again when the
//! whole program is lowered, since later steps may change the copy.

use super::serial_loop::{in_nest, serial_or};
use super::tree::{find_loop, loop_at_mut};
use crate::lower::bulk::REFUSALS;
use crate::lower::to_storage::lowered_alone;
use cora_ir::Diagnostic;
use cora_ir::loops::{Axis, For, LoopKind, LoopModule, Stmt};
use cora_ir::schedule::LoopRef;

/// Marks the loops.
///
/// # Errors
/// `E0401`/`E0402` unknown stage or loop, `E0411` not serial, `E0405` no copy into shared memory, `E0406` no box that the
/// engine brings, `E0407` zeros that are not outside of the tensor, `E0419` inside a loop over threads.
pub fn bulk_copy(m: &mut LoopModule, target: &LoopRef) -> Result<(), Diagnostic> {
    let path = find_loop(m, target)?;
    serial_or(m, &path, target, "a loop has one kind; the loops of the box are left serial")?;
    let mut grid = false;
    m.body[path[0]].walk(&mut |s| grid |= matches!(s, Stmt::For(l) if l.kind.axis().is_some()));
    let marked = |alone: &mut LoopModule| {
        mark(loop_at_mut(&mut alone.body, &in_nest(&path)));
        // Loops may be bound by later steps.
        if let (false, true, Stmt::For(l)) = (grid, path.len() > 1, &mut alone.body[0]) {
            l.kind = LoopKind::Bound(Axis::BlockX);
        }
    };
    // What else has no storage yet may get it by later steps.
    lowered_alone(m, &path[..1], marked, |lowered| match lowered {
        Err(d) if REFUSALS.contains(&d.code) && (grid || d.code != "E0419") => Err(d),
        _ => Ok(()),
    })?;
    mark(loop_at_mut(&mut m.body, &path));
    Ok(())
}

/// A loop and the serial loops inside it.
fn mark(l: &mut For) {
    l.kind = LoopKind::Bulk;
    for s in &mut l.body {
        if let Stmt::For(inner) = s
            && inner.kind == LoopKind::Serial
        {
            mark(inner);
        }
    }
}
