//! `relax S.i`: a stage that writes an intermediate runs its full tile, tail or not.
//!
//! ```text
//! for i in 0..min(14, R) unroll { Sr[i] += A[o*14 + i] }
//!   =>  for i in 0..14 unroll { Sr[i] += A[o*14 + min(i, R - 1)] }       (reads clamped)
//! for i in 0..min(16, R) vector { Sr[i] += A[o*16 + i] }
//!   =>  for i in 0..16 vector { Sr[i] += (A[o*16 + i] if i < R else 0) }  (reads masked)
//! ```
//!
//! A position in an intermediate that was itself written for the full tile is read as it is, also one that a reduced loop
//! moves, as a tap of a convolution does.
//!
//! The surplus elements lie inside the buffer, which has room for the full tile (one in global memory, such as a copy in
//! blocks, has it already), and nobody reads them before they are computed (see `overwrites`): readers run the exact loop.
//! Lanes are masked because a clamped index would be a gather; unrolled iterations are clamped because a mask would be a
//! branch.
//!
//! A reduced loop is another matter (`relax_reduced.rs`).
//!
//! Requires: a spatial loop with extent `min(c, R)` where R >= 1 whenever the loop is reached, in a
//! stage that writes a local buffer, or an intermediate with room, indexed by the loop. Ensures: constant extent, so
//! accumulators stay in registers.

use super::compute_inline::zero_of;
use super::filled::{Loops, Relaxed, is_own, stretches};
use super::inits::place_init;
use super::overwrites::overwrites;
use super::pad_dim::calls_with_arg;
use super::region::bound_above;
use super::relax_reduced;
use super::tree::{
    blocks_below, blocks_in, clamp_surplus, enclosing, find_loop, is_reduction_var, looks_up_at, loop_at, loop_at_mut,
    written_by,
};
use crate::lower::sign::never_negative;
use crate::simplify::{Facts, Prover, with_example};
use cora_ir::affine::poly;
use cora_ir::loops::{Block, Iter, IterKind, LoopKind, LoopModule, Stmt};
use cora_ir::schedule::LoopRef;
use cora_ir::{BinOp, Diagnostic, Env, Expr, ExprId, ExprPool, Scope, TensorId, VarId};
use rustc_hash::{FxHashMap, FxHashSet};

