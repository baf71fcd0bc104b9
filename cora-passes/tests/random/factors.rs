//! Parts of what a stage computes that get a stage of their own.

use super::steps::{Proposer, blocks, name};
use cora_ir::Expr;
use cora_ir::loops::{BlockRole, LoopModule};
use cora_ir::schedule::StepKind;
use rand::prelude::*;

impl Proposer<'_> {
    /// A factor of what a stage computes, by a tensor that it reads.
    pub fn precompute(&mut self, m: &LoopModule) -> Option<StepKind> {
        let all: Vec<_> = blocks(m).into_iter().filter(|b| b.1.role != BlockRole::Init).collect();
        let (_, b) = all.choose(self.rng)?;
        let mut read = Vec::new();
        m.env.pool.walk(b.value, &mut |_, n| {
            if let Expr::Load { tensor, .. } = n {
                read.push(*tensor);
            }
        });
        let tensor = name(m, *read.choose(self.rng)?);
        Some(StepKind::Precompute { stage: name(m, b.stage), tensor, name: self.fresh("F") })
    }
}
