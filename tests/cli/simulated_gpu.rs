//! The runtime for GPUs on a stand-in for the driver: what is copied, allocated and launched, in which order, and what is
//! said where something is missing.

use crate::support::stand_in::{StandIn, exec};
use crate::tool::{file, scratch, succeeds};
use cora::runtime::Limits;
use cora::runtime::abi::{BufferKind, ProgramDesc};
use cora::runtime::artifact::{Artifact, Sample};
use cora::runtime::eval::eval;
use cora::runtime::prelude::{Batch, Prelude, Tables};
use std::process::Output;
use std::sync::Arc;

/// Alignment of tables and temporaries, and of blocks of memory.
const ALIGN: u64 = 256;

/// An artifact of a program with a sample, made without a device; gives its path and what it holds.
fn artifact(name: &str, args: &[&str]) -> (String, Artifact) {
    let path = scratch(&format!("{name}.gpu-artifact")).to_str().expect("UTF-8").to_owned();
    succeeds(&[&["run"], args, &["--emulate", "--artifact", &path]].concat());
    let artifact = read(&path);
    (path, artifact)
}

fn read(path: &str) -> Artifact {
    Artifact::from_bytes(&std::fs::read(path).expect("readable")).expect("an artifact")
}

fn write(path: &str, artifact: &Artifact) {
    std::fs::write(path, artifact.to_bytes().expect("it fits")).expect("writable");
}

/// Scaled products with a softmax over rows of these lengths.
fn softmax(name: &str, lengths: &str) -> (String, Artifact) {
    let count = lengths.split(' ').count();
    let lengths = format!("lens={}", file(&format!("{name}.lengths"), lengths));
    let param = format!("M={count}");
    let args = ["examples/ragged_softmax.cora", "--target", "cuda:sm_80", "--param", &param, "--lengths", &lengths];
    artifact(name, &args)
}

/// A small encoder layer on rows of these lengths.
fn encoder(name: &str, lengths: &str, more: &[&str]) -> (String, Artifact) {
    let count = lengths.split(' ').count();
    let lengths = format!("lens={}", file(&format!("{name}.lengths"), lengths));
    let param = format!("M={count}");
    let small = ["--const", "H=2", "--const", "D=16", "--const", "DM=32", "--const", "FF=64"];
    let args = ["examples/encoder_layer.cora", "--target", "cuda:sm_80", "--param", &param, "--lengths", &lengths];
    artifact(name, &[&args[..], &small[..], more].concat())
}

/// Runs `cora-exec` on the stand-in.
fn run(driver: &StandIn, args: &[&str]) -> Output {
    let out = driver.command(exec()).args(args).output().expect("cora-exec starts");
    assert!(!String::from_utf8_lossy(&out.stderr).contains("panicked"), "{out:?}");
    out
}

/// As [`run`], where everything is right; and no call of the driver failed, nothing is left allocated.
fn runs(driver: &StandIn, args: &[&str]) -> (Output, Vec<String>) {
    let out = run(driver, args);
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let lines = driver.lines();
    let wrong = |l: &&String| l.contains("->") || l.starts_with("leak") || l.starts_with("kernel");
    assert_eq!(lines.iter().find(wrong), None, "{lines:?}");
    (out, lines)
}

fn count(lines: &[String], beginning: &str) -> usize {
    lines.iter().filter(|l| l.starts_with(beginning)).count()
}

/// The number at the end of each line that begins so.
fn numbers(lines: &[String], beginning: &str) -> Vec<u64> {
    let rest = lines.iter().filter_map(|l| l.strip_prefix(beginning));
    rest.map(|r| r.trim().parse().expect("a number")).collect()
}

/// The tables of a sample.
fn tables(desc: &ProgramDesc, sample: &Sample) -> Tables {
    let batch = Batch { params: sample.params.clone(), lengths: sample.lengths.clone() };
    let prelude = Prelude::new(Arc::new(desc.clone())).expect("a valid description");
    prelude.build(&batch, &Limits::default()).expect("a valid batch")
}

/// What all tables take in one buffer.
fn table_bytes(tables: &Tables) -> u64 {
    tables.data().iter().map(|t| (t.bytes() as u64).next_multiple_of(ALIGN)).sum()
}

