//! Executes the prelude: turns a batch's parameters and lengths into the tables that kernels read.
//!
//! Requires: a validated [`ProgramDesc`]. Ensures: every parameter and length is within its declared range, every
//! table has its exact size, and time is linear in the points of the tables' domains. Nothing is built again while
//! parameters and lengths stay the same ([`PreludeCache`]). Large tables are built by all workers of a pool, with the
//! same bytes and the same errors (`parallel`).

mod builder;
mod parallel;
mod sinks;

use crate::abi::ProgramDesc;
use crate::domain::{Budget, Count, WalkFault, unflatten};
use crate::error::{Error, Result};
use crate::eval::{Env, TableData, eval};
use crate::limits::Limits;
use crate::pool::Pool;
use builder::Builder;
use parallel::Workers;
use sinks::Writer;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What comes with a batch: one value a parameter, one list an extent function, both in declaration order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Parameter values.
    pub params: Vec<i64>,
    /// Entries of each extent function, in row-major ragged order.
    pub lengths: Vec<Vec<i64>>,
}

impl Batch {
    /// Puts named values in declaration order; of a name that is given twice the last counts.
    ///
    /// # Errors
    /// [`Error::Unknown`] for a name that the program does not declare or a declared one that is not given.
    pub fn from_named<'a>(
        desc: &ProgramDesc,
        params: impl IntoIterator<Item = (&'a str, i64)>,
        lengths: impl IntoIterator<Item = (&'a str, Vec<i64>)>,
    ) -> Result<Batch> {
        let unknown = |what, name: &str| Error::Unknown { what, name: name.to_owned() };
        let mut got_params = vec![None; desc.params.len()];
        for (name, value) in params {
            let i = desc.params.iter().position(|p| p.name == name);
            got_params[i.ok_or_else(|| unknown("parameter", name))?] = Some(value);
        }
        let mut got_lengths = vec![None; desc.extents.len()];
        for (name, values) in lengths {
            let i = desc.extents.iter().position(|e| e.name == name);
            got_lengths[i.ok_or_else(|| unknown("extent function", name))?] = Some(values);
        }
        let value =
            |(v, p): (Option<i64>, &crate::abi::ParamDesc)| v.ok_or_else(|| unknown("value for parameter", &p.name));
        let values = |(v, e): (Option<Vec<i64>>, &crate::abi::ExtentFn)| {
            v.ok_or_else(|| unknown("list of lengths for extent function", &e.name))
        };
        Ok(Batch {
            params: got_params.into_iter().zip(&desc.params).map(value).collect::<Result<_>>()?,
            lengths: got_lengths.into_iter().zip(&desc.extents).map(values).collect::<Result<_>>()?,
        })
    }
}

/// The tables of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    params: Vec<i64>,
    data: Vec<TableData>,
}

impl Tables {
    /// All tables, in declaration order.
    pub fn data(&self) -> &[TableData] {
        &self.data
    }

    /// The batch's parameter values.
    pub fn params(&self) -> &[i64] {
        &self.params
    }

    /// What index expressions are evaluated over.
    pub fn env(&self) -> Env<'_> {
        Env { params: &self.params, tables: &self.data }
    }

    /// Bytes of all tables together.
    pub fn bytes(&self) -> u64 {
        self.data.iter().map(|t| t.bytes() as u64).sum()
    }
}

/// A program's prelude, compiled once.
pub struct Prelude {
    desc: Arc<ProgramDesc>,
    builders: Vec<Builder>,
}

impl std::fmt::Debug for Prelude {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prelude").field("program", &self.desc.name).finish_non_exhaustive()
    }
}

impl Prelude {
    /// Validates a description and compiles its tables.
    ///
    /// # Errors
    /// [`Error::Desc`].
    pub fn new(desc: Arc<ProgramDesc>) -> Result<Prelude> {
        desc.validate()?;
        let builders = desc.tables.iter().enumerate().map(|(i, t)| Builder::new(&desc, i, t)).collect();
        Ok(Prelude { desc, builders })
    }

    /// The program.
    pub fn desc(&self) -> &Arc<ProgramDesc> {
        &self.desc
    }

    /// Checks a batch and builds its tables.
    ///
    /// # Errors
    /// A value outside its range, a wrong number of lengths, index arithmetic without a value, a limit exceeded.
    pub fn build(&self, batch: &Batch, limits: &Limits) -> Result<Tables> {
        let mut tables = Tables::default();
        self.rebuild(batch, limits, &mut tables, &mut Workers::default())?;
        Ok(tables)
    }

    fn rebuild(&self, batch: &Batch, limits: &Limits, tables: &mut Tables, workers: &mut Workers<'_>) -> Result<()> {
        self.check_params(&batch.params)?;
        let want = self.desc.extents.len();
        if batch.lengths.len() != want {
            let what = "extent functions";
            return Err(Error::Count { what, want, got: batch.lengths.len() });
        }
        tables.params.clone_from(&batch.params);
        if tables.data.len() != self.builders.len() {
            tables.data = self.desc.tables.iter().map(|t| TableData::new(t.width)).collect();
        }
        let mut free = limits.table_bytes;
        let mut budget = Budget(limits.steps);
        for (i, builder) in self.builders.iter().enumerate() {
            let (earlier, rest) = tables.data.split_at_mut(i);
            let env = Env { params: &tables.params, tables: earlier };
            let Some(table) = rest.first_mut() else { break };
            let explain = |fault| self.explain(i, fault, limits);
            if let Builder::Input(e, count) = builder {
                let lengths = &batch.lengths[*e];
                let mut total = Count { dims: self.desc.extents[*e].domain.len(), total: 0, rows: 0 };
                count.walk(env, workers.own(), &mut budget, &mut total).map_err(explain)?;
                self.check_lengths(*e, lengths, total.total, env)?;
                Writer::new(table, free).push(lengths).map_err(explain)?;
            } else if !workers.build(builder, env, &mut budget, table, free) {
                builder.compute(env, workers.own(), &mut budget, &mut Writer::new(table, free)).map_err(explain)?;
            }
            free = free.saturating_sub(table.bytes() as u64);
        }
        Ok(())
    }