/// Relaxes one loop; with `zero`, surplus iterations read nothing and take zeros.
///
/// # Errors
/// `E0402` no such loop; `E0480` the stage writes a result, the loop does not index its
/// buffer, the extent is not a tile's, surplus positions are another part's, or a mask says which positions of a full tile
/// count.
pub fn relax(m: &mut LoopModule, target: &LoopRef, zero: bool) -> Result<(), Diagnostic> {
    let path = find_loop(m, target)?;
    let stage = loop_at(&m.body, &path).stage;
    let refuse = |why: &str, hint: &str| {
        Diagnostic::new("E0480", format!("loop `{}.{}` cannot be relaxed: {why}", target.stage, target.name)).hint(hint)
    };
    let tensor = written_by(m, stage);
    let reduced = relax_reduced::is_reduced(m, &path);
    if !reduced && !is_own(&m.env, tensor) {
        return Err(refuse(
            "its stage writes a tensor that others see",
            "relax the loops of a stage made by cache_write, cache_read or attached by compute_at",
        ));
    }
    let l = loop_at(&m.body, &path);
    let (var, kind) = (l.var, l.kind);
    let extent = l.extent;
    if m.env.pool.as_int(extent).is_some() {
        if !reduced && masked(m, &path, stage) {
            return Err(refuse(
                "it is full, and a mask says which of its positions count",
                "split it without `tail(mask)` and relax the inner loop; the loops of the stage that copies the result \
                 may then be split again, with masks",
            ));
        }
        return Ok(());
    }
    let extent = cora_ir::affine::normalize(&mut m.env.pool, extent);
    let Some((full, rest)) = tile_of(&mut m.env, extent) else {
        return Err(refuse(
            "its extent is not a tile's",
            "relax the inner loop of a `split .. tail(exact)`, which ends with the tile or with the rows",
        ));
    };
    if reduced {
        return relax_reduced::relax_reduced(m, &path, (full, rest)).map_err(|why| {
            Diagnostic::new("E0480", format!("loop `{}.{}` cannot be relaxed: {why}", target.stage, target.name)).hint(
                match why {
                    relax_reduced::NOT_A_SUM => "leave its tail exact, or split with `tail(mask)`",
                    _ => {
                        "read all factors through copies, and relax these over the same tile first: `relax Copy.k zero`"
                    }
                },
            )
        });
    }
    if !blocks_allow(&m.env, &l.body, (stage, tensor), var) {
        return Err(refuse(
            "it does not index the stage's buffer, or is reduced over",
            "name a loop inside which only the stage is computed, each iteration elements of its own",
        ));
    }
    // Where the tile may be empty there is no valid position to clamp to.
    let one = m.env.pool.int(1);
    let last = m.env.pool.sub(rest, one);
    let mut loops: Vec<(VarId, ExprId)> = enclosing(&m.body, &path).iter().map(|l| (l.var, l.extent)).collect();
    // The first value of a sum is written outside of the loops over its terms, which may have no iteration.
    let own = blocks_below(&l.body);
    let reduced = |v: VarId| own.iter().any(|b| is_reduction_var(&m.env.pool, b, v));
    let mut around: Vec<(VarId, ExprId)> = loops.iter().copied().filter(|&(v, _)| !reduced(v)).collect();
    let never_empty = is_position(&mut m.env, last, &around);
    loops.push((var, full));
    around.push((var, full));
    let mask = zero || kind == LoopKind::Vector || !never_empty;
    if mask && bounded(&m.env, &loop_at(&m.body, &path).body, var) {
        return Err(refuse(
            "another order of its iterations keeps surplus ones at valid positions",
            "relax it before its order is changed",
        ));
    }
    if !never_empty && extents_below_use(&m.env, &loop_at(&m.body, &path).body, var) {
        let outside = loops[..loops.len() - 1].iter().copied();
        let (zero, last) = (m.env.pool.int(0), last);
        let runs = m.env.pool.le(zero, last);
        let d = refuse(
            "it may be empty, and loops inside depend on it",
            "relax a loop that always has an iteration where it is reached, or the loops inside alone",
        );
        return Err(with_example(d, &m.env, &Facts::in_loops(outside), runs));
    }
    let storage =
        room(&mut m.env, &loop_at(&m.body, &path).body, (var, full), &around, never_empty).map_err(|why| {
            let hint = match why {
                NO_ROOM => "attach the stage inside the loop over the tiles, so that its buffer is one of them",
                _ => "relax it before its order is changed",
            };
            refuse(why, hint)
        })?;
    if m.env.tensors[tensor].scope == Scope::Global && !storage.is_empty() {
        return Err(refuse(
            "the tensor that its stage writes has no room for the full tile",
            "copy into blocks of the tile, `layout(.., i/16, i%16)`, or pad the dimension first, `pad_dim T.i 16`",
        ));
    }
    if overwrites(m, &path, tensor, rest) {
        return Err(refuse(
            "surplus iterations would overwrite elements that another one has computed before, or at the same time",
            "split by a divisor of the tile around it, or leave its tail exact",
        ));
    }
    for (d, extent) in storage {
        m.env.tensors[tensor].dims[d].storage = extent;
    }
    let stretches = stretches(m, &path);
    let relaxed = Relaxed { var, loops, stretches: &stretches, never_empty };
    let mut body = std::mem::take(&mut loop_at_mut(&mut m.body, &path).body);
    if mask {
        clamp_surplus(&mut m.env.pool, &mut body, var, last);
    }
    for s in &mut body {
        // Loops inside end where they do at the last position that there is: what they read ends there.
        clamp_extents(&mut m.env, s, var, rest);
        if mask {
            each_block(s, &mut Vec::new(), &mut |b, inside| {
                let own = relaxed.settle(&mut m.env, b, inside);
                mask_reads(&mut m.env, b, var, (full, rest), &own);
            });
        } else {
            each_block(s, &mut Vec::new(), &mut |b, inside| {
                let own = relaxed.settle(&mut m.env, b, inside);
                clamp_reads(&mut m.env, b, (var, rest), &own);
            });
        }
    }
    let l = loop_at_mut(&mut m.body, &path);
    l.body = body;
    l.extent = full;
    place_init(m, stage);
    Ok(())
}

