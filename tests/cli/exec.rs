//! The command line of `cora-exec`: what it refuses, what it says, and its exit codes.

use crate::artifact::{refused, run, softmax};
use crate::support::stand_in::exec;
use crate::tool::{cora, file, scratch, succeeds};
use cora::runtime::abi::Role;
use cora::runtime::artifact::Artifact;
use serde_json::Value;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

#[test]
fn the_command_line_is_checked() {
    let path = softmax("checked.cora-artifact");
    let plain = plain("checked-plain.cora-artifact", "examples/ragged_softmax.cora");
    for (option, name) in [("--output", "Z"), ("--input", "Q"), ("--lengths", "foo"), ("--param", "W")] {
        let value = format!("{name}=1");
        assert!(refused(&[&path, option, &value], "E0304").contains(name), "{option}");
    }
    // An output is no input.
    let info = String::from_utf8_lossy(&run(&[&path, "--info"]).stdout).into_owned();
    let output = info.split("Output ").nth(1).and_then(|t| t.split(' ').next()).expect("an output");
    refused(&[&path, "--input", &format!("{output}=x.npy")], "E0304");
    refused(&[&plain, "--sample"], "E0339");
    refused(&[&plain, "--check"], "E0339");
    refused(&[&path, "--threads", "1000000"], "E0331");
    for wrong in [["--info=3"], ["--sample=x"], ["--json=1"], ["--repeat=x"], ["--fly"]] {
        assert_eq!(run(&[&path, wrong[0]]).status.code(), Some(2), "{wrong:?}");
    }
    assert_eq!(run(&[&path, "--sample", "--param", "M=1"]).status.code(), Some(2));
    for (flag, says) in [("--help", "usage: "), ("--version", "cora-exec ")] {
        let out = run(&[flag]);
        assert!(out.status.success() && out.stderr.is_empty(), "{flag}: {out:?}");
        assert!(String::from_utf8_lossy(&out.stdout).starts_with(says), "{flag}: {out:?}");
    }
}

#[test]
fn memory_has_a_limit() {
    let path = softmax("limited.cora-artifact");
    assert!(run(&[&path, "--memory-limit", "64M"]).status.success());
    says(&refused(&[&path, "--memory-limit", "1k"], "E0312"), &["1024 are allowed", "--memory-limit"]);
    assert_eq!(run(&[&path, "--memory-limit", "4X"]).status.code(), Some(2));
}

#[test]
fn json_is_one_object() {
    let path = softmax("json.cora-artifact");
    let out = run(&[&path, "--json", "--check", "--poison", "--repeat", "3"]);
    assert!(out.status.success() && out.stderr.is_empty(), "{out:?}");
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    assert_eq!(report["ok"], true);
    assert!(report["checks"][0]["elements"].as_u64() > Some(0), "{report}");
    assert!(report["kernels"][0]["ms"].is_number() && report["total_ms"].is_number(), "{report}");
}

fn path_of(name: &str) -> String {
    scratch(name).to_str().expect("UTF-8").to_owned()
}

/// An artifact without a sample.
fn plain(name: &str, program: &str) -> String {
    let path = path_of(name);
    succeeds(&["compile", program, "--emit", "artifact", "-o", &path]);
    path
}

fn objects(out: &std::process::Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    text.lines().map(|line| serde_json::from_str(line).expect("an object")).collect()
}

fn says(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "`{word}` is not in: {text}");
    }
}

/// Words that are not UTF-8: names of files may be, all else is a mistake of the user's.
#[test]
fn words_of_any_bytes() {
    let bytes = |b: &'static [u8]| OsStr::from_bytes(b);
    let cases = [
        (vec![bytes(b"\xff")], 1),
        (vec![bytes(b"a"), bytes(b"--param"), bytes(b"M=\xff")], 2),
        (vec![bytes(b"-\xff")], 2),
    ];
    for (words, code) in cases {
        let out = Command::new(exec()).args(&words).output().expect("it starts");
        let text = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.code() == Some(code) && !text.contains("panicked"), "{words:?}: {out:?}");
    }
    let out = Command::new(env!("CARGO_BIN_EXE_cora")).arg(bytes(b"run\xff")).output().expect("it starts");
    assert!(out.status.code() == Some(2) && !String::from_utf8_lossy(&out.stderr).contains("panicked"), "{out:?}");
}

