//! Random programs, compiled and run natively on many batches: under random schedules, and under the compiler's own
//! on longer rows.
//!
//! `CORA_NATIVE_SEED` is the seed of the first case, `CORA_NATIVE_CASES` how many programs are compiled,
//! and `CORA_NATIVE_BATCHES` on how many batches each one runs. `CORA_NATIVE_DEFAULTS` is how many are compiled under
//! the compiler's own schedule.

use crate::harness::Compiled;
use crate::random::check::{Case, Failure, case, case_of, compare, unscheduled, verified};
use crate::random::report::{catch_quietly, describe, guarded, minimise};
use crate::random::steps::Proposer;
use crate::support::skip::skip;
use cora::codegen_llvm::llvm::TargetSpec;
use cora::driver::Source;
use cora::inputs;
use cora::ir::interp::{Output, Results};
use cora::ir::intrinsic::Features;
use cora::ir::schedule::{Binding, Step, StepKind};
use cora::ir::storage::StorageModule;
use cora::ir::verify::{StorageForm, verify_storage};
use cora::passes::default_schedule::default_schedule;
use cora::passes::execution::Pattern;
use cora::passes::lower::to_loops::lower_to_loops;
use cora::passes::manager::{BACK_END, Invocation, PassContext, run_pipeline};
use cora::passes::program::Program;
use cora::passes::schedule::apply_step;
use cora::passes::standard::StandardSimplifier;
use cora::runtime::abi::Role;
use rand::prelude::*;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

pub fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

/// Where the schedule comes from.
enum Steps<'a> {
    Random(&'a mut SmallRng, usize),
    Given(&'a [StepKind]),
    /// The compiler, for this machine; of the padded form or not.
    Default(bool),
}

/// The case under a schedule, ready for code generation, and the steps that were not refused; no
/// module where a refusal of the back end is the user's affair.
fn lowered(made: &Case, steps: Steps) -> (Vec<StepKind>, Result<Option<StorageModule>, Failure>) {
    let (graph, own) = (&made.made.graph, matches!(steps, Steps::Default(_)));
    let mut m = match steps {
        Steps::Default(padded) => unscheduled(graph, padded),
        _ => lower_to_loops(graph),
    };
    let mut applied = Vec::new();
    let mut one = |m: &mut _, kind: StepKind| {
        // A grid has no code on this target.
        let grid = matches!(kind, StepKind::Bind { to, .. } if to != Binding::Virtual);
        if !grid && apply_step(m, &Step::from(kind.clone())).is_ok() {
            applied.push(kind);
        }
    };
    match steps {
        Steps::Given(all) => all.iter().for_each(|kind| one(&mut m, kind.clone())),
        Steps::Random(rng, count) => {
            let mut proposer = Proposer::new(rng);
            for _ in 0..count {
                if let Some(kind) = proposer.propose(&m) {
                    one(&mut m, kind);
                }
            }
        }
        Steps::Default(_) => {
            let host = TargetSpec::host();
            default_schedule(&mut m, Features::of(|f| host.has_feature(f)));
        }
    }
    let passes: Vec<Invocation> =
        BACK_END.iter().map(|p| Invocation { pass: (*p).to_owned(), args: String::new() }).collect();
    let mut cx = PassContext { simplifier: &mut StandardSimplifier::new() };
    let storage = match run_pipeline(Program::Loops(m), &passes, &mut cx, &mut |_| {}) {
        Ok(Program::Storage(s)) => verified("storage", verify_storage(&s, StorageForm::Legal)).map(|()| Some(s)),
        // Nobody can mend a schedule that the compiler made.
        Err(ds) if own => Err(Failure::new("refused", ds.iter().map(ToString::to_string).collect::<String>())),
        _ => Ok(None),
    };
    (applied, storage)
}

/// Runs the module on every batch, with one to three threads.
fn run(made: &Case, storage: &StorageModule) -> Result<(), Failure> {
    let compiled = match Compiled::of(storage) {
        Ok(c) => c,
        Err(e) if e.contains("none can be loaded") => {
            skip(&format!("a program with offloaded tiles: {e}"));
            return Ok(());
        }
        // Tables over tables over tables: the user is told to fuse fewer loops.
        Err(e) if e.contains("too deep or too large") => return Ok(()),
        Err(e) => return Err(Failure::new("compile", e)),
    };
    let graph = made.made.graph.clone();
    let source = Source { path: "random".to_owned(), text: String::new(), graph, warnings: Vec::new() };
    let env = &source.graph.env;
    let outputs = || compiled.desc.tensors.iter().filter(|t| t.role == Role::Output);
    let mut instances: Vec<_> = (1..=3).map(|n| compiled.instance(n)).collect();
    for (b, (_, batch)) in made.batches.iter().enumerate() {
        let instance = &mut instances[b % 3];
        let fail = |e: String| Failure { batch: Some(b), ..Failure::new("run natively", e) };
        let arrays = match compiled.run(instance, &source, batch) {
            Ok(arrays) => arrays,
            // The interpreters take a negative extent for 0; the runtime wants it clamped.
            Err(e) if e.code() == "E0308" => continue,
            Err(e) => return Err(fail(e.to_string())),
        };
        let mut found = Results::default();
        for (t, array) in outputs().zip(&arrays) {
            let data = inputs::to_data(array).map_err(|e| fail(e.to_string()))?;
            let tensor = env.tensor_named(&t.name).ok_or_else(|| fail(format!("no tensor {}", t.name)))?;
            let ranges = std::iter::once(0..data.len()).collect();
            found.outputs.push(Output { tensor, data, outer: None, ranges });
        }
        compare(made, b, "native", Ok(found))?;
    }
    Ok(())
}

fn replay(made: &Case, steps: &[StepKind]) -> (Vec<StepKind>, Option<Failure>) {
    let (applied, storage) = lowered(made, Steps::Given(steps));
    let outcome = guarded(|| match storage {
        Ok(Some(s)) => run(made, &s),
        Ok(None) => Ok(()),
        Err(f) => Err(f),
    });
    (applied, outcome.err())
}

/// Whether the program of that seed was compiled, and what went wrong.
type Outcome = (bool, Option<String>);

/// The program of a seed under random steps.
fn under_random_steps(seed: u64, batches: usize) -> Outcome {
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x6e61_7469_7665);
    let made = match guarded(|| case(&mut rng, batches)) {
        Ok(Some(c)) => c,
        Ok(None) => return (false, None),
        Err(f) => return (false, Some(format!("seed {seed}: {}\n{}", f.kind, f.detail))),
    };
    let count = rng.random_range(5..=40);
    let mut applied = Vec::new();
    let outcome = guarded(|| {
        let (steps, storage) = lowered(&made, Steps::Random(&mut rng, count));
        applied = steps;
        match storage? {
            Some(s) => run(&made, &s).map(|()| true),
            None => Ok(false),
        }
    });
    match outcome {
        Ok(compiled) => (compiled, None),
        Err(f) => {
            let steps = minimise(&applied, &f.kind, &|s| replay(&made, s));
            let f = replay(&made, &steps).1.unwrap_or(f);
            (true, Some(describe(seed, &made, &steps, &f)))
        }
    }
}

