//! From the storage dialect to an object file and its description, in one call.
//!
//! ```text
//! StorageModule ─ mlir::emit ─► MLIR text ─ CPU_PIPELINE ─► llvm dialect ─► LLVM IR ─ O3 ─► object
//!               └ describe::program_desc ─► ProgramDesc
//! ```

use std::collections::HashMap;
use std::mem;
use std::time::{Duration, Instant};

use cora_ir::storage::StorageModule;
use cora_runtime::abi::{KernelFn, ProgramDesc};
use cora_runtime::exec::KernelSource;

use crate::describe::{self, DescribeError};
use crate::llvm::{self, CPU_PIPELINE, CodegenError, Jit, LlvmModule, MlirModule, TargetSpec};
use crate::mlir::{self, EmitError, EmitOptions};

/// Why a program could not be compiled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    /// The module is not what emission requires.
    #[error(transparent)]
    Emit(#[from] EmitError),
    /// The module cannot be described to the runtime.
    #[error(transparent)]
    Describe(#[from] DescribeError),
    /// MLIR, LLVM or the linker failed.
    #[error(transparent)]
    Codegen(#[from] CodegenError),
}

/// How to compile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompileOptions {
    /// How to emit MLIR; nothing = what suits the target.
    pub emit: Option<EmitOptions>,
    /// LLVM's pass pipeline.
    pub llvm_pipeline: String,
}

impl Default for CompileOptions {
    fn default() -> Self {
        Self { emit: None, llvm_pipeline: "default<O3>".to_owned() }
    }
}

/// The time that a phase took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    /// Its name, such as `optimize`.
    pub name: &'static str,
    /// Wall-clock time.
    pub time: Duration,
}

/// A program for one target.
#[derive(Clone, Debug)]
pub struct CompiledProgram {
    /// The MLIR text as emitted, before any pass.
    pub mlir: String,
    /// The relocatable object file.
    pub object: Vec<u8>,
    /// What the runtime needs to know.
    pub desc: ProgramDesc,
    /// What took how long, in order.
    pub phases: Vec<Phase>,
    /// The machine that the object is for.
    pub target: TargetSpec,
    llvm_pipeline: String,
}

/// Compiles a verified, legalised module; the same module, target and options give the same bytes.
///
/// # Errors
///
/// [`CompileError`]; for modules that meet the requirements only LLVM's limits remain.
pub fn compile(
    module: &StorageModule,
    target: &TargetSpec,
    options: &CompileOptions,
) -> Result<CompiledProgram, CompileError> {
    let mut clock = Clock::new();
    let desc = describe::program_desc(module)?;
    clock.lap("describe");
    let emit = options.emit.unwrap_or_else(|| EmitOptions::for_target(target));
    let mlir = mlir::emit(module, &emit)?;
    clock.lap("emit");
    let llvm = lower(&mlir, target, &options.llvm_pipeline, &mut clock)?;
    let object = llvm.emit_object()?;
    clock.lap("object");
    let (phases, target, llvm_pipeline) = (clock.phases, target.clone(), options.llvm_pipeline.clone());
    Ok(CompiledProgram { mlir, object, desc, phases, target, llvm_pipeline })
}

/// MLIR text to optimised LLVM IR.
fn lower(mlir: &str, target: &TargetSpec, pipeline: &str, clock: &mut Clock) -> Result<LlvmModule, CodegenError> {
    let mut module = MlirModule::parse(mlir)?;
    clock.lap("parse");
    module.run_pipeline(CPU_PIPELINE)?;
    clock.lap("lower");
    let mut llvm = LlvmModule::from_mlir(&module, target)?;
    clock.lap("translate");
    llvm.optimize(pipeline)?;
    llvm.keep_masks();
    clock.lap("optimize");
    Ok(llvm)
}

impl CompiledProgram {
    /// The optimised LLVM IR as text. Compiles again: LLVM's modules are tied to one thread, and few callers want this.
    ///
    /// # Errors
    ///
    /// None that compilation did not have.
    pub fn llvm_ir(&self) -> Result<String, CodegenError> {
        Ok(self.again()?.to_ir_string())
    }

    /// The assembly as text. Compiles again, as [`CompiledProgram::llvm_ir`] does.
    ///
    /// # Errors
    ///
    /// None that compilation did not have.
    pub fn asm(&self) -> Result<String, CodegenError> {
        self.again()?.emit_asm()
    }

    fn again(&self) -> Result<LlvmModule, CodegenError> {
        lower(&self.mlir, &self.target, &self.llvm_pipeline, &mut Clock::new())
    }

    /// The object as a shared library, for an artifact.
    ///
    /// # Errors
    ///
    /// [`CodegenError::Link`].
    pub fn shared_library(&self) -> Result<Vec<u8>, CodegenError> {
        llvm::link_shared(&self.object)
    }

    /// Loads the object into this process.
    ///
    /// # Errors
    ///
    /// [`CodegenError::Import`] where a library that the program calls is not found; others where the object is for
    /// another machine or needs functions that this process lacks.
    pub fn jit(&self) -> Result<JitKernels, CodegenError> {
        let found: Result<Vec<_>, _> = self.desc.imports.iter().map(|i| Ok((i, i.resolve()?))).collect();
        let found = found.map_err(CodegenError::Import)?;
        let jit = Jit::load(&self.object)?;
        for (import, function) in found {
            let variable = jit.lookup(import.symbol())?.cast_mut().cast::<*const ()>();
            // SAFETY: `mlir::emit` defines a variable of pointer type, writable and aligned, for each import that the
            // description names, and nothing of the object runs yet.
            unsafe { variable.write(function) };
        }
        let mut kernels = HashMap::new();
        for k in self.desc.kernels.iter().chain(&self.desc.setup_kernels) {
            let address = jit.lookup(&k.symbol)?;
            // SAFETY: `mlir::emit` gives every public function of the object the signature `KernelFn`, with C's calling
            // convention, and the description names those functions only.
            let kernel = unsafe { mem::transmute::<*const (), KernelFn>(address) };
            kernels.insert(k.symbol.clone(), kernel);
        }
        Ok(JitKernels { kernels, _jit: jit })
    }
}

/// Kernels loaded into this process.
#[derive(Debug)]
pub struct JitKernels {
    kernels: HashMap<String, KernelFn>,
    /// Owns the code that the functions point to.
    _jit: Jit,
}

impl KernelSource for JitKernels {
    fn kernel(&self, symbol: &str) -> Option<KernelFn> {
        self.kernels.get(symbol).copied()
    }
}

struct Clock {
    phases: Vec<Phase>,
    last: Instant,
}

impl Clock {
    fn new() -> Self {
        Self { phases: Vec::new(), last: Instant::now() }
    }

    fn lap(&mut self, name: &'static str) {
        let now = Instant::now();
        self.phases.push(Phase { name, time: now - self.last });
        self.last = now;
    }
}
