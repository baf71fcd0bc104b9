//! No text makes a parser panic, and what it accepts prints and parses again.

use super::Rng;
use super::generate::Gen;
use crate::text::{parse_graph, parse_loops, parse_storage, print_graph, print_loops, print_storage};
use crate::verify::{StorageForm, verify_graph, verify_loops, verify_storage};

/// Words and signs that are likely to lead somewhere.
const PIECES: [&str; 30] = [
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "@A",
    "%x",
    "%?x",
    "$0",
    "$7",
    "0",
    "-",
    "1.5:f32",
    " if ",
    " else ",
    "..",
    "..=",
    "=",
    ",",
    "\"",
    "#1",
    "9223372036854775808",
    "nan",
    "for ",
    "sum[",
    "\u{e9}",
    "search ",
    "uf ",
    ";",
];

fn mutate(rng: &mut Rng, text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..1 + rng.below(6) {
        let at = rng.below(bytes.len() + 1);
        let end = (at + rng.below(12)).min(bytes.len());
        match rng.below(5) {
            0 => drop(bytes.drain(at..end)),
            1 => {
                let copy = bytes[at..end].to_vec();
                bytes.splice(at..at, copy);
            }
            2 if at < bytes.len() => bytes[at] = rng.next() as u8,
            3 => drop(bytes.splice(at..at, rng.pick(&PIECES).bytes())),
            _ => {
                let from = rng.below(bytes.len() + 1);
                let to = (from + rng.below(80)).min(bytes.len());
                let copy = bytes[from..to].to_vec();
                bytes.splice(at..end, copy);
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Parses mutations of the texts that `make` gives; `parse` prints again what it accepts.
fn check(make: fn(u64) -> String, parse: fn(&str) -> Option<String>) {
    let mut accepted = 0;
    for seed in 0..400 {
        let (text, mut rng) = (make(seed), Rng(seed));
        for _ in 0..25 {
            let bad = mutate(&mut rng, &text);
            if let Some(printed) = parse(&bad) {
                accepted += 1;
                assert_eq!(parse(&printed).as_ref(), Some(&printed), "from {bad}");
            }
        }
    }
    assert!(accepted > 100, "only {accepted} mutations were accepted");
}

#[test]
fn loops() {
    check(
        |s| print_loops(&Gen::new(s, false).loops()),
        |t| {
            let m = parse_loops(t).ok()?;
            let _ = verify_loops(&m);
            Some(print_loops(&m))
        },
    );
}

#[test]
fn storage() {
    check(
        |s| print_storage(&Gen::new(s, true).storage()),
        |t| {
            let m = parse_storage(t).ok()?;
            let _ = verify_storage(&m, StorageForm::Legal);
            Some(print_storage(&m))
        },
    );
}

#[test]
fn graphs() {
    check(
        |s| print_graph(&Gen::new(s, true).graph()),
        |t| {
            let m = parse_graph(t).ok()?;
            let _ = verify_graph(&m);
            Some(print_graph(&m))
        },
    );
}
