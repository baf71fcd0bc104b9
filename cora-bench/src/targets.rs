//! What the results say about the project's targets, computed from the records.

use crate::analytic::geomean;
use crate::record::Record;
use crate::report::over;
use crate::suite::Line;
use std::fmt::Write;

/// Forms of PyTorch in f32.
const TORCH: [&str; 5] = ["torch-padded", "torch-micro", "torch-packed", "torch-nested", "torch-compile"];

/// A target: what is measured, what is wanted, in words and as a number, and what came out.
struct Target {
    what: String,
    wanted: f64,
    measured: Option<f64>,
    /// Whether less is better.
    at_most: bool,
}

/// A markdown table of targets and measured figures; of those with no result, a dash.
pub fn table(lines: &[Line]) -> String {
    let mut t = String::from("## Targets\n\n| | wanted | measured | |\n|---|---|---|---|\n");
    for target in all(lines) {
        let sign = if target.at_most { "≤" } else { "≥" };
        let (measured, verdict) = match target.measured {
            None => ("-".to_owned(), ""),
            Some(m) if (m <= target.wanted) == target.at_most || m == target.wanted => (format!("{m:.3}"), "holds"),
            Some(m) => (format!("{m:.3}"), "missed"),
        };
        let _ = writeln!(t, "| {} | {sign} {} | {measured} | {verdict} |", target.what, target.wanted);
    }
    t
}

fn all(lines: &[Line]) -> Vec<Target> {
    let of = |part: &str| -> Vec<&Record> {
        lines.iter().filter(|l| l.part == part).filter_map(|l| l.bench.as_ref()).collect()
    };
    let mut out = Vec::new();
    let mut add = |what: &str, at_most: bool, wanted: f64, measured: Option<f64>| {
        out.push(Target { what: what.to_owned(), wanted, measured, at_most });
    };
    let encoder = of("encoder");
    for (names, wanted) in
        [(&["race", "wiki512", "squad", "wiki128"][..], 0.88), (&["mrpc", "xnli", "mnli"], 0.85), (&["cola"], 0.78)]
    {
        let shares = encoder.iter().filter(|r| r.dataset.as_deref().is_some_and(|d| names.contains(&d)));
        let what = format!("encoder, share of peak with the prelude, least of {}", names.join(", "));
        add(&what, false, wanted, shares.filter_map(|r| share(r)).reduce(f64::min));
    }
    let best: Vec<f64> = encoder.iter().filter_map(|r| best_of(r, &TORCH)).collect();
    add("encoder over the best PyTorch form, geomean", false, 1.35, mean(&best));
    add("encoder over the best PyTorch form, worst row", false, 1.10, best.iter().copied().reduce(f64::min));
    for (peer, wanted) in [("torch-padded", 2.2), ("openvino", 1.8)] {
        let ratios: Vec<f64> = encoder.iter().filter_map(|r| over(r, peer)).collect();
        add(&format!("encoder over {peer}, geomean"), false, wanted, mean(&ratios));
    }
    for (dataset, wanted) in [("race", 1.7), ("mnli", 1.35)] {
        let masked = of("masked-sdpa");
        let row = masked.iter().find(|r| r.dataset.as_deref() == Some(dataset) && r.batch == Some(128));
        let what = format!("masked SDPA, NoPad over Pad, {dataset} at 128");
        add(&what, false, wanted, row.and_then(|r| over(r, "padded")));
    }
    let vgemm = of("vgemm");
    for (peer, wanted) in [("mkl-batch", 1.25), ("mkl-padded", 2.2)] {
        let ratios: Vec<f64> = vgemm.iter().filter_map(|r| over(r, peer)).collect();
        add(&format!("vgemm over {peer}, geomean"), false, wanted, mean(&ratios));
    }
    for peer in ["mkl-trmm", "openblas-trmm"] {
        let ratios: Vec<f64> = of("trmm").iter().filter_map(|r| over(r, peer)).collect();
        add(&format!("trmm over {peer}, geomean"), false, 1.15, mean(&ratios));
    }
    let large: Vec<f64> = of("elementwise")
        .iter()
        .filter(|r| matches!(r.size, Some(2048 | 8192)))
        .filter_map(|r| over(r, "torch-flat"))
        .collect();
    add("tradd, trmul, n = 2048 and 8192, over the plain loop, least", false, 0.95, large.into_iter().reduce(f64::min));
    let alone = of("operators");
    for op in ["proj1", "ff1", "ff2"] {
        let rows: Vec<&&Record> = alone.iter().filter(|r| r.workload == op).collect();
        let least = |f: &dyn Fn(&Record) -> Option<f64>| rows.iter().filter_map(|r| f(r)).reduce(f64::min);
        add(&format!("{op} alone, share of peak, least"), false, 0.95, least(&|r| r.share_of_peak));
        add(&format!("{op} alone over openvino, least"), false, 1.10, least(&|r| over(r, "openvino")));
    }
    let overheads = of("overheads");
    let slower = overheads.iter().filter_map(|r| over(r, "dense").map(|x| 1.0 / x)).reduce(f64::max);
    add("all lengths 512: ragged over dense time, greatest", true, 1.02, slower);
    let part = |r: &&Record| r.prelude.median_ms / (r.ours.median_ms + r.prelude.median_ms);
    let cola32 = |r: &&Record| r.dataset.as_deref() == Some("cola") && r.batch == Some(32);
    let others = encoder.iter().copied().filter(|r| !cola32(r)).map(|r| part(&r)).reduce(f64::max);
    add("prelude as a share of one layer, greatest", true, 0.002, others);
    add(
        "prelude as a share of one layer, cola at 32",
        true,
        0.01,
        encoder.iter().copied().find(cola32).map(|r| part(&r)),
    );
    let slowest = encoder.iter().map(|r| r.compile_ms).reduce(f64::max);
    add("graph to running code, encoder layer, ms", true, 1500.0, slowest);
    out
}

fn share(r: &Record) -> Option<f64> {
    r.useful_gflops?;
    Some(r.useful_flops / (r.ours.median_ms + r.prelude.median_ms) / 1e6 / r.peak_gflops)
}

/// The time of the fastest of some peers over ours.
fn best_of(r: &Record, peers: &[&str]) -> Option<f64> {
    peers.iter().filter_map(|p| over(r, p)).reduce(f64::min)
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| geomean(values))
}
