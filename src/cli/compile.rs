//! `cora compile`: any form of a program, from the op graph to an object file.

use super::{PATHS, write_out};
use crate::driver::{Failure, Source, lower_for, lower_verified};
use clap::ValueEnum;
use cora_codegen_cuda::{ARCHITECTURES, GpuTarget, GridProgram};
use cora_codegen_llvm::compile::{CompileOptions, CompiledProgram, compile as compile_native};
use cora_codegen_llvm::describe::{DescribeError, DescribeFault, program_desc};
use cora_codegen_llvm::llvm::{CodegenError, TargetSpec};
use cora_frontend::ConstValue;
use cora_ir::{Diagnostic, text};
use cora_passes::manager::Report;
use cora_passes::program::Program;
use cora_runtime::abi::{DescFault, ProgramDesc};
use cora_runtime::artifact::{Artifact, Machine, Manifest};
use cora_runtime::library::FEATURES;
use std::path::PathBuf;

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
pub fn for_gpu(storage: &cora_ir::storage::StorageModule, target: &GpuTarget) -> Result<GridProgram, Failure> {
    use cora_codegen_cuda::CompileError;
    use cora_codegen_llvm::mlir::EmitFault;
    if storage.kernels.iter().any(|k| k.body.iter().any(is_parallel)) {
        return Err(Diagnostic::new("E0610", "the schedule makes a loop parallel over CPU workers")
            .hint("bind loops to blocks and threads for a GPU, or give --schedule default")
            .into());
    }
    cora_codegen_cuda::compile(storage, target).map_err(|e| match &e {
        CompileError::Shared { .. } => {
            Diagnostic::new("E0611", e.to_string()).hint("attach smaller tiles, or keep them in global memory").into()
        }
        CompileError::Emit(emit) if matches!(emit.fault, EmitFault::NoLibrary) => {
            Failure::User(format!("error[E0611]: {e}\n  help: offload in schedules for CPUs only"))
        }
        CompileError::Emit(emit) if matches!(emit.fault, EmitFault::NoDeviceFunction(_)) => {
            Diagnostic::new("E0611", e.to_string()).hint("compute it in f32").into()
        }
        e => {
            if let CompileError::Describe(d) = e
                && let Some(refusal) = too_large(d)
            {
                return refusal.into();
            }
            let path = crate::driver::reproducer(storage);
            Failure::Bug(format!("code generation failed: {e}\n  reproducer: {path}"))
        }
    })
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
        sample: None,
    }
}

/// A program for a processor as an artifact, without a sample.
///
/// # Errors
/// The linker's.
pub fn cpu_artifact(program: &CompiledProgram) -> Result<Artifact, Failure> {
    let target = &program.target;
    let features = FEATURES.iter().filter(|f| target.has_feature(f)).map(|f| (*f).to_owned());
    let machine = Machine::Cpu {
        arch: target.triple().split('-').next().unwrap_or_default().to_owned(),
        cpu: target.cpu().to_owned(),
        features: features.collect(),
    };
    Ok(Artifact {
        manifest: manifest(&program.desc.name, machine),
        desc: program.desc.clone(),
        grid: None,
        code: program.shared_library().map_err(|e| Failure::Bug(e.to_string()))?,
        sample: None,
    })
}

fn is_parallel(s: &cora_ir::storage::Stmt) -> bool {
    matches!(s, cora_ir::storage::Stmt::For { kind: cora_ir::loops::LoopKind::Parallel, .. })
}

