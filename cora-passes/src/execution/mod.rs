//! Validation by execution: batches for any program, and a check that passes keep what a program computes.

pub mod batches;
pub mod verify_each;
pub mod world;

pub use batches::{Nest, Pattern, batch};
pub use verify_each::{Fault, Observer, VerifyEach};
