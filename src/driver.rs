//! From a `.cora` file to a storage module, with everything that a command wants to see on the way.

use crate::console::Console;
use cora_frontend::{ConstValue, Elaborated, parse_with_warnings, render};
use cora_ir::interp::InterpError;
use cora_ir::loops::{LoopKind, LoopModule};
use cora_ir::schedule::{LoopRef, Schedule, Step, StepKind};
use cora_ir::storage::{Kernel, Stmt, StorageModule};
use cora_ir::{Diagnostic, Graph, TensorId, VarId};
use cora_passes::execution::Observer;
use cora_passes::graph::narrow_masked::{Windows, has_windows, narrow_masked};
use cora_passes::graph::split_prefixes::{BLOCK, split_prefixes};
use cora_passes::manager::Report;
use cora_passes::pipeline;
pub use cora_passes::pipeline::Form;
use cora_passes::program::Program;
use cora_passes::standard::StandardSimplifier;
use rustc_hash::FxHashSet;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

/// Why a command or a compilation stops, and a command's exit code.
#[derive(Debug)]
pub enum Failure {
    /// The user's mistake: exit code 1. The text is rendered.
    User(String),
    /// Results differ from the reference: exit code 3.
    Mismatch(String),
    /// A mistake of ours: exit code 70.
    Bug(String),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::User(text) => f.write_str(text.trim_end()),
            Self::Mismatch(text) => f.write_str(text),
            Self::Bug(text) => write!(f, "internal error: {text}"),
        }
    }
}

impl std::error::Error for Failure {}

impl From<Diagnostic> for Failure {
    fn from(d: Diagnostic) -> Self {
        Self::User(d.to_string())
    }
}

impl From<cora_runtime::Error> for Failure {
    /// The description comes from this very process, so that what is wrong with it is no mistake of the user's.
    fn from(e: cora_runtime::Error) -> Self {
        if e.is_fault() {
            return Self::Bug(format!(
                "[{}] {e}\n  help: this is a fault of the compiler, neither of the program nor of the batch; report it \
                 with the program, its parameters and its lengths",
                e.code()
            ));
        }
        let mut text = format!("error[{}]: {e}", e.code());
        let hint = e.hint();
        if !hint.is_empty() {
            text.push_str(&format!("\n  help: {hint}"));
        }
        Self::User(text)
    }
}

impl From<InterpError> for Failure {
    /// What the reference interpreter cannot do: for want of memory, because no GPU could, or by a mistake of ours.
    fn from(e: InterpError) -> Self {
        match e {
            InterpError::TooLarge { .. } => Diagnostic::new("E0312", format!("the reference interpreter: {e}"))
                .hint("check fewer rows with --check=N or a smaller batch, or raise the limit with --memory-limit")
                .into(),
            InterpError::NoMemory { .. } => Diagnostic::new("E0313", format!("the reference interpreter: {e}"))
                .hint("check fewer rows with --check=N, use a smaller batch, or give it more memory")
                .into(),
            InterpError::Grid { .. } => Diagnostic::new("E0611", e.to_string())
                .hint("bind the loop to block.x, or split it and bind the outer part")
                .into(),
            e => Self::Bug(format!("the reference interpreter: {e}")),
        }
    }
}

/// A program and where it came from.
pub struct Source {
    /// The file's path as given, for messages.
    pub path: String,
    /// Its text; empty for a graph that was built.
    pub text: String,
    /// The op graph.
    pub graph: Graph,
    /// What is suspicious about it.
    pub warnings: Vec<Diagnostic>,
}

