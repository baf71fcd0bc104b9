//! Every example as PTX for three architectures, assembled by `ptxas` where the set-up could fetch it: registers,
//! spills, shared memory and barriers of each kernel are a blessed table.

use crate::examples::load;
use crate::harness::{message, report};
use crate::support::skip::skip;
use crate::support::{compare, files, in_parallel, root, stem};
use cora::codegen_cuda::{CompileError, GpuTarget, compile};
use cora::driver::{Form, lower_for, lower_form};
use cora::ir::storage::Stmt;
use cora::runtime::abi::GridLaunch;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

pub const ARCHITECTURES: [&str; 3] = ["sm_70", "sm_80", "sm_90a"];

/// NVIDIA's assembler, put there by `scripts/setup_ptxas.sh`.
pub fn ptxas() -> Option<PathBuf> {
    // Cargo's folder for tests is in the target folder, wherever that is.
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).parent()?.join("ptxas/nvidia/cuda_nvcc/bin/ptxas");
    path.exists().then_some(path)
}

#[test]
fn examples_assemble() {
    let tool = ptxas();
    if tool.is_none() {
        skip("assembling PTX: run scripts/setup_ptxas.sh");
    }
    let rows: Mutex<Vec<String>> = Mutex::default();
    report(&in_parallel(&files("examples", "cora"), |path| {
        let name = stem(path);
        let source = match load(path, &[]) {
            Ok(s) => s,
            Err(e) => return vec![e],
        };
        let mut forms = vec![("default", None)];
        let own = source.graph.schedules.iter().filter(|s| s.name.starts_with("cuda"));
        forms.extend(own.map(|s| (s.name.as_str(), Some(s))));
        let mut complaints = Vec::new();
        for (form, schedule) in forms {
            let mut own = None;
            for arch in ARCHITECTURES {
                // The compiler's own schedule is another one for each architecture.
                if own.is_none() || schedule.is_none() {
                    own = match lower_for(&source, schedule, false, Some(arch), &mut |_| {}) {
                        Ok(l) => Some(l),
                        Err(e) => {
                            complaints.push(format!("{name} ({form}): {}", message(e)));
                            break;
                        }
                    };
                }
                let Some(lowered) = &own else { break };
                let copies = |s: &Stmt| matches!(s, Stmt::Copy { .. });
                let copies = lowered.storage.kernels.iter().any(|k| k.body.iter().any(|s| s.any(&mut |s| copies(s))));
                let target = GpuTarget::new(arch).expect("a known architecture");
                let compiled = compile(&lowered.storage, &target);
                if let Ok(p) = &compiled
                    && p.ptx.contains("cp.async.c") != (copies && target.options().async_copies)
                {
                    complaints.push(format!("{name} ({form}, {arch}): copies beside the threads"));
                }
                match compiled {
                    Ok(p) => match tool.as_deref().map(|t| run_ptxas(t, &p.ptx, arch, &format!("{name}-{form}"))) {
                        Some(Ok((kernels, _))) => {
                            for mut k in kernels {
                                let launch = p.grid.launch(&k.kernel).expect("each kernel is launched");
                                // The assembler knows of no memory that a launch asks for.
                                k.shared += u64::from(launch.shared);
                                let (threads, busy) = (launch.threads.map(u64::from), k.occupancy(launch, arch));
                                let threads: u64 = threads.iter().product();
                                let row = format!("{name:<16} {form:<23} {arch:<7} {k} {threads:>4} {busy:>3}");
                                if form.starts_with("cuda") && k.spills > 0 {
                                    complaints.push(format!("{row}: registers are spilled"));
                                }
                                rows.lock().expect("no panic while it is held").push(row);
                            }
                        }
                        Some(Err(e)) => complaints.push(format!("{name} ({form}, {arch}): {e}")),
                        None => {}
                    },
                    Err(CompileError::Intrinsic { intrinsic, least, .. }) => rows
                        .lock()
                        .expect("no panic while it is held")
                        .push(format!("{name:<16} {form:<23} {arch:<7} none: {intrinsic} is from sm_{least} on")),
                    Err(CompileError::Architecture { intrinsic, only, .. }) => rows
                        .lock()
                        .expect("no panic while it is held")
                        .push(format!("{name:<16} {form:<23} {arch:<7} none: {intrinsic} is of {only} alone")),
                    Err(e) => complaints.push(format!("{name} ({form}, {arch}): {e}")),
                }
            }
        }
        complaints
    }));
    let mut rows = rows.into_inner().expect("no panic while it was held");
    if tool.is_none() {
        return;
    }
    rows.sort();
    let head = "; program, schedule, architecture, kernel; registers, spilled bytes, shared bytes, barriers, threads, occupancy in per cent";
    let text = format!("{head}\n{}\n", rows.join("\n"));
    report(&compare(&root().join("filetests/ptx/resources.txt"), &text).into_iter().collect::<Vec<_>>());
}

