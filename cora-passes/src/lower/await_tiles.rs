//! Waits for tensor instructions that go on while their threads do.
//!
//! ```text
//! barrier  tile wgmma.. @R = @A * @B  tile wgmma.. @R = @A * @B  .. = @R[0]
//!   =>  fence  barrier  tile wgmma.. @R = @A * @B  tile wgmma.. @R = @A * @B  commit tiles  wait 0 tiles @R  .. = @R[0]
//! ```
//!
//! Tiles that follow each other are a group. It is waited for before anything uses its results, stores to what its factors
//! are in, lets other threads do so (a barrier), or begins tiles elsewhere; at the end of a body at the latest. What threads store to shared
//! memory such an instruction sees only after a fence of theirs, which stands before each barrier.
//!
//! A loop whose iterations each end with one group lets that go on into the next iteration, which waits for the last but
//! one only, where nothing there touches what the group uses: factors lie in slots of a ring, and none is filled that the
//! iteration before reads.
//!
//! Requires: barriers placed, copies chosen. Ensures: no access to what an instruction still uses. Runs last.

use super::place_barriers::slot_of;
use cora_ir::affine::normalize;
use cora_ir::loops::LoopKind;
use cora_ir::storage::{Beside, Stmt, StorageModule};
use cora_ir::{Env, Expr, ExprId, TensorId, VarId};
use rustc_hash::FxHashMap;

/// Places groups, waits and fences in every kernel with such tiles.
pub fn await_tiles(m: &mut StorageModule) {
    let sizes: Vec<(TensorId, i64)> =
        m.buffers.iter().filter_map(|b| Some((b.tensor, m.env.pool.as_int(b.elems)?))).collect();
    for k in &mut m.kernels {
        if k.body.iter().any(|s| s.any(&mut |s| s.goes_on())) {
            let fences = stores_factors(&k.body);
            settle(&m.env, &mut k.body, fences);
            overlap(&mut m.env, &sizes, &mut k.body);
        }
    }
}

/// Whether threads store to what such instructions read. What the copy engine brings they see without a fence.
fn stores_factors(body: &[Stmt]) -> bool {
    let (mut factors, mut stored) = (Vec::new(), Vec::new());
    for s in body {
        s.walk(&mut |s| match s {
            Stmt::Tile(t) if s.goes_on() => factors.extend([t.a.tensor, t.b.tensor]),
            Stmt::Bulk(_) => {}
            s => stored.extend(s.writes()),
        });
    }
    stored.iter().any(|t| factors.contains(t))
}

/// Lets the group that an iteration ends with go on into the next one.
fn overlap(env: &mut Env, sizes: &[(TensorId, i64)], body: &mut Vec<Stmt>) {
    let mut at = 0;
    while at < body.len() {
        body[at].bodies_mut().for_each(|b| overlap(env, sizes, b));
        if let Stmt::For { var, kind: LoopKind::Serial, body: inner, .. } = &mut body[at]
            && let Some(Stmt::Beside(Beside::Wait { pending: 0, results })) = flat(inner).last().copied().cloned()
            && goes_on(env, sizes, *var, inner, &results)
        {
            let around = wait_for_all_but_one(inner);
            let mut last = Stmt::Beside(Beside::Wait { pending: 0, results });
            for (var, extent, kind) in around.into_iter().rev() {
                let name = env.vars[var].name.clone();
                last = Stmt::For { var: env.new_var(name), extent, kind, body: vec![last] };
            }
            body.insert(at + 1, last);
            at += 1;
        }
        at += 1;
    }
}

/// The statements of a body, those of the thread loop at its end one by one.
fn flat(body: &[Stmt]) -> Vec<&Stmt> {
    match body.split_last() {
        Some((Stmt::For { kind, body: inner, .. }, before)) if kind.is_thread() => {
            before.iter().chain(flat(inner)).collect()
        }
        _ => body.iter().collect(),
    }
}

/// Changes the wait at the end; the thread loops that it stands in.
fn wait_for_all_but_one(body: &mut [Stmt]) -> Vec<(VarId, ExprId, LoopKind)> {
    match body.last_mut() {
        Some(Stmt::For { var, extent, kind, body: inner }) => {
            let mut around = vec![(*var, *extent, *kind)];
            around.extend(wait_for_all_but_one(inner));
            around
        }
        Some(wait) => {
            *wait = Stmt::Beside(Beside::Wait { pending: 1, results: Vec::new() });
            Vec::new()
        }
        None => Vec::new(),
    }
}

