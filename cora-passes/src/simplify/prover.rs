//! Proof of conditions: inequalities first, then equality saturation, then the solver.

use super::concrete::counterexample;
use super::context::{Cache, Cx};
use super::facts::Facts;
use super::solver::Solver;
use cora_ir::{Env, ExprId, PoolState};
use rustc_hash::FxHashMap;

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
    Refuted(Stage, Vec<(String, i64)>),
    /// Neither; treat as not proved. Says why.
    Unknown(String),
}

impl Verdict {
    /// Whether the goal is proved.
    pub fn is_proved(&self) -> bool {
        matches!(self, Self::Proved(_))
    }
}

/// How many questions each procedure decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Questions asked.
    pub questions: u32,
    /// Answered as before.
    pub remembered: u32,
    /// Proved by normal form.
    pub affine: u32,
    /// Proved by intervals, residues and symbolic inequalities.
    pub linear: u32,
    /// Proved by equality saturation.
    pub egraph: u32,
    /// Refuted by a small batch.
    pub example: u32,
    /// Proved or refuted by Z3.
    pub solver: u32,
    /// Not decided.
    pub unknown: u32,
}

/// Proves conditions. It remembers answers by expression id, as long as the environment is the one that it saw last, grown, or
/// a clone of it ([`cora_ir::ExprPool::continues`]); at another one it forgets them. Of an environment declarations must not
/// change while it is in use.
#[derive(Default)]
pub struct Prover {
    cache: Cache,
    /// The pool of the environment that it saw last.
    seen: Option<PoolState>,
    verdicts: FxHashMap<(u32, ExprId), Verdict>,
    solver: Option<Solver>,
    stats: Stats,
}

impl std::fmt::Debug for Prover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prover").field("stats", &self.stats).finish_non_exhaustive()
    }
}

impl Prover {
    /// A prover that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many questions each procedure decided so far.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Whether `goal` (a `Bool`) holds wherever the facts hold.
    ///
    /// `Proved` and `Refuted` are certain; everything else is `Unknown`. Where the facts contradict
    /// each other every goal holds.
    pub fn prove(&mut self, env: &mut Env, facts: &Facts, goal: ExprId) -> Verdict {
        self.about(env, |p, env| p.proved(env, facts, goal))
    }

    /// Asks about an environment, with what is remembered if that is of this one.
    fn about<R>(&mut self, env: &mut Env, ask: impl FnOnce(&mut Self, &mut Env) -> R) -> R {
        if self.seen.is_some_and(|seen| !env.pool.continues(seen)) {
            *self = Self { stats: self.stats, ..Self::default() };
        }
        let answer = ask(self, env);
        self.seen = Some(env.pool.state());
        answer
    }

    pub(super) fn simplified(&mut self, env: &mut Env, facts: &Facts, e: ExprId) -> ExprId {
        self.about(env, |p, env| Cx::new(env, facts, &mut p.cache).simplified(e))
    }

    fn proved(&mut self, env: &mut Env, facts: &Facts, goal: ExprId) -> Verdict {
        self.stats.questions += 1;
        let id = Cx::new(env, facts, &mut self.cache).id;
        if let Some(v) = self.verdicts.get(&(id, goal)) {
            self.stats.remembered += 1;
            return v.clone();
        }
        let v = self.decide(env, facts, goal);
        *match &v {
            Verdict::Proved(Stage::Affine) => &mut self.stats.affine,
            Verdict::Proved(Stage::Linear) => &mut self.stats.linear,
            Verdict::Proved(Stage::Egraph) => &mut self.stats.egraph,
            Verdict::Refuted(Stage::Example, _) => &mut self.stats.example,
            Verdict::Proved(_) | Verdict::Refuted(..) => &mut self.stats.solver,
            Verdict::Unknown(_) => &mut self.stats.unknown,
        } += 1;
        self.verdicts.insert((id, goal), v.clone());
        v
    }

    fn decide(&mut self, env: &mut Env, facts: &Facts, goal: ExprId) -> Verdict {
        let normal = cora_ir::affine::normalize(&mut env.pool, goal);
        if env.pool.as_bool(normal) == Some(true) {
            return Verdict::Proved(Stage::Affine);
        }
        let mut cx = Cx::new(env, facts, &mut self.cache);
        if cx.proves(normal, true) {
            return Verdict::Proved(Stage::Linear);
        }
        if let Some(example) = counterexample(cx.env, facts, goal) {
            return Verdict::Refuted(Stage::Example, example);
        }
        let simple = cx.simplified(goal);
        if cx.env.pool.as_bool(simple) == Some(true) {
            return Verdict::Proved(Stage::Egraph);
        }
        self.solver.get_or_insert_with(Solver::new).prove(&mut cx, goal)
    }

    /// The solver's answer alone: for proving rules.
    pub fn ask_solver(&mut self, env: &mut Env, facts: &Facts, goal: ExprId) -> Verdict {
        self.about(env, |p, env| {
            let mut cx = Cx::new(env, facts, &mut p.cache);
            p.solver.get_or_insert_with(Solver::new).prove(&mut cx, goal)
        })
    }

    /// Whether the solver finds no contradiction in the facts: for premises of rules.
    pub fn may_hold(&mut self, env: &mut Env, facts: &Facts) -> bool {
        self.about(env, |p, env| {
            let mut cx = Cx::new(env, facts, &mut p.cache);
            p.solver.get_or_insert_with(Solver::new).satisfiable(&mut cx)
        })
    }
}
