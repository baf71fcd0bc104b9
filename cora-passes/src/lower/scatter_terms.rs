//! Terms of a reduction that count where a position is what is read go to that position.
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
use cora_ir::affine::{normalize, poly};
use cora_ir::loops::LoopKind;
use cora_ir::storage::{Stmt, StorageModule};
use cora_ir::{BinOp, Combiner, Env, Expr, ExprId, ExprPool, Literal, ScalarType, Scope, TensorId, Type, VarId};

/// Positions that are so few that each term is looked at for all of them.
const FEW: i64 = 4;

/// Rewrites such reductions in every kernel for a CPU.
pub fn scatter_terms(m: &mut StorageModule, simplifier: &mut dyn Simplifier) {
    let tables = Tables::of(m);
    for k in m.kernels.iter_mut().filter(|k| !k.is_grid()) {
        let mut cx = Scatter { env: &mut m.env, simplifier, place: Place::new(&tables) };
        let body = std::mem::take(&mut k.body);
        k.body = cx.body(body);
    }
}

struct Scatter<'a> {
    env: &'a mut Env,
    simplifier: &'a mut dyn Simplifier,
    place: Place<'a>,
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
        match &s {
            Stmt::For { var, extent, kind: LoopKind::Serial, body } => self.scattered(*var, *extent, body).ok_or(s),
            _ => Err(s),
        }
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
        for s in &body[initial..] {
            new.extend(self.without_loop(positions, s)?);
        }
        Some(new)
    }

    /// A statement that combines terms with elements, for all positions at once.
    fn without_loop(&mut self, p: Positions, s: &Stmt) -> Option<Vec<Stmt>> {
        if let Some(term) = self.common_term(p, s) {
            let bound = bound_below(s);
            let needed = term.before.iter().chain([&term.at]);
            if !needed.into_iter().any(|&e| bound.iter().any(|&v| self.env.pool.uses_var(e, v))) {
                return self.at_position(p, s, &term);
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

    /// The term that is combined with the element at `index`.
    fn term(&mut self, p: Positions, index: ExprId, value: ExprId) -> Option<Term> {
        let Expr::Bin(op, x, y) = *self.env.pool.get(value) else { return None };
        let combiner = match op {
            BinOp::Add => Combiner::Sum,
            BinOp::Mul => Combiner::Prod,
            BinOp::Min => Combiner::Min,
            BinOp::Max => Combiner::Max,
            _ => return None,
        };
        let is_old = |pool: &ExprPool, e: ExprId| match pool.get(e) {
            Expr::Load { tensor, index: at, guard: None, .. } => *tensor == p.tensor && at[..] == [index],
            _ => false,
        };
        let term = match (is_old(&self.env.pool, x), is_old(&self.env.pool, y)) {
            (true, false) => y,
            (false, true) => x,
            _ => return None,
        };
        let ty = self.env.pool.ty(value).scalar;
        let identity = self.env.identity(combiner, ty);
        let (mut conds, mut inner) = (Vec::new(), term);
        while let Expr::Select(c, x, other) = *self.env.pool.get(inner) {
            if other != identity {
                break;
            }
            conds.extend(self.env.pool.conjuncts(c));
            inner = x;
        }
        if let (Combiner::Sum, Some(c)) = (combiner, as_number(&self.env.pool, inner)) {
            conds.extend(self.env.pool.conjuncts(c));
            let one = if ty.is_float() { Literal::float(ty, 1.0) } else { Literal::int(ty, 1) };
            inner = self.env.pool.lit(one);
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
        Some(Term { before, at, combiner: op, value })
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

    /// The statement where a position is one of the loop's, for that one.
    fn at_position(&mut self, p: Positions, s: &Stmt, term: &Term) -> Option<Vec<Stmt>> {
        // What the position is read of may be there only where these hold.
        let cond = term.before.iter().copied().reduce(|a, b| self.env.pool.and(a, b));
        let mark = cond.map(|c| self.place.assume(self.env, c));
        let name = self.env.vars[p.var].name.clone();
        let var = self.env.new_var(name);
        let at = self.env.pool.var(var);
        let zero = self.env.pool.int(0);
        let (low, high) = (self.env.pool.le(zero, term.at), self.env.pool.lt(term.at, p.extent));
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
        let mut body = vec![self.moved(p, s, at)?];
        if let Some(cond) = unknown.into_iter().reduce(|a, b| self.env.pool.and(a, b)) {
            body = vec![Stmt::If { cond, then: body, other: Vec::new() }];
        }
        body.insert(0, Stmt::Let { var, value: term.at });
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
            Stmt::For { .. } | Stmt::If { .. } => {}
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

/// The position of a reduction's results that each term counts at, as in `sum(t) (if ids[t] == v then x[t] else 0)`: of its
/// positions, that which a condition of `value` says to be what is read. Of a sum the condition may itself be the term.
pub fn position_of_terms(
    pool: &ExprPool,
    combiner: Combiner,
    value: ExprId,
    is_position: impl Fn(VarId) -> bool,
) -> Option<VarId> {
    let (mut conds, mut inner) = (Vec::new(), value);
    while let Expr::Select(c, x, _) = *pool.get(inner) {
        conds.extend(pool.conjuncts(c));
        inner = x;
    }
    if let (Combiner::Sum, Some(c)) = (combiner, as_number(pool, inner)) {
        conds.extend(pool.conjuncts(c));
        // What is left of the term is 1.
        inner = value;
    }
    let itself = |e: ExprId| {
        let e = match *pool.get(e) {
            Expr::Cast(_, inner) => inner,
            _ => e,
        };
        pool.as_var(e).filter(|&v| is_position(v))
    };
    let alone = |v: VarId, at: ExprId| {
        let comparisons = conds.iter().filter(|&&c| pool.uses_var(c, v)).count();
        comparisons == 1 && !pool.uses_var(at, v) && (inner == value || !pool.uses_var(inner, v))
    };
    conds.iter().find_map(|&c| {
        let Expr::Bin(BinOp::Eq, x, y) = *pool.get(c) else { return None };
        let of = |x, y| itself(x).filter(|&v| alone(v, y));
        of(x, y).or_else(|| of(y, x))
    })
}

/// The condition that a number is 1 for, and 0 for its contrary.
fn as_number(pool: &ExprPool, e: ExprId) -> Option<ExprId> {
    let Expr::Cast(_, c) = *pool.get(e) else { return None };
    (pool.ty(c).scalar == ScalarType::Bool).then_some(c)
}
