//! Schedules as data: steps that name stages and loops in text, since steps create loops.

use crate::intrinsic::IntrinsicId;
use crate::loops::Axis;
use std::fmt;

/// Bytes `start..end` of the source text; `0..0` for steps that come from the builder.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct Span {
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

/// A named list of steps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Schedule {
    /// Its name; `cpu` and `cuda` are the defaults of those targets.
    pub name: String,
    /// Features of a machine for which it is the default, `-` and `.` written as `_`; nothing if its name says that.
    pub features: Vec<String>,
    /// What to do, in order.
    pub steps: Vec<Step>,
}

/// One step and where it was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// What to do.
    pub kind: StepKind,
    /// Where it was written; of a step inside a schedule function, the outermost call.
    pub span: Span,
    /// Of a step inside a schedule function: its text with the arguments of the call.
    pub called: Option<String>,
}

impl From<StepKind> for Step {
    /// A step that no text has.
    fn from(kind: StepKind) -> Self {
        Step { kind, span: Span::default(), called: None }
    }
}

/// A loop: `stage.loop`.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct LoopRef {
    /// The stage's (tensor's) name; may itself contain dots (`P.sum`).
    pub stage: String,
    /// The loop's name within the stage.
    pub name: String,
}

/// What happens to the iterations that do not fill a tile.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub enum Tail {
    /// The inner loop ends early: its extent is `min(factor, extent - outer * factor)`.
    #[default]
    Exact,
    /// The inner loop always runs `factor` times; a predicate masks the surplus.
    Mask,
    /// As `Exact`, then the outer loop is peeled: full tiles in `S.main`, the tail in `S.tail`.
    Peel,
}

/// What the iterations of a bound loop become.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Binding {
    /// Blocks or threads along one axis.
    Axis(Axis),
    /// Warps of the block: `thread.y`, where the innermost axis has the 32 lanes of a warp.
    Warp,
    /// Virtual threads: every thread runs them all, interleaved.
    Virtual,
}

impl Binding {
    /// Every binding.
    pub const ALL: [Binding; 8] = [
        Self::Axis(Axis::BlockX),
        Self::Axis(Axis::BlockY),
        Self::Axis(Axis::BlockZ),
        Self::Axis(Axis::ThreadX),
        Self::Axis(Axis::ThreadY),
        Self::Axis(Axis::ThreadZ),
        Self::Warp,
        Self::Virtual,
    ];

    /// Whether iterations become threads of one block.
    pub fn is_thread(self) -> bool {
        matches!(self, Self::Warp) || matches!(self, Self::Axis(a) if a.is_thread())
    }

    /// The name in text.
    pub fn name(self) -> &'static str {
        match self {
            Self::Axis(a) => a.name(),
            Self::Warp => "warp",
            Self::Virtual => "vthread",
        }
    }
}

/// A dimension of a tensor as the tensor is when the step is applied.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum DimRef {
    /// By its position.
    At(usize),
    /// By its name.
    Named(String),
}

impl From<usize> for DimRef {
    fn from(position: usize) -> Self {
        DimRef::At(position)
    }
}

impl From<&str> for DimRef {
    fn from(name: &str) -> Self {
        DimRef::Named(name.to_owned())
    }
}

impl fmt::Display for DimRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DimRef::At(position) => write!(f, "{position}"),
            DimRef::Named(name) => f.write_str(name),
        }
    }
}

/// Where a copy of what a stage reads is made.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum CopyAt {
    /// In each iteration of this loop of the stage: the region that it reads.
    Loop(LoopRef),
    /// Once for given const inputs: the whole tensor.
    Setup,
    /// In a nest of its own before the stage's: the whole tensor.
    Before,
}

impl CopyAt {
    /// The loop, if there is one.
    pub fn as_loop(&self) -> Option<&LoopRef> {
        match self {
            Self::Loop(l) => Some(l),
            Self::Setup | Self::Before => None,
        }
    }
}

/// One dimension of a copy's layout: a dimension of the tensor, or one half of it; in a step it may be a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct LayoutDim<D = DimRef> {
    /// Which among the tensor's dimensions.
    pub dim: D,
    /// What of it.
    pub part: Part,
}

