//! How much work kernels do: multiply-adds of the unpadded program, and those issued.

use crate::driver::Source;
use cora_ir::interp::Batch;
use cora_ir::loops::LoopModule;

/// `(useful, issued)` floating-point operations of each kernel (top-level nest) of `loops`.
pub fn kernel_flops(_source: &Source, loops: &LoopModule, _batch: &Batch) -> Vec<(f64, f64)> {
    vec![(0.0, 0.0); loops.body.len()]
}
