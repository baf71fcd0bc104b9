//! The paper's GPU experiments, forms of our own programs beside each other. Libraries run beside ours in
//! `scripts/gpu/run.sh`, on the same cases.

use super::{Args, Job, case, job};
use crate::datasets::{BATCH_SIZES, NAMES};
use crate::workload::{WORKLOADS, schedules};

/// The measurements of a part; none where it is about CPUs.
pub(super) fn jobs(part: &str, args: &Args) -> Vec<Job> {
    let on = |workload: &str, dataset: &str, batch: usize, peers: &[&str]| {
        job(args, case(args, workload, dataset, batch, 512), peers)
    };
    let square = |workload: &str, n: usize, peers: &[&str]| job(args, case(args, workload, "race", 1, n), peers);
    let grid = |datasets: &[&str], f: &dyn Fn(&str, usize) -> Job| -> Vec<Job> {
        BATCH_SIZES.iter().flat_map(|&b| datasets.iter().map(move |d| (*d, b))).map(|(d, b)| f(d, b)).collect()
    };
    match part {
        "encoder" => grid(&NAMES, &|d, b| on("encoder", d, b, &["longest", "device-prelude"])),
        // The kernels of the layer are rows of its measurement.
        "operators" => [("race", 128), ("cola", 32)].map(|(d, b)| on("encoder", d, b, &["schedule=default"])).into(),
        "vgemm" => (1..=9).map(|p| on("vgemm", "race", 1 << p, &["longest"])).collect(),
        "masked-sdpa" => grid(&["race", "mnli"], &|d, b| on("masked-sdpa", d, b, &["longest"])),
        "trmm" => [512, 1024, 2048, 4096, 8192].map(|n| square("trmm", n, &refs(&others("trmm")))).into(),
        "schedules" => ["qkt", "attnv"]
            .iter()
            .flat_map(|w| [8, 16, 32, 64, 128, 256, 512, 1024].map(|b| on(w, "mnli", b, &refs(&others(w)))))
            .collect(),
        "padding" => grid(&["race"], &|d, b| on("mha", d, b, &["workload=mha-pad-copies"])),
        "overheads" => {
            let ragged = ["qkt", "attnv", "layer-norm"].map(|w| on(w, "equal=512", 64, &["dense", "no-hoist"]));
            ragged.into_iter().chain([on("encoder", "equal=512", 64, &["no-hoist"])]).collect()
        }
        "elementwise" => {
            ["tradd", "trmul"].iter().flat_map(|w| [128, 512, 2048, 8192].map(|n| square(w, n, &[]))).collect()
        }
        "prelude" => [("cola", 32), ("cola", 128), ("race", 32), ("race", 128)]
            .map(|(d, b)| Job::Prelude(d.to_owned(), b))
            .into(),
        _ => Vec::new(),
    }
}

/// A workload's other schedules for GPUs, as peers.
fn others(workload: &str) -> Vec<String> {
    let found = WORKLOADS.iter().find(|w| w.name == workload).map(|w| schedules(w, "cuda")).unwrap_or_default();
    found.into_iter().map(|n| format!("schedule={n}")).collect()
}

fn refs(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}
