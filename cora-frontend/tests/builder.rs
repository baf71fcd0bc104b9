//! Programs print as Rust builder calls, and those calls build the same program.

mod common;

use cora_frontend::builder::*;
use cora_frontend::{parse_program, print_program, to_builder_code};

/// The generated code, compiled into this test.
mod generated {
    use cora_frontend::builder::*;

    /// A function that builds a program.
    pub type Build = fn() -> Result<Graph, Vec<Diagnostic>>;

    include!("generated/programs.rs");
}

/// Every kind of step once.
const STEPS: &str = "
dim i = 64, j = 64
input A[i, j] : f32
S.x[i, j] = exp(A[i, j])
S[i] = sum(j) S.x[i, j]
output S
schedule cpu {
  split S.i 14 -> o, p tail(mask)
  split S.j 8 -> jo, ji
  fuse S.o S.p -> f pad 14
  reorder S: f ji jo
  vectorize S.x.j 16
  vectorize S.ji
  unroll S.ji
  parallel S.f
  pad_loop S.f 2
  pad_loop S.j to 4 * floordiv(f, 4) + 8
  pad_dim S.i 4
  compute_at S.x at S.f
  compute_inline S.x
  cache_write S -> Sr reg at S.f
  cache_read S.A -> Al local at S.f layout(1, 0)
  cache_read S:S.x -> Xl global at S.f
  cache_read S.A -> Ap setup layout(1/8, 0, 1%8)
  set_scope Sr reg
  relax Sr.i
}
";

/// Combiners of tuples: types that are those of the terms, two instances of one, components as outputs.
const TUPLES: &str = "
dim i = 8, j = 4
input A[i, j] : f32
input D[i, j] : f64
combiner greatest(v = -1000.0, at = -1)(a, b) = (max(a.v, b.v), if b.v > a.v then b.at else a.at)
combiner total(t = 0.0)(l, r) commutative = { both = l.t + r.t; (both) }
fn spread(k)(x) = {
  g = greatest(k)(x, i64(k))
  g.v - x
}
G[i] = greatest(j)(A[i, j], i64(j))
H[i] = greatest(j)(D[i, j], i64(j) + G.at)
S[i, j] = spread(j)(A[i, j])
T = total(i, j)(A[i, j])
output G.v, H.at, S, T.t
";

/// Numbers in front of operators, whose results methods are called of.
const NUMBERS: &str = "
param M in 0..=8
extent lens(b) in 0..=60
dim b = M, i = lens(b), j = 2 * lens(b) + 1
input X[b] : f32
input Z[b, i] : f64
input I[b, i] : i32
E[b] = exp(-0.5 * X)
C[b] = X / f32(1 + M)
V[b, i] = 2.0 - exp(1.0 + Z) * (1.0 - Z) / max(1.0 / Z, 0.0)
S[b, i] = sqrt(abs((3.5 - Z) * 2.0)) - max(1e-3 * Z, -1.0 - Z)
K[b, i] = f64(2 * I) + f64((1 - I) * I) + (if 1 + I < 3 and not (2 - I == i32(i)) then 0.5 else Z)
N[b, j] = i64(3 * j - 1) + min(5 - i64(j), 7)
output E, C, V, S, K, N
";

/// Operators that are read before they are defined.
const RECURRENCES: &str = "
param M in 0..=8
extent n(b) in 0..=40
dim b = M, t = n(b), j = 8, k = 8
input X[b, t, j] : f32
input U[j, k] : f64
C[b, t, j] = X + 0.5 * (C[b, t - 1, j] else 1)
A[b, t, j] = f64(X) + sum(k) (H[b, t - 1, k] else 0) * U
H[b, t, j] : f64 = tanh(A) * f64(C) - (H[b, t - 2, j] when t > 3 else 2)
output H
";

