//! Random graphs under random schedules, checked by execution after every step and pass.
//!
//! `CORA_RANDOM_SEED` is the seed of the first case, `CORA_RANDOM_CASES` how many there are, and
//! `CORA_RANDOM_FAILURES` after how many failures to stop.

#[path = "random/mod.rs"]
mod random;

use random::report;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

#[test]
fn random_schedules() {
    let (first, count) = (setting("CORA_RANDOM_SEED", 1), setting("CORA_RANDOM_CASES", 800));
    let (_, failures) = report::run_cases(first, count, setting("CORA_RANDOM_FAILURES", 1) as usize);
    for f in &failures {
        println!("{f}\n================");
    }
    assert!(
        failures.is_empty(),
        "{} cases failed; the first: {}",
        failures.len(),
        failures[0].lines().next().unwrap_or("")
    );
}
