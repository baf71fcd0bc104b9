//! From the storage dialect to an object file and its description, in one call.
//!
//! ```text
//! StorageModule ─ mlir::emit ─► MLIR text ─ CPU_PIPELINE ─► llvm dialect ─► LLVM IR ─ O3 ─► object
//!               └ describe::program_desc ─► ProgramDesc
//! ```

use std::collections::{BTreeSet, HashMap};
use std::mem;
use std::time::{Duration, Instant};

use cora_ir::storage::{Stmt, StorageModule};
use cora_runtime::abi::{KernelFn, ProgramDesc};
use cora_runtime::artifact::Machine;
use cora_runtime::exec::KernelSource;
use cora_runtime::library::check_machine;

use crate::describe::{self, DescribeError};
use crate::llvm::{self, CPU_PIPELINE, CodegenError, Jit, LlvmModule, MlirModule, TargetSpec};
use crate::mlir::{self, EmitError, EmitOptions, TILE_REGISTERS};

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
    /// This machine may not run the code, or lacks a library that it calls.
    #[error(transparent)]
    Runtime(#[from] cora_runtime::Error),
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
    object: Vec<u8>,
    desc: ProgramDesc,
    /// What took how long, in order.
    pub phases: Vec<Phase>,
    /// The machine that the object is for.
    pub target: TargetSpec,
    /// LLVM's names of the features for tile registers that it uses: few machines have them, and a process asks the system
    /// for them.
    pub tile_registers: BTreeSet<&'static str>,
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
    let llvm = optimized(module, target, options, &mut clock)?;
    let object = llvm.emit_object()?;
    clock.lap("object");
    let tile_registers = tile_registers(module, &emit_options(target, options));
    Ok(CompiledProgram { object, desc, phases: clock.phases, target: target.clone(), tile_registers })
}

/// The MLIR text as emitted, before any pass.
///
/// # Errors
///
/// [`CompileError::Emit`].
pub fn to_mlir(module: &StorageModule, target: &TargetSpec, options: &CompileOptions) -> Result<String, CompileError> {
    Ok(mlir::emit(module, &emit_options(target, options))?)
}

fn emit_options(target: &TargetSpec, options: &CompileOptions) -> EmitOptions {
    options.emit.unwrap_or_else(|| EmitOptions::for_target(target))
}

/// The features for tile registers that the code has instructions of.
fn tile_registers(module: &StorageModule, emit: &EmitOptions) -> BTreeSet<&'static str> {
    let mut features = BTreeSet::new();
    for s in module.kernels.iter().flat_map(|k| &k.body) {
        s.walk(&mut |s| {
            if let Stmt::Tile(t) = s
                && emit.has_tiles(t.intrinsic.get().emission)
            {
                features.extend(t.intrinsic.get().needs.feature());
            }
        });
    }
    if !features.is_empty() {
        features.insert(TILE_REGISTERS);
    }
    features
}

/// The optimised LLVM IR, from which text and assembly come; and what took how long.
///
/// # Errors
///
/// As [`compile`].
pub fn to_llvm(
    module: &StorageModule,
    target: &TargetSpec,
    options: &CompileOptions,
) -> Result<(LlvmModule, Vec<Phase>), CompileError> {
    let mut clock = Clock::new();
    let llvm = optimized(module, target, options, &mut clock)?;
    Ok((llvm, clock.phases))
}

/// What code for `target` needs to run, apart from tile registers.
fn machine(target: &TargetSpec) -> Machine {
    Machine::Cpu {
        arch: target.arch().to_owned(),
        cpu: target.cpu().to_owned(),
        features: target.code_features().map(str::to_owned).collect(),
    }
}

/// Whether this process may run code for `target`.
///
/// # Errors
///
/// [`cora_runtime::Error::Machine`] names an extension that the code may use and this machine lacks.
pub fn check_host(target: &TargetSpec) -> Result<(), cora_runtime::Error> {
    // LLVM asked the processor and the system about the host.
    if *target == TargetSpec::host() { Ok(()) } else { check_machine(&machine(target)) }
}

fn optimized(
    module: &StorageModule,
    target: &TargetSpec,
    options: &CompileOptions,
    clock: &mut Clock,
) -> Result<LlvmModule, CompileError> {
    let text = to_mlir(module, target, options)?;
    clock.lap("emit");
    let mut mlir = MlirModule::parse(&text)?;
    clock.lap("parse");
    mlir.run_pipeline(CPU_PIPELINE)?;
    clock.lap("lower");
    let mut llvm = LlvmModule::from_mlir(&mlir, target)?;
    clock.lap("translate");
    llvm.optimize(&options.llvm_pipeline)?;
    llvm.settle_masks();
    clock.lap("optimize");
    Ok(llvm)
}

impl CompiledProgram {
    /// The relocatable object file.
    pub fn object(&self) -> &[u8] {
        &self.object
    }

    /// What the runtime needs to know.
    pub fn desc(&self) -> &ProgramDesc {
        &self.desc
    }

    /// Both of these.
    pub fn into_parts(self) -> (Vec<u8>, ProgramDesc) {
        (self.object, self.desc)
    }

    /// What the code needs to run.
    pub fn machine(&self) -> Machine {
        let mut machine = machine(&self.target);
        if let Machine::Cpu { features, .. } = &mut machine {
            features.extend(self.tile_registers.iter().copied().map(str::to_owned));
        }
        machine
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
    /// [`CompileError::Runtime`] where this machine may not run the code or lacks a library that it calls;
    /// [`CompileError::Codegen`] where it needs functions that this process lacks.
    pub fn jit(&self) -> Result<JitKernels, CompileError> {
        check_host(&self.target)?;
        if !self.tile_registers.is_empty() {
            check_machine(&self.machine())?;
        }
        let found: Result<Vec<_>, _> = self.desc.imports.iter().map(|i| Ok((i, i.resolve()?))).collect();
        let found = found.map_err(CompileError::Runtime)?;
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
