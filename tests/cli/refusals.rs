//! Programs that must be refused, with what is said about them; `CORA_BLESS=1` writes the expected files.

use crate::support::{compare, files, in_parallel, stem};
use crate::tool::cora;

/// Compiles every program of a folder and compares the messages with the `.expected` file beside it.
fn check(folder: &str, with_place: bool, least: usize) {
    let programs = files(folder, "cora");
    assert!(programs.len() >= least, "{} programs in {folder}", programs.len());
    let complaints = in_parallel(&programs, |path| {
        let shown = format!("{folder}/{}.cora", stem(path));
        let ran = cora(&["compile", &shown, "--emit", "storage"]);
        let mut wrong = Vec::new();
        if ran.code != Some(1) || !ran.stdout.is_empty() {
            wrong.push(format!("{shown} is not refused: exit code {:?}", ran.code));
        }
        // The name begins with the code that is meant.
        let code = stem(path).split('_').next().unwrap_or_default().to_owned();
        if !ran.stderr.starts_with(&format!("error[{code}]: ")) {
            wrong.push(format!("{shown} is not {code}: {}", ran.stderr));
        }
        if !ran.stderr.contains(" = help: ") {
            wrong.push(format!("{shown} has no hint: {}", ran.stderr));
        }
        if with_place && !ran.stderr.contains(&format!("--> {shown}:")) {
            wrong.push(format!("{shown} names no place: {}", ran.stderr));
        }
        wrong.extend(compare(&path.with_extension("expected"), &ran.stderr));
        wrong
    });
    assert!(complaints.is_empty(), "{} complaints:\n{}", complaints.len(), complaints.join("\n"));
}

#[test]
fn illegal_schedules() {
    check("filetests/schedule", true, 40);
}

#[test]
fn accesses_out_of_bounds() {
    check("filetests/bounds", false, 8);
}
