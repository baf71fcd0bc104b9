//! What a program is compiled for, code for it, and why there is none.

use crate::driver::Failure;
use cora_codegen_cuda::{ARCHITECTURES, GpuTarget, GridProgram};
use cora_codegen_llvm::compile::{CompileError, CompileOptions, CompiledProgram, compile as compile_native};
use cora_codegen_llvm::describe::{DescribeError, DescribeFault, program_desc};
use cora_codegen_llvm::llvm::{CodegenError, TargetSpec};
use cora_ir::Diagnostic;
use cora_ir::intrinsic::Features;
use cora_ir::storage::StorageModule;
use cora_runtime::abi::{DescFault, ProgramDesc};

/// What to compile for.
#[derive(Clone, Debug)]
pub enum Target {
    /// A processor.
    Cpu(TargetSpec),
    /// A GPU.
    Gpu(GpuTarget),
}

impl Target {
    /// The target that `--target` and `--target-cpu` name.
    ///
    /// # Errors
    /// `E0605` an unknown target or processor.
    pub fn new(target: &str, cpu: &str) -> Result<Self, Failure> {
        let Some(rest) = target.strip_prefix("cuda") else { return target_spec(target, cpu).map(Self::Cpu) };
        if cpu != "host" {
            return Err(Diagnostic::new("E0613", format!("--target-cpu means nothing for target `{target}`"))
                .hint("it names a processor: give --target cpu")
                .into());
        }
        let arch = match rest.strip_prefix(':') {
            Some(arch) => arch,
            None if rest.is_empty() => "sm_80",
            None => return target_spec(target, cpu).map(Self::Cpu),
        };
        GpuTarget::new(arch).map(Self::Gpu).ok_or_else(|| {
            let known = ARCHITECTURES.map(|a| a.0).join(", ");
            Diagnostic::new("E0605", format!("unknown GPU architecture `{arch}`"))
                .hint(format!("known are {known}"))
                .into()
        })
    }

    /// The name of the target's own schedule.
    pub fn schedule(&self) -> &'static str {
        match self {
            Self::Cpu(_) => "cpu",
            Self::Gpu(_) => "cuda",
        }
    }

    /// Whether it has a feature: of a processor those of LLVM, of a GPU its architecture.
    pub fn has(&self, feature: &str) -> bool {
        match self {
            Self::Cpu(spec) => spec.enabled_features().any(|f| f.replace(['-', '.'], "_") == feature),
            Self::Gpu(gpu) => gpu.name() == feature,
        }
    }

    /// The architecture of the GPU that it is, if it is one.
    pub fn gpu(&self) -> Option<&'static str> {
        match self {
            Self::Cpu(_) => None,
            Self::Gpu(gpu) => Some(gpu.name()),
        }
    }

    /// The features that schedules depend on, of a processor.
    pub fn features(&self) -> Features {
        match self {
            Self::Cpu(spec) => Features::of(|f| spec.enabled_features().any(|own| own == f)),
            Self::Gpu(_) => Features::default(),
        }
    }

    /// Whether kernels run on a grid.
    pub fn is_gpu(&self) -> bool {
        matches!(self, Self::Gpu(_))
    }
}

/// The target machine for a `--target-cpu`.
pub fn target_spec(target: &str, cpu: &str) -> Result<TargetSpec, Failure> {
    if target != "cpu" {
        let d = Diagnostic::new("E0605", format!("unknown target `{target}`"));
        return Err(d.hint("use cpu, or cuda:ARCH; `cora run` also knows interp").into());
    }
    let spec = if cpu == "host" { Ok(TargetSpec::host()) } else { TargetSpec::new(cpu) };
    spec.map_err(|e| match e {
        CodegenError::UnknownTarget { .. } => {
            Diagnostic::new("E0605", e.to_string()).hint("`host` is this machine's processor").into()
        }
        e => Failure::Bug(e.to_string()),
    })
}

/// PTX for a lowered program.
///
/// # Errors
/// `E0611` what the target lacks.
pub fn for_gpu(storage: &StorageModule, target: &GpuTarget) -> Result<GridProgram, Failure> {
    check_grid(storage)?;
    cora_codegen_cuda::compile(storage, target).map_err(|e| grid_failure(storage, &e))
}

/// Tables are built on the host where that computes the rest too.
pub fn no_device_prelude(target: &str) -> Failure {
    Diagnostic::new("E0613", format!("--device-prelude means nothing for target `{target}`"))
        .hint("kernels of a GPU may build the tables: give --target cuda")
        .into()
}

/// What [`for_gpu`] would refuse before it makes code, for those who make none.
///
/// # Errors
/// `E0610` a schedule for processors, `E0611` what the target lacks.
pub fn check_for_gpu(storage: &StorageModule, target: &GpuTarget) -> Result<(), Failure> {
    check_grid(storage)?;
    cora_codegen_cuda::check(storage, target).map_err(|e| grid_failure(storage, &e))
}

