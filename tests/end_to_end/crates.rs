//! The law of dependencies between the workspace's crates.

use std::collections::BTreeMap;
use std::process::Command;

/// What each crate may depend on, of the workspace's.
const LAW: &[(&str, &[&str])] = &[
    ("cora-ir", &[]),
    ("cora-frontend", &["cora-ir"]),
    ("cora-passes", &["cora-ir"]),
    ("cora-runtime", &[]),
    ("cora-ptxsim", &[]),
    ("cora-codegen-llvm", &["cora-ir", "cora-runtime"]),
    ("cora-codegen-cuda", &["cora-codegen-llvm", "cora-ir", "cora-runtime"]),
    ("cora-bench", &["cora"]),
    ("cora", &["cora-codegen-cuda", "cora-codegen-llvm", "cora-frontend", "cora-ir", "cora-passes", "cora-runtime"]),
];

#[test]
fn dependencies_keep_the_law() {
    let args = ["metadata", "--no-deps", "--offline", "--format-version", "1"];
    let out = Command::new(env!("CARGO")).args(args).current_dir(crate::support::root()).output().expect("cargo runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in metadata["packages"].as_array().expect("a list") {
        // Dependencies of tests are free: a test may compare two stages.
        let ours = package["dependencies"].as_array().expect("a list").iter();
        let ours = ours.filter(|d| d["kind"] != "dev" && d["source"].is_null());
        let mut names: Vec<String> = ours.map(|d| d["name"].as_str().expect("a name").to_owned()).collect();
        names.sort();
        names.dedup();
        found.insert(package["name"].as_str().expect("a name").to_owned(), names);
    }
    for (name, depends) in &found {
        let Some((_, may)) = LAW.iter().find(|(n, _)| n == name) else { panic!("the law does not know crate {name}") };
        for d in depends {
            assert!(may.contains(&d.as_str()), "{name} must not depend on {d}");
        }
    }
    for (name, _) in LAW {
        assert!(found.contains_key(*name), "crate {name} is gone");
    }
}

/// What must be absent from whole trees of dependencies, whoever brings it in.
#[test]
fn solvers_and_compilers_stay_out() {
    let absent: [(&str, &[&str]); 3] = [
        ("cora-runtime", &["mlir-sys", "melior", "z3", "egg", "cora-ir", "cora-passes", "cora-frontend"]),
        ("cora-ir", &["mlir-sys", "melior", "z3", "egg", "cudarc"]),
        ("cora-passes", &["mlir-sys", "melior", "cora-frontend", "cudarc"]),
    ];
    for (name, names) in absent {
        let args = ["tree", "--offline", "-e", "normal,build", "--prefix", "none", "-p", name];
        let root = crate::support::root();
        let out = Command::new(env!("CARGO")).args(args).current_dir(root).output().expect("cargo runs");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let tree = String::from_utf8_lossy(&out.stdout);
        for line in tree.lines() {
            let dependency = line.split(' ').next().unwrap_or_default();
            assert!(!names.contains(&dependency), "{name} brings in {dependency}");
        }
    }
}
