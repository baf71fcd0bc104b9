//! What a run reports, as JSON and as a table for people.

use crate::check::Comparison;
use serde::Serialize;
use std::fmt::Write;

/// One kernel's time and work.
#[derive(Clone, Debug, Serialize)]
pub struct KernelRow {
    /// The kernel's name: the stage whose nest it is.
    pub kernel: String,
    /// Median time.
    pub ms: f64,
    /// Floating-point operations of the unpadded multiply-adds.
    pub useful_flops: f64,
    /// Useful operations over time.
    pub useful_gflops: f64,
    /// Share of the issued multiply-adds that work on padding, masked lanes included.
    pub padding_share: f64,
}

impl KernelRow {
    /// A row from a time and the counts of useful and issued floating-point operations.
    pub fn new(kernel: &str, ms: f64, useful: f64, issued: f64) -> Self {
        Self {
            kernel: kernel.to_owned(),
            ms,
            useful_flops: useful,
            useful_gflops: if ms > 0.0 { useful / ms / 1e6 } else { 0.0 },
            padding_share: if issued > useful { 1.0 - useful / issued } else { 0.0 },
        }
    }
}

/// One kernel that prepares const inputs, once for given ones.
#[derive(Clone, Debug, Serialize)]
pub struct SetupRow {
    /// The kernel's name.
    pub kernel: String,
    /// Its time when it ran.
    pub ms: f64,
}

/// How a kernel that ran on the grid interpreter uses shared memory.
#[derive(Clone, Debug, Serialize)]
pub struct SharedRow {
    /// The kernel's name.
    pub kernel: String,
    /// Passes of warps over shared memory that are needed.
    pub accesses: u64,
    /// Passes for each of these, by the predicted bank conflicts: 1 without any.
    pub passes_per_access: f64,
}

impl From<&cora_ir::interp::SharedTraffic> for SharedRow {
    fn from(t: &cora_ir::interp::SharedTraffic) -> Self {
        Self { kernel: t.kernel.clone(), accesses: t.accesses, passes_per_access: t.ratio() }
    }
}

/// One prelude table.
#[derive(Clone, Debug, Serialize)]
pub struct TableRow {
    /// The function whose values it holds.
    pub name: String,
    /// Its size.
    pub bytes: u64,
}

/// The prelude of our own tables, where a program runs with those of sparse compilers.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct PreludeRow {
    /// Time to build them.
    pub ms: f64,
    /// Their bytes.
    pub bytes: u64,
    /// How many there are.
    pub tables: usize,
}

/// Bytes of memory in use.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryRow {
    /// Prelude tables.
    pub tables: u64,
    /// Inputs.
    pub inputs: u64,
    /// Outputs.
    pub outputs: u64,
    /// Temporaries.
    pub temps: u64,
    /// Workers' slots.
    pub slots: u64,
}

impl From<cora_runtime::exec::MemoryReport> for MemoryRow {
    fn from(m: cora_runtime::exec::MemoryReport) -> Self {
        Self { tables: m.tables, inputs: m.inputs, outputs: m.outputs, temps: m.temps, slots: m.slots }
    }
}

/// One run of a program on one batch.
#[derive(Clone, Debug, Serialize)]
pub struct RunReport {
    /// The program's name.
    pub program: String,
    /// Where it ran.
    pub target: String,
    /// The program's schedule; none where that was the compiler's own, or the reference interpreter ran.
    pub schedule: Option<String>,
    /// Whether in the fully padded form.
    pub padded: bool,
    /// Parameters of the batch.
    pub batch: Vec<(String, i64)>,
    /// Whether every check passed.
    pub ok: bool,
    /// Worker threads.
    pub threads: usize,
    /// From the op graph to native code.
    pub compile_ms: f64,
    /// Building the tables for this batch.
    pub prelude_ms: f64,
    /// Whether binding the same lengths again found them built.
    pub prelude_reused: bool,
    /// Median time of a run of all kernels, without the prelude.
    pub total_ms: f64,
    /// Median time of the fully padded form, where it was asked for.
    pub padded_total_ms: Option<f64>,
    /// Each kernel.
    pub kernels: Vec<KernelRow>,
    /// Each setup kernel; its time is not part of the total.
    pub setup: Vec<SetupRow>,
    /// Each kernel that uses shared memory, where the grid interpreter ran.
    pub shared: Vec<SharedRow>,
    /// Each prelude table.
    pub tables: Vec<TableRow>,
    /// With the position arrays of sparse compilers in `tables`: what our own tables take.
    pub own_prelude: Option<PreludeRow>,
    /// Memory in use.
    pub memory: Option<MemoryRow>,
    /// Each output compared.
    pub checks: Vec<Comparison>,
}

