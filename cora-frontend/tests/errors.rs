//! Wrong programs and what is said about them; `CORA_BLESS=1` writes the expected files again.

mod common;

use cora_frontend::{parse_with_warnings, render};
use std::collections::BTreeSet;

fn rendered(name: &str, text: &str) -> String {
    match parse_with_warnings(name, text, &[]) {
        Ok(_) => "no error\n".to_owned(),
        Err(diags) => diags.iter().map(|d| render(d, &format!("{name}.cora"), text)).collect(),
    }
}

#[test]
fn wrong_programs() {
    let dir = common::root().join("cora-frontend/tests/errors");
    let mut bad = String::new();
    for (name, text) in common::programs(&dir) {
        let found = rendered(&name, &text);
        let code = name.split('_').next().unwrap_or_default();
        if !found.contains(&format!("error[{code}]")) {
            bad.push_str(&format!("{name} does not give {code}:\n{found}\n"));
        }
        // A diagnostic is a paragraph of its own.
        for d in found.split("error[").skip(1).filter(|d| !d.contains("= help: ")) {
            bad.push_str(&format!("{name}: no hint at error[{d}\n"));
        }
        bad.extend(common::compare(&dir.join(format!("{name}.expected")), &found));
    }
    assert!(bad.is_empty(), "{bad}");
}

/// Codes that parsing no text can give: an override from outside, misuse of the builder, and accesses
/// outside a tensor and indices outside 64 bits, which a pass proves absent or refuses.
const NOT_FROM_TEXT: [&str; 6] = ["E0231", "E0239", "E0243", "E0244", "E0250", "E0256"];

/// Every documented code has a wrong program, and every code given by a program is documented.
#[test]
fn codes_are_documented() {
    let doc = std::fs::read_to_string(common::root().join("docs/errors.md")).expect("docs/errors.md");
    let documented: BTreeSet<&str> = doc
        .lines()
        .filter_map(|l| l.strip_prefix("| "))
        .filter_map(|l| l.split(' ').next())
        .filter(|c| c.starts_with("E01") || c.starts_with("E02"))
        .collect();
    let dir = common::root().join("cora-frontend/tests/errors");
    let mut given: BTreeSet<String> = NOT_FROM_TEXT.iter().map(|&c| c.to_owned()).collect();
    for (name, _) in common::programs(&dir) {
        given.extend(name.split('_').next().map(str::to_owned));
        let expected = std::fs::read_to_string(dir.join(format!("{name}.expected"))).unwrap_or_default();
        let codes = expected.lines().filter_map(|l| l.strip_prefix("error[")?.split(']').next());
        given.extend(codes.map(str::to_owned));
    }
    let given: BTreeSet<&str> = given.iter().map(String::as_str).collect();
    assert_eq!(documented, given);
}
