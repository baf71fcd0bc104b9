//! The pipeline from the op graph to the simplified storage dialect, as a table of contents.

use crate::default_schedule;
use crate::lower::Simplifier;
use crate::manager::{BACK_END, Invocation, PassContext, Report, run_pipeline};
use crate::program::Program;
use crate::schedule::apply_step;
use crate::simplify::SharedSolver;
use cora_ir::intrinsic::Features;
use cora_ir::schedule::{Schedule, Step, StepKind};
use cora_ir::storage::StorageModule;
use cora_ir::text::print_step;
use cora_ir::{Diagnostic, Graph};
use std::time::Instant;

/// The form in which a program is compiled.
#[derive(Clone, Copy, Debug, Default)]
pub struct Form {
    /// Fully padded: every extent at its batch maximum.
    pub padded: bool,
    /// A program without a schedule gets one for GPUs of this architecture, such as `sm_90a`.
    pub grid: Option<&'static str>,
    /// Otherwise it gets one for processors with these features.
    pub features: Features,
    /// Loads stay inside loops that do not ask for hoisting (paper section 5.3 turned off).
    pub keep_loads: bool,
    /// Tensors are addressed through the position arrays of sparse compilers.
    pub csf: bool,
    /// Kernels build the prelude's tables.
    pub device_prelude: bool,
}

fn invoke(pass: &str) -> Invocation {
    Invocation { pass: pass.to_owned(), args: String::new() }
}

/// Compiles `graph` down to the storage dialect by `schedule`, or by the default one; `observe` sees every step.
///
/// # Errors
/// `E0509` a graph that breaks an invariant; the user's mistakes: accesses out of bounds, illegal schedule steps, buffers
/// without a bound.
pub fn compile(
    graph: &Graph,
    schedule: Option<&Schedule>,
    form: Form,
    simplifier: &mut dyn Simplifier,
    observe: &mut dyn FnMut(&Report),
) -> Result<StorageModule, Vec<Diagnostic>> {
    let _solver = SharedSolver::enter();
    let mut front = vec![invoke("check-accesses"), invoke("narrow-positions")];
    if schedule.is_none() {
        // The rules for processors make rows of tiles that begin together.
        let rows = || format!("rows={}", default_schedule::rows_of_windows(form.features));
        let args = if form.grid.is_none() { rows() } else { String::new() };
        front.push(Invocation { pass: "narrow-masked".to_owned(), args });
        front.push(invoke("split-prefixes"));
        front.push(invoke("follow-recurrences"));
    }
    if form.padded {
        front.push(invoke("raise-extents"));
    }
    front.push(invoke("lower-to-loops"));
    let mut cx = PassContext { simplifier };
    let graph = Program::Graph(graph.clone());
    graph.verify().map_err(|d| vec![d])?;
    let mut program = run_pipeline(graph, &front, &mut cx, observe)?;
    match schedule {
        Some(schedule) => {
            for step in &schedule.steps {
                let start = Instant::now();
                if let Program::Loops(m) = &mut program {
                    apply_step(m, step).map_err(|d| vec![refused(d, step, form)])?;
                }
                let invocation = Invocation { pass: "step".to_owned(), args: print_step(&step.kind) };
                observe(&Report { invocation: &invocation, program: &program, time: start.elapsed() });
            }
        }
        None => {
            let default = match form.grid {
                Some(gpu) => Invocation { pass: "default-grid".to_owned(), args: gpu.to_owned() },
                None => Invocation { pass: "default-schedule".to_owned(), args: form.features.names().join(" ") },
            };
            program = run_pipeline(program, &[invoke("drop-unread"), default], &mut cx, observe)?;
        }
    }
    let with_options = |pass: &&'static str| {
        let args = match *pass {
            "hoist-loads" if form.keep_loads => "off",
            "to-storage" | "lower-functions" if form.csf => "csf",
            _ => "",
        };
        Invocation { pass: (*pass).to_owned(), args: args.to_owned() }
    };
    let mut back: Vec<Invocation> = BACK_END.iter().map(with_options).collect();
    if form.device_prelude {
        for (pass, before) in [("capacities", "lower-functions"), ("device-prelude", "threads-outward")] {
            let at = back.iter().position(|p| p.pass == before).unwrap_or(back.len());
            back.insert(at, invoke(pass));
        }
    }
    let steps = schedule.map_or(&[][..], |s| &s.steps);
    let of_form = |d: Diagnostic| {
        if form.csf {
            d.note("this is the form with position arrays for each level, as sparse storage has them")
        } else {
            d
        }
    };
    let place = |ds: Vec<Diagnostic>| ds.into_iter().map(|d| of_form(at_step(d, steps))).collect::<Vec<_>>();
    match run_pipeline(program, &back, &mut cx, observe).map_err(place)? {
        Program::Storage(m) => Ok(m),
        _ => unreachable!("the back end ends in the storage dialect"),
    }
}

/// What is wrong with a step, and what its text alone does not say.
fn refused(d: Diagnostic, step: &Step, form: Form) -> Diagnostic {
    let d = match &step.called {
        Some(text) => d.note(format!("in the step `{text}`")),
        None => d,
    };
    if form.padded {
        d.note("this is the fully padded form: loops run to the greatest extents of the batch")
    } else {
        d
    }
}

/// What the back end refuses is the doing of the schedule: the place of the last step that speaks of what it names.
fn at_step(d: Diagnostic, steps: &[Step]) -> Diagnostic {
    let named: Vec<Vec<&str>> = d.message.split('`').skip(1).step_by(2).map(|n| n.split('.').collect()).collect();
    let speaks = |step: &&Step| {
        let text = print_step(&step.kind);
        let words: Vec<&str> = text.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
        named.iter().any(|name| name.iter().all(|part| words.contains(part)))
    };
    // Too many threads are the doing of those who bind them, wherever the kernel has its name from.
    let threads = d.code == "E0497";
    let binds = |step: &&Step| !threads || matches!(step.kind, StepKind::Bind { to, .. } if to.is_thread());
    let last = || steps.iter().rev().filter(binds);
    let found = last().find(speaks).or_else(|| if threads { last().next() } else { None });
    match found.map(|s| s.span).filter(|s| s.end > s.start) {
        Some(span) => d.at(span),
        None => d,
    }
}
