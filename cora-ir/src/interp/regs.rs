//! Register files, definedness of lanes, and the addresses of accesses.

use crate::interp::buffer::Elem;
use crate::interp::instr::{Access, LANES, Opd, Program};
use crate::interp::levels::{Level, Levels};

/// Which lanes of a register are undefined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Und {
    pub any: bool,
    pub bits: [u64; LANES / 64],
}

impl Und {
    pub const NONE: Und = Und { any: false, bits: [0; LANES / 64] };
    pub const ALL: Und = Und { any: true, bits: [u64::MAX; LANES / 64] };

    pub fn at(&self, lane: usize) -> bool {
        self.any && self.bits[lane / 64] >> (lane % 64) & 1 == 1
    }
    pub fn set(&mut self, lane: usize) {
        self.any = true;
        self.bits[lane / 64] |= 1 << (lane % 64);
    }
    pub fn clear(&mut self, lane: usize) {
        self.bits[lane / 64] &= !(1 << (lane % 64));
    }
    pub fn or(mut self, other: &Und) -> Und {
        if other.any {
            self.any = true;
            for (a, b) in self.bits.iter_mut().zip(other.bits) {
                *a |= b;
            }
        }
        self
    }
    /// The first undefined lane in `lo..hi`.
    pub fn first(&self, lo: usize, hi: usize) -> Option<usize> {
        if self.any { (lo..hi).find(|&l| self.at(l)) } else { None }
    }
}

/// An operand's values.
#[derive(Clone, Copy)]
pub(crate) enum Src<'a, T> {
    S(T),
    V(&'a [T]),
}

impl<T: Copy> Src<'_, T> {
    #[inline]
    pub fn at(&self, lane: usize) -> T {
        match self {
            Src::S(x) => *x,
            Src::V(v) => v[lane],
        }
    }
}

/// Registers of one kind.
#[derive(Debug, Default)]
pub(crate) struct File<T> {
    pub s: Vec<T>,
    /// Which scalars are undefined.
    pub sund: Vec<bool>,
    pub v: Vec<T>,
    pub vund: Vec<Und>,
}

/// The values of `o`, given the scalars and the vectors from register 0 on.
#[inline]
pub(crate) fn src<'a, T: Copy + Default>(s: &[T], v: &'a [T], o: Opd, n: usize) -> Src<'a, T> {
    match o {
        Opd::S(r) => Src::S(s[r as usize]),
        Opd::V(r) => Src::V(&v[r as usize * LANES..][..n]),
        Opd::A { .. } => Src::S(T::default()),
    }
}

impl<T: Copy + Default> File<T> {
    fn new(scalars: &[T], vectors: u32) -> Self {
        let n = vectors as usize;
        Self {
            s: scalars.to_vec(),
            sund: vec![false; scalars.len()],
            v: vec![T::default(); n * LANES],
            vund: vec![Und::NONE; n],
        }
    }

    #[inline]
    pub fn src(&self, o: Opd, n: usize) -> Src<'_, T> {
        src(&self.s, &self.v, o, n)
    }

    #[inline]
    pub fn und(&self, o: Opd) -> Und {
        match o {
            Opd::S(r) if self.sund[r as usize] => Und::ALL,
            Opd::V(r) => self.vund[r as usize],
            _ => Und::NONE,
        }
    }

    #[inline]
    pub fn set(&mut self, r: u32, value: T, undefined: bool) {
        self.s[r as usize] = value;
        self.sund[r as usize] = undefined;
    }

    /// The lanes of vector `dst`, with the scalars and the vectors before it to read from.
    #[inline]
    pub fn split(&mut self, dst: u32, n: usize) -> (&mut [T], &[T], &[T]) {
        let (lo, hi) = self.v.split_at_mut(dst as usize * LANES);
        (&mut hi[..n], &self.s, lo)
    }
}

/// `base + lane * stride`, unless it leaves 64 bits.
#[inline]
pub(crate) fn lane_of(base: i64, stride: i64, lane: usize) -> Option<i64> {
    stride.checked_mul(lane as i64)?.checked_add(base)
}

/// All registers of one engine run.
#[derive(Debug)]
pub(crate) struct Regs {
    pub f: File<f64>,
    pub i: File<i64>,
    /// Lanes of the current strip; 1 outside strips.
    pub n: usize,
    /// Addresses of the lanes, where they are not regular.
    pub addr: Vec<i64>,
    /// Whether an index left 64 bits since an undefined element was last read.
    pub overflow: bool,
}

/// Where an access's elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Addr {
    /// One element for all lanes.
    S(usize),
    /// `base + lane * stride`
    A(i64, i64),
    /// As listed in [`Regs::addr`].
    V,
}

/// Why there is no address.
#[derive(Debug)]
pub(crate) enum Fault {
    Outside(Vec<i64>),
    Undefined(Vec<i64>),
}

/// An element type with its register file.
pub(crate) trait Reg: Elem {
    fn file(r: &Regs) -> &File<Self>;
    fn file_mut(r: &mut Regs) -> &mut File<Self>;
}

impl Reg for f64 {
    fn file(r: &Regs) -> &File<f64> {
        &r.f
    }
    fn file_mut(r: &mut Regs) -> &mut File<f64> {
        &mut r.f
    }
}

impl Reg for i64 {
    fn file(r: &Regs) -> &File<i64> {
        &r.i
    }
    fn file_mut(r: &mut Regs) -> &mut File<i64> {
        &mut r.i
    }
}

