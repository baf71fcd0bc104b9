//! Terms of a reduction that count where a position is what is read go to that position, or to several positions at once.
//!
//! ```text
//! for %v in 0..%n { @H[%v] = 0;  for %t in 0..%m { @H[%v] = @H[%v] + select(@ids[%t] == %v, @x[%t], 0) } }
//!   =>  for %v in 0..%n { @H[%v] = 0 }
//!       for %t in 0..%m { let %p = @ids[%t];  if 0 <= %p and %p < %n { @H[%p] = @H[%p] + @x[%t] } }
//! ```
//!
//! Histograms, gradients of embeddings, messages along edges: work for each term, not for each term at each position.
//!
//! Requires: a name for each loop, scalars. Ensures: each element is combined with its terms in the same order.

use super::Simplifier;
use super::place::{Place, Rewrite, Tables};
use super::vectorize::substitute_all;
use cora_ir::affine::{normalize, poly};
use cora_ir::loops::LoopKind;
use cora_ir::storage::{Stmt, StorageModule};
use cora_ir::{BinOp, Combiner, Env, Expr, ExprId, ExprPool, Literal, ScalarType, Scope, TensorId, Type, UnOp, VarId};

/// Positions that are so few that each term is looked at for all of them.
pub const FEW: i64 = 4;

/// Rewrites such reductions in every kernel for a CPU.
pub fn scatter_terms(m: &mut StorageModule, simplifier: &mut dyn Simplifier) {
    let tables = Tables::of(m);
    for k in m.kernels.iter_mut().filter(|k| !k.is_grid()) {
        let mut cx = Scatter { env: &mut m.env, simplifier, place: Place::new(&tables), found: 0 };
        let body = std::mem::take(&mut k.body);
        k.body = cx.body(body);
    }
}

struct Scatter<'a> {
    env: &'a mut Env,
    simplifier: &'a mut dyn Simplifier,
    place: Place<'a>,
    /// Loops over positions that are gone.
    found: usize,
}

/// The positions of a loop, and the tensor that it writes.
#[derive(Clone, Copy)]
struct Positions {
    var: VarId,
    extent: ExprId,
    tensor: TensorId,
}

impl Positions {
    /// Whether an expression has other values at other positions, or later.
    fn moves(self, env: &Env, e: ExprId) -> bool {
        env.pool.uses_var(e, self.var) || env.pool.reads(e, self.tensor)
    }
}

/// A term that goes to one position.
#[derive(Clone)]
struct Term {
    /// What holds before the position is read.
    before: Vec<ExprId>,
    /// The position.
    at: ExprId,
    combiner: BinOp,
    /// The value, chosen by all other conditions.
    value: ExprId,
}

impl<'a> Rewrite<'a> for Scatter<'a> {
    fn at(&mut self) -> (&mut Env, &mut Place<'a>) {
        (self.env, &mut self.place)
    }

    fn replaced(&mut self, s: Stmt) -> Result<Vec<Stmt>, Stmt> {
        let Stmt::For { var, extent, kind: LoopKind::Serial, body } = &s else { return Err(s) };
        if let Some(new) = self.scattered(*var, *extent, body) {
            return Ok(new);
        }
        // Where a loop inside was one over positions, this one may be one over others.
        let before = self.found;
        let s = self.inside(s);
        let new = match &s {
            Stmt::For { var, extent, body, .. } if self.found > before => self.scattered(*var, *extent, body),
            _ => None,
        };
        Ok(new.unwrap_or_else(|| vec![s]))
    }
}

