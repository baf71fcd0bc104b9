//! The `cora` command as a process: exit codes, JSON, files, refusals; and every pass on text.

#[path = "../support/mod.rs"]
mod support;

mod artifact;
mod codes;
mod commands;
mod compile;
mod csf;
mod exec;
mod gpu;
mod lengths;
mod passes;
mod refusals;
mod run;
mod schedules;
mod simulated_gpu;
mod tool;
