//! The memory of an instance: buffers of their own, one arena, and the pointers that kernels get.
//!
//! Inputs, outputs and what setup writes have buffers of their own. Temporaries share the arena by liveness; behind
//! them each worker has its slots.

use super::MemoryReport;
use crate::abi::{BufferKind, MAX_ALIGN, ProgramDesc};
use crate::array::AlignedBytes;
use crate::error::{Error, Result};
use crate::eval::eval;
use crate::limits::Limits;
use crate::plan::{Request, place};
use crate::prelude::Tables;

const ALIGN: u64 = MAX_ALIGN as u64;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Own,
    /// In the arena, live from the first kernel to the last.
    Temp {
        first: usize,
        last: usize,
    },
    /// In each worker's part of the arena.
    Slot,
}

pub(super) struct Memory {
    workers: usize,
    places: Vec<Place>,
    /// Bytes of each buffer (of one slot) for the bound batch.
    sizes: Vec<u64>,
    /// Whether everything below was sized for `sizes`.
    sized: bool,
    own: Vec<AlignedBytes>,
    arena: AlignedBytes,
    /// Offset of each temporary in the arena, of each slot in a worker's part.
    offsets: Vec<u64>,
    /// Where the workers' parts start, and how long each is.
    slots: (u64, u64),
    pointers: Pointers,
}

/// What kernels get: for each worker its view of the buffers, and the tables.
#[derive(Default)]
struct Pointers {
    bufs: Vec<*mut u8>,
    tables: Vec<*const u8>,
}

// SAFETY: the pointers are only handed to kernels, whose use of them the maker of the instance vouches for.
unsafe impl Send for Pointers {}
// SAFETY: as above; the vectors themselves change only through `&mut Memory`.
unsafe impl Sync for Pointers {}

impl Memory {
    /// Decides where each buffer of a validated program goes.
    pub(super) fn new(desc: &ProgramDesc, workers: usize) -> Memory {
        let mut kept = vec![false; desc.buffers.len()];
        desc.setup_kernels.iter().flat_map(|k| &k.writes).for_each(|&b| kept[b as usize] = true);
        let end = desc.kernels.len().saturating_sub(1);
        let mut lives: Vec<Option<(usize, usize)>> = vec![None; desc.buffers.len()];
        for (i, k) in desc.kernels.iter().enumerate() {
            for &b in k.reads.iter().chain(&k.writes) {
                let life = &mut lives[b as usize];
                *life = Some((life.map_or(i, |(first, _)| first), i));
            }
        }
        // Setup may use any temporary; it runs before all else, so it needs no life of its own.
        let place = |(b, buffer): (usize, &crate::abi::BufferDesc)| match buffer.kind {
            BufferKind::Input(_) | BufferKind::Output(_) => Place::Own,
            BufferKind::Temp if kept[b] => Place::Own,
            BufferKind::Temp => {
                let (first, last) = lives[b].unwrap_or((0, end));
                Place::Temp { first, last }
            }
            BufferKind::PerWorker => Place::Slot,
        };
        let n = desc.buffers.len();
        Memory {
            workers,
            places: desc.buffers.iter().enumerate().map(place).collect(),
            sizes: vec![0; n],
            sized: false,
            own: std::iter::repeat_with(AlignedBytes::default).take(n).collect(),
            arena: AlignedBytes::default(),
            offsets: vec![0; n],
            slots: (0, 0),
            pointers: Pointers::default(),
        }
    }

    /// Sizes all memory for a batch. True where the buffers that outlive a batch (const inputs and what setup
    /// writes) kept their contents.
    pub(super) fn resize(&mut self, desc: &ProgramDesc, tables: &Tables, limits: &Limits) -> Result<bool> {
        let mut left = limits.buffer_bytes;
        let mut changed = !std::mem::replace(&mut self.sized, false);
        for (b, buffer) in desc.buffers.iter().enumerate() {
            let at = || format!("buffer `{}`", buffer.name);
            let elems = eval(&buffer.elems, tables.env(), &[]).map_err(|fault| Error::Index { at: at(), fault })?;
            let negative = |_| Error::NegativeExtent { at: at(), dim: 0, extent: elems };
            let bytes = u64::try_from(elems).map_err(negative)?.saturating_mul(buffer.dtype.size() as u64);
            let copies = if self.places[b] == Place::Slot { self.workers as u64 } else { 1 };
            let bytes_of_all = bytes.saturating_add(ALIGN - 1).saturating_mul(copies);
            let need = (limits.buffer_bytes - left).saturating_add(bytes_of_all);
            let beyond = || Error::Memory { at: at(), need, limit: limits.buffer_bytes };
            // An upper bound: temporaries share memory.
            left = left.checked_sub(bytes_of_all).ok_or_else(beyond)?;
            changed |= self.sizes[b] != bytes;
            self.sizes[b] = bytes;
        }
        if !changed {
            self.sized = true;
            return Ok(true);
        }
        let mut kept = true;
        for (b, own) in self.own.iter_mut().enumerate() {
            if self.places[b] == Place::Own && own.len() as u64 != self.sizes[b] {
                let lasts = match desc.buffers[b].kind {
                    BufferKind::Input(t) => desc.tensors[t as usize].role == crate::abi::Role::ConstInput,
                    BufferKind::Output(_) => false,
                    BufferKind::Temp | BufferKind::PerWorker => true,
                };
                kept &= !lasts;
                own.reset(bytes_of(self.sizes[b])?)?;
            }
        }
        self.place_arena()?;
        self.sized = true;
        Ok(kept)
    }

