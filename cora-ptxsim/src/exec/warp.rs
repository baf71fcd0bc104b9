//! What the lanes of a warp do together (PTX ISA, shuffles and warp-level matrix instructions).

use super::{Block, Fault, What};
use crate::ptx::{Factor, Op, Pairing, Reg, Space, Src, Warp};
use half::{bf16, f16};
use std::ops::Range;

/// A factor's number as one of 32 bits.
pub(super) fn widened(factor: Factor, bits: u64) -> f32 {
    match factor {
        Factor::F16 => f16::from_bits(bits as u16).to_f32(),
        Factor::BF16 => bf16::from_bits(bits as u16).to_f32(),
        // What is below 10 bits of fraction is not read.
        Factor::TF32 => f32::from_bits(bits as u32 & 0xffff_e000),
    }
}

/// Products that a matrix instruction of a warp sums.
fn reduced(factor: Factor) -> usize {
    if factor == Factor::TF32 { 8 } else { 16 }
}

impl Block<'_> {
    /// Does what all `lanes` wait at.
    pub(super) fn together(&mut self, lanes: Range<usize>, pc: usize) -> Result<(), Fault> {
        let Op::Warp(what) = self.waiting_at(pc) else { return Ok(()) };
        let whole = lanes.len() == super::LANES;
        match what.as_ref() {
            Warp::Sync => Ok(()),
            Warp::Shuffle { pairing, to, inside, value, by, clamp } => {
                self.shuffle(lanes, *pairing, (*to, *inside), [*value, *by, *clamp])
            }
            _ if !whole => Err(self.fault(lanes.start, What::Wrong("the warp has fewer than 32 lanes".to_owned()))),
            Warp::Mma { factor, d, a, b, c } => {
                if let Some(tally) = &mut self.tally {
                    tally.products(16 * 8 * reduced(*factor));
                }
                self.multiply(lanes, *factor, d, [a, b, c]);
                Ok(())
            }
            Warp::LoadMatrix { transposed, to, at } => {
                let mut rows = Vec::new();
                for t in lanes.clone().take(8 * to.len()) {
                    let address = self.address(t, *at);
                    self.count(t, Space::Shared, address, 16);
                    let row = self.bytes(t, Space::Shared, address, 16).map_err(|what| self.fault(t, what))?;
                    rows.push(<[u8; 16]>::try_from(row).unwrap_or_default());
                }
                for (lane, t) in lanes.enumerate() {
                    for (n, &r) in to.iter().enumerate() {
                        let half = |h: usize| {
                            let (row, column) = (lane / 4, 2 * (lane % 4) + h);
                            let (row, column) = if *transposed { (column, row) } else { (row, column) };
                            let row = &rows[8 * n + row];
                            u64::from(u16::from_le_bytes([row[2 * column], row[2 * column + 1]]))
                        };
                        let both = half(0) | half(1) << 16;
                        self.set(t, r, both);
                    }
                }
                Ok(())
            }
        }
    }

    fn shuffle(
        &mut self,
        lanes: Range<usize>,
        pairing: Pairing,
        (to, inside): (Reg, Option<Reg>),
        [value, by, clamp]: [Src; 3],
    ) -> Result<(), Fault> {
        let values: Vec<u64> = lanes.clone().map(|t| self.get(t, value)).collect();
        for (lane, t) in lanes.enumerate() {
            let lane = lane as u64;
            let (by, clamp) = (self.get(t, by) & 31, self.get(t, clamp));
            let mask = clamp >> 8 & 31;
            let most = lane & mask | clamp & 31 & !mask;
            let (from, there) = match pairing {
                Pairing::Up => (lane.wrapping_sub(by), lane >= by + most),
                Pairing::Down => (lane + by, lane + by <= most),
                Pairing::Butterfly => (lane ^ by, lane ^ by <= most),
                Pairing::Index => (lane & mask | by & !mask, lane & mask | by & !mask <= most),
            };
            let from = if there { from } else { lane };
            let Some(&v) = values.get(from as usize) else {
                return Err(self.fault(t, What::Wrong(format!("lane {from} is read, which is not there"))));
            };
            self.set(t, to, v);
            if let Some(p) = inside {
                self.set(t, p, u64::from(there));
            }
        }
        Ok(())
    }

    /// 16 rows, 8 columns; 16 products each of halves, 8 of single precision.
    fn multiply(&mut self, lanes: Range<usize>, factor: Factor, d: &[Reg], [a, b, c]: [&[Src]; 3]) {
        let halves = factor != Factor::TF32;
        let reduced = reduced(factor);
        let (mut left, mut right) = ([[0f32; 16]; 16], [[0f32; 8]; 16]);
        for (lane, t) in lanes.clone().enumerate() {
            let (group, own) = (lane / 4, lane % 4);
            for (n, &s) in a.iter().enumerate() {
                let bits = self.get(t, s);
                let row = group + 8 * (n % 2);
                for h in 0..if halves { 2 } else { 1 } {
                    let k = if halves { 2 * own + h + 8 * (n / 2) } else { own + 4 * (n / 2) };
                    left[row][k] = widened(factor, bits >> (16 * h));
                }
            }
            for (n, &s) in b.iter().enumerate() {
                let bits = self.get(t, s);
                for h in 0..if halves { 2 } else { 1 } {
                    let k = if halves { 2 * own + h + 8 * n } else { own + 4 * n };
                    right[k][group] = widened(factor, bits >> (16 * h));
                }
            }
        }
        for (lane, t) in lanes.enumerate() {
            let (group, own) = (lane / 4, lane % 4);
            let sums: Vec<u64> = (c.iter().enumerate())
                .map(|(n, &s)| {
                    let (row, column) = (group + 8 * (n / 2), 2 * own + n % 2);
                    let start = f32::from_bits(self.get(t, s) as u32);
                    let sum = (0..reduced).fold(start, |sum, k| sum + left[row][k] * right[k][column]);
                    u64::from(sum.to_bits())
                })
                .collect();
            d.iter().zip(sums).for_each(|(&r, v)| self.set(t, r, v));
        }
    }
}
