//! The simplifier of the standard pipeline: polynomial form, intervals, equality saturation, Z3.

use crate::lower::Simplifier;
use crate::simplify::Prover;
use cora_ir::{Env, ExprId, VarId};

/// Simplifies and proves with everything that the crate has. What it proves of one program it remembers until it is asked
/// about another one: see [`Prover`].
#[derive(Debug, Default)]
pub struct StandardSimplifier {
    prover: Prover,
}

impl StandardSimplifier {
    /// A fresh simplifier.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Simplifier for StandardSimplifier {
    fn simplify(&mut self, env: &mut Env, loops: &[(VarId, ExprId)], e: ExprId) -> ExprId {
        self.prover.simplify(env, loops, e)
    }

    fn simplify_under(
        &mut self,
        env: &mut Env,
        loops: &[(VarId, ExprId)],
        assumptions: &[ExprId],
        e: ExprId,
    ) -> ExprId {
        self.prover.simplify_under(env, loops, assumptions, e)
    }

    fn prove(&mut self, env: &mut Env, loops: &[(VarId, ExprId)], assumptions: &[ExprId], goal: ExprId) -> bool {
        Simplifier::prove(&mut self.prover, env, loops, assumptions, goal)
    }
}
