//! Many cases on all cores, and what is said about one that fails.

use super::check::{Case, Counts, FEWEST, Failure, Log, Source, case, run};
use cora_frontend::print_program;
use cora_ir::Graph;
use cora_ir::schedule::{Schedule, Step, StepKind};
use cora_ir::text::{print_graph, print_step};
use cora_passes::execution::{Pattern, verify_each};
use rand::prelude::*;
use std::cell::RefCell;
use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Cases that take longer are named.
const SLOW: Duration = Duration::from_secs(10);

thread_local! {
    /// The message and place of the last panic that was caught here; nothing where none is expected.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Keeps panics of checked code off the screen; others are shown as usual.
pub fn catch_quietly() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let caught = PANIC.with_borrow_mut(|p| p.as_mut().map(|p| *p = info.to_string()).is_some());
        if !caught {
            usual(info);
        }
    }));
}

/// `f`, with a panic as a failure.
pub fn guarded<T>(f: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    PANIC.with_borrow_mut(|p| *p = Some(String::new()));
    let out = catch_unwind(AssertUnwindSafe(f));
    let message = PANIC.with_borrow_mut(Option::take).unwrap_or_default();
    out.unwrap_or_else(|_| {
        let place = message.lines().next().unwrap_or_default().to_owned();
        Err(Failure::new(format!("panic {place}"), message))
    })
}

/// Cases `first..first + count`; stops after `max_failures`.
pub fn run_cases(first: u64, count: u64, max_failures: usize) -> (Counts, Vec<String>) {
    catch_quietly();
    let next = AtomicU64::new(0);
    let shared = Mutex::new((Counts::default(), Vec::new()));
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let start = Instant::now();
    std::thread::scope(|s| {
        for _ in 0..workers {
            s.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    let enough = shared.lock().map_or(true, |s| s.1.len() >= max_failures);
                    if n >= count || enough {
                        break;
                    }
                    let (counts, failure) = one(first + n);
                    if let Ok(mut s) = shared.lock() {
                        s.0.add(&counts);
                        s.1.extend(failure);
                    }
                }
            });
        }
    });
    let (counts, failures) = shared.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    println!("{}", summary(&counts, start.elapsed().as_secs_f64()));
    (counts, failures)
}

fn one(seed: u64) -> (Counts, Option<String>) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut log = Log::default();
    let made = match guarded(|| case(&mut rng, Pattern::ALL.len())) {
        Err(f) => return (log.counts, Some(format!("seed {seed}: {}\n{}", f.kind, f.detail))),
        Ok(None) => {
            log.counts.meaningless += 1;
            return (log.counts, None);
        }
        Ok(Some(c)) => c,
    };
    let steps = rng.random_range(FEWEST..=40);
    let start = Instant::now();
    let mut outcome = guarded(|| run(&made, Source::Random(&mut rng, steps), &mut log));
    let mut applied = log.applied.clone();
    // What has no storage may have some before the last steps.
    while outcome.is_ok() && log.counts.lowered == 0 && applied.len() > FEWEST {
        applied.truncate(FEWEST.max(applied.len() * 2 / 3));
        let mut fewer = Log::default();
        outcome = guarded(|| run(&made, Source::Given(&applied), &mut fewer));
        applied = fewer.applied;
        log.counts.lowered = fewer.counts.lowered;
    }
    if start.elapsed() > SLOW {
        let path = reproducer(seed, &made.made.graph, &applied);
        println!("seed {seed} took {:.0} s: {path}", start.elapsed().as_secs_f64());
    }
    log.counts.cases += 1;
    if log.counts.lowered == 1 && applied.len() >= FEWEST {
        log.counts.triples += made.batches.len() as u64;
    }
    let failure = outcome.err().map(|f| minimised(seed, &made, &applied, f));
    (log.counts, failure)
}

fn replay(made: &Case, steps: &[StepKind]) -> (Log, Option<Failure>) {
    let mut log = Log { keep_text: true, ..Log::default() };
    let outcome = guarded(|| run(made, Source::Given(steps), &mut log));
    (log, outcome.err())
}

/// Drops steps as long as the same check fails; `replay` gives the steps that were not refused.
pub fn minimise(steps: &[StepKind], kind: &str, replay: Replay) -> Vec<StepKind> {
    let mut steps = steps.to_vec();
    loop {
        let before = steps.len();
        for at in (0..before).rev() {
            let mut fewer = steps.clone();
            fewer.remove(at);
            let (applied, failure) = replay(&fewer);
            if failure.is_some_and(|f| f.kind == kind) {
                steps = applied;
                break;
            }
        }
        if steps.len() == before {
            return steps;
        }
    }
}

/// Tries steps in turn: those that were not refused, and what went wrong.
pub type Replay<'a> = &'a dyn Fn(&[StepKind]) -> (Vec<StepKind>, Option<Failure>);

/// The program with its schedule in the language of users, in a file to be run by itself.
pub fn reproducer(seed: u64, graph: &Graph, steps: &[StepKind]) -> String {
    let steps = steps.iter().map(|s| Step::from(s.clone())).collect();
    let graph =
        Graph { schedules: vec![Schedule { name: "cpu".to_owned(), features: Vec::new(), steps }], ..graph.clone() };
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("random-{seed}.cora"));
    match std::fs::write(&path, print_program(&graph)) {
        Ok(()) => path.display().to_string(),
        Err(e) => format!("{}: {e}", path.display()),
    }
}

/// The failure with the program, the fewest steps and the batch that show it.
pub fn describe(seed: u64, made: &Case, steps: &[StepKind], f: &Failure) -> String {
    let mut out = format!("seed {seed}: {}\n{}\n", f.kind, f.detail);
    let _ = writeln!(out, "--- as a program: {}", reproducer(seed, &made.made.graph, steps));
    let _ = writeln!(out, "--- graph\n{}", print_graph(&made.made.graph));
    let _ = writeln!(out, "--- steps, the fewest that fail so");
    for s in steps {
        let _ = writeln!(out, "{}", print_step(s));
    }
    if let Some((pattern, batch)) = f.batch.and_then(|b| made.batches.get(b)) {
        let _ = writeln!(out, "--- batch {pattern:?}\n{}", verify_each::describe(&made.made.graph.env, batch));
    }
    out
}

fn minimised(seed: u64, made: &Case, steps: &[StepKind], first: Failure) -> String {
    let again = |steps: &[StepKind]| {
        let (log, failure) = replay(made, steps);
        (log.applied, failure)
    };
    let steps = minimise(steps, &first.kind, &again);
    let (log, failure) = replay(made, &steps);
    let out = describe(seed, made, &steps, &failure.unwrap_or(first));
    format!("{out}--- the program before the last of them, or before the pass\n{}", log.module)
}

fn summary(c: &Counts, seconds: f64) -> String {
    let mut out = format!(
        "{} cases, {} triples in {seconds:.1} s ({:.0} a second); {} lowered to the end; {} graphs without a meaning\n",
        c.cases,
        c.triples,
        c.triples as f64 / seconds,
        c.lowered,
        c.meaningless
    );
    for (kind, (applied, refused)) in &c.steps {
        let _ = writeln!(out, "  {kind}: {applied} applied, {refused} refused");
    }
    let codes: Vec<String> = c.codes.iter().map(|(k, n)| format!("{k} {n}")).collect();
    let _ = writeln!(out, "  refusals: {}", codes.join(", "));
    out
}
