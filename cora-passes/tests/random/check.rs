//! Runs one case: every stage and step must verify, print, and compute what the graph means.

use super::graphs::{Made, graph};
use super::steps::Proposer;
use cora_frontend::{parse_program, print_program};
use cora_ir::interp::{Batch, Data, Options, Results, run_graph, run_loops, run_storage};
use cora_ir::intrinsic::Features;
use cora_ir::loops::LoopModule;
use cora_ir::schedule::{Step, StepKind};
use cora_ir::storage::StorageModule;
use cora_ir::text::{parse_graph, parse_loops, parse_storage, print_graph, print_loops, print_storage};
use cora_ir::verify::{StorageForm, VerifyError, verify_graph, verify_loops, verify_storage};
use cora_ir::{Graph, TensorDim, UfDef, UfId};
use cora_passes::default_schedule::default_schedule;
use cora_passes::execution::{Pattern, batch, verify_each::nests_of_graph};
use cora_passes::graph::{
    narrow_masked::{Windows, narrow_masked},
    narrow_positions::narrow_positions,
    raise_extents::raise_extents,
    split_prefixes::split_prefixes,
};
use cora_passes::lower::to_loops::lower_to_loops;
use cora_passes::manager::{BACK_END, Invocation, PassContext, run_pipeline};
use cora_passes::program::Program;
use cora_passes::schedule::apply_step;
use cora_passes::standard::StandardSimplifier;
use rand::prelude::*;
use std::collections::BTreeMap;

/// A graph, its batches, and what they should give.
pub struct Case {
    pub made: Made,
    pub batches: Vec<(Pattern, Batch)>,
    /// What the reference interpreter makes of each batch.
    pub expected: Vec<Results>,
}

impl Case {
    /// Declares long rows: what rules make of them depends on how long they may be.
    pub fn may_be_long(&mut self) {
        let env = &mut self.made.graph.env;
        let long = env.pool.int(1 << 16);
        for f in env.ufs.ids().collect::<Vec<_>>() {
            if let UfDef::Extent { hi, .. } = &mut env.ufs[f].def {
                *hi = long;
            }
        }
    }
}

/// What went wrong.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The check that failed; a smaller case must fail the same one.
    pub kind: String,
    pub detail: String,
    /// The batch, where one is to blame.
    pub batch: Option<usize>,
}

impl Failure {
    pub fn new(kind: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { kind: kind.into(), detail: detail.into(), batch: None }
    }
}

/// Steps that a schedule has to count.
pub const FEWEST: usize = 5;

/// What happened in many cases.
#[derive(Default)]
pub struct Counts {
    pub cases: u64,
    /// Of a program, a schedule of [`FEWEST`] steps or more, and lengths, that ran after every step and pass.
    pub triples: u64,
    /// Programs that the reference interpreter refuses.
    pub meaningless: u64,
    /// Applied and refused, by kind of step.
    pub steps: BTreeMap<&'static str, (u64, u64)>,
    /// Refusals by code.
    pub codes: BTreeMap<&'static str, u64>,
    pub lowered: u64,
}

impl Counts {
    pub fn add(&mut self, o: &Counts) {
        self.cases += o.cases;
        self.triples += o.triples;
        self.meaningless += o.meaningless;
        self.lowered += o.lowered;
        for (k, (a, r)) in &o.steps {
            let e = self.steps.entry(k).or_default();
            *e = (e.0 + a, e.1 + r);
        }
        for (k, n) in &o.codes {
            *self.codes.entry(k).or_default() += n;
        }
    }
}

fn options() -> Options {
    Options { threads: 1, ..Options::default() }
}

/// A random case with that many batches, the edge cases first; nothing if its graph has no meaning for some batch.
pub fn case(rng: &mut SmallRng, count: usize) -> Result<Option<Case>, Failure> {
    let patterns = Pattern::ALL.into_iter().chain(std::iter::repeat(Pattern::Random)).take(count);
    case_of(rng, patterns, MAX_TRIPS)
}