/// What is allocated where so many bytes are needed.
fn reserved(bytes: u64) -> u64 {
    (bytes + bytes / 8).max(1).next_multiple_of(ALIGN)
}

/// Bytes of each buffer of a program.
fn buffer_bytes(desc: &ProgramDesc, tables: &Tables) -> Vec<u64> {
    let bytes = |b: &cora::runtime::abi::BufferDesc| {
        let elems = eval(&b.elems, tables.env(), &[]).expect("a valid size");
        elems as u64 * b.dtype.size() as u64
    };
    desc.buffers.iter().map(bytes).collect()
}

/// The temporaries that are live in one run only.
fn temporaries(desc: &ProgramDesc) -> Vec<usize> {
    let of_setup = |b: usize| desc.setup_kernels.iter().any(|k| k.writes.contains(&(b as u32)));
    let temp = |b: &usize| matches!(desc.buffers[*b].kind, BufferKind::Temp | BufferKind::PerWorker) && !of_setup(*b);
    (0..desc.buffers.len()).filter(temp).collect()
}

#[test]
fn tables_take_one_copy() {
    let (path, artifact) = softmax("one-copy", "5 0 17 64 3");
    let bytes = table_bytes(&tables(&artifact.desc, &artifact.samples[0]));
    let driver = StandIn::new("one-copy", "");
    let (_, lines) = runs(&driver, &[&path, "--repeat", "5"]);
    // One before the runs, and behind the outputs one for each time that it is measured.
    let end = lines.iter().position(|l| l.starts_with("dtoh")).expect("outputs are read");
    assert_eq!(numbers(&lines[..end], "htod pinned"), [bytes], "{lines:?}");
    assert_eq!(numbers(&lines[end..], "htod pinned"), [bytes; 5], "{lines:?}");
    assert_eq!(numbers(&lines, "host_alloc"), [bytes.next_power_of_two()], "{lines:?}");
    assert_eq!(count(&lines, "launch"), 6 * artifact.desc.kernels.len(), "{lines:?}");
    // A batch that comes again finds its tables.
    let mut twice = artifact.clone();
    twice.samples.push(artifact.samples[0].clone());
    write(&path, &twice);
    let driver = StandIn::new("one-copy-twice", "");
    let (_, lines) = runs(&driver, &[&path]);
    assert_eq!(numbers(&lines, "htod pinned"), [bytes; 3], "one to run, two measured: {lines:?}");
    assert_eq!((count(&lines, "dtoh"), count(&lines, "host_alloc")), (2, 1), "{lines:?}");
    // The same from text.
    let driver = StandIn::new("one-copy-cora", "");
    let lengths = format!("lens={}", file("one-copy.lengths", "5 0 17 64 3"));
    let mut cora = driver.command(env!("CARGO_BIN_EXE_cora"));
    cora.args([
        "run",
        "examples/ragged_softmax.cora",
        "--target",
        "cuda:sm_80",
        "--param",
        "M=5",
        "--lengths",
        &lengths,
    ]);
    let out = cora.args(["--repeat", "4", "--check", "--json"]).output().expect("cora starts");
    assert!(out.status.success(), "{out:?}");
    let lines = driver.lines();
    assert_eq!(numbers(&lines, "htod pinned"), [bytes], "{lines:?}");
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let sizes = report["tables"].as_array().expect("a list").iter().map(|t| t["bytes"].as_u64().expect("a number"));
    assert_eq!(sizes.map(|b| b.next_multiple_of(ALIGN)).sum::<u64>(), bytes, "{report}");
    assert!(report["prelude_reused"] == true && report["ok"] == true, "{report}");
}

/// The device's memory is what the plan says: a block for each buffer that is not a temporary, one for tables, and one that
/// all temporaries share by when they are live.
#[test]
fn memory_has_a_limit() {
    let (path, _) = softmax("limited", "500 0 170");
    let driver = StandIn::new("limited", "");
    runs(&driver, &[&path, "--memory-limit", "1M"]);
    let out = run(&driver, &[&path, "--memory-limit", "4k"]);
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.code() == Some(1) && text.starts_with("error[E0312]: "), "{text}");
    assert!(text.contains("buffer `P`") && text.contains("4096 are allowed"), "{text}");
    let program = ["run", "examples/ragged_softmax.cora", "--target", "cuda:sm_80", "--param", "M=64"];
    let out = driver.command(env!("CARGO_BIN_EXE_cora")).args(program).args(["--memory-limit", "4k"]).output();
    let out = out.expect("cora starts");
    assert!(out.status.code() == Some(1) && String::from_utf8_lossy(&out.stderr).contains("E0312"), "{out:?}");
}