impl Scatter<'_> {
    /// What stands for a loop over positions.
    fn scattered(&mut self, var: VarId, extent: ExprId, body: &[Stmt]) -> Option<Vec<Stmt>> {
        if self.env.pool.constant_bound(extent).is_some_and(|n| n < FEW) {
            return None;
        }
        let tensor = written_alone(body).filter(|&t| self.env.tensors[t].scope != Scope::Reg)?;
        let pool = &self.env.pool;
        let initial = body.iter().take_while(|s| sets_constants(pool, s)).count();
        let positions = Positions { var, extent, tensor };
        let mut new = Vec::new();
        if initial > 0 {
            new.push(Stmt::For { var, extent, kind: LoopKind::Serial, body: body[..initial].to_vec() });
        }
        if initial == body.len() {
            return None;
        }
        new.extend(self.all_without_loop(positions, &body[initial..])?);
        self.found += 1;
        Some(new)
    }

    /// A statement that combines terms with elements, for all positions at once.
    fn without_loop(&mut self, p: Positions, s: &Stmt) -> Option<Vec<Stmt>> {
        if let Some(term) = self.common_term(p, s) {
            let bound = bound_below(s);
            let needed = term.before.iter().chain([&term.at]);
            if !needed.into_iter().any(|&e| bound.iter().any(|&v| self.env.pool.uses_var(e, v))) {
                return self.at_position(p, &term.before, term.at, |cx, at| Some(vec![cx.moved(p, s, at)?]));
            }
        }
        match s {
            Stmt::For { var, extent, kind: kind @ (LoopKind::Serial | LoopKind::Unroll), body }
                if !p.moves(self.env, *extent) =>
            {
                self.place.enter(self.env, *var, *extent);
                let body = self.all_without_loop(p, body);
                self.place.leave();
                Some(vec![Stmt::For { var: *var, extent: *extent, kind: *kind, body: body? }])
            }
            Stmt::If { cond, then, other } if other.is_empty() && !p.moves(self.env, *cond) => {
                let mark = self.place.assume(self.env, *cond);
                let then = self.all_without_loop(p, then);
                self.place.forget(mark);
                Some(vec![Stmt::If { cond: *cond, then: then?, other: Vec::new() }])
            }
            Stmt::If { cond, then, other } if other.is_empty() => self.chosen_statements(p, *cond, then),
            Stmt::Let { var, value } if !p.moves(self.env, *value) => {
                self.place.define(self.env, *var, *value);
                Some(vec![s.clone()])
            }
            _ => None,
        }
    }

    fn all_without_loop(&mut self, p: Positions, body: &[Stmt]) -> Option<Vec<Stmt>> {
        let all: Option<Vec<Vec<Stmt>>> = body.iter().map(|s| self.without_loop(p, s)).collect();
        Some(all?.concat())
    }

    /// The position of all terms below, if they are combined where their loops alone stand between.
    fn common_term(&mut self, p: Positions, s: &Stmt) -> Option<Term> {
        match s {
            Stmt::For { extent, body, .. } => {
                let mut all = body.iter().map(|s| self.common_term(p, s)).collect::<Option<Vec<_>>>()?;
                let first = all.pop()?;
                let same = all.iter().all(|t| (&t.before, t.at) == (&first.before, first.at));
                (same && !p.moves(self.env, *extent)).then_some(first)
            }
            Stmt::Store { tensor, index, value, mask: None, rest } if *tensor == p.tensor && rest.is_empty() => {
                self.term(p, *index, *value)
            }
            _ => None,
        }
    }

    /// What is combined with the element at `index`, and how.
    fn combined(&self, p: Positions, index: ExprId, value: ExprId) -> Option<(Combiner, ExprId)> {
        let pool = &self.env.pool;
        let Expr::Bin(op, x, y) = *pool.get(value) else { return None };
        let combiner = match op {
            BinOp::Add => Combiner::Sum,
            BinOp::Mul => Combiner::Prod,
            BinOp::Min => Combiner::Min,
            BinOp::Max => Combiner::Max,
            _ => return None,
        };
        let is_old = |e: ExprId| match pool.get(e) {
            Expr::Load { tensor, index: at, guard: None, .. } => *tensor == p.tensor && at[..] == [index],
            _ => false,
        };
        match (is_old(x), is_old(y)) {
            (true, false) => Some((combiner, y)),
            (false, true) => Some((combiner, x)),
            _ => None,
        }
    }

    /// The term that is combined with the element at `index`.
    fn term(&mut self, p: Positions, index: ExprId, value: ExprId) -> Option<Term> {
        let (combiner, term) = self.combined(p, index, value)?;
        let ty = self.env.pool.ty(value).scalar;
        let identity = self.env.identity(combiner, ty);
        let (mut conds, mut inner) = (Vec::new(), term);
        while let Expr::Select(c, x, other) = *self.env.pool.get(inner) {
            let (c, x) = if other == identity {
                (c, x)
            } else if x == identity {
                (contrary(&mut self.env.pool, c), other)
            } else {
                break;
            };
            conds.extend(self.env.pool.conjuncts(c));
            inner = x;
        }
        if let (Combiner::Sum, Some(c)) = (combiner, as_number(&self.env.pool, inner)) {
            conds.extend(self.env.pool.conjuncts(c));
            let one = if ty.is_float() { Literal::float(ty, 1.0) } else { Literal::int(ty, 1) };
            inner = self.env.pool.lit(one);
        }
        if combiner == Combiner::Max && ty == ScalarType::Bool {
            conds.extend(self.env.pool.conjuncts(inner));
            inner = self.env.pool.bool(true);
        }
        let n = conds.iter().position(|&c| self.position(p, c).is_some())?;
        let at = self.position(p, conds[n])?;
        let before = conds[..n].to_vec();
        let mut value = inner;
        for &c in conds[n + 1..].iter().rev() {
            value = self.env.pool.select(c, value, identity);
        }
        if before.iter().chain([&at, &value]).any(|&e| p.moves(self.env, e)) || !self.steps(p.var, index) {
            return None;
        }
        Some(Term { before, at, combiner: combiner.op(), value })
    }

    /// Whether an index has another value at each position.
    fn steps(&mut self, var: VarId, index: ExprId) -> bool {
        let v = self.env.pool.var(var);
        let terms = poly(&self.env.pool, index).terms;
        let mut coefficient = 0;
        for (monomial, &k) in &terms {
            if monomial[..] == [v] {
                coefficient = k;
            } else if monomial.iter().any(|&a| self.env.pool.uses_var(a, var)) {
                return false;
            }
        }
        coefficient != 0
    }

    /// The position of which a comparison holds.
    fn position(&mut self, p: Positions, cond: ExprId) -> Option<ExprId> {
        let Expr::Bin(BinOp::Eq, x, y) = *self.env.pool.get(cond) else { return None };
        let ty = self.env.pool.ty(x);
        let (x, y) = if ty == Type::scalar(ScalarType::Index) {
            (x, y)
        } else {
            self.as_positions(p, x, y).or_else(|| self.as_positions(p, y, x))?
        };
        let apart = self.env.pool.sub(x, y);
        let v = self.env.pool.var(p.var);
        for sign in [1, -1] {
            // x - y = sign * v + rest, which is 0 at v = -sign * rest.
            let k = self.env.pool.int(sign);
            let moved = self.env.pool.mul(k, v);
            let rest = self.env.pool.sub(apart, moved);
            let rest = normalize(&mut self.env.pool, rest);
            if !self.env.pool.uses_var(rest, p.var) {
                let k = self.env.pool.int(-sign);
                let at = self.env.pool.mul(k, rest);
                return Some(normalize(&mut self.env.pool, at));
            }
        }
        None
    }

    /// Values of a smaller type as positions, where `own` is the position itself in that type.
    fn as_positions(&mut self, p: Positions, own: ExprId, other: ExprId) -> Option<(ExprId, ExprId)> {
        let Expr::Cast(ty, inner) = *self.env.pool.get(own) else { return None };
        let most = self.env.pool.constant_bound(p.extent);
        let exact = ty == ScalarType::I64 || ty == ScalarType::I32 && most.is_some_and(|n| n <= i64::from(i32::MAX));
        if !exact || self.env.pool.as_var(inner) != Some(p.var) {
            return None;
        }
        let other = self.env.pool.cast(ScalarType::Index, other);
        Some((inner, other))
    }

    /// Statements that combine terms where a condition says at which position.
    fn chosen_statements(&mut self, p: Positions, cond: ExprId, then: &[Stmt]) -> Option<Vec<Stmt>> {
        let conds = self.env.pool.conjuncts(cond);
        let n = conds.iter().position(|&c| self.position(p, c).is_some())?;
        let at = self.position(p, conds[n])?;
        let others = conds[..n].iter().chain(&conds[n + 1..]).chain([&at]);
        if others.copied().any(|e| p.moves(self.env, e)) || !then.iter().all(|s| self.combines(p, s)) {
            return None;
        }
        let after = conds[n + 1..].iter().copied().reduce(|a, b| self.env.pool.and(a, b));
        self.at_position(p, &conds[..n], at, |cx, at| {
            let then = substitute_all(cx.env, then, &[(p.var, at)].into_iter().collect());
            Some(match after {
                Some(cond) => vec![Stmt::If { cond, then, other: Vec::new() }],
                None => then,
            })
        })
    }

    /// Whether a statement combines terms that are the same at all positions with the elements at its own.
    fn combines(&mut self, p: Positions, s: &Stmt) -> bool {
        match s {
            Stmt::For { extent, body, .. } => !p.moves(self.env, *extent) && body.iter().all(|s| self.combines(p, s)),
            Stmt::If { cond, then, other } => {
                !p.moves(self.env, *cond) && then.iter().chain(other).all(|s| self.combines(p, s))
            }
            Stmt::Let { value, .. } => !p.moves(self.env, *value),
            Stmt::Store { tensor, index, value, mask: None, rest } if *tensor == p.tensor && rest.is_empty() => {
                let combined = self.combined(p, *index, *value);
                combined.is_some_and(|(_, term)| !p.moves(self.env, term)) && self.steps(p.var, *index)
            }
            _ => false,
        }
    }

    /// What `body` makes for the one position that is the loop's, where conditions hold that it is read under.
    fn at_position(
        &mut self,
        p: Positions,
        before: &[ExprId],
        position: ExprId,
        body: impl FnOnce(&mut Self, ExprId) -> Option<Vec<Stmt>>,
    ) -> Option<Vec<Stmt>> {
        // What the position is read of may be there only where these hold.
        let cond = before.iter().copied().reduce(|a, b| self.env.pool.and(a, b));
        let mark = cond.map(|c| self.place.assume(self.env, c));
        let name = self.env.vars[p.var].name.clone();
        let var = self.env.new_var(name);
        let at = self.env.pool.var(var);
        let zero = self.env.pool.int(0);
        let (low, high) = (self.env.pool.le(zero, position), self.env.pool.lt(position, p.extent));
        let (low_here, high_here) = (self.env.pool.le(zero, at), self.env.pool.lt(at, p.extent));
        let ends = [(low, low_here), (high, high_here)];
        let unknown: Vec<ExprId> = ends
            .into_iter()
            .filter(|&(known, _)| !self.place.proved(self.env, self.simplifier, known))
            .map(|(_, here)| here)
            .collect();
        if let Some(mark) = mark {
            self.place.forget(mark);
        }
        let mut body = body(self, at)?;
        if let Some(cond) = unknown.into_iter().reduce(|a, b| self.env.pool.and(a, b)) {
            body = vec![Stmt::If { cond, then: body, other: Vec::new() }];
        }
        body.insert(0, Stmt::Let { var, value: position });
        Some(match cond {
            Some(cond) => vec![Stmt::If { cond, then: body, other: Vec::new() }],
            None => body,
        })
    }

    /// The statement with terms that are chosen already, at the element of a position.
    fn moved(&mut self, p: Positions, s: &Stmt, at: ExprId) -> Option<Stmt> {
        Some(match s {
            Stmt::For { var, extent, kind, body } => {
                let body = body.iter().map(|s| self.moved(p, s, at)).collect::<Option<_>>()?;
                Stmt::For { var: *var, extent: *extent, kind: *kind, body }
            }
            Stmt::Store { tensor, index, value, .. } => {
                let term = self.term(p, *index, *value)?;
                let map = [(p.var, at)].into_iter().collect();
                let index = self.env.pool.substitute(*index, &map);
                let old = self.env.load(*tensor, [index]);
                let value = self.env.pool.bin(term.combiner, old, term.value);
                Stmt::Store { tensor: *tensor, index, value, mask: None, rest: Vec::new() }
            }
            _ => return None,
        })
    }
}

