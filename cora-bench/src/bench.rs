//! `cora-bench bench`: one workload on one batch, in turn with its peers, beside the machine's measured peak.

use crate::case::{Case, CaseArgs};
use crate::measure::{Form, Ready, Times, ms};
use crate::peak::Meter;
use crate::peers::{self, Folder, Peer, Started};
use crate::record::{Kernel, PeerRecord, Record, Skipped, machine};
use crate::workload::{self, Shape, Values};
use cora::console::Console;
use cora::driver::{Failure, Source};
use cora::ir::Diagnostic;
use cora::runtime::pool::Pool;
use cora::target::Target;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

/// Arguments of `cora-bench bench`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The workload and its batch.
    #[command(flatten)]
    pub case: CaseArgs,
    /// Where ours runs: cpu, cuda or cuda:ARCH such as cuda:sm_90.
    #[arg(long, default_value = "cpu")]
    pub target: String,
    /// Worker threads, of each peer too; 0 = one for each core.
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    /// Turns of each, after one to warm up.
    #[arg(long, default_value_t = 9, value_parser = crate::paper::batch_size)]
    pub repeat: usize,
    /// What to run in turn with ours, separated by commas: `padded`, `longest`, `dense`, `schedule=NAME`, `no-hoist`, `csf`,
    /// `device-prelude` and `workload=NAME`, forms of our own programs; on a CPU libraries such as `torch-packed` (an unknown name lists them); `all` libraries of the workload.
    #[arg(long, value_delimiter = ',')]
    pub peers: Vec<String>,
    /// The same as `--peers padded`.
    #[arg(long)]
    pub padded: bool,
    /// One peer after the other, each in turn with ours: for batches too big to hold in memory many times.
    #[arg(long)]
    pub apart: bool,
    /// A schedule of the program in the place of the target's own.
    #[arg(long)]
    pub schedule: Option<String>,
    /// A program in the place of the workload's own, with the same inputs and extents.
    #[arg(long)]
    pub program: Option<PathBuf>,
    /// Milliseconds that the timed runs of a turn take, at least.
    #[arg(long, default_value_t = 30.0, value_parser = positive)]
    pub turn_ms: f64,
    /// One JSON object on standard output.
    #[arg(long)]
    pub json: bool,
}

fn positive(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|v: &f64| v.is_finite() && *v > 0.0).ok_or_else(|| format!("`{text}` is not a time"))
}

/// Timed runs of a turn, at most.
const TURN_RUNS: usize = 1000;

/// Measures; one result, and a note for each peer that is not here.
///
/// # Errors
/// Unknown peers, length files that are not there; whatever [`Ready::new`] says; a peer whose result differs.
pub fn run(args: &Args, console: &mut dyn Console) -> Result<(), Failure> {
    let record = measure(args)?;
    note_skipped(&record, console);
    if args.json {
        console.result(&serde_json::to_string(&record).map_err(|e| Failure::Bug(e.to_string()))?);
    } else {
        console.result(&record.markdown());
    }
    verdict(&record)
}

/// Notes the peers that are not here.
pub fn note_skipped(record: &Record, console: &mut dyn Console) {
    record.skipped.iter().for_each(|s| console.note(&format!("{} skipped: {}", s.name, s.why)));
}

/// A mismatch if some peer's result is not ours.
///
/// # Errors
/// That.
pub fn verdict(record: &Record) -> Result<(), Failure> {
    let differs =
        |p: &&PeerRecord| p.error.is_some_and(|e| e.is_nan() || e > peers::tolerance(&record.workload, &p.name));
    let wrong = record.peers.iter().find(differs);
    wrong.map_or(Ok(()), |p| {
        Err(Failure::Mismatch(format!(
            "error: the result of `{}` on {} ({}) differs from ours by {:.2e} of its greatest value",
            p.name,
            record.workload,
            record.label(),
            p.error.unwrap_or(f64::NAN)
        )))
    })
}

