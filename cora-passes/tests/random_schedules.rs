//! Random graphs under random schedules, checked by execution after every step and pass.
//!
//! `CORA_RANDOM_SEED` is the seed of the first case, `CORA_RANDOM_CASES` how many there are, and
//! `CORA_RANDOM_FAILURES` after how many failures to stop; `CORA_RANDOM_DEFAULTS` is how many there are under the
//! compiler's own schedule.

#[path = "random/mod.rs"]
mod random;

use cora_ir::intrinsic::Features;
use rand::prelude::*;
use random::{check, report};

/// Cases, and how many triples of a program, a schedule and lengths they are at least.
const CASES: u64 = 990;
const TRIPLES: u64 = 10_000;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

#[test]
fn random_schedules() {
    let (first, count) = (setting("CORA_RANDOM_SEED", 1), setting("CORA_RANDOM_CASES", CASES));
    let (counts, failures) = report::run_cases(first, count, setting("CORA_RANDOM_FAILURES", 1) as usize);
    for f in &failures {
        println!("{f}\n================");
    }
    assert!(
        failures.is_empty(),
        "{} cases failed; the first: {}",
        failures.len(),
        failures[0].lines().next().unwrap_or("")
    );
    assert!(count < CASES || counts.triples >= TRIPLES, "{} triples are fewer than {TRIPLES}", counts.triples);
}

/// The compiler's own schedule for one processor or another means the same, and its buffers have bounds.
#[test]
fn default_schedules() {
    let mut lowered = 0;
    let count = setting("CORA_RANDOM_DEFAULTS", 150);
    let first = setting("CORA_RANDOM_SEED", 0);
    for seed in first..first + count {
        let mut rng = SmallRng::seed_from_u64(seed);
        let case = check::case(&mut rng, 6).unwrap_or_else(|f| panic!("seed {seed}: {}\n{}", f.kind, f.detail));
        let Some(mut case) = case else { continue };
        if seed.is_multiple_of(3) {
            case.may_be_long();
        }
        let mut log = check::Log::default();
        let known = Features::known();
        let feature = known[seed as usize % known.len()];
        let padded = seed.is_multiple_of(4);
        let outcome = check::run_default(&case, Features::of(|f| f == feature), padded, &mut log);
        let program = || report::reproducer(seed, &case.made.graph, &[]);
        if let Err(f) = outcome {
            let form = if padded { "padded" } else { "ragged" };
            panic!(
                "seed {seed}, {}, {form}, for {feature}: {} at batch {:?}\n{}",
                program(),
                f.kind,
                f.batch,
                f.detail
            );
        }
        assert_eq!(log.counts.lowered, 1, "seed {seed}, {} for {feature}: {:?}", program(), log.counts.codes);
        lowered += 1;
    }
    assert!(lowered > count / 2, "{lowered} of {count}");
}
