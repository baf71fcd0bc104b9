//! `pack S.W -> Wp setup tiles(k, n 32)`: a stage reads a tensor through a copy in contiguous, aligned tiles.
//!
//! ```text
//! tiles(k, n 32):      W[k, n] => Wp[n/32, k, n%32]             a tile is all of k by 32 of n
//! tiles(k 256, n 32):  W[k, n] => Wp[k/256, n/32, k%256, n%32]
//! ```
//!
//! The dimensions named form the tile, in the order given, those with a number in pieces of so many positions. Which
//! tile it is comes outside: first the dimensions that are not named, then the numbers of the pieces. So a tile is one
//! stretch of memory; it begins at a multiple of 64 bytes and has a constant size that some cache of one core holds
//! (GotoBLAS's packing). The copy is made at a loop of the stage, by the rules of `compute_at`, with `setup` once for
//! given const inputs, or with `before` by a nest of its own.
//!
//! It is `cache_read` with that layout, and `storage_align` where the tile's bytes are no multiple of 64: there is no
//! other mechanism. Dimensions in which every read is at the same constant position are left out.
//!
//! Requires: what `cache_read` requires; tiles of constant size. Ensures: the same values.

use super::cache_read::{CacheRead, cache_read, constant_reads};
use super::storage_align::storage_align;
use super::tensor_called;
use super::tree::{find_loop, find_stage};
use cora_ir::loops::LoopModule;
use cora_ir::schedule::{CopyAt, LayoutDim, PackDim};
use cora_ir::{Diagnostic, Expr, Scope, TensorDim, TensorId};

/// Bytes at whose multiples tiles begin: a line of the caches, and the widest vector.
const ALIGNMENT: i64 = 64;
/// Greatest size of a tile in bytes: a core's own cache.
const MAX_TILE: i64 = 1 << 20;

/// What to pack and where; as in [`CacheRead`].
pub struct Pack<'a> {
    /// The reading stage.
    pub stage: &'a str,
    /// The tensor that it reads.
    pub tensor: &'a str,
    /// Name of the new stage.
    pub name: &'a str,
    /// Scope of the copy.
    pub scope: Scope,
    /// Where it is made.
    pub at: &'a CopyAt,
    /// The dimensions of a tile, outermost first.
    pub tiles: &'a [PackDim<usize>],
    /// Which distinct read of the tensor, in order of appearance; nothing = all.
    pub access: Option<usize>,
}

/// Inserts the copy.
///
/// # Errors
/// `E0463` unknown tensor, `E0469` a tile of no dimension, of one that the tensor has not or twice of one, without a
/// constant size or too large; those of `cache_read`.
pub fn pack(m: &mut LoopModule, p: &Pack) -> Result<(), Diagnostic> {
    let stage = find_stage(m, p.stage)?;
    let path = p.at.as_loop().map(|at| find_loop(m, at)).transpose()?;
    let source = tensor_called(m, p.tensor)?;
    let elements = tile_size(m, source, p)?;
    let constant = constant_reads(m, (stage, source), path.as_deref(), p.access);
    let saved = m.checkpoint();
    let layout = layout(p.tiles, &constant);
    let &Pack { stage, tensor, name, scope, at, access, .. } = p;
    cache_read(m, &CacheRead { stage, tensor, name, scope, at, layout: &layout, access })?;
    let aligned = align(m, p, &layout, elements);
    if aligned.is_err() {
        m.restore(saved);
    }
    aligned
}

/// Elements of a tile.
fn tile_size(m: &LoopModule, source: TensorId, p: &Pack) -> Result<i64, Diagnostic> {
    let dims = &m.env.tensors[source].dims;
    let refuse = |why: String, hint: String| Err(Diagnostic::new("E0469", why).hint(hint));
    let names: Vec<&str> = dims.iter().map(|d| d.name.as_str()).collect();
    let (named, known) = (p.tiles.len(), format!("its dimensions are: {}", names.join(", ")));
    if named == 0 || p.tiles.iter().any(|t| t.dim >= dims.len()) {
        return refuse(format!("a tile of `{}` has no such dimensions", p.tensor), known);
    }
    if let Some(t) = p.tiles.iter().enumerate().find(|(n, t)| p.tiles[..*n].iter().any(|u| u.dim == t.dim)) {
        let what = format!("a tile of `{}` has dimension `{}` twice", p.tensor, dims[t.1.dim].name);
        return refuse(what, "name each dimension of the tile once".to_owned());
    }
    let mut elements: i64 = 1;
    for t in p.tiles {
        let dim = &dims[t.dim];
        let Some(size) = t.size.or_else(|| m.env.pool.as_int(dim.storage)) else {
            let what = format!("a tile of `{}` has no constant size in dimension `{}`", p.tensor, dim.name);
            let steers = |d: &TensorDim| m.env.pool.any(d.extent, &mut |n| *n == Expr::Arg(t.dim as u32));
            let hint = if dims[t.dim + 1..].iter().any(steers) {
                format!(
                    "leave `{}` out of the tile: dimensions inside it have sizes of their own for each position",
                    dim.name
                )
            } else {
                format!("give it one, `{} 32`", dim.name)
            };
            return refuse(what, hint);
        };
        elements = elements.saturating_mul(size.max(0));
    }
    let bytes = elements.saturating_mul(element_bytes(m, source));
    if bytes > MAX_TILE {
        return refuse(
            format!("a tile of `{}` has {bytes} bytes, more than the {MAX_TILE} of a core's own cache", p.tensor),
            "give its dimensions smaller sizes, `k 256`".to_owned(),
        );
    }
    Ok(elements)
}

/// Bytes of an element; of a tuple's largest part.
fn element_bytes(m: &LoopModule, tensor: TensorId) -> i64 {
    m.env.part_types(tensor).iter().map(|t| t.bytes() as i64).max().unwrap_or(1)
}

/// The copy's dimensions: those outside the tile, the numbers of pieces, the tile.
fn layout(tiles: &[PackDim<usize>], constant: &[bool]) -> Vec<LayoutDim<usize>> {
    let named = |d: usize| tiles.iter().any(|t| t.dim == d);
    let outside = (0..constant.len()).filter(|&d| !named(d) && !constant[d]).map(LayoutDim::whole);
    let pieces = tiles.iter().filter_map(|t| Some(LayoutDim::div(t.dim, t.size?)));
    let inside = tiles.iter().map(|t| t.size.map_or(LayoutDim::whole(t.dim), |c| LayoutDim::modulo(t.dim, c)));
    outside.chain(pieces).chain(inside).collect()
}

/// Makes tiles begin at multiples of [`ALIGNMENT`] bytes; the buffer does.
fn align(m: &mut LoopModule, p: &Pack, layout: &[LayoutDim<usize>], elements: i64) -> Result<(), Diagnostic> {
    let Some(copy) = m.env.tensor_named(p.name) else { return Ok(()) };
    let multiple = ALIGNMENT / element_bytes(m, copy).clamp(1, ALIGNMENT);
    let outside = layout.len() - p.tiles.len();
    if outside == 0 || elements % multiple == 0 {
        return Ok(());
    }
    let dims = &m.env.tensors[copy].dims;
    if dims.len() != layout.len() {
        // Attached inside a fused loop a copy has the dimensions of its reader's loops.
        return Err(Diagnostic::new("E0469", format!("no whole tiles of `{}` are read in that loop", p.tensor))
            .hint("pack it at a loop further out, or copy it with `cache_read`"));
    }
    let dim = dims[outside - 1].name.clone();
    storage_align(m, p.name, &dim, multiple, 0)
}
