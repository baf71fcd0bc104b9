//! Evaluation of index expressions on small concrete batches, by definition, and the search for
//! counterexamples that rests on it.

use super::facts::Facts;
use cora_ir::{EntityId, Env, Expr, ExprId, ParamId, UfDef, UfId, UnOp, VarId};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Batches tried in a search, and iterations tried in each.
const BATCHES: u64 = 48;
const ITERATIONS: u64 = 6;
/// Steps that one evaluation may take.
const FUEL: u32 = 20_000;

/// One batch: values of parameters and extent functions, drawn from a seed on demand. The same
/// environment (or one that it has grown into) must be given each time.
#[derive(Clone, Debug)]
pub struct Batch {
    seed: u64,
    tables: BTreeMap<(UfId, Vec<i64>), i64>,
    /// What functions have been found to be; nothing where they have no value.
    calls: FxHashMap<Call, Option<i64>>,
    sums: FxHashMap<Call, i64>,
    /// The rows of a function that sorts them, in its order, by the outer arguments.
    orders: FxHashMap<Call, Rc<[i64]>>,
    fuel: u32,
}

/// A function and its arguments.
type Call = (UfId, SmallVec<[i64; 4]>);

/// Values of variables in one iteration.
pub type Iteration = FxHashMap<VarId, i64>;

