//! Programs about extents and positions.

use super::{Small, check_all, small};
use crate::harness::{Case, Compiled, program, report};
use crate::support::batches::plan;

const POSITIONS: &[Small] = &[
    small(
        "neighbours",
        "
        param M in 0..=64
        extent lens(b) in 0..=128
        dim b = M, i = lens(b)
        input A[b, i] : f32
        Y[b, i] = (A[b, i - 1] else 0) + 2 * A[b, i] + (A[b, i + 1] else -1)
        output Y
        schedule cpu { fuse Y.b Y.i -> f; split Y.f 16 -> o, l; parallel Y.o; vectorize Y.l }
        ",
    ),
    small(
        "strided",
        "
        param M in 0..=64
        extent lens(b) in 0..=128
        dim b = M, i = lens(b), h = floordiv(lens(b), 2), c = ceildiv(lens(b), 3)
        input A[b, i] : f32
        Y[b, h] = A[b, 2 * h] - A[b, 2 * h + 1]
        Z[b, c] = A[b, 3 * c] + (A[b, 3 * c + 2] else 0)
        output Y, Z
        schedule cpu { parallel Y.b; vectorize Y.h 8; fuse Z.b Z.c -> f; parallel Z.f }
        ",
    ),
    small(
        "reversed",
        "
        param M in 0..=64
        extent lens(b) in 0..=128
        dim b = M, i = lens(b)
        input A[b, i] : f32
        Y[b, i] = A[b, lens(b) - 1 - i]
        output Y
        schedule cpu { split Y.i 14 -> io, ii tail(mask); fuse Y.b Y.io -> t; parallel Y.t; vectorize Y.ii }
        ",
    ),
    small(
        "lengths_of_neighbours",
        "
        param M in 0..=64
        extent lens(b) in 0..=128
        dim b = M, i = lens(b)
        input A[b, i] : f32
        Y[b] = if b + 1 < M then f32(lens(b + 1)) else -1.0
        Z[b] = if b > 0 and lens(b - 1) > 3 then A[b - 1, 3] else 0.5
        C[b, i] = A[b, i] * f32(lens(min(b + 1, M - 1)) - lens(b))
        output Y, Z, C
        ",
    ),
    small(
        "first_and_last",
        "
        param M in 1..=64
        extent lens(b) in 2..=128
        dim b = M, i = lens(b)
        input A[b, i] : f32
        Y[b] = A[b, 0] + A[b, 1] - A[b, lens(b) - 1] * A[0, 0]
        output Y
        ",
    ),
    small(
        "transposed",
        "
        param M in 0..=64
        extent lens(b) in 0..=96
        dim b = M, q = lens(b), k = lens(b)
        input S[b, q, k] : f32
        T[b, q, k] = S[b, k, q] - S[b, q, k]
        output T
        schedule cpu { split T.q 14 -> qo, qi; split T.k 16 -> ko, ki; reorder T: qo ko qi ki; fuse T.b T.qo -> t; parallel T.t; vectorize T.ki }
        ",
    ),
    small(
        "positions_as_values",
        "
        param M in 0..=64
        extent lens(b) in 0..=128
        dim b = M, i = lens(b)
        input A[b, i] : f32
        Y[b, i] = f32(i) / f32(lens(b)) + A[b, i]
        Z[b, i] = i64(i * b + M)
        C[b, i] = i < floordiv(lens(b), 2)
        output Y, Z, C
        ",
    ),
    small(
        "gathers",
        "
        param M in 0..=64
        const V = 37
        extent lens(b) in 0..=128
        dim b = M, t = lens(b), v = V, d = 5
        input ids[b, t] : i32 in 0..V
        input wild[b, t] : i64
        const input E[v, d] : f32
        X[b, t, d] = E[ids[b, t], d]
        Y[b, t] = E[wild[b, t], 0] else 7
        Z[b, t] = ids[b, ids[b, t]] else -1
        output X, Y, Z
        schedule cpu { fuse X.b X.t -> f; parallel X.f; vectorize X.d }
        ",
    ),
];

