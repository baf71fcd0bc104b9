//! `cora run`: compile, run on a batch, check, time.

use super::compile::{cpu_artifact, gpu_artifact};
use super::prepare::{Prepared, prepare};
use crate::batch::check_params;
use crate::check::{Comparison, allowed_differences, compare, has_steps, reconsider, tolerances};
use crate::console::Console;
use crate::driver::{Failure, Form, Lowered, Source, lower_form, lower_verified};
use crate::inputs;
use crate::program::{self, workers};
use crate::report::{KernelRow, PreludeRow, RunReport, SetupRow, SharedRow, TableRow};
use crate::target::{Target, check_for_gpu, describe, for_gpu, native, no_device_prelude};
use cora_codegen_llvm::compile::check_host;
use cora_frontend::ConstValue;
use cora_ir::interp::{self, Data};
use cora_ir::intrinsic::Features;
use cora_ir::{Diagnostic, Graph, TensorId};
use cora_runtime::Limits;
use cora_runtime::abi::ProgramDesc;
use cora_runtime::array::{RaggedArray, Shape};
use cora_runtime::artifact::Sample;
use cora_runtime::cuda::Device;
use cora_runtime::exec::{Instance, Options as ExecOptions, median};
use cora_runtime::npy;
use cora_runtime::pool::Pool;
use cora_runtime::prelude::Prelude;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Arguments of `cora run`.
#[derive(clap::Args)]
pub struct Args {
    /// The program.
    pub program: PathBuf,
    /// Where to run: cpu, cuda:ARCH such as cuda:sm_80 (cuda alone is cuda:sm_80), or interp (the reference
    /// interpreter).
    #[arg(long, default_value = "cpu")]
    pub target: String,
    /// For a cuda target: run on the interpreter instead of a GPU; report races between threads, and bank conflicts.
    #[arg(long)]
    pub emulate: bool,
    /// For a cuda target: kernels build the tables of the prelude from the lengths.
    #[arg(long)]
    pub device_prelude: bool,
    /// The processor to compile for.
    #[arg(long, default_value = "host")]
    pub target_cpu: String,
    /// The schedule; `default` is the compiler's own.
    #[arg(long)]
    pub schedule: Option<String>,
    /// Raise every extent to its greatest value in the batch and mask the surplus.
    #[arg(long)]
    pub padded: bool,
    /// Values of parameters, NAME=VALUE; with NAME=V1,V2,... the program is compiled once and runs a
    /// batch for each value.
    #[arg(long = "param", value_parser = super::name_values)]
    pub params: Vec<(String, Vec<i64>)>,
    /// Overrides of constants, NAME=VALUE.
    #[arg(long = "const", value_parser = super::name_const)]
    pub consts: Vec<(String, ConstValue)>,
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
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "N", value_parser = super::positive)]
    pub check: Option<Option<usize>>,
    /// Write an artifact with this batch, its inputs and the reference interpreter's outputs as its sample.
    #[arg(long, value_name = "FILE")]
    pub artifact: Option<PathBuf>,
    /// Run this many times and report the median; if more than once, after one run that is not timed.
    #[arg(long, default_value_t = 1, value_parser = super::positive)]
    pub repeat: usize,
    /// Worker threads; 0 = one for each core.
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    /// Interpret the program before and after each pass on random lengths; exit 70 if a pass changes
    /// what it computes.
    #[arg(long)]
    pub verify_each: bool,
    /// Bytes that the buffers of a batch may take, and its tables, with k, M or G for KiB, MiB or GiB; usual are 16G and
    /// 1G.
    #[arg(long, value_name = "BYTES", value_parser = super::memory_limit)]
    pub memory_limit: Option<Limits>,
    /// Fill padding and unused memory with NaN before each run (on a CPU).
    #[arg(long)]
    pub poison: bool,
    /// Read tables and search in them where they are used, except in loops for which a schedule asks for hoisting.
    #[arg(long)]
    pub no_hoist_loads: bool,
    /// Address tensors through the position arrays that sparse compilers store for each of them, and report their
    /// bytes and building time beside those of our own tables.
    #[arg(long)]
    pub csf: bool,
    /// Also run the fully padded form, in turn with the ragged one, and report the ratio.
    #[arg(long)]
    pub compare_padded: bool,
    /// Print one JSON object on standard output.
    #[arg(long)]
    pub json: bool,
}

