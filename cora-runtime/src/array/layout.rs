//! Copies a tensor between its logical form and its storage.
//!
//! Where the offset is `base + j` in the innermost index `j`, whole rows are copied, and rows that follow each other in
//! storage in one piece; otherwise elements.

use super::{RaggedArray, Shape, view};
use crate::abi::{DType, Ix, TensorDesc};
use crate::domain::{Budget, Count, DomainProgram, Scratch, Sink, Strip, WalkFault};
use crate::error::{Error, Result};
use crate::eval::{Env, eval};
use crate::limits::Limits;

/// What packing does with storage that holds no element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Leaves it.
    Keep,
    /// Zero bytes.
    Zero,
    /// 0xFF bytes: NaN for every float type.
    Poison,
}

impl Fill {
    fn apply(self, storage: &mut [u8]) {
        match self {
            Fill::Keep => {}
            Fill::Zero => storage.fill(0),
            Fill::Poison => storage.fill(0xFF),
        }
    }
}

/// A tensor's layout, compiled.
pub struct TensorLayout {
    desc: TensorDesc,
    /// Extents of the innermost dim over the outer ones.
    count: DomainProgram,
    copy: Copying,
    /// The ends of the declared range over all dims, where elements have ranges of their own.
    ranges: Option<DomainProgram>,
    /// Dims whose storage extent is not simply the extent, with (extent, storage) over the dims outside.
    padded: Vec<(usize, DomainProgram)>,
}

enum Copying {
    /// (extent of the row, offset of its first element) over the outer dims.
    Rows(DomainProgram),
    /// Offsets over all dims.
    Elements(DomainProgram),
}

impl std::fmt::Debug for TensorLayout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TensorLayout").field("tensor", &self.desc).finish_non_exhaustive()
    }
}

impl TensorLayout {
    /// Compiles the layout of a tensor of a validated program.
    pub fn new(desc: &TensorDesc) -> TensorLayout {
        let extents: Vec<&Ix> = desc.dims.iter().map(|d| &d.extent).collect();
        let one = Ix::Const(1);
        let copy = match extents.split_last() {
            Some((last, outer)) if slope(&desc.offset, outer.len() as u32) == Some(1) => {
                let first = at_zero(&desc.offset, outer.len() as u32);
                Copying::Rows(DomainProgram::new(outer, &[last, &first]))
            }
            _ => Copying::Elements(DomainProgram::new(&extents, &[&desc.offset])),
        };
        let count = match extents.split_last() {
            Some((last, outer)) => DomainProgram::new(outer, &[last]),
            None => DomainProgram::new(&[], &[&one]),
        };
        let by_position = desc.value_range.as_ref().filter(|(lo, hi)| uses_arg(lo) || uses_arg(hi));
        let ranges = by_position.map(|(lo, hi)| DomainProgram::new(&extents, &[lo, hi]));
        let dims = desc.dims.iter().enumerate().filter(|(_, d)| d.extent != d.storage);
        let padded = dims.map(|(j, d)| (j, DomainProgram::new(&extents[..j], &[&d.extent, &d.storage]))).collect();
        TensorLayout { desc: desc.clone(), count, copy, ranges, padded }
    }

    /// The tensor.
    pub fn desc(&self) -> &TensorDesc {
        &self.desc
    }

    /// Number of elements for a batch.
    ///
    /// # Errors
    /// Index arithmetic without a value, a negative extent, a limit exceeded.
    pub fn elements(&self, env: Env<'_>, limits: &Limits) -> Result<u64> {
        let mut total = Count { dims: self.desc.dims.len(), total: 0, rows: 0 };
        self.walk(&self.count, env, limits, &mut total)?;
        Ok(total.total)
    }

    /// Form for a batch.
    ///
    /// # Errors
    /// As [`TensorLayout::elements`].
    pub fn shape(&self, env: Env<'_>, limits: &Limits) -> Result<Shape> {
        let elements = self.elements(env, limits)?;
        let rank = self.desc.dims.len();
        if self.is_ragged() {
            return Ok(Shape::Ragged { rank, elements });
        }
        Ok(Shape::Dense((0..rank).map(|dim| self.outer_extent(env, dim)).collect::<Result<_>>()?))
    }

