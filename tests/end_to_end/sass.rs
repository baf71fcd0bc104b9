//! What is left in the machine code of the examples on grids: how many instructions of each inner loop of a contraction
//! are multiply-adds, and how wide global memory is read. Disassembled where the set-up could fetch the tool.

use crate::examples::{LARGE, load};
use crate::harness::{message, report};
use crate::ptx::{cubin, ptxas};
use crate::support::skip::skip;
use crate::support::{files, in_parallel, stem};
use cora::codegen_cuda::{CompileError, GpuTarget, compile};
use cora::driver::lower_for;
use cora::ir::loops::LoopKind;
use cora::ir::storage::{Kernel, Stmt};
use cora::ir::{BinOp, Env, Expr, ExprId, ScalarType};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

const ARCH: &str = "sm_80";

/// Least part of the instructions of each inner loop of a contraction that are multiply-adds, in per cent.
const LEAST: usize = 80;

/// Kernels that multiply matrices by vectors: each product reads an element of the matrix, which no other one uses.
const OF_VECTORS: &[(&str, &str)] = &[("gru", "H")];

/// NVIDIA's disassembler, put there by `scripts/setup_ptxas.sh`.
fn nvdisasm() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).parent()?.join("nvdisasm/nvidia/cu13/bin/nvdisasm");
    path.exists().then_some(path)
}

/// The instructions of a function by name, and its loops that hold no other: first and last instruction.
struct Function {
    name: String,
    code: Vec<String>,
    loops: Vec<(usize, usize)>,
}

fn functions(text: &str) -> Vec<Function> {
    text.split("\n.text.").skip(1).map(function).collect()
}

fn function(text: &str) -> Function {
    let name = text.split(':').next().unwrap_or_default().to_owned();
    let (mut code, mut labels, mut back) = (Vec::new(), Vec::new(), Vec::new());
    for line in text.lines() {
        if let Some(label) = line.strip_suffix(':').filter(|l| l.starts_with(".L_")) {
            labels.push((label, code.len()));
        }
        let Some((_, rest)) = line.split_once("*/").filter(|_| line.trim_start().starts_with("/*")) else { continue };
        let mut words = rest.split_whitespace().skip_while(|w| w.starts_with('@'));
        let Some(op) = words.next() else { continue };
        if op == "BRA"
            && let Some(to) = rest.split_once('(').and_then(|x| x.1.split_once(')')).map(|x| x.0.trim_matches('`'))
            && let Some(&(_, at)) = labels.iter().find(|l| l.0 == to.trim_start_matches('`'))
        {
            back.push((at, code.len()));
        }
        code.push(op.to_owned());
    }
    let inner = |a: &(usize, usize)| !back.iter().any(|b| a != b && a.0 <= b.0 && b.1 <= a.1);
    let loops = back.iter().copied().filter(inner).collect();
    Function { name, code, loops }
}

impl Function {
    /// Per cent of multiply-adds in each loop that has at least so many.
    fn multiply_adds(&self, least: usize) -> Vec<usize> {
        let adds = |&(a, b): &(usize, usize)| self.code[a..=b].iter().filter(|op| op.starts_with("FFMA")).count();
        let contractions = self.loops.iter().filter(|l| adds(l) >= least);
        contractions.map(|l| adds(l) * 100 / (l.1 + 1 - l.0)).collect()
    }

    /// How many instructions read global memory, of 16 bytes a lane and of fewer.
    fn reads(&self) -> (usize, usize) {
        let reads = || self.code.iter().filter(|op| op.starts_with("LDG"));
        let wide = reads().filter(|op| op.contains(".128")).count();
        (wide, reads().count() - wide)
    }
}

/// How many products of two elements of `f32` each inner loop of a kernel adds to sums, of the loops that add any.
fn contractions(env: &Env, k: &Kernel) -> Vec<usize> {
    let mut found = Vec::new();
    let _outside = products(env, &k.body, &mut found);
    found
}

/// Those that the statements add outside of loops, the loops inside to `found`.
fn products(env: &Env, body: &[Stmt], found: &mut Vec<usize>) -> usize {
    let loads = |e: ExprId| matches!(env.pool.get(e), Expr::Load { .. } | Expr::Splat(..));
    let term = |e: ExprId| matches!(*env.pool.get(e), Expr::Bin(BinOp::Mul, a, b) if loads(a) && loads(b));
    let adds = |e: ExprId| {
        let sum = matches!(*env.pool.get(e), Expr::Bin(BinOp::Add, a, b) if loads(a) && term(b) || loads(b) && term(a));
        sum && env.pool.ty(e).scalar == ScalarType::F32
    };
    let one = |s: &Stmt| match s {
        Stmt::For { kind: LoopKind::Serial, body, .. } => {
            let before = found.len();
            let own = products(env, body, found);
            if found.len() == before && own > 0 {
                found.push(own);
            }
            0
        }
        Stmt::For { body, .. } => products(env, body, found),
        Stmt::If { then, other, .. } => products(env, then, found) + products(env, other, found),
        Stmt::Store { value, .. } => usize::from(adds(*value)),
        _ => 0,
    };
    body.iter().map(one).sum()
}

