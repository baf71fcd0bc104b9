//! The conditions that stay in kernels, and what could not be proved about each: `--explain-guards`.
//!
//! Every condition is a question to the prover under all that is known in its place. One that it
//! proves should not be there; for one that it refutes there is a batch in which the guard is needed.

use crate::simplify::{Facts, Prover, Verdict};
use cora_ir::loops::LoopKind;
use cora_ir::storage::{Stmt, StorageModule};
use cora_ir::text::{Names, print_expr};
use cora_ir::{BinOp, Env, Expr, ExprId, UnOp, VarId};
use rustc_hash::FxHashMap;
use std::fmt::Write;

/// A condition in a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// The kernel's name.
    pub kernel: String,
    /// `branch`, `mask` or `guarded read`.
    pub what: &'static str,
    /// The loops around it, outermost first.
    pub loops: Vec<String>,
    /// Where it stands.
    pub place: Place,
    /// The fact that would make it superfluous: of a vector's lanes, the one for the last.
    pub fact: String,
    /// Facts that differ in a number on their left only are one guard: those numbers.
    pub copies: Vec<i64>,
    /// Why the fact is not proved: a batch and an iteration that contradict it, or the prover's own words.
    pub why: String,
}

/// How often a guard is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Outside loops, or in a loop that has loops inside.
    Outer,
    /// In loops over blocks and threads only: once in each thread.
    Thread,
    /// A mask or guarded read in a loop without loops inside which does not change its condition: decided outside,
    /// the lanes of each iteration are the same.
    Hoisted,
    /// In each iteration of a loop without loops inside.
    Inner,
}

impl Place {
    fn name(self) -> &'static str {
        match self {
            Place::Outer => "outer loop",
            Place::Thread => "once in each thread",
            Place::Hoisted => "inner loop, decided outside of it",
            Place::Inner => "inner loop",
        }
    }
}

/// Every guard of every kernel, in their order.
pub fn guards(m: &StorageModule) -> Vec<Guard> {
    let mut env = m.env.clone();
    let mut out = Vec::new();
    let mut prover = Prover::new();
    for k in &m.kernels {
        let mut cx = Walk {
            env: &mut env,
            prover: &mut prover,
            kernel: &k.name,
            facts: Facts::new(),
            loops: Vec::new(),
            lets: FxHashMap::default(),
            read: FxHashMap::default(),
            names: Vec::new(),
            counted: false,
            inner: None,
            out: &mut out,
        };
        cx.body(&k.body);
    }
    out
}

/// The guards as text for people.
pub fn explain(m: &StorageModule) -> String {
    let all = guards(m);
    let mut text = String::new();
    for k in &m.kernels {
        let own: Vec<&Guard> = all.iter().filter(|g| g.kernel == k.name).collect();
        let inner = own.iter().filter(|g| g.place == Place::Inner).count();
        let _ = writeln!(text, "kernel {}: {} guards, {inner} of them in inner loops", k.name, own.len());
        for g in own {
            let place =
                if g.loops.is_empty() { "outside loops".to_owned() } else { format!("in {}", g.loops.join(" ")) };
            let kind = g.place.name();
            let copies = match g.copies.as_slice() {
                [] | [_] => String::new(),
                all => format!(" (x = {})", all.iter().map(i64::to_string).collect::<Vec<_>>().join(", ")),
            };
            let _ = writeln!(text, "  {} {place} ({kind}): not proved: {}{copies}", g.what, g.fact);
            let _ = writeln!(text, "    {}", g.why);
        }
    }
    text
}

struct Walk<'a> {
    env: &'a mut Env,
    prover: &'a mut Prover,
    kernel: &'a str,
    facts: Facts,
    loops: Vec<String>,
    /// What names of the kernel stand for, as far as that is no read.
    lets: FxHashMap<VarId, ExprId>,
    /// The others, over those that are none.
    read: FxHashMap<VarId, ExprId>,
    /// What they are called.
    names: Vec<String>,
    /// Whether there is a loop around, other than over blocks and threads, which count nothing in a thread.
    counted: bool,
    /// The variables that an inner loop changes, if this is one.
    inner: Option<Vec<VarId>>,
    out: &'a mut Vec<Guard>,
}

