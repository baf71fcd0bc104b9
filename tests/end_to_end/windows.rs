//! Windows that masks leave, along which rows of tiles begin and end together: results as the reference interpreter has them on
//! batches of rows around those tiles, where they are taken apart and where nothing is.

use crate::harness::{Case, Compiled, message, program, report};
use crate::support::batches::{edges, edges_around};
use crate::support::in_parallel;
use cora::driver::lower;
use cora::ir::storage::StorageModule;

/// Masks of scores, and whether they leave windows longer than tiles of rows as long as the batch says.
const MASKS: &[(&str, &str, bool)] = &[
    ("the last 100", "k <= q and k > q - 100", true),
    ("50 to both sides", "k <= q + 50 and q - k <= 50", true),
    ("100 from its own on", "k >= q and k < q + 100", true),
    ("some farther on, where rows may have none", "k < q + 150 and k > q + 20", false),
    ("as many as a row may have", "k <= q and k > q - n(b)", true),
    ("the last 20", "k <= q and k > q - 20", false),
    ("every second row a step", "k <= q / 2 and k > q / 2 - 100", true),
];

/// The same scores with heads of their own, with heads that share keys, and of a constant number of rows.
fn attention(mask: &str) -> [(&'static str, String); 3] {
    let of = |rows: &str, heads: &str, keys: &str| {
        format!(
            "param N in 0..=40\nextent lens(b) in 0..=400\nextent n(b) in 0..=100
            dim b = N, q = {rows}, k = {rows}, d = 5, h = 4, g = 2
            input Q[b, q, h, d] : f32, K[b, k, {heads}, d] : f32, V[b, k, {heads}, d] : f32
            S[b, h, q, k] = if {mask} then 0.5 * sum(d) Q * K[b, k, {keys}, d] else -inf
            m[b, h, q] = max(k) S\ne[b, h, q, k] = exp(S - m)\ns[b, h, q] = sum(k) e
            O[b, q, h, d] = (sum(k) e * V[b, k, {keys}, d]) / (if s == 0 then 1 else s)\noutput O\n"
        )
    };
    [("heads", of("lens(b)", "h", "h")), ("shared", of("lens(b)", "g", "h / 2")), ("constant", of("220", "h", "h"))]
}

/// Whether intermediates have tiles of rows.
fn in_tiles(m: &StorageModule) -> bool {
    m.env.tensors.iter().any(|(_, t)| t.name == "e" && t.dims.iter().any(|d| d.name == "q_o"))
}

#[test]
fn windows_in_tiles() {
    report(&in_parallel(MASKS, |&(name, mask, long)| {
        let forms = attention(mask).into_iter();
        let expected = |form| (form != "constant").then_some(long);
        forms.flat_map(|(form, text)| checked(&format!("{name}, {form}"), &text, expected(form))).collect()
    }));
}

fn checked(name: &str, text: &str, long: Option<bool>) -> Vec<String> {
    let source = match program(name, text, &[]) {
        Ok(s) => s,
        Err(e) => return vec![e],
    };
    let storage = match lower(&source, None, false, &mut |_| {}) {
        Ok(l) => l.storage,
        Err(e) => return vec![format!("{name}: {}", message(e))],
    };
    let mut plans = edges_around(&source.graph.env, &[42, 48, 96, 100, 151, 200]);
    plans.extend(edges(&source.graph.env).into_iter().take(2));
    let cases = Case::all(&source, &plans, |_, _| None);
    let native = |cases: Vec<Case>| Compiled::of(&storage).map(|c| c.check(&source, name, &cases));
    let mut complaints = cases.and_then(native).unwrap_or_else(|e| vec![e]);
    if let Some(long) = long.filter(|&l| l != in_tiles(&storage)) {
        complaints.push(format!("{name}: in tiles: {}", !long));
    }
    complaints
}
