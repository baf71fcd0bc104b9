//! The driver from MLIR text to called code.

use super::{CPU_PIPELINE, CodegenError, Jit, LlvmModule, MlirModule, TargetSpec, link_shared};

/// `y[i] = sqrt(sum of x * x over all vectors + expf(scale)) * x[i]`, with a masked tail: every dialect the pipeline
/// serves.
const KERNEL: &str = r#"
llvm.func @kernel(%x: !llvm.ptr {llvm.noalias}, %y: !llvm.ptr {llvm.noalias}, %n: i64, %scale: f32) {
  %c0 = arith.constant 0 : index
  %c16 = arith.constant 16 : index
  %zero = arith.constant dense<0.0> : vector<16xf32>
  %len = arith.index_cast %n : i64 to index
  %rem = arith.remui %len, %c16 : index
  %full = arith.subi %len, %rem : index
  %mask = vector.create_mask %rem : vector<16xi1>
  %acc = scf.for %i = %c0 to %full step %c16 iter_args(%a = %zero) -> (vector<16xf32>) {
    %i64 = arith.index_cast %i : index to i64
    %p = llvm.getelementptr inbounds %x[%i64] : (!llvm.ptr, i64) -> !llvm.ptr, f32
    %v = llvm.load %p {alignment = 4 : i64} : !llvm.ptr -> vector<16xf32>
    %s = vector.fma %v, %v, %a : vector<16xf32>
    scf.yield %s : vector<16xf32>
  }
  %full64 = arith.index_cast %full : index to i64
  %pt = llvm.getelementptr inbounds %x[%full64] : (!llvm.ptr, i64) -> !llvm.ptr, f32
  %vt = llvm.intr.masked.load %pt, %mask, %zero {alignment = 4 : i32} : (!llvm.ptr, vector<16xi1>, vector<16xf32>) -> vector<16xf32>
  %at = vector.fma %vt, %vt, %acc : vector<16xf32>
  %sum = vector.reduction <add>, %at : vector<16xf32> into f32
  %e = math.exp %scale : f32
  %se = arith.addf %sum, %e : f32
  %root = math.sqrt %se : f32
  %rv = vector.broadcast %root : f32 to vector<16xf32>
  scf.for %i = %c0 to %full step %c16 {
    %i64 = arith.index_cast %i : index to i64
    %p = llvm.getelementptr inbounds %x[%i64] : (!llvm.ptr, i64) -> !llvm.ptr, f32
    %q = llvm.getelementptr inbounds %y[%i64] : (!llvm.ptr, i64) -> !llvm.ptr, f32
    %v = llvm.load %p {alignment = 4 : i64} : !llvm.ptr -> vector<16xf32>
    %s = arith.mulf %v, %rv : vector<16xf32>
    llvm.store %s, %q {alignment = 4 : i64} : vector<16xf32>, !llvm.ptr
  }
  %qt = llvm.getelementptr inbounds %y[%full64] : (!llvm.ptr, i64) -> !llvm.ptr, f32
  %st = arith.mulf %vt, %rv : vector<16xf32>
  llvm.intr.masked.store %st, %qt, %mask {alignment = 4 : i32} : vector<16xf32>, vector<16xi1> into !llvm.ptr
  llvm.return
}
"#;

fn compile(text: &str, target: &TargetSpec) -> LlvmModule {
    let mut module = MlirModule::parse(text).unwrap();
    module.run_pipeline(CPU_PIPELINE).unwrap();
    let mut llvm = LlvmModule::from_mlir(&module, target).unwrap();
    llvm.optimize("default<O3>").unwrap();
    llvm
}

