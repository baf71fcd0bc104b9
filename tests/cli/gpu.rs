//! The scripts for machines with a GPU (`scripts/gpu`): what is packed is read where it is unpacked.

use crate::support::root;
use crate::tool::scratch;
use std::process::Command;

#[test]
fn a_bundle_is_read() {
    let python = Command::new("python3").arg("--version").output();
    if !python.is_ok_and(|o| o.status.success()) {
        println!("SKIP a_bundle_is_read: there is no python3");
        return;
    }
    let exec = crate::artifact::exec();
    let folder = scratch("gpu-bundle");
    let _ = std::fs::remove_dir_all(&folder);
    let only = ["--kernels", "0", "--only", "tradd,layer-norm"];
    let packed = Command::new("python3")
        .arg(root().join("scripts/gpu/bundle.py"))
        .arg(&folder)
        .args(only)
        .env("CORA_BIN", exec.parent().expect("a folder"))
        .output()
        .expect("python3 starts");
    assert!(packed.status.success(), "{packed:?}");
    let run = |args: &[&str]| {
        let out = Command::new(folder.join("run.sh")).args(args).output().expect("bash starts");
        (out.status.code(), String::from_utf8_lossy(&out.stdout).into_owned(), out)
    };
    let (code, text, out) = run(&["--dry-run"]);
    // tradd: its own and the default schedule, tables by kernels if they can be, and what is timed: it, and layer-norm
    // with lengths and with a constant.
    assert!(code == Some(0) && text.contains("artifacts for sm_90 are read"), "{out:?}");
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
