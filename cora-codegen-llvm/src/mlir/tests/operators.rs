//! Every operator on every type, for scalars and vectors, against the value computed here.

use cora_ir::{BinOp, Combiner, ExprId, Literal, ScalarType, UnOp};

use super::kit::{Buf, Kit, parallel, random, round, store};
use crate::mlir::{EmitError, EmitFault, EmitOptions, emit};

const TYPES: [ScalarType; 9] = ScalarType::ELEMENTS;

/// Operands worth trying: small integers around 0, the ends of the type, fractions.
fn operands(ty: ScalarType, n: usize) -> Vec<f64> {
    let mut all: Vec<f64> = match ty {
        ScalarType::Bool => vec![0.0, 1.0],
        t if t.is_int() => {
            // i64 numbers stay within f64's integers.
            let most = if t == ScalarType::I64 { 1_i64 << 40 } else { t.int_max() };
            let least = if t == ScalarType::I64 { -most } else { t.int_min() };
            [0, 1, -1, 2, -2, 3, 7, -7, most, least, most - 1, least + 1].map(|v| v as f64).to_vec()
        }
        _ => vec![0.0, -0.0, 1.0, -1.0, 0.5, 2.5, 3.5, -2.5, f64::INFINITY, f64::NEG_INFINITY, f64::NAN],
    };
    let scale = if ty.is_float() { 16.0 } else { 100.0 };
    all.extend(random(n).into_iter().map(|r| {
        let v = (r - 0.5) * scale;
        if ty.is_float() {
            v
        } else if ty == ScalarType::Bool {
            f64::from(v > 0.0)
        } else {
            v.trunc()
        }
    }));
    all
}

/// The low bits of an integer as a number of the type.
fn wrap(ty: ScalarType, v: i64) -> f64 {
    match ty {
        ScalarType::I8 => f64::from(v as i8),
        ScalarType::I16 => f64::from(v as i16),
        ScalarType::I32 => f64::from(v as i32),
        _ => v as f64,
    }
}

/// What a value of the type would be after the machine's arithmetic.
fn fit(ty: ScalarType, v: f64) -> f64 {
    if ty.is_int() { wrap(ty, v as i64) } else { round(ty, v) }
}

fn pick(a: f64, b: f64, first: bool) -> f64 {
    if a.is_nan() || b.is_nan() {
        f64::NAN
    } else if first {
        a
    } else {
        b
    }
}

/// The value of `a op b`, or nothing where the operator has no meaning for the type.
fn wanted(ty: ScalarType, op: BinOp, a: f64, b: f64) -> Option<f64> {
    let (float, bool) = (ty.is_float(), ty == ScalarType::Bool);
    let (x, y) = (a as i64, b as i64);
    let truth = |t: bool| Some(f64::from(t));
    match op {
        BinOp::Lt => truth(a < b),
        BinOp::Le => truth(a <= b),
        BinOp::Eq => truth(a == b),
        BinOp::Ne => truth(a != b),
        BinOp::And => bool.then_some(a * b),
        BinOp::Or => bool.then_some(a.max(b)),
        BinOp::Min => Some(pick(a, b, a < b)),
        BinOp::Max => Some(pick(a, b, a > b)),
        _ if bool => None,
        BinOp::Add if float => Some(a + b),
        BinOp::Sub if float => Some(a - b),
        BinOp::Mul if float => Some(a * b),
        BinOp::Add => Some(wrap(ty, x.wrapping_add(y))),
        BinOp::Sub => Some(wrap(ty, x.wrapping_sub(y))),
        BinOp::Mul => Some(wrap(ty, x.wrapping_mul(y))),
        BinOp::Div => float.then_some(a / b),
        BinOp::Pow => float.then(|| a.powf(b)),
        BinOp::FloorDiv => (!float).then(|| cora_ir::expr::floor_div(x, y) as f64),
        BinOp::Mod => (!float).then(|| cora_ir::expr::floor_mod(x, y) as f64),
    }
}

