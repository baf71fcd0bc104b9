//! The result of one measurement, as it is written to JSON and read by reports.

use crate::measure::Times;
use crate::peak::Peak;
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// Ours and its peers on one case, in turn in one run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// The workload's name.
    pub workload: String,
    /// The dataset, for workloads on sequences.
    pub dataset: Option<String>,
    /// Sequences or products in the batch.
    pub batch: Option<usize>,
    /// Rows, for square matrices.
    pub size: Option<usize>,
    /// Where ours runs.
    #[serde(default = "cpu")]
    pub target: String,
    /// Worker threads, of each peer too.
    pub threads: usize,
    /// Turns of each.
    pub repeat: usize,
    /// Ours: kernels alone.
    pub ours: Times,
    /// A batch checked and its tables built.
    pub prelude: Times,
    /// The tables copied to a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy: Option<Times>,
    /// 10^9 bytes a second, read and written, of a copy on that GPU, taken between the turns: the greatest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy_gb_s: Option<f64>,
    /// Bytes of the tables.
    pub table_bytes: u64,
    /// From the op graph to code in memory, ms.
    pub compile_ms: f64,
    /// Our kernels.
    pub kernels: Vec<Kernel>,
    /// Operations of the unpadded multiply-adds.
    pub useful_flops: f64,
    /// 10^9 useful operations a second, ours; none where the program has no contraction.
    pub useful_gflops: Option<f64>,
    /// The peak of multiply-adds, measured between the turns; zeros on a GPU, where it is not.
    pub peak: Peak,
    /// The same, in 10^9 a second.
    pub peak_gflops: f64,
    /// `useful_gflops` over `peak_gflops`.
    pub share_of_peak: Option<f64>,
    /// The others, in the order asked for.
    pub peers: Vec<PeerRecord>,
    /// Peers that did not run.
    pub skipped: Vec<Skipped>,
    /// When it ended, in seconds since 1970.
    pub time: u64,
    /// The processor, or the GPU.
    pub machine: String,
}

fn cpu() -> String {
    "cpu".to_owned()
}

/// A kernel of ours.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Kernel {
    /// Its name: the stage that it ends with.
    pub kernel: String,
    /// Its times.
    pub times: Times,
}

/// Another form or library.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PeerRecord {
    /// Its name on the command line.
    pub name: String,
    /// What it says of its form.
    pub detail: String,
    /// Its times.
    pub times: Times,
    /// 10^9 useful operations a second.
    pub useful_gflops: Option<f64>,
    /// Its time over ours: the median over the turns.
    pub over_ours: f64,
    /// The least and the greatest such ratio of a turn.
    pub over_ours_range: [f64; 2],
    /// The greatest difference of the results relative to the greatest value; none where they were not compared.
    pub error: Option<f64>,
}

/// A peer that did not run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Skipped {
    /// Its name.
    pub name: String,
    /// Why.
    pub why: String,
}

impl Record {
    /// `race, batch 32`, `batch 64`, `n = 512`.
    pub fn label(&self) -> String {
        match (&self.dataset, self.batch, self.size) {
            (Some(d), Some(b), _) => format!("{d}, batch {b}"),
            (_, Some(b), _) => format!("batch {b}"),
            (_, _, size) => format!("n = {}", size.unwrap_or(0)),
        }
    }

    /// `2 threads`, `cuda:sm_90`.
    pub fn place(&self) -> String {
        if self.target == "cpu" { format!("{} threads", self.threads) } else { self.target.clone() }
    }

    fn ceiling(&self) -> String {
        match self.copy_gb_s {
            Some(rate) => format!("a copy moves {rate:.0} GB/s"),
            None => format!("FMA peak {:.1} GFLOP/s (median {:.1})", self.peak_gflops, self.peak.median_gflops),
        }
    }

    /// The markdown table of one measurement.
    pub fn markdown(&self) -> String {
        let mut t = String::new();
        let gflops = |g: Option<f64>| g.map_or("-".to_owned(), |g| format!("{g:.1}"));
        let share = |g: Option<f64>| {
            g.filter(|_| self.peak_gflops > 0.0).map_or("-".to_owned(), |g| format!("{:.3}", g / self.peak_gflops))
        };
        let _ = writeln!(
            t,
            "### {}: {}, {}\n\n{} {} each; {}; {}\n",
            self.workload,
            self.label(),
            self.place(),
            self.repeat,
            if self.repeat == 1 { "turn" } else { "turns" },
            self.ceiling(),
            self.machine
        );
        t += "| | median ms | min | max | useful GFLOP/s | of peak | over ours | range | error | |\n";
        t += "|---|---|---|---|---|---|---|---|---|---|\n";
        let times = |x: &Times| format!("{:.4} | {:.4} | {:.4}", x.median_ms, x.min_ms, x.max_ms);
        let u = self.useful_gflops;
        let _ = writeln!(t, "| ours | {} | {} | {} | 1 | | | |", times(&self.ours), gflops(u), share(u));
        for p in &self.peers {
            let error = p.error.map_or("-".to_owned(), |e| format!("{e:.1e}"));
            let u = p.useful_gflops;
            let _ = writeln!(
                t,
                "| {} | {} | {} | {} | {:.3} | {:.3}..{:.3} | {error} | {} |",
                p.name,
                times(&p.times),
                gflops(u),
                share(u),
                p.over_ours,
                p.over_ours_range[0],
                p.over_ours_range[1],
                p.detail
            );
        }
        let _ = writeln!(t, "| prelude | {} | | | | | | {} bytes |", times(&self.prelude), self.table_bytes);
        if let Some(copy) = &self.copy {
            let _ = writeln!(t, "| copy of the tables | {} | | | | | | |", times(copy));
        }
        for k in &self.kernels {
            let _ = writeln!(t, "| kernel {} | {} | | | | | | |", k.kernel, times(&k.times));
        }
        for s in &self.skipped {
            let _ = writeln!(t, "\n{} skipped: {}", s.name, s.why);
        }
        t
    }
}

/// The processor's name as Linux tells it, and how many there are.
pub fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':')).map_or("?", |p| p.1.trim());
    format!("{name}, {} CPUs", std::thread::available_parallelism().map_or(1, usize::from))
}
