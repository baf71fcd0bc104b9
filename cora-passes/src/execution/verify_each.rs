//! Interprets a program before the first pass and after each, on the same random batches, and finds
//! the first pass that changes a result.
//!
//! Inputs are small whole numbers, so most sums are exact in any order; what rounding may change is
//! bounded by [`error_bounds()`] where the program begins as an op graph.

use super::batches::{Nest, Pattern, batch};
use crate::graph::check_accesses::check_accesses;
use crate::graph::error_bounds::{self, epsilon, error_bounds, within};
use crate::lower::to_loops::lower_to_loops;
use crate::manager::Report;
use crate::program::Program;
use crate::standard::StandardSimplifier;
use cora_ir::interp::{Batch, Data, InterpError, Options, Results, run_graph, run_loops, run_storage};
use cora_ir::loops::Stmt;
use cora_ir::{EntityId, Env, Graph, TensorDim, TensorId, UfDef};
use rand::prelude::*;
use rustc_hash::FxHashMap;
use std::fmt::{self, Write};

/// Operators run at most this many iterations in one batch.
const MOST_TRIPS: u64 = 200_000;

/// Of the batches that [`Observer`] makes.
const SEED: u64 = 1;

/// The batches that every pass is checked on.
const PATTERNS: [Pattern; 6] = [
    Pattern::Random,
    Pattern::AroundTile(4),
    Pattern::NoRows,
    Pattern::FirstEmpty,
    Pattern::OneLong,
    Pattern::AroundTile(16),
];

/// A pass after which the program computes something else, or nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The pass and its arguments.
    pub pass: String,
    /// What is wrong, and the batch that shows it.
    pub detail: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pass `{}` changes what the program computes: {}", self.pass, self.detail)
    }
}

struct Sample {
    batch: Batch,
    expected: Results,
    /// How far each element of a result may be off; nothing = exact.
    allowed: FxHashMap<TensorId, Data>,
}

/// What a program computes on some batches.
pub struct VerifyEach {
    samples: Vec<Sample>,
    /// Whether `allowed` is known, or a tolerance for reordered sums applies.
    bounded: bool,
    /// The coarsest rounding of any tensor.
    rounding: f64,
    /// The tensors' dimensions in the first storage module seen: later passes put table reads there.
    dims: Option<Vec<Vec<TensorDim>>>,
    names: Vec<String>,
    text: Vec<String>,
}

/// Checks each pass that it is told of until one is at fault.
pub struct Observer {
    state: Result<VerifyEach, String>,
    fault: Option<(Fault, String)>,
}

impl Observer {
    /// For pipelines that begin with `program`.
    pub fn new(program: &Program) -> Self {
        Self { state: VerifyEach::new(program, SEED), fault: None }
    }

    /// Checks the program after a pass.
    pub fn observe(&mut self, r: &Report) {
        let Ok(state) = &mut self.state else { return };
        if self.fault.is_none()
            && let Err(f) = state.check(&r.invocation.to_string(), r.program)
        {
            self.fault = Some((f, r.program.print()));
        }
    }

    /// How many batches each pass was checked on.
    ///
    /// # Errors
    /// The first pass at fault with the text of the program after it; why nothing could be checked, and no text.
    pub fn finish(self) -> Result<usize, (String, Option<String>)> {
        match (self.state, self.fault) {
            (Err(e), _) => Err((format!("the program cannot be interpreted: {e}"), None)),
            (_, Some((f, text))) => Err((f.to_string(), Some(text))),
            (Ok(s), None) if s.samples.is_empty() => {
                Err(("a pass makes buffers that need more memory than an interpreter has".to_owned(), None))
            }
            (Ok(s), None) => Ok(s.samples.len()),
        }
    }
}

fn options() -> Options {
    Options { max_bytes: 1 << 30, ..Options::default() }
}

