//! Lets stores that only copy into shared memory go on beside the threads.
//!
//! ```text
//! wait 0  barrier  if %k + 1 < K { for %t thread.x { @L[(%k + 1) % 2 * 32 + %t] = @A[..] } }  commit  .. @L[%k % 2 * 32 + ..] ..
//!   =>  .. { copy @L[(%k + 1) % 2 * 32 + %t] = @A[..] } ..
//! ```
//!
//! Of a buffer of several slots the contents of later iterations are made ahead, in groups that each iteration waits for
//! (`double-buffer`). A store of elements of a global buffer, or of zeros where there are none, becomes a `copy`: it needs
//! no register and no instruction of the thread when the element arrives. Where a kernel copies nothing, its groups and
//! waits are dropped.
//!
//! Requires: legal storage. Ensures: the same values. Runs last, after barriers were placed by what the stores access.

use cora_ir::storage::{Stmt, StorageModule, is_copy};
use cora_ir::{Env, TensorId};
use rustc_hash::FxHashSet;

/// Turns stores into copies in every kernel that runs on a grid.
pub fn copy_ahead(m: &mut StorageModule) {
    for k in &mut m.kernels {
        if !k.is_grid() {
            continue;
        }
        let grouped = grouped(&k.body);
        if copies(&m.env, &grouped, &mut k.body) == 0 {
            drop_groups(&mut k.body);
        }
    }
}

/// Turns stores below into copies; how many.
fn copies(env: &Env, grouped: &FxHashSet<TensorId>, body: &mut [Stmt]) -> usize {
    let mut n = 0;
    for s in body {
        n += s.bodies_mut().map(|b| copies(env, grouped, b)).sum::<usize>();
        if goes_beside(env, grouped, s)
            && let Stmt::Store { tensor, index, value, mask, .. } = s
        {
            *s = Stmt::Copy { tensor: *tensor, index: *index, value: *value, mask: *mask };
            n += 1;
        }
    }
    n
}

/// The tensors whose stores are followed by the end of a group, which is waited for; a thread that fills a buffer for itself
/// has none.
pub(super) fn grouped(body: &[Stmt]) -> FxHashSet<TensorId> {
    fn go(body: &[Stmt], out: &mut FxHashSet<TensorId>) {
        for (n, s) in body.iter().enumerate() {
            let next = body[n + 1..].iter().find(|s| !matches!(s, Stmt::Barrier | Stmt::Let { .. }));
            if matches!(next, Some(Stmt::Commit)) {
                s.walk(&mut |s| out.extend(s.writes()));
            }
            s.bodies().for_each(|b| go(b, out));
        }
    }
    let mut out = FxHashSet::default();
    go(body, &mut out);
    out
}

/// Whether a statement is a copy, or a store that becomes one: of one of the tensors `grouped`.
pub(super) fn goes_beside(env: &Env, grouped: &FxHashSet<TensorId>, s: &Stmt) -> bool {
    match s {
        Stmt::Copy { .. } => true,
        Stmt::Store { tensor, value, rest, .. } => {
            let slots = env.tensors[*tensor].slots().is_some() && grouped.contains(tensor);
            rest.is_empty() && slots && is_copy(env, *tensor, *value)
        }
        _ => false,
    }
}

fn drop_groups(body: &mut Vec<Stmt>) {
    body.retain(|s| !matches!(s, Stmt::Commit | Stmt::Wait { .. }));
    body.iter_mut().flat_map(Stmt::bodies_mut).for_each(drop_groups);
}
