//! `bind S.i block.x`: a loop's iterations become the blocks of a grid or the threads of a block.
//!
//! ```text
//! for bo { for bi in 0..256 { B[bo*256+bi] = .. } }
//!   =>  for bo block.x { for bi in 0..256 thread.x { .. } }
//! ```
//!
//! Block loops are the outermost of their nest. Thread loops stand anywhere inside, in as many places
//! as there are stages; what stands outside them every thread runs. A statement after a thread loop
//! sees what all its threads wrote: barriers are placed when storage is lowered (`place-barriers`).
//! `warp` is `thread.y`, whose iterations are warps where `thread.x` has their 32 lanes.
//!
//! `vthread`, on a CPU as in a grid: each worker or thread runs all iterations side by side, statement by statement
//! (`virtual-threads`), with buffers of their own. Independent chains of computation then hide each other's latency.
//!
//! A reduced loop may become the lanes of a warp: a loop of at most 32 iterations on `thread.x` that combine into one
//! element. Each lane has a partial result, and they are combined in a fixed order.
//!
//! With `atomic` iterations of a reduced loop may be blocks or threads that nothing orders (`atomic`).
//!
//! Requires: a serial loop. Ensures: only its kind changes.

use super::atomic::make_atomic;
use super::independent::{Among, conflict};
use super::inits::place_init;
use super::region::bound_above;
use super::serial_loop::serial_loop;
use super::tree::{Path, combines_tuples, enclosing, find_loop, is_reduction_var, loop_at, loop_at_mut};
use super::unroll::check_copies;
use crate::lower::declared::{Indices, bounds};
use cora_ir::loops::{Axis, Block, BlockRole, For, IterKind, LoopKind, LoopModule, Stmt};
use cora_ir::schedule::{Binding, LoopRef};
use cora_ir::storage::WARP;
use cora_ir::{Diagnostic, Env, ExprId};

/// Greatest number of threads in a block (CUDA, all architectures).
pub const MAX_THREADS: i64 = 1024;

/// Binds a loop.
///
/// # Errors
/// `E0411` not serial, `E0442` a virtual thread without a constant bound, `E0445` iterations that
/// are not independent, `E0446` a block loop that is not outermost, or an axis that a loop around it
/// has, `E0438` a loop over which tuples are reduced, `E0447` a thread loop without a constant bound of at most 1024;
/// with `atomic`, `E0416` to `E0418` of `atomic`.
pub fn bind(m: &mut LoopModule, target: &LoopRef, to: Binding, atomic: bool) -> Result<(), Diagnostic> {
    let axis = match to {
        Binding::Virtual if atomic => {
            let what = format!("`{}.{}` cannot be bound to vthread and atomic", target.stage, target.name);
            return Err(Diagnostic::new("E0416", what).hint("one thread runs all virtual threads: nothing to combine"));
        }
        Binding::Virtual => return virtual_thread(m, target),
        Binding::Warp => Axis::ThreadY,
        Binding::Axis(axis) => axis,
    };
    let mut path = find_loop(m, target)?;
    if atomic && loop_at(&m.body, &path).kind == LoopKind::Serial {
        make_atomic(m, &path, target)?;
        path = find_loop(m, target)?;
    }
    serial_loop(m, &path, target)?;
    let extent = loop_at(&m.body, &path).extent;
    if axis.is_thread() {
        state_bound(m, &path);
    }
    if let Err(d) = check(m, &path, target, (axis, atomic)) {
        loop_at_mut(&mut m.body, &path).extent = extent;
        return Err(d);
    }
    let l = loop_at_mut(&mut m.body, &path);
    l.kind = LoopKind::Bound(axis);
    let stage = l.stage;
    place_init(m, stage);
    Ok(())
}

/// Whether a loop may be bound to an axis.
fn check(m: &LoopModule, path: &Path, target: &LoopRef, (axis, atomic): (Axis, bool)) -> Result<(), Diagnostic> {
    let l = loop_at(&m.body, path);
    let outer = enclosing(&m.body, path);
    if outer.iter().any(|o| o.kind == LoopKind::Bound(axis)) {
        return Err(Diagnostic::new(
            "E0446",
            format!("a loop around `{}.{}` is already bound to {}", target.stage, target.name, axis.name()),
        )
        .hint("fuse the two loops, or bind one of them to another axis"));
    }
    let mut inside = false;
    l.body.iter().for_each(|s| s.walk(&mut |s| inside |= matches!(s, Stmt::For(i) if i.kind.axis() == Some(axis))));
    if inside {
        return Err(Diagnostic::new(
            "E0446",
            format!("a loop inside `{}.{}` is already bound to {}", target.stage, target.name, axis.name()),
        )
        .hint("fuse the two loops, or bind one of them to another axis"));
    }
    if axis.is_thread() {
        check_threads(m, l, target)?;
    } else {
        check_blocks(m, &outer, target)?;
    }
    if axis != Axis::ThreadX || warp_reduction(&m.env, l).is_none() {
        check_independent(m, l, target, if atomic { Among::AtomicThreads } else { Among::Threads })?;
    }
    Ok(())
}

