//! The `cora-bench` command: `paper` and `bench`.

use crate::{accuracy, bench, paper};
use clap::{Parser, Subcommand};
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
    /// Time a workload, beside its peers in the same run.
    Bench(bench::Args),
}

/// Runs the command line of this process. Exit codes: 0 done, 1 a mistake of the user, 2 usage, 3 a mismatch,
/// 70 a bug of ours.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            let _ = e.print();
            return ExitCode::from(if e.use_stderr() { 2 } else { 0 });
        }
    };
    let result = match cli.command {
        Command::Paper(a) => paper::run(&a),
        Command::Accuracy(a) => accuracy::run(&a),
        Command::Bench(a) => bench::run(&a),
    };
    let (code, text) = match result {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::User(text)) => (1, text),
        Err(Failure::Mismatch(text)) => (3, text),
        Err(Failure::Bug(text)) => (70, format!("internal error: {text}")),
    };
    eprintln!("{text}");
    ExitCode::from(code)
}
