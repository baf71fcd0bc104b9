//! Sums of products of two loads over one loop: the inner loop of every matrix product, run as one
//! step where all addresses are regular.

use crate::expr::Expr;
use crate::ids::{ExprId, TensorId, VarId};
use crate::interp::arith::dot;
use crate::interp::buffer::{Elem, Held};
use crate::interp::compile::Compiler;
use crate::interp::error::InterpError;
use crate::interp::instr::{Access, LANES, Opd};
use crate::interp::levels::Level;
use crate::interp::nest::Coefficients;
use crate::interp::regs::Regs;
use crate::types::{BinOp, ScalarType};

/// A load whose index grows by constants from one iteration to the next.
#[derive(Clone, Debug)]
pub(crate) struct Factor {
    /// The index in iteration 0.
    pub access: Access,
    /// What an iteration adds to each position.
    pub steps: Box<[i64]>,
}

/// Addresses `at + lane * lane_step + iteration * step`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    at: usize,
    lane_step: i64,
    step: i64,
}

/// The operand of exact widenings.
fn peeled(c: &Compiler<'_, '_>, mut e: ExprId) -> ExprId {
    let pool = &c.context.env.pool;
    while let Expr::Cast(to, a) = pool.get(e) {
        let widens = match pool.ty(*a).scalar {
            ScalarType::F16 | ScalarType::BF16 => matches!(to, ScalarType::F32 | ScalarType::F64),
            ScalarType::F32 => *to == ScalarType::F64,
            _ => false,
        };
        if !widens {
            break;
        }
        e = *a;
    }
    e
}

fn load_of(c: &Compiler<'_, '_>, e: ExprId, var: VarId) -> Option<(TensorId, Vec<ExprId>, Box<[i64]>)> {
    let env = c.context.env;
    let Expr::Load { tensor, part: 0, index, guard: None } = env.pool.get(peeled(c, e)) else { return None };
    if !env.tensors[*tensor].ty.is_float() {
        return None;
    }
    let mut coefficients = Coefficients { env, var, aliases: &c.aliases, memo: Default::default() };
    let steps = index.iter().map(|&i| coefficients.of(i)).collect::<Option<_>>()?;
    let loads = index.iter().any(|&i| env.pool.any(i, &mut |n| matches!(n, Expr::Load { .. })));
    (!loads).then(|| (*tensor, index.to_vec(), steps))
}

/// The factors of `value` if it is a product of two loads with indices regular in `var`.
pub(super) fn factors(
    c: &mut Compiler<'_, '_>,
    value: ExprId,
    var: VarId,
) -> Result<Option<(Factor, Factor)>, InterpError> {
    let &Expr::Bin(BinOp::Mul, a, b) = c.context.env.pool.get(value) else { return Ok(None) };
    let (Some(a), Some(b)) = (load_of(c, a, var), load_of(c, b, var)) else { return Ok(None) };
    c.with_var_at_zero(var, |c| {
        let mut factor = |(tensor, index, steps): (TensorId, Vec<ExprId>, Box<[i64]>)| {
            let index = index.iter().map(|&i| c.expr(i).map(|v| v.opd)).collect::<Result<_, _>>()?;
            Ok(Factor { access: Access { tensor, index }, steps })
        };
        Ok(Some((factor(a)?, factor(b)?)))
    })
}