impl Args {
    /// Bounds on memory and work.
    pub fn limits(&self) -> Limits {
        self.memory_limit.unwrap_or_default()
    }

    /// Options of the reference interpreter, whose elements are wider than the program's: a limit only raises its own.
    fn interpreter(&self) -> interp::Options {
        let usual = interp::Options::default();
        let asked = self.memory_limit.map_or(0, |l| usize::try_from(l.buffer_bytes).unwrap_or(usize::MAX));
        interp::Options { max_bytes: usual.max_bytes.max(asked), ..usual }
    }
}

/// Outputs of one run.
type Outputs = Vec<(TensorId, RaggedArray)>;

/// Compiles once, then runs, checks and reports each batch.
///
/// # Errors
/// The user's mistakes; a mismatch, after all batches have been reported.
pub fn run(args: &Args, console: &mut dyn Console) -> Result<(), Failure> {
    super::given_once("--const", &args.consts)?;
    super::given_once("--param", &args.params)?;
    super::given_once("--lengths", &args.lengths)?;
    super::given_once("--input", &args.inputs)?;
    super::given_once("--output", &args.outputs)?;
    let twice = |n: &usize| args.outputs[..*n].iter().any(|o| o.1 == args.outputs[*n].1);
    if let Some(n) = (1..args.outputs.len()).find(twice) {
        let d = Diagnostic::new("E0613", format!("two outputs would go to `{}`", args.outputs[n].1.display()));
        return Err(d.hint("give each output a file of its own").into());
    }
    let mut files = args.outputs.iter().map(|(_, f)| f).chain(&args.artifact);
    files.try_for_each(|file| super::not_over(&args.program, file))?;
    let source = Source::load(&args.program, &args.consts)?;
    let batches = batches(&args.params)?;
    // Before the first batch runs.
    for params in &batches {
        check_params(&source.graph.env, params)?;
    }
    applicable(args)?;
    let files = [("--output", !args.outputs.is_empty()), ("--artifact", args.artifact.is_some())];
    if let Some((option, _)) = files.into_iter().find(|f| f.1 && batches.len() > 1) {
        let d = Diagnostic::new("E0606", format!("{option} with several batches"));
        return Err(d.hint("give one value for each --param").into());
    }
    let mut ragged = Compiled::new(args, &source, args.padded, console)?;
    source.warn(&ragged.lowered, console);
    let mut padded =
        if args.compare_padded && ragged.native() { Some(Compiled::new(args, &source, true, console)?) } else { None };
    let mut failed = Vec::new();
    for params in &batches {
        let prepared = prepare(args, params, &source, &ragged.desc)?;
        let mut forms: Vec<&mut Compiled> = std::iter::once(&mut ragged).chain(&mut padded).collect();
        let mut results = run_in_turn(args, &source, &prepared, &mut forms, console)?.into_iter();
        let Some((mut report, outputs)) = results.next() else { continue };
        write_outputs(args, &source, &outputs)?;
        if let Some(path) = &args.artifact {
            write_artifact(path, args, &source, &ragged, &prepared, console)?;
        }
        if let Some(slices) = args.check {
            if !args.json {
                console.note("checking against the reference interpreter ...");
            }
            let options = interp::Options { only_outer: slices, ..args.interpreter() };
            failed.extend(check(&options, &source, &ragged.lowered, &prepared, &outputs, &mut report)?);
        }
        if let Some((other, _)) = results.next() {
            report.padded_total_ms = Some(other.total_ms);
            if !args.json {
                console.note(&other.render());
            }
        }
        if args.json {
            let json = serde_json::to_string(&report).map_err(|e| Failure::Bug(e.to_string()))?;
            super::write_out(None, format!("{json}\n").as_bytes(), console)?;
        } else {
            console.note(&report.render());
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(Failure::Mismatch(failed.join("\n"))) }
}

/// Refuses options that mean nothing for the target, rather than ignore them.
fn applicable(args: &Args) -> Result<(), Failure> {
    let (gpu, interpreted) = (args.target.starts_with("cuda"), args.target == "interp");
    if args.padded && args.compare_padded {
        return Err(Diagnostic::new("E0613", "--compare-padded means nothing with --padded")
            .hint("it runs the padded form beside the ragged one: leave --padded away")
            .into());
    }
    if let Some((name, _)) = args.outputs.iter().find(|(_, p)| p.as_os_str() == "-") {
        return Err(Diagnostic::new("E0606", format!("output `{name}` cannot go to standard output"))
            .hint("give a file: --output NAME=FILE.npy")
            .into());
    }
    let wrong = [
        ("--csf", args.csf && args.target != "cpu", "it builds tables and times that: give --target cpu"),
        ("--no-hoist-loads", args.no_hoist_loads && interpreted, "no pass runs there: give --target cpu or cuda"),
        ("--emulate", args.emulate && !gpu, "it runs the kernels of a GPU: give --target cuda"),
        ("--target-cpu", args.target_cpu != "host" && args.target != "cpu", "it names a processor: give --target cpu"),
        ("--compare-padded", args.compare_padded && args.target != "cpu", "it compares times: give --target cpu"),
        ("--poison", args.poison && args.target != "cpu", "it fills memory before kernels run: give --target cpu"),
        ("--threads", args.threads > 0 && args.target != "cpu", "they are workers on processors: give --target cpu"),
        ("--skip", args.skip > 0 && args.lengths.is_empty(), "it is about files of lengths: give --lengths NAME=FILE"),
        ("--repeat", args.repeat > 1 && (interpreted || args.emulate), "nothing is timed: leave it away"),
        ("--artifact", args.artifact.is_some() && interpreted, "it holds code: give --target cpu or cuda"),
    ];
    match wrong.into_iter().find(|w| w.1) {
        None => Ok(()),
        Some((option, _, hint)) => {
            let place = match option {
                "--skip" => "without --lengths".to_owned(),
                "--repeat" if args.emulate => format!("for target `{}` with --emulate", args.target),
                _ => format!("for target `{}`", args.target),
            };
            let what = format!("{option} means nothing {place}");
            Err(Diagnostic::new("E0613", what).hint(hint).into())
        }
    }
}

/// The parameters of each batch: `--param M=1,7,32` makes three, another list must be as long.
fn batches(params: &[(String, Vec<i64>)]) -> Result<Vec<Vec<(String, i64)>>, Failure> {
    let count = params.iter().map(|(_, v)| v.len()).max().unwrap_or(1);
    if let Some((name, v)) = params.iter().find(|(_, v)| v.len() != 1 && v.len() != count) {
        let what = format!("parameter `{name}` has {} values where another has {count}", v.len());
        return Err(Diagnostic::new("E0606", what).hint("give each parameter one value, or one for each batch").into());
    }
    let at = |v: &[i64], n: usize| v[if v.len() == 1 { 0 } else { n }];
    Ok((0..count).map(|n| params.iter().map(|(name, v)| (name.clone(), at(v, n))).collect()).collect())
}

/// Compares the outputs with the reference interpreter; a message for each that differs.
fn check(
    options: &interp::Options,
    source: &Source,
    lowered: &Lowered,
    p: &Prepared,
    outputs: &Outputs,
    report: &mut RunReport,
) -> Result<Vec<String>, Failure> {
    let batch = p.for_interpreter()?;
    let want = interp::run_graph(&lowered.checked, &batch, options)?;
    let tolerance = tolerances(&source.graph, &batch);
    let mut failed = Vec::new();
    for w in &want.outputs {
        let name = &source.graph.env.tensors[w.tensor].name;
        let Some((_, got)) = outputs.iter().find(|(t, _)| *t == w.tensor) else { continue };
        let got = inputs::to_data(got)?;
        let mut c = compare(name, &got, w, tolerance.get(&w.tensor).copied().unwrap_or(0.0));
        if !c.passes() {
            reconsider(&lowered.checked, &batch, options, &mut c, &got, w)?;
        }
        if !c.passes() {
            let steps = if has_steps(&lowered.checked) { STEPS } else { "" };
            failed.push(mismatch(&c, &got, w) + steps);
        }
        report.checks.push(c);
    }
    report.ok = failed.is_empty();
    Ok(failed)
}

const STEPS: &str = "\n  = note: the program rounds, compares or converts floating-point numbers to integers: where one lies at a step, \
compiled code and the reference, which computes in f64, may fall on different sides";

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
        "error[E0700]: output `{}` differs from the reference at element {}: {}, expected {} (error {:.3e}, allowed {:.3e})",
        c.output,
        c.at,
        got.get(c.at).unwrap_or(f64::NAN),
        want.data.get(k).unwrap_or(f64::NAN),
        c.max_error,
        c.tolerance
    )
}

