//! `cora compile`: any form of a program, from the op graph to an object file.

use super::{PATHS, write_out};
use crate::console::Console;
use crate::driver::{Failure, Form, Lowered, Source, lower_form, lower_verified};
use clap::ValueEnum;
use cora_codegen_cuda::{ARCHITECTURES, GpuTarget, GridProgram};
use cora_codegen_llvm::compile::{
    CompileError, CompileOptions, CompiledProgram, Phase, compile as compile_native, to_llvm, to_mlir,
};
use cora_codegen_llvm::describe::{DescribeError, DescribeFault, program_desc};
use cora_codegen_llvm::llvm::{CodegenError, TargetSpec};
use cora_frontend::ConstValue;
use cora_ir::intrinsic::Features;
use cora_ir::schedule::Schedule;
use cora_ir::storage::StorageModule;
use cora_ir::{Diagnostic, text};
use cora_passes::manager::Report;
use cora_passes::program::Program;
use cora_runtime::abi::{DescFault, ProgramDesc};
use cora_runtime::artifact::{Artifact, Machine, Manifest};
use std::path::PathBuf;
use std::time::Duration;

/// What to print.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Emit {
    /// The op graph.
    Graph,
    /// The scheduled loops.
    Loop,
    /// The storage dialect, as code generation takes it.
    Storage,
    /// The prelude's tables.
    Prelude,
    /// MLIR before lowering.
    Mlir,
    /// Optimised LLVM IR.
    Llvm,
    /// Assembly.
    Asm,
    /// A relocatable object file.
    Object,
    /// NVIDIA's portable assembly, for a `cuda` target.
    Ptx,
    /// One file that `cora-exec` runs without a compiler.
    Artifact,
    /// Dimension graphs as DOT.
    Dot,
    /// Dimension graphs as SVG.
    Svg,
    /// The program in canonical `.cora` text.
    Cora,
    /// Calls of the Rust builder that make the same graph.
    Rust,
}

/// Arguments of `cora compile`.
#[derive(clap::Args)]
pub struct Args {
    /// The program.
    program: PathBuf,
    /// The target: cpu, or cuda:ARCH such as cuda:sm_80 (cuda alone is cuda:sm_80).
    #[arg(long, default_value = "cpu")]
    target: String,
    /// The processor to compile for; `host` is this machine's.
    #[arg(long, default_value = "host")]
    target_cpu: String,
    /// The schedule; `default` is the compiler's own.
    #[arg(long)]
    schedule: Option<String>,
    /// Compile the fully padded form.
    #[arg(long)]
    padded: bool,
    /// Read tables and search in them where they are used, except in loops for which a schedule asks for hoisting.
    #[arg(long)]
    no_hoist_loads: bool,
    /// Address tensors through the position arrays that sparse compilers store for each of them.
    #[arg(long)]
    csf: bool,
    /// For a cuda target: kernels build the tables of the prelude from the lengths.
    #[arg(long)]
    device_prelude: bool,
    /// What to print.
    #[arg(long, value_enum, default_value = "storage")]
    emit: Emit,
    /// Where to; `-` is standard output.
    #[arg(short = 'o')]
    output: Option<PathBuf>,
    /// Overrides of constants, NAME=VALUE.
    #[arg(long = "const", value_parser = super::name_const)]
    consts: Vec<(String, ConstValue)>,
    /// Print the program after each pass, on stderr.
    #[arg(long)]
    print_ir_after_all: bool,
    /// Write the program after each pass into this folder.
    #[arg(long)]
    dump_dir: Option<PathBuf>,
    /// Interpret the program before and after each pass on random lengths; exit 70 if a pass changes
    /// what it computes.
    #[arg(long)]
    verify_each: bool,
    /// Print the time of each pass, on stderr.
    #[arg(long)]
    time_passes: bool,
    /// List each condition that is left in the code and what could not be proved, on stderr.
    #[arg(long)]
    explain_guards: bool,
}

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
/// `E0610` a schedule for processors, `E0611` instructions that the target lacks.
pub fn check_for_gpu(storage: &StorageModule, target: &GpuTarget) -> Result<(), Failure> {
    check_grid(storage)?;
    cora_codegen_cuda::check_intrinsics(storage, target).map_err(|e| grid_failure(storage, &e))
}

