//! Runs the command in the root of the workspace.

use crate::support::root;
use std::path::PathBuf;
use std::process::Command;

/// What a run of the command left.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

/// Runs `cora` with these arguments.
pub fn cora(args: &[&str]) -> Ran {
    let out = Command::new(env!("CARGO_BIN_EXE_cora")).args(args).current_dir(root()).output().expect("cora starts");
    let stderr = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!stderr.contains("panicked"), "{args:?}: {stderr}");
    Ran { code: out.status.code(), stdout: out.stdout, stderr }
}

/// As [`cora`], for runs that succeed: their standard output.
pub fn succeeds(args: &[&str]) -> String {
    let ran = cora(args);
    assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.stderr);
    String::from_utf8(ran.stdout).expect("text")
}

/// As [`cora`], for mistakes of the user: exit code 1, this error code, all of `words`, and a hint
/// (an unknown name in a program has one only where another name is similar).
pub fn refuses(args: &[&str], code: &str, words: &[&str]) -> String {
    let ran = cora(args);
    assert_eq!(ran.code, Some(1), "{args:?}: {}", ran.stderr);
    assert!(ran.stdout.is_empty(), "{args:?} prints results before it fails");
    assert!(ran.stderr.starts_with(&format!("error[{code}]: ")), "{args:?} is not {code}: {}", ran.stderr);
    let hint = code.starts_with("E02") || ran.stderr.contains("help: ");
    assert!(hint, "{args:?} has no hint: {}", ran.stderr);
    for word in words {
        assert!(ran.stderr.contains(word), "{args:?} does not say `{word}`: {}", ran.stderr);
    }
    ran.stderr
}

/// The path of a file for this test, in a folder that cargo gives to tests.
pub fn scratch(name: &str) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("cli");
    std::fs::create_dir_all(&dir).expect("a folder");
    dir.join(name)
}

/// A file with this content; gives its path as text.
pub fn file(name: &str, content: impl AsRef<[u8]>) -> String {
    let path = scratch(name);
    std::fs::write(&path, content).expect("writable");
    path.to_str().expect("UTF-8").to_owned()
}
