//! Tests: what is right passes, and for each rule something is refused by just that rule.

use super::{StorageForm, VerifyError, verify_graph, verify_loops, verify_storage};
use crate::env::{Role, Tensor, UfDef};
use crate::ids::{EntityId, ExprId, ParamId, TensorId, UfId, VarId};
use crate::loops::LoopModule;
use crate::storage::StorageModule;
use crate::text::{Stage, detect_stage, parse_graph, parse_loops, parse_storage};
use crate::types::{Literal, ScalarType, UnOp};

fn verify(text: &str) -> Result<(), Vec<VerifyError>> {
    match detect_stage(text) {
        Some(Stage::Graph) => verify_graph(&parse_graph(text).unwrap_or_else(|e| panic!("{e}"))),
        Some(Stage::Storage) => {
            verify_storage(&parse_storage(text).unwrap_or_else(|e| panic!("{e}")), StorageForm::Legal)
        }
        _ => verify_loops(&parse_loops(text).unwrap_or_else(|e| panic!("{e}"))),
    }
}

fn rules(result: Result<(), Vec<VerifyError>>) -> Vec<&'static str> {
    let mut rules: Vec<_> = result.err().into_iter().flatten().map(|e| e.rule).collect();
    rules.sort_unstable();
    rules.dedup();
    rules
}

/// Checks that `text` breaks exactly `rule` (`""`: none).
#[track_caller]
fn check(text: &str, rule: &str) {
    let result = verify(text);
    let expected: Vec<&str> = [rule].into_iter().filter(|r| !r.is_empty()).collect();
    assert_eq!(rules(result.clone()), expected, "{result:?}\n{text}");
}

/// A loop module with some declarations and this text.
#[track_caller]
fn loops(text: &str, rule: &str) {
    check(
        &format!(
            "loop.module @m {{ param M in 0..=9 uf @lens($0 < M) = extent in 0..=9
             tensor @A[b: M, i: @lens($0)] : f32 input tensor @I[b: M] : i32 input range 0..M
             tensor @B[b: M] : f32 temp tensor @T[] : f32 temp {text} }}"
        ),
        rule,
    );
}

/// A loop module with one block of stage `@B` under loops `%b` and `%i`.
#[track_caller]
fn block(text: &str, rule: &str) {
    loops(&format!("for %b in 0..M stage @B {{ for %i in 0..@lens(%b) stage @B {{ block @B {text} }} }}"), rule);
}

/// A value of type f32 in a block over `%x` and `%r`.
#[track_caller]
fn value(text: &str, rule: &str) {
    block(&format!("update sum {{ spatial %x < M = %b reduce %r < @lens(%x) = %i @B[%x] = {text} }}"), rule);
}

/// A storage module with some declarations and this kernel.
#[track_caller]
fn kernel(text: &str, rule: &str) {
    storage(&format!("kernel @k {{ {text} }}"), rule);
}

#[track_caller]
fn storage(text: &str, rule: &str) {
    check(
        &format!(
            "storage.module @m {{ param M in 0..=9 uf @lens($0 < M) = extent in 0..=9
             uf @row($0 <= M) = prefix_sum @lens($0)
             tensor @lens.t[x: M] : i32 temp tensor @row.t[x: M + 1] : i32 temp
             tensor @A[b: M, i: @lens($0)] : f32 input tensor @B[b: M] : f32 temp tensor @R[x: 4] : f32 temp reg
             buffer @A elems = index(@row.t[M]) offset = index(@row.t[$0]) + $1
             buffer @B elems = M buffer @R elems = 4
             table @lens.t = @lens entries = M domain = [M]
             table @row.t = @row entries = M + 1 domain = [M] body = index(@lens.t[$0])
             {text} }}"
        ),
        rule,
    );
}

/// A graph with some declarations and this text.
#[track_caller]
fn graph(text: &str, rule: &str) {
    check(
        &format!(
            "graph.module @m {{ param M in 0..=9 uf @lens($0 < M) = extent in 0..=9
             dim %b = M dim %i = @lens(%b)
             tensor @A[b: M, i: @lens($0)] : f32 input tensor @B[b: M, i: @lens($0)] : f32 temp
             tensor @S[b: M] : f32 temp {text} }}"
        ),
        rule,
    );
}

