//! Stages of recurrences: vectors and dot products inside the loops over their positions. All other rules leave them alone.

use super::contraction::{self, Contraction};
use super::{attempt, columns, dots, few_terms, innermost, lanes};
use crate::schedule::recurrent::is_recurrent;
use cora_ir::TensorId;
use cora_ir::intrinsic::Vectors;
use cora_ir::loops::LoopModule;
use rustc_hash::FxHashSet;

/// The stages of recurrences, in order.
fn members(m: &LoopModule) -> Vec<TensorId> {
    let mut seen = FxHashSet::default();
    m.blocks().into_iter().map(|b| b.stage).filter(|&s| is_recurrent(m, s) && seen.insert(s)).collect()
}

/// Makes vectors of them. What would change the order of positions is refused, and the next form tried.
pub(super) fn vectors_of_recurrences(m: &mut LoopModule, vectors: Vectors) {
    for stage in members(m) {
        let rows = Contraction::of(m, stage).is_some_and(|c| c.nest.attached && !c.rows.is_empty());
        let _ = rows && attempt(m, |m| contraction::row_tiles(m, stage, vectors))
            || attempt(m, |m| dots::dot_tiles(m, stage, vectors))
            || attempt(m, |m| columns::column_tiles(m, stage, vectors))
            || attempt(m, |m| few_terms::few_terms(m, stage, vectors, few_terms::FEW))
            || attempt(m, |m| innermost(m, stage, vectors));
        attempt(m, |m| lanes::few_tuples(m, stage));
    }
}
