//! CoRa: compile operators on ragged tensors once, run them on any batch of lengths.
//!
//! This crate is the front of the house: it ties the stages together ([`driver`]), makes and reads
//! batches and inputs ([`batch`], [`inputs`]), compares results with the reference interpreter
//! ([`check`]), says what it finds on a [`console`] and holds the `cora` command ([`cli`]). Each stage is a crate of its own.

pub mod batch;
pub mod check;
pub mod cli;
pub mod console;
pub mod driver;
pub mod eval;
pub mod inputs;
pub mod report;
pub mod work;

pub use cora_codegen_cuda as codegen_cuda;
pub use cora_codegen_llvm as codegen_llvm;
pub use cora_frontend as frontend;
pub use cora_ir as ir;
pub use cora_passes as passes;
pub use cora_runtime as runtime;