    /// Checks that logical data has the right number of elements, values in the declared range, and booleans that
    /// are 0 or 1.
    ///
    /// # Errors
    /// [`Error::Elements`], [`Error::Value`], [`Error::Bool`], and those of [`TensorLayout::elements`].
    pub fn check(&self, env: Env<'_>, logical: &[u8], limits: &Limits) -> Result<()> {
        self.check_len(env, logical.len(), limits)?;
        self.check_values(self.value_ranges(env, limits)?.as_ref(), logical, 0)
    }

    /// [`TensorLayout::check`] of an array, and that it has the tensor's element type and form.
    ///
    /// # Errors
    /// [`Error::DType`], [`Error::Shape`], and those of [`TensorLayout::check`].
    pub fn check_array(&self, env: Env<'_>, array: &RaggedArray, limits: &Limits) -> Result<()> {
        if self.desc.dtype != array.dtype() {
            let what = format!("the array for tensor `{}`", self.desc.name);
            return Err(Error::DType { what, want: self.desc.dtype, got: array.dtype().to_string() });
        }
        self.check(env, array.bytes(), limits)?;
        if self.fits(env, array.shape())? {
            return Ok(());
        }
        let (tensor, want) = (self.desc.name.clone(), self.shape(env, limits)?);
        Err(Error::Shape { tensor, want, got: array.shape().clone() })
    }

