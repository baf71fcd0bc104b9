//! Measurements of small cases, ours beside peers, and the report that is made of them.

#[path = "../../tests/support/skip.rs"]
mod skip;

use clap::Parser;
use cora::console::Kept;
use cora::driver::Failure;
use cora::target::Target;
use cora_bench::measure::{Code, Compiled, Form};
use cora_bench::peers;
use cora_bench::record::Record;
use cora_bench::suite::{self, Line};
use cora_bench::{bench, report, workload};
use skip::skip;
use std::path::PathBuf;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    args: bench::Args,
}

#[derive(Parser)]
struct Suite {
    #[command(flatten)]
    args: suite::Args,
}

fn measure(line: &str) -> Result<Record, Failure> {
    let words = std::iter::once("bench").chain(line.split(' ')).chain(["--repeat", "2", "--turn-ms", "0.5"]);
    bench::measure(&Command::try_parse_from(words).unwrap_or_else(|e| panic!("{e}")).args)
}

fn record(line: &str) -> Record {
    let record = measure(line).unwrap_or_else(|e| panic!("{line}: {e:?}"));
    bench::verdict(&record).unwrap_or_else(|e| panic!("{line}: {e:?}"));
    record
}

#[test]
fn forms_of_our_own_program() {
    let r = record("softmax --dataset equal=9 --batch 3 --peers padded,dense");
    assert_eq!(r.peers.iter().map(|p| p.name.as_str()).collect::<Vec<_>>(), ["padded", "dense"]);
    assert!(r.peers.iter().all(|p| p.error.is_some_and(|e| e < 1e-6)), "{:?}", r.peers);
    assert!(r.ours.median_ms > 0.0 && r.peak_gflops > 0.0 && r.useful_gflops.is_none());
    let mut r = record("qkt --dataset equal=7 --batch 2 --peers no-hoist,csf,schedule=default,workload=qkt,longest");
    assert_eq!(r.peers.pop().map(|p| (p.name, p.error)), Some(("longest".to_owned(), None)));
    assert!(r.peers.len() == 4 && r.peers.iter().all(|p| p.error.is_some_and(|e| e < 1e-6)), "{:?}", r.peers);
    let r = record("qkt --dataset equal=8 --batch 2 --threads 1");
    assert_eq!(r.useful_flops, 2.0 * 2.0 * 8.0 * 8.0 * 8.0 * 64.0, "batch, heads, rows, columns, head size");
}

#[test]
fn libraries_compute_what_we_compute() {
    if peers::python().is_none() {
        skip("peers: none are installed; scripts/setup_peers.sh installs them");
        return;
    }
    for line in ["trmm --size 64 --peers all", "tradd --size 64 --peers scipy-csr,mlir-bsr"] {
        let r = record(line);
        r.skipped.iter().for_each(|s| skip(&format!("peer {}: {}", s.name, s.why)));
        assert!(!r.peers.is_empty(), "{line}: all were skipped");
    }
}

#[test]
fn unknown_peers_and_forms_are_refused() {
    for (line, code, word) in [
        ("tradd --size 8 --peers torch", "E0607", "torch-packed"),
        ("tradd --size 8 --peers padded", "E0607", "no padded form"),
        ("qkt --dataset equal=4 --schedule fast", "E0603", "no schedule `fast`"),
        ("qkt --dataset equal=4 --target cuda:sm_20", "E0605", "sm_90a"),
        ("qkt --dataset equal=4 --target cuda --threads 2", "E0613", "--target cpu"),
        ("qkt --dataset equal=4 --target cuda --peers padded,torch-packed", "E0607", "scripts/gpu/run.sh"),
        ("qkt --dataset equal=4 --peers device-prelude", "E0613", "--target cuda"),
        ("qkt --dataset equal=4 --peers workload=nothing", "E0607", "no workload `nothing`"),
        ("qkt --dataset equal=4 --target cuda --schedule cpu", "E0610", "--schedule default"),
    ] {
        match measure(line) {
            Err(Failure::User(text)) => assert!(text.contains(word) && text.contains(code), "{line}: {text}"),
            other => panic!("{line}: {other:?}"),
        }
    }
}

