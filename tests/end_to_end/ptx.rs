//! Every example as PTX for three architectures, assembled by `ptxas` where the set-up could fetch it: registers,
//! spills, shared memory and barriers of each kernel are a blessed table.

use crate::examples::load;
use crate::harness::{message, report};
use crate::support::{compare, files, in_parallel, root, stem};
use cora::codegen_cuda::{CompileError, GpuTarget, compile};
use cora::driver::lower_for;
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
        eprintln!("SKIP assembling PTX: run scripts/setup_ptxas.sh");
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
            // Its layer is an example of its own.
            if name == "encoder6" {
                continue;
            }
            let lowered = match lower_for(&source, schedule, false, true, &mut |_| {}) {
                Ok(l) => l,
                Err(e) => {
                    complaints.push(format!("{name} ({form}): {}", message(e)));
                    continue;
                }
            };
            for arch in ARCHITECTURES {
                let target = GpuTarget::new(arch).expect("a known architecture");
                match compile(&lowered.storage, &target) {
                    Ok(p) => match tool.as_deref().map(|t| assemble(t, &p.ptx, arch, &format!("{name}-{form}"))) {
                        Some(Ok(kernels)) => rows
                            .lock()
                            .expect("no panic while it is held")
                            .extend(kernels.iter().map(|k| format!("{name:<16} {form:<23} {arch:<7} {k}"))),
                        Some(Err(e)) => complaints.push(format!("{name} ({form}, {arch}): {e}")),
                        None => {}
                    },
                    Err(CompileError::Intrinsic { intrinsic, least, .. }) => rows
                        .lock()
                        .expect("no panic while it is held")
                        .push(format!("{name:<16} {form:<23} {arch:<7} none: {intrinsic} is from sm_{least} on")),
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
    let head = "; program, schedule, architecture, kernel; registers, spilled bytes, shared bytes, barriers";
    let text = format!("{head}\n{}\n", rows.join("\n"));
    report(&compare(&root().join("filetests/ptx/resources.txt"), &text).into_iter().collect::<Vec<_>>());
}

/// What `ptxas -v` says of each kernel.
pub fn assemble(tool: &Path, ptx: &str, arch: &str, name: &str) -> Result<Vec<String>, String> {
    let base = std::env::temp_dir().join(format!("cora-{}-{name}-{arch}", std::process::id()));
    let (input, output) = (base.with_extension("ptx"), base.with_extension("cubin"));
    std::fs::write(&input, ptx).map_err(|e| e.to_string())?;
    let run = Command::new(tool).args(["-v", "-arch", arch]).arg(&input).arg("-o").arg(&output).output();
    for p in [&input, &output] {
        // What is not there need not be removed.
        let _ = std::fs::remove_file(p);
    }
    let run = run.map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&run.stderr).into_owned();
    if !run.status.success() {
        return Err(text);
    }
    Ok(text.split("Compiling entry function '").skip(1).map(row).collect())
}

fn row(text: &str) -> String {
    let kernel = text.split('\'').next().unwrap_or_default();
    let before = |what: &str| {
        let at = text.find(what).unwrap_or(0);
        let word = text[..at].trim_end().rsplit([' ', ',']).next().unwrap_or_default();
        word.parse::<u64>().unwrap_or(0)
    };
    let spills = before("bytes spill stores") + before("bytes spill loads");
    format!("{kernel:<28} {:>3} {spills:>5} {:>6} {:>2}", before("registers"), before("bytes smem"), before("barriers"))
}
