//! Small programs about one feature each, run like the examples.

mod by_hand;
mod matches;
mod memory;
mod padding;
mod products;
mod recurrences;
mod shapes;
mod values;

use crate::harness::{Case, Compiled, program, report};
use crate::support::batches::{Fill, edges};
use crate::support::in_parallel;

/// A program's name, text, and the inputs that are not random.
pub struct Small {
    pub name: &'static str,
    pub text: &'static str,
    pub fill: Fill,
}

/// A program with random inputs.
pub const fn small(name: &'static str, text: &'static str) -> Small {
    Small { name, text, fill: |_, _| None }
}

/// Runs each program on every edge batch: under its own schedule if it has one, the compiler's, and padded.
pub fn check_all(programs: &[Small]) {
    report(&in_parallel(programs, |p| check(p.name, p.text, p.fill)));
}

pub fn check(name: &str, text: &str, fill: Fill) -> Vec<String> {
    let source = match program(name, text, &[]) {
        Ok(s) => s,
        Err(e) => return vec![e],
    };
    let cases = match Case::all(&source, &edges(&source.graph.env), fill) {
        Ok(c) => c,
        Err(e) => return vec![e],
    };
    let own = source.graph.schedule("cpu");
    let mut forms = vec![("default schedule", None, false), ("padded", None, true)];
    forms.extend(own.map(|_| ("own schedule", own, false)));
    let mut complaints = Vec::new();
    for (form, schedule, padded) in forms {
        match Compiled::new(&source, schedule, padded) {
            Ok(c) => complaints.extend(c.check(&source, form, &cases)),
            Err(e) => complaints.push(format!("{name} ({form}): {e}")),
        }
    }
    complaints
}

/// Every example of the language's document is compiled, run and compared, in each form.
#[test]
fn documented_examples() {
    let doc = std::fs::read_to_string(crate::support::root().join("docs/language.md")).expect("docs/language.md");
    let examples: Vec<(String, String)> = doc
        .split("```cora\n")
        .enumerate()
        .skip(1)
        .map(|(n, rest)| {
            (format!("docs/language.md example {n}"), rest.split("```").next().unwrap_or_default().to_owned())
        })
        .collect();
    assert!(!examples.is_empty());
    report(&in_parallel(&examples, |(name, text)| check(name, text, |_, _| None)));
}
