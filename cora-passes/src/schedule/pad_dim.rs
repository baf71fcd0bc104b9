//! `pad_dim T.i 4`: storage padding (paper section 4.1).
//!
//! Requires: a dimension whose index decides the size of no other, in the layout that the tensor began with. Ensures: only
//! storage grows.

use super::{MAX_PADDING, dimension, tensor_called};
use cora_ir::loops::LoopModule;
use cora_ir::{Diagnostic, Expr, ExprId};

/// Rounds the storage extent of dimension `dim` of `tensor` up to a multiple.
///
/// # Errors
/// `E0463` unknown tensor, `E0470` unknown dimension, `E0471` a multiple below 1, `E0474` a
/// dimension whose index decides, by a function, how large another one is, `E0479` a tensor whose
/// layout has changed.
pub fn pad_dim(m: &mut LoopModule, tensor: &str, dim: &str, multiple: i64) -> Result<(), Diagnostic> {
    let t = tensor_called(m, tensor)?;
    check_multiple(multiple)?;
    if !m.env.tensors[t].layout.is_empty() {
        return Err(Diagnostic::new("E0479", format!("the layout of `{tensor}` has changed already"))
            .hint("pad_dim comes before split_dim, fuse_dims and reorder_dims; a split pads by itself"));
    }
    let d = dimension(m, t, &dim.into())?;
    let steered =
        |x: &cora_ir::TensorDim| [x.extent, x.storage].into_iter().any(|e| calls_with_arg(&m.env.pool, e, d as u32));
    if let Some(inner) = m.env.tensors[t].dims[d + 1..].iter().find(|x| steered(x)) {
        return Err(Diagnostic::new(
            "E0474",
            format!("dimension `{dim}` of `{tensor}` cannot be padded: the size of `{}` depends on it", inner.name),
        )
        .note(format!("`{}` has no size at positions of `{dim}` beyond its extent", inner.name))
        .hint(format!("pad `{}` instead, or fuse the loops with bulk padding", inner.name)));
    }
    let storage = m.env.tensors[t].dims[d].storage;
    m.env.tensors[t].dims[d].storage = m.env.pool.round_up(storage, multiple);
    Ok(())
}

/// A multiple that may be padded to.
pub(super) fn check_multiple(multiple: i64) -> Result<(), Diagnostic> {
    if (1..=MAX_PADDING).contains(&multiple) {
        return Ok(());
    }
    Err(Diagnostic::new("E0471", format!("cannot pad to a multiple of {multiple}"))
        .hint(format!("pad to a positive multiple, at most {MAX_PADDING}")))
}

/// Whether a function is called with something that depends on `Arg(n)`.
pub(super) fn calls_with_arg(pool: &cora_ir::ExprPool, e: ExprId, n: u32) -> bool {
    let mut found = false;
    pool.walk(e, &mut |id, x| {
        if matches!(x, Expr::Call(..)) {
            found = found || pool.any(id, &mut |y| *y == Expr::Arg(n));
        }
    });
    found
}
