//! `cora-exec ARTIFACT`: loads an artifact, runs it on a batch, checks it, times it. Links no compiler.

mod args;
mod batch;
mod check;
mod execute;
mod report;

use args::{Args, Command, USAGE};
use cora_runtime::artifact::{Artifact, Machine};
use cora_runtime::library::check_machine;
use cora_runtime::{Error, npy};
use std::io::{ErrorKind, Write};
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

fn code(result: Result<(), Stop>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Stop::Usage(text)) => {
            eprintln!("{text}");
            ExitCode::from(2)
        }
        Err(Stop::Failed(e)) => {
            eprintln!("error[{}]: {e}\n  help: {}", e.code(), e.hint());
            ExitCode::from(1)
        }
        Err(Stop::Mismatch(text)) => {
            eprintln!("{text}");
            ExitCode::from(3)
        }
    }
}

fn run(args: &Args) -> Result<(), Stop> {
    let path = args.artifact.display().to_string();
    let bytes = std::fs::read(&args.artifact).map_err(|source| Error::Io { path, source })?;
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
    let batch = match stored {
        Some(s) => batch::of_sample(s),
        None => batch::of_args(args, &desc)?,
    };
    let inputs = batch::inputs(args, &desc, &batch, stored)?;
    let start = Instant::now();
    let mut ran = match &artifact.manifest.machine {
        Machine::Cpu { .. } => execute::on_cpu(args, &artifact, &desc, &batch, &inputs)?,
        Machine::Cuda { .. } => execute::on_gpu(args, &artifact, &desc, &batch, &inputs)?,
    };
    ran.report.whole_ms = start.elapsed().as_secs_f64() * 1e3;
    for (n, array) in &ran.outputs {
        if let Some((_, path)) = args.outputs.iter().rev().find(|(name, _)| *name == desc.tensors[*n].name) {
            npy::write(path, array)?;
        }
    }
    // The stored results are those of the stored inputs.
    let expected = stored.filter(|_| args.inputs.is_empty());
    let checked = match expected {
        Some(sample) => check::check(&desc, sample, &ran.outputs, &mut ran.report)?,
        None => Vec::new(),
    };
    ran.report.ok = checked.is_empty();
    if args.json {
        say(&format!("{}\n", ran.report.to_json()))?;
    } else {
        eprint!("{}", ran.report.render());
    }
    if checked.is_empty() { Ok(()) } else { Err(Stop::Mismatch(checked.join("\n"))) }
}
