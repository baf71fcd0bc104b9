//! The `cora` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    cora::cli::main()
}
