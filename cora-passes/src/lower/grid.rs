//! What storage lowering needs to know of grids: which thread owns which element of a private
//! buffer, and that every store of a kernel is done by the threads that should.
//!
//! A private buffer (`local`, `reg`) that several thread loops of a block use has an instance in
//! each thread. The thread variables of its uses are then one and the same: its box is what one
//! thread covers, and a thread that reads elements of another's box is refused.

use crate::simplify::{Facts, interval};
use cora_ir::loops::{Axis, For, LoopKind};
use cora_ir::storage::Stmt;
use cora_ir::{Diagnostic, Env, ExprId, Scope, TensorId, VarId};
use rustc_hash::FxHashMap;

/// Who has an instance of a buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Private {
    /// A block or a worker.
    No,
    /// Each thread.
    Thread,
    /// The threads along x together: the lanes of a warp, or of a group of warps.
    Lanes,
}

impl Private {
    /// Whether iterations of a loop have instances of their own.
    pub(super) fn owns(self, l: &For) -> bool {
        match self {
            Self::No => false,
            Self::Thread => l.kind.is_thread(),
            Self::Lanes => l.kind.is_thread() && l.kind != LoopKind::Bound(Axis::ThreadX),
        }
    }
}

/// Loops with their extents, outermost first, and how many of them are around all uses of a buffer:
/// for a private one thread loops count among these, under the names in `threads`.
pub(super) fn loops_of(
    env: &mut Env,
    loops: &[&For],
    common: usize,
    private: Private,
    threads: &mut Vec<(Axis, VarId)>,
) -> (Vec<(VarId, ExprId)>, usize) {
    let is_own = |l: &For| private.owns(l);
    for l in &loops[common..] {
        if let Some(axis) = l.kind.axis().filter(|_| is_own(l))
            && !threads.iter().any(|t| t.0 == axis)
        {
            threads.push((axis, l.var));
        }
    }
    let own = own_threads(env, loops, common, private, threads);
    let mut entry = |l: &For| {
        let var = own.get(&l.var).and_then(|&e| env.pool.as_var(e)).unwrap_or(l.var);
        (var, env.pool.substitute(l.extent, &own))
    };
    let mut out: Vec<(VarId, ExprId)> = loops[..common].iter().map(|l| entry(l)).collect();
    out.extend(loops[common..].iter().filter(|l| is_own(l)).map(|l| entry(l)));
    let outer = out.len();
    out.extend(loops[common..].iter().filter(|l| !is_own(l)).map(|l| entry(l)));
    (out, outer)
}

/// From the thread variables of a use to the common names.
pub(super) fn own_threads(
    env: &mut Env,
    loops: &[&For],
    common: usize,
    private: Private,
    threads: &[(Axis, VarId)],
) -> FxHashMap<VarId, ExprId> {
    let mut map = FxHashMap::default();
    for l in loops[common..].iter().filter(|l| private.owns(l)) {
        if let Some(&(_, v)) = threads.iter().find(|t| Some(t.0) == l.kind.axis()) {
            map.insert(l.var, env.pool.var(v));
        }
    }
    map
}

/// The greatest value of a buffer size by declared ranges: memory on the device is of fixed size.
pub(super) fn constant_size(env: &mut Env, size: ExprId) -> Option<ExprId> {
    /// More than any device has; such a buffer is refused where the target is known.
    const MOST: i64 = 1 << 24;
    let hi = interval::bounds(env, &Facts::new(), size).hi.filter(|&n| n <= MOST)?;
    Some(env.pool.int(hi.max(0)))
}

pub(super) fn unbounded(env: &Env, tensor: TensorId, dim: &str) -> Diagnostic {
    let t = &env.tensors[tensor];
    Diagnostic::new(
        "E0493",
        format!("dimension `{dim}` of `{}` ({}, in a grid) has no bound by declared ranges", t.name, t.scope.name()),
    )
    .hint("attach it at a loop where its region is a constant tile, declare tighter ranges, or keep it global")
}

pub(super) fn shared_by_one(env: &Env, tensor: TensorId) -> Diagnostic {
    Diagnostic::new(
        "E0486",
        format!(
            "shared buffer `{}` is attached inside a thread loop, so no two threads use it",
            env.tensors[tensor].name
        ),
    )
    .hint("attach it outside the thread loops, or make it `local` or `reg`")
}

pub(super) fn foreign_read(env: &Env, tensor: TensorId, reader: TensorId) -> Diagnostic {
    let t = &env.tensors[tensor];
    Diagnostic::new(
        "E0487",
        format!(
            "threads of stage `{}` read elements of `{}` that other threads compute, and `{}` is private to each thread",
            env.tensors[reader].name,
            t.name,
            t.scope.name()
        ),
    )
    .hint("make it `shared`, or bind the same tiles of both stages to the same threads")
}

