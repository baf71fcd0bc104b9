//! `--verify-each` finds the first pass that changes a result, and no other.

use cora_ir::BinOp;
use cora_ir::loops::{LoopModule, Stmt};
use cora_passes::execution::VerifyEach;
use cora_passes::lower::to_loops::lower_to_loops;
use cora_passes::program::Program;
use cora_passes::schedule::apply_step;

const SUMS: &str = "graph.module @sums {
  param M in 0..=64
  uf @lens($0 < M) = extent in 0..=20
  dim %b = M
  dim %i = @lens(%b)
  tensor @A[b: M, i: @lens($0)] : f32 input
  tensor @E[b: M, i: @lens($0)] : f32 temp
  tensor @S[b: M] : f32 output

  op @E[%b, %i] = exp(@A[%b, %i])
  op @S[%b] = sum[%i] @E[%b, %i]
  output @S
}";

fn program() -> (Program, LoopModule) {
    let program = Program::parse(SUMS).expect("a program");
    let Program::Graph(g) = &program else { panic!("a graph") };
    let loops = lower_to_loops(g);
    (program, loops)
}

fn step(m: &mut LoopModule, text: &str) {
    let kind = cora_ir::text::parse_step(text).expect("a step");
    apply_step(m, &cora_ir::schedule::Step::from(kind)).expect("a legal step");
}

#[test]
fn correct_passes_pass() {
    let (graph, mut loops) = program();
    let mut verify = VerifyEach::new(&graph, 7).expect("interpretable");
    verify.check("lower-to-loops", &Program::Loops(loops.clone())).expect("the same results");
    for text in ["split @S[i] 4 -> io, ii tail(mask)", "fuse @E[b] @E[i] -> f pad 2", "parallel @E[f]"] {
        step(&mut loops, text);
        verify.check(text, &Program::Loops(loops.clone())).expect("the same results");
    }
}

/// What a wrong pass does to a module.
type Mistake = fn(&mut LoopModule);

/// Each mistake is one that a pass could make: a tail that is left out, a loop that runs once too
/// often, a predicate that is lost, a constant that is off.
#[test]
fn broken_passes_are_found() {
    let mistakes: [(&str, Mistake); 4] = [
        ("a lost tail", |m| {
            each_loop(m, &mut |m, l| {
                let four = m.int(4);
                let rows = m.floor_div(l.extent, four);
                l.extent = if l.init { l.extent } else { m.mul(rows, four) };
            });
        }),
        ("one iteration too many", |m| {
            each_loop(m, &mut |m, l| {
                let one = m.int(1);
                l.extent = m.add(l.extent, one);
            });
        }),
        ("a lost predicate", |m| {
            step(m, "split @S[i] 4 -> io, ii tail(mask)");
            m.body.iter_mut().for_each(|s| s.blocks_mut(&mut |b| b.predicate.clear()));
        }),
        ("a value slightly off", |m| {
            let pool = &mut m.env.pool;
            m.body.iter_mut().for_each(|s| {
                s.blocks_mut(&mut |b| {
                    if b.role == cora_ir::loops::BlockRole::Compute {
                        let two = pool.lit(cora_ir::Literal::float(cora_ir::ScalarType::F32, 1.0 + 1e-5));
                        b.value = pool.bin(BinOp::Mul, b.value, two);
                    }
                });
            });
        }),
    ];
    for (what, mistake) in mistakes {
        let (graph, mut loops) = program();
        let mut verify = VerifyEach::new(&graph, 7).expect("interpretable");
        verify.check("lower-to-loops", &Program::Loops(loops.clone())).expect("the same results");
        mistake(&mut loops);
        let fault = verify.check(what, &Program::Loops(loops)).expect_err(what);
        assert_eq!(fault.pass, what);
        assert!(fault.detail.contains("lens="), "{what}: {}", fault.detail);
    }
}

fn each_loop(m: &mut LoopModule, f: &mut dyn FnMut(&mut cora_ir::ExprPool, &mut cora_ir::loops::For)) {
    fn go(
        pool: &mut cora_ir::ExprPool,
        body: &mut [Stmt],
        f: &mut dyn FnMut(&mut cora_ir::ExprPool, &mut cora_ir::loops::For),
    ) {
        for s in body {
            if let Stmt::For(l) = s {
                f(pool, l);
                go(pool, &mut l.body, f);
            }
        }
    }
    go(&mut m.env.pool, &mut m.body, f);
}
