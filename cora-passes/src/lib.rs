//! Lowering, scheduling primitives, simplification and proof: every pass between the op graph and
//! the simplified storage dialect, and the pass manager.
//!
//! From a graph (of `cora-frontend`, or of a text in `cora-ir`) to the program that code is generated from, by a schedule
//! of its own or the default one; passes one by one are [`manager::run_pipeline`]'s:
//!
//! ```
//! use cora_passes::pipeline::{self, Form};
//! use cora_passes::standard::StandardSimplifier;
//!
//! let text = "param M in 0..=8
//!     extent lens(b) in 0..=16
//!     dim b = M, i = lens(b)
//!     input A[b, i] : f32
//!     T[b] = sum(i) A
//!     output T
//!     schedule cpu { parallel T.b }";
//! let graph = cora_frontend::parse_program("sums", text, &[])?;
//! let mut passes = 0;
//! let mut simplifier = StandardSimplifier::new();
//! let schedule = graph.schedule("cpu");
//! let storage = pipeline::compile(&graph, schedule, Form::default(), &mut simplifier, &mut |_| passes += 1)?;
//! assert!(passes > 10);
//! println!("{}", cora_ir::text::print_storage(&storage));
//! # assert!(cora_ir::text::print_storage(&storage).contains("parallel"));
//! # Ok::<(), Vec<cora_ir::Diagnostic>>(())
//! ```
//!
//! Absent from this crate: LLVM and MLIR, the `.cora` language.
#![forbid(unsafe_code)]

pub mod default_grid;
pub mod default_schedule;
pub mod execution;
pub mod graph;
pub mod guards;
pub mod lower;
pub mod manager;
pub mod pipeline;
pub mod program;
pub mod schedule;
pub mod simplify;
pub mod standard;