/// Which part of a tensor's dimension a dimension of a copy is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Part {
    /// All of it.
    Whole,
    /// `d / c`: blocks of `c` positions. The last one may be partial in extent; its storage is not.
    Div(i64),
    /// `d % c`: the position in the block.
    Mod(i64),
}

impl<D> LayoutDim<D> {
    /// A whole dimension.
    pub fn whole(dim: impl Into<D>) -> Self {
        Self { dim: dim.into(), part: Part::Whole }
    }
    /// `dim / block`.
    pub fn div(dim: impl Into<D>, block: i64) -> Self {
        Self { dim: dim.into(), part: Part::Div(block) }
    }
    /// `dim % block`.
    pub fn modulo(dim: impl Into<D>, block: i64) -> Self {
        Self { dim: dim.into(), part: Part::Mod(block) }
    }
    /// The part in text, after the dimension: nothing, `/c` or `%c`.
    pub fn suffix(&self) -> String {
        match self.part {
            Part::Whole => String::new(),
            Part::Div(c) => format!("/{c}"),
            Part::Mod(c) => format!("%{c}"),
        }
    }
}

/// A dimension of the tiles of a packed copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct PackDim<D = DimRef> {
    /// Which among the tensor's dimensions.
    pub dim: D,
    /// How many positions of it a tile has; nothing = all.
    pub size: Option<i64>,
}

/// Where a padded position count is rounded to.
pub type Multiple = i64;

/// An index expression in a step: names are loops, parameters and extent functions at that point.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Formula {
    /// A constant.
    Int(i64),
    /// A parameter, or the iteration of a loop.
    Name(String),
    /// `floordiv`, `ceildiv`, `min`, `max`, `size` of a loop, or an extent function.
    Call(String, Vec<Formula>),
    /// `+`, `-` or `*`.
    Bin(char, Box<Formula>, Box<Formula>),
}

impl std::fmt::Display for Formula {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Int(n) => write!(f, "{n}"),
            Self::Name(n) => f.write_str(n),
            Self::Call(n, args) => {
                let args: Vec<String> = args.iter().map(Self::to_string).collect();
                write!(f, "{n}({})", args.join(", "))
            }
            Self::Bin(op, a, b) => {
                // Looser operands, and those of the same strength on the right, stand in brackets.
                let loose = |e: &Self, right: bool| match e {
                    Self::Bin(o, ..) => (*op == '*' && *o != '*') || (right && (*o == '*') == (*op == '*')),
                    _ => false,
                };
                let side = |e: &Self, right| if loose(e, right) { format!("({e})") } else { e.to_string() };
                write!(f, "{} {op} {}", side(a, false), side(b, true))
            }
        }
    }
}

/// In which order the iterations of a loop run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Remap {
    /// Those with most work first; ties in order.
    LongestFirst,
    /// The iterations in that many pieces of neighbours, one of each piece in turn.
    RoundRobin(i64),
    /// In ascending order of a key of the iteration; ties in order.
    By(Formula),
    /// At each place (the loop's name) that iteration: a permutation, which is proved.
    Order(Formula),
}

