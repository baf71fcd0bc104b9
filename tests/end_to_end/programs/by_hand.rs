//! Programs whose results are known without any interpreter.

use super::values::{special_floats, tied_integers};
use crate::harness::{Case, Compiled, program};
use crate::support::batches::{Fill, plan};
use cora::inputs;
use cora::ir::interp::Data;
use std::collections::BTreeMap;

/// Runs a program on one batch; its outputs by name, which the reference must have too.
fn outputs(text: &str, rows: &[i64], fill: Fill) -> BTreeMap<String, Data> {
    let source = program("by_hand", text, &[]).unwrap_or_else(|e| panic!("{e}"));
    let case = Case::new(&source, &plan("", rows.len() as i64, rows), 0, fill).unwrap_or_else(|e| panic!("{e}"));
    let compiled = Compiled::new(&source, None, false).unwrap_or_else(|e| panic!("{e}"));
    let arrays = compiled.run(&mut compiled.instance(2), &source, &case.batch).expect("it runs");
    let names = compiled.desc.tensors.iter().filter(|t| t.role == cora::runtime::abi::Role::Output);
    let mut out = BTreeMap::new();
    for (t, a) in names.zip(&arrays) {
        let data = inputs::to_data(a).expect("elements");
        assert_eq!(bits(&data), bits(case.want(&source, &t.name)), "the reference's {}", t.name);
        out.insert(t.name.clone(), data);
    }
    out
}

/// For comparisons in which NaN equals itself.
fn bits(d: &Data) -> Vec<u64> {
    match d {
        Data::F64(v) => v.iter().map(|x| if x.is_nan() { u64::MAX } else { x.to_bits() }).collect(),
        Data::I64(v) => v.iter().map(|&x| x as u64).collect(),
    }
}

#[test]
fn arg_reductions_take_the_first_and_count_nan_as_best() {
    let text = "
        param M in 0..=64
        extent lens(b) in 0..=128
        dim b = M, k = lens(b)
        input A[b, k] : f32
        input I[b, k] : i32
        AX[b] = argmax(k) A[b, k]
        AN[b] = argmin(k) A[b, k]
        IX[b] = argmax(k) I[b, k]
        IN[b] = argmin(k) I[b, k]
        output AX, AN, IX, IN
    ";
    let rows = [0, 1, 3, 5, 0, 40, 2, 4, 0];
    let got = outputs(text, &rows, |n, c| Some(if n == "A" { special_floats(c) } else { tied_integers(c) }));
    let total: i64 = rows.iter().sum();
    let (Data::F64(a), Data::I64(i)) = (special_floats(total as usize), tied_integers(total as usize)) else {
        unreachable!("floats and integers")
    };
    let mut want: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    let mut at = 0;
    for &n in &rows {
        let row = at..at + n as usize;
        at = row.end;
        let (a, i) = (&a[row.clone()], &i[row]);
        let first = |hit: &dyn Fn(usize) -> bool| (0..a.len()).find(|&k| hit(k)).map_or(-1, |k| k as i64);
        let nan = a.iter().any(|x| x.is_nan());
        let max = a.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let min = a.iter().copied().fold(f64::INFINITY, f64::min);
        want.entry("AX").or_default().push(first(&|k| if nan { a[k].is_nan() } else { a[k] == max }));
        want.entry("AN").or_default().push(first(&|k| if nan { a[k].is_nan() } else { a[k] == min }));
        want.entry("IX").or_default().push(first(&|k| Some(&i[k]) == i.iter().max()));
        want.entry("IN").or_default().push(first(&|k| Some(&i[k]) == i.iter().min()));
    }
    for (name, want) in want {
        assert_eq!(got[name], Data::I64(want), "{name}");
    }
}

