//! Which tensors a kernel reads and writes, and which kernels are setup.

use cora_ir::loops::LoopKind;
use cora_ir::storage::{Stmt, StorageModule};
use cora_ir::{Expr, ExprId, Role, Scope, TensorId};

use crate::mlir::{Slot, Slots};

/// Tensors read and written, each list ascending; and what else statements use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) reads: Vec<TensorId>,
    pub(super) writes: Vec<TensorId>,
    /// A parameter occurs outside of the parallel loop's extent.
    params: bool,
    /// A search or a read of a table occurs outside of the parallel loop's extent.
    tables: bool,
}

pub(super) fn usage(module: &StorageModule, slots: &Slots, body: &[Stmt]) -> Usage {
    let mut used = Usage::default();
    for stmt in body {
        stmt.walk(&mut |s| {
            let exprs: Vec<ExprId> = match s {
                // Known to the runtime as the trip count.
                Stmt::For { kind: LoopKind::Parallel, .. } => vec![],
                Stmt::For { kind, .. } if kind.is_block() => vec![],
                s => s.exprs(),
            };
            used.reads.extend(s.named_reads());
            used.writes.extend(s.writes());
            used.tables |= s.writes().iter().any(|&t| matches!(slots.get(t), Some(Slot::Table(_))));
            for e in exprs {
                module.env.pool.walk(e, &mut |_, e| match e {
                    Expr::Param(_) => used.params = true,
                    Expr::Search { .. } => used.tables = true,
                    Expr::Load { tensor, .. } => match slots.get(*tensor) {
                        Some(Slot::Table(_)) => used.tables = true,
                        _ => used.reads.push(*tensor),
                    },
                    _ => {}
                });
            }
        });
    }
    for list in [&mut used.reads, &mut used.writes] {
        list.sort_unstable();
        list.dedup();
    }
    used
}

/// Whether each kernel is setup: the greatest set that fits the definition in the parent module.
pub(super) fn setup_kernels(module: &StorageModule, slots: &Slots) -> Vec<bool> {
    let all: Vec<Usage> = module.kernels.iter().map(|k| usage(module, slots, &k.body)).collect();
    let tensors = &module.env.tensors;
    let own = |t: TensorId| matches!(tensors[t].scope, Scope::Local | Scope::Shared | Scope::Reg);
    let memory = |t: &TensorId| matches!(slots.get(*t), Some(Slot::Buffer(_))) && !own(*t);
    let mut setup: Vec<bool> = all.iter().map(|u| !u.params && !u.tables).collect();
    // Striking one kernel out may strike out others, so go on until nothing changes.
    loop {
        let before = setup.clone();
        for (k, u) in all.iter().enumerate() {
            let writers = |t: TensorId, wanted: bool| {
                all.iter().enumerate().any(|(other, u)| u.writes.contains(&t) && before[other] == wanted)
            };
            let reads = u.reads.iter().filter(|t| memory(t)).all(|&t| match tensors[t].role {
                Role::ConstInput => true,
                Role::Temp => writers(t, true) && !writers(t, false),
                Role::Input | Role::Output => false,
            });
            let writes =
                u.writes.iter().filter(|t| memory(t)).all(|&t| tensors[t].role == Role::Temp && !writers(t, false));
            setup[k] &= reads && writes;
        }
        if setup == before {
            return setup;
        }
    }
}