/// Writes down how many iterations a loop has at most, by what is around it or by declared ranges, where that does not show in
/// the form of its extent and there may be as many threads.
fn state_bound(m: &mut LoopModule, path: &Path) {
    let extent = loop_at(&m.body, path).extent;
    if m.env.pool.constant_bound(extent).is_some() {
        return;
    }
    let loops: Vec<_> = enclosing(&m.body, path).iter().map(|l| (l.var, l.extent)).collect();
    let inferred = bound_above(&mut m.env, extent, &loops).and_then(|b| m.env.pool.as_int(b));
    let bound = inferred.or_else(|| bounds(&m.env, extent, Indices { args: &[], loops: &loops }).hi);
    if let Some(n) = bound.filter(|&n| n <= MAX_THREADS) {
        let n = m.env.pool.int(n.max(0));
        loop_at_mut(&mut m.body, path).extent = m.env.pool.min(extent, n);
    }
}

/// Makes a loop's iterations virtual threads.
fn virtual_thread(m: &mut LoopModule, target: &LoopRef) -> Result<(), Diagnostic> {
    let path = find_loop(m, target)?;
    let stage = loop_at(&m.body, &path).stage;
    check_copies(m, &path, target)?;
    check_independent(m, loop_at(&m.body, &path), target, Among::Threads)?;
    loop_at_mut(&mut m.body, &path).kind = LoopKind::Virtual;
    place_init(m, stage);
    Ok(())
}

fn check_blocks(m: &LoopModule, outer: &[&For], target: &LoopRef) -> Result<(), Diagnostic> {
    let alone = outer.iter().all(|o| o.body.len() == 1);
    match outer.iter().find(|o| !o.kind.is_block()) {
        None if alone => Ok(()),
        None => Err(Diagnostic::new(
            "E0446",
            format!("loop `{}.{}` does not hold all that the loops around it run", target.stage, target.name),
        )
        .hint(
            "bind it before other stages are attached around it, or make it a thread loop; a reduced loop, whose sums begin \
             outside, with `atomic` after the axis",
        )),
        Some(o) => Err(Diagnostic::new(
            "E0446",
            format!(
                "loop `{}.{}` is inside `{}`; only the outermost loops of a nest can be blocks",
                target.stage, target.name, m.env.vars[o.var].name
            ),
        )
        .hint("bind the loops around it to blocks first, or reorder it outermost")),
    }
}

fn check_threads(m: &LoopModule, l: &For, target: &LoopRef) -> Result<(), Diagnostic> {
    let bound = m.env.pool.constant_bound(l.extent);
    if bound.is_some_and(|b| b <= MAX_THREADS) {
        return Ok(());
    }
    Err(Diagnostic::new(
        "E0447",
        format!("loop `{}.{}` has no constant bound of at most {MAX_THREADS} threads", target.stage, target.name),
    )
    .hint("split it by a constant and bind the inner loop"))
}

/// The block of a loop whose iterations all combine into one element, if it is one of at most 32 iterations: bound to
/// `thread.x`, each lane of a warp has a partial result, and lanes exchange them in a fixed order (`lower::warp`).
/// Steps after `bind` may change what is inside, so lowering asks again.
pub(crate) fn warp_reduction<'a>(env: &Env, l: &'a For) -> Option<&'a Block> {
    let mut body = l.body.as_slice();
    let mut vars = vec![l.var];
    while let [Stmt::For(inner)] = body {
        if inner.init || !matches!(inner.kind, LoopKind::Serial | LoopKind::Vector | LoopKind::Unroll) {
            return None;
        }
        vars.push(inner.var);
        body = &inner.body;
    }
    let [Stmt::Block(b)] = body else { return None };
    let inside = |e: ExprId| vars.iter().any(|&v| env.pool.uses_var(e, v));
    let one = b.iters.iter().all(|i| i.kind == IterKind::Reduce || !inside(i.binding));
    let reduced = is_reduction_var(&env.pool, b, l.var);
    // Where updates are atomic, fewer lanes may do them one by one.
    let lanes = env.pool.constant_bound(l.extent).is_some_and(|n| if b.atomic { n == WARP } else { n <= WARP });
    (matches!(b.role, BlockRole::Update(_)) && one && reduced && lanes).then_some(b)
}

/// Iterations write different elements of what they share.
fn check_independent(m: &LoopModule, l: &For, target: &LoopRef, among: Among) -> Result<(), Diagnostic> {
    let Some(c) = conflict(m, l, among) else { return Ok(()) };
    if combines_tuples(&m.env.pool, l) {
        let what = format!("loop `{}.{}` combines tuples, which threads do not", target.stage, target.name);
        return Err(Diagnostic::new("E0438", what)
            .hint(
                "bind a spatial loop, which `rfactor` makes of a reduced loop whose extent is constant; a reduced loop of at \
                 most 32 iterations whose inner loops are all reduced can be bound to thread.x, the lanes of a warp",
            ));
    }
    let hint = if c.reduced {
        "bind a spatial loop that indexes what the stage writes; a reduced loop of at most 32 iterations whose \
         inner loops are all reduced can be bound to thread.x, the lanes of a warp; `atomic` after the axis combines \
         partial sums as they come"
            .to_owned()
    } else {
        c.hint(m)
    };
    Err(Diagnostic::new("E0445", format!("loop `{}.{}` cannot be bound: {}", target.stage, target.name, c.text(m)))
        .hint(hint))
}
