//! Whether the iterations of a loop are independent: each writes elements of its own, or what it writes is its own.
//!
//! `parallel` and `bind` ask before they spread a loop's iterations; every later step is held to the same, as it may
//! give iterations a tensor to share (`cache_write S -> Sr global at S.b` inside a parallel `S.b`).

use super::tree::{distinguishes, is_reduction_var};
use crate::simplify::{Facts, Prover};
use cora_ir::loops::{Axis, Block, For, LoopKind, LoopModule, Stmt};
use cora_ir::{BinOp, Diagnostic, ExprId, Role, Scope, TensorId, UnOp, VarId};
use rustc_hash::FxHashMap;

/// Whose iterations share what they write.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Among {
    /// Workers, each with private tensors of its own.
    Workers,
    /// Blocks or threads of a grid.
    Threads,
    /// The same, with atomic updates that may meet.
    AtomicThreads,
}

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
            if self.reduced { "it is reduced over into" } else { "different iterations write the same elements of" };
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
pub(super) fn conflict(m: &LoopModule, l: &For, among: Among) -> Option<Conflict> {
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
        let own = private && (among == Among::Workers || (b.stage != l.stage && count(&blocks) == count(&all)));
        let reduced = is_reduction_var(&m.env.pool, b, l.var);
        let attached = b.stage != l.stage && m.env.tensors[b.tensor].role == Role::Temp;
        let apart = || distinguishes(&m.env.pool, b, l.var) && !(attached && !own && regions_meet(m, l, b));
        let met = reduced && b.atomic && among == Among::AtomicThreads;
        let shared = reduced || !(single || apart());
        (!own && !met && shared).then_some(Conflict { tensor: b.tensor, reduced })
    })
}

/// Whether the regions that two iterations of `l` write of an attached stage's tensor may have an element in common: it is
/// not proved that they have none. What a stage computes in loops of its own is each element once; the regions of what is
/// attached are what readers need, and those of neighbouring iterations may need the same.
fn regions_meet(m: &LoopModule, l: &For, b: &Block) -> bool {
    let mut env = m.env.clone();
    let Some(mut inner) = loops_to(&l.body, b) else { return false };
    inner.insert(0, (l.var, l.extent));
    let renamed: Vec<(VarId, VarId)> = inner.iter().map(|&(v, _)| (v, env.copy_var(v))).collect();
    let map: FxHashMap<VarId, ExprId> = renamed.iter().map(|&(v, w)| (v, env.pool.var(w))).collect();
    let bindings: FxHashMap<VarId, ExprId> = b.iters.iter().map(|i| (i.var, i.binding)).collect();
    let mut same = Vec::new();
    for &e in &b.index {
        let here = env.pool.substitute(e, &bindings);
        if env.pool.uses_var(here, l.var) {
            let there = env.pool.substitute(here, &map);
            same.push(env.pool.bin(BinOp::Eq, here, there));
        }
    }
    let mut facts = Facts::in_loops(inner.iter().copied());
    for (&(_, w), &(_, extent)) in renamed.iter().zip(&inner) {
        let extent = env.pool.substitute(extent, &map);
        facts.push_var(w, extent);
    }
    let (first, second) = (env.pool.var(l.var), map[&l.var]);
    let next = {
        let one = env.pool.int(1);
        env.pool.add(first, one)
    };
    // Neighbours first: what any two iterations have in common, they mostly have, and a counterexample is found sooner.
    let pairs = [env.pool.bin(BinOp::Eq, second, next), env.pool.lt(first, second)];
    let all = env.pool.all(same);
    let mut prover = Prover::new();
    pairs.into_iter().any(|pair| {
        let both = env.pool.and(pair, all);
        let never = env.pool.un(UnOp::Not, both);
        !prover.prove(&mut env, &facts, never).is_proved()
    })
}

/// The loops around block `b` below `body`, outermost first.
fn loops_to(body: &[Stmt], b: &Block) -> Option<Vec<(VarId, ExprId)>> {
    body.iter().find_map(|s| match s {
        Stmt::Block(x) => (x == b).then(Vec::new),
        Stmt::For(l) => {
            let mut inner = loops_to(&l.body, b)?;
            inner.insert(0, (l.var, l.extent));
            Some(inner)
        }
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
        let among = if l.kind == LoopKind::Parallel { Among::Workers } else { Among::AtomicThreads };
        if let Some(c) = conflict(m, l, among).filter(|c| !by_lanes(c)) {
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
