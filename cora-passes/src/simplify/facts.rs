//! What is known where an expression is evaluated: ranges of loop variables, named values, conditions.

use cora_ir::{ExprId, VarId};

/// Facts that hold at one place of a program. They are hypotheses taken from the loops and
/// conditions around that place; what follows from the definitions of uninterpreted functions is
/// never among them.
///
/// Used as a stack: take a [`Mark`] when entering a scope and [`Facts::release`] it when leaving.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Facts {
    /// Loop variables, outermost first: `0 <= var < extent`, the extent over earlier variables.
    pub vars: Vec<(VarId, ExprId)>,
    /// Named values: `var == value`, the value over loop variables and earlier names.
    pub lets: Vec<(VarId, ExprId)>,
    /// Conditions (`Bool`) that hold.
    pub assumptions: Vec<ExprId>,
}

/// A position in the stack of [`Facts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    vars: usize,
    lets: usize,
    assumptions: usize,
}

impl Facts {
    /// No facts.
    pub fn new() -> Self {
        Self::default()
    }

    /// Inside these loops (outermost first).
    pub fn in_loops(vars: impl IntoIterator<Item = (VarId, ExprId)>) -> Self {
        Self { vars: vars.into_iter().collect(), ..Self::default() }
    }

    /// Enters a loop: `0 <= var < extent`.
    pub fn push_var(&mut self, var: VarId, extent: ExprId) -> &mut Self {
        self.vars.push((var, extent));
        self
    }

    /// Enters the scope of a name: `var == value`.
    pub fn push_let(&mut self, var: VarId, value: ExprId) -> &mut Self {
        self.lets.push((var, value));
        self
    }

    /// Enters a place where `cond` holds.
    pub fn push_assumption(&mut self, cond: ExprId) -> &mut Self {
        self.assumptions.push(cond);
        self
    }

    /// A copy in which `cond` holds too.
    #[must_use]
    pub fn assuming(&self, cond: ExprId) -> Self {
        let mut more = self.clone();
        if !more.assumptions.contains(&cond) {
            more.assumptions.push(cond);
        }
        more
    }

    /// The present position, for [`Facts::release`].
    pub fn mark(&self) -> Mark {
        Mark { vars: self.vars.len(), lets: self.lets.len(), assumptions: self.assumptions.len() }
    }

    /// Leaves every scope entered since `mark` was taken.
    pub fn release(&mut self, mark: Mark) {
        self.vars.truncate(mark.vars);
        self.lets.truncate(mark.lets);
        self.assumptions.truncate(mark.assumptions);
    }

    /// The extent of a loop variable.
    pub fn extent_of(&self, var: VarId) -> Option<ExprId> {
        self.vars.iter().rev().find(|(v, _)| *v == var).map(|&(_, e)| e)
    }

    /// The value of a name.
    pub fn value_of(&self, var: VarId) -> Option<ExprId> {
        self.lets.iter().rev().find(|(v, _)| *v == var).map(|&(_, e)| e)
    }
}
