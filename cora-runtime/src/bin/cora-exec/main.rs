//! `cora-exec ARTIFACT`: loads an artifact, runs it on a batch, checks it, times it. Links no compiler.

mod args;
mod batch;
mod check;
mod execute;
mod report;

use args::{Args, Command, USAGE};
use cora_runtime::abi::ProgramDesc;
use cora_runtime::array::RaggedArray;
use cora_runtime::artifact::{Artifact, Machine, Sample};
use cora_runtime::library::check_machine;
use cora_runtime::prelude::Batch;
use cora_runtime::{Error, npy};
use execute::Loaded;
use report::Report;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

/// Why it stops.
enum Stop {
    /// The command line cannot be read.
    Usage(String),
    /// A mistake of the user's or a refusal of the system.
    Failed(Error),
    /// Outputs that differ from the stored ones.
    Mismatch(String),
}

impl From<Error> for Stop {
    fn from(e: Error) -> Stop {
        Stop::Failed(e)
    }
}

fn main() -> ExitCode {
    code(args::parse(std::env::args().skip(1)).and_then(|command| match command {
        Command::Help => say(USAGE),
        Command::Version => say(concat!("cora-exec ", env!("CARGO_PKG_VERSION"), "\n")),
        Command::Run(args) => run(&args),
    }))
}

/// Writes to standard output. Whoever closed it has had enough, which is no mistake.
fn say(text: &str) -> Result<(), Stop> {
    let mut out = std::io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => {
            Err(Error::Io { path: "standard output".to_owned(), source: e }.into())
        }
        _ => Ok(()),
    }
}

/// Lines of standard error, unless whoever reads them has had enough.
fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn code(result: Result<(), Stop>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Stop::Usage(text)) => {
            complain(&text);
            ExitCode::from(2)
        }
        Err(Stop::Failed(e)) => {
            complain(&format!("error[{}]: {e}\n  help: {}", e.code(), e.hint()));
            ExitCode::from(1)
        }
        Err(Stop::Mismatch(text)) => {
            complain(&text);
            ExitCode::from(3)
        }
    }
}

fn run(args: &Args) -> Result<(), Stop> {
    if let [path] = &args.artifacts[..] {
        return one(args, path, &mut None);
    }
    let mut worst = Ok(());
    // One is kept until the next is loaded, so that the context of the device stays.
    let mut kept = None;
    for path in &args.artifacts {
        let Err(why) = one(args, path, &mut kept) else { continue };
        if let Stop::Failed(e) = &why {
            let report = Report {
                artifact: path.display().to_string(),
                error: Some(format!("error[{}]: {e}", e.code())),
                ..Report::default()
            };
            if args.json {
                say(&format!("{}\n", report.to_json()))?;
            }
        }
        // What failed on a device may have spoiled it for all that follows.
        if matches!(&why, Stop::Failed(Error::Cuda(_))) {
            return Err(why);
        }
        let ours = std::mem::replace(&mut worst, Err(why));
        if let Err(before) = ours {
            code(Err(before));
        }
    }
    worst
}

/// Runs an artifact, on its samples or the batch that is given.
fn one(args: &Args, path: &Path, kept: &mut Option<Loaded>) -> Result<(), Stop> {
    let name = path.display().to_string();
    let bytes = std::fs::read(path).map_err(|source| Error::Io { path: name.clone(), source })?;
    let artifact = Artifact::from_bytes(&bytes)?;
    if args.info {
        return say(&report::describe(&artifact));
    }
    let desc = Arc::new(artifact.desc.clone());
    batch::check_names(args, &desc)?;
    if let machine @ Machine::Cpu { .. } = &artifact.manifest.machine {
        check_machine(machine)?;
    }
    let stored = batch::stored(args, &artifact)?;
    let cases: Vec<(Option<&Sample>, Batch)> = match stored {
        [] => vec![(None, batch::of_args(args, &desc)?)],
        all => all.iter().map(|s| (Some(s), batch::of_sample(s))).collect(),
    };
    let mut inputs = batch::inputs(args, &desc, &cases[0].1, cases[0].0)?;
    let start = Instant::now();
    let loaded = kept.insert(Loaded::new(args, &artifact, &desc)?);
    let mut report = Report::default();
    let mut wrong = Vec::new();
    for (n, (sample, batch)) in cases.iter().enumerate() {
        if n > 0 {
            inputs = batch::inputs(args, &desc, batch, *sample)?;
        }
        let mut ran = loaded.run(args, &artifact, batch, &inputs)?;
        if n == 0 {
            write_outputs(args, &desc, &ran.outputs[0])?;
        }
        // The stored results are those of the stored inputs.
        if let Some(sample) = sample.filter(|_| args.inputs.is_empty()) {
            for outputs in &ran.outputs {
                let messages = check::check(&desc, sample, outputs, &mut ran.report)?;
                let more = cases.len() > 1 || args.artifacts.len() > 1;
                let place = |m: String| if more { format!("{m}\n  in {name}, sample {n}") } else { m };
                wrong.extend(messages.into_iter().map(place));
            }
        }
        let checks = std::mem::take(&mut ran.report.checks);
        if n == 0 {
            report = ran.report;
        }
        report.checks.extend(checks);
    }
    report.artifact = name;
    report.batches = cases.len();
    report.whole_ms = start.elapsed().as_secs_f64() * 1e3;
    report.ok = wrong.is_empty();
    if args.json {
        say(&format!("{}\n", report.to_json()))?;
    } else {
        complain(report.render().trim_end_matches('\n'));
    }
    if wrong.is_empty() { Ok(()) } else { Err(Stop::Mismatch(wrong.join("\n"))) }
}

fn write_outputs(args: &Args, desc: &ProgramDesc, outputs: &[(usize, RaggedArray)]) -> Result<(), Stop> {
    for (n, array) in outputs {
        if let Some((_, path)) = args.outputs.iter().rev().find(|(name, _)| *name == desc.tensors[*n].name) {
            npy::write(path, array)?;
        }
    }
    Ok(())
}
