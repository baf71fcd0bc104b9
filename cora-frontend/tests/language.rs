//! What each construct means, shown by the canonical text it turns into.

use cora_frontend::{ConstValue, parse_program, print_program, render};
use cora_ir::verify::verify_graph;

const HEAD: &str = "\
param M in 0..=8
const D = 4
extent lens(b) in 0..=16
dim b = M, i = lens(b), j = lens(b), d = D
input A[b, i, d] : f32
input x[b, i] : f32
input n[b, i] : i32 in 0..4
input raw[b, i] : i32
";

/// The operators of `HEAD` followed by `text`, as canonical text; all results of `text`'s last
/// operator are made an output if it names none.
fn ops(text: &str) -> String {
    let mut source = format!("{HEAD}{text}");
    if !text.contains("output") {
        source.push_str("\noutput T\n");
    }
    let graph = parse_program("t", &source, &[]).unwrap_or_else(|diags| {
        panic!("{}", diags.iter().map(|d| render(d, "t", &source)).collect::<String>());
    });
    verify_graph(&graph).expect("verifies");
    let canonical = print_program(&graph);
    let again = parse_program("t", &canonical, &[]).unwrap_or_else(|diags| {
        panic!("{}", diags.iter().map(|d| render(d, "t", &canonical)).collect::<String>());
    });
    assert_eq!(canonical, print_program(&again));
    assert_eq!(cora_ir::text::print_graph(&graph), cora_ir::text::print_graph(&again));
    let lines = canonical.lines().filter(|l| l.contains("] : ") && !l.contains("input "));
    lines.map(|l| format!("{l}\n")).collect()
}

#[track_caller]
fn check(text: &str, expect: &str) {
    assert_eq!(ops(text).trim_end(), expect.trim_end());
}

#[test]
fn dimensions_of_a_bracketless_operator() {
    check("T = x * 2", "T[b, i] : f32 = x[b, i] * 2.0");
    check("T = sum(d) A", "T[b, i] : f32 = sum(d) A[b, i, d]");
    check("T = f32(i)", "T[b, i] : f32 = f32(i)");
    check("T = sum(b, i) x", "T[] : f32 = sum(b, i) x[b, i]");
    check("T = sum(i) 1", "T[b] : i64 = sum(i) 1");
}

#[test]
fn reductions_inside_expressions_become_parts() {
    check(
        "T[b] = 1 + sum(i) x * 2.0 + 3.0",
        "T.sum[b] : f32 = sum(i) x[b, i] * 2.0\nT[b] : f32 = 1.0 + T.sum[b] + 3.0",
    );
    check("T[b, i] = x / sum(i) x", "T.sum[b] : f32 = sum(i) x[b, i]\nT[b, i] : f32 = x[b, i] / T.sum[b]");
    check(
        "T[b] = sum(i) (max(d) A) * (max(d) -A)",
        "T.max[b, i] : f32 = max(d) A[b, i, d]\nT.max.1[b, i] : f32 = max(d) -A[b, i, d]\n\
         T[b] : f32 = sum(i) T.max[b, i] * T.max.1[b, i]",
    );
    check("T[b] = max(i, d) A", "T[b] : f32 = max(i, d) A[b, i, d]");
    check("T[b, i] = f32(max(b, i)) - f32(min(b, 3))", "T[b, i] : f32 = f32(max(b, i)) - f32(min(b, 3))");
}

#[test]
fn parts_have_the_order_of_the_result() {
    check(
        "dim h = 3\ninput Q[b, i, h] : f32\nT[h, b, i] = exp(Q - max(i) Q)",
        "T.max[h, b] : f32 = max(i) Q[b, i, h]\nT[h, b, i] : f32 = exp(Q[b, i, h] - T.max[h, b])",
    );
}

#[test]
fn arg_reductions() {
    check(
        "T = argmin(i) x",
        "T.min[b] : f32 = min(i) x[b, i]\n\
         T.argmin[b] : i64 = min(i) select(x[b, i] == T.min[b] or x[b, i] != x[b, i], i64(i), 9223372036854775807)\n\
         T[b] : i64 = select(T.argmin[b] == 9223372036854775807, -1, T.argmin[b])",
    );
    check(
        "T = argmax(i) n",
        "T.max[b] : i32 = max(i) n[b, i]\n\
         T.argmax[b] : i64 = min(i) select(n[b, i] == T.max[b], i64(i), 9223372036854775807)\n\
         T[b] : i64 = select(T.argmax[b] == 9223372036854775807, -1, T.argmax[b])",
    );
}