impl Walk<'_> {
    fn body(&mut self, stmts: &[Stmt]) {
        let mark = self.facts.mark();
        for s in stmts {
            self.stmt(s);
        }
        self.facts.release(mark);
    }

    fn stmt(&mut self, s: &Stmt) {
        match s {
            Stmt::For { var, extent, kind, body } => {
                let mark = self.facts.mark();
                self.facts.push_var(*var, *extent);
                self.loops.push(self.env.vars[*var].name.clone());
                let (counted, outer) = (self.counted, self.inner.clone());
                if !matches!(kind, LoopKind::Bound(_)) {
                    self.counted = true;
                    self.inner = (!contains_loop(body)).then(|| vec![*var]);
                }
                self.body(body);
                (self.counted, self.inner) = (counted, outer);
                self.loops.pop();
                self.facts.release(mark);
            }
            Stmt::If { cond, then, other } => {
                // A branch around loops is outside of them.
                self.guard("branch", *cond);
                let mark = self.facts.mark();
                self.facts.push_assumption(*cond);
                self.body(then);
                self.facts.release(mark);
                let not = self.env.pool.un(UnOp::Not, *cond);
                self.facts.push_assumption(not);
                self.body(other);
                self.facts.release(mark);
            }
            Stmt::Let { var, value } => {
                self.reads(*value);
                self.facts.push_let(*var, *value);
                self.define(*var, *value);
            }
            Stmt::Prefetch { .. }
            | Stmt::Gemm(_)
            | Stmt::Tile(_)
            | Stmt::Barrier
            | Stmt::Commit
            | Stmt::Beside(_)
            | Stmt::Bulk(_)
            | Stmt::Await { .. }
            | Stmt::Wait { .. }
            | Stmt::Shuffle { .. } => {}
            Stmt::Copy { index, value, mask, .. } => {
                if let Some(m) = mask {
                    self.guard("mask", *m);
                }
                self.reads(*index);
                self.reads(*value);
            }
            Stmt::Atomic { index, value, .. } => {
                self.reads(*index);
                self.reads(*value);
            }
            Stmt::Store { index, value, mask, rest, .. } => {
                if let Some(m) = mask {
                    self.guard("mask", *m);
                }
                self.reads(*index);
                self.reads(*value);
                rest.iter().for_each(|r| self.reads(r.1));
            }
        }
    }

    fn define(&mut self, var: VarId, value: ExprId) {
        self.names.push(self.env.vars[var].name.clone());
        if let Some(inner) = &mut self.inner
            && inner.iter().any(|&v| self.env.pool.uses_var(value, v))
        {
            inner.push(var);
        }
        let reads = self.env.pool.any(value, &mut |n| matches!(n, Expr::Load { .. } | Expr::Search { .. }));
        let value = self.env.pool.substitute(value, &self.lets);
        if reads { &mut self.read } else { &mut self.lets }.insert(var, value);
    }

    fn place(&self, what: &str, cond: ExprId) -> Place {
        match &self.inner {
            None if !self.counted && !self.loops.is_empty() => Place::Thread,
            None => Place::Outer,
            Some(inner) if what == "branch" || inner.iter().any(|&v| self.env.pool.uses_var(cond, v)) => Place::Inner,
            Some(_) => Place::Hoisted,
        }
    }

    fn reads(&mut self, e: ExprId) {
        let mut found = Vec::new();
        self.env.pool.walk(e, &mut |_, n| {
            if let Expr::Load { guard: Some((c, _)), .. } = n {
                found.push(*c);
            }
        });
        for c in found {
            self.guard("guarded read", c);
        }
    }

    fn guard(&mut self, what: &'static str, cond: ExprId) {
        if let Expr::Bin(BinOp::And, a, b) = *self.env.pool.get(cond) {
            self.guard(what, a);
            self.guard(what, b);
            return;
        }
        let fact = self.last_lane(cond);
        let verdict = if self.env.pool.ty(fact).lanes == 1 {
            self.prover.prove(self.env, &self.facts, fact)
        } else {
            Verdict::Unknown("the lanes have no common bound".to_owned())
        };
        let why = match verdict {
            Verdict::Proved(_) => "it is always so: the guard is superfluous".to_owned(),
            Verdict::Refuted(_, example) => {
                let values: Vec<String> = self.of_the_user(&example).map(|(n, v)| format!("{n} = {v}")).collect();
                format!("false where {}", values.join(", "))
            }
            Verdict::Unknown(why) => format!("unknown: {why}"),
        };
        let place = self.place(what, cond);
        let fact = self.env.pool.substitute(fact, &self.lets);
        let (fact, copy) = self.shown(fact);
        let always = |why: &str| why.starts_with("it is");
        let same = |g: &&mut Guard| {
            (g.kernel.as_str(), g.what, g.place, &g.loops, &g.fact) == (self.kernel, what, place, &self.loops, &fact)
                && always(&g.why) == always(&why)
        };
        match self.out.iter_mut().find(same) {
            Some(g) => {
                if let Some(c) = copy.filter(|c| !g.copies.contains(c)) {
                    g.copies.push(c);
                }
            }
            None => self.out.push(Guard {
                kernel: self.kernel.to_owned(),
                what,
                loops: self.loops.clone(),
                place,
                fact,
                copies: copy.into_iter().collect(),
                why,
            }),
        }
    }

    /// The values of an example without those of hoisted expressions.
    fn of_the_user<'e>(&self, example: &'e [(String, i64)]) -> impl Iterator<Item = &'e (String, i64)> {
        let mut seen: Vec<&str> = Vec::new();
        let mut kept = Vec::new();
        for one in example {
            let hoisted = self.names.contains(&one.0) && !self.loops.contains(&one.0);
            if !hoisted && !seen.contains(&one.0.as_str()) {
                seen.push(&one.0);
                kept.push(one);
            }
        }
        kept.into_iter()
    }

    /// The fact in text; a number on the left of `<` becomes `x`.
    fn shown(&mut self, fact: ExprId) -> (String, Option<i64>) {
        if let Expr::Bin(BinOp::Lt, a, b) = *self.env.pool.get(fact)
            && let Some(c) = self.env.pool.as_int(a)
        {
            return (self.with_reads("x < ", b), Some(c));
        }
        (self.with_reads("", fact), None)
    }

    /// An expression, and what the names in it stand for that the kernel has read.
    fn with_reads(&self, before: &str, e: ExprId) -> String {
        let mut all = vec![e];
        let mut n = 0;
        let mut defined: Vec<VarId> = Vec::new();
        while n < all.len() {
            for v in self.env.pool.vars_of(all[n]) {
                if let Some(&value) = self.read.get(&v).filter(|_| !defined.contains(&v)) {
                    defined.push(v);
                    all.push(value);
                }
            }
            n += 1;
        }
        let names = Names::of(self.env, &all);
        let text = format!("{before}{}", print_expr(self.env, e, &names));
        let meanings: Vec<String> = defined
            .iter()
            .zip(&all[1..])
            .map(|(v, &value)| format!("%{} = {}", names.get(*v).unwrap_or("_"), print_expr(self.env, value, &names)))
            .collect();
        if meanings.is_empty() { text } else { format!("{text}, where {}", meanings.join(", ")) }
    }

    /// Of lanes that count up to a bound, the condition for the last.
    fn last_lane(&mut self, cond: ExprId) -> ExprId {
        if let Expr::Bin(BinOp::Lt, a, b) = *self.env.pool.get(cond)
            && let (Expr::Ramp { base, stride, lanes }, Expr::Splat(bound, _)) =
                (self.env.pool.get(a).clone(), self.env.pool.get(b).clone())
            && stride >= 0
        {
            let more = self.env.pool.int(stride.saturating_mul(i64::from(lanes) - 1));
            let last = self.env.pool.add(base, more);
            return self.env.pool.lt(last, bound);
        }
        cond
    }
}

fn contains_loop(body: &[Stmt]) -> bool {
    let counts = |s: &Stmt| matches!(s, Stmt::For { kind, .. } if !matches!(kind, LoopKind::Bound(_)));
    body.iter().any(|s| s.any(&mut |s| counts(s)))
}