/// Values that are small as they are shared, and ones that are deep: neither is printed, so that this ends.
#[test]
fn values_have_a_size() {
    for (levels, shared, rule) in [(20, true, "op-size"), (100, true, "op-size"), (100_000, false, "depth")] {
        let mut g = parse_graph(
            "graph.module @m { param M in 0..=9 dim %b = M tensor @A[b: M] : i32 input tensor @S[b: M] : i32 temp
             op @S[%b] = @A[%b] }",
        )
        .expect("parses");
        let mut value = g.ops[0].value;
        for _ in 0..levels {
            value = if shared { g.env.pool.add(value, value) } else { g.env.pool.un(UnOp::Neg, value) };
        }
        g.ops[0].value = value;
        let errors = verify_graph(&g).expect_err("too large");
        assert!(errors.iter().any(|e| e.rule == rule), "{levels} {errors:?}");
    }
}

#[test]
fn correct_modules_pass() {
    graph("op @B[%b, %i] = 2.0:f32 * @A[%b, %i] op @S[%b] = sum[%i] @B[%b, %i]", "");
    block("update sum { spatial %x < M = %b reduce %r < @lens(%x) = %i where %i < 7 @B[%x] = @A[%x, %r] }", "");
    value("(@A[%x, %r] if %r < 3 and not %x == 1 else -inf:f32) + f32(@I[index(@I[%x])])", "");
    value("select(%r < 3, exp(@A[%x, %r]), pow(1.0:f32, 2.0:f32)) / abs(-1.0:f32 * @A[0, 0])", "");
    kernel(
        "let %n = index(@row.t[M]) for %f in 0..%n parallel { let %b = search @row.t[0, M, %f]
         @B[ramp(0, 1, 8)] = @A[ramp(%f, 1, 8)] * splat(2.0:f32, 8) mask ramp(%f, 1, 8) < splat(%n, 8)
         if %b < 3 { @R[0] = @A[%f] @B[%b] = reduce_sum(@A[ramp(%f, 1, 8)]) } else { @B[%f] = @R[3] } }",
        "",
    );
}

#[test]
fn declarations() {
    loops("tensor @\"x\"[] : f32 temp param N in 3..=2", "param-range");
    loops("uf @g($0 < $0) = map 1", "uf-args");
    loops("uf @g($0 < M) = map $1", "uf-args");
    loops("uf @g($0 < M) = extent in 0..=$0", "uf-args");
    loops("uf @g($0 < M) = extent in 0..=@lens(0)", "uf-args");
    loops("uf @g($0 < M) = map %v", "uf-pure");
    loops("uf @g($0 < M) = map 1.5:f32", "uf-pure");
    loops("uf @g() = map 1", "uf-shape");
    loops("uf @g() = sort_desc 1", "uf-shape");
    loops("uf @g($0 < M) = search @lens", "uf-shape");
    loops("tensor @C[x: M, y: $1] : f32 temp", "tensor-dims");
    loops("tensor @C[x: M, y: index(@I[$0])] : f32 temp", "tensor-dims");
    loops("tensor @C[x: M pad 1.5:f32] : f32 temp", "tensor-dims");
    loops("tensor @C[x: %q] : f32 temp", "tensor-dims");
    loops("tensor @C[] : index temp", "tensor-type");
    loops("tensor @C[] : f32 temp range 0..M", "tensor-type");
    loops("tensor @C[] : i32 temp range 0..$0", "tensor-type");
    loops("tensor @C[x: M] : i32 temp range $0..$1", "tensor-type");
    loops("tensor @C[x: M] : i32 temp range 0..index(@I[$0])", "tensor-type");
    storage("kernel @k { } kernel @k#1 { }", "names");
    loops("param M#1 in 0..=9", "names");
    loops("uf @lens#1() = extent in 0..=9", "names");
    loops("tensor @A#1[] : f32 temp", "names");
}

#[test]
fn definitions_refer_to_earlier_functions() {
    let mut m = parse_loops("loop.module @m { uf @a($0 <= 3) = prefix_sum $0 * $0 * $0 uf @b($0 < 9) = search @a }")
        .expect("parses");
    let a = UfId::from_index(0);
    m.env.ufs[a].def = UfDef::Search { sum: a };
    assert!(rules(verify_loops(&m)).contains(&"uf-order"));
    let zero = m.env.pool.int(0);
    let own = m.env.pool.call(a, [zero]);
    m.env.ufs[a].def = UfDef::PrefixSum { body: own };
    assert_eq!(rules(verify_loops(&m)), ["uf-order"]);
}

