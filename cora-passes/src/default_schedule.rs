//! Schedules nests that no step has touched, by rules about their shape.
//!
//! The outermost spatial loop becomes parallel; the innermost loop becomes vector code where it
//! writes (or, for a reduction, reads) neighbouring elements.

use crate::schedule::annotate::{parallel, vectorize};
use crate::schedule::tree::{loop_at, stage_loops};
use cora_ir::Expr;
use cora_ir::loops::{Block, BlockRole, LoopModule};
use cora_ir::schedule::LoopRef;

const LANES: i64 = 16;

/// Schedules every top-level nest.
pub fn default_schedule(m: &mut LoopModule) {
    let mut stages: Vec<_> = m.blocks().iter().map(|b| b.stage).collect();
    stages.dedup();
    for stage in stages {
        let loops = stage_loops(m, stage);
        let name = |p: &Vec<usize>, m: &LoopModule| LoopRef {
            stage: m.env.tensors[stage].name.clone(),
            name: m.env.vars[loop_at(&m.body, p).var].name.clone(),
        };
        let (Some(first), Some(last)) = (loops.first(), loops.last()) else { continue };
        let (outer, inner) = (name(first, m), name(last, m));
        // A refusal only means that the rule does not fit this nest.
        let _ = parallel(m, &outer);
        let block = m.blocks().into_iter().find(|b| b.stage == stage && b.role != BlockRole::Init).cloned();
        if let Some(b) = block
            && inner != outer
            && contiguous(m, &b, loop_at(&m.body, last).var)
        {
            let _ = vectorize(m, &inner, Some(LANES));
        }
    }
}

/// Whether the last dimension of every access that moves with `var` is `var` itself.
fn contiguous(m: &LoopModule, b: &Block, var: cora_ir::VarId) -> bool {
    let Some(iter) = b.iters.iter().find(|i| m.env.pool.as_var(i.binding) == Some(var)) else { return false };
    let mut ok = true;
    let mut check = |index: &[cora_ir::ExprId]| {
        for (d, &e) in index.iter().enumerate() {
            if m.env.pool.uses_var(e, iter.var) {
                ok &= d + 1 == index.len() && m.env.pool.as_var(e) == Some(iter.var);
            }
        }
    };
    m.env.pool.walk(b.value, &mut |_, n| {
        if let Expr::Load { index, .. } = n {
            check(index);
        }
    });
    check(&b.index);
    ok
}
