//! `print(parse(print(m))) == print(m)`, and parsing gives back the same module.

use super::generate::Gen;
use super::same::{same_graphs, same_loops, same_storage};
use crate::diag::Diagnostic;
use crate::env::Env;
use crate::ids::EntityId;
use crate::text::{
    Names, Stage, detect_stage, parse_graph, parse_loops, parse_step, parse_storage, print_expr, print_graph,
    print_loop_stmts, print_loops, print_step, print_storage, print_storage_stmts,
};
use crate::types::{Literal, ScalarType, UnOp};

fn again<M>(text: &str, parse: fn(&str) -> Result<M, Diagnostic>, print: fn(&M) -> String) -> M {
    let m = parse(text).unwrap_or_else(|e| {
        let at = e.span.map_or("", |s| &text[s.start..]).lines().next().unwrap_or("").to_owned();
        panic!("{e}\nat {at:?} in\n{text}")
    });
    assert_eq!(print(&m), text);
    m
}

#[test]
fn random_loop_modules() {
    for seed in 0..1500 {
        let m = Gen::new(seed, false).loops();
        same_loops(&m, &again(&print_loops(&m), parse_loops, print_loops));
        let _ = print_loop_stmts(&m.env, &m.body);
    }
}

#[test]
fn random_storage_modules() {
    for seed in 0..1500 {
        let m = Gen::new(seed, true).storage();
        same_storage(&m, &again(&print_storage(&m), parse_storage, print_storage));
        m.kernels.iter().for_each(|k| drop(print_storage_stmts(&m.env, &k.body)));
    }
}

#[test]
fn random_graphs() {
    for seed in 0..1500 {
        let m = Gen::new(seed, true).graph();
        same_graphs(&m, &again(&print_graph(&m), parse_graph, print_graph));
    }
}

#[test]
fn every_stage_is_detected() {
    for s in Stage::ALL {
        assert_eq!(detect_stage(&format!("; a comment\n ;\n\t{} @m {{}}", s.keyword())), Some(s));
    }
    for text in ["", "; loop.module", "loop.modules @m {}", "loop", "é"] {
        assert_eq!(detect_stage(text), None, "{text}");
    }
}

/// Checks the text of an expression over `%x`, `%y` (index), parameter `M`, `@f`, `@A` (f32), `@c`.
fn check(text: &str, expect: &str) {
    let module = format!(
        "storage.module @m {{ param M in 0..=9 uf @f($0 < M) = extent in 0..=9
         tensor @A[] : f32 input tensor @c[] : bool input
         kernel @k {{ for %x in 0..M {{ for %y in 0..M {{ if {text} {{ }} }} }} }} }}"
    );
    let m = parse_storage(&module).unwrap_or_else(|e| panic!("{e}: {text}"));
    let printed = print_storage(&m);
    let line = printed.lines().find_map(|l| l.trim().strip_prefix("if ")).expect("printed");
    assert_eq!(line.strip_suffix(" {"), Some(expect));
    again(&printed, parse_storage, print_storage);
}

#[test]
fn parentheses_are_minimal() {
    for text in [
        "%x + %y + M",
        "%x + (%y + M)",
        "%x - (%y - M)",
        "%x * (%y + M) // 4 % %y",
        "%x % (%y % M)",
        "-%x * %y",
        "-(%x * %y)",
        "--%x",
        "%x - -%y",
        "%x - -3",
        "-(2:i32)",
        "-(-9223372036854775808)",
        "not @c[%x] and @c[%y] or @c[M]",
        "not (@c[%x] and @c[%y])",
        "@c[%x] and (@c[%y] or @c[M])",
        "(%x < %y) == (%y < M)",
        "(not @c[%x]) == @c[%y]",
        "not %x + 1 < %y",
        "%x <= %y and %x != M",
        "(@A[%x] if %x < M else 0.0:f32) / @A[%y]",
        "(@A[%x + 1] if %x < M and %y < M else (@A[0] if @c[0] else -inf:f32))",
        "min(%x, max(%y, 3))",
        "pow(@A[%x], 2.0:f32)",
        "select(@c[0], @f(%x), 1 + 2 * %y)",
        "index(f32(%x) + exp(-@A[%x]))",
        "ramp(%x + 1, -4, 16) < splat(%y, 16)",
        "reduce_sum(@A[ramp(0, 1, 8)])",
        "search @A[%x, M, %y] + 1",
        "true",
        "nan:f32 == nan(0xfff8000000000000):f64",
        "%x % %y",
    ] {
        check(text, text);
    }
}

#[test]
fn text_is_made_canonical() {
    check("((%x)) + ((%y * 2))", "%x + %y * 2");
    check("%x//2*2 ; a comment\n < M", "%x // 2 * 2 < M");
    check("2 + 3", "5");
    check("%x + 0", "%x");
    check("1e3:f32 + 1:f32", "1000.0:f32 + 1.0:f32");
    check("(@A[%x] if true else 0.0:f32)", "@A[%x]");
    check("@\"A\"[%\"x\"]", "@A[%x]");
}

