//! Nests whose results nobody reads are left out.
//!
//! Ensures: outputs are the same; a program warns of an operator that no output needs (`W0202`).

use cora_ir::loops::{LoopModule, Stmt};
use cora_ir::{Role, TensorId};

/// Removes every top-level nest that writes nothing but intermediates which no other nest reads, the last ones first.
pub fn drop_unread(m: &mut LoopModule) {
    for n in (0..m.body.len()).rev() {
        let written = written(&m.body[n]);
        let unread = |&t: &TensorId| {
            let others = m.body.iter().enumerate().filter(|(other, _)| *other != n);
            m.env.tensors[t].role == Role::Temp && !others.map(|o| o.1).any(|s| reads(m, s, t))
        };
        if written.iter().all(unread) {
            m.body.remove(n);
        }
    }
}

fn written(s: &Stmt) -> Vec<TensorId> {
    let mut all = Vec::new();
    s.walk(&mut |s| {
        if let Stmt::Block(b) = s {
            all.push(b.tensor);
        }
    });
    all.sort_unstable();
    all.dedup();
    all
}

/// Whether a nest reads a tensor, or goes on with what another one has written to it.
fn reads(m: &LoopModule, s: &Stmt, t: TensorId) -> bool {
    if !s.read(&m.env.pool).may_have(t) && !s.concerned().may_have(t) {
        return false;
    }
    let pool = &m.env.pool;
    let mut found = false;
    s.walk(&mut |s| {
        found |= match s {
            Stmt::For(l) => pool.reads(l.extent, t),
            Stmt::Block(b) => {
                let iters = b.iters.iter().flat_map(|i| [i.extent, i.binding]);
                let own = b.predicate.iter().chain(&b.index).chain([&b.value]).copied();
                b.tensor == t || iters.chain(own).any(|e| pool.reads(e, t))
            }
        }
    });
    found
}
