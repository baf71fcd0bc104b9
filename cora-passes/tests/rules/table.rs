//! The rule table itself: every rule is proved by Z3, applicable, and never makes things worse.

use cora_ir::env::Param;
use cora_ir::{Env, ExprId, UfDef};
use cora_passes::simplify::rules::{RULES, Rule};
use cora_passes::simplify::term::{Family, Term};
use cora_passes::simplify::{Facts, Prover, Stage, Verdict};
use std::collections::BTreeMap;

/// A rule over free variables, with a prefix sum of a free, not negative function.
pub struct Stated {
    pub env: Env,
    pub guard: Facts,
    /// `lhs == rhs`, or for conditions `lhs` and `rhs` have the same truth value.
    pub goal: ExprId,
}

fn conditions(t: &Term, as_condition: bool, out: &mut BTreeMap<String, bool>) {
    match t {
        Term::Var(v) => *out.entry(v.clone()).or_insert(false) |= as_condition,
        Term::Int(_) => {}
        Term::App(op, kids) => {
            for (i, k) in kids.iter().enumerate() {
                conditions(k, matches!(op.as_str(), "and" | "or" | "not") || (op == "select" && i == 0), out);
            }
        }
    }
}

pub fn state(rule: &Rule) -> Stated {
    let mut env = Env::default();
    let rows = env.params.push(Param { name: "rows".into(), lo: 0, hi: 1 << 30 });
    let most = env.params.push(Param { name: "most".into(), lo: 0, hi: 1 << 30 });
    let (rows, most, zero) = (env.pool.param(rows), env.pool.param(most), env.pool.int(0));
    let term = env.uf("term", vec![rows], UfDef::Extent { lo: zero, hi: most });
    let a0 = env.pool.arg(0);
    let body = env.pool.call(term, [a0]);
    let sum = env.uf("sum", vec![rows], UfDef::PrefixSum { body });
    let total = env.pool.call(sum, [rows]);
    let search = env.uf("search", vec![total], UfDef::Search { sum });
    let family = Family { sum, search: Some(search), outer: Vec::new() };

    let parse = |t: &str| Term::parse(t).unwrap_or_else(|| panic!("{}: cannot parse {t}", rule.name));
    let (lhs, rhs) = (parse(rule.lhs), parse(rule.rhs));
    let guard: Vec<Term> = rule.guard.iter().map(|g| parse(g)).collect();
    let mut kinds = BTreeMap::new();
    conditions(&lhs, false, &mut kinds);
    for v in rhs.vars().iter().chain(guard.iter().flat_map(|g| g.vars()).collect::<Vec<_>>().iter()) {
        assert!(kinds.contains_key(v), "{}: ?{v} is not on the left", rule.name);
    }
    let mut bound: BTreeMap<String, ExprId> = BTreeMap::new();
    for (name, condition) in &kinds {
        let v = env.new_var(name.clone());
        let e = env.pool.var(v);
        bound.insert(name.clone(), if *condition { env.pool.lt(e, zero) } else { e });
    }
    let find = |name: &str| bound.get(name).copied();
    let build = |env: &mut Env, t: &Term| {
        t.build(env, &find, Some(&family)).unwrap_or_else(|| panic!("{}: cannot build {t:?}", rule.name))
    };
    let (l, r) = (build(&mut env, &lhs), build(&mut env, &rhs));
    let mut facts = Facts::new();
    for g in &guard {
        let g = build(&mut env, g);
        facts.push_assumption(g);
    }
    let goal = env.pool.bin(cora_ir::BinOp::Eq, l, r);
    Stated { env, guard: facts, goal }
}

#[test]
fn every_rule_is_proved() {
    for rule in RULES {
        let Stated { mut env, guard, goal } = state(rule);
        let mut prover = Prover::new();
        assert!(prover.may_hold(&mut env, &guard), "{}: its guard cannot hold", rule.name);
        let verdict = prover.ask_solver(&mut env, &guard, goal);
        assert_eq!(verdict, Verdict::Proved(Stage::Solver), "{}", rule.name);
        // Evaluation agrees.
        let refuted = cora_passes::simplify::concrete::counterexample(&env, &guard, goal);
        assert_eq!(refuted, None, "{}", rule.name);
    }
}

#[test]
fn every_guard_holds_somewhere() {
    // Not only does the solver find no contradiction: there is a batch in which the guard holds.
    for rule in RULES {
        let Stated { mut env, guard, .. } = state(rule);
        let never = env.pool.bool(false);
        let found = cora_passes::simplify::concrete::counterexample(&env, &guard, never);
        assert!(found.is_some(), "{}: no example in which the guard holds", rule.name);
    }
}

fn weight(t: &Term) -> u32 {
    match t {
        Term::Var(_) | Term::Int(_) => 1,
        Term::App(op, kids) => {
            let own = match op.as_str() {
                "S" => 400,
                "P" | "T" => 100,
                "//" | "%" => 40,
                "*" => 6,
                "min" | "max" | "select" => 5,
                "N" => 1,
                _ => 4,
            };
            own + kids.iter().map(weight).sum::<u32>()
        }
    }
}

fn count(t: &Term, v: &str) -> usize {
    match t {
        Term::Var(x) => usize::from(x == v),
        Term::Int(_) => 0,
        Term::App(_, kids) => kids.iter().map(|k| count(k, v)).sum(),
    }
}

#[test]
fn right_sides_are_never_worse() {
    for rule in RULES {
        let (lhs, rhs) = (Term::parse(rule.lhs).unwrap(), Term::parse(rule.rhs).unwrap());
        assert!(weight(&rhs) <= weight(&lhs), "{}: costs more on the right", rule.name);
        for v in rhs.vars() {
            assert!(count(&rhs, &v) <= count(&lhs, &v), "{}: ?{v} is repeated", rule.name);
        }
        assert!(!lhs.commuted().contains(&rhs), "{}: only commutes", rule.name);
    }
    let mut names: Vec<_> = RULES.iter().map(|r| r.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), RULES.len(), "names are unique");
}