/// Runs `KERNEL` from a loaded object and checks it against plain Rust, for lengths on both sides of a vector.
fn check_kernel(jit: &Jit) {
    type Kernel = unsafe extern "C" fn(*const f32, *mut f32, i64, f32);
    let address = jit.lookup("kernel").unwrap();
    // SAFETY: `KERNEL` declares this signature, and `jit` lives until the end of the function.
    let kernel = unsafe { std::mem::transmute::<*const (), Kernel>(address) };
    for n in [0_usize, 1, 15, 16, 17, 100] {
        let x: Vec<f32> = (0..n).map(|i| (i % 5) as f32).collect();
        let mut y = vec![-1.0_f32; n + 1];
        // SAFETY: the kernel reads `n` floats of `x` and writes `n` of `y`; both are that long.
        unsafe { kernel(x.as_ptr(), y.as_mut_ptr(), n as i64, 0.5) };
        let root = (x.iter().map(|v| v * v).sum::<f32>() + 0.5_f32.exp()).sqrt();
        for (i, (&got, x)) in y.iter().zip(&x).enumerate() {
            assert!((got - root * x).abs() <= 1e-4 * root * x, "n = {n}, i = {i}: {got}");
        }
        assert_eq!(y[n], -1.0, "n = {n}: wrote past the end");
    }
}

#[test]
fn kernel_runs_in_this_process() {
    let object = compile(KERNEL, &TargetSpec::host()).emit_object().unwrap();
    check_kernel(&Jit::load(&object).unwrap());
    // The same bytes load again after the first copy is gone, as they do from a cache.
    check_kernel(&Jit::load(&object.clone()).unwrap());
}

#[test]
fn func_func_with_bare_pointers_and_libm_calls() {
    let text = r#"
func.func @f(%p: !llvm.ptr) {
  %x = llvm.load %p : !llvm.ptr -> f32
  %t = math.tanh %x : f32
  %e = math.erf %t : f32
  llvm.store %e, %p : f32, !llvm.ptr
  return
}
"#;
    let jit = Jit::load(&compile(text, &TargetSpec::host()).emit_object().unwrap()).unwrap();
    let mut value = 0.5_f32;
    // SAFETY: `f` takes one pointer to a float that it reads and writes; `jit` lives until after the call.
    unsafe {
        let f = std::mem::transmute::<*const (), unsafe extern "C" fn(*mut f32)>(jit.lookup("f").unwrap());
        f(&mut value);
    }
    assert!((value - 0.486_549_9).abs() < 1e-3, "{value}");
}

#[test]
fn missing_and_unresolved_symbols_are_told_apart() {
    let object = compile(KERNEL, &TargetSpec::host()).emit_object().unwrap();
    let jit = Jit::load(&object).unwrap();
    match jit.lookup("kernle") {
        Err(CodegenError::MissingSymbol { name }) => assert_eq!(name, "kernle"),
        other => panic!("{other:?}"),
    }
    check_kernel(&jit);

    let text = "llvm.func @cora_no_such_function()\n\
                llvm.func @f() {\n  llvm.call @cora_no_such_function() : () -> ()\n  llvm.return\n}";
    let jit = Jit::load(&compile(text, &TargetSpec::host()).emit_object().unwrap()).unwrap();
    match jit.lookup("f") {
        Err(CodegenError::UnresolvedSymbols { names }) => assert_eq!(names, ["cora_no_such_function"]),
        other => panic!("{other:?}"),
    }
}

#[test]
fn bytes_that_are_no_object_are_an_error() {
    let result = Jit::load(b"not an object").and_then(|jit| jit.lookup("f").map(|_| ()));
    assert!(matches!(result, Err(CodegenError::Llvm { .. })), "{result:?}");
}

#[test]
fn one_process_compiles_for_every_target() {
    let cases = [("znver4", "%zmm", 62), ("haswell", "%ymm", 62), ("neoverse-n1", "fmla\tv", 183)];
    for (cpu, expected, elf_machine) in cases {
        let llvm = compile(KERNEL, &TargetSpec::new(cpu).unwrap());
        let assembly = llvm.emit_asm().unwrap();
        assert!(assembly.contains(expected), "{cpu}:\n{assembly}");
        let object = llvm.emit_object().unwrap();
        assert_eq!(&object[..4], b"\x7fELF");
        assert_eq!(u16::from_le_bytes([object[18], object[19]]), elf_machine, "{cpu}");
        let library = link_shared(&object).unwrap();
        assert_eq!(u16::from_le_bytes([library[18], library[19]]), elf_machine, "{cpu}");
        assert_eq!(library, link_shared(&object).unwrap(), "{cpu}: linking is not repeatable");
    }
}

