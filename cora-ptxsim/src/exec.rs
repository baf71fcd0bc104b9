//! Launches of kernels: blocks one after the other, the threads of a block in turns.
//!
//! A thread runs until it waits: for its warp (shuffles, matrix instructions), for four warps (`wgmma`), for its block
//! (`bar.sync`) or for the copy engine. What goes on beside a program happens as late as it may: copies of `cp.async` when
//! they are waited for, boxes when somebody asks whether they are there, `wgmma` at its wait. So a wait that is missing, or
//! a buffer that is filled again too early, gives wrong numbers here although a device might be lucky.
//!
//! Found besides: accesses outside of memory or misaligned, lanes that do not come by where the instruction is for all of
//! them, threads that wait for each other in vain.

mod copies;
mod group;
mod space;
mod tally;
mod thread;
mod warp;

use crate::memory::{Memory, OutOfBounds};
use crate::ptx::{Kernel, Module, Op, SHARED_BEGIN, Src};
use copies::{Barriers, Copies};
use group::Pending;
use tally::Tally;
pub use tally::Work;

/// Lanes of a warp.
const LANES: usize = 32;
/// Threads of a block at most.
const MOST_THREADS: u64 = 1024;
/// A thread that runs so many instructions is taken to run for ever.
const MOST_STEPS: u64 = 1 << 34;

/// What went wrong in a kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, block {block:?}, thread {thread}: {what}")]
pub struct Fault {
    /// The line of the text, 0 where none is to blame.
    pub line: u32,
    /// The block.
    pub block: [u32; 3],
    /// The thread's number in its block.
    pub thread: usize,
    /// What happened.
    pub what: What,
}

impl Fault {
    /// Whether an access to memory is to blame.
    pub fn is_address(&self) -> bool {
        matches!(self.what, What::Memory(_) | What::Outside { .. } | What::Misaligned { .. })
    }
}

/// Kinds of faults.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum What {
    /// The module has no such kernel.
    #[error("there is no kernel `{0}`")]
    NoKernel(String),
    /// The launch does not fit the kernel.
    #[error("{0}")]
    Launch(String),
    /// An access to the device's memory.
    #[error(transparent)]
    Memory(#[from] OutOfBounds),
    /// An access to memory of a block, of a thread, or to parameters.
    #[error("{bytes} bytes at offset {offset:#x} are outside of the {of} bytes of {space} memory")]
    Outside {
        /// Whose.
        space: &'static str,
        /// Where.
        offset: u64,
        /// How many.
        bytes: u64,
        /// How many there are.
        of: u64,
    },
    /// An address that is no multiple of the access's size.
    #[error("address {address:#x} is not a multiple of {bytes}")]
    Misaligned {
        /// The address.
        address: u64,
        /// The size.
        bytes: u64,
    },
    /// Not all threads that an instruction is for come by.
    #[error("not all lanes run this instruction together")]
    Diverged,
    /// Nobody can go on.
    #[error("threads wait for each other in vain")]
    Deadlock,
    /// Too many instructions.
    #[error("it does not end")]
    Endless,
    /// Anything else that a device would not do as it is meant.
    #[error("{0}")]
    Wrong(String),
}

/// The grid of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    /// How many blocks.
    pub blocks: [u32; 3],
    /// How many threads each has.
    pub threads: [u32; 3],
    /// Bytes of shared memory that each has beside the kernel's own.
    pub dynamic_shared: u32,
}

/// Runs a kernel on a grid. `params` holds the bytes of each of its parameters. `work` is set to what the launch did.
///
/// # Errors
/// [`Fault`]: what a device would answer with an error, with undefined values, or not at all.
pub fn launch(
    module: &Module,
    kernel: &str,
    grid: Grid,
    params: &[Vec<u8>],
    memory: &mut Memory,
    work: Option<&mut Work>,
) -> Result<(), Fault> {
    let Grid { blocks, threads, dynamic_shared } = grid;
    let refused = |what| Fault { line: 0, block: [0; 3], thread: 0, what };
    let k = module.kernel(kernel).ok_or_else(|| refused(What::NoKernel(kernel.to_owned())))?;
    let params = packed(k, params).map_err(refused)?;
    let count = threads.iter().fold(1_u64, |n, &of| n.saturating_mul(u64::from(of)));
    if !(1..=MOST_THREADS).contains(&count) || k.threads.is_some_and(|t| t != threads) {
        let what = format!("the kernel is for blocks of {:?} threads, not {threads:?}", k.threads);
        return Err(refused(What::Launch(what)));
    }
    let mut block = Block::new(k, [blocks, threads], &params, u64::from(dynamic_shared), memory);
    block.tally = work.is_some().then(|| Tally::new(k.code.len()));
    for z in 0..blocks[2] {
        for y in 0..blocks[1] {
            for x in 0..blocks[0] {
                block.begin([x, y, z]);
                block.run()?;
            }
        }
    }
    if let (Some(work), Some(tally)) = (work, block.tally) {
        *work = tally.work();
    }
    Ok(())
}

/// The kernel's parameter space.
fn packed(k: &Kernel, params: &[Vec<u8>]) -> Result<Vec<u8>, What> {
    if params.len() != k.params.len() {
        return Err(What::Launch(format!("{} parameters are given, there are {}", params.len(), k.params.len())));
    }
    let mut out = Vec::new();
    for (p, given) in k.params.iter().zip(params) {
        if given.len() != p.bytes {
            return Err(What::Launch(format!("a parameter has {} bytes, {} are given", p.bytes, given.len())));
        }
        out.resize(p.offset, 0);
        out.extend_from_slice(given);
    }
    Ok(out)
}

