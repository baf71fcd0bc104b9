//! The data that describes a compiled program: the contract between code generators and this runtime.
//!
//! Everything here is plain serialisable data plus [`ProgramDesc::validate`]. All run-time sizes are [`Ix`]
//! expressions over the program's parameters and prelude tables, so that one description serves every batch.
//!
//! A description is *not* trusted: whatever it holds, the runtime answers with a typed error and never panics,
//! overflows, hangs or reads out of bounds. The kernels that it names are native code and *are* trusted.

mod grid;
mod import;
mod ix;
mod validate;

pub use grid::{
    GridArg, GridDesc, GridLaunch, GridMap, MAP_UNIT, MAX_BOX, MAX_MAP_DIMS, MAX_SHARED, MAX_THREADS, MapDim,
    SWIZZLED_BYTES,
};
pub use import::{GemmFn, Import};
pub use ix::{Ix, IxOp};
pub use validate::{DescError, DescFault, MAX_ALIGN, MAX_DIMS, MAX_ITEMS, MAX_IX_DEPTH, MAX_IX_NODES, MAX_NAME};

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// The version of this contract; [`ProgramDesc::version`] must equal it.
pub const ABI_VERSION: u32 = 5;

/// The native signature of a kernel.
///
/// - `bufs[b]` is the first byte of buffer `b` (for a [`BufferKind::PerWorker`] buffer: of this worker's slot);
/// - `tables[t]` is the first entry of prelude table `t`, of the width that its [`TableDesc`] declares;
/// - `scalars[p]` is the value of parameter `p`;
/// - iterations `lo..hi` of the parallel loop are to be run (`0..1` for a serial kernel);
/// - `worker` is the index of the calling worker, below the number of threads.
///
/// A kernel must give the same bytes however its iterations are cut into ranges and dealt to workers. It must not
/// unwind.
pub type KernelFn = unsafe extern "C" fn(
    bufs: *const *mut u8,
    tables: *const *const u8,
    scalars: *const i64,
    lo: i64,
    hi: i64,
    worker: i64,
);

/// An element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DType {
    /// One byte, 0 or 1.
    Bool,
    /// Signed 8-bit integer.
    I8,
    /// Signed 16-bit integer.
    I16,
    /// Signed 32-bit integer.
    I32,
    /// Signed 64-bit integer.
    I64,
    /// IEEE binary16.
    F16,
    /// bfloat16.
    BF16,
    /// IEEE binary32.
    F32,
    /// IEEE binary64.
    F64,
}

impl DType {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            DType::Bool | DType::I8 => 1,
            DType::I16 | DType::F16 | DType::BF16 => 2,
            DType::I32 | DType::F32 => 4,
            DType::I64 | DType::F64 => 8,
        }
    }

    /// The name that programs use.
    pub fn name(self) -> &'static str {
        match self {
            DType::Bool => "bool",
            DType::I8 => "i8",
            DType::I16 => "i16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F32 => "f32",
            DType::F64 => "f64",
        }
    }

    /// Whether this is one of `i8` to `i64` (`bool` is not).
    pub fn is_integer(self) -> bool {
        matches!(self, DType::I8 | DType::I16 | DType::I32 | DType::I64)
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A size parameter: one integer that comes with each batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParamDesc {
    /// The name that the user gives values by; unique among parameters.
    pub name: String,
    /// Least value.
    pub lo: i64,
    /// Greatest value (inclusive).
    pub hi: i64,
}

/// An extent function: a table of integers that comes with each batch, in row-major ragged order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtentFn {
    /// The name that the user gives values by; unique among extent functions.
    pub name: String,
    /// Extents of the arguments; the `j`-th may use `Arg(0..j)` and tables before [`ExtentFn::table`].
    pub domain: Vec<Ix>,
    /// Least value; over parameters only.
    pub lo: Ix,
    /// Greatest value (inclusive); over parameters only.
    pub hi: Ix,
    /// The [`TableKind::Input`] table that the values fill.
    pub table: u32,
}

/// The storage type of a table's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum TableWidth {
    /// 32-bit signed entries.
    I32,
    /// 64-bit signed entries.
    I64,
}

impl TableWidth {
    /// Bytes of one entry.
    pub fn size(self) -> usize {
        match self {
            TableWidth::I32 => 4,
            TableWidth::I64 => 8,
        }
    }
}

/// A prelude table. Tables are built in order, and each may read earlier ones only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableDesc {
    /// Name for reports.
    pub name: String,
    /// Storage type; an entry that does not fit is an error.
    pub width: TableWidth,
    /// How the entries come about.
    pub kind: TableKind,
}