/// The program in one form, ready to run any batch.
struct Compiled {
    lowered: Lowered,
    desc: Arc<ProgramDesc>,
    /// The same program with tables of our own, where this one has those of sparse compilers.
    own: Option<Arc<ProgramDesc>>,
    /// Nothing where the reference interpreter runs the program.
    instance: Option<Instance>,
    /// Where a GPU runs it.
    device: Option<Device>,
    schedule: Option<String>,
    padded: bool,
    threads: usize,
    compile_ms: f64,
}

impl Compiled {
    fn new(args: &Args, source: &Source, padded: bool, console: &mut dyn Console) -> Result<Self, Failure> {
        let interpreted = args.target == "interp";
        let target = if interpreted { None } else { Some(Target::new(&args.target, &args.target_cpu)?) };
        let grid = target.as_ref().and_then(Target::gpu);
        let threads = workers(args.threads);
        let mut pool = None;
        if let Some(Target::Cpu(target)) = &target {
            check_host(target)?;
            pool = Some(Arc::new(Pool::new(threads)?));
        }
        let start = Instant::now();
        let usual = target.as_ref().map_or("cpu", Target::schedule);
        let has = |f: &str| target.as_ref().is_some_and(|t| t.has(f));
        let schedule = source.schedule(args.schedule.as_deref(), usual, has)?;
        if args.device_prelude && grid.is_none() {
            return Err(no_device_prelude(&args.target));
        }
        let (keep_loads, csf, device_prelude) = (args.no_hoist_loads, args.csf, args.device_prelude);
        let features = target.as_ref().map_or_else(Features::default, Target::features);
        let form = Form { padded, grid, features, keep_loads, csf, device_prelude };
        let lowered = if args.verify_each {
            let (lowered, batches) = lower_verified(source, schedule, form, &mut |_| {})?;
            console.note(&format!("every pass keeps the results on {batches} batches"));
            lowered
        } else {
            let mut progress = Progress::new();
            let lowered = lower_form(source, schedule, form, &mut |r| progress.after(&r.invocation.pass, console))?;
            progress.machine_code(console);
            lowered
        };
        let desc = Arc::new(describe(&lowered.storage)?);
        let own = match args.csf {
            true => {
                let own = lower_form(source, schedule, Form { csf: false, ..form }, &mut |_| {})?;
                Some(Arc::new(describe(&own.storage)?))
            }
            false => None,
        };
        let (mut instance, mut compile_ms) = (None, 0.0);
        let mut device = None;
        if let Some(Target::Gpu(target)) = &target {
            if args.emulate {
                check_for_gpu(&lowered.storage, target)?;
            } else {
                let program = for_gpu(&lowered.storage, target)?;
                compile_ms = start.elapsed().as_secs_f64() * 1e3;
                // SAFETY: description, launches and code come from one compilation.
                let mut made = unsafe { Device::new(Arc::new(program.desc), program.grid, &program.ptx) }?;
                made.set_limits(args.limits());
                device = Some(made);
            }
        } else if let (Some(Target::Cpu(target)), Some(pool)) = (target, pool) {
            let program = native(&lowered.storage, &target)?;
            compile_ms = start.elapsed().as_secs_f64() * 1e3;
            let options = ExecOptions { poison: args.poison, limits: args.limits() };
            instance = Some(program::Compiled::of(program)?.instance_on(pool, options)?.into_instance());
        }
        // Another one than the program has for the target is said, the compiler's own too.
        let taken = schedule.map(|s| s.name.as_str()).or(source.graph.schedule(usual).map(|_| "default"));
        let schedule = taken.filter(|_| !interpreted).map(str::to_owned);
        Ok(Self { lowered, desc, own, instance, device, schedule, padded, threads, compile_ms })
    }

