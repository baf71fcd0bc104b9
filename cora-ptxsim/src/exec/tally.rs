//! What kernels ask of a multiprocessor, counted as warps issue it.
//!
//! Lanes run one after the other here. What they do between two points where they wait is put together again: the `n`-th time
//! that each lane comes by an instruction is one issue of it, for all lanes that come by so often.

use super::LANES;
use crate::ptx::Space;
use rustc_hash::FxHashSet;

/// Banks of shared memory, of 4 bytes.
const BANKS: usize = 32;
/// Bytes that a pass of a warp moves at most: one word of each bank.
const PASS: u64 = 4 * BANKS as u64;
/// Bytes of the device's memory that come together.
const SECTOR: u64 = 32;

/// The work of a launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Instructions that warps issue.
    pub instructions: u64,
    /// Passes of their accesses to shared memory, bank conflicts included, and to threads' own.
    pub passes: u64,
    /// Sectors of 32 bytes of the device's memory that they ask for.
    pub sectors: u64,
    /// How many different ones.
    pub distinct: u64,
    /// Multiply-adds of the matrix instructions.
    pub products: u64,
}

/// An access of a lane: of which instruction, and which time it came by there.
#[derive(Clone, Copy)]
struct Access {
    issue: (usize, u32),
    space: Space,
    address: u64,
    bytes: u64,
}

/// How often each lane came by an instruction in this turn, and the one that did most often.
#[derive(Clone, Default)]
struct Times {
    lanes: [u32; LANES],
    most: u32,
}

/// Counts the work of a launch.
#[derive(Default)]
pub(super) struct Tally {
    work: Work,
    /// Of each instruction.
    times: Vec<Times>,
    /// Instructions that some lane came by.
    seen: Vec<usize>,
    accesses: Vec<Access>,
    distinct: FxHashSet<u64>,
}

impl Tally {
    /// For a kernel of so many instructions.
    pub(super) fn new(instructions: usize) -> Tally {
        Tally { times: vec![Times::default(); instructions], ..Tally::default() }
    }

    /// All that was counted.
    pub(super) fn work(self) -> Work {
        Work { distinct: self.distinct.len() as u64, ..self.work }
    }

    /// A thread comes by an instruction.
    pub(super) fn issue(&mut self, thread: usize, pc: usize) {
        let Times { lanes, most } = &mut self.times[pc];
        let own = &mut lanes[thread % LANES];
        *own += 1;
        if *own > *most {
            if *most == 0 {
                self.seen.push(pc);
            }
            *most = *own;
            self.work.instructions += 1;
        }
    }

    /// The access to memory of the instruction that the thread came by last.
    pub(super) fn access(&mut self, thread: usize, pc: usize, space: Space, address: u64, bytes: u64) {
        self.accesses.push(Access { issue: (pc, self.times[pc].lanes[thread % LANES]), space, address, bytes });
    }

    /// The lanes of a warp have all come as far as they do.
    pub(super) fn end_turn(&mut self) {
        let mut accesses = std::mem::take(&mut self.accesses);
        // Stable: lanes stay in order.
        accesses.sort_by_key(|a| (a.issue, a.space == Space::Shared));
        for together in accesses.chunk_by(|a, b| (a.issue, a.space) == (b.issue, b.space)) {
            match together[0].space {
                Space::Shared => self.shared(together.iter().map(|a| (a.address, a.bytes))),
                Space::Local => self.work.passes += together.iter().map(|a| a.bytes).sum::<u64>().div_ceil(PASS),
                Space::Param => {}
                Space::Global | Space::Generic => self.global(together.iter().map(|a| (a.address, a.bytes))),
            }
        }
        accesses.clear();
        self.accesses = accesses;
        for pc in self.seen.drain(..) {
            self.times[pc] = Times::default();
        }
    }

    /// An access of lanes to the device's memory: each sector once.
    pub(super) fn global(&mut self, accesses: impl Iterator<Item = (u64, u64)>) {
        let sectors = |(at, bytes): (u64, u64)| at / SECTOR..(at + bytes).div_ceil(SECTOR);
        let mut all: Vec<u64> = accesses.flat_map(sectors).collect();
        all.sort_unstable();
        all.dedup();
        self.work.sectors += all.len() as u64;
        self.distinct.extend(all);
    }

    /// An access of lanes to shared memory: as many lanes at a time as a pass has bytes for, and as many passes for them as
    /// a bank has to give different words.
    pub(super) fn shared(&mut self, accesses: impl Iterator<Item = (u64, u64)>) {
        let all: Vec<(u64, u64)> = accesses.collect();
        let widest = all.iter().map(|a| a.1).max().unwrap_or(0).max(4);
        for some in all.chunks((PASS / widest).max(1) as usize) {
            let mut words: Vec<u64> = some.iter().flat_map(|&(at, bytes)| at / 4..(at + bytes).div_ceil(4)).collect();
            words.sort_unstable();
            words.dedup();
            let mut of_bank = [0u64; BANKS];
            words.iter().for_each(|w| of_bank[*w as usize % BANKS] += 1);
            self.work.passes += of_bank.into_iter().max().unwrap_or(0);
        }
    }

    /// Bytes that an engine writes to shared memory, as many at a time as a pass has.
    pub(super) fn filled(&mut self, bytes: u64) {
        self.work.passes += bytes.div_ceil(PASS);
    }

    /// Multiply-adds of a matrix instruction.
    pub(super) fn products(&mut self, count: usize) {
        self.work.products += count as u64;
    }
}
