//! What a run reports, as JSON and as a table for people; and what an artifact says of itself.

use cora_runtime::abi::TensorDesc;
use cora_runtime::artifact::{Artifact, Machine};
use cora_runtime::exec::MemoryReport;
use serde::Serialize;
use serde_json::json;
use std::fmt::Write;

/// A kernel and its median time.
#[derive(Serialize)]
pub struct Kernel {
    pub kernel: String,
    pub ms: f64,
}

/// How one output compares with the stored one.
#[derive(Serialize)]
pub struct Check {
    pub output: String,
    pub elements: usize,
    /// The difference of the element that differs most for what is allowed of it, and that.
    pub difference: f64,
    pub allowed: f64,
    pub ok: bool,
}

/// One run of a program on one batch. Names are those of `cora run --json` where the meaning is the same.
#[derive(Default, Serialize)]
pub struct Report {
    pub artifact: String,
    pub program: String,
    pub target: String,
    /// Parameters of the first batch.
    pub batch: Vec<(String, i64)>,
    /// Batches that were run.
    pub batches: usize,
    /// Whether every check passed.
    pub ok: bool,
    /// Worker threads of a processor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
    /// Loading, binding, setting inputs and all runs.
    pub whole_ms: f64,
    /// Building the tables on a processor, and on a GPU copying them there.
    pub prelude_ms: Option<f64>,
    pub copy_ms: Option<f64>,
    pub table_bytes: Option<u64>,
    /// Whether kernels of a GPU build the tables.
    pub device_tables: bool,
    /// Median time of a run of all kernels.
    pub total_ms: f64,
    pub kernels: Vec<Kernel>,
    /// Kernels that prepare const inputs; their time is not part of the total.
    pub setup: Vec<Kernel>,
    /// What kept it from running.
    pub error: Option<String>,
    /// Bytes in use by one instance.
    pub memory: Option<MemoryReport>,
    /// The most bytes of memory that the process has had so far, where the system tells.
    pub peak_bytes: Option<u64>,
    pub checks: Vec<Check>,
}

/// The most memory that this process has had, in bytes.
pub fn peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let kib = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?.trim().strip_suffix(" kB")?;
    Some(kib.parse::<u64>().ok()? << 10)
}

impl Report {
    /// One JSON object.
    pub fn to_json(&self) -> String {
        // Strings, numbers and lists only: this cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The table for people.
    pub fn render(&self) -> String {
        let mut t = String::new();
        let batch: String = self.batch.iter().map(|(n, v)| format!("{n} = {v}, ")).collect();
        let threads = self.threads.map(|n| format!(", {n} threads")).unwrap_or_default();
        let _ = writeln!(t, "{} ({batch}{}{threads})", self.program, self.target);
        for k in &self.kernels {
            let _ = writeln!(t, "  {:<28} {:>10.3} ms", k.kernel, k.ms);
        }
        let _ = writeln!(t, "  {:<28} {:>10.3} ms, {:.1} ms with loading", "total", self.total_ms, self.whole_ms);
        for c in &self.checks {
            let _ = writeln!(
                t,
                "  check {:<22} {}: {} elements, difference {:.3e}, allowed {:.3e}",
                c.output,
                if c.ok { "ok" } else { "MISMATCH" },
                c.elements,
                c.difference,
                c.allowed
            );
        }
        t
    }
}

/// What an artifact is, as one JSON object.
pub fn describe_json(path: &str, artifact: &Artifact) -> String {
    let (m, d) = (&artifact.manifest, &artifact.desc);
    let features: &[String] = match &m.machine {
        Machine::Cpu { features, .. } => features,
        Machine::Cuda { .. } => &[],
    };
    let tensor = |t: &TensorDesc| json!({"name": t.name, "role": format!("{:?}", t.role), "type": t.dtype.name()});
    let info = json!({
        "artifact": path,
        "ok": true,
        "program": m.program,
        "target": m.machine.to_string(),
        "compiler": m.compiler,
        "features": features,
        "code_bytes": artifact.code.len(),
        "params": d.params.iter().map(|p| json!({"name": p.name, "lo": p.lo, "hi": p.hi})).collect::<Vec<_>>(),
        "extents": d.extents.iter().map(|e| &e.name).collect::<Vec<_>>(),
        "tensors": d.tensors.iter().map(tensor).collect::<Vec<_>>(),
        "setup": d.setup_kernels.iter().map(|k| &k.name).collect::<Vec<_>>(),
        "kernels": d.kernels.iter().map(|k| &k.name).collect::<Vec<_>>(),
        "samples": artifact.samples.len(),
    });
    format!("{info}\n")
}

/// What an artifact is.
pub fn describe(artifact: &Artifact) -> String {
    let (m, d) = (&artifact.manifest, &artifact.desc);
    let mut t =
        format!("{} for {}, by cora {}, {} bytes of code\n", m.program, m.machine, m.compiler, artifact.code.len());
    if let Machine::Cpu { features, .. } = &m.machine {
        let _ = writeln!(t, "  may use {}", features.join(" "));
    }
    d.params.iter().for_each(|p| _ = writeln!(t, "  param {} in {}..={}", p.name, p.lo, p.hi));
    d.extents.iter().for_each(|e| _ = writeln!(t, "  extent {}", e.name));
    d.tensors.iter().for_each(|x| _ = writeln!(t, "  {:?} {} : {}", x.role, x.name, x.dtype));
    d.setup_kernels.iter().for_each(|k| _ = writeln!(t, "  setup {}", k.name));
    d.kernels.iter().for_each(|k| _ = writeln!(t, "  kernel {}", k.name));
    let _ = writeln!(t, "  {}", if artifact.samples.is_empty() { "without a sample" } else { "with a sample" });
    t
}
