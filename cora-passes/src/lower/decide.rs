//! Branches whose conditions the ranges of the loops around decide.
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
    memo: FxHashMap<ExprId, ExprId>,
}

impl Decide<'_> {
    fn body(&mut self, body: Vec<Stmt>) -> Vec<Stmt> {
        let mut out = Vec::with_capacity(body.len());
        for s in body {
            match s {
                Stmt::For { var, extent, kind, body } => {
                    self.loops.push((var, extent));
                    let body = self.body(body);
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
                s => out.push(s),
            }
        }
        out
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
