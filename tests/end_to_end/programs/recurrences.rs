//! Programs whose results are made of results at earlier positions.

use super::{Small, check_all, small};

const PROGRAMS: &[Small] = &[
    small(
        "gated_units",
        "
        param M in 0..=64
        extent n(b) in 0..=40
        dim b = M, t = n(b), j = 20, k = 20, d = 8
        input X[b, t, d] : f32
        input W[g = 3, j, d] : f32, U[g, j, k] : f32
        fn gate(x) = 1 / (1 + exp(-x))
        A[b, t, g, j] = sum(d) X[b, t, d] * W[g, j, d]
        fn unit(before) = {
          z = gate(A[b, t, 0, j] + 0.2 * sum(k) (H[b, t - 1, k] else 0) * U[0, j, k])
          r[b, t, j] = gate(A[b, t, 1, j] + 0.2 * sum(k) (H[b, t - 1, k] else 0) * U[1, j, k])
          c = tanh(A[b, t, 2, j] + 0.2 * sum(k) r[b, t, k] * (H[b, t - 1, k] else 0) * U[2, j, k])
          (1 - z) * c + z * before
        }
        H[b, t, j] = unit(H[b, t - 1, j] else 0)
        last[b, j] = H[b, n(b) - 1, j] else 0
        output H, last
        ",
    ),
    small(
        "two_states",
        "
        param M in 0..=64
        extent n(b) in 0..=40
        dim b = M, t = n(b), j = 16, k = 16
        input X[b, t, g = 4, j] : f32, U[g, k, j] : f32
        fn gate(x) = 1 / (1 + exp(-x))
        A[b, t, g, j] = X + 0.25 * sum(k) (H[b, t - 1, k] else 0) * U[g, k, j]
        C[b, t, j] = gate(A[b, t, 1, j]) * (C[b, t - 1, j] else 0) + gate(A[b, t, 0, j]) * tanh(A[b, t, 2, j])
        H[b, t, j] = gate(A[b, t, 3, j]) * tanh(C)
        output H
        ",
    ),
    small(
        "states_used_up",
        "
        param M in 0..=64
        extent n(b) in 0..=40
        dim b = M, t = n(b), h = 2, d = 12, e = 20
        input Q[b, t, h, d] : f32, K[b, t, h, d] : f32, V[b, t, h, e] : f32
        S[b, h, t, d, e] = 0.5 * (S[b, h, t - 1, d, e] else 0) + K[b, t, h, d] * V[b, t, h, e]
        z[b, h, t, d] = 0.5 * (z[b, h, t - 1, d] else 0) + K[b, t, h, d]
        O[b, t, h, e] = (sum(d) Q[b, t, h, d] * S[b, h, t, d, e]) / (1 + abs(sum(d) Q[b, t, h, d] * z[b, h, t, d]))
        last[b, h, d, e] = S[b, h, n(b) - 1, d, e] else 0
        N[b, t, d, e] = 0.5 * (N[b, t - 2, d, e] else 0) + K[b, t, 0, d] * V[b, t, 1, e]
        P[b, t, e] = sum(d) N[b, t, d, e] * Q[b, t, 1, d]
        R[b, t, e] = sum(d) N[b, t, d, e] * (N[b, t - 1, d, e] else 0)
        output O, last, P, R
        ",
    ),
    small(
        "alignments",
        "
        param M in 0..=64
        extent na(b) in 0..=40, nb(b) in 0..=40
        dim b = M, i = na(b), j = nb(b), p = na(b) + 1, q = nb(b) + 1
        input A[b, i] : i32 in 0..4
        input B[b, j] : i32 in 0..4
        input C[b, i, j] : f32
        W[b, i, j] = C + min(W[b, i - 1, j] else 9, W[b, i, j - 1] else 9, W[b, i - 1, j - 1] else 0)
        same[b, p, q] : i32 = if A[b, p - 1] else 0 == B[b, q - 1] else 1 then 0 else 1
        E[b, p, q] : i32 = if p == 0 then i32(q) else if q == 0 then i32(p)
          else min((E[b, p - 1, q] else 0) + 1, (E[b, p, q - 1] else 0) + 1, (E[b, p - 1, q - 1] else 0) + same)
        edits[b] = E[b, na(b), nb(b)]
        output W, edits
        ",
    ),
    small(
        "states_of_a_path",
        "
        param M in 0..=64
        extent n(b) in 0..=40
        dim b = M, t = n(b), s = 9, r = 9, h = 2
        input E[b, t, s] : f32, T[r, s] : f32
        input D[h, b, t] : f64
        V[b, t, s] = max(r) (E[b, t, s] + T[r, s] + (V[b, t - 1, r] else 0))
        best[b] = max(t, s) (if t == n(b) - 1 then V[b, t, s] else -inf)
        Z[h, b, t] : f64 = D + 0.5 * (Z[h, b, t - 2] else 1)
        G[b, t] = 0.1 * (G[b, t - 1] else 0) + sum(s) E[b, t, s]
        I[w = 50] : i32 = i32(w) - (I[w - 1] else 3) + (I[w - 2] else 1)
        output V, best, Z, I, G
        ",
    ),
    small(
        "both_ways",
        "
        param M in 0..=64
        extent n(b) in 0..=40
        dim b = M, t = n(b), s = n(b), j = 24, k = 24
        input X[b, t, j] : f32, U[j, k] : f32, W[j, k] : f32
        R[b, s, j] = X[b, n(b) - 1 - s, j]
        B[b, s, j] = tanh(R + 0.2 * sum(k) (B[b, s - 1, k] else 0) * U[j, k])
        F[b, t, j] = tanh(X + 0.2 * sum(k) (F[b, t - 1, k] else 0) * W[j, k])
        Y[b, t, j] = F + B[b, n(b) - 1 - t, j]
        output Y
        ",
    ),
    small(
        "systems_solved",
        "
        param M in 0..=64
        extent n(b) in 0..=40
        dim b = M, i = n(b), j = i, c = 20, r = n(b), k = min(i, r), p = r
        input L[b, i, l = n(b)] : f32, R[b, i, c] : f32
        X[b, i, c] = (R - sum(j) L[b, i, j] * X[b, j, c]) / (abs(L[b, i, i]) + 4)
        F[b, i, r] = (L[b, i, r] + (if i == r then 40 else 0) - sum(k) F[b, i, k] * F[b, k, r]) / (if r < i then F[b, r, r] else 1)
        C[b, i, r] = if r > i then 0 else if r == i then sqrt(40 + abs(L[b, i, i]) - sum(p) C[b, i, p] * C[b, i, p]) else (L[b, i, r] - sum(p) C[b, i, p] * C[b, r, p]) / C[b, r, r]
        output X, F, C
        ",
    ),
    small(
        "trees",
        "
        param M in 0..=64
        extent n(b) in 0..=40
        dim b = M, t = n(b), j = 20, k = 20
        input X[b, t, j] : f32, U[j, k] : f32, parent[b, t] : i32 in 0..40
        input lag[b, t] : i32 in 1..8, up[b, t] : i32 in -2..40
        H[b, t, j] = tanh(X + 0.2 * sum(k) (if index(parent) < t then H[b, parent[b, t], k] else 0) * U[j, k])
        G[b, t, j] = X + 0.5 * (G[b, (t + 1) / 2 - 1, j] else 0)
        first[b, t] : i32 = if index(parent) < t then first[b, parent[b, t]] else i32(t)
        depth[b, t] : i32 = if t == 0 then 0 else 1 + depth[b, (t - 1) / 2]
        lagged[b, t, j] = S[b, t - index(lag[b, t]), j] else 0
        S[b, t, j] = 1 + 0.1 * sum(k) lagged[b, t, k] * U[j, k]
        T[b, t, j] = X + (if index(up[b, t]) < t then (T[b, up[b, t], j] else 0) else 0)
        Q[b, t] = sum(j) T[b, t, j] * X[b, t, j]
        output H, G, first, depth, S, Q
        ",
    ),
    small(
        "of_all_before",
        "
        param M in 0..=64
        extent n(b) in 0..=40
        dim b = M, i = n(b), j = n(b), s = i, l = n(b), at = n(b) - l, k = l, d = 12
        input x[b, i] : f32, Y[b, i, d] : f32
        longest[b, i] : i32 = 1 + max(max(j) (if j < i and x[b, j] < x[b, i] then longest[b, j] else 0), 0)
        W[b, i, s] = 0.2 * sum(d) Y[b, i, d] * Z[b, s, d]
        e[b, i, s] = exp(W - max(s) W)
        Z[b, i, d] = Y + (sum(s) e * Z[b, s, d]) / (sum(s) e + 1)
        V[b, i, j] = if j < i and j + 7 >= i then sum(d) Y[b, i, d] * N[b, j, d] else -inf
        w[b, i, j] = exp(V - max(max(j) V, -1e30))
        N[b, i, d] = tanh(Y + 0.2 * sum(j) (if j < i then w * N[b, j, d] else 0))
        cost[b, l, at] = if l == 0 then x[b, at] else min(k) (cost[b, k, at] + cost[b, l - 1 - k, at + k + 1])
        output longest, Z, N, cost
        ",
    ),
    small(
        "groups_of_heads",
        "
        param M in 0..=64
        extent n(b) in 0..=40
        dim b = M, h = 8, t = n(b), d = 16, c = 20
        input X[b, h, t, d] : f32, K[b, g = 2, t, c] : f32
        F[b, h, t, d] = sum(c) X[b, h, t, d] * K[b, h / 4, t, c]
        H[b, h, t, d] = F + 0.5 * (H[b, h, t - 1, d] else 0)
        O[b, h, c] = sum(t) H[b, h, t, 3] * K[b, h / 4, t, c]
        output O
        ",
    ),
];

#[test]
fn recurrences() {
    check_all(PROGRAMS);
}
