//! `cora run`: compile, run on a batch, check, time.

use super::compile::{native, target_spec};
use crate::batch::{self, BatchValues};
use crate::check::{Comparison, compare, tolerances};
use crate::driver::{Failure, Lowered, Source, lower};
use crate::inputs;
use crate::report::{KernelRow, RunReport, TableRow};
use cora_codegen_llvm::describe::program_desc;
use cora_ir::interp::{self, Data};
use cora_ir::{Env, Graph, Role, TensorId, UfDef};
use cora_runtime::Limits;
use cora_runtime::abi::ProgramDesc;
use cora_runtime::array::{RaggedArray, Shape, TensorLayout};
use cora_runtime::exec::{Instance, Options as ExecOptions};
use cora_runtime::pool::Pool;
use cora_runtime::prelude::{Batch, Prelude};
use cora_runtime::{lengths, npy};
use rustc_hash::FxHashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Arguments of `cora run`.
#[derive(clap::Args)]
pub struct Args {
    /// The program.
    pub program: PathBuf,
    /// Where to run: cpu, or interp (the reference interpreter).
    #[arg(long, default_value = "cpu")]
    pub target: String,
    /// The processor to compile for.
    #[arg(long, default_value = "host")]
    pub target_cpu: String,
    /// The schedule; `default` is the compiler's own.
    #[arg(long)]
    pub schedule: Option<String>,
    /// Raise every extent to its greatest value in the batch and mask the surplus.
    #[arg(long)]
    pub padded: bool,
    /// Values of parameters, NAME=VALUE.
    #[arg(long = "param", value_parser = super::name_value)]
    pub params: Vec<(String, i64)>,
    /// Overrides of constants, NAME=VALUE.
    #[arg(long = "const", value_parser = super::name_value)]
    pub consts: Vec<(String, i64)>,
    /// Entries of an extent function, NAME=FILE (text or npy, row-major ragged order).
    #[arg(long = "lengths", value_parser = super::name_file)]
    pub lengths: Vec<(String, PathBuf)>,
    /// Entries to skip at the front of each lengths file.
    #[arg(long, default_value_t = 0)]
    pub skip: usize,
    /// Input tensors, NAME=FILE.npy; others are random.
    #[arg(long = "input", value_parser = super::name_file)]
    pub inputs: Vec<(String, PathBuf)>,
    /// Where to write outputs, NAME=FILE.npy.
    #[arg(long = "output", value_parser = super::name_file)]
    pub outputs: Vec<(String, PathBuf)>,
    /// Seed of what is random.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Compare every output with the reference interpreter; with =N, only N slices of the
    /// outermost dimension.
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "N")]
    pub check: Option<Option<usize>>,
    /// Run this many times and report the median.
    #[arg(long, default_value_t = 1)]
    pub repeat: usize,
    /// Worker threads; 0 = one for each core.
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    /// Fill padding and unused memory with NaN before each run.
    #[arg(long)]
    pub poison: bool,
    /// Also run the fully padded form, and report the ratio.
    #[arg(long)]
    pub compare_padded: bool,
    /// Print one JSON object on standard output.
    #[arg(long)]
    pub json: bool,
}

/// A batch and its inputs, in the forms of the interpreter and of the runtime.
struct Prepared {
    interp: interp::Batch,
    runtime: Batch,
    arrays: Vec<(usize, RaggedArray)>,
    /// The form of each output.
    shapes: FxHashMap<TensorId, Shape>,
}

/// Compiles, runs, checks and reports.
pub fn run(args: &Args) -> Result<(), Failure> {
    let interpreted = args.target == "interp";
    let target = if interpreted { None } else { Some(target_spec(&args.target, &args.target_cpu)?) };
    let source = Source::load(&args.program, &args.consts)?;
    let start = Instant::now();
    let schedule = source.schedule(args.schedule.as_deref(), if interpreted { "cpu" } else { &args.target })?;
    let lowered = lower(&source, schedule, args.padded, &mut |_| {})?;
    let desc = Arc::new(program_desc(&lowered.storage).map_err(|e| Failure::Bug(e.to_string()))?);
    let prepared = prepare(args, &source, &desc)?;
    let mut report = RunReport::new(&source.graph.name, &args.target, args.padded);
    let outputs = match target {
        None => interpret(&lowered.checked, &prepared)?,
        Some(target) => {
            let program = native(&lowered.storage, &target)?;
            report.compile_ms = start.elapsed().as_secs_f64() * 1e3;
            let kernels = program.jit().map_err(|e| Failure::Bug(e.to_string()))?;
            execute(args, &source, &lowered, &desc, Arc::new(kernels), &prepared, &mut report)?
        }
    };
    write_outputs(args, &source, &outputs)?;
    let mut failed = Vec::new();
    if let Some(check) = args.check {
        if !args.json {
            eprintln!("checking against the reference interpreter ...");
        }
        let options = interp::Options { only_outer: check, ..interp::Options::default() };
        let want = interp::run_graph(&lowered.checked, &prepared.interp, &options)
            .map_err(|e| Failure::Bug(format!("the reference interpreter: {e}")))?;
        let tolerance = tolerances(&source.graph, &prepared.interp);
        for w in &want.outputs {
            let name = &source.graph.env.tensors[w.tensor].name;
            let Some((_, got)) = outputs.iter().find(|(t, _)| *t == w.tensor) else { continue };
            let got = inputs::to_data(got)?;
            let c = compare(name, &got, w, tolerance.get(&w.tensor).copied().unwrap_or(0.0));
            if !c.passes() {
                failed.push(mismatch(&c, &got, w));
            }
            report.checks.push(c);
        }
    }
    if args.compare_padded && !interpreted {
        let padded = run_padded(args, &source, &prepared)?;
        report.padded_total_ms = Some(padded.total_ms);
        if !args.json {
            eprint!("{}", padded.render());
        }
    }
    report.ok = failed.is_empty();
    if args.json {
        println!("{}", serde_json::to_string(&report).map_err(|e| Failure::Bug(e.to_string()))?);
    } else {
        eprint!("{}", report.render());
    }
    if failed.is_empty() { Ok(()) } else { Err(Failure::Mismatch(failed.join("\n"))) }
}

