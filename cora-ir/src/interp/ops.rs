//! The meaning of each operator on one element.

use crate::expr::{floor_div, floor_mod};
use crate::types::{BinOp, Combiner, ScalarType, UnOp, round_float};

/// `x` wrapped to the width of an integer type (a truth value becomes 0 or 1).
#[inline]
pub(crate) fn wrap(ty: ScalarType, x: i64) -> i64 {
    match ty {
        ScalarType::Bool => i64::from(x != 0),
        ScalarType::I8 => i64::from(x as i8),
        ScalarType::I16 => i64::from(x as i16),
        ScalarType::I32 => i64::from(x as i32),
        _ => x,
    }
}

/// Whether results of type `ty` may need [`wrap`].
pub(crate) fn wraps(ty: ScalarType) -> bool {
    matches!(ty, ScalarType::Bool | ScalarType::I8 | ScalarType::I16 | ScalarType::I32)
}

/// The smaller; NaN if either is.
#[inline]
pub(crate) fn fmin(a: f64, b: f64) -> f64 {
    if a < b || a.is_nan() { a } else { b }
}

/// The larger; NaN if either is.
#[inline]
pub(crate) fn fmax(a: f64, b: f64) -> f64 {
    if a > b || a.is_nan() { a } else { b }
}

/// A binary operator on floats as the reference interpreter computes it, truth values being 0 and 1.
pub fn bin_f(op: BinOp, a: f64, b: f64) -> f64 {
    match op {
        BinOp::Add => a + b,
        BinOp::Sub => a - b,
        BinOp::Mul => a * b,
        BinOp::Div => a / b,
        BinOp::FloorDiv if b == 0.0 => 0.0,
        BinOp::FloorDiv => (a / b).floor(),
        BinOp::Mod if b == 0.0 => 0.0,
        BinOp::Mod => a - (a / b).floor() * b,
        BinOp::Min => fmin(a, b),
        BinOp::Max => fmax(a, b),
        BinOp::Pow => a.powf(b),
        BinOp::And => f64::from(a != 0.0 && b != 0.0),
        BinOp::Or => f64::from(a != 0.0 || b != 0.0),
        BinOp::Lt | BinOp::Le | BinOp::Eq | BinOp::Ne => f64::from(cmp_f(op, a, b)),
    }
}

/// A comparison of floats (IEEE: false with a NaN, but for `Ne`).
pub(crate) fn cmp_f(op: BinOp, a: f64, b: f64) -> bool {
    match op {
        BinOp::Lt => a < b,
        BinOp::Le => a <= b,
        BinOp::Eq => a == b,
        _ => a != b,
    }
}

/// A binary operator on integers of type `ty`, comparisons included.
pub(crate) fn bin_i(op: BinOp, ty: ScalarType, a: i64, b: i64) -> i64 {
    match op {
        BinOp::Add => wrap(ty, a.wrapping_add(b)),
        BinOp::Sub => wrap(ty, a.wrapping_sub(b)),
        BinOp::Mul => wrap(ty, a.wrapping_mul(b)),
        BinOp::Div | BinOp::FloorDiv => wrap(ty, floor_div(a, b)),
        BinOp::Mod => wrap(ty, floor_mod(a, b)),
        BinOp::Min => a.min(b),
        BinOp::Max => a.max(b),
        BinOp::Pow => wrap(ty, u32::try_from(b).map_or(0, |b| a.wrapping_pow(b))),
        BinOp::And => i64::from(a != 0 && b != 0),
        BinOp::Or => i64::from(a != 0 || b != 0),
        BinOp::Lt => i64::from(a < b),
        BinOp::Le => i64::from(a <= b),
        BinOp::Eq => i64::from(a == b),
        BinOp::Ne => i64::from(a != b),
    }
}

/// [`bin_i`], or nothing where the result of an index expression leaves 64 bits: it stands for a mathematical integer.
#[inline]
pub(crate) fn checked_i(op: BinOp, ty: ScalarType, a: i64, b: i64) -> Option<i64> {
    match op {
        BinOp::Add if ty == ScalarType::Index => a.checked_add(b),
        BinOp::Sub if ty == ScalarType::Index => a.checked_sub(b),
        BinOp::Mul if ty == ScalarType::Index => a.checked_mul(b),
        BinOp::Div | BinOp::FloorDiv if ty == ScalarType::Index && a == i64::MIN && b == -1 => None,
        _ => Some(bin_i(op, ty, a, b)),
    }
}

