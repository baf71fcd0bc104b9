//! `exp`, `log`, `tanh` and `erf` in `f32`.

use super::super::builder::{Builder, Elem, Val};
use super::{horner, is, nearest, replace, scaled, tanh_by, with, with_int};

/// `ln 2` in two parts; the first has so few bits that its product with an exponent is exact.
const LN2_HIGH: f64 = 0.693_359_375;
const LN2_LOW: f64 = -2.121_944_400_546_905_8e-4;

/// The argument below which `e^x` is no normal number: `-126 ln 2`. Some processors take many times as long for
/// denormal numbers, and again where these are used: weights of a softmax whose scores are far apart.
const LEAST: f64 = -87.336_544_75;

/// `e^x = 2^n * e^r`, `r = x - n ln 2` in `±ln 2 / 2`, `e^r` by a polynomial (coefficients of Cephes `expf`).
/// Results below the least normal number are 0, and overflow gives infinity.
pub(super) fn exp(b: &mut Builder, x: Val) -> Val {
    // Beyond these ends the result is 0 or infinity. Written as selects, which let NaN through.
    let low = is(b, "olt", x, LEAST);
    let x = replace(b, low, LEAST, x);
    let high = is(b, "ogt", x, 89.0);
    let x = replace(b, high, 89.0, x);
    let (n, exponent) = nearest(b, x, std::f64::consts::LOG2_E);
    let (minus_high, minus_low) = (b.float(b.ty(x), -LN2_HIGH), b.float(b.ty(x), -LN2_LOW));
    let r = b.fma(n, minus_high, x);
    let r = b.fma(n, minus_low, r);
    let p = horner(
        b,
        r,
        &[
            1.987_569_150_0e-4,
            1.398_199_950_7e-3,
            8.333_451_907_3e-3,
            4.166_579_589_4e-2,
            1.666_666_545_9e-1,
            5.000_000_120_1e-1,
        ],
    );
    let square = b.bin("arith.mulf", r, r);
    let tail = b.fma(p, square, r);
    let e = with(b, "arith.addf", tail, 1.0);
    let y = scaled(b, e, n, exponent);
    replace(b, low, 0.0, y)
}

/// `log x = e ln 2 + log m`, `m` in `sqrt(1/2) .. sqrt(2)`, `log m` by a polynomial (coefficients of Cephes `logf`).
pub(super) fn log(b: &mut Builder, x: Val) -> Val {
    let ty = b.ty(x);
    let small = is(b, "olt", x, f64::from(f32::MIN_POSITIVE));
    let lifted = with(b, "arith.mulf", x, f64::from(1_u32 << 25));
    let normal = b.select(small, lifted, x);
    let bits = b.bitcast(normal, Elem::I32);
    // The exponent counts from sqrt(1/2), whose bits are 0x3f3504f3.
    let above = with_int(b, "arith.subi", bits, 0x3f35_04f3);
    let exponent = with_int(b, "arith.shrsi", above, 23);
    let shifted = with_int(b, "arith.shli", exponent, 23);
    let mantissa = b.bin("arith.subi", bits, shifted);
    let mantissa = b.bitcast(mantissa, Elem::F32);
    let f = with(b, "arith.subf", mantissa, 1.0);
    let (lift, none) = (b.int(ty.with_elem(Elem::I32), 25), b.int(ty.with_elem(Elem::I32), 0));
    let lift = b.select(small, lift, none);
    let exponent = b.bin("arith.subi", exponent, lift);
    let e = b.convert("arith.sitofp", exponent, Elem::F32);
    let p = horner(
        b,
        f,
        &[
            7.037_683_629_2e-2,
            -1.151_461_031_0e-1,
            1.167_699_874_0e-1,
            -1.242_014_084_6e-1,
            1.424_932_278_7e-1,
            -1.666_805_766_5e-1,
            2.000_071_476_5e-1,
            -2.499_999_399_3e-1,
            3.333_333_117_4e-1,
        ],
    );
    let square = b.bin("arith.mulf", f, f);
    let cube = b.bin("arith.mulf", square, f);
    let low = b.float(ty, LN2_LOW);
    let correction = b.bin("arith.mulf", e, low);
    let tail = b.fma(p, cube, correction);
    let minus_half = b.float(ty, -0.5);
    let tail = b.fma(square, minus_half, tail);
    let sum = b.bin("arith.addf", f, tail);
    let high = b.float(ty, LN2_HIGH);
    let y = b.fma(e, high, sum);
    // What is not a positive finite number. "ult" also holds for NaN.
    let infinite = is(b, "oeq", x, f64::INFINITY);
    let y = replace(b, infinite, f64::INFINITY, y);
    let invalid = is(b, "ult", x, 0.0);
    let y = replace(b, invalid, f64::NAN, y);
    let zero = is(b, "oeq", x, 0.0);
    replace(b, zero, f64::NEG_INFINITY, y)
}

/// `1 - 2 / (e^2x + 1)`, near 0 an odd polynomial (coefficients of Cephes `tanhf`).
pub(super) fn tanh(b: &mut Builder, x: Val) -> Val {
    tanh_by(
        b,
        x,
        exp,
        &[-5.704_988_727_45e-3, 2.063_908_879_54e-2, -5.373_971_555_31e-2, 1.333_144_220_36e-1, -3.333_328_194_22e-1],
    )
}

/// Near 0 an odd polynomial, elsewhere `1 - e^p(x)` (polynomials of N. Juffa's `erff`).
pub(super) fn erf(b: &mut Builder, x: Val) -> Val {
    let ty = b.ty(x);
    let size = b.un("math.absf", x);
    let square = b.bin("arith.mulf", x, x);
    let upper = horner(b, size, &[-1.728_534_70e-5, 3.831_979_26e-4]);
    let lower = horner(b, size, &[-3.883_964_38e-3, 2.425_462_19e-2]);
    let mut p = b.fma(upper, square, lower);
    for c in [-1.067_778_77e-1, -6.348_468_75e-1, -1.287_175_12e-1] {
        let c = b.float(ty, c);
        p = b.fma(p, size, c);
    }
    let minus = b.un("arith.negf", size);
    let p = b.fma(p, size, minus);
    let e = exp(b, p);
    let one = b.float(ty, 1.0);
    let large = b.bin("arith.subf", one, e);
    let large = b.bin("math.copysign", large, x);
    let p = horner(
        b,
        square,
        &[-5.967_617_03e-4, 4.991_194_23e-3, -2.676_813_49e-2, 1.128_199_25e-1, -3.761_253_36e-1, 1.283_791_66e-1],
    );
    let small = b.fma(p, x, x);
    let far = is(b, "ogt", size, 0.927_734_375);
    b.select(far, large, small)
}
