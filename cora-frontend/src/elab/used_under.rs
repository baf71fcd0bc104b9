//! Reductions of a recurrence that only one branch of a choice uses: their terms are those of that branch.
//!
//! ```text
//! L[b, i, j] = if j > i then 0.0 else (A[b, i, j] - sum(p) L[b, i, p] * L[b, j, p]) / ..
//!   L.sum[b, i, j] = sum(p) select(j > i, 0.0, L[b, i, p] * L[b, j, p])
//! ```
//!
//! An operator of its own has no branch around it, and would read what is not computed where the branch is not taken.

use super::Elab;
use cora_ir::recurrence::{Place, recurrences};
use cora_ir::{Expr, ExprId, ExprPool, Reduction, TensorId};

/// A condition, and whether it holds.
type Branch = (ExprId, bool);

impl Elab<'_> {
    /// Puts reductions whose reads are not known to be of earlier positions under the conditions that they are used under.
    pub(super) fn sums_of_branches(&mut self) {
        for r in recurrences(&self.graph) {
            for (reader, of) in r.unordered(&self.graph) {
                if of.place == Place::Unknown {
                    self.of_its_branch(reader);
                }
            }
        }
    }

    /// Has terms of an unnamed reduction only where each of its uses is.
    fn of_its_branch(&mut self, sum: TensorId) -> Option<()> {
        let n = self.graph.ops.iter().position(|op| op.tensor == sum)?;
        let op = &self.graph.ops[n];
        let Some(Reduction::Op(combiner)) = op.combiner else { return None };
        let env = &mut self.graph.env;
        let own: Vec<ExprId> = op.spatial.iter().map(|&d| env.pool.var(env.dims[d].var)).collect();
        // Names of the program have no points.
        if !env.tensors[sum].name.contains('.') {
            return None;
        }
        let mut uses = Uses { pool: &env.pool, of: sum, at: &own, common: None };
        self.graph.ops.iter().try_for_each(|op| uses.find(op.value, &mut Vec::new()))?;
        let common = uses.common?;
        let term = op.value;
        let identity = env.identity(combiner, env.pool.ty(term).scalar);
        let value = common.into_iter().rev().fold(term, |e, (cond, holds)| match holds {
            true => env.pool.select(cond, e, identity),
            false => env.pool.select(cond, identity, e),
        });
        self.graph.ops[n].value = value;
        Some(())
    }
}

/// Looks for the uses of a result.
struct Uses<'a> {
    pool: &'a ExprPool,
    of: TensorId,
    /// Where each has to be.
    at: &'a [ExprId],
    /// The branches that all found so far are in.
    common: Option<Vec<Branch>>,
}

impl Uses<'_> {
    /// Looks into an expression in branches; nothing if a use is of another position.
    fn find(&mut self, e: ExprId, path: &mut Vec<Branch>) -> Option<()> {
        if !self.pool.reads(e, self.of) {
            return Some(());
        }
        match self.pool.get(e) {
            Expr::Select(c, a, b) => {
                self.find(*c, path)?;
                for (branch, holds) in [(*a, true), (*b, false)] {
                    path.push((*c, holds));
                    self.find(branch, path)?;
                    path.pop();
                }
                Some(())
            }
            Expr::Load { tensor, index, guard, .. } if *tensor == self.of => {
                let common = self.common.get_or_insert_with(|| path.clone());
                common.retain(|b| path.contains(b));
                (guard.is_none() && **index == *self.at).then_some(())
            }
            _ => self.pool.children(e).into_iter().try_for_each(|e| self.find(e, path)),
        }
    }
}
