//! `cora-bench paper`: datasets, work, prelude memory and activation memory, by formula and by our compiler.

use crate::analytic::{self, geomean, mean};
use crate::csf::CsfTables;
use crate::datasets::{self, Dataset};
use crate::layer_work::LayerWork;
use crate::tables::{ENCODER6, ProgramTables};
use clap::ValueEnum;
use cora::console::Console;
use cora::driver::Failure;
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Topic {
    /// Least, mean and greatest length of each dataset.
    Datasets,
    /// Multiply-adds of an encoder layer: fully padded, partially padded, unpadded.
    Flops,
    /// Bytes of the prelude's tables of a six-layer encoder.
    PreludeMemory,
    /// Bytes of an encoder layer's forward activations.
    ActivationMemory,
}

/// Arguments of `cora-bench paper`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to compute.
    #[arg(value_enum)]
    pub topic: Topic,
    /// Datasets, separated by commas; all where none is given.
    #[arg(long, value_delimiter = ',', value_parser = clap::builder::PossibleValuesParser::new(datasets::NAMES))]
    pub dataset: Vec<String>,
    /// Batch sizes, separated by commas.
    #[arg(long, value_delimiter = ',', default_values_t = datasets::BATCH_SIZES, value_parser = batch_size)]
    pub batch: Vec<usize>,
    /// How many batches from the front of each file.
    #[arg(long, default_value_t = 10, value_parser = batch_size)]
    pub batches: usize,
    /// The folder of length files; `../shared/lengths` where it exists.
    #[arg(long)]
    pub lengths_dir: Option<PathBuf>,
    /// With `prelude-memory`: also how long our tables, and those of a sparse compiler, take to build (one core).
    #[arg(long)]
    pub time: bool,
    /// With `prelude-memory`: also compile the program with the position arrays that sparse compilers store for each
    /// tensor, and measure them like our own tables.
    #[arg(long)]
    pub csf: bool,
    /// One JSON object a line on standard output.
    #[arg(long)]
    pub json: bool,
}

/// A positive count.
pub(crate) fn batch_size(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("a positive integer is needed".to_owned()),
        Ok(n) => Ok(n),
    }
}

/// One line of the result: its JSON object, and the cells for people.
struct Row {
    json: Map<String, Value>,
    cells: Vec<String>,
    /// What the summary is over.
    ratio: f64,
    /// Multiply-adds issued over useful ones, by our schedules.
    ours: f64,
}

/// Computes; a result for each row, or one table.
///
/// # Errors
/// Length files that are not there or too short.
pub fn run(args: &Args, console: &mut dyn Console) -> Result<(), Failure> {
    let dir = datasets::folder(args.lengths_dir.as_deref())?;
    let names: Vec<&str> = if args.dataset.is_empty() {
        datasets::NAMES.to_vec()
    } else {
        args.dataset.iter().map(String::as_str).collect()
    };
    let all = names.iter().map(|n| Dataset::load(&dir, n)).collect::<Result<Vec<_>, _>>()?;
    if args.topic != Topic::Datasets {
        all.iter().try_for_each(fits)?;
    }
    let ours = match args.topic {
        Topic::PreludeMemory => Some(ProgramTables::compile("encoder6", ENCODER6)?),
        _ => None,
    };
    let csf = match args.topic {
        Topic::PreludeMemory if args.csf => Some(ProgramTables::compile_csf("encoder6", ENCODER6)?),
        _ => None,
    };
    let work = match args.topic {
        Topic::Flops => Some(LayerWork::new()?),
        _ => None,
    };
    let mut rows = Vec::new();
    for d in &all {
        if args.topic == Topic::Datasets {
            rows.push(dataset_row(d));
            continue;
        }
        for &size in &args.batch {
            let batches = d.batches(size, args.batches)?;
            if batches.len() < args.batches && !args.json {
                console.note(&format!("note: `{}` holds only {} batches of {size}", d.name, batches.len()));
            }
            rows.push(row(args.topic, (ours.as_ref(), csf.as_ref()), work.as_ref(), args.time, d, size, &batches)?);
        }
    }
    if args.json {
        for r in rows {
            console.result(&Value::Object(r.json).to_string());
        }
    } else {
        console.result(&render(args, &rows));
    }
    Ok(())
}

/// The longest sequence that the encoder's program takes.
const LONGEST: i64 = 512;