/// Relaxes every vector and unrolled loop of register stages: registers need constant indices.
pub fn relax_register_tails(m: &mut LoopModule) {
    relax_tails_of(m, |_| true);
}

/// [`relax_register_tails`] of the stages that write certain tensors.
pub fn relax_tails_of(m: &mut LoopModule, of: impl Fn(TensorId) -> bool) {
    let mut targets = Vec::new();
    for s in &m.body {
        s.walk(&mut |s| {
            if let Stmt::For(l) = s
                && !l.init
                && matches!(l.kind, LoopKind::Vector | LoopKind::Unroll | LoopKind::Virtual)
                && m.env.tensors[written_by(m, l.stage)].scope == Scope::Reg
                && of(written_by(m, l.stage))
                && m.env.pool.as_int(l.extent).is_none()
            {
                targets
                    .push(LoopRef { stage: m.env.tensors[l.stage].name.clone(), name: m.env.vars[l.var].name.clone() });
            }
        });
    }
    for t in targets {
        // Loops that cannot be relaxed keep their predicate; legalisation reports registers that
        // are left with an index that is not constant.
        let _ = relax(m, &t, false);
    }
}

fn blocks_allow(env: &Env, body: &[Stmt], (stage, tensor): (TensorId, TensorId), var: VarId) -> bool {
    let mut ok = true;
    for s in body {
        s.walk(&mut |s| {
            if let Stmt::Block(b) = s {
                let indexes = b.index.iter().any(|&e| {
                    env.pool
                        .as_var(e)
                        .and_then(|v| b.iters.iter().find(|i| i.var == v))
                        .is_some_and(|i| env.pool.uses_var(i.binding, var))
                });
                let reduced = b.iters.iter().any(|i| i.kind == IterKind::Reduce && env.pool.uses_var(i.binding, var));
                ok &= b.stage == stage && b.tensor == tensor && indexes && !reduced;
            }
        });
    }
    ok
}

/// Whether some of the stage's own elements at positions of the loop at `path` may be masked. A mask may also say which
/// terms of a sum count, as in a triangle.
fn masked(m: &mut LoopModule, path: &[usize], stage: TensorId) -> bool {
    let around = enclosing(&m.body, path).into_iter().chain([loop_at(&m.body, path)]);
    let around: Loops = around.map(|l| (l.var, l.extent)).collect();
    let var = loop_at(&m.body, path).var;
    let mut masks: Vec<(ExprId, Loops)> = Vec::new();
    for (b, inner) in blocks_in(&loop_at(&m.body, path).body) {
        let loops = || around.iter().copied().chain(inner.iter().map(|l| (l.var, l.extent))).collect();
        let of_terms = |p: ExprId| m.env.pool.vars_of(p).into_iter().any(|v| is_reduction_var(&m.env.pool, b, v));
        let own = b.predicate.iter().filter(|&&p| b.stage == stage && m.env.pool.uses_var(p, var) && !of_terms(p));
        masks.extend(own.map(|&p| (p, loops())));
    }
    let mut prover = Prover::new();
    masks.into_iter().any(|(p, loops)| !prover.prove(&mut m.env, &Facts::in_loops(loops), p).is_proved())
}

/// Whether a position that is written is kept below a bound, as `remap` does, so that a surplus iteration writes one that
/// another iteration does.
fn bounded(env: &Env, body: &[Stmt], var: VarId) -> bool {
    let pool = &env.pool;
    let bound = |n: &Expr| match *n {
        Expr::Bin(BinOp::Min | BinOp::Max, a, b) => pool.uses_var(a, var) || pool.uses_var(b, var),
        _ => false,
    };
    let written = |b: &Block, i: &Iter| b.index.iter().any(|&e| pool.uses_var(e, i.var));
    blocks_below(body)
        .into_iter()
        .any(|b| b.iters.iter().any(|i| written(b, i) && pool.any(i.binding, &mut |n| bound(n))))
}

pub(super) fn extents_below_use(env: &Env, body: &[Stmt], var: VarId) -> bool {
    let mut found = false;
    for s in body {
        s.walk(&mut |s| found |= matches!(s, Stmt::For(l) if env.pool.uses_var(l.extent, var)));
    }
    found
}