fn close(ty: ScalarType, got: f64, want: f64) -> bool {
    if !ty.is_float() {
        return got == want;
    }
    let eps = match ty {
        ScalarType::F64 => 1e-15,
        ScalarType::F32 => 3e-7,
        ScalarType::F16 => 1.2e-3,
        _ => 9e-3,
    };
    got == want || (got.is_nan() && want.is_nan()) || (got - want).abs() <= eps * want.abs() + eps * 1e-30
}

/// `On[i] = fn(A[i], B[i])` for each of the values that `f` makes, `lanes` elements at a time.
fn elementwise(
    ty: ScalarType,
    lanes: u32,
    (a, b): (&[f64], &[f64]),
    f: impl Fn(&mut Kit, ExprId, ExprId) -> Vec<ExprId>,
) -> Result<Vec<Vec<f64>>, EmitError> {
    let mut k = Kit::default();
    let (ta, tb) = (k.buffer("A", ty), k.buffer("B", ty));
    let (v, i) = k.var("i");
    let index = k.lanes(i, lanes);
    let (x, y) = (k.load(ta, index), k.load(tb, index));
    let mut bufs = vec![Buf::of(ty, a), Buf::of(ty, b)];
    let (mut outs, mut body) = (Vec::new(), Vec::new());
    for value in f(&mut k, x, y) {
        let out = k.m.env.pool.ty(value).scalar;
        let to = k.buffer(&format!("O{}", outs.len()), out);
        body.push(store(to, index, value));
        bufs.push(Buf::of(out, &vec![0.0; a.len()]));
        outs.push(out);
    }
    let extent = k.int(0);
    k.kernel("k", vec![parallel(v, extent, body)]);
    emit(&k.m, &EmitOptions::default())?;
    let after = k.run(!outs.iter().any(|t| t.is_float()), &bufs, &[], &[], (0, a.len() as i64 / i64::from(lanes)));
    Ok(outs.iter().zip(&after[2..]).map(|(&out, b)| b.numbers(out)).collect())
}

/// The fault of a program of one operator.
fn fault(ty: ScalarType, f: impl Fn(&mut Kit, ExprId, ExprId) -> ExprId) -> Option<EmitFault> {
    elementwise(ty, 1, (&[], &[]), |k, x, y| vec![f(k, x, y)]).err().map(|e| e.fault)
}

/// All pairs of operands, to a multiple of 32.
fn pairs(ty: ScalarType) -> (Vec<f64>, Vec<f64>) {
    let each = operands(ty, 20);
    let round = |v: f64| round(ty, v);
    let mut all: Vec<(f64, f64)> = each.iter().flat_map(|&a| each.iter().map(move |&b| (round(a), round(b)))).collect();
    while !all.len().is_multiple_of(32) {
        all.push((1.0, 1.0));
    }
    all.into_iter().unzip()
}

#[test]
fn binary_operators() {
    for ty in TYPES {
        let (a, b) = pairs(ty);
        let (defined, not): (Vec<_>, Vec<_>) =
            BinOp::ALL.into_iter().partition(|&op| wanted(ty, op, 1.0, 1.0).is_some());
        for op in not {
            let fault = fault(ty, |k, x, y| k.m.env.pool.bin(op, x, y));
            assert_eq!(fault, Some(EmitFault::Operator { op: op.symbol().into(), ty }));
        }
        for lanes in [1, 8, 32] {
            let values = |k: &mut Kit, x, y| defined.iter().map(|&op| k.m.env.pool.bin(op, x, y)).collect();
            let results = elementwise(ty, lanes, (&a, &b), values).unwrap();
            for (&op, result) in defined.iter().zip(results) {
                let out = if op.is_comparison() { ScalarType::Bool } else { ty };
                for (i, got) in result.into_iter().enumerate() {
                    let want = wanted(ty, op, a[i], b[i]).map(|v| fit(out, v)).unwrap();
                    assert!(close(out, got, want), "{} {op:?} {} : {ty} x{lanes} = {got}, not {want}", a[i], b[i]);
                }
            }
        }
    }
}

