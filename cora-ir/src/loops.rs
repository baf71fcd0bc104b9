//! The loop dialect: structured loops around blocks, multi-dimensional accesses, uninterpreted
//! functions. Executable from the first lowering on; scheduling primitives rewrite it.

mod body;

use crate::env::Env;
use crate::expr::{ExprPool, Mark};
use crate::ids::{ExprId, TensorId, VarId};
use crate::intrinsic::{INTRINSICS, IntrinsicId};
use crate::tensor_set::TensorSet;
use crate::tuple::Reduction;
pub use body::Body;

/// A program in the loop dialect. `body` is a sequence of nests, each one kernel.
#[derive(Clone, Debug, Default)]
pub struct LoopModule {
    /// The program's name.
    pub name: String,
    /// Parameters, functions, tensors, expressions.
    pub env: Env,
    /// Top-level nests, in execution order.
    pub body: Body,
}

/// A statement of the loop dialect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stmt {
    /// A loop from 0.
    For(For),
    /// A leaf.
    Block(Block),
}

/// What of a grid a loop's iterations are spread over.
///
/// A grid is a set of blocks that run independently; the threads of one block share memory and
/// meet at barriers (CUDA's model). Thread loops stand inside block loops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Axis {
    /// One block an iteration.
    BlockX,
    /// One block an iteration; at most 65535.
    BlockY,
    /// One block an iteration; at most 65535.
    BlockZ,
    /// One thread an iteration; neighbours in a warp.
    ThreadX,
    /// One thread an iteration.
    ThreadY,
    /// One thread an iteration; at most 64.
    ThreadZ,
}

impl Axis {
    /// Every axis.
    pub const ALL: [Axis; 6] = [Self::BlockX, Self::BlockY, Self::BlockZ, Self::ThreadX, Self::ThreadY, Self::ThreadZ];

    /// The name in text.
    pub fn name(self) -> &'static str {
        match self {
            Self::BlockX => "block.x",
            Self::BlockY => "block.y",
            Self::BlockZ => "block.z",
            Self::ThreadX => "thread.x",
            Self::ThreadY => "thread.y",
            Self::ThreadZ => "thread.z",
        }
    }

    /// 0, 1 or 2 for x, y and z.
    pub fn dimension(self) -> usize {
        match self {
            Self::BlockX | Self::ThreadX => 0,
            Self::BlockY | Self::ThreadY => 1,
            Self::BlockZ | Self::ThreadZ => 2,
        }
    }

    /// How many blocks a launch has along it at most (CUDA, all architectures); nothing for threads.
    pub fn most_blocks(self) -> Option<i64> {
        match self {
            Self::BlockX => Some(i64::from(i32::MAX)),
            Self::BlockY | Self::BlockZ => Some(65_535),
            Self::ThreadX | Self::ThreadY | Self::ThreadZ => None,
        }
    }

    /// Whether iterations are threads of one block (else they are blocks).
    pub fn is_thread(self) -> bool {
        matches!(self, Self::ThreadX | Self::ThreadY | Self::ThreadZ)
    }
}

/// How a loop runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LoopKind {
    /// In order.
    Serial,
    /// Spread over workers; iterations are independent.
    Parallel,
    /// As the lanes of vectors; the extent's greatest value is a constant.
    Vector,
    /// Replicated; the extent's greatest value is a constant.
    Unroll,
    /// Over the blocks of a grid, or the threads of a block; iterations are independent.
    Bound(Axis),
    /// By each thread for all iterations at once, their statements side by side; iterations are independent.
    Virtual,
    /// With all loops inside as one product of matrices, which a library multiplies.
    Offload,
    /// With the loops of this kind inside as one tile of a tensor instruction.
    Tensorize(IntrinsicId),
    /// With the loops of this kind inside as one copy of a box by a GPU's copy engine.
    Bulk,
}

impl LoopKind {
    /// Whether it marks loops that lowering describes as data: what a library or an instruction does.
    pub fn is_described(self) -> bool {
        matches!(self, Self::Offload | Self::Tensorize(_) | Self::Bulk)
    }