impl Regs {
    /// The addresses of `count` iterations on `n` lanes, if they are regular, in bounds and defined.
    pub fn span(&self, held: &Held<'_>, factor: &Factor, n: usize, count: i64) -> Option<Span> {
        if held.buf.undefined > 0 || factor.access.index.len() != held.levels.levels.len() {
            return None;
        }
        let (mut at, mut lane_step, mut step) = (0i64, 0i64, 0i64);
        for (d, (&o, &grow)) in factor.access.index.iter().zip(&factor.steps).enumerate() {
            if matches!(o, Opd::V(_)) || self.int_undefined(o, 0) {
                return None;
            }
            let first = self.int_at(o, 0);
            let lane = match o {
                Opd::A { stride, .. } if n > 1 => self.i.s[stride as usize],
                _ => 0,
            };
            let regular = match &held.levels.levels[d] {
                Level::Dense(_) => true,
                Level::Ragged(_) => lane_step == 0 && step == 0,
                Level::Kept(_) => lane == 0 && grow == 0,
            };
            if !regular {
                return None;
            }
            if let Level::Kept(_) = held.levels.levels[d] {
                at = held.levels.child(d, at, first)?;
                continue;
            }
            let (start, len) = held.levels.row(d, at);
            let by_lane = lane.checked_mul(n as i64 - 1)?;
            let by_iteration = grow.checked_mul(count - 1)?;
            let lo = first.checked_add(by_lane.min(0))?.checked_add(by_iteration.min(0))?;
            let hi = first.checked_add(by_lane.max(0))?.checked_add(by_iteration.max(0))?;
            if lo < 0 || hi >= len {
                return None;
            }
            at = start + first;
            if let Level::Dense(len) = held.levels.levels[d] {
                (lane_step, step) = (lane_step * len, step * len);
            }
            (lane_step, step) = (lane_step + lane, step + grow);
        }
        Some(Span { at: usize::try_from(at).ok()?, lane_step, step })
    }

    /// `acc += sum of a * b` over `count` iterations, in order.
    pub fn contract(&mut self, acc: Opd, a: (&Held<'_>, Span), b: (&Held<'_>, Span), count: usize) {
        let (x, y) = (f64::cells(&a.0.buf), f64::cells(&b.0.buf));
        match acc {
            Opd::S(d) => {
                let sum = match (a.1.step, b.1.step) {
                    (1, 1) => dot(&x[a.1.at..][..count], &y[b.1.at..][..count]),
                    _ => (0..count).map(|k| x[address(a.1, k, 0)] * y[address(b.1, k, 0)]).sum(),
                };
                self.f.s[d as usize] += sum;
            }
            Opd::V(d) => {
                let out = &mut self.f.v[d as usize * LANES..][..self.n];
                match (a.1.lane_step, b.1.lane_step) {
                    (0, 1) => scaled_rows(out, (x, a.1), (y, b.1), count),
                    (1, 0) => scaled_rows(out, (y, b.1), (x, a.1), count),
                    _ => {
                        for k in 0..count {
                            for (l, o) in out.iter_mut().enumerate() {
                                *o += x[address(a.1, k, l)] * y[address(b.1, k, l)];
                            }
                        }
                    }
                }
            }
            Opd::A { .. } => {}
        }
    }
}

fn address(s: Span, iteration: usize, lane: usize) -> usize {
    (s.at as i64 + s.step * iteration as i64 + s.lane_step * lane as i64) as usize
}

/// `out += sum over k of x[k] * row k of y`, four rows in one pass, each sum in order.
fn scaled_rows(out: &mut [f64], (x, sx): (&[f64], Span), (y, sy): (&[f64], Span), count: usize) {
    let n = out.len();
    let row = |k: usize| &y[address(sy, k, 0)..][..n];
    let scale = |k: usize| x[address(sx, k, 0)];
    let mut k = 0;
    while k + 4 <= count {
        let (r0, r1, r2, r3) = (row(k), row(k + 1), row(k + 2), row(k + 3));
        let (x0, x1, x2, x3) = (scale(k), scale(k + 1), scale(k + 2), scale(k + 3));
        for ((((o, a), b), c), d) in out.iter_mut().zip(r0).zip(r1).zip(r2).zip(r3) {
            *o = (((*o + x0 * a) + x1 * b) + x2 * c) + x3 * d;
        }
        k += 4;
    }
    for k in k..count {
        let s = scale(k);
        out.iter_mut().zip(row(k)).for_each(|(o, a)| *o += s * a);
    }
}
