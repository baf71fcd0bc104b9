//! What becomes of the values of a table's domain: stored, scanned, reduced or sorted.

use crate::domain::{Sink, Strip, WalkFault};
use crate::eval::{IxFault, TableData};

type Done = Result<(), WalkFault>;

/// Entries of a table that have their places already.
pub(super) enum Slots<'a> {
    I32(&'a mut [i32]),
    I64(&'a mut [i64]),
}

impl<'a> Slots<'a> {
    /// Those of a whole table.
    pub(super) fn of(table: &'a mut TableData) -> Slots<'a> {
        match table {
            TableData::I32(v) => Slots::I32(v),
            TableData::I64(v) => Slots::I64(v),
        }
    }

    /// The same for a while.
    pub(super) fn again(&mut self) -> Slots<'_> {
        match self {
            Slots::I32(s) => Slots::I32(s),
            Slots::I64(s) => Slots::I64(s),
        }
    }

    fn len(&self) -> usize {
        match self {
            Slots::I32(s) => s.len(),
            Slots::I64(s) => s.len(),
        }
    }

    /// Takes the first `n`, or fewer where there are no more.
    pub(super) fn take(&mut self, n: usize) -> Slots<'a> {
        let n = n.min(self.len());
        match self {
            Slots::I32(s) => {
                let (first, rest) = std::mem::take(s).split_at_mut(n);
                *s = rest;
                Slots::I32(first)
            }
            Slots::I64(s) => {
                let (first, rest) = std::mem::take(s).split_at_mut(n);
                *s = rest;
                Slots::I64(first)
            }
        }
    }

    /// Fills the first with `values` and takes them away.
    fn write(&mut self, values: &[i64]) -> Done {
        match self.take(values.len()) {
            s if s.len() < values.len() => return Err(WalkFault::Memory { need: u64::MAX }),
            Slots::I64(s) => s.copy_from_slice(values),
            Slots::I32(s) => {
                narrow(values, 0)?;
                s.iter_mut().zip(values).for_each(|(s, &v)| *s = v as i32);
            }
        }
        Ok(())
    }

    /// Adds `by` to each.
    pub(super) fn shift(&mut self, by: i64) -> Done {
        match self {
            Slots::I64(s) => {
                for v in s.iter_mut() {
                    *v = v.checked_add(by).ok_or(IxFault::Overflow)?;
                }
            }
            Slots::I32(s) => {
                let by = i32::try_from(by).map_err(|_| WalkFault::Narrow { entry: 0, value: by })?;
                let mut beyond = false;
                for v in s.iter_mut() {
                    let (sum, over) = v.overflowing_add(by);
                    (*v, beyond) = (sum, beyond | over);
                }
                if beyond {
                    return Err(WalkFault::Narrow { entry: 0, value: i64::from(by) });
                }
            }
        }
        Ok(())
    }
}

/// Whether all values fit 32 bits; the fault counts entries from `first`.
fn narrow(values: &[i64], first: u64) -> Done {
    // Shifted by half the range, an entry that fits has no bits above the lower 32.
    let shifted = |v: i64| v.wrapping_add(1 << 31) as u64;
    if values.iter().fold(0, |any, &v| any | shifted(v)) >> 32 == 0 {
        return Ok(());
    }
    let at = values.iter().position(|&v| shifted(v) >> 32 != 0).unwrap_or(0);
    Err(WalkFault::Narrow { entry: first + at as u64, value: values[at] })
}