#[test]
fn expressions() {
    value("1.5:f64", "block-type");
    value("@A[%x, %r] + 1.5:f64", "types");
    value("select(%x, @A[%x, %r], 0.0:f32)", "types");
    value("select(%x < 1, @A[%x, %r], 0.0:f64)", "types");
    value("(@A[%x, %r] if 1 else 0.0:f32)", "types");
    value("(@A[%x, %r] if %x < 1 else 0.0:f16)", "types");
    value("@A[@I[0], %r]", "types");
    value("f32(@lens(@I[0]))", "types");
    value("f32(%x / 2)", "types");
    value("@A[%x, %r] % 2.0:f32", "types");
    value("f32(%x and %r)", "types");
    value("f32(exp(%x))", "types");
    value("f32(not %x)", "types");
    value("f32(-(%x < 1))", "types");
    value("@A[%x]", "arity");
    value("f32(@lens(%x, %r))", "arity");
    value("f32(300:i8)", "literals");
    value("f32(3:index)", "literals");
    value("f32($0)", "formal-args");
    value("reduce_sum(splat(@A[%x, %r], 4))", "vectors");
    kernel("if 1 < $0 { }", "formal-args");
    kernel("@B[0] = @A[0, 1]", "arity");
    kernel("@B[ramp(0, 1, 8)] = @A[ramp(0, 1, 8)] * 2.0:f32", "lanes");
    kernel("@B[ramp(0, 1, 8)] = (@A[ramp(0, 1, 8)] if M < 1 else splat(0.0:f32, 8))", "lanes");
    kernel("@B[0] = reduce_max(@A[0])", "lanes");
    kernel("@B[ramp(0, 1, 8)] = splat(@A[ramp(0, 1, 4)], 8)", "lanes");
    kernel("if 1 < search @A[0, M, 1] { }", "types");
    kernel("if 1 < search @row.t[0, M, 1:i32] { }", "types");
}

#[test]
fn ids_exist() {
    let mut m = LoopModule::default();
    m.env.tensors.push(Tensor {
        name: "A".into(),
        ty: ScalarType::F32,
        tuple: None,
        dims: vec![crate::env::TensorDim {
            name: "x".into(),
            also: None,
            extent: ExprId::from_index(5),
            storage: ExprId::from_index(5),
        }],
        role: Role::Temp,
        scope: crate::env::Scope::Global,
        range: None,
        layout: vec![],
    });
    assert_eq!(rules(verify_loops(&m)), ["entities"]);

    let mut m = StorageModule::default();
    let p = m.env.pool.param(ParamId::from_index(2));
    let v = m.env.pool.var(VarId::from_index(2));
    let f = m.env.pool.call(UfId::from_index(2), [p]);
    let l = m.env.pool.load(TensorId::from_index(2), ScalarType::I32, [v]);
    let l = m.env.pool.cast(ScalarType::Index, l);
    for e in [p, v, f, l] {
        m.kernels = vec![crate::storage::Kernel {
            name: "k".into(),
            body: vec![crate::storage::Stmt::For {
                var: VarId::from_index(9),
                extent: e,
                kind: crate::loops::LoopKind::Serial,
                body: vec![],
            }],
        }];
        assert_eq!(rules(verify_storage(&m, StorageForm::Lowered)), ["entities"]);
    }
    let lit = m.env.pool.lit(Literal::int(ScalarType::Bool, 7));
    m.kernels[0].body = vec![crate::storage::Stmt::If { cond: lit, then: vec![], other: vec![] }];
    assert_eq!(rules(verify_storage(&m, StorageForm::Lowered)), ["literals"]);
}

#[test]
fn graphs() {
    graph("dim %c = %d dim %d = 3", "dim-order");
    graph("op @A[%b, %i] = 0.0:f32", "op-order");
    graph("op @B[%b, %i] = 0.0:f32 op @B[%b, %i] = 0.0:f32", "op-order");
    graph("op @S[%b] = @B[%b, 0]", "op-order");
    graph("op @B[%b] = 0.0:f32", "op-dims");
    graph("op @B[%b, %b] = 0.0:f32", "op-dims");
    graph("op @S[%i] = 0.0:f32", "op-dims");
    graph("op @B[%i, %b] = 0.0:f32", "op-dims");
    graph("tensor @C[b: M] : i32 temp range 0..M op @C[%b] = 1:i32", "op-range");
    graph("op @S[%b] = sum[] 0.0:f32", "op-reduce");
    graph("op @S[%b] = over[%i] 0.0:f32", "op-reduce");
    graph("op @S[%b] = @A[%b, %i]", "op-bound");
    graph("op @S[%b] = 1", "op-type");
    graph("output @S", "outputs");
    graph("op @S[%b] = 0.0:f32 output @S", "outputs");
    graph("tensor @O[] : f32 output op @O[] = 0.0:f32", "outputs");
    graph("tensor @O[] : f32 output op @O[] = 0.0:f32 output @O output @O", "outputs");
    graph("tensor @O[] : f32 output op @O[] = 0.0:f32 output @O", "");
}

