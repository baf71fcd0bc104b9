//! Schedules whose copies the copy engine makes: rings of boxes to their end, with tables from the host and from kernels, on
//! the interpreter.

use crate::examples::{BOXES, load};
use crate::harness::{Case, message, report};
use crate::support::{batches, root};
use cora::driver::{Form, lower_form};
use cora::ir::interp::{self, Options};
use cora::ir::storage::{Beside, Kernel, Stmt};

/// More iterations than a ring has slots, and a tile of columns.
const SIZES: &[(&str, &[(&str, i64)])] = &[
    ("encoder_layer_bf16", &[("H", 1), ("D", 64), ("DM", 64), ("FF", 320)]),
    ("projection_bf16", &[("DI", 320), ("DO", 128)]),
];

#[test]
fn boxes_to_the_end_of_a_ring() {
    let mut complaints = Vec::new();
    for &(name, schedule) in BOXES {
        let sizes = SIZES.iter().find(|s| s.0 == name).map_or(&[][..], |s| s.1);
        let source = load(&root().join(format!("examples/{name}.cora")), sizes).expect("an example");
        let own = source.graph.schedule(schedule);
        let plan = batches::plan("rows that end in the middle of a tile", 3, &[100, 0, 40]);
        let case = Case::new(&source, &plan, 1, |_, _| None).expect("inputs");
        for device_prelude in [false, true] {
            let form = Form { grid: true, device_prelude, ..Form::default() };
            let storage = lower_form(&source, own, form, &mut |_| {}).map_err(message).expect("it lowers").storage;
            let has = |wanted: &dyn Fn(&Stmt) -> bool| {
                storage.kernels.iter().flat_map(|k| &k.body).any(|s| s.any(&mut |s| wanted(s)))
            };
            assert!(has(&|s| matches!(s, Stmt::Bulk(_))) && has(&|s| matches!(s, Stmt::Await { .. })), "{name}");
            let overlaps = has(&|s| matches!(s, Stmt::Beside(Beside::Wait { pending: 1, .. })));
            // Nothing but boxes is read there.
            let bulk = |k: &&Kernel| k.body.iter().any(|s| s.any(&mut |s| matches!(s, Stmt::Bulk(_))));
            let fence = |s: &Stmt| s.any(&mut |s| *s == Stmt::Beside(Beside::Fence));
            let fences = storage.kernels.iter().filter(bulk).any(|k| k.body.iter().any(fence));
            assert!(overlaps && !fences, "{name}: instructions go on, and need no fence");
            let what = format!("{name} ({schedule}), tables by kernels: {device_prelude}");
            match interp::run_storage(&storage, &case.batch, &Options { races: true, ..Options::default() }) {
                Ok(r) => {
                    let env = &storage.env;
                    let named = r.outputs.into_iter().map(|o| (env.tensors[o.tensor].name.clone(), o.data));
                    complaints.extend(case.compare_data(&source, named.collect()).map(|w| format!("{what}: {w}")));
                }
                Err(e) => complaints.push(format!("{what}: {e}")),
            }
        }
    }
    report(&complaints);
}
