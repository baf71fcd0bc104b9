//! Checks a program description before anything is built from it.
//!
//! Ensures: every index is in range; an `Arg` is below the arity of its domain; a table reads earlier tables only;
//! every `Input` table is filled by exactly one extent function; tensors and buffers agree; depths, node counts and
//! item counts are bounded, so that later walks may recurse.

use super::{ABI_VERSION, BufferKind, Ix, KernelDesc, ProgramDesc, Role, TableKind, TensorDesc};
use thiserror::Error;

/// Greatest depth of an index expression.
pub const MAX_IX_DEPTH: usize = 256;
/// Greatest number of nodes of an index expression.
pub const MAX_IX_NODES: usize = 4096;
/// Greatest number of dims of a domain or tensor.
pub const MAX_DIMS: usize = 16;
/// Greatest length of any list of a program (parameters, tables, kernels, …).
pub const MAX_ITEMS: usize = 1 << 14;
/// Greatest number of bytes of a name or symbol.
pub const MAX_NAME: usize = 4096;
/// Greatest alignment that a buffer may ask for.
pub const MAX_ALIGN: u32 = 128;

/// What is wrong with a description.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DescFault {
    /// A reference to an item that is not there.
    #[error("{what} {index} does not exist (there are {len})")]
    Index {
        /// Kind of item.
        what: &'static str,
        /// The index.
        index: u32,
        /// How many there are.
        len: usize,
    },
    /// An index variable that the domain does not bind.
    #[error("index variable {arg} is not bound (the domain binds {arity})")]
    Arg {
        /// The variable.
        arg: u32,
        /// Variables bound here.
        arity: usize,
    },
    /// A table reads itself or a later table.
    #[error("reads table {table}, which is not built before it")]
    TableOrder {
        /// The table read.
        table: u32,
    },
    /// A table where only parameters may be read.
    #[error("may not read tables")]
    TableForbidden,
    /// Nesting beyond [`MAX_IX_DEPTH`] or more than [`MAX_IX_NODES`] nodes.
    #[error("index expression is too deep or too large")]
    IxTooLarge,
    /// A list or name beyond its bound.
    #[error("{what}: {len} is more than the {max} allowed")]
    TooMany {
        /// What is counted.
        what: &'static str,
        /// How many.
        len: usize,
        /// The bound.
        max: usize,
    },
    /// Two items of one name.
    #[error("duplicate name")]
    DuplicateName,
    /// Any other disagreement between parts of the description.
    #[error("{0}")]
    Disagree(&'static str),
    /// Made for another version of this contract.
    #[error("ABI version {found}, this runtime has {ABI_VERSION}")]
    Version {
        /// The description's version.
        found: u32,
    },
}

/// An invalid program description.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{at}: {fault}")]
pub struct DescError {
    /// Where, such as ``table 3 `outer` ``.
    pub at: String,
    /// What is wrong.
    #[source]
    pub fault: DescFault,
}

/// What an expression may refer to.
#[derive(Clone, Copy)]
struct Scope {
    params: usize,
    args: usize,
    /// Tables below this index may be read; `None` forbids them all.
    tables: Option<usize>,
    n_tables: usize,
}

fn check_ix(ix: &Ix, scope: Scope) -> Result<(), DescFault> {
    fn go(ix: &Ix, scope: Scope, depth: usize, nodes: &mut usize) -> Result<(), DescFault> {
        *nodes += 1;
        if depth > MAX_IX_DEPTH || *nodes > MAX_IX_NODES {
            return Err(DescFault::IxTooLarge);
        }
        match *ix {
            Ix::Param(p) => index("parameter", p, scope.params)?,
            Ix::Arg(arg) if arg as usize >= scope.args => {
                return Err(DescFault::Arg { arg, arity: scope.args });
            }
            Ix::Table(t, _) | Ix::Search(t, ..) => {
                index("table", t, scope.n_tables)?;
                let limit = scope.tables.ok_or(DescFault::TableForbidden)?;
                if t as usize >= limit {
                    return Err(DescFault::TableOrder { table: t });
                }
            }
            _ => {}
        }
        ix.operands().try_for_each(|operand| go(operand, scope, depth + 1, nodes))
    }
    go(ix, scope, 1, &mut 0)
}

