//! CoRa: compile operators on ragged tensors once, run them on any batch of lengths.
//!
//! A [`Program`] of text, or of the Rust builder's graph ([`Program::from_graph`]), becomes native code ([`Compiled`]),
//! which runs ([`Running`]):
//!
//! ```
//! use cora::runtime::{abi::DType, array::RaggedArray};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let text = "
//!         param M in 0..=1024                  // rows, chosen at run time
//!         extent lens(row) in 0..=4096         // elements of each row
//!         dim row = M, i = lens(row)
//!         input X[row, i] : f32
//!         top[row] = max(i) X
//!         e[row, i] = exp(X - top)
//!         Y[row, i] = e / sum(i) e
//!         output Y";
//!     let softmax = cora::Program::from_text("softmax", text)?.compile()?;
//!
//!     let mut running = softmax.instance(2)?;  // two worker threads; any number of instances share the code
//!     running.bind(&[("M", 3)], &[("lens", &[2, 0, 4])])?;
//!     let x = [5.0f32, 5.0, 1.0, 1.0, 1.0, 1.0];  // row after row, without padding
//!     let x = RaggedArray::from_slice(DType::F32, running.shape("X")?, &x)?;
//!     running.set_input("X", &x)?;
//!     running.run()?;
//!     let y = running.output("Y")?;
//!     assert_eq!(y.as_slice::<f32>()?, [0.5, 0.5, 0.25, 0.25, 0.25, 0.25]);
//!     Ok(())
//! }
//! ```
//!
//! Memory is kept from batch to batch. Mistakes in a program are a [`Failure`], those in a batch a [`runtime::Error`].
//!
//! This crate is the front of the house: it ties the stages together ([`driver`]), knows what is compiled for
//! ([`target`]), makes and reads batches and inputs ([`batch`], [`inputs`]), compares results with the reference
//! interpreter ([`check`]), says what it finds on a [`console`] and holds the `cora` command ([`cli`]). Each stage is a
//! crate of its own.

pub mod batch;
pub mod check;
pub mod cli;
pub mod console;
pub mod driver;
pub mod eval;
pub mod inputs;
mod program;
pub mod report;
pub mod target;
pub mod work;

pub use cora_codegen_cuda as codegen_cuda;
pub use cora_codegen_llvm as codegen_llvm;
pub use cora_frontend as frontend;
pub use cora_ir as ir;
pub use cora_passes as passes;
pub use cora_runtime as runtime;

pub use driver::Failure;
pub use program::{Compiled, Program, Running};

/// The examples of the README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
