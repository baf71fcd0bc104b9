//! Programs about element types, operators and functions.

use super::{Small, check, check_all, small};
use crate::harness::report;
use crate::support::in_parallel;
use cora::ir::interp::Data;

/// Floats among which NaN, infinities, zeros and ties are common.
pub fn special_floats(count: usize) -> Data {
    const LIST: [f64; 12] =
        [1.5, -2.0, 0.0, f64::NAN, 1.5, -0.0, f64::INFINITY, 3.25, f64::NEG_INFINITY, -2.0, 100.5, 0.75];
    Data::F64((0..count).map(|i| LIST[(i * 7 + i / 12) % 12]).collect())
}

/// Small integers with many ties.
pub fn tied_integers(count: usize) -> Data {
    Data::I64((0..count).map(|i| ((i * 5 + i / 7) % 4) as i64 - 1).collect())
}

const PROGRAMS: &[Small] = &[
    Small {
        name: "arg_reductions",
        text: "
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
        ",
        fill: |name, n| Some(if name == "A" { special_floats(n) } else { tied_integers(n) }),
    },
    Small {
        name: "user_combiners",
        text: "
        param M in 0..=64
        extent lens(b) in 0..=128
        dim b = M, k = lens(b), l = 5
        input A[b, k] : f32
        input D[b, k] : f64
        input I[b, k] : i32
        input J[b, k] : i64
        combiner online(m = -inf, s = 0.0)(a, b) commutative = {
          m = max(a.m, b.m)
          left = if a.m == -inf then 0.0 else a.s * exp(a.m - m)
          right = if b.m == -inf then 0.0 else b.s * exp(b.m - m)
          (m, left + right)
        }
        combiner moments(n = 0.0, mean = 0.0, m2 = 0.0)(a, b) commutative = {
          n = a.n + b.n
          w = if n > 0.0 then b.n / n else 0.0
          delta = b.mean - a.mean
          (n, a.mean + delta * w, a.m2 + b.m2 + delta * delta * a.n * w)
        }
        combiner greatest(v = -2147483648, at = -1)(a, b) = (max(a.v, b.v), if b.v > a.v then b.at else a.at)
        combiner product(re = 1.0, im = 0.0)(x, y) commutative = (x.re * y.re - x.im * y.im, x.re * y.im + x.im * y.re)
        combiner last(v = 0, any = false)(a, b) = (if b.any then b.v else a.v, a.any or b.any)
        combiner total(t = 0.0)(a, b) commutative = (a.t + b.t)
        O[b] = online(k)(A[b, k], 1.0)
        P[b, k] = exp(A[b, k] - O.m[b]) / O.s[b]
        W[b, l] = moments(k)(f64(1.0), D[b, k] * f64(l), f64(0.0))
        G[b] = greatest(k)(I[b, k], i64(k))
        Z[b] = product(k, l)(f64(0.75), 0.25 * D[b, k] * f64(l))
        L[b] = last(k)(J[b, k], J[b, k] > 0)
        T = total(b, k)(A[b, k])
        output P, O.m, O.s, W.n, W.mean, W.m2, G.v, G.at, Z.re, Z.im, L.v, L.any, T.t
        schedule cpu {
          split O.k 16 -> ko, ki
          rfactor O.ko -> Of
          parallel Of.b
          reorder W: b k l; vectorize W.l 4
          split G.k 8 -> ko, ki; unroll G.ki; parallel G.b
          rfactor Z.l -> Zf; reorder Zf: b k l; vectorize Zf.l 4; parallel Zf.b
          cache_write L -> Lr reg at L.b
        }
        ",
        fill: |name, n| match name {
            "I" | "J" => Some(tied_integers(n)),
            _ => Some(Data::F64((0..n).map(|i| ((i * 7 + i / 12) % 23) as f64 / 8.0 - 1.25).collect())),
        },
    },
    Small {
        name: "combiners",
        text: "
        param M in 0..=64
        extent lens(b) in 0..=40
        dim b = M, k = lens(b)
        input A[b, k] : f32
        input D[b, k] : f64
        input I[b, k] : i64
        Amin[b] = min(k) A[b, k]
        Amax[b] = max(k) A[b, k]
        Aprod[b] = prod(k) (if A[b, k] > 0 then 1.5 else A[b, k])
        Dmin[b] = min(k) D[b, k]
        Dsum[b] = sum(k) D[b, k]
        Imin[b] = min(k) I[b, k]
        Imax[b] = max(k) I[b, k]
        Iprod[b] = prod(k) I[b, k]
        Isum[b] = sum(k) I[b, k]
        output Amin, Amax, Aprod, Dmin, Dsum, Imin, Imax, Iprod, Isum
        schedule cpu { vectorize Amax.k 8; vectorize Amin.k 16; vectorize Imax.k 4; parallel Amax.b; vectorize Aprod.k 8 }
        ",
        fill: |name, n| Some(if name == "I" { tied_integers(n) } else { special_floats(n) }),
    },
    Small {
        name: "integers",
        text: "
        param M in 0..=64
        extent lens(b) in 0..=128
        dim b = M, k = lens(b)
        input A[b, k] : i32
        input B[b, k] : i32
        input S[b, k] : i8
        input T[b, k] : i16
        input L[b, k] : i64
        Q[b, k] = floordiv(A[b, k], B[b, k]) + A[b, k] % B[b, k]
        R[b, k] = A[b, k] * B[b, k] - min(A[b, k], -B[b, k])
        W[b, k] = S[b, k] * S[b, k] + 100
        V[b, k] = T[b, k] * 1000 - T[b, k]
        X[b, k] = abs(L[b, k]) * 1000000007
        C[b, k] = A[b, k] <= B[b, k] or S[b, k] == 0
        output Q, R, W, V, X, C
        ",
        fill: |name, n| {
            let spread = |m: i64| Data::I64((0..n as i64).map(|i| (i * m) % 23 - 11).collect());
            match name {
                "A" => Some(spread(13)),
                "B" => Some(spread(7)),
                _ => None,
            }
        },
    },
    small(
        "truth",
        "
        param M in 0..=64
        extent lens(b) in 0..=128
        dim b = M, k = lens(b)
        input P[b, k] : bool
        input A[b, k] : f32
        C[b, k] = P[b, k] and not (A[b, k] > 0.25) or A[b, k] < -0.5
        N[b] = sum(k) select(C[b, k], 1, 0)
        Y[b, k] = if P[b, k] then A[b, k] else if A[b, k] > 0 then 1 else 0.1 * A[b, k]
        E[b, k] = P[b, k] != (A[b, k] >= 0)
        output C, N, Y, E
        ",
    ),
    small(
        "doubles",
        "
        param M in 0..=64
        extent lens(b) in 0..=128
        dim b = M, k = lens(b)
        fn softmax(k)(x) = { m = max(k) x; e = exp(x - m); e / sum(k) e }
        input A[b, k] : f64
        P = softmax(k)(A)
        S[b] = sum(k) A[b, k] * A[b, k]
        G[b, k] = log(abs(A[b, k]) + 1) * sqrt(abs(A[b, k])) + tanh(A[b, k]) - erf(A[b, k])
        output P, S, G
        schedule cpu { vectorize P.k 8; parallel P.b; vectorize S.k 4 }
        ",
    ),
    small(
        "halves",
        "
        param M in 0..=64
        extent lens(b) in 0..=128
        dim b = M, k = lens(b), d = 8
        input A[b, k, d] : f16
        input W[d] : bf16
        S[b, k] = sum(d) f32(A[b, k, d]) * f32(W[d])
        H[b, k] = f16(S[b, k])
        B[b, k] = bf16(S[b, k] * 2)
        X[b, k, d] = A[b, k, d] * A[b, k, d] + 0.5
        Y[b, d] = max(k) A[b, k, d]
        Z[d] = W[d] - 1
        output S, H, B, X, Y, Z
        ",
    ),
    small(
        "sums of halves are rounded once",
        "
        param M in 0..=64
        extent lens(b) in 0..=128
        dim b = M, k = lens(b), d = 4096
        input A[b, k] : f16
        input W[d] : bf16
        C[b] = sum(k) A[b, k]
        P[b] = sum(k) A[b, k] * A[b, k] + 0.5
        N[b] = sum(k) (A[b, k] * 0 + 1)
        O = sum(d) (W[d] * 0 + 1)
        Q = prod(d) (W[d] * 0 + 1)
        output C, P, N, O, Q
        schedule cpu { parallel C.b; parallel P.sum.b }
        ",
    ),
    Small {
        name: "special_floats",
        text: "
        param M in 0..=64
        extent lens(b) in 0..=128
        dim b = M, k = lens(b)
        input A[b, k] : f32
        input B[b, k] : f32
        Y[b, k] = exp(A[b, k])
        Z[b, k] = log(A[b, k])
        S[b, k] = sqrt(A[b, k])
        R[b, k] = rsqrt(A[b, k])
        T[b, k] = tanh(A[b, k])
        E[b, k] = erf(A[b, k])
        F[b, k] = floor(A[b, k]) + ceil(A[b, k]) + round(A[b, k])
        G[b, k] = sigmoid(A[b, k]) + relu(A[b, k])
        N[b, k] = max(A[b, k], B[b, k])
        U[b, k] = min(A[b, k], B[b, k])
        Q[b, k] = A[b, k] / B[b, k]
        C[b, k] = A[b, k] < B[b, k]
        output Y, Z, S, R, T, E, F, G, N, U, Q, C
        ",
        fill: |_, n| Some(special_floats(n)),
    },
    Small {
        name: "functions",
        text: "
        param M in 0..=64
        extent lens(b) in 0..=128
        dim b = M, k = lens(b)
        input A[b, k] : f32
        Y[b, k] = sin(A[b, k]) * cos(A[b, k]) + exp(-A[b, k] * A[b, k])
        Z[b, k] = tanh(A[b, k]) + erf(A[b, k] / 4)
        P[b, k] = pow(abs(A[b, k]), 1.5)
        L[b, k] = log(1 + abs(A[b, k]))
        R[b, k] = rsqrt(1 + A[b, k] * A[b, k])
        output Y, Z, P, L, R
        schedule cpu { fuse Y.b Y.k -> f; split Y.f 16 -> o, l; parallel Y.o; vectorize Y.l; vectorize Z.k 16; vectorize P.k 8; vectorize L.k 16; vectorize R.k 4 }
        ",
        fill: |_, n| Some(Data::F64((0..n).map(|i| f64::from((i % 401) as f32 * 0.125 - 25.0)).collect())),
    },
    small(
        "nested_functions",
        "
        param M in 0..=64
        extent lens(b) in 0..=96
        dim b = M, k = lens(b), d = 6
        fn square(x) = x * x
        fn mean(d)(x) = (sum(d) x) / f32(size(d))
        fn variance(d)(x) = { m = mean(d)(x); mean(d)(square(x - m)) }
        fn norm(d)(x) = (x - mean(d)(x)) * rsqrt(variance(d)(x) + 0.001)
        fn twice(d)(x) = norm(d)(norm(d)(x) + 1)
        input A[b, k, d] : f32
        Y = twice(d)(A)
        Z[b, d] = mean(k)(square(A[b, k, d]))
        output Y, Z
        ",
    ),
    small(
        "masked_softmax",
        "
        param M in 0..=64
        extent lens(b) in 0..=96
        dim b = M, k = lens(b)
        fn softmax(k)(x) = { m = max(k) x; e = exp(x - m); e / sum(k) e }
        input A[b, k] : f32
        input keep[b, k] : bool
        P = softmax(k)(if keep[b, k] then A[b, k] else -1000)
        output P
        schedule cpu { compute_at P.sum P.e P.m at P.b; parallel P.b; vectorize P.k 16; vectorize P.e.k 16; vectorize P.m.k 8; vectorize P.sum.k 8 }
        ",
    ),
];

#[test]
fn operators() {
    check_all(PROGRAMS);
}

/// A program for each type, which converts it to every other one.
#[test]
fn casts() {
    const TYPES: [&str; 9] = ["f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "bool"];
    report(&in_parallel(&TYPES, |from| {
        let mut text =
            format!("param M in 0..=64\nextent lens(b) in 0..=128\ndim b = M, k = lens(b)\ninput A[b, k] : {from}\n");
        let others: Vec<&&str> = TYPES.iter().filter(|t| *t != from).collect();
        let mut outputs = Vec::new();
        for to in others {
            let value = if *to == "bool" { "A[b, k] != 0".to_owned() } else { format!("{to}(A[b, k])") };
            text.push_str(&format!("to_{to}[b, k] = {value}\n"));
            outputs.push(format!("to_{to}"));
        }
        text.push_str(&format!("output {}\n", outputs.join(", ")));
        let mut complaints = check(&format!("casts_of_{from}"), &text, |_, _| None);
        if from.starts_with(['f', 'b']) && *from != "bool" {
            complaints.extend(check(&format!("casts_of_special_{from}"), &text, |_, n| Some(special_floats(n))));
        }
        complaints
    }));
}
