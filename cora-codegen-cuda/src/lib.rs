//! Storage dialect to PTX.
