//! Safe driver for MLIR and LLVM 22: MLIR text in; LLVM IR, assembly, objects, shared libraries or callable code out.
//!
//! The stages follow each other by value:
//!
//! ```text
//! MLIR text ─ MlirModule::parse ─► MlirModule ─ run_pipeline(CPU_PIPELINE) ─► llvm dialect
//!                                                    │ LlvmModule::from_mlir(&module, &target)
//!                                                    ▼
//!                    LlvmModule ─ optimize("default<O3>") ─► emit_object ─┬► Jit::load ─► lookup
//!                                                 └► emit_asm             └► link_shared (artifacts)
//! ```
//!
//! Errors are values: MLIR and LLVM diagnostics are captured into [`CodegenError`] and never printed. The exception is
//! an LLVM fatal error ("Cannot select", unsupported PTX version), from which LLVM cannot return: the process then
//! writes a reproducer, prints one line and exits with [`FATAL_EXIT_CODE`].
//!
//! Nothing here is shared between threads except [`Jit`], so kernels may be compiled on several threads at once.
//!
//! ```
//! use cora_codegen_llvm::llvm::{CPU_PIPELINE, Jit, LlvmModule, MlirModule, TargetSpec};
//!
//! let mut module = MlirModule::parse(
//!     "llvm.func @add(%a: i64, %b: i64) -> i64 {
//!        %sum = arith.addi %a, %b : i64
//!        llvm.return %sum : i64
//!      }",
//! )?;
//! module.run_pipeline(CPU_PIPELINE)?;
//! let mut llvm = LlvmModule::from_mlir(&module, &TargetSpec::host())?;
//! llvm.optimize("default<O3>")?;
//! let jit = Jit::load(&llvm.emit_object()?)?;
//! let add = jit.lookup("add")?;
//! // SAFETY: `add` was compiled above with this signature, and `jit` outlives the call.
//! let sum = unsafe {
//!     let add: extern "C" fn(i64, i64) -> i64 = std::mem::transmute(add);
//!     add(2, 40)
//! };
//! assert_eq!(sum, 42);
//! # Ok::<(), cora_codegen_llvm::llvm::CodegenError>(())
//! ```

mod convergent;
mod cpus;
mod error;
mod fatal;
mod features;
mod ffi;
mod jit;
mod link;
mod llvm_module;
mod lone_lanes;
mod masks;
mod mlir_module;
mod target;
mod walk;

#[cfg(test)]
mod tests;

pub use error::CodegenError;
pub use fatal::FATAL_EXIT_CODE;
pub use jit::Jit;
pub use link::link_shared;
pub use llvm_module::LlvmModule;
pub use mlir_module::{CPU_PIPELINE, MlirModule};
pub use target::TargetSpec;
