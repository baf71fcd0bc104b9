//! The pipeline from the op graph to the simplified storage dialect, as a table of contents.

use crate::lower::Simplifier;
use crate::manager::{BACK_END, Invocation, PassContext, Report, run_pipeline};
use crate::program::Program;
use crate::schedule::apply_step;
use cora_ir::schedule::Schedule;
use cora_ir::storage::StorageModule;
use cora_ir::{Diagnostic, Graph};
use std::time::Instant;

/// What to compile.
pub struct Options<'a> {
    /// The schedule to apply; nothing = the default one.
    pub schedule: Option<&'a Schedule>,
    /// Compile the fully padded form of the program.
    pub padded: bool,
    /// Whether a program without a schedule gets one for a grid.
    pub grid: bool,
}

fn invoke(pass: &str) -> Invocation {
    Invocation { pass: pass.to_owned(), args: String::new() }
}

/// Compiles `graph` down to the storage dialect; `observe` sees every step.
///
/// # Errors
/// The user's mistakes: accesses out of bounds, illegal schedule steps, buffers without a bound.
pub fn compile(
    graph: &Graph,
    options: &Options,
    simplifier: &mut dyn Simplifier,
    observe: &mut dyn FnMut(&Report),
) -> Result<StorageModule, Vec<Diagnostic>> {
    let mut front = vec![invoke("check-accesses")];
    if options.padded {
        front.push(invoke("raise-extents"));
    }
    front.push(invoke("lower-to-loops"));
    let mut cx = PassContext { simplifier };
    let mut program = run_pipeline(Program::Graph(graph.clone()), &front, &mut cx, observe)?;
    match options.schedule {
        Some(schedule) => {
            for step in &schedule.steps {
                let start = Instant::now();
                if let Program::Loops(m) = &mut program {
                    apply_step(m, step).map_err(|d| vec![d])?;
                }
                let invocation = Invocation { pass: "step".to_owned(), args: cora_ir::text::print_step(&step.kind) };
                observe(&Report { invocation: &invocation, program: &program, time: start.elapsed() });
            }
        }
        None => {
            let pass = if options.grid { "default-grid" } else { "default-schedule" };
            program = run_pipeline(program, &[invoke(pass)], &mut cx, observe)?;
        }
    }
    let back: Vec<Invocation> = BACK_END.iter().map(|p| invoke(p)).collect();
    match run_pipeline(program, &back, &mut cx, observe)? {
        Program::Storage(m) => Ok(m),
        _ => unreachable!("the back end ends in the storage dialect"),
    }
}
