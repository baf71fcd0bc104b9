//! Walks a ragged domain in row-major order, a strip of points at a time.
//!
//! Dim `k` has a strip of its own. When it is full, the extents of dim `k + 1` are evaluated for all its points at
//! once, and each point appends its row to the strip of dim `k + 1`; so short rows share strips, and the cost is a few
//! instructions a point whatever the shape.

use crate::abi::Ix;
use crate::error::Error;
use crate::eval::{Env, IxFault, eval};
use crate::limits::Limits;
use crate::strip::{LANES, Program, Regs};
use std::ops::Range;

/// Why a walk stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WalkFault {
    Ix(IxFault),
    NegativeExtent {
        dim: usize,
        extent: i64,
    },
    Steps,
    /// A table entry does not fit its width.
    Narrow {
        entry: u64,
        value: i64,
    },
    /// More memory than is allowed.
    Memory {
        need: u64,
    },
    /// Memory that the system does not give.
    Alloc {
        bytes: u64,
    },
}

impl From<IxFault> for WalkFault {
    fn from(fault: IxFault) -> WalkFault {
        WalkFault::Ix(fault)
    }
}

impl WalkFault {
    /// The error of a fault at a named place, where `bytes` was the bound on memory.
    pub(crate) fn at(self, at: String, bytes: u64, limits: &Limits) -> Error {
        match self {
            WalkFault::Ix(fault) => Error::Index { at, fault },
            WalkFault::NegativeExtent { dim, extent } => Error::NegativeExtent { at, dim, extent },
            WalkFault::Steps => Error::Steps { at, limit: limits.steps },
            WalkFault::Memory { need } => Error::Memory { at, need, limit: bytes },
            WalkFault::Alloc { bytes } => Error::Alloc { at, bytes },
            WalkFault::Narrow { entry, value } => Error::Narrow { table: at, entry, value },
        }
    }
}

/// The points that may still be visited.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget(pub(crate) u64);

impl Budget {
    fn spend(&mut self, points: i64) -> Result<(), WalkFault> {
        self.0 = self.0.checked_sub(points as u64).ok_or(WalkFault::Steps)?;
        Ok(())
    }
}

/// A domain and the values wanted at each of its points, compiled.
pub(crate) struct DomainProgram {
    /// Extent of the outermost dim; `None` for a domain of no dims (one point).
    first: Option<Ix>,
    /// Level `k` computes the extent of dim `k + 1`, the last one the values.
    levels: Vec<Program>,
}

/// Registers for walks, kept from one to the next.
#[derive(Default)]
pub(crate) struct Scratch(Vec<Level>);

#[derive(Default)]
struct Level {
    regs: Regs,
    len: usize,
}

/// One strip of points of the innermost dim.
pub(crate) struct Strip<'a> {
    program: &'a Program,
    regs: &'a Regs,
    env: Env<'a>,
    /// Points of the strip.
    pub(crate) len: usize,
}

impl Strip<'_> {
    /// The wanted value `i` at each point.
    pub(crate) fn value(&self, i: usize) -> Result<&[i64], WalkFault> {
        Ok(self.program.root(i, self.regs, self.len, self.env)?)
    }
}

/// What receives the points of a walk.
pub(crate) trait Sink {
    /// Whether rows of the innermost dim are wanted apart; otherwise one strip may span several.
    const BY_ROW: bool = false;
    /// The points up to here belong to complete rows (only with [`Sink::BY_ROW`]).
    fn end_row(&mut self) -> Result<(), WalkFault> {
        Ok(())
    }
    /// The next points.
    fn strip(&mut self, strip: Strip<'_>) -> Result<(), WalkFault>;
}

impl DomainProgram {
    /// Compiles a validated domain (`domain[j]` uses `Arg(0..j)`) and values over all its dims.
    pub(crate) fn new(domain: &[&Ix], values: &[&Ix]) -> DomainProgram {
        let inner = (1..domain.len()).map(|j| Program::new(&domain[j..=j], j));
        let levels = inner.chain([Program::new(values, domain.len())]).collect();
        DomainProgram { first: domain.first().map(|&ix| ix.clone()), levels }
    }

    /// Number of dims.
    pub(crate) fn dims(&self) -> usize {
        if self.first.is_some() { self.levels.len() } else { 0 }
    }

    /// The extent of the outermost dim; `None` for a domain of no dims.
    pub(crate) fn outermost(&self, env: Env<'_>) -> Option<Result<i64, IxFault>> {
        self.first.as_ref().map(|extent| eval(extent, env, &[]))
    }

