//! `exp`, `log`, `tanh`, `erf`, `sin` and `cos` in `f64`.

use super::super::builder::{Builder, Elem, Val};
use super::trig::{far_by_libm, of_quadrant, of_zero};
use super::{horner, is, nearest, replace, scaled, tanh_by, with, with_int};

/// `ln 2` in two parts; the first has so few bits that its product with an exponent is exact (as in FDLIBM).
const LN2_HIGH: f64 = 6.931_471_803_691_238e-1;
const LN2_LOW: f64 = 1.908_214_929_270_587_7e-10;

/// `e^x = 2^n * e^r`, `r = x - n ln 2` in `±ln 2 / 2`, `e^r` by a minimax polynomial, 0.03 units off.
/// Denormal results are rounded once, and overflow gives infinity.
pub(super) fn exp(b: &mut Builder, x: Val) -> Val {
    // Beyond these ends the result is 0 or infinity. Written as selects, which let NaN through.
    let low = is(b, "olt", x, -746.0);
    let x = replace(b, low, -746.0, x);
    let high = is(b, "ogt", x, 710.0);
    let x = replace(b, high, 710.0, x);
    let (n, exponent) = nearest(b, x, std::f64::consts::LOG2_E);
    let (minus_high, minus_low) = (b.float(b.ty(x), -LN2_HIGH), b.float(b.ty(x), -LN2_LOW));
    let r = b.fma(n, minus_high, x);
    let r = b.fma(n, minus_low, r);
    let p = horner(
        b,
        r,
        &[
            2.511_786_078_328_392e-8,
            2.763_128_051_667_927_3e-7,
            2.755_721_630_149_719_5e-6,
            2.480_148_994_162_211_2e-5,
            1.984_126_991_783_383_5e-4,
            1.388_888_894_701_660_6e-3,
            8.333_333_333_307_205e-3,
            4.166_666_666_651_542e-2,
            1.666_666_666_666_67e-1,
            5.000_000_000_000_012e-1,
        ],
    );
    let square = b.bin("arith.mulf", r, r);
    let tail = b.fma(p, square, r);
    let e = with(b, "arith.addf", tail, 1.0);
    scaled(b, e, n, exponent)
}

/// `log x = e ln 2 + log m`, `m` in `sqrt(1/2) .. sqrt(2)`, `log m = f - f^2/2 + s (f^2/2 + R(s^2))` for `f = m - 1` and
/// `s = f / (2 + f)` (polynomial of FDLIBM).
pub(super) fn log(b: &mut Builder, x: Val) -> Val {
    let ty = b.ty(x);
    let small = is(b, "olt", x, f64::MIN_POSITIVE);
    let lifted = with(b, "arith.mulf", x, (1_u64 << 54) as f64);
    let normal = b.select(small, lifted, x);
    let bits = b.bitcast(normal, Elem::I64);
    // The exponent counts from sqrt(1/2).
    let above = with_int(b, "arith.subi", bits, 0x3fe6_a09e_667f_3bcd);
    let exponent = with_int(b, "arith.shrsi", above, 52);
    let shifted = with_int(b, "arith.shli", exponent, 52);
    let mantissa = b.bin("arith.subi", bits, shifted);
    let mantissa = b.bitcast(mantissa, Elem::F64);
    let f = with(b, "arith.subf", mantissa, 1.0);
    // The exponent has 12 bits; i32 converts fast everywhere.
    let exponent = b.convert("arith.trunci", exponent, Elem::I32);
    let (lift, none) = (b.int(b.ty(exponent), 54), b.int(b.ty(exponent), 0));
    let lift = b.select(small, lift, none);
    let exponent = b.bin("arith.subi", exponent, lift);
    let e = b.convert("arith.sitofp", exponent, Elem::F64);
    let below = with(b, "arith.addf", f, 2.0);
    let s = b.bin("arith.divf", f, below);
    let square = b.bin("arith.mulf", s, s);
    let p = horner(
        b,
        square,
        &[
            1.479_819_860_511_658_6e-1,
            1.531_383_769_920_937_3e-1,
            1.818_357_216_161_805e-1,
            2.222_219_843_214_978_4e-1,
            2.857_142_874_366_239e-1,
            3.999_999_999_940_942e-1,
            6.666_666_666_666_735e-1,
        ],
    );
    let half = with(b, "arith.mulf", f, 0.5);
    let half = b.bin("arith.mulf", half, f);
    let rest = b.fma(p, square, half);
    let low = b.float(ty, LN2_LOW);
    let correction = b.bin("arith.mulf", e, low);
    let tail = b.fma(s, rest, correction);
    let tail = b.bin("arith.subf", half, tail);
    let tail = b.bin("arith.subf", tail, f);
    let high = with(b, "arith.mulf", e, LN2_HIGH);
    let y = b.bin("arith.subf", high, tail);
    // What is not a positive finite number. "ult" also holds for NaN.
    let infinite = is(b, "oeq", x, f64::INFINITY);
    let y = replace(b, infinite, f64::INFINITY, y);
    let invalid = is(b, "ult", x, 0.0);
    let y = replace(b, invalid, f64::NAN, y);
    let zero = is(b, "oeq", x, 0.0);
    replace(b, zero, f64::NEG_INFINITY, y)
}

