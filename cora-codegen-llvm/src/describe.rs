//! What the runtime needs to know of a storage module, in its own terms.
//!
//! Sizes, offsets and trip counts become [`Ix`] expressions over parameters and tables; uninterpreted functions become
//! tables. Buffers, tables and symbols are numbered by [`Slots`], as in the generated code.
//!
//! An extent function that no kernel reads still belongs to the batch and to the shapes of tensors, so it gets an input
//! table behind those of the module.
//!
//! A kernel is a *setup* kernel, run once for given weights, if it reads nothing but const inputs and what setup kernels
//! write, writes temporaries that setup kernels alone write, and its statements use no parameter and no table. (Its trip
//! count and the sizes of its buffers may: the runtime sees those, and runs setup again when they change.)

mod index;
mod usage;

use cora_ir::ids::EntityId;
use cora_ir::loops::LoopKind;
use cora_ir::storage::{Kernel, Stmt, StorageModule, Table};
use cora_ir::{ExprId, Role as IrRole, ScalarType, Scope, TensorId, UfDef};
use cora_runtime::abi::{
    ABI_VERSION, BufferDesc, BufferKind, DType, DescError, DimDesc, ExtentFn, GridMap, Import, Ix, KernelDesc, MapDim,
    ParamDesc, ProgramDesc, Role, TableDesc, TableKind, TableWidth, TensorDesc,
};

use crate::mlir::{Slots, TensorMap};
use index::Indices;

/// A module that cannot be described to the runtime.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {fault}")]
pub struct DescribeError {
    /// What was being described, such as ``the size of buffer `A` ``.
    pub at: String,
    /// What is wrong with it.
    #[source]
    pub fault: DescribeFault,
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DescribeFault {
    /// An expression that cannot be computed before launch.
    #[error("{0} cannot be computed before launch")]
    Expression(&'static str),
    /// A call of a function whose table is not there, or not addressable by its arguments alone.
    #[error("function `{0}` is called, and has no table that its arguments alone would address")]
    Call(String),
    /// A table that the runtime cannot build.
    #[error("the runtime builds no table of this kind")]
    Table,
    /// An input or output that the storage dialect does not place.
    #[error("it has no storage layout")]
    NoLayout,
    /// A table of a type that is neither `i32` nor `i64`.
    #[error("its entries are {0}")]
    Width(ScalarType),
    /// The description as a whole is inconsistent.
    #[error(transparent)]
    Invalid(DescError),
}

/// The description of a module: valid, and in agreement with the code that [`mlir::emit`](crate::mlir::emit) writes.
///
/// # Errors
///
/// [`DescribeError`] for a module that was not completely lowered.
pub fn program_desc(module: &StorageModule) -> Result<ProgramDesc, DescribeError> {
    described(module, Slots::new(module)).map(|d| d.0)
}

/// What of a kernel's launch is computed for each batch.
#[derive(Clone, Debug)]
pub struct GridShape {
    /// The number of blocks along x, y and z.
    pub blocks: [Ix; 3],
    /// The tensor maps, as [`TensorMap::all`](crate::mlir::TensorMap::all) orders them.
    pub maps: Vec<GridMap>,
}

/// The description of a module for a GPU, and what each kernel is launched with, in the module's order: in agreement with the code that [`mlir::emit_grid`](crate::mlir::emit_grid) writes.
///
/// # Errors
///
/// [`DescribeError`] for a module that was not completely lowered.
pub fn grid_desc(module: &StorageModule) -> Result<(ProgramDesc, Vec<GridShape>), DescribeError> {
    described(module, Slots::grid(module))
}

fn described(module: &StorageModule, slots: Slots) -> Result<(ProgramDesc, Vec<GridShape>), DescribeError> {
    let mut d = Describer { module, indices: Indices::new(module, &slots), slots };
    let params =
        module.env.params.iter().map(|(_, p)| ParamDesc { name: p.name.clone(), lo: p.lo, hi: p.hi }).collect();
    let (tables, extents) = d.tables()?;
    let (tensors, buffers) = d.tensors_and_buffers()?;
    let setup = usage::setup_kernels(module, &d.slots);
    let (mut kernels, mut setup_kernels, mut blocks) = (Vec::new(), Vec::new(), Vec::new());
    for (i, kernel) in module.kernels.iter().enumerate() {
        blocks.push(GridShape { blocks: d.blocks(kernel)?, maps: d.maps(kernel)? });
        let desc = d.kernel(i, kernel)?;
        if setup[i] { setup_kernels.push(desc) } else { kernels.push(desc) }
    }
    let name = module.name.clone();
    let imports = imports(module);
    let desc = ProgramDesc {
        version: ABI_VERSION,
        name,
        params,
        extents,
        tables,
        tensors,
        buffers,
        kernels,
        setup_kernels,
        imports,
    };
    desc.validate()
        .map_err(|e| DescribeError { at: format!("program `{}`", module.name), fault: DescribeFault::Invalid(e) })?;
    Ok((desc, blocks))
}

/// The functions of libraries that kernels call, each once.
fn imports(module: &StorageModule) -> Vec<Import> {
    let mut all = Vec::new();
    for s in module.kernels.iter().flat_map(|k| &k.body) {
        s.walk(&mut |s| {
            if let Stmt::Gemm(g) = s {
                all.extend(crate::mlir::import(module.env.tensors[g.c.tensor].ty));
            }
        });
    }
    all.sort_unstable();
    all.dedup();
    all
}

struct Describer<'m> {
    module: &'m StorageModule,
    slots: Slots,
    indices: Indices<'m>,
}

fn at(what: impl Into<String>) -> impl FnOnce(DescribeFault) -> DescribeError {
    let at = what.into();
    |fault| DescribeError { at, fault }
}

impl Describer<'_> {
    fn ix(&self, e: ExprId, what: impl Into<String>) -> Result<Ix, DescribeError> {
        self.indices.ix(e).map_err(at(what))
    }