impl RunReport {
    /// An empty report.
    pub fn new(program: &str, target: &str, padded: bool) -> Self {
        Self {
            program: program.to_owned(),
            target: target.to_owned(),
            schedule: None,
            padded,
            batch: Vec::new(),
            ok: true,
            threads: 0,
            compile_ms: 0.0,
            prelude_ms: 0.0,
            prelude_reused: false,
            total_ms: 0.0,
            padded_total_ms: None,
            kernels: Vec::new(),
            setup: Vec::new(),
            shared: Vec::new(),
            tables: Vec::new(),
            own_prelude: None,
            memory: None,
            checks: Vec::new(),
        }
    }

    /// The table for people.
    pub fn render(&self) -> String {
        let mut t = String::new();
        let form = if self.padded { "padded" } else { "ragged" };
        let batch: String = self.batch.iter().map(|(n, v)| format!("{n} = {v}, ")).collect();
        // Workers are those of a processor.
        let threads = match self.threads {
            0 => String::new(),
            1 => ", 1 thread".to_owned(),
            n => format!(", {n} threads"),
        };
        // That of the target's name goes without saying.
        let other = self.schedule.as_ref().filter(|s| *s != self.target.split(':').next().unwrap_or_default());
        let schedule = other.map_or(String::new(), |s| format!(", schedule {s}"));
        let _ = writeln!(t, "{} ({batch}{form}, {}{schedule}{threads})", self.program, self.target);
        if !self.kernels.is_empty() {
            let _ = writeln!(t, "  {:<24} {:>10} {:>16} {:>9}", "kernel", "ms", "useful GFLOP/s", "padding");
            for k in &self.kernels {
                let rate = if k.useful_flops > 0.0 { format!("{:.1}", k.useful_gflops) } else { "-".to_owned() };
                let share =
                    if k.useful_flops > 0.0 { format!("{:.1}%", 100.0 * k.padding_share) } else { "-".to_owned() };
                let _ = writeln!(t, "  {:<24} {:>10.3} {rate:>16} {share:>9}", k.kernel, k.ms);
            }
            let useful: f64 = self.kernels.iter().map(|k| k.useful_flops).sum();
            let rate = if useful > 0.0 { format!("{:.1}", useful / self.total_ms / 1e6) } else { "-".to_owned() };
            let _ = writeln!(t, "  {:<24} {:>10.3} {rate:>16}", "total", self.total_ms);
            if !self.setup.is_empty() {
                let ms: f64 = self.setup.iter().map(|r| r.ms).sum();
                let names: Vec<&str> = self.setup.iter().map(|r| r.kernel.as_str()).collect();
                let _ = writeln!(t, "  setup {ms:.3} ms, once for given const inputs: {}", names.join(", "));
            }
            let bytes: u64 = self.tables.iter().map(|r| r.bytes).sum();
            let _ = writeln!(
                t,
                "  prelude {:.4} ms, {bytes} bytes in {} tables{}",
                self.prelude_ms,
                self.tables.len(),
                if self.prelude_reused { ", reused when lengths repeat" } else { "" }
            );
            for r in &self.tables {
                let _ = writeln!(t, "    {:<22} {:>10} bytes", r.name, r.bytes);
            }
            if let Some(own) = self.own_prelude {
                let _ = writeln!(
                    t,
                    "  our own tables instead: prelude {:.4} ms, {} bytes in {} tables",
                    own.ms, own.bytes, own.tables
                );
            }
            let _ = writeln!(t, "  compiled in {:.0} ms", self.compile_ms);
        }
        if let Some(p) = self.padded_total_ms {
            let _ = writeln!(t, "  padded form: {p:.3} ms, {:.2}x the ragged form's time", p / self.total_ms);
        }
        for r in &self.shared {
            let _ = writeln!(
                t,
                "  {:<24} {} accesses of warps to shared memory, {:.2} passes each",
                r.kernel, r.accesses, r.passes_per_access
            );
        }
        for c in &self.checks {
            let verdict = if c.passes() { "ok" } else { "MISMATCH" };
            let own = if c.within_bounds {
                "; every element within the bound of its own rounding errors, or half of its digits right where that is infinite"
            } else {
                ""
            };
            let _ = writeln!(
                t,
                "  check {:<18} {verdict}: {} elements, largest error {:.3e}, allowed {:.3e}{own}",
                c.output, c.elements, c.max_error, c.tolerance
            );
        }
        t
    }
}