#[test]
fn memory_is_the_plan() {
    let (path, mut artifact) = encoder("plan", "9 2 0 21", &[]);
    let desc = &artifact.desc;
    let tables = tables(desc, &artifact.samples[0]);
    let bytes = buffer_bytes(desc, &tables);
    let temps = temporaries(desc);
    let all: u64 = temps.iter().map(|&b| bytes[b].next_multiple_of(ALIGN)).sum();
    let users = |b: usize| {
        let uses = |k: &cora::runtime::abi::KernelDesc| k.reads.contains(&(b as u32)) || k.writes.contains(&(b as u32));
        let mut users = (0..desc.kernels.len()).filter(|&k| uses(&desc.kernels[k]));
        let first = users.next().expect("a temporary is used");
        first..=users.next_back().unwrap_or(first)
    };
    let live =
        |k: usize| temps.iter().filter(|&&b| users(b).contains(&k)).map(|&b| bytes[b].next_multiple_of(ALIGN)).sum();
    let most: u64 = (0..desc.kernels.len()).map(live).max().expect("kernels");
    let driver = StandIn::new("plan", "");
    let (out, lines) = runs(&driver, &[&path, "--json", "--repeat", "3"]);
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let arena = report["memory"]["temps"].as_u64().expect("a number");
    assert!(most <= arena && arena < all, "{most} bytes are live at once, {arena} of {all} are used");
    let own = (0..bytes.len()).filter(|b| !temps.contains(b)).map(|b| reserved(bytes[b]));
    let mut want: Vec<u64> = own.chain([reserved(0), reserved(arena), reserved(table_bytes(&tables))]).collect();
    let mut got = numbers(&lines, "alloc");
    want.sort_unstable();
    got.sort_unstable();
    assert_eq!(got, want, "{lines:?}");
    let mut freed = numbers(&lines, "free");
    freed.sort_unstable();
    assert_eq!(freed, want, "{lines:?}");
    // Another batch of the same sizes needs no memory.
    let (_, other) = encoder("plan-other", "21 9 2 0", &[]);
    artifact.samples.push(other.samples[0].clone());
    write(&path, &artifact);
    let driver = StandIn::new("plan-twice", "");
    let (_, lines) = runs(&driver, &[&path]);
    let first = lines.iter().position(|l| l.starts_with("launch")).expect("kernels run");
    let last = lines.iter().rposition(|l| l.starts_with("dtoh")).expect("outputs are read");
    let steady = &lines[first..last];
    assert_eq!((count(steady, "alloc"), count(steady, "host_alloc"), count(steady, "free")), (0, 0, 0), "{lines:?}");
    assert_eq!(count(&lines, "htod pinned"), 4, "two batches, two measurements: {lines:?}");
    assert_eq!(count(&lines, "load"), 1, "{lines:?}");
}

#[test]
fn runs_are_captured() {
    let (path, artifact) = encoder("captured", "9 2 1 21", &["--device-prelude"]);
    let driver = StandIn::new("captured", "");
    let (_, lines) = runs(&driver, &[&path, "--graph", "--repeat", "3"]);
    let begin = lines.iter().position(|l| l == "begin_capture").expect("a capture");
    let end = lines.iter().position(|l| l.starts_with("end_capture")).expect("its end");
    let captured = &lines[begin + 1..end];
    assert!(!captured.is_empty() && count(captured, "launch") == captured.len(), "{captured:?}");
    assert_eq!(lines[end], format!("end_capture {}", captured.len()));
    // Shorter rows, then the batch's own again: only lengths are copied, which kernels make tables of.
    let last = lines.iter().rposition(|l| l == "graph_launch").expect("replays");
    let replays = &lines[end + 1..last];
    assert_eq!(count(replays, "graph_launch"), 3, "{lines:?}");
    assert_eq!(numbers(replays, "htod pageable").len(), 2, "{lines:?}");
    let table = artifact.desc.extents[0].table as usize;
    let lengths = tables(&artifact.desc, &artifact.samples[0]).data()[table].bytes() as u64;
    assert!(numbers(replays, "htod pageable").iter().all(|&b| b == lengths), "{lines:?}");
    let others = ["htod pinned", "launch", "alloc", "host_alloc", "free", "memset"];
    assert_eq!(others.map(|l| count(replays, l)), [0; 6], "{lines:?}");
    // Without tables by kernels the same runs are replayed on the tables that were copied.
    let (path, _) = softmax("captured-softmax", "5 0 17");
    let driver = StandIn::new("captured-softmax", "");
    let (_, lines) = runs(&driver, &[&path, "--graph", "--repeat", "3"]);
    assert_eq!((count(&lines, "graph_launch"), count(&lines, "begin_capture")), (3, 1), "{lines:?}");
    // What nobody wrote is filled before each of them, not in the graph.
    let driver = StandIn::new("captured-poison", "");
    let (_, lines) = runs(&driver, &[&path, "--graph", "--poison"]);
    let end = lines.iter().position(|l| l.starts_with("end_capture")).expect("a capture");
    assert!(count(&lines[end..], "memset") > 0, "{lines:?}");
}

