//! Reductions over tuples with a user's combiner.
//!
//! A tensor of tuples ([`crate::Tensor::tuple`]) is one tensor and one stage up to the storage dialect: its
//! elements have several components, which loads name by number and which the value of an operator or a block
//! gives as an [`Expr::Tuple`]. So schedules treat such a reduction like any other. [`split_tuples`] turns it
//! into one tensor for each component, where components begin to be places in memory.

mod laws;
mod split;

pub use laws::check_laws;
pub use split::{Components, split_tuples};

use crate::env::Env;
use crate::expr::Expr;
use crate::ids::{CombinerId, ExprId, TensorId};
use crate::types::{Combiner, Literal, ScalarType};

/// One component of the tuples that a combiner combines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its name.
    pub name: String,
    /// The type of its elements.
    pub ty: ScalarType,
    /// Its value in the combiner's identity: the result over nothing.
    pub identity: Literal,
}

/// An associative operator on tuples.
///
/// The laws that a reduction rests on are checked by [`check_laws`] where it is used: it is associative, its identity is neutral on
/// both sides, and it is commutative if it says so. Reductions over it may be reassociated; their terms are
/// permuted only if it is commutative.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TupleCombiner {
    /// The name in text; unique in a module.
    pub name: String,
    /// The components, at least one.
    pub parts: Vec<Part>,
    /// The combined components, over `Operand(0..n)` for the left tuple and `Operand(n..2 * n)` for the right.
    pub body: Vec<ExprId>,
    /// Whether the order of the terms does not matter.
    pub commutative: bool,
}

/// How the terms of a reduction are combined.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Reduction {
    /// By one of the operators of the language, on scalars.
    Op(Combiner),
    /// By a user's combiner, on tuples.
    Tuple(CombinerId),
}

impl Reduction {
    /// The operator, if it is one of the language.
    pub fn op(self) -> Option<Combiner> {
        match self {
            Self::Op(c) => Some(c),
            Self::Tuple(_) => None,
        }
    }
}

impl Env {
    /// The types of the components of a tensor's elements.
    pub fn part_types(&self, t: TensorId) -> Vec<ScalarType> {
        match self.tensors[t].tuple {
            Some(c) => self.combiners[c].parts.iter().map(|p| p.ty).collect(),
            None => vec![self.tensors[t].ty],
        }
    }

    /// A whole element: a load, or the tuple of all components.
    pub fn element(&mut self, t: TensorId, index: &[ExprId]) -> ExprId {
        let types = self.part_types(t);
        let load =
            |(k, ty): (usize, ScalarType)| self.pool.load_guarded((t, k as u32), ty, index.iter().copied(), None);
        let parts: Vec<ExprId> = types.into_iter().enumerate().map(load).collect();
        if self.tensors[t].tuple.is_some() { self.pool.make_tuple(&parts) } else { parts[0] }
    }

    /// The result over nothing, for elements of `t`.
    pub fn reduction_identity(&mut self, r: Reduction, t: TensorId) -> ExprId {
        match r {
            Reduction::Op(c) => self.identity(c, self.tensors[t].ty),
            Reduction::Tuple(c) => {
                let identity: Vec<Literal> = self.combiners[c].parts.iter().map(|p| p.identity).collect();
                let parts: Vec<ExprId> = identity.into_iter().map(|l| self.pool.lit(l)).collect();
                self.pool.make_tuple(&parts)
            }
        }
    }

    /// `old` and `new` combined; both are tuples where the reduction is over tuples.
    pub fn combined(&mut self, r: Reduction, old: ExprId, new: ExprId) -> ExprId {
        match r {
            Reduction::Op(c) => self.pool.bin(c.op(), old, new),
            Reduction::Tuple(c) => {
                let operands: Vec<ExprId> =
                    self.pool.components(old).into_iter().chain(self.pool.components(new)).collect();
                let body = self.combiners[c].body.clone();
                let parts: Vec<ExprId> = body.into_iter().map(|e| self.pool.with_operands(e, &operands)).collect();
                self.pool.make_tuple(&parts)
            }
        }
    }

    /// Whether the terms of the reduction may be permuted.
    pub fn is_commutative(&self, r: Reduction) -> bool {
        match r {
            Reduction::Op(_) => true,
            Reduction::Tuple(c) => self.combiners[c].commutative,
        }
    }

    /// The name of the reduction in messages.
    pub fn reduction_name(&self, r: Reduction) -> String {
        match r {
            Reduction::Op(c) => c.name().to_owned(),
            Reduction::Tuple(c) => self.combiners[c].name.clone(),
        }
    }

    /// Whether `e` is what a combiner may consist of: its operands, constants, operators, conversions, choices.
    pub fn is_combiner_body(&self, e: ExprId) -> bool {
        !self.pool.any(e, &mut |n| {
            !matches!(
                n,
                Expr::Lit(_) | Expr::Operand(..) | Expr::Un(..) | Expr::Bin(..) | Expr::Select(..) | Expr::Cast(..)
            )
        })
    }
}
