//! Schedules whose copies the copy engine makes: rings of boxes to their end, with tables from the host and from kernels, on
//! the interpreter.

use crate::examples::{BOXES, load};
use crate::harness::{self, Case, message, program, report};
use crate::support::{batches, root};
use cora::driver::{Form, lower_for, lower_form};
use cora::ir::storage::{Beside, Kernel, Stmt, StorageModule};

/// More iterations than a ring has slots, and a tile of columns.
pub const SIZES: &[(&str, &[(&str, i64)])] = &[
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
            let form = Form { grid: Some("sm_80"), device_prelude, ..Form::default() };
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
            complaints.extend(case.interpret(&source, &storage).map(|w| format!("{what}: {w}")));
        }
    }
    report(&complaints);
}

/// A product whose tiles of both factors are in shared memory; the schedule says in its middle how they come there.
pub fn product(copies: &str) -> String {
    let schedule = format!(
        "  fuse Y.batch Y.q -> f
  split Y.f 32 -> fo, fi
  reorder Y: fo fi n
  cache_write Y -> R reg at Y.fo
  split R.k 32 -> ko, ki
  reorder R: ko fi n ki
  cache_read R.X -> Xs shared at R.ko;  cache_read R.W -> Ws shared at R.ko
  relax Xs.ki Ws.k zero;  relax Xs.fi
  relax R.ki;  relax R.fi
  {copies}
  split R.n 8 -> nx, nv
  reorder R: fi nv nx ki
  bind R.fi thread.y;  bind R.nv thread.x;  unroll R.nx
  split Y.n 8 -> nx, nv
  reorder Y: fi nv nx
  bind Y.fi thread.y;  bind Y.nv thread.x;  unroll Y.nx
  bind Y.fo block.x"
    );
    harness::product(160, 16, &schedule)
}

/// What threads copy of the left and the right factor.
const LEFT: &str = "split Xs.ki 8 -> kx, kv;  bind Xs.fi thread.y;  bind Xs.kv thread.x";
const RIGHT: &str = "split Ws.k 8 -> kx, kv;  split Ws.n 8 -> nx, nv;  reorder Ws: kv nv kx nx;  bind Ws.kv thread.y;  bind Ws.nv thread.x";

/// How often a statement occurs inside the loop over the reduced tiles.
fn inside(storage: &StorageModule, wanted: impl Fn(&Stmt) -> bool) -> usize {
    let mut n = 0;
    for s in storage.kernels.iter().flat_map(|k| &k.body) {
        s.walk(&mut |s| {
            if let Stmt::For { var, body, .. } = s
                && storage.env.vars[*var].name == "ko"
            {
                body.iter().for_each(|s| s.walk(&mut |s| n += usize::from(wanted(s))));
            }
        });
    }
    n
}

/// Schedules of [`product`]: what copies its two factors, with how many slots; and how many barriers, waits and waits for boxes
/// there are in the loop.
pub fn rings() -> [(&'static str, String, Option<[usize; 3]>); 9] {
    let whole = |c: &str, slots: &str| format!("{c};  {slots}");
    [
        ("boxes in a loop", whole(LEFT, "split Ws.k 8 -> kz, ky;  bulk_copy Ws.ky"), None),
        ("two boxes", whole(LEFT, "op_split Ws.k at 16;  bulk_copy Ws.main.k Ws.tail.k"), None),
        ("boxes after threads are bound", whole(LEFT, "bulk_copy Ws.k"), None),
        ("a ring of boxes", whole(LEFT, "bulk_copy Ws.k;  double_buffer Xs 2;  double_buffer Ws 2"), Some([1, 1, 1])),
        ("another", whole(RIGHT, "bulk_copy Xs.fi;  double_buffer Xs 2;  double_buffer Ws 2"), Some([1, 1, 1])),
        ("long boxes", whole(LEFT, "bulk_copy Ws.k;  double_buffer Xs 2;  double_buffer Ws 4"), Some([1, 1, 1])),
        ("2 and 2", format!("{LEFT};  {RIGHT};  double_buffer Xs 2;  double_buffer Ws 2"), Some([1, 1, 0])),
        ("2 and 3", format!("{LEFT};  {RIGHT};  double_buffer Xs 2;  double_buffer Ws 3"), Some([1, 1, 0])),
        ("4 and 2", format!("{LEFT};  {RIGHT};  double_buffer Xs 4;  double_buffer Ws 2"), Some([1, 1, 0])),
    ]
}

/// Slots that take several boxes, rings of unequal length, and rings of boxes beside rings of copies: nobody reads what has
/// not arrived, no phase is missed, and threads meet no more often than each ring alone would make them.
#[test]
fn copies_of_two_factors() {
    let mut complaints = Vec::new();
    for (what, copies, counts) in rings() {
        let source = program("product", &product(&copies), &[]).expect("a program");
        let plan = batches::plan("rows that end in the middle of a tile", 3, &[40, 0, 5]);
        let case = Case::new(&source, &plan, 1, |_, _| None).expect("inputs");
        let storage = match lower_for(&source, source.graph.schedule("cuda"), false, Some("sm_90a"), &mut |_| {}) {
            Ok(l) => l.storage,
            Err(e) => {
                complaints.push(format!("{what}: {}", message(e)));
                continue;
            }
        };
        let barriers = inside(&storage, |s| *s == Stmt::Barrier);
        let waits = inside(&storage, |s| matches!(s, Stmt::Wait { .. }));
        let boxes = inside(&storage, |s| matches!(s, Stmt::Await { .. }));
        if counts.is_some_and(|c| c != [barriers, waits, boxes]) {
            complaints.push(format!("{what}: {barriers} barriers, {waits} waits, {boxes} waits for boxes"));
        }
        complaints.extend(case.interpret(&source, &storage).map(|w| format!("{what}: {w}")));
    }
    report(&complaints);
}
