//! `sin` and `cos` in `f32`, computed in `f64`.

use super::super::builder::{Builder, Elem, Ty, Val};
use super::{horner, is, nearest, odd, per_lane, with_int};

/// `pi / 2` in three parts; products of the first two with integers below 2^20 are exact (as in FDLIBM).
const HALF_PI: [f64; 3] = [1.570_796_326_734_125_6, 6.077_100_506_303_966e-11, 2.022_266_248_795_950_6e-21];

/// Where the reduction by three parts ends.
const REACH: f64 = 1_048_576.0;

/// Where the quadrant cannot be counted in `f64` any more.
const COUNTABLE: f64 = 1_125_899_906_842_624.0;

/// `x = n pi/2 + r`, `r` in `±pi/4`; then the sine or cosine of `r`, by `n` modulo 4.
pub(super) fn sin_cos(b: &mut Builder, x: Val, cos: bool) -> Val {
    let wide = b.convert("arith.extf", x, Elem::F64);
    let (n, quadrant) = nearest(b, wide, std::f64::consts::FRAC_2_PI);
    let mut r = wide;
    for part in HALF_PI {
        let minus = b.float(b.ty(wide), -part);
        r = b.fma(n, minus, r);
    }
    let square = b.bin("arith.mulf", r, r);
    // Taylor series to r^11 and r^12: the first term left out is below 2^-36 of the result.
    let p = horner(b, square, &[-1.0 / 39_916_800.0, 1.0 / 362_880.0, -1.0 / 5040.0, 1.0 / 120.0, -1.0 / 6.0]);
    let cube = b.bin("arith.mulf", square, r);
    let sine = b.fma(p, cube, r);
    let cosine = horner(
        b,
        square,
        &[1.0 / 479_001_600.0, -1.0 / 3_628_800.0, 1.0 / 40_320.0, -1.0 / 720.0, 1.0 / 24.0, -0.5, 1.0],
    );
    let value = of_quadrant(b, quadrant, sine, cosine, cos);
    let near = b.convert("arith.truncf", value, Elem::F32);
    let near = if cos { near } else { of_zero(b, x, near) };

    let size = b.un("math.absf", x);
    if !b.libm() {
        // Fused operations reduce exactly enough as far as the quadrant can be counted.
        let beyond = is(b, "ogt", size, COUNTABLE);
        return super::replace(b, beyond, f64::NAN, near);
    }
    // "ugt" would send NaN to libm as well; it comes out of the arithmetic as NaN anyway.
    let far = is(b, "ogt", size, REACH);
    far_by_libm(b, x, far, near, cos)
}

/// The sine, which of zero is that zero.
pub(super) fn of_zero(b: &mut Builder, x: Val, sine: Val) -> Val {
    let zero = is(b, "oeq", x, 0.0);
    b.select(zero, x, sine)
}

/// The sine or cosine of `n pi/2 + r` from those of `r`.
pub(super) fn of_quadrant(b: &mut Builder, n: Val, sine: Val, cosine: Val, cos: bool) -> Val {
    let quadrant = if cos { with_int(b, "arith.addi", n, 1) } else { n };
    let swap = odd(b, quadrant);
    let value = b.select(swap, cosine, sine);
    let half = with_int(b, "arith.shrsi", quadrant, 1);
    let minus = odd(b, half);
    let negated = b.un("arith.negf", value);
    b.select(minus, negated, value)
}

/// `near`, and libm's values where `far` holds.
pub(super) fn far_by_libm(b: &mut Builder, x: Val, far: Val, near: Val, cos: bool) -> Val {
    let any = any_lane(b, far);
    let op = if cos { "math.cos" } else { "math.sin" };
    b.if_else(
        any,
        |b| {
            let far_values = per_lane(b, op, &[x]);
            b.select(far, far_values, near)
        },
        |_| near,
    )
}

fn any_lane(b: &mut Builder, mask: Val) -> Val {
    let ty = b.ty(mask);
    if ty.lanes == 1 {
        return mask;
    }
    b.pure(Ty::scalar(Elem::I1), &[mask], &format!("vector.reduction <or>, {mask} : {ty} into i1"))
}