/// Whom a thread waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Running,
    Warp,
    Group,
    Block,
    /// The copy engine: it asks again in the next round.
    Polling,
    Done,
}

struct Thread {
    pc: usize,
    state: State,
    copies: Copies,
    steps: u64,
    /// Where it last asked for a box that had not come.
    asked: Option<usize>,
}

/// The block that runs.
struct Block<'a> {
    kernel: &'a Kernel,
    params: &'a [u8],
    memory: &'a mut Memory,
    grid: [u32; 3],
    size: [u32; 3],
    at: [u32; 3],
    shared: Vec<u8>,
    threads: Vec<Thread>,
    /// Each thread's, one after the other.
    registers: Vec<u64>,
    local: Vec<u8>,
    barriers: Barriers,
    /// Of each four warps, the `wgmma` that go on.
    pending: Vec<Pending>,
    /// Counts work, if that is wanted.
    tally: Option<Tally>,
}

impl<'a> Block<'a> {
    fn new(
        kernel: &'a Kernel,
        [grid, size]: [[u32; 3]; 2],
        params: &'a [u8],
        dynamic: u64,
        memory: &'a mut Memory,
    ) -> Block<'a> {
        let count = size.iter().product::<u32>() as usize;
        Block {
            kernel,
            params,
            memory,
            grid,
            size,
            at: [0; 3],
            shared: vec![0; (kernel.shared - SHARED_BEGIN + dynamic) as usize],
            threads: Vec::with_capacity(count),
            registers: vec![0; count * kernel.registers],
            local: vec![0; count * kernel.local as usize],
            barriers: Barriers::default(),
            pending: Vec::new(),
            tally: None,
        }
    }

    /// A new block: nothing of the one before is left, and nothing is written yet.
    fn begin(&mut self, at: [u32; 3]) {
        let count = self.size.iter().product::<u32>() as usize;
        self.at = at;
        self.shared.fill(0xFF);
        self.local.fill(0xFF);
        self.registers.fill(u64::from_le_bytes([0xA5; 8]));
        self.threads.clear();
        let new = || Thread { pc: 0, state: State::Running, copies: Copies::default(), steps: 0, asked: None };
        self.threads.resize_with(count, new);
        self.barriers = Barriers::default();
        self.pending.clear();
        self.pending.resize_with(count.div_ceil(4 * LANES), Pending::default);
    }

    fn run(&mut self) -> Result<(), Fault> {
        loop {
            let mut moved = false;
            for first in (0..self.threads.len()).step_by(LANES) {
                moved |= self.run_warp(first..(first + LANES).min(self.threads.len()))?;
            }
            for group in 0..self.pending.len() {
                moved |= self.run_group(group)?;
            }
            moved |= self.pass_barrier()?;
            if self.threads.iter().all(|t| t.state == State::Done) {
                return Ok(());
            }
            if !moved {
                let thread = self.threads.iter().position(|t| t.state != State::Done).unwrap_or(0);
                let ended = self.threads.iter().any(|t| t.state == State::Done);
                let all = !ended && self.threads.iter().all(|t| t.state == State::Block);
                return Err(self.fault(thread, if all { What::Diverged } else { What::Deadlock }));
            }
        }
    }

    /// Runs the lanes of a warp as far as they come without others: whether any did.
    fn run_warp(&mut self, lanes: std::ops::Range<usize>) -> Result<bool, Fault> {
        let mut moved = false;
        loop {
            for t in lanes.clone() {
                if matches!(self.threads[t].state, State::Running | State::Polling) {
                    moved |= self.run_thread(t)?;
                }
            }
            if let Some(tally) = &mut self.tally {
                tally.end_turn();
            }
            let states = || lanes.clone().map(|t| self.threads[t].state);
            if states().any(|s| s == State::Polling) || !states().any(|s| s == State::Warp) {
                return Ok(moved);
            }
            let pc = self.threads[lanes.start].pc;
            if let Some(t) = lanes.clone().find(|&t| self.threads[t].state != State::Warp || self.threads[t].pc != pc) {
                return Err(self.fault(t, What::Diverged));
            }
            self.together(lanes.clone(), pc)?;
            lanes.clone().for_each(|t| self.resume(t));
            moved = true;
        }
    }

    /// All threads at a barrier go on, those of a warp from the same one.
    fn pass_barrier(&mut self) -> Result<bool, Fault> {
        if !self.threads.iter().all(|t| t.state == State::Block) {
            return Ok(false);
        }
        for warp in self.threads.chunks(LANES) {
            if let Some(lane) = warp.iter().position(|t| t.pc != warp[0].pc) {
                return Err(self.fault(lane, What::Diverged));
            }
        }
        (0..self.threads.len()).for_each(|t| self.resume(t));
        Ok(true)
    }

    /// A thread goes on after the instruction at which it waited.
    fn resume(&mut self, thread: usize) {
        let t = &mut self.threads[thread];
        t.pc += 1;
        t.state = State::Running;
    }

    fn fault(&self, thread: usize, what: What) -> Fault {
        let line = self.threads.get(thread).and_then(|t| self.kernel.code.get(t.pc)).map_or(0, |i| i.line);
        Fault { line, block: self.at, thread, what }
    }

    fn get(&self, thread: usize, s: Src) -> u64 {
        match s {
            Src::Bits(n) => n,
            Src::Reg(r) => self.registers[thread * self.kernel.registers + r as usize],
        }
    }

    fn set(&mut self, thread: usize, r: u32, value: u64) {
        self.registers[thread * self.kernel.registers + r as usize] = value;
    }

    /// The operation at which threads wait.
    fn waiting_at(&self, pc: usize) -> &'a Op {
        &self.kernel.code[pc].op
    }
}

#[cfg(test)]
mod tests;
