//! `cora explain`: the loop nest after each schedule step.

use crate::console::Console;
use crate::driver::{Failure, Form, Source, lower_form};
use crate::target::Target;
use cora_frontend::ConstValue;
use cora_ir::text::print_loop_stmts;
use cora_passes::program::Program;
use std::path::PathBuf;

/// Arguments of `cora explain`.
#[derive(clap::Args)]
pub struct Args {
    /// The program.
    program: PathBuf,
    /// The schedule; `default` is the compiler's own.
    #[arg(long)]
    schedule: Option<String>,
    /// The target whose schedule is shown: cpu, or cuda.
    #[arg(long, default_value = "cpu")]
    target: String,
    /// The processor that it is for; `host` is this machine's.
    #[arg(long, default_value = "host")]
    target_cpu: String,
    /// Overrides of constants, NAME=VALUE.
    #[arg(long = "const", value_parser = super::name_const)]
    consts: Vec<(String, ConstValue)>,
}

/// Prints the nests after each step.
pub fn explain(args: &Args, console: &mut dyn Console) -> Result<(), Failure> {
    super::given_once("--const", &args.consts)?;
    let source = Source::load(&args.program, &args.consts)?;
    let machine = Target::new(&args.target, &args.target_cpu)?;
    let target = machine.schedule();
    let schedule = source.schedule(args.schedule.as_deref(), target, |f| machine.has(f))?;
    let form = Form { grid: machine.gpu(), features: machine.features(), ..Form::default() };
    let mut text = String::new();
    let lowered = lower_form(&source, schedule, form, &mut |r| {
        if let Program::Loops(m) = r.program {
            text.push_str(&format!("// {}\n{}\n", r.invocation, print_loop_stmts(&m.env, &m.body)));
        }
    })?;
    source.warn(&lowered, console);
    super::write_out(None, text.as_bytes(), console)
}