#[test]
fn unary_operators() {
    for ty in TYPES {
        let mut a = operands(ty, 20 + 64);
        a.truncate(64);
        let a: Vec<f64> = a.into_iter().map(|v| fit(ty, v)).collect();
        let value = |op: UnOp, a: f64| -> Option<f64> {
            let float = ty.is_float();
            match op {
                UnOp::Not => (ty == ScalarType::Bool).then_some(1.0 - a),
                _ if ty == ScalarType::Bool => None,
                UnOp::Neg => Some(-a),
                UnOp::Abs => Some(a.abs()),
                UnOp::Floor => Some(a.floor()),
                UnOp::Ceil => Some(a.ceil()),
                UnOp::Round => Some(a.round_ties_even()),
                UnOp::Tf32 => (ty == ScalarType::F32).then(|| {
                    let bits = (a as f32).to_bits();
                    f64::from(if a.is_finite() { f32::from_bits((bits + (1 << 12)) & (!0 << 13)) } else { a as f32 })
                }),
                UnOp::Exp => float.then(|| a.exp()),
                UnOp::Log => float.then(|| a.ln()),
                UnOp::Sqrt => float.then(|| a.sqrt()),
                UnOp::Rsqrt => float.then(|| 1.0 / a.sqrt()),
                UnOp::Tanh => float.then(|| a.tanh()),
                UnOp::Sin => float.then(|| a.sin()),
                UnOp::Cos => float.then(|| a.cos()),
                // Compared only where it is certain.
                UnOp::Erf => {
                    float.then(|| if a.abs() > 6.0 || a == 0.0 { a.signum() * f64::from(a != 0.0) } else { f64::NAN })
                }
            }
        };
        let (defined, not): (Vec<_>, Vec<_>) = UnOp::ALL.into_iter().partition(|&op| value(op, 1.0).is_some());
        for op in not {
            let fault = fault(ty, |k, x, _| k.m.env.pool.un(op, x));
            assert_eq!(fault, Some(EmitFault::Operator { op: op.name().into(), ty }));
        }
        for lanes in [1, 8] {
            let values = |k: &mut Kit, x, _| defined.iter().map(|&op| k.m.env.pool.un(op, x)).collect();
            let results = elementwise(ty, lanes, (&a, &a), values).unwrap();
            for (&op, result) in defined.iter().zip(results) {
                for (&a, got) in a.iter().zip(result) {
                    let want = fit(ty, value(op, a).unwrap());
                    let skipped = op == UnOp::Erf && want.is_nan();
                    assert!(skipped || close(ty, got, want), "{op:?} {a} : {ty} x{lanes} = {got}, not {want}");
                }
            }
        }
    }
}

#[test]
fn conversions_saturate_truncate_and_round_once() {
    for from in TYPES {
        let mut a: Vec<f64> = operands(from, 64).into_iter().collect();
        if from.is_float() {
            a.extend([
                1e30,
                -1e30,
                127.9,
                -128.9,
                255.5,
                65504.0,
                65519.999,
                65520.0,
                1.0 + 1.0 / 512.0,
                1e-7,
                6e-8,
                3e-8,
                2_147_483_520.0,
                2_147_483_647.5,
                2_147_483_648.0,
                -2_147_483_648.9,
                -2_147_483_904.0,
                9.223_371e18,
                9.3e18,
                -9.3e18,
                f64::INFINITY,
                f64::NEG_INFINITY,
            ]);
            // Between two narrow floats, a hair from the middle: two roundings would go wrong.
            a.extend([1.0 + 1.0 / 256.0 + 1e-12, 1.0 + 1.0 / 2048.0 - 1e-12, 1.0 + 1.0 / 256.0 - 1e-12]);
        } else if from == ScalarType::I64 {
            a.extend([((1_i64 << 40) + (1 << 32) + 1) as f64, 16_842_753.0, 33_685_505.0]);
        }
        a.resize(a.len().next_multiple_of(8), 0.0);
        let a: Vec<f64> = a.into_iter().map(|v| if from.is_float() { fit(from, v) } else { v }).collect();
        for lanes in [1, 8] {
            let values = |k: &mut Kit, x, _| TYPES.map(|to| k.m.env.pool.cast(to, x)).to_vec();
            let results = elementwise(from, lanes, (&a, &a), values).unwrap();
            for (to, result) in TYPES.into_iter().zip(results) {
                let want = |v: f64| match to {
                    ScalarType::Bool => f64::from(v != 0.0),
                    t if t.is_int() && from.is_float() => v.trunc().clamp(t.int_min() as f64, t.int_max() as f64),
                    t => fit(t, v),
                };
                for (&a, got) in a.iter().zip(result) {
                    // NaN becomes 0, in both.
                    let want = if a.is_nan() && to.is_int() { 0.0 } else { want(a) };
                    let same = got == want || (got.is_nan() && want.is_nan());
                    assert!(same, "{a:?} : {from} as {to} x{lanes} = {got}, not {want}");
                }
            }
        }
    }
}

