//! `relax S.k` of a loop that is reduced over: surplus terms are sums of products of zeros.
//!
//! ```text
//! for k in 0..min(32, R) { S += A[k] * B[k] }  =>  for k in 0..32 { S += A[k] * B[k] }
//! where A and B are copies of which positions R..32 hold zeros (`relax A.k zero`)
//! ```
//!
//! A sum takes a surplus 0 without a change, so the loop has no tail. That a surplus term is 0 follows from its form:
//! every element that it reads is one of the zeros that a copy was relaxed with, and sums, differences and products of
//! zeros are zero. An element that comes from elsewhere might be infinite, and infinity times 0 is not 0.
//!
//! A copy may hold the tile alone, or the whole dimension in tiles, each of them full: then zeros are all positions from
//! the dimension's end to that of its last tile.
//!
//! Requires: a loop with extent `min(c, R)`, reduced over by a sum all of whose reads are of copies that were relaxed
//! with `zero` over the same tile, or over tiles that end where it does or later. Ensures: constant extent, the same sums.

use super::filled::{Filled, Loops, Writers, base_of, filled_dims, writers_of_reads};
use super::inits::place_init;
use super::relax::{clamped, each_block, extents_below_use, tile_of};
use super::tree::{Path, blocks_below, enclosing, is_reduction_var, loop_at, loop_at_mut};
use crate::simplify::{Facts, Prover};
use cora_ir::affine::{normalize, poly};
use cora_ir::loops::{Block, BlockRole, Iter, IterKind, LoopModule};
use cora_ir::{BinOp, Combiner, Env, Expr, ExprId, TensorId, UnOp, VarId};
use rustc_hash::{FxHashMap, FxHashSet};

/// Whether a block below the loop reduces over it.
pub fn is_reduced(m: &LoopModule, path: &Path) -> bool {
    let l = loop_at(&m.body, path);
    blocks_below(&l.body).iter().any(|b| is_reduction_var(&m.env.pool, b, l.var))
}

/// Why other reductions are not relaxed.
pub const NOT_A_SUM: &str = "only a sum takes surplus terms of 0";

/// Relaxes the loop at `path`, whose extent is `min(full, rest)`; else says why not.
///
/// # Errors
/// The reason, in words, for which [`super::relax::relax`] gives `E0480`.
pub fn relax_reduced(m: &mut LoopModule, path: &Path, (full, rest): (ExprId, ExprId)) -> Result<(), &'static str> {
    let l = loop_at(&m.body, path).clone();
    if extents_below_use(&m.env, &l.body, l.var) {
        return Err("loops inside depend on it");
    }
    let writers = writers_of_reads(m, path);
    let filled = zeros(m, &writers, full, rest);
    let tails = tails(m, &writers);
    let loops: Loops = enclosing(&m.body, path).iter().map(|l| (l.var, l.extent)).collect();
    for b in blocks_below(&l.body) {
        if b.stage != l.stage || b.role != BlockRole::Update(cora_ir::Reduction::Op(Combiner::Sum)) {
            return Err(NOT_A_SUM);
        }
        let unused = unused(&m.env, b, l.var);
        let steers = |i: &&Iter| m.env.pool.uses_var(i.binding, l.var) && !unused.contains(&i.var);
        let steered: Vec<&Iter> = b.iters.iter().filter(steers).collect();
        if steered.iter().any(|i| i.kind == IterKind::Spatial)
            || b.predicate.iter().any(|&p| m.env.pool.uses_var(p, l.var))
        {
            return Err("its position says which elements are written");
        }
        let mut reduced = Vec::new();
        for i in steered {
            reduced.push((i.var, base_of(&mut m.env, i.binding, l.var).ok_or("its position is not read as it is")?));
        }
        let mut reads = Vec::new();
        for &(var, base) in &reduced {
            reads
                .extend(within_tails(&mut m.env, &tails, base, (full, rest), &loops).into_iter().map(|key| (var, key)));
        }
        let zero = |(tensor, d): (TensorId, usize), var: VarId| {
            let base = reduced.iter().find(|r| r.0 == var).map(|r| r.1);
            base.is_some_and(|base| filled.get(&(tensor, d)) == Some(&base)) || reads.contains(&(var, (tensor, d)))
        };
        let unread = unread_beyond(&mut m.env, b, (l.var, full, rest), &loops);
        let moved: Vec<VarId> = reduced.iter().map(|r| r.0).collect();
        let surplus = Surplus { env: &m.env, moved: &moved, unread: &unread, zero: &zero };
        if !surplus.is_zero(b.value) {
            return Err("surplus terms are not products of zeros");
        }
    }
    let map = [(l.var, clamped(&mut m.env, l.var, rest))].into_iter().collect();
    let relaxed = loop_at_mut(&mut m.body, path);
    relaxed.extent = full;
    for s in &mut relaxed.body {
        each_block(s, &mut Vec::new(), &mut |b, _| {
            // They say which loops are reduced over, and stay where they have a position.
            let own = unused(&m.env, b, l.var);
            for i in b.iters.iter_mut().filter(|i| own.contains(&i.var)) {
                i.binding = m.env.pool.substitute(i.binding, &map);
            }
        });
    }
    place_init(m, l.stage);
    Ok(())
}

