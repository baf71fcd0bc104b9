//! Interpreters of every stage.