impl Source {
    /// Reads and parses a file.
    ///
    /// # Errors
    /// Every mistake in the text, rendered with its source line; `E0600` an unreadable file.
    pub fn load(path: &Path, consts: &[(String, ConstValue)]) -> Result<Self, Failure> {
        let shown = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|e| {
            Diagnostic::new("E0600", format!("cannot read `{shown}`: {e}")).hint("give the path of a .cora program")
        })?;
        let name = path.file_stem().map_or_else(|| "program".to_owned(), |s| s.to_string_lossy().into_owned());
        Self::parse(&name, &shown, text, consts)
    }

    /// Parses a text; `path` is what messages call it.
    ///
    /// # Errors
    /// Every mistake in the text, rendered with its source line.
    pub fn parse(name: &str, path: &str, text: String, consts: &[(String, ConstValue)]) -> Result<Self, Failure> {
        match parse_with_warnings(name, &text, consts) {
            Ok(Elaborated { graph, warnings }) => Ok(Self { path: path.to_owned(), text, graph, warnings }),
            Err(errors) => Err(Failure::User(render_all(&errors, path, &text))),
        }
    }

    /// Tells what is suspicious about the program and about what it was lowered to; once it is known to compile, since
    /// an error matters more.
    pub fn warn(&self, lowered: &Lowered, console: &mut dyn Console) {
        let warnings: Vec<Diagnostic> = self.warnings.iter().cloned().chain(lowered.warnings()).collect();
        console.note(&render_all(&warnings, &self.path, &self.text));
    }

    /// Diagnostics as text, with lines of this source where it has any.
    pub fn fail(&self, errors: &[Diagnostic]) -> Failure {
        if self.text.is_empty() {
            let placeless = |d: &Diagnostic| Diagnostic { span: None, ..d.clone() };
            let errors: Vec<Diagnostic> = errors.iter().map(placeless).collect();
            return Failure::User(render_all(&errors, &self.path, ""));
        }
        Failure::User(render_all(errors, &self.path, &self.text))
    }

    /// The schedule called `name`, or that of the target and of the features that it `has`; nothing if there is none.
    ///
    /// # Errors
    /// `E0603` there is no schedule of that name.
    pub fn schedule(
        &self,
        name: Option<&str>,
        target: &str,
        has: impl Fn(&str) -> bool,
    ) -> Result<Option<&Schedule>, Failure> {
        match name {
            None => Ok(self.graph.default_schedule(target, has)),
            Some("default") => Ok(None),
            Some(n) => match self.graph.schedule(n) {
                Some(s) => Ok(Some(s)),
                None => {
                    let known = list("schedule", self.graph.schedules.iter().map(|s| s.name.as_str()));
                    Err(Diagnostic::new("E0603", format!("`{}` has no schedule `{n}`", self.path))
                        .hint(format!("{known}; `default` is the compiler's own"))
                        .into())
                }
            },
        }
    }
}

/// What of a kind the program has, for hints.
pub fn list<'a>(kind: &str, names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    if names.is_empty() { format!("it has no {kind}s") } else { format!("its {kind}s: {}", names.join(", ")) }
}

fn render_all(errors: &[Diagnostic], path: &str, text: &str) -> String {
    errors.iter().map(|d| render(d, path, text)).collect::<Vec<_>>().join("\n")
}

/// What the middle of the compiler made of a program.
pub struct Lowered {
    /// The op graph with every access proved in bounds, so that it can be interpreted.
    pub checked: Graph,
    /// The same where dimensions end at masks that compare positions, and prefixes are in blocks as they are computed: what
    /// its operators compute is useful.
    pub counted: Graph,
    /// The module for code generation.
    pub storage: StorageModule,
    /// The scheduled loops that it was made from.
    pub loops: LoopModule,
    /// Each pass with its time.
    pub times: Vec<(String, Duration)>,
    /// Whether it is for a GPU.
    pub(crate) grid: bool,
    /// What the schedule asks for and did not get.
    unmet: Vec<Diagnostic>,
}

impl Lowered {
    /// `W0401`: kernels that repeat something on one thread of a GPU; `W0402`: vectors that are none.
    fn warnings(&self) -> impl Iterator<Item = Diagnostic> {
        let repeats = |s: &Stmt| match s {
            Stmt::For { extent, .. } => self.storage.env.pool.constant_bound(*extent).is_none_or(|n| n > 1),
            _ => false,
        };
        let serial = move |k: &&Kernel| !k.is_grid() && k.body.iter().any(|s| s.any(&mut |s| repeats(s)));
        self.storage
            .kernels
            .iter()
            .filter(|_| self.grid)
            .filter(serial)
            .map(|k| {
                Diagnostic::new("W0401", format!("one thread of the GPU runs all of `{}`", k.name))
                    .hint("`bind` its loops to block.x and thread.x, or attach it to a stage whose loops are bound")
            })
            .chain(self.unmet.iter().cloned())
    }
}

