//! Lowering between stages.

pub mod await_tiles;
pub mod bulk;
pub mod capacity;
pub mod carry_lanes;
pub mod copy_ahead;
mod csf;
pub mod cut_heads;
pub mod cut_tails;
mod decide;
pub mod declared;
pub mod device_prelude;
pub mod double_buffer;
pub mod drop_unread;
pub mod first_block;
pub mod fold_positions;
pub mod functions;
pub mod grid;
pub mod hoist;
pub mod known_branches;
pub mod layout;
pub mod legalize;
pub mod merge_branches;
pub mod offload;
mod place;
pub mod place_barriers;
pub mod prefetch;
pub mod row_segments;
pub mod scatter_terms;
pub mod shape_blocks;
pub mod share_nests;
mod shifted;
pub mod sign;
pub mod split_accumulators;
mod spread;
pub mod stored;
mod sum_of_products;
pub mod tensorize;
pub mod threads_outward;
pub mod to_loops;
pub mod to_storage;
pub mod unclamp;
pub mod unswitch;
pub mod vectorize;
pub mod virtual_threads;
mod warp;

use cora_ir::affine::normalize;
use cora_ir::storage::Stmt;
use cora_ir::{BinOp, Env, Expr, ExprId, VarId};

/// What simplifies an index expression; `loops` are the enclosing loops, outermost first, each
/// variable in `0..extent`.
pub trait Simplifier {
    /// An expression with the same value wherever the loops' ranges hold.
    fn simplify(&mut self, env: &mut Env, loops: &[(VarId, ExprId)], e: ExprId) -> ExprId;

    /// An expression with the same value wherever the loops' ranges and the assumptions hold.
    fn simplify_under(
        &mut self,
        env: &mut Env,
        loops: &[(VarId, ExprId)],
        _assumptions: &[ExprId],
        e: ExprId,
    ) -> ExprId {
        self.simplify(env, loops, e)
    }

    /// Whether `goal` (a condition) is proved under the loops' ranges and the assumptions.
    fn prove(&mut self, env: &mut Env, loops: &[(VarId, ExprId)], assumptions: &[ExprId], goal: ExprId) -> bool;
}

/// Polynomial normal form, and goals that are a loop's own range; nothing else.
pub struct AffineSimplifier;

impl Simplifier for AffineSimplifier {
    fn simplify(&mut self, env: &mut Env, _loops: &[(VarId, ExprId)], e: ExprId) -> ExprId {
        cora_ir::affine::normalize(&mut env.pool, e)
    }

    fn prove(&mut self, env: &mut Env, loops: &[(VarId, ExprId)], _assumptions: &[ExprId], goal: ExprId) -> bool {
        let g = cora_ir::affine::normalize(&mut env.pool, goal);
        if env.pool.as_bool(g) == Some(true) {
            return true;
        }
        let Expr::Bin(op, a, b) = *env.pool.get(goal) else { return false };
        let range = |e: ExprId| env.pool.as_var(e).and_then(|v| loops.iter().find(|l| l.0 == v));
        match op {
            BinOp::Le => env.pool.as_int(a) == Some(0) && range(b).is_some(),
            BinOp::Lt => match range(a) {
                Some(&(_, extent)) => {
                    let (x, y) = (normalize(&mut env.pool, extent), normalize(&mut env.pool, b));
                    x == y
                }
                None => false,
            },
            _ => false,
        }
    }
}

/// Statements that run where all conditions hold. Both sides of a conjunction are evaluated, so one with reads is a
/// branch of its own within the others: what it reads may exist only where those hold.
fn under(env: &mut Env, conditions: Vec<ExprId>, mut stmts: Vec<Stmt>) -> Vec<Stmt> {
    let reading = |c: &ExprId| env.pool.any(*c, &mut |n| matches!(n, Expr::Load { .. }));
    let (with_reads, plain): (Vec<ExprId>, Vec<ExprId>) = conditions.into_iter().partition(reading);
    for cond in with_reads.into_iter().rev() {
        stmts = vec![Stmt::If { cond, then: stmts, other: Vec::new() }];
    }
    if !plain.is_empty() {
        stmts = vec![Stmt::If { cond: env.pool.all(plain), then: stmts, other: Vec::new() }];
    }
    stmts
}
