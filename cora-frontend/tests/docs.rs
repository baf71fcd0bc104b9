//! Every example in docs/language.md is a correct program.

mod common;

use cora_frontend::{parse_with_warnings, print_program, render};

#[test]
fn language_examples() {
    let doc = std::fs::read_to_string(common::root().join("docs/language.md")).expect("docs/language.md");
    let mut count = 0;
    for (n, rest) in doc.split("```cora\n").enumerate().skip(1) {
        let text = rest.split("```").next().unwrap_or_default();
        let parsed = parse_with_warnings("doc", text, &[]).map(|e| (print_program(&e.graph), e.warnings));
        match parsed {
            Ok((_, warnings)) if warnings.is_empty() => count += 1,
            Ok((_, diags)) | Err(diags) => {
                let all: String = diags.iter().map(|d| render(d, &format!("example {n}"), text)).collect();
                panic!("{all}");
            }
        }
    }
    assert!(count >= 9, "only {count} examples");
}

/// Keywords, steps and built-in functions are all mentioned.
#[test]
fn language_is_complete() {
    let doc = std::fs::read_to_string(common::root().join("docs/language.md")).expect("docs/language.md");
    for word in cora_frontend::words() {
        assert!(doc.contains(word), "docs/language.md does not mention `{word}`");
    }
}