/// Measures.
///
/// # Errors
/// As [`run`], but for mismatches.
pub fn measure(args: &Args) -> Result<Record, Failure> {
    let case = Case::new(&args.case)?;
    let names = peer_names(args, &case)?;
    let target = Target::new(&args.target, "host")?;
    applicable(args, &target, &names)?;
    let threads = match args.threads {
        _ if target.is_gpu() => 1,
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        n => n,
    };
    let source = match &args.program {
        Some(path) => Source::load(path, &[])?,
        None => workload::source(case.workload.name, case.workload.text)?,
    };
    let form = Form { target, schedule: args.schedule.clone(), ..Form::default() };
    let mut bench =
        Bench { source: &source, case: &case, form: &form, pool: Arc::new(Pool::new(threads)?), threads, args };
    let mut ours = Ready::new(&source, &case.values, &form, bench.pool.clone())?;
    let meter = if form.target.is_gpu() { None } else { Some(Meter::new(threads)?) };
    let mut samples = Samples { meter, ..Samples::default() };
    let groups: Vec<&[String]> = match (names.is_empty(), args.apart) {
        (true, _) => vec![&[]],
        (_, true) => names.chunks(1).collect(),
        (_, false) => vec![&names[..]],
    };
    for group in groups {
        bench.group(group, &mut ours, &mut samples)?;
    }
    record(&bench, &ours, samples)
}

/// Refuses what there is on a CPU alone.
fn applicable(args: &Args, target: &Target, names: &[String]) -> Result<(), Failure> {
    if !target.is_gpu() {
        return Ok(());
    }
    if args.threads > 0 {
        let d = Diagnostic::new("E0613", format!("--threads means nothing for target `{}`", args.target));
        return Err(d.hint("they are workers on processors: give --target cpu").into());
    }
    match names.iter().find(|n| !is_form(n)) {
        None => Ok(()),
        Some(name) => Err(Diagnostic::new("E0607", format!("peer `{name}` runs on a CPU, ours on `{}`", args.target))
            .hint("libraries on a GPU run beside ours in scripts/gpu/run.sh; here give forms of our own program")
            .into()),
    }
}

/// What makes a form another one.
type Change = fn(&mut Form);

/// Forms of our own programs without a value in their name, and what they change.
const FORMS: [(&str, Change); 4] = [
    ("padded", |f| f.options.padded = true),
    ("no-hoist", |f| f.options.keep_loads = true),
    ("csf", |f| f.options.csf = true),
    ("device-prelude", |f| f.options.device_prelude = true),
];

/// Whether a peer is a form of our own programs.
pub fn is_form(name: &str) -> bool {
    let named = name == "dense" || name == "longest" || name.starts_with("schedule=") || name.starts_with("workload=");
    named || FORMS.iter().any(|f| f.0 == name)
}

fn peer_names(args: &Args, case: &Case) -> Result<Vec<String>, Failure> {
    let workload = case.workload.name;
    let mut names: Vec<String> = if args.padded { vec!["padded".to_owned()] } else { Vec::new() };
    for name in &args.peers {
        let known = peers::PEERS.iter().any(|p| p.0 == name) || is_form(name);
        if name == "all" {
            names.extend(peers::of_workload(case.workload.computes()).map(str::to_owned));
        } else if known {
            names.push(name.clone());
        } else {
            let all: Vec<&str> = peers::PEERS.iter().map(|p| p.0).collect();
            return Err(Failure::User(format!(
                "error[E0607]: there is no peer `{name}`\n  help: the peers are: dense, longest, schedule=NAME, workload=NAME, {}, all, {}",
                FORMS.map(|f| f.0).join(", "),
                all.join(", ")
            )));
        }
    }
    if names.iter().any(|n| n == "padded") && case.workload.shape == Shape::Square {
        return Err(Failure::User(format!(
            "error[E0607]: `{workload}` has no padded form: its shape depends on no extent function\n  help: leave `padded` out",
        )));
    }
    let mut seen = Vec::new();
    names.retain(|n| !seen.contains(n) && (seen.push(n.clone()), true).1);
    Ok(names)
}

struct Bench<'a> {
    source: &'a Source,
    case: &'a Case,
    form: &'a Form,
    pool: Arc<Pool>,
    threads: usize,
    args: &'a Args,
}