/// What operators read of each other has to be of positions before.
#[test]
fn recurrences() {
    let before = "(@B[%b, %i - 1] if 0 <= %i - 1 else 0.0:f32)";
    graph(&format!("op @B[%b, %i] = @A[%b, %i] + {before}"), "");
    graph(&format!("tensor @C[b: M, i: @lens($0)] : f32 temp op @C[%b, %i] = {before} op @B[%b, %i] = @C[%b, %i]"), "");
    graph("op @B[%b, %i] = @B[%b, %i]", "op-order");
    graph("op @B[%b, %i] = (@B[%b, %i + 1] if %i + 1 < @lens(%b) else 0.0:f32)", "op-order");
    graph("op @B[%b, %i] = (@B[%b, %b - 1] if %b < 1 else 0.0:f32)", "op-order");
    graph("op @S[%b] = sum[%i] @B[%b, %i] op @B[%b, %i] = @S[%b]", "op-order");
    // Of dimensions that are not there nothing is a position.
    let text = "graph.module @m { dim %a = 3 tensor @T[a: 3] : f32 temp
        op @T[%a] = (@T[%a - 1] if 0 <= %a - 1 else 0.0:f32) }";
    let mut g = parse_graph(text).expect("parses");
    g.ops[0].spatial = vec![crate::ids::DimId::from_index(7)];
    assert!(rules(verify_graph(&g)).contains(&"entities"));
}

#[test]
fn dims_own_their_variables() {
    let mut g = parse_graph("graph.module @m { dim %a = 3 dim %b = 4 }").expect("parses");
    let a = g.env.dims[crate::ids::DimId::from_index(0)].var;
    g.env.dims[crate::ids::DimId::from_index(1)].var = a;
    assert_eq!(rules(verify_graph(&g)), ["dim-order"]);
}

#[test]
fn loop_nests() {
    loops("for %b in 0..%?x stage @B { }", "bound");
    loops("for %b in 0..1.5:f32 stage @B { }", "extent-type");
    loops("for %b in 0..M stage @B { for %i in 0..M parallel stage @B { } }", "parallel-outermost");
    loops("for %b in 0..M stage @B init { for %i in 0..M stage @B { } }", "init-loops");
    loops(
        "block @T init { @T[] = 0.0:f32 } for %b in 0..M stage @T init { block @T compute { @T[] = 0.0:f32 } }",
        "init-loops",
    );
    block("compute { spatial %x < %?y = %b @B[%x] = 0.0:f32 }", "iter-extents");
    block("compute { spatial %x < %b = %b @B[%x] = 0.0:f32 }", "iter-extents");
    block("compute { spatial %x < M = %b spatial %y < M = %x @B[%x] = 0.0:f32 }", "bindings");
    block("compute { spatial %x < M = %b where %x < 3 @B[%x] = 0.0:f32 }", "bindings");
    block("compute { spatial %x < M = %b where %b @B[%x] = 0.0:f32 }", "extent-type");
    block("compute { spatial %x < M = %b @B[%b] = 0.0:f32 }", "block-body");
    block("compute { spatial %x < M = %b @B[%x] = @A[%x, %i] }", "block-body");
    block("compute { spatial %x < M = %b @B[%x, 0] = 0.0:f32 }", "block-index");
    block("update sum { reduce %x < M = %b @B[%x] = 0.0:f32 }", "block-index");
    block("compute { spatial %x < M = %b @B[%x] = 0 }", "block-type");
    block("compute { spatial %x < M = %b reduce %r < 3 = %i @B[%x] = 0.0:f32 }", "block-role");
    block("init { spatial %x < M = %b reduce %r < 3 = %i @B[%x] = 0.0:f32 }", "block-role");
    block("compute { spatial %x < M = %b spatial %y < @lens(%x) = %i @A[%x, %y] = 0.0:f32 }", "block-role");
    loops("tensor @O[] : f32 output", "written");
    loops("tensor @O[] : f32 output block @O compute { @O[] = 0.0:f32 }", "");
}

