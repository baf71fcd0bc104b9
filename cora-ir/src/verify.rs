//! Verifiers of every stage.
