//! Whole programs, from text to native code and back, compared with the reference interpreter.

#[path = "../support/mod.rs"]
mod support;

mod crates;
mod datasets;
mod examples;
mod harness;
mod programs;
mod tables;
