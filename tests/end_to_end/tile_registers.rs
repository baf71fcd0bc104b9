//! Products of two factors that come with each call, and convolutions along rows and products by weights, in tiles by the
//! compiler's own schedules for a processor with tile registers and for those with instructions for one row: results as the reference interpreter has them on batches of rows, columns and
//! terms around the tiles. Where this processor has no such registers the tiles are computed by other instructions.

use crate::harness::{Case, Compiled, message, program, report};
use crate::support::batches::{edges, edges_around};
use crate::support::in_parallel;
use cora::driver::{Form, lower_form};
use cora::ir::intrinsic::Features;
use cora::ir::storage::Stmt;

/// A name, how many tiles are written out, and the text.
type Program = (&'static str, usize, &'static str);

/// Products of two factors that come with each call.
const PRODUCTS: &[Program] = &[
    (
        "rows, columns and terms vary",
        4,
        "extent m(b) in 0..=300, n(b) in 0..=300, k(b) in 0..=300\ndim b = N, i = m(b), j = n(b), l = k(b)
        input X[b, i, l] : bf16, Y[b, l, j] : bf16\nC[b, i, j] = sum(l) f32(X) * f32(Y)",
    ),
    (
        "more columns than a task's",
        4,
        "extent m(b) in 0..=40, n(b) in 0..=600\ndim b = N, i = m(b), j = n(b), l = 40
        input X[b, i, l] : bf16, Y[b, j, l] : bf16\nC[b, i, j] = sum(l) f32(X) * f32(Y)",
    ),
    (
        "bytes",
        4,
        "extent m(b) in 0..=100, n(b) in 0..=100, k(b) in 0..=200\ndim b = N, i = m(b), j = n(b), l = k(b)
        input X[b, i, l] : i8, Y[b, l, j] : i8\nC[b, i, j] = sum(l) i32(X) * i32(Y)",
    ),
    (
        "bytes of two rows",
        4,
        "extent m(b) in 0..=100, n(b) in 0..=100\ndim b = N, i = m(b), j = n(b), l = 100
        input X[b, i, l] : i8, Y[b, j, l] : i8\nC[b, i, j] = sum(l) i32(X) * i32(Y)",
    ),
    (
        "attention",
        8,
        "extent lens(b) in 0..=200\ndim b = N, q = lens(b), k = lens(b), h = 2, d = 32, e = 40
        input Q[b, h, q, d] : bf16, K[b, h, k, d] : bf16, V[b, h, k, e] : bf16
        S[b, h, q, k] = 0.25 * sum(d) f32(Q) * f32(K)\nm[b, h, q] = max(k) S
        E[b, h, q, k] = bf16(exp(S - m))\nz[b, h, q] = sum(k) f32(E)
        C[b, h, q, e] = (sum(k) f32(E) * f32(V)) / z",
    ),
    (
        "attention to another sequence, heads in the tokens",
        8,
        "extent lens(b) in 0..=200, other(b) in 1..=200\ndim b = N, q = lens(b), k = other(b), h = 2, d = 40
        input Q[b, q, h, d] : bf16, K[b, k, h, d] : bf16, V[b, k, h, d] : bf16
        S[b, h, q, k] = 0.25 * sum(d) f32(Q) * f32(K)\nm[b, h, q] = max(k) S
        E[b, h, q, k] = bf16(exp(S - m))\nz[b, h, q] = sum(k) f32(E)
        C[b, q, h, d] = (sum(k) f32(E) * f32(V)) / z",
    ),
    (
        "attention in tasks of rows",
        8,
        "extent lens(b) in 0..=2000\ndim b = N, q = lens(b), k = lens(b), h = 2, d = 32
        input Q[b, h, q, d] : bf16, K[b, h, k, d] : bf16, V[b, h, k, d] : bf16
        S[b, h, q, k] = 0.25 * sum(d) f32(Q) * f32(K)\nm[b, h, q] = max(k) S
        E[b, h, q, k] = bf16(exp(S - m))\nz[b, h, q] = sum(k) f32(E)
        C[b, h, q, d] = (sum(k) f32(E) * f32(V)) / z",
    ),
    (
        "attention to the last 100, the terms of whose values begin anywhere",
        4,
        "extent lens(b) in 0..=400\ndim b = N, q = lens(b), k = lens(b), h = 2, d = 32
        input Q[b, h, q, d] : bf16, K[b, h, k, d] : bf16, V[b, h, k, d] : bf16
        S[b, h, q, k] = if k <= q and k > q - 100 then 0.25 * (sum(d) f32(Q) * f32(K)) else -inf\nm[b, h, q] = max(k) S
        E[b, h, q, k] = bf16(exp(S - m))\nz[b, h, q] = sum(k) f32(E)
        C[b, h, q, d] = (sum(k) f32(E) * f32(V)) / z",
    ),
    (
        "attention to those before",
        4,
        "extent lens(b) in 0..=400\ndim b = N, q = lens(b), k = lens(b), h = 2, d = 32
        input Q[b, h, q, d] : bf16, K[b, h, k, d] : bf16, V[b, h, k, d] : bf16
        S[b, h, q, k] = if k <= q then 0.25 * (sum(d) f32(Q) * f32(K)) else -inf\nm[b, h, q] = max(k) S
        E[b, h, q, k] = bf16(exp(S - m))\nz[b, h, q] = sum(k) f32(E)
        C[b, h, q, d] = (sum(k) f32(E) * f32(V)) / z",
    ),
    (
        "attention to those before, in tasks of rows, heads that share keys",
        4,
        "extent lens(b) in 0..=2000\ndim b = N, q = lens(b), k = lens(b), g = 2, r = 3, d = 32
        input Q[b, q, g, r, d] : bf16, K[b, k, g, d] : bf16, V[b, k, g, d] : bf16
        S[b, g, r, q, k] = if k <= q then 0.25 * (sum(d) f32(Q) * f32(K)) else -inf\nm[b, g, r, q] = max(k) S
        E[b, g, r, q, k] = bf16(exp(S - m))\nz[b, g, r, q] = sum(k) f32(E)
        C[b, q, g, r, d] = (sum(k) f32(E) * f32(V)) / z",
    ),
    (
        "heads that share keys",
        8,
        "extent lens(b) in 0..=300\ndim b = N, q = lens(b), k = lens(b), g = 2, r = 3, d = 32
        input Q[b, q, g, r, d] : bf16, K[b, k, g, d] : bf16, V[b, k, g, d] : bf16
        S[b, g, r, q, k] = 0.25 * sum(d) f32(Q) * f32(K)\nm[b, g, r, q] = max(k) S
        E[b, g, r, q, k] = bf16(exp(S - m))\nz[b, g, r, q] = sum(k) f32(E)
        C[b, q, g, r, d] = (sum(k) f32(E) * f32(V)) / z",
    ),
    (
        "as many terms as rows before, and one",
        0,
        "extent m(b) in 0..=200, n(b) in 0..=100\ndim b = N, i = m(b), j = n(b), l = i + 1
        input X[b, i, l] : i8, Y[b, i, j] : i8\nC[b, i, j] = sum(l) i32(X) * i32(Y[b, l, j])",
    ),
    (
        "bytes of scores, those before and more",
        4,
        "extent lens(b) in 0..=200\ndim b = N, q = lens(b), k = lens(b), d = 64
        input Q[b, q, d] : i8, K[b, k, d] : i8
        C[b, q] = max(k) (if k <= q + 20 then sum(d) i32(Q) * i32(K) else -5)",
    ),
    (
        "two matrices",
        4,
        "param I in 0..=200, J in 0..=300, K in 0..=100\ndim i = I, j = J, l = K
        input X[i, l] : bf16, Y[l, j] : bf16\nC[i, j] = sum(l) f32(X) * f32(Y)",
    ),
    (
        "rows of a batch by a factor that is computed in each",
        4,
        "extent n(b) in 0..=100\ndim b = N, t = n(b), o = 80, c = 70\ninput X[b, t, c] : i8, W[o, c] : i8, s[c] : i8
        F[o, c] = i8(2 * i32(W) + i32(s))\nC[b, t, o] = i32(sum(c) i32(X) * i32(F)) - 1",
    ),
];

