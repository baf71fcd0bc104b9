//! Every example on a grid: races between threads, and results on edge batches, on the interpreter. With
//! `CORA_GRID_EVERY=1` every schedule on every one of them.

use crate::boxes::SIZES;
use crate::examples::{BOXES, LARGE, load, small};
use crate::harness::{Case, message, program, report};
use crate::support::{batches, files, in_parallel, stem};
use cora::driver::{Source, lower_for};
use cora::ir::schedule::Schedule;

#[test]
fn examples_on_a_grid() {
    let every = std::env::var_os("CORA_GRID_EVERY").is_some();
    report(&in_parallel(&files("examples", "cora"), |path| {
        let name = stem(path);
        let source = match load(path, small(&name)) {
            Ok(s) => s,
            Err(e) => return vec![e],
        };
        let large = LARGE.contains(&name.as_str());
        // Full tiles of instructions take the interpreter long, however few rows there are.
        let each = match every {
            true => 1,
            false if large || name == "encoder_layer_bf16" => 12,
            false => 3,
        };
        let mut forms = if large && !every { Vec::new() } else { vec![("default grid", None)] };
        let boxes = |s: &&Schedule| BOXES.contains(&(name.as_str(), s.name.as_str()));
        let own = || source.graph.schedules.iter().filter(|s| s.name.starts_with("cuda"));
        forms.extend(own().filter(|s| !boxes(s)).map(|s| (s.name.as_str(), Some(s))));
        let mut complaints = on_edges(&source, &forms, each);
        if every && own().any(|s| boxes(&s)) {
            let sizes = SIZES.iter().find(|s| s.0 == name).map_or(&[][..], |s| s.1);
            let source = load(path, sizes).expect("an example that was read before");
            let forms = source.graph.schedules.iter().filter(boxes).map(|s| (s.name.as_str(), Some(s)));
            complaints.extend(on_edges(&source, &forms.collect::<Vec<_>>(), 1));
        }
        complaints
    }));
}

/// What the interpreter says against forms of a program, on every `each`th edge batch.
fn on_edges(source: &Source, forms: &[(&str, Option<&Schedule>)], each: usize) -> Vec<String> {
    let name = &source.graph.name;
    let plans: Vec<_> = batches::edges(&source.graph.env).into_iter().step_by(each).collect();
    let cases = match Case::all(source, &plans, |_, _| None) {
        Ok(c) => c,
        Err(e) => return vec![e],
    };
    let mut complaints = Vec::new();
    for &(form, schedule) in forms {
        let lowered = match lower_for(source, schedule, false, Some("sm_80"), &mut |_| {}) {
            Ok(l) => l,
            Err(e) => {
                complaints.push(format!("{name} ({form}): {}", message(e)));
                continue;
            }
        };
        let before = complaints.len();
        for case in &cases {
            let wrong = case.interpret(source, &lowered.storage);
            complaints.extend(wrong.map(|w| format!("{name} ({form}), {}: {w}", case.name)));
        }
        println!("{name} ({form}): {} batches, {} wrong", cases.len(), complaints.len() - before);
    }
    complaints
}

/// The loops of two stages that have nothing to do with each other, one after the other as the threads of one block
/// (paper section 4.1, horizontal fusion).
#[test]
fn stages_share_a_block() {
    let text = "param M in 0..=64
        extent lens(b) in 0..=100, other(b) in 0..=100
        dim b = M, i = lens(b), j = other(b)
        input A[b, i] : f32, B[b, j] : f32
        Y[b, i] = exp(A[b, i])
        Z[b, j] = tanh(B[b, j])
        U[b] = sum(i) Y[b, i]
        V[b] = sum(j) Z[b, j]
        W[b] = U[b] + V[b]
        output W
        schedule cuda {
          compute_at U V at W.b
          compute_at Y at W.b
          compute_at Z at W.b
          set_scope Y shared
          set_scope Z shared
          hfuse Y.i Z.j -> t
          split Y.t 32 -> to, ti tail(mask)
          bind Y.ti thread.x
          bind W.b block.x
        }\n";
    let source = program("two stages", text, &[]).expect("a program");
    let cases = Case::all(&source, &batches::edges(&source.graph.env), |_, _| None).expect("inputs");
    let lowered =
        lower_for(&source, source.graph.schedule("cuda"), false, Some("sm_90a"), &mut |_| {}).map_err(message);
    let storage = lowered.expect("it lowers").storage;
    assert_eq!(storage.kernels.len(), 1);
    let mut complaints = Vec::new();
    for case in &cases {
        complaints.extend(case.interpret(&source, &storage).map(|w| format!("{}: {w}", case.name)));
    }
    report(&complaints);
}
