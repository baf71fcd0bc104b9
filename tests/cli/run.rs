//! `cora run`: exit codes, JSON, tensors in files.

use crate::support::root;
use crate::tool::{cora, file, refuses, scratch, succeeds};
use cora::runtime::abi::DType;
use cora::runtime::array::{RaggedArray, Shape};
use cora::runtime::npy;
use serde_json::Value;
use std::process::Command;

const LISTING: &str = "examples/listing1.cora";

/// Writes a one-dimensional array of f32.
fn floats(name: &str, values: &[f32]) -> String {
    array(name, DType::F32, vec![values.len() as u64], values)
}

fn array<T: cora::runtime::array::Element>(name: &str, dtype: DType, shape: Vec<u64>, values: &[T]) -> String {
    let path = scratch(name);
    let array = RaggedArray::from_slice(dtype, Shape::Dense(shape), values).expect("as many as the shape");
    npy::write(&path, &array).expect("writable");
    path.to_str().expect("UTF-8").to_owned()
}

fn read(path: &str) -> (Vec<u64>, Vec<f32>) {
    let bytes = std::fs::read(path).expect("an output");
    let header_end = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let header = String::from_utf8_lossy(&bytes[10..header_end]).into_owned();
    let shape = header.split("'shape': (").nth(1).and_then(|s| s.split(')').next()).expect("a shape");
    let shape = shape.split(',').filter_map(|n| n.trim().parse().ok()).collect();
    let data = bytes[header_end..].chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    (shape, data)
}

#[test]
fn factors_signs_and_casts_are_no_work() {
    let flops = |term: &str| {
        let text = format!(
            "param M in 0..=8\ndim b = M, k = 5\ninput A[b, k] : f32\ninput B[b, k] : f32\nY[b] = sum(k) {term}\noutput Y"
        );
        let program = crate::tool::file(&format!("work{}.cora", term.len()), &text);
        let out = succeeds(&["run", &program, "--param", "M=3", "--json"]);
        let report: Value = serde_json::from_str(&out).expect("JSON");
        report["kernels"][0]["useful_flops"].as_f64()
    };
    for term in ["A * B", "0.5 * A * B", "-(A * B * 0.25)", "2.0 * f32(f64(A * B))"] {
        assert_eq!(flops(term), Some(30.0), "{term}");
    }
    assert_eq!(flops("0.5 * A + 1.0"), Some(0.0));
}

#[test]
fn exit_codes() {
    assert_eq!(cora(&["--help"]).code, Some(0));
    assert_eq!(cora(&["--version"]).code, Some(0));
    assert_eq!(cora(&["run", LISTING]).code, Some(0));
    assert_eq!(cora(&["run", "examples/nothing.cora"]).code, Some(1));
    let usage: [&[&str]; 8] = [
        &[],
        &["fly"],
        &["run"],
        &["run", LISTING, "--no-such-option"],
        &["run", LISTING, "--param", "M"],
        &["run", LISTING, "--param", "M=many"],
        &["run", LISTING, "--repeat", "-1"],
        &["compile", LISTING, "--emit", "poetry"],
    ];
    for args in usage {
        let ran = cora(args);
        assert_eq!(ran.code, Some(2), "{args:?}: {}", ran.stderr);
        assert!(ran.stdout.is_empty() && !ran.stderr.is_empty(), "{args:?}");
    }
}

/// Code and reference differ where a sum overflows on its way. Where rounding errors are all that is left
/// of it they do not: the bound follows from the summands.
#[test]
fn mismatch_exits_with_3() {
    let program = file(
        "cancel.cora",
        "param M in 0..=9\ndim b = M, k = 3\ninput A[b, k] : f32\nS[b] = sum(k) A[b, k]\noutput S\n",
    );
    let good = array("cancel_good.npy", DType::F32, vec![1, 3], &[1.0_f32, 2.0, 3.0]);
    let tiny = array("cancel_tiny.npy", DType::F32, vec![1, 3], &[1e8_f32, 1.0, -1e8]);
    let bad = array("cancel_bad.npy", DType::F32, vec![1, 3], &[3e38_f32, 3e38, -3e38]);
    let run =
        |input: &str| cora(&["run", &program, "--param", "M=1", "--check", "--json", "--input", &format!("A={input}")]);
    for fine in [&good, &tiny] {
        let ran = run(fine);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    }
    let ran = run(&bad);
    assert_eq!(ran.code, Some(3), "{}", ran.stderr);
    assert!(ran.stderr.contains("error[E0700]") && ran.stderr.contains("element 0"), "{}", ran.stderr);
    let report: Value = serde_json::from_slice(&ran.stdout).expect("the report is printed all the same");
    assert_eq!(report["ok"], false);
}

