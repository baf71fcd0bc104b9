//! The conditions that stay in kernels, and what could not be proved about each: `--explain-guards`.
//!
//! Every condition is a question to the prover under all that is known in its place. One that it
//! proves should not be there; for one that it refutes there is a batch in which the guard is needed.

use crate::simplify::{Facts, Prover, Verdict};
use cora_ir::storage::{Stmt, StorageModule};
use cora_ir::text::{Names, print_expr};
use cora_ir::{BinOp, Env, Expr, ExprId, UnOp};
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
    /// Whether the loop around it is an inner one: no loop is inside.
    pub inner: bool,
    /// The fact that would make it superfluous: of a vector's lanes, the one for the last.
    pub fact: String,
    /// Facts that differ in a number on their left only are one guard: those numbers.
    pub copies: Vec<i64>,
    /// Why the fact is not proved: a batch and an iteration that contradict it, or the prover's own words.
    pub why: String,
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
            inner: false,
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
        let inner = own.iter().filter(|g| g.inner).count();
        let _ = writeln!(text, "kernel {}: {} guards, {inner} of them in inner loops", k.name, own.len());
        for g in own {
            let place =
                if g.loops.is_empty() { "outside loops".to_owned() } else { format!("in {}", g.loops.join(" ")) };
            let kind = if g.inner { "inner loop" } else { "outer loop" };
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
    inner: bool,
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
            Stmt::For { var, extent, body, .. } => {
                let (mark, inner) = (self.facts.mark(), self.inner);
                self.facts.push_var(*var, *extent);
                self.loops.push(self.env.vars[*var].name.clone());
                self.inner = !contains_loop(body);
                self.body(body);
                self.inner = inner;
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
            }
            Stmt::Prefetch { .. } | Stmt::Gemm(_) | Stmt::Barrier => {}
            Stmt::Store { index, value, mask, .. } => {
                if let Some(m) = mask {
                    self.guard("mask", *m);
                }
                self.reads(*index);
                self.reads(*value);
            }
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
                let values: Vec<String> = example.iter().map(|(n, v)| format!("{n} = {v}")).collect();
                format!("false where {}", values.join(", "))
            }
            Verdict::Unknown(why) => format!("unknown: {why}"),
        };
        let (fact, copy) = self.shown(fact);
        let same =
            |g: &&mut Guard| (g.kernel.as_str(), g.what, &g.loops, &g.fact) == (self.kernel, what, &self.loops, &fact);
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
                inner: self.inner,
                fact,
                copies: copy.into_iter().collect(),
                why,
            }),
        }
    }

    /// The fact in text; a number on the left of `<` becomes `x`.
    fn shown(&mut self, fact: ExprId) -> (String, Option<i64>) {
        let names = Names::of(self.env, &[fact]);
        let text = print_expr(self.env, fact, &names);
        if let Expr::Bin(BinOp::Lt, a, b) = *self.env.pool.get(fact)
            && let Some(c) = self.env.pool.as_int(a)
        {
            let names = Names::of(self.env, &[b]);
            return (format!("x < {}", print_expr(self.env, b, &names)), Some(c));
        }
        (text, None)
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
    let mut found = false;
    for s in body {
        s.walk(&mut |s| found |= matches!(s, Stmt::For { .. }));
    }
    found
}
