//! Random programs on grids, assembled by `ptxas` for three architectures: one half under the compiler's own schedule
//! for grids, one under random steps that bind loops.
//!
//! `CORA_PTX_CASES` is how many programs there are at least, `CORA_PTX_SEED` the seed of the first. No kernel may fail to
//! assemble. Programs go to the assembler in bundles: it takes longer to start than for a kernel.

use crate::ptx::{ARCHITECTURES, assemble, ptxas};
use crate::random::check::unscheduled;
use crate::random::graphs::graph;
use crate::random::report::{catch_quietly, guarded};
use crate::random::steps::Proposer;
use crate::random_native::setting;
use crate::support::in_parallel;
use crate::support::skip::skip;
use cora::codegen_cuda::{CompileError, GpuTarget, compile};
use cora::ir::Graph;
use cora::ir::schedule::{Step, StepKind};
use cora::ir::storage::{Kernel, StorageModule};
use cora::ir::verify::{StorageForm, verify_storage};
use cora::passes::default_grid::default_grid_schedule;
use cora::passes::lower::to_loops::lower_to_loops;
use cora::passes::manager::{BACK_END, Invocation, PassContext, run_pipeline};
use cora::passes::program::Program;
use cora::passes::schedule::apply_step;
use cora::passes::standard::StandardSimplifier;
use rand::prelude::*;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Programs in one run of the assembler.
const BUNDLE: usize = 25;

/// A program's PTX for each architecture.
struct Assembly {
    seed: u64,
    ptx: Vec<String>,
}

/// The program of a seed, and what the rest is drawn from.
pub fn program(seed: u64) -> (Graph, SmallRng) {
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x0070_7478_6173);
    (graph(&mut rng).graph, rng)
}

/// The program on a grid; nothing where the back end refuses it.
fn lowered(seed: u64) -> Option<StorageModule> {
    lowered_with(seed, false)
}

/// The same, with kernels that build its tables or not.
pub fn lowered_with(seed: u64, device_prelude: bool) -> Option<StorageModule> {
    let (made, mut rng) = program(seed);
    on_grid(&made, seed.is_multiple_of(2), device_prelude, &mut rng)
}

/// The graph on a grid, under the compiler's own schedule or under random steps; nothing where the back end refuses it.
pub fn on_grid(graph: &Graph, own_schedule: bool, device_prelude: bool, rng: &mut SmallRng) -> Option<StorageModule> {
    let mut m = if own_schedule { unscheduled(graph, false) } else { lower_to_loops(graph) };
    if own_schedule {
        default_grid_schedule(&mut m, Some("sm_80"));
    } else {
        let steps = rng.random_range(5..=25);
        let mut proposer = Proposer::for_grid(rng);
        for _ in 0..steps {
            let Some(kind) = proposer.propose(&m) else { continue };
            // A GPU has no workers, and no library for matrices.
            if !matches!(kind, StepKind::Parallel { .. } | StepKind::Offload { .. }) {
                // What is refused changes nothing.
                let _ = apply_step(&mut m, &Step::from(kind));
            }
        }
        // Stages that no step has bound.
        default_grid_schedule(&mut m, Some("sm_80"));
    }
    let mut names: Vec<&str> = BACK_END.to_vec();
    if device_prelude {
        for (pass, before) in [("capacities", "lower-functions"), ("device-prelude", "threads-outward")] {
            names.insert(names.iter().position(|p| *p == before)?, pass);
        }
    }
    let passes: Vec<Invocation> =
        names.into_iter().map(|p| Invocation { pass: p.to_owned(), args: String::new() }).collect();
    let mut cx = PassContext { simplifier: &mut StandardSimplifier::new() };
    match run_pipeline(Program::Loops(m), &passes, &mut cx, &mut |_| {}) {
        Ok(Program::Storage(s)) => {
            let legal = verify_storage(&s, StorageForm::Legal).is_ok() && s.kernels.iter().all(Kernel::is_grid);
            legal.then_some(s)
        }
        _ => None,
    }
}

