//! The batch that breaks a step: what a refusal quotes beside the fact that could not be proved.

use super::concrete::counterexamples;
use super::facts::Facts;
use cora_ir::{Diagnostic, Env, ExprId};

/// `d` with the least of a few small batches and iterations in which the facts hold and `goal` does not, if there is one
/// among them: `for example M = 1, lens(0) = 3, i = 2`.
pub fn with_example(d: Diagnostic, env: &Env, facts: &Facts, goal: ExprId) -> Diagnostic {
    match breaking(env, facts, goal) {
        Some(example) => d.note(format!("for example {example}")),
        None => d,
    }
}

/// The values of parameters, extent functions and loops in which `goal` does not hold.
pub fn breaking(env: &Env, facts: &Facts, goal: ExprId) -> Option<String> {
    let size = |e: &Vec<(String, i64)>| (e.iter().fold(0_u64, |n, (_, v)| n.saturating_add(v.unsigned_abs())), e.len());
    let least = counterexamples(env, facts, goal).min_by_key(size)?;
    let shown: Vec<String> = least.iter().map(|(n, v)| format!("{n} = {v}")).collect();
    Some(shown.join(", ")).filter(|s| !s.is_empty())
}

/// The note about a fact, with the batch that breaks it.
pub fn could_not_prove(fact: &str, example: Option<String>) -> String {
    match example {
        Some(example) => format!("could not prove: {fact}; for example {example}"),
        None => format!("could not prove: {fact}"),
    }
}