impl VerifyEach {
    /// Interprets `program` on batches made from `seed`.
    ///
    /// # Errors
    /// The program cannot be interpreted.
    pub fn new(program: &Program, seed: u64) -> Result<Self, String> {
        let mut program = program.clone();
        let mut bounds = None;
        if let Program::Graph(g) = &mut program {
            // Guards what is in bounds under a condition only; a program that is refused is not compiled.
            let _ = check_accesses(g, &mut StandardSimplifier::new());
            bounds = Some(error_bounds(g));
        }
        let env = env_of(&program);
        let names = env.tensors.iter().map(|(_, t)| t.name.clone()).collect();
        let rounding = env.tensors.iter().map(|(_, t)| epsilon(t.ty)).fold(0.0, f64::max);
        let nests = nests(&program);
        let mut rng = SmallRng::seed_from_u64(seed);
        let (mut samples, mut text) = (Vec::new(), Vec::new());
        for p in PATTERNS {
            let Some(batch) = batch(env, &nests, MOST_TRIPS, p, &mut rng) else { continue };
            let expected = interpret(&program, &batch, false).map_err(|e| e.to_string())?;
            let mut allowed = FxHashMap::default();
            if let Some((graph, of)) = &bounds {
                let found = run_graph(graph, &batch, &options()).map_err(|e| e.to_string())?;
                allowed.extend(of.iter().filter_map(|(&t, &b)| Some((t, found.output(b)?.data.clone()))));
            }
            text.push(describe(env, &batch));
            samples.push(Sample { batch, expected, allowed });
        }
        if samples.is_empty() {
            return Err(
                "no batch can be made for it: sizes of its inputs depend on data, or its constant sizes are too many \
                        to interpret (smaller `--const` values can be)"
                    .to_owned(),
            );
        }
        Ok(Self { samples, bounded: bounds.is_some(), rounding, dims: None, names, text })
    }

    /// Interprets the program as it is after `pass`.
    ///
    /// # Errors
    /// The first result that differs, or why it cannot be interpreted any more.
    pub fn check(&mut self, pass: &str, program: &Program) -> Result<(), Fault> {
        let program = self.interpretable(program);
        let mut too_large = Vec::new();
        for (n, s) in self.samples.iter().enumerate() {
            let fault = |what: String| Fault { pass: pass.to_owned(), detail: format!("{what}\n{}", self.text[n]) };
            let found = match interpret(&program, &s.batch, races(pass)) {
                Ok(found) => found,
                // No fault of the pass: a buffer that it makes is larger than an interpreter allows.
                Err(InterpError::TooLarge { .. }) => {
                    too_large.push(n);
                    continue;
                }
                Err(e) => return Err(fault(e.to_string())),
            };
            if let Some(what) = self.difference(s, &found) {
                return Err(fault(what));
            }
        }
        for n in too_large.into_iter().rev() {
            self.samples.remove(n);
            self.text.remove(n);
        }
        Ok(())
    }

    /// Interpreters want sizes without reads of tables.
    fn interpretable(&mut self, program: &Program) -> Program {
        let mut program = program.clone();
        if let Program::Storage(m) = &mut program {
            let all = || m.env.tensors.iter().map(|(_, t)| t.dims.clone()).collect();
            let dims = self.dims.get_or_insert_with(all);
            for (t, dims) in m.env.tensors.ids().collect::<Vec<_>>().into_iter().zip(dims) {
                m.env.tensors[t].dims.clone_from(dims);
            }
        }
        program
    }

    fn difference(&self, s: &Sample, found: &Results) -> Option<String> {
        for want in &s.expected.outputs {
            let name = &self.names[want.tensor.index()];
            let Some(got) = found.output(want.tensor) else { return Some(format!("no result `{name}`")) };
            if got.data.len() != want.data.len() {
                return Some(format!("`{name}` has {} elements, not {}", got.data.len(), want.data.len()));
            }
            let allowed = s.allowed.get(&want.tensor);
            // Results without a bound are exact, where bounds are known at all.
            let (exact, infinite) = match self.bounded {
                true => (0.0, unbounded(&want.data, self.rounding)),
                false => (reordered(&want.data), 0.0),
            };
            for at in 0..want.data.len() {
                let (w, g) = (want.data.get(at).unwrap_or(0.0), got.data.get(at).unwrap_or(0.0));
                let bound = allowed.and_then(|a| a.get(at));
                let loose = if bound.is_none() { exact } else { infinite };
                if !within(g, w, bound, loose) {
                    let allowed = error_bounds::allowed(bound, loose);
                    return Some(format!("element {at} of `{name}` is {g}, not {w} (allowed: {allowed:e})"));
                }
            }
        }
        None
    }
}

