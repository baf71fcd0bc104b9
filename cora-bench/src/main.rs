//! The `cora-bench` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    cora_bench::cli::main()
}
