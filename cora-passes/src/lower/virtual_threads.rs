//! Interleaves the iterations of virtual threads.
//!
//! ```text
//! for %v in 0..2 vthread { for %k in 0..K { @S[%v] = @S[%v] + @A[%v * K + %k] } }
//!   =>  for %k in 0..K { @S[0] = @S[0] + @A[%k]  @S[1] = @S[1] + @A[K + %k] }
//! ```
//!
//! A loop, condition or barrier that all instances share stays one, with the instances' statements side by side in it; a
//! loop whose extent differs from instance to instance is run for one after the other. Each instance has its own part of
//! the buffers that live inside one. The iterations were independent when the loop was bound, so any order will do.
//!
//! Requires: storage, offsets flat. Ensures: no loop of kind `vthread`. Runs before functions are lowered, so that the
//! reads of an instance that there is not are guarded.

use super::double_buffer::{accesses, shifted, stored_together};
use super::vectorize::substitute_all;
use cora_ir::loops::LoopKind;
use cora_ir::storage::{Buffer, Stmt, StorageModule};
use cora_ir::{Env, ExprId, Scope, TensorId, VarId};
use rustc_hash::FxHashMap;

/// Interleaves in every kernel.
pub fn virtual_threads(m: &mut StorageModule) {
    for k in &mut m.kernels {
        let mut private = FxHashMap::default();
        for s in &k.body {
            s.walk(&mut |s| {
                if let Stmt::For { var, kind: LoopKind::Virtual, body, .. } = s {
                    private.insert(*var, inside(&m.env, &m.buffers, &k.body, body));
                }
            });
        }
        let mut cx = Threads { env: &mut m.env, buffers: &mut m.buffers, private };
        k.body = cx.body(std::mem::take(&mut k.body));
    }
}

/// The buffers of workers, threads or blocks that statements use which are used nowhere else in the kernel; those of the
/// components of tuples together.
fn inside(env: &Env, buffers: &[Buffer], kernel: &[Stmt], body: &[Stmt]) -> Vec<Vec<TensorId>> {
    let mut exchanged = Vec::new();
    for s in body {
        s.walk(&mut |s| {
            if let Stmt::Shuffle { to, from, .. } = s {
                exchanged.extend([*to, *from]);
            }
        });
    }
    let own = |t: TensorId| env.tensors[t].scope != Scope::Global && !exchanged.contains(&t);
    let all = buffers.iter().map(|b| b.tensor).filter(|&t| own(t));
    let mut found: Vec<Vec<TensorId>> = all.map(|t| stored_together(kernel.iter(), t)).collect();
    found.sort_unstable();
    found.dedup();
    found.retain(|ts| accesses(env, body, ts) > 0 && accesses(env, body, ts) == accesses(env, kernel, ts));
    found
}

struct Threads<'a> {
    env: &'a mut Env,
    buffers: &'a mut [Buffer],
    /// What each virtual thread has for itself.
    private: FxHashMap<VarId, Vec<Vec<TensorId>>>,
}

/// The instances of a loop.
struct Instances {
    var: VarId,
    count: i64,
    /// The extent, where not all instances may run.
    partial: Option<ExprId>,
}

impl Threads<'_> {
    fn body(&mut self, body: Vec<Stmt>) -> Vec<Stmt> {
        let mut out = Vec::new();
        for s in body {
            match s {
                Stmt::For { var, extent, kind: LoopKind::Virtual, body } => {
                    let body = self.body(body);
                    self.interleave(var, extent, body, &mut out);
                }
                Stmt::For { var, extent, kind, body } => {
                    out.push(Stmt::For { var, extent, kind, body: self.body(body) });
                }
                Stmt::If { cond, then, other } => {
                    out.push(Stmt::If { cond, then: self.body(then), other: self.body(other) });
                }
                s => out.push(s),
            }
        }
        out
    }

    fn interleave(&mut self, var: VarId, extent: ExprId, mut body: Vec<Stmt>, out: &mut Vec<Stmt>) {
        let Some(count) = self.env.pool.constant_bound(extent) else {
            out.push(Stmt::For { var, extent, kind: LoopKind::Serial, body });
            return;
        };
        // What instances share is not run for none.
        if count < 1 {
            return;
        }
        for tensors in self.private.remove(&var).unwrap_or_default() {
            body = self.own_parts(&tensors, var, count, &body);
        }
        let partial = self.env.pool.as_int(extent).is_none().then_some(extent);
        let all = Instances { var, count, partial };
        let body = self.side_by_side(&all, &body);
        match partial {
            None => out.extend(body),
            // What instances share is run for all of them, so only where there is one.
            Some(extent) => {
                let zero = self.env.pool.int(0);
                let cond = self.env.pool.lt(zero, extent);
                out.push(Stmt::If { cond, then: body, other: Vec::new() });
            }
        }
    }

    /// Gives each of `count` instances its own part of a buffer.
    fn own_parts(&mut self, tensors: &[TensorId], var: VarId, count: i64, body: &[Stmt]) -> Vec<Stmt> {
        let pool = &mut self.env.pool;
        let (v, n) = (pool.var(var), pool.int(count));
        let mut part = None;
        for b in self.buffers.iter_mut().filter(|b| tensors.contains(&b.tensor)) {
            part = Some(pool.mul(v, b.elems));
            b.elems = pool.mul(b.elems, n);
        }
        let Some(part) = part else { return body.to_vec() };
        body.iter().map(|s| shifted(self.env, s, tensors, part)).collect()
    }

    fn side_by_side(&mut self, all: &Instances, body: &[Stmt]) -> Vec<Stmt> {
        let own = |env: &Env, e: ExprId| env.pool.uses_var(e, all.var);
        if body.iter().any(|s| matches!(s, Stmt::Let { .. } | Stmt::Shuffle { .. })) {
            // Names are for the rest of the body, and so are the registers that lanes exchange: each instance then runs
            // all of it.
            return self.one_by_one(all, body);
        }
        let mut out = Vec::new();
        for s in body {
            match s {
                Stmt::For { var, extent, kind, body } if !own(&*self.env, *extent) => {
                    let body = self.side_by_side(all, body);
                    out.push(Stmt::For { var: *var, extent: *extent, kind: *kind, body });
                }
                Stmt::If { cond, then, other } if !own(&*self.env, *cond) => {
                    let (then, other) = (self.side_by_side(all, then), self.side_by_side(all, other));
                    out.push(Stmt::If { cond: *cond, then, other });
                }
                Stmt::Barrier | Stmt::Commit | Stmt::Wait { .. } | Stmt::Beside(_) => out.push(s.clone()),
                s => out.extend(self.one_by_one(all, std::slice::from_ref(s))),
            }
        }
        out
    }

    fn one_by_one(&mut self, all: &Instances, body: &[Stmt]) -> Vec<Stmt> {
        let mut out = Vec::new();
        for i in 0..all.count {
            let i = self.env.pool.int(i);
            let map: FxHashMap<VarId, ExprId> = [(all.var, i)].into_iter().collect();
            let copy = substitute_all(self.env, body, &map);
            let cond = all.partial.map(|extent| self.env.pool.lt(i, extent));
            match cond.filter(|&c| self.env.pool.as_bool(c) != Some(true)) {
                None => out.extend(copy),
                Some(cond) => out.push(Stmt::If { cond, then: copy, other: Vec::new() }),
            }
        }
        out
    }
}
