//! Loads, stores and updates of one instruction's lanes.

use crate::interp::buffer::{Buffer, Held};
use crate::interp::instr::{Access, LANES, Opd};
use crate::interp::ops;
use crate::interp::regs::{Addr, Fault, Reg, Regs, Src};
use crate::types::Combiner;

/// What a load, store or update needs of its tensor's positions: those of its own part.
fn part(buf: &Buffer<'_>, at: i64) -> usize {
    at.wrapping_sub(buf.first) as usize
}

/// The next run of lanes in `from..n` where `cond` holds.
pub(crate) fn next_run(cond: impl Fn(usize) -> bool, from: usize, n: usize) -> Option<(usize, usize)> {
    let lo = (from..n).find(|&l| cond(l))?;
    let hi = (lo..n).find(|&l| !cond(l)).unwrap_or(n);
    Some((lo, hi))
}

impl Regs {
    /// Loads lanes `lo..lo + n` of an access into `dst`. Gives the first undefined element's lane.
    ///
    /// # Errors
    /// As [`Regs::address`].
    pub fn load<T: Reg>(
        &mut self,
        held: &Held<'_>,
        access: &Access,
        dst: Opd,
        lo: usize,
        n: usize,
    ) -> Result<Option<usize>, Fault> {
        let addr = self.address(&held.levels, access, lo, n)?;
        let (buf, cells) = (&held.buf, T::cells(&held.buf));
        let d = match dst {
            Opd::S(d) => {
                let Addr::S(at) = addr else { return Ok(None) };
                let at = part(buf, at as i64);
                let undefined = !buf.defined(at);
                T::file_mut(self).set(d, cells[at], undefined);
                return Ok(undefined.then_some(0));
            }
            Opd::V(d) => d as usize,
            Opd::A { .. } => return Ok(None),
        };
        let addresses = std::mem::take(&mut self.addr);
        let file = T::file_mut(self);
        let out = &mut file.v[d * LANES + lo..][..n];
        match addr {
            Addr::S(at) => out.fill(cells[part(buf, at as i64)]),
            Addr::A(base, 1) => out.copy_from_slice(&cells[part(buf, base)..][..n]),
            Addr::A(base, stride) if stride > 0 => {
                let from = &cells[part(buf, base)..];
                out.iter_mut().zip(from.iter().step_by(stride as usize)).for_each(|(o, &x)| *o = x);
            }
            Addr::A(base, stride) => {
                for (l, o) in out.iter_mut().enumerate() {
                    *o = cells[part(buf, base + stride * l as i64)];
                }
            }
            Addr::V => out.iter_mut().zip(&addresses).for_each(|(o, &at)| *o = cells[part(buf, at)]),
        }
        let mut first = None;
        if buf.undefined > 0 {
            let und = &mut file.vund[d];
            let all = matches!(addr, Addr::A(base, 1) if buf.range_defined(part(buf, base), n));
            if !all {
                for l in 0..n {
                    if !buf.defined(part(buf, lane_address(addr, &addresses, l))) {
                        und.set(lo + l);
                        first = first.or(Some(lo + l));
                    }
                }
            }
        }
        self.addr = addresses;
        Ok(first)
    }

    /// Copies lanes `lo..hi` of `other` to `dst`: the value of a load where its guard does not hold.
    pub fn copy_lanes<T: Reg>(&mut self, dst: Opd, other: Opd, lo: usize, hi: usize) {
        let file = T::file_mut(self);
        let und = file.und(other);
        match dst {
            Opd::S(d) => {
                let x = file.src(other, 1).at(0);
                file.set(d, x, und.any);
            }
            Opd::V(d) => {
                let (out, s, v) = file.split(d, hi);
                let from = crate::interp::regs::src(s, v, other, hi);
                for (l, o) in out.iter_mut().enumerate().skip(lo) {
                    *o = from.at(l);
                }
                for l in lo..hi {
                    if und.at(l) {
                        file.vund[d as usize].set(l);
                    }
                }
            }
            Opd::A { .. } => {}
        }
    }

