//! The last resort: Z3 on the goal's negation with ground instances of definitions.
//!
//! There are no quantifiers: instances are made here, in a fixed order and number, and a resource
//! limit (not a clock) bounds the search, so the same questions get the same answers.

use super::context::Cx;
use super::definitions::{Call, about_call, about_pair};
use super::products::{lemmas, remainder};
use super::prover::{Stage, Verdict};
use cora_ir::affine::{normalize, poly};
use cora_ir::{BinOp, EntityId, Env, Expr, ExprId, ScalarType, UfId, UnOp};
use rustc_hash::FxHashMap;
use std::cell::{OnceCell, RefCell};
use std::rc::{Rc, Weak};
use z3::ast::{Ast, Bool, Int};
use z3::{FuncDecl, Params, SatResult, Sort};

/// Z3's resource units for one question.
const RESOURCES: u32 = 400_000;
/// Rounds of instances, and calls instantiated at most.
const ROUNDS: usize = 3;
const CALLS: usize = 40;

thread_local! {
    /// The solver of the [`SharedSolver`]s that live.
    static SHARED: RefCell<Weak<Shared>> = RefCell::default();
}

/// Holds the solver while a [`SharedSolver`] lives; a prover may keep the solver itself for longer.
type Shared = Rc<Known>;

/// A solver, and what it has answered: nests that differ in names, as those of a network's layers do, ask the same.
#[derive(Default)]
struct Known {
    solver: OnceCell<z3::Solver>,
    /// By the signature of the question.
    answers: RefCell<FxHashMap<Vec<i64>, Verdict>>,
}