const EXTENTS: &[Small] = &[
    small(
        "falling_extents",
        "
        param M in 0..=64
        extent lens(b) in 0..=10
        dim b = M, i = 10 - lens(b), j = floordiv(20, lens(b) + 1), k = lens(b) % 3
        input A[b, i] : f32
        input B[b, j] : f32
        input C[b, k] : f32
        S[b, i] = A[b, i] + 1.0
        T[b] = sum(j) B[b, j]
        U[b, k] = C[b, k] * 2.0
        output S, T, U
        ",
    ),
    small(
        "three_levels",
        "
        param D in 0..=12
        extent sents(doc) in 0..=6
        extent words(doc, sent) in 0..=9
        extent chars(doc, sent, word) in 0..=17
        dim doc = D, sent = sents(doc), word = words(doc, sent), c = chars(doc, sent, word)
        input A[doc, sent, word, c] : f32
        Y[doc, sent, word, c] = A[doc, sent, word, c] * 2
        W[doc, sent, word] = sum(c) A[doc, sent, word, c]
        S[doc, sent] = max(word) W[doc, sent, word]
        T[doc] = sum(sent, word, c) Y[doc, sent, word, c]
        output Y, W, S, T
        schedule cpu { fuse Y.doc Y.sent Y.word Y.c -> f; parallel Y.f; fuse W.doc W.sent W.word -> f; parallel W.f }
        ",
    ),
    small(
        "two_lengths",
        "
        param M in 0..=64
        extent la(b) in 0..=96
        extent lb(b) in 0..=96
        dim b = M, i = la(b), j = lb(b)
        input A[b, i, j] : f32
        R[b, i] = sum(j) A[b, i, j]
        C[b, j] = sum(i) A[b, i, j]
        T[b, j, i] = A[b, i, j]
        output R, C, T
        schedule cpu { reorder C: i j; vectorize C.j 16; split T.i 16 -> io, ii; reorder T: io j ii; parallel T.b; vectorize R.j 8 }
        ",
    ),
    small(
        "extent_of_two_indices",
        "
        param N in 0..=7, M in 0..=9
        extent w(a, b) in 0..=40
        dim a = N, b = M, k = w(a, b)
        input A[a, b, k] : f32
        Y[a, b, k] = A[a, b, k] + 1
        S[b] = sum(a, k) A[a, b, k]
        X[a] = max(b, k) A[a, b, k]
        output Y, S, X
        schedule cpu { fuse Y.a Y.b Y.k -> f; split Y.f 14 -> o, l tail(mask); parallel Y.o; parallel S.b }
        ",
    ),
    small(
        "triangular",
        "
        param N in 0..=65
        dim i = N, j = i + 1, u = N - i, n = N
        input L[i, j] : f32
        input U[i, u] : f32
        input x[n] : f32
        Y[i] = sum(j) L[i, j] * x[j]
        Z[i] = sum(u) U[i, u] * x[i + u]
        T[i, j] = L[i, j] * x[j]
        output Y, Z, T
        schedule cpu { fuse T.i T.j -> f; split T.f 16 -> o, l; parallel T.o; vectorize T.l; parallel Y.i; vectorize Y.j 8 }
        ",
    ),
    small(
        "banded",
        "
        param N in 0..=65
        const W = 5
        dim i = N, j = min(W, N - i), n = N
        input A[i, j] : f32
        input x[n] : f32
        Y[i] = sum(j) A[i, j] * x[i + j]
        output Y
        ",
    ),
    small(
        "running_sums",
        "
        param M in 0..=64
        extent lens(b) in 0..=96
        dim b = M, i = lens(b), j = i + 1
        input A[b, i] : f32
        Y[b, i] = sum(j) A[b, j]
        Z[b, i] = max(j) A[b, i - j]
        output Y, Z
        schedule cpu { fuse Y.b Y.i -> f; parallel Y.f; vectorize Y.j 8 }
        ",
    ),
    small(
        "window",
        "
        param M in 0..=64
        const W = 4
        extent lens(b) in 0..=96
        dim b = M, q = lens(b), w = min(W, q + 1), d = 8
        input Q[b, q, d] : f32
        input K[b, q, d] : f32
        S[b, q, w] = sum(d) Q[b, q, d] * K[b, q - w, d]
        m[b, q] = max(w) S[b, q, w]
        output S, m
        ",
    ),
    small(
        "windows_of_tiles",
        "
        param M in 0..=64
        extent lens(b) in 0..=512
        dim b = M, q = lens(b), k = lens(b), d = 8
        input X[b, q, d] : f32
        S[b, q, k] = if k <= q and k > q - 100 then sum(d) X[b, q, d] * X[b, k, d] else -inf
        m[b, q] = max(k) S
        e[b, q, k] = exp(S - m)
        O[b, q, d] = (sum(k) e[b, q, k] * X[b, k, d]) / sum(k) e
        A[b, q, k] = if k <= q and k / 64 == q / 64 then sum(d) X[b, q, d] * X[b, k, d] else 0.0
        P[b, q, d] = sum(k) A[b, q, k] * X[b, k, d]
        output O, P
        ",
    ),
    small(
        "concatenation",
        "
        param M in 0..=64
        extent la(b) in 0..=96
        extent lb(b) in 0..=96
        dim b = M, i = la(b), j = lb(b), t = la(b) + lb(b)
        input A[b, i] : f32
        input B[b, j] : f32
        Y[b, t] = if t < la(b) then A[b, t] else B[b, t - la(b)]
        output Y
        schedule cpu { fuse Y.b Y.t -> f; parallel Y.f }
        ",
    ),
    small(
        "longest_of_both",
        "
        param M in 0..=64
        extent la(b) in 0..=96
        extent lb(b) in 0..=96
        dim b = M, i = la(b), j = lb(b), t = max(la(b), lb(b)), s = min(la(b), lb(b))
        input A[b, i] : f32
        input B[b, j] : f32
        Y[b, t] = (A[b, t] else 0) + (B[b, t] else 0)
        Z[b] = sum(s) A[b, s] * B[b, s]
        output Y, Z
        ",
    ),
    small(
        "two_ragged_sums",
        "
        param M in 0..=64
        extent la(b) in 0..=96
        extent lb(b) in 0..=96
        dim b = M, i = la(b), j = lb(b)
        input A[b, i] : f32
        input B[b, j] : f32
        S[b] = sum(i, j) A[b, i] * B[b, j]
        X[b] = max(i, j) A[b, i] * B[b, j]
        output S, X
        ",
    ),
    small(
        "scalars_and_constants",
        "
        param M in 0..=64
        extent lens(b) in 0..=96
        dim b = M, i = lens(b)
        input A[b, i] : f32
        T = sum(b, i) A[b, i]
        N = sum(b, i) 1
        C = 2.5
        R[b] = 3
        F[b, i] = -0.5
        Y[b] = T * f32(b)
        output T, N, C, R, F, Y
        ",
    ),
    small(
        "dense_with_least_sizes",
        "
        param M in 1..=65, K in 3..=50
        dim i = M, j = M, k = K
        input A[i, k] : f32
        input B[k, j] : f32
        C[i, j] = sum(k) A[i, k] * B[k, j]
        E[i] = A[i, 2] - A[0, 0] * B[2, 0]
        output C, E
        schedule cpu { split C.i 6 -> io, ii; split C.j 16 -> jo, ji; reorder C: io jo k ii ji; parallel C.io; vectorize C.ji; unroll C.ii }
        ",
    ),
    small(
        "padded_storage",
        "
        param M in 0..=64
        extent lens(b) in 0..=96
        dim b = M, i = lens(b), j = lens(b)
        input A[b, i pad 4, j pad 8] : f32
        B[b, i pad 16] = sum(j) A[b, i, j]
        C[b, i pad 2] = B[b, i] + 1
        S[b pad 3] = sum(i) B[b, i]
        output B, C, S
        schedule cpu { pad_loop C.i 2; fuse C.b C.i -> f; parallel C.f; split S.b 3 -> bo, bi; parallel S.bo }
        ",
    ),
];