/// Code for each architecture; nothing where the program is refused.
fn compiled(seed: u64) -> Result<Option<Assembly>, String> {
    let Some(storage) = lowered(seed) else { return Ok(None) };
    let mut ptx = Vec::new();
    for arch in ARCHITECTURES {
        let target = GpuTarget::new(arch).expect("a known architecture");
        match compile(&storage, &target) {
            Ok(p) => ptx.push(p.ptx),
            // Nothing to assemble for this one.
            Err(CompileError::Intrinsic { .. }) => ptx.push(String::new()),
            // Functions and loops that GPUs do not have, and too much shared memory: the user is told so.
            Err(e) if REFUSED.iter().any(|r| e.to_string().contains(r)) => return Ok(None),
            Err(e) => return Err(format!("seed {seed}, {arch}: {e}")),
        }
    }
    Ok(Some(Assembly { seed, ptx }))
}

pub const REFUSED: [&str; 3] = ["no expansion for a GPU", "bytes of shared memory", "bytes of memory for each thread"];

/// One module of several: one header, and names of their own.
fn bundle(programs: &[Assembly], arch: usize) -> String {
    let header = [".version", ".target", ".address_size"];
    let mut out = String::new();
    for (n, p) in programs.iter().filter(|p| !p.ptx[arch].is_empty()).enumerate() {
        for line in p.ptx[arch].lines() {
            if n == 0 || !header.iter().any(|h| line.starts_with(h)) {
                out.push_str(&line.replace("cora_", &format!("cora_{}_", p.seed)));
                out.push('\n');
            }
        }
    }
    out
}

/// How many kernels are assembled, and what goes wrong.
fn assembled(tool: &Path, programs: &[Assembly], arch: usize) -> (usize, Vec<String>) {
    if programs.iter().all(|p| p.ptx[arch].is_empty()) {
        return (0, Vec::new());
    }
    let name = format!("random-{}", programs[0].seed);
    match assemble(tool, &bundle(programs, arch), ARCHITECTURES[arch], &name) {
        Ok(rows) => (rows.len(), Vec::new()),
        Err(e) if programs.len() == 1 => (0, vec![format!("seed {}, {}: {e}", programs[0].seed, ARCHITECTURES[arch])]),
        // Which of them it is.
        Err(_) => {
            let each = programs.chunks(1).map(|one| assembled(tool, one, arch));
            each.fold((0, Vec::new()), |(n, all), (m, more)| (n + m, [all, more].concat()))
        }
    }
}

#[test]
fn random_programs_assemble() {
    let Some(tool) = ptxas() else {
        skip("assembling random programs: run scripts/setup_ptxas.sh");
        return;
    };
    let (first, wanted) = (setting("CORA_PTX_SEED", 1), setting("CORA_PTX_CASES", 200) as usize);
    catch_quietly();
    let next = AtomicU64::new(first);
    let found: Mutex<(Vec<Assembly>, Vec<String>)> = Mutex::default();
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let enough = || found.lock().is_ok_and(|f| f.0.len() >= wanted || f.1.len() >= 3);
    std::thread::scope(|s| {
        for _ in 0..workers {
            s.spawn(|| {
                while !enough() {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let outcome = guarded(|| Ok(compiled(seed)));
                    let mut found = found.lock().expect("no panic while it is held");
                    match outcome {
                        Ok(Ok(program)) => found.0.extend(program),
                        Ok(Err(e)) => found.1.push(e),
                        Err(f) => found.1.push(format!("seed {seed}: {}", f.detail)),
                    }
                }
            });
        }
    });
    let (mut programs, mut failures) = found.into_inner().expect("no panic while it was held");
    // A worker may have been ahead of another: the first ones.
    programs.sort_by_key(|p| p.seed);
    programs.truncate(wanted);
    let jobs: Vec<(&[Assembly], usize)> =
        programs.chunks(BUNDLE).flat_map(|b| (0..ARCHITECTURES.len()).map(move |arch| (b, arch))).collect();
    let kernels = Mutex::new(0);
    failures.extend(in_parallel(&jobs, |&(programs, arch)| {
        let (n, wrong) = assembled(&tool, programs, arch);
        *kernels.lock().expect("no panic while it is held") += n;
        wrong
    }));
    let kernels = kernels.into_inner().expect("no panic while it was held");
    println!("{} programs, {kernels} kernels assembled for {}", programs.len(), ARCHITECTURES.join(", "));
    assert!(failures.is_empty(), "{} failures\n{}", failures.len(), failures.join("\n"));
}
