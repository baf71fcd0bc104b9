//! Passes on the op graph.

pub mod check_accesses;
pub mod raise_extents;
