//! Ragged arrays, prelude execution, thread pool and loader; links no compiler.

pub mod abi;
