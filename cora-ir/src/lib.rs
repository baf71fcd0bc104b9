//! Expressions, op graph, loop and storage dialects of the CoRa ragged tensor compiler.
