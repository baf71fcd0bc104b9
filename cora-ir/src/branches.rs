//! Reductions that only one branch of a choice uses: their terms are those of that branch.
//!
//! ```text
//! L[b, i, j] = if j > i then 0.0 else (A[b, i, j] - sum(p) L[b, i, p] * L[b, j, p]) / ..
//!   L.sum[b, i, j] = sum(p) select(j > i, 0.0, L[b, i, p] * L[b, j, p])
//! ```
//!
//! An operator of its own has no branch around it, and would read where the branch is not taken: what a recurrence has not
//! computed yet, or beyond a tensor's bounds.

use crate::{Env, Expr, ExprId, ExprPool, Graph, Reduction, TensorId, VarId};

/// A condition, and whether it holds.
type Branch = (ExprId, bool);

impl Graph {
    /// Gives an unnamed reduction terms only where each of its uses is, those of others their identity; the same for what
    /// uses it. Says whether it changed the terms of `sum`.
    pub fn only_in_its_branch(&mut self, sum: TensorId) -> bool {
        let unnamed = |env: &Env, t: TensorId| env.tensors[t].name.contains('.');
        let Some(n) = self.ops.iter().position(|op| op.tensor == sum) else { return false };
        // Names of the program have no points.
        let Some(combiner) = self.ops[n].combiner.filter(|_| unnamed(&self.env, sum)) else { return false };
        let users: Vec<TensorId> =
            self.ops.iter().filter(|op| self.env.pool.reads(op.value, sum)).map(|op| op.tensor).collect();
        if let &[user] = &users[..] {
            self.only_in_its_branch(user);
        }
        let Some(branches) = self.branches_of(n) else { return false };
        let env = &mut self.env;
        let term = self.ops[n].value;
        let terms = env.pool.components(term);
        let none = match combiner {
            Reduction::Op(c) => env.identity(c, env.pool.ty(term).scalar),
            Reduction::Tuple(_) => env.reduction_identity(combiner, sum),
        };
        let value: Vec<ExprId> = std::iter::zip(terms, env.pool.components(none))
            .map(|(term, none)| {
                let known = known_where_not(&env.pool, term, none);
                let new = branches.iter().filter(|b| !known.contains(b));
                new.rev().fold(term, |e, &(cond, holds)| match holds {
                    true => env.pool.select(cond, e, none),
                    false => env.pool.select(cond, none, e),
                })
            })
            .collect();
        let value = if let [one] = value[..] { one } else { env.pool.make_tuple(&value) };
        self.ops[n].value = value;
        value != term
    }

    /// The branches that all uses of an operator's results are in, those that depend on its position alone; nothing if a use
    /// is of another position.
    fn branches_of(&self, n: usize) -> Option<Vec<Branch>> {
        let (pool, op) = (&self.env.pool, &self.ops[n]);
        let own: Vec<VarId> = op.spatial.iter().map(|&d| self.env.dims[d].var).collect();
        let mut uses = Uses { pool, of: op.tensor, at: &own, common: None };
        self.ops.iter().try_for_each(|op| uses.find(op.value, &mut Vec::new()))?;
        let mut branches = uses.common?;
        branches.retain(|&(cond, _)| pool.vars_of(cond).iter().all(|v| own.contains(v)));
        Some(branches)
    }
}

/// The branches outside of which `e` is `none`, as they were put around it.
fn known_where_not(pool: &ExprPool, mut e: ExprId, none: ExprId) -> Vec<Branch> {
    let mut known = Vec::new();
    while let Expr::Select(c, a, b) = *pool.get(e) {
        e = match (a == none, b == none) {
            (_, true) => a,
            (true, _) => b,
            _ => break,
        };
        known.push((c, e == a));
    }
    known
}

/// Looks for the uses of a result.
struct Uses<'a> {
    pool: &'a ExprPool,
    of: TensorId,
    /// Where each has to be.
    at: &'a [VarId],
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
                let here = index.iter().map(|&i| self.pool.as_var(i)).eq(self.at.iter().map(|&v| Some(v)));
                (guard.is_none() && here).then_some(())
            }
            _ => self.pool.children(e).into_iter().try_for_each(|e| self.find(e, path)),
        }
    }
}
