//! Every example parses without warnings, verifies, and survives printing and parsing again.

mod common;

use cora_frontend::{Graph, parse_program, parse_with_warnings, print_program, render};
use cora_ir::text::print_graph;
use cora_ir::verify::verify_graph;

fn examples() -> Vec<(String, String)> {
    common::programs(&common::root().join("examples"))
}

fn parse(name: &str, text: &str) -> Graph {
    parse_program(name, text, &[]).unwrap_or_else(|diags| {
        let all: String = diags.iter().map(|d| render(d, name, text)).collect();
        panic!("{name} does not parse:\n{all}\n{text}")
    })
}

#[test]
fn examples_have_no_warnings() {
    let mut bad = String::new();
    for (name, text) in examples() {
        let diags = match parse_with_warnings(&name, &text, &[]) {
            Ok(e) => e.warnings,
            Err(diags) => diags,
        };
        for d in diags {
            bad.push_str(&render(&d, &name, &text));
        }
    }
    assert!(bad.is_empty(), "{bad}");
}

#[test]
fn examples_verify() {
    for (name, text) in examples() {
        let graph = parse(&name, &text);
        if let Err(errors) = verify_graph(&graph) {
            panic!("{name}: {errors:?}\n{}", print_graph(&graph));
        }
    }
}

/// The canonical text parses to an equal graph (the IR's own printer is the judge) and prints the same.
#[test]
fn canonical_text_is_a_fixed_point() {
    for (name, text) in examples() {
        let graph = parse(&name, &text);
        let canonical = print_program(&graph);
        let again = parse(&name, &canonical);
        assert_eq!(canonical, print_program(&again), "{name}");
        assert_eq!(print_graph(&graph), print_graph(&again), "{name}");
        verify_graph(&again).expect("a printed program verifies");
    }
}

/// The stages of each example, which schedules refer to.
#[test]
fn stage_names() {
    let mut out = String::new();
    for (name, text) in examples() {
        let graph = parse(&name, &text);
        let names: Vec<&str> = graph.ops.iter().map(|o| graph.env.tensors[o.tensor].name.as_str()).collect();
        out.push_str(&format!("{name}: {}\n", names.join(" ")));
    }
    let path = common::root().join("cora-frontend/tests/stage_names.expected");
    assert_eq!(common::compare(&path, &out), None);
}
