//! Passes on the op graph.

pub mod check_accesses;
pub mod error_bounds;
pub mod raise_extents;