/// A random case with a batch for each pattern, whose operators have at most that many iterations.
pub fn case_of(
    rng: &mut SmallRng,
    patterns: impl Iterator<Item = Pattern>,
    most: u64,
) -> Result<Option<Case>, Failure> {
    let made = graph(rng);
    verified("graph", verify_graph(&made.graph))?;
    let text = print_graph(&made.graph);
    let again = parse_graph(&text).map_err(|d| Failure::new("parse graph", format!("{d}\n{text}")))?;
    same_text("graph", &text, &print_graph(&again))?;
    let nests = nests_of_graph(&made.graph);
    let batches: Vec<_> =
        patterns.filter_map(|p| batch(&made.graph.env, &nests, most, p, rng).map(|b| (p, b))).collect();
    let expected: Result<Vec<Results>, _> =
        batches.iter().map(|(_, b)| run_graph(&made.graph, b, &options())).collect();
    let Ok(expected) = expected else { return Ok(None) };
    let case = Case { made, batches, expected };
    program_text(&case)?;
    Ok(Some(case))
}

/// The graph as a program's text means the same.
fn program_text(case: &Case) -> Result<(), Failure> {
    let env = &case.made.graph.env;
    let text = print_program(&case.made.graph);
    let again = parse_program(&case.made.graph.name, &text, &[])
        .map_err(|ds| Failure::new("parse program", format!("{ds:?}\n{text}")))?;
    for (b, (_, batch)) in case.batches.iter().enumerate().take(2) {
        let uf = |f: &UfId| again.env.ufs.iter().find(|(_, g)| g.name == env.ufs[*f].name).map(|(f, _)| f);
        let batch = Batch {
            params: batch.params.clone(),
            extents: batch.extents.iter().filter_map(|(f, all)| Some((uf(f)?, all.clone()))).collect(),
            inputs: batch
                .inputs
                .iter()
                .filter_map(|(t, all)| Some((again.env.tensor_named(&env.tensors[*t].name)?, all.clone())))
                .collect(),
        };
        let mut found =
            run_graph(&again, &batch, &options()).map_err(|e| Failure::new("run program", format!("{e}\n{text}")))?;
        for o in &mut found.outputs {
            o.tensor = env.tensor_named(&again.env.tensors[o.tensor].name).expect("an output of the graph");
        }
        compare(case, b, "program", Ok(found)).map_err(|f| with_text(f, &text))?;
    }
    Ok(())
}

/// Operators with more iterations than this get a smaller batch.
const MAX_TRIPS: u64 = 2500;

pub fn verified(stage: &str, r: Result<(), Vec<VerifyError>>) -> Result<(), Failure> {
    r.map_err(|errors| {
        let all: Vec<String> = errors.iter().map(ToString::to_string).collect();
        Failure::new(format!("verify {stage} [{}]", errors[0].rule), all.join("\n"))
    })
}

fn same_text(stage: &str, one: &str, two: &str) -> Result<(), Failure> {
    if one == two {
        return Ok(());
    }
    let differing = one.lines().zip(two.lines()).find(|(a, b)| a != b);
    Err(Failure::new(format!("print {stage}"), format!("{differing:?}\n{one}\n{two}")))
}

/// Steps that are tried for each that is to be applied.
const PROPOSALS: usize = 6;

