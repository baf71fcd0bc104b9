//! Commands with what they print on standard error and their exit code. A file holds the files that the
//! command reads, the command, and what comes out; `{name}` is the path of a file:
//!
//! ```text
//! FILE lens.txt
//! 1 2\n-3
//! RUN run examples/listing1.cora --lengths lens={lens.txt}
//! EXPECTED 1
//! error[E0328]: lens.txt, line 2: length -3 is negative
//! ```
//! In files `\n` and the like are escapes as in Rust. `CORA_BLESS=1` writes the last part again.

use crate::support::{compare, files, in_parallel, stem};
use crate::tool::{cora, scratch};
use std::fmt::Write;
use std::path::Path;

/// Bytes of a file from its escaped text.
fn bytes(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.extend(c.encode_utf8(&mut [0; 4]).bytes());
            continue;
        }
        match chars.next() {
            Some('n') => out.push(b'\n'),
            Some('t') => out.push(b'\t'),
            Some('x') => {
                let digits: String = chars.by_ref().take(2).collect();
                out.push(u8::from_str_radix(&digits, 16).expect("two hexadecimal digits"));
            }
            Some(c) => out.push(c as u8),
            None => out.push(b'\\'),
        }
    }
    out
}

/// The command of a file run: its text up to the expectation, and what it is now.
fn run(path: &Path, text: &str) -> (String, String) {
    let input = text.split("\nEXPECTED ").next().unwrap_or_default().trim_end();
    let (mut names, mut out) = (Vec::new(), String::new());
    let mut lines = input.lines();
    while let Some(line) = lines.next() {
        if let Some(name) = line.strip_prefix("FILE ") {
            let place = scratch(&format!("{}-{name}", stem(path)));
            std::fs::write(&place, bytes(lines.next().unwrap_or_default())).expect("writable");
            names.push((name.to_owned(), place.to_str().expect("UTF-8").to_owned()));
        } else if let Some(command) = line.strip_prefix("RUN ") {
            let args: Vec<String> = command
                .split_whitespace()
                .map(|a| names.iter().fold(a.to_owned(), |a, (n, p)| a.replace(&format!("{{{n}}}"), p)))
                .collect();
            let ran = cora(&args.iter().map(String::as_str).collect::<Vec<_>>());
            let said = names.iter().fold(ran.stderr, |s, (n, p)| s.replace(p.as_str(), n));
            let code = ran.code.map_or("none".to_owned(), |c| c.to_string());
            let _ = write!(out, "EXPECTED {code}\n{}", said.trim_end());
        }
    }
    (input.to_owned(), out)
}

#[test]
fn commands() {
    let paths = files("filetests/commands", "txt");
    assert!(paths.len() >= 30, "{} files", paths.len());
    let complaints = in_parallel(&paths, |path| {
        let text = std::fs::read_to_string(path).expect("readable");
        let (input, found) = run(path, &text);
        let mut wrong: Vec<String> = compare(path, &format!("{input}\n{found}\n")).into_iter().collect();
        // A name that begins with a code means that code.
        let code = stem(path).split('_').next().unwrap_or_default().to_owned();
        if code.starts_with("E0") && !found.contains(&format!("error[{code}]: ")) {
            wrong.push(format!("{} is not {code}: {found}", stem(path)));
        }
        wrong
    });
    assert!(complaints.is_empty(), "{} complaints:\n{}", complaints.len(), complaints.join("\n"));
}

/// A command whose binary is not installed.
#[test]
fn a_sibling_that_is_not_there() {
    let alone = scratch("alone").join("cora");
    let _ = std::fs::remove_file(&alone);
    std::fs::create_dir_all(alone.parent().expect("a folder")).expect("writable");
    // A copy would be open for writing in whatever another test starts at the same time.
    std::fs::hard_link(env!("CARGO_BIN_EXE_cora"), &alone).expect("writable");
    let ran = std::process::Command::new(&alone).args(["paper", "flops"]).env("PATH", "").output().expect("it starts");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.code() == Some(1) && said.starts_with("error[E0604]: "), "{said}");
}
