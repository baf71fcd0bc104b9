//! Tables compiled from their description, and their construction one entry after the other.

use super::sinks::{Keys, Map, Max, Scan, SortRows, Sum, Writer};
use crate::abi::{Ix, ProgramDesc, TableDesc, TableKind};
use crate::domain::{Budget, DomainProgram, Scratch, WalkFault};
use crate::eval::Env;

/// How a table is built.
pub(super) enum Builder {
    /// Extent function, and its domain without the last dim, whose extents sum up to the number of lengths.
    Input(usize, DomainProgram),
    Map(Domain),
    Scan(Domain),
    Max(DomainProgram),
    Sum(DomainProgram),
    Sort(Domain),
}

/// The domain of a table that has entries for its points.
pub(super) struct Domain {
    pub(super) points: DomainProgram,
    /// Where there are several dims, the domain of all but the last, with the last one's extent.
    pub(super) rows: Option<DomainProgram>,
}

impl Domain {
    fn new(domain: &[Ix], value: &Ix) -> Domain {
        let rows = match domain.split_last() {
            Some((last, outer)) if !outer.is_empty() => Some(program(outer, last)),
            _ => None,
        };
        Domain { points: program(domain, value), rows }
    }
}

fn program(domain: &[Ix], value: &Ix) -> DomainProgram {
    let domain: Vec<&Ix> = domain.iter().collect();
    DomainProgram::new(&domain, &[value])
}

impl Builder {
    /// Compiles table `i` of a validated description.
    pub(super) fn new(desc: &ProgramDesc, i: usize, table: &TableDesc) -> Builder {
        match &table.kind {
            TableKind::Input => {
                // `validate` has seen that there is one.
                let e = desc.extents.iter().position(|e| e.table as usize == i).unwrap_or(0);
                Builder::Input(
                    e,
                    match desc.extents[e].domain.split_last() {
                        Some((last, outer)) => program(outer, last),
                        None => program(&[], &Ix::Const(1)),
                    },
                )
            }
            TableKind::Map { domain, value } => Builder::Map(Domain::new(domain, value)),
            TableKind::PrefixSum { domain, value } => Builder::Scan(Domain::new(domain, value)),
            TableKind::ReduceMax { domain, value } => Builder::Max(program(domain, value)),
            TableKind::ReduceSum { domain, value } => Builder::Sum(program(domain, value)),
            TableKind::SortDesc { domain, key } => Builder::Sort(Domain::new(domain, key)),
        }
    }

    /// Computes a table that is not an input.
    pub(super) fn compute(
        &self,
        env: Env<'_>,
        scratch: &mut Scratch,
        budget: &mut Budget,
        out: &mut Writer<'_>,
    ) -> Result<(), WalkFault> {
        match self {
            Builder::Input(..) => Ok(()),
            Builder::Map(d) => d.points.walk(env, scratch, budget, &mut Map(out)),
            Builder::Scan(d) => d.points.walk(env, scratch, budget, &mut Scan::new(out)),
            Builder::Max(p) => {
                let mut max = Max::default();
                p.walk(env, scratch, budget, &mut max)?;
                out.push(&[max.0.unwrap_or(0)])
            }
            Builder::Sum(p) => {
                let mut sum = Sum::default();
                p.walk(env, scratch, budget, &mut sum)?;
                out.push(&[sum.entry()?])
            }
            Builder::Sort(d) if d.rows.is_none() => {
                let mut keys = Keys::new(out.free());
                d.points.walk(env, scratch, budget, &mut keys)?;
                out.push(&keys.permutation()?)
            }
            Builder::Sort(d) => d.points.walk(env, scratch, budget, &mut SortRows::new(out)),
        }
    }
}