/// What the runtime has to know of a lowered program.
///
/// # Errors
/// `E0612` more than the runtime takes.
pub fn describe(storage: &cora_ir::storage::StorageModule) -> Result<ProgramDesc, Failure> {
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

/// Native code for a lowered program.
///
/// # Errors
/// `E0610` a schedule for a GPU.
pub fn native(storage: &cora_ir::storage::StorageModule, target: &TargetSpec) -> Result<CompiledProgram, Failure> {
    if storage.is_grid() {
        return Err(Diagnostic::new("E0610", "the schedule binds loops to the grid of a GPU")
            .hint("give --target cuda, or another --schedule")
            .into());
    }
    compile_native(storage, target, &CompileOptions::default()).map_err(|e| {
        if let cora_codegen_llvm::compile::CompileError::Describe(d) = &e
            && let Some(refusal) = too_large(d)
        {
            return refusal.into();
        }
        let path = crate::driver::reproducer(storage);
        Failure::Bug(format!("code generation failed: {e}\n  reproducer: {path}"))
    })
}

/// Compiles and prints.
pub fn compile(args: &Args) -> Result<(), Failure> {
    let target = Target::new(&args.target, &args.target_cpu)?;
    let source = Source::load(&args.program, &args.consts)?;
    let out = |bytes: &[u8]| write_out(args.output.as_deref(), bytes);
    let schedule = source.schedule(args.schedule.as_deref(), target.schedule())?;
    match args.emit {
        Emit::Graph => return out(text::print_graph(&source.graph).as_bytes()),
        Emit::Dot => return out(cora_ir::dimgraph::DimGraph::of_graph(&source.graph).to_dot().as_bytes()),
        Emit::Svg => return out(cora_ir::dimgraph::DimGraph::of_graph(&source.graph).to_svg().as_bytes()),
        Emit::Cora => return out(cora_frontend::print_program(&source.graph).as_bytes()),
        Emit::Rust => return out(cora_frontend::to_builder_code(&source.graph).as_bytes()),
        _ => {}
    }
    if let Some(dir) = &args.dump_dir {
        std::fs::create_dir_all(dir)
            .map_err(|e| Diagnostic::new("E0600", format!("cannot create `{}`: {e}", dir.display())).hint(PATHS))?;
    }
    let (mut n, mut failed) = (0, None);
    let mut observe = |r: &Report| {
        let printed = (args.print_ir_after_all || args.dump_dir.is_some()).then(|| r.program.print());
        if let Some(p) = printed.as_deref().filter(|_| args.print_ir_after_all) {
            eprintln!("// after {}\n{p}", r.invocation);
        }
        if let (Some(dir), Some(p)) = (&args.dump_dir, &printed) {
            let path = dir.join(format!("{n:03}-{}.{}", r.invocation.pass, stage_suffix(r.program)));
            if let Err(e) = std::fs::write(&path, p) {
                failed = Some(Diagnostic::new("E0600", format!("cannot write `{}`: {e}", path.display())).hint(PATHS));
            }
            n += 1;
        }
    };
    let lowered = if args.verify_each {
        let (lowered, batches) = lower_verified(&source, schedule, args.padded, target.is_gpu(), &mut observe)?;
        eprintln!("every pass keeps the results on {batches} batches");
        lowered
    } else {
        lower_for(&source, schedule, args.padded, target.is_gpu(), &mut observe)?
    };
    source.warn();
    if let Some(d) = failed {
        return Err(d.into());
    }
    if args.time_passes {
        for (name, time) in &lowered.times {
            eprintln!("{:>10.3} ms  {name}", time.as_secs_f64() * 1e3);
        }
    }
    if args.explain_guards {
        eprint!("{}", cora_passes::guards::explain(&lowered.storage));
    }
    match args.emit {
        Emit::Loop => return out(text::print_loops(&lowered.loops).as_bytes()),
        Emit::Storage => return out(text::print_storage(&lowered.storage).as_bytes()),
        Emit::Prelude => {
            let mut prelude = lowered.storage.clone();
            prelude.kernels.clear();
            return out(text::print_storage(&prelude).as_bytes());
        }
        _ => {}
    }
    let target = match target {
        Target::Cpu(target) => target,
        Target::Gpu(target) => {
            let program = for_gpu(&lowered.storage, &target)?;
            return match args.emit {
                Emit::Mlir => out(program.mlir.as_bytes()),
                Emit::Llvm => out(program.llvm.as_bytes()),
                Emit::Ptx | Emit::Asm => out(program.ptx.as_bytes()),
                Emit::Artifact => out(&gpu_artifact(&program).to_bytes()?),
                _ => {
                    let d = Diagnostic::new("E0610", format!("{target} has no object files of ours"));
                    Err(d.hint("use --emit ptx").into())
                }
            };
        }
    };
    let program = native(&lowered.storage, &target)?;
    if args.time_passes {
        for p in &program.phases {
            eprintln!("{:>10.3} ms  {}", p.time.as_secs_f64() * 1e3, p.name);
        }
    }
    let bug = |e: CodegenError| Failure::Bug(e.to_string());
    match args.emit {
        Emit::Mlir => out(program.mlir.as_bytes()),
        Emit::Llvm => out(program.llvm_ir().map_err(bug)?.as_bytes()),
        Emit::Asm => out(program.asm().map_err(bug)?.as_bytes()),
        Emit::Artifact => out(&cpu_artifact(&program)?.to_bytes()?),
        Emit::Ptx => Err(Diagnostic::new("E0610", "a processor has no PTX")
            .hint("use --emit asm, or --target cuda:sm_80")
            .into()),
        _ => out(&program.object),
    }
}

fn stage_suffix(p: &Program) -> &'static str {
    match p {
        Program::Graph(_) => "graph",
        Program::Loops(_) => "loops",
        Program::Storage(_) => "storage",
    }
}
