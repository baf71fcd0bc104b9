//! Whether the iterations of a loop are independent: each writes elements of its own, or what it writes is its own.
//!
//! `parallel` and `bind` ask before they spread a loop's iterations; every later step is held to the same, as it may
//! give iterations a tensor to share (`cache_write S -> Sr global at S.b` inside a parallel `S.b`).

use super::conditions::{is_condition, runs};
use super::determines::determines;
use super::tree::{blocks_in, distinguishes, is_reduction_var, reads_below, writes_below};
use crate::simplify::{Facts, Prover};
use cora_ir::loops::{Axis, Block, For, LoopKind, LoopModule, Stmt};
use cora_ir::{BinOp, Diagnostic, Env, ExprId, Role, Scope, TensorId, UnOp, VarId};
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
        let attached = t.scope == Scope::Global && t.role == Role::Temp;
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
    conflict_in(m, l, among, &mut Scratch::of(m))
}

fn conflict_in(m: &LoopModule, l: &For, among: Among, scratch: &mut Scratch) -> Option<Conflict> {
    let blocks: Vec<&Block> = blocks_in(&l.body).into_iter().map(|b| b.0).collect();
    blocks.iter().find_map(|b| {
        let count = |blocks: &[&Block]| blocks.iter().filter(|o| o.tensor == b.tensor).count();
        let all_inside = || count(&blocks) == m.blocks_writing(b.tensor).len();
        let private = m.env.tensors[b.tensor].scope != Scope::Global;
        let own = private && (among == Among::Workers || (b.stage != l.stage && all_inside()));
        let reduced = is_reduction_var(&m.env.pool, b, l.var);
        let attached = b.stage != l.stage && m.env.tensors[b.tensor].role == Role::Temp;
        let met = reduced && b.atomic && among == Among::AtomicThreads;
        if own || met {
            return None;
        }
        let mut apart = || distinguishes(&m.env.pool, b, l.var) && !(attached && regions_meet(scratch.env(), l, b));
        let shared = reduced || !(apart() || is_single(scratch.env(), l) || runs_in_one(scratch.env(), l, b));
        shared.then_some(Conflict { tensor: b.tensor, reduced })
    })
}

/// A copy of the environment for what proofs build, made when the first of them begins.
struct Scratch<'a> {
    of: &'a Env,
    copy: Option<Env>,
}

impl<'a> Scratch<'a> {
    fn of(m: &'a LoopModule) -> Self {
        Self { of: &m.env, copy: None }
    }

    fn env(&mut self) -> &mut Env {
        self.copy.get_or_insert_with(|| self.of.clone())
    }
}

/// Whether the loop never has a second iteration.
fn is_single(env: &mut Env, l: &For) -> bool {
    let one = env.pool.int(1);
    let single = env.pool.le(l.extent, one);
    Prover::new().prove(env, &Facts::default(), single).is_proved()
}

/// Whether conditions around a block let it run in one iteration of `l` at most, as the part with a tail in a fused loop.
fn runs_in_one(env: &mut Env, l: &For, b: &Block) -> bool {
    let Some((_, around)) = blocks_in(&l.body).into_iter().find(|(x, _)| std::ptr::eq(*x, b)) else { return false };
    let inner: Vec<VarId> = around.iter().map(|l| l.var).collect();
    let conditions: Vec<ExprId> =
        around.iter().filter(|c| is_condition(&env.pool, c.extent)).map(|c| c.extent).collect();
    let mut facts = Facts::in_loops([(l.var, l.extent)]);
    let other = env.copy_var(l.var);
    facts.push_var(other, l.extent);
    let (here, there) = (env.pool.var(l.var), env.pool.var(other));
    let to = FxHashMap::from_iter([(l.var, there)]);
    let mut any = false;
    for c in conditions {
        let holds = runs(env, c);
        if env.pool.uses_var(holds, l.var) && !inner.iter().any(|&v| env.pool.uses_var(holds, v)) {
            any = true;
            facts.push_assumption(holds);
            let holds = env.pool.substitute(holds, &to);
            facts.push_assumption(holds);
        }
    }
    let never = env.pool.le(there, here);
    any && Prover::new().prove(env, &facts, never).is_proved()
}