#[test]
fn selects_and_mixed_lanes() {
    for ty in TYPES {
        let (a, b) = pairs(ty);
        let got = elementwise(ty, 8, (&a, &b), |k, x, y| {
            let pool = &mut k.m.env.pool;
            let cond = pool.bin(BinOp::Le, x, y);
            vec![pool.select(cond, y, x)]
        });
        for (i, got) in got.unwrap().remove(0).into_iter().enumerate() {
            let want = if a[i] <= b[i] { b[i] } else { a[i] };
            assert!(got == want || got.is_nan() && want.is_nan());
        }
    }
    let (a, _) = pairs(ScalarType::F32);
    let got = elementwise(ScalarType::F32, 8, (&a, &a), |k, x, _| {
        let pool = &mut k.m.env.pool;
        let two = pool.lit(Literal::float(ScalarType::F32, 2.0));
        let spread = pool.splat(two, 8);
        let sum = pool.add(x, two);
        vec![pool.mul(spread, sum)]
    });
    for (a, got) in a.iter().zip(got.unwrap().remove(0)) {
        let want = 2.0 * (a + 2.0);
        assert!(close(ScalarType::F32, got, fit(ScalarType::F32, want)), "{a} {got}");
    }
}

#[test]
fn reductions_are_the_same_on_every_target() {
    for ty in TYPES {
        let a: Vec<f64> = operands(ty, 64).into_iter().rev().take(32).map(|v| fit(ty, v)).collect();
        let combiners: Vec<Combiner> = match ty {
            ScalarType::Bool => vec![Combiner::Max, Combiner::Min],
            _ => Combiner::ALL.to_vec(),
        };
        let cases: Vec<(Combiner, u32)> =
            combiners.iter().flat_map(|&c| [2, 3, 12, 16, 32].map(|lanes| (c, lanes))).collect();
        let mut k = Kit::default();
        let (ta, to) = (k.buffer("A", ty), k.buffer("O", ty));
        let zero = k.int(0);
        let mut body = Vec::new();
        for (i, &(combiner, lanes)) in cases.iter().enumerate() {
            let all = k.m.env.pool.ramp(zero, 1, lanes);
            let v = k.load(ta, all);
            let v = k.m.env.pool.reduce(combiner, v);
            let i = k.int(i as i64);
            body.push(store(to, i, v));
        }
        k.kernel("k", body);
        let bufs = [Buf::of(ty, &a), Buf::of(ty, &vec![0.0; cases.len()])];
        let results = k.run(true, &bufs, &[], &[], (0, 1))[1].numbers(ty);
        for (&(combiner, lanes), got) in cases.iter().zip(results) {
            let a = &a[..lanes as usize];
            let product =
                |p: f64, v: &f64| if ty.is_float() { p * v } else { wrap(ty, (p as i64).wrapping_mul(*v as i64)) };
            let want = match combiner {
                Combiner::Sum => fit(ty, a.iter().sum()),
                Combiner::Prod => fit(ty, a.iter().fold(1.0, product)),
                Combiner::Max => a.iter().copied().fold(f64::NEG_INFINITY, f64::max),
                Combiner::Min => a.iter().copied().fold(f64::INFINITY, f64::min),
            };
            let slack = if ty.is_float() { 1e-2 * a.iter().map(|v| v.abs()).sum::<f64>().max(want.abs()) } else { 0.0 };
            // Beyond f64's integers the reference is rounded.
            let beyond = ty == ScalarType::I64 && want.abs() > 1e15;
            assert!(
                (got - want).abs() <= slack || got == want || beyond,
                "{combiner:?} {ty} x{lanes}: {got}, not {want}"
            );
        }
    }
}