/// Equal terms are all rounded one way, and the root of what rounding errors leave of 0 is far from 0: neither is a mismatch.
#[test]
fn rounding_one_way_is_no_mismatch() {
    let program = file(
        "one_way.cora",
        "param M in 0..=9\ndim b = M, k = 50000\ninput x[b] : f32\nS[b] = sum(k) x[b]\n\
         g[b] = x + 2.0 * x + x - x - 2.0 * x - x\nh[b] = sqrt(g * g)\noutput S, h\n",
    );
    succeeds(&["run", &program, "--param", "M=9", "--check"]);
}

#[test]
fn json_has_the_documented_fields() {
    let out = succeeds(&["run", LISTING, "--param", "M=5", "--check", "--repeat", "3", "--threads", "2", "--json"]);
    assert_eq!(out.lines().count(), 1, "one object a line");
    let report: Value = serde_json::from_str(&out).expect("JSON");
    for (field, value) in [("program", "listing1"), ("target", "cpu")] {
        assert_eq!(report[field], value);
    }
    assert_eq!((&report["ok"], &report["padded"], &report["threads"]), (&true.into(), &false.into(), &2.into()));
    assert_eq!(report["prelude_reused"], true);
    for field in ["compile_ms", "prelude_ms", "total_ms"] {
        assert!(report[field].as_f64().is_some_and(|x| x >= 0.0), "{field}");
    }
    let rows = |list: &str| report[list].as_array().unwrap_or_else(|| panic!("{list} is a list")).clone();
    for kernel in rows("kernels") {
        assert!(kernel["kernel"].is_string());
        for field in ["ms", "useful_flops", "useful_gflops", "padding_share"] {
            assert!(kernel[field].is_number(), "{field}");
        }
    }
    assert!(!rows("kernels").is_empty() && !rows("tables").is_empty());
    assert!(rows("tables").iter().all(|t| t["name"].is_string() && t["bytes"].is_u64()));
    for field in ["tables", "inputs", "outputs", "temps", "slots"] {
        assert!(report["memory"][field].is_u64(), "memory.{field}");
    }
    let [check] = &rows("checks")[..] else { panic!("one output") };
    assert_eq!(check["output"], "B");
    assert!(check["elements"].as_u64() > Some(0) && check["max_error"].is_number() && check["tolerance"].is_number());
}

#[test]
fn one_compile_serves_several_batches() {
    let out = succeeds(&["run", LISTING, "--param", "M=1,0,7", "--check", "--json"]);
    let reports: Vec<Value> = out.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
    let batches: Vec<_> = reports.iter().map(|r| r["batch"][0].clone()).collect();
    assert_eq!(batches, [serde_json::json!(["M", 1]), serde_json::json!(["M", 0]), serde_json::json!(["M", 7])]);
    assert!(reports.iter().all(|r| r["ok"] == true && r["compile_ms"] == reports[0]["compile_ms"]));
    refuses(&["run", LISTING, "--param", "M=1,2", "--output", "B=b.npy"], "E0606", &["--output"]);
    refuses(&["run", "examples/vgemm.cora", "--param", "M=1,2", "--param", "B=1,2,3"], "E0606", &["`M`", "2", "3"]);
}

#[test]
fn people_read_stderr() {
    let ran = cora(&["run", LISTING, "--check=2"]);
    assert_eq!(ran.code, Some(0));
    assert!(ran.stdout.is_empty(), "standard output is for results");
    assert!(ran.stderr.contains("kernel") && ran.stderr.contains("check B"), "{}", ran.stderr);
}

