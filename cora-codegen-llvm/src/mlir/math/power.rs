//! `pow` in `f32`, computed in `f64` as `2^(y log2 x)`.

use super::super::builder::{Builder, Cmp, Elem, Val};
use super::{horner, is, nearest, replace, two_to, with, with_int};

/// `x^y` with C's special cases: `pow(1, y)` and `pow(x, 0)` are 1 even for NaN, a negative `x` needs an integer `y`.
pub(crate) fn pow(b: &mut Builder, x: Val, y: Val) -> Val {
    let size = b.un("math.absf", x);
    let wide_y = b.convert("arith.extf", y, Elem::F64);
    let log = log2(b, size);
    let product = b.bin("arith.mulf", wide_y, log);
    // |x| = 1 gives 1 for infinite y too, where the product is NaN.
    let unit = is(b, "oeq", size, 1.0);
    let product = replace(b, unit, 0.0, product);
    let value = exp2(b, product);
    let value = b.convert("arith.truncf", value, Elem::F32);

    let whole = b.un("math.floor", y);
    let integer = b.cmpf("oeq", whole, y);
    let half = with(b, "arith.mulf", y, 0.5);
    let half_whole = b.un("math.floor", half);
    let not_even = b.cmpf("one", half_whole, half);
    let is_odd = b.bin("arith.andi", integer, not_even);
    let bits = b.bitcast(x, Elem::I32);
    let zero = b.int(b.ty(bits), 0);
    let signed = b.cmpi(Cmp::Lt, false, bits, zero);
    let flip = b.bin("arith.andi", signed, is_odd);
    let negated = b.un("arith.negf", value);
    let value = b.select(flip, negated, value);

    // A negative finite base and a fractional power.
    let below = is(b, "olt", x, 0.0);
    let finite = is(b, "ogt", x, f64::NEG_INFINITY);
    let fraction = b.cmpf("one", whole, y);
    let invalid = b.bin("arith.andi", below, finite);
    let invalid = b.bin("arith.andi", invalid, fraction);
    let nan = b.cmpf("uno", x, y);
    let invalid = b.bin("arith.ori", invalid, nan);
    let value = replace(b, invalid, f64::NAN, value);
    let one = is(b, "oeq", x, 1.0);
    let to_zero = is(b, "oeq", y, 0.0);
    let certain = b.bin("arith.ori", one, to_zero);
    replace(b, certain, 1.0, value)
}

/// The binary logarithm of a non-negative `f32` in `f64`, to about 2^-43: `e + 2/ln 2 * atanh((m - 1) / (m + 1))`.
fn log2(b: &mut Builder, x: Val) -> Val {
    let wide = b.convert("arith.extf", x, Elem::F64);
    let bits = b.bitcast(wide, Elem::I64);
    // Denormals of f32 are normal in f64. The exponent counts from sqrt(1/2).
    let above = with_int(b, "arith.subi", bits, 0x3fe6_a09e_667f_3bcd);
    let exponent = with_int(b, "arith.shrsi", above, 52);
    let shifted = with_int(b, "arith.shli", exponent, 52);
    let mantissa = b.bin("arith.subi", bits, shifted);
    let m = b.bitcast(mantissa, Elem::F64);
    let (above, below) = (with(b, "arith.subf", m, 1.0), with(b, "arith.addf", m, 1.0));
    let s = b.bin("arith.divf", above, below);
    let square = b.bin("arith.mulf", s, s);
    let series: Vec<f64> = (0..9).rev().map(|k| 2.0 * std::f64::consts::LOG2_E / f64::from(2 * k + 1)).collect();
    let p = horner(b, square, &series);
    // The exponent has 12 bits, which f64 holds exactly; i32 converts fast everywhere.
    let exponent = b.convert("arith.trunci", exponent, Elem::I32);
    let e = b.convert("arith.sitofp", exponent, Elem::F64);
    let y = b.fma(p, s, e);
    let infinite = is(b, "oeq", wide, f64::INFINITY);
    let y = replace(b, infinite, f64::INFINITY, y);
    let zero = is(b, "oeq", wide, 0.0);
    replace(b, zero, f64::NEG_INFINITY, y)
}

/// `2^x` for the range of `f32` (0 and infinity beyond it, after rounding to `f32`), to about 2^-40.
fn exp2(b: &mut Builder, x: Val) -> Val {
    let low = is(b, "olt", x, -160.0);
    let x = replace(b, low, -160.0, x);
    let high = is(b, "ogt", x, 160.0);
    let x = replace(b, high, 160.0, x);
    let (n, exponent) = nearest(b, x, 1.0);
    let r = b.bin("arith.subf", x, n);
    let r = with(b, "arith.mulf", r, std::f64::consts::LN_2);
    let mut factorials = vec![1.0];
    for k in 1..=10 {
        let next = factorials[k - 1] * k as f64;
        factorials.push(next);
    }
    let series: Vec<f64> = factorials.iter().rev().map(|f| 1.0 / f).collect();
    let p = horner(b, r, &series);
    let scale = two_to(b, exponent);
    b.bin("arith.mulf", p, scale)
}
