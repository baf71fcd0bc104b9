//! The machine's peak of fused multiply-adds, measured: a loop on registers alone, compiled by our own driver.
//!
//! The loop keeps independent accumulators of one vector register each, enough to cover the latency of an FMA and
//! few enough to stay in registers, and reads no memory. It is written as MLIR and goes through the pipeline that
//! kernels go through. Each thread times its own loop, all at once; a round's rate is the sum of the threads' rates, in
//! the second of two such loops, when each thread has found a processor.
//! Rounds are spread over a run, since clocks change: the peak is the greatest, and the median is kept beside it.

use cora::codegen_llvm::llvm::{CPU_PIPELINE, CodegenError, Jit, LlvmModule, MlirModule, TargetSpec};
use cora::driver::Failure;
use std::fmt::Write;
use std::sync::Barrier;
use std::time::Instant;

/// Iterations of the loop a round: some milliseconds.
const ITERATIONS: i64 = 2_000_000;

/// What was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Peak {
    /// f32 operations a second of all threads together, in 10^9 (two for a multiply-add): the greatest of the rounds.
    pub gflops: f64,
    /// The median of the rounds.
    pub median_gflops: f64,
    /// Threads that ran at once.
    pub threads: usize,
    /// Lanes of the vectors.
    pub lanes: usize,
}

/// `fn(out, iterations, factor, summand)`: runs the loop and writes one vector, so that nothing is dead code. Factor and
/// summand are arguments, or an accumulator that starts where they leave it would be a constant, its FMA never executed.
type Loop = unsafe extern "C" fn(*mut f32, i64, f32, f32);
/// A factor and a summand that keep accumulators finite.
const STEP: (f32, f32) = (0.75, 0.125);

/// Lanes of the target's vector registers, and accumulators.
fn shape(target: &TargetSpec) -> (usize, usize) {
    if target.triple().starts_with("aarch64") {
        (4, 24)
    } else if target.has_feature("avx512f") {
        (16, 16)
    } else {
        (8, 12)
    }
}

/// The loop as MLIR.
fn program(lanes: usize, accumulators: usize) -> String {
    let v = format!("vector<{lanes}xf32>");
    let list = |f: &dyn Fn(usize) -> String| (0..accumulators).map(f).collect::<Vec<_>>().join(", ");
    let mut text = String::from("module {\nllvm.func @fma_peak(%out: !llvm.ptr, %n: i64, %f: f32, %s: f32) {\n");
    let _ = writeln!(text, "  %c0 = arith.constant 0 : i64\n  %c1 = arith.constant 1 : i64");
    let _ = writeln!(text, "  %x = vector.broadcast %f : f32 to {v}\n  %y = vector.broadcast %s : f32 to {v}");
    for i in 0..accumulators {
        // Different starts, or equal accumulators would become one.
        let _ = writeln!(text, "  %s{i} = arith.constant dense<{i}.5> : {v}");
    }
    let types = list(&|_| v.clone());
    let _ = writeln!(
        text,
        "  %r:{accumulators} = scf.for %i = %c0 to %n step %c1 iter_args({}) -> ({types}) : i64 {{",
        list(&|i| format!("%a{i} = %s{i}"))
    );
    for i in 0..accumulators {
        let _ = writeln!(text, "    %b{i} = math.fma %a{i}, %x, %y : {v}");
    }
    let _ = writeln!(text, "    scf.yield {} : {types}\n  }}", list(&|i| format!("%b{i}")));
    let _ = writeln!(text, "  %t0 = arith.addf %r#0, %r#1 : {v}");
    for i in 2..accumulators {
        let _ = writeln!(text, "  %t{} = arith.addf %t{}, %r#{i} : {v}", i - 1, i - 2);
    }
    let _ = writeln!(text, "  llvm.store %t{}, %out : {v}, !llvm.ptr\n  llvm.return\n}}\n}}", accumulators - 2);
    text
}

