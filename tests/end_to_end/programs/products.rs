//! Programs whose products the compiler's own schedule takes in tiles.

use super::{Small, check_all, small};

const PRODUCTS: &[Small] = &[
    // More than stays near, a tile's columns far apart.
    small(
        "weights_of_a_call",
        "
        param M in 0..=8
        extent lens(b) in 0..=13
        dim b = M, i = lens(b), k = 140, n = 1003, o = 17
        input X[b, i, k] : f32
        input W[k, n] : f32
        input V[n, o] : f32
        H[b, i, n] = relu(sum(k) X[b, i, k] * W[k, n])
        Y[b, i, o] = sum(n) H[b, i, n] * V[n, o]
        output H, Y
        ",
    ),
    small(
        "weights_of_a_call_after_others",
        "
        param M in 0..=8
        extent lens(b) in 0..=13
        dim b = M, i = lens(b), k = 9, c = 140, n = 1003
        input X[b, i, k] : f32
        const input U[k, c] : f32
        input W[c, n] : f32
        H[b, i, c] = sum(k) X[b, i, k] * U[k, c]
        Y[b, i, n] = sum(c) H[b, i, c] * W[c, n]
        output Y
        ",
    ),
    small(
        "added",
        "
        param M in 0..=64
        extent lens(b) in 0..=40
        dim b = M, i = lens(b), k = 11, h = 24, n = 35
        input X[b, i, k] : f32
        input H[b, i, h] : f32
        input Z[b, k] : f32
        const input W[k, n] : f32
        const input U[h, n] : f32
        input A[k, n] : f32
        input bias[n] : f32
        Y[b, i, n] = relu(sum(k) X * W + bias[n] + sum(h) H * U)
        T[b, i, n] = 0.5 * (sum(k) X * W + sum(h) H * U + sum(k) Z[b, k] * A[k, n])
        S[b, i, n] = sum(k) X * W - sum(h) H * U
        D[b, i, n] = (sum(k) X * W + sum(h) H * U) * (sum(k) X * A)
        output Y, T, S, D
        ",
    ),
    // What is no product of rows and columns, beside its reader.
    small(
        "reductions_of_columns",
        "
        param M in 0..=64
        extent lens(b) in 0..=40
        dim b = M, i = lens(b), k = 11, e = 3, n = 70
        input X[b, i, k] : f32
        input W[k, n] : f32
        input E[e, k, n] : f32
        input at[b, i] : i32 in 0..3
        Y[b, i, n] = relu(max(k) (X[b, i, k] + W[k, n]))
        Z[b, i, n] = relu(sum(k) X[b, i, k] * E[at[b, i], k, n])
        C[b, i, n] = 1.0 - prod(k) (if X[b, i, k] < W[k, n] then 0.5 else 1.0)
        output Y, Z, C
        ",
    ),
];

#[test]
fn products() {
    check_all(PRODUCTS);
}