/// Medians of turns, in milliseconds.
#[derive(Default)]
struct Samples {
    ours: Vec<f64>,
    prelude: Vec<f64>,
    /// Copies of the tables to a GPU, its name, and the rates of a copy on it.
    copy: Vec<f64>,
    device: Option<String>,
    rates: Vec<f64>,
    kernels: Vec<(String, Vec<f64>)>,
    peers: Vec<PeerRecord>,
    skipped: Vec<Skipped>,
    meter: Option<Meter>,
}

/// What runs in turn with ours.
enum Other {
    Own(String, Box<Ready>),
    Process(Peer),
}

impl Other {
    fn turn(&mut self, args: &Args) -> Result<Result<f64, String>, Failure> {
        Ok(match self {
            Self::Own(_, r) => Ok(Times::of(&r.turn(args.turn_ms, TURN_RUNS)?).median_ms),
            Self::Process(p) => p.turn(args.turn_ms, TURN_RUNS).map(|t| Times::of(&t).median_ms),
        })
    }
}

impl Bench<'_> {
    /// Ours and `names` in turn.
    fn group(&mut self, names: &[String], ours: &mut Ready, samples: &mut Samples) -> Result<(), Failure> {
        let folder = Folder::new()?;
        let mut others = self.start(names, ours, &folder, samples)?;
        let mut turns: Vec<Vec<f64>> = vec![Vec::new(); others.len()];
        let first = samples.ours.len();
        for round in 0..=self.args.repeat {
            let mine = Times::of(&ours.turn(self.args.turn_ms, TURN_RUNS)?).median_ms;
            if round > 0 {
                samples.ours.push(mine);
                samples.prelude.push(ms(ours.build_prelude()?));
                if let Some((name, rate)) = ours.device()? {
                    samples.device = Some(name);
                    samples.rates.push(rate / 1e9);
                }
                samples.copy.extend(ours.copy_tables()?.map(ms));
                add_kernels(&mut samples.kernels, ours);
            }
            let mut failed = Vec::new();
            for (n, (other, turns)) in others.iter_mut().zip(&mut turns).enumerate() {
                match other.turn(self.args)? {
                    Ok(time) if round > 0 => turns.push(time),
                    Ok(_) => {}
                    Err(why) => failed.push((n, why)),
                }
            }
            for (n, why) in failed.into_iter().rev() {
                if let Other::Process(p) = others.remove(n) {
                    samples.skipped.push(Skipped { name: p.name.clone(), why });
                }
                turns.remove(n);
            }
            if let Some(meter) = &mut samples.meter {
                meter.round()?;
            }
        }
        let mine = samples.ours[first..].to_vec();
        for (other, turns) in others.iter_mut().zip(turns) {
            samples.peers.push(self.peer_record(other, ours, &mine, &turns)?);
        }
        Ok(())
    }

    fn start(
        &self,
        names: &[String],
        ours: &Ready,
        folder: &Folder,
        samples: &mut Samples,
    ) -> Result<Vec<Other>, Failure> {
        let mut others = Vec::new();
        let mut message = self.case.message(self.threads);
        for name in names {
            if is_form(name) {
                others.push(Other::Own(name.clone(), Box::new(self.own(name)?)));
                continue;
            }
            if message.get("inputs").is_none() && peers::python().is_some() {
                let files = ours.write_inputs(self.source, folder.path())?;
                message["inputs"] = files.into_iter().map(|(n, p)| (n, p.display().to_string())).collect();
            }
            match Peer::start(name, message.clone(), folder)? {
                Started::Ready(p) => others.push(Other::Process(p)),
                Started::Skipped(why) => {
                    samples.skipped.push(Skipped { name: name.clone(), why });
                }
            }
        }
        Ok(others)
    }

    /// A form of our own programs.
    fn own(&self, name: &str) -> Result<Ready, Failure> {
        let (values, mut form) = (&self.case.values, self.form.clone());
        if name == "dense" {
            let length = self.case.equal_length().ok_or_else(|| {
                Failure::User("error[E0607]: `dense` has a constant length\n  help: use --dataset equal=512".into())
            })?;
            let source = workload::source(self.case.workload.name, &workload::dense(&self.source.text, length))?;
            let values = Values { lengths: Vec::new(), ..values.clone() };
            return Ready::new(&source, &values, &form, self.pool.clone());
        }
        if name == "longest" {
            return Ready::new(self.source, &values.longest(), &form, self.pool.clone());
        }
        if let Some(other) = name.strip_prefix("workload=") {
            let found = workload::find(other)?;
            // `--schedule` names one of the workload's that is measured.
            form.schedule = None;
            return Ready::new(&workload::source(other, found.text)?, values, &form, self.pool.clone());
        }
        match (name.strip_prefix("schedule="), FORMS.iter().find(|f| f.0 == name)) {
            (Some(schedule), _) => form.schedule = Some(schedule.to_owned()),
            (None, Some((_, change))) => change(&mut form),
            (None, None) => {}
        }
        Ready::new(self.source, values, &form, self.pool.clone())
    }

    fn peer_record(
        &self,
        other: &mut Other,
        ours: &Ready,
        mine: &[f64],
        theirs: &[f64],
    ) -> Result<PeerRecord, Failure> {
        let times = Times::of(theirs);
        let ratios: Vec<f64> = theirs.iter().zip(mine).map(|(t, m)| t / m).collect();
        let ratios = Times::of(&ratios);
        let name = ours.outputs().first().cloned().unwrap_or_default();
        let want = ours.output(&name)?;
        let (name, detail, error) = match other {
            // Its rows are longer than ours.
            Other::Own(label, _) if label == "longest" => (label.clone(), String::new(), None),
            Other::Own(label, ready) => (label.clone(), String::new(), Some(difference(&want, &ready.output(&name)?)?)),
            Other::Process(p) => {
                let error = p.error(&want).map_err(|why| {
                    Failure::User(format!("error[E0607]: peer `{}` gives no result to compare: {why}", p.name))
                })?;
                (p.name.clone(), p.detail.clone(), Some(error))
            }
        };
        Ok(PeerRecord {
            name,
            detail,
            times,
            useful_gflops: rate(ours.useful_flops, &times),
            over_ours: ratios.median_ms,
            over_ours_range: [ratios.min_ms, ratios.max_ms],
            error,
        })
    }
}