    /// Whether an array of as many elements may be the tensor: it has one dimension, or as many as the tensor; if they have
    /// extents, the tensor's.
    fn fits(&self, env: Env<'_>, got: &Shape) -> Result<bool> {
        let rank = self.desc.dims.len();
        let dims = match got {
            Shape::Ragged { rank: got, .. } => return Ok(*got == rank),
            Shape::Dense(dims) if dims.len() == 1 => return Ok(true),
            Shape::Dense(dims) => dims,
        };
        if dims.len() != rank || self.is_ragged() {
            return Ok(false);
        }
        for (dim, &got) in dims.iter().enumerate() {
            if self.outer_extent(env, dim)? != got {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn is_ragged(&self) -> bool {
        self.desc.dims.iter().any(|d| uses_arg(&d.extent))
    }

    /// The extent of a dim that depends on no other.
    fn outer_extent(&self, env: Env<'_>, dim: usize) -> Result<u64> {
        let extent =
            eval(&self.desc.dims[dim].extent, env, &[]).map_err(|fault| Error::Index { at: self.place(), fault })?;
        u64::try_from(extent).map_err(|_| Error::NegativeExtent { at: self.place(), dim, extent })
    }

    /// The declared ranges of the values, if there are any.
    ///
    /// # Errors
    /// Index arithmetic without a value, a limit exceeded.
    pub fn value_ranges(&self, env: Env<'_>, limits: &Limits) -> Result<Option<ValueRanges>> {
        let Some((lo, hi)) = &self.desc.value_range else { return Ok(None) };
        let Some(program) = &self.ranges else {
            let bound = |ix| eval(ix, env, &[]).map_err(|fault| Error::Index { at: self.place(), fault });
            return Ok(Some(ValueRanges(vec![(u64::MAX, bound(lo)?, bound(hi)?)])));
        };
        let mut ranges = ValueRanges(Vec::new());
        self.walk(program, env, limits, &mut ranges)?;
        Ok(Some(ranges))
    }

    /// The elements from number `first` on are values of the type, in their ranges.
    fn check_values(&self, ranges: Option<&ValueRanges>, logical: &[u8], first: u64) -> Result<()> {
        if self.desc.dtype == DType::Bool
            && let Some(at) = logical.iter().position(|&b| b > 1)
        {
            let what = format!("tensor `{}`", self.desc.name);
            return Err(Error::Bool { what, element: first + at as u64, value: logical[at] });
        }
        let Some(ranges) = ranges else { return Ok(()) };
        let mut values = (first..).zip(integers(self.desc.dtype, logical));
        let mut from = first;
        for &(end, lo, hi) in ranges.since(first) {
            let n = usize::try_from(end - from).unwrap_or(usize::MAX);
            if let Some((element, value)) = values.by_ref().take(n).find(|(_, v)| !(lo..hi).contains(v)) {
                return Err(Error::Value { tensor: self.desc.name.clone(), element, value, lo, hi });
            }
            from = end;
        }
        Ok(())
    }

    /// Copies logical data into storage.
    ///
    /// # Errors
    /// A wrong number of elements, an offset outside `storage`, a storage extent below the extent, and those of
    /// [`TensorLayout::elements`].
    pub fn pack(&self, env: Env<'_>, logical: &[u8], storage: &mut [u8], fill: Fill, limits: &Limits) -> Result<()> {
        self.check_len(env, logical.len(), limits)?;
        if storage.len() != logical.len() {
            fill.apply(storage);
        }
        let elems = storage.len() / self.desc.dtype.size();
        self.copy(env, elems, limits, &mut |from, to, n| copy_run(storage, to, logical, from, n))
    }

    /// Has `write` make the elements in storage, a stretch of neighbours after the other in row-major order.
    ///
    /// # Errors
    /// Those of [`TensorLayout::pack`], and of [`TensorLayout::check`] for what was written.
    pub fn generate(
        &self,
        env: Env<'_>,
        storage: &mut [u8],
        fill: Fill,
        limits: &Limits,
        write: &mut dyn FnMut(&mut [u8]),
    ) -> Result<()> {
        let ranges = self.value_ranges(env, limits)?;
        let size = self.desc.dtype.size();
        let elems = storage.len() / size;
        fill.apply(storage);
        let mut wrong = Ok(());
        self.copy(env, elems, limits, &mut |from, to, n| {
            let Some(run) = storage.get_mut(to..to + n) else { return false };
            if wrong.is_ok() {
                write(run);
                wrong = self.check_values(ranges.as_ref(), run, (from / size) as u64);
            }
            true
        })?;
        wrong
    }

    /// Copies storage into logical data.
    ///
    /// # Errors
    /// As [`TensorLayout::pack`].
    pub fn unpack(&self, env: Env<'_>, storage: &[u8], logical: &mut [u8], limits: &Limits) -> Result<()> {
        self.check_len(env, logical.len(), limits)?;
        let elems = storage.len() / self.desc.dtype.size();
        self.copy(env, elems, limits, &mut |to, from, n| copy_run(logical, to, storage, from, n))
    }

    /// Checks that a buffer of so many elements holds all of the tensor, as [`TensorLayout::pack`] and
    /// [`TensorLayout::unpack`] do; before a run this tells what a kernel would write outside an output's buffer.
    ///
    /// # Errors
    /// An offset outside the buffer, a storage extent below the extent, and those of [`TensorLayout::elements`].
    pub fn check_storage(&self, env: Env<'_>, elems: usize, limits: &Limits) -> Result<()> {
        self.copy(env, elems, limits, &mut |_, _, _| true)
    }

    /// Calls `copy(logical byte, storage byte, bytes)` for runs that together are the whole tensor; one that it cannot
    /// copy is [`Error::Offset`].
    fn copy(
        &self,
        env: Env<'_>,
        elems: usize,
        limits: &Limits,
        copy: &mut dyn FnMut(usize, usize, usize) -> bool,
    ) -> Result<()> {
        for (dim, program) in &self.padded {
            let mut check = CheckStorage(None);
            let walked = self.walk(program, env, limits, &mut check);
            if let Some((extent, storage)) = check.0 {
                let tensor = self.desc.name.clone();
                return Err(Error::Storage { tensor, dim: *dim, extent, storage });
            }
            walked?;
        }
        let (program, rows) = match &self.copy {
            Copying::Rows(p) => (p, true),
            Copying::Elements(p) => (p, false),
        };
        let size = self.desc.dtype.size();
        let mut sink = Runs { rows, size, elems, logical: 0, run: (0, 0, 0), bad: None, copy };
        let walked = self.walk(program, env, limits, &mut sink);
        let flushed = sink.flush();
        if let Some(offset) = sink.bad {
            let tensor = self.desc.name.clone();
            return Err(Error::Offset { tensor, offset, elems: elems as u64 });
        }
        walked.and(flushed.map_err(|fault| fault.at(self.place(), limits.buffer_bytes, limits)))
    }

    fn check_len(&self, env: Env<'_>, bytes: usize, limits: &Limits) -> Result<()> {
        let size = self.desc.dtype.size();
        let (want, got) = (self.elements(env, limits)?, (bytes / size) as u64);
        let whole = bytes.is_multiple_of(size);
        if want != got || !whole {
            let name = &self.desc.name;
            let bytes_of = if whole { String::new() } else { format!(" ({bytes} bytes, {size} an element)") };
            return Err(Error::Elements { what: format!("tensor `{name}`{bytes_of}"), want, got });
        }
        Ok(())
    }

    fn walk(&self, program: &DomainProgram, env: Env<'_>, limits: &Limits, sink: &mut impl Sink) -> Result<()> {
        let mut budget = Budget(limits.steps);
        program
            .walk(env, &mut Scratch::default(), &mut budget, sink)
            .map_err(|fault| fault.at(self.place(), limits.buffer_bytes, limits))
    }

    fn place(&self) -> String {
        format!("tensor `{}`", self.desc.name)
    }
}

/// The ranges that values have to be in: for each stretch of elements the number of the one after it, in row-major order,
/// the least value and the one after the greatest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueRanges(Vec<(u64, i64, i64)>);

impl ValueRanges {
    /// Of the elements' ranges, in row-major order.
    pub fn of_each(ranges: impl IntoIterator<Item = (i64, i64)>) -> Self {
        let mut all = Self(Vec::new());
        ranges.into_iter().for_each(|(lo, hi)| all.push(lo, hi));
        all
    }

    /// Adds the range of the next element.
    fn push(&mut self, lo: i64, hi: i64) {
        match self.0.last_mut() {
            Some((end, l, h)) if (*l, *h) == (lo, hi) => *end += 1,
            last => {
                let end = last.map_or(0, |r| r.0) + 1;
                self.0.push((end, lo, hi));
            }
        }
    }

    /// The range of a tensor's element, by its number in row-major order; nothing if there is no such element.
    pub fn of(&self, element: u64) -> Option<(i64, i64)> {
        self.since(element).first().map(|&(_, lo, hi)| (lo, hi))
    }

    /// The stretches from that of an element on.
    fn since(&self, element: u64) -> &[(u64, i64, i64)] {
        &self.0[self.0.partition_point(|r| r.0 <= element)..]
    }
}

impl Sink for ValueRanges {
    fn strip(&mut self, strip: Strip<'_>) -> std::result::Result<(), WalkFault> {
        strip.value(0)?.iter().zip(strip.value(1)?).for_each(|(&lo, &hi)| self.push(lo, hi));
        Ok(())
    }
}

/// Copies `n` bytes; whether both sides have them.
fn copy_run(to: &mut [u8], at: usize, from: &[u8], start: usize, n: usize) -> bool {
    let part = |start: usize| Some(start..start.checked_add(n)?);
    let parts = part(at).and_then(|at| to.get_mut(at)).zip(part(start).and_then(|start| from.get(start)));
    parts.map(|(to, from)| to.copy_from_slice(from)).is_some()
}

/// Joins rows or elements that are neighbours in storage into runs.
struct Runs<'a> {
    rows: bool,
    size: usize,
    elems: usize,
    /// Logical elements so far.
    logical: usize,
    /// The run that is being joined: first logical element, first storage element, elements.
    run: (usize, usize, usize),
    bad: Option<i64>,
    copy: &'a mut dyn FnMut(usize, usize, usize) -> bool,
}

impl Runs<'_> {
    fn push(&mut self, extent: i64, offset: i64) -> std::result::Result<(), WalkFault> {
        if extent == 0 {
            return Ok(());
        }
        let at = usize::try_from(offset).ok();
        let count = usize::try_from(extent).ok();
        let fits = |&(at, n): &(usize, usize)| at.checked_add(n).is_some_and(|end| end <= self.elems);
        let Some((at, n)) = at.zip(count).filter(fits) else {
            self.bad = Some(offset);
            return Err(WalkFault::Memory { need: 0 });
        };
        let (_, start, len) = self.run;
        if len > 0 && start + len == at {
            self.run.2 += n;
        } else {
            self.flush()?;
            self.run = (self.logical, at, n);
        }
        self.logical += n;
        Ok(())
    }

    fn flush(&mut self) -> std::result::Result<(), WalkFault> {
        let (logical, storage, n) = std::mem::take(&mut self.run);
        if n > 0 && !(self.copy)(logical * self.size, storage * self.size, n * self.size) {
            // `copy` has checked offsets and `check_len` the logical length, so this is a mistake of ours.
            self.bad = Some(storage as i64);
            return Err(WalkFault::Memory { need: 0 });
        }
        Ok(())
    }
}

impl Sink for Runs<'_> {
    fn strip(&mut self, strip: Strip<'_>) -> std::result::Result<(), WalkFault> {
        if self.rows {
            let (extents, offsets) = (strip.value(0)?, strip.value(1)?);
            extents.iter().zip(offsets).try_for_each(|(&n, &at)| self.push(n, at))
        } else {
            strip.value(0)?.iter().try_for_each(|&at| self.push(1, at))
        }
    }
}