/// Why most loops are refused that are.
const NO_ROOM: &str = "its buffer has no room for the full tile";

/// How many tiles beyond a dimension's storage a tile may begin that holds nothing.
const EMPTY_TILES: i64 = 4;

/// Where a tile may have no valid position it may begin beyond the storage of dimension `d`: how much more room takes the
/// positions `binding` of every tile, if a few tiles of `tile` positions are enough.
fn surplus_of_empty(
    env: &mut Env,
    b: &Block,
    (d, binding): (usize, ExprId),
    tile: i64,
    loops: &[(VarId, ExprId)],
) -> Option<ExprId> {
    let bindings: FxHashMap<VarId, ExprId> = b.iters.iter().map(|i| (i.var, i.binding)).collect();
    let index: Vec<ExprId> = b.index.iter().map(|&i| env.pool.substitute(i, &bindings)).collect();
    let storage = env.pool.instantiate(env.tensors[b.tensor].dims[d].storage, &index);
    let facts = Facts::in_loops(loops.iter().copied());
    let mut prover = Prover::new();
    let zero = env.pool.int(0);
    let above = env.pool.le(zero, binding);
    prover.prove(env, &facts, above).is_proved().then_some(())?;
    (1..=EMPTY_TILES).find_map(|n| {
        let more = env.pool.int(n.checked_mul(tile)? - 1);
        let end = env.pool.add(storage, more);
        let below = env.pool.lt(binding, end);
        prover.prove(env, &facts, below).is_proved().then_some(more)
    })
}

/// Room for the positions `binding` of all tiles beside `storage`, however many of them hold nothing: they end at a
/// bound that no loop changes, as where a row takes as many tiles as the longest one.
fn end_of_all_tiles(env: &mut Env, (binding, storage): (ExprId, ExprId), loops: &[(VarId, ExprId)]) -> Option<ExprId> {
    // Only steps of loops: parts of a fused one's position have bounds that say little.
    let steps = poly(&env.pool, binding).terms.keys().flatten().all(|&a| env.pool.as_var(a).is_some());
    if !steps || !is_position(env, binding, loops) {
        return None;
    }
    let greatest = bound_above(env, binding, loops)?;
    let one = env.pool.int(1);
    let end = env.pool.add(greatest, one);
    Some(env.pool.max(storage, end))
}

/// Whether the position that a block writes in dimension `d` is proved to be inside its storage.
fn has_room(env: &mut Env, b: &Block, d: usize, loops: &Loops) -> bool {
    let map = b.iters.iter().map(|i| (i.var, i.binding)).collect();
    let index: Vec<ExprId> = b.index.iter().map(|&e| env.pool.substitute(e, &map)).collect();
    let storage = env.pool.instantiate(env.tensors[b.tensor].dims[d].storage, &index);
    let inside = env.pool.lt(index[d], storage);
    Prover::new().prove(env, &Facts::in_loops(loops.iter().copied()), inside).is_proved()
}

