//! `cora-bench suite`: the paper's experiments, on a CPU or a GPU, each a list of measurements, into a file that can be continued.
//!
//! A measurement is a line of `results.jsonl`. Those that are there already are not taken again, so a run that was cut
//! off, or a part at a time, adds up to the whole.

mod gpu;

use crate::bench;
use crate::case::CaseArgs;
use crate::datasets::{BATCH_SIZES, NAMES};
use crate::preludes::{self, PreludeRecord};
use crate::record::Record;
use clap::builder::PossibleValuesParser;
use cora::console::Console;
use cora::driver::Failure;
use cora::target::Target;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The parts, with what each shows.
pub const PARTS: [(&str, &str); 13] = [
    ("encoder", "encoder layer, eight datasets at 32, 64 and 128, beside every form of PyTorch and OpenVINO"),
    ("mha", "multi-head attention, the same datasets, beside PyTorch, TensorFlow and OpenVINO"),
    ("operators", "each operator of the encoder alone: race/128, cola/32, mnli/128, wiki128/32"),
    ("vgemm", "products of different sizes, batch 2 to 512, beside MKL and OpenBLAS"),
    ("masked-sdpa", "causal attention, race and mnli: ragged (NoPad), padded (Pad) and PyTorch"),
    ("trmm", "triangular times dense, n = 512 to 8192, beside BLAS and sparse compilers"),
    ("elementwise", "sum and product of triangles, n = 128 to 8192"),
    ("threads", "the encoder on mnli at 64 with 1 and 2 threads, ours and peers"),
    ("overheads", "all lengths 512, batch 64: ragged against the same program with a constant length"),
    ("schedules", "schedules of one program beside each other, where a program has several"),
    ("padding", "attention on ragged tensors beside copies that change padding, race; on a GPU"),
    ("prelude", "build times and sizes of the tables against the models of the paper, cola and race"),
    ("bf16", "the encoder in bfloat16 beside its AMX schedule, ours in f32 and PyTorch in both, race"),
];

/// Arguments of `cora-bench suite`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Parts to measure; all if none is given.
    #[arg(value_parser = PossibleValuesParser::new(PARTS.map(|p| p.0)))]
    pub part: Vec<String>,
    /// Where ours runs: cpu, cuda or cuda:ARCH; on a GPU the parts have its experiments, without libraries.
    #[arg(long, default_value = "cpu")]
    pub target: String,
    /// Where the results are, and stay: `results.jsonl` is continued.
    #[arg(long, default_value = "target/results")]
    pub dir: PathBuf,
    /// The folder of length files; `../shared/lengths` where it exists.
    #[arg(long)]
    pub lengths_dir: Option<PathBuf>,
    /// Rounds of each measurement.
    #[arg(long, default_value_t = 7, value_parser = crate::paper::batch_size)]
    pub repeat: usize,
    /// Worker threads; 0 = one for each core.
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    /// The first case of each part, and peers as they are.
    #[arg(long)]
    pub quick: bool,
    /// Ours alone, without peers.
    #[arg(long)]
    pub alone: bool,
    /// List the measurements and which are there, and stop.
    #[arg(long)]
    pub list: bool,
}

/// A line of the results.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Line {
    /// The part.
    pub part: String,
    /// What was measured, as it is listed; a measurement is taken once.
    pub key: String,
    /// Times beside peers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bench: Option<Record>,
    /// Build times of tables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prelude: Option<PreludeRecord>,
}

/// A measurement to take.
enum Job {
    Bench(Box<bench::Args>),
    Prelude(String, usize),
}

/// Reads `results.jsonl` of a folder; none if it is not there.
///
/// # Errors
/// `E0608` a line that is not a result.
pub fn read(dir: &Path) -> Result<Vec<Line>, Failure> {
    let path = dir.join("results.jsonl");
    let Ok(text) = std::fs::read_to_string(&path) else { return Ok(Vec::new()) };
    let parse = |(n, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|e| {
            Failure::User(format!(
                "error[E0608]: `{}`, line {}: {e}\n  help: remove the line, or name another folder with --dir",
                path.display(),
                n + 1
            ))
        })
    };
    text.lines().enumerate().filter(|l| !l.1.trim().is_empty()).map(parse).collect()
}

