//! Broken text of every stage and broken pipelines: `cora-opt` refuses them or runs them, and never panics.
//!
//! The inputs of `filetests/passes` with random changes. `CORA_FUZZ_SEED` is the seed of the first case and
//! `CORA_FUZZ_CASES` how many there are.

use cora_passes::manager::{PassContext, parse_pipeline, run_pipeline};
use cora_passes::program::Program;
use cora_passes::standard::StandardSimplifier;
use rand::prelude::*;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

thread_local! {
    /// The message of the last panic.
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

/// Pipelines and programs.
fn inputs() -> Vec<(String, String)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../filetests/passes");
    let mut paths: Vec<_> = std::fs::read_dir(dir).expect("filetests").filter_map(|e| Some(e.ok()?.path())).collect();
    paths.sort();
    let mut out = Vec::new();
    for p in paths {
        let text = std::fs::read_to_string(&p).expect("readable");
        let run = text.lines().find_map(|l| l.strip_prefix("; RUN: ")).unwrap_or_default().to_owned();
        let (input, expected) = text.split_once("; EXPECTED\n").unwrap_or((&text, ""));
        out.push((run.clone(), input.to_owned()));
        // What comes out is text of a later stage.
        if expected.contains(".module") {
            out.push((run, expected.to_owned()));
        }
    }
    out
}

/// Words, numbers, single signs and blanks.
fn tokens(text: &str) -> Vec<&str> {
    let mut out = Vec::new();
    let mut start = 0;
    let word = |c: char| c.is_alphanumeric() || c == '_';
    let mut last = None;
    for (at, c) in text.char_indices() {
        if at > start && !(word(c) && last.is_some_and(word)) {
            out.push(&text[start..at]);
            start = at;
        }
        last = Some(c);
    }
    out.push(&text[start..]);
    out
}

/// Some tokens dropped, repeated, exchanged or replaced by others of the text or by odd ones.
fn broken(rng: &mut SmallRng, text: &str, changes: usize) -> String {
    const ODD: [&str; 16] = [
        "0",
        "-1",
        "9223372036854775807",
        "99",
        "(",
        "}",
        "%b",
        "@T",
        "//",
        "min",
        "unroll",
        "pad",
        "$0",
        "$9",
        "\u{e9}",
        "1:i8",
    ];
    let mut t: Vec<String> = tokens(text).into_iter().map(str::to_owned).collect();
    for _ in 0..changes {
        if t.is_empty() {
            break;
        }
        let (at, other) = (rng.random_range(0..t.len()), rng.random_range(0..t.len()));
        match rng.random_range(0..6) {
            0 => drop(t.remove(at)),
            1 => t.insert(at, t[other].clone()),
            2 => t.swap(at, other),
            3 => t[at] = t[other].clone(),
            4 => t[at] = (*ODD.choose(rng).unwrap_or(&"0")).to_owned(),
            _ => t.truncate(at.max(t.len() / 2)),
        }
    }
    t.concat()
}

/// What a run came to.
#[derive(Clone, Copy, PartialEq)]
enum Outcome {
    NoProgram,
    Invalid,
    NoPipeline,
    Refused,
    Ran,
}

fn run(pipeline: &str, text: &str) -> Outcome {
    let Ok(program) = Program::parse(text) else { return Outcome::NoProgram };
    if program.verify().is_err() {
        return Outcome::Invalid;
    }
    let Ok(pipeline) = parse_pipeline(pipeline) else { return Outcome::NoPipeline };
    let mut simplifier = StandardSimplifier::new();
    let mut cx = PassContext { simplifier: &mut simplifier };
    match run_pipeline(program, &pipeline, &mut cx, &mut |_| {}) {
        Ok(p) => {
            p.print();
            Outcome::Ran
        }
        Err(_) => Outcome::Refused,
    }
}

#[test]
fn broken_text_does_not_panic() {
    std::panic::set_hook(Box::new(|info| PANIC.with_borrow_mut(|p| *p = info.to_string())));
    let all = inputs();
    let (first, count) = (setting("CORA_FUZZ_SEED", 1), setting("CORA_FUZZ_CASES", 3000));
    let mut seen = [0; 5];
    let mut panics = Vec::new();
    for seed in first..first + count {
        let mut rng = SmallRng::seed_from_u64(seed);
        let (pipeline, text) = all.choose(&mut rng).expect("filetests");
        let changes = rng.random_range(1..=3);
        let (mut pipeline, mut text) = (pipeline.clone(), text.clone());
        if rng.random_bool(0.7) {
            text = broken(&mut rng, &text, changes);
        } else {
            pipeline = broken(&mut rng, &pipeline, changes);
        }
        match catch_unwind(AssertUnwindSafe(|| run(&pipeline, &text))) {
            Ok(outcome) => seen[outcome as usize] += 1,
            Err(_) => {
                let message = PANIC.with_borrow(Clone::clone);
                panics.push(format!("seed {seed}: {message}\n; RUN: {pipeline}\n{text}"));
            }
        }
    }
    println!("{seen:?} without a program, invalid, without a pipeline, refused, run");
    assert!(panics.is_empty(), "{} panics; the first:\n{}", panics.len(), panics[0]);
    let [unread, _, no_pipeline, refused, ran] = seen;
    assert!(unread.min(no_pipeline).min(refused).min(ran) > 0, "{seen:?}");
}