/// The storage extents with which the full tile stays inside the buffer: those of a buffer that is
/// indexed by the loop itself have room; one that keeps the tensor's own positions gets some, in
/// dimensions that no other one's size depends on.
fn room(
    env: &mut Env,
    body: &[Stmt],
    (var, full): (VarId, ExprId),
    outer: &[(VarId, ExprId)],
    never_empty: bool,
) -> Result<Vec<(usize, ExprId)>, &'static str> {
    let tile = env.pool.as_int(full).ok_or(NO_ROOM)?;
    let v = env.pool.var(var);
    let mut out = Vec::new();
    for (b, inner) in blocks_in(body) {
        // A loop that a sum's terms are in says nothing of where its first value is written.
        let loops: Vec<_> = outer.iter().copied().chain(inner.iter().map(|l| (l.var, l.extent))).collect();
        for (d, &e) in b.index.iter().enumerate() {
            let binding = env.pool.as_var(e).and_then(|x| b.iters.iter().find(|i| i.var == x)).map(|i| i.binding);
            let uses = b.iters.iter().any(|i| env.pool.uses_var(e, i.var) && env.pool.uses_var(i.binding, var));
            let storage = env.tensors[b.tensor].dims[d].storage;
            // Beyond the tile functions and tensors have no value.
            if uses && b.iters.iter().any(|i| env.pool.uses_var(e, i.var) && looks_up_at(&env.pool, i.binding, var)) {
                return Err(NO_ROOM);
            }
            // What is inside has the length of the last position that there is, which is more than later ones have.
            for inner in d + 1..env.tensors[b.tensor].dims.len() {
                let storage = env.tensors[b.tensor].dims[inner].storage;
                if !uses || calls_with_arg(&env.pool, storage, d as u32) || grows(&env.pool, storage, d) {
                    continue;
                }
                let binding = binding.ok_or(NO_ROOM)?;
                let slope = poly(&env.pool, binding).terms.get(&vec![v]).copied().unwrap_or(0);
                let less = shrinks_by(env, storage, d).and_then(|c| c.checked_mul(slope.checked_mul(tile - 1)?));
                let less = less.filter(|&n| n >= 0).ok_or(NO_ROOM)?;
                if out.iter().all(|(k, _)| *k != inner) {
                    let more = env.pool.int(less);
                    out.push((inner, env.pool.add(storage, more)));
                }
            }
            if !uses || (binding == Some(v) && env.pool.as_int(storage).is_some_and(|n| n >= tile)) {
                continue;
            }
            // A tensor of all tiles may have been padded. What loops inside say of surplus iterations holds no longer.
            let alone = !inner.iter().any(|l| env.pool.uses_var(l.extent, var));
            if alone && env.tensors[b.tensor].scope == Scope::Global && has_room(env, b, d, &loops) {
                continue;
            }
            let steers =
                env.tensors[b.tensor].dims[d + 1..].iter().any(|x| calls_with_arg(&env.pool, x.storage, d as u32));
            if let (Some(at), Some(n)) = (binding, env.pool.as_int(storage))
                && let Some(greatest) = bound_above(env, at, &loops)
                && let Some(greatest) = env.pool.as_int(greatest)
            {
                // A loop that was turned round has its surplus before the first element.
                if !is_position(env, at, &loops) {
                    return Err("surplus positions may lie before the buffer's first");
                }
                if greatest < n {
                    continue;
                }
                if !steers && out.iter().all(|(k, _)| *k != d) {
                    out.push((d, env.pool.int(greatest.checked_add(1).ok_or(NO_ROOM)?)));
                    continue;
                }
            }
            // Positions in the tile have room where there is room for the tile.
            if binding == Some(v) && env.pool.as_int(storage).is_some() && !steers && out.iter().all(|(k, _)| *k != d) {
                out.push((d, full));
                continue;
            }
            let binding = binding.ok_or(NO_ROOM)?;
            let slope = poly(&env.pool, binding).terms.get(&vec![v]).copied().filter(|&c| c > 0).ok_or(NO_ROOM)?;
            if steers {
                return Err(NO_ROOM);
            }
            let extent = if never_empty {
                let more = env.pool.int(slope.checked_mul(tile - 1).ok_or(NO_ROOM)?);
                env.pool.add(storage, more)
            } else {
                let tile = slope.checked_mul(tile).ok_or(NO_ROOM)?;
                match surplus_of_empty(env, b, (d, binding), tile, &loops) {
                    Some(more) => env.pool.add(storage, more),
                    None => end_of_all_tiles(env, (binding, storage), &loops).ok_or(NO_ROOM)?,
                }
            };
            match out.iter_mut().find(|(k, _)| *k == d) {
                // A sum's first value may need more than its terms, or the same.
                Some((_, other)) => {
                    let both = env.pool.max(*other, extent);
                    *other = cora_ir::affine::normalize(&mut env.pool, both);
                }
                None => out.push((d, extent)),
            }
        }
    }
    Ok(out)
}

/// By how much `e` is less for an `Arg(d)` that is 1 greater, if that is always the same.
fn shrinks_by(env: &mut Env, e: ExprId, d: usize) -> Option<i64> {
    let own = env.pool.arg(d as u32);
    let mut terms = poly(&env.pool, e).terms;
    let slope = terms.remove(&vec![own])?;
    let elsewhere = terms.keys().flatten().any(|&a| env.pool.any(a, &mut |n| *n == Expr::Arg(d as u32)));
    if elsewhere { None } else { slope.checked_neg() }
}

