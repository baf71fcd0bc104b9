//! Places the barriers of grid kernels.
//!
//! ```text
//! for %t in 0..256 thread.x { @As[%t] = .. }  for %t in 0..256 thread.x { .. = @As[255 - %t] }
//!   =>  for %t thread.x { .. }  barrier  for %t thread.x { .. }
//! ```
//!
//! Between two accesses of one element by different threads, one of them writing, there must be a barrier. Accesses are told
//! apart by tensor, and by index where both sides have one that is the same function of the thread; of a buffer of several
//! slots, by slot. A barrier is reached by all threads of a block, so it stands outside thread loops: where one is needed
//! inside, the loop is cut in two.
//!
//! What a thread stores and lets go on beside it (`copy-ahead`) other threads see after it has waited and a barrier has
//! followed, so what has been waited for is as if written then. Boxes of the copy engine are waited for by each thread
//! itself, and need none; but a slot takes its next box only when all threads have seen the last one come: there must be a
//! barrier between waiting for a slot and asking for another box in it.
//!
//! Requires: legal storage, thread loops of constant extent. Ensures: no race between threads of a block. Runs last.

mod access;

use super::copy_ahead::{goes_beside, grouped};
pub(super) use access::slot_of;
use access::{Access, Held, How, Own, Pending, meet};
use cora_ir::loops::{Axis, LoopKind};
use cora_ir::storage::{Stmt, StorageModule};
use cora_ir::{BinOp, Diagnostic, Env, Expr, ExprId, Role, Scope, TensorId, VarId};
use rustc_hash::FxHashMap;

/// Finishes every kernel that runs on a grid.
///
/// # Errors
/// `E0498` threads that would have to wait for each other where not all of them come by.
pub fn place_barriers(m: &mut StorageModule) -> Result<(), Diagnostic> {
    let mut axes: FxHashMap<Axis, ExprId> = FxHashMap::default();
    for axis in Axis::ALL {
        let v = m.env.new_var(axis.name().replace('.', "_"));
        axes.insert(axis, m.env.pool.var(v));
    }
    let sizes: Vec<(TensorId, i64)> =
        m.buffers.iter().filter_map(|b| Some((b.tensor, m.env.pool.as_int(b.elems)?))).collect();
    for n in 0..m.kernels.len() {
        if !m.kernels[n].is_grid() {
            continue;
        }
        let mut body = std::mem::take(&mut m.kernels[n].body);
        let private = |t: TensorId| {
            let t = &m.env.tensors[t];
            matches!(t.scope, Scope::Local | Scope::Reg) || matches!(t.role, Role::Input | Role::ConstInput)
        };
        let shared: Vec<bool> =
            m.env.tensors.ids().map(|t| !private(t) && m.tables.iter().all(|x| x.tensor != t)).collect();
        let kernel = m.kernels[n].name.clone();
        let (mut tiled, mut copied) = (Vec::new(), Vec::new());
        let grouped = grouped(&body);
        body.iter().for_each(|s| {
            s.walk(&mut |s| match s {
                Stmt::Tile(t) => tiled.push(t.c.tensor),
                s if goes_beside(&m.env, &grouped, s) => copied.extend(s.writes()),
                _ => {}
            });
        });
        copied.sort_unstable();
        copied.dedup();
        let mut cx = Placement { env: &mut m.env, shared, tiled, copied, axes: &axes, sizes: &sizes, kernel };
        body = cx.cut(body)?;
        cx.place(&mut body, &mut Pending::default());
        m.kernels[n].body = body;
    }
    Ok(())
}

struct Placement<'a> {
    env: &'a mut Env,
    /// Which tensors threads share and kernels write.
    shared: Vec<bool>,
    /// The results of tensor instructions.
    tiled: Vec<TensorId>,
    /// What threads fill by copies that they wait for later.
    copied: Vec<TensorId>,
    axes: &'a FxHashMap<Axis, ExprId>,
    /// Elements of the buffers of constant size.
    sizes: &'a [(TensorId, i64)],
    kernel: String,
}