/// The scheduling primitives (paper section 4.1; each is one rewrite of the loop dialect).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StepKind {
    /// `split S.i 14 -> o, i tail(mask)`: one loop into two.
    Split {
        /// The loop to split.
        target: LoopRef,
        /// Trip count of the inner loop.
        factor: i64,
        /// Name of the outer loop.
        outer: String,
        /// Name of the inner loop.
        inner: String,
        /// What happens to the last, partial tile.
        tail: Tail,
    },
    /// `fuse S.b S.i -> f pad 14`: perfectly nested loops into one, of any raggedness.
    Fuse {
        /// The loops, outermost first.
        loops: Vec<LoopRef>,
        /// Name of the fused loop.
        name: String,
        /// Bulk padding: the fused extent is rounded up to a multiple of this (1 = none).
        pad: Multiple,
    },
    /// `reorder S: a b c`: permutes the named loops of one perfect nest.
    Reorder {
        /// The stage.
        stage: String,
        /// The named loops in their new order.
        order: Vec<String>,
    },
    /// `vectorize S.i 16`: an innermost loop becomes vector code (split by the width first if needed).
    Vectorize {
        /// The loop.
        target: LoopRef,
        /// Lanes; nothing = the loop's constant extent.
        width: Option<i64>,
    },
    /// `unroll S.i`: a loop of constant (greatest) extent is unrolled.
    Unroll {
        /// The loop.
        target: LoopRef,
    },
    /// `parallel S.i`: iterations are spread over the workers.
    Parallel {
        /// The loop.
        target: LoopRef,
    },
    /// `bind S.i block.x`: iterations become blocks of a grid or threads of a block; `vthread`:
    /// each thread runs all iterations, interleaved.
    Bind {
        /// The loop.
        target: LoopRef,
        /// What the iterations become.
        to: Binding,
        /// Whether iterations of a reduced loop combine into one element as they come, in no order.
        atomic: bool,
    },
    /// `pad_loop S.i 2`: rounds a loop's extent up (paper: loop padding).
    PadLoop {
        /// The loop.
        target: LoopRef,
        /// What the extent is rounded to a multiple of.
        multiple: Multiple,
    },
    /// `pad_loop S.k to 8 * floordiv(i, 8) + 8`: raises a reduced loop's extent.
    PadLoopTo {
        /// The loop.
        target: LoopRef,
        /// What the extent becomes where it is not more.
        extent: Formula,
    },
    /// `pad_dim T.i 4`: rounds a tensor dimension's storage up (paper: storage padding).
    PadDim {
        /// The tensor.
        tensor: String,
        /// The dimension's name.
        dim: String,
        /// What the storage extent is rounded to a multiple of.
        multiple: Multiple,
    },
    /// `split_dim T.i 32 -> io, ii`: a stored dimension becomes blocks and positions in a block.
    SplitDim {
        /// The tensor.
        tensor: String,
        /// The stored dimension's name.
        dim: String,
        /// Positions in a block.
        factor: i64,
        /// Name of the dimension that counts blocks.
        outer: String,
        /// Name of the dimension inside a block.
        inner: String,
    },
    /// `fuse_dims T: b i -> t`: neighbouring stored dimensions become one.
    FuseDims {
        /// The tensor.
        tensor: String,
        /// Their names, outermost first.
        dims: Vec<String>,
        /// Name of the fused dimension.
        name: String,
    },
    /// `reorder_dims T: h b i`: permutes the named stored dimensions.
    ReorderDims {
        /// The tensor.
        tensor: String,
        /// The named dimensions in their new order.
        order: Vec<String>,
    },
    /// `compute_at P at S.i`: computes just the region that one iteration of a loop reads, there.
    ComputeAt {
        /// The producer stage.
        stage: String,
        /// The consumer's loop.
        at: LoopRef,
    },
    /// `compute_inline P`: the element's expression replaces every read of it.
    ComputeInline {
        /// The producer stage.
        stage: String,
    },
    /// `precompute S.X -> F`: a new stage computes the factor of S's terms that reads X, once for each of its positions.
    Precompute {
        /// The stage.
        stage: String,
        /// A tensor that the factor reads.
        tensor: String,
        /// Name of the new stage.
        name: String,
    },
    /// `cache_write S -> Sr reg at S.ko`: S is computed into a local buffer and copied out.
    CacheWrite {
        /// The stage.
        stage: String,
        /// Name of the new stage, which does the computing.
        name: String,
        /// Where the buffer lives.
        scope: crate::env::Scope,
        /// The loop of `stage` whose each iteration computes and copies one region.
        at: LoopRef,
    },
    /// `cache_read S.T -> Tl at S.i layout(d, k/8, k%8)`: reads of T in stage S go through a local copy;
    /// `cache_read S.T -> Tl setup layout(..)`: through one that is made once for given const inputs;
    /// `cache_read S.T -> Tl before layout(..)`: through one of the whole tensor that a nest before the stage's makes.
    CacheRead {
        /// The reading stage.
        stage: String,
        /// The tensor read.
        tensor: String,
        /// Name of the new copying stage.
        name: String,
        /// Where the buffer lives.
        scope: crate::env::Scope,
        /// Where the copy is made.
        at: CopyAt,
        /// Dimensions of the copy, outermost first; empty = unchanged.
        layout: Vec<LayoutDim>,
        /// Which of the stage's distinct reads of the tensor goes through the copy, counted from 0
        /// in order of appearance; nothing = all of them.
        access: Option<usize>,
    },
    /// `pack S.W -> Wp setup tiles(k, n 32)`: reads of W in stage S go through a copy in contiguous, aligned tiles.
    Pack {
        /// The reading stage.
        stage: String,
        /// The tensor read.
        tensor: String,
        /// Name of the new copying stage.
        name: String,
        /// Where the buffer lives.
        scope: crate::env::Scope,
        /// As in `CacheRead`.
        at: CopyAt,
        /// The dimensions of a tile, outermost first.
        tiles: Vec<PackDim>,
        /// As in `CacheRead`.
        access: Option<usize>,
    },
    /// `hoist_loads S.i off`: whether what does not vary in a loop is read before it.
    HoistLoads {
        /// The loop.
        target: LoopRef,
        /// Whether it is.
        on: bool,
    },
    /// `set_scope P reg`: where an attached stage's buffer lives.
    SetScope {
        /// The stage.
        stage: String,
        /// The new scope.
        scope: crate::env::Scope,
    },
    /// `rfactor S.ko -> Sf`: a new stage computes a reduction's partial results for each iteration of a loop.
    Rfactor {
        /// A loop that its stage is reduced over.
        target: LoopRef,
        /// Name of the new stage.
        name: String,
    },
    /// `relax S.i`: drops the tail predicate of a local stage's loop; surplus iterations read
    /// clamped, valid positions and write elements that nobody reads. A loop that is reduced over
    /// may be relaxed where the surplus terms are products of zeros.
    Relax {
        /// The loop.
        target: LoopRef,
        /// Whether surplus iterations read nothing and take zeros instead.
        zero: bool,
    },
    /// `remap S.b longest_first`: the iterations of a loop in another order.
    Remap {
        /// The loop.
        target: LoopRef,
        /// Which order.
        policy: Remap,
    },
    /// `op_split S.q at 14 * floordiv(lens(b), 14)`: a stage in two, before and from an iteration of a
    /// loop; of several loops at once.
    OpSplit {
        /// Loops of one stage, and the iterations at which they are split.
        points: Vec<(LoopRef, Formula)>,
    },
    /// `hfuse S.main.q S.tail.q -> t`: independent neighbouring loops one after the other as one loop.
    Hfuse {
        /// The loops, in their order.
        loops: Vec<LoopRef>,
        /// Name of the loop, which belongs to the first one's stage.
        name: String,
    },
    /// `tile S: i 14 j 32 -> io jo ii ji`: splits loops and puts the tiles' loops inside.
    Tile {
        /// The stage.
        stage: String,
        /// Loops of one perfect nest, outermost first, and the sizes of tiles.
        loops: Vec<(String, i64)>,
        /// The new loops, outermost first: all that count tiles, then all inside tiles.
        names: Vec<String>,
    },
    /// `tensorize S.ii mma.m16n8k16.f32.bf16`: a loop and the loops inside it become one tile of a tensor instruction.
    Tensorize {
        /// The outermost loop of the tile.
        target: LoopRef,
        /// The instruction.
        intrinsic: IntrinsicId,
    },
    /// `offload S.ii`: a loop and all inside it become one product of matrices, which a BLAS found at
    /// run time multiplies.
    Offload {
        /// The loop.
        target: LoopRef,
    },
    /// `bulk_copy Xs.i`: a loop and the loops inside it become one copy of a box by a GPU's copy engine.
    BulkCopy {
        /// The outermost loop of the box.
        target: LoopRef,
    },
    /// `swizzle Xs`: the pieces of 16 bytes in lines of 128 bytes are permuted, as the copy engine and tensor instructions
    /// do it.
    Swizzle {
        /// The tensor.
        tensor: String,
    },
    /// `prefetch S.A at S.k 2 locality 3`: each iteration asks the caches for what the stage reads of a tensor some
    /// iterations later; `prefetch S.A at S.l 1 in S.k`: the iterations of a loop inside ask for a share each.
    Prefetch {
        /// The reading stage.
        stage: String,
        /// The tensor read.
        tensor: String,
        /// A loop around the read.
        at: LoopRef,
        /// The loop inside that asks.
        inside: Option<LoopRef>,
        /// How many iterations later.
        distance: i64,
        /// From 0 (used once) to 3 (kept in all caches).
        locality: i64,
    },
    /// `double_buffer Tl 3`: the buffer gets so many slots, and the contents of later iterations are made before this
    /// one's are used.
    DoubleBuffer {
        /// The stage that fills the buffer.
        stage: String,
        /// How many iterations' contents there are at a time, at least 2.
        slots: i64,
    },
    /// `storage_align T.i 16 offset 4`: neighbours in a stored dimension lie a multiple of elements and an offset apart.
    StorageAlign {
        /// The tensor.
        tensor: String,
        /// The stored dimension's name.
        dim: String,
        /// The distance is a multiple of this,
        multiple: i64,
        /// and this more.
        offset: i64,
    },
    /// `peel S.io`: iterations in which every tile is full, apart from those with a tail; `peel S.io few 3`: those whose
    /// tile has more than three iterations, apart from those of at most three.
    Peel {
        /// The loop.
        target: LoopRef,
        /// The iterations of a tile of the second part, at most; without, all that are not full.
        few: Option<i64>,
    },
}