/// Whether `e` is plainly no less for a greater `Arg(d)`.
fn grows(pool: &ExprPool, e: ExprId, d: usize) -> bool {
    if !pool.any(e, &mut |n| *n == Expr::Arg(d as u32)) {
        return true;
    }
    let positive = |c: ExprId| pool.as_int(c).is_some_and(|c| c > 0);
    match *pool.get(e) {
        Expr::Arg(_) => true,
        Expr::Bin(BinOp::Add | BinOp::Min | BinOp::Max, a, b) => grows(pool, a, d) && grows(pool, b, d),
        Expr::Bin(BinOp::Sub, a, b) => grows(pool, a, d) && !pool.any(b, &mut |n| *n == Expr::Arg(d as u32)),
        Expr::Bin(BinOp::Mul, a, b) => (positive(b) && grows(pool, a, d)) || (positive(a) && grows(pool, b, d)),
        Expr::Bin(BinOp::FloorDiv, a, b) => positive(b) && grows(pool, a, d),
        _ => false,
    }
}

/// Whether `e` is proved to be no less than 0 inside `loops`.
fn is_position(env: &mut Env, e: ExprId, loops: &[(VarId, ExprId)]) -> bool {
    let ranges: Vec<(ExprId, ExprId)> = loops.iter().map(|&(v, extent)| (env.pool.var(v), extent)).collect();
    never_negative(env, &ranges, e) || {
        let zero = env.pool.int(0);
        let goal = env.pool.le(zero, e);
        Prover::new().prove(env, &Facts::in_loops(loops.iter().copied()), goal).is_proved()
    }
}

/// The constant operand of `min(c, r..)`, and the minimum of the others.
pub(crate) fn tile_of(env: &mut Env, extent: ExprId) -> Option<(ExprId, ExprId)> {
    let (mut constant, mut rest): (Option<ExprId>, Option<ExprId>) = (None, None);
    let mut stack = vec![extent];
    while let Some(e) = stack.pop() {
        match *env.pool.get(e) {
            Expr::Bin(BinOp::Min, a, b) => stack.extend([b, a]),
            Expr::Int(_) => constant = Some(constant.map_or(e, |c| env.pool.min(c, e))),
            _ => rest = Some(rest.map_or(e, |r| env.pool.min(r, e))),
        }
    }
    Some((constant?, rest?))
}

/// Calls `f` with each block below and the loops around it.
pub(super) fn each_block(s: &mut Stmt, loops: &mut Loops, f: &mut dyn FnMut(&mut Block, &Loops)) {
    match s {
        Stmt::For(l) => {
            loops.push((l.var, l.extent));
            l.body.iter_mut().for_each(|s| each_block(s, loops, f));
            loops.pop();
        }
        Stmt::Block(b) => f(b, loops),
    }
}

pub(super) fn clamped(env: &mut Env, var: VarId, rest: ExprId) -> ExprId {
    let one = env.pool.int(1);
    let last = env.pool.sub(rest, one);
    let v = env.pool.var(var);
    env.pool.min(v, last)
}

/// Loops inside see the clamped position, so that their own tiles are those of a valid iteration.
fn clamp_extents(env: &mut Env, s: &mut Stmt, var: VarId, rest: ExprId) {
    if let Stmt::For(l) = s {
        let clamped = clamped(env, var, rest);
        let map = [(var, clamped)].into_iter().collect();
        l.extent = env.pool.substitute(l.extent, &map);
        l.body.iter_mut().for_each(|s| clamp_extents(env, s, var, rest));
    }
}

/// Iterators that only reads use take the clamped position; those of the written index do not.
fn clamp_reads(env: &mut Env, b: &mut Block, (var, rest): (VarId, ExprId), settled: &FxHashSet<VarId>) {
    let clamped = clamped(env, var, rest);
    let map = [(var, clamped)].into_iter().collect();
    separate_index(env, b, var);
    for i in &mut b.iters {
        let settled = settled.contains(&i.var) && !gathers(&env.pool, i.binding, var);
        if !settled && !b.index.iter().any(|&e| env.pool.uses_var(e, i.var)) {
            i.binding = env.pool.substitute(i.binding, &map);
        }
    }
    let pred: Vec<ExprId> = b.predicate.iter().map(|&p| env.pool.substitute(p, &map)).collect();
    b.predicate = pred;
}