#[test]
fn nothing_gives_the_identity() {
    let text = "
        param M in 0..=64
        extent lens(b) in 0..=128
        dim b = M, k = lens(b)
        input A[b, k] : f32
        input I[b, k] : i32
        S[b] = sum(k) A[b, k]
        P[b] = prod(k) A[b, k]
        X[b] = max(k) A[b, k]
        N[b] = min(k) A[b, k]
        IS[b] = sum(k) I[b, k]
        IP[b] = prod(k) I[b, k]
        IX[b] = max(k) I[b, k]
        IN[b] = min(k) I[b, k]
        output S, P, X, N, IS, IP, IX, IN
    ";
    let got = outputs(text, &[0, 0], |_, _| None);
    let floats = |x: f64| Data::F64(vec![x; 2]);
    let ints = |x: i32| Data::I64(vec![x.into(); 2]);
    assert_eq!(got["S"], floats(0.0));
    assert_eq!(got["P"], floats(1.0));
    assert_eq!(got["X"], floats(f64::NEG_INFINITY));
    assert_eq!(got["N"], floats(f64::INFINITY));
    assert_eq!(got["IS"], ints(0));
    assert_eq!(got["IP"], ints(1));
    assert_eq!(got["IX"], ints(i32::MIN));
    assert_eq!(got["IN"], ints(i32::MAX));
}

#[test]
fn integers_divide_towards_minus_infinity_and_wrap() {
    let text = "
        param M in 0..=64
        extent lens(b) in 0..=128
        dim b = M, k = lens(b)
        input A[b, k] : i32
        input B[b, k] : i32
        input S[b, k] : i8
        Q[b, k] = floordiv(A[b, k], B[b, k])
        R[b, k] = A[b, k] % B[b, k]
        W[b, k] = S[b, k] + S[b, k]
        output Q, R, W
    ";
    let got = outputs(text, &[6], |name, _| {
        Some(Data::I64(match name {
            "A" => vec![7, -7, 7, -7, 5, -5],
            "B" => vec![2, 2, -2, -2, 0, 5],
            _ => vec![127, -128, 1, -1, 64, 0],
        }))
    });
    assert_eq!(got["Q"], Data::I64(vec![3, -4, -4, 3, 0, -1]));
    assert_eq!(got["R"], Data::I64(vec![1, 1, -1, -1, 0, 0]));
    assert_eq!(got["W"], Data::I64(vec![-2, 0, 2, -2, -128, 0]));
}

#[test]
fn floats_become_integers_by_truncation_and_saturate() {
    let text = "
        param M in 0..=64
        extent lens(b) in 0..=128
        dim b = M, k = lens(b)
        input A[b, k] : f32
        L[b, k] = i64(A[b, k])
        I[b, k] = i32(A[b, k])
        C[b, k] = i8(A[b, k])
        output L, I, C
    ";
    let given = [1.75, -1.75, 300.0, -300.0, 3e9, -1e30, f64::INFINITY, f64::NAN];
    let got = outputs(text, &[8], |_, _| {
        Some(Data::F64([1.75, -1.75, 300.0, -300.0, 3e9, -1e30, f64::INFINITY, f64::NAN].to_vec()))
    });
    let saturated = |lo: i64, hi: i64| Data::I64(given.iter().map(|&x| (x as f32 as i64).clamp(lo, hi)).collect());
    assert_eq!(got["L"], saturated(i64::MIN, i64::MAX));
    assert_eq!(got["I"], saturated(i32::MIN.into(), i32::MAX.into()));
    assert_eq!(got["C"], saturated(i8::MIN.into(), i8::MAX.into()));
}

#[test]
fn listing_1_by_hand() {
    let text = std::fs::read_to_string(crate::support::root().join("examples/listing1.cora")).expect("readable");
    let got = outputs(&text, &[3, 0, 2], |_, n| Some(Data::F64((1..=n).map(|x| x as f64).collect())));
    assert_eq!(got["B"], Data::F64(vec![2.0, 4.0, 6.0, 8.0, 10.0]));
}