fn compile(target: &TargetSpec, lanes: usize, accumulators: usize) -> Result<LlvmModule, CodegenError> {
    let mut module = MlirModule::parse(&program(lanes, accumulators))?;
    module.run_pipeline(CPU_PIPELINE)?;
    let mut llvm = LlvmModule::from_mlir(&module, target)?;
    llvm.optimize("default<O3>")?;
    Ok(llvm)
}

/// A vector of the greatest size, aligned for any.
#[repr(align(64))]
struct Sink([f32; 16]);

/// The compiled loop and the rates that it ran at.
pub struct Meter {
    jit: Jit,
    threads: usize,
    lanes: usize,
    accumulators: usize,
    rates: Vec<f64>,
}

impl Meter {
    /// Compiles the loop, for `threads` threads at once.
    ///
    /// # Errors
    /// A bug, if it does not compile.
    pub fn new(threads: usize) -> Result<Self, Failure> {
        let target = TargetSpec::host();
        let (lanes, accumulators) = shape(&target);
        let object = compile(&target, lanes, accumulators).and_then(|llvm| llvm.emit_object());
        let jit = object.and_then(|o| Jit::load(&o)).map_err(bug)?;
        Ok(Self { jit, threads, lanes, accumulators, rates: Vec::new() })
    }

    /// One round: some milliseconds.
    ///
    /// # Errors
    /// A bug, if the loop has no such name.
    pub fn round(&mut self) -> Result<(), Failure> {
        let address = self.jit.lookup("fma_peak").map_err(bug)?;
        // SAFETY: `program` gives `fma_peak` this signature, with C's calling convention, and `jit` outlives every call.
        let kernel = unsafe { std::mem::transmute::<*const (), Loop>(address) };
        let flops = (2 * self.lanes * self.accumulators) as f64 * ITERATIONS as f64;
        let barrier = Barrier::new(self.threads);
        let one = || {
            let mut seconds = 0.0;
            for _ in 0..2 {
                let mut sink = Sink([0.0; 16]);
                barrier.wait();
                let start = Instant::now();
                // SAFETY: the loop writes one vector of at most 16 lanes, and `sink` is aligned for it.
                unsafe { kernel(sink.0.as_mut_ptr(), ITERATIONS, STEP.0, STEP.1) };
                seconds = start.elapsed().as_secs_f64();
                std::hint::black_box(&sink.0);
            }
            flops / seconds / 1e9
        };
        let rates = std::thread::scope(|s| {
            let handles: Vec<_> = (0..self.threads).map(|_| s.spawn(one)).collect();
            handles.into_iter().map(|h| h.join().ok()).collect::<Option<Vec<f64>>>()
        });
        self.rates.extend(rates.map(|r| r.iter().sum::<f64>()));
        Ok(())
    }

    /// Of the rounds so far; of none, zeros.
    pub fn peak(&self) -> Peak {
        let mut rates = self.rates.clone();
        rates.sort_by(f64::total_cmp);
        Peak {
            gflops: rates.last().copied().unwrap_or(0.0),
            median_gflops: rates.get(rates.len() / 2).copied().unwrap_or(0.0),
            threads: self.threads,
            lanes: self.lanes,
        }
    }
}

fn bug(e: CodegenError) -> Failure {
    Failure::Bug(format!("the peak loop: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each accumulator's multiply-add is executed: what is counted is what runs.
    #[test]
    fn no_accumulator_is_folded() -> Result<(), CodegenError> {
        let target = TargetSpec::host();
        let (lanes, accumulators) = shape(&target);
        let ir = compile(&target, lanes, accumulators)?.to_ir_string();
        let executed = ir.lines().filter(|l| l.contains("call") && l.contains("@llvm.fma.")).count();
        assert!(
            executed > 0 && executed % accumulators == 0,
            "{executed} multiply-adds of {accumulators} accumulators"
        );
        Ok(())
    }
}