/// The tensor that statements write, if they are loops, conditions and stores, and write no other.
fn written_alone(body: &[Stmt]) -> Option<TensorId> {
    let (mut tensors, mut plain) = (Vec::new(), true);
    for s in body {
        s.walk(&mut |s| match s {
            Stmt::For { .. } | Stmt::If { .. } | Stmt::Let { .. } => {}
            Stmt::Store { tensor, mask: None, rest, .. } if rest.is_empty() => tensors.push(*tensor),
            _ => plain = false,
        });
    }
    tensors.dedup();
    (plain && tensors.len() == 1).then(|| tensors[0])
}

/// Whether a statement writes nothing but constants, and nothing that is read says where.
fn sets_constants(pool: &ExprPool, s: &Stmt) -> bool {
    let mut all = true;
    s.walk(&mut |s| {
        all &= match s {
            Stmt::Store { value, .. } => matches!(pool.get(*value), Expr::Lit(_)),
            _ => true,
        }
    });
    all
}

/// The variables of loops of a statement.
fn bound_below(s: &Stmt) -> Vec<VarId> {
    let mut all = Vec::new();
    s.walk(&mut |s| {
        if let Stmt::For { var, .. } = s {
            all.push(*var);
        }
    });
    all
}

/// The positions of a reduction's results that each term counts at, as in `sum(t) (if ids[t] == v then x[t] else 0)`: those
/// that conditions of `value` say to be what is read. Of a sum the condition may itself be the term, and of truth values it is.
pub fn positions_of_terms(
    pool: &ExprPool,
    combiner: Combiner,
    value: ExprId,
    is_position: impl Fn(VarId) -> bool,
) -> Vec<VarId> {
    let (mut conds, mut inner): (Vec<(ExprId, bool)>, ExprId) = (Vec::new(), value);
    let add =
        |conds: &mut Vec<(ExprId, bool)>, c: ExprId| conds.extend(pool.conjuncts(c).into_iter().map(|c| (c, true)));
    while let Expr::Select(c, x, other) = *pool.get(inner) {
        let identity = combiner.identity(pool.ty(x).scalar);
        if matches!(pool.get(x), Expr::Lit(l) if *l == identity) {
            conds.push((c, false));
            inner = other;
        } else {
            add(&mut conds, c);
            inner = x;
        }
    }
    let of_truth = (combiner == Combiner::Max && pool.ty(inner).scalar == ScalarType::Bool).then_some(inner);
    if let Some(c) = of_truth.or_else(|| as_number(pool, inner).filter(|_| combiner == Combiner::Sum)) {
        add(&mut conds, c);
        // What is left of the term is 1.
        inner = value;
    }
    // A position, moved by what is constant.
    let itself = |e: ExprId| {
        let e = match *pool.get(e) {
            Expr::Cast(_, inner) => inner,
            _ => e,
        };
        let moved = poly(pool, e);
        let mut vars = moved.terms.iter().filter(|(m, _)| !m.is_empty());
        match (vars.next(), vars.next()) {
            (Some((m, 1 | -1)), None) if m.len() == 1 => pool.as_var(m[0]).filter(|&v| is_position(v)),
            _ => None,
        }
    };
    let alone = |v: VarId, at: ExprId| {
        let comparisons = conds.iter().filter(|c| pool.uses_var(c.0, v)).count();
        comparisons == 1 && !pool.uses_var(at, v) && (inner == value || !pool.uses_var(inner, v))
    };
    let found = conds.iter().filter_map(|&(c, holds)| {
        let Expr::Bin(op, x, y) = *pool.get(c) else { return None };
        if op != if holds { BinOp::Eq } else { BinOp::Ne } {
            return None;
        }
        let of = |x, y| itself(x).filter(|&v| alone(v, y)).map(|v| (v, y));
        of(x, y).or_else(|| of(y, x))
    });
    let found: Vec<(VarId, ExprId)> = found.collect();
    // One that another's terms are looked up by has to be known first.
    let looked_up = |v: VarId| found.iter().any(|&(other, at)| other != v && pool.uses_var(at, v));
    found.iter().map(|f| f.0).filter(|&v| found.len() == 1 || !looked_up(v)).collect()
}

/// Whether a condition does not hold.
fn contrary(pool: &mut ExprPool, c: ExprId) -> ExprId {
    match *pool.get(c) {
        Expr::Bin(BinOp::Ne, x, y) => pool.bin(BinOp::Eq, x, y),
        _ => pool.un(UnOp::Not, c),
    }
}

/// The condition that a number is 1 for, and 0 for its contrary.
fn as_number(pool: &ExprPool, e: ExprId) -> Option<ExprId> {
    let Expr::Cast(_, c) = *pool.get(e) else { return None };
    (pool.ty(c).scalar == ScalarType::Bool).then_some(c)
}