    /// Visits all points in row-major order.
    pub(crate) fn walk<S: Sink>(
        &self,
        env: Env<'_>,
        scratch: &mut Scratch,
        budget: &mut Budget,
        sink: &mut S,
    ) -> Result<(), WalkFault> {
        let rows = self.outermost(env).transpose()?.map_or(0..0, |extent| 0..extent);
        self.walk_rows(env, scratch, budget, sink, rows)
    }

    /// Visits the points whose index in the outermost dim is in `rows` (all points of a domain of no dims).
    pub(crate) fn walk_rows<S: Sink>(
        &self,
        env: Env<'_>,
        scratch: &mut Scratch,
        budget: &mut Budget,
        sink: &mut S,
        rows: Range<i64>,
    ) -> Result<(), WalkFault> {
        let n = self.levels.len();
        if scratch.0.len() < n {
            scratch.0.resize_with(n, Level::default);
        }
        let levels = &mut scratch.0[..n];
        for (level, program) in levels.iter_mut().zip(&self.levels) {
            program.prepare(&mut level.regs, env);
            level.len = 0;
        }
        let mut walk = Walk { env, budget, sink, dims: n };
        if self.first.is_none() {
            levels[0].len = 1;
            walk.flush(&self.levels, levels)?;
            return if S::BY_ROW { walk.sink.end_row() } else { Ok(()) };
        }
        walk.row(&self.levels, levels, &[], rows)?;
        (0..n).try_for_each(|k| walk.flush(&self.levels[k..], &mut levels[k..]))
    }
}

struct Walk<'a, S> {
    env: Env<'a>,
    budget: &'a mut Budget,
    sink: &'a mut S,
    dims: usize,
}

impl<S: Sink> Walk<'_, S> {
    /// Appends the points `outer × range` to the strip of `levels[0]`.
    fn row(
        &mut self,
        programs: &[Program],
        levels: &mut [Level],
        outer: &[i64],
        range: Range<i64>,
    ) -> Result<(), WalkFault> {
        let Range { start: mut next, end: extent } = range;
        if extent < 0 {
            return Err(WalkFault::NegativeExtent { dim: self.dims - levels.len(), extent });
        }
        self.budget.spend(extent - next)?;
        let by_row = S::BY_ROW && levels.len() == 1;
        while next < extent {
            let Level { regs, len } = &mut levels[0];
            let take = (LANES - *len).min(usize::try_from(extent - next).unwrap_or(LANES));
            for (arg, &v) in outer.iter().enumerate() {
                regs.arg_mut(arg)[*len..*len + take].fill(v);
            }
            let inner = &mut regs.arg_mut(outer.len())[*len..*len + take];
            inner.iter_mut().enumerate().for_each(|(i, lane)| *lane = next + i as i64);
            *len += take;
            next += take as i64;
            if *len == LANES {
                self.flush(programs, levels)?;
            }
        }
        if by_row {
            self.flush(programs, levels)?;
            self.sink.end_row()?;
        }
        Ok(())
    }

    /// Deals with the points that wait in the strip of `levels[0]`.
    fn flush(&mut self, programs: &[Program], levels: &mut [Level]) -> Result<(), WalkFault> {
        let (Some((program, inner)), Some((level, deeper))) = (programs.split_first(), levels.split_first_mut()) else {
            return Ok(());
        };
        let len = std::mem::take(&mut level.len);
        if len == 0 {
            return Ok(());
        }
        program.run(&mut level.regs, len, self.env);
        if inner.is_empty() {
            let (regs, env) = (&level.regs, self.env);
            return self.sink.strip(Strip { program, regs, env, len });
        }
        let dim = self.dims - deeper.len();
        let mut outer = [0; crate::abi::MAX_DIMS];
        let extents: [i64; LANES] = {
            let found = program.root(0, &level.regs, len, self.env)?;
            std::array::from_fn(|lane| found.get(lane).copied().unwrap_or(0))
        };
        for (lane, &extent) in extents[..len].iter().enumerate() {
            for (arg, slot) in outer[..dim].iter_mut().enumerate() {
                *slot = level.regs.arg(arg)[lane];
            }
            self.row(inner, deeper, &outer[..dim], 0..extent)?;
        }
        Ok(())
    }
}

/// The number of points of a domain, from the extents of its last dim.
pub(crate) struct Count {
    /// Dims of the domain.
    pub(crate) dims: usize,
    pub(crate) total: u64,
    /// Rows of the last dim.
    pub(crate) rows: u64,
}

