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
//! Requires: barriers placed, copies chosen. Ensures: no access to what an instruction still uses. Runs last.

use cora_ir::storage::{Beside, Stmt, StorageModule};
use cora_ir::{Env, Expr, TensorId};

/// Places groups, waits and fences in every kernel with such tiles.
pub fn await_tiles(m: &mut StorageModule) {
    for k in &mut m.kernels {
        if k.body.iter().any(|s| s.any(&mut |s| s.goes_on())) {
            settle(&m.env, &mut k.body);
        }
    }
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

fn settle(env: &Env, body: &mut Vec<Stmt>) {
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
        s.bodies_mut().for_each(|b| settle(env, b));
        if s == Stmt::Barrier {
            out.push(Stmt::Beside(Beside::Fence));
        }
        out.push(s);
    }
    on.wait(&mut out);
    *body = out;
}