    fn check_params(&self, values: &[i64]) -> Result<()> {
        let (want, got) = (self.desc.params.len(), values.len());
        if want != got {
            return Err(Error::Count { what: "parameters", want, got });
        }
        for (p, &value) in self.desc.params.iter().zip(values) {
            if !(p.lo..=p.hi).contains(&value) {
                let (lo, hi) = (p.lo, p.hi);
                return Err(Error::ParamRange { name: p.name.clone(), value, lo, hi });
            }
        }
        Ok(())
    }

    fn check_lengths(&self, e: usize, lengths: &[i64], want: u64, env: Env<'_>) -> Result<()> {
        let f = &self.desc.extents[e];
        let function = || f.name.clone();
        let got = lengths.len() as u64;
        if got != want {
            return Err(Error::LengthCount { function: function(), want, got });
        }
        let bound = |ix, end: &str| {
            eval(ix, env, &[])
                .map_err(|fault| Error::Index { at: format!("extent function `{}`, {end} bound", f.name), fault })
        };
        let (lo, hi) = (bound(&f.lo, "lower")?, bound(&f.hi, "upper")?);
        let outside = |&v: &i64| (v < lo) | (v > hi);
        if lengths.iter().fold(false, |any, v| any | outside(v)) {
            let at = lengths.iter().position(outside).unwrap_or(0);
            let index = unflatten(&f.domain, env, at as u64).unwrap_or_default();
            let value = lengths[at];
            return Err(Error::LengthRange { function: function(), index, value, lo, hi });
        }
        Ok(())
    }

    fn explain(&self, table: usize, fault: WalkFault, limits: &Limits) -> Error {
        let name = &self.desc.tables[table].name;
        match fault {
            WalkFault::Narrow { entry, value } => Error::Narrow { table: name.clone(), entry, value },
            other => other.at(format!("table `{name}`"), limits.table_bytes, limits),
        }
    }
}

/// The tables of the last batch, and what they were built from.
pub struct PreludeCache {
    prelude: Arc<Prelude>,
    batch: Batch,
    valid: bool,
    tables: Tables,
    scratch: parallel::Scratches,
    build_time: Duration,
}

impl std::fmt::Debug for PreludeCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PreludeCache").field("batch", &self.batch).field("valid", &self.valid).finish_non_exhaustive()
    }
}

impl PreludeCache {
    /// A cache that holds no batch yet.
    pub fn new(prelude: Arc<Prelude>) -> PreludeCache {
        PreludeCache {
            prelude,
            batch: Batch::default(),
            valid: false,
            tables: Tables::default(),
            scratch: parallel::Scratches::default(),
            build_time: Duration::ZERO,
        }
    }

    /// Makes the tables those of `batch`; true where they already were, and nothing was built. Tables
    /// keep their memory from one batch to the next. The workers of `pool`, if there is one, share large tables.
    ///
    /// # Errors
    /// As [`Prelude::build`]; the cache then holds no batch.
    pub fn update(&mut self, batch: &Batch, limits: &Limits, pool: Option<&Pool>) -> Result<bool> {
        if self.valid && self.batch == *batch {
            return Ok(true);
        }
        self.valid = false;
        let start = Instant::now();
        let mut workers = Workers::new(pool, std::mem::take(&mut self.scratch));
        let built = self.prelude.rebuild(batch, limits, &mut self.tables, &mut workers);
        self.scratch = workers.into_scratches();
        built?;
        self.build_time = start.elapsed();
        self.batch.params.clone_from(&batch.params);
        self.batch.lengths.clone_from(&batch.lengths);
        self.valid = true;
        Ok(false)
    }

    /// Holds no batch from here on: whatever the next one is, its tables are built. Their memory is kept.
    pub fn forget(&mut self) {
        self.valid = false;
    }

    /// The tables; `None` before the first batch and after an error.
    pub fn tables(&self) -> Option<&Tables> {
        self.valid.then_some(&self.tables)
    }

    /// The batch that the tables are of.
    pub fn batch(&self) -> Option<&Batch> {
        self.valid.then_some(&self.batch)
    }

    /// How long the last build took, checks of the batch included.
    pub fn build_time(&self) -> Duration {
        self.build_time
    }

    /// Name and bytes of each table.
    pub fn sizes(&self) -> impl Iterator<Item = (&str, u64)> {
        let names = self.prelude.desc.tables.iter().map(|t| t.name.as_str());
        names.zip(self.tables.data.iter().map(|t| t.bytes() as u64))
    }

    /// The program.
    pub fn prelude(&self) -> &Arc<Prelude> {
        &self.prelude
    }
}

#[cfg(test)]
mod tests;
