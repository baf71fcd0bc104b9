//! Schedules stay valid when a program's constants change: every example with constants under each of its schedules, with
//! constants that make loops run once, and others that make boxes of what are none at the usual sizes.

use crate::examples::{LARGE, load, small};
use crate::harness::{Case, message, report};
use crate::support::{batches, files, in_parallel, stem};
use cora::driver::lower_for;

/// Values of constants, by name.
const SETS: &[&[(&str, i64)]] = &[
    &[("H", 1), ("D", 1), ("DM", 1), ("FF", 1), ("V", 1), ("DI", 1), ("DO", 1)],
    &[("H", 1), ("D", 32), ("DM", 32), ("FF", 64), ("V", 40), ("DI", 32), ("DO", 32)],
    &[("H", 2), ("D", 16), ("DM", 48), ("FF", 36), ("V", 7), ("DI", 48), ("DO", 48)],
    &[("H", 1), ("D", 64), ("DM", 64), ("FF", 64), ("V", 40), ("DI", 64), ("DO", 96)],
];

/// Schedules that fit some constants only, and the code of their refusal.
const REFUSED: &[(&str, &str, &str)] = &[
    ("encoder_layer_bf16", "cpu", "E0426"),
    ("encoder_layer_bf16", "cpu_amx", "E0426"),
    ("encoder_layer_bf16", "cuda_tma", "E0406"),
    ("projection_bf16", "cpu", "E0426"),
    ("projection_bf16", "cpu_amx", "E0426"),
    ("projection_bf16", "cuda_tma", "E0406"),
    ("projection_f16", "cuda_split_k", "E0480"),
];

/// Schedules that were not tried with other constants yet.
const UNTRIED: &[(&str, &str)] = &[("projection_bf16", "cuda_wgmma")];

#[test]
fn schedules_fit_other_constants() {
    report(&in_parallel(&files("examples", "cora"), |path| {
        let name = stem(path);
        let sets = if LARGE.contains(&name.as_str()) { &SETS[..1] } else { SETS };
        if small(&name).is_empty() {
            return Vec::new();
        }
        sets.iter().flat_map(|set| with(path, &name, set)).collect()
    }));
}

/// What is wrong with the schedules of an example with these constants.
fn with(path: &std::path::Path, name: &str, set: &[(&str, i64)]) -> Vec<String> {
    let consts: Vec<(&str, i64)> =
        set.iter().copied().filter(|(n, _)| small(name).iter().any(|(own, _)| own == n)).collect();
    let case = load(path, &consts).and_then(|source| {
        let case = Case::new(&source, &batches::plan("two rows", 2, &[2, 17]), 1, |_, _| None)?;
        Ok((source, case))
    });
    let (source, case) = match case {
        Ok(c) => c,
        Err(e) => return vec![format!("{name} {consts:?}: {e}")],
    };
    let mut complaints = Vec::new();
    for schedule in source.graph.schedules.iter().filter(|s| !UNTRIED.contains(&(name, s.name.as_str()))) {
        let what = format!("{name} ({}) {consts:?}", schedule.name);
        let grid = schedule.name.starts_with("cuda").then_some("sm_80");
        let refused = REFUSED.iter().find(|(n, s, _)| *n == name && *s == schedule.name);
        let lowered = match lower_for(&source, Some(schedule), false, grid, &mut |_| {}).map_err(message) {
            Ok(l) => l,
            Err(e) if refused.is_some_and(|r| e.contains(r.2) && e.contains("help:")) => continue,
            Err(e) => {
                complaints.push(format!("{what}: {e}"));
                continue;
            }
        };
        complaints.extend(case.interpret(&source, &lowered.storage).map(|w| format!("{what}: {w}")));
    }
    complaints
}