/// The same batch through the padded form.
fn run_padded(args: &Args, source: &Source, prepared: &Prepared) -> Result<RunReport, Failure> {
    let target = target_spec(&args.target, &args.target_cpu)?;
    let start = Instant::now();
    let schedule = source.schedule(args.schedule.as_deref(), &args.target)?;
    let lowered = lower(source, schedule, true, &mut |_| {})?;
    let desc = Arc::new(program_desc(&lowered.storage).map_err(|e| Failure::Bug(e.to_string()))?);
    let program = native(&lowered.storage, &target)?;
    let mut report = RunReport::new(&source.graph.name, &args.target, true);
    report.compile_ms = start.elapsed().as_secs_f64() * 1e3;
    let kernels = program.jit().map_err(|e| Failure::Bug(e.to_string()))?;
    execute(args, source, &lowered, &desc, Arc::new(kernels), prepared, &mut report)?;
    Ok(report)
}

fn mismatch(c: &Comparison, got: &Data, want: &interp::Output) -> String {
    let mut k = c.at;
    let mut before = 0;
    for r in &want.ranges {
        if r.contains(&c.at) {
            k = before + c.at - r.start;
        }
        before += r.len();
    }
    format!(
        "error[E0700]: output `{}` differs from the reference at element {}: {:?}, expected {:?} (error {:.3e}, allowed {:.3e})",
        c.output,
        c.at,
        got.get(c.at),
        want.data.get(k),
        c.max_error,
        c.tolerance
    )
}

fn prepare(args: &Args, source: &Source, desc: &Arc<ProgramDesc>) -> Result<Prepared, Failure> {
    let env = &source.graph.env;
    known_tensors(args, env)?;
    let mut files = Vec::new();
    for (name, path) in &args.lengths {
        files.push((name.clone(), lengths::read(path)?));
    }
    let values = batch::resolve(
        env,
        &batch::Source { params: &args.params, lengths: &files, skip: args.skip, seed: args.seed },
    )?;
    let runtime = runtime_batch(source, desc, &values)?;
    let limits = Limits::default();
    let tables = Prelude::new(desc.clone())?.build(&runtime, &limits)?;
    let mut arrays = Vec::new();
    let mut data: FxHashMap<TensorId, Data> = FxHashMap::default();
    let mut shapes: FxHashMap<TensorId, Shape> = FxHashMap::default();
    for (n, t) in desc.tensors.iter().enumerate() {
        let Some(id) = env.tensor_named(&t.name) else { continue };
        let ty = env.tensors[id].ty;
        let shape = TensorLayout::new(t).shape(tables.env(), &limits)?;
        if t.role == cora_runtime::abi::Role::Output {
            shapes.insert(id, shape);
            continue;
        }
        let array = match args.inputs.iter().rev().find(|(name, _)| *name == t.name) {
            Some((_, path)) => npy::NpyArray::read(path)?.into_array(inputs::dtype(ty), shape)?,
            None => {
                let count = usize::try_from(shape.elements().unwrap_or(0)).map_err(|_| {
                    Failure::User(format!("error[E0312]: input `{}` is too large\n  help: use a smaller batch", t.name))
                })?;
                let range = match &t.value_range {
                    Some((lo, hi)) => {
                        let at = |ix| cora_runtime::eval::eval(ix, tables.env(), &[]).unwrap_or(0);
                        Some((at(lo), at(hi)))
                    }
                    None => None,
                };
                inputs::to_array(ty, shape, &inputs::random(env, id, count, range, args.seed))?
            }
        };
        data.insert(id, inputs::to_data(&array)?);
        arrays.push((n, array));
    }
    let interp = interp::Batch { params: values.params, extents: values.extents, inputs: data };
    Ok(Prepared { interp, runtime, arrays, shapes })
}