#[test]
fn attached_tensors_stay_in_their_loop() {
    let text = |inside: &str, outside: &str| {
        format!("tensor @L[x: %q] : f32 temp local for %q in 0..M stage @L {{ {inside} }} {outside}")
    };
    let write = "block @L compute { @L[0] = 0.0:f32 }";
    let read = "block @T compute { @T[] = @L[0] }";
    loops(&text(write, ""), "");
    loops(&text(write, read), "attached");
    loops(&text("", write), "attached");
}

#[test]
fn a_variable_is_bound_once() {
    let text = "loop.module @m { tensor @T[] : f32 temp for %a in 0..3 stage @T { for %b in 0..3 stage @T { } } }";
    let mut m = parse_loops(text).expect("parses");
    let crate::loops::Stmt::For(outer) = &mut m.body[0] else { panic!("a loop") };
    let var = outer.var;
    let crate::loops::Stmt::For(inner) = &mut outer.body[0] else { panic!("a loop") };
    inner.var = var;
    assert_eq!(rules(verify_loops(&m)), ["bound-once"]);

    let text = "storage.module @m { kernel @k { let %a = 1 let %b = 2 } }";
    let mut m = parse_storage(text).expect("parses");
    let first = m.kernels[0].body[0].clone();
    m.kernels[0].body[1] = first;
    assert_eq!(rules(verify_storage(&m, StorageForm::Legal)), ["bound-once"]);
}

#[test]
fn storage_modules() {
    storage("tensor @C[] : f32 temp kernel @k { @C[0] = 0.0:f32 }", "buffers");
    storage("tensor @C[] : f32 temp kernel @k { @B[0] = @C[0] }", "buffers");
    storage("buffer @B elems = 3", "buffers");
    storage("tensor @C[] : f32 temp buffer @C elems = index(@B[0])", "buffers");
    storage("tensor @C[] : f32 temp buffer @C elems = 1 offset = 0", "buffers");
    storage("tensor @C[] : f32 input buffer @C elems = 1 offset = $0", "buffers");
    storage("tensor @C[] : f32 temp reg buffer @C elems = M", "buffers");
    storage("tensor @C[] : f32 input buffer @C elems = @lens(0)", "legal");
    let table =
        |rest: &str| format!("uf @m() = max 3 uf @p($0 <= M) = prefix_sum $0 tensor @p.t[x: M] : i64 temp {rest}");
    storage(&table("table @p.t = @p entries = M domain = [M] body = $0"), "");
    storage(&table("table @p.t = @p entries = M domain = [M] body = index(@p.t[$0])"), "tables");
    storage(&table("table @p.t = @p entries = @lens(0) domain = [M] body = $0"), "tables");
    storage(&table("table @p.t = @p entries = M domain = [] body = 1"), "tables");
    storage(&table("table @p.t = @p entries = M domain = [M]"), "tables");
    storage(&table("table @row.t = @p entries = M domain = [M] body = $0"), "tables");
    storage(&table("table @p.t = @row entries = M domain = [M] body = $0"), "tables");
    storage(&table("tensor @f[] : f32 temp table @f = @p entries = M domain = [M] body = $0"), "tables");
    let found = "search @row.t[0, M, 3] + 1";
    let sized =
        format!("uf @q($0 <= M) = prefix_sum $0 tensor @q.t[x: {found}] : i32 temp table @q.t = @q entries = {found}");
    storage(&format!("{sized} domain = [search @row.t[0, M, 3]] body = $0"), "");
    storage("tensor @O[] : f32 output kernel @k { @B[0] = 0.0:f32 }", "written");
    // A prelude alone.
    storage("tensor @O[] : f32 output", "");
}

