//! Simplification and proof of index expressions.
