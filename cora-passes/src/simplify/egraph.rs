//! Equality saturation of one expression under facts: bounded, deterministic, cheapest form kept.
//!
//! Each class keeps its cheapest known expression; guards are proved on those, by intervals and
//! symbolic inequalities. Sums are put in normal form before and after, so no rule reorders them.

use super::context::{Cache, Cx};
use super::cost::cost;
use super::facts::Facts;
use super::language::{Node, Op, outer_var, pattern_var, to_expr, to_nodes, to_pattern};
use super::rules::{RULES, Rule};
use super::term::{Family, Term};
use cora_ir::{EntityId, Env, Expr, ExprId, UfDef, UfId};
use egg::{
    Analysis, BackoffScheduler, Condition, ConditionalApplier, DidMerge, EGraph, FlatTerm, Id, Language, Rewrite,
    Runner, Subst, Var,
};
use std::fmt::Write;
use std::sync::LazyLock;
use std::time::Duration;

const ITERATIONS: usize = 5;
const NODES: usize = 1500;
/// There is no wall-clock limit: this is as good as none.
const TIME: Duration = Duration::from_secs(1_000_000);

/// What the e-graph's procedures work with; owned by it while it runs.
#[derive(Default)]
pub(super) struct World {
    env: Env,
    cache: Cache,
    facts: Facts,
}

/// The cheapest expression known of a class.
#[derive(Clone, Copy, Debug)]
pub(super) struct Best {
    expr: ExprId,
    cost: u64,
}

impl Analysis<Node> for World {
    type Data = Best;

    fn make(egraph: &mut EGraph<Node, Self>, node: &Node, _id: Id) -> Best {
        let kids: Vec<ExprId> = node.children().iter().map(|&k| egraph[k].data.expr).collect();
        let world = &mut egraph.analysis;
        let expr = to_expr(&mut world.env, node.op, &kids);
        Best { expr, cost: cost(&world.env, expr, &mut world.cache.costs) }
    }

    fn merge(&mut self, a: &mut Best, b: Best) -> DidMerge {
        let (ka, kb) = ((a.cost, a.expr.index()), (b.cost, b.expr.index()));
        if kb < ka {
            *a = b;
        }
        DidMerge(kb < ka, ka < kb)
    }

    fn modify(egraph: &mut EGraph<Node, Self>, id: Id) {
        let expr = egraph[id].data.expr;
        let world = &mut egraph.analysis;
        let value = match world.env.pool.get(expr) {
            Expr::Int(_) | Expr::Lit(_) => op_constant(&world.env, expr),
            _ if world.env.pool.ty(expr).scalar == cora_ir::ScalarType::Index => {
                let mut cx = Cx::new(&mut world.env, &world.facts, &mut world.cache);
                cx.bounds(expr).as_point().map(Op::Int)
            }
            _ => None,
        };
        if let Some(op) = value {
            let constant = egraph.add(Node { op, kids: Vec::new() });
            if egraph.find(constant) != egraph.find(id) {
                egraph.union_trusted(id, constant, "value");
            }
        }
    }
}

fn op_constant(env: &Env, e: ExprId) -> Option<Op> {
    env.pool.as_int(e).map(Op::Int).or_else(|| env.pool.as_bool(e).map(Op::Bool))
}

/// A rule's guard, checked on the cheapest expressions of what its variables match.
struct Guard {
    conds: Vec<Term>,
    vars: Vec<(String, Var)>,
    /// The sum and the search of rules about them.
    functions: Option<(UfId, Option<UfId>)>,
}

impl Condition<Node, World> for Guard {
    fn check(&self, egraph: &mut EGraph<Node, World>, _class: Id, subst: &Subst) -> bool {
        let bound: Vec<(&str, ExprId)> =
            self.vars.iter().filter_map(|(n, v)| Some((n.as_str(), egraph[*subst.get(*v)?].data.expr))).collect();
        let find = |name: &str| bound.iter().find(|(n, _)| *n == name).map(|&(_, e)| e);
        let world = &mut egraph.analysis;
        let family = self.functions.map(|(sum, search)| {
            let n = world.env.ufs[sum].domain.len() - 1;
            Family { sum, search, outer: (0..n).filter_map(|j| find(&outer_var(j))).collect() }
        });
        let mut conds = Vec::new();
        if let Some(f) = &family {
            conds.extend(outer_in_domain(&mut world.env, f));
        }
        for c in &self.conds {
            match c.build(&mut world.env, &find, family.as_ref()) {
                Some(c) => conds.push(c),
                None => return false,
            }
        }
        conds.into_iter().all(|c| Cx::new(&mut world.env, &world.facts, &mut world.cache).proves(c, true))
    }
}

/// Conditions under which the outer arguments are in the functions' domains.
pub(super) fn outer_in_domain(env: &mut Env, family: &Family) -> Vec<ExprId> {
    let mut out = Vec::new();
    let zero = env.pool.int(0);
    for (j, &x) in family.outer.iter().enumerate() {
        let extent = env.ufs[family.sum].domain[j];
        let extent = env.pool.instantiate(extent, &family.outer[..j]);
        out.push(env.pool.le(zero, x));
        out.push(env.pool.lt(x, extent));
    }
    out
}

