//! Padded loops whose reads move to other storage, and buffers that are an iteration's own.

use super::{Small, check_all, small};

const MOVED: &[Small] = &[
    small(
        "padded_loops_of_moved_stages",
        "
        param M in 0..=64
        extent lens(b) in 0..=96
        dim b = M, i = lens(b), v = 10, k = 8
        input ids[b, i] : i32 in 0..10
        const input E[v] : f32
        input A[b, i pad 4] : f32
        input Q[b, i, k] : f32
        T[b, i] = E[ids[b, i]] + 1.0
        S[b, i] = T[b, i] * 2.0
        U[b, i pad 4] = A[b, i] * 2.0 + 1.0
        V[b, i pad 4] = A[b, i] * 2.0 - 1.0
        C[b, i] = sum(k) Q[b, i, k] * E[k]
        D[b, i] = C[b, i] + 1.0
        F[b, i] = A[b, i] - 1.0
        G[b, i] = F[b, i] * 3.0
        output S, U, V, D, G
        schedule cpu {
            pad_dim T.i 64; pad_dim S.i 64; pad_loop S.i 64; compute_inline T
            pad_loop U.i 4; cache_read U.A -> Al local at U.b
            cache_read V.A -> Av local at V.b; pad_dim Av.i 4; pad_loop V.i 4
            pad_dim C.i 8; pad_dim D.i 8; pad_loop D.i 8; fuse D.b D.i -> f; compute_at C at D.f
            pad_dim F.i 4; pad_dim G.i 4; compute_at F at G.b; pad_loop G.i 4
        }
        ",
    ),
    small(
        "padded_rows_of_a_triangle",
        "
        param M in 0..=64
        extent lens(b) in 0..=40
        dim b = M, i = lens(b), j = i + 1
        input A[b, i] : f32
        S[b, i] = sum(j) A[b, j]
        T[b, i, j] = A[b, j] * 2.0
        U[b, i] = sum(j) T[b, i, j]
        output S, U
        schedule cpu {
            pad_dim S.i 8; pad_loop S.i 8
            pad_dim T.i 8; pad_loop T.i 8
            pad_dim U.i 8; pad_loop U.i 8
        }
        ",
    ),
    small(
        "factored_and_padded",
        "
        param M in 0..=64
        extent lens(b) in 0..=96
        dim b = M, i = lens(b), j = lens(b), k = 8
        input A[b, i, k] : f32
        input B[b, i, j] : f32
        T[b, i] = sum(k) A[b, i, k]
        m[b, i] = max(j) B[b, i, j]
        S[b, i] = T[b, i] + m[b, i]
        output S
        schedule cpu {
            pad_dim T.i 4; pad_loop T.i 4; rfactor T.k -> Tf
            pad_dim m.i 4; pad_loop m.i 4; rfactor m.j -> mf
            parallel mf.b
        }
        ",
    ),
    small(
        "shared_outside_a_grid",
        "
        param M in 0..=64
        extent lens(b) in 0..=96
        dim b = M, i = lens(b)
        input A[b, i] : f32
        S[b, i] = exp(A[b, i]) * 2.0 + 1.0
        T[b, i] = A[b, i] + 1.0
        U[b, i] = T[b, i] * T[b, i]
        P[b] = A[b, 5] else 0.0
        output S, U, P
        schedule cpu {
            cache_write S -> Sr shared at S.b; parallel S.b
            compute_at T at U.b; set_scope T shared; parallel U.b
            cache_read P.A -> Ap local at P.b layout(b)
        }
        ",
    ),
];

#[test]
fn padded_loops_and_moved_stages() {
    check_all(MOVED);
}
