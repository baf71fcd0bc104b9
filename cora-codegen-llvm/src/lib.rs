//! Storage dialect to MLIR to native CPU code.
//!
//! Module [`llvm`] drives MLIR and LLVM: parsing, lowering, translation, optimisation, emission, JIT and linking.
//! It holds no knowledge of dialects or schedules. Module [`mlir`] writes the storage dialect as MLIR text,
//! [`describe`] tells the runtime what it needs to know, and [`compile`] puts the stages together.

pub mod compile;
pub mod describe;
pub mod llvm;
pub mod mlir;
