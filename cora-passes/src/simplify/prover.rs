//! Proof of conditions: inequalities first, then equality saturation, then the solver.

use super::context::{Cache, Cx};
use super::facts::Facts;
use cora_ir::{Env, ExprId};

/// The procedure that decided a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// Polynomial normal form alone.
    Affine,
    /// Intervals, residues and symbolic inequalities.
    Linear,
    /// Equality saturation.
    Egraph,
    /// Evaluation on small batches found a counterexample.
    Example,
    /// Z3.
    Solver,
}

/// The answer to a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The goal holds wherever the facts hold.
    Proved(Stage),
    /// There is a batch and an iteration in which the facts hold and the goal does not: the
    /// values of parameters, entries of extent functions and variables, by name.
    Refuted(Vec<(String, i64)>),
    /// Neither; treat as not proved. Says why.
    Unknown(String),
}

impl Verdict {
    /// Whether the goal is proved.
    pub fn is_proved(&self) -> bool {
        matches!(self, Self::Proved(_))
    }
}

/// Proves conditions for one environment. It remembers answers by expression id: do not use one
/// prover for two environments (an environment that grows, or moves to the next stage, is the same).
#[derive(Default)]
pub struct Prover {
    pub(super) cache: Cache,
}

impl Prover {
    /// A prover that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether `goal` (a `Bool`) holds wherever the facts hold.
    pub fn prove(&mut self, env: &mut Env, facts: &Facts, goal: ExprId) -> Verdict {
        let mut cx = Cx::new(env, facts, &mut self.cache);
        if cx.proves(goal, true) {
            return Verdict::Proved(Stage::Linear);
        }
        if let Some(example) = super::concrete::counterexample(env, facts, goal) {
            return Verdict::Refuted(example);
        }
        Verdict::Unknown("not yet".into())
    }
}
