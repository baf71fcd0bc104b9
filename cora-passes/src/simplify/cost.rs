//! What an expression costs to evaluate, for choosing between equal ones.

use cora_ir::{BinOp, Env, Expr, ExprId, UfDef};
use rustc_hash::FxHashMap;

/// The cost of one evaluation: table reads and searches first, then divisions, then the rest.
pub(super) fn cost(env: &Env, e: ExprId, memo: &mut FxHashMap<ExprId, u64>) -> u64 {
    if let Some(&c) = memo.get(&e) {
        return c;
    }
    let own: u64 = match env.pool.get(e) {
        Expr::Call(f, _) => match env.ufs[*f].def {
            UfDef::Search { .. } => 400,
            _ => 100,
        },
        Expr::Search { .. } => 400,
        Expr::Load { .. } => 100,
        Expr::Bin(BinOp::FloorDiv | BinOp::Mod, ..) => 40,
        Expr::Bin(BinOp::Mul, ..) => 6,
        Expr::Bin(BinOp::Min | BinOp::Max, ..) | Expr::Select(..) => 5,
        Expr::Bin(..) | Expr::Un(..) => 4,
        Expr::Int(v) if (-4096..4096).contains(v) => 1,
        _ => 2,
    };
    let kids: u64 = env.pool.children(e).into_iter().map(|k| cost(env, k, memo)).fold(0, u64::saturating_add);
    let total = own.saturating_add(kids);
    memo.insert(e, total);
    total
}