    fn native(&self) -> bool {
        self.instance.is_some()
    }

    /// Binds a batch and its inputs.
    fn bind(&mut self, p: &Prepared) -> Result<(), Failure> {
        if let Some(instance) = &mut self.instance {
            instance.bind(&p.runtime)?;
            for (n, _, array) in &p.arrays {
                instance.set_input(*n, array)?;
            }
        }
        Ok(())
    }

    /// Runs the kernels once on the CPU; does nothing on another target.
    fn time(&mut self, times: &mut Times) -> Result<(), Failure> {
        if let Some(instance) = &mut self.instance {
            instance.run()?;
            times.totals.push(instance.run_time());
            times.kernels.push(instance.kernel_times().map(|(_, t)| t).collect());
        }
        Ok(())
    }

    /// The report and the outputs of a batch that has run `times`; another target than the CPU runs it here.
    fn report(
        &mut self,
        args: &Args,
        source: &Source,
        p: &Prepared,
        times: Times,
    ) -> Result<(RunReport, Outputs), Failure> {
        let mut report = RunReport::new(&source.graph.name, &args.target, self.padded);
        report.schedule.clone_from(&self.schedule);
        report.batch = p.params(&source.graph);
        report.compile_ms = self.compile_ms;
        if let Some(device) = &mut self.device {
            return on_device(args, source, device, p, report);
        }
        let Some(instance) = &mut self.instance else {
            report.compile_ms = 0.0;
            if !args.emulate {
                return Ok((report, interpret(&self.lowered.checked, p, &args.interpreter())?));
            }
            let results = emulate(&self.lowered.storage, p, args.interpreter())?;
            report.shared = results.shared.iter().filter(|t| t.accesses > 0).map(SharedRow::from).collect();
            return Ok((report, outputs_of(&self.lowered.storage.env, results, p)?));
        };
        report.threads = self.threads;
        report.total_ms = median(times.totals).as_secs_f64() * 1e3;
        let flops = crate::work::kernel_flops(&self.lowered, &p.values);
        let names = self.lowered.storage.kernels.iter().map(|k| k.name.as_str());
        let flops: rustc_hash::FxHashMap<&str, (f64, f64)> = names.zip(flops).collect();
        for (k, d) in self.desc.kernels.iter().enumerate() {
            let time = median(times.kernels.iter().map(|e| e[k]).collect()).as_secs_f64();
            let (useful, issued) = flops.get(d.name.as_str()).copied().unwrap_or((0.0, 0.0));
            report.kernels.push(KernelRow::new(&d.name, time * 1e3, useful, issued));
        }
        for (name, time) in instance.setup_times() {
            report.setup.push(SetupRow { kernel: name.to_owned(), ms: time.as_secs_f64() * 1e3 });
        }
        // Lengths repeat: the second binding must find the tables built.
        report.prelude_ms = instance.prelude().build_time().as_secs_f64() * 1e3;
        report.prelude_reused = instance.bind(&p.runtime)?;
        for (name, bytes) in instance.prelude().sizes() {
            report.tables.push(TableRow { name: name.to_owned(), bytes });
        }
        report.memory = Some(instance.memory().into());
        report.own_prelude = self.own.as_ref().map(|desc| own_prelude(desc, p, &args.limits())).transpose()?;
        let outputs = collect(source, &self.desc, |n| instance.output(n))?;
        Ok((report, outputs))
    }
}