impl Sink for Count {
    fn strip(&mut self, strip: Strip<'_>) -> Result<(), WalkFault> {
        let extents = strip.value(0)?;
        self.rows += extents.len() as u64;
        for &extent in extents {
            let dim = self.dims.saturating_sub(1);
            let add = u64::try_from(extent).map_err(|_| WalkFault::NegativeExtent { dim, extent })?;
            self.total = self.total.checked_add(add).ok_or(IxFault::Overflow)?;
        }
        Ok(())
    }
}

/// The point at position `flat` of the row-major order of a domain; `None` where there is none. For messages only:
/// it visits every row.
pub(crate) fn unflatten(domain: &[Ix], env: Env<'_>, mut flat: u64) -> Option<Vec<i64>> {
    fn go(domain: &[Ix], env: Env<'_>, at: &mut Vec<i64>, flat: &mut u64) -> Option<bool> {
        let Some(extent) = domain.get(at.len()) else {
            let found = *flat == 0;
            *flat = flat.saturating_sub(1);
            return Some(found);
        };
        let extent = eval(extent, env, at).ok()?;
        if at.len() + 1 == domain.len() {
            let extent = extent.max(0) as u64;
            if *flat < extent {
                at.push(*flat as i64);
                return Some(true);
            }
            *flat -= extent;
            return Some(false);
        }
        for i in 0..extent {
            at.push(i);
            if go(domain, env, at, flat)? {
                return Some(true);
            }
            at.pop();
        }
        Some(false)
    }
    let mut at = Vec::new();
    go(domain, env, &mut at, &mut flat)?.then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::TableData;

    #[derive(Default)]
    struct Collect(Vec<i64>, usize);
    impl Sink for Collect {
        fn strip(&mut self, strip: Strip<'_>) -> Result<(), WalkFault> {
            self.0.extend(strip.value(0)?);
            self.1 += 1;
            Ok(())
        }
    }

    #[test]
    fn order_is_row_major_at_any_depth() {
        let lens = TableData::I32(vec![3, 0, 0, 70, 1, 0]);
        let tables = [lens];
        let env = Env { params: &[6], tables: &tables };
        let domain = [Ix::Param(0), Ix::table(0, Ix::Arg(0)), Ix::Arg(1).modulo(3), Ix::Const(2)];
        let value = Ix::Arg(0) * 100_000 + Ix::Arg(1) * 100 + Ix::Arg(2) * 10 + Ix::Arg(3);
        let refs: Vec<&Ix> = domain.iter().collect();
        let mut got = Collect::default();
        let mut scratch = Scratch::default();
        DomainProgram::new(&refs, &[&value]).walk(env, &mut scratch, &mut Budget(1 << 20), &mut got).unwrap();
        let mut want = Vec::new();
        for a in 0..6 {
            for b in 0..tables[0].get(a).unwrap() {
                for c in 0..b % 3 {
                    for d in 0..2 {
                        want.push(a as i64 * 100_000 + b * 100 + c * 10 + d);
                    }
                }
            }
        }
        assert_eq!(got.0, want);
        assert_eq!(got.1, want.len().div_ceil(LANES), "short rows share strips");
        for (i, w) in want.iter().enumerate() {
            let at = unflatten(&domain, env, i as u64).unwrap();
            assert_eq!(eval(&value, env, &at), Ok(*w));
        }
        assert_eq!(unflatten(&domain, env, want.len() as u64), None);
    }

    #[test]
    fn a_domain_of_no_dims_has_one_point() {
        let env = Env { params: &[], tables: &[] };
        let mut got = Collect::default();
        DomainProgram::new(&[], &[&Ix::Const(7)]).walk(env, &mut Scratch::default(), &mut Budget(9), &mut got).unwrap();
        assert_eq!(got.0, [7]);
    }

    #[test]
    fn huge_and_negative_extents_are_refused_at_once() {
        let env = Env { params: &[], tables: &[] };
        let run = |domain: &[&Ix]| {
            DomainProgram::new(domain, &[&Ix::Arg(0)]).walk(
                env,
                &mut Scratch::default(),
                &mut Budget(1 << 20),
                &mut Collect::default(),
            )
        };
        let (huge, none, minus) = (Ix::Const(i64::MAX), Ix::Const(0), Ix::Const(-1));
        assert_eq!(run(&[&huge]), Err(WalkFault::Steps));
        assert_eq!(run(&[&huge, &none]), Err(WalkFault::Steps));
        assert_eq!(run(&[&none, &minus]), Ok(()));
        let negative = WalkFault::NegativeExtent { dim: 1, extent: -1 };
        assert_eq!(run(&[&Ix::Const(1), &minus]), Err(negative));
    }
}