/// The same of convolutions with a const factor.
const CONVOLUTIONS: &[Program] = &[
    (
        "zeros beyond the ends",
        4,
        "extent n(b) in 0..=300\ndim b = N, t = n(b), o = 64, w = 3, c = 32
        input X[b, t, c] : bf16\nconst input F[w, c, o] : bf16
        C[b, t, o] = sum(w, c) f32(X[b, t + w - 1, c] else 0) * f32(F)",
    ),
    (
        "positions before, bytes less their zero points",
        4,
        "extent n(b) in 0..=300\ndim b = N, t = n(b), o = 32, w = 4, c = 64
        input X[b, t, c] : i8, Z[b] : i32\nconst input F[w, c, o] : i8, U[o] : i32
        C[b, t, o] = sum(w, c) (i32(X[b, t - w, c] else 0) - Z) * (i32(F) - U)",
    ),
    (
        "every second position",
        2,
        "extent n(b) in 0..=300\ndim b = N, s = 2 * n(b) + 1, t = n(b), o = 16, w = 3, c = 64
        input X[b, s, c] : i8\nconst input F[w, c, o] : i8\nC[b, t, o] = sum(w, c) i32(X[b, 2 * t + w, c]) * i32(F)",
    ),
    (
        "images",
        4,
        "extent h(b) in 0..=40, n(b) in 0..=300\ndim b = N, y = h(b), x = n(b), o = 32, i = 3, j = 3, c = 32
        input X[b, y, x, c] : bf16\nconst input F[i, j, c, o] : bf16
        C[b, y, x, o] = sum(i, j, c) f32(X[b, y + i - 1, x + j - 1, c] else 0) * f32(F)",
    ),
    (
        "a factor computed of weights",
        4,
        "extent n(b) in 0..=300\ndim b = N, t = n(b), o = 64, c = 64
        input X[b, t, c] : bf16\nconst input F[o, c] : f32, S[o] : f32\nW[o, c] = bf16(F * S)
        C[b, t, o] = sum(c) f32(X) * f32(W)",
    ),
    (
        "weights that are rounded to bytes",
        4,
        "extent n(b) in 0..=300\ndim b = N, t = n(b), o = 64, c = 64
        input X[b, t, c] : i8\nconst input F[o, c] : f32\ns[o] = max(c) abs(F)
        W[o, c] = i8(round(100.0 * F / max(s, 0.01)))
        C[b, t, o] = s * f32(sum(c) i32(X) * i32(W))",
    ),
    (
        "terms that fill no tile",
        0,
        "extent n(b) in 0..=300\ndim b = N, t = n(b), o = 40, w = 3, c = 20
        input X[b, t, c] : i8\nconst input F[w, c, o] : i8
        C[b, t, o] = sum(w, c) i32(X[b, t + w - 1, c] else 0) * i32(F)",
    ),
];