fn fits(d: &Dataset) -> Result<(), Failure> {
    match d.lengths.iter().position(|&l| l > LONGEST) {
        None => Ok(()),
        Some(n) => Err(Failure::User(format!(
            "error[E0306]: entry {n} of dataset `{}` is {}\n  help: the encoder's program takes lengths of at most {LONGEST}: cut the sequences",
            d.name, d.lengths[n]
        ))),
    }
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(m) => m,
        _ => Map::new(),
    }
}

fn dataset_row(d: &Dataset) -> Row {
    let s = d.summary(datasets::TABLE_SEQUENCES);
    let json = json!({
        "dataset": d.name, "sequences": s.sequences, "min": s.min, "mean": s.mean, "max": s.max,
        "lines": d.lengths.len(),
    });
    let floor = s.mean.floor();
    let cells = vec![d.name.clone(), s.sequences.to_string(), s.min.to_string(), floor.to_string(), s.max.to_string()];
    Row { json: object(json), cells, ratio: 1.0, ours: 1.0 }
}

fn row(
    topic: Topic,
    (ours, csf): (Option<&ProgramTables>, Option<&ProgramTables>),
    work: Option<&LayerWork>,
    time: bool,
    d: &Dataset,
    size: usize,
    batches: &[&[i64]],
) -> Result<Row, Failure> {
    let (values, ratio): (Vec<(&str, f64)>, f64) = match topic {
        Topic::Flops => {
            let f: Vec<_> = batches.iter().map(|b| analytic::flops(b)).collect();
            let (dense, real, ideal) = (mean(&f, |f| f.dense), mean(&f, |f| f.real), mean(&f, |f| f.ideal));
            let mut values = vec![("dense_gmac", dense), ("real_gmac", real), ("ideal_gmac", ideal)];
            if let Some(work) = work {
                let w: Vec<_> = batches.iter().map(|b| work.multiply_adds(b)).collect();
                values.push(("ours_useful_gmac", mean(&w, |w| w.0)));
                values.push(("ours_issued_gmac", mean(&w, |w| w.1)));
            }
            (values, real / ideal)
        }
        Topic::PreludeMemory => {
            let m: Vec<_> = batches.iter().map(|b| analytic::prelude_memory(b)).collect();
            let mut values = vec![
                ("sparse_kb", mean(&m, |m| m.sparse)),
                ("storage_redundant_kb", mean(&m, |m| m.storage_redundant)),
                ("fusion_redundant_kb", mean(&m, |m| m.fusion_redundant)),
                ("storage_optimized_kb", mean(&m, |m| m.storage_optimized)),
                ("fusion_optimized_kb", mean(&m, |m| m.fusion_optimized)),
            ];
            if let Some(tables) = ours {
                let t = batches.iter().map(|b| tables.bytes(b)).collect::<Result<Vec<_>, _>>()?;
                values.push(("ours_storage_kb", mean(&t, |t| t.storage as f64 / 1024.0)));
                values.push(("ours_fusion_kb", mean(&t, |t| t.fusion as f64 / 1024.0)));
                if time {
                    let ours = batches.iter().map(|b| tables.build_time(b, BUILDS)).collect::<Result<Vec<_>, _>>()?;
                    let sparse: Vec<Duration> = batches.iter().map(|b| csf_time(b)).collect();
                    values.push(("sparse_us", mean(&sparse, |t| t.as_secs_f64() * 1e6)));
                    values.push(("ours_us", mean(&ours, |t| t.as_secs_f64() * 1e6)));
                }
            }
            if let Some(csf) = csf {
                let t = batches.iter().map(|b| csf.bytes(b)).collect::<Result<Vec<_>, _>>()?;
                values.push(("csf_storage_kb", mean(&t, |t| t.storage as f64 / 1024.0)));
                values.push(("csf_fusion_kb", mean(&t, |t| t.fusion as f64 / 1024.0)));
                let t = batches.iter().map(|b| csf.build_time(b, BUILDS)).collect::<Result<Vec<_>, _>>()?;
                values.push(("csf_us", mean(&t, |t| t.as_secs_f64() * 1e6)));
                let ours = ours.map(|o| batches.iter().map(|b| o.build_time(b, BUILDS)).collect::<Result<Vec<_>, _>>());
                if let (Some(t), false) = (ours.transpose()?, time) {
                    values.push(("ours_us", mean(&t, |t| t.as_secs_f64() * 1e6)));
                }
            }
            (values, 1.0)
        }
        Topic::Datasets | Topic::ActivationMemory => {
            let a = analytic::peak_activation_memory(batches);
            (vec![("dense_mib", a.dense), ("ragged_mib", a.ragged)], a.dense / a.ragged)
        }
    };
    let mut json = object(json!({ "dataset": d.name, "batch": size, "batches": batches.len() }));
    let mut cells = vec![d.name.clone(), size.to_string()];
    for &(name, v) in &values {
        json.insert(name.to_owned(), json!(v));
        cells.push(if topic == Topic::Flops { format!("{v:.5}") } else { format!("{v:.3}") });
    }
    let mut ours_ratio = 1.0;
    match topic {
        Topic::Flops => {
            let (dense, ideal) = (values[0].1, values[2].1);
            ours_ratio = values[4].1 / values[3].1;
            cells.extend([format!("{:.4}", dense / ideal), format!("{ratio:.4}"), format!("{ours_ratio:.4}")]);
        }
        Topic::ActivationMemory => cells.push(format!("{ratio:.4}")),
        _ => {}
    }
    Ok(Row { json, cells, ratio, ours: ours_ratio })
}