/// Gives the written index iterators of its own where it shares them with reads.
fn separate_index(env: &mut Env, b: &mut Block, var: VarId) {
    for n in 0..b.index.len() {
        let Some(v) = env.pool.as_var(b.index[n]) else { continue };
        let Some(it) = b.iters.iter().find(|i| i.var == v).cloned() else { continue };
        if !env.pool.uses_var(it.binding, var) || !env.pool.uses_var(b.value, v) {
            continue;
        }
        let name = env.vars[v].name.clone();
        let own = env.new_var(name);
        let at = b.iters.iter().position(|i| i.kind == IterKind::Reduce).unwrap_or(b.iters.len());
        b.iters.insert(at, Iter { var: own, ..it });
        b.index[n] = env.pool.var(own);
    }
}

/// Whether a position is found by reading a tensor at something that depends on `v`.
fn gathers(pool: &ExprPool, e: ExprId, v: VarId) -> bool {
    pool.uses_var(e, v) && pool.any(e, &mut |n| matches!(n, Expr::Load { .. }))
}

/// `e` with a guard on each load that `touched` says depends on the lane.
fn guarded_loads(pool: &mut ExprPool, e: ExprId, cond: ExprId, touched: &dyn Fn(&ExprPool, ExprId) -> bool) -> ExprId {
    pool.rewrite(e, &mut |p, e| match p.get(e).clone() {
        Expr::Load { tensor, part, index, guard }
            if index.iter().chain(guard.iter().map(|g| &g.0)).any(|&i| touched(p, i)) =>
        {
            let ty = p.ty(e).scalar;
            let guard = match guard {
                Some((c, o)) => (p.and(cond, c), o),
                None => (cond, zero_of(p, ty)),
            };
            Some(p.load_guarded((tensor, part), ty, index.iter().copied(), Some(guard)))
        }
        _ => None,
    })
}

/// Loads whose index or guard depends on the lane are masked, those that say where others read (gathers) included.
fn mask_reads(env: &mut Env, b: &mut Block, var: VarId, (full, rest): (ExprId, ExprId), settled: &FxHashSet<VarId>) {
    for i in &mut b.iters {
        if !gathers(&env.pool, i.binding, var) {
            continue;
        }
        let (position, count) = (env.pool.var(var), env.pool.min(full, rest));
        let there = env.pool.lt(position, count);
        i.binding = guarded_loads(&mut env.pool, i.binding, there, &|p, e| p.uses_var(e, var));
    }
    // What a lane without a position gathers from is no element: it may lie outside of what is filled.
    let open = |i: &&Iter| !settled.contains(&i.var) || gathers(&env.pool, i.binding, var);
    let steered = b.iters.iter().filter(|i| env.pool.uses_var(i.binding, var)).filter(open);
    let dependent: Vec<VarId> = steered.map(|i| i.var).collect();
    let touched = |p: &ExprPool, e: ExprId| dependent.iter().any(|&d| p.uses_var(e, d));
    if touched(&env.pool, b.value) {
        let (lane, valid) = (env.new_var("lane"), env.new_var("valid"));
        let lane_binding = env.pool.var(var);
        let (l, r) = (env.pool.var(lane), env.pool.var(valid));
        let cond = env.pool.lt(l, r);
        b.value = guarded_loads(&mut env.pool, b.value, cond, &touched);
        let at = b.iters.iter().position(|i| i.kind == IterKind::Reduce).unwrap_or(b.iters.len());
        // Their domains are those of the tile; only the comparison uses them.
        let one = env.pool.int(1);
        let domain = env.pool.add(full, one);
        let count = env.pool.min(full, rest);
        b.iters.insert(at, Iter { var: valid, kind: IterKind::Spatial, extent: domain, binding: count });
        b.iters.insert(at, Iter { var: lane, kind: IterKind::Spatial, extent: domain, binding: lane_binding });
    }
}
