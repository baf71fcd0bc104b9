//! Last checks and rewrites before code generation.
//!
//! Ensures: a parallel loop is the last statement of its kernel, preceded by `let`s only; register
//! buffers are indexed by constants only.

use cora_ir::loops::LoopKind;
use cora_ir::storage::{Stmt, StorageModule};
use cora_ir::{Diagnostic, Env, Expr, ExprId, Scope, TensorId};

/// Moves register buffers that are indexed by variables to worker-local memory, so that no kernel
/// depends on registers that cannot be.
///
/// # Errors
/// `E0439` such a buffer that is spread over the lanes of warps.
pub fn demote_registers(m: &mut StorageModule) -> Result<(), Diagnostic> {
    let mut demoted = Vec::new();
    for k in &m.kernels {
        for s in &k.body {
            s.walk(&mut |s| {
                let mut check = |e: ExprId| {
                    m.env.pool.walk(e, &mut |_, n| {
                        if let Expr::Load { tensor, index, .. } = n
                            && m.env.tensors[*tensor].scope == Scope::Reg
                            && !constant_index(&m.env, index[0])
                        {
                            demoted.push(*tensor);
                        }
                    });
                };
                match s {
                    Stmt::Store { tensor, index, value, rest, .. } => {
                        let stored = [(*tensor, *value)].into_iter().chain(rest.iter().copied());
                        stored.clone().for_each(|s| check(s.1));
                        let variable = !constant_index(&m.env, *index);
                        let moves = |t: &TensorId| variable && m.env.tensors[*t].scope == Scope::Reg;
                        demoted.extend(stored.map(|s| s.0).filter(moves));
                    }
                    Stmt::If { cond, .. } => check(*cond),
                    Stmt::Atomic { value, .. } => check(*value),
                    Stmt::Tile(t) => {
                        let register = m.env.tensors[t.c.tensor].scope == Scope::Reg;
                        demoted.extend(Some(t.c.tensor).filter(|_| register && !constant_index(&m.env, t.c.offset)));
                    }
                    _ => {}
                }
            });
        }
    }
    if let Some(&t) = demoted.iter().find(|&&t| is_spread(m, t)) {
        return Err(super::spread::not_spread(
            &m.env,
            t,
            "which registers are used is not known when the code is made",
        ));
    }
    for t in demoted {
        m.env.tensors[t].scope = Scope::Local;
    }
    // Of a region that is never filled nothing is read; registers are at least one.
    for b in &mut m.buffers {
        if m.env.tensors[b.tensor].scope == Scope::Reg && m.env.pool.as_int(b.elems).is_some_and(|n| n < 1) {
            b.elems = m.env.pool.int(1);
        }
    }
    Ok(())
}

/// Whether a tile of several lanes has its result in `tensor`.
fn is_spread(m: &StorageModule, tensor: TensorId) -> bool {
    let mut found = false;
    let tile = |s: &Stmt| matches!(s, Stmt::Tile(t) if t.c.tensor == tensor && s.lanes().is_some());
    m.kernels.iter().flat_map(|k| &k.body).for_each(|s| s.walk(&mut |s| found |= tile(s)));
    found
}

fn constant_index(env: &Env, e: ExprId) -> bool {
    match env.pool.get(e) {
        Expr::Int(_) => true,
        Expr::Ramp { base, stride: 1, .. } => env.pool.as_int(*base).is_some(),
        _ => false,
    }
}

/// Checks the shape of kernels that code generation relies on.
///
/// # Errors
/// `E0492` a parallel loop that is not the kernel's last, outermost statement.
pub fn check_kernels(m: &StorageModule) -> Result<(), Diagnostic> {
    for k in &m.kernels {
        let last = k.body.len().saturating_sub(1);
        for (i, s) in k.body.iter().enumerate() {
            let allowed = i == last;
            let mut nested = 0;
            s.walk(&mut |s| {
                if let Stmt::For { kind: LoopKind::Parallel, .. } = s {
                    nested += 1;
                }
            });
            let top = matches!(s, Stmt::For { kind: LoopKind::Parallel, .. });
            if nested > usize::from(top) || (top && !allowed) {
                return Err(Diagnostic::new(
                    "E0492",
                    format!("kernel `{}` has a parallel loop that is not outermost", k.name),
                )
                .hint("make only the outermost loop of a nest parallel"));
            }
        }
    }
    Ok(())
}
