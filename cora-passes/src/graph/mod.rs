//! Passes on the op graph.

pub mod check_accesses;
mod check_calls;
mod check_sizes;
pub mod error_bounds;
pub mod follow_recurrences;
mod index_range;
pub mod narrow_masked;
pub mod narrow_positions;
pub mod raise_extents;
pub mod split_prefixes;
