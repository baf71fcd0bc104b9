//! Scheduling primitives, lowering, simplification and proof passes.
