//! Every pass and scheduling primitive on text. A file holds a pipeline, a program, and what comes out:
//!
//! ```text
//! ; RUN: lower-to-loops,step{parallel @S[i]}
//! graph.module @p { .. }
//! ; EXPECTED
//! loop.module @p { .. }
//! ```
//! The result must also verify, be a fixed point of printing and parsing, and compute on every edge
//! batch what the input computes. `CORA_BLESS=1` writes the second part again.

use crate::support::batches::{edges, values, with_inputs};
use crate::support::{compare, files, in_parallel, stem};
use cora::check;
use cora::ir::interp::{self, Batch, Data, Options, Output};
use cora::ir::verify::{StorageForm, verify_graph, verify_loops, verify_storage};
use cora::ir::{Env, UfDef};
use cora::passes::graph::check_accesses::check_accesses;
use cora::passes::manager::{PassContext, parse_pipeline, run_pipeline};
use cora::passes::program::Program;
use cora::passes::standard::StandardSimplifier;
use std::collections::{BTreeMap, BTreeSet};

const RUN: &str = "; RUN: ";
const EXPECTED: &str = "; EXPECTED\n";

#[test]
fn passes_on_text() {
    let paths = files("filetests/passes", "txt");
    assert!(paths.len() >= 30, "{} files", paths.len());
    let complaints = in_parallel(&paths, |path| {
        let text = std::fs::read_to_string(path).expect("readable");
        let (input, _) = text.split_once(EXPECTED).unwrap_or((&text, ""));
        let (found, mut wrong) = one(input);
        wrong.extend(compare(path, &format!("{}\n\n{EXPECTED}\n{}\n", input.trim_end(), found.trim_end())));
        wrong.iter().map(|w| format!("{}: {w}", stem(path))).collect()
    });
    assert!(complaints.is_empty(), "{} complaints:\n{}", complaints.len(), complaints.join("\n"));
}

/// What the pipeline makes of the program, and what is wrong with that.
fn one(input: &str) -> (String, Vec<String>) {
    let run = input.lines().find_map(|l| l.strip_prefix(RUN)).unwrap_or_default();
    let before = match Program::parse(input) {
        Ok(p) => p,
        Err(d) => return (d.to_string(), vec![format!("the program does not parse: {d}")]),
    };
    let pipeline = match parse_pipeline(run) {
        Ok(p) => p,
        Err(d) => return (d.to_string(), vec![format!("the pipeline does not parse: {d}")]),
    };
    let mut wrong = invariants(&before, StorageForm::Lowered, "the input");
    let mut simplifier = StandardSimplifier::new();
    let mut cx = PassContext { simplifier: &mut simplifier };
    let after = match run_pipeline(before.clone(), &pipeline, &mut cx, &mut |_| {}) {
        Ok(p) => p,
        // A refusal is a result too.
        Err(ds) => return (ds.iter().map(|d| format!("{d}\n")).collect(), wrong),
    };
    let text = after.print();
    let finished = run.ends_with("place-barriers") || run.ends_with("copy-ahead") || run.ends_with("await-tiles");
    let form = if run.ends_with("legalize") || finished { StorageForm::Legal } else { StorageForm::Lowered };
    wrong.extend(invariants(&after, form, "the result"));
    match Program::parse(&text) {
        Ok(again) if again.print() == text => {}
        Ok(_) => wrong.push("the result prints differently after parsing".to_owned()),
        Err(d) => wrong.push(format!("the result does not parse: {d}")),
    }
    wrong.extend(meaning(&checked(before), &after, finished));
    (text, wrong)
}

fn invariants(p: &Program, form: StorageForm, what: &str) -> Vec<String> {
    let result = match p {
        Program::Graph(g) => verify_graph(g),
        Program::Loops(m) => verify_loops(m),
        Program::Storage(m) => verify_storage(m, form),
    };
    result.err().unwrap_or_default().iter().map(|e| format!("{what} does not verify: {e}")).collect()
}

/// What a graph means: a read in one arm of a choice happens where it is chosen.
fn checked(p: Program) -> Program {
    match p {
        Program::Graph(mut g) => {
            // What is refused has been reported as the result.
            let _ = check_accesses(&mut g, &mut StandardSimplifier::new());
            Program::Graph(g)
        }
        p => p,
    }
}