/// The examples (without their schedules, which change more often than programs) and `STEPS`.
fn programs() -> Vec<Graph> {
    let mut out = Vec::new();
    for (name, text) in common::programs(&common::root().join("examples")) {
        let mut graph = parse_program(&name, &text, &[]).expect("examples parse");
        graph.schedules.clear();
        out.push(graph);
    }
    out.push(parse_program("steps", STEPS, &[]).expect("every step parses"));
    out.push(parse_program("recurrences", RECURRENCES, &[]).unwrap_or_else(|d| panic!("{d:?}")));
    out.push(parse_program("numbers", NUMBERS, &[]).unwrap_or_else(|d| panic!("{d:?}")));
    out.push(parse_program("tuples", TUPLES, &[]).unwrap_or_else(|d| panic!("{d:?}")));
    out
}

#[test]
fn builder_calls_build_the_same_programs() {
    let mut code = String::from("// Written by tests/builder.rs; set CORA_BLESS=1 to write it again.\n");
    let mut list = String::from("\n/// Every program above.\npub const ALL: &[Build] = &[\n");
    for graph in programs() {
        let body = to_builder_code(&graph);
        let function = body.split("pub fn ").nth(1).and_then(|s| s.split('(').next()).expect("a function");
        list.push_str(&format!("    {function},\n"));
        code.push_str(&format!("\n{body}"));
    }
    list.push_str("];\n");
    code.push_str(&list);
    let path = common::root().join("cora-frontend/tests/generated/programs.rs");
    assert_eq!(common::compare(&path, &code), None);
    if common::blessing() {
        return; // what is compiled into this test is what was there before
    }
    assert_eq!(programs().len(), generated::ALL.len());
    for (graph, build) in programs().iter().zip(generated::ALL) {
        let built = build().unwrap_or_else(|d| panic!("{}: {d:?}", graph.name));
        assert_eq!(print_program(graph), print_program(&built), "{}", graph.name);
        assert_eq!(cora_ir::text::print_graph(graph), cora_ir::text::print_graph(&built), "{}", graph.name);
    }
}

