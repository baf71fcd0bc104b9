//! Programs whose tensors are addressed through the position arrays of sparse compilers, for comparison.

use crate::tool::{file, refuses, succeeds};
use std::collections::BTreeMap;

const PROGRAM: &str = "param D in 0..=8
extent sents(d) in 0..=9
dim d = D, s = sents(d)
extent words(d, s) in 0..=7
dim w = words(d, s), v = words(d, s), h = 3
input X[d, s, w, h, v] : f32
Y[d, s, w, h] = sum(v) X[d, s, w, h, v]
output Y
schedule cpu { fuse Y.d Y.s Y.w -> t; parallel Y.t }
";

/// The arrays have one entry for each position of the level outside and one for the end, results are the reference's,
/// and what our own tables would take is reported beside.
#[test]
fn position_arrays() {
    let program = file("csf.cora", PROGRAM);
    let (sents, words) = (file("csf.sents", "2 0 1"), file("csf.words", "3 1 2"));
    let (sents, words) = (format!("sents={sents}"), format!("words={words}"));
    let run = ["run", &program, "--csf", "--check", "--poison", "--json", "--param", "D=3"];
    let lengths = ["--lengths", &sents, "--lengths", &words];
    let out = succeeds(&[&run[..], &lengths[..]].concat());
    let report: serde_json::Value = serde_json::from_str(&out).expect("one object");
    assert_eq!(report["ok"], true);
    let tables: BTreeMap<&str, u64> = report["tables"]
        .as_array()
        .expect("tables")
        .iter()
        .map(|t| (t["name"].as_str().unwrap_or_default(), t["bytes"].as_u64().unwrap_or(0)))
        .collect();
    // Three documents, three sentences, six words with three heads each.
    let want = [("X.pos1", 4), ("X.pos2", 4), ("X.pos4", 6 * 3 + 1), ("Y.pos1", 4), ("Y.pos2", 4)];
    for (name, entries) in want {
        assert_eq!(tables.get(name), Some(&(4 * entries)), "{name}: {tables:?}");
    }
    let (all, own) = (tables.values().sum::<u64>(), report["own_prelude"]["bytes"].as_u64().expect("bytes"));
    assert!(0 < own && own < all, "{own} of {all}");
}

/// Whole examples, natively, with every element compared.
#[test]
fn examples_run_on_position_arrays() {
    let lengths = format!("lens={}", file("csf.lens", "5 0 17 1 9 0 32 3"));
    for name in ["sdpa", "ragged_softmax", "layer_norm"] {
        let program = format!("examples/{name}.cora");
        let run = ["run", &program, "--csf", "--check", "--poison", "--param", "M=8", "--lengths", &lengths];
        succeeds(&run);
        let run = ["run", &program, "--no-hoist-loads", "--check", "--param", "M=8", "--lengths", &lengths];
        succeeds(&run);
    }
}

#[test]
fn refused_where_nothing_is_built() {
    let program = file("csf_interp.cora", PROGRAM);
    refuses(&["run", &program, "--csf", "--target", "interp"], "E0613", &["--csf"]);
    refuses(&["compile", &program, "--csf", "--emit", "graph"], "E0613", &["--csf"]);
}
