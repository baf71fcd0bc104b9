//! Scheduling primitives.
