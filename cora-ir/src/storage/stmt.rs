//! What a statement consists of: its bodies, its expressions and the buffers that it names. Passes that treat some kinds
//! of statements go through the others by these.

use super::{Beside, Stmt, WARP};
use crate::env::{Env, Scope};
use crate::expr::Expr;
use crate::ids::{ExprId, TensorId};
use crate::types::{Combiner, ScalarType};

/// Whether a store of `value` to `tensor` may be a [`Stmt::Copy`].
pub fn is_copy(env: &Env, tensor: TensorId, value: ExprId) -> bool {
    let (Some(to), Expr::Load { tensor: from, guard, .. }) = (env.tensors.get(tensor), env.pool.get(value)) else {
        return false;
    };
    let global = env.tensors.get(*from).is_some_and(|f| f.scope == Scope::Global && f.ty == to.ty);
    to.scope == Scope::Shared && global && guard.is_none_or(|(_, other)| env.pool.is_zero_bits(other))
}

/// Whether threads can combine elements of type `ty` in memory without getting between each other: sums of 32 and 64
/// bits, and the least and greatest of integers. Floating-point instructions of the latter kind would lose NaN.
pub fn is_atomic(combiner: Combiner, ty: ScalarType) -> bool {
    match combiner {
        Combiner::Sum => matches!(ty, ScalarType::F32 | ScalarType::F64 | ScalarType::I32 | ScalarType::I64),
        Combiner::Min | Combiner::Max => matches!(ty, ScalarType::I32 | ScalarType::I64),
        Combiner::Prod => false,
    }
}

impl Stmt {
    /// How many lanes execute the statement itself together, if it is one that several do.
    pub fn lanes(&self) -> Option<i64> {
        match self {
            Stmt::Shuffle { .. } => Some(WARP),
            Stmt::Tile(t) => Some(t.intrinsic.get().lanes).filter(|&n| n > 1),
            _ => None,
        }
    }

    /// Whether it is a tile that goes on while its threads do.
    pub fn goes_on(&self) -> bool {
        matches!(self, Stmt::Tile(t) if t.intrinsic.get().beside)
    }

    /// The bodies inside this statement, in order.
    pub fn bodies(&self) -> impl Iterator<Item = &Vec<Stmt>> {
        let both = match self {
            Stmt::For { body, .. } => [Some(body), None],
            Stmt::If { then, other, .. } => [Some(then), Some(other)],
            _ => [None, None],
        };
        both.into_iter().flatten()
    }

    /// [`Stmt::bodies`], mutably.
    pub fn bodies_mut(&mut self) -> impl Iterator<Item = &mut Vec<Stmt>> {
        let both = match self {
            Stmt::For { body, .. } => [Some(body), None],
            Stmt::If { then, other, .. } => [Some(then), Some(other)],
            _ => [None, None],
        };
        both.into_iter().flatten()
    }

    /// Visits this statement and all below it, outermost first.
    pub fn walk<'a>(&'a self, f: &mut dyn FnMut(&'a Stmt)) {
        f(self);
        self.bodies().flatten().for_each(|s| s.walk(f));
    }

    /// Whether `what` holds for this statement or one below it.
    pub fn any(&self, what: &mut dyn FnMut(&Stmt) -> bool) -> bool {
        what(self) || self.bodies().flatten().any(|s| s.any(what))
    }

    /// The statement's own expressions, without those of its bodies.
    pub fn exprs(&self) -> Vec<ExprId> {
        match self {
            Stmt::For { extent: e, .. }
            | Stmt::If { cond: e, .. }
            | Stmt::Let { value: e, .. }
            | Stmt::Await { slot: e, .. }
            | Stmt::Prefetch { index: e, .. } => vec![*e],
            Stmt::Store { index, value, mask, rest, .. } => {
                [*index, *value].into_iter().chain(rest.iter().map(|r| r.1)).chain(*mask).collect()
            }
            Stmt::Copy { index, value, mask, .. } => [*index, *value].into_iter().chain(*mask).collect(),
            Stmt::Atomic { index, value, .. } => vec![*index, *value],
            Stmt::Gemm(g) => g.exprs(),
            Stmt::Tile(t) => t.exprs(),
            Stmt::Bulk(b) => b.exprs(),
            Stmt::Barrier | Stmt::Commit | Stmt::Wait { .. } | Stmt::Beside(_) | Stmt::Shuffle { .. } => Vec::new(),
        }
    }

    /// Replaces each of [`Stmt::exprs`].
    pub fn map_exprs(&mut self, f: &mut dyn FnMut(ExprId) -> ExprId) {
        match self {
            Stmt::For { extent: e, .. }
            | Stmt::If { cond: e, .. }
            | Stmt::Let { value: e, .. }
            | Stmt::Await { slot: e, .. }
            | Stmt::Prefetch { index: e, .. } => *e = f(*e),
            Stmt::Store { index, value, mask, rest, .. } => {
                [index, value]
                    .into_iter()
                    .chain(rest.iter_mut().map(|r| &mut r.1))
                    .chain(mask)
                    .for_each(|e| *e = f(*e));
            }
            Stmt::Copy { index, value, mask, .. } => [index, value].into_iter().chain(mask).for_each(|e| *e = f(*e)),
            Stmt::Atomic { index, value, .. } => [index, value].into_iter().for_each(|e| *e = f(*e)),
            Stmt::Gemm(g) => g.map(f),
            Stmt::Tile(t) => t.map(f),
            Stmt::Bulk(b) => b.map(f),
            Stmt::Barrier | Stmt::Commit | Stmt::Wait { .. } | Stmt::Beside(_) | Stmt::Shuffle { .. } => {}
        }
    }

    /// The buffers that the statement itself writes.
    pub fn writes(&self) -> Vec<TensorId> {
        match self {
            Stmt::Store { tensor, rest, .. } => [*tensor].into_iter().chain(rest.iter().map(|r| r.0)).collect(),
            Stmt::Gemm(g) => vec![g.c.tensor],
            Stmt::Tile(t) => vec![t.c.tensor],
            Stmt::Bulk(b) => vec![b.to],
            Stmt::Copy { tensor: to, .. } | Stmt::Atomic { tensor: to, .. } | Stmt::Shuffle { to, .. } => vec![*to],
            _ => Vec::new(),
        }
    }

    /// The buffers that the statement itself reads or asks for other than by loads in its expressions.
    pub fn named_reads(&self) -> Vec<TensorId> {
        match self {
            Stmt::Gemm(g) => g.reads().collect(),
            Stmt::Tile(t) => t.reads().to_vec(),
            Stmt::Bulk(b) => vec![b.from],
            Stmt::Prefetch { tensor, .. }
            | Stmt::Atomic { tensor, .. }
            | Stmt::Shuffle { from: tensor, .. }
            | Stmt::Await { tensor, .. } => {
                vec![*tensor]
            }
            Stmt::Beside(Beside::Wait { results, .. }) => results.clone(),
            _ => Vec::new(),
        }
    }
}
