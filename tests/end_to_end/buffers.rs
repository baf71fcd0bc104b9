//! Buffers in loops of the examples: what is declared, and what the largest execution of the loop around touches.

use crate::examples::load;
use crate::harness::{message, report};
use crate::support::batches::{plan, values, with_inputs};
use crate::support::{compare, files, in_parallel, root, stem};
use cora::driver::lower_for;
use cora::ir::UfDef;
use cora::ir::interp::{self, Options};
use std::sync::Mutex;

/// Sizes that keep the interpreter fast; the tiles of the schedules are all there.
const SIZES: &[(&str, &[(&str, i64)])] = &[
    ("attnv", &[("H", 1)]),
    ("cross_attention", &[("H", 1)]),
    ("encoder_layer", &[("H", 2), ("DM", 64), ("FF", 64)]),
    ("masked_sdpa", &[("H", 1)]),
    ("mha", &[("H", 2), ("DM", 64)]),
    ("moe", &[("DM", 64), ("FF", 64)]),
    ("projection_bf16", &[("DI", 64), ("DO", 64)]),
    ("qkt", &[("H", 1)]),
    ("sdpa", &[("H", 1)]),
];

#[test]
fn attached_buffers_are_as_large_as_their_tiles() {
    let rows: Mutex<Vec<String>> = Mutex::default();
    report(&in_parallel(&files("examples", "cora"), |path| {
        let name = stem(path);
        // Its layer is an example of its own.
        if name == "encoder6" {
            return Vec::new();
        }
        let sizes = SIZES.iter().find(|(n, _)| *n == name).map_or(&[][..], |(_, s)| s);
        let source = match load(path, sizes) {
            Ok(s) => s,
            Err(e) => return vec![e],
        };
        let ragged = source.graph.env.ufs.iter().any(|(_, u)| matches!(u.def, UfDef::Extent { .. }));
        let batch = values(&source.graph.env, &plan("long rows", if ragged { 3 } else { 150 }, &[70, 129, 3]));
        let batch = with_inputs(&source.graph.env, &batch, 1, |_, _| None);
        let mut complaints = Vec::new();
        for schedule in &source.graph.schedules {
            let grid = schedule.name.starts_with("cuda");
            let what = format!("{name:<16} {:<24}", schedule.name);
            let found = lower_for(&source, Some(schedule), false, grid, &mut |_| {}).map_err(message).and_then(|l| {
                let options = Options { usage: true, ..Options::default() };
                let found = interp::run_storage(&l.storage, &batch, &options).map_err(|e| e.to_string())?;
                Ok((l.storage.env, found.used))
            });
            match found {
                Err(e) => complaints.push(format!("{what}: {e}")),
                Ok((env, used)) => {
                    for u in used.iter().filter(|u| u.written.len() > 1) {
                        let reach = u.written.iter().rposition(|&w| w).map_or(0, |at| at + 1);
                        let t = &env.tensors[u.tensor];
                        let row = format!("{what} {:<16} {:<6} {:>8} {reach:>8}", t.name, t.scope.name(), u.written.len());
                        rows.lock().expect("no panic while it is held").push(row);
                    }
                }
            }
        }
        complaints
    }));
    let mut rows = rows.into_inner().expect("no panic while it was held");
    rows.sort();
    let head = "; program, schedule, buffer, scope; elements, the last one that is written";
    let text = format!("{head}\n{}\n", rows.join("\n"));
    report(&compare(&root().join("filetests/buffers.txt"), &text).into_iter().collect::<Vec<_>>());
}
