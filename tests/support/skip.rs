//! A capability that this machine lacks: said, counted by `make test`, and refused where that is asked for.

use std::io::Write;

/// Says that a test, or a part of one, does not run here, and why. Since the output of tests that pass is captured, the
/// line also goes to the end of the file that `CORA_SKIPS` names, if it does.
///
/// # Panics
/// Where `CORA_NO_SKIPS` is 1: this machine was to have everything.
pub fn skip(what: &str) {
    let line = format!("SKIP {}", what.replace('\n', " "));
    println!("{line}");
    if let Some(path) = std::env::var_os("CORA_SKIPS") {
        let file = std::fs::OpenOptions::new().append(true).create(true).open(&path);
        // One write, since other tests append too.
        let written = file.and_then(|mut f| f.write_all(format!("{line}\n").as_bytes()));
        written.unwrap_or_else(|e| panic!("CORA_SKIPS: {}: {e}", path.display()));
    }
    assert!(std::env::var_os("CORA_NO_SKIPS").is_none_or(|v| v != "1"), "{line}, and CORA_NO_SKIPS=1 wants none");
}