    fn ixs(&self, es: &[ExprId], what: &str) -> Result<Vec<Ix>, DescribeError> {
        es.iter().map(|&e| self.ix(e, what)).collect()
    }

    fn tables(&mut self) -> Result<(Vec<TableDesc>, Vec<ExtentFn>), DescribeError> {
        let module = self.module;
        let (mut tables, mut extents) = (Vec::new(), Vec::new());
        for (t, table) in module.tables.iter().enumerate() {
            let uf = &module.env.ufs[table.uf];
            let what = format!("table of `{}`", uf.name);
            let width = match module.env.tensors[table.tensor].ty {
                ScalarType::I32 => TableWidth::I32,
                ScalarType::I64 => TableWidth::I64,
                other => return Err(at(&what)(DescribeFault::Width(other))),
            };
            let domain = self.ixs(&table.domain, &what)?;
            let kind = self.table_kind(table, &domain, &what)?;
            if let UfDef::Extent { lo, hi } = uf.def {
                extents.push(self.extent(uf.name.clone(), domain, (lo, hi), t)?);
            }
            tables.push(TableDesc { name: uf.name.clone(), width, kind });
        }
        for (id, uf) in module.env.ufs.iter() {
            let UfDef::Extent { lo, hi } = uf.def else { continue };
            if module.table(id).is_some() {
                continue;
            }
            let domain = self.ixs(&uf.domain, &format!("the domain of `{}`", uf.name))?;
            extents.push(self.extent(uf.name.clone(), domain, (lo, hi), tables.len())?);
            self.indices.add_table(id, tables.len());
            tables.push(TableDesc { name: uf.name.clone(), width: TableWidth::I64, kind: TableKind::Input });
        }
        Ok((tables, extents))
    }

    fn extent(
        &self,
        name: String,
        domain: Vec<Ix>,
        (lo, hi): (ExprId, ExprId),
        table: usize,
    ) -> Result<ExtentFn, DescribeError> {
        let what = format!("the range of `{name}`");
        let (lo, hi) = (self.ix(lo, &what)?, self.ix(hi, &what)?);
        Ok(ExtentFn { name, domain, lo, hi, table: number(table) })
    }

