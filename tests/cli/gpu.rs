//! The scripts for machines with a GPU (`scripts/gpu`): what is packed is read where it is unpacked.

use crate::support::root;
use crate::support::skip::skip;
use crate::tool::scratch;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Whether there is a Python to run the scripts with; says so if not.
fn python() -> bool {
    let found = Command::new("python3").arg("--version").output().is_ok_and(|o| o.status.success());
    if !found {
        skip("scripts for machines with a GPU: there is no python3");
    }
    found
}

/// A bundle in a new folder.
fn bundle(name: &str, options: &[&str]) -> PathBuf {
    let folder = scratch(name);
    let _ = std::fs::remove_dir_all(&folder);
    let packed = Command::new("python3")
        .arg(root().join("scripts/gpu/bundle.py"))
        .arg(&folder)
        .args(options)
        .env("CORA_BIN", crate::support::stand_in::exec().parent().expect("a folder"))
        .output()
        .expect("python3 starts");
    assert!(packed.status.success(), "{packed:?}");
    folder
}

/// Runs a bundle's script: its exit code, what it says, and all of that.
fn run_in(folder: &Path, args: &[&str]) -> (Option<i32>, String, Output) {
    let out = Command::new(folder.join("run.sh")).args(args).output().expect("bash starts");
    (out.status.code(), String::from_utf8_lossy(&out.stdout).into_owned(), out)
}

/// All of the scripts that is not for GPUs alone, on artifacts for this processor.
#[test]
fn a_bundle_for_processors_is_checked() {
    if !python() {
        return;
    }
    let folder = bundle("cpu-bundle", &["--arch", "cpu", "--only", "tradd"]);
    let (code, text, out) = run_in(&folder, &["samples", "graphs"]);
    assert_eq!(code, Some(0), "{out:?}");
    assert!(
        text.contains("SKIP graphs") && text.contains("2 samples right"),
        "its own and the default schedule: {text}"
    );
    // What is there is not done again.
    let (_, text, _) = run_in(&folder, &["samples"]);
    assert!(text.contains("2 samples right"), "{text}");
    let mut report = Command::new("python3");
    report.arg(folder.join("bundle/report.py")).arg(folder.join("results/results.jsonl"));
    let report = report.output().expect("python3 starts");
    let text = String::from_utf8_lossy(&report.stdout).into_owned();
    assert!(report.status.success() && text.contains("| samples | 2 | 2 |"), "{report:?}");
}

#[test]
fn a_bundle_is_read() {
    if !python() {
        return;
    }
    let folder = bundle("gpu-bundle", &["--kernels", "0", "--only", "tradd,layer-norm"]);
    let run = |args: &[&str]| run_in(&folder, args);
    let (code, text, out) = run(&["--dry-run"]);
    // tradd: its own and the default schedule, tables by kernels if they can be, and what is timed: it, and layer-norm
    // with lengths and with a constant.
    assert!(code == Some(0) && text.contains("artifacts for sm_90a are read"), "{out:?}");
    let count: usize = text.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or_default();
    assert!(count >= 5, "{text}");
    // A damaged one is found.
    let path = folder.join("bundle/work/tradd.artifact");
    let mut bytes = std::fs::read(&path).expect("unpacked");
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    std::fs::write(&path, bytes).expect("writable");
    let (code, text, out) = run(&["--dry-run", "trmm"]);
    assert!(code == Some(1) && text.contains("would do trmm: 0"), "{out:?}");
    assert_eq!(run(&["nothing"]).0, Some(2));
}
