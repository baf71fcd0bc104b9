//! Boxes that the copy engine brings: when they are there, what is outside of the tensor, and what a slot must not take.

use super::*;
use crate::interp::run_storage;
use crate::text::parse_storage;

/// Rows of 16 elements summed by columns: a ring of `slots` slots with 4 rows each, in `tiles` iterations, each of which
/// asks for a box `ahead` iterations later. `before` and `after` stand around what is asked for, `seen` before the reads.
fn sums([slots, ahead, rows]: [i64; 3], [before, seen]: [&str; 2]) -> Result<Vec<f64>, InterpError> {
    let tiles = (rows + 3) / 4;
    let first: String = (0..ahead)
        .map(|i| {
            format!(
                "if {i} < {tiles} {{ bulk @L[{}] slot {} = @X[0 of 16 by 1 for 16, {} of {rows} by 16 for 4] }}\n",
                i % slots * 64,
                i % slots,
                i * 4
            )
        })
        .collect();
    let text = format!(
        "storage.module @m {{
           tensor @X[i: {rows}, k: 16] : f32 input
           tensor @Y[k: 16] : f32 output
           tensor @L[i: 4, k: 16] : f32 temp shared layout(slots {slots})
           buffer @X elems = {rows} * 16 offset = $0 * 16 + $1
           buffer @Y elems = 16 offset = $0
           buffer @L elems = {slots} * 64
           kernel @Y {{
             for %b in 0..1 block.x {{
               for %t in 0..16 thread.x {{ @Y[%t] = 0.0:f32 }}
               {first}
               for %o in 0..{tiles} {{
                 {before}
                 if %o + {ahead} < {tiles} {{
                   bulk @L[(%o + {ahead}) % {slots} * 64] slot (%o + {ahead}) % {slots} = @X[0 of 16 by 1 for 16, %o * 4 + {ahead} * 4 of {rows} by 16 for 4]
                 }}
                 {seen}
                 for %t in 0..16 thread.x {{
                   for %i in 0..4 {{ @Y[%t] = @Y[%t] + @L[%o % {slots} * 64 + %i * 16 + %t] }}
                 }}
               }}
             }}
           }}
         }}"
    );
    let m = parse_storage(&text).unwrap();
    crate::verify::verify_storage(&m, crate::verify::StorageForm::Legal).unwrap();
    let x = m.env.tensor_named("X").unwrap();
    let batch = batch(&[], &[], &[(x, floats(rows as usize * 16, |n| n as f64))]);
    let options = Options { races: true, ..Options::default() };
    run_storage(&m, &batch, &options).map(|r| values(&r, m.env.tensor_named("Y").unwrap()))
}

fn wanted(rows: i64) -> Vec<f64> {
    (0..16).map(|t| (0..rows).map(|i| (i * 16 + t) as f64).sum()).collect()
}

fn there(slots: i64) -> String {
    format!("await @L slot %o % {slots}")
}

/// Rings that are as long as the work, longer and shorter; the last box goes beyond the end, where zeros are.
#[test]
fn rings_bring_what_is_there() {
    for slots in [2, 3, 4] {
        for rows in [1, 4, 10, 29] {
            assert_eq!(
                sums([slots, slots - 1, rows], ["barrier", &there(slots)]).unwrap(),
                wanted(rows),
                "{slots} {rows}"
            );
        }
    }
    assert_eq!(sums([4, 2, 29], ["barrier", &there(4)]).unwrap(), wanted(29), "one slot stays free");
}

#[test]
fn boxes_are_waited_for() {
    let early = sums([3, 2, 29], ["barrier", ""]);
    assert!(matches!(early, Err(InterpError::NotArrived { write: false, .. })), "{early:?}");
    let other = sums([3, 2, 29], ["barrier", "await @L slot (%o + 1) % 3"]);
    assert!(matches!(other, Err(InterpError::NotArrived { .. })), "another slot: {other:?}");
    let twice = sums([3, 2, 29], ["barrier", "await @L slot %o % 3 await @L slot %o % 3"]);
    assert!(matches!(twice, Err(InterpError::Slot { .. })), "nothing comes: {twice:?}");
}

#[test]
fn slots_are_free_before_they_are_filled() {
    let early = sums([3, 2, 29], ["", &there(3)]);
    assert!(matches!(early, Err(InterpError::Slot { .. })), "others may still wait: {early:?}");
    let race = sums([3, 2, 29], ["", &format!("{} barrier", there(3))]);
    assert!(matches!(race, Err(InterpError::Race { .. })), "others may still read: {race:?}");
    let full = sums(
        [3, 2, 29],
        ["barrier bulk @L[%o % 3 * 64] slot %o % 3 = @X[0 of 16 by 1 for 16, 0 of 29 by 16 for 4]", &there(3)],
    );
    assert!(matches!(full, Err(InterpError::Slot { .. } | InterpError::NotArrived { .. })), "{full:?}");
}

/// Four rows, two by two: two boxes one after the other into one slot, with what stands between.
fn halves(between: &str, [offset, slot]: [i64; 2]) -> Result<Vec<f64>, InterpError> {
    let text = format!(
        "storage.module @m {{
           tensor @X[i: 4, k: 16] : f32 input
           tensor @Y[k: 16] : f32 output
           tensor @L[i: 4, k: 16] : f32 temp shared
           buffer @X elems = 64 offset = $0 * 16 + $1
           buffer @Y elems = 16 offset = $0
           buffer @L elems = 80
           kernel @Y {{
             for %b in 0..1 block.x {{
               for %t in 0..16 thread.x {{ @Y[%t] = 0.0:f32 }}
               bulk @L[0] slot 0 = @X[0 of 16 by 1 for 16, 0 of 4 by 16 for 2]
               await @L slot 0
               {between}
               bulk @L[{offset}] slot {slot} = @X[0 of 16 by 1 for 16, 2 of 4 by 16 for 2]
               await @L slot {slot}
               for %t in 0..16 thread.x {{
                 for %i in 0..4 {{ @Y[%t] = @Y[%t] + @L[%i * 16 + %t] }}
               }}
             }}
           }}
         }}"
    );
    let m = parse_storage(&text).unwrap();
    crate::verify::verify_storage(&m, crate::verify::StorageForm::Legal).unwrap();
    let x = m.env.tensor_named("X").unwrap();
    let batch = batch(&[], &[], &[(x, floats(64, |n| n as f64))]);
    let options = Options { races: true, ..Options::default() };
    run_storage(&m, &batch, &options).map(|r| values(&r, m.env.tensor_named("Y").unwrap()))
}

/// A thread that is late would look for a phase that is over, and wait for the one after the next.
#[test]
fn all_threads_see_a_phase_end_before_the_next_one_may() {
    assert_eq!(halves("barrier", [32, 0]).unwrap(), wanted(4));
    let missed = halves("", [32, 0]);
    assert!(matches!(missed, Err(InterpError::Slot { slot: 0, .. })), "{missed:?}");
}

#[test]
fn boxes_begin_where_the_engine_lets_them() {
    let odd = halves("barrier", [36, 0]);
    assert!(matches!(odd, Err(InterpError::Slot { .. })), "at 144 bytes: {odd:?}");
    let none = halves("barrier", [32, 1]);
    assert!(matches!(none, Err(InterpError::Slot { slot: 1, .. })), "one slot: {none:?}");
}