/// While it lives, the provers of this thread put their questions to one Z3 solver: the first question to a new one
/// takes ten times as long as the next, and none is asked twice. What a compilation asks is asked in the same order each
/// time, so its answers do not depend on the compilations before it if each has a solver of its own.
#[must_use = "the solver is shared while this lives"]
pub struct SharedSolver(#[expect(dead_code, reason = "kept alive")] Rc<Shared>);

impl SharedSolver {
    /// The solver that is shared already on this thread, or a new one.
    pub fn enter() -> Self {
        let shared = SHARED.with_borrow(Weak::upgrade).unwrap_or_default();
        SHARED.with_borrow_mut(|s| *s = Rc::downgrade(&shared));
        Self(shared)
    }
}

/// A Z3 solver, reset for each question.
pub(super) struct Solver {
    known: Shared,
}

impl Solver {
    pub(super) fn new() -> Self {
        Self { known: SHARED.with_borrow(Weak::upgrade).map(|s| (*s).clone()).unwrap_or_default() }
    }

    fn solver(&self) -> &z3::Solver {
        self.known.solver.get_or_init(|| {
            let solver = z3::Solver::new();
            let mut p = Params::new();
            p.set_bool("auto_config", false);
            p.set_bool("smt.mbqi", false);
            p.set_u32("rlimit", RESOURCES);
            solver.set_params(&p);
            solver
        })
    }

    /// Whether `goal` follows from the facts and the definitions.
    pub(super) fn prove(&mut self, cx: &mut Cx<'_>, goal: ExprId) -> Verdict {
        let goal = normalize(&mut cx.env.pool, goal);
        let (mut hypotheses, defined) = hypotheses(cx, goal);
        for h in &mut hypotheses {
            *h = normalize(&mut cx.env.pool, *h);
        }
        let more = lemmas(cx.env, &hypotheses, goal);
        hypotheses.extend(more);
        let mut t = Translation::default();
        let mut asserted: Vec<Bool> = hypotheses.iter().filter_map(|&h| t.condition(cx.env, h)).collect();
        let Some(g) = t.condition(cx.env, goal) else { return Verdict::Unknown("not a scalar condition".into()) };
        let mut signature = Signature::default();
        hypotheses.iter().chain([&goal]).for_each(|&h| signature.statement(cx.env, h));
        for (e, x) in std::mem::take(&mut t.opaque) {
            let b = cx.bounds(e);
            asserted.extend(b.lo.map(|lo| x.ge(Int::from_i64(lo))));
            asserted.extend(b.hi.map(|hi| x.le(Int::from_i64(hi))));
            signature.bounds(cx.env, e, [b.lo, b.hi]);
        }
        asserted.push(g.not());
        let question = signature.of_all(defined);
        if let Some(v) = self.known.answers.borrow().get(&question) {
            return v.clone();
        }
        // In a scope of its own: Z3 then uses its incremental core, which starts much faster.
        self.solver().push();
        let verdict = self.ask(cx, &asserted, defined || t.is_abstract, &t);
        self.solver().pop(1);
        // An example has names.
        if !matches!(verdict, Verdict::Refuted(..)) {
            self.known.answers.borrow_mut().insert(question, verdict.clone());
        }
        verdict
    }

    /// `less_known` is whether Z3 knows less of something than it means.
    fn ask(&self, cx: &Cx<'_>, asserted: &[Bool], less_known: bool, t: &Translation) -> Verdict {
        asserted.iter().for_each(|a| self.solver().assert(a));
        match self.solver().check() {
            SatResult::Unsat => Verdict::Proved(Stage::Solver),
            SatResult::Unknown => Verdict::Unknown(self.solver().get_reason_unknown().unwrap_or_default()),
            SatResult::Sat if less_known => {
                Verdict::Unknown("may fail, as far as instances of the definitions show".into())
            }
            SatResult::Sat => match self.solver().get_model() {
                Some(m) => Verdict::Refuted(Stage::Solver, t.describe(cx.env, &m)),
                None => Verdict::Unknown("no model".into()),
            },
        }
    }

    /// Whether the conditions can hold together, as far as instances of the definitions show.
    pub(super) fn satisfiable(&mut self, cx: &mut Cx<'_>) -> bool {
        let goal = cx.env.pool.bool(false);
        !self.prove(cx, goal).is_proved()
    }
}

/// The facts and instances of definitions as conditions; whether any function that occurs is
/// defined rather than given.
fn hypotheses(cx: &mut Cx<'_>, goal: ExprId) -> (Vec<ExprId>, bool) {
    let mut out = Vec::new();
    let zero = cx.env.pool.int(0);
    for &(v, extent) in &cx.facts.vars {
        let v = cx.env.pool.var(v);
        out.push(cx.env.pool.le(zero, v));
        out.push(cx.env.pool.lt(v, extent));
    }
    for &(v, value) in &cx.facts.lets {
        let v = cx.env.pool.var(v);
        out.push(cx.env.pool.bin(BinOp::Eq, v, value));
    }
    out.extend(&cx.facts.assumptions);
    for p in cx.env.params.ids() {
        let (lo, hi) = (cx.env.params[p].lo, cx.env.params[p].hi);
        let (p, lo, hi) = (cx.env.pool.param(p), cx.env.pool.int(lo), cx.env.pool.int(hi));
        out.push(cx.env.pool.le(lo, p));
        out.push(cx.env.pool.le(p, hi));
    }
    let mut calls: Vec<Call> = Vec::new();
    let mut fresh: Vec<ExprId> = out.clone();
    fresh.push(goal);
    for round in 0..ROUNDS {
        let before = calls.len();
        collect_calls(cx.env, &fresh, &mut calls);
        fresh.clear();
        for i in before..calls.len() {
            let call = calls[i].clone();
            fresh.extend(about_call(cx.env, &call));
            let b = cx.bounds(call.expr);
            for (end, low) in [(b.lo, true), (b.hi, false)] {
                let Some(end) = end else { continue };
                let end = cx.env.pool.int(end);
                out.push(if low { cx.env.pool.le(end, call.expr) } else { cx.env.pool.le(call.expr, end) });
            }
            if round + 1 < ROUNDS {
                for earlier in &calls[..i] {
                    fresh.extend(about_pair(cx.env, earlier, &call));
                }
            }
        }
        out.extend(&fresh);
    }
    let defined = calls.iter().any(|c| !c.is_free(cx.env));
    (out, defined)
}

fn collect_calls(env: &Env, conds: &[ExprId], calls: &mut Vec<Call>) {
    for &c in conds {
        env.pool.walk(c, &mut |e, _| {
            if calls.len() < CALLS
                && let Some(call) = Call::of(env, e)
                && calls.iter().all(|known| known.expr != e)
            {
                calls.push(call);
            }
        });
    }
}

/// A question without its names: what occurs in it is numbered as it comes.
#[derive(Default)]
struct Signature {
    words: Vec<i64>,
    nodes: FxHashMap<ExprId, i64>,
    /// Variables, parameters, functions, and what Z3 is told nothing of.
    names: FxHashMap<(u8, usize), i64>,
}

impl Signature {
    fn statement(&mut self, env: &Env, e: ExprId) {
        let n = self.node(env, e);
        self.words.extend([-1, n]);
    }

    fn bounds(&mut self, env: &Env, e: ExprId, ends: [Option<i64>; 2]) {
        let n = self.node(env, e);
        self.words.extend([-2, n]);
        for end in ends {
            self.words.extend([i64::from(end.is_some()), end.unwrap_or(0)]);
        }
    }

    /// All of it; `defined` is whether functions of it are more than given.
    fn of_all(mut self, defined: bool) -> Vec<i64> {
        self.words.push(i64::from(defined));
        self.words
    }

    fn name(&mut self, kind: u8, id: usize) -> i64 {
        let next = self.names.len() as i64;
        *self.names.entry((kind, id)).or_insert(next)
    }

    fn node(&mut self, env: &Env, e: ExprId) -> i64 {
        if let Some(&n) = self.nodes.get(&e) {
            return n;
        }
        let (kind, own): (i64, i64) = match env.pool.get(e) {
            Expr::Int(v) => (0, *v),
            Expr::Lit(l) if l.ty == ScalarType::Bool => (1, l.as_i64()),
            Expr::Var(v) => (2, self.name(0, v.index())),
            Expr::Param(p) => (3, self.name(1, p.index())),
            Expr::Call(f, _) => (4, self.name(2, f.index())),
            Expr::Un(op, _) => (5, *op as i64),
            Expr::Bin(op, ..) => (6, *op as i64),
            Expr::Select(..) => (7, 0),
            _ => (8, self.name(3, e.index())),
        };
        let ty = env.pool.ty(e);
        let mut words = vec![kind, own, ty.scalar as i64, i64::from(ty.lanes)];
        if kind != 8 {
            words.extend(env.pool.children(e).into_iter().map(|k| self.node(env, k)));
        }
        self.words.extend(words);
        let n = self.nodes.len() as i64;
        self.nodes.insert(e, n);
        n
    }
}

/// Expressions in Z3's terms.
#[derive(Default)]
struct Translation {
    ints: FxHashMap<ExprId, Int>,
    bools: FxHashMap<ExprId, Bool>,
    functions: FxHashMap<UfId, FuncDecl>,
    /// What Z3 is told nothing of but bounds.
    opaque: Vec<(ExprId, Int)>,
    /// Whether Z3 knows less of something than it means.
    is_abstract: bool,
}

impl Translation {
    fn condition(&mut self, env: &mut Env, e: ExprId) -> Option<Bool> {
        if let Some(b) = self.bools.get(&e) {
            return Some(b.clone());
        }
        let ty = env.pool.ty(e);
        if ty.scalar != ScalarType::Bool || ty.lanes != 1 {
            return None;
        }
        let out = match *env.pool.get(e) {
            Expr::Lit(l) => Bool::from_bool(l.as_i64() != 0),
            Expr::Un(UnOp::Not, a) => self.condition(env, a)?.not(),
            Expr::Bin(BinOp::And, a, b) => Bool::and(&[&self.condition(env, a)?, &self.condition(env, b)?]),
            Expr::Bin(BinOp::Or, a, b) => Bool::or(&[&self.condition(env, a)?, &self.condition(env, b)?]),
            Expr::Bin(op, a, b) if op.is_comparison() && env.pool.ty(a).scalar == ScalarType::Index => {
                let (x, y) = (self.int(env, a)?, self.int(env, b)?);
                match op {
                    BinOp::Lt => x.lt(&y),
                    BinOp::Le => x.le(&y),
                    BinOp::Eq => x.eq(&y),
                    _ => x.eq(&y).not(),
                }
            }
            Expr::Bin(op @ (BinOp::Eq | BinOp::Ne), a, b) if env.pool.ty(a).scalar == ScalarType::Bool => {
                let same = self.condition(env, a)?.iff(&self.condition(env, b)?);
                if op == BinOp::Eq { same } else { same.not() }
            }
            Expr::Select(c, a, b) => {
                let c = self.condition(env, c)?;
                let (a, b) = (self.condition(env, a)?, self.condition(env, b)?);
                c.ite(&a, &b)
            }
            _ => {
                self.is_abstract = true;
                Bool::new_const(format!("c{}", e.index()))
            }
        };
        self.bools.insert(e, out.clone());
        Some(out)
    }

    fn int(&mut self, env: &mut Env, e: ExprId) -> Option<Int> {
        if let Some(x) = self.ints.get(&e) {
            return Some(x.clone());
        }
        if env.pool.ty(e).lanes != 1 {
            return None;
        }
        let out = match &env.pool.get(e).clone() {
            Expr::Int(v) => Int::from_i64(*v),
            Expr::Var(v) => Int::new_const(format!("v{}", v.index())),
            Expr::Param(p) => Int::new_const(format!("p{}", p.index())),
            Expr::Call(f, args) => {
                let args: Option<Vec<Int>> = args.iter().map(|&a| self.int(env, a)).collect();
                let args = args?;
                let sort = Sort::int();
                let f = self
                    .functions
                    .entry(*f)
                    .or_insert_with(|| FuncDecl::new(format!("f{}", f.index()), &vec![&sort; args.len()], &sort));
                let args: Vec<&dyn Ast> = args.iter().map(|a| a as &dyn Ast).collect();
                f.apply(&args).as_int()?
            }
            Expr::Un(UnOp::Neg, _) | Expr::Bin(BinOp::Add | BinOp::Sub | BinOp::Mul, ..) => self.sum(env, e)?,
            Expr::Bin(op, a, b) => self.binary(env, *op, *a, *b, e)?,
            Expr::Select(c, a, b) => {
                let c = self.condition(env, *c)?;
                let (a, b) = (self.int(env, *a)?, self.int(env, *b)?);
                c.ite(&a, &b)
            }
            _ => self.unknown(e),
        };
        self.ints.insert(e, out.clone());
        Some(out)
    }

    /// A polynomial; each product of atoms is an unknown.
    fn sum(&mut self, env: &mut Env, e: ExprId) -> Option<Int> {
        let p = poly(&env.pool, e);
        let mut terms = Vec::new();
        for (m, &k) in &p.terms {
            let k = Int::from_i64(k);
            terms.push(match m.as_slice() {
                [] => k,
                // What has no polynomial (its coefficients do not fit) is its own only atom.
                &[a] if a == e => return Some(self.unknown(e)),
                &[a] => Int::mul(&[&k, &self.int(env, a)?]),
                _ => {
                    self.is_abstract = true;
                    let name: Vec<String> = m.iter().map(|a| a.index().to_string()).collect();
                    Int::mul(&[&k, &Int::new_const(format!("m{}", name.join(".")))])
                }
            });
        }
        Some(Int::add(&terms.iter().collect::<Vec<_>>()))
    }

    fn unknown(&mut self, e: ExprId) -> Int {
        self.is_abstract = true;
        let x = Int::new_const(format!("e{}", e.index()));
        self.opaque.push((e, x.clone()));
        x
    }

    fn binary(&mut self, env: &mut Env, op: BinOp, a: ExprId, b: ExprId, e: ExprId) -> Option<Int> {
        let constant = env.pool.as_int(b).filter(|&c| c > 0);
        let (x, y) = (self.int(env, a)?, self.int(env, b)?);
        let zero = Int::from_i64(0);
        Some(match op {
            BinOp::Min => x.le(&y).ite(&x, &y),
            BinOp::Max => x.le(&y).ite(&y, &x),
            // Z3's division rounds down for positive divisors.
            BinOp::FloorDiv if constant.is_some() => x.div(&y),
            BinOp::Mod if constant.is_some() => x.modulo(&y),
            // Lemmas say what these are.
            BinOp::FloorDiv => self.unknown(e),
            BinOp::Mod => {
                let rest = remainder(env, a, b);
                let rest = self.int(env, rest)?;
                y.eq(&zero).ite(&zero, &rest)
            }
            _ => return None,
        })
    }

    /// The model's values of parameters, entries of extent functions and variables.
    fn describe(&self, env: &Env, model: &z3::Model) -> Vec<(String, i64)> {
        let value = |x: &Int| model.eval(x, true).and_then(|v| v.as_i64());
        let mut found: Vec<(u8, ExprId, String, i64)> = Vec::new();
        for (&e, x) in &self.ints {
            let Some(v) = value(x) else { continue };
            match env.pool.get(e) {
                Expr::Param(p) => found.push((0, e, env.params[*p].name.clone(), v)),
                Expr::Var(x) => found.push((2, e, env.vars[*x].name.clone(), v)),
                Expr::Call(f, args) => {
                    let args: Option<Vec<String>> =
                        args.iter().map(|a| self.ints.get(a).and_then(value).map(|v| v.to_string())).collect();
                    if let Some(args) = args {
                        found.push((1, e, format!("{}({})", env.ufs[*f].name, args.join(", ")), v));
                    }
                }
                _ => {}
            }
        }
        found.sort();
        found.into_iter().map(|(_, _, name, v)| (name, v)).collect()
    }
}
