//! `cora compile`: any form of a program, from the op graph to an object file.

use super::{PATHS, write_out};
use crate::console::Console;
use crate::driver::{Failure, Form, Lowered, Source, lower_form, lower_verified};
use crate::target::{
    Target, check_grid, check_native, for_gpu, grid_failure, native, native_failure, no_device_prelude,
};
use clap::ValueEnum;
use cora_codegen_cuda::GridProgram;
use cora_codegen_llvm::compile::{CompileError, CompileOptions, CompiledProgram, Phase, to_llvm, to_mlir};
use cora_codegen_llvm::llvm::{CodegenError, TargetSpec};
use cora_frontend::ConstValue;
use cora_ir::schedule::Schedule;
use cora_ir::storage::StorageModule;
use cora_ir::{Diagnostic, text};
use cora_passes::manager::Report;
use cora_passes::program::Program;
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
        manifest: manifest(&program.desc().name, program.machine()),
        desc: program.desc().clone(),
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

/// Compiles and writes the form that is asked for.
pub fn compile(args: &Args, console: &mut dyn Console) -> Result<(), Failure> {
    let form = form(args, console)?;
    if let Some(output) = args.output.as_deref().filter(|_| args.emit != Emit::Cora) {
        super::not_over(&args.program, output)?;
    }
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
                _ => Ok(program.into_parts().0),
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
