//! Interpreters of every stage, all on one strip-mined bytecode engine.
//!
//! [`run_graph`] evaluates the op graph naively: it is what a program means. [`run_loops`] and
//! [`run_storage`] execute exactly what their IR says, so a pass is checked by running its input and
//! its output on the same [`Batch`] and comparing the [`Results`].
//!
//! Each `for` nest is compiled once to register bytecode. The innermost loop runs in strips of up to
//! 256 lanes where its iterations are independent or fold into one element; values that do not vary
//! with the lanes are scalars, hoisted to the outermost loop they depend on. Floats are computed in
//! f64 and rounded to the tensor's type when stored.
//!
//! Every element carries whether it was ever written. Padding is undefined; an undefined value
//! spreads through arithmetic and is an error where it decides a condition, an index or an extent, or
//! where it is found in a result. An access outside a tensor's storage is an error at once. The graph
//! and loop stages place elements by tables of their own, not by the compiler's offsets.

mod access;
mod arith;
mod banks;
mod buffer;
mod compile;
mod compile_expr;
mod context;
mod contract;
mod copy;
mod error;
mod eval;
mod functions;
mod graph;
mod grid;
mod instr;
mod levels;
mod loops;
mod machine;
mod nest;
pub(crate) mod ops;
mod prelude;
mod regs;
mod storage;
mod tile;

#[cfg(test)]
mod tests;

pub use banks::SharedTraffic;
pub use error::{InterpError, Stage, Use};
pub use graph::run_graph;
pub use loops::run_loops;
pub use ops::{bin_f, un_f};
pub use storage::run_storage;

use crate::ids::{TensorId, UfId};
use rustc_hash::FxHashMap;
use std::ops::Range;

/// Elements of a tensor in row-major ragged order, without padding.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// Elements of any floating-point type, rounded to that type.
    F64(Vec<f64>),
    /// Integers and truth values (0 and 1).
    I64(Vec<i64>),
}

impl Data {
    /// The number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::F64(v) => v.len(),
            Self::I64(v) => v.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Element `at` as a float (integers are converted), if there is one.
    pub fn get(&self, at: usize) -> Option<f64> {
        match self {
            Self::F64(v) => v.get(at).copied(),
            Self::I64(v) => v.get(at).map(|&x| x as f64),
        }
    }
}

/// The run-time inputs of a program.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// The value of each parameter, by [`crate::ids::ParamId`].
    pub params: Vec<i64>,
    /// The table of each extent function, in row-major ragged order of its domain.
    pub extents: FxHashMap<UfId, Vec<i64>>,
    /// The elements of each input.
    pub inputs: FxHashMap<TensorId, Data>,
}

/// How to interpret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Graph only: evaluate just what this many evenly spread indices of each output's outermost
    /// dimension need.
    pub only_outer: Option<usize>,
    /// Graph only: worker threads; 0 = as many as there are cores. At most 1024 work.
    pub threads: usize,
    /// Storage only: an error where two threads of a grid race, or two iterations of a parallel loop. What barriers
    /// order is ordered only once they are placed.
    pub races: bool,
    /// Storage only: report which elements of buffers in loops are written.
    pub usage: bool,
    /// Greatest number of bytes for tensors and tables together.
    pub max_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { only_outer: None, threads: 0, races: false, usage: false, max_bytes: 16 << 30 }
    }
}

/// One result.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// The tensor.
    pub tensor: TensorId,
    /// Its elements; with `outer`, those below the evaluated indices only, one after the other.
    pub data: Data,
    /// The outermost indices that were evaluated; nothing = all.
    pub outer: Option<Vec<i64>>,
    /// Which elements of the whole tensor (row-major ragged order) `data` holds: one range for each
    /// evaluated outermost index, or one for everything.
    pub ranges: Vec<Range<usize>>,
}

/// What a program uses of a buffer that is not global.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferUse {
    /// The tensor.
    pub tensor: TensorId,
    /// For each element of a slot whether it was written in any execution of the loop around the buffer.
    pub written: Vec<bool>,
}

/// What a program computed.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Results {
    /// In the order of the graph's outputs; in other stages, by tensor id.
    pub outputs: Vec<Output>,
    /// Storage only, with [`Options::races`]: what each kernel uses of the shared memory of a grid's blocks.
    pub shared: Vec<SharedTraffic>,
    /// Storage only, with [`Options::usage`]: buffers in loops, but for those that threads of a grid have of their own.
    pub used: Vec<BufferUse>,
}

impl Results {
    /// The result for `tensor`.
    pub fn output(&self, tensor: TensorId) -> Option<&Output> {
        self.outputs.iter().find(|o| o.tensor == tensor)
    }
}