/// Takes the measurements that are not there yet, with a note for each; or lists them all as results.
///
/// # Errors
/// Length files that are not there, a folder that cannot be written; whatever [`bench::measure`] says.
pub fn run(args: &Args, console: &mut dyn Console) -> Result<(), Failure> {
    let target = Target::new(&args.target, "host")?;
    let done: Vec<String> = read(&args.dir)?.into_iter().map(|l| l.key).collect();
    let jobs = jobs(args, target.is_gpu());
    if args.list {
        for (part, key, _) in &jobs {
            console.result(&format!("{} {part}: {key}", if done.contains(key) { "done" } else { "    " }));
        }
        return Ok(());
    }
    let path = args.dir.join("results.jsonl");
    let fail = |e: std::io::Error| Failure::User(format!("error[E0600]: cannot write `{}`: {e}", path.display()));
    std::fs::create_dir_all(&args.dir).map_err(fail)?;
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(&path).map_err(fail)?;
    let todo: Vec<_> = jobs.into_iter().filter(|j| !done.contains(&j.1)).collect();
    let count = todo.len();
    let mut wrong = Vec::new();
    for (n, (part, key, job)) in todo.into_iter().enumerate() {
        console.note(&format!("[{}/{count}] {part}: {key}", n + 1));
        let (mut bench, mut prelude) = (None, None);
        match job {
            Job::Bench(a) => {
                let record = bench::measure(&a)?;
                bench::note_skipped(&record, console);
                if let Err(Failure::Mismatch(text)) = bench::verdict(&record) {
                    console.note(&text);
                    wrong.push(key.clone());
                }
                bench = Some(record);
            }
            Job::Prelude(dataset, batch) => {
                let folder = args.lengths_dir.as_deref();
                prelude = Some(match target.is_gpu() {
                    true => preludes::on_device(&target, &dataset, batch, folder)?,
                    false => preludes::measure(&dataset, batch, folder)?,
                });
            }
        }
        let line = Line { part, key, bench, prelude };
        let text = serde_json::to_string(&line).map_err(|e| Failure::Bug(e.to_string()))?;
        writeln!(file, "{text}").map_err(fail)?;
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(Failure::Mismatch(format!("results of peers differ from ours in: {}", wrong.join("; ")))),
    }
}

/// Part, key and job of every measurement that `args` ask for.
fn jobs(args: &Args, on_gpu: bool) -> Vec<(String, String, Job)> {
    let mut all = Vec::new();
    for (part, _) in PARTS.iter().filter(|p| args.part.is_empty() || args.part.iter().any(|a| a == p.0)) {
        let mut of_part = if on_gpu { gpu::jobs(part, args) } else { part_jobs(part, args) };
        if args.quick {
            of_part.truncate(1);
        }
        for job in of_part {
            let place = if on_gpu { format!("{}, ", args.target) } else { String::new() };
            all.push(((*part).to_owned(), place + &key(part, &job), job));
        }
    }
    all
}

fn key(part: &str, job: &Job) -> String {
    match job {
        Job::Prelude(dataset, batch) => format!("{part}, {dataset}, batch {batch}"),
        Job::Bench(a) => {
            let what = match a.case.workload.as_str() {
                "trmm" | "tradd" | "trmul" => format!("n = {}", a.case.size),
                "vgemm" => format!("batch {}", a.case.batch),
                _ => format!("{}, batch {}", a.case.dataset, a.case.batch),
            };
            let threads = if a.threads == 0 { String::new() } else { format!(", {} threads", a.threads) };
            let peers = a.peers.iter().map(|p| format!(" {p}")).collect::<String>();
            format!("{part}, {} {what}{threads}:{peers}", a.case.workload)
        }
    }
}

