//! The `cora` command: `run`, `compile`, `explain`; others are started as siblings.

pub mod compile;
mod explain;
mod prepare;
mod run;

use crate::console::{Console, Terminal};
use crate::driver::Failure;
use clap::{Parser, Subcommand};
use cora_frontend::ConstValue;
use cora_ir::Diagnostic;
use cora_runtime::Limits;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitCode;

/// Compiles and runs operators on ragged tensors.
#[derive(Parser)]
#[command(name = "cora", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a program on a batch.
    #[command(allow_negative_numbers = true)]
    Run(run::Args),
    /// Compile a program and print one of its forms.
    Compile(compile::Args),
    /// Show the loop nest after each schedule step.
    Explain(explain::Args),
    /// The paper's analytic results (runs cora-bench).
    #[command(disable_help_flag = true)]
    Paper(Rest),
    /// Measure workloads beside their peers (runs cora-bench).
    #[command(disable_help_flag = true)]
    Bench(Rest),
}

#[derive(clap::Args)]
struct Rest {
    /// Passed on.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    without_panics(start)
}

/// Runs a command; a panic in it is a bug of ours as any other, with exit code 70.
pub fn without_panics(command: fn() -> ExitCode) -> ExitCode {
    std::panic::set_hook(Box::new(|info| {
        let words: Vec<String> = std::env::args_os().map(|w| w.to_string_lossy().into_owned()).collect();
        let mut console = Terminal;
        console.note(&format!("internal error: {info}\n  reproduce with: {}", words.join(" ")));
    }));
    std::panic::catch_unwind(command).unwrap_or_else(|_| ExitCode::from(70))
}

fn start() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            let _ = e.print();
            return ExitCode::from(if e.use_stderr() { 2 } else { 0 });
        }
    };
    let mut console = Terminal;
    let result = match cli.command {
        Command::Run(a) => run::run(&a, &mut console),
        Command::Compile(a) => compile::compile(&a, &mut console),
        Command::Explain(a) => explain::explain(&a, &mut console),
        Command::Paper(r) => return sibling("paper", &r.rest, &mut console),
        Command::Bench(r) => return sibling("bench", &r.rest, &mut console),
    };
    let Err(failure) = result else { return ExitCode::SUCCESS };
    console.note(&failure.to_string());
    ExitCode::from(match failure {
        Failure::User(_) => 1,
        Failure::Mismatch(_) => 3,
        Failure::Bug(_) => 70,
    })
}

fn sibling(command: &str, rest: &[String], console: &mut dyn Console) -> ExitCode {
    let exe = std::env::current_exe().ok().and_then(|p| p.parent().map(|d| d.join("cora-bench")));
    let program = exe.filter(|p| p.exists()).unwrap_or_else(|| "cora-bench".into());
    match std::process::Command::new(&program).arg(command).args(rest).status() {
        Ok(s) => {
            if let Some(signal) = s.signal() {
                console.note(&format!(
                    "`{}` was ended by signal {signal}; 9 is what a lack of memory ends in",
                    program.display()
                ));
            }
            ExitCode::from(s.code().and_then(|c| u8::try_from(c).ok()).unwrap_or(70))
        }
        Err(e) => {
            let d = Diagnostic::new("E0604", format!("cannot start `{}`: {e}", program.display()));
            console.note(&d.hint("build it with `cargo build --release`").to_string());
            ExitCode::from(1)
        }
    }
}

/// Refuses an option that is given twice for one name.
///
/// # Errors
/// `E0613` one is.
fn given_once<T>(option: &str, given: &[(String, T)]) -> Result<(), Failure> {
    let twice = (1..given.len()).find(|&n| given[..n].iter().any(|g| g.0 == given[n].0));
    match twice {
        None => Ok(()),
        Some(n) => Err(Diagnostic::new("E0613", format!("{option} is given twice for `{}`", given[n].0))
            .hint("give each name once")
            .into()),
    }
}

/// `NAME=VALUE` with a number.
fn name_const(text: &str) -> Result<(String, ConstValue), String> {
    let (n, v) = text.split_once('=').ok_or_else(|| format!("`{text}` is not NAME=VALUE"))?;
    let int = v.trim().parse().map(ConstValue::Int);
    let value =
        int.or_else(|_| v.trim().parse().map(ConstValue::Float)).map_err(|_| format!("`{v}` is not a number"))?;
    Ok((n.trim().to_owned(), value))
}

/// `NAME=VALUE[,VALUE...]` with integer values.
fn name_values(text: &str) -> Result<(String, Vec<i64>), String> {
    let (n, list) = text.split_once('=').ok_or_else(|| format!("`{text}` is not NAME=VALUE"))?;
    let value = |v: &str| v.trim().parse().map_err(|_| format!("`{v}` is not an integer of 64 bits"));
    Ok((n.trim().to_owned(), list.split(',').map(value).collect::<Result<_, _>>()?))
}

/// A number that is at least 1.
fn positive(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| *n > 0).ok_or_else(|| format!("`{text}` is not an integer of at least 1"))
}

/// Bytes, with a suffix or without.
fn memory_limit(text: &str) -> Result<Limits, String> {
    Limits::of_memory(text).ok_or_else(|| format!("`{text}` is not a number of bytes, or one with k, M or G behind it"))
}

/// `NAME=FILE`.
fn name_file(text: &str) -> Result<(String, std::path::PathBuf), String> {
    let (n, f) = text.split_once('=').ok_or_else(|| format!("`{text}` is not NAME=FILE"))?;
    Ok((n.trim().to_owned(), f.into()))
}

/// Refuses to write a result over the program.
fn not_over(program: &std::path::Path, output: &std::path::Path) -> Result<(), Failure> {
    match (program.canonicalize(), output.canonicalize()) {
        (Ok(from), Ok(to)) if from == to => {
            let d = Diagnostic::new("E0600", format!("`{}` is the program itself", output.display()));
            Err(d.hint("give the result a file of its own").into())
        }
        _ => Ok(()),
    }
}

/// What to do about a file that cannot be written.
const PATHS: &str = "check the path and its permissions";

/// Writes to a file, or to the console for `-` and for nothing.
fn write_out(to: Option<&std::path::Path>, bytes: &[u8], console: &mut dyn Console) -> Result<(), Failure> {
    match to.filter(|p| p.as_os_str() != "-") {
        None => console
            .bytes(bytes)
            .map_err(|e| Diagnostic::new("E0600", format!("standard output: {e}")).hint(PATHS).into()),
        Some(p) => std::fs::write(p, bytes)
            .map_err(|e| Diagnostic::new("E0600", format!("cannot write `{}`: {e}", p.display())).hint(PATHS).into()),
    }
}