/// `1 - 2 / (e^2x + 1)`, near 0 an odd minimax polynomial, 0.1 units off.
pub(super) fn tanh(b: &mut Builder, x: Val) -> Val {
    tanh_by(
        b,
        x,
        exp,
        &[
            -1.610_754_853_017_572_2e-5,
            7.721_918_148_188_233e-5,
            -2.286_332_398_798_657_3e-4,
            5.863_524_814_628_428e-4,
            -1.454_970_474_535_01e-3,
            3.591_991_570_264_918_7e-3,
            -8.863_221_319_192_609e-3,
            2.186_948_760_195_846e-2,
            -5.396_825_393_248_198e-2,
            1.333_333_333_326_491_6e-1,
            -3.333_333_333_333_287_6e-1,
        ],
    )
}

/// Where the polynomial in `x^2` ends.
const ERF_NEAR: f64 = 0.875;

/// Near 0 an odd minimax polynomial, 0.2 units off; elsewhere `1 - e^-x^2 p(t)` with `t = (x - 2.4375) / (x + 3)`, the
/// minimax polynomial of `e^x^2 erfc x` to 6, where `erf` is 1.
pub(super) fn erf(b: &mut Builder, x: Val) -> Val {
    let ty = b.ty(x);
    let size = b.un("math.absf", x);
    let square = b.bin("arith.mulf", x, x);
    let beyond = is(b, "ogt", size, 6.0);
    let far = replace(b, beyond, 6.0, size);
    let (above, below) = (with(b, "arith.subf", far, 2.4375), with(b, "arith.addf", far, 3.0));
    let t = b.bin("arith.divf", above, below);
    let p = horner(
        b,
        t,
        &[
            5.123_269_916_794_068_6e-5,
            2.405_438_278_639_77e-4,
            -4.305_197_728_597_757e-5,
            -1.327_585_979_157_900_6e-3,
            2.411_558_888_488_239e-3,
            6.453_565_708_496_975e-3,
            -4.391_735_633_867_852e-2,
            1.259_209_803_014_833_8e-1,
            -2.451_620_193_144_077_4e-1,
            3.617_122_239_428_147_7e-1,
            -4.217_370_198_319_413_4e-1,
            2.155_524_791_511_779_5e-1,
        ],
    );
    let minus = b.un("arith.negf", far);
    let minus_square = b.bin("arith.mulf", minus, far);
    let e = exp(b, minus_square);
    let minus_e = b.un("arith.negf", e);
    let one = b.float(ty, 1.0);
    let large = b.fma(minus_e, p, one);
    let large = b.bin("math.copysign", large, x);
    let p = horner(
        b,
        square,
        &[
            1.047_589_140_204_079e-8,
            -1.562_659_574_572_220_4e-7,
            1.638_857_309_460_219_6e-6,
            -1.492_105_043_316_321_8e-5,
            1.205_514_700_922_481_9e-4,
            -8.548_322_178_269_102e-4,
            5.223_977_546_587_176e-3,
            -2.686_617_063_763_530_4e-2,
            1.128_379_167_091_855_5e-1,
            -3.761_263_890_318_305_4e-1,
            1.283_791_670_955_125_6e-1,
        ],
    );
    let small = b.fma(p, x, x);
    let near = is(b, "ole", size, ERF_NEAR);
    // NaN compares with nothing and comes out of `large`.
    b.select(near, small, large)
}

