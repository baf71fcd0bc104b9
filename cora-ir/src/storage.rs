//! The storage dialect: flat buffers, explicit offsets, vectors, tables.

use crate::env::Env;
use crate::ids::{ExprId, TensorId, UfId, VarId};
use crate::loops::LoopKind;
use crate::types::Combiner;

mod bulk;
mod gemm;
mod stmt;
pub use bulk::{BOX_BEGIN, BOX_UNIT, Bulk, BulkDim, MOST_DIMS, MOST_EXTENT, SWIZZLED_BEGIN, SWIZZLED_LINE};
pub use gemm::{Gemm, Matrix};
pub use stmt::{is_atomic, is_copy};

mod tile;
pub use tile::Tile;

/// A program in the storage dialect. Every tensor of `env` that is used is a flat buffer here, and
/// every load has exactly one index.
#[derive(Clone, Debug, Default)]
pub struct StorageModule {
    /// The program's name.
    pub name: String,
    /// Parameters, functions, tensors, expressions.
    pub env: Env,
    /// Size and layout of each tensor.
    pub buffers: Vec<Buffer>,
    /// The prelude: tables in the order in which they are built.
    pub tables: Vec<Table>,
    /// Kernels in execution order.
    pub kernels: Vec<Kernel>,
}

/// How a tensor is laid out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// The tensor.
    pub tensor: TensorId,
    /// Number of elements (of one worker's slot for scope `Local`, a constant for `Reg`), over
    /// parameters and table reads.
    pub elems: ExprId,
    /// Flat offset of the element at `Arg(0..rank)`: what the host uses to place inputs and find
    /// outputs. Tables are read by load. Only for tensors with role input or output.
    pub offset: Option<ExprId>,
}

/// One table of the prelude: the values of an uninterpreted function, exact size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The function whose values it holds (its kind says how it is built).
    pub uf: UfId,
    /// The buffer: one-dimensional, `i32` or `i64`.
    pub tensor: TensorId,
    /// Number of entries.
    pub entries: ExprId,
    /// The function's domain with calls replaced by reads of earlier tables.
    pub domain: Vec<ExprId>,
    /// The defining body with calls replaced by reads of earlier tables (nothing for `Extent`).
    pub body: Option<ExprId>,
}

/// One nest, one fork and join at most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Its symbol, unique in the module.
    pub name: String,
    /// Statements; a parallel loop, if there is one, is the last statement, preceded by `Let`s only.
    pub body: Vec<Stmt>,
}