#[test]
fn objects_of_another_architecture_do_not_load() {
    let other = if cfg!(target_arch = "x86_64") { "neoverse-n1" } else { "haswell" };
    let object = compile(KERNEL, &TargetSpec::new(other).unwrap()).emit_object().unwrap();
    let result = Jit::load(&object).and_then(|jit| jit.lookup("kernel").map(|_| ()));
    assert!(matches!(result, Err(CodegenError::Llvm { .. })), "{result:?}");
}

#[test]
fn ptx_is_emitted() {
    let text = r#"
llvm.func @k(%p: !llvm.ptr<1>) attributes {nvvm.kernel} {
  %t = nvvm.read.ptx.sreg.tid.x : i32
  %q = llvm.getelementptr inbounds %p[%t] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, f32
  %v = llvm.load %q : !llvm.ptr<1> -> f32
  %s = arith.mulf %v, %v : f32
  llvm.store %s, %q : f32, !llvm.ptr<1>
  llvm.return
}
"#;
    let ptx = compile(text, &TargetSpec::nvptx("sm_80", 70)).emit_asm().unwrap();
    for expected in [".version 7.0", ".target sm_80", ".visible .entry k", "mul.rn.f32"] {
        assert!(ptx.contains(expected), "{expected} is missing from\n{ptx}");
    }
}

#[test]
fn emission_leaves_the_module_as_it_was() {
    let llvm = compile(KERNEL, &TargetSpec::new("znver4").unwrap());
    let (ir, object) = (llvm.to_ir_string(), llvm.emit_object().unwrap());
    llvm.emit_asm().unwrap();
    assert_eq!(llvm.to_ir_string(), ir);
    assert_eq!(llvm.emit_object().unwrap(), object);
    assert!(ir.contains("target triple = \"x86_64-unknown-linux-gnu\""), "{ir}");
}

#[test]
fn unlowered_ops_do_not_translate() {
    let module = MlirModule::parse("func.func @f() {\n  return\n}").unwrap();
    match LlvmModule::from_mlir(&module, &TargetSpec::host()) {
        Err(CodegenError::Mlir { stage, diagnostics }) => {
            assert_eq!(stage, "translate to LLVM IR");
            assert!(diagnostics[0].starts_with("1:1: error: "), "{diagnostics:?}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn bad_llvm_pipeline_is_an_error() {
    let module = MlirModule::parse("llvm.func @f() {\n  llvm.return\n}").unwrap();
    let mut llvm = LlvmModule::from_mlir(&module, &TargetSpec::host()).unwrap();
    let error = llvm.optimize("no-such-pass").unwrap_err().to_string();
    assert!(error.contains("no-such-pass"), "{error}");
}

#[test]
fn bad_inline_assembly_is_an_error() {
    let text = r#"llvm.func @f() {
  llvm.inline_asm has_side_effects "no_such_instruction", "" : () -> ()
  llvm.return
}"#;
    let error = compile(text, &TargetSpec::new("haswell").unwrap()).emit_object().unwrap_err();
    assert!(matches!(&error, CodegenError::Llvm { message, .. } if message.contains("no_such_instruction")), "{error}");
}

#[test]
fn kernels_compile_on_several_threads() {
    let jits: Vec<Jit> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| Jit::load(&compile(KERNEL, &TargetSpec::host()).emit_object().unwrap()).unwrap()))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    jits.iter().for_each(check_kernel);
}

/// Threads that take different ways meet at one place: without `convergent` the assembly would be copied into both.
#[test]
fn what_threads_do_together_stays_in_one_place() {
    let text = r#"
llvm.func @kernel(%p: !llvm.ptr, %x: i32) {
  %zero = llvm.mlir.constant(0 : i32) : i32
  %first = llvm.icmp "eq" %x, %zero : i32
  llvm.cond_br %first, ^one, ^meet
^one:
  llvm.inline_asm has_side_effects "first", "~{memory}" : () -> ()
  llvm.br ^meet
^meet:
  llvm.inline_asm has_side_effects "together", "~{memory}" : () -> ()
  llvm.cond_br %first, ^two, ^end
^two:
  llvm.inline_asm has_side_effects "second", "~{memory}" : () -> ()
  llvm.br ^end
^end:
  llvm.return
}
"#;
    let gpu = TargetSpec::nvptx("sm_90a", 80);
    let ir = compile(text, &gpu).to_ir_string();
    assert_eq!(ir.matches("\"together\"").count(), 1, "{ir}");
}
