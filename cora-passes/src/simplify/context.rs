//! What the procedures of this module share: the environment, the facts and memo tables.

use super::facts::Facts;
use super::range::{Interval, Stride};
use super::samples::Sample;
use cora_ir::affine::{self, Poly};
use cora_ir::expr::floor_div;
use cora_ir::{BinOp, Env, Expr, ExprId, ScalarType, UfDef, UfId, UnOp, VarId};
use rustc_hash::{FxHashMap, FxHashSet};
use std::rc::Rc;

/// Memo tables of one environment. Ids of expressions are keys, so a cache must not be used with
/// another environment, except one that continues the first.
#[derive(Default)]
pub(super) struct Cache {
    scopes: FxHashMap<(Option<UfId>, Facts), u32>,
    hypotheses: FxHashMap<u32, Rc<Hypotheses>>,
    pub(super) bounds: FxHashMap<(u32, ExprId), Interval>,
    pub(super) strides: FxHashMap<(u32, ExprId), Stride>,
    pub(super) proofs: FxHashMap<(u32, ExprId), bool>,
    /// Goals under way, so that a proof does not rest on itself.
    pub(super) busy: FxHashSet<(u32, ExprId)>,
    pub(super) samples: FxHashMap<u32, Vec<Sample>>,
    pub(super) values: FxHashMap<(u32, ExprId), Rc<[Option<i64>]>>,
    pub(super) ranks: FxHashMap<(u32, ExprId), usize>,
    pub(super) costs: FxHashMap<ExprId, u64>,
    pub(super) folded: FxHashMap<(u32, ExprId), ExprId>,
    pub(super) simplified: FxHashMap<(u32, ExprId), ExprId>,
}

/// Facts in the forms that the procedures use.
#[derive(Default)]
pub(super) struct Hypotheses {
    /// Polynomials known to be at least 0.
    pub(super) polys: Vec<Poly>,
    /// Bounds of single atoms that follow.
    pub(super) atoms: FxHashMap<ExprId, Interval>,
    /// Conditions that hold as they stand.
    pub(super) truths: FxHashSet<ExprId>,
    /// Position of each loop variable, outermost first, from 1.
    pub(super) positions: FxHashMap<VarId, usize>,
    /// Named values over loop variables only.
    pub(super) lets: FxHashMap<VarId, ExprId>,
}

/// The environment, one set of facts and the memo tables, borrowed for one task.
pub(super) struct Cx<'a> {
    pub(super) env: &'a mut Env,
    pub(super) facts: &'a Facts,
    pub(super) cache: &'a mut Cache,
    /// Where `Arg`s belong to: the function whose definition is looked at.
    pub(super) body_of: Option<UfId>,
    /// Identifies `(body_of, facts)` in the memo tables.
    pub(super) id: u32,
}

impl<'a> Cx<'a> {
    pub(super) fn new(env: &'a mut Env, facts: &'a Facts, cache: &'a mut Cache) -> Self {
        Self::with_body(env, facts, cache, None)
    }

    fn with_body(env: &'a mut Env, facts: &'a Facts, cache: &'a mut Cache, body_of: Option<UfId>) -> Self {
        let key = (body_of, facts.clone());
        let id = match cache.scopes.get(&key) {
            Some(&id) => id,
            None => {
                let id = cache.scopes.len() as u32;
                cache.scopes.insert(key, id);
                id
            }
        };
        Self { env, facts, cache, body_of, id }
    }

