//! Whether surplus iterations of a tile write elements that other iterations compute.
//!
//! ```text
//! for a in 0..ceildiv(n, 3) { for d in 0..2 { for e in 0..min(2, 3 - 2*d, n - 3*a - 2*d) { S[3*a + 2*d + e] = .. } } }
//! ```
//!
//! Where the tile ends with the rows nothing lies beyond it. Where it ends with a tile around it, element `3*a + 3` is the next
//! one's: that computes it afterwards if it runs afterwards, and if no other part has computed it before.

use super::filled::Loops;
use super::tree::{blocks_below, blocks_in, enclosing, loop_at};
use crate::lower::sign::never_negative;
use crate::simplify::{Facts, Prover};
use cora_ir::affine::poly;
use cora_ir::loops::{Block, For, Iter, LoopKind, LoopModule};
use cora_ir::{BinOp, Env, Expr, ExprId, TensorId, VarId};
use rustc_hash::FxHashMap;

/// Whether an iteration of the loop at `path`, from `rest` on, may leave something in an element of `tensor` that another
/// iteration computes and nobody computes afterwards, before it is read.
pub(super) fn overwrites(m: &mut LoopModule, path: &[usize], tensor: TensorId, rest: ExprId) -> bool {
    let l = loop_at(&m.body, path);
    let around: Vec<&For> = enclosing(&m.body, path);
    // What is read in the same iteration of a loop has been computed in it.
    let readers = m.blocks_reading(tensor).len();
    let attached =
        |l: &&&For| blocks_below(&l.body).iter().filter(|b| m.env.pool.reads(b.value, tensor)).count() == readers;
    let outside = around.iter().take_while(attached).count();
    let moving = |l: &For| Moving { var: l.var, in_order: matches!(l.kind, LoopKind::Serial | LoopKind::Unroll) };
    let mut inside: Vec<Moving> = around[outside..].iter().map(|l| moving(l)).collect();
    inside.push(Moving { var: l.var, in_order: true });
    let outer = around.iter().map(|l| (l.var, l.extent));
    let mut all: Vec<(Block, Loops)> = Vec::new();
    for (b, inner) in blocks_in(&l.body) {
        all.push((b.clone(), outer.clone().chain(inner.iter().map(|l| (l.var, l.extent))).collect()));
    }
    let var = l.var;
    let stages: Vec<TensorId> = m.blocks_writing(tensor).into_iter().map(|b| b.stage).collect();
    let one_stage = stages.windows(2).all(|s| s[0] == s[1]);
    all.iter().any(|(b, loops)| {
        let afterwards = one_stage && (own_positions(&m.env, b, &inside) || goes_on(&mut m.env, b, &inside));
        !afterwards && !ends(&m.env, rest).into_iter().all(|end| ends_a_dimension(&mut m.env, b, (var, end), loops))
    })
}

/// A loop inside the one that readers are in, too, and whether its iterations run one after the other.
struct Moving {
    var: VarId,
    in_order: bool,
}

/// The operands of a minimum.
fn ends(env: &Env, rest: ExprId) -> Vec<ExprId> {
    match *env.pool.get(rest) {
        Expr::Bin(BinOp::Min, a, b) => [ends(env, a), ends(env, b)].concat(),
        _ => vec![rest],
    }
}

/// Whether the innermost loop alone moves a position that it moves.
fn own_positions(env: &Env, b: &Block, inside: &[Moving]) -> bool {
    let Some((last, others)) = inside.split_last() else { return false };
    let own = |i: &Iter| {
        env.pool.uses_var(i.binding, last.var) && !others.iter().any(|l| env.pool.uses_var(i.binding, l.var))
    };
    b.index.iter().any(|&e| b.iters.iter().any(|i| env.pool.as_var(e) == Some(i.var) && own(i)))
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

/// Whether later positions are written later: they are sums of the loops, each of which runs in order and, if it is outside
/// another one, takes no shorter steps.
fn goes_on(env: &mut Env, b: &Block, inside: &[Moving]) -> bool {
    let moved = |env: &Env, e: ExprId| inside.iter().any(|l| env.pool.uses_var(e, l.var));
    let written = |env: &Env, v: VarId| b.index.iter().any(|&e| env.pool.uses_var(e, v));
    b.iters.iter().all(|i| {
        if !written(env, i.var) || !moved(env, i.binding) {
            return true;
        }
        let mut terms = poly(&env.pool, i.binding).terms;
        let steps: Vec<(i64, bool)> =
            inside.iter().filter_map(|l| Some((terms.remove(&vec![env.pool.var(l.var)])?, l.in_order))).collect();
        let others = terms.keys().flatten().any(|&a| moved(env, a));
        !others && steps.iter().all(|&(c, in_order)| c > 0 && in_order) && steps.is_sorted_by(|a, b| a.0 >= b.0)
    })
}