fn difference(a: &cora::runtime::array::RaggedArray, b: &cora::runtime::array::RaggedArray) -> Result<f64, Failure> {
    peers::difference(a, b).map_err(|e| Failure::User(format!("error[E0607]: results cannot be compared: {e}")))
}

fn add_kernels(kernels: &mut Vec<(String, Vec<f64>)>, ours: &Ready) {
    for (k, (name, time)) in ours.kernel_times().into_iter().enumerate() {
        if kernels.len() <= k {
            kernels.push((name, Vec::new()));
        }
        kernels[k].1.push(ms(time));
    }
}

fn rate(flops: f64, times: &Times) -> Option<f64> {
    (flops > 0.0).then(|| flops / times.median_ms / 1e6)
}

fn record(bench: &Bench, ours: &Ready, samples: Samples) -> Result<Record, Failure> {
    let times = Times::of(&samples.ours);
    let peak = samples.meter.as_ref().map(Meter::peak).unwrap_or_default();
    let useful = rate(ours.useful_flops, &times);
    let kernels = samples.kernels.into_iter().map(|(kernel, t)| Kernel { kernel, times: Times::of(&t) });
    Ok(Record {
        workload: bench.case.workload.name.to_owned(),
        dataset: bench.case.dataset.clone(),
        batch: bench.case.batch,
        size: bench.case.size,
        target: bench.args.target.clone(),
        threads: bench.threads,
        repeat: bench.args.repeat,
        ours: times,
        prelude: Times::of(&samples.prelude),
        copy: samples.device.is_some().then(|| Times::of(&samples.copy)),
        copy_gb_s: samples.rates.iter().copied().reduce(f64::max),
        table_bytes: ours.table_bytes(),
        compile_ms: ms(ours.compile_time),
        kernels: kernels.collect(),
        useful_flops: ours.useful_flops,
        useful_gflops: useful,
        peak,
        peak_gflops: peak.gflops,
        share_of_peak: useful.filter(|_| peak.gflops > 0.0).map(|u| u / peak.gflops),
        peers: samples.peers,
        skipped: samples.skipped,
        time: SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs()),
        machine: samples.device.unwrap_or_else(machine),
    })
}
