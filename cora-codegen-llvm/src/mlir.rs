//! The storage dialect as MLIR text.
//!
//! [`emit`] turns a legalised [`StorageModule`] (serial loops, at most one parallel loop in a kernel) into one MLIR module
//! of `llvm`, `scf`, `arith`, `math` and `vector` ops that the CPU pipeline lowers. For each kernel there is
//!
//! - a public function of the runtime's kernel signature `(bufs, tables, scalars, lo, hi, worker)`, which reads the
//!   pointers and parameters that the kernel uses, and calls
//! - a private function with one `noalias` pointer for each table, and for each buffer or the part of it that the kernel
//!   accesses, which holds the loops. It is not inlined, so that LLVM keeps what the attributes say about aliases.
//!   Kernels whose private functions are the same text, such as those of a network's equal layers, have one.
//!
//! ```text
//! storage.kernel @double { for %f in 0..%n parallel { %B[%f] = 2.0 * %A[%f] } }
//!
//! llvm.func internal @cora_double.body(%0: !llvm.ptr {llvm.noalias, llvm.readonly, ...}, %1: !llvm.ptr {...},
//!                                      %lo: i64, %hi: i64) {
//!   scf.for %3 = %lo to %hi step %c1 : i64 { ... llvm.load ... arith.mulf ... llvm.store ... }
//!   llvm.return
//! }
//! ```
//!
//! What the text computes:
//! - Loop variables and `index` values are `i64` and do not overflow; a trip count below 0 counts as 0.
//! - `f16` and `bf16` arithmetic is done in `f32` and rounds where a value is stored or cast.
//! - `a * b + c` in floating point is one rounding ([`EmitOptions::fma`]); nothing else is reassociated or contracted.
//! - A guarded load reads nothing where its guard is false; a scalar guard becomes a branch, a vector one a masked load.
//!   The right side of `and` and `or` is computed only where the left does not decide, if it loads.
//! - Vectors with consecutive indices are loaded and stored whole; others are gathered and scattered, but a square
//!   of elements that changes its order is loaded and stored in whole vectors, with shuffles between.
//! - Neighbours that take the lanes of a vector each take them in one vector of them all.
//! - A tile of a tensor instruction is that instruction, or the same by others where there is none.
//! - A product of matrices calls a function through a variable that the runtime sets ([`Import`](cora_runtime::abi::Import)).
//! - Division by zero of integers gives 0; other integer arithmetic wraps.

mod access;
mod amx;
mod arith;
mod bases;
mod builder;
mod bulk;
mod bytes;
mod cleared;
mod convert;
mod copies;
mod expr;
mod gemm;
mod grid;
mod interleave;
mod kernel;
mod lanes;
mod library;
mod masked;
mod math;
mod slots;
mod sums;
mod tile;
mod transpose;
mod wgmma;

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use cora_ir::ScalarType;
use cora_ir::intrinsic::Emission;
use cora_ir::storage::StorageModule;

use crate::llvm::TargetSpec;
pub use bulk::TensorMap;
pub(crate) use gemm::import;
pub use grid::{GridArg, GridKernel, GridOptions};
pub use slots::{Slot, Slots};

/// How to emit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmitOptions {
    /// Whether `a * b + c` is one rounding. Without it there are two, on every target.
    ///
    /// A target without the instruction would call `fmaf` for each lane, so [`EmitOptions::for_target`] leaves it off there.
    pub fma: bool,
    /// Whether there is `vscalefps` for 16 lanes; without it powers of two are multiplied by, with the same results.
    pub scalef: bool,
    /// Whether there is `vdpbf16ps`; without it the same is computed by other instructions, except that denormals stay.
    pub dot_bf16: bool,
    /// Whether there is `vpdpbusd`; without it the same is computed by other instructions.
    pub dot_i8: bool,
    /// Whether there is `vpmaddwd` on vectors of 32 bytes; without it likewise.
    pub pairs_i16: bool,
    /// Whether there is `tdpbf16ps` on tile registers; without it as without `vdpbf16ps`, row by row.
    pub amx_bf16: bool,
    /// Whether there is `tdpbssd` on tile registers; without it as without `vpdpbusd`, row by row.
    pub amx_i8: bool,
    /// Bytes that one read or write under a mask has at most; longer vectors are taken in parts.
    ///
    /// LLVM 22 splits longer ones by itself, and may read a register of them without a mask (see `masked`).
    pub masked_bytes: u32,
    /// Whether a store of all lanes under a mask is made without it, by a branch. Without AVX-512, on AMD's processors, one
    /// under a mask takes as long as a dozen others.
    pub full_stores: bool,
}

impl Default for EmitOptions {
    fn default() -> Self {
        Self {
            fma: true,
            scalef: false,
            dot_bf16: false,
            dot_i8: false,
            pairs_i16: false,
            amx_bf16: false,
            amx_i8: false,
            masked_bytes: u32::MAX,
            full_stores: false,
        }
    }
}

/// The feature of a target that has tile registers.
pub(crate) const TILE_REGISTERS: &str = "amx-tile";