/// What our own tables take for a batch: the first of two builds finds memory.
fn own_prelude(desc: &Arc<ProgramDesc>, p: &Prepared, limits: &Limits) -> Result<PreludeRow, Failure> {
    let prelude = Prelude::new(desc.clone())?;
    let mut row = PreludeRow::default();
    for _ in 0..2 {
        let start = Instant::now();
        let tables = prelude.build(&p.runtime, limits)?;
        row.ms = start.elapsed().as_secs_f64() * 1e3;
        row.tables = tables.data().len();
        row.bytes = tables.data().iter().map(|t| t.bytes() as u64).sum();
    }
    Ok(row)
}

/// What the runs of one batch took, the whole and each kernel.
#[derive(Default)]
struct Times {
    totals: Vec<Duration>,
    kernels: Vec<Vec<Duration>>,
}

/// Runs one batch as often as asked for, the forms in turn, so that what else the machine does meets all of them alike.
/// With more than one timed run there is one before them that is not timed: it faults pages in and packs weights.
fn run_in_turn(
    args: &Args,
    source: &Source,
    p: &Prepared,
    forms: &mut [&mut Compiled],
    console: &mut dyn Console,
) -> Result<Vec<(RunReport, Outputs)>, Failure> {
    for form in forms.iter_mut() {
        form.bind(p)?;
    }
    let mut times: Vec<Times> = forms.iter().map(|_| Times::default()).collect();
    let warm_up = usize::from(args.repeat > 1 || forms.len() > 1);
    for i in 0..warm_up + args.repeat.max(1) {
        for (form, times) in forms.iter_mut().zip(&mut times) {
            let mut untimed = Times::default();
            form.time(if i < warm_up { &mut untimed } else { times })?;
        }
        if args.repeat > 20 && i % (args.repeat / 10) == 0 && !args.json && forms[0].native() {
            console.note(&format!("run {i} of {}", args.repeat));
        }
    }
    forms.iter_mut().zip(times).map(|(form, times)| form.report(args, source, p, times)).collect()
}