    fn place_arena(&mut self) -> Result<()> {
        let overflow = || Error::Alloc { at: "arena".into(), bytes: u64::MAX };
        let mut temps = Vec::new();
        let mut requests = Vec::new();
        let mut slot = 0u64;
        for (b, place) in self.places.iter().enumerate() {
            let bytes = self.sizes[b];
            match *place {
                Place::Own => {}
                Place::Temp { first, last } => {
                    temps.push(b);
                    requests.push(Request { bytes, first, last });
                }
                Place::Slot => {
                    self.offsets[b] = slot;
                    let padded = bytes.checked_next_multiple_of(ALIGN).ok_or_else(overflow)?;
                    slot = slot.checked_add(padded).ok_or_else(overflow)?;
                }
            }
        }
        let (offsets, end) = place(&requests, ALIGN).ok_or_else(overflow)?;
        for (b, offset) in temps.into_iter().zip(offsets) {
            self.offsets[b] = offset;
        }
        let slots = slot.checked_mul(self.workers as u64).and_then(|s| s.checked_add(end));
        self.slots = (end, slot);
        self.arena.reset(bytes_of(slots.ok_or_else(overflow)?)?)
    }

    /// A buffer of its own (an input, an output, or what setup writes).
    pub(super) fn own(&self, buffer: usize) -> &[u8] {
        self.own[buffer].as_slice()
    }

    /// A buffer of its own.
    pub(super) fn own_mut(&mut self, buffer: usize) -> &mut [u8] {
        self.own[buffer].as_mut_slice()
    }

    /// Fills what nobody has written yet: the arena, outputs and, where setup is to run, what it writes.
    pub(super) fn poison(&mut self, setup: bool, desc: &ProgramDesc) {
        self.arena.as_mut_slice().fill(0xFF);
        for (own, buffer) in self.own.iter_mut().zip(&desc.buffers) {
            let unwritten = match buffer.kind {
                BufferKind::Output(_) => true,
                BufferKind::Temp => setup,
                BufferKind::Input(_) | BufferKind::PerWorker => false,
            };
            if unwritten {
                own.as_mut_slice().fill(0xFF);
            }
        }
    }

    /// Takes the pointers for a run.
    pub(super) fn point(&mut self, tables: &Tables) {
        let Memory { workers, places, own, arena, offsets, slots, pointers, .. } = self;
        let arena = arena.as_mut_slice().as_mut_ptr();
        pointers.bufs.clear();
        for worker in 0..*workers {
            for (b, place) in places.iter().enumerate() {
                let offset = match place {
                    // One borrow for all workers: another would end the first one's pointer.
                    Place::Own if worker == 0 => {
                        pointers.bufs.push(own[b].as_mut_slice().as_mut_ptr());
                        continue;
                    }
                    Place::Own => {
                        pointers.bufs.push(pointers.bufs[b]);
                        continue;
                    }
                    Place::Temp { .. } => offsets[b],
                    Place::Slot => slots.0 + worker as u64 * slots.1 + offsets[b],
                };
                // The arena was sized for all offsets, so this stays inside it (or at its end).
                pointers.bufs.push(arena.wrapping_add(offset as usize));
            }
        }
        pointers.tables.clear();
        pointers.tables.extend(tables.data().iter().map(|t| t.as_ptr()));
    }

    /// What a worker's calls get, after [`Memory::point`].
    pub(super) fn pointers(&self, worker: usize) -> (&[*mut u8], &[*const u8]) {
        let n = self.places.len();
        (&self.pointers.bufs[worker * n..(worker + 1) * n], &self.pointers.tables)
    }

    /// Bytes of each kind of buffer.
    pub(super) fn report(&self, desc: &ProgramDesc) -> MemoryReport {
        let own = |output: bool| {
            let is_output = |b: &usize| matches!(desc.buffers[*b].kind, BufferKind::Output(_)) == output;
            (0..self.own.len()).filter(is_output).map(|b| self.own[b].len() as u64).sum()
        };
        let (temps, slot) = self.slots;
        let slots = slot * self.workers as u64;
        MemoryReport { tables: 0, inputs: own(false), outputs: own(true), temps, slots }
    }
}

fn bytes_of(bytes: u64) -> Result<usize> {
    usize::try_from(bytes).map_err(|_| Error::Alloc { at: "buffers".into(), bytes })
}
