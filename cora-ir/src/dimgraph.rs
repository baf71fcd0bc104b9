//! Dimension graphs.