impl Regs {
    pub fn new(p: &Program) -> Self {
        let f = File::new(&p.floats, p.float_vectors);
        let i = File::new(&p.ints, p.int_vectors);
        Self { f, i, n: 1, addr: vec![0; LANES], overflow: false }
    }

    #[inline]
    pub fn width(&self, w: u32) -> usize {
        if w == 0 { self.n } else { w as usize }
    }

    /// An integer operand's value in one lane.
    pub fn int_at(&self, o: Opd, lane: usize) -> i64 {
        match o {
            Opd::S(r) => self.i.s[r as usize],
            Opd::V(r) => self.i.v[r as usize * LANES + lane],
            Opd::A { base, stride } => {
                let (b, s) = (self.i.s[base as usize], self.i.s[stride as usize]);
                b.wrapping_add(s.wrapping_mul(lane as i64))
            }
        }
    }

    /// Whether an integer operand is undefined in one lane.
    pub fn int_undefined(&self, o: Opd, lane: usize) -> bool {
        match o {
            Opd::S(r) => self.i.sund[r as usize],
            Opd::V(r) => self.i.vund[r as usize].at(lane),
            Opd::A { base, stride } => {
                let (base, stride) = (base as usize, stride as usize);
                let i = &self.i;
                i.sund[base] || i.sund[stride] || lane_of(i.s[base], i.s[stride], lane).is_none()
            }
        }
    }

    /// The addresses of lanes `lo..lo + n` of an access.
    ///
    /// # Errors
    /// [`Fault`]: an index outside the tensor, or an undefined one.
    pub fn address(&mut self, levels: &Levels, access: &Access, lo: usize, n: usize) -> Result<Addr, Fault> {
        let index = &access.index;
        if index.len() != levels.levels.len() {
            return Err(self.outside(access, lo));
        }
        // All scalar, or one lane: the common case in scalar code.
        if n == 1 || index.iter().all(|o| o.is_scalar()) {
            let mut p = 0;
            for (d, &o) in index.iter().enumerate() {
                if self.int_undefined(o, lo) {
                    return Err(self.undefined(access, lo));
                }
                let Some(at) = levels.child(d, p, self.int_at(o, lo)) else { return Err(self.outside(access, lo)) };
                p = at;
            }
            return Ok(Addr::S(p as usize));
        }
        self.regular_address(levels, access, lo, n)
    }

    /// `base + lane * stride` as far as possible, lane by lane from there on.
    fn regular_address(&mut self, levels: &Levels, access: &Access, lo: usize, n: usize) -> Result<Addr, Fault> {
        let (mut base, mut stride) = (0i64, 0i64);
        let last = n as i64 - 1;
        for (d, &o) in access.index.iter().enumerate() {
            let (b, s) = match o {
                Opd::V(_) => return self.lane_addresses(levels, access, d, (base, stride), lo, n),
                _ if self.int_undefined(o, lo) => return Err(self.undefined(access, lo)),
                Opd::S(_) => (self.int_at(o, lo), 0),
                Opd::A { stride, .. } => (self.int_at(o, lo), self.i.s[stride as usize]),
            };
            if stride == 0 && s == 0 {
                base = levels.child(d, base, b).ok_or_else(|| self.outside(access, lo))?;
                continue;
            }
            let regular = match &levels.levels[d] {
                Level::Dense(_) => true,
                Level::Ragged(_) => stride == 0,
                Level::Kept(_) => false,
            };
            if !regular {
                return self.lane_addresses(levels, access, d, (base, stride), lo, n);
            }
            let end = s.checked_mul(last).and_then(|x| x.checked_add(b));
            let (start, len) = levels.row(d, base);
            if b as u64 >= len as u64 || end.is_none_or(|e| e as u64 >= len as u64) {
                let lane = (0..n).find(|&l| self.int_at(o, lo + l) as u64 >= len as u64).unwrap_or(0);
                return Err(self.outside(access, lo + lane));
            }
            stride = if let Level::Dense(len) = levels.levels[d] { stride * len + s } else { s };
            base = start + b;
        }
        Ok(if stride == 0 { Addr::S(base as usize) } else { Addr::A(base, stride) })
    }

    fn lane_addresses(
        &mut self,
        levels: &Levels,
        access: &Access,
        from: usize,
        (base, stride): (i64, i64),
        lo: usize,
        n: usize,
    ) -> Result<Addr, Fault> {
        let mut addr = std::mem::take(&mut self.addr);
        let mut fault = None;
        for (l, slot) in addr[..n].iter_mut().enumerate() {
            *slot = base + stride * l as i64;
        }
        'dims: for (d, &o) in access.index.iter().enumerate().skip(from) {
            for (l, slot) in addr[..n].iter_mut().enumerate() {
                if self.int_undefined(o, lo + l) {
                    fault = Some(self.undefined(access, lo + l));
                    break 'dims;
                }
                let Some(at) = levels.child(d, *slot, self.int_at(o, lo + l)) else {
                    fault = Some(self.outside(access, lo + l));
                    break 'dims;
                };
                *slot = at;
            }
        }
        self.addr = addr;
        fault.map_or(Ok(Addr::V), Err)
    }

    fn index_at(&self, access: &Access, lane: usize) -> Vec<i64> {
        access.index.iter().map(|&o| self.int_at(o, lane)).collect()
    }

    #[cold]
    fn outside(&self, access: &Access, lane: usize) -> Fault {
        Fault::Outside(self.index_at(access, lane))
    }

    #[cold]
    fn undefined(&self, access: &Access, lane: usize) -> Fault {
        Fault::Undefined(self.index_at(access, lane))
    }
}