fn check_grid(storage: &StorageModule) -> Result<(), Failure> {
    if storage.kernels.iter().any(|k| k.body.iter().any(is_parallel)) {
        return Err(Diagnostic::new("E0610", "the schedule makes a loop parallel over CPU workers")
            .hint("bind loops to blocks and threads for a GPU, or give --schedule default")
            .into());
    }
    Ok(())
}

fn grid_failure(storage: &StorageModule, e: &cora_codegen_cuda::CompileError) -> Failure {
    use cora_codegen_cuda::CompileError;
    use cora_codegen_llvm::mlir::EmitFault;
    match e {
        CompileError::Shared { .. } => {
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

fn manifest(program: &str, machine: Machine) -> Manifest {
    Manifest {
        program: program.to_owned(),
        compiler: env!("CARGO_PKG_VERSION").to_owned(),
        abi: cora_runtime::abi::ABI_VERSION,
        machine,
    }
}

/// A program for a GPU as an artifact, without a sample.
pub fn gpu_artifact(program: &GridProgram) -> Artifact {
    Artifact {
        manifest: manifest(&program.desc.name, Machine::Cuda { arch: program.target.name().to_owned() }),
        desc: program.desc.clone(),
        grid: Some(program.grid.clone()),
        code: program.ptx.clone().into_bytes(),
        samples: Vec::new(),
    }
}

/// A program for a processor as an artifact, without a sample.
///
/// # Errors
/// The linker's.
pub fn cpu_artifact(program: &CompiledProgram) -> Result<Artifact, Failure> {
    Ok(Artifact {
        manifest: manifest(&program.desc.name, program.machine()),
        desc: program.desc.clone(),
        grid: None,
        code: program.shared_library().map_err(not_linked)?,
        samples: Vec::new(),
    })
}

/// Why there is no shared library: files that cannot be written and a missing linker are no faults of ours.
fn not_linked(e: CodegenError) -> Failure {
    match e {
        CodegenError::Io { path, source } => {
            Diagnostic::new("E0600", format!("cannot write `{}`: {source}", path.display())).hint(PATHS).into()
        }
        CodegenError::NoLinker => Diagnostic::new("E0604", e.to_string())
            .hint("install the package lld-22, or put `ld.lld` on the PATH")
            .into(),
        e => Failure::Bug(e.to_string()),
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
fn check_native(storage: &StorageModule) -> Result<(), Failure> {
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

fn native_failure(storage: &StorageModule, e: &CompileError) -> Failure {
    if let CompileError::Describe(d) = e
        && let Some(refusal) = too_large(d)
    {
        return refusal.into();
    }
    let path = crate::driver::reproducer(storage);
    Failure::Bug(format!("code generation failed: {e}\n  reproducer: {path}"))
}

/// Compiles and writes the form that is asked for.
pub fn compile(args: &Args, console: &mut dyn Console) -> Result<(), Failure> {
    let form = form(args, console)?;
    write_out(args.output.as_deref(), &form, console)
}

/// The form that is asked for.
fn form(args: &Args, console: &mut dyn Console) -> Result<Vec<u8>, Failure> {
    let target = Target::new(&args.target, &args.target_cpu)?;
    check_emit(args.emit, &target)?;
    check_passes(args)?;
    super::given_once("--const", &args.consts)?;
    let source = Source::load(&args.program, &args.consts)?;
    let schedule = source.schedule(args.schedule.as_deref(), target.schedule(), |f| target.has(f))?;
    match args.emit {
        Emit::Graph => return Ok(text::print_graph(&source.graph).into_bytes()),
        Emit::Dot => return Ok(cora_ir::dimgraph::DimGraph::of_graph(&source.graph).to_dot().into_bytes()),
        Emit::Svg => return Ok(cora_ir::dimgraph::DimGraph::of_graph(&source.graph).to_svg().into_bytes()),
        Emit::Cora => return Ok(cora_frontend::print_program(&source.graph).into_bytes()),
        Emit::Rust => return Ok(cora_frontend::to_builder_code(&source.graph).into_bytes()),
        _ => {}
    }
    let lowered = lower(args, &source, schedule, &target, console)?;
    match (args.emit, &target) {
        (Emit::Loop, _) => Ok(text::print_loops(&lowered.loops).into_bytes()),
        (Emit::Storage, _) => Ok(text::print_storage(&lowered.storage).into_bytes()),
        (Emit::Prelude, _) => {
            let mut prelude = lowered.storage;
            prelude.kernels.clear();
            Ok(text::print_storage(&prelude).into_bytes())
        }
        (_, Target::Cpu(target)) => for_processor(args, &lowered.storage, target, console),
        (Emit::Mlir, Target::Gpu(target)) => {
            check_grid(&lowered.storage)?;
            let (mlir, _) = cora_codegen_llvm::mlir::emit_grid(&lowered.storage, &target.options())
                .map_err(|e| grid_failure(&lowered.storage, &e.into()))?;
            Ok(mlir.into_bytes())
        }
        (emit, Target::Gpu(target)) => {
            let program = for_gpu(&lowered.storage, target)?;
            match emit {
                Emit::Llvm => Ok(program.llvm.into_bytes()),
                Emit::Artifact => Ok(gpu_artifact(&program).to_bytes()?),
                _ => Ok(program.ptx.into_bytes()),
            }
        }
    }
}

/// Refuses options about passes for forms that none makes.
///
/// # Errors
/// `E0613` one is given.
fn check_passes(args: &Args) -> Result<(), Failure> {
    // With the first form that it changes.
    let given = [
        ("--padded", args.padded, "loop"),
        ("--print-ir-after-all", args.print_ir_after_all, "loop"),
        ("--dump-dir", args.dump_dir.is_some(), "loop"),
        ("--verify-each", args.verify_each, "loop"),
        ("--time-passes", args.time_passes, "loop"),
        ("--explain-guards", args.explain_guards, "loop"),
        ("--no-hoist-loads", args.no_hoist_loads, "storage"),
        ("--csf", args.csf, "storage"),
        ("--device-prelude", args.device_prelude, "storage"),
    ];
    let (made, who) = match args.emit {
        Emit::Graph | Emit::Dot | Emit::Svg | Emit::Cora | Emit::Rust => ("graph", "no pass"),
        Emit::Loop => ("loop", "no such pass"),
        _ => return Ok(()),
    };
    match given.into_iter().find(|g| g.1 && g.2 != made) {
        None => Ok(()),
        Some((option, _, form)) => {
            Err(Diagnostic::new("E0613", format!("{option} means nothing for this form of a program"))
                .hint(format!("{who} runs to make it: leave the option away, or give --emit {form} or a later form"))
                .into())
        }
    }
}

/// Runs the passes, and tells of them what is asked for.
fn lower(
    args: &Args,
    source: &Source,
    schedule: Option<&Schedule>,
    target: &Target,
    console: &mut dyn Console,
) -> Result<Lowered, Failure> {
    if let Some(dir) = &args.dump_dir {
        std::fs::create_dir_all(dir)
            .map_err(|e| Diagnostic::new("E0600", format!("cannot create `{}`: {e}", dir.display())).hint(PATHS))?;
    }
    let grid = target.gpu();
    if args.device_prelude && grid.is_none() {
        return Err(no_device_prelude(&args.target));
    }
    let form = Form {
        padded: args.padded,
        grid,
        features: target.features(),
        keep_loads: args.no_hoist_loads,
        csf: args.csf,
        device_prelude: args.device_prelude,
    };
    let (mut n, mut failed) = (0, None);
    let mut observe = |r: &Report| {
        let printed = (args.print_ir_after_all || args.dump_dir.is_some()).then(|| r.program.print());
        if let Some(p) = printed.as_deref().filter(|_| args.print_ir_after_all) {
            console.note(&format!("// after {}\n{p}\n", r.invocation));
        }
        if let (Some(dir), Some(p)) = (&args.dump_dir, &printed) {
            let path = dir.join(format!("{n:03}-{}.{}", r.invocation.pass, stage_suffix(r.program)));
            if let Err(e) = std::fs::write(&path, p) {
                failed = Some(Diagnostic::new("E0600", format!("cannot write `{}`: {e}", path.display())).hint(PATHS));
            }
            n += 1;
        }
    };
    let (lowered, verified) = if args.verify_each {
        let (lowered, batches) = lower_verified(source, schedule, form, &mut observe)?;
        (lowered, Some(batches))
    } else {
        (lower_form(source, schedule, form, &mut observe)?, None)
    };
    if let Some(batches) = verified {
        console.note(&format!("every pass keeps the results on {batches} batches"));
    }
    source.warn(&lowered, console);
    if let Some(d) = failed {
        return Err(d.into());
    }
    if args.time_passes {
        note_times(lowered.times.iter().map(|(name, time)| (name.as_str(), *time)), console);
    }
    if args.explain_guards {
        console.note(&cora_passes::guards::explain(&lowered.storage));
    }
    Ok(lowered)
}

/// A line for each step of the compilation.
fn note_times<'a>(times: impl Iterator<Item = (&'a str, Duration)>, console: &mut dyn Console) {
    for (name, time) in times {
        console.note(&format!("{:>10.3} ms  {name}", time.as_secs_f64() * 1e3));
    }
}

/// Whether the target has what is to be printed.
///
/// # Errors
/// `E0610` it does not.
fn check_emit(emit: Emit, target: &Target) -> Result<(), Failure> {
    match (emit, target) {
        (Emit::Object, Target::Gpu(target)) => {
            Err(Failure::User(format!("error[E0610]: {target} has no object files of ours\n  help: use --emit ptx")))
        }
        (Emit::Ptx, Target::Cpu(_)) => Err(Failure::User(
            "error[E0610]: a processor has no PTX\n  help: use --emit asm, or --target cuda:sm_80".to_owned(),
        )),
        _ => Ok(()),
    }
}

/// A form of a program for a processor, going only as far as that form needs.
fn for_processor(
    args: &Args,
    storage: &StorageModule,
    target: &TargetSpec,
    console: &mut dyn Console,
) -> Result<Vec<u8>, Failure> {
    let (options, failed) = (CompileOptions::default(), |e: CompileError| native_failure(storage, &e));
    let mut note_phases = |phases: &[Phase]| {
        if args.time_passes {
            note_times(phases.iter().map(|p| (p.name, p.time)), console);
        }
    };
    match args.emit {
        Emit::Mlir => {
            check_native(storage)?;
            Ok(to_mlir(storage, target, &options).map_err(failed)?.into_bytes())
        }
        Emit::Llvm | Emit::Asm => {
            check_native(storage)?;
            let (llvm, phases) = to_llvm(storage, target, &options).map_err(failed)?;
            note_phases(&phases);
            if args.emit == Emit::Llvm {
                return Ok(llvm.to_ir_string().into_bytes());
            }
            Ok(llvm.emit_asm().map_err(|e| failed(e.into()))?.into_bytes())
        }
        emit => {
            let program = native(storage, target)?;
            note_phases(&program.phases);
            match emit {
                Emit::Artifact => Ok(cpu_artifact(&program)?.to_bytes()?),
                _ => Ok(program.object),
            }
        }
    }
}

fn stage_suffix(p: &Program) -> &'static str {
    match p {
        Program::Graph(_) => "graph",
        Program::Loops(_) => "loops",
        Program::Storage(_) => "storage",
    }
}
