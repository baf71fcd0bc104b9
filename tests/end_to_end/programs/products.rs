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
    // More columns than stay near for a batch, of which only what is reduced is left, or not.
    small(
        "columns_reduced_over",
        "
        param M in 0..=64
        extent lens(b) in 0..=1000
        dim b = M, i = lens(b), k = 5, c = 600
        input X[b, i, k] : f32
        input at[b, i] : i32 in 0..600
        const input W[k, c] : f32
        const input V[c] : f32
        P[b, i, c] = sum(k) X[b, i, k] * W[k, c]
        m[b, i] = max(c) P[b, i, c]
        z[b, i] = sum(c) exp(P[b, i, c] - m[b, i])
        L[b, i] = log(z[b, i]) + m[b, i] - P[b, i, at[b, i]]
        Q[b, i, c] = V[c] - 2.0 * sum(k) X[b, i, k] * W[k, c]
        N[b, i] = argmin(c) Q[b, i, c]
        R[b, i, c] = sum(k) X[b, i, k] * W[k, c]
        S[b, i, c] = exp(R[b, i, c] - max(c) R[b, i, c])
        T[b] = sum(i) L[b, i]
        output L, N, S, T
        ",
    ),
    // Zero points of bytes.
    small(
        "zero_points",
        "
        param M in 0..=64
        extent lens(b) in 0..=40
        dim b = M, i = lens(b), j = lens(b), g = 2, k = 24, n = 70
        input X[b, i, k] : i8
        input Y[b, j, k] : i8
        input x[b, i] : i32
        input y[b, j] : i32
        const input W[k, n] : i8
        const input w[n] : i32
        const input U[g, k, n] : i8
        const input u[g, n] : i32
        input v[g, n] : f32
        A[b, i, n] = sum(k) (i32(X[b, i, k]) - x[b, i]) * (i32(W[k, n]) - w[n])
        B[b, i, j] = sum(k) (i32(X[b, i, k]) - x[b, i]) * (i32(Y[b, j, k]) + y[b, j])
        C[b, i, n] = sum(g) v[g, n] * f32(sum(k) i32(X[b, i, k]) * (i32(U[g, k, n]) - u[g, n]))
        D[b, i, n] = sum(k) (i32(X[b, i, k]) - w[n])
        E[b, n] = sum(i, k) (i32(X[b, i, k]) - x[b, i]) * (i32(W[k, n]) - 3)
        output A, B, C, D, E
        ",
    ),
];

#[test]
fn products() {
    check_all(PRODUCTS);
}