/// [`un_i`], or nothing where the result of an index expression leaves 64 bits.
#[inline]
pub(crate) fn checked_un_i(op: UnOp, ty: ScalarType, a: i64) -> Option<i64> {
    let outside = ty == ScalarType::Index && a == i64::MIN && matches!(op, UnOp::Neg | UnOp::Abs);
    (!outside).then(|| un_i(op, ty, a))
}

/// A unary operator on floats as the reference interpreter computes it.
pub fn un_f(op: UnOp, a: f64) -> f64 {
    match op {
        UnOp::Neg => -a,
        UnOp::Not => f64::from(a == 0.0),
        UnOp::Abs => a.abs(),
        UnOp::Exp => a.exp(),
        UnOp::Log => a.ln(),
        UnOp::Sqrt => a.sqrt(),
        UnOp::Rsqrt => 1.0 / a.sqrt(),
        UnOp::Tanh => a.tanh(),
        UnOp::Erf => erf(a),
        UnOp::Sin => a.sin(),
        UnOp::Cos => a.cos(),
        UnOp::Floor => a.floor(),
        UnOp::Ceil => a.ceil(),
        UnOp::Round => a.round_ties_even(),
        UnOp::Tf32 => tf32(a),
    }
}

/// A number of `f32` rounded to the 10 bits of mantissa that TF32 has, ties away from zero (PTX: `cvt.rna.tf32.f32`).
pub(crate) fn tf32(a: f64) -> f64 {
    const DROPPED: u32 = 13;
    let a = a as f32;
    if !a.is_finite() {
        return a.into();
    }
    let half = 1 << (DROPPED - 1);
    f32::from_bits((a.to_bits() + half) >> DROPPED << DROPPED).into()
}

/// A unary operator on integers of type `ty`; a function of the reals is rounded to zero.
pub(crate) fn un_i(op: UnOp, ty: ScalarType, a: i64) -> i64 {
    match op {
        UnOp::Neg => wrap(ty, a.wrapping_neg()),
        UnOp::Not => i64::from(a == 0),
        UnOp::Abs => wrap(ty, a.wrapping_abs()),
        UnOp::Floor | UnOp::Ceil | UnOp::Round => a,
        _ => cast_fi(ty, un_f(op, a as f64)),
    }
}

/// Float to integer: truncates and saturates; NaN gives 0.
pub(crate) fn cast_fi(ty: ScalarType, a: f64) -> i64 {
    match ty {
        ScalarType::Bool => i64::from(a != 0.0),
        _ => (a as i64).clamp(ty.int_min(), ty.int_max()),
    }
}

/// Integer to float, rounded to `ty`.
pub(crate) fn cast_if(ty: ScalarType, a: i64) -> f64 {
    match ty {
        ScalarType::F32 => f64::from(a as f32),
        ScalarType::F16 | ScalarType::BF16 => round_float(ty, exact_or_odd(a) as f64),
        _ => a as f64,
    }
}

/// An integer that `f64` has: `a`, or of its neighbours among the multiples of 2048 the odd one, so that rounding it
/// further rounds as `a` itself does (see [`crate::types::round_to_odd`]).
fn exact_or_odd(a: i64) -> i64 {
    const LOW: i64 = (1 << 11) - 1;
    if a.unsigned_abs() < 1 << 53 || a & LOW == 0 { a } else { (a | (LOW + 1)) & !LOW }
}

/// A combiner on floats, in f64.
#[inline]
pub(crate) fn combine_f(c: Combiner, a: f64, b: f64) -> f64 {
    match c {
        Combiner::Sum => a + b,
        Combiner::Prod => a * b,
        Combiner::Max => fmax(a, b),
        Combiner::Min => fmin(a, b),
    }
}

/// A combiner on integers of type `ty`.
#[inline]
pub(crate) fn combine_i(c: Combiner, ty: ScalarType, a: i64, b: i64) -> i64 {
    match c {
        Combiner::Sum => wrap(ty, a.wrapping_add(b)),
        Combiner::Prod => wrap(ty, a.wrapping_mul(b)),
        Combiner::Max => a.max(b),
        Combiner::Min => a.min(b),
    }
}

/// The error function, to about 1 ulp of 1: `2/sqrt(pi) exp(-x^2) sum of 2^n x^(2n+1) / (2n+1)!!`
/// (all terms have one sign, so nothing cancels).
pub(crate) fn erf(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    if x.abs() >= 6.0 {
        return x.signum();
    }
    let xx = x * x;
    let (mut term, mut sum, mut n) = (x, x, 1.0);
    while term.abs() > 1e-17 * sum.abs() {
        term *= 2.0 * xx / (2.0 * n + 1.0);
        sum += term;
        n += 1.0;
    }
    std::f64::consts::FRAC_2_SQRT_PI * (-xx).exp() * sum
}