#[test]
fn every_step_prints_and_parses() {
    let graph = parse_program("steps", STEPS, &[]).expect("every step parses");
    let text = print_program(&graph);
    for line in STEPS.lines().filter(|l| l.starts_with("  ")) {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    let again = parse_program("steps", &text, &[]).expect("and so does what is printed");
    assert_eq!(print_program(&again), text);
}

#[test]
fn tuples_print_and_parse() {
    let graph = parse_program("tuples", TUPLES, &[]).unwrap_or_else(|d| panic!("{d:?}"));
    let text = print_program(&graph);
    assert!(text.contains("combiner greatest(v : f32 = -1000.0, at : i64 = -1)(a, b) = (max(a.v, b.v), "), "{text}");
    assert!(text.contains("combiner greatest_1(v : f64 = -1000.0, at : i64 = -1)(a, b) = ("), "{text}");
    assert!(text.contains("S.g[i] = greatest(j)(A[i, j], i64(j))\n"), "{text}");
    assert!(text.contains("G.v[i] : f32 = G.v[i]\n"), "{text}");
    let again = parse_program("tuples", &text, &[]).unwrap_or_else(|d| panic!("{d:?}\n{text}"));
    assert_eq!(print_program(&again), text);
}

#[test]
fn negative_terms_of_a_reduction_print_and_parse() {
    let text = "dim i = 3, j = 4\ninput A[i, j] : f32\nL = min(i, j) (-1.0)\nT = max(i, j) (-A)\noutput L, T\n";
    let graph = parse_program("negative", text, &[]).unwrap_or_else(|d| panic!("{d:?}"));
    let text = print_program(&graph);
    assert!(text.contains("= min(i, j) (-1.0)") && text.contains("= max(i, j) (-A[i, j])"), "{text}");
    let again = parse_program("negative", &text, &[]).unwrap_or_else(|d| panic!("{d:?}\n{text}"));
    assert_eq!(print_program(&again), text);
}

#[test]
fn attention_by_hand() {
    let mut b = ProgramBuilder::new("qk");
    let m = b.param("M", 0..=64);
    let batch = b.dim("batch", m);
    let lens = b.extent("lens", &[batch], 0..=128);
    let q = b.dim("q", lens.at(batch));
    let k = b.dim("k", min(q + 1, lens.at(batch)));
    let c = b.dim("c", 2);
    let d = b.dim("d", 64);
    let qk = b.input("QK", &[batch, q, c, d], ScalarType::F32);
    let s = b.compute("S", &[batch, q, k], |_| 0.125 * sum(&[d], qk.at((batch, q, 0, d)) * qk.at((batch, k, 1, d))));
    let t = b.reduce("T", &[batch, q], Combiner::Max, &[k], |_, _| s);
    let best = b.compute("best", &[batch, q], |_| argmax(k, s));
    b.output(t);
    b.output(best);
    b.schedule("cpu", |p| {
        p.split((s, q), 16, "qo", "qi", Tail::Mask).parallel((s, batch)).compute_at("S.sum", (s, "qo"));
    });
    let graph = b.finish().expect("a correct program");
    let expected = "\
param M in 0..=64
extent lens(batch) in 0..=128
dim batch = M
dim q = lens(batch)
dim k = min(q + 1, lens(batch))
dim c = 2
dim d = 64
input QK[batch, q, c, d] : f32
S.sum[batch, q, k] : f32 = sum(d) QK[batch, q, 0, d] * QK[batch, k, 1, d]
S[batch, q, k] : f32 = 0.125 * S.sum[batch, q, k]
T[batch, q] : f32 = max(k) S[batch, q, k]
best.max[batch, q] : f32 = max(k) S[batch, q, k]
best.argmax[batch, q] : i64 = min(k) select(S[batch, q, k] == best.max[batch, q] or S[batch, q, k] != S[batch, q, k], i64(k), 9223372036854775807)
best[batch, q] : i64 = select(best.argmax[batch, q] == 9223372036854775807, -1, best.argmax[batch, q])
output T, best
schedule cpu {
  split S.q 16 -> qo, qi tail(mask)
  parallel S.batch
  compute_at S.sum at S.qo
}
";
    assert_eq!(print_program(&graph), expected);
}

#[test]
fn borders_padding_and_index_tensors() {
    let mut b = ProgramBuilder::new("p");
    let i = b.dim("i", 10);
    let v = b.constant("V", 100);
    let row = b.dim("row", v.clone());
    let a = b.input("A", &[i.padded(4)], ScalarType::F32);
    let e = b.const_input("E", &[row], ScalarType::F32);
    let ids = b.input("ids", &[i], ScalarType::I32);
    b.range(ids, Value::from(0)..v);
    let y = b.compute("Y", &[i], |[i]| a.at([&i - 1]).or_else(0) + e.at(ids.at([i])));
    b.output(y);
    let text = print_program(&b.finish().expect("a correct program"));
    assert!(text.contains("input A[i pad 4] : f32"), "{text}");
    assert!(text.contains("input ids[i] : i32 in 0..100"), "{text}");
    assert!(text.contains("Y[i] : f32 = A[i - 1] else 0.0 + E[ids[i]]"), "{text}");
}

#[test]
fn handles_of_another_builder_are_refused() {
    let mut other = ProgramBuilder::new("other");
    let far = other.dim("far", 3);
    let theirs = other.input("Theirs", &[far], ScalarType::F32);
    let mut b = ProgramBuilder::new("own");
    let i = b.dim("i", 10);
    b.input("A", &[i], ScalarType::F32);
    let y = b.compute("Y", &[i], |ix| theirs.at(ix));
    b.output(y);
    let diags = b.clone().finish().expect_err("a handle of another builder");
    assert_eq!(diags.iter().map(|d| d.code).collect::<Vec<_>>(), ["E0239"]);
    // Wherever it stands.
    b.output(theirs);
    b.range(theirs, 0..3);
    b.schedule("cpu", |s| {
        s.unroll((theirs, "far"));
        s.compute_inline(theirs);
    });
    b.part(theirs, "x");
    b.input("B", &[far], ScalarType::F32);
    let diags = b.finish().expect_err("handles of another builder");
    assert_eq!(diags.iter().map(|d| d.code).collect::<Vec<_>>(), ["E0239"; 7]);
}

#[test]
fn mistakes_name_the_call() {
    let mut b = ProgramBuilder::new("bad");
    let i = b.dim("i", 10);
    let a = b.input("A", &[i], ScalarType::F32);
    let ids = b.input("ids", &[i], ScalarType::I32);
    let y = b.compute("Y", &[i], |ix| a.at(&ix) + ids.at(&ix));
    b.compute("Z", &[i], |[i]| i.or_else(0.0));
    b.output(y);
    let diags = b.finish().expect_err("a type error");
    let codes: Vec<_> = diags.iter().map(|d| d.code).collect();
    assert_eq!(codes, ["E0209", "E0239"]);
    assert!(diags[0].notes[0].contains("tests/builder.rs:"), "{diags:?}");
}

/// Names that text could not have, so that a graph prints to what parses.
#[test]
fn names_are_those_of_the_language() {
    let codes = |name: &str| {
        let mut b = ProgramBuilder::new("names");
        let i = b.dim("i", 10);
        let a = b.input("A", &[i], ScalarType::F32);
        let y = b.compute(name, &[i], |ix| a.at(&ix));
        b.output(y);
        b.finish().map_or_else(|d| d.iter().map(|d| d.code).collect(), |_| Vec::new())
    };
    for name in ["", "A B", "T\noutput A", "α", "%0", "1st", "T.", ".T", "T..m"] {
        assert_eq!(codes(name)[..1], ["E0102"], "{name:?}");
    }
    for name in ["in", "f32", "exp", "sum", "schedule"] {
        assert_eq!(codes(name)[..1], ["E0105"], "{name}");
    }
    assert!(codes("T.m.1").is_empty() && codes("_t").is_empty());
    let mut b = ProgramBuilder::new("names");
    let i = b.dim("i.j", 10);
    let a = b.input("A", &[i], ScalarType::F32);
    let zero = || Value::from(0.0);
    let twice = b.combiner("c", [("x", ScalarType::F32, zero()), ("x", ScalarType::F32, zero())], |[a, b], [c, d]| {
        [a + c, b + d]
    });
    let y = b.reduce_tuples("Y", &[], twice, &[i], |[], [i]| [a.at(i.clone()), a.at(i)]);
    let x = b.part(y, "x");
    b.output(x);
    b.schedule("f32", |_| {});
    let found: Vec<_> = b.finish().expect_err("wrong names").iter().map(|d| d.code).collect();
    assert!(["E0109", "E0204", "E0105"].iter().all(|c| found.contains(c)), "{found:?}");
}

/// A reduction has a dimension to reduce over, by calls too.
#[test]
fn reductions_are_over_something() {
    let mut b = ProgramBuilder::new("nothing");
    let i = b.dim("i", 10);
    let a = b.input("A", &[i], ScalarType::F32);
    let y = b.compute("Y", &[i], |[i]| sum(&[], a.at(i)));
    b.reduce("Z", &[i], Combiner::Max, &[], |[i], []| a.at(i));
    b.output(y);
    let codes: Vec<_> = b.finish().expect_err("nothing to reduce over").iter().map(|d| d.code).collect();
    assert_eq!(codes, ["E0108", "E0108"]);
}

/// Expressions that share parts many times over, or nest without end, end in a diagnostic or a graph.
#[test]
fn sharing_and_depth_are_bounded() {
    let mut b = ProgramBuilder::new("big");
    let i = b.dim("i", 10);
    let a = b.input("A", &[i], ScalarType::F32);
    let mut wide = a.at(i);
    for _ in 0..60 {
        wide = &wide + &wide;
    }
    let y = b.compute("Y", &[i], |_| wide);
    let mut deep = a.at(i);
    for _ in 0..100_000 {
        deep = deep + 1.0;
    }
    b.compute("Z", &[i], |_| deep);
    let mut open = Value::from(1);
    for _ in 0..60 {
        open = select(a.at(i).lt(0.0), open.clone(), open);
    }
    b.compute("W", &[i], |_| open);
    b.output(y);
    let codes: Vec<_> = b.finish().expect_err("too large").iter().map(|d| d.code).collect();
    assert_eq!(codes, ["E0225", "E0113", "E0225"]);
}
