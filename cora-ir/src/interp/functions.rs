//! Uninterpreted functions by their definitions: every value tabulated once, searches by bisection.

use crate::env::{Env, UfDef};
use crate::expr::Expr;
use crate::ids::{EntityId, ExprId, UfId};
use crate::interp::Batch;
use crate::interp::error::{InterpError, Stage, Use};
use crate::interp::eval::{Scalars, greatest_not_above};
use crate::interp::levels::{LevelExtent, Levels};
use rustc_hash::FxHashSet;

/// The values of one function.
#[derive(Clone, Debug)]
enum Table {
    /// One entry a position; some may be undefined.
    Values { levels: Levels, values: Vec<i64>, undefined: FxHashSet<usize> },
    /// The inverse of a prefix sum.
    Search(UfId),
}

/// The tables built so far, by function.
#[derive(Clone, Debug, Default)]
pub(crate) struct Functions {
    tables: Vec<Option<Table>>,
}

/// How many leading arguments an expression depends on.
pub(crate) fn leading_args(env: &Env, e: ExprId) -> usize {
    let mut n = 0;
    env.pool.walk(e, &mut |_, node| {
        if let Expr::Arg(a) = node {
            n = n.max(*a as usize + 1);
        }
    });
    n
}

impl Functions {
    pub fn new(functions: usize) -> Self {
        Self { tables: (0..functions).map(|_| None).collect() }
    }

    fn table(&self, f: UfId) -> Option<&Table> {
        self.tables.get(f.index())?.as_ref()
    }

    pub fn is_ready(&self, f: UfId) -> bool {
        self.table(f).is_some()
    }

    /// The value at `args`; nothing outside the domain, or where the definition has no value.
    pub fn get(&self, f: UfId, args: &[i64]) -> Option<i64> {
        match self.table(f)? {
            Table::Values { levels, values, undefined } => {
                let at = levels.position(args)? as usize;
                if !undefined.is_empty() && undefined.contains(&at) {
                    return None;
                }
                Some(values[at])
            }
            Table::Search(sum) => {
                let Table::Values { levels, values, undefined } = self.table(*sum)? else { return None };
                let (&r, outer) = args.split_last()?;
                let d = levels.levels.len().checked_sub(1).filter(|&d| d == outer.len())?;
                let mut p = 0;
                for (d, &i) in outer.iter().enumerate() {
                    p = levels.child(d, p, i)?;
                }
                let (start, n) = levels.row(d, p);
                let row = values.get(start as usize..(start + n) as usize)?;
                if !undefined.is_empty() || r < 0 || r >= *row.last()? {
                    return None;
                }
                greatest_not_above(row.len() - 1, r, |i| row[i])
            }
        }
    }

    /// Bytes that the tables take.
    pub fn bytes(&self, f: UfId) -> usize {
        match self.table(f) {
            Some(Table::Values { levels, values, .. }) => levels.bytes() + values.len() * 8,
            _ => 0,
        }
    }

    /// Builds the table of `f`. The functions that its definition calls are ready.
    ///
    /// # Errors
    /// [`InterpError::MissingExtent`], [`InterpError::Count`] and [`InterpError::Range`] for a table that the batch
    /// gives; [`InterpError::Undefined`] for a definition without a value; [`InterpError::TooLarge`] and
    /// [`InterpError::NoMemory`].
    pub fn build(
        &mut self,
        f: UfId,
        env: &Env,
        params: &[i64],
        batch: &Batch,
        stage: Stage,
        limit: i64,
    ) -> Result<(), InterpError> {
        let built = {
            let scalars = Scalars { env, params, functions: self, memory: None, stage };
            Builder { scalars, f, limit }.table(batch)?
        };
        self.tables[f.index()] = Some(built);
        Ok(())
    }
}

struct Builder<'c> {
    scalars: Scalars<'c>,
    f: UfId,
    limit: i64,
}

