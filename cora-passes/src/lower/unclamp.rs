//! Vectors that a clamp leaves as they are, or changes to one position, are read as neighbours, or as one element.
//!
//! ```text
//! for %i in 0..16 vector { @Y[o + %i] = @A[max(0, o + %i - 1)] }
//!   =>  if 0 <= o - 1 { for %i in 0..16 vector { @Y[o + %i] = @A[o + %i - 1] } }
//!       else { for %i in 0..16 vector { @Y[o + %i] = @A[max(0, o + %i - 1)] } }
//! ```
//!
//! Edges of images and distances that are clipped are clamped in few vectors, or in most of them to one bound. Elsewhere the
//! lanes would be gathered one by one. Where one position is clamped, and nothing else, a vector of which all lanes are at a
//! bound has a form of its own.
//!
//! Requires: vector loops, names of loops that are their own. Ensures: the same iterations with the same values. On a grid lanes
//! are threads, and loops stay as they are.

use super::Simplifier;
use super::place::{Place, Rewrite, Tables};
use super::vectorize::substitute;
use cora_ir::affine::{normalize, slope};
use cora_ir::loops::LoopKind;
use cora_ir::storage::{Stmt, StorageModule};
use cora_ir::{BinOp, Env, Expr, ExprId, ScalarType, Scope, Type, VarId};
use rustc_hash::FxHashMap;

/// Loops with more statements are copied at a price.
const MOST_STATEMENTS: usize = 4;
/// Clamps of one loop: more of them are seldom all without effect.
const MOST_CLAMPS: usize = 8;

/// Rewrites such loops in every kernel for a CPU.
pub fn unclamp_vectors(m: &mut StorageModule, simplifier: &mut dyn Simplifier) {
    let tables = Tables::of(m);
    for k in m.kernels.iter_mut().filter(|k| !k.is_grid()) {
        let mut cx = Unclamp { env: &mut m.env, simplifier, place: Place::new(&tables) };
        let body = std::mem::take(&mut k.body);
        k.body = cx.body(body);
    }
}

struct Unclamp<'a> {
    env: &'a mut Env,
    simplifier: &'a mut dyn Simplifier,
    place: Place<'a>,
}

/// A position that is at least, or at most, what all lanes share.
#[derive(Clone, Copy)]
struct Clamp {
    /// The clamped position.
    whole: ExprId,
    /// The position as it is without the clamps in it.
    moving: ExprId,
    /// How far it goes from one lane to the next.
    slope: i64,
    bound: ExprId,
    op: BinOp,
}

/// What a clamp makes of a vector.
#[derive(Clone, Copy)]
enum Effect {
    Nothing,
    Bound,
}

impl<'a> Rewrite<'a> for Unclamp<'a> {
    fn at(&mut self) -> (&mut Env, &mut Place<'a>) {
        (self.env, &mut self.place)
    }

    fn replaced(&mut self, s: Stmt) -> Result<Vec<Stmt>, Stmt> {
        match s {
            Stmt::For { var, extent, kind: LoopKind::Vector, body } => {
                let clamps = self.clamps(var, extent, &body);
                let whole = Stmt::For { var, extent, kind: LoopKind::Vector, body };
                Ok(vec![self.apart((var, extent), &clamps, whole)])
            }
            s => Err(s),
        }
    }
}