#[test]
fn ragged_tensors_go_through_files() {
    let lengths = file("rows.txt", "3 0\n2\n");
    let input = floats("a.npy", &[1.0, 2.0, 3.0, 4.0, 5.0]);
    for target in ["cpu", "interp"] {
        let output = scratch(&format!("b_{target}.npy")).to_str().expect("UTF-8").to_owned();
        let (l, i, o) = (format!("lens={lengths}"), format!("A={input}"), format!("B={output}"));
        let options = ["--target", target, "--param", "M=3", "--lengths", &l, "--input", &i, "--output", &o];
        succeeds(&[&["run", LISTING][..], &options].concat());
        assert_eq!(read(&output), (vec![5], vec![2.0, 4.0, 6.0, 8.0, 10.0]), "{target}");
        // What was written can be read: twice as much again.
        let (i, o) = (format!("A={output}"), format!("B={output}.again"));
        let options = ["--target", target, "--param", "M=3", "--lengths", &l, "--input", &i, "--output", &o];
        succeeds(&[&["run", LISTING][..], &options].concat());
        assert_eq!(read(&format!("{output}.again")).1, [4.0, 8.0, 12.0, 16.0, 20.0], "{target}");
    }
}

/// The limit bounds buffers and tables, wherever they are; another than the usual one is taken.
#[test]
fn memory_has_a_limit() {
    let run = |limit: &str| cora(&["run", LISTING, "--param", "M=8", "--check", "--memory-limit", limit]);
    for limit in ["1M", "20G", "65536"] {
        assert_eq!(run(limit).code, Some(0), "{limit}: {}", run(limit).stderr);
    }
    let tables =
        refuses(&["run", LISTING, "--param", "M=4096", "--memory-limit", "1k"], "E0312", &["1024 are allowed"]);
    assert!(tables.contains("table `") && tables.contains("--memory-limit"), "{tables}");
    for limit in ["", "4X", "-1", "1.5G"] {
        assert_eq!(run(limit).code, Some(2), "{limit}");
    }
}