/// The iterators that the loop steers and nothing in the block mentions, such as the positions at which a copy was made.
fn unused(env: &Env, b: &Block, var: VarId) -> Vec<VarId> {
    let mentioned = |v: VarId| {
        let own = b.index.iter().chain(&b.predicate).copied().chain([b.value]);
        own.chain(b.iters.iter().map(|i| i.extent)).any(|e| env.pool.uses_var(e, v))
    };
    b.iters.iter().filter(|i| env.pool.uses_var(i.binding, var) && !mentioned(i.var)).map(|i| i.var).collect()
}

/// Dimensions of these local buffers that are written for the full tile, zeros from position `rest` of it on; with the base.
fn zeros(m: &mut LoopModule, writers: &Writers, full: ExprId, rest: ExprId) -> Filled {
    let mut filled = filled_dims(m, writers, full);
    for (b, _) in writers.iter().filter(|(b, _)| b.role != BlockRole::Init) {
        for d in 0..b.index.len() {
            let key = (b.tensor, d);
            if let Some(&base) = filled.get(&key)
                && !takes_zero(&mut m.env, b, d, base, (full, rest))
            {
                filled.remove(&key);
            }
        }
    }
    filled
}

/// Positions of a dimension that hold zeros: from `end` to before `room`.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Tail {
    end: ExprId,
    room: ExprId,
    /// The loop over the tiles.
    tiles: VarId,
}

/// The dimensions of these local buffers that their one writer fills in full tiles one after the other from 0 on, zeros from the end
/// of what is copied.
fn tails(m: &mut LoopModule, writers: &Writers) -> FxHashMap<(TensorId, usize), Tail> {
    let mut found = FxHashMap::default();
    for (b, loops) in writers {
        let alone = writers.iter().filter(|(w, _)| w.tensor == b.tensor).count() == 1;
        for d in 0..b.index.len() {
            if let Some(tail) = alone.then(|| tail(&mut m.env, b, d, loops)).flatten() {
                found.insert((b.tensor, d), tail);
            }
        }
    }
    found
}

