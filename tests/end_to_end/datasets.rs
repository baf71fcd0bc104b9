//! One compiled encoder layer on batches of real sequence lengths, where they are to be had.

use crate::examples::load;
use crate::harness::{Case, Compiled, report};
use crate::support::{
    batches::{Plan, plan},
    root,
    skip::skip,
    stem,
};

#[test]
fn encoder_layer_on_dataset_lengths() {
    let Some(dir) = root().parent().map(|p| p.join("shared/lengths")).filter(|d| d.is_dir()) else {
        skip("encoder_layer_on_dataset_lengths: there is no folder ../shared/lengths");
        return;
    };
    let mut plans = Vec::new();
    let mut few = Vec::new();
    let entries = std::fs::read_dir(dir).expect("readable").map(|e| e.expect("readable").path());
    let mut paths: Vec<_> = entries.filter(|p| p.extension().is_some_and(|e| e == "txt")).collect();
    paths.sort();
    for path in paths {
        let text = std::fs::read_to_string(&path).expect("readable");
        let lengths: Result<Vec<i64>, _> = text.lines().take(128).map(str::parse).collect();
        // A file with several numbers a line is about something else.
        let Ok(lengths) = lengths else { continue };
        let of = |rows| plan(&format!("{} {rows}", stem(&path)), rows, &lengths);
        plans.extend([1, 7, 32, 128].map(of));
        few.extend([1, 3].map(of).into_iter().filter(|_| lengths.iter().max() <= Some(&128)));
    }
    assert!(!plans.is_empty(), "the folder has no dataset");
    check(&[("H", 1), ("D", 4), ("DM", 6), ("FF", 8)], &plans);
    // At full size, where sequences are short.
    check(&[], &few);
}

fn check(consts: &[(&str, i64)], plans: &[Plan]) {
    let source = load(&root().join("examples/encoder_layer.cora"), consts).unwrap_or_else(|e| panic!("{e}"));
    let cases = Case::all(&source, plans, |_, _| None).unwrap_or_else(|e| panic!("{e}"));
    let compiled = Compiled::new(&source, source.graph.schedule("cpu"), false).unwrap_or_else(|e| panic!("{e}"));
    report(&compiled.check(&source, "dataset lengths", &cases));
}
