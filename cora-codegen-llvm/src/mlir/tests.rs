//! Small storage modules built by hand, compiled, run through the JIT on raw memory, and compared.

mod accuracy;
mod asm;
mod control;
mod kit;
mod memory;
mod operators;
