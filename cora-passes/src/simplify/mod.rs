//! Simplification and proof of index expressions: [`simplify`] and [`Prover::prove`].
//!
//! Before, in a fused loop `f` over `(b, i)`:  `P(S(f)) * 512 + (f - P(S(f))) * 512 + d`
//! After:  `512*f + d`
//!
//! Order of procedures, cheapest first: polynomial normal form ([`cora_ir::affine`]), constant
//! intervals and residues ([`interval`]), symbolic inequalities (`linear`, `atom_bounds`), folding
//! by what those decide (`fold`), equality saturation over proved rules (`rules`, `egraph`), and for
//! proofs alone a search for counterexamples and Z3 ([`prover`]).
//!
//! Facts about uninterpreted functions follow from their definitions, here and nowhere else. Every
//! procedure has a fixed budget and no clock: the same input gives the same output.

mod atom_bounds;
pub mod concrete;
mod context;
mod cost;
mod definitions;
pub mod egraph;
pub mod example;
pub mod facts;
mod fold;
pub mod interval;
mod language;
mod linear;
mod products;
pub mod prover;
pub mod range;
pub mod rules;
mod samples;
mod solver;
pub mod term;

pub use example::with_example;
pub use facts::{Facts, Mark};
pub use interval::{bounds, modulus};
pub use prover::{Prover, Stage, Stats, Verdict};
pub use range::{Interval, Stride};
pub use solver::SharedSolver;

use context::{Cache, Cx};
use cora_ir::expr::Args;
use cora_ir::{BinOp, Env, Expr, ExprId, ScalarType, UfDef, UnOp, VarId};

/// Rounds of normal form and folding.
const ROUNDS: usize = 4;
/// Distinct nodes of the greatest expression that is saturated.
const GREATEST_SIZE: usize = 120;

/// An expression with the same value as `e` wherever the facts hold, and at most its cost. Works on
/// expressions of any type: index expressions inside are simplified.
///
/// With a prover, what was simplified before is remembered.
pub fn simplify(env: &mut Env, prover: Option<&mut Prover>, facts: &Facts, e: ExprId) -> ExprId {
    match prover {
        Some(p) => p.simplified(env, facts, e),
        None => Cx::new(env, facts, &mut Cache::default()).simplified(e),
    }
}

impl Cx<'_> {
    fn simplified(&mut self, e: ExprId) -> ExprId {
        let key = (self.id, e);
        if let Some(&done) = self.cache.simplified.get(&key) {
            return done;
        }
        let cheap = self.cheaply(e);
        let better = self.saturate_within(cheap);
        let out = if better == cheap { cheap } else { self.cheaply(better) };
        let memo = &mut self.cache.costs;
        let out = if cost::cost(self.env, out, memo) <= cost::cost(self.env, cheap, memo) { out } else { cheap };
        self.cache.simplified.insert(key, out);
        out
    }

    /// Saturates each greatest subexpression that rules look into and may improve.
    fn saturate_within(&mut self, e: ExprId) -> ExprId {
        let ty = self.env.pool.ty(e);
        if ty.lanes == 1 && matches!(ty.scalar, ScalarType::Index | ScalarType::Bool) && self.is_worth_saturating(e) {
            return egraph::saturated(self, e);
        }
        let kids = self.env.pool.children(e);
        let new: Args = kids.iter().map(|&k| self.saturate_within(k)).collect();
        if new == kids { e } else { self.env.pool.with_children(e, &new) }
    }

    /// Whether rules beyond the normal form and the folds might apply: several operations that no
    /// normal form orders, in an expression of moderate size.
    fn is_worth_saturating(&self, e: ExprId) -> bool {
        let (mut hard, mut size) = (0, 0);
        self.env.pool.walk(e, &mut |_, x| {
            size += 1;
            hard += match x {
                Expr::Bin(BinOp::FloorDiv | BinOp::Mod | BinOp::Min | BinOp::Max | BinOp::And | BinOp::Or, ..)
                | Expr::Un(UnOp::Not, _)
                | Expr::Select(..) => 1,
                Expr::Call(f, _) if matches!(self.env.ufs[*f].def, UfDef::Search { .. }) => 1,
                _ => 0,
            };
        });
        hard >= 2 && size <= GREATEST_SIZE
    }

    fn cheaply(&mut self, e: ExprId) -> ExprId {
        let mut now = e;
        for _ in 0..ROUNDS {
            let before = now;
            now = cora_ir::affine::normalize(&mut self.env.pool, now);
            now = self.fold(now);
            if now == before {
                break;
            }
        }
        now
    }
}

impl crate::lower::Simplifier for Prover {
    fn simplify(&mut self, env: &mut Env, loops: &[(VarId, ExprId)], e: ExprId) -> ExprId {
        simplify(env, Some(self), &Facts::in_loops(loops.iter().copied()), e)
    }

    fn simplify_under(
        &mut self,
        env: &mut Env,
        loops: &[(VarId, ExprId)],
        assumptions: &[ExprId],
        e: ExprId,
    ) -> ExprId {
        let mut facts = Facts::in_loops(loops.iter().copied());
        facts.assumptions.extend_from_slice(assumptions);
        simplify(env, Some(self), &facts, e)
    }

    fn prove(&mut self, env: &mut Env, loops: &[(VarId, ExprId)], assumptions: &[ExprId], goal: ExprId) -> bool {
        let mut facts = Facts::in_loops(loops.iter().copied());
        facts.assumptions.extend_from_slice(assumptions);
        Prover::prove(self, env, &facts, goal).is_proved()
    }
}
