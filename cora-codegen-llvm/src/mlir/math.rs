//! Expansions of math functions into arithmetic, the same for scalars and for vectors of any number of lanes.
//!
//! LLVM would turn `exp` of a vector into one call of libm per lane; these expansions stay in vector registers, and because
//! scalars use them too, an element's value does not depend on whether it was computed in a vector or in a tail.
//!
//! Bounds of the error, in units in the last place. `cora bench accuracy` measures those of one argument of `f32` over
//! all 2^32 of it against `f64` libm (docs/bench.md has the greatest errors found); the tests hold them on a million points of the
//! range, the edges and the worst arguments, for targets with and without fused multiply-add. Those of `f64` were measured on 60,000
//! points each with 40 digits (docs/bench.md); the tests compare with libm, whose own errors are within 1, of `tanh` within 2:
//!
//! | function | `f32` | `f64` | beyond the range |
//! |---|---|---|---|
//! | `exp` | 1.1 | 1.1 | infinity, and 0, in `f32` for all results that are no normal numbers; denormal ones of `f64` are rounded once |
//! | `log` | 0.9 | 0.8 | of 0 -infinity, of a negative number NaN |
//! | `tanh` | 1.4 | 1.4 | ±1 |
//! | `erf` | 1.5 | 1.1 | ±1 |
//! | `sin`, `cos` | 0.51 | 0.8 | calls of libm, lane by lane, where a lane exceeds 2^20 |
//! | `pow` | 0.51 | calls of libm | special cases as in C |
//! | `rsqrt` | 1.5 | 1.5 | it is `1 / sqrt`, two roundings |
//! | `sqrt` | 0.5 | 0.5 | the machine's |
//!
//! Where there is no libm (on a GPU), `sin` and `cos` are NaN beyond 2^50, in `f64` beyond 2^20.
//!
//! NaN propagates.

mod exp;
mod power;
mod trig;
mod wide;

use cora_ir::UnOp;

use super::builder::{Builder, Cmp, Elem, Ty, Val};

pub(crate) use power::pow;

/// `op x` in `f32` or `f64`.
pub(crate) fn unary(b: &mut Builder, op: UnOp, x: Val) -> Val {
    if b.ty(x).elem == Elem::F64 {
        return match op {
            UnOp::Exp => wide::exp(b, x),
            UnOp::Log => wide::log(b, x),
            UnOp::Tanh => wide::tanh(b, x),
            UnOp::Erf => wide::erf(b, x),
            UnOp::Sin => wide::sin_cos(b, x, false),
            _ => wide::sin_cos(b, x, true),
        };
    }
    match op {
        UnOp::Exp => exp::exp(b, x),
        UnOp::Log => exp::log(b, x),
        UnOp::Tanh => exp::tanh(b, x),
        UnOp::Erf => exp::erf(b, x),
        UnOp::Sin => trig::sin_cos(b, x, false),
        _ => trig::sin_cos(b, x, true),
    }
}

/// A scalar op on each lane.
pub(crate) fn per_lane(b: &mut Builder, op: &str, args: &[Val]) -> Val {
    let ty = b.ty(args[0]);
    let mut out = b.float(ty, 0.0);
    for lane in 0..ty.lanes {
        let operands: Vec<Val> = args.iter().map(|&a| b.extract(a, lane)).collect();
        let text: Vec<String> = operands.iter().map(Val::to_string).collect();
        let value = b.pure(ty.with_lanes(1), &operands, &format!("{op} {} : {}", text.join(", "), ty.elem));
        out = b.insert(value, out, lane);
    }
    out
}

/// `c[0] * x^(n-1) + ... + c[n-1]` by Horner's rule.
fn horner(b: &mut Builder, x: Val, coefficients: &[f64]) -> Val {
    let ty = b.ty(x);
    let mut sum = b.float(ty, coefficients[0]);
    for &c in &coefficients[1..] {
        let c = b.float(ty, c);
        sum = b.fma(sum, x, c);
    }
    sum
}

/// `1 - 2 / (e^2x + 1)`, near 0 an odd polynomial `x + x^3 p(x^2)`.
fn tanh_by(b: &mut Builder, x: Val, exp: fn(&mut Builder, Val) -> Val, coefficients: &[f64]) -> Val {
    let size = b.un("math.absf", x);
    let twice = b.bin("arith.addf", size, size);
    let e = exp(b, twice);
    let below = with(b, "arith.addf", e, 1.0);
    let minus_two = b.float(b.ty(x), -2.0);
    let quotient = b.bin("arith.divf", minus_two, below);
    let large = with(b, "arith.addf", quotient, 1.0);
    let square = b.bin("arith.mulf", x, x);
    let p = horner(b, square, coefficients);
    let cube = b.bin("arith.mulf", square, x);
    let small = b.fma(p, cube, x);
    let near = is(b, "olt", size, 0.625);
    let value = b.select(near, small, large);
    // Of zero, too.
    b.bin("math.copysign", value, x)
}