/// Receives the entries of a table in order.
pub(super) enum Writer<'a> {
    /// Appends, up to so many bytes.
    Table { table: &'a mut TableData, limit: u64 },
    /// Fills places.
    Slots(Slots<'a>),
}

impl<'a> Writer<'a> {
    /// Empties `table`, which may then grow to `limit` bytes.
    pub(super) fn new(table: &'a mut TableData, limit: u64) -> Writer<'a> {
        table.clear();
        Writer::Table { table, limit }
    }

    /// Bytes that may still be used.
    pub(super) fn free(&self) -> u64 {
        match self {
            Writer::Table { table, limit } => limit.saturating_sub(table.bytes() as u64),
            Writer::Slots(_) => 0,
        }
    }

    /// Places that are still to be filled.
    pub(super) fn left(&self) -> usize {
        match self {
            Writer::Table { .. } => 0,
            Writer::Slots(slots) => slots.len(),
        }
    }

    pub(super) fn push(&mut self, values: &[i64]) -> Done {
        let (table, limit) = match self {
            Writer::Slots(slots) => return slots.write(values),
            Writer::Table { table, limit } => (table, *limit),
        };
        let width = match table {
            TableData::I32(_) => 4,
            TableData::I64(_) => 8,
        };
        let need = table.bytes() as u64 + values.len() as u64 * width;
        if need > limit {
            return Err(WalkFault::Memory { need });
        }
        let alloc = |_| WalkFault::Alloc { bytes: need };
        match table {
            TableData::I64(out) => {
                out.try_reserve(values.len()).map_err(alloc)?;
                out.extend_from_slice(values);
            }
            TableData::I32(out) => {
                out.try_reserve(values.len()).map_err(alloc)?;
                narrow(values, out.len() as u64)?;
                out.extend(values.iter().map(|&v| v as i32));
            }
        }
        Ok(())
    }
}

/// Every value, in order.
pub(super) struct Map<'w, 't>(pub(super) &'w mut Writer<'t>);

impl Sink for Map<'_, '_> {
    fn strip(&mut self, strip: Strip<'_>) -> Done {
        self.0.push(strip.value(0)?)
    }
}

/// Exclusive prefix sums of each row, and the row's total.
pub(super) struct Scan<'w, 't> {
    out: &'w mut Writer<'t>,
    sum: i64,
}

impl<'w, 't> Scan<'w, 't> {
    pub(super) fn new(out: &'w mut Writer<'t>) -> Scan<'w, 't> {
        Scan { out, sum: 0 }
    }
}

impl Sink for Scan<'_, '_> {
    const BY_ROW: bool = true;

    fn strip(&mut self, strip: Strip<'_>) -> Done {
        let values = strip.value(0)?;
        let mut sums = [0; crate::strip::LANES];
        for (out, &v) in sums.iter_mut().zip(values) {
            *out = self.sum;
            self.sum = self.sum.checked_add(v).ok_or(IxFault::Overflow)?;
        }
        self.out.push(&sums[..values.len()])
    }

    fn end_row(&mut self) -> Done {
        let total = std::mem::take(&mut self.sum);
        self.out.push(&[total])
    }
}

/// Exclusive prefix sums of a part of one row, and what the part adds up to.
pub(super) struct ScanPart<'w, 't>(pub(super) Scan<'w, 't>);

impl ScanPart<'_, '_> {
    /// The sum of the part.
    pub(super) fn total(&self) -> i64 {
        self.0.sum
    }
}

impl Sink for ScanPart<'_, '_> {
    const BY_ROW: bool = true;

    fn strip(&mut self, strip: Strip<'_>) -> Done {
        self.0.strip(strip)
    }
}

/// The greatest value.
#[derive(Default)]
pub(super) struct Max(pub(super) Option<i64>);

impl Sink for Max {
    fn strip(&mut self, strip: Strip<'_>) -> Done {
        self.0 = self.0.max(strip.value(0)?.iter().copied().max());
        Ok(())
    }
}

/// The sum. It is wider than the values, so their order does not decide whether it overflows.
#[derive(Default)]
pub(super) struct Sum(pub(super) i128);

impl Sum {
    /// The sum as an entry of a table.
    pub(super) fn entry(&self) -> Result<i64, WalkFault> {
        Ok(i64::try_from(self.0).map_err(|_| IxFault::Overflow)?)
    }
}

impl Sink for Sum {
    fn strip(&mut self, strip: Strip<'_>) -> Done {
        for &v in strip.value(0)? {
            self.0 += i128::from(v);
        }
        Ok(())
    }
}

/// The keys of a sort.
pub(super) struct Keys {
    keys: Vec<i64>,
    limit: u64,
}

impl Sink for Keys {
    fn strip(&mut self, strip: Strip<'_>) -> Done {
        let keys = strip.value(0)?;
        let bytes = (self.keys.len() + keys.len()) as u64 * 8;
        if bytes / 2 > self.limit {
            return Err(WalkFault::Memory { need: bytes / 2 });
        }
        self.keys.try_reserve(keys.len()).map_err(|_| WalkFault::Alloc { bytes })?;
        self.keys.extend_from_slice(keys);
        Ok(())
    }
}

impl Keys {
    /// Keys that are all known.
    pub(super) fn of(keys: Vec<i64>) -> Keys {
        Keys { keys, limit: 0 }
    }

    /// No keys yet; their permutation may take `limit` bytes.
    pub(super) fn new(limit: u64) -> Keys {
        Keys { keys: Vec::new(), limit }
    }

    /// Positions by decreasing key, equal keys in increasing order. Keys of a small range, such as lengths, are
    /// counted; others sorted.
    pub(super) fn permutation(&self) -> Result<Vec<i64>, WalkFault> {
        let keys = &self.keys;
        let n = keys.len();
        let max = keys.iter().copied().max().unwrap_or(0);
        let min = keys.iter().copied().min().unwrap_or(0);
        let range = (i128::from(max) - i128::from(min)) as u128;
        let bytes = n as u64 * 8;
        let mut order: Vec<i64> = Vec::new();
        order.try_reserve_exact(n).map_err(|_| WalkFault::Alloc { bytes })?;
        if range <= (2 * n + 32 * n.min(32)) as u128 && u32::try_from(n).is_ok() {
            let mut starts = vec![0u32; range as usize + 2];
            keys.iter().for_each(|&k| starts[(max - k) as usize + 1] += 1);
            for i in 1..starts.len() {
                starts[i] += starts[i - 1];
            }
            order.resize(n, 0);
            for (i, &k) in keys.iter().enumerate() {
                let slot = &mut starts[(max - k) as usize];
                order[*slot as usize] = i as i64;
                *slot += 1;
            }
        } else {
            order.extend(0..n as i64);
            order.sort_unstable_by_key(|&i| (std::cmp::Reverse(keys[i as usize]), i));
        }
        Ok(order)
    }
}

/// The order of each row.
pub(super) struct SortRows<'w, 't> {
    out: &'w mut Writer<'t>,
    keys: Keys,
}

impl<'w, 't> SortRows<'w, 't> {
    pub(super) fn new(out: &'w mut Writer<'t>) -> SortRows<'w, 't> {
        // Places that are there already hold as much.
        let limit = out.free().max(out.left() as u64 * 8);
        SortRows { out, keys: Keys::new(limit) }
    }
}

impl Sink for SortRows<'_, '_> {
    const BY_ROW: bool = true;

    fn strip(&mut self, strip: Strip<'_>) -> Done {
        self.keys.strip(strip)
    }

    fn end_row(&mut self) -> Done {
        let order = self.keys.permutation()?;
        self.keys.keys.clear();
        self.out.push(&order)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permutation_is_stable_and_decreasing() {
        let cases: [&[i64]; 6] =
            [&[], &[5], &[1, 3, 3, 0, 1], &[i64::MIN, i64::MAX, 0, i64::MAX], &[1 << 40, -(1 << 40), 1 << 40], &[7; 9]];
        for keys in cases {
            let mut want: Vec<i64> = (0..keys.len() as i64).collect();
            want.sort_by_key(|&i| std::cmp::Reverse(keys[i as usize]));
            assert_eq!(Keys::of(keys.to_vec()).permutation(), Ok(want), "{keys:?}");
        }
    }
}
