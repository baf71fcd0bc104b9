//! `--lengths`: files of lengths, good and bad.

use crate::tool::{cora, file, refuses, scratch, succeeds};
use cora::runtime::abi::DType;
use cora::runtime::array::{RaggedArray, Shape};
use cora::runtime::npy;
use serde_json::Value;

const LISTING: &str = "examples/listing1.cora";

/// Elements of the output for these lengths.
fn elements(params: &str, lengths: &str, more: &[&str]) -> u64 {
    let l = format!("lens={lengths}");
    let args = ["run", LISTING, "--param", params, "--lengths", &l, "--check", "--json"];
    let out = succeeds(&[&args[..], more].concat());
    let report: Value = serde_json::from_str(&out).expect("JSON");
    report["checks"][0]["elements"].as_u64().expect("a number")
}

#[test]
fn files_may_be_longer_and_entries_skipped() {
    let text = file("lengths.txt", "1 2 3\n4\n\n 5\t6\n");
    assert_eq!(elements("M=3", &text, &[]), 6);
    assert_eq!(elements("M=6", &text, &[]), 21);
    assert_eq!(elements("M=3", &text, &["--skip", "2"]), 12);
    assert_eq!(elements("M=0", &text, &["--skip", "6"]), 0);
    let path = scratch("lengths.npy");
    let array = RaggedArray::from_slice(DType::I64, Shape::Dense(vec![4]), &[7_i64, 0, 2, 9]).expect("four");
    npy::write(&path, &array).expect("writable");
    let path = path.to_str().expect("UTF-8");
    assert_eq!(elements("M=3", path, &[]), 9);
    assert_eq!(elements("M=2", path, &["--skip", "2"]), 11);
}

#[test]
fn bad_files() {
    let given = |content: &[u8], params: &str, code: &str, words: &[&str]| {
        let l = format!("lens={}", file("bad_lengths.txt", content));
        refuses(&["run", LISTING, "--param", params, "--lengths", &l], code, words)
    };
    given(b"1 2", "M=3", "E0329", &["`lens`", "3", "2"]);
    given(b"", "M=1", "E0329", &["`lens`"]);
    given(b"1\n2 -3", "M=2", "E0328", &["line 2", "-3"]);
    given(b"1\n2\nthree", "M=2", "E0327", &["line 3", "`three`"]);
    given(b"1.5", "M=1", "E0327", &["`1.5`"]);
    given(b"99999999999999999999", "M=1", "E0327", &["99999999999999999999"]);
    given(b"\xff\xfe\x00", "M=1", "E0327", &["line 1"]);
    given(b"4 5 513", "M=3", "E0306", &["lens(2)", "513", "0..=512"]);
    given(b"\x93NUMPY\x01", "M=1", "E0324", &["bad_lengths.txt"]);
    let l = format!("lens={}", file("some_lengths.txt", "1 2 3"));
    refuses(&["run", LISTING, "--param", "M=2", "--lengths", &l, "--skip", "2"], "E0329", &["2", "3"]);
    let most = usize::MAX.to_string();
    refuses(&["run", LISTING, "--param", "M=2", "--lengths", &l, "--skip", &most], "E0329", &[]);
    refuses(&["run", LISTING, "--lengths", "lens=no/such/file"], "E0330", &["no/such/file"]);
    refuses(&["run", LISTING, "--lengths", &l.replace("lens", "size")], "E0304", &["`size`", "lens"]);
    assert_eq!(cora(&["run", LISTING, "--lengths", "lens"]).code, Some(2));
}

/// An index of several numbers is named in full.
#[test]
fn functions_of_two_indices() {
    let sents = format!("sents={}", file("sents.txt", "2 0 1"));
    let run = |words: &str| {
        let words = format!("words={}", file("words.txt", words));
        cora(&[
            "run",
            "examples/nested.cora",
            "--param",
            "DOCS=3",
            "--const",
            "D=4",
            "--lengths",
            &sents,
            "--lengths",
            &words,
            "--check",
        ])
    };
    let ran = run("3 0 5");
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let ran = run("3 0 257");
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("error[E0306]") && ran.stderr.contains("words(2, 0) = 257"), "{}", ran.stderr);
    let ran = run("3 0");
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("error[E0329]") && ran.stderr.contains("`words`"), "{}", ran.stderr);
}