#[test]
fn functions_are_inlined_and_their_locals_are_operators() {
    let softmax = "fn softmax(k)(x) = { m = max(k) x; e = exp(x - m); e / sum(k) e }\n";
    check(
        &format!("{softmax}T = softmax(i)(2 * x)"),
        "T.m[b] : f32 = max(i) 2.0 * x[b, i]\nT.e[b, i] : f32 = exp(2.0 * x[b, i] - T.m[b])\n\
         T.sum[b] : f32 = sum(i) T.e[b, i]\nT[b, i] : f32 = T.e[b, i] / T.sum[b]",
    );
    // Parts can be used by later operators.
    assert!(
        ops(&format!("{softmax}P = softmax(i)(x)\nT = P.e + P.m")).ends_with("T[b, i] : f32 = P.e[b, i] + P.m[b]\n")
    );
    // A function whose result is a reduction, in and out of an expression.
    check("fn total(k)(x) = sum(k) x\nT = total(i)(x)", "T[b] : f32 = sum(i) x[b, i]");
    check(
        "fn total(k)(x) = sum(k) x\nT = 2 * total(i)(x)",
        "T.sum[b] : f32 = sum(i) x[b, i]\nT[b] : f32 = 2.0 * T.sum[b]",
    );
    // Locals with an index list can be indexed; parameters that are tensors too.
    check(
        "fn shift(y) = { z[b, i] = y * 2.0; z[b, 0] + y[b, i - 1] else 0 }\nT[b, i] = shift(x)",
        "T.z[b, i] : f32 = x[b, i] * 2.0\nT[b, i] : f32 = T.z[b, 0] + x[b, i - 1] else 0.0",
    );
    // Unused locals leave nothing behind; plain names neither.
    check("fn f(y) = { u = exp(y); n = 2.0; z = y; z * n }\nT = f(x)", "T[b, i] : f32 = x[b, i] * 2.0");
}

#[test]
fn numbers_take_the_type_of_what_they_meet() {
    check("T : f64 = 1", "T[] : f64 = 1.0");
    check("T : f64 = select(true, 1, 2.5)", "T[] : f64 = 1.0");
    check("T = f64(x) * select(x < 0, 1, 2)", "T[b, i] : f64 = f64(x[b, i]) * select(x[b, i] < 0.0, f64(1.0), 2.0)");
    check("T = x * (1.0 / 3)", "T[b, i] : f32 = x[b, i] * 0.33333334");
    check("T = n / 2 + n % 3", "T[b, i] : i32 = n[b, i] / 2 + n[b, i] % 3");
    check("T = x / f32(D)", "T[b, i] : f32 = x[b, i] / 4.0");
    check("T = i64(size(i)) + i64(M)", "T[b] : i64 = i64(lens(b)) + i64(M)");
    check("T = x * erf(0.5)", "T[b, i] : f32 = x[b, i] * erf(f32(0.5))");
    check("T = select(x == -inf, nan, x)", "T[b, i] : f32 = select(x[b, i] == -inf, nan, x[b, i])");
    check("T = i8(-128) + i8(i)", "T[b, i] : i8 = -128 + i8(i)");
    check("T = -i64(i) - 9223372036854775807", "T[b, i] : i64 = -i64(i) - 9223372036854775807");
}

#[test]
fn operators_and_precedence() {
    check(
        "T = if i <= j and not (i == 2) then x else -x",
        "T[b, i, j] : f32 = select(i <= j and not i == 2, x[b, i], -x[b, i])",
    );
    check("T = x - (x - x) / (x * x)", "T[b, i] : f32 = x[b, i] - (x[b, i] - x[b, i]) / (x[b, i] * x[b, i])");
    check("T = (x + 1) * 2 > 3", "T[b, i] : bool = 3.0 < (x[b, i] + 1.0) * 2.0");
    check("T = sigmoid(x) + relu(x)", "T[b, i] : f32 = 1.0 / (1.0 + exp(-x[b, i])) + max(x[b, i], 0.0)");
    check("T = pow(x, 2) + rsqrt(abs(x))", "T[b, i] : f32 = pow(x[b, i], 2.0) + rsqrt(abs(x[b, i]))");
    check("T = i64(ceildiv(lens(b), 2) + floordiv(i, 3))", "T[b, i] : i64 = i64((lens(b) + 1) / 2 + i / 3)");
}