/// `a op k` for a floating-point constant `k`.
fn with(b: &mut Builder, op: &str, a: Val, k: f64) -> Val {
    let k = b.float(b.ty(a), k);
    b.bin(op, a, k)
}

/// `a op k` for an integer constant `k`.
fn with_int(b: &mut Builder, op: &str, a: Val, k: i64) -> Val {
    let k = b.int(b.ty(a), k);
    b.bin(op, a, k)
}

/// Whether `a` compares with the constant `k`, by MLIR's name of the comparison.
fn is(b: &mut Builder, name: &str, a: Val, k: f64) -> Val {
    let k = b.float(b.ty(a), k);
    b.cmpf(name, a, k)
}

/// `k` where `cond` holds, else `a`.
fn replace(b: &mut Builder, cond: Val, k: f64, a: Val) -> Val {
    let k = b.float(b.ty(a), k);
    b.select(cond, k, a)
}

/// The integer nearest to `x * scale`, as a float and as the low bits of an integer of the same width.
///
/// Adding 1.5 * 2^(significand bits) makes the sum's last place the units; unlike a conversion to integer this is defined
/// for NaN. Requires `|x * scale| < 2^21` in `f32`, `< 2^50` in `f64`.
fn nearest(b: &mut Builder, x: Val, scale: f64) -> (Val, Val) {
    let ty = b.ty(x);
    let (magic, int) =
        if ty.elem == Elem::F32 { (12_582_912.0, Elem::I32) } else { (6_755_399_441_055_744.0, Elem::I64) };
    let (scale, shift) = (b.float(ty, scale), b.float(ty, magic));
    let sum = b.fma(x, scale, shift);
    let bits = b.bitcast(sum, int);
    let zero = b.bitcast(shift, int);
    (b.bin("arith.subf", sum, shift), b.bin("arith.subi", bits, zero))
}

/// The operand of AVX-512 instructions that leaves the rounding as it is.
const CURRENT_ROUNDING: i64 = 4;

/// `e * 2^n` for a whole number `n`, also as an integer, rounded once. Without an instruction for it the scale is
/// applied in two halves, so that neither leaves the normal range.
fn scaled(b: &mut Builder, e: Val, n: Val, exponent: Val) -> Val {
    let ty = b.ty(e);
    let instruction = match (ty.elem, ty.lanes) {
        (Elem::F32, 16) => Some(("ps", Elem::I16)),
        (Elem::F64, 8) => Some(("pd", Elem::I8)),
        _ => None,
    };
    if let Some((name, mask)) = instruction.filter(|_| b.scalef) {
        let (all, rounding) = (b.int(Ty::scalar(mask), -1), b.int(Ty::scalar(Elem::I32), CURRENT_ROUNDING));
        let call = format!(
            "llvm.call_intrinsic \"llvm.x86.avx512.mask.scalef.{name}.512\"({e}, {n}, {e}, {all}, {rounding}) : \
             ({ty}, {ty}, {ty}, {mask}, i32) -> {ty}"
        );
        return b.pure(ty, &[e, n], &call);
    }
    let half = with_int(b, "arith.shrsi", exponent, 1);
    let rest = b.bin("arith.subi", exponent, half);
    let (first, second) = (two_to(b, half), two_to(b, rest));
    let scaled = b.bin("arith.mulf", e, first);
    b.bin("arith.mulf", scaled, second)
}

/// `2^n` for an integer `n` in the range of normal numbers.
fn two_to(b: &mut Builder, n: Val) -> Val {
    let (bias, shift, float) = if b.ty(n).elem == Elem::I32 { (127, 23, Elem::F32) } else { (1023, 52, Elem::F64) };
    let biased = with_int(b, "arith.addi", n, bias);
    let bits = with_int(b, "arith.shli", biased, shift);
    b.bitcast(bits, float)
}

/// Whether the low bit of `n` is set.
fn odd(b: &mut Builder, n: Val) -> Val {
    let low = with_int(b, "arith.andi", n, 1);
    let zero = b.int(b.ty(n), 0);
    b.cmpi(Cmp::Ne, false, low, zero)
}
