//! The same program gives the same bytes, however often it is compiled.

use crate::examples::{load, small};
use crate::harness::message;
use crate::support::{in_parallel, root};
use cora::codegen_llvm::compile::{CompileOptions, compile, to_llvm, to_mlir};
use cora::codegen_llvm::llvm::TargetSpec;
use cora::driver::lower;
use cora::ir::text::print_storage;
use cora::passes::pipeline::{self, Form};
use cora::passes::standard::StandardSimplifier;

/// The storage dialect, MLIR, LLVM IR, object and description of one compilation.
fn once(name: &str, own: bool) -> Vec<(&'static str, Vec<u8>)> {
    let path = root().join(format!("examples/{name}.cora"));
    let source = load(&path, small(name)).unwrap_or_else(|e| panic!("{e}"));
    let schedule = source.graph.schedule("cpu").filter(|_| own);
    let lowered = lower(&source, schedule, false, &mut |_| {}).unwrap_or_else(|f| panic!("{}", message(f)));
    let (target, options) = (TargetSpec::host(), CompileOptions::default());
    let program = compile(&lowered.storage, &target, &options).expect("compiles");
    let mlir = to_mlir(&lowered.storage, &target, &options).expect("compiles");
    let (llvm, _) = to_llvm(&lowered.storage, &target, &options).expect("compiles");
    vec![
        ("storage", print_storage(&lowered.storage).into_bytes()),
        ("MLIR", mlir.into_bytes()),
        ("LLVM IR", llvm.to_ir_string().into_bytes()),
        ("object", program.object().to_vec()),
        ("description", program.desc().to_bytes().expect("encodes")),
    ]
}

fn check(name: &str, own: bool, times: usize) {
    let want = once(name, own);
    let again: Vec<usize> = (1..times).collect();
    // On several threads at once, so that nothing can depend on what was compiled before.
    let complaints = in_parallel(&again, |_| {
        let found = once(name, own);
        let differ = want.iter().zip(&found).filter(|(a, b)| a != b);
        differ.map(|(a, _)| format!("{name}: another {} than the first time", a.0)).collect()
    });
    assert!(complaints.is_empty(), "{} of {times}: {}", complaints.len(), complaints[0]);
}

#[test]
fn a_hundred_compiles() {
    check("listing1", true, 100);
}

#[test]
fn large_programs_again() {
    check("encoder_layer", true, 4);
    check("mha", false, 3);
}

/// One simplifier for several programs and schedules, as a search for schedules would have it, gives what a fresh one does.
#[test]
fn a_simplifier_for_several_compiles() {
    let mut shared = StandardSimplifier::new();
    for name in ["listing1", "qkt", "trmm", "tradd", "attnv", "masked_sdpa"] {
        let path = root().join(format!("examples/{name}.cora"));
        let graph = load(&path, small(name)).unwrap_or_else(|e| panic!("{e}")).graph;
        let forms = [
            (None, Form::default()),
            (graph.schedule("cpu"), Form::default()),
            (None, Form { padded: true, ..Form::default() }),
            (None, Form { grid: Some("sm_80"), ..Form::default() }),
        ];
        for (schedule, form) in forms {
            let with = |simplifier: &mut StandardSimplifier| {
                let storage = pipeline::compile(&graph, schedule, form, simplifier, &mut |_| {});
                storage.map(|s| print_storage(&s)).map_err(|d| format!("{d:?}"))
            };
            assert_eq!(with(&mut StandardSimplifier::new()), with(&mut shared), "{name} {form:?}");
        }
    }
}