/// What reordered sums of small whole numbers may differ by after divisions and exponentials, where no bounds are known.
fn reordered(want: &Data) -> f64 {
    greatest(want) * 256.0 * epsilon(cora_ir::ScalarType::F32)
}

/// What results may differ by where a bound says nothing, since so much may cancel or grow: half of the digits of what is
/// rounded as coarsely as `rounding`, which a wrong program has hardly right, either.
fn unbounded(want: &Data, rounding: f64) -> f64 {
    greatest(want) * rounding.max(epsilon(cora_ir::ScalarType::F32)).sqrt()
}

/// The greatest finite magnitude; 0 of integers, which are exact.
fn greatest(want: &Data) -> f64 {
    let Data::F64(v) = want else { return 0.0 };
    v.iter().filter(|x| x.is_finite()).fold(0.0f64, |a, x| a.max(x.abs()))
}

fn env_of(p: &Program) -> &Env {
    match p {
        Program::Graph(g) => &g.env,
        Program::Loops(m) => &m.env,
        Program::Storage(m) => &m.env,
    }
}

/// Whether races are looked for after `pass`: threads of a grid may race until barriers are placed and tiles awaited, and parallel loops are
/// by then what they are in code.
fn races(pass: &str) -> bool {
    pass == "await-tiles"
}

fn interpret(p: &Program, batch: &Batch, races: bool) -> Result<Results, InterpError> {
    match p {
        // Operators that go beyond their tensors' extents have a meaning once tensors have storage.
        Program::Graph(g) if is_raised(g) => run_loops(&lower_to_loops(g), batch, &options()),
        Program::Graph(g) => run_graph(g, batch, &options()),
        Program::Loops(m) => run_loops(m, batch, &options()),
        Program::Storage(m) => run_storage(m, batch, &Options { races, ..options() }),
    }
}

/// Whether tensors have more than valid positions, over which operators may run.
fn is_raised(g: &Graph) -> bool {
    g.env.tensors.iter().any(|(_, tensor)| tensor.dims.iter().any(|d| d.storage != d.extent))
}

/// The loops of each operator; none in the storage dialect, whose extents read tables.
fn nests(p: &Program) -> Vec<Nest> {
    match p {
        Program::Graph(g) => nests_of_graph(g),
        Program::Loops(m) => {
            let mut out = Vec::new();
            nests_of_loops(&m.body, &mut Vec::new(), &mut out);
            out
        }
        Program::Storage(_) => Vec::new(),
    }
}

/// The loops of each operator of a graph.
pub fn nests_of_graph(g: &Graph) -> Vec<Nest> {
    let dims = |op: &cora_ir::Op| {
        op.spatial.iter().chain(&op.reduce).map(|&d| (g.env.dims[d].var, g.env.dims[d].extent)).collect()
    };
    g.ops.iter().map(dims).collect()
}

fn nests_of_loops(body: &[Stmt], around: &mut Nest, out: &mut Vec<Nest>) {
    for s in body {
        match s {
            Stmt::For(l) => {
                around.push((l.var, l.extent));
                nests_of_loops(&l.body, around, out);
                around.pop();
            }
            Stmt::Block(_) => out.push(around.clone()),
        }
    }
}

/// Parameters and lengths, for people.
pub fn describe(env: &Env, batch: &Batch) -> String {
    let mut out = String::from("  with");
    for ((_, p), v) in env.params.iter().zip(&batch.params) {
        let _ = write!(out, " {}={v}", p.name);
    }
    for (f, u) in env.ufs.iter().filter(|(_, u)| matches!(u.def, UfDef::Extent { .. })) {
        if let Some(entries) = batch.extents.get(&f) {
            let _ = write!(out, " {}={entries:?}", u.name);
        }
    }
    out
}