/// Runs both on every edge batch and compares the outputs.
///
/// Threads of a grid may race until barriers are placed.
fn meaning(before: &Program, after: &Program, placed: bool) -> Vec<String> {
    let mut wrong = Vec::new();
    for plan in edges(env(before)) {
        let values = values(env(before), &plan);
        let batch = with_inputs(env(before), &values, 3, |_, _| None);
        let want = match run(before, &batch, false) {
            Ok(r) => r,
            Err(e) => {
                wrong.push(format!("{}: the input cannot be interpreted: {e}", plan.name));
                continue;
            }
        };
        match run(after, &renumber(env(before), env(after), &batch), placed) {
            Ok(got) if same(env(before), &got, &want) => {}
            Ok(_) => wrong.push(format!("{}: the result computes something else", plan.name)),
            Err(e) => wrong.push(format!("{}: the result cannot be interpreted: {e}", plan.name)),
        }
    }
    wrong
}

fn env(p: &Program) -> &Env {
    match p {
        Program::Graph(g) => &g.env,
        Program::Loops(m) => &m.env,
        Program::Storage(m) => &m.env,
    }
}

/// The same batch with the ids that another program has for its names.
fn renumber(from: &Env, to: &Env, batch: &Batch) -> Batch {
    let mut out = Batch { params: batch.params.clone(), ..Batch::default() };
    for (f, u) in to.ufs.iter().filter(|(_, u)| matches!(u.def, UfDef::Extent { .. })) {
        let (old, _) = from.ufs.iter().find(|(_, x)| x.name == u.name).expect("no function is added");
        out.extents.insert(f, batch.extents[&old].clone());
    }
    for (id, data) in &batch.inputs {
        let new = to.tensor_named(&from.tensors[*id].name).expect("inputs stay");
        out.inputs.insert(new, data.clone());
    }
    out
}

fn run(p: &Program, batch: &Batch, races: bool) -> Result<BTreeMap<String, Output>, String> {
    let options = Options { threads: 1, races, ..Options::default() };
    let results = match p {
        Program::Graph(g) => interp::run_graph(g, batch, &options),
        Program::Loops(m) => interp::run_loops(m, batch, &options),
        Program::Storage(m) => interp::run_storage(m, batch, &options),
    };
    let results = results.map_err(|e| e.to_string())?;
    Ok(results.outputs.into_iter().map(|o| (env(p).tensors[o.tensor].name.clone(), o)).collect())
}

/// Equal up to the rounding of sums that are added up in another order: relative to an element, or to the usual magnitude
/// of its output's elements, of which 1 is taken where it is more.
fn same(env: &Env, got: &BTreeMap<String, Output>, want: &BTreeMap<String, Output>) -> bool {
    const ROUNDING: f64 = 1e-5;
    let near = |x: Option<f64>, y: Option<f64>| match (x, y) {
        (Some(x), Some(y)) => (x.is_nan() && y.is_nan()) || x == y || (x - y).abs() <= ROUNDING * y.abs().max(1.0),
        _ => false,
    };
    let alike = |got: &Data, want: &Output, name: &str| {
        let rounds = env.tensors[want.tensor].ty.is_float();
        got.len() == want.data.len()
            && check::compare(name, got, want, if rounds { ROUNDING } else { 0.0 }).passes()
            && (0..got.len()).all(|i| near(got.get(i), want.data.get(i)))
    };
    got.len() == want.len() && want.iter().all(|(name, w)| got.get(name).is_some_and(|g| alike(&g.data, w, name)))
}

/// Each pass and each primitive has a file of its own.
#[test]
fn every_pass_has_a_file() {
    let mut used = BTreeSet::new();
    for path in files("filetests/passes", "txt") {
        let text = std::fs::read_to_string(path).expect("readable");
        let run = text.lines().find_map(|l| l.strip_prefix(RUN)).unwrap_or_default();
        for i in parse_pipeline(run).unwrap_or_default() {
            used.extend(i.args.split(' ').next().filter(|_| i.pass == "step").map(str::to_owned));
            used.insert(i.pass);
        }
    }
    for p in cora::passes::manager::PASSES {
        assert!(used.contains(p.name), "pass {} has no file in filetests/passes", p.name);
    }
    for step in cora::ir::text::step_words() {
        assert!(used.contains(step), "step {step} has no file in filetests/passes");
    }
}
