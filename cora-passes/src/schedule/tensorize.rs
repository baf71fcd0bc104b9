//! `tensorize S.ii mma.m16n8k16.f32.bf16`: a loop and the loops inside it become one tile of a tensor instruction.
//!
//! ```text
//! for ii in 0..16 { for ji in 0..8 { for ki in 0..16 { S[io*16+ii, jo*8+ji] += f32(A[..]) * f32(B[..]) } } }
//!   =>  for ii mma.m16n8k16.f32.bf16 { for ji mma.. { for ki mma.. { .. } } }, in the storage dialect  tile mma.m16n8k16.f32.bf16 @S[..] = @A[..] * @B[..]
//! ```
//!
//! Instructions are data (`cora_ir::intrinsic`): sizes, element types, how elements enter the product, where operands
//! may be, which lane holds what. Any block that computes what the instruction computes is taken, at any affine
//! addresses; nothing is known of what program it is in. The lanes of a warp execute an `mma` together, so the tile
//! stands where a loop over `thread.x` would; its result, in registers, is spread over them.
//!
//! Requires: serial loops. Ensures: only their kind changes. What the tile is is checked by lowering the nest as it is
//! now, and again when the whole program is lowered, since later steps may change it.

use super::inits::place_init;
use super::serial_loop::serial_loop;
use super::tree::{Path, enclosing, find_loop, loop_at, loop_at_mut};
use crate::lower::tensorize::shape;
use crate::lower::to_storage::lowered_alone;
use crate::simplify::{Facts, simplify};
use cora_ir::loops::{For, LoopKind, LoopModule, Stmt};
use cora_ir::schedule::LoopRef;
use cora_ir::{Diagnostic, ExprId, IntrinsicId, VarId};

/// What lowering says about tiles, whatever comes around them later.
pub(crate) const REFUSALS: [&str; 4] = ["E0425", "E0426", "E0427", "E0428"];

/// Marks the loops of a tile.
///
/// # Errors
/// `E0401`/`E0402` unknown stage or loop, `E0411` not serial, `E0425` no sum of products as the instruction reads them,
/// `E0426` a tile of another size, `E0427` an operand of another type, scope or address, `E0428` a place where the
/// instruction cannot be.
pub fn tensorize(m: &mut LoopModule, target: &LoopRef, intrinsic: IntrinsicId) -> Result<(), Diagnostic> {
    let path = find_loop(m, target)?;
    let stage = serial_loop(m, &path, target)?.stage;
    let saved = (m.body.clone(), m.env.tensors.clone());
    settle_extents(m, &path);
    mark(loop_at_mut(&mut m.body, &path), LoopKind::Tensorize(intrinsic));
    let outcome = shape(&m.env, loop_at(&m.body, &path), intrinsic).map(drop);
    if outcome.is_ok() {
        place_init(m, stage);
    }
    if let Err(d) = outcome.and_then(|()| check_lowered(m, target, intrinsic)) {
        (m.body, m.env.tensors) = saved;
        return Err(d);
    }
    Ok(())
}

/// Lowers the nest as it is now.
fn check_lowered(m: &mut LoopModule, target: &LoopRef, intrinsic: IntrinsicId) -> Result<(), Diagnostic> {
    let path = find_loop(m, target)?;
    let grid = is_grid(&m.body[path[0]]);
    // What else has no storage yet may get it by later steps.
    lowered_alone(
        m,
        &path[..1],
        |_| {},
        |lowered| match lowered {
            Err(d) if d.code == "E0428" && intrinsic.get().lanes > 1 && !grid => Ok(()),
            Err(d) if REFUSALS.contains(&d.code) => Err(d),
            _ => Ok(()),
        },
    )
}

/// Extents of the tile's loops that are constant wherever the loops around them get are written as constants.
fn settle_extents(m: &mut LoopModule, path: &Path) {
    let mut around: Vec<(VarId, ExprId)> = enclosing(&m.body, path).iter().map(|l| (l.var, l.extent)).collect();
    let mut l = loop_at_mut(&mut m.body, path);
    loop {
        if m.env.pool.as_int(l.extent).is_none() {
            let extent = simplify(&mut m.env, None, &Facts::in_loops(around.iter().copied()), l.extent);
            if m.env.pool.as_int(extent).is_some() {
                l.extent = extent;
            }
        }
        around.push((l.var, l.extent));
        match l.body.as_mut_slice() {
            [Stmt::For(inner)] if inner.kind == LoopKind::Serial => l = inner,
            _ => return,
        }
    }
}

/// A loop and the serial loops inside it.
fn mark(l: &mut For, kind: LoopKind) {
    l.kind = kind;
    for s in &mut l.body {
        if let Stmt::For(inner) = s
            && inner.kind == LoopKind::Serial
        {
            mark(inner, kind);
        }
    }
}

/// Whether loops are bound to a grid already.
fn is_grid(nest: &Stmt) -> bool {
    let mut found = false;
    nest.walk(&mut |s| found |= matches!(s, Stmt::For(l) if l.kind.axis().is_some()));
    found
}