#[test]
fn products_in_tile_registers() {
    in_tiles(PRODUCTS);
}

#[test]
fn convolutions_in_tile_registers() {
    in_tiles(CONVOLUTIONS);
}

/// Of tiles of one row there are others: as many as lie in registers side by side.
#[test]
fn products_by_instructions_for_a_row() {
    let without_tiles = |feature: &str| !feature.starts_with("amx");
    check(PRODUCTS.iter(), 1, without_tiles, |found, _| found > 0);
    // Bytes are multiplied for 8 columns at a time by older processors.
    let of_bytes = PRODUCTS.iter().filter(|p| p.2.contains(": i8"));
    check(of_bytes, 1, |feature| ["avx", "avx2"].contains(&feature), |found, _| found > 0);
}

/// Checks programs, and how many tiles they have.
fn in_tiles(programs: &[Program]) {
    check(programs.iter(), 16, |_| true, |found, tiles| found == tiles);
}

/// Checks programs by instructions for tiles of so many rows on a processor with some features, and whether as many as `fit`
/// are used.
fn check<'a>(
    programs: impl Iterator<Item = &'a Program>,
    rows: i64,
    has: impl Fn(&str) -> bool + Sync,
    fit: impl Fn(usize, usize) -> bool + Sync,
) {
    let programs: Vec<&Program> = programs.collect();
    report(&in_parallel(&programs, |&&(name, tiles, text)| {
        let text = format!("param N in 0..=40\n{text}\noutput C\n");
        let source = match program(name, &text, &[]) {
            Ok(s) => s,
            Err(e) => return vec![e],
        };
        let form = Form { features: Features::of(&has), ..Form::default() };
        let storage = match lower_form(&source, None, form, &mut |_| {}) {
            Ok(l) => l.storage,
            Err(e) => return vec![format!("{name}: {}", message(e))],
        };
        let mut found = 0;
        for s in storage.kernels.iter().flat_map(|k| &k.body) {
            s.walk(&mut |s| found += usize::from(matches!(s, Stmt::Tile(t) if t.intrinsic.get().tile[0] == rows)));
        }
        if !fit(found, tiles) {
            return vec![format!("{name}: {found} tiles")];
        }
        let mut plans = edges_around(&source.graph.env, &[16, 32, 64, 128]);
        plans.extend(edges(&source.graph.env).into_iter().take(2));
        let cases = Case::all(&source, &plans, |_, _| None);
        let checked = |cases: Vec<Case>| Compiled::of(&storage).map(|c| c.check(&source, name, &cases));
        cases.and_then(checked).unwrap_or_else(|e| vec![e])
    }));
}