fn index(what: &'static str, index: u32, len: usize) -> Result<(), DescFault> {
    if (index as usize) < len { Ok(()) } else { Err(DescFault::Index { what, index, len }) }
}

fn at_most(what: &'static str, len: usize, max: usize) -> Result<(), DescFault> {
    if len <= max { Ok(()) } else { Err(DescFault::TooMany { what, len, max }) }
}

fn require(holds: bool, otherwise: &'static str) -> Result<(), DescFault> {
    if holds { Ok(()) } else { Err(DescFault::Disagree(otherwise)) }
}

/// Names the item that a fault was found in.
fn locate(result: Result<(), DescFault>, what: &str, i: usize, name: &str) -> Result<(), DescError> {
    result.map_err(|fault| {
        let name: String = name.chars().take(80).collect();
        DescError { at: format!("{what} {i} `{name}`"), fault }
    })
}

fn check_names<'a>(what: &'static str, names: impl Iterator<Item = &'a str> + Clone) -> Result<(), DescError> {
    let mut seen = std::collections::HashSet::new();
    for (i, name) in names.enumerate() {
        let fresh = if seen.insert(name) { Ok(()) } else { Err(DescFault::DuplicateName) };
        locate(fresh, what, i, name)?;
    }
    Ok(())
}

impl ProgramDesc {
    /// Checks everything that does not depend on a batch.
    ///
    /// # Errors
    /// The first fault found, with the place where it is.
    pub fn validate(&self) -> Result<(), DescError> {
        let program = |result| locate(result, "program", 0, &self.name);
        if self.version != ABI_VERSION {
            return program(Err(DescFault::Version { found: self.version }));
        }
        for (what, len) in [
            ("parameters", self.params.len()),
            ("extent functions", self.extents.len()),
            ("tables", self.tables.len()),
            ("tensors", self.tensors.len()),
            ("buffers", self.buffers.len()),
            ("kernels", self.kernels.len()),
            ("setup kernels", self.setup_kernels.len()),
        ] {
            program(at_most(what, len, MAX_ITEMS))?;
        }
        let names = (self.params.iter().map(|x| &x.name))
            .chain(self.extents.iter().map(|x| &x.name))
            .chain(self.tables.iter().map(|x| &x.name))
            .chain(self.tensors.iter().map(|x| &x.name))
            .chain(self.buffers.iter().map(|x| &x.name))
            .chain(self.kernels.iter().chain(&self.setup_kernels).flat_map(|x| [&x.name, &x.symbol]));
        for name in names.chain([&self.name]) {
            program(at_most("bytes of a name", name.len(), MAX_NAME))?;
        }
        check_names("parameter", self.params.iter().map(|p| p.name.as_str()))?;
        check_names("extent function", self.extents.iter().map(|e| e.name.as_str()))?;
        check_names("tensor", self.tensors.iter().map(|t| t.name.as_str()))?;

        for (i, p) in self.params.iter().enumerate() {
            locate(require(p.lo <= p.hi, "its range is empty"), "parameter", i, &p.name)?;
        }
        self.check_extents()?;
        for (i, t) in self.tables.iter().enumerate() {
            locate(self.check_table(i), "table", i, &t.name)?;
        }
        for (i, t) in self.tensors.iter().enumerate() {
            locate(self.check_tensor(i, t), "tensor", i, &t.name)?;
        }
        for (i, b) in self.buffers.iter().enumerate() {
            locate(self.check_buffer(i), "buffer", i, &b.name)?;
        }
        for (what, kernels) in [("kernel", &self.kernels), ("setup kernel", &self.setup_kernels)] {
            for (i, k) in kernels.iter().enumerate() {
                locate(self.check_kernel(k), what, i, &k.name)?;
            }
        }
        Ok(())
    }

    fn scope(&self, args: usize, tables: Option<usize>) -> Scope {
        Scope { params: self.params.len(), args, tables, n_tables: self.tables.len() }
    }

    fn check_domain(&self, domain: &[Ix], tables: usize) -> Result<(), DescFault> {
        at_most("dims", domain.len(), MAX_DIMS)?;
        (domain.iter().enumerate()).try_for_each(|(j, ix)| check_ix(ix, self.scope(j, Some(tables))))
    }