/// The first point whose storage extent is too small.
struct CheckStorage(Option<(i64, i64)>);

impl Sink for CheckStorage {
    fn strip(&mut self, strip: Strip<'_>) -> std::result::Result<(), WalkFault> {
        let (extents, storage) = (strip.value(0)?, strip.value(1)?);
        self.0 = extents.iter().copied().zip(storage.iter().copied()).find(|(e, s)| s < e);
        if self.0.is_some() { Err(WalkFault::Memory { need: 0 }) } else { Ok(()) }
    }
}

fn integers(dtype: DType, bytes: &[u8]) -> Box<dyn Iterator<Item = i64> + '_> {
    match dtype {
        DType::I8 => Box::new(bytes.iter().map(|&b| i64::from(b as i8))),
        DType::I16 => Box::new(bytes.chunks_exact(2).map(|c| i64::from(i16::from_ne_bytes([c[0], c[1]])))),
        DType::I32 => Box::new(bytes.chunks_exact(4).map(|c| i64::from(i32::from_ne_bytes([c[0], c[1], c[2], c[3]])))),
        DType::I64 => match view::<i64>(bytes) {
            Some(values) => Box::new(values.iter().copied()),
            None => Box::new(bytes.chunks_exact(8).map(|c| i64::from_ne_bytes(std::array::from_fn(|i| c[i])))),
        },
        _ => Box::new(std::iter::empty()),
    }
}

