//! Branches, and conditions of lanes that read, which the ranges of the loops around decide.
//!
//! ```text
//! for %t in 0..4 thread.y { if 1 < min(%n, %t + 4) { .. }  if 4 < min(%n, %t) { .. } }
//!   =>  for %t in 0..4 thread.y { if 1 < %n { .. } }
//! ```
//!
//! The copies of an unrolled loop have conditions of their own, most of which say little: of a minimum each operand is
//! asked by itself.

use crate::simplify::{Facts, interval};
use cora_ir::affine::{Poly, build, least_operands, poly};
use cora_ir::storage::Stmt;
use cora_ir::{BinOp, Env, Expr, ExprId, ExprPool, ScalarType, Type, VarId};
use rustc_hash::FxHashMap;

/// The statements of a kernel without branches that are always or never taken.
pub(super) fn decide_branches(env: &mut Env, body: Vec<Stmt>) -> Vec<Stmt> {
    Decide { env, loops: Vec::new(), memo: FxHashMap::default() }.body(body)
}

struct Decide<'a> {
    env: &'a mut Env,
    loops: Vec<(VarId, ExprId)>,
    /// What conditions are in these loops.
    memo: FxHashMap<ExprId, ExprId>,
}

impl Decide<'_> {
    fn body(&mut self, body: Vec<Stmt>) -> Vec<Stmt> {
        let mut out = Vec::with_capacity(body.len());
        for s in body {
            match s {
                Stmt::For { var, extent, kind, body } => {
                    self.loops.push((var, extent));
                    let outside = std::mem::take(&mut self.memo);
                    let body = self.body(body);
                    self.memo = outside;
                    self.loops.pop();
                    out.push(Stmt::For { var, extent, kind, body });
                }
                Stmt::If { cond, then, other } => {
                    let cond = self.condition(cond);
                    match self.env.pool.as_bool(cond) {
                        Some(true) => out.extend(self.body(then)),
                        Some(false) => out.extend(self.body(other)),
                        None => out.push(Stmt::If { cond, then: self.body(then), other: self.body(other) }),
                    }
                }
                mut s => {
                    s.map_exprs(&mut |e| self.reads(e));
                    out.push(s);
                }
            }
        }
        out
    }

    /// Reads without the conditions of their lanes that always hold: those of a window's middle tap, say.
    fn reads(&mut self, e: ExprId) -> ExprId {
        let mut guards = Vec::new();
        self.env.pool.walk(e, &mut |_, n| {
            if let Expr::Load { guard: Some((c, _)), .. } = n {
                guards.extend(self.env.pool.conjuncts(*c));
            }
        });
        guards.retain(|&c| self.env.pool.ty(c).lanes > 1 && self.always(c));
        if guards.is_empty() {
            return e;
        }
        self.env.pool.rewrite(e, &mut |pool, id| {
            let Expr::Load { tensor, part, index, guard: Some((cond, other)) } = pool.get(id).clone() else {
                return None;
            };
            let rest: Vec<ExprId> = pool.conjuncts(cond).into_iter().filter(|c| !guards.contains(c)).collect();
            let guard = if rest.is_empty() { None } else { Some((pool.all(rest), other)) };
            let ty = pool.ty(id).scalar;
            Some(pool.load_guarded((tensor, part), ty, index.iter().copied(), guard))
        })
    }

    /// Whether a comparison holds in each lane, by the ranges of the loops.
    fn always(&mut self, c: ExprId) -> bool {
        let Expr::Bin(op @ (BinOp::Lt | BinOp::Le), a, b) = *self.env.pool.get(c) else { return false };
        let lanes = |e| match *self.env.pool.get(e) {
            Expr::Splat(base, n) if self.env.pool.ty(base).scalar == ScalarType::Index => Some((base, 0, n)),
            Expr::Ramp { base, stride, lanes } => Some((base, stride, lanes)),
            _ => None,
        };
        let (Some((a, sa, n)), Some((b, sb, _))) = (lanes(a), lanes(b)) else { return false };
        // The least distance is that of the first lane, or of the last.
        let Some(apart) = sb.checked_sub(sa).and_then(|s| s.min(0).checked_mul(i64::from(n) - 1)) else { return false };
        let pool = &mut self.env.pool;
        let room = pool.sub(b, a);
        let less = pool.int(apart.saturating_sub(i64::from(op == BinOp::Lt)));
        let room = pool.add(room, less);
        let room = cora_ir::affine::normalize(pool, room);
        let facts = Facts::in_loops(self.loops.iter().copied());
        interval::bounds(self.env, &facts, room).lo.is_some_and(|lo| lo >= 0)
    }

    fn condition(&mut self, c: ExprId) -> ExprId {
        if let Some(&known) = self.memo.get(&c) {
            return known;
        }
        let decided = match *self.env.pool.get(c) {
            Expr::Bin(BinOp::And, a, b) => {
                let (a, b) = (self.condition(a), self.condition(b));
                self.env.pool.and(a, b)
            }
            Expr::Bin(op @ (BinOp::Lt | BinOp::Le), a, b)
                if self.env.pool.ty(a) == Type::scalar(ScalarType::Index) && self.has_minimum(a, b) =>
            {
                self.comparison(c, (op, a, b))
            }
            _ => c,
        };
        self.memo.insert(c, decided);
        decided
    }

    /// Others are decided, or not, as they are made.
    fn has_minimum(&self, a: ExprId, b: ExprId) -> bool {
        [a, b].iter().any(|&e| self.env.pool.any(e, &mut |n| matches!(n, Expr::Bin(BinOp::Min | BinOp::Max, ..))))
    }

    fn comparison(&mut self, c: ExprId, (op, a, b): (BinOp, ExprId, ExprId)) -> ExprId {
        let pool = &mut self.env.pool;
        let mut room = pool.sub(b, a);
        if op == BinOp::Lt {
            let one = pool.int(1);
            room = pool.sub(room, one);
        }
        let facts = Facts::in_loops(self.loops.iter().copied());
        let operands = least_operands(pool, room);
        let mut left = Vec::new();
        for &e in &operands {
            let bounds = interval::bounds(self.env, &facts, e);
            if bounds.hi.is_some_and(|hi| hi < 0) {
                return self.env.pool.bool(false);
            }
            if bounds.lo.is_none_or(|lo| lo < 0) {
                left.push(e);
            }
        }
        if left.len() == operands.len() {
            return c;
        }
        let conditions: Vec<ExprId> = left.into_iter().map(|e| not_negative(&mut self.env.pool, e)).collect();
        self.env.pool.all(conditions)
    }
}

/// `0 <= e` as `a < b` without subtractions, where the coefficients leave room.
fn not_negative(pool: &mut ExprPool, e: ExprId) -> ExprId {
    let (mut less, mut more) = (Poly::default(), Poly::default());
    let below = poly(pool, e).terms.into_iter().all(|(monomial, c)| {
        match (c < 0, monomial.is_empty()) {
            // `a <= b - 3` is `a + 2 < b`.
            (true, true) => c.checked_add(1).and_then(i64::checked_neg).map(|c| less.terms.insert(monomial, c)),
            (true, false) => c.checked_neg().map(|c| less.terms.insert(monomial, c)),
            (false, _) => Some(more.terms.insert(monomial, c)),
        }
        .is_some()
    });
    let constant = Vec::new();
    if !less.terms.contains_key(&constant) {
        let c = more.terms.remove(&constant).unwrap_or(0);
        more.terms.insert(constant, c.saturating_add(1));
    }
    if !below || more.terms.values().any(|&c| c == i64::MAX) {
        let zero = pool.int(0);
        return pool.le(zero, e);
    }
    less.terms.retain(|_, c| *c != 0);
    let (less, more) = (build(pool, &less), build(pool, &more));
    pool.lt(less, more)
}
