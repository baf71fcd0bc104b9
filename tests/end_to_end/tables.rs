//! The prelude's tables are built when lengths change, and only then.

use crate::examples::load;
use crate::harness::{Case, Compiled};
use crate::support::{batches::plan, root};

#[test]
fn prelude_is_reused() {
    let source = load(&root().join("examples/sdpa.cora"), &[("H", 2), ("D", 8)]).unwrap_or_else(|e| panic!("{e}"));
    let compiled = Compiled::new(&source, source.graph.schedule("cpu"), false).unwrap_or_else(|e| panic!("{e}"));
    let batch = |lengths: &[i64]| {
        let case = Case::new(&source, &plan("", lengths.len() as i64, lengths), 1, |_, _| None);
        let case = case.unwrap_or_else(|e| panic!("{e}"));
        compiled.batch(&source, &case.batch)
    };
    let mut i = compiled.instance(2);
    let mut binds = |lengths: &[i64]| {
        let reused = i.bind(&batch(lengths)).expect("a batch in range");
        (reused, i.tables().expect("bound").clone())
    };
    let (reused, first) = binds(&[3, 0, 5]);
    assert!(!reused, "nothing is built yet");
    assert_eq!(binds(&[3, 0, 5]), (true, first.clone()), "equal lengths");
    let (reused, other) = binds(&[3, 1, 5]);
    assert!(!reused, "one length changed");
    assert_ne!(first, other);
    assert!(!binds(&[3, 1]).0, "fewer rows");
    assert!(!binds(&[]).0, "no row");
    assert!(binds(&[]).0, "no row again");
    assert_eq!(binds(&[3, 0, 5]), (false, first), "only the last batch is kept, and tables depend on lengths alone");
    let mut bad = batch(&[3, 0, 5]);
    bad.lengths[0][1] = 4000;
    assert_eq!(i.bind(&bad).expect_err("out of range").code(), "E0306");
    assert!(!i.bind(&batch(&[3, 0, 5])).expect("a batch in range"), "a refused batch leaves nothing bound");
}