/// Whether the one group of each iteration may go on while the next iteration runs up to its own.
fn goes_on(env: &mut Env, sizes: &[(TensorId, i64)], var: VarId, body: &[Stmt], results: &[TensorId]) -> bool {
    let all = flat(body);
    let tiles: Vec<&Stmt> = all.iter().copied().filter(|s| s.goes_on()).collect();
    let mut waits = 0;
    body.iter().for_each(|s| s.walk(&mut |s| waits += usize::from(matches!(s, Stmt::Beside(Beside::Wait { .. })))));
    let nested = all.iter().any(|s| !s.goes_on() && s.any(&mut |s| s.goes_on()));
    // Names could hide the loop's variable in an index.
    let names = body.iter().any(|s| s.any(&mut |s| matches!(s, Stmt::Let { .. })));
    if tiles.is_empty() || waits != 1 || nested || names {
        return false;
    }
    // What reads or changes results would have to wait.
    let mut uses = GoingOn::default();
    tiles.iter().for_each(|t| uses.add(t));
    let factors = std::mem::take(&mut uses.factors);
    let ends = |s: &Stmt| matches!(s, Stmt::Barrier | Stmt::Beside(_)) || s.goes_on();
    if results.iter().any(|r| !uses.results.contains(r)) || all.iter().any(|s| !ends(s) && uses.forbids(env, s)) {
        return false;
    }
    let size = |t: TensorId| sizes.iter().find(|s| s.0 == t).copied();
    let (mut read, mut filled) = (Vec::new(), Vec::new());
    for s in body {
        s.walk(&mut |s| match s {
            Stmt::Tile(t) => read.extend([&t.a, &t.b].map(|m| (m.tensor, m.offset))),
            Stmt::Bulk(b) => filled.push((b.to, Some(b.offset))),
            Stmt::Copy { tensor, index, .. } | Stmt::Store { tensor, index, .. } => {
                filled.push((*tensor, Some(*index)))
            }
            s => filled.extend(s.writes().into_iter().map(|t| (t, None))),
        });
    }
    filled.retain(|f| factors.contains(&f.0));
    let (v, one) = (env.pool.var(var), env.pool.int(1));
    let next: FxHashMap<VarId, ExprId> = [(var, env.pool.add(v, one))].into_iter().collect();
    for (t, at) in filled {
        for &(_, read) in read.iter().filter(|r| r.0 == t) {
            let apart = (|| {
                let base = |env: &Env, e: ExprId| if let Expr::Ramp { base, .. } = *env.pool.get(e) { base } else { e };
                let later = base(env, at?);
                let later = env.pool.substitute(later, &next);
                let ((x, n), (y, _)) = (slot_of(env, size(t)?, later)?, slot_of(env, size(t)?, read)?);
                let distance = env.pool.sub(x, y);
                let distance = normalize(&mut env.pool, distance);
                Some(env.pool.as_int(distance)? % n != 0)
            })();
            if apart != Some(true) {
                return false;
            }
        }
    }
    true
}

/// What the groups that go on use.
#[derive(Default)]
struct GoingOn {
    results: Vec<TensorId>,
    factors: Vec<TensorId>,
    /// Whether the last tile is in no group yet.
    open: bool,
}

impl GoingOn {
    fn add(&mut self, s: &Stmt) {
        if let Stmt::Tile(t) = s {
            self.results.push(t.c.tensor);
            self.factors.extend([t.a.tensor, t.b.tensor]);
            self.open = true;
        }
    }

    fn commit(&mut self, out: &mut Vec<Stmt>) {
        if std::mem::take(&mut self.open) {
            out.push(Stmt::Beside(Beside::Commit));
        }
    }

    fn wait(&mut self, out: &mut Vec<Stmt>) {
        self.commit(out);
        let mut results = std::mem::take(self).results;
        if !results.is_empty() {
            results.sort_unstable();
            results.dedup();
            out.push(Stmt::Beside(Beside::Wait { pending: 0, results }));
        }
    }

    /// Whether a statement must not run while they go on.
    fn forbids(&self, env: &Env, s: &Stmt) -> bool {
        let used = |t: &TensorId| self.results.contains(t);
        s.any(&mut |s| {
            let loads = |e| env.pool.any(e, &mut |n| matches!(n, Expr::Load { tensor, .. } if used(tensor)));
            s.goes_on()
                || *s == Stmt::Barrier
                || s.writes().iter().any(|t| used(t) || self.factors.contains(t))
                || s.named_reads().iter().any(used)
                || s.exprs().into_iter().any(loads)
        })
    }
}

fn settle(env: &Env, body: &mut Vec<Stmt>, fences: bool) {
    let mut out = Vec::new();
    let mut on = GoingOn::default();
    for mut s in std::mem::take(body) {
        if s.goes_on() {
            on.add(&s);
            out.push(s);
            continue;
        }
        on.commit(&mut out);
        if on.forbids(env, &s) {
            on.wait(&mut out);
        }
        s.bodies_mut().for_each(|b| settle(env, b, fences));
        if s == Stmt::Barrier && fences {
            out.push(Stmt::Beside(Beside::Fence));
        }
        out.push(s);
    }
    on.wait(&mut out);
    *body = out;
}
