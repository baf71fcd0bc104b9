//! Lowering, scheduling primitives, simplification and proof: every pass between the op graph and
//! the simplified storage dialect, and the pass manager.
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
