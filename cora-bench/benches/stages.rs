//! Each stage of the compiler on the encoder layer.

use cora::codegen_llvm::compile::{CompileOptions, compile};
use cora::codegen_llvm::llvm::TargetSpec;
use cora::codegen_llvm::mlir::{EmitOptions, emit};
use cora::frontend::parse_program;
use cora::passes::manager::{BACK_END, Invocation, PassContext, parse_pipeline, run_pipeline};
use cora::passes::program::Program;
use cora::passes::schedule::apply_step;
use cora::passes::standard::StandardSimplifier;
use cora_bench::workload;
use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;

fn passes(program: &Program, pipeline: &[Invocation]) -> Program {
    let mut simplifier = StandardSimplifier::new();
    let mut cx = PassContext { simplifier: &mut simplifier };
    run_pipeline(program.clone(), pipeline, &mut cx, &mut |_| {}).expect("the encoder layer compiles")
}

fn stages(c: &mut Criterion) {
    let text = workload::find("encoder").expect("a workload").text;
    let graph = parse_program("encoder_layer", text, &[]).expect("the encoder layer parses");
    let schedule = graph.schedule("cpu").expect("it has a cpu schedule").clone();
    let pipeline = |text: &str| parse_pipeline(text).expect("passes that exist");
    let mut group = c.benchmark_group("encoder_layer");
    group.sample_size(10);
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
    group.bench_function("emit MLIR", |b| b.iter(|| emit(&storage, &options)));
    group.bench_function("emit, MLIR and LLVM to an object", |b| {
        b.iter(|| compile(&storage, &target, &CompileOptions::default()).expect("the encoder layer compiles"));
    });
    group.finish();
}

criterion_group!(benches, stages);
criterion_main!(benches);