fn part_jobs(part: &str, args: &Args) -> Vec<Job> {
    let sequences = |workload: &str, dataset: &str, batch: usize, peers: &[&str]| {
        job(args, case(args, workload, dataset, batch, 512), peers)
    };
    let grid = |datasets: &[&str], f: &dyn Fn(&str, usize) -> Job| -> Vec<Job> {
        BATCH_SIZES.iter().flat_map(|&b| datasets.iter().map(move |d| (*d, b))).map(|(d, b)| f(d, b)).collect()
    };
    const TORCH: [&str; 5] = ["torch-padded", "torch-micro", "torch-packed", "torch-nested", "torch-compile"];
    match part {
        "encoder" => {
            let peers = [&["padded"], &TORCH[..], &["openvino"]].concat();
            grid(&NAMES, &|d, b| sequences("encoder", d, b, &peers))
        }
        "mha" => {
            let peers = [&["padded"], &TORCH[..], &["tf-padded", "tf-micro", "openvino"]].concat();
            grid(&NAMES, &|d, b| sequences("mha", d, b, &peers))
        }
        "operators" => {
            let operators = ["proj1", "qkt", "softmax", "attnv", "proj2", "layer-norm", "ff1", "ff2"];
            let rows = [("race", 128), ("cola", 32), ("mnli", 128), ("wiki128", 32)];
            rows.iter().flat_map(|&(d, b)| operators.map(|o| sequences(o, d, b, &["padded", "all"]))).collect()
        }
        "vgemm" => (1..=9)
            .map(|p| {
                let mut j = job(args, case(args, "vgemm", "race", 1 << p, 512), &["all"]);
                if let Job::Bench(a) = &mut j {
                    // Padded copies of the greatest batches do not fit beside each other.
                    a.apart = p > 6;
                }
                j
            })
            .collect(),
        "masked-sdpa" => {
            grid(&["race", "mnli"], &|d, b| sequences("masked-sdpa", d, b, &["padded", "torch-padded", "torch-packed"]))
        }
        "trmm" => [512, 1024, 2048, 4096, 8192]
            .map(|n| {
                let blas = ["mkl-trmm", "mkl-gemm", "openblas-trmm", "openblas-gemm"];
                // The sparse ones take minutes on the greatest.
                let peers: &[&str] = if n <= 2048 { &["all"] } else { &blas };
                job(args, case(args, "trmm", "race", 1, n), peers)
            })
            .into(),
        "elementwise" => ["tradd", "trmul"]
            .iter()
            .flat_map(|w| [128, 512, 2048, 8192].map(|n| job(args, case(args, w, "race", 1, n), &["all"])))
            .collect(),
        "threads" => [1, 2]
            .map(|threads| {
                let mut j = sequences("encoder", "mnli", 64, &["torch-padded", "torch-packed", "openvino"]);
                if let Job::Bench(a) = &mut j {
                    a.threads = threads;
                }
                j
            })
            .into(),
        "overheads" => {
            ["proj1", "qkt", "softmax", "attnv", "proj2"].map(|o| sequences(o, "equal=512", 64, &["dense"])).into()
        }
        "schedules" => crate::workload::WORKLOADS
            .iter()
            .filter(|w| w.shape == crate::workload::Shape::Sequences && !w.name.ends_with("-bf16"))
            .filter_map(|w| {
                let names = crate::workload::schedules(w, "cpu");
                let peers: Vec<String> = names.into_iter().map(|n| format!("schedule={n}")).collect();
                let peers: Vec<&str> = peers.iter().map(String::as_str).collect();
                (!peers.is_empty()).then(|| (w.name, peers.iter().map(|p| (*p).to_owned()).collect::<Vec<_>>()))
            })
            .flat_map(|(w, peers)| {
                let batches = [8, 16, 32, 64, 128, 256, 512, 1024];
                batches.map(|b| {
                    let peers: Vec<&str> = peers.iter().map(String::as_str).collect();
                    sequences(w, "mnli", b, &peers)
                })
            })
            .collect(),
        "prelude" => [("cola", 32), ("cola", 128), ("race", 32), ("race", 128)]
            .map(|(d, b)| Job::Prelude(d.to_owned(), b))
            .into(),
        "bf16" => {
            let peers = ["schedule=cpu", "workload=encoder", "torch-bf16", "torch-packed"];
            grid(&["race"], &|d, b| sequences("encoder-bf16", d, b, &peers))
        }
        _ => Vec::new(),
    }
}

fn case(args: &Args, workload: &str, dataset: &str, batch: usize, size: usize) -> CaseArgs {
    let lengths_dir = args.lengths_dir.clone();
    CaseArgs { workload: workload.to_owned(), dataset: dataset.to_owned(), batch, size, lengths_dir }
}

fn job(args: &Args, case: CaseArgs, peers: &[&str]) -> Job {
    let own = |p: &&str| !args.alone || bench::is_form(p);
    Job::Bench(Box::new(bench::Args {
        case,
        threads: args.threads,
        repeat: args.repeat,
        peers: peers.iter().filter(|p| own(p)).map(|p| (*p).to_owned()).collect(),
        padded: false,
        apart: false,
        target: args.target.clone(),
        schedule: None,
        program: None,
        turn_ms: 30.0,
        json: false,
    }))
}
