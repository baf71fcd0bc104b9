//! Buffers in loops of the examples, and of some programs with tiles of their own: how many elements are declared, and how
//! far the execution of the loop around that reaches farthest writes, in a blessed table. Rows are longer than the tiles, so
//! that a buffer that is never filled to its end is larger than its tile needs.

use crate::banks::small;
use crate::harness::{message, report};
use crate::support::{compare, files, in_parallel, root, stem};
use cora::driver::lower_for;
use cora::ir::interp::{self, Options};
use std::sync::Mutex;

#[test]
fn attached_buffers_are_as_large_as_their_tiles() {
    let rows: Mutex<Vec<String>> = Mutex::default();
    let mut programs = files("examples", "cora");
    let own = ["halos", "partial_sums_in_tiles", "tiles_of_triangles"];
    programs.extend(own.map(|name| root().join(format!("filetests/schedules/{name}.cora"))));
    report(&in_parallel(&programs, |path| {
        let name = stem(path);
        let (source, batch) = match small(path, 150, &[129, 3]) {
            Ok(Some(made)) => made,
            Ok(None) => return Vec::new(),
            Err(e) => return vec![e],
        };
        let mut complaints = Vec::new();
        for schedule in &source.graph.schedules {
            let grid = schedule.name.starts_with("cuda").then_some("sm_80");
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
                        let row =
                            format!("{what} {:<16} {:<6} {:>8} {reach:>8}", t.name, t.scope.name(), u.written.len());
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
