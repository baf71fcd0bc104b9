//! Whether surplus iterations of a tile write elements that other iterations compute.
//!
//! ```text
//! for a in 0..ceildiv(n, 3) { for d in 0..2 { for e in 0..min(2, 3 - 2*d, n - 3*a - 2*d) { S[3*a + 2*d + e] = .. } } }
//! ```
//!
//! Where the tile ends with the rows nothing lies beyond it. Where it ends with a tile around it, element `3*a + 3` is the next
//! one's: that computes it afterwards if it runs afterwards, and if no other part has computed it before.

use super::tree::{blocks_in, enclosing, loop_at};
use crate::lower::sign::never_negative;
use crate::simplify::{Facts, Prover};
use cora_ir::affine::poly;
use cora_ir::loops::{Block, LoopKind, LoopModule};
use cora_ir::{BinOp, Env, Expr, ExprId, TensorId, VarId};
use rustc_hash::FxHashMap;

type Loops = Vec<(VarId, ExprId)>;

/// Whether an iteration of the loop at `path`, from `rest` on, may leave something in an element of `tensor` that another
/// iteration computes and nobody computes afterwards.
pub(super) fn overwrites(m: &mut LoopModule, path: &[usize], tensor: TensorId, rest: ExprId) -> bool {
    let l = loop_at(&m.body, path);
    let var = l.var;
    let around: Vec<_> = enclosing(&m.body, path).into_iter().map(|l| (l.var, l.extent, l.kind)).collect();
    let outer = around.iter().map(|&(v, e, _)| (v, e));
    let mut all: Vec<(Block, Loops)> = Vec::new();
    for (b, inner) in blocks_in(&l.body) {
        all.push((b.clone(), outer.clone().chain(inner.iter().map(|l| (l.var, l.extent))).collect()));
    }
    let stages: Vec<TensorId> = m.blocks_writing(tensor).into_iter().map(|b| b.stage).collect();
    let one_stage = stages.windows(2).all(|s| s[0] == s[1]);
    let steps =
        |v: VarId| around.iter().any(|&(o, _, kind)| o == v && matches!(kind, LoopKind::Serial | LoopKind::Unroll));
    for (b, loops) in all {
        for end in ends(&m.env, rest) {
            if own_positions(&m.env, &b, var) || ends_a_dimension(&mut m.env, &b, (var, end), &loops) {
                continue;
            }
            if !one_stage || !goes_on(&mut m.env, &b, var, &steps) {
                return true;
            }
        }
    }
    false
}

/// The operands of a minimum.
fn ends(env: &Env, rest: ExprId) -> Vec<ExprId> {
    match *env.pool.get(rest) {
        Expr::Bin(BinOp::Min, a, b) => [ends(env, a), ends(env, b)].concat(),
        _ => vec![rest],
    }
}

/// Whether no other loop moves a position of the buffer that this one does.
fn own_positions(env: &Env, b: &Block, var: VarId) -> bool {
    let own = |e: ExprId| {
        let iter = env.pool.as_var(e).and_then(|v| b.iters.iter().find(|i| i.var == v));
        iter.is_some_and(|i| env.pool.as_var(i.binding) == Some(var))
    };
    b.index.iter().any(|&e| own(e))
}

/// Whether some iterator has no position any more where the loop is at `end`.
fn ends_a_dimension(env: &mut Env, b: &Block, (var, end): (VarId, ExprId), loops: &Loops) -> bool {
    let at = FxHashMap::from_iter([(var, end)]);
    let bindings: FxHashMap<VarId, ExprId> =
        b.iters.iter().map(|i| (i.var, env.pool.substitute(i.binding, &at))).collect();
    let loops: Loops = loops.iter().copied().filter(|l| l.0 != var).collect();
    let ranges: Vec<(ExprId, ExprId)> = loops.iter().map(|&(v, e)| (env.pool.var(v), e)).collect();
    b.iters.iter().any(|i| {
        if !env.pool.uses_var(i.binding, var) {
            return false;
        }
        let extent = env.pool.substitute(i.extent, &bindings);
        let beyond = env.pool.sub(bindings[&i.var], extent);
        let goal = env.pool.le(extent, bindings[&i.var]);
        never_negative(env, &ranges, beyond)
            || Prover::new().prove(env, &Facts::in_loops(loops.iter().copied()), goal).is_proved()
    })
}

/// Whether later positions are written later: they are sums of the loops in order, which `steps` says of each.
fn goes_on(env: &mut Env, b: &Block, var: VarId, steps: &dyn Fn(VarId) -> bool) -> bool {
    let written = |env: &Env, v: VarId| b.index.iter().any(|&e| env.pool.uses_var(e, v));
    b.iters.iter().all(|i| {
        if !written(env, i.var) {
            return true;
        }
        let terms = poly(&mut env.pool, i.binding).terms;
        !terms.keys().flatten().any(|&a| env.pool.as_var(a) == Some(var))
            || terms.iter().all(|(atoms, &c)| match atoms.as_slice() {
                [] => true,
                &[a] => c > 0 && env.pool.as_var(a).is_some_and(|v| v == var || steps(v)),
                _ => false,
            })
    })
}
