//! Sums as long as the row or the column says, and constant sizes that no tile has: the compiler's own schedule for a grid puts
//! them in tiles too, with results as the reference interpreter has them, on every edge batch.

use crate::harness::{Case, message, program, report};
use crate::support::batches::edges;
use crate::support::in_parallel;
use cora::driver::lower_for;
use cora::ir::storage::Stmt;
use cora::ir::{Role, Scope};

/// Programs by the extent of the reduced loop.
const TRIANGLES: &[(&str, &str)] = &[
    (
        "below the diagonal",
        "dim i = N, k = i, n = N, j = N\ninput L[i, k] : f32, X[n, j] : f32\nC[i, j] = sum(k) L[i, k] * X[k, j]",
    ),
    (
        "beyond it",
        "dim i = N, k = i + 3, n = N + 2, j = N\ninput L[i, k] : f32, X[n, j] : f32\nC[i, j] = sum(k) L[i, k] * X[k, j]",
    ),
    (
        "two more a row",
        "dim i = N, k = 2 * i + 1, n = 2 * N, j = N\ninput L[i, k] : f32, X[n, j] : f32\nC[i, j] = sum(k) L[i, k] * X[k, j]",
    ),
    (
        "above it",
        "dim i = N, k = N - i, n = N, j = N\ninput L[i, k] : f32, X[n, j] : f32\nC[i, j] = sum(k) L[i, k] * X[k, j]",
    ),
    (
        "no more than 40",
        "dim i = N, k = min(i + 1, 40), n = N, j = N\ninput L[i, k] : f32, X[n, j] : f32\nC[i, j] = sum(k) L[i, k] * X[k, j]",
    ),
    (
        "by columns",
        "dim i = N, n = N, j = N, k = j + 1\ninput A[i, n] : f32, U[j, k] : f32\nC[i, j] = sum(k) A[i, k] * U[j, k]",
    ),
    (
        "by rows and columns",
        "dim i = N, n = N, j = N, k = min(i, j) + 1\ninput A[i, n] : f32, B[n, j] : f32\nC[i, j] = sum(k) A[i, k] * B[k, j]",
    ),
    (
        "of two reduced loops",
        "dim i = N, c = 3, k = i + 1, n = N, j = N\ninput L[i, c, k] : f32, X[c, n, j] : f32\nC[i, j] = sum(c, k) L[i, c, k] * X[c, k, j]",
    ),
    (
        "of rows in batches",
        "extent lens(b) in 0..=512\ndim b = N, q = lens(b), h = 3, k = lens(b) - q, n = lens(b), d = 64
        input P[b, q, h, k] : f32, V[b, n, d] : f32\nC[b, q, h, d] = sum(k) P[b, q, h, k] * V[b, k, d]",
    ),
];

/// Programs with sizes of rows, columns and steps that do not divide a tile.
const SIZES: &[(&str, &str)] = &[
    (
        "48 columns, 50 steps",
        "extent lens(b) in 0..=100\ndim b = N, q = lens(b), k = 50, n = 48
        input X[b, q, k] : f32, W[k, n] : f32\nC[b, q, n] = sum(k) X[b, q, k] * W[k, n]",
    ),
    (
        "33 columns, 31 steps",
        "extent lens(b) in 0..=100\ndim b = N, q = lens(b), k = 31, n = 33
        input X[b, q, k] : f32, W[k, n] : f32\nC[b, q, n] = sum(k) X[b, q, k] * W[k, n]",
    ),
    (
        "63 columns of another's rows, 3 steps",
        "extent lens(b) in 0..=100\ndim b = N, q = lens(b), k = 3, n = 63
        input X[b, q, k] : f32, W[n, k] : f32\nC[b, q, n] = sum(k) X[b, q, k] * W[n, k]",
    ),
    (
        "40 rows, 37 columns",
        "extent lens(b) in 0..=100\ndim b = N, r = 40, k = lens(b), n = 37
        input X[b, r, k] : f32, W[b, k, n] : f32\nC[b, r, n] = sum(k) X[b, r, k] * W[b, k, n]",
    ),
    (
        "17 rows of a triangle, 48 columns",
        "dim b = N, r = 17, k = r + 1, n = 48
        input X[b, r, k] : f32, W[b, r, n] : f32\nC[b, r, n] = sum(k) X[b, r, k] * W[b, k, n]",
    ),
];

