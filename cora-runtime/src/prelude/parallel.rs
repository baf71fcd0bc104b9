//! Large tables, built by all workers of a pool.
//!
//! The outermost dim is cut into parts whose size depends on nothing but its extent. The entries of each part are
//! counted, the table gets its size, and every part is written in its place: nothing is copied, and the bytes are those
//! that one worker writes. A prefix sum over a single dim is one row, so its parts begin at zero until what comes
//! before them is known and added. A fault anywhere is left to the serial construction, which finds the first in order.

use super::builder::{Builder, Domain};
use super::sinks::{Keys, Map, Max, Scan, ScanPart, Slots, SortRows, Sum, Writer};
use crate::domain::{Budget, Count, DomainProgram, Scratch, WalkFault};
use crate::eval::{Env, TableData};
use crate::pool::Pool;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Indices of the outermost dim in a part, where it is the only one and where each has a row of points.
const POINTS: i64 = 8192;
const ROWS: i64 = 256;
/// At most so many parts: larger domains have larger parts.
const PARTS: i64 = 4096;

/// Memory for walks, one for each worker, kept from one batch to the next.
pub(super) type Scratches = Vec<Mutex<Scratch>>;

/// Who builds tables.
#[derive(Default)]
pub(super) struct Workers<'a> {
    pool: Option<&'a Pool>,
    scratches: Scratches,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'a> Workers<'a> {
    /// The workers of `pool`, or only the calling thread.
    pub(super) fn new(pool: Option<&'a Pool>, mut scratches: Scratches) -> Workers<'a> {
        let threads = pool.map_or(1, Pool::threads);
        if scratches.len() < threads {
            scratches.resize_with(threads, Mutex::default);
        }
        Workers { pool: pool.filter(|p| p.threads() > 1), scratches }
    }

    pub(super) fn into_scratches(self) -> Scratches {
        self.scratches
    }

    /// The calling thread's own.
    pub(super) fn own(&mut self) -> &mut Scratch {
        if self.scratches.is_empty() {
            self.scratches.push(Mutex::default());
        }
        self.scratches[0].get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// Builds a table that is no input. False where that is not worth while or something is wrong: then the table
    /// holds nothing in particular.
    pub(super) fn build(
        &self,
        builder: &Builder,
        env: Env<'_>,
        budget: &mut Budget,
        table: &mut TableData,
        limit: u64,
    ) -> bool {
        let Some(pool) = self.pool else { return false };
        let domain = match builder {
            Builder::Input(..) => return false,
            Builder::Map(d) | Builder::Scan(d) | Builder::Sort(d) => &d.points,
            Builder::Max(p) | Builder::Sum(p) => p,
        };
        let Some(Ok(extent)) = domain.outermost(env) else { return false };
        let step = if domain.dims() == 1 { POINTS } else { ROWS }.max(extent / PARTS + 1);
        if extent <= step || u64::try_from(extent).is_ok_and(|n| n > budget.0) {
            return false;
        }
        let cx = Parts { pool, scratches: &self.scratches, env, extent, step, steps: budget.0, spent: 0.into() };
        let built = match builder {
            Builder::Input(..) => None,
            Builder::Map(d) => cx.map(d, table, limit),
            Builder::Scan(d) if d.rows.is_none() => cx.one_row(&d.points, table, limit),
            Builder::Scan(d) => cx.rows(d, table, limit),
            Builder::Max(p) => cx.max(p, table, limit),
            Builder::Sum(p) => cx.sum(p, table, limit),
            Builder::Sort(d) if d.rows.is_none() => cx.sort(&d.points, table, limit),
            Builder::Sort(d) => cx.sort_rows(d, table, limit),
        };
        // Together the parts may have spent more than there was.
        match (built, budget.0.checked_sub(cx.spent.into_inner())) {
            (Some(()), Some(left)) => {
                budget.0 = left;
                true
            }
            _ => false,
        }
    }
}

/// A domain cut into parts.
struct Parts<'a> {
    pool: &'a Pool,
    scratches: &'a [Mutex<Scratch>],
    env: Env<'a>,
    extent: i64,
    step: i64,
    /// Points that each part may visit, and those that all did.
    steps: u64,
    spent: AtomicU64,
}

/// What a part is given: its number, its indices in the outermost dim, memory and a budget.
struct Part<'a> {
    number: usize,
    rows: Range<i64>,
    scratch: &'a mut Scratch,
    budget: Budget,
}