/// A statement of the storage dialect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stmt {
    /// `for var in 0..extent`.
    For {
        /// The loop variable.
        var: VarId,
        /// Trip count; negative counts as 0.
        extent: ExprId,
        /// How it runs. `Vector` and `Unroll` disappear in legalisation.
        kind: LoopKind,
        /// What it runs.
        body: Vec<Stmt>,
    },
    /// Runs `then` or `other`.
    If {
        /// A scalar condition.
        cond: ExprId,
        /// Where it holds.
        then: Vec<Stmt>,
        /// Where it does not.
        other: Vec<Stmt>,
    },
    /// Names an `Index` value for the statements after it in the same body.
    Let {
        /// The name.
        var: VarId,
        /// The value.
        value: ExprId,
    },
    /// `tensor[index] = value`, lane by lane where the index is a vector.
    Store {
        /// The buffer.
        tensor: TensorId,
        /// Flat offset.
        index: ExprId,
        /// The value.
        value: ExprId,
        /// Lanes (or the one element) to write; nothing = all.
        mask: Option<ExprId>,
        /// Other buffers written at the same index under the same mask: the components of a tuple. All
        /// values are computed before anything is written.
        rest: Vec<(TensorId, ExprId)>,
    },
    /// `tensor[index] = combine(tensor[index], value)`, which nothing comes between: of threads and blocks that nothing
    /// orders, each has its part in the element. Stands in a grid.
    Atomic {
        /// The global buffer.
        tensor: TensorId,
        /// Flat offset of one element.
        index: ExprId,
        /// How: one of [`is_atomic`].
        combiner: Combiner,
        /// One value.
        value: ExprId,
    },
    /// A store to shared memory that goes on while its thread does. The value is an element of a global buffer or a vector
    /// of them; where its guard does not hold, zero. It has arrived for its thread once its group has been waited for,
    /// and for the others at the next barrier; until then the element is neither read nor written.
    Copy {
        /// The shared buffer.
        tensor: TensorId,
        /// Flat offset.
        index: ExprId,
        /// What is copied.
        value: ExprId,
        /// Lanes (or the one element) to copy; nothing = all.
        mask: Option<ExprId>,
    },
    /// The copies since the last one, or since the kernel began, become a group, perhaps an empty one. Stands outside
    /// thread loops.
    Commit,
    /// Each thread waits until its copies of all groups but the last few have arrived. Stands outside thread loops.
    Wait {
        /// How many groups may still be on their way.
        pending: u32,
    },
    /// One thread of the block asks the copy engine for a box: [`Bulk`]. Stands outside thread loops.
    Bulk(Box<Bulk>),
    /// Each thread waits until the box that was last asked for into a slot of a shared buffer is there. Stands outside
    /// thread loops, and once for each box.
    Await {
        /// The buffer.
        tensor: TensorId,
        /// The slot, from 0.
        slot: ExprId,
    },
    /// Asks the caches for an element that is read later; nothing is read, and nothing has to be there.
    Prefetch {
        /// The buffer.
        tensor: TensorId,
        /// Flat offset.
        index: ExprId,
        /// From 0 (used once) to 3 (kept in all caches).
        locality: i64,
    },
    /// A product of matrices: [`Gemm`].
    Gemm(Box<Gemm>),
    /// A tile that a tensor instruction computes: [`Tile`]. One that several lanes execute stands outside loops over
    /// `thread.x`, whose threads are its lanes.
    Tile(Box<Tile>),
    /// The lanes of a warp exchange registers: of each thread, the element of `to` becomes the element of `from` of the
    /// thread whose number along x differs in the bits of `xor`. Both are registers of one element. Stands outside
    /// loops over `thread.x`, whose 32 threads are the lanes.
    Shuffle {
        /// What is written.
        to: TensorId,
        /// What is read, of another lane.
        from: TensorId,
        /// The bits in which the other lane's number differs, in 1..32.
        xor: u32,
    },
    /// Every thread of the block waits for all others; what was written to shared and global
    /// memory before it is seen after it. Stands outside thread loops.
    Barrier,
    /// What threads do about tiles that go on beside them. Stands outside loops over `thread.x`.
    Beside(Beside),
}

/// Of tiles whose instruction goes on while its threads do ([`crate::intrinsic::Intrinsic::beside`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Beside {
    /// What each thread has stored or copied to shared memory before, the instructions see after the next barrier.
    Fence,
    /// The tiles since the last one become a group.
    Commit,
    /// The lanes wait until all of their groups but the last few are done.
    Wait {
        /// How many groups may go on.
        pending: u32,
        /// The results of those that are waited for.
        results: Vec<TensorId>,
    },
}

/// Threads of a warp.
pub const WARP: i64 = 32;

impl Kernel {
    /// How many lanes work together, exchanging registers or executing an instruction: all different numbers.
    pub fn lanes(&self) -> Vec<i64> {
        let mut out: Vec<i64> = Vec::new();
        self.body.iter().for_each(|s| s.walk(&mut |s| out.extend(s.lanes())));
        out.sort_unstable();
        out.dedup();
        out
    }

    /// Whether a loop of it is bound to a grid.
    pub fn is_grid(&self) -> bool {
        self.body.iter().any(|s| s.any(&mut |s| matches!(s, Stmt::For { kind: LoopKind::Bound(_), .. })))
    }

    /// Threads of a block along x, y and z: the greatest extents of thread loops, 1 where there is
    /// none. Nothing if one has no constant bound.
    pub fn threads(&self, env: &Env) -> Option<[i64; 3]> {
        let mut threads = Some([1; 3]);
        for s in &self.body {
            s.walk(&mut |s| {
                if let Stmt::For { extent, kind: LoopKind::Bound(axis), .. } = s
                    && axis.is_thread()
                {
                    match (env.pool.constant_bound(*extent), &mut threads) {
                        (Some(n), Some(t)) => t[axis.dimension()] = n.max(t[axis.dimension()]),
                        _ => threads = None,
                    }
                }
            });
        }
        threads
    }
}

impl StorageModule {
    /// Whether kernels of it run on a grid.
    pub fn is_grid(&self) -> bool {
        self.kernels.iter().any(Kernel::is_grid)
    }

    /// The layout of `tensor`.
    pub fn buffer(&self, tensor: TensorId) -> Option<&Buffer> {
        self.buffers.iter().find(|b| b.tensor == tensor)
    }

    /// The table that holds the values of `uf`.
    pub fn table(&self, uf: UfId) -> Option<&Table> {
        self.tables.iter().find(|t| t.uf == uf)
    }
}