    fn check_extents(&self) -> Result<(), DescError> {
        let mut filled = vec![false; self.tables.len()];
        for (i, e) in self.extents.iter().enumerate() {
            let check = || {
                index("table", e.table, self.tables.len())?;
                let table = e.table as usize;
                let is_input = self.tables[table].kind == TableKind::Input;
                require(is_input, "the table that it fills is not an input table")?;
                require(!filled[table], "the table that it fills is filled by another one")?;
                check_ix(&e.lo, self.scope(0, None))?;
                check_ix(&e.hi, self.scope(0, None))?;
                self.check_domain(&e.domain, table)
            };
            locate(check(), "extent function", i, &e.name)?;
            filled[e.table as usize] = true;
        }
        for (i, t) in self.tables.iter().enumerate() {
            let ok = t.kind != TableKind::Input || filled[i];
            locate(require(ok, "no extent function fills this input table"), "table", i, &t.name)?;
        }
        Ok(())
    }

    fn check_table(&self, i: usize) -> Result<(), DescFault> {
        match &self.tables[i].kind {
            TableKind::Input => Ok(()),
            TableKind::Map { domain, value }
            | TableKind::PrefixSum { domain, value }
            | TableKind::ReduceMax { domain, value }
            | TableKind::ReduceSum { domain, value }
            | TableKind::SortDesc { domain, key: value } => {
                let by_row = matches!(self.tables[i].kind, TableKind::PrefixSum { .. } | TableKind::SortDesc { .. });
                require(!by_row || !domain.is_empty(), "a prefix sum or an order needs at least one dim")?;
                self.check_domain(domain, i)?;
                check_ix(value, self.scope(domain.len(), Some(i)))
            }
        }
    }

    fn check_tensor(&self, i: usize, t: &TensorDesc) -> Result<(), DescFault> {
        let all = Some(self.tables.len());
        at_most("dims", t.dims.len(), MAX_DIMS)?;
        for (j, d) in t.dims.iter().enumerate() {
            check_ix(&d.extent, self.scope(j, all))?;
            check_ix(&d.storage, self.scope(j, all))?;
        }
        check_ix(&t.offset, self.scope(t.dims.len(), all))?;
        if let Some((lo, hi)) = &t.value_range {
            require(t.dtype.is_integer(), "only an integer tensor can have a value range")?;
            check_ix(lo, self.scope(t.dims.len(), all))?;
            check_ix(hi, self.scope(t.dims.len(), all))?;
        }
        index("buffer", t.buffer, self.buffers.len())?;
        let buffer = &self.buffers[t.buffer as usize];
        require(buffer.dtype == t.dtype, "its buffer has another element type")?;
        let wanted = match t.role {
            Role::Input | Role::ConstInput => BufferKind::Input(i as u32),
            Role::Output => BufferKind::Output(i as u32),
        };
        require(buffer.kind == wanted, "its buffer is not declared to hold it")
    }

    fn check_buffer(&self, i: usize) -> Result<(), DescFault> {
        let b = &self.buffers[i];
        check_ix(&b.elems, self.scope(0, Some(self.tables.len())))?;
        let aligned = b.align.is_power_of_two() && b.align <= MAX_ALIGN;
        require(aligned, "its alignment is not a power of two in range")?;
        match b.kind {
            BufferKind::Input(t) | BufferKind::Output(t) => {
                index("tensor", t, self.tensors.len())?;
                let back = self.tensors[t as usize].buffer as usize == i;
                require(back, "the tensor that it holds names another buffer")
            }
            BufferKind::Temp | BufferKind::PerWorker => Ok(()),
        }
    }

    fn check_kernel(&self, k: &KernelDesc) -> Result<(), DescFault> {
        let scope = self.scope(0, Some(self.tables.len()));
        for ix in k.trip.iter().chain(&k.stage_flops) {
            check_ix(ix, scope)?;
        }
        at_most("buffers of a kernel", k.reads.len().max(k.writes.len()), MAX_ITEMS)?;
        (k.reads.iter().chain(&k.writes)).try_for_each(|&b| index("buffer", b, self.buffers.len()))
    }
}
