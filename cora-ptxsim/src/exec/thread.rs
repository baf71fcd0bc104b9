//! One thread, until it waits.

use super::{Block, Fault, MOST_STEPS, State, What};
use crate::ptx::{Op, Space, Special, Src};

impl Block<'_> {
    /// Runs a thread until it waits or ends: whether it came further than where it last asked the copy
    /// engine in vain.
    pub(super) fn run_thread(&mut self, thread: usize) -> Result<bool, Fault> {
        self.threads[thread].state = State::Running;
        let kernel = self.kernel;
        let mut pc = self.threads[thread].pc;
        loop {
            let Some(i) = kernel.code.get(pc) else { return Err(self.fault(thread, What::Endless)) };
            self.threads[thread].pc = pc;
            self.threads[thread].steps += 1;
            if self.threads[thread].steps > MOST_STEPS {
                return Err(self.fault(thread, What::Endless));
            }
            if let Some(tally) = &mut self.tally {
                tally.issue(thread, pc);
            }
            if let Some((r, negated)) = i.guard
                && (self.get(thread, Src::Reg(r)) == 0) != negated
            {
                pc += 1;
                continue;
            }
            match &i.op {
                Op::Compute(to, f) => {
                    let v = f.value(|s| self.get(thread, s));
                    self.set(thread, *to, v);
                }
                Op::Halves(to, f) => {
                    let [low, high] = [0, 16].map(|at| f.value(|s| self.get(thread, s) >> at & 0xffff));
                    self.set(thread, *to, high << 16 | low);
                }
                Op::OfHalves(to, f) => {
                    let halves = [0, 16].map(|at| f.value(|s| self.get(thread, s) >> at & 0xffff));
                    for (r, v) in to.iter().zip(halves) {
                        if let Some(r) = r {
                            self.set(thread, *r, v);
                        }
                    }
                }
                Op::Special(to, what) => {
                    let v = self.special(thread, *what);
                    self.set(thread, *to, v);
                }
                Op::Unpack(to, bits, from) => {
                    let v = self.get(thread, *from);
                    for (n, r) in to.iter().enumerate() {
                        if let Some(r) = r {
                            self.set(thread, *r, (v >> (n as u32 * bits)) & (u64::MAX >> (64 - bits)));
                        }
                    }
                }
                Op::Pack(to, bits, from) => {
                    let part =
                        |(n, &s): (usize, &Src)| (self.get(thread, s) & (u64::MAX >> (64 - bits))) << (n as u32 * bits);
                    let v = from.iter().enumerate().map(part).fold(0, |a, b| a | b);
                    self.set(thread, *to, v);
                }
                Op::ToGeneric(space, to, a) => {
                    let v = Self::to_generic(*space, self.get(thread, *a));
                    self.set(thread, *to, v);
                }
                Op::FromGeneric(space, to, a) => {
                    let v = Self::to_generic(*space, 0);
                    let v = self.get(thread, *a).wrapping_sub(v);
                    self.set(thread, *to, v);
                }
                Op::Load(l) => self.load(thread, l)?,
                Op::Store { space, bytes, from, at } => self.store(thread, *space, *bytes, from, *at)?,
                Op::Atomic { space, bytes, f, to, at, value } => {
                    let value = self.get(thread, *value);
                    let old = self.update(thread, *space, *bytes, *at, |x| f(x, value))?;
                    if let Some(to) = to {
                        self.set(thread, *to, old);
                    }
                }
                Op::Branch(to) => {
                    pc = *to;
                    continue;
                }
                Op::Async(what) => {
                    if !self.beside(thread, what)? {
                        // In the same turn nothing can come.
                        let t = &mut self.threads[thread];
                        (t.pc, t.state) = (pc + 1, State::Polling);
                        return Ok(t.asked.replace(pc) != Some(pc));
                    }
                    self.threads[thread].asked = None;
                }
                Op::Nothing => {}
                Op::Return => return self.stop(thread, State::Done),
                Op::Barrier => return self.stop(thread, State::Block),
                Op::Warp(_) => return self.stop(thread, State::Warp),
                Op::Group(_) => return self.stop(thread, State::Group),
            }
            pc += 1;
        }
    }

    fn stop(&mut self, thread: usize, state: State) -> Result<bool, Fault> {
        self.threads[thread].state = state;
        Ok(true)
    }

    fn special(&self, thread: usize, what: Special) -> u64 {
        let [x, y, _] = self.size.map(|n| n as usize);
        let place = [thread % x, thread / x % y, thread / (x * y)];
        match what {
            Special::Thread(d) => place[d] as u64,
            Special::Threads(d) => self.size[d].into(),
            Special::Block(d) => self.at[d].into(),
            Special::Blocks(d) => self.grid[d].into(),
            Special::Lane => (thread % super::LANES) as u64,
            Special::Warp => (thread / super::LANES) as u64,
        }
    }

    /// An address of a space as a generic one.
    fn to_generic(space: Space, address: u64) -> u64 {
        match space {
            Space::Shared => address.wrapping_add(super::space::SHARED_WINDOW),
            Space::Local => address.wrapping_add(super::space::LOCAL_WINDOW),
            Space::Param => address.wrapping_add(super::space::PARAM_WINDOW),
            Space::Global | Space::Generic => address,
        }
    }
}
