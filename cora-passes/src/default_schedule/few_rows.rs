//! Register tiles of which few rows are left compute few.
//!
//! ```text
//! for ro { for ri in 0..min(6, R) unroll { acc } .. }
//!   =>  for ro { if 3 < R { .. } else { for ri in 0..min(3, R) unroll { acc } .. } }
//! ```
//!
//! A tile in registers runs in full, so one row would cost as much as six: a batch of one, an expert with two tokens, the
//! last rows of each sequence. Where a row is little work the other body would cost more than it saves. Elements of two bytes or one come faster than half a tile is computed, so one row has a body, too.

use super::{attempt, loop_ref, step};
use crate::schedule::relax::tile_of;
use crate::schedule::tree::{blocks_below, is_reduction_var};
use cora_ir::loops::{Block, BlockRole, For, Iter, IterKind, LoopKind, LoopModule, Stmt};
use cora_ir::schedule::{LoopRef, StepKind};
use cora_ir::{Expr, ExprId, Scope, TensorId};

/// Rows of a tile from which on fewer have a body of their own.
const ROWS: i64 = 4;
/// Terms of a result, and all terms of a tile's row, up to which it is little work, if there are so many of them; of the
/// latter where there is one tail, and where each row of a batch has its own.
const FEW_TERMS: i64 = 16;
const FEW_OF_ONE: i64 = 1 << 12;
const FEW_OF_EACH: i64 = 1 << 11;
/// Bytes of elements that come faster than half a tile is computed of them.
const NARROW: u64 = 2;

/// A register tile with a tail.
struct Tile {
    /// The loop that decides how much of it there is.
    site: LoopRef,
    rows: i64,
    /// Bytes of the smallest elements that it reads.
    bytes: u64,
}

/// Parts the loops of tiles by how many rows these have: more than half a tile, or fewer, or one. Whether there are any.
pub(super) fn few_rows(m: &mut LoopModule) -> bool {
    let mut parted = false;
    for Tile { site, rows, bytes } in tiles(m) {
        for few in [Some(rows / 2), (bytes <= NARROW).then_some(1)].into_iter().flatten() {
            let target = site.clone();
            parted |= attempt(m, |m| step(m, StepKind::Peel { target, few: Some(few) }));
        }
    }
    parted
}

fn tiles(m: &mut LoopModule) -> Vec<Tile> {
    let mut partial: Vec<(TensorId, i64, ExprId)> = Vec::new();
    let mut loops: Vec<(TensorId, ExprId)> = Vec::new();
    for s in &m.body {
        s.walk(&mut |s| {
            if let Stmt::For(l) = s
                && l.kind == LoopKind::Unroll
                && !l.init
                && m.env.tensors[l.stage].scope == Scope::Reg
                && !blocks_below(&l.body).into_iter().any(|b| is_reduction_var(&m.env.pool, b, l.var))
            {
                loops.push((l.stage, l.extent));
            }
        });
    }
    for (stage, extent) in loops {
        let Some((full, rest)) = tile_of(&mut m.env, extent) else { continue };
        if let Some(rows) = m.env.pool.as_int(full).filter(|&n| n >= ROWS)
            && !partial.iter().any(|p| p.0 == stage)
        {
            partial.push((stage, rows, rest));
        }
    }
    let tile = |(acc, rows, rest)| {
        let decides = around(m, acc).into_iter().find(|l| m.env.pool.uses_var(rest, l.var));
        Some(Tile { site: loop_ref(m, decides?), rows, bytes: least_bytes(m, acc) })
    };
    partial.into_iter().filter(|p| is_much(m, p.0, p.2)).filter_map(tile).collect()
}

/// Whether a row of a tile that an intermediate sums is much work, `rest` being how many there are.
fn is_much(m: &LoopModule, acc: TensorId, rest: ExprId) -> bool {
    let pool = &m.env.pool;
    let varies = |e: ExprId| !pool.vars_of(e).is_empty();
    let each = pool.any(rest, &mut |n| matches!(n, Expr::Call(_, args) if args.iter().any(|&a| varies(a))));
    let few = if each { FEW_OF_EACH } else { FEW_OF_ONE };
    let updates = m.blocks_writing(acc).into_iter().filter(|b| matches!(b.role, BlockRole::Update(_)));
    let much = |b: &Block| {
        let size = |i: &Iter| pool.as_int(i.extent);
        let mut reduced = b.iters.iter().filter(|i| i.kind == IterKind::Reduce);
        let terms = reduced.try_fold(1_i64, |n, i| n.checked_mul(size(i)?));
        let columns = b.iters.iter().rfind(|i| i.kind == IterKind::Spatial).and_then(size);
        match (terms, columns) {
            (Some(t), _) if t < FEW_TERMS => false,
            (Some(t), Some(c)) => t.saturating_mul(c) > few,
            _ => true,
        }
    };
    updates.into_iter().any(much)
}

/// Bytes of the smallest elements of which an intermediate is computed.
fn least_bytes(m: &LoopModule, t: TensorId) -> u64 {
    let mut bytes = u64::MAX;
    for b in m.blocks_writing(t) {
        m.env.pool.walk(b.value, &mut |_, n| {
            if let Expr::Load { tensor, .. } = n {
                bytes = bytes.min(m.env.tensors[*tensor].ty.bytes() as u64);
            }
        });
    }
    bytes
}

/// The loops in which all of what concerns an intermediate is, the innermost first.
fn around(m: &LoopModule, t: TensorId) -> Vec<&For> {
    let concerns = |s: &Stmt| {
        let mut found = false;
        s.walk(&mut |s| {
            if let Stmt::Block(b) = s {
                found |= b.tensor == t || m.env.pool.reads(b.value, t);
            }
        });
        found
    };
    let (mut body, mut loops) = (m.body.as_slice(), Vec::new());
    loop {
        let mut with = body.iter().filter(|s| concerns(s));
        match (with.next(), with.next()) {
            (Some(Stmt::For(l)), None) if l.kind != LoopKind::Unroll => {
                loops.insert(0, l);
                body = l.body.as_slice();
            }
            _ => return loops,
        }
    }
}
