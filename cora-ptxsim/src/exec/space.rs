//! Accesses to memory: where an address points, and whether it may be accessed so.

use super::{Block, Fault, What};
use crate::ptx::{Address, Load, SHARED_BEGIN, Space, Src};

/// Where generic addresses of shared memory, of a thread's own and of parameters begin; others are global.
pub(super) const SHARED_WINDOW: u64 = 1 << 44;
pub(super) const LOCAL_WINDOW: u64 = 2 << 44;
pub(super) const PARAM_WINDOW: u64 = 3 << 44;
/// Bytes of each window.
const WINDOW: u64 = 1 << 44;

/// An element of so many bits, at most 64, from little-endian bytes.
fn element(bytes: &[u8]) -> u64 {
    let mut all = [0; 8];
    all[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(all)
}

impl Block<'_> {
    /// The value of an address.
    pub(super) fn address(&self, thread: usize, at: Address) -> u64 {
        self.get(thread, at.base).wrapping_add(at.offset as u64)
    }

    fn specific(space: Space, address: u64) -> (Space, u64) {
        let window = |n: u64| (n..n + WINDOW).contains(&address);
        match space {
            Space::Generic if window(SHARED_WINDOW) => (Space::Shared, address - SHARED_WINDOW),
            Space::Generic if window(LOCAL_WINDOW) => (Space::Local, address - LOCAL_WINDOW),
            Space::Generic if window(PARAM_WINDOW) => (Space::Param, address - PARAM_WINDOW),
            Space::Generic => (Space::Global, address),
            // Registers of 32 bits hold shared addresses too.
            Space::Shared => (Space::Shared, address & 0xffff_ffff),
            s => (s, address),
        }
    }

    /// The bytes of an access, which may not be misaligned.
    pub(super) fn bytes(&self, thread: usize, space: Space, address: u64, bytes: u64) -> Result<&[u8], What> {
        if !address.is_multiple_of(bytes.max(1)) {
            return Err(What::Misaligned { address, bytes });
        }
        self.piece(thread, space, address, bytes)
    }

    /// Counts an access of a thread.
    pub(super) fn count(&mut self, thread: usize, space: Space, address: u64, bytes: u64) {
        let pc = self.threads[thread].pc;
        if let Some(tally) = &mut self.tally {
            let (space, address) = Self::specific(space, address);
            tally.access(thread, pc, space, address, bytes);
        }
    }

    /// Bytes at any address.
    pub(super) fn piece(&self, thread: usize, space: Space, address: u64, bytes: u64) -> Result<&[u8], What> {
        let (space, at) = Self::specific(space, address);
        let own = self.kernel.local as usize;
        let (name, all, at) = match space {
            Space::Global | Space::Generic => return Ok(self.memory.bytes(at, bytes)?),
            Space::Shared => ("shared", &self.shared[..], at.wrapping_sub(SHARED_BEGIN)),
            Space::Local => ("local", &self.local[thread * own..(thread + 1) * own], at),
            Space::Param => ("parameter", self.params, at),
        };
        let end = at.checked_add(bytes).filter(|&e| e <= all.len() as u64);
        let outside = What::Outside { space: name, offset: at, bytes, of: all.len() as u64 };
        end.map(|e| &all[at as usize..e as usize]).ok_or(outside)
    }

    fn bytes_mut(&mut self, thread: usize, space: Space, address: u64, bytes: u64) -> Result<&mut [u8], What> {
        // Whether it may be read as well is the same question.
        self.bytes(thread, space, address, bytes)?;
        let (space, at) = Self::specific(space, address);
        let own = self.kernel.local as usize;
        match space {
            Space::Global | Space::Generic => Ok(self.memory.bytes_mut(at, bytes)?),
            Space::Shared => Ok(&mut self.shared[(at - SHARED_BEGIN) as usize..][..bytes as usize]),
            Space::Local => Ok(&mut self.local[thread * own..][at as usize..][..bytes as usize]),
            Space::Param => Err(What::Wrong("parameters are not written".to_owned())),
        }
    }

    pub(super) fn load(&mut self, thread: usize, l: &Load) -> Result<(), Fault> {
        let address = self.address(thread, l.at);
        let all = self.bytes(thread, l.space, address, l.bytes * l.to.len() as u64);
        let all = all.map_err(|what| self.fault(thread, what))?;
        // At most 32 bytes in at most 8 parts.
        let mut parts = [0; 8];
        for (part, bytes) in parts.iter_mut().zip(all.chunks(l.bytes as usize)) {
            *part = element(bytes);
        }
        for (r, &part) in l.to.iter().zip(&parts) {
            let Some(r) = *r else { continue };
            let value = match (l.signed, l.bytes) {
                (true, 1) => part as i8 as i64 as u64,
                (true, 2) => part as i16 as i64 as u64,
                (true, 4) => part as i32 as i64 as u64,
                _ => part,
            };
            self.set(thread, r, value);
        }
        self.count(thread, l.space, address, l.bytes * l.to.len() as u64);
        Ok(())
    }

    pub(super) fn store(
        &mut self,
        thread: usize,
        space: Space,
        bytes: u64,
        from: &[Src],
        at: Address,
    ) -> Result<(), Fault> {
        let address = self.address(thread, at);
        let mut data = [0; 64];
        for (n, &s) in from.iter().enumerate().take(8) {
            data[n * bytes as usize..][..bytes as usize]
                .copy_from_slice(&self.get(thread, s).to_le_bytes()[..bytes as usize]);
        }
        let total = bytes as usize * from.len();
        let to = self.bytes_mut(thread, space, address, total as u64).map(|to| to.copy_from_slice(&data[..total]));
        to.map_err(|what| self.fault(thread, what))?;
        self.count(thread, space, address, total as u64);
        Ok(())
    }

    /// Replaces an element by a function of it, which is given back.
    pub(super) fn update(
        &mut self,
        thread: usize,
        space: Space,
        bytes: u64,
        at: Address,
        f: impl Fn(u64) -> u64,
    ) -> Result<u64, Fault> {
        let address = self.address(thread, at);
        let done = self.bytes_mut(thread, space, address, bytes).map(|place| {
            let old = element(place);
            place.copy_from_slice(&f(old).to_le_bytes()[..bytes as usize]);
            old
        });
        self.count(thread, space, address, bytes);
        done.map_err(|what| self.fault(thread, what))
    }

    /// Bytes of shared memory at any address of it, to be written by an engine.
    pub(super) fn shared_mut(&mut self, address: u64, bytes: u64) -> Result<&mut [u8], What> {
        self.piece(0, Space::Shared, address, bytes)?;
        Ok(&mut self.shared[((address & 0xffff_ffff) - SHARED_BEGIN) as usize..][..bytes as usize])
    }
}
