//! Rules that look right and are not, the files of `rules/false`: each must be refuted with a counterexample.

use crate::table::state;
use cora_passes::simplify::rules::Rule;
use cora_passes::simplify::{Prover, Verdict};

/// The files of `rules/false`, by name. A file has the left side on a line, then a line `=> right side`, and one line
/// `if condition` for each condition; a line that starts with `;` is a comment.
fn false_rules() -> Vec<Rule> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rules/false");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().path()).collect();
    files.sort();
    files
        .iter()
        .map(|f| parse(&f.file_stem().unwrap().to_string_lossy(), &std::fs::read_to_string(f).unwrap()))
        .collect()
}

fn parse(name: &str, text: &str) -> Rule {
    let keep = |s: &str| -> &'static str { s.trim().to_string().leak() };
    let (mut lhs, mut rhs, mut guard) = (None, None, Vec::new());
    for line in text.lines().filter(|l| !l.starts_with(';') && !l.trim().is_empty()) {
        if let Some(condition) = line.strip_prefix("if ") {
            guard.push(keep(condition));
        } else if let Some(right) = line.strip_prefix("=> ") {
            assert!(rhs.replace(keep(right)).is_none(), "{name}: a second right side");
        } else {
            assert!(lhs.replace(keep(line)).is_none(), "{name}: a second left side");
        }
    }
    let (Some(lhs), Some(rhs)) = (lhs, rhs) else { panic!("{name}: a rule has a left and a right side") };
    Rule { name: keep(name), lhs, rhs, guard: guard.leak() }
}

#[test]
fn every_false_rule_is_refuted() {
    let rules = false_rules();
    assert!(rules.len() >= 30, "{} false rules", rules.len());
    for rule in &rules {
        let mut s = state(rule);
        let verdict = Prover::new().prove(&mut s.env, &s.guard, s.goal);
        assert!(matches!(verdict, Verdict::Refuted(..)), "{}: {verdict:?}", rule.name);
        // The solver does not take it for true either.
        let verdict = Prover::new().ask_solver(&mut s.env, &s.guard, s.goal);
        assert!(!verdict.is_proved(), "{}: {verdict:?}", rule.name);
    }
}

#[test]
fn unguarded_identities_prove_anything() {
    // With `S(P(x) + i) = x` for all i, rows of different lengths give 0 = 1: S(P(1)) is 1, and,
    // row 0 being as long as `i`, S(P(0) + i) would be 0.
    let rules = false_rules();
    let mut s = state(rules.iter().find(|r| r.name == "search-in-row-i-may-equal-the-length").unwrap());
    let Verdict::Refuted(_, example) = Prover::new().prove(&mut s.env, &s.guard, s.goal) else { panic!("not refuted") };
    assert!(example.iter().any(|(name, _)| name.starts_with("term(")), "{example:?}");
}
