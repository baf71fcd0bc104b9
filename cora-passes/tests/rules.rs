//! Rules, proofs and simplification of index expressions.

#[path = "rules/explain.rs"]
mod explain;
#[path = "rules/false_rules.rs"]
mod false_rules;
#[path = "rules/full_rows.rs"]
mod full_rows;
#[path = "rules/proofs.rs"]
mod proofs;
#[path = "rules/random.rs"]
mod random;
#[path = "rules/table.rs"]
mod table;
#[path = "rules/world.rs"]
mod world;
