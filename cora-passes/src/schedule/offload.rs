//! `offload S.ii`: a loop and all inside it become one product of matrices, given to a BLAS.
//!
//! ```text
//! for ii in 0..min(32, n - io*32) { for j in 0..N { S[..] = 0  for k in 0..K { S[io*32+ii, j] += A[..] * B[..] } } }
//!   =>  for ii offload { .. }, in the storage dialect  gemm @S[..] = @A[..] * @B[..] over min(32, n - io*32), N, K
//! ```
//!
//! The tile is described as data, not by a pattern of a program: a block that adds products of two elements, whose
//! loops are the rows, columns and reduced positions of three matrices (`lower::offload`). Sizes and strides may come
//! with the batch, so a ragged edge is a smaller product; a mask on one loop is a smaller size too.
//!
//! Requires: a serial loop. Ensures: only its kind changes. That the tile is a product is checked by lowering the nest
//! as it is now, and again when the whole program is lowered, since later steps may change the tile.

use super::serial_loop::{in_nest, serial_loop};
use super::tree::{find_loop, loop_at_mut};
use crate::lower::to_storage::lowered_alone;
use cora_ir::Diagnostic;
use cora_ir::loops::{LoopKind, LoopModule};
use cora_ir::schedule::LoopRef;

/// What lowering says about tiles.
pub const REFUSALS: [&str; 4] = ["E0455", "E0456", "E0457", "E0458"];

/// Marks a loop.
///
/// # Errors
/// `E0401`/`E0402` unknown stage or loop, `E0411` not serial, `E0455` a tile that is no sum of products over rows,
/// columns and reduced positions, `E0456` a matrix that no BLAS takes, `E0457` a tile that is no box, `E0458` a tile
/// inside a grid.
pub fn offload(m: &mut LoopModule, target: &LoopRef) -> Result<(), Diagnostic> {
    let path = find_loop(m, target)?;
    serial_loop(m, &path, target)?;
    let marked = |alone: &mut LoopModule| loop_at_mut(&mut alone.body, &in_nest(&path)).kind = LoopKind::Offload;
    // What else has no storage yet may get it by later steps.
    lowered_alone(m, &path[..1], marked, |lowered| match lowered {
        Err(d) if REFUSALS.contains(&d.code) => Err(d),
        _ => Ok(()),
    })?;
    loop_at_mut(&mut m.body, &path).kind = LoopKind::Offload;
    Ok(())
}
