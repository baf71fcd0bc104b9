//! Storage dialect to MLIR to native CPU code.