    /// Stores lanes `lo..lo + n` of `value`; of lanes with one address the last stays.
    ///
    /// # Errors
    /// As [`Regs::address`].
    pub fn store<T: Reg>(
        &mut self,
        held: &mut Held<'_>,
        access: &Access,
        value: Opd,
        lo: usize,
        n: usize,
    ) -> Result<Option<usize>, Fault> {
        let addr = self.address(&held.levels, access, lo, n)?;
        let und = T::file(self).und(value);
        let undefined = und.first(lo, lo + n);
        let buf = &mut held.buf;
        let (ty, first) = (buf.ty, buf.first);
        let from = T::file(self).src(value, lo + n);
        let part = |at: i64| at.wrapping_sub(first) as usize;
        let cells = T::cells_mut(buf);
        match (addr, from) {
            (Addr::S(at), from) => {
                cells[part(at as i64)] = T::stored(ty, from.at(lo + n - 1));
                buf.mark(part(at as i64), !und.at(lo + n - 1));
                return Ok(undefined);
            }
            (Addr::A(base, 1), Src::V(v)) => {
                let out = &mut cells[part(base)..][..n];
                out.iter_mut().zip(&v[lo..]).for_each(|(o, &x)| *o = T::stored(ty, x));
            }
            (Addr::A(base, 1), Src::S(x)) => cells[part(base)..][..n].fill(T::stored(ty, x)),
            _ => {
                for l in 0..n {
                    cells[part(lane_address(addr, &self.addr, l))] = T::stored(ty, from.at(lo + l));
                }
            }
        }
        match addr {
            Addr::A(base, 1) if undefined.is_none() => buf.mark_range(part(base), n),
            _ if buf.tracked() => {
                for l in 0..n {
                    buf.mark(part(lane_address(addr, &self.addr, l)), !und.at(lo + l));
                }
            }
            _ => {}
        }
        Ok(undefined)
    }

    /// `tensor[index] = f(tensor[index], value)` for each lane in order. A run of lanes on one
    /// element is rounded once.
    fn update<T: Reg>(
        &mut self,
        held: &mut Held<'_>,
        access: &Access,
        value: Opd,
        w: u32,
        f: impl Fn(T, T) -> T,
    ) -> Result<Option<usize>, Fault> {
        let n = self.width(w);
        let addr = self.address(&held.levels, access, 0, n)?;
        let und = T::file(self).und(value);
        let buf = &mut held.buf;
        let (ty, first) = (buf.ty, buf.first);
        let from = T::file(self).src(value, n);
        let part = |at: i64| at.wrapping_sub(first) as usize;
        if let Addr::S(at) = addr {
            let at = part(at as i64);
            let cell = &mut T::cells_mut(buf)[at];
            let total = match from {
                Src::V(v) => v.iter().fold(*cell, |acc, &x| f(acc, x)),
                Src::S(x) => (0..n).fold(*cell, |acc, _| f(acc, x)),
            };
            *cell = T::stored(ty, total);
            let undefined = und.first(0, n);
            if undefined.is_some() {
                buf.mark(at, false);
            }
            return Ok(undefined);
        }
        match (addr, from) {
            (Addr::A(base, 1), Src::V(v)) => {
                let cells = &mut T::cells_mut(buf)[part(base)..][..n];
                cells.iter_mut().zip(v).for_each(|(c, &x)| *c = T::stored(ty, f(*c, x)));
            }
            _ => {
                for l in 0..n {
                    let cell = &mut T::cells_mut(buf)[part(lane_address(addr, &self.addr, l))];
                    *cell = T::stored(ty, f(*cell, from.at(l)));
                }
            }
        }
        // An element that was undefined stays so.
        let undefined = und.first(0, n);
        if undefined.is_some() {
            for l in (0..n).filter(|&l| und.at(l)) {
                buf.mark(part(lane_address(addr, &self.addr, l)), false);
            }
        }
        Ok(undefined)
    }

    /// # Errors
    /// As [`Regs::address`].
    pub fn update_f(
        &mut self,
        held: &mut Held<'_>,
        access: &Access,
        c: Combiner,
        value: Opd,
        w: u32,
    ) -> Result<Option<usize>, Fault> {
        match c {
            Combiner::Sum => self.update(held, access, value, w, |a: f64, b| a + b),
            Combiner::Prod => self.update(held, access, value, w, |a: f64, b| a * b),
            Combiner::Max => self.update(held, access, value, w, ops::fmax),
            Combiner::Min => self.update(held, access, value, w, ops::fmin),
        }
    }

    /// # Errors
    /// As [`Regs::address`].
    pub fn update_i(
        &mut self,
        held: &mut Held<'_>,
        access: &Access,
        c: Combiner,
        value: Opd,
        w: u32,
    ) -> Result<Option<usize>, Fault> {
        let ty = held.buf.ty;
        self.update(held, access, value, w, |a: i64, b| ops::combine_i(c, ty, a, b))
    }
}

fn lane_address(addr: Addr, addresses: &[i64], lane: usize) -> i64 {
    match addr {
        Addr::S(at) => at as i64,
        Addr::A(base, stride) => base + stride * lane as i64,
        Addr::V => addresses[lane],
    }
}