#[test]
fn complaints_name_the_file() {
    let text = file("no.cora-artifact", "extent lens\n");
    says(&refused(&[&text], "E0337"), &[&text, "cora compile PROGRAM --emit artifact -o FILE"]);
    let path = softmax("named.cora-artifact");
    says(&refused(&[&path, "--param", "W=1"], "E0304"), &[&path, "`W`", "its parameters: M"]);
    says(&refused(&[&path, "--lengths", "W=x"], "E0304"), &["extent functions: lens"]);
    let missing = path_of("missing.cora-artifact");
    assert_eq!(refused(&[&missing], "E0330").matches(&missing).count(), 1);
}

#[test]
fn batches_that_lack_something() {
    let path = plain("lacking.cora-artifact", "examples/listing1.cora");
    says(&refused(&[&path], "E0339"), &["no stored batch", "`M`", "--param M=N (0..="]);
    says(
        &refused(&[&path, "--param", "M=2"], "E0339"),
        &["no stored batch", "`lens`, which takes 2", "--lengths lens=FILE"],
    );
    let sampled = softmax("lacking-sampled.cora-artifact");
    says(&refused(&[&sampled, "--param", "M=2"], "E0339"), &["in place of the stored one", "leave --param"]);
    // Too few: the same words as those of `cora run`.
    let few = format!("lens={}", file("few.lengths", "3"));
    let batch = ["--param", "M=2", "--lengths", &few];
    let ours = refused(&[&[path.as_str()], &batch[..]].concat(), "E0329");
    says(&ours, &["few.lengths: extent function `lens` needs 2 entries after skipping 0, but there are 1"]);
    assert_eq!(ours, cora(&[&["run", "examples/listing1.cora"], &batch[..]].concat()).stderr);
}

#[test]
fn options_that_do_not_fit() {
    let path = softmax("options.cora-artifact");
    for option in [&["--graph"][..], &["--streams", "2"], &["--flush", "1"]] {
        says(&refused(&[&[path.as_str()], option].concat(), "E0613"), &[option[0], "leave it away"]);
    }
    says(&refused(&[&path, "--check", "--param", "M=1"], "E0339"), &["leave --param"]);
    let info = String::from_utf8_lossy(&run(&[&path, "--info"]).stdout).into_owned();
    let output = info.split("Output ").nth(1).and_then(|t| t.split(' ').next()).expect("an output");
    says(&refused(&[&path, "--output", &format!("{output}=-")], "E0606"), &["standard output"]);
    for (option, value) in [("--repeat", "0"), ("--streams", "0"), ("--streams", "1000"), ("--threads", "x")] {
        let out = run(&[&path, option, value]);
        assert_eq!(out.status.code(), Some(2), "{option}");
        says(&String::from_utf8_lossy(&out.stderr), &[option, value, "see cora-exec --help"]);
    }
}

/// One that differs, one that is none, one that is right.
#[test]
fn several_artifacts() {
    let good = softmax("several.cora-artifact");
    let mut artifact = Artifact::from_bytes(&std::fs::read(&good).expect("written")).expect("an artifact");
    let output = artifact.desc.tensors.iter().position(|t| t.role == Role::Output).expect("an output");
    artifact.samples[0].tensors[output].fill(0x41);
    let wrong = path_of("several-wrong.cora-artifact");
    std::fs::write(&wrong, artifact.to_bytes().expect("encodes")).expect("writable");
    let none = file("several-none.cora-artifact", "no artifact");
    let out = run(&[&wrong, &none, &good, "--json"]);
    assert_eq!(out.status.code(), Some(3), "{out:?}");
    let reports = objects(&out);
    let said: Vec<_> = reports.iter().map(|r| (r["artifact"].as_str(), r["ok"].as_bool())).collect();
    assert_eq!(said, [(Some(&*wrong), Some(false)), (Some(&*none), Some(false)), (Some(&*good), Some(true))]);
    assert!(reports[1]["error"].as_str().is_some_and(|e| e.starts_with("error[E0337]: ")), "{reports:?}");
    assert!(reports[2]["threads"].as_u64() > Some(0), "{reports:?}");
    // One alone is no other than several.
    let out = run(&[&none, "--json"]);
    assert!(out.status.code() == Some(1) && objects(&out).len() == 1, "{out:?}");
    let out = run(&[&good, &none, "--json", "--info"]);
    let reports = objects(&out);
    assert!(out.status.code() == Some(1) && reports.len() == 2, "{out:?}");
    assert!(reports[0]["params"][0]["name"] == "M" && reports[1]["ok"] == false, "{reports:?}");
}
