//! Copies that go on beside the program: `cp.async`, boxes of the copy engine, and the barriers that count their bytes.

use super::{Block, Fault, What};
use crate::ptx::{Async, Space};
use crate::tensor_map::{BYTES, TensorMap};
use rustc_hash::FxHashMap;

/// A copy that a thread has asked for.
struct Copy {
    to: u64,
    from: u64,
    bytes: u64,
    /// Bytes that are copied; zeros come after them.
    given: u64,
}

/// A thread's copies: since its last commit, and of each commit that it has not waited for.
#[derive(Default)]
pub(super) struct Copies {
    open: Vec<Copy>,
    committed: Vec<Vec<Copy>>,
}

/// A barrier of shared memory.
struct Barrier {
    count: u64,
    /// Arrivals that the phase still needs.
    arrivals: u64,
    /// Bytes that are yet to come.
    bytes: i64,
    parity: u64,
    /// Boxes on their way.
    boxes: Vec<Moving>,
}

/// A box on its way to shared memory.
struct Moving {
    to: u64,
    map: TensorMap,
    at: Vec<i64>,
}

/// The block's barriers, by address.
#[derive(Default)]
pub(super) struct Barriers(FxHashMap<u64, Barrier>);

impl Block<'_> {
    /// Does or begins what goes on beside a thread: false if what it asks for has not come.
    pub(super) fn beside(&mut self, thread: usize, what: &Async) -> Result<bool, Fault> {
        self.try_beside(thread, what).map_err(|what| self.fault(thread, what))
    }

    fn try_beside(&mut self, thread: usize, what: &Async) -> Result<bool, What> {
        match what {
            Async::Copy { bytes, to, from, given } => {
                let (to, from) = (self.address(thread, *to), self.address(thread, *from));
                let given = given.map_or(*bytes, |s| self.get(thread, s) & 0xffff_ffff);
                if given > *bytes {
                    return Err(What::Wrong(format!("{given} bytes of {bytes} are copied")));
                }
                for address in [to, from] {
                    if !address.is_multiple_of(*bytes) {
                        return Err(What::Misaligned { address, bytes: *bytes });
                    }
                }
                self.count(thread, Space::Shared, to, *bytes);
                if given > 0 {
                    self.count(thread, Space::Global, from, given);
                }
                self.threads[thread].copies.open.push(Copy { to, from, bytes: *bytes, given });
            }
            Async::Commit => {
                let copies = &mut self.threads[thread].copies;
                let open = std::mem::take(&mut copies.open);
                copies.committed.push(open);
            }
            Async::Wait(n) => {
                let committed = &mut self.threads[thread].copies.committed;
                let done = committed.len().saturating_sub(*n);
                let done: Vec<Copy> = committed.drain(..done).flatten().collect();
                done.iter().try_for_each(|c| self.arrive(thread, c))?;
            }
            Async::Init { at, count } => {
                let (at, count) = (self.address(thread, *at) & 0xffff_ffff, self.get(thread, *count) & 0xffff_ffff);
                self.bytes(thread, Space::Shared, at, 8)?;
                let new = Barrier { count, arrivals: count, bytes: 0, parity: 0, boxes: Vec::new() };
                if self.barriers.0.insert(at, new).is_some() {
                    return Err(What::Wrong("a barrier is initialised that is in use".to_owned()));
                }
            }
            Async::Expect { at, bytes } => {
                let (at, bytes) = (self.address(thread, *at), self.get(thread, *bytes) & 0xffff_ffff);
                let barrier = self.barriers.at(at)?;
                if barrier.arrivals == 0 {
                    return Err(What::Wrong("more threads arrive at a barrier than it counts".to_owned()));
                }
                barrier.arrivals -= 1;
                barrier.bytes += bytes as i64;
                barrier.next_phase();
            }
            Async::TryWait { to, at, parity } => {
                let (at, parity) = (self.address(thread, *at), self.get(thread, *parity) & 1);
                // Whoever asks finds what is on its way.
                for moving in std::mem::take(&mut self.barriers.at(at)?.boxes) {
                    let bytes = self.land(&moving)?;
                    let barrier = self.barriers.at(at)?;
                    barrier.bytes -= bytes as i64;
                    barrier.next_phase();
                }
                let done = self.barriers.at(at)?.parity != parity;
                self.set(thread, *to, u64::from(done));
                return Ok(done);
            }
            Async::Box { to, map, at, barrier } => {
                let (to, barrier) = (self.address(thread, *to) & 0xffff_ffff, self.address(thread, *barrier));
                let map = self.piece(thread, Space::Generic, self.get(thread, *map), BYTES as u64)?;
                let map = TensorMap::decode(map).ok_or_else(|| What::Wrong("there is no tensor map".to_owned()))?;
                let at: Vec<i64> = at.iter().map(|&s| i64::from(self.get(thread, s) as i32)).collect();
                if at.len() != map.extents.len() {
                    return Err(What::Wrong(format!("the map has {} dimensions", map.extents.len())));
                }
                let unit = if map.swizzled { 1024 } else { 128 };
                if !to.is_multiple_of(unit) {
                    return Err(What::Misaligned { address: to, bytes: unit });
                }
                self.barriers.at(barrier)?.boxes.push(Moving { to, map, at });
            }
        }
        Ok(true)
    }

    fn arrive(&mut self, thread: usize, c: &Copy) -> Result<(), What> {
        let mut data = [0; 16];
        // An address from which nothing is copied may be anywhere.
        if c.given > 0 {
            let given = self.piece(thread, Space::Global, c.from, c.given)?;
            data[..c.given as usize].copy_from_slice(given);
        }
        self.shared_mut(c.to, c.bytes)?.copy_from_slice(&data[..c.bytes as usize]);
        Ok(())
    }

    /// A box arrives: its bytes.
    fn land(&mut self, moving: &Moving) -> Result<u64, What> {
        let (map, elem) = (&moving.map, moving.map.elem_bytes);
        let count: u64 = map.extents.iter().map(|&n| u64::from(n)).product();
        let mut read = Vec::new();
        for n in 0..count {
            let (mut rest, mut from, mut inside) = (n, map.address as i64, true);
            for (d, &extent) in map.extents.iter().enumerate() {
                let position = moving.at[d] + (rest % u64::from(extent)) as i64;
                rest /= u64::from(extent);
                inside &= (0..map.sizes[d] as i64).contains(&position);
                let stride = if d == 0 { elem } else { map.strides[d - 1] };
                from = from.wrapping_add(position.wrapping_mul(stride as i64));
            }
            let mut data = [0; 8];
            if inside {
                data[..elem as usize].copy_from_slice(self.memory.bytes(from as u64, elem)?);
                if self.tally.is_some() {
                    read.push((from as u64, elem));
                }
            }
            let to = moving.to + n * elem;
            let to = if map.swizzled { to ^ (to >> 3 & 0x70) } else { to };
            self.shared_mut(to, elem)?.copy_from_slice(&data[..elem as usize]);
        }
        if let Some(tally) = &mut self.tally {
            tally.global(read.into_iter());
            tally.filled(count * elem);
        }
        Ok(count * elem)
    }
}

impl Barriers {
    fn at(&mut self, address: u64) -> Result<&mut Barrier, What> {
        let none = || What::Wrong("there is no barrier at this address".to_owned());
        self.0.get_mut(&(address & 0xffff_ffff)).ok_or_else(none)
    }
}

impl Barrier {
    fn next_phase(&mut self) {
        if self.arrivals == 0 && self.bytes == 0 && self.boxes.is_empty() {
            self.arrivals = self.count;
            self.parity ^= 1;
        }
    }
}
