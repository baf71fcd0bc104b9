//! Artifacts: written by `cora`, run by `cora-exec`, which has no compiler in its process.

use crate::support::skip::skip;
use crate::support::stand_in::exec;
use crate::support::{files, in_parallel, report, root, small, stem};
use crate::tool::{cora, file, refuses, scratch, succeeds};
use cora::runtime::abi::{Ix, Role};
use cora::runtime::artifact::Artifact;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// Runs `cora-exec`.
pub fn run(args: &[&str]) -> Output {
    let out = Command::new(exec()).args(args).current_dir(root()).output().expect("cora-exec starts");
    assert!(!String::from_utf8_lossy(&out.stderr).contains("panicked"), "{out:?}");
    out
}

/// Runs an artifact that is refused with this code; what is said about it.
pub fn refused(args: &[&str], code: &str) -> String {
    let out = run(args);
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(1), "{args:?}: {out:?}");
    assert!(text.starts_with(&format!("error[{code}]: ")) && text.contains("help: "), "{args:?}: {text}");
    assert!(out.stdout.is_empty(), "{args:?}");
    text
}

/// An artifact of softmax with a sample.
pub fn softmax(name: &str) -> String {
    let path = scratch(name).to_str().expect("UTF-8").to_owned();
    let args = ["run", "examples/ragged_softmax.cora", "--artifact", &path];
    assert_eq!(cora(&args).code, Some(0));
    path
}

#[test]
fn artifacts_run_alone() {
    let path = softmax("softmax.cora-artifact");
    let out = run(&[&path]);
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && text.contains("ok:") && out.stdout.is_empty(), "{out:?}");
    assert!(String::from_utf8_lossy(&run(&[&path, "--info"]).stdout).contains("with a sample"));
    // The same library again, as `compile` writes it: no sample.
    let plain = scratch("plain.cora-artifact").to_str().expect("UTF-8").to_owned();
    succeeds(&["compile", "examples/ragged_softmax.cora", "--emit", "artifact", "-o", &plain]);
    assert!(String::from_utf8_lossy(&run(&[&plain, "--info"]).stdout).contains("without a sample"));
    assert_eq!(run(&[&plain]).status.code(), Some(1), "lengths are missing");
    assert_eq!(run(&[]).status.code(), Some(2));
}