/// An artifact with a sample, so that another machine can be checked.
fn write_artifact(
    path: &std::path::Path,
    args: &Args,
    source: &Source,
    compiled: &Compiled,
    p: &Prepared,
    console: &mut dyn Console,
) -> Result<(), Failure> {
    let mut artifact = match Target::new(&args.target, &args.target_cpu)? {
        Target::Cpu(t) => cpu_artifact(&native(&compiled.lowered.storage, &t)?)?,
        Target::Gpu(t) => gpu_artifact(&for_gpu(&compiled.lowered.storage, &t)?),
    };
    let env = &source.graph.env;
    let graph = &compiled.lowered.checked;
    let batch = p.for_interpreter()?;
    let options = args.interpreter();
    let results = interp::run_graph(graph, &batch, &options)?;
    let mut allowed = allowed_differences(&source.graph, graph, &batch, &options, &results.outputs)?;
    let want = outputs_of(&graph.env, results, p)?;
    let mut sample =
        Sample { params: p.runtime.params.clone(), lengths: p.runtime.lengths.clone(), ..Sample::default() };
    for (n, t) in artifact.desc.tensors.iter().enumerate() {
        let id = env.tensor_named(&t.name);
        let given = p.arrays.iter().find(|(k, ..)| *k == n).map(|(.., a)| a);
        let array = given.or_else(|| want.iter().find(|(t, _)| Some(*t) == id).map(|(_, a)| a));
        sample.tensors.push(array.map_or_else(Vec::new, |a| a.bytes().to_vec()));
        let allowed = id.and_then(|id| allowed.remove(&id)).unwrap_or_default();
        sample.allowed.push(allowed.into_iter().map(|x| (x as f32).next_up()).collect());
    }
    artifact.samples.push(sample);
    super::write_out(Some(path), &artifact.to_bytes()?, console)
}

