//! Storage dialect to MLIR to native CPU code.
//!
//! Module [`llvm`] drives MLIR and LLVM: parsing, lowering, translation, optimisation, emission, JIT and linking.
//! It holds no knowledge of dialects or schedules. Module [`mlir`] writes the storage dialect as MLIR text,
//! [`describe`] tells the runtime what it needs to know, and [`compile`] puts the stages together.
//!
//! ```
//! use cora_codegen_llvm::compile::{CompileOptions, compile, to_mlir};
//! use cora_codegen_llvm::llvm::TargetSpec;
//!
//! let text = "storage.module @twice {
//!     param M in 0..=64
//!     tensor @A[i: M] : f32 input
//!     tensor @B[i: M] : f32 output
//!     buffer @A elems = M offset = $0
//!     buffer @B elems = M offset = $0
//!     kernel @B { for %i in 0..M parallel { @B[%i] = 2.0:f32 * @A[%i] } }
//! }";
//! let module = cora_ir::text::parse_storage(text)?;
//! let (target, options) = (TargetSpec::host(), CompileOptions::default());
//! assert!(to_mlir(&module, &target, &options)?.contains("arith.mulf"));
//! let program = compile(&module, &target, &options)?;
//! assert_eq!(program.desc().kernels.len(), 1);
//! assert!(program.object().starts_with(b"\x7fELF"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The storage dialect is described in `docs/ir.md`; `cora_passes` makes it from programs, `cora_runtime` runs the code.

pub mod compile;
pub mod describe;
pub mod llvm;
pub mod mlir;
