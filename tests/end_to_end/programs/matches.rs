//! Programs whose terms count where a position is what is read.

use super::values::special_floats;
use super::{Small, check_all, small};

const PROGRAMS: &[Small] = &[
    small(
        "histograms",
        "
        param M in 0..=64
        extent lens(b) in 0..=128
        dim b = M, t = lens(b), v = 37
        input ids[b, t] : i32 in 0..37
        input x[b, t] : f32
        N[b, v] = sum(t) (if index(ids) == v then 1 else 0)
        S[v] = sum(b, t) (if ids[b, t] == i32(v) then x else 0.0)
        O[b, v] = sum(t) i32(index(ids) == v and x > 0.0)
        D[v] = sum(b, t) (if i64(ids[b, t]) == i64(v) then 1.0 else 0.0)
        G[b, v] = max(t) (if v == index(ids) and x > 0.0 then x else -inf)
        P[b, v] = prod(t) (if index(ids) == v then f64(x) else 1.0)
        L[b, v] = min(t) (if t > 2 and index(ids[b, t - 1]) == v then i64(t) else 4096)
        Y[b, t] = N[b, ids[b, t]]
        output N, S, O, D, G, P, L, Y
        ",
    ),
    small(
        "embedding_gradients",
        "
        param M in 0..=64
        extent lens(b) in 0..=64
        dim b = M, t = lens(b), v = 50, d = 40, e = 160
        input ids[b, t] : i32 in 0..50
        input Y[b, t, d] : f32
        input W[b, t, e] : bf16
        D[v, d] = sum(b, t) (if index(ids) == v then Y else 0.0)
        E[v, e] = sum(b, t) (if index(ids) == v then f32(W) else 0.0)
        F[b, v] = sum(t, d) (if index(ids) == v then Y[b, t, d] * D[v, d] else 0.0)
        output D, E, F
        ",
    ),
    small(
        "messages",
        "
        param M in 0..=64
        extent nodes(g) in 0..=40
        extent edges(g) in 0..=128
        dim g = M, n = nodes(g), e = edges(g), d = 24
        input src[g, e] : i32 in -1..41
        input dst[g, e] : i16
        input X[g, n, d] : f32
        input w[g, e] : f32
        Y[g, n, d] = sum(e) (if index(dst[g, e]) == n then w[g, e] * (X[g, src[g, e], d] else 0.0) else 0.0)
        Z[g, n, d] = max(e) (if index(src[g, e]) == n then X[g, n, d] + w[g, e] else -inf)
        C[g, n] = sum(e) (if index(src[g, e]) == 2 * n + 1 then 1.0 else 0.0)
        R[g, n, d] = relu(Y) / (1.0 + C)
        output Y, Z, C, R
        ",
    ),
    small(
        "products_of_polynomials",
        "
        param M in 0..=64
        extent na(b) in 0..=40
        extent nb(b) in 0..=60
        dim b = M, i = na(b), j = nb(b), n = na(b) + nb(b), v = 40
        input A[b, i] : f32
        input B[b, j] : f32
        P[b, n] = sum(i, j) (if i + j == n then A[b, i] * B[b, j] else 0.0)
        K[b, v] = sum(i) (if i == v then A[b, i] else 0.0)
        Q[b, v] = max(j) (if j - 3 == v and B[b, j] > 0.0 then B[b, j] else -inf)
        output P, K, Q
        ",
    ),
    Small {
        name: "numbers_that_are_none",
        text: "
        param M in 0..=64
        extent lens(b) in 0..=128
        dim b = M, t = lens(b), v = 40
        input ids[b, t] : i64 in 0..40
        input x[b, t] : f32
        A[b, v] = max(t) (if index(ids) == v then x else -inf)
        I[b, v] = min(t) (if index(ids) == v then x else inf)
        S[b, v] = sum(t) (if index(ids) == v then x else 0.0)
        output A, I, S
        ",
        fill: |name, n| (name == "x").then(|| special_floats(n)),
    },
];

/// Each form of each program on every edge batch.
#[test]
fn terms_go_to_positions() {
    check_all(PROGRAMS);
}
