//! Steps that change how tensors are stored.

use super::super::{Parsed, Parser};
use super::words::{arrow, loop_ref, names, positive, whole};
use cora_ir::schedule::{LoopRef, StepKind};

/// `pad_dim T.i 4`.
pub(super) fn pad_dim(p: &mut Parser) -> Parsed<StepKind> {
    let LoopRef { stage: tensor, name: dim } = loop_ref(p)?;
    Ok(StepKind::PadDim { tensor, dim, multiple: positive(p)? })
}

/// `storage_align T.i 16 offset 4`.
pub(super) fn storage_align(p: &mut Parser) -> Parsed<StepKind> {
    let LoopRef { stage: tensor, name: dim } = loop_ref(p)?;
    let multiple = positive(p)?;
    let offset = if p.eat("offset") { whole(p)? } else { 0 };
    Ok(StepKind::StorageAlign { tensor, dim, multiple, offset })
}

/// `swizzle Xs Ws`.
pub(super) fn swizzle(p: &mut Parser) -> Parsed<Vec<StepKind>> {
    Ok(names(p, "a tensor")?.into_iter().map(|tensor| StepKind::Swizzle { tensor }).collect())
}

/// `split_dim T.i 32 -> io, ii`.
pub(super) fn split_dim(p: &mut Parser) -> Parsed<StepKind> {
    let LoopRef { stage: tensor, name: dim } = loop_ref(p)?;
    let factor = positive(p)?;
    let outer = arrow(p, "the block dimension's name")?;
    p.expect(",")?;
    let inner = p.name("the inner dimension's name")?.name;
    Ok(StepKind::SplitDim { tensor, dim, factor, outer, inner })
}

/// `fuse_dims T: b i -> t`.
pub(super) fn fuse_dims(p: &mut Parser) -> Parsed<StepKind> {
    let (tensor, dims) = dims(p)?;
    Ok(StepKind::FuseDims { tensor, dims, name: arrow(p, "the fused dimension's name")? })
}

/// `reorder_dims T: h b i`.
pub(super) fn reorder_dims(p: &mut Parser) -> Parsed<StepKind> {
    let (tensor, order) = dims(p)?;
    Ok(StepKind::ReorderDims { tensor, order })
}

/// `T: b i d`
fn dims(p: &mut Parser) -> Parsed<(String, Vec<String>)> {
    let tensor = p.name("a tensor")?.name;
    p.expect(":")?;
    Ok((tensor, names(p, "a dimension")?))
}