fn mix(mut x: u64) -> u64 {
    // splitmix64
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A value of `lo..=hi` that depends on `seed`: small above `lo` more often than not, sometimes an
/// end, sometimes near a multiple of a usual tile size.
fn draw(seed: u64, lo: i64, hi: i64, small: i64) -> i64 {
    if hi <= lo {
        return lo;
    }
    let r = mix(seed);
    let span = hi.saturating_sub(lo).min(small).saturating_add(1);
    let pick = |r: u64, n: i64| i64::try_from(r % n.unsigned_abs().max(1)).unwrap_or(0);
    match r % 8 {
        0 => lo,
        1 => lo + span - 1,
        2 => {
            let tile = [2, 4, 14, 16, 32, 64][(r / 8 % 6) as usize];
            (tile + pick(r / 64, 3) - 1).clamp(lo, hi.min(lo.saturating_add(small.max(tile))))
        }
        _ => lo + pick(r / 8, span),
    }
}

impl Batch {
    /// The batch drawn from `seed`.
    pub fn new(seed: u64) -> Self {
        let (calls, sums, orders) = (FxHashMap::default(), FxHashMap::default(), FxHashMap::default());
        Self { seed, tables: BTreeMap::new(), calls, sums, orders, fuel: FUEL }
    }

    fn param(&self, env: &Env, p: ParamId) -> i64 {
        let small = [3, 1, 5, 9][(self.seed % 4) as usize];
        let param = &env.params[p];
        draw(mix(self.seed) ^ (p.index() as u64 + 1), param.lo, param.hi, small)
    }

    /// The value of `e` (a truth value as 0 or 1), or nothing where it is not defined: a call
    /// outside its function's domain anywhere in it, a read of memory, or too much work.
    pub fn eval(&mut self, env: &Env, e: ExprId, vars: &Iteration) -> Option<i64> {
        self.fuel = FUEL;
        self.go(env, e, vars, &[])
    }

    fn go(&mut self, env: &Env, e: ExprId, vars: &Iteration, args: &[i64]) -> Option<i64> {
        self.fuel = self.fuel.checked_sub(1)?;
        match env.pool.get(e) {
            Expr::Int(v) => Some(*v),
            Expr::Lit(l) if !l.ty.is_float() => Some(l.as_i64()),
            Expr::Var(v) => vars.get(v).copied(),
            Expr::Param(p) => Some(self.param(env, *p)),
            Expr::Arg(n) => args.get(*n as usize).copied(),
            Expr::Call(f, kids) => {
                let actual: Option<SmallVec<[i64; 4]>> = kids.iter().map(|&k| self.go(env, k, vars, args)).collect();
                let call = (*f, actual?);
                if let Some(&known) = self.calls.get(&call) {
                    return known;
                }
                let found = self.call(env, *f, &call.1);
                // Another evaluation may get further.
                if self.fuel > 0 {
                    self.calls.insert(call, found);
                }
                found
            }
            Expr::Un(op, a) => {
                let a = self.go(env, *a, vars, args)?;
                match op {
                    UnOp::Neg => a.checked_neg(),
                    UnOp::Not => Some(i64::from(a == 0)),
                    UnOp::Abs => a.checked_abs(),
                    _ => None,
                }
            }
            Expr::Bin(op, a, b) => {
                let a = self.go(env, *a, vars, args)?;
                op.of_ints(a, self.go(env, *b, vars, args)?)
            }
            Expr::Select(c, a, b) => {
                let c = self.go(env, *c, vars, args)?;
                let a = self.go(env, *a, vars, args)?;
                let b = self.go(env, *b, vars, args)?;
                Some(if c != 0 { a } else { b })
            }
            _ => None,
        }
    }

    fn call(&mut self, env: &Env, f: UfId, args: &[i64]) -> Option<i64> {
        let uf = &env.ufs[f];
        let inclusive = matches!(uf.def, UfDef::PrefixSum { .. });
        if args.len() != uf.domain.len() && !matches!(uf.def, UfDef::Max { .. }) {
            return None;
        }
        for (j, &a) in args.iter().enumerate() {
            let extent = self.go(env, uf.domain[j], &Iteration::default(), &args[..j])?;
            let last = inclusive && j + 1 == args.len() && a == extent;
            if a < 0 || (a >= extent && !last) {
                return None;
            }
        }
        let none = Iteration::default();
        match uf.def {
            UfDef::Extent { lo, hi } => {
                let (lo, hi) = (self.go(env, lo, &none, &[])?, self.go(env, hi, &none, &[])?);
                let key = (f, args.to_vec());
                let seed = args.iter().fold(mix(self.seed) ^ (f.index() as u64), |s, &a| mix(s ^ a as u64));
                let small = [4, 20, 3, 70][(self.seed / 4 % 4) as usize];
                Some(*self.tables.entry(key).or_insert_with(|| draw(seed, lo, hi, small)))
            }
            UfDef::PrefixSum { body } => self.sum(env, f, body, args),
            UfDef::Search { sum } => {
                let UfDef::PrefixSum { body } = env.ufs[sum].def else { return None };
                let (&r, outer) = args.split_last()?;
                let mut end = outer.to_vec();
                end.push(0);
                let rows = self.go(env, env.ufs[sum].domain[outer.len()], &none, outer)?;
                for x in 0..rows {
                    *end.last_mut()? = x + 1;
                    if r < self.sum(env, sum, body, &end)? {
                        return Some(x);
                    }
                }
                None
            }
            UfDef::Max { body } => {
                let domain = uf.domain.clone();
                self.greatest(env, &domain, body, &mut Vec::new())
            }
            UfDef::Map { body } => self.go(env, body, &none, args),
            UfDef::SortDesc { key } => {
                let (&place, outer) = args.split_last()?;
                self.order(env, f, key, outer)?.get(usize::try_from(place).ok()?).copied()
            }
        }
    }

    fn sum(&mut self, env: &Env, f: UfId, body: ExprId, args: &[i64]) -> Option<i64> {
        if let Some(&s) = self.sums.get(&(f, args.into())) {
            return Some(s);
        }
        let (&x, outer) = args.split_last()?;
        let mut row: SmallVec<[i64; 4]> = outer.into();
        row.push(0);
        // From the longest sum that is known.
        let known = (0..x).rev().find_map(|n| {
            *row.last_mut()? = n;
            let key = (f, std::mem::take(&mut row));
            let found = self.sums.get(&key).map(|&s| (n, s));
            row = key.1;
            found
        });
        let (first, mut total) = known.unwrap_or((0, 0));
        for i in first..x {
            *row.last_mut()? = i;
            let term = self.go(env, body, &Iteration::default(), &row)?;
            if term < 0 {
                return None;
            }
            total = total.checked_add(term)?;
        }
        self.sums.insert((f, args.into()), total);
        Some(total)
    }

    fn order(&mut self, env: &Env, f: UfId, key: ExprId, outer: &[i64]) -> Option<Rc<[i64]>> {
        if let Some(order) = self.orders.get(&(f, outer.into())) {
            return Some(Rc::clone(order));
        }
        let none = Iteration::default();
        let n = self.go(env, *env.ufs[f].domain.last()?, &none, outer)?;
        let mut row = outer.to_vec();
        row.push(0);
        let mut rows = Vec::new();
        for x in 0..n {
            *row.last_mut()? = x;
            rows.push((std::cmp::Reverse(self.go(env, key, &none, &row)?), x));
        }
        rows.sort_unstable();
        let order: Rc<[i64]> = rows.into_iter().map(|(_, x)| x).collect();
        self.orders.insert((f, outer.into()), Rc::clone(&order));
        Some(order)
    }

    fn greatest(&mut self, env: &Env, domain: &[ExprId], body: ExprId, args: &mut Vec<i64>) -> Option<i64> {
        if args.len() == domain.len() {
            return Some(self.go(env, body, &Iteration::default(), args)?.max(0));
        }
        let extent = self.go(env, domain[args.len()], &Iteration::default(), args)?;
        let mut best = 0;
        for x in 0..extent {
            args.push(x);
            let v = self.greatest(env, domain, body, args);
            args.pop();
            best = best.max(v?);
        }
        Some(best)
    }

    /// An iteration in which the facts hold, if the draw gives one.
    pub fn iteration(&mut self, env: &Env, facts: &Facts, seed: u64) -> Option<Iteration> {
        self.iteration_with(env, facts, &[], seed)
    }

    /// An iteration that also gives values to variables of which the facts say nothing.
    pub fn iteration_with(&mut self, env: &Env, facts: &Facts, free: &[VarId], seed: u64) -> Option<Iteration> {
        let mut vars = Iteration::default();
        for (i, &v) in free.iter().enumerate() {
            let r = mix(mix(seed) ^ (i as u64 + 77));
            let spread = [3, 9, 40][(r % 3) as usize];
            vars.insert(v, draw(mix(r), -spread, spread, 2 * spread));
        }
        for (i, &(v, extent)) in facts.vars.iter().enumerate() {
            let extent = self.eval(env, extent, &vars)?;
            if extent <= 0 {
                return None;
            }
            vars.insert(v, draw(mix(seed) ^ (i as u64), 0, extent - 1, extent));
        }
        for &(v, value) in &facts.lets {
            let value = self.eval(env, value, &vars)?;
            vars.insert(v, value);
        }
        facts.assumptions.iter().all(|&a| self.eval(env, a, &vars) == Some(1)).then_some(vars)
    }

    /// The batch and the iteration by name, in order of declaration.
    pub fn describe(&self, env: &Env, vars: &Iteration) -> Vec<(String, i64)> {
        let mut out: Vec<(String, i64)> =
            env.params.iter().map(|(p, d)| (d.name.clone(), self.param(env, p))).collect();
        for ((f, args), v) in &self.tables {
            let args: Vec<String> = args.iter().map(i64::to_string).collect();
            out.push((format!("{}({})", env.ufs[*f].name, args.join(", ")), *v));
        }
        let mut names: Vec<_> = vars.iter().collect();
        names.sort_unstable();
        out.extend(names.into_iter().filter_map(|(&v, &x)| Some((env.vars.get(v)?.name.clone(), x))));
        out
    }
}

/// A batch and an iteration in which the facts hold and the goal does not, if one of a fixed
/// number of small ones is such. What it returns is a fact: everything is evaluated by definition.
pub fn counterexample(env: &Env, facts: &Facts, goal: ExprId) -> Option<Vec<(String, i64)>> {
    counterexamples(env, facts, goal).next()
}

/// All of these batches and iterations.
pub(super) fn counterexamples(env: &Env, facts: &Facts, goal: ExprId) -> impl Iterator<Item = Vec<(String, i64)>> {
    let free = free_variables(env, facts, goal);
    // Free variables seldom meet a condition by chance.
    let batches = if free.is_empty() { BATCHES } else { 16 * BATCHES };
    (0..batches).flat_map(move |seed| {
        let mut batch = Batch::new(seed);
        let free = free.clone();
        (0..ITERATIONS).filter_map(move |i| {
            let vars = batch.iteration_with(env, facts, &free, mix(seed).wrapping_add(i))?;
            if batch.eval(env, goal, &vars) != Some(0) {
                return None;
            }
            // Only what the counterexample needs: evaluate it alone in a fresh batch.
            let mut clean = Batch::new(seed);
            let again = clean.iteration_with(env, facts, &free, mix(seed).wrapping_add(i));
            let vars = again.unwrap_or(vars);
            clean.eval(env, goal, &vars);
            Some(clean.describe(env, &vars))
        })
    })
}

/// Variables of the goal and the assumptions that no fact gives a range or a value.
fn free_variables(env: &Env, facts: &Facts, goal: ExprId) -> Vec<VarId> {
    let mut out = Vec::new();
    for e in facts.assumptions.iter().copied().chain([goal]) {
        for v in env.pool.vars_of(e) {
            if !out.contains(&v) && facts.extent_of(v).is_none() && facts.value_of(v).is_none() {
                out.push(v);
            }
        }
    }
    out
}
