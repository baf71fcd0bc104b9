//! `cora-exec ARTIFACT`: loads an artifact, runs it on a batch, checks it, times it. Links no compiler.

mod args;
mod batch;
mod check;
mod execute;
mod failure;
mod report;

use args::{Args, Command, USAGE};
use batch::Inputs;
use cora_runtime::abi::ProgramDesc;
use cora_runtime::array::RaggedArray;
use cora_runtime::artifact::{Artifact, Machine, Sample};
use cora_runtime::library::check_machine;
use cora_runtime::prelude::Batch;
use cora_runtime::{Error, npy};
use execute::Loaded;
use failure::Failure;
use report::Report;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

/// Why an artifact does not give what is wanted.
enum Stop {
    /// A mistake of the user's or a refusal of the system.
    Failed(Failure),
    /// Outputs that differ from the stored ones.
    Mismatch(String),
}

impl<F: Into<Failure>> From<F> for Stop {
    fn from(e: F) -> Stop {
        Stop::Failed(e.into())
    }
}

fn main() -> ExitCode {
    let said = |result: Result<(), Failure>| result.map_or_else(|e| complain(&e), |()| 0);
    ExitCode::from(match args::parse(std::env::args_os().skip(1)) {
        Ok(Command::Help) => said(say(USAGE)),
        Ok(Command::Version) => said(say(concat!("cora-exec ", env!("CARGO_PKG_VERSION"), "\n"))),
        Ok(Command::Run(args)) => run(&args),
        Err(why) => {
            note(&why);
            2
        }
    })
}

/// Writes to standard output. Whoever closed it has had enough, which is no mistake.
fn say(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => {
            Err(Error::Io { path: "standard output".to_owned(), source: e }.into())
        }
        _ => Ok(()),
    }
}

/// Lines of standard error, unless whoever reads them has had enough.
fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Says what failed, and gives the exit code.
fn complain(e: &Failure) -> u8 {
    note(&format!("{}\n  help: {}", e.line(), e.help));
    1
}

/// Runs every artifact, and gives the worst exit code.
fn run(args: &Args) -> u8 {
    let mut worst = 0;
    // One is kept until the next is loaded, so that the context of the device stays.
    let mut kept = None;
    let mut spoiled = false;
    for path in &args.artifacts {
        let result = if spoiled {
            let text = format!("{}: not run, because the device failed before", path.display());
            Err(Failure::new("E0336", text, "run it by itself").into())
        } else {
            one(args, path, &mut kept)
        };
        let code = match result {
            Ok(()) => 0,
            Err(Stop::Mismatch(text)) => {
                note(&text);
                3
            }
            Err(Stop::Failed(e)) => {
                // What failed on a device may have spoiled it for all that follows.
                spoiled |= e.of_device;
                let (lengths, inputs, outputs) = (args.lengths.iter(), args.inputs.iter(), args.outputs.iter());
                let e = e.of(path, lengths.chain(inputs).chain(outputs).map(|(_, file)| file));
                let told = if args.json { tell(path, &e) } else { Ok(()) };
                complain(&e).max(told.map_or_else(|e| complain(&e), |()| 0))
            }
        };
        worst = worst.max(code);
    }
    worst
}

/// The report of an artifact that failed.
fn tell(path: &Path, e: &Failure) -> Result<(), Failure> {
    let report = Report { artifact: path.display().to_string(), error: Some(e.line()), ..Report::default() };
    say(&format!("{}\n", report.to_json()))
}

/// Runs an artifact, on its samples or the batch that is given.
fn one(args: &Args, path: &Path, kept: &mut Option<Loaded>) -> Result<(), Stop> {
    let name = path.display().to_string();
    let artifact = Artifact::read(path)?;
    if args.info {
        let text = if args.json { report::describe_json(&name, &artifact) } else { report::describe(&artifact) };
        return Ok(say(&text)?);
    }
    let desc = Arc::new(artifact.desc.clone());
    batch::check_names(args, &desc)?;
    batch::check_options(args, &artifact.manifest.machine)?;
    if let machine @ Machine::Cpu { .. } = &artifact.manifest.machine {
        check_machine(machine)?;
    }
    let stored = batch::stored(args, &artifact)?;
    let cases: Vec<(Option<&Sample>, Batch)> = match stored {
        [] => vec![(None, batch::of_args(args, &desc, !artifact.samples.is_empty())?)],
        all => all.iter().map(|s| (Some(s), batch::of_sample(s))).collect(),
    };
    let mut inputs = Inputs::new(args, &desc, &cases[0].1, cases[0].0)?;
    let start = Instant::now();
    let loaded = kept.insert(Loaded::new(args, &artifact, &desc)?);
    let mut report = Report::default();
    let mut wrong = Vec::new();
    for (n, (sample, batch)) in cases.iter().enumerate() {
        if n > 0 {
            inputs = Inputs::new(args, &desc, batch, *sample)?;
        }
        // The stored results are those of the stored inputs.
        let sample = sample.filter(|_| args.inputs.is_empty());
        let named = |t: usize| n == 0 && args.outputs.iter().any(|(name, _)| *name == desc.tensors[t].name);
        let mut ran = loaded.run(args, &artifact, (batch, &inputs), &|t| sample.is_some() || named(t))?;
        if n == 0 {
            write_outputs(args, &desc, &ran.outputs[0])?;
        }
        if let Some(sample) = sample {
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
    report.peak_bytes = report::peak_bytes();
    if args.json {
        say(&format!("{}\n", report.to_json()))?;
    } else {
        note(report.render().trim_end_matches('\n'));
    }
    if wrong.is_empty() { Ok(()) } else { Err(Stop::Mismatch(wrong.join("\n"))) }
}

fn write_outputs(args: &Args, desc: &ProgramDesc, outputs: &[(usize, RaggedArray)]) -> Result<(), Error> {
    for (n, array) in outputs {
        if let Some((_, path)) = args.outputs.iter().rev().find(|(name, _)| *name == desc.tensors[*n].name) {
            npy::write(path, array)?;
        }
    }
    Ok(())
}