/// How a table's entries come about. In every domain the `j`-th extent may use `Arg(0..j)`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TableKind {
    /// Filled from the extent function that names this table.
    Input,
    /// `value` at each point of `domain`, in row-major order (one entry where the domain has no dims).
    Map {
        /// Extents of the domain, outermost first.
        domain: Vec<Ix>,
        /// The entry at `Arg(0..domain.len())`.
        value: Ix,
    },
    /// Exclusive prefix sums of `value` along the last dim (of at least one). A row of extent `n` yields `n + 1`
    /// entries, the last being the row's total; rows follow each other.
    PrefixSum {
        /// Extents of the domain, outermost first.
        domain: Vec<Ix>,
        /// The summand at `Arg(0..domain.len())`.
        value: Ix,
    },
    /// One entry: the greatest `value` over `domain`, 0 where the domain is empty.
    ReduceMax {
        /// Extents of the domain, outermost first.
        domain: Vec<Ix>,
        /// The value at `Arg(0..domain.len())`.
        value: Ix,
    },
    /// One entry: the sum of `value` over `domain`, 0 where the domain is empty.
    ReduceSum {
        /// Extents of the domain, outermost first.
        domain: Vec<Ix>,
        /// The value at `Arg(0..domain.len())`.
        value: Ix,
    },
    /// For each row of the last dim (of at least one) a permutation of its indices by decreasing `key`; equal keys keep
    /// increasing order.
    SortDesc {
        /// Extents of the domain, outermost first.
        domain: Vec<Ix>,
        /// The key at `Arg(0..domain.len())`.
        key: Ix,
    },
}

/// One dim of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DimDesc {
    /// Logical extent; may use `Arg(j)` for outer dims `j`.
    pub extent: Ix,
    /// Extent in storage, at least `extent`; may use `Arg(j)` for outer dims `j`.
    pub storage: Ix,
}

/// What a tensor is to the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Role {
    /// Comes with each batch.
    Input,
    /// Given once, kept, and prepared by the setup kernels.
    ConstInput,
    /// Produced by each run.
    Output,
}

/// A tensor that the user gives or gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorDesc {
    /// The name that the user knows; unique among tensors.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Dims, outermost first; none for a scalar.
    pub dims: Vec<DimDesc>,
    /// Input, const input or output.
    pub role: Role,
    /// The buffer that holds it.
    pub buffer: u32,
    /// Half-open range that the value of an integer tensor at `Arg(0..dims.len())` must be in, checked before launch.
    pub value_range: Option<(Ix, Ix)>,
    /// Flat element offset in the buffer of the element at `Arg(0..dims.len())`.
    pub offset: Ix,
}

/// What a buffer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum BufferKind {
    /// Holds the input or const input of this tensor index.
    Input(u32),
    /// Holds the output of this tensor index.
    Output(u32),
    /// Holds an intermediate; its memory is shared with others that are not live at the same time. One that a setup
    /// kernel writes is kept for good.
    Temp,
    /// One slot of `elems` elements for each worker, with no contents from one call to the next.
    PerWorker,
}

/// A flat buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BufferDesc {
    /// Name for reports.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Number of elements (of one slot, where per worker); over parameters and tables, no `Arg`.
    pub elems: Ix,
    /// What it is for.
    pub kind: BufferKind,
    /// Alignment in bytes, a power of two up to [`MAX_ALIGN`]; at least 64 is always given.
    pub align: u32,
}

/// A kernel, of native signature [`KernelFn`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelDesc {
    /// Name for reports.
    pub name: String,
    /// Symbol to look the function up by.
    pub symbol: String,
    /// Iterations of its parallel loop; `None` for a serial kernel, called once with `0..1`. No `Arg`.
    pub trip: Option<Ix>,
    /// Useful floating-point operations (two to a multiply-add) for reports and chunk sizes. No `Arg`.
    pub stage_flops: Option<Ix>,
    /// Buffers that it reads. Together with `writes` these decide how long a temporary lives; a temporary that no
    /// kernel lists lives throughout.
    pub reads: Vec<u32>,
    /// Buffers that it writes.
    pub writes: Vec<u32>,
}

/// A compiled program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramDesc {
    /// [`ABI_VERSION`] of the producer.
    pub version: u32,
    /// Name for reports.
    pub name: String,
    /// Size parameters, in the order of a kernel's `scalars`.
    pub params: Vec<ParamDesc>,
    /// Extent functions.
    pub extents: Vec<ExtentFn>,
    /// Prelude tables, in building order.
    pub tables: Vec<TableDesc>,
    /// Inputs and outputs.
    pub tensors: Vec<TensorDesc>,
    /// Buffers, in the order of a kernel's `bufs`.
    pub buffers: Vec<BufferDesc>,
    /// Kernels, in running order.
    pub kernels: Vec<KernelDesc>,
    /// Kernels run once the const inputs are there, before the first run.
    pub setup_kernels: Vec<KernelDesc>,
    /// Functions of libraries that the code calls.
    pub imports: Vec<Import>,
}

impl ProgramDesc {
    /// The bytes of an artifact's description.
    ///
    /// # Errors
    /// [`Error::Decode`] where an expression is beyond the ABI's bounds.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        postcard::to_allocvec(self).map_err(|e| Error::Decode(e.to_string()))
    }

    /// Decodes and validates a description.
    ///
    /// # Errors
    /// [`Error::Decode`], [`Error::Desc`].
    pub fn from_bytes(bytes: &[u8]) -> Result<ProgramDesc> {
        let (desc, rest): (ProgramDesc, _) =
            postcard::take_from_bytes(bytes).map_err(|e| Error::Decode(e.to_string()))?;
        if !rest.is_empty() {
            return Err(Error::Decode(format!("{} bytes too many", rest.len())));
        }
        desc.validate()?;
        Ok(desc)
    }
}