/// Of a block that writes positions `x*c + i` for all `x` in `0..n`, `i` in `0..c`: zeros where these are no less than `end`.
fn tail(env: &mut Env, b: &Block, d: usize, loops: &Loops) -> Option<Tail> {
    if !b.predicate.is_empty() || b.role != BlockRole::Compute {
        return None;
    }
    let v = env.pool.as_var(b.index[d])?;
    let at = b.iters.iter().find(|i| i.var == v)?.binding;
    let terms = poly(&env.pool, at).terms;
    let mut steps: Vec<(i64, VarId, ExprId)> = Vec::new();
    for &(var, extent) in loops {
        let x = env.pool.var(var);
        steps.extend(terms.get(&vec![x]).map(|&c| (c, var, extent)));
    }
    steps.sort_unstable_by_key(|s| s.0);
    let [(1, inner, tile), (step, outer, count)] = steps[..] else { return None };
    if terms.len() != 2 || env.pool.as_int(tile) != Some(step) {
        return None;
    }
    if loops.iter().any(|l| env.pool.uses_var(l.1, inner) || env.pool.uses_var(l.1, outer)) {
        return None;
    }
    let base = base_of(env, at, inner)?;
    for (lane, valid) in zero_beyond(env, b)? {
        let (lane, own) = (normalize(&mut env.pool, lane), env.pool.var(inner));
        let valid = normalize(&mut env.pool, valid);
        if lane != own {
            continue;
        }
        let Some((most, rest)) = tile_of(env, valid) else { continue };
        if env.pool.as_int(most) != Some(step) {
            continue;
        }
        let end = env.pool.add(base, rest);
        let end = normalize(&mut env.pool, end);
        if env.pool.uses_var(end, outer) || env.pool.uses_var(end, inner) {
            continue;
        }
        let step = env.pool.int(step);
        return Some(Tail { end, room: env.pool.mul(count, step), tiles: outer });
    }
    None
}

/// The dimensions whose zeros are all that the surplus of a tile reads: it begins at `base`, and `rest` of its `full`
/// positions are valid.
fn within_tails(
    env: &mut Env,
    tails: &FxHashMap<(TensorId, usize), Tail>,
    base: ExprId,
    (full, rest): (ExprId, ExprId),
    loops: &Loops,
) -> Vec<(TensorId, usize)> {
    let end = env.pool.add(base, rest);
    let (end, last) = (normalize(&mut env.pool, end), env.pool.add(base, full));
    let facts = Facts::in_loops(loops.iter().copied());
    let mut out = Vec::new();
    for (&key, tail) in tails {
        // A loop around both has one of the tiles in the buffer at a time.
        if tail.end == end && loops.iter().all(|l| l.0 != tail.tiles) {
            let goal = env.pool.le(last, tail.room);
            out.extend(Prover::new().prove(env, &facts, goal).is_proved().then_some(key));
        }
    }
    out
}

/// Whether the block writes 0 in dimension `d` from position `base + rest` on.
fn takes_zero(env: &mut Env, b: &Block, d: usize, base: ExprId, (full, rest): (ExprId, ExprId)) -> bool {
    let at = env.pool.as_var(b.index[d]).and_then(|v| b.iters.iter().find(|i| i.var == v)).map(|i| i.binding);
    let (Some(at), Some(bounds)) = (at, zero_beyond(env, b)) else { return false };
    let valid = env.pool.min(full, rest);
    let valid = normalize(&mut env.pool, valid);
    bounds.into_iter().any(|(lane, end)| {
        let lane = env.pool.add(base, lane);
        let (lane, at) = (normalize(&mut env.pool, lane), normalize(&mut env.pool, at));
        lane == at && normalize(&mut env.pool, end) == valid
    })
}

/// Pairs of what is below what, in the block's loops, unless the block writes 0.
fn zero_beyond(env: &mut Env, b: &Block) -> Option<Vec<(ExprId, ExprId)>> {
    let Expr::Load { guard: Some((cond, other)), .. } = *env.pool.get(b.value) else { return None };
    let ty = env.pool.ty(b.value).scalar;
    if b.role != BlockRole::Compute || other != super::compute_inline::zero_of(&mut env.pool, ty) {
        return None;
    }
    let binding = |e: ExprId| env.pool.as_var(e).and_then(|v| b.iters.iter().find(|i| i.var == v)).map(|i| i.binding);
    let mut bounds = Vec::new();
    let mut stack = vec![cond];
    while let Some(c) = stack.pop() {
        match *env.pool.get(c) {
            Expr::Bin(BinOp::And, x, y) => stack.extend([x, y]),
            Expr::Bin(BinOp::Lt, x, y) => bounds.extend(binding(x).zip(binding(y))),
            _ => {}
        }
    }
    Some(bounds)
}

