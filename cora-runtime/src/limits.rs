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

impl Limits {
    /// As many bytes of buffers, and of tables, as a text says: a number of bytes, or one with `k`, `M` or `G` for KiB, MiB
    /// or GiB. Nothing if it is no such text, or beyond 64 bits.
    ///
    /// ```
    /// use cora_runtime::Limits;
    ///
    /// assert_eq!(Limits::of_memory("3M").map(|l| l.buffer_bytes), Some(3 << 20));
    /// assert_eq!(Limits::of_memory("3 MB"), None);
    /// ```
    pub fn of_memory(text: &str) -> Option<Limits> {
        let (number, shift) = match text.char_indices().last()? {
            (at, 'k' | 'K') => (&text[..at], 10),
            (at, 'm' | 'M') => (&text[..at], 20),
            (at, 'g' | 'G') => (&text[..at], 30),
            _ => (text, 0),
        };
        let bytes = number.parse::<u64>().ok()?.checked_mul(1 << shift)?;
        Some(Limits { table_bytes: bytes, buffer_bytes: bytes, ..Limits::default() })
    }
}

impl Default for Limits {
    /// 1 GiB of tables, 16 GiB of buffers, 2^32 steps.
    fn default() -> Limits {
        Limits { table_bytes: 1 << 30, buffer_bytes: 16 << 30, steps: 1 << 32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_in_words() {
        let bytes = |text| Limits::of_memory(text).map(|l| (l.buffer_bytes, l.table_bytes));
        for (text, want) in
            [("0", 0), ("1000", 1000), ("5k", 5 << 10), ("5K", 5 << 10), ("64M", 64 << 20), ("40G", 40 << 30)]
        {
            assert_eq!(bytes(text), Some((want, want)), "{text}");
        }
        for text in ["", "k", "-1", "1.5G", "1GB", "1 G", "17179869184G", "é"] {
            assert_eq!(bytes(text), None, "{text}");
        }
        assert_eq!(Limits::of_memory("1").map(|l| l.steps), Some(Limits::default().steps));
    }
}
