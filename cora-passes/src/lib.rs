//! Lowering, scheduling primitives, simplification and proof: every pass between the op graph and
//! the simplified storage dialect, and the pass manager.
//!
//! Absent from this crate: LLVM and MLIR, the `.cora` language.
#![forbid(unsafe_code)]

pub mod lower;
pub mod schedule;
pub mod simplify;
