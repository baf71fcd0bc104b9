//! The op graph: the meaning of a program, without a schedule.

use crate::env::Env;
use crate::expr::Expr;
use crate::ids::{DimId, ExprId, TensorId};
use crate::schedule::{Schedule, Span};
use crate::tuple::Reduction;

/// A program: tensors and the operators that define them, in order of definition.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// The program's name (a file stem).
    pub name: String,
    /// Parameters, functions, dimensions, tensors, expressions.
    pub env: Env,
    /// Operators; each reads inputs and results of earlier operators, or of a [recurrence](crate::recurrence).
    pub ops: Vec<Op>,
    /// The results, in the order of their `output` statements. Their role is `Output`.
    pub outputs: Vec<TensorId>,
    /// Named schedules, not applied.
    pub schedules: Vec<Schedule>,
    /// Where definitions stand in a program's text; empty for a graph from elsewhere.
    pub places: Vec<Place>,
}

/// The text of a definition, which may have made several operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// What it made.
    pub ops: Vec<TensorId>,
    /// All of it.
    pub span: Span,
    /// Its accesses, as they were written.
    pub accesses: Vec<(ExprId, Span)>,
}

/// One operator: `tensor[spatial] = combiner over reduce of value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// The tensor that it defines; also the name of its stage in schedules.
    pub tensor: TensorId,
    /// The tensor's dimensions, in order; each dimension's own variable is the index.
    pub spatial: Vec<DimId>,
    /// Dimensions reduced over; their extents may use spatial and earlier reduced dimensions.
    pub reduce: Vec<DimId>,
    /// How terms are combined; present exactly when the operator is a reduction.
    pub combiner: Option<Reduction>,
    /// The element, or the term: over the variables of `spatial` and `reduce`.
    pub value: ExprId,
}

impl Graph {
    /// The operator that defines `tensor`, if it is not an input.
    pub fn op_of(&self, tensor: TensorId) -> Option<&Op> {
        self.ops.iter().find(|o| o.tensor == tensor)
    }

    /// Where the text of operator `op` reads `load`: exactly that, else a read of the same tensor, else the definition.
    pub fn place_of(&self, op: TensorId, load: ExprId) -> Option<Span> {
        let place = self.places.iter().find(|p| p.ops.contains(&op))?;
        let tensor = |e: ExprId| match self.env.pool.get(e) {
            Expr::Load { tensor, .. } => Some(*tensor),
            _ => None,
        };
        let exact = place.accesses.iter().find(|a| a.0 == load);
        let same = || place.accesses.iter().find(|a| tensor(a.0).is_some() && tensor(a.0) == tensor(load));
        // Programs of the builder have no text.
        Some(exact.or_else(same).map_or(place.span, |a| a.1)).filter(|s| s.end > s.start)
    }

    /// The schedule with that name, or for that target.
    pub fn schedule(&self, name: &str) -> Option<&Schedule> {
        self.schedules.iter().find(|s| s.name == name)
    }

    /// The default schedule of a machine: of those for features that it `has` the one for most, the first of several, or
    /// else the one that has the target's name and is for no features.
    pub fn default_schedule(&self, target: &str, has: impl Fn(&str) -> bool) -> Option<&Schedule> {
        let suits = |s: &&Schedule| !s.features.is_empty() && s.features.iter().all(|f| has(f));
        self.schedules
            .iter()
            .filter(suits)
            .rev()
            .max_by_key(|s| s.features.len())
            .or_else(|| self.schedule(target).filter(|s| s.features.is_empty()))
    }
}