/// Where the steps of a run come from.
pub enum Source<'a> {
    /// Proposed until this many are applied, or [`PROPOSALS`] times as many were tried.
    Random(&'a mut SmallRng, usize),
    /// These are tried in turn.
    Given(&'a [StepKind]),
}

/// Runs `case`; the steps that were applied, and the module as it is then, are kept in `log`.
pub fn run(case: &Case, mut source: Source, log: &mut Log) -> Result<(), Failure> {
    let mut m = lower_to_loops(&case.made.graph);
    let all: Vec<usize> = (0..case.batches.len()).collect();
    check_loops(case, &m, "lower-to-loops", &all)?;
    match &mut source {
        Source::Given(steps) => {
            for (n, kind) in steps.iter().enumerate() {
                step(case, &mut m, kind, n, log)?;
            }
        }
        Source::Random(rng, count) => {
            let grid = rng.random_bool(0.2);
            let mut proposer = if grid { Proposer::for_grid(rng) } else { Proposer::new(rng) };
            for n in 0..*count * PROPOSALS {
                if log.applied.len() == *count {
                    break;
                }
                if let Some(kind) = proposer.propose(&m) {
                    step(case, &mut m, &kind, n, log)?;
                }
            }
        }
    }
    check_loops(case, &m, "schedule", &all)?;
    loops_text(&m)?;
    back_end(case, m, log)
}

/// The loops of a program that has no schedule, with the rows of windows in tiles of two and prefixes in blocks of two; of its
/// `padded` form if it has one.
pub fn unscheduled(graph: &Graph, padded: bool) -> LoopModule {
    let mut graph = graph.clone();
    narrow_positions(&mut graph);
    narrow_masked(&mut graph, &mut StandardSimplifier::new(), Windows::OfTiles(2));
    split_prefixes(&mut graph, 2);
    let ragged = graph.clone();
    if padded && raise_extents(&mut graph).is_err() {
        graph = ragged;
    }
    lower_to_loops(&graph)
}

/// Runs `case`, padded or not, under the compiler's own schedule for a processor with these features.
pub fn run_default(case: &Case, features: Features, padded: bool, log: &mut Log) -> Result<(), Failure> {
    let mut m = unscheduled(&case.made.graph, padded);
    default_schedule(&mut m, features);
    let all: Vec<usize> = (0..case.batches.len()).collect();
    check_loops(case, &m, "default-schedule", &all)?;
    back_end(case, m, log)
}

/// What a run did.
#[derive(Default)]
pub struct Log {
    /// Every step that was tried and not refused; the last one may have failed.
    pub applied: Vec<StepKind>,
    pub counts: Counts,
    /// The text of the module after the last step that passed.
    pub module: String,
    /// Whether to keep that text.
    pub keep_text: bool,
}

fn step(case: &Case, m: &mut LoopModule, kind: &StepKind, n: usize, log: &mut Log) -> Result<(), Failure> {
    let before = (m.body.clone(), m.env.tensors.clone());
    log.applied.push(kind.clone());
    if log.keep_text {
        log.module = print_loops(m);
    }
    let outcome = apply_step(m, &Step::from(kind.clone()));
    let count = log.counts.steps.entry(kind_name(kind)).or_default();
    match outcome {
        Err(d) => {
            count.1 += 1;
            *log.counts.codes.entry(d.code).or_default() += 1;
            if (&before.0, &before.1) != (&m.body, &m.env.tensors) {
                return Err(Failure::new(format!("refused {} changes", kind_name(kind)), d.to_string()));
            }
            log.applied.pop();
            Ok(())
        }
        Ok(()) => {
            count.0 += 1;
            let some: Vec<usize> = (0..3).map(|k| (n * 3 + k) % case.batches.len()).collect();
            check_loops(case, m, kind_name(kind), &some)
        }
    }
}

fn check_loops(case: &Case, m: &LoopModule, after: &str, batches: &[usize]) -> Result<(), Failure> {
    verified(&format!("loops after {after}"), verify_loops(m)).map_err(|f| with_text(f, &print_loops(m)))?;
    for &b in batches {
        let found = run_loops(m, &case.batches[b].1, &options());
        compare(case, b, &format!("loops after {after}"), found.map_err(|e| e.to_string()))
            .map_err(|f| with_text(f, &print_loops(m)))?;
    }
    Ok(())
}

fn with_text(f: Failure, text: &str) -> Failure {
    Failure { detail: format!("{}\n{text}", f.detail), ..f }
}

fn loops_text(m: &LoopModule) -> Result<(), Failure> {
    let text = print_loops(m);
    let again = parse_loops(&text).map_err(|d| Failure::new("parse loops", format!("{d}\n{text}")))?;
    same_text("loops", &text, &print_loops(&again))
}

fn storage_text(m: &StorageModule) -> Result<(), Failure> {
    let text = print_storage(m);
    let again = parse_storage(&text).map_err(|d| Failure::new("parse storage", format!("{d}\n{text}")))?;
    same_text("storage", &text, &print_storage(&again))
}

/// Reasons for which a schedule that was accepted need not have storage.
const NO_STORAGE: [&str; 26] = [
    "E0405", "E0406", "E0407", "E0419", "E0429", "E0425", "E0426", "E0427", "E0428", "E0439", "E0446", "E0448",
    "E0459", "E0455", "E0456", "E0457", "E0458", "E0490", "E0491", "E0492", "E0493", "E0486", "E0487", "E0488",
    "E0497", "E0498",
];

fn back_end(case: &Case, m: LoopModule, log: &mut Log) -> Result<(), Failure> {
    let mut simplifier = StandardSimplifier::new();
    let mut program = Program::Loops(m);
    let mut dims: Option<Vec<Vec<TensorDim>>> = None;
    for &pass in BACK_END {
        // Some cases take the other form of a pass, chosen so that a failing case can be replayed.
        let args = match pass {
            "to-storage" | "lower-functions" if log.applied.len().is_multiple_of(5) => "csf",
            "hoist-loads" if log.applied.len() % 3 == 1 => "off",
            _ => "",
        };
        let invocation = Invocation { pass: pass.to_owned(), args: args.to_owned() };
        let mut cx = PassContext { simplifier: &mut simplifier };
        if log.keep_text {
            log.module = program.print();
        }
        program = match run_pipeline(program, &[invocation], &mut cx, &mut |_| {}) {
            Ok(p) => p,
            Err(ds) => {
                for d in &ds {
                    *log.counts.codes.entry(d.code).or_default() += 1;
                    if !NO_STORAGE.contains(&d.code) {
                        return Err(Failure::new(format!("{pass} refuses"), d.to_string()));
                    }
                }
                return Ok(());
            }
        };
        let all: Vec<usize> = (0..case.batches.len()).collect();
        if let (Program::Storage(s), true) = (&program, dims.is_none()) {
            dims = Some(s.env.tensors.iter().map(|(_, t)| t.dims.clone()).collect());
        }
        match &program {
            Program::Storage(s) => check_storage(case, s, pass, dims.as_deref().unwrap_or_default())
                .map_err(|f| with_text(f, &print_storage(s)))?,
            Program::Loops(m) => check_loops(case, m, pass, &all)?,
            Program::Graph(_) => {}
        }
    }
    log.counts.lowered += 1;
    Ok(())
}

/// `dims` are the tensors' dimensions before functions were lowered: verifier, parser and interpreter
/// want sizes without table reads, which is what the host needs.
fn check_storage(case: &Case, m: &StorageModule, pass: &str, dims: &[Vec<TensorDim>]) -> Result<(), Failure> {
    let form = if matches!(pass, "legalize" | "place-barriers") { StorageForm::Legal } else { StorageForm::Lowered };
    let mut m = m.clone();
    for (t, dims) in m.env.tensors.ids().zip(dims) {
        m.env.tensors[t].dims.clone_from(dims);
    }
    verified(&format!("storage after {pass}"), verify_storage(&m, form))?;
    for (b, (_, batch)) in case.batches.iter().enumerate() {
        // Threads of a grid may race until barriers are placed; iterations of parallel loops never.
        let options = Options { races: pass == "place-barriers", ..options() };
        let found = run_storage(&m, batch, &options);
        compare(case, b, &format!("storage after {pass}"), found.map_err(|e| e.to_string()))?;
    }
    storage_text(&m)
}

/// The results are those of the graph.
pub fn compare(case: &Case, b: usize, stage: &str, found: Result<Results, String>) -> Result<(), Failure> {
    let fail =
        |kind: &str, detail: String| Failure { batch: Some(b), ..Failure::new(format!("{kind} {stage}"), detail) };
    let found = found.map_err(|e| fail(&format!("run ({})", without_numbers(&e)), e))?;
    for want in &case.expected[b].outputs {
        let name = &case.made.graph.env.tensors[want.tensor].name;
        let Some(got) = found.output(want.tensor) else {
            return Err(fail("compare", format!("no result {name}")));
        };
        if got.data.len() != want.data.len() {
            return Err(fail("compare", format!("{name}: {} elements, not {}", got.data.len(), want.data.len())));
        }
        let greatest = greatest(&want.data);
        let allowed =
            case.made.rounded.get(&want.tensor).map_or(0.0, |bound| (3e-5 * greatest).max(1e-6 * bound).max(1e-5));
        for at in 0..want.data.len() {
            let (w, g) = (want.data.get(at).unwrap_or(0.0), got.data.get(at).unwrap_or(0.0));
            let close = w == g || (w.is_nan() && g.is_nan()) || (w - g).abs() <= allowed;
            if !close {
                return Err(fail("compare", format!("{name}[{at}] is {g}, not {w}")));
            }
        }
    }
    Ok(())
}

fn greatest(d: &Data) -> f64 {
    (0..d.len()).filter_map(|i| d.get(i)).filter(|x| x.is_finite()).fold(1.0, |a, x| x.abs().max(a))
}

/// The kind of an interpreter's error.
fn without_numbers(e: &str) -> String {
    let words = e.split(" at ").next().unwrap_or(e);
    words.split('`').step_by(2).collect::<Vec<_>>().join("..").trim().to_owned()
}

/// Names of the kinds, for counting.
fn kind_name(s: &StepKind) -> &'static str {
    match s {
        StepKind::Split { .. } => "split",
        StepKind::Fuse { .. } => "fuse",
        StepKind::Reorder { .. } => "reorder",
        StepKind::Vectorize { .. } => "vectorize",
        StepKind::Unroll { .. } => "unroll",
        StepKind::Parallel { .. } => "parallel",
        StepKind::PadLoop { .. } => "pad_loop",
        StepKind::PadLoopTo { .. } => "pad_loop to",
        StepKind::PadDim { .. } => "pad_dim",
        StepKind::SplitDim { .. } => "split_dim",
        StepKind::FuseDims { .. } => "fuse_dims",
        StepKind::ReorderDims { .. } => "reorder_dims",
        StepKind::ComputeAt { .. } => "compute_at",
        StepKind::ComputeInline { .. } => "compute_inline",
        StepKind::Precompute { .. } => "precompute",
        StepKind::CacheWrite { .. } => "cache_write",
        StepKind::CacheRead { .. } => "cache_read",
        StepKind::Pack { .. } => "pack",
        StepKind::HoistLoads { .. } => "hoist_loads",
        StepKind::SetScope { .. } => "set_scope",
        StepKind::Relax { .. } => "relax",
        StepKind::Rfactor { .. } => "rfactor",
        StepKind::Bind { .. } => "bind",
        StepKind::Peel { .. } => "peel",
        StepKind::Offload { .. } => "offload",
        StepKind::BulkCopy { .. } => "bulk_copy",
        StepKind::Swizzle { .. } => "swizzle",
        StepKind::Tensorize { .. } => "tensorize",
        StepKind::Prefetch { .. } => "prefetch",
        StepKind::DoubleBuffer { .. } => "double_buffer",
        StepKind::StorageAlign { .. } => "storage_align",
        StepKind::Remap { .. } => "remap",
        StepKind::OpSplit { .. } => "op_split",
        StepKind::Hfuse { .. } => "hfuse",
        StepKind::Tile { .. } => "tile",
    }
}