/// Rows about the tiles of default schedules, and the edge cases that reach other code.
const LONG: [Pattern; 9] = [
    Pattern::AroundTile(16),
    Pattern::Tall(70),
    Pattern::NoRows,
    Pattern::AroundTile(33),
    Pattern::OneLong,
    Pattern::AroundTile(63),
    Pattern::AllEmpty,
    Pattern::Tall(130),
    Pattern::Random,
];

/// Operators have at most this many iterations there.
const MOST_LONG: u64 = 40_000;

/// The program of a seed under the compiler's own schedule.
fn under_default_schedule(seed: u64) -> Outcome {
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x006f_776e);
    let mut made = match guarded(|| case_of(&mut rng, LONG.into_iter(), MOST_LONG)) {
        Ok(Some(c)) => c,
        Ok(None) => return (false, None),
        Err(f) => return (false, Some(format!("seed {seed}: {}\n{}", f.kind, f.detail))),
    };
    if seed.is_multiple_of(3) {
        made.may_be_long();
    }
    let outcome = guarded(|| match lowered(&made, Steps::Default(seed.is_multiple_of(4))).1? {
        Some(s) => run(&made, &s),
        None => Ok(()),
    });
    (true, outcome.err().map(|f| describe(seed, &made, &[], &f)))
}

/// Runs seeds on all cores until so many programs were compiled, and fails if one of them did.
fn all(wanted: u64, one: impl Fn(u64) -> Outcome + Sync) {
    let first = setting("CORA_NATIVE_SEED", 1);
    catch_quietly();
    let (next, compiled) = (AtomicU64::new(first), AtomicU64::new(0));
    let failures = Mutex::new(Vec::new());
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|s| {
        for _ in 0..workers {
            s.spawn(|| {
                while compiled.load(Ordering::Relaxed) < wanted {
                    let (done, failure) = one(next.fetch_add(1, Ordering::Relaxed));
                    compiled.fetch_add(u64::from(done), Ordering::Relaxed);
                    failures.lock().expect("no panic while it is held").extend(failure);
                }
            });
        }
    });
    let failures = failures.into_inner().expect("no panic while it was held");
    println!("{} programs", compiled.load(Ordering::Relaxed));
    for f in &failures {
        println!("{f}\n================");
    }
    assert!(failures.is_empty(), "{} programs failed", failures.len());
}

#[test]
fn random_programs_run_natively() {
    let batches = setting("CORA_NATIVE_BATCHES", 30) as usize;
    all(setting("CORA_NATIVE_CASES", 300), |seed| under_random_steps(seed, batches));
}

#[test]
fn default_schedules_run_natively() {
    all(setting("CORA_NATIVE_DEFAULTS", 200), under_default_schedule);
}
