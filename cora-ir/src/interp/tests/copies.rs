//! Copies into shared memory arrive when they have been waited for, and for other threads at the next barrier.

use super::*;
use crate::interp::run_storage;
use crate::text::parse_storage;

/// Reverses 8 elements through shared memory; `between` stands between the copy and the use.
fn reversed(between: &str) -> Result<Vec<f64>, InterpError> {
    let text = format!(
        "storage.module @reverse {{
          tensor @A[x: 8] : f32 input
          tensor @S[x: 8] : f32 temp shared
          tensor @B[x: 8] : f32 output
          buffer @A elems = 8 offset = $0
          buffer @S elems = 8
          buffer @B elems = 8 offset = $0
          kernel @B {{
            for %t in 0..8 thread.x {{ copy @S[%t] = (@A[%t] if %t < 6 else 0.0:f32) }}
            {between}
            for %t in 0..8 thread.x {{ @B[%t] = @S[7 - %t] }}
          }}
        }}"
    );
    let m = parse_storage(&text).unwrap();
    let a = m.env.tensor_named("A").unwrap();
    let data = (0..8).map(f64::from).collect();
    let batch = batch(&[], &[], &[(a, Data::F64(data))]);
    let options = Options { races: true, ..Options::default() };
    run_storage(&m, &batch, &options).map(|r| values(&r, m.env.tensor_named("B").unwrap()))
}

#[test]
fn copies_are_waited_for() {
    let late = |between: &str| matches!(reversed(between), Err(InterpError::NotArrived { .. }));
    assert_eq!(reversed("commit wait 0 barrier").unwrap(), [0.0, 0.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0]);
    assert!(late("barrier"), "nobody waits");
    assert!(late("commit barrier"), "nobody waits");
    assert!(late("commit wait 1 barrier"), "one group may be on its way");
    assert!(late("wait 0 commit barrier"), "the copies join a group later");
    assert!(late("commit barrier wait 0"), "other threads have waited for theirs, perhaps");
    assert!(matches!(reversed("commit wait 0"), Err(InterpError::NotArrived { .. } | InterpError::Race { .. })));
    assert_eq!(reversed("commit commit wait 1 barrier").unwrap()[2], 5.0, "an empty group is a group");
}