impl Unclamp<'_> {
    /// The clamps of what a loop reads, innermost first; none if one of them is there to stay.
    fn clamps(&mut self, lane: VarId, extent: ExprId, body: &[Stmt]) -> Vec<Clamp> {
        let mut found = Vec::new();
        if body.len() > MOST_STATEMENTS || !body.iter().all(|s| self.stores_apart(s, lane)) {
            return found;
        }
        let mut positions = Vec::new();
        for e in body.iter().flat_map(Stmt::exprs) {
            self.env.pool.walk(e, &mut |_, n| {
                if let Expr::Load { index, .. } = n {
                    positions.extend(index.iter().copied());
                }
            });
        }
        positions.retain(|&e| self.env.pool.uses_var(e, lane));
        positions.sort_unstable();
        positions.dedup();
        for e in positions {
            let before = found.len();
            let plain = self.without(lane, e, &mut found);
            // What is left is no run of neighbours.
            if slope(&mut self.env.pool, plain, lane).is_none_or(|s| s.abs() > 1) {
                found.truncate(before);
            }
        }
        let known = |e: ExprId, cx: &mut Self| !cx.place.reads_elements(cx.env, e);
        if found.len() > MOST_CLAMPS || !found.iter().all(|c| known(c.bound, self) && known(c.moving, self)) {
            return Vec::new();
        }
        // Entries of tables that a bound reads are there where the loop runs.
        let (pool, zero) = (&self.env.pool, self.env.pool.as_int(extent));
        let reads = |e| pool.any(e, &mut |n| matches!(n, Expr::Load { .. }));
        let read = found.iter().any(|c| reads(c.bound) || reads(c.moving)) && zero.is_none_or(|n| n < 1);
        if read && !self.runs(extent) {
            return Vec::new();
        }
        found
    }

    fn runs(&mut self, extent: ExprId) -> bool {
        let zero = self.env.pool.int(0);
        let some = self.env.pool.lt(zero, extent);
        self.env.pool.as_bool(some) == Some(true) || self.place.proved(self.env, self.simplifier, some)
    }

    /// Whether a statement writes an element for each lane, and does not add to what is there.
    fn stores_apart(&self, s: &Stmt, lane: VarId) -> bool {
        let Stmt::Store { tensor, index, value, rest, .. } = s else { return false };
        let accumulates = self.env.tensors[*tensor].scope == Scope::Reg && self.env.pool.reads(*value, *tensor);
        self.env.pool.uses_var(*index, lane) && rest.is_empty() && !accumulates
    }

    /// `e` without its clamps, which are added to `found`.
    fn without(&mut self, lane: VarId, e: ExprId, found: &mut Vec<Clamp>) -> ExprId {
        if !self.env.pool.uses_var(e, lane) {
            return e;
        }
        match self.env.pool.get(e).clone() {
            Expr::Bin(op @ (BinOp::Min | BinOp::Max), x, y)
                if self.env.pool.ty(e) == Type::scalar(ScalarType::Index) =>
            {
                let (moving, bound) = match (self.env.pool.uses_var(x, lane), self.env.pool.uses_var(y, lane)) {
                    (true, false) => (x, y),
                    (false, true) => (y, x),
                    _ => return e,
                };
                let moving = self.without(lane, moving, found);
                let Some(slope) = slope(&mut self.env.pool, moving, lane).filter(|&s| s != 0) else { return e };
                if !found.iter().any(|c| c.whole == e) {
                    found.push(Clamp { whole: e, moving, slope, bound, op });
                }
                moving
            }
            Expr::Bin(op @ (BinOp::Add | BinOp::Sub | BinOp::Mul), x, y) => {
                let (x, y) = (self.without(lane, x, found), self.without(lane, y, found));
                self.env.pool.bin(op, x, y)
            }
            _ => e,
        }
    }

    /// A loop for the vectors that the clamps do not change, and for those that they change to one position if that is all they
    /// clamp.
    fn apart(&mut self, lanes: (VarId, ExprId), clamps: &[Clamp], whole: Stmt) -> Stmt {
        let Some(last) = clamps.last() else { return whole };
        let one = match clamps {
            [_] => true,
            [inner, outer] => inner.moving == outer.moving && inner.op != outer.op,
            _ => false,
        };
        let plain = (0..clamps.len()).map(|n| (n, Effect::Nothing)).collect();
        let mut forms: Vec<Vec<(usize, Effect)>> = vec![plain];
        if one {
            forms.extend((0..clamps.len()).rev().map(|n| vec![(n, Effect::Bound)]));
        }
        let mut out = whole.clone();
        for form in forms.into_iter().rev() {
            let (mut from_to, mut conds) = (Vec::new(), Vec::new());
            for (n, effect) in form {
                let c = clamps[n];
                conds.push(self.holds(lanes, c, effect));
                from_to.push(match effect {
                    Effect::Nothing => (c.whole, c.moving),
                    // Whatever is clamped further is at the same bound.
                    Effect::Bound if c.op == last.op => (last.whole, c.bound),
                    Effect::Bound => (c.whole, c.bound),
                });
            }
            let cond = self.env.pool.all(conds);
            if self.env.pool.as_bool(cond) == Some(false) {
                continue;
            }
            let then = self.replaced(&whole, from_to);
            out = Stmt::If { cond, then: vec![then], other: vec![out] };
        }
        out
    }

    /// Whether a clamp has this effect on all lanes.
    fn holds(&mut self, (lane, extent): (VarId, ExprId), c: Clamp, effect: Effect) -> ExprId {
        let pool = &mut self.env.pool;
        // Without effect the position is above a lower bound in all lanes if it is in the lowest.
        let lowest = (c.op == BinOp::Max) == matches!(effect, Effect::Nothing);
        let (zero, one) = (pool.int(0), pool.int(1));
        let at = if lowest == (c.slope > 0) { zero } else { pool.sub(extent, one) };
        let position = pool.substitute(c.moving, &FxHashMap::from_iter([(lane, at)]));
        let position = normalize(pool, position);
        if lowest { pool.le(c.bound, position) } else { pool.le(position, c.bound) }
    }

    /// The loop with other positions, inner ones first, and names of its own.
    fn replaced(&mut self, s: &Stmt, mut from_to: Vec<(ExprId, ExprId)>) -> Stmt {
        let mut copy = s.clone();
        for n in 0..from_to.len() {
            let (from, to) = from_to[n];
            let mut other = |e: ExprId| self.env.pool.rewrite(e, &mut |_, x| (x == from).then_some(to));
            from_to[n + 1..].iter_mut().for_each(|later| later.0 = other(later.0));
            copy.bodies_mut().flatten().for_each(|s| s.map_exprs(&mut other));
        }
        substitute(self.env, &copy, &FxHashMap::default())
    }
}