/// Runs one batch on a GPU as often as asked for.
fn on_device(
    args: &Args,
    source: &Source,
    device: &mut Device,
    p: &Prepared,
    mut report: RunReport,
) -> Result<(RunReport, Outputs), Failure> {
    device.bind(&p.runtime)?;
    for (n, _, array) in &p.arrays {
        device.set_input(*n, array)?;
    }
    let mut each: Vec<Vec<(String, Duration)>> = Vec::new();
    if args.repeat > 1 {
        device.run_timed()?;
    }
    for _ in 0..args.repeat.max(1) {
        each.push(device.run_timed()?);
    }
    report.total_ms = median(each.iter().map(|e| e.iter().map(|k| k.1).sum()).collect()).as_secs_f64() * 1e3;
    for (k, (name, _)) in each[0].iter().enumerate() {
        let time = median(each.iter().map(|e| e[k].1).collect()).as_secs_f64();
        report.kernels.push(KernelRow::new(name, time * 1e3, 0.0, 0.0));
    }
    let desc = device.desc().clone();
    let outputs = collect(source, &desc, |n| device.output(n))?;
    report.prelude_ms = device.prelude().build_time().as_secs_f64() * 1e3;
    report.prelude_reused = device.bind(&p.runtime)?;
    report.tables = device.prelude().sizes().map(|(n, bytes)| TableRow { name: n.to_owned(), bytes }).collect();
    report.memory = Some(device.memory().into());
    Ok((report, outputs))
}

/// Each output of a run, which `read` gives by its number in the description.
fn collect(
    source: &Source,
    desc: &ProgramDesc,
    mut read: impl FnMut(usize) -> cora_runtime::Result<RaggedArray>,
) -> Result<Outputs, Failure> {
    let mut out = Vec::new();
    for (n, t) in desc.tensors.iter().enumerate() {
        if t.role == cora_runtime::abi::Role::Output
            && let Some(id) = source.graph.env.tensor_named(&t.name)
        {
            out.push((id, read(n)?));
        }
    }
    Ok(out)
}

/// The grid on the interpreter: blocks and threads one after the other, every race an error.
fn emulate(
    storage: &cora_ir::storage::StorageModule,
    p: &Prepared,
    options: interp::Options,
) -> Result<interp::Results, Failure> {
    let options = interp::Options { races: true, ..options };
    Ok(interp::run_storage(storage, &p.for_interpreter()?, &options)?)
}

fn interpret(graph: &Graph, p: &Prepared, options: &interp::Options) -> Result<Outputs, Failure> {
    let r = interp::run_graph(graph, &p.for_interpreter()?, options)?;
    outputs_of(&graph.env, r, p)
}

fn outputs_of(env: &cora_ir::Env, r: interp::Results, p: &Prepared) -> Result<Outputs, Failure> {
    let mut out = Vec::new();
    for o in r.outputs {
        let ty = env.tensors[o.tensor].ty;
        let shape = p.shapes.get(&o.tensor).cloned().unwrap_or(Shape::Dense(vec![o.data.len() as u64]));
        out.push((o.tensor, inputs::to_array(ty, shape, &o.data)?));
    }
    Ok(out)
}

fn write_outputs(args: &Args, source: &Source, outputs: &Outputs) -> Result<(), Failure> {
    for (name, path) in &args.outputs {
        let found = outputs.iter().find(|(t, _)| source.graph.env.tensors[*t].name == *name);
        if let Some((_, array)) = found {
            npy::write(path, array)?;
        }
    }
    Ok(())
}

/// What a person who waits for a long compilation is told.
struct Progress {
    start: Instant,
    last: Instant,
}

impl Progress {
    /// A compilation that takes longer than this says what it is doing.
    const PATIENCE: Duration = Duration::from_secs(1);

    fn new() -> Self {
        let now = Instant::now();
        Self { start: now, last: now }
    }

    fn after(&mut self, pass: &str, console: &mut dyn Console) {
        if self.last.elapsed() >= Self::PATIENCE {
            console.progress(&format!("compiling, {:.0} s: {pass} ...", self.start.elapsed().as_secs_f64()));
            self.last = Instant::now();
        }
    }

    /// Code generation takes several times as long as what was before it.
    fn machine_code(&self, console: &mut dyn Console) {
        if self.start.elapsed() * 4 >= Self::PATIENCE {
            console.progress("generating machine code ...");
        }
    }
}
