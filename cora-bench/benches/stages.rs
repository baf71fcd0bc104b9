//! Each stage of the compiler on the encoder layer.
//!
//! `simplify` and `prove` are the time that the passes up to the storage module spend in the simplifier and the prover.

use cora::codegen_llvm::compile::{CompileOptions, compile};
use cora::codegen_llvm::llvm::{CPU_PIPELINE, LlvmModule, MlirModule, TargetSpec};
use cora::codegen_llvm::mlir::{EmitOptions, emit};
use cora::frontend::parse_program;
use cora::ir::{Env, ExprId, VarId};
use cora::passes::lower::Simplifier;
use cora::passes::manager::{BACK_END, Invocation, PassContext, parse_pipeline, run_pipeline};
use cora::passes::program::Program;
use cora::passes::schedule::apply_step;
use cora::passes::standard::StandardSimplifier;
use cora_bench::workload;
use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// The standard simplifier, with a clock on each of its two services.
#[derive(Default)]
struct Timed {
    inner: StandardSimplifier,
    simplify: Duration,
    prove: Duration,
}

impl Simplifier for Timed {
    fn simplify(&mut self, env: &mut Env, loops: &[(VarId, ExprId)], e: ExprId) -> ExprId {
        let start = Instant::now();
        let result = self.inner.simplify(env, loops, e);
        self.simplify += start.elapsed();
        result
    }

    fn prove(&mut self, env: &mut Env, loops: &[(VarId, ExprId)], assumptions: &[ExprId], goal: ExprId) -> bool {
        let start = Instant::now();
        let result = self.inner.prove(env, loops, assumptions, goal);
        self.prove += start.elapsed();
        result
    }
}

fn passes(program: &Program, pipeline: &[Invocation]) -> Program {
    timed(program, pipeline, &mut Timed::default())
}

fn timed(program: &Program, pipeline: &[Invocation], simplifier: &mut Timed) -> Program {
    let mut cx = PassContext { simplifier };
    run_pipeline(program.clone(), pipeline, &mut cx, &mut |_| {}).expect("the encoder layer compiles")
}

fn stages(c: &mut Criterion) {
    let text = workload::find("encoder").expect("a workload").text;
    let graph = parse_program("encoder_layer", text, &[]).expect("the encoder layer parses");
    let schedule = graph.schedule("cpu").expect("it has a cpu schedule").clone();
    let pipeline = |text: &str| parse_pipeline(text).expect("passes that exist");
    let mut group = c.benchmark_group("encoder_layer");
    group.sample_size(10).warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(2));
    group.bench_function("parse", |b| b.iter(|| parse_program("encoder_layer", black_box(text), &[])));

    let graph = Program::Graph(graph);
    let to_loops = pipeline("check-accesses,lower-to-loops");
    group.bench_function("lower to loops", |b| b.iter(|| passes(&graph, &to_loops)));

    let loops = passes(&graph, &to_loops);
    let scheduled = || {
        let mut p = loops.clone();
        if let Program::Loops(m) = &mut p {
            schedule.steps.iter().try_for_each(|s| apply_step(m, s)).expect("the schedule is legal");
        }
        p
    };
    group.bench_function("schedule", |b| b.iter(scheduled));

    let scheduled = scheduled();
    let back = pipeline(&BACK_END.join(","));
    group.bench_function("to storage and simplify", |b| b.iter(|| passes(&scheduled, &back)));

    let Program::Storage(storage) = passes(&scheduled, &back) else { return };
    let target = TargetSpec::host();
    let options = EmitOptions::for_target(&target);
    for name in ["simplify", "prove"] {
        let once = || {
            let mut simplifier = Timed::default();
            timed(&graph, &to_loops, &mut simplifier);
            timed(&scheduled, &back, &mut simplifier);
            if name == "simplify" { simplifier.simplify } else { simplifier.prove }
        };
        group.bench_function(name, |b| b.iter_custom(|n| (0..n).map(|_| once()).sum()));
    }
    group.bench_function("emit MLIR", |b| b.iter(|| emit(&storage, &options)));
    let text = emit(&storage, &options).expect("a legal module");
    let lowered = || {
        let mut module = MlirModule::parse(&text).expect("it parses");
        module.run_pipeline(CPU_PIPELINE).expect("it lowers");
        module
    };
    group.bench_function("MLIR", |b| b.iter(lowered));
    let module = lowered();
    group.bench_function("LLVM", |b| {
        b.iter(|| {
            let mut llvm = LlvmModule::from_mlir(&module, &target).expect("it translates");
            llvm.optimize("default<O3>").expect("it optimises");
            llvm.emit_object().expect("it has code")
        });
    });
    group.bench_function("all of code generation", |b| {
        b.iter(|| compile(&storage, &target, &CompileOptions::default()).expect("the encoder layer compiles"));
    });
    group.finish();
}

criterion_group!(benches, stages);
criterion_main!(benches);
