//! What becomes of the values of a table's domain: stored, scanned, reduced or sorted.

use crate::domain::{Sink, Strip, WalkFault};
use crate::eval::{IxFault, TableData};

type Done = Result<(), WalkFault>;

/// Appends entries to a table, within a bound on memory.
pub(super) struct Writer<'a> {
    table: &'a mut TableData,
    limit: u64,
}

impl<'a> Writer<'a> {
    /// Empties `table`, which may then grow to `limit` bytes.
    pub(super) fn new(table: &'a mut TableData, limit: u64) -> Writer<'a> {
        table.clear();
        Writer { table, limit }
    }

    /// Bytes that later tables may use.
    pub(super) fn free(&self) -> u64 {
        self.limit.saturating_sub(self.table.bytes() as u64)
    }

    pub(super) fn push(&mut self, values: &[i64]) -> Done {
        let width = match self.table {
            TableData::I32(_) => 4,
            TableData::I64(_) => 8,
        };
        let need = self.table.bytes() as u64 + values.len() as u64 * width;
        if need > self.limit {
            return Err(WalkFault::Memory { need });
        }
        let alloc = |_| WalkFault::Alloc { bytes: need };
        match self.table {
            TableData::I64(out) => {
                out.try_reserve(values.len()).map_err(alloc)?;
                out.extend_from_slice(values);
            }
            TableData::I32(out) => {
                out.try_reserve(values.len()).map_err(alloc)?;
                // Shifted by half the range, an entry that fits has no bits above the lower 32.
                let shifted = |v: i64| v.wrapping_add(1 << 31) as u64;
                if values.iter().fold(0, |any, &v| any | shifted(v)) >> 32 != 0 {
                    let at = values.iter().position(|&v| shifted(v) >> 32 != 0).unwrap_or(0);
                    let entry = (out.len() + at) as u64;
                    return Err(WalkFault::Narrow { entry, value: values[at] });
                }
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

/// The greatest value.
#[derive(Default)]
pub(super) struct Max(pub(super) Option<i64>);

impl Sink for Max {
    fn strip(&mut self, strip: Strip<'_>) -> Done {
        self.0 = self.0.max(strip.value(0)?.iter().copied().max());
        Ok(())
    }
}

/// The sum.
#[derive(Default)]
pub(super) struct Sum(pub(super) i64);

impl Sink for Sum {
    fn strip(&mut self, strip: Strip<'_>) -> Done {
        for &v in strip.value(0)? {
            self.0 = self.0.checked_add(v).ok_or(IxFault::Overflow)?;
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
    /// No keys yet; their permutation may take `limit` bytes.
    pub(super) fn new(limit: u64) -> Keys {
        Keys { keys: Vec::new(), limit }
    }

    /// Positions by decreasing key, equal keys in increasing order. Keys of a small range, such as lengths, are
    /// counted; others sorted.
    pub(super) fn into_permutation(self) -> Result<Vec<i64>, WalkFault> {
        let keys = self.keys;
        let n = keys.len();
        let max = keys.iter().copied().max().unwrap_or(0);
        let min = keys.iter().copied().min().unwrap_or(0);
        let range = (i128::from(max) - i128::from(min)) as u128;
        let bytes = n as u64 * 8;
        let mut order: Vec<i64> = Vec::new();
        order.try_reserve_exact(n).map_err(|_| WalkFault::Alloc { bytes })?;
        if range <= 2 * n as u128 + 1024 && u32::try_from(n).is_ok() {
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
            assert_eq!(Keys { keys: keys.to_vec(), limit: 0 }.into_permutation(), Ok(want), "{keys:?}");
        }
    }
}