#[test]
fn instances_run_at_once() {
    let (path, artifact) = encoder("streams", "9 2 1 21", &["--device-prelude"]);
    let driver = StandIn::new("streams", "");
    let (out, lines) = runs(&driver, &[&path, "--streams", "2", "--repeat", "2", "--json"]);
    let of = ["load", "host_alloc", "begin_capture", "end_capture"].map(|l| count(&lines, l));
    assert_eq!(of, [2; 4], "{lines:?}");
    // Each once with short rows, and twice.
    assert_eq!(count(&lines, "graph_launch"), 2 * (1 + 2), "{lines:?}");
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    assert!(report.get("threads").is_none(), "a GPU has no worker threads: {report}");
    let outputs = artifact.desc.tensors.iter().filter(|t| t.role == cora::runtime::abi::Role::Output).count();
    assert_eq!(report["checks"].as_array().map(Vec::len), Some(2 * outputs), "those of all are checked: {report}");
}

#[test]
fn memory_is_filled_before_runs() {
    let (path, artifact) = encoder("poison", "9 2 0 21", &[]);
    let driver = StandIn::new("poison", "");
    let (out, lines) = runs(&driver, &[&path, "--poison", "--json", "--repeat", "2"]);
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let arena = reserved(report["memory"]["temps"].as_u64().expect("a number"));
    assert_eq!(numbers(&lines, "memset").iter().filter(|&&b| b == arena).count(), 3, "{lines:?}");
    let setup = artifact.desc.setup_kernels.len();
    assert_eq!(count(&lines, "launch"), 3 * artifact.desc.kernels.len() + setup, "setup runs once: {lines:?}");
    let driver = StandIn::new("flush", "");
    let (_, lines) = runs(&driver, &[&path, "--flush", "1", "--repeat", "2"]);
    assert_eq!(numbers(&lines, "memset"), [1 << 20; 3], "{lines:?}");
    assert!(numbers(&lines, "alloc").contains(&reserved(1 << 20)), "{lines:?}");
    // More than there can be is a mistake of the user's.
    let out = run(&StandIn::new("flush-all", ""), &[&path, "--flush", "99999999999999999"]);
    refused(&out, &["what is written between runs"]);
}

/// Exit code 1, the code of what a device lacks, and these words.
fn refused(out: &Output, words: &[&str]) {
    let text = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{out:?}");
    assert!(text.contains("error[E0336]: ") && text.contains("help: "), "{text}");
    assert!(out.stdout.is_empty() && !text.contains("panicked"), "{out:?}");
    for word in words {
        assert!(text.contains(word), "it does not say `{word}`: {text}");
    }
}

