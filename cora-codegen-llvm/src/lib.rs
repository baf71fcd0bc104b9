//! Storage dialect to MLIR to native CPU code.
//!
//! Module [`llvm`] drives MLIR and LLVM: parsing, lowering, translation, optimisation, emission, JIT and linking.
//! It holds no knowledge of dialects or schedules.

pub mod llvm;