/// The loops that are to be vectors, and those of them that had no vector form.
#[derive(Default)]
struct Vectors {
    asked: FxHashSet<VarId>,
    /// Each with the tensors that are written in it.
    serial: Vec<(VarId, Vec<TensorId>)>,
}

impl Vectors {
    /// Looks at the module after a pass.
    fn observe(&mut self, pass: &str, m: &StorageModule) {
        for s in m.kernels.iter().flat_map(|k| &k.body) {
            s.walk(&mut |s| match s {
                Stmt::For { var, kind: LoopKind::Vector, .. } if pass == "threads-outward" => {
                    self.asked.insert(*var);
                }
                Stmt::For { var, .. } if pass == "vectorize-and-unroll" && self.asked.contains(var) => {
                    let mut written = Vec::new();
                    s.walk(&mut |s| written.extend(s.writes()));
                    self.serial.push((*var, written));
                }
                _ => {}
            });
        }
    }

    /// `W0402`: steps whose lanes are computed one after the other.
    fn unmet(&self, m: &StorageModule, schedule: &Schedule) -> Vec<Diagnostic> {
        let of_stage = |t: &TensorId, stage: &str| {
            let rest = m.env.tensors[*t].name.strip_prefix(stage);
            rest.is_some_and(|component| component.is_empty() || component.starts_with('.'))
        };
        let is_serial = |l: &LoopRef| {
            let mut found = self.serial.iter().filter(|(v, _)| m.env.vars[*v].name == l.name);
            found.any(|(_, written)| written.iter().any(|t| of_stage(t, &l.stage)))
        };
        let told = |s: &Step| match &s.kind {
            StepKind::Vectorize { target, .. } if is_serial(target) => {
                let what = format!("the lanes of `{}.{}` are computed one after the other", target.stage, target.name);
                let d = Diagnostic::new("W0402", what)
                    .hint("each lane searches for a row of its own, or has an inner loop that the others do not: vectorize another loop, or reorder");
                Some(if s.span.end > s.span.start { d.at(s.span) } else { d })
            }
            _ => None,
        };
        schedule.steps.iter().filter_map(told).collect()
    }
}

/// Runs every pass up to code generation for a processor; `observe` sees the program after each.
///
/// # Errors
/// The user's mistakes, rendered.
pub fn lower(
    source: &Source,
    schedule: Option<&Schedule>,
    padded: bool,
    observe: &mut dyn FnMut(&Report),
) -> Result<Lowered, Failure> {
    lower_form(source, schedule, Form { padded, ..Form::default() }, observe)
}

/// [`lower`], where a program without a schedule gets one for GPUs of architecture `grid`, such as `sm_90a`.
///
/// # Errors
/// The user's mistakes, rendered.
pub fn lower_for(
    source: &Source,
    schedule: Option<&Schedule>,
    padded: bool,
    grid: Option<&'static str>,
    observe: &mut dyn FnMut(&Report),
) -> Result<Lowered, Failure> {
    lower_form(source, schedule, Form { padded, grid, ..Form::default() }, observe)
}

