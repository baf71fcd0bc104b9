//! Tiles given to a BLAS found at run time, on every edge batch. SKIP where there is none.

use crate::harness::report;
use crate::programs::{Small, check, small};
use crate::support::in_parallel;
use crate::support::skip::skip;

const PROGRAMS: &[Small] = &[
    small(
        "vgemm, one product a row",
        "
        param B in 0..=16
        extent m(b) in 0..=40, n(b) in 0..=40, k(b) in 0..=40
        dim b = B, i = m(b), j = n(b), l = k(b)
        input X[b, i, l] : f32
        input Y[b, l, j] : f32
        Z[b, i, j] = sum(l) X[b, i, l] * Y[b, l, j]
        output Z
        schedule cpu { parallel Z.b; offload Z.i }
        ",
    ),
    small(
        "vgemm, tiles with ragged edges, reduced in pieces",
        "
        param B in 0..=16
        extent m(b) in 0..=40, n(b) in 0..=40, k(b) in 0..=40
        dim b = B, i = m(b), j = n(b), l = k(b)
        input X[b, i, l] : f64
        input Y[b, l, j] : f64
        Z[b, i, j] = sum(l) X[b, i, l] * Y[b, l, j]
        output Z
        schedule cpu {
          split Z.i 16 -> io, i tail(mask)
          split Z.j 12 -> jo, j
          split Z.l 8 -> lo, l tail(mask)
          reorder Z: b io jo lo i j l
          fuse Z.b Z.io Z.jo -> t
          parallel Z.t
          offload Z.i
        }
        ",
    ),
    small(
        "projection of a fused ragged loop, heads as columns, bias",
        "
        param M in 0..=16
        const H = 3, D = 8, DM = 20
        extent lens(b) in 0..=40
        dim b = M, q = lens(b), h = H, d = D, e = DM
        input X[b, q, e] : f32
        const input W[e, h, d] : f32
        input bias[h, d] : f32
        P[b, q, h, d] = sum(e) X[b, q, e] * W[e, h, d]
        Y[b, q, h, d] = P[b, q, h, d] + bias[h, d]
        output Y
        schedule cpu {
          fuse P.b P.q -> f
          split P.f 14 -> t, f
          parallel P.t
          offload P.f
        }
        ",
    ),
    small(
        "transposed factors and result",
        "
        param M in 0..=16
        extent lens(b) in 0..=40
        dim b = M, i = lens(b), j = lens(b), d = 12
        input K[b, j, d] : f32
        input Q[b, d, i] : f32
        S[b, j, i] = sum(d) Q[b, d, i] * K[b, j, d]
        T[b, i, j] = sum(d) Q[b, d, i] * K[b, j, d]
        output S, T
        schedule cpu { offload S.j; reorder T: b d j i; offload T.d }
        ",
    ),
    small(
        "attention: products through local buffers",
        "
        param M in 0..=8
        extent lens(b) in 0..=40
        dim b = M, q = lens(b), k = lens(b), h = 2, d = 8
        input Q[b, q, h, d] : f32
        input K[b, k, h, d] : f32
        input V[b, k, h, d] : f32
        S[b, h, q, k] = sum(d) Q[b, q, h, d] * K[b, k, h, d]
        E[b, h, q, k] = exp(0.25 * S[b, h, q, k])
        O[b, q, h, d] = sum(k) E[b, h, q, k] * V[b, k, h, d]
        output O
        schedule cpu {
          split O.q 6 -> qo, q
          reorder O: b qo h q d
          fuse O.b O.qo O.h -> t
          parallel O.t
          compute_at E at O.t
          compute_at S at O.t
          offload S.q
          offload O.q
        }
        ",
    ),
    small(
        "vectors",
        "
        param M in 0..=8
        extent lens(b) in 0..=40
        dim b = M, i = lens(b), j = lens(b)
        input A[b, i, j] : f64
        input x[b, j] : f64
        y[b, i] = sum(j) A[b, i, j] * x[b, j]
        z[b] = sum(i) y[b, i] * x[b, i]
        output y, z
        schedule cpu { parallel y.b; offload y.i; offload z.i }
        ",
    ),
];

#[test]
fn offloaded() {
    if let Err(e) = cora::runtime::blas::library() {
        skip(&format!("offloaded: {e}"));
        return;
    }
    report(&in_parallel(PROGRAMS, |p| check(p.name, p.text, p.fill)));
}
