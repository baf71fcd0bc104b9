//! Programs whose schedules say when and where data is.

use super::{Small, check_all, small};

const PROGRAMS: &[Small] = &[
    small(
        "two slots over ragged trip counts",
        "
        param M in 0..=64
        extent lens(b) in 0..=40
        dim b = M, i = lens(b), j = 21, k = lens(b)
        input A[b, i, k] : f32
        input B[b, k, j] : f32
        Y[b, i, j] = sum(k) A[b, i, k] * B[b, k, j]
        output Y
        schedule cpu {
          split Y.i 4 -> io, ii;  split Y.k 8 -> ko, ki
          reorder Y: b io ko ii ki j
          cache_read Y.B -> Bl local at Y.ko
          storage_align Bl.k 16
          double_buffer Bl
          bind Y.ii vthread
          vectorize Y.j 16
          parallel Y.b
          prefetch Y.A at Y.ko 2
        }
        ",
    ),
    small(
        "two slots of a producer",
        "
        param M in 0..=64
        extent lens(b) in 0..=40
        dim b = M, i = lens(b), d = 12
        input A[b, i, d] : f32
        input W[d] : f32
        P[b, i, d] = exp(0.1 * A[b, i, d]) * W[d]
        Y[b, i] = sum(d) P[b, i, d] * P[b, i, d]
        output Y
        schedule cpu { fuse Y.b Y.i -> f; split Y.f 3 -> fo, f; compute_at P at Y.f; double_buffer P; unroll Y.f; parallel Y.fo }
        ",
    ),
    small(
        "a gather ahead",
        "
        param M in 0..=64
        extent lens(b) in 0..=40
        dim b = M, i = lens(b), v = 50, e = 40
        input ids[b, i] : i32 in 0..50
        const input T[v, e] : f32
        Y[b, e] = sum(i) T[ids[b, i], e]
        output Y
        schedule cpu { reorder Y: b i e; vectorize Y.e 16; prefetch Y.T at Y.i 3 locality 1; parallel Y.b }
        ",
    ),
    small(
        "rows apart",
        "
        param M in 0..=64
        extent lens(b) in 0..=40
        dim b = M, i = lens(b), j = lens(b), d = 5
        input A[b, i, d] : f32
        P[b, i, d] = exp(A[b, i, d])
        S[b, i, j] = sum(d) P[b, i, d] * P[b, j, d]
        Y[b, i] = sum(j) S[b, i, j]
        output Y
        schedule cpu { storage_align P.i 8 offset 3; storage_align S.b 16; vectorize P.d 4; parallel Y.b }
        ",
    ),
    small(
        "instances side by side, with buffers of their own and some that there are not",
        "
        param M in 0..=64
        extent lens(b) in 0..=40
        dim b = M, i = lens(b), d = 24
        input A[b, i, d] : f32
        E[b, i, d] = exp(0.1 * A[b, i, d])
        Y[b, i] = sum(d) E[b, i, d] * E[b, i, d]
        output Y
        schedule cpu {
          split Y.i 3 -> io, ii
          compute_at E at Y.ii
          bind Y.ii vthread
          vectorize E.d 8
          parallel Y.b
        }
        ",
    ),
];

#[test]
fn memory() {
    check_all(PROGRAMS);
}