/// [`lower`] in any form.
///
/// # Errors
/// The user's mistakes, rendered.
pub fn lower_form(
    source: &Source,
    schedule: Option<&Schedule>,
    form: Form,
    observe: &mut dyn FnMut(&Report),
) -> Result<Lowered, Failure> {
    let mut simplifier = StandardSimplifier::new();
    let (mut times, mut loops, mut checked) = (Vec::new(), LoopModule::default(), Graph::default());
    let (mut vectors, mut narrowed) = (Vectors::default(), None);
    let storage = pipeline::compile(&source.graph, schedule, form, &mut simplifier, &mut |r: &Report| {
        times.push((r.invocation.to_string(), r.time));
        match r.program {
            Program::Graph(g) if r.invocation.pass == "check-accesses" => checked = g.clone(),
            Program::Graph(g) if r.invocation.pass == "split-prefixes" => narrowed = Some(g.clone()),
            // The last pass before storage.
            Program::Loops(m) if r.invocation.pass == "relax-register-tails" => loops = m.clone(),
            Program::Storage(m) => vectors.observe(&r.invocation.pass, m),
            _ => {}
        }
        observe(r);
    })
    .map_err(|errors| source.fail(&errors))?;
    verified(&storage)?;
    let unmet = schedule.map_or_else(Vec::new, |s| vectors.unmet(&storage, s));
    // Under a schedule the pass does not run, and of windows it leaves more than is useful.
    let counted = narrowed.filter(|_| !has_windows(&mut checked)).unwrap_or_else(|| {
        let mut graph = checked.clone();
        // What was proved so far is of the other graph's expressions.
        narrow_masked(&mut graph, &mut StandardSimplifier::new(), Windows::Counted);
        if schedule.is_none() {
            split_prefixes(&mut graph, BLOCK);
        }
        graph
    });
    Ok(Lowered { checked, counted, storage, loops, times, grid: form.grid.is_some(), unmet })
}

/// As [`lower`], but the program is interpreted before and after each pass on random lengths. Gives
/// also how many batches there were.
///
/// # Errors
/// Those of [`lower`]; the first pass that changes a result.
pub fn lower_verified(
    source: &Source,
    schedule: Option<&Schedule>,
    form: Form,
    observe: &mut dyn FnMut(&Report),
) -> Result<(Lowered, usize), Failure> {
    let mut observer = Observer::new(&Program::Graph(source.graph.clone()));
    let lowered = lower_form(source, schedule, form, &mut |r| {
        observer.observe(r);
        observe(r);
    })?;
    let batches = observer.finish().map_err(|(what, text)| match text {
        Some(text) => Failure::Bug(format!("{what}\n  reproducer: {}", write_reproducer(&text))),
        None => Diagnostic::new("E0615", format!("the passes cannot be checked: {what}"))
            .hint("check it with smaller constants and ranges, or leave --verify-each away")
            .into(),
    })?;
    Ok((lowered, batches))
}

/// Nothing reaches code generation unverified.
fn verified(storage: &StorageModule) -> Result<(), Failure> {
    use cora_ir::verify::{StorageForm, verify_storage};
    let Err(faults) = verify_storage(storage, StorageForm::Legal) else { return Ok(()) };
    let path = reproducer(storage);
    let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
    Err(Failure::Bug(format!("the passes made an invalid program:\n  {}\n  reproducer: {path}", faults.join("\n  "))))
}

/// Writes the module where a person can find it, and gives the path.
pub fn reproducer(storage: &StorageModule) -> String {
    write_reproducer(&cora_ir::text::print_storage(storage))
}

fn write_reproducer(text: &str) -> String {
    let mut n = 0;
    let (path, file) = loop {
        let path = std::env::temp_dir().join(format!("cora-{}-{n}.reproducer", std::process::id()));
        match std::fs::File::create_new(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists && n < 1 << 10 => n += 1,
            file => break (path, file),
        }
    };
    match file.and_then(|mut f| f.write_all(text.as_bytes())) {
        Ok(()) => path.display().to_string(),
        Err(e) => format!("none, `{}`: {e}", path.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_batch_can_cause_is_our_fault() {
        let tensor = || "A".to_owned();
        let faults = [
            cora_runtime::Error::Storage { tensor: tensor(), dim: 0, extent: 3, storage: 2 },
            cora_runtime::Error::Offset { tensor: tensor(), offset: 9, elems: 4 },
            cora_runtime::Error::Kernel { symbol: "S".to_owned() },
        ];
        for e in faults {
            let failure = Failure::from(e);
            assert!(matches!(&failure, Failure::Bug(text) if text.contains("fault of the compiler")), "{failure:?}");
        }
        let mistake = Failure::from(cora_runtime::Error::Unknown { what: "parameter", name: "N".to_owned() });
        assert!(matches!(&mistake, Failure::User(text) if text.contains("error[E0304]")), "{mistake:?}");
    }
}
