//! Bank conflicts of the examples' own schedules for grids, predicted by the interpreter: a blessed table, and no kernel
//! above 1.1 passes for each one that is needed.

use crate::examples::load;
use crate::harness::{message, report};
use crate::support::batches::{plan, values, with_inputs};
use crate::support::{compare, files, in_parallel, root, stem};
use cora::driver::{Source, lower_for};
use cora::ir::UfDef;
use cora::ir::interp::{self, Options};
use std::path::Path;
use std::sync::Mutex;

/// Sizes that keep the interpreter fast; the tiles of the schedules are all there.
const SIZES: &[(&str, &[(&str, i64)])] = &[
    ("attnv", &[("H", 1)]),
    ("cross_attention", &[("H", 1)]),
    ("encoder_layer", &[("H", 2), ("DM", 64), ("FF", 64)]),
    ("encoder_layer_bf16", &[("H", 1), ("DM", 64), ("FF", 64)]),
    ("masked_sdpa", &[("H", 1)]),
    ("mha", &[("H", 2), ("DM", 64)]),
    ("moe", &[("DM", 64), ("FF", 64)]),
    ("projection_bf16", &[("DI", 64), ("DO", 64)]),
    ("qkt", &[("H", 1)]),
    ("sdpa", &[("H", 1)]),
];

/// A program in a size that keeps the interpreter fast, with rows of these lengths (or, where none is ragged, this size),
/// and inputs; nothing for `encoder6`, whose layer is an example of its own.
///
/// # Errors
/// What the compiler has against it.
pub fn small(path: &Path, size: i64, rows: &[i64]) -> Result<Option<(Source, interp::Batch)>, String> {
    let name = stem(path);
    if name == "encoder6" {
        return Ok(None);
    }
    let sizes = SIZES.iter().find(|(n, _)| *n == name).map_or(&[][..], |(_, s)| s);
    let source = load(path, sizes)?;
    let env = &source.graph.env;
    let ragged = env.ufs.iter().any(|(_, u)| matches!(u.def, UfDef::Extent { .. }));
    let count = i64::try_from(rows.len()).expect("few rows");
    let batch = values(env, &plan("small", if ragged { count } else { size }, rows));
    let batch = with_inputs(env, &batch, 1, |_, _| None);
    Ok(Some((source, batch)))
}

/// Passes for each one that is needed that a kernel may take.
const MOST: f64 = 1.1;

#[test]
fn shared_memory_without_conflicts() {
    let rows: Mutex<Vec<String>> = Mutex::default();
    report(&in_parallel(&files("examples", "cora"), |path| {
        let name = stem(path);
        let (source, batch) = match small(path, 100, &[70]) {
            Ok(Some(made)) => made,
            Ok(None) => return Vec::new(),
            Err(e) => return vec![e],
        };
        let mut complaints = Vec::new();
        for schedule in source.graph.schedules.iter().filter(|s| s.name.starts_with("cuda")) {
            let what = format!("{name:<16} {:<24}", schedule.name);
            let found =
                lower_for(&source, Some(schedule), false, Some("sm_80"), &mut |_| {}).map_err(message).and_then(|l| {
                    let options = Options { races: true, ..Options::default() };
                    interp::run_storage(&l.storage, &batch, &options).map_err(|e| e.to_string())
                });
            match found {
                Err(e) => complaints.push(format!("{what}: {e}")),
                Ok(r) => {
                    for t in r.shared.iter().filter(|t| t.accesses > 0) {
                        let row = format!("{what} {:<16} {:>8} {:>5.2}", t.kernel, t.accesses, t.ratio());
                        if t.ratio() > MOST {
                            complaints.push(format!("{row}: bank conflicts"));
                        }
                        rows.lock().expect("no panic while it is held").push(row);
                    }
                }
            }
        }
        complaints
    }));
    let mut rows = rows.into_inner().expect("no panic while it was held");
    rows.sort();
    let head = "; program, schedule, kernel; accesses of warps to shared memory, passes for each (bank conflicts)";
    let text = format!("{head}\n{}\n", rows.join("\n"));
    report(&compare(&root().join("filetests/ptx/banks.txt"), &text).into_iter().collect::<Vec<_>>());
}
