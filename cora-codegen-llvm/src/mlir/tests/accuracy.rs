//! Math functions of `f32` against `f64` and of `f64` against libm: greatest errors, edges, and equality of scalar and vector
//! code.

use cora_ir::types::f32_ulps as ulps;
use cora_ir::{BinOp, ScalarType, UnOp};

use super::kit::{Buf, Kit, Loaded, parallel, random, store, targets};
use crate::llvm::TargetSpec;

#[link(name = "m")]
unsafe extern "C" {
    safe fn erf(x: f64) -> f64;
}

/// `O[i] = f(A[i])`, or `f(A[i], B[i])` for pow, `lanes` at a time.
fn program(ty: ScalarType, op: Option<UnOp>, lanes: u32) -> Kit {
    let mut k = Kit::default();
    let [a, b, o] = ["A", "B", "O"].map(|n| k.buffer(n, ty));
    let (v, i) = k.var("i");
    let index = k.lanes(i, lanes);
    let (x, y) = (k.load(a, index), k.load(b, index));
    let value = match op {
        Some(op) => k.m.env.pool.un(op, x),
        None => k.m.env.pool.bin(BinOp::Pow, x, y),
    };
    let extent = k.int(0);
    k.kernel("f", vec![parallel(v, extent, vec![store(o, index, value)])]);
    k
}

fn apply(op: Option<UnOp>, target: &TargetSpec, lanes: u32, x: &[f32], y: &[f32]) -> Vec<f32> {
    let mut bufs = [Buf::f32(x), Buf::f32(y), Buf::f32(&vec![0.0; x.len()])];
    let steps = x.len() as i64 / i64::from(lanes);
    Loaded::new(&program(ScalarType::F32, op, lanes).m, target).call(&mut bufs, &[], &[], (0, steps));
    bufs[2].as_f32()
}

/// Points in `lo..hi`, and as many spread over all exponents below `hi`.
fn points(lo: f64, hi: f64, n: usize) -> Vec<f32> {
    let mut all: Vec<f32> = random(n / 2).into_iter().map(|r| (lo + r * (hi - lo)) as f32).collect();
    let top = (hi as f32).to_bits();
    all.extend(random(n / 2).into_iter().enumerate().map(|(i, r)| {
        let x = f32::from_bits((r * f64::from(top)) as u32);
        if lo < 0.0 && i % 2 == 0 { -x } else { x }
    }));
    all
}

const EDGES: [f32; 16] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
    f32::MAX,
    f32::MIN,
    f32::MIN_POSITIVE,
    1e-45,
    -1e-45,
    0.5,
    2.0,
    -3.0,
    1e10,
];

/// Where exhaustive sweeps found the greatest errors of exp, log, tanh, erf, rsqrt and sqrt on a machine with AVX-512.
const WORST: [f32; 6] = [-5.877_884_4, 1.413_642, 0.628_309_55, 1.056_508_7, 1.182_765_8e-38, 4.701_977e-38];

fn check(op: UnOp, wanted: fn(f64) -> f64, (lo, hi): (f64, f64), limit: f64) {
    let mut x = points(lo, hi, 1 << 20);
    x.extend(EDGES.iter().chain(&WORST));
    // Whole vectors.
    x.resize(x.len().next_multiple_of(16), 1.0);
    let y = vec![0.0; x.len()];
    for target in targets() {
        let vector = apply(Some(op), &target, 16, &x, &y);
        let mut worst = (0.0, 0.0, 0.0);
        for (&x, &got) in x.iter().zip(&vector) {
            let want = wanted(f64::from(x));
            let sign = x == 0.0 && want == 0.0 && got.is_sign_negative() != want.is_sign_negative();
            let error = if sign { f64::INFINITY } else { ulps(got, want) };
            if error > worst.0 {
                worst = (error, x, got);
            }
        }
        assert!(worst.0 <= limit, "{op:?}({:e}) = {:e} is {} ulp off on {target}", worst.1, worst.2, worst.0);
        let scalar = apply(Some(op), &target, 1, &x, &y);
        for (i, (a, b)) in scalar.iter().zip(&vector).enumerate() {
            let same = a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
            assert!(same, "{op:?}({:e}): scalar {a:e}, vector {b:e} on {target}", x[i]);
        }
    }
}

/// Points in `lo..hi`, as many of all sizes, and edges.
fn wide_points(lo: f64, hi: f64) -> Vec<f64> {
    let n = 1 << 19;
    let mut all: Vec<f64> = random(n).into_iter().map(|r| lo + r * (hi - lo)).collect();
    all.extend(random(n).into_iter().enumerate().map(|(i, r)| {
        let x = f64::from_bits((r * hi.to_bits() as f64) as u64);
        if lo < 0.0 && i % 2 == 0 { -x } else { x }
    }));
    all.extend(EDGES.iter().map(|&x| f64::from(x)));
    all.extend([
        f64::MAX,
        f64::MIN,
        f64::MIN_POSITIVE,
        5e-324,
        -5e-324,
        709.782_712_893_384,
        709.9,
        -745.13,
        -745.2,
        -708.4,
    ]);
    // Near zeros of the sine and the cosine.
    all.extend(
        (1..2000).map(|n| f64::from(n) * std::f64::consts::FRAC_PI_2).flat_map(|x| [x, x.next_up(), -x.next_down()]),
    );
    all.resize(all.len().next_multiple_of(8), 1.0);
    all
}

