//! Executes the prelude: turns a batch's parameters and lengths into the tables that kernels read.
//!
//! Requires: a validated [`ProgramDesc`]. Ensures: every parameter and length is within its declared range, every
//! table has its exact size, and time is linear in the points of the tables' domains. Nothing is built again while
//! parameters and lengths stay the same ([`PreludeCache`]).

mod sinks;

use crate::abi::{Ix, ProgramDesc, TableKind};
use crate::domain::{Budget, DomainProgram, Scratch, WalkFault, unflatten};
use crate::error::{Error, Result};
use crate::eval::{Env, TableData, eval};
use crate::limits::Limits;
use sinks::{Keys, Map, Max, Scan, Sum, Writer};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What comes with a batch: one value a parameter, one list a extent function, both in declaration order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Parameter values.
    pub params: Vec<i64>,
    /// Entries of each extent function, in row-major ragged order.
    pub lengths: Vec<Vec<i64>>,
}

impl Batch {
    /// Puts named values in declaration order.
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
        let value = |(v, p): (Option<i64>, &crate::abi::ParamDesc)| {
            v.ok_or_else(|| unknown("value for parameter", &p.name))
        };
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

enum Builder {
    /// Extent function, and its domain without the last dim, whose extents sum up to the number of lengths.
    Input(usize, DomainProgram),
    Map(DomainProgram),
    Scan(DomainProgram),
    Max(DomainProgram),
    Sum(DomainProgram),
    Sort(DomainProgram),
}

impl Prelude {
    /// Validates a description and compiles its tables.
    ///
    /// # Errors
    /// [`Error::Desc`].
    pub fn new(desc: Arc<ProgramDesc>) -> Result<Prelude> {
        desc.validate()?;
        let program = |domain: &[Ix], value: &Ix| {
            let domain: Vec<&Ix> = domain.iter().collect();
            DomainProgram::new(&domain, &[value])
        };
        let builder = |(i, t): (usize, &crate::abi::TableDesc)| match &t.kind {
            TableKind::Input => {
                // `validate` has seen that there is one.
                let e = desc.extents.iter().position(|e| e.table as usize == i).unwrap_or(0);
                Builder::Input(e, match desc.extents[e].domain.split_last() {
                    Some((last, outer)) => program(outer, last),
                    None => program(&[], &Ix::Const(1)),
                })
            }
            TableKind::Map { domain, value } => Builder::Map(program(domain, value)),
            TableKind::PrefixSum { domain, value } => Builder::Scan(program(domain, value)),
            TableKind::ReduceMax { domain, value } => Builder::Max(program(domain, value)),
            TableKind::ReduceSum { domain, value } => Builder::Sum(program(domain, value)),
            TableKind::SortDesc { extent, key } => {
                Builder::Sort(program(std::slice::from_ref(extent), key))
            }
        };
        let builders = desc.tables.iter().enumerate().map(builder).collect();
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
        self.rebuild(batch, limits, &mut tables, &mut Scratch::default())?;
        Ok(tables)
    }

    fn rebuild(
        &self,
        batch: &Batch,
        limits: &Limits,
        tables: &mut Tables,
        scratch: &mut Scratch,
    ) -> Result<()> {
        self.check_params(&batch.params)?;
        let want = self.desc.extents.len();
        if batch.lengths.len() != want {
            let what = "extent functions";
            return Err(Error::Count { what, want, got: batch.lengths.len() });
        }
        tables.params.clone_from(&batch.params);
        let widths = self.desc.tables.iter().map(|t| t.width);
        if tables.data.len() != self.builders.len() {
            tables.data = widths.map(TableData::new).collect();
        }
        let mut bytes = limits.table_bytes;
        let mut budget = Budget(limits.steps);
        for (i, builder) in self.builders.iter().enumerate() {
            let (earlier, rest) = tables.data.split_at_mut(i);
            let env = Env { params: &tables.params, tables: earlier };
            let Some(out) = rest.first_mut() else { break };
            out.clear();
            let mut out = Writer::new(out, bytes);
            let done = match builder {
                Builder::Input(e, count) => {
                    let lengths = &batch.lengths[*e];
                    let mut total = Sum::default();
                    count.walk(env, scratch, &mut budget, &mut total).and_then(|()| {
                        if total.overflow || total.negative.is_some() {
                            return Err(WalkFault::Sink);
                        }
                        Ok(total.sum as u64)
                    })
                    .map_err(|fault| match total.negative {
                        Some(extent) if fault == WalkFault::Sink => {
                            let dim = self.desc.extents[*e].domain.len().saturating_sub(1);
                            WalkFault::NegativeExtent { dim, extent }
                        }
                        _ => fault,
                    })
                    .map(|want| (want, lengths))
                    .map_err(|fault| self.fault(i, fault, &out, limits))
                    .and_then(|(want, lengths)| self.check_lengths(*e, lengths, want, env))?;
                    out.push(lengths)
                }
                Builder::Map(p) => p.walk(env, scratch, &mut budget, &mut Map(&mut out)),
                Builder::Scan(p) => {
                    p.walk(env, scratch, &mut budget, &mut Scan { out: &mut out, sum: 0, open: false })
                }
                Builder::Max(p) => {
                    let mut max = Max::default();
                    let walked = p.walk(env, scratch, &mut budget, &mut max);
                    walked.and_then(|()| out.push(&[max.0.unwrap_or(0)]))
                }
                Builder::Sum(p) => {
                    let mut sum = Sum::default();
                    let walked = p.walk(env, scratch, &mut budget, &mut sum);
                    out.overflow = sum.overflow;
                    walked.and_then(|()| out.push(&[sum.sum]))
                }
                Builder::Sort(p) => {
                    let mut keys = Keys::default();
                    let walked = p.walk(env, scratch, &mut budget, &mut keys);
                    walked.and_then(|()| out.push(&keys.into_permutation()))
                }
            };
            done.map_err(|fault| self.fault(i, fault, &out, limits))?;
            bytes = out.bytes_left;
        }
        Ok(())
    }
}