#[test]
fn dense_tensors_keep_their_shape() {
    let program = file(
        "dense.cora",
        "param M in 0..=9\ndim b = M, k = 3\ninput A[b, k] : f32\nY[k, b] = A[b, k] + 1\noutput Y\n",
    );
    let input = array("dense.npy", DType::F32, vec![2, 3], &[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
    for target in ["cpu", "interp"] {
        let output = scratch(&format!("dense_{target}.npy")).to_str().expect("UTF-8").to_owned();
        let (i, o) = (format!("A={input}"), format!("Y={output}"));
        succeeds(&["run", &program, "--target", target, "--param", "M=2", "--input", &i, "--output", &o]);
        assert_eq!(read(&output), (vec![3, 2], vec![2.0, 5.0, 3.0, 6.0, 4.0, 7.0]), "{target}");
    }
    // Another shape with as many elements is not this tensor.
    let other = array("dense_other.npy", DType::F32, vec![3, 2], &[0.0_f32; 6]);
    refuses(&["run", &program, "--param", "M=2", "--input", &format!("A={other}")], "E0333", &["[3, 2]", "[2, 3]"]);
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    let run = |name: &str, options: &[&str]| {
        let output = scratch(name).to_str().expect("UTF-8").to_owned();
        let o = format!("O={output}");
        let consts = ["--const", "H=2", "--const", "D=8", "--param", "M=5", "--output", &o];
        succeeds(&[&["run", "examples/sdpa.cora"][..], &consts, options].concat());
        std::fs::read(output).expect("an output")
    };
    let one = run("o1.npy", &["--seed", "7", "--threads", "1"]);
    assert!(one == run("o2.npy", &["--seed", "7", "--threads", "3", "--poison"]), "threads or padding change bits");
    assert!(one != run("o3.npy", &["--seed", "8"]), "the seed does not matter");
}

#[test]
fn other_forms_run() {
    let small = ["--const", "H=2", "--const", "D=8", "--param", "M=3", "--check", "--json"];
    for options in [&["--padded"][..], &["--schedule", "default"], &["--target", "interp"], &["--check=1"]] {
        let out = succeeds(&[&["run", "examples/sdpa.cora"][..], &small[..6], options, &["--json"]].concat());
        let report: Value = serde_json::from_str(&out).expect("JSON");
        assert_eq!(report["ok"], true, "{options:?}");
    }
}

#[test]
fn a_read_in_one_arm_of_a_choice_is_checked_too() {
    let program = file(
        "concatenation.cora",
        "param M in 0..=9
         extent la(b) in 0..=20
         extent lb(b) in 0..=20
         dim b = M, i = la(b), j = lb(b), t = la(b) + lb(b)
         input A[b, i] : f32
         input B[b, j] : f32
         Y[b, t] = if t < la(b) then A[b, t] else B[b, t - la(b)]
         output Y",
    );
    succeeds(&["run", &program, "--check", "--poison"]);
    succeeds(&["run", &program, "--check", "--target", "interp"]);
}

#[test]
fn unknown_names() {
    refuses(&["run", "examples/nothing.cora"], "E0600", &["examples/nothing.cora"]);
    refuses(&["run", LISTING, "--target", "abacus"], "E0605", &["abacus"]);
    refuses(&["run", LISTING, "--target-cpu", "abacus"], "E0605", &["abacus"]);
    refuses(&["run", LISTING, "--param", "N=1"], "E0304", &["`N`", "M"]);
    refuses(&["run", LISTING, "--const", "Q=1"], "E0231", &["Q"]);
    refuses(&["run", LISTING, "--schedule", "fast"], "E0603", &["`fast`", "default"]);
    refuses(&["run", LISTING, "--input", "Z=z.npy"], "E0304", &["`Z`", "A"]);
    refuses(&["run", LISTING, "--output", "Z=z.npy"], "E0304", &["`Z`", "B"]);
    refuses(&["run", LISTING, "--param", "M=4097"], "E0305", &["`M`", "4097", "0..=4096"]);
    refuses(&["run", LISTING, "--param", "M=-1"], "E0305", &["-1"]);
    // Before the first of them runs.
    refuses(&["run", LISTING, "--param", "M=1,4097"], "E0305", &["4097"]);
    refuses(&["run", LISTING, "--output", "B=no/such/folder/b.npy"], "E0330", &["no/such/folder"]);
}

#[test]
fn tensors_that_do_not_fit() {
    let rows = format!("lens={}", file("fit.txt", "2 1"));
    let given = |path: String, code: &str, words: &[&str]| {
        refuses(&["run", LISTING, "--param", "M=2", "--lengths", &rows, "--input", &format!("A={path}")], code, words)
    };
    given(floats("short.npy", &[1.0, 2.0]), "E0316", &["2", "3"]);
    given(floats("long.npy", &[1.0; 4]), "E0316", &["4", "3"]);
    given(array("doubles.npy", DType::F64, vec![3], &[1.0_f64; 3]), "E0317", &["f32"]);
    given(array("ints.npy", DType::I32, vec![3], &[1_i32; 3]), "E0317", &["f32"]);
    given(file("text.npy", "not an array"), "E0324", &["text.npy"]);
    given("no/such/file.npy".to_owned(), "E0330", &["no/such/file.npy"]);
    let whole = std::fs::read(floats("whole.npy", &[1.0; 3])).expect("just written");
    given(file("truncated.npy", &whole[..whole.len() - 1]), "E0325", &["truncated"]);
    given(file("header.npy", &whole[..20]), "E0324", &["header.npy"]);
    given(file("empty.npy", []), "E0324", &["empty.npy"]);
}

#[test]
fn index_tensors_are_checked() {
    let program = "examples/embedding_pool.cora";
    let rows = format!("lens={}", file("tokens.txt", "2 1"));
    let ids = |v: &[i32]| format!("ids={}", array("ids.npy", DType::I32, vec![v.len() as u64], v));
    let run = |ids: &str, f: &dyn Fn(&[&str])| {
        f(&["run", program, "--const", "V=10", "--const", "D=4", "--param", "M=2", "--lengths", &rows, "--input", ids]);
    };
    run(&ids(&[0, 9, 3]), &|args| drop(succeeds(args)));
    run(&ids(&[0, 10, 3]), &|args| drop(refuses(args, "E0318", &["ids", "element 1", "10"])));
    run(&ids(&[0, 9, -1]), &|args| drop(refuses(args, "E0318", &["ids", "element 2", "-1"])));
}

#[test]
fn code_for_other_processors_is_refused() {
    refuses(&["run", LISTING, "--target-cpu", "neoverse-n1"], "E0334", &["neoverse-n1"]);
    if !std::arch::is_x86_feature_detected!("avx512fp16") {
        refuses(&["run", LISTING, "--target-cpu", "sapphirerapids"], "E0334", &["sapphirerapids"]);
    }
}

#[test]
fn absurd_numbers_of_threads_are_refused() {
    refuses(&["run", LISTING, "--threads", "1000000"], "E0331", &["1000000", "1024"]);
}

/// Just above a tie of both short types, by a bit that `f64` does not have.
#[test]
fn wide_integers_round_once() {
    let text = "param M in 0..=8\ndim i = M\ninput A[i] : i64\nB[i] = f32(bf16(A[i]))\nD[i] = f32(A[i])\noutput B, D\n";
    let program = file("wide.cora", text);
    let tie = (1i64 << 62) + (1 << 54);
    let values = [tie, tie + 1, -tie - 1, tie - 1, i64::MAX, i64::MIN, (1 << 62) + (1 << 38) + 1];
    let a = array("wide.npy", DType::I64, vec![values.len() as u64], &values);
    let b = scratch("wide-b.npy").to_str().expect("UTF-8").to_owned();
    let d = scratch("wide-d.npy").to_str().expect("UTF-8").to_owned();
    let param = format!("M={}", values.len());
    let (outputs, input) = ([format!("B={b}"), format!("D={d}")], format!("A={a}"));
    for target in ["cpu", "interp"] {
        let args = ["run", &program, "--target", target, "--check", "--param", &param, "--input", &input];
        succeeds(&[&args[..], &["--output", &outputs[0], "--output", &outputs[1]]].concat());
        let high: Vec<u32> = read(&b).1.iter().map(|x| x.to_bits() >> 16).collect();
        assert_eq!(high, [0x5e80, 0x5e81, 0xde81, 0x5e80, 0x5f00, 0xdf00, 0x5e80], "{target}");
        assert_eq!(read(&d).1.last().map(|x| x.to_bits()), Some(0x5e80_0001), "{target}");
    }
}

/// What the system does not give is a mistake of the user's like any other, wherever it is asked for.
#[cfg(target_os = "linux")]
#[test]
fn too_little_memory_is_an_error() {
    let text = "param M in 0..=2000000000\ndim b = M\ninput A[b] : f32\nB = A * 2.0\noutput B";
    let program = file("too_little_memory.cora", text);
    for (target, elements, kilobytes) in [("cpu", "1500000000", "4000000"), ("interp", "150000000", "1500000")] {
        let limited = format!("ulimit -v {kilobytes}; exec \"$0\" \"$@\"");
        let args = ["-c", &limited, env!("CARGO_BIN_EXE_cora"), "run", &program, "--target", target];
        let out =
            std::process::Command::new("sh").args(args).arg(format!("--param=M={elements}")).output().expect("sh");
        let stderr = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{target}: {stderr}");
        assert!(stderr.contains("error[E0313]: ") && stderr.contains("help: "), "{target}: {stderr}");
    }
}

#[test]
fn a_reader_that_went_away_changes_no_exit_code() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let status = Command::new(env!("CARGO_BIN_EXE_cora"))
        .args(["compile", "examples/not_there.cora"])
        .current_dir(root())
        .stderr(writer)
        .status()
        .expect("cora starts");
    assert_eq!(status.code(), Some(1));
}
