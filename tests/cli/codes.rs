//! `docs/errors.md` lists the codes that the sources give, each once.

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
    let doc = std::fs::read_to_string(root().join("docs/errors.md")).expect("docs/errors.md");
    let rows = doc.lines().filter_map(|l| l.strip_prefix("| ")).filter_map(|l| l.split(' ').next());
    let rows: Vec<String> = rows.filter(|c| c.len() == 5 && c.starts_with(['E', 'W'])).map(str::to_owned).collect();
    let documented: BTreeSet<String> = rows.iter().cloned().collect();
    assert_eq!(rows.len(), documented.len(), "a code is listed twice in docs/errors.md");
    let missing: Vec<_> = codes.difference(&documented).collect();
    assert!(missing.is_empty(), "docs/errors.md does not list {missing:?}");
    let gone: Vec<_> = documented.difference(&codes).collect();
    assert!(gone.is_empty(), "docs/errors.md lists {gone:?}, which nothing gives");
}