impl StepKind {
    /// The names of the stages and tensors that the step is about, as they are written; not those that it makes.
    pub fn stages_mut(&mut self) -> Vec<&mut String> {
        match self {
            Self::Split { target, .. }
            | Self::Vectorize { target, .. }
            | Self::Unroll { target }
            | Self::Parallel { target }
            | Self::Bind { target, .. }
            | Self::PadLoop { target, .. }
            | Self::PadLoopTo { target, .. }
            | Self::Rfactor { target, .. }
            | Self::Relax { target, .. }
            | Self::Remap { target, .. }
            | Self::Offload { target }
            | Self::BulkCopy { target }
            | Self::Tensorize { target, .. }
            | Self::HoistLoads { target, .. }
            | Self::Peel { target, .. } => vec![&mut target.stage],
            Self::Fuse { loops, .. } | Self::Hfuse { loops, .. } => loops.iter_mut().map(|l| &mut l.stage).collect(),
            Self::OpSplit { points } => points.iter_mut().map(|(l, _)| &mut l.stage).collect(),
            Self::Reorder { stage, .. }
            | Self::Tile { stage, .. }
            | Self::ComputeInline { stage }
            | Self::SetScope { stage, .. }
            | Self::DoubleBuffer { stage, .. } => vec![stage],
            Self::PadDim { tensor, .. }
            | Self::SplitDim { tensor, .. }
            | Self::FuseDims { tensor, .. }
            | Self::ReorderDims { tensor, .. }
            | Self::Swizzle { tensor }
            | Self::StorageAlign { tensor, .. } => vec![tensor],
            Self::Precompute { stage, tensor, .. } => vec![stage, tensor],
            Self::ComputeAt { stage, at } | Self::CacheWrite { stage, at, .. } => vec![stage, &mut at.stage],
            Self::CacheRead { stage, tensor, at, .. } | Self::Pack { stage, tensor, at, .. } => {
                let at = if let CopyAt::Loop(l) = at { Some(&mut l.stage) } else { None };
                [stage, tensor].into_iter().chain(at).collect()
            }
            Self::Prefetch { stage, tensor, at, inside, .. } => {
                [stage, tensor, &mut at.stage].into_iter().chain(inside.as_mut().map(|l| &mut l.stage)).collect()
            }
        }
    }

    /// The names of the stages that the step makes.
    pub fn made_mut(&mut self) -> Vec<&mut String> {
        match self {
            Self::CacheWrite { name, .. }
            | Self::CacheRead { name, .. }
            | Self::Pack { name, .. }
            | Self::Precompute { name, .. }
            | Self::Rfactor { name, .. } => vec![name],
            _ => Vec::new(),
        }
    }
}