impl Parts<'_> {
    fn count(&self) -> i64 {
        (self.extent - 1) / self.step + 1
    }

    fn of(&self, number: i64) -> Range<i64> {
        let first = number * self.step;
        first..self.extent.min(first.saturating_add(self.step))
    }

    /// `f` of every part, in order; nothing if one has a fault.
    fn each<T: Send>(&self, f: impl Fn(&mut Part<'_>) -> Result<T, WalkFault> + Sync) -> Option<Vec<T>> {
        let count = self.count();
        let results: Vec<Mutex<Option<T>>> = (0..count).map(|_| Mutex::new(None)).collect();
        let failed = AtomicBool::new(false);
        self.pool.run(count, 1, &|worker, lo, hi| {
            for number in lo..hi {
                if failed.load(Relaxed) {
                    return;
                }
                let mut scratch = lock(&self.scratches[worker]);
                let (rows, budget) = (self.of(number), Budget(self.steps));
                let mut part = Part { number: number as usize, rows, scratch: &mut scratch, budget };
                let found = f(&mut part);
                self.spent.fetch_add(self.steps - part.budget.0, Relaxed);
                match found {
                    Ok(v) => *lock(&results[number as usize]) = Some(v),
                    Err(_) => failed.store(true, Relaxed),
                }
            }
        });
        results.into_iter().map(|r| r.into_inner().unwrap_or_else(PoisonError::into_inner)).collect()
    }

    /// Makes `table` as long as `sizes` together and gives each its piece.
    fn pieces<'t>(table: &'t mut TableData, sizes: &[u64], limit: u64) -> Option<Vec<Mutex<Slots<'t>>>> {
        let total = sizes.iter().try_fold(0u64, |n, &s| n.checked_add(s))?;
        let width = match table {
            TableData::I32(_) => 4,
            TableData::I64(_) => 8,
        };
        if total.checked_mul(width)? > limit {
            return None;
        }
        table.resize(usize::try_from(total).ok()?)?;
        let mut rest = Slots::of(table);
        Some(sizes.iter().map(|&n| Mutex::new(rest.take(n as usize))).collect())
    }

    /// One entry for each index of the outermost dim, in each part.
    fn lengths(&self) -> Vec<u64> {
        (0..self.count()).map(|n| self.of(n)).map(|r| (r.end - r.start) as u64).collect()
    }

    /// Points and rows of each part of a domain of several dims.
    fn counts(&self, d: &Domain) -> Option<Vec<(u64, u64)>> {
        let Some(rows) = &d.rows else { return Some(self.lengths().into_iter().map(|n| (n, 0)).collect()) };
        self.each(|part| {
            let mut count = Count { dims: d.points.dims(), total: 0, rows: 0 };
            // Counting is no part of what a table may cost.
            rows.walk_rows(self.env, part.scratch, &mut Budget(self.steps), &mut count, part.rows.clone())?;
            Ok((count.total, count.rows))
        })
    }

    /// Writes every part in its piece.
    fn fill(
        &self,
        pieces: &[Mutex<Slots<'_>>],
        walk: impl Fn(&mut Part<'_>, &mut Writer<'_>) -> Result<(), WalkFault> + Sync,
    ) -> Option<()> {
        let left = self.each(|part| {
            let mut piece = lock(&pieces[part.number]);
            let mut out = Writer::Slots(piece.again());
            walk(part, &mut out)?;
            Ok(out.left())
        })?;
        left.iter().all(|&n| n == 0).then_some(())
    }

    fn map(&self, d: &Domain, table: &mut TableData, limit: u64) -> Option<()> {
        let sizes: Vec<u64> = self.counts(d)?.into_iter().map(|(points, _)| points).collect();
        let pieces = Self::pieces(table, &sizes, limit)?;
        self.fill(&pieces, |part, out| {
            d.points.walk_rows(self.env, part.scratch, &mut part.budget, &mut Map(out), part.rows.clone())
        })
    }

    /// The order of each row.
    fn sort_rows(&self, d: &Domain, table: &mut TableData, limit: u64) -> Option<()> {
        let sizes: Vec<u64> = self.counts(d)?.into_iter().map(|(points, _)| points).collect();
        let pieces = Self::pieces(table, &sizes, limit)?;
        self.fill(&pieces, |part, out| {
            d.points.walk_rows(self.env, part.scratch, &mut part.budget, &mut SortRows::new(out), part.rows.clone())
        })
    }

    /// Prefix sums of rows: each has one more entry than points.
    fn rows(&self, d: &Domain, table: &mut TableData, limit: u64) -> Option<()> {
        let sizes: Vec<u64> = self.counts(d)?.into_iter().map(|(points, rows)| points + rows).collect();
        let pieces = Self::pieces(table, &sizes, limit)?;
        self.fill(&pieces, |part, out| {
            d.points.walk_rows(self.env, part.scratch, &mut part.budget, &mut Scan::new(out), part.rows.clone())
        })
    }

    /// Prefix sums of the only row.
    fn one_row(&self, p: &DomainProgram, table: &mut TableData, limit: u64) -> Option<()> {
        let mut sizes = self.lengths();
        sizes.push(1);
        let pieces = Self::pieces(table, &sizes, limit)?;
        let totals = self.each(|part| {
            let mut piece = lock(&pieces[part.number]);
            let mut out = Writer::Slots(piece.again());
            let mut scan = ScanPart(Scan::new(&mut out));
            p.walk_rows(self.env, part.scratch, &mut part.budget, &mut scan, part.rows.clone())?;
            let total = scan.total();
            Ok((total, out.left()))
        })?;
        let mut before = vec![0i64];
        for &(total, left) in &totals {
            let sum = before[before.len() - 1].checked_add(total).filter(|_| left == 0)?;
            before.push(sum);
        }
        self.each(|part| lock(&pieces[part.number]).shift(before[part.number]))?;
        // The last piece is the sum of all.
        let mut last = lock(pieces.last()?);
        Writer::Slots(last.again()).push(&before[before.len() - 1..]).ok()
    }

    fn max(&self, p: &DomainProgram, table: &mut TableData, limit: u64) -> Option<()> {
        let found = self.each(|part| {
            let mut max = Max::default();
            p.walk_rows(self.env, part.scratch, &mut part.budget, &mut max, part.rows.clone())?;
            Ok(max.0)
        })?;
        Writer::new(table, limit).push(&[found.into_iter().flatten().max().unwrap_or(0)]).ok()
    }

    fn sum(&self, p: &DomainProgram, table: &mut TableData, limit: u64) -> Option<()> {
        let found = self.each(|part| {
            let mut sum = Sum::default();
            p.walk_rows(self.env, part.scratch, &mut part.budget, &mut sum, part.rows.clone())?;
            Ok(sum.0)
        })?;
        Writer::new(table, limit).push(&[Sum(found.into_iter().sum()).entry().ok()?]).ok()
    }

    fn sort(&self, p: &DomainProgram, table: &mut TableData, limit: u64) -> Option<()> {
        let mut keys = TableData::I64(Vec::new());
        // A key takes twice the memory of its entry.
        let pieces = Self::pieces(&mut keys, &self.lengths(), limit.saturating_mul(2))?;
        self.fill(&pieces, |part, out| {
            p.walk_rows(self.env, part.scratch, &mut part.budget, &mut Map(out), part.rows.clone())
        })?;
        drop(pieces);
        let TableData::I64(keys) = keys else { return None };
        Writer::new(table, limit).push(&Keys::of(keys).permutation().ok()?).ok()
    }
}