#[test]
fn kernels() {
    kernel("for %i in 0..M parallel { } @B[0] = 0.0:f32", "kernel-parallel");
    kernel("@B[0] = 0.0:f32 for %i in 0..M parallel { }", "kernel-parallel");
    kernel("for %i in 0..M { for %j in 0..M parallel { } }", "kernel-parallel");
    kernel("if %?x < 1 { }", "bound");
    kernel("for %i in 0..1.5:f32 { }", "scalars");
    kernel("let %i = 1.5:f32", "scalars");
    kernel("let %i = ramp(0, 1, 4)", "scalars");
    kernel("if M { }", "scalars");
    kernel("if ramp(0, 1, 4) < splat(M, 4) { }", "scalars");
    kernel("@B[0] = 0", "store-type");
    kernel("@B[1:i32] = 0.0:f32", "store-type");
    kernel("@B[0] = 0.0:f32 mask M", "store-type");
    kernel("@B[ramp(0, 1, 4)] = 0.0:f32", "store-type");
    kernel("@B[ramp(0, 1, 4)] = splat(0.0:f32, 4) mask M < 1", "store-type");
    kernel("@A[0] = 0.0:f32", "store-target");
    kernel("@row.t[0] = 0:i32", "store-target");
    kernel("for %i in 0..8 vector { }", "legal");
    kernel("for %i in 0..8 unroll { }", "legal");
    kernel("if @lens(0) < 1 { }", "legal");
    kernel("for %i in 0..4 { @R[%i] = 0.0:f32 }", "legal");
    kernel("@B[0] = @R[M]", "legal");
    kernel("@R[ramp(0, 1, 4)] = splat(0.0:f32, 4)", "");
    kernel("for %b in 0..M block.x { if %b < 1 { barrier } for %t in 0..4 thread.x { } }", "");
    kernel("for %t in 0..4 thread.x { barrier }", "barrier");
    kernel("for %t in 0..4 thread.x { if %t < 2 { barrier } }", "barrier");
    kernel("for %t in 0..4 thread.x { commit wait 0 }", "barrier");
}

#[test]
fn the_lowered_form_allows_more() {
    let text = "storage.module @m { param M in 0..=9 uf @lens($0 < M) = extent in 0..=9
        kernel @k { for %i in 0..8 vector { for %j in 0..@lens(%i) unroll { } } } }";
    let m = parse_storage(text).expect("parses");
    assert_eq!(verify_storage(&m, StorageForm::Lowered), Ok(()));
    assert_eq!(rules(verify_storage(&m, StorageForm::Legal)), ["legal"]);
}

#[test]
fn errors_name_their_place() {
    let text = "loop.module @m { tensor @T[] : f32 temp for %a in 0..3 stage @T { block @T compute { @T[] = 1 } } }";
    let errors = verify(text).expect_err("refused");
    assert_eq!(errors[0].to_string(), "for %a, block @T: the value `1` is of type index, not f32 [block-type]");
}

/// What the copy engine would not take, or put beyond its slot.
#[test]
fn boxes() {
    let bulk = |layout: &str, dims: &str, wanted: &[&str]| {
        let text = format!(
            "storage.module @m {{
               tensor @X[i: 8, k: 64] : f32 input
               tensor @L[i: 8, k: 64] : f32 temp shared {layout}
               buffer @X elems = 512 offset = $0 * 64 + $1
               buffer @L elems = 512
               kernel @k {{ for %b in 0..1 block.x {{ bulk @L[0] slot 0 = @X[{dims}]  await @L slot 0 }} }}
             }}"
        );
        let m = parse_storage(&text).expect("parses");
        assert_eq!(rules(verify_storage(&m, StorageForm::Legal)), wanted, "{layout} {dims}");
    };
    bulk("", "0 of 64 by 1 for 64, 0 of 8 by 64 for 8", &[]);
    bulk("", "0 of 64 by 1 for 6, 0 of 8 by 64 for 8", &["bulk"]);
    bulk("", "0 of 64 by 1 for 64, 0 of 8 by 62 for 8", &["bulk"]);
    bulk("", "0 of 64 by 2 for 64, 0 of 8 by 64 for 8", &["bulk"]);
    bulk("", "0 of 64 by 1 for 64, 0 of 8 by 64 for 9", &["bulk"]);
    bulk("layout(slots 2)", "0 of 64 by 1 for 64, 0 of 8 by 64 for 4", &[]);
    bulk("layout(slots 2)", "0 of 64 by 1 for 64, 0 of 8 by 64 for 8", &["bulk"]);
    bulk("layout(swizzle)", "0 of 64 by 1 for 32, 0 of 8 by 64 for 8", &[]);
    bulk("layout(swizzle)", "0 of 64 by 1 for 64, 0 of 8 by 64 for 8", &["bulk"]);
}
