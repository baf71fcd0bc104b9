//! Which words begin a step, and what parses the rest of it.

use super::super::{Parsed, Parser};
use super::{loops, marks, stages, tensors};
use cora_ir::Env;
use cora_ir::schedule::StepKind;

/// Every step.
pub(crate) const STEPS: &[&str] = &[
    "split",
    "fuse",
    "reorder",
    "vectorize",
    "unroll",
    "parallel",
    "bind",
    "pad_loop",
    "pad_dim",
    "split_dim",
    "fuse_dims",
    "reorder_dims",
    "compute_at",
    "compute_inline",
    "cache_write",
    "cache_read",
    "pack",
    "hoist_loads",
    "set_scope",
    "rfactor",
    "relax",
    "peel",
    "offload",
    "prefetch",
    "double_buffer",
    "storage_align",
    "remap",
    "op_split",
    "hfuse",
    "tile",
];
/// Words inside steps, which are no parameters.
pub(super) const WORDS: &[&str] = &[
    "by",
    "order",
    "longest_first",
    "round_robin",
    "peel",
    "access",
    "at",
    "tail",
    "mask",
    "exact",
    "layout",
    "global",
    "local",
    "shared",
    "reg",
    "warp",
    "vthread",
    "setup",
    "tiles",
    "on",
    "off",
    "locality",
    "offset",
];

/// The steps that `word` begins, a step a target where it takes several; `None` if it begins none.
pub(super) fn kinds(word: &str, p: &mut Parser, env: &Env) -> Parsed<Option<Vec<StepKind>>> {
    let one = |step: StepKind| vec![step];
    Ok(Some(match word {
        "split" => one(loops::split(p)?),
        "fuse" => one(loops::fuse(p)?),
        "reorder" => one(loops::reorder(p)?),
        "tile" => one(loops::tile(p)?),
        "remap" => loops::remap(p)?,
        "op_split" => one(loops::op_split(p)?),
        "hfuse" => one(loops::hfuse(p)?),
        "rfactor" => one(loops::rfactor(p)?),
        "vectorize" => marks::vectorize(p)?,
        "unroll" => marks::each_loop(p, |target| StepKind::Unroll { target })?,
        "parallel" => marks::each_loop(p, |target| StepKind::Parallel { target })?,
        "offload" => marks::each_loop(p, |target| StepKind::Offload { target })?,
        "peel" => marks::each_loop(p, |target| StepKind::Peel { target })?,
        "bind" => one(marks::bind(p)?),
        "relax" => marks::relax(p)?,
        "hoist_loads" => marks::hoist_loads(p)?,
        "pad_loop" => marks::pad_loop(p)?,
        "prefetch" => one(marks::prefetch(p)?),
        "double_buffer" => marks::double_buffer(p)?,
        "pad_dim" => one(tensors::pad_dim(p)?),
        "storage_align" => one(tensors::storage_align(p)?),
        "split_dim" => one(tensors::split_dim(p)?),
        "fuse_dims" => one(tensors::fuse_dims(p)?),
        "reorder_dims" => one(tensors::reorder_dims(p)?),
        "compute_at" => stages::compute_at(p)?,
        "compute_inline" => stages::compute_inline(p)?,
        "set_scope" => one(stages::set_scope(p)?),
        "cache_write" => one(stages::cache_write(p)?),
        "cache_read" => one(stages::cache_read(p, env)?),
        "pack" => one(stages::pack(p, env)?),
        _ => return Ok(None),
    }))
}