#[test]
fn constant_divisors() {
    for ty in TYPES.into_iter().filter(|t| t.is_int()) {
        let a: Vec<f64> = (-32..32).map(|i| f64::from(i * 3)).collect();
        let divisors = [1_i64, 2, 3, 5, 8, 64, -1, -2, -3, 0];
        let cases: Vec<_> = divisors.into_iter().flat_map(|d| [(d, BinOp::FloorDiv), (d, BinOp::Mod)]).collect();
        for lanes in [1, 8] {
            let values = |k: &mut Kit, x, _| {
                let value = |&(divisor, op)| {
                    let c = k.m.env.pool.lit(Literal::int(ty, divisor));
                    let c = k.m.env.pool.splat(c, lanes);
                    k.m.env.pool.bin(op, x, c)
                };
                cases.iter().map(value).collect()
            };
            let results = elementwise(ty, lanes, (&a, &a), values).unwrap();
            for (&(divisor, op), result) in cases.iter().zip(results) {
                for (&a, got) in a.iter().zip(result) {
                    let want = fit(ty, wanted(ty, op, a, divisor as f64).unwrap());
                    assert_eq!(got, want, "{a} {op:?} {divisor} : {ty}");
                }
            }
        }
    }
}

/// All lanes of a vector or zeros, by one truth value that is read: the lanes keep their bits, also those of NaN.
#[test]
fn all_lanes_or_none_by_what_is_read() {
    for ty in TYPES {
        for (lanes, swapped, repeated) in [(8, false, false), (8, true, false), (4, false, true), (16, true, true)] {
            let mut k = Kit::default();
            let (c, a, o) = (k.buffer("C", ScalarType::Bool), k.buffer("A", ty), k.buffer("O", ty));
            let (v, i) = k.var("i");
            let (width, extent) = (k.int(i64::from(lanes)), k.int(4));
            let row = k.m.env.pool.mul(i, width);
            let (row, cond) = (k.m.env.pool.ramp(row, 1, lanes), k.load(c, i));
            let zero = if ty.is_float() { Literal::float(ty, 0.0) } else { Literal::int(ty, 0) };
            let zero = k.m.env.pool.lit(zero);
            let value = if repeated { k.load(a, i) } else { k.load(a, row) };
            let pool = &mut k.m.env.pool;
            let chosen = |pool: &mut cora_ir::ExprPool, c, none| {
                let (x, y) = if swapped { (none, value) } else { (value, none) };
                pool.select(c, x, y)
            };
            let e = if repeated {
                let one = chosen(pool, cond, zero);
                pool.splat(one, lanes)
            } else {
                let (all, none) = (pool.splat(cond, lanes), pool.splat(zero, lanes));
                chosen(pool, all, none)
            };
            k.kernel("k", vec![parallel(v, extent, vec![store(o, row, e)])]);
            // Conversions of narrow types have choices of their own.
            if matches!(ty, ScalarType::F32 | ScalarType::F64 | ScalarType::I32 | ScalarType::I64) {
                assert!(k.mlir().contains("arith.extsi") && !k.mlir().contains("arith.select"), "{ty} x{lanes}");
            }
            let input = operands(ty, 64);
            let conds = [1.0, 0.0, 0.0, 1.0];
            let (bools, input) = (Buf::of(ScalarType::Bool, &conds), Buf::of(ty, &input));
            let read = input.numbers(ty);
            let out = Buf::of(ty, &vec![1.0; 4 * lanes as usize]);
            let got = k.run(true, &[bools, input, out], &[], &[], (0, 4))[2].numbers(ty);
            for (n, got) in got.iter().enumerate() {
                let (row, at) = (n / lanes as usize, if repeated { n / lanes as usize } else { n });
                let want = if (conds[row] == 0.0) == swapped { read[at] } else { 0.0 };
                assert!(*got == want || got.is_nan() && want.is_nan(), "{ty} x{lanes}, element {n}: {got}, not {want}");
            }
        }
    }
}
