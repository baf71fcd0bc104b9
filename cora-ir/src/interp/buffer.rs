//! Elements in memory, with one bit each for "was written".

use crate::ids::{EntityId, TensorId};
use crate::interp::levels::Levels;
use crate::interp::{Data, InterpError};
use crate::types::{ScalarType, round_float};
use std::borrow::Cow;
use std::sync::Arc;

/// Elements of a buffer: floats of any type as `f64`, integers and truth values as `i64`.
#[derive(Clone, Debug)]
pub(crate) enum Cells<'a> {
    F(Cow<'a, [f64]>),
    I(Cow<'a, [i64]>),
}

/// Elements of one tensor and their definedness.
#[derive(Clone, Debug)]
pub(crate) struct Buffer<'a> {
    pub cells: Cells<'a>,
    pub ty: ScalarType,
    /// One bit an element, set where it is defined; empty where nothing is tracked (all is defined).
    bits: Vec<u64>,
    /// One bit an element, set where it was ever written; kept on demand, else empty.
    ever: Vec<u64>,
    /// How many elements are undefined.
    pub undefined: usize,
    /// Position of the first element held here (a worker holds a range of a tensor).
    pub first: i64,
}

impl<'a> Buffer<'a> {
    /// `len` undefined elements.
    ///
    /// # Errors
    /// There is not as much memory.
    pub fn undefined(ty: ScalarType, len: usize) -> Result<Self, InterpError> {
        Ok(Self { bits: zeros(len.div_ceil(64))?, undefined: len, ..Self::untracked(ty, len)? })
    }

    /// `len` elements that count as defined.
    ///
    /// # Errors
    /// There is not as much memory.
    pub fn untracked(ty: ScalarType, len: usize) -> Result<Self, InterpError> {
        let cells = if ty.is_float() { Cells::F(zeros(len)?.into()) } else { Cells::I(zeros(len)?.into()) };
        Ok(Self { cells, ty, bits: Vec::new(), ever: Vec::new(), undefined: 0, first: 0 })
    }

    /// Defined elements, borrowed. Nothing if they are of the wrong kind.
    pub fn borrowed(ty: ScalarType, data: &'a Data) -> Option<Self> {
        let cells = match data {
            Data::F64(v) if ty.is_float() => Cells::F(Cow::Borrowed(v)),
            Data::I64(v) if !ty.is_float() => Cells::I(Cow::Borrowed(v)),
            _ => return None,
        };
        Some(Self { cells, ty, bits: Vec::new(), ever: Vec::new(), undefined: 0, first: 0 })
    }

    pub fn len(&self) -> usize {
        match &self.cells {
            Cells::F(v) => v.len(),
            Cells::I(v) => v.len(),
        }
    }

    pub fn tracked(&self) -> bool {
        !self.bits.is_empty()
    }

    /// Makes all elements undefined (no effect where nothing is tracked).
    pub fn poison(&mut self) {
        if self.tracked() {
            self.ever.iter_mut().zip(&self.bits).for_each(|(e, b)| *e |= b);
            self.bits.fill(0);
            self.undefined = self.len();
        }
    }

    /// From now on keeps which elements are ever written.
    ///
    /// # Errors
    /// There is not as much memory.
    pub fn remember(&mut self) -> Result<(), InterpError> {
        self.ever = zeros(self.bits.len())?;
        Ok(())
    }

    /// For each element whether it was ever written; nothing where that is not kept.
    pub fn ever_written(&self) -> Option<Vec<bool>> {
        let word = |i: usize| self.ever.get(i).map(|e| e | self.bits[i]);
        (0..self.len()).map(|at| word(at / 64).map(|w| w >> (at % 64) & 1 == 1)).collect()
    }

    /// Whether element `at` is defined.
    #[inline]
    pub fn defined(&self, at: usize) -> bool {
        self.undefined == 0 || self.bits[at / 64] >> (at % 64) & 1 == 1
    }

    /// Whether all elements of `at..at + n` are defined.
    pub fn range_defined(&self, at: usize, n: usize) -> bool {
        if self.undefined == 0 {
            return true;
        }
        let (mut i, end) = (at, at + n);
        while i < end {
            let take = (64 - i % 64).min(end - i);
            let mask = word_mask(i % 64, take);
            if self.bits[i / 64] & mask != mask {
                return false;
            }
            i += take;
        }
        true
    }

    /// Records that element `at` was written with a defined or undefined value.
    #[inline]
    pub fn mark(&mut self, at: usize, defined: bool) {
        if self.bits.is_empty() {
            return;
        }
        let (word, bit) = (&mut self.bits[at / 64], 1u64 << (at % 64));
        if defined && *word & bit == 0 {
            *word |= bit;
            self.undefined -= 1;
        } else if !defined && *word & bit != 0 {
            *word &= !bit;
            self.undefined += 1;
        }
        if let Some(e) = self.ever.get_mut(at / 64) {
            *e |= bit;
        }
    }

    /// Records that `at..at + n` was written with defined values.
    pub fn mark_range(&mut self, at: usize, n: usize) {
        if self.bits.is_empty() || self.undefined == 0 {
            return;
        }
        let (mut i, end) = (at, at + n);
        while i < end {
            let take = (64 - i % 64).min(end - i);
            let mask = word_mask(i % 64, take);
            let word = &mut self.bits[i / 64];
            self.undefined -= (mask & !*word).count_ones() as usize;
            *word |= mask;
            i += take;
        }
    }