    /// Every kind.
    pub const ALL: [LoopKind; 13 + INTRINSICS.len()] = {
        let mut all = [Self::Bulk; 13 + INTRINSICS.len()];
        all[0] = Self::Serial;
        all[1] = Self::Parallel;
        all[2] = Self::Vector;
        all[3] = Self::Unroll;
        let mut n = 0;
        while n < Axis::ALL.len() {
            all[4 + n] = Self::Bound(Axis::ALL[n]);
            n += 1;
        }
        all[10] = Self::Virtual;
        all[11] = Self::Offload;
        n = 0;
        while n < INTRINSICS.len() {
            all[12 + n] = Self::Tensorize(IntrinsicId::ALL[n]);
            n += 1;
        }
        all
    };

    /// What a loop of this kind is, in a sentence.
    pub fn described(self) -> &'static str {
        match self {
            Self::Unroll => "unrolled",
            Self::Offload => "offloaded",
            _ => self.name(),
        }
    }

    /// The name in text.
    pub fn name(self) -> &'static str {
        match self {
            Self::Serial => "serial",
            Self::Parallel => "parallel",
            Self::Vector => "vector",
            Self::Unroll => "unroll",
            Self::Bound(axis) => axis.name(),
            Self::Virtual => "vthread",
            Self::Offload => "offload",
            Self::Bulk => "bulk",
            Self::Tensorize(i) => i.get().name,
        }
    }

    /// The axis that the loop is bound to.
    pub fn axis(self) -> Option<Axis> {
        match self {
            Self::Bound(axis) => Some(axis),
            _ => None,
        }
    }

    /// Whether iterations are threads of a block.
    pub fn is_thread(self) -> bool {
        self.axis().is_some_and(Axis::is_thread)
    }

    /// Whether iterations are blocks of a grid.
    pub fn is_block(self) -> bool {
        self.axis().is_some_and(|a| !a.is_thread())
    }
}

/// `for var in 0..extent`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct For {
    /// The loop variable; its name is the loop's name in schedules.
    pub var: VarId,
    /// The stage this loop belongs to, for schedules to find it.
    pub stage: TensorId,
    /// Trip count, over enclosing loop variables; negative counts as 0.
    pub extent: ExprId,
    /// How it runs.
    pub kind: LoopKind,
    /// What each iteration asks the caches for.
    pub prefetch: Vec<Prefetch>,
    /// Whether it is one of the loops around a reduction's `init` block (derived from the update's).
    pub init: bool,
    /// What it runs.
    pub body: Body,
}

/// What a stage reads of a tensor in a later iteration of a loop. Has no meaning but for caches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefetch {
    /// Whose iterations are counted: a loop around the one that asks, or nothing for that one itself. The loops between
    /// them that the reads do not depend on each ask for a share.
    pub of: Option<VarId>,
    /// The reading stage.
    pub stage: TensorId,
    /// The tensor.
    pub tensor: TensorId,
    /// How many iterations later, at least 1.
    pub distance: i64,
    /// From 0 (used once) to 3 (kept in all caches).
    pub locality: i64,
}

/// What a block does to its element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockRole {
    /// `tensor[index] = value`
    Compute,
    /// `tensor[index] = identity`, before the first update
    Init,
    /// `tensor[index] = combine(tensor[index], value)`
    Update(Reduction),
}

/// Whether a block dimension indexes the result or is reduced over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IterKind {
    /// Distinct values write distinct elements.
    Spatial,
    /// Different values combine into one element.
    Reduce,
}

/// A dimension of a block: its own variable, its domain, and what it is bound to outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Iter {
    /// The variable that the block's body uses.
    pub var: VarId,
    /// Spatial or reduced.
    pub kind: IterKind,
    /// Size of the domain `0..extent`, over earlier iterators' variables.
    pub extent: ExprId,
    /// Its value, over enclosing loop variables.
    pub binding: ExprId,
}

/// A leaf: one element is written for each execution in which all predicates hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The stage this block belongs to.
    pub stage: TensorId,
    /// What it does.
    pub role: BlockRole,
    /// Whether this update goes on from a partial result that another block leaves in its elements, so
    /// that it has no `init` block of its own (the later parts of a reduction that is split).
    pub continues: bool,
    /// Whether this update of one value is indivisible: iterations that nothing orders combine into one element, in
    /// any order.
    pub atomic: bool,
    /// Typed dimensions and their bindings.
    pub iters: Vec<Iter>,
    /// Conjuncts over enclosing loop variables; nothing happens unless all hold.
    pub predicate: Vec<ExprId>,
    /// The tensor written.
    pub tensor: TensorId,
    /// Its index, over `iters`' variables.
    pub index: Vec<ExprId>,
    /// The value, over `iters`' variables; of a tensor of tuples a tuple.
    pub value: ExprId,
}

