//! The examples of docs/ir.md.