/// How often tables are built for a time.
const BUILDS: usize = 21;

/// Median time of building the tables of a sparse compiler.
fn csf_time(lengths: &[i64]) -> Duration {
    let mut times: Vec<Duration> = (0..BUILDS)
        .map(|_| {
            let start = Instant::now();
            let tables = std::hint::black_box(CsfTables::build(lengths));
            let time = start.elapsed();
            drop(tables);
            time
        })
        .collect();
    times.sort_unstable();
    times[BUILDS / 2]
}

fn render(args: &Args, rows: &[Row]) -> String {
    let (unit, head): (&str, &[&str]) = match args.topic {
        Topic::Datasets => ("lengths of the first sequences", &["dataset", "sequences", "min", "mean", "max"]),
        Topic::Flops => (
            "10^9 multiply-adds of an encoder layer, mean over batches; `useful` and `issued` count our schedule's, \
             masked lanes included, the rest is the paper's model",
            &["dataset", "batch", "dense", "real", "ideal", "useful", "issued", "dense/ideal", "real/ideal", "ours"],
        ),
        Topic::PreludeMemory => (
            "kB of the prelude's tables of a six-layer encoder, mean over batches; `ours` and `csf` as built, the rest a \
             model; times in microseconds on one core",
            &[
                "dataset",
                "batch",
                "sparse",
                "storage red.",
                "fusion red.",
                "storage opt.",
                "fusion opt.",
                "ours storage",
                "ours fusion",
            ],
        ),
        Topic::ActivationMemory => (
            "MiB of an encoder layer's forward activations, greatest of the batches",
            &["dataset", "batch", "dense", "ragged", "dense/ragged"],
        ),
    };
    let measured = [("sparse_us", "sparse us"), ("ours_us", "ours us")];
    let csf = [("csf_storage_kb", "csf storage"), ("csf_fusion_kb", "csf fusion"), ("csf_us", "csf us")];
    let mut head = head.to_vec();
    let first = rows.first().map(|r| &r.json);
    let order = if args.time { [&measured[..], &csf[..]].concat() } else { [&csf[..], &measured[..]].concat() };
    head.extend(order.iter().filter(|(key, _)| first.is_some_and(|j| j.contains_key(*key))).map(|(_, name)| *name));
    let mut text = format!("{unit}\n");
    let width = |c: usize| {
        rows.iter().filter_map(|r| r.cells.get(c)).map(String::len).chain([head[c].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        for (c, (cell, w)) in cells.zip(&widths).enumerate() {
            text.push_str(&if c == 0 { format!("{cell:<w$}") } else { format!("  {cell:>w$}") });
        }
        text.push('\n');
    };
    // Columns that were not asked for have no cells.
    let columns = rows.first().map_or(head.len(), |r| r.cells.len());
    line(&mut head.iter().copied().take(columns));
    for r in rows {
        line(&mut r.cells.iter().map(String::as_str));
    }
    let what = match args.topic {
        Topic::Flops => "real/ideal",
        Topic::ActivationMemory => "dense/ragged",
        _ => return text,
    };
    for size in &args.batch {
        let ratios: Vec<f64> = rows.iter().filter(|r| r.cells[1] == size.to_string()).map(|r| r.ratio).collect();
        text.push_str(&format!("geomean {what} at batch {size}: {:.4}\n", geomean(&ratios)));
        if args.topic == Topic::Flops {
            let ours: Vec<f64> = rows.iter().filter(|r| r.cells[1] == size.to_string()).map(|r| r.ours).collect();
            text.push_str(&format!("geomean issued/useful of ours at batch {size}: {:.4}\n", geomean(&ours)));
        }
    }
    text
}
