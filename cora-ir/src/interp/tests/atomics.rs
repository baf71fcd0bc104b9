//! Atomic updates: blocks and threads that nothing orders combine into one element, and nobody else uses it meanwhile.

use super::*;
use crate::interp::run_storage;
use crate::text::parse_storage;

/// Two blocks of four threads that add 8 elements up; `first` and `last` stand around it in each thread.
fn sum(first: &str, last: &str) -> Result<Vec<f64>, InterpError> {
    let m = parse_storage(&format!(
        "storage.module @m {{
           tensor @X[i: 8] : f32 input
           tensor @Y[i: 2] : f32 output
           buffer @X elems = 8 offset = $0
           buffer @Y elems = 2 offset = $0
           kernel @Y.init {{ for %b in 0..2 block.x {{ @Y[%b] = 0.0:f32 }} }}
           kernel @Y {{
             for %b in 0..2 block.x {{
               for %t in 0..4 thread.x {{
                 {first}
                 atomic sum @Y[0] = @X[%b * 4 + %t]
                 {last}
               }}
             }}
           }}
         }}"
    ))
    .unwrap();
    let x = m.env.tensor_named("X").unwrap();
    let batch = batch(&[], &[], &[(x, floats(8, |n| n as f64))]);
    let options = Options { races: true, ..Options::default() };
    run_storage(&m, &batch, &options).map(|r| values(&r, m.env.tensor_named("Y").unwrap()))
}

#[test]
fn each_has_its_part() {
    assert_eq!(sum("", "").unwrap(), [28.0, 0.0]);
    assert_eq!(sum("", "atomic sum @Y[1] = 1.0:f32").unwrap(), [28.0, 8.0]);
}

#[test]
fn nobody_else_may_look() {
    for (first, last) in [
        ("", "if %b * 4 + %t == 7 { @Y[0] = 0.0:f32 }"),
        ("if %b * 4 + %t == 0 { @Y[0] = 0.0:f32 }", ""),
        ("", "if %b * 4 + %t == 7 { @Y[1] = @Y[0] }"),
        ("if %b * 4 + %t == 0 { @Y[1] = @Y[0] }", ""),
    ] {
        let found = sum(first, last);
        assert!(matches!(found, Err(InterpError::Race { .. })), "{first} {last}: {found:?}");
    }
}
