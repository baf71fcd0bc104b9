//! Tests of the interpreters.