impl Placement<'_> {
    /// Cuts thread loops where threads have to wait inside them.
    fn cut(&mut self, body: Vec<Stmt>) -> Result<Vec<Stmt>, Diagnostic> {
        let mut out = Vec::new();
        for s in body {
            match s {
                Stmt::For { var, extent, kind, body } => {
                    let body = self.cut(body)?;
                    if !kind.is_thread() {
                        out.push(Stmt::For { var, extent, kind, body });
                        continue;
                    }
                    for part in self.parts(body, (var, kind), FxHashMap::default())? {
                        out.push(Stmt::For { var, extent, kind, body: part });
                    }
                }
                Stmt::If { cond, then, other } => {
                    let (then, other) = (self.cut(then)?, self.cut(other)?);
                    out.push(Stmt::If { cond, then, other });
                }
                s => out.push(s),
            }
        }
        Ok(out)
    }

    /// The body of a thread loop in parts without waiting inside; names that a part uses are given again. `names` are those
    /// given around it within the loop.
    fn parts(
        &mut self,
        body: Vec<Stmt>,
        (var, kind): (VarId, LoopKind),
        names: FxHashMap<VarId, ExprId>,
    ) -> Result<Vec<Vec<Stmt>>, Diagnostic> {
        let mut map = names;
        map.extend(kind.axis().map(|a| (var, self.axes[&a])));
        // A condition on the whole body holds for each part.
        let lets = body.iter().take_while(|s| matches!(s, Stmt::Let { .. })).count();
        if let [Stmt::If { cond, then, other }] = &body[lets..]
            && other.is_empty()
        {
            let (cond, then, lets) = (*cond, then.clone(), &body[..lets]);
            for s in lets {
                if let Stmt::Let { var, value } = s {
                    map.insert(*var, self.env.pool.substitute(*value, &map));
                }
            }
            let parts = self.parts(then, (var, kind), map)?;
            let whole = |then| lets.iter().cloned().chain([Stmt::If { cond, then, other: Vec::new() }]).collect();
            return Ok(parts.into_iter().map(whole).collect());
        }
        let mut lets: Vec<Stmt> = Vec::new();
        let mut parts: Vec<Vec<Stmt>> = vec![Vec::new()];
        let mut pending = Pending::default();
        for s in body {
            if let Stmt::Let { var, value } = s {
                let value = self.env.pool.substitute(value, &map);
                map.insert(var, value);
                lets.push(s.clone());
                if let Some(part) = parts.last_mut() {
                    part.push(s);
                }
                continue;
            }
            self.check_inside(&s)?;
            let accesses = self.accesses(&s, &map, &[]);
            if pending.conflicts(self.env, &accesses) {
                parts.push(lets.clone());
                pending = Pending::default();
            }
            pending.add(accesses);
            if let Some(part) = parts.last_mut() {
                part.push(s);
            }
        }
        Ok(parts)
    }

    /// Refuses waiting inside a loop or a condition that is itself inside a thread loop.
    fn check_inside(&mut self, s: &Stmt) -> Result<(), Diagnostic> {
        let bodies: Vec<&Vec<Stmt>> = match s {
            Stmt::For { body, kind, .. } if kind.is_thread() => {
                return body.iter().try_for_each(|s| self.check_inside(s));
            }
            Stmt::For { body, .. } => vec![body],
            Stmt::If { then, other, .. } => vec![then, other],
            _ => return Ok(()),
        };
        let serial = matches!(s, Stmt::For { .. });
        for body in bodies {
            let mut pending = Pending::default();
            // The second round is the next iteration.
            for _ in 0..if serial { 2 } else { 1 } {
                pending.0.iter_mut().for_each(|a| a.slot = None);
                for s in body {
                    let accesses = self.accesses(s, &FxHashMap::default(), &[]);
                    if has_threads(s) && self.wait_inside(&pending, &accesses) {
                        return Err(Diagnostic::new(
                            "E0498",
                            format!(
                                "in kernel `{}` threads would have to wait for each other inside a loop that only some of them run",
                                self.kernel
                            ),
                        )
                        .hint("reorder the serial loop outside the thread loops"));
                    }
                    pending.add(accesses);
                }
            }
            body.iter().try_for_each(|s| self.check_inside(s))?;
        }
        Ok(())
    }

    /// Whether threads of one iteration of a thread loop have to wait for each other. Tiles that follow each other leave
    /// each element of their result to one lane, and so do stores that begin it; other warps have other elements.
    fn wait_inside(&mut self, pending: &Pending, with: &[Access]) -> bool {
        pending.0.iter().any(|a| {
            with.iter().any(|b| {
                let x = self.env.pool.as_var(self.axes[&Axis::ThreadX]);
                let apart = match ((&a.held, a.lane), (&b.held, b.lane), x) {
                    ((Some(a), _), (Some(b), _), _) => a.same_lanes(self.env, b),
                    ((Some(tile), _), (None, Some(at)), Some(x)) | ((None, Some(at)), (Some(tile), _), Some(x)) => {
                        tile.is_of_lane(self.env, at, x)
                    }
                    _ => false,
                };
                !apart && meet(self.env, a, b)
            })
        })
    }

    /// What a statement accesses; `map` gives the thread variables around it, `loops` the others.
    fn accesses(&mut self, s: &Stmt, map: &FxHashMap<VarId, ExprId>, loops: &[VarId]) -> Vec<Access> {
        let mut out = Vec::new();
        self.collect(s, &mut map.clone(), &mut loops.to_vec(), &mut Vec::new(), &mut out);
        out
    }

    fn collect(
        &mut self,
        s: &Stmt,
        map: &mut FxHashMap<VarId, ExprId>,
        inner: &mut Vec<VarId>,
        threads: &mut Vec<(ExprId, i64)>,
        out: &mut Vec<Access>,
    ) {
        match s {
            Stmt::For { var, extent, kind, body } => {
                self.reads(*extent, map, inner, threads, out);
                let mut map = map.clone();
                let (mark, depth) = (inner.len(), threads.len());
                match kind.axis().filter(|a| a.is_thread()) {
                    Some(axis) => {
                        let v = self.axes[&axis];
                        map.insert(*var, v);
                        threads.push((v, self.env.pool.as_int(*extent).unwrap_or(i64::MAX)));
                    }
                    None => inner.push(*var),
                }
                body.iter().for_each(|s| self.collect(s, &mut map, inner, threads, out));
                inner.truncate(mark);
                threads.truncate(depth);
            }
            Stmt::If { cond, then, other } => {
                self.reads(*cond, map, inner, threads, out);
                then.iter().chain(other).for_each(|s| self.collect(s, map, inner, threads, out));
            }
            Stmt::Let { var, value } => {
                self.reads(*value, map, inner, threads, out);
                let value = self.env.pool.substitute(*value, map);
                map.insert(*var, value);
            }
            Stmt::Store { tensor, index, value, mask, rest } => {
                for e in [Some(*index), Some(*value), *mask].into_iter().flatten().chain(rest.iter().map(|r| r.1)) {
                    self.reads(e, map, inner, threads, out);
                }
                for t in [*tensor].into_iter().chain(rest.iter().map(|r| r.0)) {
                    self.access(t, *index, How::Write, map, inner, threads, out);
                }
            }
            // Not in a grid; if it were, of any element.
            Stmt::Gemm(g) => {
                let reads = g.reads().map(|t| (t, How::Read));
                out.extend(reads.chain([(g.c.tensor, How::Write)]).map(|(t, how)| Access::to(t, how, None)));
            }
            // A lane reads what other lanes of its warp may have written.
            Stmt::Tile(t) => {
                t.exprs().into_iter().for_each(|e| self.reads(e, map, inner, threads, out));
                for m in [&t.a, &t.b] {
                    self.access(m.tensor, m.offset, How::Read, map, inner, &[], out);
                }
                let mut result = Vec::new();
                for how in [How::Read, How::Write] {
                    self.access(t.c.tensor, t.c.offset, how, map, inner, &[], &mut result);
                }
                let offset = self.env.pool.substitute(t.c.offset, map);
                let held = Held { intrinsic: t.intrinsic, offset, row: t.c.row, column: t.c.column };
                out.extend(result.into_iter().map(|a| Access { held: Some(held.clone()), ..a }));
            }
            Stmt::Copy { tensor, index, value, mask } => {
                for e in [Some(*index), Some(*value), *mask].into_iter().flatten() {
                    self.reads(e, map, inner, threads, out);
                }
                self.access(*tensor, *index, How::Write, map, inner, threads, out);
            }
            // Nothing else in the kernel uses its elements, and nothing comes between two of them.
            Stmt::Atomic { index, value, .. } => {
                for e in [*index, *value] {
                    self.reads(e, map, inner, threads, out);
                }
            }
            Stmt::Bulk(b) => {
                b.exprs().into_iter().for_each(|e| self.reads(e, map, inner, threads, out));
                let slot = self.slot(b.to, b.offset, map, inner);
                out.push(Access::to(b.to, How::Box, slot));
                let slot = self.number(b.to, b.slot, map, inner);
                out.push(Access::to(b.to, How::Ask, slot));
            }
            Stmt::Await { tensor, slot } => {
                self.reads(*slot, map, inner, threads, out);
                let slot = self.number(*tensor, *slot, map, inner);
                out.push(Access::to(*tensor, How::Await, slot));
            }
            Stmt::Wait { .. } => out.extend(self.copied.iter().map(|&t| Access::to(t, How::Arrive, None))),
            Stmt::Prefetch { .. } | Stmt::Barrier | Stmt::Commit | Stmt::Shuffle { .. } | Stmt::Beside(_) => {}
        }
    }

    fn reads(
        &mut self,
        e: ExprId,
        map: &FxHashMap<VarId, ExprId>,
        inner: &[VarId],
        threads: &[(ExprId, i64)],
        out: &mut Vec<Access>,
    ) {
        let mut found = Vec::new();
        self.env.pool.walk(e, &mut |_, n| {
            if let Expr::Load { tensor, index, .. } = n {
                found.push((*tensor, index[0]));
            }
        });
        for (t, i) in found {
            self.access(t, i, How::Read, map, inner, threads, out);
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn access(
        &mut self,
        tensor: TensorId,
        index: ExprId,
        how: How,
        map: &FxHashMap<VarId, ExprId>,
        inner: &[VarId],
        threads: &[(ExprId, i64)],
        out: &mut Vec<Access>,
    ) {
        use cora_ir::ids::EntityId;
        if !self.shared[tensor.index()] {
            return;
        }
        let mut own = None;
        if self.env.pool.ty(index).lanes == 1 && !threads.is_empty() {
            let at = self.env.pool.substitute(index, map);
            if !inner.iter().any(|&v| self.env.pool.uses_var(at, v)) {
                own = self.tells_threads_apart(at, threads);
            }
        }
        let slot = self.slot(tensor, index, map, inner);
        let x = self.axes[&Axis::ThreadX];
        let of_lanes = self.tiled.contains(&tensor) && threads.iter().any(|t| t.0 == x);
        let lane = of_lanes.then(|| self.env.pool.substitute(index, map));
        let a = Access { tensor, how, own, slot, held: None, lane };
        if !out.contains(&a) {
            out.push(a);
        }
    }

    /// Of which iteration of the loop that a buffer of several slots lives in an index is, if it says so.
    fn slot(
        &mut self,
        tensor: TensorId,
        index: ExprId,
        map: &FxHashMap<VarId, ExprId>,
        inner: &[VarId],
    ) -> Option<(ExprId, i64)> {
        let elems = self.elems(tensor)?;
        let base = match *self.env.pool.get(index) {
            Expr::Ramp { base, .. } => base,
            _ => index,
        };
        let at = self.env.pool.substitute(base, map);
        let (x, slots) = slot_of(self.env, (tensor, elems), at)?;
        let known = !inner.iter().any(|&v| self.env.pool.uses_var(x, v));
        known.then_some((x, slots))
    }

    /// The number of a slot, a remainder or a constant.
    fn number(
        &mut self,
        tensor: TensorId,
        slot: ExprId,
        map: &FxHashMap<VarId, ExprId>,
        inner: &[VarId],
    ) -> Option<(ExprId, i64)> {
        let slots = self.env.tensors[tensor].slots()?;
        let mut x = self.env.pool.substitute(slot, map);
        if let Expr::Bin(BinOp::Mod, a, n) = *self.env.pool.get(x)
            && self.env.pool.as_int(n) == Some(slots)
        {
            x = a;
        }
        let known = !inner.iter().any(|&v| self.env.pool.uses_var(x, v));
        known.then_some((x, slots))
    }

    /// The elements of a buffer, if that is a number.
    fn elems(&self, tensor: TensorId) -> Option<i64> {
        self.sizes.iter().find(|s| s.0 == tensor).map(|s| s.1)
    }

    /// The index as a function of the thread, if different threads have different ones: an affine
    /// function with strides that do not overlap. Loops over one thread run on the first.
    fn tells_threads_apart(&mut self, index: ExprId, threads: &[(ExprId, i64)]) -> Option<Own> {
        let p = cora_ir::affine::poly(&self.env.pool, index);
        let mut strides: Vec<((i128, i128), ExprId)> = Vec::new();
        let alone = threads.iter().all(|t| t.1 == 1);
        for &(v, n) in threads.iter().filter(|t| t.1 > 1) {
            let var = self.env.pool.as_var(v)?;
            let linear = p.terms.keys().all(|m| m == &vec![v] || !m.iter().any(|&a| self.env.pool.uses_var(a, var)));
            let c = p.terms.get(&vec![v]).copied().filter(|&c| linear && c > 0)?;
            strides.push(((i128::from(c), i128::from(n)), v));
        }
        // The first thread along one axis and all along another: no common function.
        if !alone && threads.iter().any(|t| t.1 == 1) {
            return None;
        }
        strides.sort_unstable();
        let mut reach = 0;
        let apart = strides.iter().all(|&((c, n), _)| {
            let apart = c > reach;
            reach += c * (n - 1);
            apart
        });
        let (strides, axes) = strides.into_iter().unzip();
        apart.then_some(Own { index, strides, axes })
    }

    /// Inserts barriers; `pending` is what came since the last one.
    fn place(&mut self, body: &mut Vec<Stmt>, pending: &mut Pending) {
        let mut out = Vec::new();
        for mut s in std::mem::take(body) {
            match &mut s {
                Stmt::Barrier => *pending = Pending::default(),
                Stmt::For { var, body, kind, extent } if !kind.is_thread() => {
                    let extent = *extent;
                    self.wait_for_reads(extent, pending, &mut out);
                    let mut placed = self.place_loop((*var, *kind), body, pending);
                    if !kind.is_block() {
                        // What must come before the first iteration waits outside, unless each iteration waits anyway.
                        let whole = Stmt::For { var: *var, extent, kind: *kind, body: body.clone() };
                        let accesses = self.accesses(&whole, &FxHashMap::default(), &[]);
                        if pending.conflicts(self.env, &accesses) {
                            let after = self.place_loop((*var, *kind), body, &Pending::default());
                            if after.0 != placed.0 {
                                out.push(Stmt::Barrier);
                                placed = after;
                            }
                        }
                    }
                    (*body, *pending) = placed;
                }
                Stmt::If { cond, then, other } => {
                    let cond = *cond;
                    // Before the condition one barrier is enough for it and for what follows.
                    let whole = Stmt::If { cond, then: then.clone(), other: other.clone() };
                    let accesses = self.accesses(&whole, &FxHashMap::default(), &[]);
                    if pending.conflicts(self.env, &accesses) {
                        out.push(Stmt::Barrier);
                        *pending = Pending::default();
                    }
                    self.wait_for_reads(cond, pending, &mut out);
                    let mut second = pending.clone();
                    self.place(then, pending);
                    self.place(other, &mut second);
                    pending.add(second.0);
                }
                s => {
                    let accesses = self.accesses(s, &FxHashMap::default(), &[]);
                    if pending.conflicts(self.env, &accesses) {
                        out.push(Stmt::Barrier);
                        *pending = Pending::default();
                    }
                    pending.add(accesses);
                }
            }
            out.push(s);
        }
        *body = out;
    }

    /// The body of a serial or block loop with its barriers, and what is pending after it, where `pending` is before.
    fn place_loop(&mut self, (var, kind): (VarId, LoopKind), body: &[Stmt], pending: &Pending) -> (Vec<Stmt>, Pending) {
        let mut pending = pending.clone();
        if !kind.is_block() {
            // What an iteration leaves pending the next one begins with.
            let mut trial = pending.clone();
            self.place(&mut body.to_vec(), &mut trial);
            let changing = bound_below(body, var);
            pending.add(trial.0.into_iter().map(|a| self.one_iteration_on(a, &changing)));
        }
        let before = pending.clone();
        let mut body = body.to_vec();
        self.place(&mut body, &mut pending);
        pending.add(before.0);
        (body, pending)
    }

    /// An index that changes from one iteration to the next is not the same function of the thread.
    fn one_iteration_on(&self, a: Access, changing: &[VarId]) -> Access {
        let same = |e: ExprId| !changing.iter().any(|&v| self.env.pool.uses_var(e, v));
        Access { own: a.own.filter(|o| same(o.index)), slot: a.slot.filter(|s| same(s.0)), ..a }
    }

    fn wait_for_reads(&mut self, e: ExprId, pending: &mut Pending, out: &mut Vec<Stmt>) {
        let mut accesses = Vec::new();
        self.reads(e, &FxHashMap::default(), &[], &[], &mut accesses);
        if pending.conflicts(self.env, &accesses) {
            out.push(Stmt::Barrier);
            *pending = Pending::default();
        }
        pending.add(accesses);
    }
}

/// A loop's variable and all that are bound in its body.
fn bound_below(body: &[Stmt], var: VarId) -> Vec<VarId> {
    let mut out = vec![var];
    for s in body {
        s.walk(&mut |s| {
            if let Stmt::For { var, .. } | Stmt::Let { var, .. } = s {
                out.push(*var);
            }
        });
    }
    out
}

fn has_threads(s: &Stmt) -> bool {
    s.any(&mut |s| match s {
        Stmt::For { kind, .. } => kind.is_thread(),
        s => s.lanes().is_some(),
    })
}