pub(crate) fn check_grid(storage: &StorageModule) -> Result<(), Failure> {
    if storage.kernels.iter().any(|k| k.body.iter().any(is_parallel)) {
        return Err(Diagnostic::new("E0610", "the schedule makes a loop parallel over CPU workers")
            .hint("bind loops to blocks and threads for a GPU, or give --schedule default")
            .into());
    }
    Ok(())
}

pub(crate) fn grid_failure(storage: &StorageModule, e: &cora_codegen_cuda::CompileError) -> Failure {
    use cora_codegen_cuda::CompileError;
    use cora_codegen_llvm::mlir::EmitFault;
    match e {
        CompileError::Shared { .. } | CompileError::Local { .. } => {
            Diagnostic::new("E0611", e.to_string()).hint("attach smaller tiles, or keep them in global memory").into()
        }
        CompileError::Intrinsic { least, .. } => Diagnostic::new("E0611", e.to_string())
            .hint(format!("compile for --target cuda:sm_{least} or newer, or use another schedule"))
            .into(),
        CompileError::Architecture { only, .. } => Diagnostic::new("E0611", e.to_string())
            .hint(format!("compile for --target cuda:{only}, or use another schedule"))
            .into(),
        CompileError::Emit(emit) if matches!(emit.fault, EmitFault::NoLibrary) => {
            Failure::User(format!("error[E0611]: {e}\n  help: offload in schedules for CPUs only"))
        }
        CompileError::Emit(emit) if matches!(emit.fault, EmitFault::NoDeviceFunction(_)) => {
            Diagnostic::new("E0611", e.to_string()).hint("compute it in f32").into()
        }
        CompileError::Emit(emit) if matches!(emit.fault, EmitFault::BufferSize(_)) => Diagnostic::new("E0611", e.to_string())
            .hint("bind the loops around it to blocks and threads, for which buffers are sized by declared ranges, or keep it in global memory")
            .into(),
        e => {
            if let CompileError::Describe(d) = e
                && let Some(refusal) = too_large(d)
            {
                return refusal.into();
            }
            let path = crate::driver::reproducer(storage);
            Failure::Bug(format!("code generation failed: {e}\n  reproducer: {path}"))
        }
    }
}

fn is_parallel(s: &cora_ir::storage::Stmt) -> bool {
    matches!(s, cora_ir::storage::Stmt::For { kind: cora_ir::loops::LoopKind::Parallel, .. })
}

/// What the runtime has to know of a lowered program.
///
/// # Errors
/// `E0612` more than the runtime takes.
pub fn describe(storage: &StorageModule) -> Result<ProgramDesc, Failure> {
    program_desc(storage).map_err(|e| too_large(&e).map_or_else(|| Failure::Bug(e.to_string()), Failure::from))
}

/// The user's mistake behind a description that the runtime would refuse for its size.
fn too_large(e: &DescribeError) -> Option<Diagnostic> {
    let DescribeFault::Invalid(invalid) = &e.fault else { return None };
    let hint = match invalid.fault {
        DescFault::IxTooLarge => "fuse fewer loops that are themselves fused, and change the order of a loop once",
        DescFault::TooMany { .. } => "use fewer operators, dimensions or schedule steps",
        _ => return None,
    };
    Some(Diagnostic::new("E0612", e.to_string()).hint(hint))
}

/// Whether a schedule is for processors.
pub(crate) fn check_native(storage: &StorageModule) -> Result<(), Failure> {
    if storage.is_grid() {
        return Err(Diagnostic::new("E0610", "the schedule binds loops to the grid of a GPU")
            .hint("give --target cuda, or another --schedule")
            .into());
    }
    Ok(())
}

/// Native code for a lowered program.
///
/// # Errors
/// `E0610` a schedule for a GPU.
pub fn native(storage: &StorageModule, target: &TargetSpec) -> Result<CompiledProgram, Failure> {
    check_native(storage)?;
    compile_native(storage, target, &CompileOptions::default()).map_err(|e| native_failure(storage, &e))
}

/// Why code cannot be loaded: a library that is not there is the user's affair.
pub fn not_loaded(e: CompileError) -> Failure {
    match e {
        CompileError::Runtime(e) => e.into(),
        e => Failure::Bug(e.to_string()),
    }
}

pub(crate) fn native_failure(storage: &StorageModule, e: &CompileError) -> Failure {
    if let CompileError::Describe(d) = e
        && let Some(refusal) = too_large(d)
    {
        return refusal.into();
    }
    let path = crate::driver::reproducer(storage);
    Failure::Bug(format!("code generation failed: {e}\n  reproducer: {path}"))
}