impl EmitOptions {
    /// Whether there is the instruction on tile registers that is written so.
    pub fn has_tiles(&self, emission: Emission) -> bool {
        match emission {
            Emission::AmxBf16 => self.amx_bf16,
            Emission::AmxI8 => self.amx_i8,
            _ => false,
        }
    }

    /// What suits a target.
    pub fn for_target(target: &TargetSpec) -> Self {
        Self {
            fma: !target.triple().starts_with("x86_64") || target.has_feature("fma"),
            scalef: target.has_feature("avx512f"),
            dot_bf16: target.has_feature("avx512bf16"),
            dot_i8: target.has_feature("avx512vnni"),
            pairs_i16: target.has_feature("avx2"),
            amx_bf16: target.has_feature(TILE_REGISTERS) && target.has_feature("amx-bf16"),
            amx_i8: target.has_feature(TILE_REGISTERS) && target.has_feature("amx-int8"),
            masked_bytes: match (target.has_feature("avx512f"), target.has_feature("avx")) {
                (true, _) => 64,
                (false, true) => 32,
                // An access for each lane.
                (false, false) => u32::MAX,
            },
            full_stores: target.has_feature("avx") && !target.has_feature("avx512f"),
        }
    }
}

/// A storage module that cannot be emitted: what comes from the verified, legalised dialect can.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("kernel `{kernel}`: {fault}")]
pub struct EmitError {
    /// The kernel.
    pub kernel: String,
    /// What is wrong.
    #[source]
    pub fault: EmitFault,
}

/// What is wrong with a kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EmitFault {
    /// An operator on operands that it has no meaning for.
    #[error("`{op}` has no meaning for {ty}")]
    Operator {
        /// The operator.
        op: String,
        /// Its operands' type.
        ty: ScalarType,
    },
    /// Something that earlier passes remove.
    #[error("{0} should have been removed by an earlier pass")]
    NotLegal(&'static str),
    /// A tensor without buffer or table.
    #[error("tensor `{0}` has neither buffer nor table")]
    NoBuffer(String),
    /// A variable outside of its scope.
    #[error("variable `{0}` is not bound here")]
    Unbound(String),
    /// A buffer of a thread or a block whose size is not a positive constant.
    #[error("the size of buffer `{0}`, which a thread or a block has for itself, is not a positive constant")]
    BufferSize(String),
    /// A value of another type than the tensor's elements.
    #[error("tensor `{tensor}` of {elements} is accessed as {ty}")]
    ElementType {
        /// The tensor.
        tensor: String,
        /// Its element type.
        elements: ScalarType,
        /// The type of the value read or written.
        ty: ScalarType,
    },
    /// A function that ends as a call of libm, on a device that has none.
    #[error("`{0}` of f64 has no expansion for a GPU")]
    NoDeviceFunction(&'static str),
    /// A call of a library, on a device that has none.
    #[error("a product of matrices is offloaded, and no library can be called on a GPU")]
    NoLibrary,
    /// Vectors of different numbers of lanes, or a vector where a scalar belongs.
    #[error("{0}")]
    Lanes(&'static str),
}

/// The MLIR text of a module; the same module gives the same bytes.
///
/// Requires: verified and legalised. The text parses and verifies for every such module.
///
/// # Errors
///
/// [`EmitError`] for a module that breaks the requirement.
pub fn emit(module: &StorageModule, options: &EmitOptions) -> Result<String, EmitError> {
    let slots = Slots::new(module);
    let mut library = library::Library::new(options);
    let (mut kernels, mut pool) = (String::new(), module.env.pool.clone());
    let mut owners = HashMap::new();
    for (kernel, symbol) in module.kernels.iter().zip(slots.symbols()) {
        let functions = kernel::emit(module, &slots, (&mut library, &mut pool), kernel)
            .map_err(|fault| EmitError { kernel: kernel.name.clone(), fault })?;
        let owner = owners.entry(functions.key()).or_insert(symbol);
        kernels.push_str(&functions.text(kernel, symbol, owner));
    }
    Ok(format!("module {{\n{}{kernels}}}\n", library.text()))
}

/// The MLIR text of a module for a GPU, and how to launch each of its kernels; the same module gives the same bytes.
///
/// Requires: verified and legalised. Kernels without bound loops run on one thread.
///
/// # Errors
///
/// [`EmitError`] for a module that breaks the requirement, or that uses what GPUs do not have.
pub fn emit_grid(module: &StorageModule, options: &GridOptions) -> Result<(String, Vec<GridKernel>), EmitError> {
    let slots = Slots::grid(module);
    let mut library = library::Library::grid();
    let (mut kernels, mut launches, mut pool) = (String::new(), Vec::new(), module.env.pool.clone());
    let mut owners = HashMap::new();
    for (kernel, symbol) in module.kernels.iter().zip(slots.symbols()) {
        let function = grid::emit(module, &slots, (&mut library, &mut pool), kernel, options)
            .map_err(|fault| EmitError { kernel: kernel.name.clone(), fault })?;
        let owner = owners.entry(function.key()).or_insert(symbol);
        if *owner == symbol {
            kernels.push_str(&function.text(kernel, symbol));
        }
        launches.push(function.launch(symbol, owner));
    }
    Ok((format!("module {{\n{}{kernels}}}\n", library.text()), launches))
}
