//! Bounds on what a description and a batch may ask for.

/// Bounds on memory and work, checked before either is spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of all prelude tables together.
    pub table_bytes: u64,
    /// Bytes of all buffers together.
    pub buffer_bytes: u64,
    /// Domain points visited in one prelude, or in packing one tensor.
    pub steps: u64,
}

impl Default for Limits {
    /// 1 GiB of tables, 16 GiB of buffers, 2^32 steps.
    fn default() -> Limits {
        Limits { table_bytes: 1 << 30, buffer_bytes: 16 << 30, steps: 1 << 32 }
    }
}
