//! The device's memory.

use std::collections::BTreeMap;

/// Allocations begin at multiples of so many bytes, as the driver's do.
const ALIGN: u64 = 256;
/// Where the first one begins: addresses below are nobody's.
const FIRST: u64 = 0x7f00_0000_0000;
/// Between two allocations, so that what runs past the end of one is not in the next.
const GAP: u64 = 4096;

/// An access to memory that is not allocated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes at {address:#x} are not inside of an allocation{near}")]
pub struct OutOfBounds {
    address: u64,
    bytes: u64,
    near: String,
}

/// Allocations by address; what they hold at first is a pattern, not zeros.
#[derive(Default)]
pub struct Memory {
    blocks: BTreeMap<u64, Vec<u8>>,
    next: u64,
    used: u64,
}

impl Memory {
    /// Bytes allocated.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// An allocation of `bytes` bytes; nothing if the processor has no memory for it.
    pub fn allocate(&mut self, bytes: u64) -> Option<u64> {
        let mut block = Vec::new();
        block.try_reserve_exact(usize::try_from(bytes).ok()?).ok()?;
        block.resize(bytes as usize, 0xFF);
        let address = self.next.max(FIRST);
        self.next = address.checked_add(bytes)?.checked_add(GAP)?.next_multiple_of(ALIGN);
        self.used += bytes;
        self.blocks.insert(address, block);
        Some(address)
    }

    /// Frees an allocation by the address of its beginning: false if there is none.
    pub fn free(&mut self, address: u64) -> bool {
        let found = self.blocks.remove(&address);
        self.used -= found.as_ref().map_or(0, |b| b.len() as u64);
        found.is_some()
    }

    /// Bytes inside of one allocation.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    pub fn bytes(&self, address: u64, bytes: u64) -> Result<&[u8], OutOfBounds> {
        let found = self.blocks.range(..=address).next_back();
        let part = found.and_then(|(at, block)| {
            let from = usize::try_from(address - at).ok()?;
            block.get(from..from.checked_add(usize::try_from(bytes).ok()?)?)
        });
        part.ok_or_else(|| self.outside(address, bytes))
    }

    /// The same to be written.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    pub fn bytes_mut(&mut self, address: u64, bytes: u64) -> Result<&mut [u8], OutOfBounds> {
        self.bytes(address, bytes)?;
        let outside = OutOfBounds { address, bytes, near: String::new() };
        let (at, block) = self.blocks.range_mut(..=address).next_back().ok_or(outside)?;
        let from = (address - at) as usize;
        Ok(&mut block[from..from + bytes as usize])
    }

    fn outside(&self, address: u64, bytes: u64) -> OutOfBounds {
        let near = match self.blocks.range(..=address).next_back() {
            Some((at, b)) => format!(": the one before has {} bytes from {at:#x}", b.len()),
            None => String::new(),
        };
        OutOfBounds { address, bytes, near }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_end() {
        let mut m = Memory::default();
        let a = m.allocate(100).expect("little memory");
        let b = m.allocate(8).expect("little memory");
        assert!(a.is_multiple_of(ALIGN) && b.is_multiple_of(ALIGN));
        m.bytes_mut(a + 96, 4).expect("inside").copy_from_slice(&[1, 2, 3, 4]);
        assert_eq!(m.bytes(a + 98, 2), Ok(&[3u8, 4][..]));
        assert!(m.bytes(a + 98, 4).is_err() && m.bytes(a - 1, 1).is_err() && m.bytes(a + 100, 1).is_err());
        assert!(m.free(a) && !m.free(a) && m.bytes(a, 1).is_err() && m.used() == 8);
        assert!(m.bytes(b, u64::MAX).is_err());
    }
}
