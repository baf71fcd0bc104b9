//! The `cora-bench` command: `paper` and `bench`.

use crate::{accuracy, bench, paper, report, suite};
use clap::{Parser, Subcommand};
use cora::console::{Console, Terminal};
use cora::driver::Failure;
use std::process::ExitCode;

/// Analytic results and measurements.
#[derive(Parser)]
#[command(name = "cora-bench", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The paper's analytic results.
    Paper(paper::Args),
    /// The errors of the math functions, over every f32.
    Accuracy(accuracy::Args),
    /// The paper's experiments, into a file of results that can be continued.
    Suite(suite::Args),
    /// Figures and tables of such results.
    Report(report::Args),
    /// Time a workload, beside its peers in the same run.
    #[command(
        after_help = "Also: `bench suite`, the paper's experiments into a file of results; `bench report`, figures and \
        tables of such results; `bench accuracy`, the errors of the math functions. Each has its own --help."
    )]
    Bench(bench::Args),
}

/// Runs the command line of this process. Exit codes: 0 done, 1 a mistake of the user, 2 usage, 3 a mismatch,
/// 70 a bug of ours.
pub fn main() -> ExitCode {
    cora::cli::without_panics(start)
}

fn start() -> ExitCode {
    let cli = match Cli::try_parse_from(arguments()) {
        Ok(cli) => cli,
        Err(e) => {
            let _ = e.print();
            return ExitCode::from(if e.use_stderr() { 2 } else { 0 });
        }
    };
    let mut console = Terminal;
    let result = match cli.command {
        Command::Paper(a) => paper::run(&a, &mut console),
        Command::Accuracy(a) => accuracy::run(&a, &mut console),
        Command::Suite(a) => suite::run(&a, &mut console),
        Command::Report(a) => report::run(&a, &mut console),
        Command::Bench(a) => bench::run(&a, &mut console),
    };
    let (code, text) = match result {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::User(text)) => (1, text),
        Err(Failure::Mismatch(text)) => (3, text),
        Err(Failure::Bug(text)) => (70, format!("internal error: {text}")),
    };
    console.note(&text);
    ExitCode::from(code)
}

/// The arguments of this process; `bench suite`, `bench report` and `bench accuracy` are those commands, since `cora
/// bench` passes on what follows it.
fn arguments() -> Vec<std::ffi::OsString> {
    let mut all: Vec<_> = std::env::args_os().collect();
    let inner = |a: &std::ffi::OsString| ["suite", "report", "accuracy"].iter().any(|n| a == n);
    if all.get(1).is_some_and(|a| a == "bench") && all.get(2).is_some_and(inner) {
        all.remove(1);
    }
    all
}
