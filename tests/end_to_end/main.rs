//! Whole programs, from text to native code and back, compared with the reference interpreter.

#[path = "../support/mod.rs"]
mod support;

mod banks;
mod boxes;
mod buffers;
mod constants;
mod crates;
mod datasets;
mod default_tiles;
mod default_work;
mod determinism;
mod device_artifacts;
mod device_prelude;
mod examples;
mod grid;
mod guard_pages;
mod harness;
mod offload;
mod programs;
mod ptx;
#[path = "../../cora-passes/tests/random/mod.rs"]
#[allow(dead_code, reason = "the tests of the passes use the rest")]
mod random;
mod random_native;
mod random_ptx;
mod sass;
mod simulated_gpu;
mod tables;
mod tile_registers;
mod wide_loads;
mod windows;
