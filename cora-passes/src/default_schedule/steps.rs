//! Steps on the loops of one stage.

use super::step;
use cora_ir::loops::{Axis, LoopModule};
use cora_ir::schedule::{Binding, LoopRef, StepKind, Tail};

/// Steps on the loops of one stage.
pub(crate) struct Steps<'a> {
    pub m: &'a mut LoopModule,
    pub stage: String,
}

impl Steps<'_> {
    /// Steps on the loops of another stage.
    pub fn of(&mut self, stage: &str) -> Steps<'_> {
        Steps { m: self.m, stage: stage.to_owned() }
    }

    pub fn named(&self, l: &str) -> LoopRef {
        LoopRef { stage: self.stage.clone(), name: l.to_owned() }
    }

    pub fn split(&mut self, l: &str, factor: i64, outer: &str, inner: &str, tail: Tail) -> Option<()> {
        let (outer, inner) = (outer.to_owned(), inner.to_owned());
        step(self.m, StepKind::Split { target: self.named(l), factor, outer, inner, tail })
    }

    /// Computes the surplus of a loop, and does not read it, or has zeros there.
    pub fn relax(&mut self, l: &str, zero: bool) -> Option<()> {
        step(self.m, StepKind::Relax { target: self.named(l), zero })
    }

    /// Splits a loop into full parts: of a constant size that no part divides the surplus is computed.
    pub fn full(&mut self, l: &str, factor: i64, outer: &str, inner: &str, zero: bool) -> Option<()> {
        self.split(l, factor, outer, inner, Tail::Exact)?;
        self.relax(inner, zero)
    }

    /// Full parts of a tile in registers; of what leaves it only elements that there are.
    pub fn part(&mut self, l: &str, factor: i64, outer: &str, inner: &str, tail: Tail) -> Option<()> {
        match tail {
            Tail::Exact => self.full(l, factor, outer, inner, false),
            _ => self.split(l, factor, outer, inner, tail),
        }
    }

    pub fn fuse(&mut self, loops: &[String], name: &str) -> Option<()> {
        let loops = loops.iter().map(|l| self.named(l)).collect();
        step(self.m, StepKind::Fuse { loops, name: name.to_owned(), pad: 1 })
    }

    pub fn reorder(&mut self, order: Vec<String>) -> Option<()> {
        step(self.m, StepKind::Reorder { stage: self.stage.clone(), order })
    }

    pub fn bind(&mut self, l: &str, axis: Axis) -> Option<()> {
        step(self.m, StepKind::Bind { target: self.named(l), to: Binding::Axis(axis), atomic: false })
    }

    pub fn vectorize(&mut self, l: &str, width: Option<i64>) -> Option<()> {
        step(self.m, StepKind::Vectorize { target: self.named(l), width })
    }

    pub fn unroll(&mut self, loops: &[&str]) -> Option<()> {
        loops.iter().try_for_each(|l| step(self.m, StepKind::Unroll { target: self.named(l) }))
    }
}