pub(super) fn axis_twice(env: &Env, l: &For, axis: Axis) -> Diagnostic {
    let (stage, name) = (&env.tensors[l.stage].name, &env.vars[l.var].name);
    Diagnostic::new("E0446", format!("a loop around `{stage}.{name}` is bound to {} too", axis.name()))
        .hint("fuse the two loops, or bind one of them to another axis")
}

pub(super) fn unbounded_blocks(env: &Env, l: &For) -> Diagnostic {
    Diagnostic::new(
        "E0488",
        format!("no bound is known for the blocks of loop `{}.{}`", env.tensors[l.stage].name, env.vars[l.var].name),
    )
    .hint("fuse it with the block loops around it")
}

/// Puts every store of a kernel inside loops over all axes of its block. Where one is missing, the
/// first thread along it stores to what threads share, and all threads store to what is private: a
/// loop or condition that does both is run by all threads, and its statements one by one by those.
pub(super) fn distribute(env: &mut Env, body: &mut [Stmt], threads: [i64; 3]) {
    let missing: Vec<(Axis, i64)> = [Axis::ThreadZ, Axis::ThreadY, Axis::ThreadX]
        .into_iter()
        .map(|a| (a, threads[a.dimension()]))
        .filter(|a| a.1 > 1)
        .collect();
    // A kernel of one thread needs no loops.
    if !missing.is_empty() {
        within(env, body, &missing);
    }
}

fn has_threads(s: &Stmt) -> bool {
    s.any(&mut |s| matches!(s, Stmt::For { kind, .. } if kind.axis().is_some()))
}

/// Whether a statement that several lanes execute together is inside.
fn around_lanes(s: &Stmt) -> bool {
    s.lanes().is_none() && s.any(&mut |s| s.lanes().is_some())
}

/// Whether one thread asks for a box there, or all wait for one: both by themselves.
fn brings_boxes(s: &Stmt) -> bool {
    s.any(&mut |s| matches!(s, Stmt::Bulk(_) | Stmt::Await { .. }))
}

fn within(env: &mut Env, body: &mut [Stmt], missing: &[(Axis, i64)]) {
    for s in body.iter_mut() {
        if !has_threads(s) && !is_mixed(env, s) && !around_lanes(s) && !brings_boxes(s) {
            // All lanes take part in an exchange between them.
            let lanes = s.lanes().is_some();
            let missing: Vec<(Axis, i64)> =
                missing.iter().copied().filter(|a| !(lanes && a.0 == Axis::ThreadX)).collect();
            if !missing.is_empty() && !matches!(s, Stmt::Let { .. } | Stmt::Barrier | Stmt::Commit | Stmt::Wait { .. })
            {
                let shares = stores_shared(env, s);
                let mut wrapped = std::mem::replace(s, Stmt::Barrier);
                for &(axis, n) in missing.iter().rev() {
                    let var = env.new_var(axis.name().replace('.', "_"));
                    let extent = env.pool.int(if shares { 1 } else { n });
                    wrapped = Stmt::For { var, extent, kind: LoopKind::Bound(axis), body: vec![wrapped] };
                }
                *s = wrapped;
            }
            continue;
        }
        let axis = match s {
            Stmt::For { kind, .. } => kind.axis(),
            _ => None,
        };
        let left: Vec<(Axis, i64)> = missing.iter().filter(|a| axis != Some(a.0)).copied().collect();
        s.bodies_mut().for_each(|b| within(env, b, &left));
    }
}

fn is_shared(env: &Env, tensor: TensorId) -> bool {
    matches!(env.tensors[tensor].scope, Scope::Global | Scope::Shared)
}

/// What a statement itself stores to.
fn written(s: &Stmt) -> Option<TensorId> {
    match s {
        Stmt::Store { tensor, .. } | Stmt::Atomic { tensor, .. } => Some(*tensor),
        Stmt::Tile(t) => Some(t.c.tensor),
        _ => None,
    }
}

fn stores_shared(env: &Env, s: &Stmt) -> bool {
    s.any(&mut |s| written(s).is_some_and(|t| is_shared(env, t)))
}

/// Whether `s` stores both to what threads share and to what is private to each.
fn is_mixed(env: &Env, s: &Stmt) -> bool {
    let mut private = false;
    s.walk(&mut |s| {
        let to = match s {
            Stmt::Shuffle { to, .. } => Some(*to),
            s => written(s),
        };
        private |= to.is_some_and(|t| !is_shared(env, t));
    });
    private && stores_shared(env, s)
}