#[test]
fn positions() {
    check_all(POSITIONS);
}

#[test]
fn extents() {
    check_all(EXTENTS);
}

#[test]
fn many_tiny_rows() {
    let text = "
        param M in 0..=30000
        extent lens(b) in 0..=3
        dim b = M, i = lens(b), d = 3
        input A[b, i, d] : f32
        Y[b, i, d] = A[b, i, d] * 2
        S[b, d] = sum(i) A[b, i, d]
        T[d] = max(b) S[b, d]
        output Y, S, T
        schedule cpu { fuse Y.b Y.i Y.d -> f; split Y.f 64 -> o, l; parallel Y.o; vectorize Y.l 16; parallel S.b }
    ";
    let source = program("many_tiny_rows", text, &[]).unwrap_or_else(|e| panic!("{e}"));
    let mut complaints = Vec::new();
    let plans = [plan("30000 rows", 30000, &[0, 1, 2, 0, 0, 3, 1]), plan("30000 empty rows", 30000, &[0])];
    let cases = Case::all(&source, &plans, |_, _| None).unwrap_or_else(|e| panic!("{e}"));
    for (form, schedule) in [("own schedule", source.graph.schedule("cpu")), ("default schedule", None)] {
        match Compiled::new(&source, schedule, false) {
            Ok(c) => complaints.extend(c.check(&source, form, &cases)),
            Err(e) => complaints.push(format!("{form}: {e}")),
        }
    }
    report(&complaints);
}
