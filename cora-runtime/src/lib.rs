//! Runs compiled ragged programs.
//!
//! This crate owns what happens after compilation:
//!
//! - [`abi`]: the data that describes a compiled program, the contract with the code generators;
//! - [`prelude`]: checks a batch's parameters and lengths, builds the tables that kernels read, and keeps them while
//!   the batch stays the same; [`eval`] holds tables and evaluates one index expression;
//! - [`mod@array`]: arrays in row-major ragged order, and their packing into storage layouts;
//! - [`exec`]: memory, setup, kernels and outputs; [`pool`]: the threads they run on;
//! - [`blas`]: the library that multiplies matrices for programs that offload them;
//! - [`artifact`]: compiled programs as files, [`library`] loads the code of a processor that [`cpu`] says
//!   it runs on, [`cuda`] runs that of a GPU;
//!   the binary `cora-exec` does all three;
//! - [`npy`] and [`lengths`]: the files that tensors and lengths come in.
//!
//! What must be absent: any compiler crate of this workspace, LLVM, MLIR and solvers; any decision that a pass could
//! have made. Whatever a description, a batch or a file holds, the answer is a typed [`Error`] with a stable code, not
//! a panic; native kernels are trusted.
//!
//! Arrays and lengths as programs take them:
//!
//! ```
//! use cora_runtime::abi::DType;
//! use cora_runtime::array::{RaggedArray, Shape};
//!
//! // Two rows, of 2 and 1 elements, one after the other without padding.
//! let shape = Shape::Ragged { rank: 2, elements: 3 };
//! let rows = RaggedArray::from_slice(DType::F32, shape, &[1.0f32, 2.0, 3.0])?;
//! assert_eq!(rows.as_slice::<f32>()?, [1.0, 2.0, 3.0]);
//! let wrong = RaggedArray::from_slice(DType::F32, Shape::Dense(vec![2, 2]), &[1.0f32, 2.0, 3.0]).expect_err("4 are needed");
//! assert_eq!(wrong.code(), "E0316");
//! # Ok::<(), cora_runtime::Error>(())
//! ```
//!
//! The crate `cora` compiles programs and runs them through this one; its page shows that.
//!
//! Multi-byte elements are in the machine's byte order, which is taken to be little-endian in files.

pub mod abi;
pub mod array;
pub mod artifact;
pub mod blas;
pub mod cpu;
pub mod cuda;
mod domain;
mod error;
pub mod eval;
pub mod exec;
pub mod lengths;
pub mod library;
mod limits;
pub mod npy;
mod plan;
pub mod pool;
pub mod prelude;
mod strip;

pub use error::{Error, Result};
pub use limits::Limits;

#[cfg(target_endian = "big")]
compile_error!("cora-runtime reads and writes little-endian files without conversion");