/// Whether the regions that two iterations of `l` write of an attached stage's tensor may have an element in common: it is
/// not proved that they have none. What a stage computes in loops of its own is each element once; the regions of what is
/// attached are what readers need, and those of neighbouring iterations may need the same.
fn regions_meet(env: &mut Env, l: &For, b: &Block) -> bool {
    let Some((_, around)) = blocks_in(&l.body).into_iter().find(|(x, _)| *x == b) else { return false };
    let inner: Vec<(VarId, ExprId)> = std::iter::once(l).chain(around).map(|l| (l.var, l.extent)).collect();
    let renamed: Vec<(VarId, VarId)> = inner.iter().map(|&(v, _)| (v, env.copy_var(v))).collect();
    let map: FxHashMap<VarId, ExprId> = renamed.iter().map(|&(v, w)| (v, env.pool.var(w))).collect();
    let bindings: FxHashMap<VarId, ExprId> = b.iters.iter().map(|i| (i.var, i.binding)).collect();
    let index: Vec<ExprId> = b.index.iter().map(|&e| env.pool.substitute(e, &bindings)).collect();
    if determines(env, &index, &inner, l.var) {
        return false;
    }
    let mut same = Vec::new();
    for here in index {
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
        !prover.prove(env, &facts, never).is_proved()
    })
}

/// What stands beside a loop of blocks, in a loop of blocks, each of them runs: it may write only what each block has its
/// own of, and read nothing of that which they compute part by part.
fn check_beside_blocks(m: &LoopModule, l: &For) -> Result<(), Diagnostic> {
    let blocks = |s: &Stmt| matches!(s, Stmt::For(b) if b.kind.is_block());
    let Some(Stmt::For(inner)) = l.body.iter().find(|&s| blocks(s)).filter(|_| l.body.len() > 1) else { return Ok(()) };
    let own = |t: &TensorId| m.env.tensors[*t].scope != Scope::Global;
    let name = |t: TensorId| &m.env.tensors[t].name;
    let refused = |why: String, hint: String| {
        let of = format!("`{}.{}`", name(inner.stage), m.env.vars[inner.var].name);
        Err(Diagnostic::new("E0446", format!("with this step loop {of} cannot be bound to blocks: {why}")).hint(hint))
    };
    let parts: Vec<TensorId> =
        l.body.iter().filter(|&s| blocks(s)).flat_map(|s| writes_below(std::slice::from_ref(s))).collect();
    for s in l.body.iter().filter(|&s| !blocks(s)) {
        let s = std::slice::from_ref(s);
        if let Some(t) = writes_below(s).into_iter().find(|t| !own(t)) {
            let hint = match m.env.tensors[t].role {
                Role::Temp => format!(
                    "give `{0}` scope `local` or `shared`, which each block has its own of, or compute it inside",
                    name(t)
                ),
                _ => "name a loop inside, or make it a thread loop".to_owned(),
            };
            let why = format!("each of its blocks would write all of `{}`, which is computed beside it", name(t));
            return refused(why, hint);
        }
        if let Some(t) = reads_below(&m.env.pool, s).into_iter().find(|t| own(t) && parts.contains(t)) {
            return refused(
                format!("each block computes a part of `{}`, and what is beside it reads all", name(t)),
                format!("attach `{}` and what reads it inside the loop, or make it a thread loop", name(t)),
            );
        }
    }
    Ok(())
}

/// Every loop of these nests whose iterations are spread is still one of independent iterations.
///
/// # Errors
/// `E0444` a parallel loop, `E0445` a bound one, whose iterations share what they write after this step; `E0446` one of
/// blocks beside which something is computed that each block would compute for all.
pub(super) fn check_spread(m: &LoopModule, nests: &[&Stmt]) -> Result<(), Diagnostic> {
    let mut loops: Vec<&For> = Vec::new();
    for s in nests {
        s.walk(&mut |s| {
            if let Stmt::For(l) = s {
                loops.push(l);
            }
        });
    }
    let mut scratch = Scratch::of(m);
    for l in loops {
        check_beside_blocks(m, l)?;
        let code = match l.kind {
            LoopKind::Parallel => "E0444",
            LoopKind::Bound(_) | LoopKind::Virtual => "E0445",
            _ => continue,
        };
        // What the lanes of a warp combine is asked again when it is lowered.
        let by_lanes = |c: &Conflict| c.reduced && l.kind == LoopKind::Bound(Axis::ThreadX);
        let among = if l.kind == LoopKind::Parallel { Among::Workers } else { Among::AtomicThreads };
        if let Some(c) = conflict_in(m, l, among, &mut scratch).filter(|c| !by_lanes(c)) {
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
