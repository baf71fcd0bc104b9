//! Threads of a block exchange elements through shared memory and between lanes; what a GPU would leave to chance is an error.

use super::*;
use crate::interp::error::Use;
use crate::interp::run_storage;
use crate::text::parse_storage;

/// What a kernel of two blocks makes of 16 elements; `@S` is the shared memory of a block, `@R` and `@O` are registers of a
/// thread.
fn run(kernel: &str) -> Result<Vec<f64>, InterpError> {
    let text = format!(
        "storage.module @m {{
          tensor @A[x: 16] : f32 input
          tensor @S[x: 8] : f32 temp shared
          tensor @R[] : f32 temp reg
          tensor @O[] : f32 temp reg
          tensor @B[x: 16] : f32 output
          buffer @A elems = 16 offset = $0
          buffer @S elems = 8
          buffer @R elems = 1
          buffer @O elems = 1
          buffer @B elems = 16 offset = $0
          kernel @B {{ for %b in 0..2 block.x {{ {kernel} }} }}
        }}"
    );
    let m = parse_storage(&text).unwrap();
    let a = m.env.tensor_named("A").unwrap();
    let batch = batch(&[], &[], &[(a, floats(16, |n| n as f64))]);
    let options = Options { races: true, ..Options::default() };
    run_storage(&m, &batch, &options).map(|r| values(&r, m.env.tensor_named("B").unwrap()))
}

/// Each block reverses its 8 elements; `between` stands between the stores and the loads.
fn reversed(between: &str) -> Result<Vec<f64>, InterpError> {
    run(&format!(
        "for %t in 0..8 thread.x {{ @S[%t] = @A[%b * 8 + %t] }}
         {between}
         for %t in 0..8 thread.x {{ @B[%b * 8 + %t] = @S[7 - %t] }}"
    ))
}

#[test]
fn barriers_order_a_blocks_threads() {
    let wanted: Vec<f64> = (0..8).rev().chain((8..16).rev()).map(f64::from).collect();
    assert_eq!(reversed("barrier").unwrap(), wanted);
    assert!(matches!(reversed(""), Err(InterpError::Race { .. })));
    // Stores that come too early for the loads of others.
    let again = reversed(
        "barrier for %t in 0..8 thread.x { @R[0] = @S[7 - %t] } for %t in 0..8 thread.x { @S[%t] = 0.0:f32 } barrier",
    );
    assert!(matches!(again, Err(InterpError::Race { .. })), "{again:?}");
}

#[test]
fn nothing_orders_blocks() {
    let same = run("for %t in 0..8 thread.x { @B[%t] = @A[%t] @B[%b * 8 + %t] = @A[%t] }");
    assert!(matches!(same, Err(InterpError::Race { .. })), "{same:?}");
}

#[test]
fn shared_memory_begins_undefined_in_each_block() {
    let undefined = |r: Result<Vec<f64>, InterpError>, at: i64| {
        let is = matches!(&r, Err(InterpError::Undefined { usage: Use::Output, index, .. }) if index == &[at]);
        assert!(is, "{r:?}");
    };
    let some = |cond: &str| {
        run(&format!(
            "for %t in 0..8 thread.x {{ if {cond} {{ @S[%t] = @A[%b * 8 + %t] }} }}
             barrier
             for %t in 0..8 thread.x {{ @B[%b * 8 + %t] = @S[7 - %t] }}"
        ))
    };
    undefined(some("%t < 5"), 0);
    // What the first block left is not the second's.
    undefined(some("%b < 1"), 8);
    let decides = run("for %t in 0..8 thread.x { if @S[%t] < 1.0:f32 { @B[%b * 8 + %t] = 0.0:f32 } }");
    assert!(matches!(decides, Err(InterpError::Undefined { usage: Use::Condition, .. })), "{decides:?}");
}

#[test]
fn lanes_exchange_what_they_hold() {
    let exchanged = |store: &str| {
        run(&format!(
            "for %t in 0..8 thread.x {{ {store} }}
             shuffle @O = @R xor 1
             for %t in 0..8 thread.x {{ @B[%b * 8 + %t] = @O[0] }}"
        ))
    };
    let wanted: Vec<f64> = (0..16).map(|n| f64::from(n ^ 1)).collect();
    assert_eq!(exchanged("@R[0] = @A[%b * 8 + %t]").unwrap(), wanted);
    let half = exchanged("if %t < 4 { @R[0] = @A[%b * 8 + %t] }");
    assert!(matches!(&half, Err(InterpError::Undefined { index, .. }) if index == &[4]), "{half:?}");
}

#[test]
fn parts_of_tuples_in_registers_have_one_place() {
    // The first part is used in one loop over threads alone, the second in two.
    let stored = run("for %t in 0..8 thread.x {
             for %u in 0..1 thread.y { @O[0] = 0.0:f32 also @R = @A[%b * 8 + %t] }
             @B[%b * 8 + %t] = @R[0]
           }");
    assert_eq!(stored.unwrap(), (0..16).map(f64::from).collect::<Vec<_>>());
}

#[test]
fn grids_are_no_larger_than_launches() {
    let first = "if %y == 0 { for %t in 0..8 thread.x { @B[%b * 8 + %t] = 1.0:f32 } }";
    let grid = |axis: &str, n: u32| run(&format!("for %y in 0..{n} block.{axis} {{ {first} }}"));
    assert!(grid("y", 65_535).is_ok());
    assert!(matches!(grid("z", 65_536), Err(InterpError::Grid { axis: "block.z", found: 65_536, most: 65_535 })));
}
