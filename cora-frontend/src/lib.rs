//! The .cora language and the Rust builder: text or calls in, annotated op graph out.