#[test]
fn copies_are_as_wide_as_alignment_allows() {
    let source = load(&root().join("examples/encoder_layer.cora"), &[]).expect("an example");
    let schedule = source.graph.schedule("cuda");
    let lowered = lower_for(&source, schedule, false, Some("sm_80"), &mut |_| {}).map_err(message).expect("it lowers");
    let ptx = |arch| compile(&lowered.storage, &GpuTarget::new(arch).expect("known")).expect("it compiles").ptx;
    let text = ptx("sm_80");
    let has = |words: &[&str]| text.lines().any(|l| words.iter().all(|w| l.contains(w)));
    assert!(has(&["cp.async.cg.shared.global", "], 16;"]), "aligned rows of weights go by 16 bytes");
    assert!(has(&["cp.async.ca.shared.global", "], 4, %r"]), "rows of ragged lengths go by elements, zeros beyond");
    assert!(has(&["cp.async.cg.shared.global", "], 16, %r"]), "rows beyond a ragged end are zeros");
    assert!(has(&["cp.async.commit_group"]) && has(&["cp.async.wait_group"]));
    assert!(!ptx("sm_70").contains("cp.async"), "sm_70 has ordinary loads only");
}

#[test]
fn kernels_that_build_tables_assemble() {
    let Some(tool) = ptxas() else {
        skip("assembling PTX: run scripts/setup_ptxas.sh");
        return;
    };
    let source = load(&root().join("examples/ragged_softmax.cora"), &[]).expect("an example");
    let schedule = source.graph.schedule("cuda");
    let form = Form { grid: Some("sm_80"), device_prelude: true, ..Form::default() };
    let lowered = lower_form(&source, schedule, form, &mut |_| {}).map_err(message).expect("it lowers");
    let tables: Vec<&str> =
        lowered.storage.kernels.iter().map(|k| k.name.as_str()).filter(|n| n.ends_with(".table")).collect();
    assert!(!tables.is_empty(), "there are tables");
    for arch in ARCHITECTURES {
        let program = compile(&lowered.storage, &GpuTarget::new(arch).expect("known")).expect("it compiles");
        assert_eq!(program.grid.builds.len(), tables.len());
        let rows = assemble(&tool, &program.ptx, arch, "device-prelude").expect("it assembles");
        let spilled: Vec<_> = rows.iter().filter(|r| r.split_whitespace().nth(2) != Some("0")).collect();
        assert!(spilled.is_empty(), "{arch}: {spilled:?}");
    }
}

/// What `ptxas -v` says of each kernel.
pub fn assemble(tool: &Path, ptx: &str, arch: &str, name: &str) -> Result<Vec<String>, String> {
    Ok(run_ptxas(tool, ptx, arch, name)?.0.iter().map(Resources::to_string).collect())
}

/// The machine code.
pub fn cubin(tool: &Path, ptx: &str, arch: &str, name: &str) -> Result<Vec<u8>, String> {
    Ok(run_ptxas(tool, ptx, arch, name)?.1)
}

fn run_ptxas(tool: &Path, ptx: &str, arch: &str, name: &str) -> Result<(Vec<Resources>, Vec<u8>), String> {
    let base = std::env::temp_dir().join(format!("cora-{}-{name}-{arch}", std::process::id()));
    let (input, output) = (base.with_extension("ptx"), base.with_extension("cubin"));
    std::fs::write(&input, ptx).map_err(|e| e.to_string())?;
    let run = Command::new(tool).args(["-v", "-arch", arch]).arg(&input).arg("-o").arg(&output).output();
    let code = std::fs::read(&output).unwrap_or_default();
    for p in [&input, &output] {
        // What is not there need not be removed.
        let _ = std::fs::remove_file(p);
    }
    let run = run.map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&run.stderr).into_owned();
    if !run.status.success() {
        return Err(text);
    }
    Ok((text.split("Compiling entry function '").skip(1).map(Resources::of).collect(), code))
}

/// What a kernel takes.
struct Resources {
    kernel: String,
    registers: u64,
    spills: u64,
    shared: u64,
    barriers: u64,
}

impl Resources {
    fn of(text: &str) -> Self {
        let kernel = text.split('\'').next().unwrap_or_default().to_owned();
        let before = |what: &str| {
            let at = text.find(what).unwrap_or(0);
            let word = text[..at].trim_end().rsplit([' ', ',']).next().unwrap_or_default();
            word.parse::<u64>().unwrap_or(0)
        };
        let spills = before("bytes spill stores") + before("bytes spill loads");
        let (registers, shared, barriers) = (before("registers"), before("bytes smem"), before("barriers"));
        Self { kernel, registers, spills, shared, barriers }
    }

    /// Per cent of a multiprocessor's warps that blocks of so many threads can keep busy at once (CUDA C++ Programming Guide,
    /// technical specifications per compute capability): registers go by 256 to warps, of which each of four schedulers
    /// has as many; shared memory by 128 bytes, or 256 before `sm_80`, from where on each block costs 1 KiB more.
    fn occupancy(&self, launch: &GridLaunch, arch: &str) -> u64 {
        let (memory, grain, cost) = match arch {
            "sm_70" => (96 << 10, 256, 0),
            "sm_80" => (164 << 10, 128, 1024),
            _ => (228 << 10, 128, 1024),
        };
        let warps = launch.threads.iter().map(|&t| u64::from(t)).product::<u64>().div_ceil(32);
        let by_registers = 65536 / (self.registers.max(1) * 32).next_multiple_of(256) / 4 * 4 / warps;
        let shared = (self.shared + cost).next_multiple_of(grain);
        let blocks = by_registers.min(memory / shared.max(1)).min(64 / warps).min(32);
        blocks * warps * 100 / 64
    }
}

impl fmt::Display for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kernel, registers, spills, shared, barriers } = self;
        write!(f, "{kernel:<28} {registers:>3} {spills:>5} {shared:>6} {barriers:>2}")
    }
}