impl Stmt {
    /// Visits this statement and all below it, outermost first.
    pub fn walk<'a>(&'a self, f: &mut dyn FnMut(&'a Stmt)) {
        f(self);
        if let Stmt::For(l) = self {
            for s in &l.body {
                s.walk(f);
            }
        }
    }

    /// Visits this statement and those below it, outermost first, but for what stands in loops that `enters` does not hold of.
    pub fn walk_where<'a>(&'a self, enters: &dyn Fn(&Stmt) -> bool, f: &mut dyn FnMut(&'a Stmt)) {
        if !enters(self) {
            return;
        }
        f(self);
        if let Stmt::For(l) = self {
            for s in &l.body {
                s.walk_where(enters, f);
            }
        }
    }

    /// The stages that it and the statements below may be of, and the tensors that they may write.
    pub fn concerned(&self) -> TensorSet {
        match self {
            Stmt::For(l) => TensorSet::of(l.stage).with(l.body.concerned()),
            Stmt::Block(b) => TensorSet::of(b.stage).with(TensorSet::of(b.tensor)),
        }
    }

    /// The tensors that it and the statements below may read, also to know which elements there are.
    pub fn read(&self, pool: &ExprPool) -> TensorSet {
        match self {
            Stmt::For(l) => pool.loads(l.extent).with(l.body.read(pool)),
            Stmt::Block(b) => {
                let iters = b.iters.iter().flat_map(|i| [i.extent, i.binding]);
                let own = b.predicate.iter().chain(&b.index).chain([&b.value]).copied();
                iters.chain(own).map(|e| pool.loads(e)).collect()
            }
        }
    }

    /// Visits every block below, mutably.
    pub fn blocks_mut(&mut self, f: &mut dyn FnMut(&mut Block)) {
        match self {
            Stmt::Block(b) => f(b),
            Stmt::For(l) => l.body.iter_mut().for_each(|s| s.blocks_mut(f)),
        }
    }
}

/// A state of a module that it can go back to. Its expressions are not copied: what is built later is forgotten.
#[derive(Debug)]
pub struct Checkpoint {
    /// Without its expressions.
    module: LoopModule,
    mark: Mark,
}

impl LoopModule {
    /// The present state, for [`LoopModule::restore`].
    pub fn checkpoint(&mut self) -> Checkpoint {
        let pool = std::mem::take(&mut self.env.pool);
        let mark = pool.mark();
        let module = self.clone();
        self.env.pool = pool;
        Checkpoint { module, mark }
    }

    /// Goes back to an earlier state of this module. Ids of expressions that were built since mean nothing any more.
    pub fn restore(&mut self, to: Checkpoint) {
        let mut pool = std::mem::take(&mut self.env.pool);
        pool.rollback(to.mark);
        *self = to.module;
        self.env.pool = pool;
    }

    /// The blocks of a stage, in execution order.
    pub fn blocks_of(&self, stage: TensorId) -> Vec<&Block> {
        self.blocks_where(&|s| s.concerned().may_have(stage), &|b| b.stage == stage)
    }

    /// The blocks that write a tensor, in execution order.
    pub fn blocks_writing(&self, tensor: TensorId) -> Vec<&Block> {
        self.blocks_where(&|s| s.concerned().may_have(tensor), &|b| b.tensor == tensor)
    }

    /// The blocks that may read a tensor, in execution order.
    pub fn blocks_reading(&self, tensor: TensorId) -> Vec<&Block> {
        self.blocks_where(&|s| s.read(&self.env.pool).may_have(tensor), &|_| true)
    }

    fn blocks_where(&self, enters: &dyn Fn(&Stmt) -> bool, is: &dyn Fn(&Block) -> bool) -> Vec<&Block> {
        let mut out = Vec::new();
        for s in &self.body {
            s.walk_where(enters, &mut |s| {
                if let Stmt::Block(b) = s
                    && is(b)
                {
                    out.push(b);
                }
            });
        }
        out
    }

    /// Every block, in execution order.
    pub fn blocks(&self) -> Vec<&Block> {
        let mut out = Vec::new();
        for s in &self.body {
            s.walk(&mut |s| {
                if let Stmt::Block(b) = s {
                    out.push(b);
                }
            });
        }
        out
    }
}