/// A run takes its buffers and little else: no tensor is there twice.
#[test]
fn memory_is_what_is_planned() {
    let text = "param M in 0..=4096
        extent lens(b) in 0..=512
        dim b = M, q = lens(b), d = 64
        input X[b, q, d] : f32
        S[b, q] = sum(d) X
        Y[b, q, d] = X / S[b, q]
        output Y";
    let (program, path) = (file("planned.cora", text), scratch("planned.artifact"));
    let path = path.to_str().expect("UTF-8");
    succeeds(&["compile", &program, "--emit", "artifact", "-o", path]);
    let lengths = file("planned.lengths", "500 ".repeat(512));
    let out = run(&[path, "--param", "M=512", "--lengths", &format!("lens={lengths}"), "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let planned: u64 = report["memory"].as_object().expect("memory").values().filter_map(|v| v.as_u64()).sum();
    let tensor = 500 * 512 * 64 * 4;
    assert!(planned >= 2 * tensor, "{report}");
    let peak = report["peak_bytes"].as_u64().expect("Linux tells");
    assert!(peak <= planned + (32 << 20), "{report}");
}

/// What is mapped into `cora-exec` while it runs an artifact again and again.
fn maps(path: &str) -> String {
    let mut child = Command::new(exec())
        .args([path, "--repeat", "100000000"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("cora-exec starts");
    let maps = PathBuf::from(format!("/proc/{}/maps", child.id()));
    let mut text = String::new();
    // The kernels' library is mapped last.
    for _ in 0..500 {
        text = std::fs::read_to_string(&maps).unwrap_or_default();
        if text.contains(".so (deleted)") {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    child.kill().expect("it is ours");
    child.wait().expect("it ends");
    text
}

#[test]
fn every_example_runs_without_a_compiler() {
    report(&in_parallel(&files("examples", "cora"), |program| {
        let (name, path) = (stem(program), scratch(&format!("{}.example", stem(program))));
        let path = path.to_str().expect("UTF-8");
        let consts = small(&name).iter().flat_map(|(n, v)| ["--const".to_owned(), format!("{n}={v}")]);
        let mut args =
            vec!["run".to_owned(), format!("examples/{name}.cora"), "--artifact".to_owned(), path.to_owned()];
        args.extend(consts);
        // Those for machines with certain features do not all fit small sizes.
        let text = std::fs::read_to_string(program).expect("readable");
        if text.contains("\nschedule cpu {") || text.contains("\nschedule cpu_amx ") {
            args.extend(["--schedule", "cpu"].map(str::to_owned));
        }
        let made = cora(&args.iter().map(String::as_str).collect::<Vec<_>>());
        if made.code != Some(0) {
            return vec![format!("{name}: {}", made.stderr)];
        }
        let out = run(&[path]);
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        if !out.status.success() || !text.contains("ok:") {
            return vec![format!("{name}: {text}")];
        }
        let mapped = maps(path);
        let mut complaints = Vec::new();
        if !mapped.contains("(deleted)") {
            complaints.push(format!("{name}: its kernels are not loaded\n{mapped}"));
        }
        for library in ["LLVM", "MLIR", "libz3", "libclang"] {
            if mapped.contains(library) {
                complaints.push(format!("{name}: {library} is mapped\n{mapped}"));
            }
        }
        complaints
    }));
}

#[test]
fn damaged_artifacts_are_refused() {
    let path = softmax("damaged.cora-artifact");
    let mut bytes = std::fs::read(&path).expect("written");
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    std::fs::write(&path, &bytes).expect("writable");
    let out = run(&[&path]);
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&out.stderr).starts_with("error[E0337]: "), "{out:?}");
    let other = scratch("arm.cora-artifact").to_str().expect("UTF-8").to_owned();
    let args = ["compile", "examples/listing1.cora", "--target-cpu", "neoverse-n1", "--emit", "artifact", "-o", &other];
    assert_eq!(cora(&args).code, Some(0));
    let out = run(&[&other, "--param", "M=1"]);
    assert!(String::from_utf8_lossy(&out.stderr).starts_with("error[E0334]: "), "{out:?}");
}

/// A description that was altered under a right checksum: an output's buffer that does not hold it.
#[test]
fn buffers_hold_their_tensors() {
    let path = softmax("forged.cora-artifact");
    let mut artifact = Artifact::from_bytes(&std::fs::read(&path).expect("written")).expect("an artifact");
    let output = artifact.desc.tensors.iter().find(|t| t.role == Role::Output).expect("an output").buffer;
    artifact.desc.buffers[output as usize].elems = Ix::Const(0);
    std::fs::write(&path, artifact.to_bytes().expect("encodes")).expect("writable");
    assert!(refused(&[&path], "E0315").contains("outside its buffer of 0 elements"));
}

#[test]
fn a_gpu_that_is_not_there() {
    if std::path::Path::new("/dev/nvidiactl").exists() {
        skip("the message without a GPU: there is one");
        return;
    }
    refuses(&["run", "examples/listing1.cora", "--target", "cuda"], "E0336", &["no CUDA driver"]);
    let path = scratch("gpu.cora-artifact").to_str().expect("UTF-8").to_owned();
    let args = ["run", "examples/listing1.cora", "--target", "cuda:sm_90", "--emulate", "--check", "--artifact", &path];
    assert_eq!(cora(&args).code, Some(0));
    let out = run(&[&path]);
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&out.stderr).contains("error[E0336]"), "{out:?}");
    refuses(&["compile", "examples/listing1.cora", "--target", "cuda:sm_20"], "E0605", &["sm_90a"]);
    refuses(&["compile", "examples/listing1.cora", "--emit", "ptx"], "E0610", &[]);
}

/// An element whose rounding is enlarged by cancellation or cut to an integer is compared with a bound of its own, here as
/// in `cora run --check`.
#[test]
fn samples_allow_what_the_check_allows() {
    let program = "param M in 0..=64
        extent lens(b) in 0..=300
        dim b = M, k = lens(b), d = 64
        input A[b, k, d] : f32
        input B[b, d] : f32
        S[b, k] = sum(d) A[b, k, d] * B[b, d]
        Z[b, k] = i32(S[b, k] * 1000000.0)
        C[b, k] = S[b, k] - sum(d) A[b, k, d] * B[b, d] * 1.0000001
        output Z, C";
    let program = crate::tool::file("cancel.cora", program);
    let path = scratch("cancel.cora-artifact").to_str().expect("UTF-8").to_owned();
    succeeds(&["run", &program, "--param", "M=16", "--check", "--artifact", &path]);
    let out = run(&[&path]);
    assert!(out.status.success(), "{out:?}");
}

/// Bounds that follow from a whole layer still say something.
#[test]
fn samples_of_a_long_chain_are_informative() {
    let path = scratch("layer.cora-artifact").to_str().expect("UTF-8").to_owned();
    let lengths = crate::tool::file("layer.lengths", "3\n7\n");
    let given = format!("lens={lengths}");
    let program = "examples/encoder_layer.cora";
    succeeds(&["run", program, "--param", "M=2", "--lengths", &given, "--artifact", &path]);
    let out = run(&[&path]);
    let text = String::from_utf8_lossy(&out.stderr);
    let allowed = text.split("allowed ").nth(1).and_then(|t| t.split_whitespace().next()).and_then(|t| t.parse().ok());
    assert!(allowed.is_some_and(|a: f64| a > 0.0 && a < 1e-2), "{text}");
}

#[test]
fn offloaded_products() {
    if let Err(e) = cora::runtime::blas::library() {
        skip(&format!("offloaded_products: {e}"));
        return;
    }
    let program = "param B in 0..=4
        extent m(b) in 0..=30, n(b) in 0..=30, k(b) in 0..=30
        dim b = B, i = m(b), j = n(b), l = k(b)
        input X[b, i, l] : f32
        input Y[b, l, j] : f32
        Z[b, i, j] = sum(l) X[b, i, l] * Y[b, l, j]
        output Z
        schedule cpu { split Z.i 8 -> io, ii; fuse Z.b Z.io -> t; parallel Z.t; offload Z.ii }";
    let program = crate::tool::file("offload.cora", program);
    let path = scratch("offload.cora-artifact").to_str().expect("UTF-8").to_owned();
    succeeds(&["run", &program, "--check", "--artifact", &path]);
    let out = run(&[&path]);
    assert!(out.status.success() && String::from_utf8_lossy(&out.stderr).contains("ok:"), "{out:?}");
    // Without the library neither the program nor its artifact is loaded, and both say so.
    let nowhere = |command: &mut Command| command.env("CORA_BLAS", "/nowhere/libblas.so").output().expect("it starts");
    let runs = [
        nowhere(Command::new(exec()).arg(&path)),
        nowhere(Command::new(env!("CARGO_BIN_EXE_cora")).args(["run", &program])),
    ];
    for out in runs {
        let text = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.code() == Some(1) && text.contains("error[E0338]") && text.contains("/nowhere"), "{out:?}");
    }
    // A GPU calls no library.
    let ptx = ["compile", &program, "--target", "cuda:sm_80", "--schedule", "gpu", "--emit", "ptx"];
    let text = std::fs::read_to_string(&program).expect("readable").replace("schedule cpu", "schedule gpu");
    std::fs::write(&program, text.replace("; parallel Z.t", "")).expect("writable");
    let ran = crate::tool::cora(&ptx);
    assert!(
        ran.code == Some(1) && ran.stderr.contains("error[E0611]") && ran.stderr.contains("offload"),
        "{}",
        ran.stderr
    );
}

/// Reversed rows of bytes: AVX512-VBMI has an instruction for it.
const BYTES: &str = "param M in 0..=64
extent lens(batch) in 0..=100
dim batch = M, len = lens(batch)
input A[batch, len] : i8
input C[batch, len] : i8
B[batch, len] = A[batch, lens(batch) - 1 - len] * C[batch, len] + max(A[batch, len], C[batch, len])
output B
";

/// On a machine that lacks something, the code must not be entered; where it lacks nothing, the results are right.
#[test]
fn code_for_other_processors_is_refused() {
    let program = file("bytes.cora", BYTES);
    let lengths = file("bytes.txt", "7 0 64 33");
    let batch = ["--param", "M=4", "--lengths", &format!("lens={lengths}")];
    for cpu in ["icelake-server", "sapphirerapids", "diamondrapids", "bdver1", "bdver4", "znver5", "neoverse-n1"] {
        let path = scratch(&format!("bytes-{cpu}.art")).to_str().expect("UTF-8").to_owned();
        succeeds(&["compile", &program, "--target-cpu", cpu, "--emit", "artifact", "-o", &path]);
        let args = [&[path.as_str()], &batch[..]].concat();
        let out = run(&args);
        let why = String::from_utf8_lossy(&out.stderr).into_owned();
        let refused = out.status.code() == Some(1) && why.starts_with("error[E0334]: ");
        assert!(refused || out.status.success(), "{cpu}: {out:?}");
        let ran = cora(&[&["run", &program, "--target-cpu", cpu, "--check"], &batch[..]].concat());
        assert_eq!(ran.code, out.status.code(), "{cpu}: {}", ran.stderr);
        assert_eq!(ran.stderr.starts_with("error[E0334]: "), refused, "{cpu}: {}", ran.stderr);
    }
    // Tile registers are asked for by code that has them alone.
    let tiles = |schedule: &str| {
        let path = scratch(&format!("tiles-{schedule}.art")).to_str().expect("UTF-8").to_owned();
        let args = ["--schedule", schedule, "--target-cpu", "sapphirerapids", "--emit", "artifact", "-o", &path];
        succeeds(&[&["compile", "examples/projection_bf16.cora"], &args[..]].concat());
        let bytes = std::fs::read(&path).expect("written");
        let named = bytes.windows(8).any(|w| w == b"amx-tile");
        assert_eq!(named, schedule == "cpu_amx", "{schedule}");
        let out = run(&[&[path.as_str()], &batch[..]].concat());
        let why = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success() || why.starts_with("error[E0334]: "), "{schedule}: {out:?}");
    };
    tiles("cpu");
    tiles("cpu_amx");
    // The host's own code has every extension that it names.
    let path = scratch("bytes-host.art").to_str().expect("UTF-8").to_owned();
    succeeds(&["compile", &program, "--emit", "artifact", "-o", &path]);
    let out = run(&[&[path.as_str()], &batch[..]].concat());
    assert!(out.status.success(), "{out:?}");
}
