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
mod context;
mod cost;
pub mod egraph;
pub mod concrete;
pub mod facts;
mod fold;
pub mod interval;
mod language;
mod linear;
pub mod prover;
pub mod range;
pub mod rules;
mod samples;
pub mod term;

pub use facts::{Facts, Mark};
pub use interval::{bounds, modulus};
pub use prover::{Prover, Stage, Verdict};
pub use range::{Interval, Stride};

use context::{Cache, Cx};
use cora_ir::{Env, ExprId, VarId};

/// Rounds of normal form and folding.
const ROUNDS: usize = 4;

/// An expression with the same value as `e` wherever the facts hold, and at most its cost. Works on
/// expressions of any type: index expressions inside are simplified.
///
/// With a prover, what was simplified before is remembered.
pub fn simplify(env: &mut Env, prover: Option<&mut Prover>, facts: &Facts, e: ExprId) -> ExprId {
    match prover {
        Some(p) => Cx::new(env, facts, &mut p.cache).simplified(e),
        None => Cx::new(env, facts, &mut Cache::default()).simplified(e),
    }
}

impl Cx<'_> {
    fn simplified(&mut self, e: ExprId) -> ExprId {
        let key = (self.id, e);
        if let Some(&done) = self.cache.simplified.get(&key) {
            return done;
        }
        let out = self.cheaply(e);
        self.cache.simplified.insert(key, out);
        out
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

    fn prove(&mut self, env: &mut Env, loops: &[(VarId, ExprId)], assumptions: &[ExprId], goal: ExprId) -> bool {
        let mut facts = Facts::in_loops(loops.iter().copied());
        facts.assumptions.extend_from_slice(assumptions);
        Prover::prove(self, env, &facts, goal).is_proved()
    }
}