/// Everything before the launch needs no GPU: every form that the suite for GPUs measures compiles.
#[test]
fn gpu_experiments_compile() {
    let line = "suite --target cuda:sm_90 --list --dir no/such/folder";
    let mut console = Kept::default();
    let args = Suite::try_parse_from(line.split(' ')).unwrap_or_else(|e| panic!("{e}")).args;
    suite::run(&args, &mut console).unwrap_or_else(|e| panic!("{e:?}"));
    let listed = console.results.join("\n");
    for key in [
        "encoder: cuda:sm_90, encoder, encoder race, batch 128: longest device-prelude",
        "operators: cuda:sm_90, operators, encoder cola, batch 32: schedule=default",
        "trmm: cuda:sm_90, trmm, trmm n = 8192: schedule=cuda_split_unbalanced schedule=cuda_unsplit_unbalanced",
        "schedules: cuda:sm_90, schedules, qkt mnli, batch 1024: schedule=cuda_split_hfused schedule=cuda_split2_hfused",
        "padding: cuda:sm_90, padding, mha race, batch 64: workload=mha-pad-copies",
        "overheads: cuda:sm_90, overheads, attnv equal=512, batch 64: dense no-hoist",
        "prelude: cuda:sm_90, prelude, race, batch 128",
    ] {
        assert!(listed.contains(key), "{key} is not in\n{listed}");
    }
    let (target, source) = (Target::new("cuda:sm_90", "host").expect("known"), |name: &str| {
        workload::source(name, workload::find(name).expect("a workload").text).expect("it parses")
    });
    let plain = Form { target, ..Form::default() };
    let options = |change: fn(&mut cora::driver::Form)| {
        let mut form = plain.clone();
        change(&mut form.options);
        form
    };
    for (name, form) in [
        ("mha-pad-copies", plain.clone()),
        ("softmax", plain.clone()),
        ("softmax", options(|f| f.padded = true)),
        ("attnv", options(|f| f.keep_loads = true)),
        ("layer-norm", options(|f| f.device_prelude = true)),
        ("layer-norm", options(|f| f.csf = true)),
        ("qkt", Form { schedule: Some("cuda_split2_hfused".to_owned()), ..plain.clone() }),
    ] {
        let compiled = Compiled::new(&source(name), &form).unwrap_or_else(|e| panic!("{name}: {e:?}"));
        assert!(matches!(compiled.code(), Code::Gpu(p) if p.ptx.contains(".target sm_90")), "{name}");
    }
    let dense = workload::dense(workload::find("attnv").expect("a workload").text, 512);
    assert!(Compiled::new(&workload::source("dense", &dense).expect("it parses"), &plain).is_ok());
}

/// Without a driver a measurement on a GPU ends as a run does; with one it has what a GPU alone has.
#[test]
fn a_gpu_is_needed_to_measure_on_one() {
    match measure("tradd --size 40 --target cuda --peers no-hoist,schedule=default") {
        Err(Failure::User(text)) => assert!(text.contains("error[E0336]"), "{text}"),
        Ok(r) => {
            assert!(r.ours.median_ms > 0.0 && r.copy.is_some() && r.copy_gb_s.is_some_and(|g| g > 0.0), "{r:?}");
            assert!(r.peers.iter().all(|p| p.error == Some(0.0)) && r.peers.len() == 2, "{r:?}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_wrong_result_is_a_mismatch() {
    let mut r = record("tradd --size 16");
    let peer = cora_bench::record::PeerRecord {
        name: "torch-flat".to_owned(),
        detail: String::new(),
        times: r.ours,
        useful_gflops: None,
        over_ours: 1.0,
        over_ours_range: [1.0, 1.0],
        error: Some(f64::NAN),
    };
    r.peers.push(peer);
    assert!(matches!(bench::verdict(&r), Err(Failure::Mismatch(_))));
    r.peers[0].error = Some(1e-7);
    assert!(bench::verdict(&r).is_ok());
}

#[test]
fn a_report_has_a_figure_and_a_table_for_each_part() {
    let dir = std::env::temp_dir().join(format!("cora-report-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a folder for temporary files");
    let lines: Vec<String> =
        [("operators", "softmax --dataset equal=5 --batch 2 --peers padded"), ("trmm", "trmm --size 32")]
            .iter()
            .map(|(part, line)| {
                let line = Line { part: (*part).into(), key: (*line).into(), bench: Some(record(line)), prelude: None };
                serde_json::to_string(&line).expect("it is plain data")
            })
            .collect();
    std::fs::write(dir.join("results.jsonl"), lines.join("\n")).expect("it can be written");
    let mut console = Kept::default();
    report::run(&report::Args { dir: dir.clone(), out: None }, &mut console).unwrap_or_else(|e| panic!("{e:?}"));
    assert!(console.results.iter().any(|r| r.ends_with("report.md")), "{console:?}");
    let text = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let md = text("report.md");
    for name in ["operators-equal5-2.svg", "trmm.svg"] {
        assert!(md.contains(&format!("({name})")) && text(name).ends_with("</svg>\n"), "{name}");
    }
    assert!(md.contains("| softmax equal=5, batch 2,") && md.contains("| trmm n = 32,"), "{md}");
    std::fs::remove_dir_all(&dir).expect("it can be removed");
    let nothing = report::run(&report::Args { dir: PathBuf::from("no/such/folder"), out: None }, &mut Kept::default());
    assert!(matches!(nothing, Err(Failure::User(t)) if t.contains("E0608")));
}

/// The command as a process: help names all of it, a CPU that this machine is not is refused before its code runs.
#[test]
fn the_command() {
    let run = |args: &[&str]| std::process::Command::new(env!("CARGO_BIN_EXE_cora-bench")).args(args).output().unwrap();
    let help = String::from_utf8(run(&["bench", "--help"]).stdout).unwrap();
    for word in ["bench suite", "bench report", "bench accuracy"] {
        assert!(help.contains(word), "{word}: {help}");
    }
    let other = run(&["accuracy", "--function", "exp", "--stride", "65536", "--target-cpu", "neoverse-n1"]);
    let text = String::from_utf8_lossy(&other.stderr).into_owned();
    assert!(cfg!(target_arch = "aarch64") || other.status.code() == Some(1) && text.contains("E0334"), "{text}");
    let threads = run(&["bench", "trmul", "--size", "8", "--repeat", "1", "--turn-ms", "1", "--threads", "1000000"]);
    assert!(String::from_utf8_lossy(&threads.stderr).contains("error[E0331]"), "{threads:?}");
    let one = run(&["bench", "trmul", "--size", "8", "--repeat", "1", "--turn-ms", "1", "--threads", "1"]);
    assert!(String::from_utf8_lossy(&one.stdout).contains("1 turn each"), "{one:?}");
}