/// Programs whose terms are those of tensor instructions.
const UNITS: &[(&str, &str)] = &[
    (
        "bias and activation, 40 columns, 50 steps",
        "extent lens(b) in 0..=100\ndim b = N, q = lens(b), k = 50, n = 40
        input X[b, q, k] : bf16, W[k, n] : bf16, B[n] : f32
        C[b, q, n] = bf16(max(0.0, B[n] + sum(k) f32(X[b, q, k]) * f32(W[k, n])))",
    ),
    (
        "scores of heads, transposed",
        "extent lens(b) in 0..=100\ndim b = N, h = 2, q = lens(b), r = lens(b), d = 24
        input Q[b, q, h, d] : f16\nC[b, h, q, r] = 0.5 * sum(d) f32(Q[b, q, h, d]) * f32(Q[b, r, h, d])",
    ),
    (
        "rows reduced as far as they go",
        "extent lens(b) in 0..=100\ndim b = N, h = 2, q = lens(b), r = lens(b), d = 64
        input P[b, h, q, r] : bf16, V[b, r, h, d] : bf16\nC[b, q, h, d] = sum(r) f32(P[b, h, q, r]) * f32(V[b, r, h, d])",
    ),
    (
        "two reduced loops, rounded",
        "extent lens(b) in 0..=100\ndim b = N, q = lens(b), h = 3, d = 20, n = 64
        input X[b, q, h, d] : f32, W[h, d, n] : f32\nC[b, q, n] = sum(h, d) tf32(X[b, q, h, d]) * tf32(W[h, d, n])",
    ),
    (
        "three column loops",
        "extent lens(b) in 0..=100\ndim b = N, q = lens(b), k = 64, c = 2, h = 3, d = 48
        input X[b, q, k] : bf16, W[k, c, h, d] : bf16\nC[b, q, c, h, d] = sum(k) f32(X[b, q, k]) * f32(W[k, c, h, d])",
    ),
    (
        "all ragged",
        "extent ms(b) in 0..=100, ns(b) in 0..=100, ks(b) in 0..=100\ndim b = N, i = ms(b), j = ns(b), k = ks(b)
        input X[b, i, k] : f16, Y[b, k, j] : f16\nC[b, i, j] = sum(k) f32(X[b, i, k]) * f32(Y[b, k, j])",
    ),
];

/// Programs of such terms that no instruction takes: only some of a tile count.
const PARTS: &[(&str, &str)] = &[(
    "up to the diagonal",
    "extent lens(b) in 0..=100\ndim b = N, q = lens(b), r = q + 1, t = lens(b), d = 48
    input P[b, q, r] : bf16, V[b, t, d] : bf16\nC[b, q, d] = sum(r) f32(P[b, q, r]) * f32(V[b, r, d])",
)];

#[test]
fn triangles_on_a_grid() {
    in_tiles(TRIANGLES, false);
}

#[test]
fn other_sizes_on_a_grid() {
    in_tiles(SIZES, false);
}

#[test]
fn tensor_instructions_on_a_grid() {
    in_tiles(UNITS, true);
    in_tiles(PARTS, false);
}

fn in_tiles(programs: &[(&str, &str)], units: bool) {
    report(&in_parallel(programs, |(name, text)| {
        let text = format!("param N in 0..=256\n{text}\noutput C\n");
        let source = match program(name, &text, &[]) {
            Ok(s) => s,
            Err(e) => return vec![e],
        };
        let cases = match Case::all(&source, &edges(&source.graph.env), |_, _| None) {
            Ok(c) => c,
            Err(e) => return vec![e],
        };
        let storage = match lower_for(&source, None, false, Some("sm_80"), &mut |_| {}) {
            Ok(l) => l.storage,
            Err(e) => return vec![format!("{name}: {}", message(e))],
        };
        let mut complaints = Vec::new();
        let copies = storage.env.tensors.iter().filter(|(_, t)| t.role == Role::Temp && t.scope == Scope::Shared);
        if copies.count() != 2 {
            complaints.push(format!("{name}: not in tiles"));
        }
        let tiles = storage.kernels.iter().any(|k| k.body.iter().any(|s| s.any(&mut |s| matches!(s, Stmt::Tile(_)))));
        if tiles != units {
            complaints.push(format!("{name}: tensor instructions: {tiles}"));
        }
        for case in &cases {
            let wrong = case.interpret(&source, &storage);
            complaints.extend(wrong.map(|w| format!("{name}, {}: {w}", case.name)));
        }
        complaints
    }));
}
