//! What programs compute, by the reference interpreter: borders, gathers, arg reductions, empty rows.

mod common;

use cora_frontend::parse_program;
use cora_ir::UfDef;
use cora_ir::interp::{Batch, Data, Options, run_graph};

/// Runs a program; parameters, extent tables and inputs are given by name. Gives the first output.
fn run(text: &str, params: &[(&str, i64)], extents: &[(&str, &[i64])], inputs: &[(&str, Data)]) -> Data {
    let graph = parse_program("t", text, &[]).unwrap_or_else(|d| panic!("{d:?}"));
    let mut batch = Batch::default();
    for (_, p) in graph.env.params.iter() {
        batch.params.push(params.iter().find(|(n, _)| *n == p.name).map_or(0, |(_, v)| *v));
    }
    for (id, uf) in graph.env.ufs.iter() {
        assert!(matches!(uf.def, UfDef::Extent { .. }));
        let table = extents.iter().find(|(n, _)| *n == uf.name).expect("a table for each extent function").1;
        batch.extents.insert(id, table.to_vec());
    }
    for (name, data) in inputs {
        batch.inputs.insert(graph.env.tensor_named(name).expect("an input"), data.clone());
    }
    let results = run_graph(&graph, &batch, &Options::default()).unwrap_or_else(|e| panic!("{e}"));
    results.outputs[0].data.clone()
}

fn floats(v: &[f64]) -> Data {
    Data::F64(v.to_vec())
}

fn ints(v: &[i64]) -> Data {
    Data::I64(v.to_vec())
}

fn example(name: &str) -> String {
    std::fs::read_to_string(common::root().join(format!("examples/{name}.cora"))).expect("an example")
}

const ROWS: &str =
    "param M in 0..=8\nextent lens(b) in 0..=16\ndim b = M, i = lens(b)\ninput A[b, i] : f32\noutput T\n";

#[test]
fn arg_reductions_of_empty_tied_and_nan_rows() {
    let lens: &[i64] = &[0, 3, 4, 2];
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let a = floats(&[1.0, 3.0, 3.0, 2.0, nan, 5.0, nan, -inf, -inf]);
    let t = run(&format!("{ROWS}T = argmax(i) A"), &[("M", 4)], &[("lens", lens)], &[("A", a.clone())]);
    assert_eq!(t, ints(&[-1, 1, 1, 0]));
    let t = run(&format!("{ROWS}T = argmin(i) A"), &[("M", 4)], &[("lens", lens)], &[("A", a)]);
    assert_eq!(t, ints(&[-1, 0, 1, 0]));
}

#[test]
fn borders_read_nothing_outside() {
    let image = floats(&[1.0; 6]);
    let t = run(&example("images"), &[("B", 2)], &[("rows", &[2, 0]), ("cols", &[3, 7])], &[("A", image)]);
    let Data::F64(t) = t else { panic!("floats") };
    let counts: Vec<f64> = t.iter().map(|v| (v * 9.0).round()).collect();
    assert_eq!(counts, [4.0, 6.0, 4.0, 4.0, 6.0, 4.0]);
    // The extent of a dimension inside a border: row r - 1 may have fewer columns, or not exist.
    let text = "param D in 0..=4\nextent w(r) in 0..=4\ndim r = D, c = w(r)\ninput A[r, c] : f32\n\
                T[r, c] = A[r - 1, c] else -1\noutput T\n";
    let t = run(text, &[("D", 3)], &[("w", &[2, 3, 1])], &[("A", floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))]);
    assert_eq!(t, floats(&[-1.0, -1.0, 1.0, 2.0, -1.0, 3.0]));
}

#[test]
fn gathers() {
    let text = format!("{ROWS}input n[b, i] : i32\ndim v = 3\ninput E[v] : f32\nT = A + E[n] else 100");
    let inputs = [("A", floats(&[0.0; 4])), ("n", ints(&[2, -1, 3, 0])), ("E", floats(&[1.0, 2.0, 3.0]))];
    let t = run(&text, &[("M", 2)], &[("lens", &[3, 1])], &inputs);
    assert_eq!(t, floats(&[3.0, 100.0, 100.0, 1.0]));
    let text = example("embedding_pool").replace("V = 32000, D = 128", "V = 3, D = 2");
    let inputs = [("ids", ints(&[0, 2, 1])), ("E", floats(&[1.0, 10.0, 2.0, 20.0, 3.0, 30.0]))];
    let t = run(&text, &[("M", 3)], &[("lens", &[2, 0, 1])], &inputs);
    assert_eq!(t, floats(&[2.0, 20.0, 0.0, 0.0, 2.0, 20.0]));
}

#[test]
fn softmax_and_layer_norm() {
    let t = run(&example("ragged_softmax"), &[("M", 3)], &[("lens", &[0, 1, 2])], &[("S", floats(&[5.0, 7.0, 7.0]))]);
    assert_eq!(t, floats(&[1.0, 0.5, 0.5]));
    let text = example("layer_norm").replace("DM = 512", "DM = 2");
    let inputs = [("X", floats(&[1.0, 3.0])), ("gamma", floats(&[1.0, 2.0])), ("beta", floats(&[0.0, 1.0]))];
    let Data::F64(t) = run(&text, &[("M", 1)], &[("lens", &[1])], &inputs) else { panic!("floats") };
    let s = 1.0 / (1.0_f64 + 1e-5).sqrt();
    assert!((t[0] + s).abs() < 1e-6 && (t[1] - (2.0 * s + 1.0)).abs() < 1e-6, "{t:?}");
}

#[test]
fn integer_arithmetic_rounds_down() {
    let text = "dim i = 4\ninput n[i] : i32\nT = n / 3 * 10 + n % 3\noutput T\n";
    assert_eq!(run(text, &[], &[], &[("n", ints(&[7, -7, 3, -1]))]), ints(&[21, -28, 10, -8]));
    let text = "dim i = 4\nT[i] = i64(floordiv(i - 2, 2) * 10 + ceildiv(i, 2))\noutput T\n";
    assert_eq!(run(text, &[], &[], &[]), ints(&[-10, -9, 1, 2]));
}

#[test]
fn quotients_round_up() {
    let value = |value: &str| run(&format!("dim i = 4\nT[i] = {value}\noutput T\n"), &[], &[], &[]);
    // 127 and 1 do not fit an i8.
    assert_eq!(value("ceildiv(i8(i) + i8(124), 2)"), ints(&[62, 63, 63, 64]));
    assert_eq!(value("ceildiv(i8(i) + i8(0), -2)"), ints(&[0, 0, -1, -1]));
    assert_eq!(value("i64(ceildiv(i, -2))"), ints(&[0, 0, -1, -1]));
    assert_eq!(value("i64(ceildiv(i - 3, i - 2))"), ints(&[2, 2, 0, 0]));
    assert_eq!(value("i64(i) + ceildiv(7, -2)"), ints(&[-3, -2, -1, 0]));
    assert_eq!(value("i64(i) + ceildiv(7, 2)"), ints(&[4, 5, 6, 7]));
}

#[test]
fn nested_extents() {
    let text = example("nested").replace("D = 64", "D = 1").replace("output Y, Z", "output Z");
    let inputs = [("X", floats(&[1.0, 2.0, 3.0, 4.0])), ("weight", floats(&[1.0, 10.0, 100.0, 1000.0]))];
    let t = run(&text, &[("DOCS", 3)], &[("sents", &[2, 0, 1]), ("words", &[1, 2, 1])], &inputs);
    assert_eq!(t, floats(&[1.0, 320.0, 4000.0]));
}