    /// Runs `f` under other facts.
    pub(super) fn under<R>(&mut self, facts: &Facts, f: impl FnOnce(&mut Cx<'_>) -> R) -> R {
        f(&mut Cx::with_body(self.env, facts, self.cache, self.body_of))
    }

    /// Runs `f` inside the definition of `uf`, where `Arg(j)` is in `0..domain[j]`.
    pub(super) fn in_definition<R>(&mut self, uf: UfId, f: impl FnOnce(&mut Cx<'_>) -> R) -> R {
        f(&mut Cx::with_body(self.env, &Facts::new(), self.cache, Some(uf)))
    }

    pub(super) fn hypotheses(&mut self) -> Rc<Hypotheses> {
        if let Some(h) = self.cache.hypotheses.get(&self.id) {
            return Rc::clone(h);
        }
        let h = Rc::new(self.derive_hypotheses());
        self.cache.hypotheses.insert(self.id, Rc::clone(&h));
        h
    }

    fn derive_hypotheses(&mut self) -> Hypotheses {
        let mut h = Hypotheses::default();
        for (i, &(v, _)) in self.facts.vars.iter().enumerate() {
            h.positions.insert(v, i + 1);
        }
        for &(v, value) in &self.facts.lets {
            let value = self.env.pool.substitute(value, &h.lets);
            h.lets.insert(v, value);
        }
        for &(_, extent) in &self.facts.vars {
            // The loop runs, so its extent is at least 1.
            let extent = self.env.pool.substitute(extent, &h.lets);
            let extent = affine::normalize(&mut self.env.pool, extent);
            if let Some(p) = self.poly(extent).checked_add_scaled(&Poly::constant(1), -1) {
                self.learn(&mut h, p);
            }
        }
        for &a in &self.facts.assumptions {
            let expanded = self.env.pool.substitute(a, &h.lets);
            let normal = affine::normalize(&mut self.env.pool, expanded);
            h.truths.extend([a, expanded]);
            self.learn_condition(&mut h, normal, true);
        }
        h
    }

    fn learn_condition(&mut self, h: &mut Hypotheses, cond: ExprId, holds: bool) {
        if holds {
            h.truths.insert(cond);
        }
        match *self.env.pool.get(cond) {
            Expr::Un(UnOp::Not, a) => self.learn_condition(h, a, !holds),
            Expr::Bin(BinOp::And, a, b) if holds => {
                self.learn_condition(h, a, true);
                self.learn_condition(h, b, true);
            }
            Expr::Bin(BinOp::Or, a, b) if !holds => {
                self.learn_condition(h, a, false);
                self.learn_condition(h, b, false);
            }
            Expr::Bin(op, a, b) if op.is_comparison() && self.is_index(a) => {
                for p in self.comparison_polys(op, a, b, holds) {
                    self.learn(h, p);
                }
            }
            _ => {}
        }
    }

    /// Polynomials that are all at least 0 exactly when the comparison holds (or does not);
    /// none where no conjunction says it.
    pub(super) fn comparison_polys(&mut self, op: BinOp, a: ExprId, b: ExprId, holds: bool) -> Vec<Poly> {
        let (pa, pb) = (self.poly(a), self.poly(b));
        let (Some(up), Some(down)) = (pb.clone().checked_add_scaled(&pa, -1), pa.checked_add_scaled(&pb, -1)) else {
            return Vec::new();
        };
        let below = |p: Poly| p.checked_add_scaled(&Poly::constant(1), -1);
        match (op, holds) {
            (BinOp::Lt, true) => below(up).into_iter().collect(),
            (BinOp::Lt, false) => vec![down],
            (BinOp::Le, true) => vec![up],
            (BinOp::Le, false) => below(down).into_iter().collect(),
            (BinOp::Eq, true) | (BinOp::Ne, false) => vec![up, down],
            _ => Vec::new(),
        }
    }

    /// Records `p >= 0` and what plainly follows.
    fn learn(&mut self, h: &mut Hypotheses, p: Poly) {
        if let Some((atom, k, c)) = single_atom(&p) {
            // k * atom + c >= 0
            let implied = if k > 0 {
                let least = floor_div(c, k).checked_neg();
                Interval::new(least, None)
            } else {
                Interval::new(None, k.checked_neg().map(|k| floor_div(c, k)))
            };
            let slot = h.atoms.entry(atom).or_insert(Interval::ALL);
            *slot = slot.intersect(implied);
            self.learn_below(h, atom, implied);
        }
        for atom in self.positive_factors(&p) {
            let slot = h.atoms.entry(atom).or_insert(Interval::ALL);
            *slot = slot.intersect(Interval::new(Some(1), None));
        }
        h.polys.push(p);
    }

    /// The factors of a product that is at least 1 where `p >= 0`, since all else in `p` is below 0: `rows * cols - 64 * o - 1`,
    /// where a tile of a fused loop runs. None of them is 0.
    fn positive_factors(&self, p: &Poly) -> Vec<ExprId> {
        let mut product = None;
        for (m, &k) in &p.terms {
            let negative = k < 0 && m.iter().all(|&a| self.is_plainly_a_size(a));
            if !negative && (k < 0 || m.len() < 2 || product.replace(m).is_some()) {
                return Vec::new();
            }
        }
        let least = p.terms.get(&Vec::new()).copied().unwrap_or(0);
        match product {
            Some(m) if least < 0 && m.iter().all(|&a| self.is_plainly_a_size(a)) => m.to_vec(),
            _ => Vec::new(),
        }
    }

    /// Whether an atom is never negative, by its form: what the facts say is not asked for, since it is being found.
    fn is_plainly_a_size(&self, e: ExprId) -> bool {
        let env = &*self.env;
        match *env.pool.get(e) {
            Expr::Int(n) => n >= 0,
            Expr::Var(v) => self.facts.extent_of(v).is_some(),
            Expr::Param(p) => env.params[p].lo >= 0,
            Expr::Call(f, _) => match env.ufs[f].def {
                UfDef::Extent { lo, .. } => self.is_plainly_a_size(lo),
                UfDef::Map { .. } => false,
                _ => true,
            },
            Expr::Bin(BinOp::FloorDiv, x, d) => env.pool.as_int(d).is_some_and(|d| d > 0) && self.is_plainly_a_size(x),
            Expr::Bin(BinOp::Add | BinOp::Mul | BinOp::Min, x, y) => {
                self.is_plainly_a_size(x) && self.is_plainly_a_size(y)
            }
            Expr::Bin(BinOp::Max, x, y) => self.is_plainly_a_size(x) || self.is_plainly_a_size(y),
            _ => false,
        }
    }

    /// What bounds of an operation say of its operands.
    fn learn_below(&mut self, h: &mut Hypotheses, atom: ExprId, bounds: Interval) {
        match (self.env.pool.get(atom).clone(), bounds.lo, bounds.hi) {
            (Expr::Bin(BinOp::FloorDiv, x, d), lo, hi) => {
                let Some(d) = self.env.pool.as_int(d).filter(|&d| d > 0) else { return };
                let px = self.poly(x);
                let low = lo.and_then(|l| l.checked_mul(d));
                let high = hi.and_then(|u| u.checked_mul(d)).and_then(|u| u.checked_add(d - 1));
                self.learn_at_least(h, &px, low);
                self.learn_at_most(h, &px, high);
            }
            (Expr::Bin(BinOp::Min, x, y), lo, _) => {
                for e in [x, y] {
                    let p = self.poly(e);
                    self.learn_at_least(h, &p, lo);
                }
            }
            (Expr::Bin(BinOp::Max, x, y), _, hi) => {
                for e in [x, y] {
                    let p = self.poly(e);
                    self.learn_at_most(h, &p, hi);
                }
            }
            _ => {}
        }
    }

    fn learn_at_least(&mut self, h: &mut Hypotheses, p: &Poly, lo: Option<i64>) {
        if let Some(q) = lo.and_then(|l| p.clone().checked_add_scaled(&Poly::constant(l), -1)) {
            self.learn(h, q);
        }
    }

    fn learn_at_most(&mut self, h: &mut Hypotheses, p: &Poly, hi: Option<i64>) {
        if let Some(q) = hi.and_then(|u| Poly::constant(u).checked_add_scaled(p, -1)) {
            self.learn(h, q);
        }
    }

    pub(super) fn poly(&self, e: ExprId) -> Poly {
        affine::poly(&self.env.pool, e)
    }

    pub(super) fn is_index(&self, e: ExprId) -> bool {
        self.env.pool.ty(e).scalar == ScalarType::Index
    }

    pub(super) fn is_scalar_index(&self, e: ExprId) -> bool {
        self.is_index(e) && self.env.pool.ty(e).lanes == 1
    }

    /// The extent of argument `j` of `uf` at these arguments.
    pub(super) fn domain_at(&mut self, uf: UfId, j: usize, args: &[ExprId]) -> Option<ExprId> {
        let extent = self.env.ufs[uf].domain.get(j).copied()?;
        Some(self.env.pool.instantiate(extent, &args[..j.min(args.len())]))
    }
}

/// `(atom, k, c)` of a polynomial `k * atom + c`.
pub(super) fn single_atom(p: &Poly) -> Option<(ExprId, i64, i64)> {
    let c = p.terms.get(&Vec::new()).copied().unwrap_or(0);
    let mut rest = p.terms.iter().filter(|(m, _)| !m.is_empty());
    let (m, &k) = rest.next()?;
    (rest.next().is_none() && m.len() == 1).then(|| (m[0], k, c))
}