#[test]
fn literals_keep_their_bits() {
    let mut env = Env::default();
    let floats = [0.1, -0.0, f64::MAX, f64::MIN_POSITIVE, 5e-324, 1.0 / 3.0, 1e22, f64::INFINITY, f64::NAN, -f64::NAN];
    for ty in ScalarType::ELEMENTS.into_iter().filter(|t| t.is_float()) {
        for v in floats.into_iter().chain([f64::from_bits(0x7ff8_0000_0000_0001)]) {
            let l = Literal::float(ty, v);
            let e = env.pool.lit(l);
            let text = print_expr(&env, e, &Names::default());
            let m = parse_storage(&format!("storage.module @m {{ kernel @k {{ if {text} {{ }} }} }}"));
            let m = m.unwrap_or_else(|e| panic!("{e}: {text}"));
            let found = (0..m.env.pool.len())
                .find_map(|i| match m.env.pool.get(crate::ids::ExprId::from_index(i)) {
                    crate::expr::Expr::Lit(l) => Some(*l),
                    _ => None,
                })
                .expect("a literal");
            assert_eq!(found, l, "{text}");
        }
    }
}

#[test]
fn variables_get_suffixes_where_needed() {
    let text = "\
loop.module @m {
  tensor @A[x: 4] : f32 input
  tensor @B[x: 4] : f32 output

  for %x in 0..4 stage @B {
    block @B compute {
      spatial %x#1 < 4 = %x
      @B[%x#1] = @A[%x#1]
    }
  }
  for %x in 0..4 stage @B {
    for %x#1 in 0..%x stage @B {
    }
  }
}
";
    let m = again(text, parse_loops, print_loops);
    assert!(m.env.vars.iter().all(|(_, v)| v.name == "x"));
    let stmts = print_loop_stmts(&m.env, &m.body[1..]);
    assert_eq!(stmts, "for %x in 0..4 stage @B {\n  for %x#1 in 0..%x stage @B {\n  }\n}\n");
}

#[test]
fn an_attached_tensors_extent_names_its_loop() {
    let text = "\
loop.module @m {
  param M in 0..=4
  tensor @T[x: %q + 1] : f32 temp local

  for %q#1 in 0..M stage @T {
  }
  for %q in 0..M stage @T {
    block @T compute {
      spatial %x < %q + 1 = 0
      @T[%x] = 0.0:f32
    }
  }
}
";
    let m = again(text, parse_loops, print_loops);
    let (crate::loops::Stmt::For(first), crate::loops::Stmt::For(l)) = (&m.body[0], &m.body[1]) else {
        panic!("two loops")
    };
    let extent = m.env.tensors[l.stage].dims[0].extent;
    assert!(m.env.pool.uses_var(extent, l.var) && !m.env.pool.uses_var(extent, first.var));
}

#[test]
fn unbound_variables_print_and_parse() {
    let text = "\
storage.module @m {

  kernel @k {
    for %x in 0..%?x {
    }
    if %?x < %?x#1 {
    }
  }
}
"
    .replace("{\n\n", "{\n");
    again(&text, parse_storage, print_storage);
}

#[test]
fn unreachable_entities_are_left_out() {
    let text = "loop.module @m { param M in 0..=4 uf @used($0 < M) = extent in 0..=5
        uf @sum($0 <= M) = prefix_sum @used($0) tensor @T[x: @sum(M)] : f32 temp }";
    let m = parse_loops(text).expect("parses");
    assert_eq!(print_loops(&m), "loop.module @m {\n  param M in 0..=4\n  uf @used($0 < M) = extent in 0..=5\n}\n");
}

#[test]
fn messages_share_names() {
    let mut env = Env::default();
    let (x, y) = (env.new_var("q"), env.new_var("q"));
    let (ex, ey) = (env.pool.var(x), env.pool.var(y));
    let names = Names::of(&env, &[ey, ex]);
    assert_eq!((names.get(y), names.get(x)), (Some("q"), Some("q#1")));
    assert_eq!(print_expr(&env, ex, &names), "%q#1");
    let lt = env.pool.lt(ex, ey);
    assert_eq!(print_expr(&env, lt, &Names::default()), "%q < %q#1");
}

#[test]
fn ids_of_another_module_do_not_panic() {
    let mut env = Env::default();
    let v = env.pool.var(crate::ids::VarId::from_index(7));
    let t = env.pool.load(crate::ids::TensorId::from_index(3), ScalarType::F32, [v]);
    let e = env.pool.un(UnOp::Exp, t);
    assert_eq!(print_expr(&env, e, &Names::default()), "exp(@\"?3\"[%_])");
}

#[test]
fn single_steps() {
    let text = "split @S[i] 14 -> io, ii tail(mask)";
    let step = parse_step(text).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(print_step(&step), text);
    for (bad, at) in [("split @S[i] x", 12), ("unroll @S[i] 3", 13), ("", 0)] {
        let error = parse_step(bad).expect_err("refused");
        assert_eq!((error.code, error.span.map(|s| s.start)), ("E0502", Some(at)), "{bad}");
    }
}
