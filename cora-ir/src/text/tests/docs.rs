//! The examples of `docs/ir.md` parse, are canonical and verify.

use crate::text::{
    Stage, detect_stage, parse_graph, parse_loops, parse_storage, print_graph, print_loops, print_storage,
};
use crate::verify::{StorageForm, verify_graph, verify_loops, verify_storage};

const PAGE: &str = include_str!("../../../../docs/ir.md");

/// Checks one example; gives its stage.
fn check(text: &str) -> Stage {
    let stage = detect_stage(text).expect("a stage");
    let (printed, verified) = match stage {
        Stage::Graph => {
            let m = parse_graph(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
            (print_graph(&m), verify_graph(&m))
        }
        Stage::Loop => {
            let m = parse_loops(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
            (print_loops(&m), verify_loops(&m))
        }
        Stage::Storage => {
            let m = parse_storage(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
            (print_storage(&m), verify_storage(&m, StorageForm::Legal))
        }
    };
    assert_eq!(printed, text);
    assert_eq!(verified, Ok(()));
    stage
}

#[test]
fn examples_are_canonical_and_verify() {
    let stages: Vec<Stage> = PAGE
        .split("```cora-ir\n")
        .skip(1)
        .map(|rest| check(rest.split_once("```").expect("the block ends").0))
        .collect();
    assert!(Stage::ALL.iter().all(|s| stages.contains(s)), "{stages:?}");
}

/// The declarations and steps that the page shows by themselves parse too.
#[test]
fn fragments_parse() {
    let blocks: Vec<&str> =
        PAGE.split("```text\n").skip(1).map(|rest| rest.split_once("```").expect("the block ends").0).collect();
    let module = format!("loop.module @m {{\n{}}}", blocks[0]);
    assert!(parse_loops(&module).is_ok_and(|m| verify_loops(&m).is_ok() && m.env.ufs.len() == 6));
    let graph = parse_graph(&format!("graph.module @m {{ schedule s {{\n{}}} }}", blocks[1]));
    assert_eq!(graph.map(|g| g.schedules[0].steps.len()), Ok(36));
}