impl Builder<'_> {
    fn name(&self) -> String {
        self.scalars.env.ufs[self.f].name.clone()
    }

    fn extent(&self, e: ExprId, args: &[i64]) -> Result<i64, InterpError> {
        self.scalars.int(e, args, &[])?.ok_or_else(|| InterpError::Undefined {
            stage: self.scalars.stage,
            usage: Use::Extent,
            name: self.name(),
            index: args.to_vec(),
            origin: None,
        })
    }

    fn domain(&self, more_on_last: i64) -> Result<Levels, InterpError> {
        let uf = &self.scalars.env.ufs[self.f];
        let domain = &uf.domain;
        let padded = matches!(uf.def, UfDef::PrefixSum { .. } | UfDef::SortDesc { .. });
        let mut levels = Levels::scalar();
        for (d, &e) in domain.iter().enumerate() {
            let more = if d + 1 == domain.len() { more_on_last } else { 0 };
            let depends = leading_args(self.scalars.env, e);
            let mut at = |args: &[i64]| {
                // A row of padding has no extent: it is empty, as in compiled code.
                let extent = if padded { self.scalars.int(e, args, &[])?.unwrap_or(0) } else { self.extent(e, args)? };
                Ok(extent.max(0).saturating_add(more))
            };
            levels.push(LevelExtent { at: &mut at, depends }, self.limit)?.ok_or_else(|| InterpError::TooLarge {
                what: self.name(),
                limit: usize::try_from(self.limit).unwrap_or(usize::MAX).saturating_mul(8),
            })?;
        }
        Ok(levels)
    }

    fn table(&self, batch: &Batch) -> Result<Table, InterpError> {
        let uf = &self.scalars.env.ufs[self.f];
        let body = match uf.def {
            UfDef::Search { sum } => return Ok(Table::Search(sum)),
            UfDef::Extent { lo, hi } => return self.given(batch, lo, hi),
            UfDef::Map { body } | UfDef::PrefixSum { body } | UfDef::Max { body } => body,
            UfDef::SortDesc { key } => key,
        };
        let levels = self.domain(extra_entries(&uf.def))?;
        let entries = tabulate(&uf.def, &levels, &mut |args| self.scalars.int(body, args, &[]))?;
        let undefined = (0..entries.len()).filter(|&i| entries[i].is_none()).collect();
        let values = entries.into_iter().map(|v| v.unwrap_or(0)).collect();
        let levels = if matches!(uf.def, UfDef::Max { .. }) { Levels::scalar() } else { levels };
        Ok(Table::Values { levels, values, undefined })
    }

    fn given(&self, batch: &Batch, lo: ExprId, hi: ExprId) -> Result<Table, InterpError> {
        let values =
            batch.extents.get(&self.f).ok_or_else(|| InterpError::MissingExtent { function: self.name() })?.clone();
        let levels = self.domain(0)?;
        if values.len() as i64 != levels.total {
            let expected = usize::try_from(levels.total).unwrap_or(usize::MAX);
            return Err(InterpError::Count { name: self.name(), expected, found: values.len() });
        }
        let (lo, hi) = (self.extent(lo, &[])?, self.extent(hi, &[])?);
        if let Some(at) = values.iter().position(|v| !(lo..=hi).contains(v)) {
            let index = levels.index_of(at as i64);
            return Err(InterpError::Range { name: self.name(), index, value: values[at], lo, hi });
        }
        Ok(Table::Values { levels, values, undefined: FxHashSet::default() })
    }
}

/// A function's defining expression at a point.
pub(crate) type Definition<'f> = dyn FnMut(&[i64]) -> Result<Option<i64>, InterpError> + 'f;

/// How many entries a row has beyond the extent of the last argument.
pub(crate) fn extra_entries(def: &UfDef) -> i64 {
    i64::from(matches!(def, UfDef::PrefixSum { .. }))
}

/// The values of a function with the given domain (a prefix sum's with the extra entry in each row);
/// `body` gives its defining expression at a point. Nothing where the definition has no value.
pub(crate) fn tabulate(
    def: &UfDef,
    levels: &Levels,
    body: &mut Definition<'_>,
) -> Result<Vec<Option<i64>>, InterpError> {
    let rank = levels.levels.len();
    let mut values = Vec::new();
    if !matches!(def, UfDef::PrefixSum { .. }) {
        levels.visit(rank, &mut |index, _| {
            values.push(body(index)?);
            Ok(())
        })?;
        return Ok(match def {
            UfDef::Max { .. } => vec![values.into_iter().try_fold(0, |a: i64, b| b.map(|b| a.max(b)))],
            UfDef::SortDesc { .. } => sorted_rows(levels, &values)?,
            _ => values,
        });
    }
    let Some(last) = rank.checked_sub(1) else { return Ok(vec![Some(0)]) };
    // Each row has extent + 1 entries; no term belongs to its last one.
    levels.visit_rows(last, &mut |outer, n| {
        let mut index = outer.to_vec();
        index.push(0);
        let mut sum = Some(0i64);
        for x in 0..n {
            values.push(sum);
            if x + 1 < n {
                index[last] = x;
                // A row of padding has no extent: it is empty, as in compiled code.
                let term = body(&index)?.unwrap_or(0);
                sum = sum.and_then(|s| s.checked_add(term));
            }
        }
        Ok(())
    })?;
    Ok(values)
}

/// The permutation of each row. Iterations of padding may have no key: they come last.
fn sorted_rows(levels: &Levels, keys: &[Option<i64>]) -> Result<Vec<Option<i64>>, InterpError> {
    let mut order = Vec::new();
    let Some(last) = levels.levels.len().checked_sub(1) else { return Ok(order) };
    levels.visit_rows(last, &mut |_, n| {
        let row = &keys[order.len()..order.len() + n as usize];
        let keys: Vec<i64> = row.iter().map(|k| k.unwrap_or(i64::MIN)).collect();
        order.extend(sorted_descending(&keys).into_iter().map(Some));
        Ok(())
    })?;
    Ok(order)
}

/// The permutation that sorts `keys` in descending order, ties by index.
fn sorted_descending(keys: &[i64]) -> Vec<i64> {
    let mut order: Vec<i64> = (0..keys.len() as i64).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(keys[i as usize]), i));
    order
}