/// The reads and choices of the block that are zeros from position `rest` of the loop on: those of a condition that fails
/// there.
fn unread_beyond(
    env: &mut Env,
    b: &Block,
    (var, full, rest): (VarId, ExprId, ExprId),
    loops: &Loops,
) -> FxHashSet<ExprId> {
    let mut guarded = Vec::new();
    env.pool.walk(b.value, &mut |id, n| {
        if let Expr::Load { guard: Some((cond, other)), .. } | Expr::Select(cond, _, other) = n
            && env.pool.is_zero_bits(*other)
        {
            guarded.push((id, *cond));
        }
    });
    let bindings: FxHashMap<VarId, ExprId> = b.iters.iter().map(|i| (i.var, i.binding)).collect();
    let mut facts = Facts::in_loops(loops.iter().copied().chain([(var, full)]));
    let position = env.pool.var(var);
    facts.push_assumption(env.pool.le(rest, position));
    let mut prover = Prover::new();
    guarded.retain(|&(_, cond)| {
        env.pool.conjuncts(cond).into_iter().any(|c| {
            let c = env.pool.substitute(c, &bindings);
            let fails = env.pool.un(UnOp::Not, c);
            prover.prove(env, &facts, fails).is_proved()
        })
    });
    guarded.into_iter().map(|g| g.0).collect()
}

/// What is known of a block's reads from position `rest` of the loop on.
struct Surplus<'a> {
    env: &'a Env,
    /// The iterators that the loop moves.
    moved: &'a [VarId],
    /// Reads that are not done, and choices that are not taken.
    unread: &'a FxHashSet<ExprId>,
    /// Whether a buffer holds zeros at the position of an iterator in a dimension.
    zero: &'a dyn Fn((TensorId, usize), VarId) -> bool,
}

impl Surplus<'_> {
    /// Whether the value is 0.
    fn is_zero(&self, e: ExprId) -> bool {
        match self.env.pool.get(e) {
            // Elements of what is not chosen are read all the same.
            Expr::Select(_, x, _) if self.unread.contains(&e) => self.is_readable(*x),
            Expr::Load { guard: None, .. } => self.is_filled(e),
            Expr::Load { .. } => self.unread.contains(&e),
            Expr::Bin(BinOp::Add | BinOp::Sub | BinOp::Mul, a, b) => self.is_zero(*a) && self.is_zero(*b),
            // Conversions and roundings of zero are zero.
            Expr::Cast(_, a) | Expr::Un(UnOp::Neg | UnOp::Tf32, a) => self.is_zero(*a),
            _ => false,
        }
    }

    /// Whether an element is one of the zeros of a buffer.
    fn is_filled(&self, e: ExprId) -> bool {
        let Expr::Load { tensor, index, .. } = self.env.pool.get(e) else { return false };
        let zero = |(d, &i): (usize, &ExprId)| self.env.pool.as_var(i).is_some_and(|v| (self.zero)((*tensor, d), v));
        index.iter().enumerate().any(zero)
    }

    /// Whether every element that `e` reads is there.
    fn is_readable(&self, e: ExprId) -> bool {
        let pool = &self.env.pool;
        let mut readable = true;
        pool.walk(e, &mut |id, n| {
            if let Expr::Load { index, .. } = n {
                let moves = index.iter().any(|&i| self.moved.iter().any(|&v| pool.uses_var(i, v)));
                readable &= !moves || self.unread.contains(&id) || self.is_filled(id);
            }
        });
        readable
    }
}