fn compile(env: &Env, rule: &Rule, functions: Option<(UfId, Option<UfId>)>) -> Vec<Rewrite<Node, World>> {
    let family = functions.map(|(sum, search)| Family { sum, search, outer: Vec::new() });
    let family = family.as_ref();
    let (Some(lhs), Some(rhs)) = (Term::parse(rule.lhs), Term::parse(rule.rhs)) else { return Vec::new() };
    let Some(to) = to_pattern(env, &rhs, family) else { return Vec::new() };
    let mut names = lhs.vars();
    if let Some(f) = family {
        names.extend((0..env.ufs[f.sum].domain.len() - 1).map(outer_var));
    }
    let vars: Vec<(String, Var)> = names.into_iter().filter_map(|n| pattern_var(&n).map(|v| (n, v))).collect();
    let mut out = Vec::new();
    for (i, form) in lhs.commuted().iter().enumerate() {
        let Some(from) = to_pattern(env, form, family) else { continue };
        let mut name = rule.name.to_owned();
        if i > 0 {
            let _ = write!(name, ".{i}");
        }
        if let Some(f) = family {
            let _ = write!(name, "@{}", env.ufs[f.sum].name);
        }
        let made = if rule.guard.is_empty() && family.is_none() {
            Rewrite::new(name, from, to.clone())
        } else {
            let conds = rule.guard.iter().filter_map(|g| Term::parse(g)).collect();
            let condition = Guard { conds, vars: vars.clone(), functions };
            Rewrite::new(name, from, ConditionalApplier { condition, applier: to.clone() })
        };
        out.extend(made);
    }
    out
}

/// Rules that are about operators alone.
static GENERAL: LazyLock<Vec<Rewrite<Node, World>>> = LazyLock::new(|| {
    let env = Env::default();
    RULES.iter().filter(|r| !r.is_about_sums()).flat_map(|r| compile(&env, r, None)).collect()
});

/// Rules about the prefix sums and searches that occur in `e`.
fn rules_about_sums(env: &Env, e: ExprId) -> Vec<Rewrite<Node, World>> {
    let mut called: Vec<UfId> = Vec::new();
    env.pool.walk(e, &mut |_, x| {
        if let Expr::Call(f, _) = x {
            called.push(*f);
        }
    });
    let mut pairs: Vec<(UfId, Option<UfId>)> = Vec::new();
    for f in called {
        let pair = match env.ufs[f].def {
            UfDef::PrefixSum { .. } => (f, None),
            UfDef::Search { sum } => (sum, Some(f)),
            _ => continue,
        };
        match pairs.iter_mut().find(|(s, _)| *s == pair.0) {
            Some(known) => known.1 = known.1.or(pair.1),
            None => pairs.push(pair),
        }
    }
    pairs.sort_unstable();
    let about = || RULES.iter().filter(|r| r.is_about_sums());
    pairs.into_iter().flat_map(|p| about().flat_map(move |r| compile(env, r, Some(p)))).collect()
}

/// Runs `f` on a saturated e-graph of `e`; the environment and the memo tables are lent to it.
fn saturate<R>(
    cx: &mut Cx<'_>,
    e: ExprId,
    explain: bool,
    f: impl FnOnce(&mut Runner<Node, World>, &egg::RecExpr<Node>) -> R,
) -> R {
    let special = rules_about_sums(cx.env, e);
    let start = to_nodes(cx.env, e);
    let world = World { env: std::mem::take(cx.env), cache: std::mem::take(cx.cache), facts: cx.facts.clone() };
    let mut runner = Runner::new(world)
        .with_iter_limit(ITERATIONS)
        .with_node_limit(NODES)
        .with_time_limit(TIME)
        .with_scheduler(BackoffScheduler::default().with_initial_match_limit(200).with_ban_length(2));
    if explain {
        runner = runner.with_explanations_enabled();
    }
    let mut runner = runner.with_expr(&start).run(GENERAL.iter().chain(&special));
    let out = f(&mut runner, &start);
    let world = std::mem::take(&mut runner.egraph.analysis);
    *cx.env = world.env;
    *cx.cache = world.cache;
    out
}

/// The cheapest expression found that is equal to `e` under the facts.
pub(super) fn saturated(cx: &mut Cx<'_>, e: ExprId) -> ExprId {
    saturate(cx, e, false, |runner, _| {
        let root = runner.egraph.find(runner.roots[0]);
        runner.egraph[root].data.expr
    })
}

/// One step of an explanation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The rule applied (`.n`: its n-th commuted form, `@p`: about the prefix sum p), or `value` for
    /// a constant found by intervals; empty for the expression at the start.
    pub rule: String,
    /// The whole expression after the step.
    pub expr: ExprId,
}

/// How equality saturation gets from `e` to its cheapest form: each expression equals the one
/// before by the named rule, used forwards or backwards.
pub fn explain(env: &mut Env, facts: &Facts, e: ExprId) -> Vec<Step> {
    let mut cache = Cache::default();
    let mut cx = Cx::new(env, facts, &mut cache);
    let terms = saturate(&mut cx, e, true, |runner, start| {
        let root = runner.egraph.find(runner.roots[0]);
        let best = runner.egraph[root].data.expr;
        let end = to_nodes(&runner.egraph.analysis.env, best);
        if runner.egraph.lookup_expr(&end) != Some(root) {
            return Vec::new();
        }
        let mut explanation = runner.explain_equivalence(start, &end);
        explanation.make_flat_explanation().clone()
    });
    let step = |t: &FlatTerm<Node>| Step { rule: rule_used(t).unwrap_or_default(), expr: flat_to_expr(cx.env, t) };
    terms.iter().map(step).collect()
}

fn flat_to_expr(env: &mut Env, t: &FlatTerm<Node>) -> ExprId {
    let kids: Vec<ExprId> = t.children.iter().map(|k| flat_to_expr(env, k)).collect();
    to_expr(env, t.node.op, &kids)
}

fn rule_used(t: &FlatTerm<Node>) -> Option<String> {
    let here = t.forward_rule.or(t.backward_rule).map(|r| r.to_string());
    here.or_else(|| t.children.iter().find_map(rule_used))
}