#[test]
fn what_is_missing_is_said() {
    let (path, artifact) = encoder("missing", "9 2 0 21", &[]);
    let cases: [(&str, &[&str]); 6] = [
        ("devices=0", &["there is no CUDA device on this machine"]),
        ("init=100", &["the CUDA driver does not start: no CUDA-capable device is detected"]),
        ("init=803", &["the CUDA driver does not start: system has unsupported display driver"]),
        ("arch=70", &["the driver refuses the code", "SM version specified by .target is higher"]),
        ("version=10020", &["the driver refuses the code", "Unsupported .version 7.0; current version is '6.2'"]),
        ("memory=4096", &["bytes for temporaries on the device: out of memory"]),
    ];
    for (device, words) in cases {
        let driver = StandIn::new(&format!("missing-{device}"), device);
        refused(&run(&driver, &[&path]), words);
        let mut cora = driver.command(env!("CARGO_BIN_EXE_cora"));
        cora.args(["run", "examples/encoder_layer.cora", "--target", "cuda:sm_80", "--param", "M=2"]);
        refused(&cora.args(["--const", "FF=64"]).output().expect("cora starts"), words);
        assert!(!driver.lines().iter().any(|l| l.starts_with("leak")), "{:?}", driver.lines());
    }
    // Enough for some buffers; and those that were allocated are freed.
    let driver = StandIn::new("missing-buffer", "memory=60000");
    refused(&run(&driver, &[&path]), &["bytes for buffer `", "out of memory"]);
    let lines = driver.lines();
    assert!(count(&lines, "alloc") > 0 && count(&lines, "alloc") == count(&lines, "free"), "{lines:?}");
    // Too old for graphs only.
    let old = "version=11000";
    runs(&StandIn::new("old", old), &[&path]);
    refused(&run(&StandIn::new("old-graph", old), &[&path, "--graph"]), &["CUDA 11.0: graphs need 11.4"]);
    // Text that was damaged after the artifact was checked.
    let text = String::from_utf8(artifact.code.clone()).expect("text");
    let damaged = Artifact { code: text.replacen("fma.rn.f32", "fmx.rn.f32", 1).into_bytes(), ..artifact.clone() };
    write(&path, &damaged);
    refused(&run(&StandIn::new("damaged", ""), &[&path]), &["the driver refuses the code", "line ", "fmx"]);
    // A kernel of another name.
    let renamed = Artifact { code: text.replace("cora_", "kora_").into_bytes(), ..artifact.clone() };
    write(&path, &renamed);
    let out = run(&StandIn::new("renamed", ""), &[&path]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.code() == Some(1) && said.starts_with("error[E03") && said.contains("cora_"), "{out:?}");
}

#[test]
fn a_driver_without_tensor_maps_is_too_old() {
    let lengths = format!("lens={}", file("maps.lengths", "100 0 40"));
    let args = ["examples/projection_bf16.cora", "--target", "cuda:sm_90a", "--schedule", "cuda_tma", "--param", "M=3"];
    let sizes = ["--lengths", &lengths, "--const", "DI=320", "--const", "DO=128"];
    let (path, _) = artifact("maps", &[&args[..], &sizes[..]].concat());
    runs(&StandIn::new("maps", ""), &[&path]);
    refused(&run(&StandIn::new("maps-old", "version=11080"), &[&path]), &["CUDA 11.8: tensor maps need 12.0"]);
    refused(&run(&StandIn::new("maps-other", "arch=100"), &[&path]), &["the driver refuses the code"]);
}

/// A kernel that goes astray fails the run, with the driver's words; nothing is printed as a result.
#[test]
fn faults_of_kernels_are_errors() {
    let (path, mut artifact) = softmax("fault", "5 0 17");
    let text = String::from_utf8(artifact.code).expect("text");
    let store = text.find("st.global").expect("a store");
    let at = store + text[store..].find(']').expect("an address");
    artifact.code = format!("{}+1073741824{}", &text[..at], &text[at..]).into_bytes();
    write(&path, &artifact);
    let driver = StandIn::new("fault", "");
    refused(&run(&driver, &[&path]), &["running on the device: an illegal memory access was encountered"]);
    assert!(driver.lines().iter().any(|l| l.starts_with("kernel cora_")), "{:?}", driver.lines());
    // What comes behind is not run on a device that may be spoiled, and is told of.
    let (other, _) = softmax("behind", "5 0 17");
    let out = run(&StandIn::new("fault-first", ""), &[&path, &other, "--json"]);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let reports: Vec<serde_json::Value> = text.lines().map(|l| serde_json::from_str(l).expect("an object")).collect();
    assert!(out.status.code() == Some(1) && reports.len() == 2, "{out:?}");
    assert_eq!(reports[1]["artifact"], *other);
    assert!(reports[1]["error"].as_str().is_some_and(|e| e.contains("not run")), "{reports:?}");
}