fn disassemble(tool: &Path, code: &[u8], name: &str) -> Result<String, String> {
    let path = std::env::temp_dir().join(format!("cora-{}-{name}.cubin", std::process::id()));
    std::fs::write(&path, code).map_err(|e| e.to_string())?;
    let run = Command::new(tool).arg("-c").arg(&path).output().map_err(|e| e.to_string());
    // What is not there need not be removed.
    let _ = std::fs::remove_file(&path);
    let run = run?;
    if !run.status.success() {
        return Err(String::from_utf8_lossy(&run.stderr).into_owned());
    }
    Ok(String::from_utf8_lossy(&run.stdout).into_owned())
}

#[test]
fn inner_loops_multiply_and_add() {
    let (Some(assembler), Some(disassembler)) = (ptxas(), nvdisasm()) else {
        skip("disassembling: run scripts/setup_ptxas.sh");
        return;
    };
    let rows: Mutex<Vec<String>> = Mutex::default();
    let mut examples = files("examples", "cora");
    examples.retain(|p| !LARGE.contains(&stem(p).as_str()));
    let target = GpuTarget::new(ARCH).expect("a known architecture");
    report(&in_parallel(&examples, |path| {
        let name = stem(path);
        let source = match load(path, &[]) {
            Ok(s) => s,
            Err(e) => return vec![e],
        };
        let mut complaints = Vec::new();
        let own = source.graph.schedules.iter().filter(|s| s.name.starts_with("cuda"));
        let forms = own.map(|s| (s.name.as_str(), Some(s))).chain([("default", None)]);
        for (form, schedule) in forms {
            let what = format!("{name:<16} {form:<24}");
            let lowered = lower_for(&source, schedule, false, Some(ARCH), &mut |_| {}).map_err(message);
            let program = lowered.map(|l| (compile(&l.storage, &target), l));
            if let Ok((Err(CompileError::Architecture { .. } | CompileError::Intrinsic { .. }), _)) = program {
                continue;
            }
            let found = program.and_then(|(program, l)| {
                let program = program.map_err(|e| e.to_string())?;
                let code = cubin(&assembler, &program.ptx, ARCH, &format!("sass-{name}-{form}"))?;
                Ok((l.storage, disassemble(&disassembler, &code, &format!("{name}-{form}"))?))
            });
            let (storage, text) = match found {
                Ok(f) => f,
                Err(e) => {
                    complaints.push(format!("{what}: {e}"));
                    continue;
                }
            };
            for f in functions(&text) {
                let own = storage.kernels.iter().find(|k| f.name == format!("cora_{}", k.name.replace('.', "_")));
                let Some(k) = own else {
                    complaints.push(format!("{what}: whose is `{}`?", f.name));
                    continue;
                };
                // A contraction's inner loop has no fewer in machine code; those of other loops are parts of exponentials.
                let vectors = OF_VECTORS.contains(&(name.as_str(), k.name.as_str()));
                let loops = if vectors { Vec::new() } else { contractions(&storage.env, k) };
                let parts = loops.iter().min().map_or(Vec::new(), |&least| f.multiply_adds(least));
                let (wide, narrow) = f.reads();
                let shown: Vec<_> = parts.iter().map(usize::to_string).collect();
                let row = format!("{what} {:<16} {wide:>4} {narrow:>4}  {}", k.name, shown.join(" "));
                if parts.iter().any(|&p| p < LEAST) {
                    complaints.push(format!("{row}: too few multiply-adds"));
                }
                // Rules about shape leave loops of two or three iterations, which the assembler's input no longer has.
                if schedule.is_some() && parts.len() < loops.len() {
                    complaints.push(format!("{row}: not the {} inner loops of its contractions", loops.len()));
                }
                rows.lock().expect("no panic while it is held").push(row);
            }
        }
        complaints
    }));
    let mut rows = rows.into_inner().expect("no panic while it was held");
    rows.sort();
    println!(
        "program, schedule, kernel; instructions that read global memory by 16 bytes a lane, and by fewer; per cent of"
    );
    println!("multiply-adds in each inner loop of a contraction");
    println!("{}", rows.join("\n"));
}
