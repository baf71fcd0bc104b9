//! Rules, proofs and simplification of index expressions.

#[path = "rules/proofs.rs"]
mod proofs;
#[path = "rules/random.rs"]
mod random;
#[path = "rules/world.rs"]
mod world;