fn uses_arg(ix: &Ix) -> bool {
    matches!(ix, Ix::Arg(_)) || ix.operands().any(uses_arg)
}

/// The constant `c` such that `ix` is `c * Arg(arg)` plus something that does not depend on it, where that is evident.
fn slope(ix: &Ix, arg: u32) -> Option<i64> {
    match ix {
        Ix::Arg(a) => Some(i64::from(*a == arg)),
        Ix::Add(a, b) => slope(a, arg)?.checked_add(slope(b, arg)?),
        Ix::Sub(a, b) => slope(a, arg)?.checked_sub(slope(b, arg)?),
        Ix::Mul(a, b) => match (&**a, &**b, slope(a, arg)?, slope(b, arg)?) {
            (_, _, 0, 0) => Some(0),
            (Ix::Const(k), _, _, s) | (_, Ix::Const(k), s, _) => k.checked_mul(s),
            _ => None,
        },
        other => other.operands().all(|x| slope(x, arg) == Some(0)).then_some(0),
    }
}

/// `ix` where `Arg(arg)` is 0.
fn at_zero(ix: &Ix, arg: u32) -> Ix {
    let ops = ix.to_postfix().unwrap_or_default();
    let zero = |op| if op == crate::abi::IxOp::Arg(arg) { crate::abi::IxOp::Const(0) } else { op };
    let ops: Vec<_> = ops.into_iter().map(zero).collect();
    Ix::from_postfix(&ops).unwrap_or(Ix::Const(0))
}

#[cfg(test)]
mod tests;
