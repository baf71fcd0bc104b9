//! Every example on a grid: races between threads, and results on every edge batch, on the interpreter.

use crate::examples::{BOXES, LARGE, load, small};
use crate::harness::{Case, message, report};
use crate::support::{batches, files, in_parallel, stem};
use cora::driver::lower_for;
use cora::ir::interp::{self, Options};

#[test]
fn examples_on_a_grid() {
    report(&in_parallel(&files("examples", "cora"), |path| {
        let name = stem(path);
        let source = match load(path, small(&name)) {
            Ok(s) => s,
            Err(e) => return vec![e],
        };
        let large = LARGE.contains(&name.as_str());
        // Full tiles of instructions take the interpreter long, however few rows there are.
        let each = if large || name == "encoder_layer_bf16" { 12 } else { 3 };
        let plans: Vec<_> = batches::edges(&source.graph.env).into_iter().step_by(each).collect();
        let cases = match Case::all(&source, &plans, |_, _| None) {
            Ok(c) => c,
            Err(e) => return vec![e],
        };
        let mut forms = if large { Vec::new() } else { vec![("default grid", None)] };
        let boxes = |s: &str| BOXES.contains(&(name.as_str(), s));
        let own = source.graph.schedules.iter().filter(|s| s.name.starts_with("cuda") && !boxes(&s.name));
        forms.extend(own.map(|s| (s.name.as_str(), Some(s))));
        let mut complaints = Vec::new();
        for (form, schedule) in forms {
            let lowered = match lower_for(&source, schedule, false, true, &mut |_| {}) {
                Ok(l) => l,
                Err(e) => {
                    complaints.push(format!("{name} ({form}): {}", message(e)));
                    continue;
                }
            };
            for case in &cases {
                let options = Options { races: true, ..Options::default() };
                let env = &lowered.storage.env;
                match interp::run_storage(&lowered.storage, &case.batch, &options) {
                    Ok(r) => {
                        let named = r.outputs.into_iter().map(|o| (env.tensors[o.tensor].name.clone(), o.data));
                        let wrong = case.compare_data(&source, named.collect());
                        complaints.extend(wrong.map(|w| format!("{name} ({form}), {}: {w}", case.name)));
                    }
                    Err(e) => complaints.push(format!("{name} ({form}), {}: {e}", case.name)),
                }
            }
        }
        complaints
    }));
}
