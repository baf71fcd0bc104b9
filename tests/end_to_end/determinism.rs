//! The same program gives the same bytes, however often it is compiled.

use crate::examples::{load, small};
use crate::harness::message;
use crate::support::{in_parallel, root};
use cora::codegen_llvm::compile::{CompileOptions, compile, to_llvm, to_mlir};
use cora::codegen_llvm::llvm::TargetSpec;
use cora::driver::lower;
use cora::ir::text::print_storage;

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
        ("object", program.object.clone()),
        ("description", program.desc.to_bytes().expect("encodes")),
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