#[test]
fn borders_and_gathers() {
    check("T[b, i] = x[b, i + 1] else 0", "T[b, i] : f32 = x[b, i + 1] else 0.0");
    // The condition of a border is what `when` can also spell out.
    check("T[b, i] = x[b, i + 1] when 0 <= i + 1 and i + 1 < lens(b) else 0", "T[b, i] : f32 = x[b, i + 1] else 0.0");
    check("T[b, i] = x[b, i] when i < 3 else -1", "T[b, i] : f32 = x[b, i] when (i < 3) else -1.0");
    // Provably inside: nothing to guard.
    check("T[b, j] = x[b, j] else 0", "T[b, j] : f32 = x[b, j]");
    check("T[b, i] = A[b, n[b, i], 0]", "T[b, i] : f32 = A[b, n[b, i], 0]");
    check("T[b, i] = A[b, raw[b, i], 0] else 0", "T[b, i] : f32 = A[b, raw[b, i], 0] else 0.0");
    check("T[b, i] = A[b, i, index(raw[b, i] * 2)]", "T[b, i] : f32 = A[b, i, index(raw[b, i] * 2)]");
    check("T[b, i] = if i > 0 then x[b, i - 1] else x[b, i]", "T[b, i] : f32 = select(0 < i, x[b, i - 1], x[b, i])");
    check("T[b, i] = x[b, lens(b) - 1 - i]", "T[b, i] : f32 = x[b, lens(b) - 1 - i]");
}

#[test]
fn padding_and_inline_dimensions() {
    check("T[b, i pad 4, c = 2] = f32(c)", "T[b, i pad 4, c] : f32 = f32(c)");
    check("T[b, d pad 3] = f32(d)", "T[b, d pad 6] : f32 = f32(d)");
}

#[test]
fn constants_can_be_overridden() {
    let text = "const D = 4\nconst E = D * 2\ndim d = E\nT[d] = 1.0\noutput T\n";
    let print = |consts: &[(String, ConstValue)]| print_program(&parse_program("t", text, consts).expect("parses"));
    assert!(print(&[]).contains("dim d = 8"));
    assert!(print(&[("D".to_owned(), ConstValue::Int(5))]).contains("dim d = 10"));
    let code = |text: &str, name: &str, value: ConstValue| {
        parse_program("t", text, &[(name.to_owned(), value)]).expect_err("refused")[0].code
    };
    assert_eq!(code(text, "DD", ConstValue::Int(5)), "E0231");
    assert_eq!(code(text, "D", ConstValue::Float(0.5)), "E0229");
    // A fraction stays one.
    let text = "const eps = 0.25\ndim d = 4\nT[d] = f32(d) * eps / 2\noutput T\n";
    for (value, shown) in [(ConstValue::Int(3), "* 3.0 /"), (ConstValue::Float(0.5), "* 0.5 /")] {
        let graph = parse_program("t", text, &[("eps".to_owned(), value)]).expect("parses");
        assert!(print_program(&graph).contains(shown), "{}", print_program(&graph));
    }
}

#[test]
fn declarations_come_in_any_order() {
    let text = "T = sum(w) X\ninput X[doc, sent, w] : f32\ndim w = words(doc, sent)\nextent words(doc, sent) in 0..M
dim sent = sents(doc), doc = M\nextent sents(doc) in 0..=9\nparam M in 1..=7\noutput T\n";
    let expected = "\
param M in 1..=7
extent sents(doc) in 0..=9
extent words(doc, sent) in 0..=M - 1
dim doc = M
dim sent = sents(doc)
dim w = words(doc, sent)
input X[doc, sent, w] : f32
T[doc, sent] : f32 = sum(w) X[doc, sent, w]
output T
";
    assert_eq!(print_program(&parse_program("t", text, &[]).expect("parses")), expected);
}

#[test]
fn warnings() {
    let text = "param M in 0..=3\nextent e(d) in 0..=2\ndim d = M\ninput A[d] : f32\ninput B[d] : f32\nU = A\nT = A\noutput T\n";
    let w = cora_frontend::parse_with_warnings("t", text, &[]).expect("parses").warnings;
    let found: Vec<_> = w.iter().map(|d| format!("{} {}", d.code, d.message)).collect();
    let expected =
        ["W0201 extent function `e` is never used", "W0201 input `B` is never used", "W0202 no output needs `U`"];
    assert_eq!(found, expected);
}