    /// The first undefined element.
    pub fn first_undefined(&self) -> Option<usize> {
        if self.undefined == 0 {
            return None;
        }
        (0..self.len()).find(|&i| !self.defined(i))
    }

    /// Element `at` as an integer (floats are truncated).
    pub fn int_at(&self, at: usize) -> i64 {
        match &self.cells {
            Cells::F(v) => v[at] as i64,
            Cells::I(v) => v[at],
        }
    }

    /// Element `at` as a float (integers are converted).
    pub fn float_at(&self, at: usize) -> f64 {
        match &self.cells {
            Cells::F(v) => v[at],
            Cells::I(v) => v[at] as f64,
        }
    }

    /// The same with elements of its own.
    pub fn into_owned(self) -> Buffer<'static> {
        let cells = match self.cells {
            Cells::F(v) => Cells::F(Cow::Owned(v.into_owned())),
            Cells::I(v) => Cells::I(Cow::Owned(v.into_owned())),
        };
        Buffer { cells, ty: self.ty, bits: self.bits, ever: self.ever, undefined: self.undefined, first: self.first }
    }

    /// The elements themselves.
    pub fn into_data(self) -> Data {
        match self.cells {
            Cells::F(v) => Data::F64(v.into_owned()),
            Cells::I(v) => Data::I64(v.into_owned()),
        }
    }
}

/// An empty list with room for `n`: the elements of programs may be more than there is memory for.
pub(crate) fn room<T>(n: usize) -> Result<Vec<T>, InterpError> {
    let mut v = Vec::new();
    v.try_reserve_exact(n).map_err(|_| InterpError::NoMemory { bytes: n.saturating_mul(size_of::<T>()) })?;
    Ok(v)
}

fn zeros<T: Clone + Default>(n: usize) -> Result<Vec<T>, InterpError> {
    let mut v = room(n)?;
    v.resize(n, T::default());
    Ok(v)
}

fn word_mask(from: usize, n: usize) -> u64 {
    (if n == 64 { u64::MAX } else { (1 << n) - 1 }) << from
}

/// An element type of the engine.
pub(crate) trait Elem: Copy + Default {
    fn cells<'b>(b: &'b Buffer<'_>) -> &'b [Self];
    fn cells_mut<'b>(b: &'b mut Buffer<'_>) -> &'b mut [Self];
    /// `x` as a tensor of type `ty` stores it.
    fn stored(ty: ScalarType, x: Self) -> Self;
}

impl Elem for f64 {
    fn cells<'b>(b: &'b Buffer<'_>) -> &'b [Self] {
        match &b.cells {
            Cells::F(v) => v,
            Cells::I(_) => &[],
        }
    }
    fn cells_mut<'b>(b: &'b mut Buffer<'_>) -> &'b mut [Self] {
        match &mut b.cells {
            Cells::F(v) => v.to_mut(),
            Cells::I(_) => &mut [],
        }
    }
    #[inline(always)]
    fn stored(ty: ScalarType, x: Self) -> Self {
        match ty {
            ScalarType::F32 => f64::from(x as f32),
            ScalarType::F64 => x,
            _ => round_float(ty, x),
        }
    }
}

impl Elem for i64 {
    fn cells<'b>(b: &'b Buffer<'_>) -> &'b [Self] {
        match &b.cells {
            Cells::I(v) => v,
            Cells::F(_) => &[],
        }
    }
    fn cells_mut<'b>(b: &'b mut Buffer<'_>) -> &'b mut [Self] {
        match &mut b.cells {
            Cells::I(v) => v.to_mut(),
            Cells::F(_) => &mut [],
        }
    }
    #[inline]
    fn stored(ty: ScalarType, x: Self) -> Self {
        crate::interp::ops::wrap(ty, x)
    }
}

/// A tensor in memory: where its elements are, and the elements.
#[derive(Clone, Debug)]
pub(crate) struct Held<'a> {
    pub levels: Arc<Levels>,
    pub buf: Buffer<'a>,
}

/// A tensor as one engine run sees it.
#[derive(Debug)]
pub(crate) enum Slot<'a> {
    /// Not in memory.
    Absent,
    /// Read only, shared between workers.
    Shared(&'a Held<'a>),
    /// Writable.
    Own(Box<Held<'a>>),
}

/// All tensors, by id.
#[derive(Debug, Default)]
pub(crate) struct Memory<'a> {
    pub slots: Vec<Slot<'a>>,
}

impl<'a> Memory<'a> {
    pub fn new(tensors: usize) -> Self {
        Self { slots: (0..tensors).map(|_| Slot::Absent).collect() }
    }

    pub fn get(&self, t: TensorId) -> Option<&Held<'a>> {
        match self.slots.get(t.index())? {
            Slot::Absent => None,
            Slot::Shared(h) => Some(h),
            Slot::Own(h) => Some(h),
        }
    }

    pub fn get_mut(&mut self, t: TensorId) -> Option<&mut Held<'a>> {
        match self.slots.get_mut(t.index())? {
            Slot::Own(h) => Some(h),
            _ => None,
        }
    }

    pub fn put(&mut self, t: TensorId, held: Held<'a>) {
        self.slots[t.index()] = Slot::Own(Box::new(held));
    }

    pub fn take(&mut self, t: TensorId) -> Option<Held<'a>> {
        match std::mem::replace(&mut self.slots[t.index()], Slot::Absent) {
            Slot::Own(h) => Some(*h),
            _ => None,
        }
    }
}