/// Refuses names of tensors that the program does not have.
fn known_tensors(args: &Args, env: &Env) -> Result<(), Failure> {
    let check = |what: &str, given: &[(String, PathBuf)], is: fn(Role) -> bool| {
        let known: Vec<&str> = env.tensors.iter().filter(|(_, t)| is(t.role)).map(|(_, t)| t.name.as_str()).collect();
        match given.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            None => Ok(()),
            Some((name, _)) => Err(Failure::User(format!(
                "error[E0304]: the program has no {what} `{name}`\n  help: its {what}s: {}",
                known.join(", ")
            ))),
        }
    };
    check("input", &args.inputs, |r| matches!(r, Role::Input | Role::ConstInput))?;
    check("output", &args.outputs, |r| r == Role::Output)
}

fn runtime_batch(source: &Source, desc: &ProgramDesc, values: &BatchValues) -> Result<Batch, Failure> {
    let env = &source.graph.env;
    let params = env.params.iter().zip(&values.params).map(|((_, p), &v)| (p.name.as_str(), v));
    let lengths = env
        .ufs
        .iter()
        .filter(|(_, u)| matches!(u.def, UfDef::Extent { .. }))
        .map(|(f, u)| (u.name.as_str(), values.extents.get(&f).cloned().unwrap_or_default()));
    Ok(Batch::from_named(desc, params, lengths)?)
}

fn interpret(graph: &Graph, p: &Prepared) -> Result<Vec<(TensorId, RaggedArray)>, Failure> {
    let r =
        interp::run_graph(graph, &p.interp, &interp::Options::default()).map_err(|e| Failure::Bug(e.to_string()))?;
    let mut out = Vec::new();
    for o in r.outputs {
        let ty = graph.env.tensors[o.tensor].ty;
        let shape = p.shapes.get(&o.tensor).cloned().unwrap_or(Shape::Dense(vec![o.data.len() as u64]));
        out.push((o.tensor, inputs::to_array(ty, shape, &o.data)?));
    }
    Ok(out)
}

fn execute(
    args: &Args,
    source: &Source,
    lowered: &Lowered,
    desc: &Arc<ProgramDesc>,
    kernels: Arc<cora_codegen_llvm::compile::JitKernels>,
    p: &Prepared,
    report: &mut RunReport,
) -> Result<Vec<(TensorId, RaggedArray)>, Failure> {
    let threads = match args.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        n => n,
    };
    let pool = Arc::new(Pool::new(threads)?);
    let options = ExecOptions { poison: args.poison, ..ExecOptions::default() };
    // SAFETY: the kernels were compiled from the module that `desc` describes.
    let mut instance = unsafe { Instance::new(desc.clone(), kernels, pool, options) }?;
    instance.bind(&p.runtime)?;
    for (n, array) in &p.arrays {
        instance.set_input(*n, array)?;
    }
    let (mut totals, mut each): (Vec<Duration>, Vec<Vec<Duration>>) = (Vec::new(), Vec::new());
    for i in 0..args.repeat.max(1) {
        let start = Instant::now();
        instance.run()?;
        totals.push(start.elapsed());
        each.push(instance.kernel_times().map(|(_, t)| t).collect());
        if args.repeat > 20 && i % (args.repeat / 10) == 0 && !args.json {
            eprintln!("run {i} of {}", args.repeat);
        }
    }
    report.threads = threads;
    report.total_ms = median(totals) * 1e3;
    let flops = crate::work::kernel_flops(source, &lowered.loops, &p.interp);
    for (k, d) in desc.kernels.iter().enumerate() {
        let time = median(each.iter().map(|e| e[k]).collect());
        let (useful, issued) = flops.get(k).copied().unwrap_or((0.0, 0.0));
        report.kernels.push(KernelRow::new(&d.name, time * 1e3, useful, issued));
    }
    // Lengths repeat: the second binding must find the tables built.
    report.prelude_ms = instance.prelude().build_time().as_secs_f64() * 1e3;
    report.prelude_reused = instance.bind(&p.runtime)?;
    for (name, bytes) in instance.prelude().sizes() {
        report.tables.push(TableRow { name: name.to_owned(), bytes });
    }
    report.memory = Some(instance.memory().into());
    let mut out = Vec::new();
    for (n, t) in desc.tensors.iter().enumerate() {
        if t.role == cora_runtime::abi::Role::Output
            && let Some(id) = source.graph.env.tensor_named(&t.name)
        {
            out.push((id, instance.output(n)?));
        }
    }
    Ok(out)
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 2).map_or(0.0, Duration::as_secs_f64)
}

fn write_outputs(args: &Args, source: &Source, outputs: &[(TensorId, RaggedArray)]) -> Result<(), Failure> {
    for (name, path) in &args.outputs {
        let found = outputs.iter().find(|(t, _)| source.graph.env.tensors[*t].name == *name);
        if let Some((_, array)) = found {
            npy::write(path, array)?;
        }
    }
    Ok(())
}
