//! `docs/errors.md` lists the codes that the sources give, each once, and a test shows each.

use crate::support::root;
use std::collections::BTreeSet;
use std::path::Path;

/// Every `E0123` that stands in quotes or brackets in the sources of a folder, tests left out.
fn given(dir: &Path, out: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(dir).expect("readable") {
        let path = entry.expect("readable").path();
        let is_test = path.file_stem().is_some_and(|s| s == "tests");
        if path.is_dir() && !is_test {
            given(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") && !is_test {
            let text = std::fs::read_to_string(&path).expect("readable");
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            for before in ["\"E0", "error[E0", "\"W0"] {
                for (at, _) in code.match_indices(before) {
                    let from = at + before.len() - 2;
                    let name: String = code[from..].chars().take_while(char::is_ascii_alphanumeric).collect();
                    if name.len() == 5 {
                        out.insert(name);
                    }
                }
            }
        }
    }
}

#[test]
fn codes_are_documented() {
    let mut codes = BTreeSet::new();
    given(&root().join("src"), &mut codes);
    for name in ["ir", "frontend", "passes", "codegen-llvm", "codegen-cuda", "runtime", "bench"] {
        given(&root().join(format!("cora-{name}/src")), &mut codes);
    }
    let rows = rows();
    let documented: BTreeSet<String> = rows.iter().cloned().collect();
    assert_eq!(rows.len(), documented.len(), "a code is listed twice in docs/errors.md");
    let missing: Vec<_> = codes.difference(&documented).collect();
    assert!(missing.is_empty(), "docs/errors.md does not list {missing:?}");
    let gone: Vec<_> = documented.difference(&codes).collect();
    assert!(gone.is_empty(), "docs/errors.md lists {gone:?}, which nothing gives");
}

/// The codes of the tables, in order.
fn rows() -> Vec<String> {
    let doc = std::fs::read_to_string(root().join("docs/errors.md")).expect("docs/errors.md");
    let rows = doc.lines().filter_map(|l| l.strip_prefix("| ")).filter_map(|l| l.split(' ').next());
    rows.filter(|c| c.len() == 5 && c.starts_with(['E', 'W'])).map(str::to_owned).collect()
}

/// Codes that no test can show, and why.
const NOT_SHOWN: &[(&str, &str)] =
    &[("E0612", "limits of descriptions, which the limits of programs and schedules keep programs below")];

/// The text of every test below a folder: files of test folders whole, of other sources what stands after `#[cfg(test)]`.
fn shown(dir: &Path, tests: bool, out: &mut String) {
    for entry in std::fs::read_dir(dir).expect("readable") {
        let path = entry.expect("readable").path();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default().to_owned();
        let tests = tests || matches!(name.as_str(), "tests" | "tests.rs" | "filetests");
        if path.is_dir() {
            shown(&path, tests, out);
        } else if name != "codes.rs" {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            out.push_str(if tests { &text } else { text.split_once("#[cfg(test)]").map_or("", |t| t.1) });
        }
    }
}

#[test]
fn every_code_is_shown_by_a_test() {
    let mut text = String::new();
    for entry in std::fs::read_dir(root()).expect("readable") {
        let path = entry.expect("readable").path();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default().to_owned();
        if matches!(name.as_str(), "src" | "tests" | "filetests") {
            shown(&path, name != "src", &mut text);
        } else if name.starts_with("cora-") {
            ["src", "tests"]
                .iter()
                .map(|d| path.join(d))
                .filter(|d| d.exists())
                .for_each(|d| shown(&d, d.ends_with("tests"), &mut text));
        }
    }
    let (missing, listed): (Vec<String>, Vec<String>) =
        rows().into_iter().filter(|c| !text.contains(c)).partition(|c| !NOT_SHOWN.iter().any(|n| n.0 == c));
    assert!(missing.is_empty(), "no test shows {missing:?}");
    assert_eq!(listed.len(), NOT_SHOWN.len(), "{listed:?} are not shown, and no other");
}
