//! The prelude as kernels: of every example under each of its schedules for grids, and of random programs. The interpreter
//! forgets the tables before the first kernel and compares what kernels make of them with their definitions.

use crate::examples::{BOXES, LARGE, load, small};
use crate::harness::{Case, message, report};
use crate::random::report::{catch_quietly, guarded};
use crate::random_ptx::{lowered_with, program};
use crate::support::batches::{self, Plan, values};
use crate::support::{files, in_parallel, stem};
use cora::driver::{Form, Source, lower_form};
use cora::eval::Evaluator;
use cora::ir::interp::{self, Options};
use cora::ir::schedule::Schedule;
use cora::ir::storage::{Stmt, StorageModule};
use cora::ir::{ExprId, UfDef};
use cora::passes::execution::batches::{Pattern, batch};
use cora::passes::program::Program;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A program's modules before and after its sizes became enough for shorter rows, and its kernels.
struct Stages {
    before: StorageModule,
    after: StorageModule,
    storage: StorageModule,
}

fn stages(source: &Source, schedule: Option<&Schedule>) -> Result<Stages, String> {
    let form = Form { grid: Some("sm_80"), device_prelude: true, ..Form::default() };
    let (mut last, mut before, mut after) = (StorageModule::default(), None, None);
    let lowered = lower_form(source, schedule, form, &mut |r| {
        if let Program::Storage(m) = r.program {
            if r.invocation.pass == "capacities" {
                (before, after) = (Some(std::mem::take(&mut last)), Some(m.clone()));
            } else if after.is_none() {
                last = m.clone();
            }
        }
    });
    let storage = lowered.map_err(message)?.storage;
    Ok(Stages { before: before.ok_or("no sizes")?, after: after.ok_or("no sizes")?, storage })
}

/// All sizes of buffers, and extents of block loops.
fn sizes(m: &StorageModule) -> Vec<ExprId> {
    let mut out: Vec<ExprId> = m.buffers.iter().map(|b| b.elems).collect();
    for s in m.kernels.iter().flat_map(|k| &k.body) {
        s.walk(&mut |s| match s {
            Stmt::For { extent, kind, .. } if kind.is_block() => out.push(*extent),
            _ => {}
        });
    }
    out
}

/// Sizes for `most` that are not enough for `plan`.
fn too_small(s: &Stages, source: &Source, most: &Plan, plan: &Plan) -> Vec<String> {
    let env = &source.graph.env;
    let (most, now) = (values(env, most), values(env, plan));
    let known = Evaluator::new(&s.after.env, &most.params, &most.extents);
    let needed = Evaluator::new(&s.before.env, &now.params, &now.extents);
    let pairs = sizes(&s.after).into_iter().zip(sizes(&s.before));
    let pairs = pairs.map(|(a, b)| (known.closed(a, &[]), needed.closed(b, &[])));
    let wrong = pairs.enumerate().filter(|(_, (have, need))| have < need);
    wrong.map(|(n, (have, need))| format!("size {n} is {have} and must be {need} for {}", plan.name)).collect()
}

#[test]
fn tables_built_on_the_device() {
    let mut examples = files("examples", "cora");
    examples.retain(|p| !LARGE.contains(&stem(p).as_str()));
    report(&in_parallel(&examples, |path| {
        let name = stem(path);
        let source = match load(path, small(&name)) {
            Ok(s) => s,
            Err(e) => return vec![e],
        };
        let plans: Vec<_> = batches::edges(&source.graph.env).into_iter().skip(9).step_by(4).take(1).collect();
        let cases = match Case::all(&source, &plans, |_, _| None) {
            Ok(c) => c,
            Err(e) => return vec![e],
        };
        let boxes = |s: &str| BOXES.contains(&(name.as_str(), s));
        let own = source.graph.schedules.iter().filter(|s| s.name.starts_with("cuda") && !boxes(&s.name));
        let mut complaints = Vec::new();
        for schedule in own.map(Some).chain([None]) {
            let what = format!("{name} ({})", schedule.map_or("default", |s| s.name.as_str()));
            let stages = match stages(&source, schedule) {
                Ok(s) => s,
                Err(e) => {
                    complaints.push(format!("{what}: {e}"));
                    continue;
                }
            };
            let ragged = source.graph.env.ufs.iter().any(|(_, u)| matches!(u.def, UfDef::Extent { .. }));
            let most = batches::plan("the longest rows", 4, &[130]);
            let shorter = [[130, 64], [129, 127], [0, 65], [63, 1], [16, 128], [70, 0]];
            for rows in shorter.iter().filter(|_| ragged) {
                let plan = batches::plan(&format!("rows of {rows:?}"), 4, rows);
                complaints.extend(too_small(&stages, &source, &most, &plan).iter().map(|w| format!("{what}: {w}")));
            }
            for case in &cases {
                let wrong = case.interpret(&source, &stages.storage);
                complaints.extend(wrong.map(|w| format!("{what}, {}: {w}", case.name)));
            }
        }
        complaints
    }));
}

/// Random programs: kernels make every table that its definition makes, and the same results as with the host's tables.
#[test]
fn tables_of_random_programs() {
    catch_quietly();
    let seeds: Vec<u64> = (1..=120).collect();
    let compared = AtomicUsize::new(0);
    let complaints = in_parallel(&seeds, |&seed| match guarded(|| Ok(random_program(seed))) {
        Ok(Ok(both)) => {
            compared.fetch_add(usize::from(both), Ordering::Relaxed);
            Vec::new()
        }
        Ok(Err(e)) => vec![format!("seed {seed}: {e}")],
        Err(f) => vec![format!("seed {seed}: {}", f.detail)],
    });
    report(&complaints);
    let compared = compared.into_inner();
    println!("{compared} programs with both preludes");
    assert!(compared >= 20, "{compared} programs with both preludes");
}

/// Whether there was something to compare: programs and steps that the compiler refuses are none.
fn random_program(seed: u64) -> Result<bool, String> {
    let (Some(host), Some(device)) = (lowered_with(seed, false), lowered_with(seed, true)) else { return Ok(false) };
    let (graph, mut rng) = program(seed);
    let Some(batch) = batch(&graph.env, &[], u64::MAX, Pattern::Random, &mut rng) else { return Ok(false) };
    let options = Options { races: true, ..Options::default() };
    let Ok(want) = interp::run_storage(&host, &batch, &options) else { return Ok(false) };
    let got = interp::run_storage(&device, &batch, &options).map_err(|e| e.to_string())?;
    let equal = |a: Option<f64>, b: Option<f64>| a == b || a.zip(b).is_some_and(|(a, b)| a.is_nan() && b.is_nan());
    let same = want
        .outputs
        .iter()
        .zip(&got.outputs)
        .all(|(a, b)| (0..a.data.len()).all(|i| equal(a.data.get(i), b.data.get(i))));
    if same { Ok(true) } else { Err("other results than with the tables of the host".to_owned()) }
}
