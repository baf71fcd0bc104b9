//! Random programs under random schedules: shared by the tests that interpret them and those that run
//! them natively.

mod added;
pub mod check;
mod contractions;
mod decoding;
mod factors;
pub mod graphs;
mod heads;
mod indices;
mod masked;
mod matches;
mod nested;
mod recurrences;
pub mod report;
pub mod shapes;
pub mod steps;
mod tiles;
pub mod tuples;
pub mod values;