    fn table_kind(&self, table: &Table, domain: &[Ix], what: &str) -> Result<TableKind, DescribeError> {
        let unbuildable = || at(what)(DescribeFault::Table);
        let body = || self.ix(table.body.ok_or_else(unbuildable)?, what);
        let domain = domain.to_vec();
        Ok(match self.module.env.ufs[table.uf].def {
            UfDef::Extent { .. } => TableKind::Input,
            UfDef::PrefixSum { .. } => TableKind::PrefixSum { domain, value: body()? },
            UfDef::Max { .. } => TableKind::ReduceMax { domain, value: body()? },
            UfDef::Map { .. } => TableKind::Map { domain, value: body()? },
            UfDef::SortDesc { .. } => TableKind::SortDesc { domain, key: body()? },
            UfDef::Search { .. } => return Err(unbuildable()),
        })
    }

    fn tensors_and_buffers(&self) -> Result<(Vec<TensorDesc>, Vec<BufferDesc>), DescribeError> {
        let env = &self.module.env;
        let mut tensors = Vec::new();
        let mut kinds = vec![None; self.slots.buffers().len()];
        for (id, t) in env.tensors.iter() {
            let role = match t.role {
                IrRole::Input => Role::Input,
                IrRole::ConstInput => Role::ConstInput,
                IrRole::Output => Role::Output,
                IrRole::Temp => continue,
            };
            let what = format!("tensor `{}`", t.name);
            let Some(buffer) = self.buffer_number(id) else {
                // An input that nothing reads need not be placed.
                if role == Role::Output {
                    return Err(at(&what)(DescribeFault::NoLayout));
                }
                continue;
            };
            let offset = self.module.buffer(id).and_then(|b| b.offset);
            let offset = offset.ok_or(DescribeFault::NoLayout).map_err(at(&what))?;
            let mut dims = Vec::new();
            for d in &t.dims {
                dims.push(DimDesc { extent: self.ix(d.extent, &what)?, storage: self.ix(d.storage, &what)? });
            }
            let value_range = match t.range {
                Some((lo, hi)) => Some((self.ix(lo, &what)?, self.ix(hi, &what)?)),
                None => None,
            };
            let n = number(tensors.len());
            kinds[buffer] = Some(if role == Role::Output { BufferKind::Output(n) } else { BufferKind::Input(n) });
            tensors.push(TensorDesc {
                name: t.name.clone(),
                dtype: dtype(t.ty).ok_or(DescribeFault::Expression("an element of type `index`")).map_err(at(&what))?,
                dims,
                role,
                buffer: number(buffer),
                value_range,
                offset: self.ix(offset, &what)?,
            });
        }
        let mut buffers = Vec::new();
        for (&id, kind) in self.slots.buffers().iter().zip(kinds) {
            let t = &env.tensors[id];
            let what = format!("the size of buffer `{}`", t.name);
            let elems = self.module.buffer(id).map(|b| b.elems);
            let elems = elems.ok_or(DescribeFault::NoLayout).map_err(at(&what))?;
            buffers.push(BufferDesc {
                name: t.name.clone(),
                dtype: dtype(t.ty).ok_or(DescribeFault::Expression("an element of type `index`")).map_err(at(&what))?,
                elems: self.ix(elems, &what)?,
                kind: kind.unwrap_or(match t.scope {
                    Scope::Local => BufferKind::PerWorker,
                    Scope::Global | Scope::Shared | Scope::Reg => BufferKind::Temp,
                }),
                align: 64,
            });
        }
        Ok((tensors, buffers))
    }

    fn buffer_number(&self, tensor: TensorId) -> Option<usize> {
        self.slots.buffers().iter().position(|&t| t == tensor)
    }

