//! What is known of a row that is searched for: it is not empty, so no extent that its size is a product of is 0.
//!
//! A position in a fused loop whose rows have several dimensions is `r * (x // r) + x % r`, which is `x` unless `r` is 0.

use super::Lowering;
use cora_ir::{BinOp, Expr, ExprId, ExprPool, UfDef};

impl Lowering<'_> {
    /// What a row that is searched for in `e` has at least: one position, the one that it is found by.
    pub(super) fn rows_that_are_found(&mut self, e: ExprId) -> Vec<ExprId> {
        let mut rows = Vec::new();
        self.env.pool.walk(e, &mut |row, n| {
            if let Expr::Call(f, args) = n
                && let UfDef::Search { sum } = self.env.ufs[*f].def
                && let UfDef::PrefixSum { body } = self.env.ufs[sum].def
            {
                rows.push((row, sum, body, args.to_vec()));
            }
        });
        let mut known = Vec::new();
        for (row, sum, body, mut at) in rows {
            let (Some(position), Some(&all)) = (at.pop(), self.env.ufs[sum].domain.last()) else { continue };
            let all = self.env.pool.instantiate(all, &at);
            let total = self.env.pool.call(sum, at.iter().copied().chain([all]));
            let below = self.env.pool.lt(position, total);
            if self.simplifier.prove(&mut self.env, &self.loops, &self.masks, below) {
                at.push(row);
                let size = self.env.pool.instantiate(body, &at);
                let one = self.env.pool.int(1);
                known.push(self.env.pool.le(one, size));
            }
        }
        known
    }
}

/// Whether a position is a quotient or a remainder by something that is not constant, as where the rows of a fused loop have
/// several dimensions inside.
pub(super) fn divides_by_a_size(pool: &ExprPool, e: ExprId) -> bool {
    pool.any(e, &mut |n| match n {
        Expr::Bin(BinOp::FloorDiv | BinOp::Mod, _, by) => pool.as_int(*by).is_none(),
        _ => false,
    })
}
