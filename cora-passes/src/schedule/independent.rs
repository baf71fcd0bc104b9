//! Whether the iterations of a loop are independent: each writes elements of its own, or what it writes is its own.
//!
//! `parallel` and `bind` ask before they spread a loop's iterations; every later step is held to the same, as it may
//! give iterations a tensor to share (`cache_write S -> Sr global at S.b` inside a parallel `S.b`).

use super::tree::{distinguishes, is_reduction_var};
use cora_ir::loops::{Axis, Block, For, LoopKind, LoopModule, Stmt};
use cora_ir::{Diagnostic, Scope, TensorId};

/// What two iterations of a loop have in common.
pub(super) struct Conflict {
    tensor: TensorId,
    /// Whether they combine into one element.
    pub(super) reduced: bool,
}

impl Conflict {
    /// The reason, as in `.. cannot be parallel: ..`.
    pub(super) fn text(&self, m: &LoopModule) -> String {
        let why =
            if self.reduced { "it is reduced over into" } else { "all its iterations write the same elements of" };
        format!("{why} `{}`", m.env.tensors[self.tensor].name)
    }

    /// What would help.
    pub(super) fn hint(&self, m: &LoopModule) -> String {
        let t = &m.env.tensors[self.tensor];
        let attached = t.scope == Scope::Global && t.role == cora_ir::Role::Temp;
        match (self.reduced, attached) {
            (true, _) => "name a spatial loop, which indexes what the stage writes".to_owned(),
            (false, true) => {
                format!(
                    "name a loop that indexes what the stage writes, or give `{}` scope `local`, which each iteration has its own of",
                    t.name
                )
            }
            (false, false) => "name a loop that indexes what the stage writes".to_owned(),
        }
    }
}

/// The first block below whose element different iterations of `l` share. Private tensors of what is attached inside
/// are an iteration's own; `parallel` gives each worker all its private ones.
pub(super) fn conflict(m: &LoopModule, l: &For, parallel: bool) -> Option<Conflict> {
    let single = m.env.pool.constant_bound(l.extent).is_some_and(|e| e <= 1);
    let mut blocks: Vec<&Block> = Vec::new();
    l.body.iter().for_each(|s| {
        s.walk(&mut |s| {
            if let Stmt::Block(b) = s {
                blocks.push(b);
            }
        });
    });
    let all = m.blocks();
    blocks.iter().find_map(|b| {
        let count = |blocks: &[&Block]| blocks.iter().filter(|o| o.tensor == b.tensor).count();
        let private = m.env.tensors[b.tensor].scope != Scope::Global;
        let own = private && (parallel || (b.stage != l.stage && count(&blocks) == count(&all)));
        let reduced = is_reduction_var(&m.env.pool, b, l.var);
        let shared = reduced || !(single || distinguishes(&m.env.pool, b, l.var));
        (!own && shared).then_some(Conflict { tensor: b.tensor, reduced })
    })
}

/// Every loop whose iterations are spread is still one of independent iterations.
///
/// # Errors
/// `E0444` a parallel loop, `E0445` a bound one, whose iterations share what they write after this step.
pub(super) fn check_spread(m: &LoopModule) -> Result<(), Diagnostic> {
    let mut loops: Vec<&For> = Vec::new();
    for s in &m.body {
        s.walk(&mut |s| {
            if let Stmt::For(l) = s {
                loops.push(l);
            }
        });
    }
    for l in loops {
        let code = match l.kind {
            LoopKind::Parallel => "E0444",
            LoopKind::Bound(_) | LoopKind::Virtual => "E0445",
            _ => continue,
        };
        // What the lanes of a warp combine is asked again when it is lowered.
        let by_lanes = |c: &Conflict| c.reduced && l.kind == LoopKind::Bound(Axis::ThreadX);
        if let Some(c) = conflict(m, l, l.kind == LoopKind::Parallel).filter(|c| !by_lanes(c)) {
            let (stage, name) = (&m.env.tensors[l.stage].name, &m.env.vars[l.var].name);
            return Err(Diagnostic::new(
                code,
                format!("with this step loop `{stage}.{name}` cannot be {}: {}", l.kind.name(), c.text(m)),
            )
            .hint(c.hint(m)));
        }
    }
    Ok(())
}
