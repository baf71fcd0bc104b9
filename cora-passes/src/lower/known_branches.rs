//! Branches whose conditions follow from the loops and branches around them are gone.
//!
//! ```text
//! if %q * 64 < %n { if %q * 4 < (%n + 15) // 16 { .. } }   =>   if %q * 64 < %n { .. }
//! ```
//!
//! Steps put conditions in without a look at those already there: the first row of a tile is there because the tile is, and a
//! prefetch asks for what the statement asks for that it goes with.
//!
//! Requires: names that stand for one value each. Ensures: the same statements in the same order.

use super::Simplifier;
use super::place::{Place, Rewrite, Tables};
use cora_ir::affine::{Poly, poly};
use cora_ir::storage::{Kernel, Stmt, StorageModule};
use cora_ir::{BinOp, Env, Expr, ExprId, ExprPool, ScalarType};

/// After so many questions of one kernel without a proof the rest is left as it is: each takes the solver its full time.
const MOST_UNPROVED: usize = 12;
/// Of more quotients, remainders and values of functions than these nothing is asked: what follows from what is around has few,
/// and each makes the solver's time longer.
const MOST_STEPPED: usize = 4;

/// Decides branches in every kernel.
pub fn decide_known_branches(m: &mut StorageModule, simplifier: &mut dyn Simplifier) {
    let tables = Tables::of(m);
    for k in m.kernels.iter_mut().filter(|k| !writes_tables(k, &tables)) {
        let place = Place::new(&tables);
        let mut cx = Known { env: &mut m.env, simplifier, place, failed: Vec::new(), left: MOST_UNPROVED };
        let body = std::mem::take(&mut k.body);
        k.body = cx.body(body);
    }
}

/// Whether entries change while the kernel runs.
fn writes_tables(k: &Kernel, tables: &Tables) -> bool {
    k.body.iter().any(|s| s.any(&mut |s| s.writes().iter().any(|&t| tables.contains(t))))
}

struct Known<'a> {
    env: &'a mut Env,
    simplifier: &'a mut dyn Simplifier,
    place: Place<'a>,
    /// What could not be proved to be positive under the branches around.
    failed: Vec<Poly>,
    /// How many more questions may go without a proof.
    left: usize,
}

impl<'a> Rewrite<'a> for Known<'a> {
    fn at(&mut self) -> (&mut Env, &mut Place<'a>) {
        (self.env, &mut self.place)
    }

    fn replaced(&mut self, s: Stmt) -> Result<Vec<Stmt>, Stmt> {
        let Stmt::If { cond, then, other } = s else { return Err(s) };
        let asked = self.env.pool.conjuncts(cond);
        let left: Vec<ExprId> = asked.into_iter().filter(|&c| !self.known(c)).collect();
        if left.is_empty() {
            return Ok(self.body(then));
        }
        let cond = self.env.pool.all(left);
        let mark = self.place.assume(self.env, cond);
        let failed = std::mem::take(&mut self.failed);
        let then = self.body(then);
        self.place.forget(mark);
        self.failed.clear();
        let other = self.body(other);
        self.failed = failed;
        Ok(vec![Stmt::If { cond, then, other }])
    }
}

impl Known<'_> {
    /// Whether a condition provably holds; at least as much as one that could not be proved is not asked for.
    fn known(&mut self, c: ExprId) -> bool {
        let c = self.place.expanded(self.env, c);
        let (op, a, b) = match *self.env.pool.get(c) {
            Expr::Bin(op @ (BinOp::Lt | BinOp::Le), a, b) => (op, a, b),
            _ => return false,
        };
        if self.env.pool.ty(a).scalar != ScalarType::Index || self.place.reads_elements(self.env, c) {
            return false;
        }
        if self.place.assumed(c) {
            return true;
        }
        if stepped(&self.env.pool, c) > MOST_STEPPED {
            return false;
        }
        let room = self.env.pool.sub(b, a);
        let mut room = poly(&self.env.pool, room);
        if op == BinOp::Le {
            room.add_term(Vec::new(), 1);
        }
        let no_less = |f: &Poly| {
            let difference = f.clone().checked_add_scaled(&room, -1).and_then(|d| d.as_constant());
            difference.is_some_and(|d| d >= 0)
        };
        if self.left == 0 || self.failed.iter().any(no_less) {
            return false;
        }
        let proved = self.place.proved(self.env, self.simplifier, c);
        if !proved {
            self.left -= 1;
            self.failed.push(room);
        }
        proved
    }
}

/// The different quotients, remainders and values of functions in a condition.
fn stepped(pool: &ExprPool, c: ExprId) -> usize {
    let mut found = 0;
    pool.walk(c, &mut |_, n| {
        found += usize::from(matches!(n, Expr::Bin(BinOp::FloorDiv | BinOp::Mod, ..) | Expr::Call(..)))
    });
    found
}
