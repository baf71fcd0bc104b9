//! A program that runs again and again neither allocates nor faults pages in. A process of its own, since both are counted
//! for the whole process.

#[path = "../end_to_end/harness.rs"]
#[allow(dead_code, reason = "the end-to-end tests use the rest")]
mod harness;
#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "the other tests use the rest")]
mod support;

use crate::harness::{Compiled, program};
use crate::support::batches::{plan, values, with_inputs};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The system's allocator, which counts.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed on as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: the caller's.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: the caller's.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { System.dealloc(at, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Pages that this process has faulted in without reading a file (`ru_minflt` on 64-bit Linux).
fn faults() -> i64 {
    unsafe extern "C" {
        fn getrusage(who: i32, usage: *mut [i64; 18]) -> i32;
    }
    let mut usage = [0; 18];
    // SAFETY: `struct rusage` is 18 words of 64 bits; 0 is this process.
    assert_eq!(unsafe { getrusage(0, &mut usage) }, 0);
    usage[8]
}

/// Examples with setup, tables, temporaries and slots of workers, at small sizes.
const PROGRAMS: [(&str, &[(&str, i64)]); 3] = [
    ("encoder_layer", &[("H", 3), ("D", 24), ("DM", 40), ("FF", 72)]),
    ("moe", &[("DM", 40), ("FF", 72)]),
    ("ragged_softmax", &[]),
];

#[test]
fn nothing_is_allocated_or_faulted_in() {
    if !cfg!(all(target_os = "linux", target_pointer_width = "64")) {
        support::skip::skip("the steady state: faults are counted on 64-bit Linux");
        return;
    }
    // Counting works.
    let (allocations, before) = (ALLOCATIONS.load(Relaxed), faults());
    drop(std::hint::black_box(vec![1u8; 1 << 24]));
    assert!(ALLOCATIONS.load(Relaxed) > allocations && faults() > before);
    for (name, consts) in PROGRAMS {
        let text = std::fs::read_to_string(support::root().join(format!("examples/{name}.cora"))).expect("readable");
        let consts: Vec<(String, i64)> = consts.iter().map(|(n, v)| ((*n).to_owned(), *v)).collect();
        let source = program(name, &text, &consts).unwrap_or_else(|e| panic!("{e}"));
        let own = source.graph.schedule("cpu");
        let compiled = Compiled::new(&source, own, false).unwrap_or_else(|e| panic!("{e}"));
        let env = &source.graph.env;
        let batch = with_inputs(env, &values(env, &plan("some rows", 9, &[30, 0, 17, 45, 1, 64, 12])), 1, |_, _| None);
        let bound = compiled.batch(&source, &batch);
        for threads in [1, 2] {
            let mut instance = compiled.instance_with(threads, false);
            compiled.run(&mut instance, &source, &batch).unwrap_or_else(|e| panic!("{name}: {e}"));
            let mut turn = || {
                let (allocations, pages) = (ALLOCATIONS.load(Relaxed), faults());
                for _ in 0..50 {
                    assert!(instance.bind(&bound).expect("it was bound before"), "{name} builds its tables again");
                    instance.run().expect("it ran before");
                }
                (ALLOCATIONS.load(Relaxed) - allocations, faults() - pages)
            };
            // The threads' stacks grow in the first turn; in any other the system may move a page.
            turn();
            let turns: Vec<(u64, i64)> = (0..8).map(|_| turn()).collect();
            // A worker allocates what a thread needs when it first gets work, once; on a busy machine that may be late.
            let allocations: u64 = turns.iter().map(|t| t.0).sum();
            assert!(allocations < threads as u64, "{name}, {threads} threads, allocations and faults: {turns:?}");
            assert!(turns.iter().any(|t| t.1 == 0), "{name}, {threads} threads, allocations and faults: {turns:?}");
        }
    }
}