/// How far `got` is from `want`, in units in the last place of `want`.
fn wide_ulps(got: f64, want: f64) -> f64 {
    if got == want || (got.is_nan() && want.is_nan()) {
        return 0.0;
    }
    let size = want.abs().max(f64::MIN_POSITIVE);
    (got - want).abs() / (size.next_up() - size)
}

/// `f64`: as far from libm as the two bounds together allow.
fn check_wide(op: UnOp, wanted: fn(f64) -> f64, (lo, hi): (f64, f64), limit: f64) {
    let x = wide_points(lo, hi);
    for target in targets() {
        let [vector, scalar] = [8, 1].map(|lanes| {
            let mut bufs = [Buf::f64(&x), Buf::f64(&[]), Buf::f64(&vec![0.0; x.len()])];
            let steps = x.len() as i64 / i64::from(lanes);
            Loaded::new(&program(ScalarType::F64, Some(op), lanes).m, &target).call(&mut bufs, &[], &[], (0, steps));
            bufs[2].as_f64()
        });
        for (i, &x) in x.iter().enumerate() {
            let (got, want) = (vector[i], wanted(x));
            let error = if want == 0.0 && got.is_sign_negative() != want.is_sign_negative() {
                f64::INFINITY
            } else {
                wide_ulps(got, want)
            };
            assert!(error <= limit, "{op:?}({x:e}) = {got:e}, not {want:e}: {error} ulp off on {target}");
            let same = scalar[i].to_bits() == got.to_bits() || got.is_nan() && scalar[i].is_nan();
            assert!(same, "{op:?}({x:e}): scalar {:e}, vector {got:e} on {target}", scalar[i]);
        }
    }
}

#[test]
fn functions_of_f64() {
    check_wide(UnOp::Exp, f64::exp, (-750.0, 715.0), 1.0);
    check_wide(UnOp::Exp, f64::exp, (-1.0, 1.0), 1.0);
    check_wide(UnOp::Log, f64::ln, (0.0, f64::MAX), 1.0);
    check_wide(UnOp::Log, f64::ln, (0.5, 2.0), 1.0);
    check_wide(UnOp::Tanh, f64::tanh, (-20.0, 20.0), 3.0);
    check_wide(UnOp::Tanh, f64::tanh, (-1.0, 1.0), 3.0);
    check_wide(UnOp::Erf, |x| erf(x), (-6.5, 6.5), 2.0);
    check_wide(UnOp::Erf, |x| erf(x), (-1.0, 1.0), 2.0);
    for range in [(-10.0, 10.0), (-1.04e6, 1.04e6), (-1e12, 1e12)] {
        check_wide(UnOp::Sin, f64::sin, range, 1.0);
        check_wide(UnOp::Cos, f64::cos, range, 1.0);
    }
}

#[test]
fn exp() {
    // What is less than all normal numbers is 0; nothing is denormal by more than its rounding.
    let normal = |x: f64| if x < f64::from(-87.336_55_f32) { 0.0 } else { x.exp() };
    check(UnOp::Exp, normal, (-110.0, 95.0), 1.1);
    check(UnOp::Exp, normal, (-87.34, -87.33), 1.1);
}

#[test]
fn log() {
    check(UnOp::Log, f64::ln, (0.0, f64::from(f32::MAX)), 0.9);
    check(UnOp::Log, f64::ln, (0.5, 2.0), 0.9);
}

#[test]
fn tanh() {
    check(UnOp::Tanh, f64::tanh, (-10.0, 10.0), 1.4);
}

#[test]
fn erf_function() {
    check(UnOp::Erf, |x| erf(x), (-4.5, 4.5), 1.5);
}

#[test]
fn sin_cos() {
    for (range, limit) in [((-10.0, 10.0), 0.51), ((-1.04e6, 1.04e6), 0.51), ((-1e12, 1e12), 0.6)] {
        check(UnOp::Sin, f64::sin, range, limit);
        check(UnOp::Cos, f64::cos, range, limit);
    }
}

#[test]
fn rsqrt() {
    check(UnOp::Rsqrt, |x| 1.0 / x.sqrt(), (0.0, 1e30), 1.5);
}

#[test]
fn sqrt() {
    check(UnOp::Sqrt, f64::sqrt, (0.0, 1e30), 0.5);
}

#[test]
fn pow() {
    let n = 1 << 20;
    let mut x = points(0.0, 100.0, n);
    let mut y: Vec<f32> = random(n).iter().rev().map(|r| (r * 40.0 - 20.0) as f32).collect();
    for a in EDGES {
        x.extend([a; EDGES.len()]);
        y.extend(EDGES);
    }
    for base in [-2.0_f32, 2.0, 3.0, -0.0] {
        x.extend([base; 32]);
        y.extend((-16..16).map(|p| p as f32));
    }
    for target in targets() {
        let vector = apply(None, &target, 16, &x, &y);
        let scalar = apply(None, &target, 1, &x, &y);
        for i in 0..x.len() {
            let want = f64::from(x[i]).powf(f64::from(y[i]));
            let error = ulps(vector[i], want);
            assert!(error <= 0.51, "pow({:e}, {:e}) = {:e}, not {want:e}, on {target}", x[i], y[i], vector[i]);
            assert!(scalar[i].to_bits() == vector[i].to_bits() || want.is_nan());
        }
    }
}
