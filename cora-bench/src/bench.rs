//! `cora-bench bench`: one workload on one batch, in turn with its peers, beside the machine's measured peak.

use crate::datasets::{self, Dataset};
use crate::measure::{Ready, Times};
use crate::peak;
use crate::workload::{self, Shape, Values, WORKLOADS};
use cora::driver::Failure;
use cora::runtime::pool::Pool;
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The peers that there are.
pub const PEERS: &[&str] = &["padded"];

/// Arguments of `cora-bench bench`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to time.
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(WORKLOADS.iter().map(|w| w.name)))]
    pub workload: String,
    /// The dataset whose first batch is used, for workloads on sequences.
    #[arg(long, default_value = "race", value_parser = clap::builder::PossibleValuesParser::new(datasets::NAMES))]
    pub dataset: String,
    /// Sequences or products in the batch.
    #[arg(long, default_value_t = 32, value_parser = crate::paper::batch_size)]
    pub batch: usize,
    /// Rows of the matrices, for trmm, tradd and trmul.
    #[arg(long, default_value_t = 512, value_parser = crate::paper::batch_size)]
    pub size: usize,
    /// The folder of length files; `../shared/lengths` where it exists.
    #[arg(long)]
    pub lengths_dir: Option<PathBuf>,
    /// Worker threads; 0 = one for each core.
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    /// Timed runs of each, after two to warm up.
    #[arg(long, default_value_t = 9, value_parser = crate::paper::batch_size)]
    pub repeat: usize,
    /// Peers to run in turn with ours, separated by commas: padded.
    #[arg(long, value_delimiter = ',')]
    pub peers: Vec<String>,
    /// The same as `--peers padded`.
    #[arg(long)]
    pub padded: bool,
    /// One JSON object on standard output.
    #[arg(long)]
    pub json: bool,
}

/// Measures and prints.
///
/// # Errors
/// Unknown peers, length files that are not there; whatever [`Ready::new`] says.
pub fn run(args: &Args) -> Result<(), Failure> {
    if let Some(unknown) = args.peers.iter().find(|p| !PEERS.contains(&p.as_str())) {
        return Err(Failure::User(format!(
            "error[E0604]: there is no peer `{unknown}`\n  help: the peers are: {}",
            PEERS.join(", ")
        )));
    }
    let padded = args.padded || !args.peers.is_empty();
    let Some(w) = workload::find(&args.workload) else {
        return Err(Failure::User(format!("error[E0604]: there is no workload `{}`", args.workload)));
    };
    if padded && w.shape == Shape::Square {
        return Err(Failure::User(format!(
            "error[E0604]: `{}` has no padded form: its shape depends on no extent function\n  help: leave `padded` out",
            w.name
        )));
    }
    let values = match w.shape {
        Shape::Square => Values::square(args.size as i64),
        Shape::Products => Values::products(&datasets::folder(args.lengths_dir.as_deref())?, args.batch)?,
        Shape::Sequences => {
            let dataset = Dataset::load(&datasets::folder(args.lengths_dir.as_deref())?, &args.dataset)?;
            Values::of_dataset(&dataset, args.batch)?
        }
    };
    let threads = match args.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        n => n,
    };
    let source = workload::source(w.name, w.text)?;
    let pool = Arc::new(Pool::new(threads)?);
    let mut forms = vec![Ready::new(&source, &values, false, pool.clone())?];
    if padded {
        forms.push(Ready::new(&source, &values, true, pool)?);
    }
    let mut times = vec![Vec::new(); forms.len()];
    let mut kernels: Vec<(String, Vec<Duration>)> = Vec::new();
    let mut prelude = Vec::new();
    for round in 0..args.repeat + 2 {
        for (form, times) in forms.iter_mut().zip(&mut times) {
            let time = form.run()?;
            // Two rounds to warm up.
            if round >= 2 {
                times.push(time);
            }
        }
        if round >= 2 {
            prelude.push(forms[0].build_prelude()?.0);
            for (k, (name, time)) in forms[0].kernel_times().into_iter().enumerate() {
                if kernels.len() <= k {
                    kernels.push((name, Vec::new()));
                }
                kernels[k].1.push(time);
            }
        }
    }
    let peak = peak::measure(threads)?;
    report(args, w.shape, &forms, times, kernels, Times::of(prelude), peak)
}

fn report(
    args: &Args,
    shape: Shape,
    forms: &[Ready],
    times: Vec<Vec<Duration>>,
    kernels: Vec<(String, Vec<Duration>)>,
    prelude: Times,
    peak: peak::Peak,
) -> Result<(), Failure> {
    let flops = forms[0].useful_flops;
    let tables = forms[0].build_prelude()?.1.bytes();
    let times: Vec<Times> = times.into_iter().map(Times::of).collect();
    let ours = times[0];
    let useful = if flops > 0.0 { Some(flops / ours.median_ms / 1e6) } else { None };
    let ratio = times.get(1).map(|p| p.median_ms / ours.median_ms);
    let kernels: Vec<(String, Times)> = kernels.into_iter().map(|(n, t)| (n, Times::of(t))).collect();
    let what = match shape {
        Shape::Square => format!("n = {}", args.size),
        Shape::Products => format!("batch {}", args.batch),
        Shape::Sequences => format!("{}, batch {}", args.dataset, args.batch),
    };
    if args.json {
        let per_kernel: Vec<_> = kernels.iter().map(|(n, t)| json!({ "kernel": n, "times": t })).collect();
        let object = json!({
            "workload": args.workload,
            "dataset": (shape == Shape::Sequences).then_some(&args.dataset),
            "batch": (shape != Shape::Square).then_some(args.batch),
            "size": (shape == Shape::Square).then_some(args.size),
            "threads": peak.threads,
            "repeat": args.repeat,
            "ours": ours,
            "prelude": prelude,
            "table_bytes": tables,
            "kernels": per_kernel,
            "useful_flops": flops,
            "useful_gflops": useful,
            "peak_gflops": peak.gflops,
            "share_of_peak": useful.map(|u| u / peak.gflops),
            "padded": times.get(1),
            "padded_over_ours": ratio,
        });
        println!("{object}");
        return Ok(());
    }
    println!("{} ({what}, {} threads, {} runs)", args.workload, peak.threads, args.repeat);
    println!("  {:<24} {:>10} {:>10} {:>10}  ms", "", "median", "min", "max");
    let line = |name: &str, t: &Times| {
        println!("  {name:<24} {:>10.3} {:>10.3} {:>10.3}", t.median_ms, t.min_ms, t.max_ms);
    };
    line("ours", &ours);
    kernels.iter().for_each(|(n, t)| line(&format!("  {n}"), t));
    line("prelude, built anew", &prelude);
    if let (Some(p), Some(r)) = (times.get(1), ratio) {
        line("padded", p);
        println!("  padded over ours: {r:.3}");
    }
    println!("  tables: {tables} bytes");
    println!("  peak of multiply-adds, measured: {:.1} GFLOP/s", peak.gflops);
    if let Some(u) = useful {
        println!("  useful: {u:.1} GFLOP/s, {:.1}% of the peak", 100.0 * u / peak.gflops);
    }
    Ok(())
}