    /// The extents of block loops along x, y and z.
    fn blocks(&mut self, kernel: &Kernel) -> Result<[Ix; 3], DescribeError> {
        let mut blocks = [Ix::Const(1), Ix::Const(1), Ix::Const(1)];
        let mut fault = None;
        self.indices.lets.clear();
        for s in &kernel.body {
            s.walk(&mut |s| match s {
                Stmt::Let { var, value } => drop(self.indices.lets.insert(*var, *value)),
                Stmt::For { extent, kind, .. } if kind.is_block() => {
                    let dimension = kind.axis().map_or(0, |a| a.dimension());
                    match self.ix(*extent, format!("the number of blocks of kernel `{}`", kernel.name)) {
                        Ok(n) => blocks[dimension] = n.max(0),
                        Err(e) => fault = Some(e),
                    }
                }
                _ => {}
            });
        }
        self.indices.lets.clear();
        fault.map_or(Ok(blocks), Err)
    }

    /// The tensor maps of a kernel.
    fn maps(&mut self, kernel: &Kernel) -> Result<Vec<GridMap>, DescribeError> {
        self.indices.lets.clear();
        for s in &kernel.body {
            s.walk(&mut |s| {
                if let Stmt::Let { var, value } = s {
                    self.indices.lets.insert(*var, *value);
                }
            });
        }
        let mut out = Vec::new();
        for m in TensorMap::all(self.module, kernel) {
            let what = format!("a tensor map of kernel `{}`", kernel.name);
            let buffer = self.buffer_number(m.tensor).ok_or(DescribeFault::NoLayout).map_err(at(&what))?;
            let mut dims = Vec::new();
            for (size, step, extent) in m.dims {
                dims.push(MapDim { size: self.ix(size, &what)?, step: step as u64, extent: extent as u32 });
            }
            out.push(GridMap { buffer: number(buffer), dims, swizzled: m.swizzled });
        }
        self.indices.lets.clear();
        Ok(out)
    }

    fn kernel(&mut self, i: usize, kernel: &Kernel) -> Result<KernelDesc, DescribeError> {
        let mut trip = None;
        self.indices.lets.clear();
        for stmt in &kernel.body {
            match *stmt {
                Stmt::Let { var, value } => {
                    self.indices.lets.insert(var, value);
                }
                Stmt::For { extent, kind: LoopKind::Parallel, .. } => {
                    let count = self.ix(extent, format!("the trip count of kernel `{}`", kernel.name))?;
                    // Here a negative count is 0, to the runtime it is an error.
                    trip = Some(if matches!(count, Ix::Const(0..)) { count } else { count.max(0) });
                }
                _ => {}
            }
        }
        self.indices.lets.clear();
        let used = usage::usage(self.module, &self.slots, &kernel.body);
        let numbers = |tensors: &[TensorId]| -> Vec<u32> {
            tensors.iter().filter_map(|&t| self.buffer_number(t)).map(number).collect()
        };
        Ok(KernelDesc {
            name: kernel.name.clone(),
            symbol: self.slots.symbols()[i].clone(),
            trip,
            stage_flops: None,
            reads: numbers(&used.reads),
            writes: numbers(&used.writes),
        })
    }
}

/// Counts of one program fit in 32 bits: ids are 32 bits wide.
fn number(n: usize) -> u32 {
    debug_assert_eq!(TensorId::from_index(n).index(), n);
    n as u32
}

/// The runtime's name of an element type; nothing for `index`, which is none.
pub fn dtype(ty: ScalarType) -> Option<DType> {
    Some(match ty {
        ScalarType::Bool => DType::Bool,
        ScalarType::I8 => DType::I8,
        ScalarType::I16 => DType::I16,
        ScalarType::I32 => DType::I32,
        ScalarType::I64 => DType::I64,
        ScalarType::F16 => DType::F16,
        ScalarType::BF16 => DType::BF16,
        ScalarType::F32 => DType::F32,
        ScalarType::F64 => DType::F64,
        ScalarType::Index => return None,
    })
}

#[cfg(test)]
mod tests;
