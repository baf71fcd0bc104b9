//! Every example on every edge batch, under its own schedule, the compiler's, and fully padded.

use crate::boxes::SIZES;
use crate::harness::{Case, Compiled, message, program, report};
pub use crate::support::small;
use crate::support::{batches, files, in_parallel, root, stem};
use cora::driver::{Form, Source, lower_form};
use cora::ir::Graph;
use cora::ir::intrinsic::Features;
use cora::ir::schedule::{Schedule, StepKind};
use cora::ir::storage::{Kernel, Stmt};

/// Schedules whose boxes need other sizes than [`small`] gives (`boxes.rs`).
pub const BOXES: &[(&str, &str)] = &[("encoder_layer_bf16", "cuda_tma"), ("projection_bf16", "cuda_tma")];

/// Programs with schedules that fit no padded form: rows of the greatest length have terms under a condition, which no tensor
/// instruction takes. The compiler's own schedule stands for theirs.
pub const UNPADDED: &[&str] = &["encoder_layer_bf16"];

/// Programs of so many operators that each further form would take long: their layer is an example of its own.
pub const LARGE: &[&str] = &["encoder6"];

pub fn load(path: &std::path::Path, consts: &[(&str, i64)]) -> Result<Source, String> {
    let text = std::fs::read_to_string(path).expect("readable");
    let consts: Vec<(String, i64)> = consts.iter().map(|(n, v)| ((*n).to_owned(), *v)).collect();
    program(&stem(path), &text, &consts)
}

/// The edge batches of a program, with rows around the sizes that the program's own schedule splits loops by, those for `target`.
fn edges_of(graph: &Graph, target: &str) -> Vec<batches::Plan> {
    let mut tiles = vec![16];
    for step in graph.schedule(target).iter().flat_map(|s| &s.steps) {
        match &step.kind {
            StepKind::Split { factor, .. } => tiles.push(*factor),
            StepKind::Tile { loops, .. } => tiles.extend(loops.iter().map(|l| l.1)),
            _ => {}
        }
    }
    tiles.retain(|&t| (3..=100).contains(&t));
    tiles.sort_unstable();
    tiles.dedup();
    batches::edges_around(&graph.env, &tiles)
}

#[test]
fn examples_on_edge_lengths() {
    report(&in_parallel(&files("examples", "cora"), |path| {
        let name = stem(path);
        let source = match load(path, small(&name)) {
            Ok(s) => s,
            Err(e) => return vec![e],
        };
        let plans = edges_of(&source.graph, "cpu");
        let cases = match Case::all(&source, &plans, |_, _| None) {
            Ok(c) => c,
            Err(e) => return vec![e],
        };
        let own = source.graph.schedule("cpu");
        let mut forms = vec![("own schedule", own, false)];
        if !LARGE.contains(&name.as_str()) {
            forms.extend(own.map(|_| ("default schedule", None, false)));
        }
        forms.push(("padded", own.filter(|_| !UNPADDED.contains(&name.as_str())), true));
        forms
            .into_iter()
            .flat_map(|(form, schedule, padded)| checked(&source, form, schedule, padded, &cases))
            .collect()
    }));
}

/// What is wrong with a form of a program on some batches.
fn checked(source: &Source, form: &str, schedule: Option<&Schedule>, padded: bool, cases: &[Case]) -> Vec<String> {
    match Compiled::new(source, schedule, padded) {
        Ok(c) => c.check(source, form, cases),
        Err(e) => vec![format!("{} ({form}): {e}", source.graph.name)],
    }
}

/// The compiler's own schedules of the programs of [`SIZES`] for a processor that has all instructions, on the batches around
/// tiles of them. What this one lacks is computed by others.
#[test]
fn default_schedules_with_tensor_instructions() {
    report(&in_parallel(SIZES, |&(name, sizes)| {
        let source = match load(&root().join(format!("examples/{name}.cora")), sizes) {
            Ok(s) => s,
            Err(e) => return vec![e],
        };
        let form = Form { features: Features::of(|_| true), ..Form::default() };
        let storage = match lower_form(&source, None, form, &mut |_| {}) {
            Ok(l) => l.storage,
            Err(e) => return vec![format!("{name}: {}", message(e))],
        };
        let tile = |k: &Kernel| k.body.iter().any(|s| s.any(&mut |s| matches!(s, Stmt::Tile(_))));
        if !storage.kernels.iter().any(tile) {
            return vec![format!("{name}: no tensor instructions")];
        }
        let cases = Case::all(&source, &edges_of(&source.graph, "cpu_amx"), |_, _| None);
        let checked = |cases: Vec<Case>| Compiled::of(&storage).map(|c| c.check(&source, "default", &cases));
        cases.and_then(checked).unwrap_or_else(|e| vec![e])
    }));
}

/// A program's other schedules for processors, each on the batches around its own tiles. Tiles of instructions that this
/// processor lacks are computed by others.
#[test]
fn other_schedules_on_edge_lengths() {
    report(&in_parallel(&files("examples", "cora"), |path| {
        let name = stem(path);
        // Tiles of 32 columns and 32 terms are whole with the sizes that boxes need.
        let sizes = SIZES.iter().find(|s| s.0 == name).map_or_else(|| small(&name), |s| s.1);
        let source = match load(path, sizes) {
            Ok(s) => s,
            Err(e) => return vec![e],
        };
        let others = source.graph.schedules.iter().filter(|s| s.name.starts_with("cpu_"));
        let check = |schedule: &Schedule| {
            let plans = edges_of(&source.graph, &schedule.name);
            Case::all(&source, &plans, |_, _| None)
                .map_or_else(|e| vec![e], |cases| checked(&source, &schedule.name, Some(schedule), false, &cases))
        };
        others.flat_map(check).collect()
    }));
}

#[test]
fn encoder_layer_at_full_size() {
    let path = crate::support::root().join("examples/encoder_layer.cora");
    let source = load(&path, &[]).unwrap_or_else(|e| panic!("{e}"));
    let case = Case::new(&source, &batches::plan("two sequences", 2, &[9, 15]), 1, |_, _| None);
    let case = case.unwrap_or_else(|e| panic!("{e}"));
    let own = source.graph.schedule("cpu");
    let compiled = Compiled::new(&source, own, false).unwrap_or_else(|e| panic!("{e}"));
    report(&compiled.check(&source, "full size", &[case]));
}
