//! What four warps do together: `wgmma` (PTX ISA, asynchronous warpgroup matrix instructions).

use super::warp::widened;
use super::{Block, Fault, LANES, State, What};
use crate::ptx::{Factor, Group, Op, Reg, Space};

/// Lanes of four warps.
const ALL: usize = 4 * LANES;
/// Rows of the result, and products summed.
const ROWS: usize = 64;
const REDUCED: usize = 16;

/// A product that goes on: what it multiplies, and the registers of each lane that it adds to.
struct Product<'a> {
    columns: usize,
    factor: Factor,
    d: &'a [Reg],
    a: Descriptor,
    b: Descriptor,
    adds: bool,
}

/// Products since the last commit, and those of each commit that is not waited for.
#[derive(Default)]
pub(super) struct Pending {
    open: Vec<(usize, [u64; 2], bool)>,
    committed: Vec<Vec<(usize, [u64; 2], bool)>>,
}

/// A matrix in shared memory, as a register of 64 bits describes it.
struct Descriptor {
    begin: u64,
    leading: u64,
    stride: u64,
    swizzled: bool,
    /// Whether the dimension that is not reduced is the contiguous one.
    transposed: bool,
}

impl Descriptor {
    fn new(bits: u64, transposed: bool) -> Result<Descriptor, What> {
        let field = |at: u32| (bits >> at & 0x3fff) << 4;
        let swizzled = match bits >> 62 {
            0 => false,
            1 => true,
            _ => return Err(What::Wrong("swizzles of 32 and 64 bytes are not interpreted".to_owned())),
        };
        if bits >> 49 & 7 != 0 {
            return Err(What::Wrong("a matrix with a base offset is not interpreted".to_owned()));
        }
        Ok(Descriptor { begin: field(0), leading: field(16), stride: field(32), swizzled, transposed })
    }

    /// Where the element is at position `k` of the reduced dimension and `x` of the other; elements have 2 bytes.
    fn address(&self, x: u64, k: u64) -> u64 {
        let at = match (self.swizzled, self.transposed) {
            (true, false) => x % 8 * 128 + x / 8 * self.stride + k * 2,
            (true, true) => x % 64 * 2 + x / 64 * self.leading + k % 8 * 128 + k / 8 * self.stride,
            (false, false) => x % 8 * 16 + x / 8 * self.stride + k % 8 * 2 + k / 8 * self.leading,
            (false, true) => x % 8 * 2 + x / 8 * self.stride + k % 8 * 16 + k / 8 * self.leading,
        };
        let at = self.begin + at;
        if self.swizzled { at ^ (at >> 3 & 0x70) } else { at }
    }
}

impl<'a> Block<'a> {
    /// Does what four warps wait at, if all of their lanes do: whether they did.
    pub(super) fn run_group(&mut self, group: usize) -> Result<bool, Fault> {
        let lanes = group * ALL..((group + 1) * ALL).min(self.threads.len());
        let pc = self.threads[lanes.start].pc;
        let there = |t: usize| self.threads[t].state == State::Group && self.threads[t].pc == pc;
        if lanes.len() < ALL || !lanes.clone().all(there) {
            return Ok(false);
        }
        let Op::Group(what) = self.waiting_at(pc) else { return Ok(false) };
        match what.as_ref() {
            Group::Fence => {}
            Group::Mma { a, b, adds, .. } => {
                let of = |t: usize| (pc, [self.get(t, *a), self.get(t, *b)], self.get(t, *adds) != 0);
                let first = of(lanes.start);
                if let Some(t) = lanes.clone().find(|&t| of(t) != first) {
                    let what = What::Wrong("the lanes describe different matrices".to_owned());
                    return Err(self.fault(t, what));
                }
                self.pending[group].open.push(first);
            }
            Group::Commit => {
                let open = std::mem::take(&mut self.pending[group].open);
                self.pending[group].committed.push(open);
            }
            Group::Wait(n) => {
                let done = self.pending[group].committed.len().saturating_sub(*n);
                let done: Vec<_> = self.pending[group].committed.drain(..done).flatten().collect();
                for (pc, [a, b], adds) in done {
                    let Op::Group(what) = self.waiting_at(pc) else { continue };
                    let Group::Mma { columns, factor, d, transposed, .. } = what.as_ref() else { continue };
                    let wrong = |what| self.fault(lanes.start, what);
                    let (a, b) = (Descriptor::new(a, transposed[0]), Descriptor::new(b, transposed[1]));
                    let (a, b) = (a.map_err(wrong)?, b.map_err(wrong)?);
                    let product = Product { columns: *columns, factor: *factor, d, a, b, adds };
                    let done = self.product(lanes.start, &product);
                    done.map_err(|what| self.fault(lanes.start, what))?;
                }
            }
        }
        lanes.for_each(|t| self.resume(t));
        Ok(true)
    }

    fn product(&mut self, first: usize, p: &Product<'a>) -> Result<(), What> {
        if let Some(tally) = &mut self.tally {
            tally.products(ROWS * p.columns * REDUCED);
        }
        let (mut left, mut right) = (vec![0f32; ROWS * REDUCED], vec![0f32; p.columns * REDUCED]);
        for (m, all) in [(&p.a, &mut left), (&p.b, &mut right)] {
            for (n, v) in all.iter_mut().enumerate() {
                let (x, k) = (n / REDUCED, n % REDUCED);
                let bits = self.piece(first, Space::Shared, m.address(x as u64, k as u64), 2)?;
                *v = widened(p.factor, u64::from(u16::from_le_bytes([bits[0], bits[1]])));
            }
        }
        for t in 0..ALL {
            let (warp, lane) = (t / LANES, t % LANES);
            for (n, &r) in p.d.iter().enumerate() {
                let row = 16 * warp + lane / 4 + 8 * (n / 2 % 2);
                let column = 8 * (n / 4) + 2 * (lane % 4) + n % 2;
                let at = (first + t) * self.kernel.registers + r as usize;
                let start = if p.adds { f32::from_bits(self.registers[at] as u32) } else { 0.0 };
                let (a, b) = (&left[row * REDUCED..][..REDUCED], &right[column * REDUCED..][..REDUCED]);
                let sum = a.iter().zip(b).fold(start, |sum, (a, b)| sum + a * b);
                self.registers[at] = u64::from(sum.to_bits());
            }
        }
        Ok(())
    }
}