/// `pi / 2` in parts of 33 bits and a last one; products of them with integers below 2^20 are exact (as in FDLIBM).
const HALF_PI: [f64; 4] =
    [1.570_796_326_734_125_6, 6.077_100_506_303_966e-11, 2.022_266_248_711_166_5e-21, 8.478_427_660_368_9e-32];

/// Where the reduction by these parts ends.
const REACH: f64 = 1_048_576.0;

/// `x = n pi/2 + r`, `r` in `±pi/4` with its own rounding kept apart; then the sine or cosine of `r` (polynomials of FDLIBM), by
/// `n` modulo 4.
pub(super) fn sin_cos(b: &mut Builder, x: Val, cos: bool) -> Val {
    let ty = b.ty(x);
    let (n, quadrant) = nearest(b, x, std::f64::consts::FRAC_2_PI);
    let parts = HALF_PI.map(|part| {
        let minus = b.float(ty, -part);
        b.bin("arith.mulf", n, minus)
    });
    // No rounding: the two are near each other.
    let high = b.bin("arith.addf", x, parts[0]);
    let (high, first) = two_sum(b, high, parts[1]);
    let (high, second) = two_sum(b, high, parts[2]);
    let low = b.bin("arith.addf", first, second);
    let low = b.bin("arith.addf", low, parts[3]);
    let r = b.bin("arith.addf", high, low);
    let taken = b.bin("arith.subf", high, r);
    let low = b.bin("arith.addf", taken, low);

    let square = b.bin("arith.mulf", r, r);
    let p = horner(
        b,
        square,
        &[
            1.589_690_995_211_55e-10,
            -2.505_076_025_340_686_3e-8,
            2.755_731_370_707_006_8e-6,
            -1.984_126_982_985_795e-4,
            8.333_333_333_322_49e-3,
        ],
    );
    let cube = b.bin("arith.mulf", square, r);
    let half_low = with(b, "arith.mulf", low, 0.5);
    let minus_cube = b.un("arith.negf", cube);
    let inner = b.fma(minus_cube, p, half_low);
    let minus_low = b.un("arith.negf", low);
    let inner = b.fma(square, inner, minus_low);
    let sixth = b.float(ty, 1.666_666_666_666_663_2e-1);
    let inner = b.fma(cube, sixth, inner);
    let sine = b.bin("arith.subf", r, inner);

    let p = horner(
        b,
        square,
        &[
            -1.135_964_755_778_819_5e-11,
            2.087_572_321_298_175e-9,
            -2.755_731_435_139_066_3e-7,
            2.480_158_728_947_673e-5,
            -1.388_888_888_887_411e-3,
            4.166_666_666_666_66e-2,
        ],
    );
    let p = b.bin("arith.mulf", p, square);
    let half = with(b, "arith.mulf", square, 0.5);
    let one = b.float(ty, 1.0);
    let near_one = b.bin("arith.subf", one, half);
    let lost = b.bin("arith.subf", one, near_one);
    let lost = b.bin("arith.subf", lost, half);
    let minus_r = b.un("arith.negf", r);
    let carried = b.bin("arith.mulf", minus_r, low);
    let inner = b.fma(square, p, carried);
    let inner = b.bin("arith.addf", lost, inner);
    let cosine = b.bin("arith.addf", near_one, inner);

    let near = of_quadrant(b, quadrant, sine, cosine, cos);
    let near = if cos { near } else { of_zero(b, x, near) };
    let size = b.un("math.absf", x);
    let far = is(b, "ogt", size, REACH);
    if !b.libm() {
        return replace(b, far, f64::NAN, near);
    }
    far_by_libm(b, x, far, near, cos)
}

/// `a + b` and what its rounding has lost.
fn two_sum(b: &mut Builder, x: Val, y: Val) -> (Val, Val) {
    let sum = b.bin("arith.addf", x, y);
    let of_y = b.bin("arith.subf", sum, x);
    let of_x = b.bin("arith.subf", sum, of_y);
    let (lost_x, lost_y) = (b.bin("arith.subf", x, of_x), b.bin("arith.subf", y, of_y));
    (sum, b.bin("arith.addf", lost_x, lost_y))
}
