//! Schedule steps as methods.

use super::{Dim, Tensor};
use crate::ast::Handles;
use crate::parse::schedule::split_loop;
use cora_ir::schedule::{Binding, CopyAt, LayoutDim, LoopRef, PackDim, Step, StepKind, Tail};
use cora_ir::{Diagnostic, IntrinsicId, Scope};

/// Collects the steps of one schedule.
#[derive(Debug)]
pub struct ScheduleBuilder<'a> {
    handles: &'a Handles,
    steps: Vec<Step>,
    diags: Vec<Diagnostic>,
}

/// What names a stage: a tensor, or its name.
pub trait ToStage {
    /// The stage's name; `handles` are the names behind handles.
    fn to_stage(&self, handles: &Handles) -> String;
}

impl ToStage for &str {
    fn to_stage(&self, _: &Handles) -> String {
        (*self).to_owned()
    }
}

impl ToStage for String {
    fn to_stage(&self, _: &Handles) -> String {
        self.clone()
    }
}

impl ToStage for Tensor {
    fn to_stage(&self, handles: &Handles) -> String {
        handles.get(self.0).unwrap_or_default().to_owned()
    }
}

/// What names a loop: `"stage.loop"`, or a stage with a dimension or a loop's name.
pub trait ToLoop {
    /// The loop; nothing if the text is not of the form `stage.loop`.
    fn to_loop(&self, handles: &Handles) -> Option<LoopRef>;
}

impl ToLoop for &str {
    fn to_loop(&self, _: &Handles) -> Option<LoopRef> {
        split_loop(self)
    }
}

impl ToLoop for LoopRef {
    fn to_loop(&self, _: &Handles) -> Option<LoopRef> {
        Some(self.clone())
    }
}

impl<S: ToStage> ToLoop for (S, &str) {
    fn to_loop(&self, handles: &Handles) -> Option<LoopRef> {
        Some(LoopRef { stage: self.0.to_stage(handles), name: self.1.to_owned() })
    }
}

impl<S: ToStage> ToLoop for (S, Dim) {
    fn to_loop(&self, handles: &Handles) -> Option<LoopRef> {
        let name = handles.get(self.1.handle)?.to_owned();
        Some(LoopRef { stage: self.0.to_stage(handles), name })
    }
}

impl<'a> ScheduleBuilder<'a> {
    pub(super) fn new(handles: &'a Handles) -> Self {
        Self { handles, steps: Vec::new(), diags: Vec::new() }
    }

    pub(super) fn into_parts(self) -> (Vec<Step>, Vec<Diagnostic>) {
        (self.steps, self.diags)
    }

    /// Any step.
    pub fn step(&mut self, kind: StepKind) -> &mut Self {
        self.steps.push(Step::from(kind));
        self
    }

    fn at(&mut self, l: impl ToLoop) -> LoopRef {
        let at = l.to_loop(self.handles).unwrap_or_else(|| {
            let d = Diagnostic::new("E0122", "the name of a loop has no stage");
            self.diags.push(d.hint("write the stage before it: `stage.loop`"));
            LoopRef { stage: String::new(), name: String::new() }
        });
        if at.stage.is_empty() != at.name.is_empty() {
            self.diags.push(Handles::foreign());
        }
        at
    }

    fn stage(&mut self, s: impl ToStage) -> String {
        let name = s.to_stage(self.handles);
        if name.is_empty() {
            self.diags.push(Handles::foreign());
        }
        name
    }

    /// One loop into two; `tail` says what happens to the last, partial tile.
    pub fn split(&mut self, target: impl ToLoop, factor: i64, outer: &str, inner: &str, tail: Tail) -> &mut Self {
        let target = self.at(target);
        self.step(StepKind::Split { target, factor, outer: outer.into(), inner: inner.into(), tail })
    }

    /// Perfectly nested loops into one, rounded up to a multiple of `pad` (1 = not).
    pub fn fuse<L: ToLoop>(&mut self, loops: &[L], name: &str, pad: i64) -> &mut Self {
        let mut refs = Vec::new();
        for l in loops {
            refs.push(l.to_loop(self.handles).unwrap_or_else(|| self.at("")));
        }
        self.step(StepKind::Fuse { loops: refs, name: name.into(), pad })
    }

    /// Permutes the named loops of one perfect nest.
    pub fn reorder(&mut self, stage: impl ToStage, order: &[&str]) -> &mut Self {
        let stage = self.stage(stage);
        self.step(StepKind::Reorder { stage, order: order.iter().map(|&s| s.to_owned()).collect() })
    }

    /// An innermost loop becomes vector code.
    pub fn vectorize(&mut self, target: impl ToLoop, width: Option<i64>) -> &mut Self {
        let target = self.at(target);
        self.step(StepKind::Vectorize { target, width })
    }

    /// A loop of constant (greatest) extent is unrolled.
    pub fn unroll(&mut self, target: impl ToLoop) -> &mut Self {
        let target = self.at(target);
        self.step(StepKind::Unroll { target })
    }

    /// Iterations are spread over the workers.
    pub fn parallel(&mut self, target: impl ToLoop) -> &mut Self {
        let target = self.at(target);
        self.step(StepKind::Parallel { target })
    }

    /// Iterations become blocks of a grid, threads of a block, or virtual threads.
    pub fn bind(&mut self, target: impl ToLoop, to: Binding) -> &mut Self {
        let target = self.at(target);
        self.step(StepKind::Bind { target, to, atomic: false })
    }

    /// The same of a reduced loop: iterations combine into an element as they come, in no order.
    pub fn bind_atomic(&mut self, target: impl ToLoop, to: Binding) -> &mut Self {
        let target = self.at(target);
        self.step(StepKind::Bind { target, to, atomic: true })
    }

    /// Rounds a loop's extent up to a multiple.
    pub fn pad_loop(&mut self, target: impl ToLoop, multiple: i64) -> &mut Self {
        let target = self.at(target);
        self.step(StepKind::PadLoop { target, multiple })
    }

    /// Rounds a tensor dimension's storage up to a multiple.
    pub fn pad_dim(&mut self, tensor: impl ToStage, dim: &str, multiple: i64) -> &mut Self {
        let tensor = self.stage(tensor);
        self.step(StepKind::PadDim { tensor, dim: dim.into(), multiple })
    }

    /// A stored dimension of a tensor becomes blocks of `factor` positions and the position in a block.
    pub fn split_dim(&mut self, tensor: impl ToStage, dim: &str, factor: i64, outer: &str, inner: &str) -> &mut Self {
        let tensor = self.stage(tensor);
        let (dim, outer, inner) = (dim.into(), outer.into(), inner.into());
        self.step(StepKind::SplitDim { tensor, dim, factor, outer, inner })
    }

    /// Neighbouring stored dimensions of a tensor, outermost first, become one.
    pub fn fuse_dims(&mut self, tensor: impl ToStage, dims: &[&str], name: &str) -> &mut Self {
        let tensor = self.stage(tensor);
        let dims = dims.iter().map(|&d| d.to_owned()).collect();
        self.step(StepKind::FuseDims { tensor, dims, name: name.into() })
    }

    /// Permutes the named stored dimensions of a tensor.
    pub fn reorder_dims(&mut self, tensor: impl ToStage, order: &[&str]) -> &mut Self {
        let tensor = self.stage(tensor);
        self.step(StepKind::ReorderDims { tensor, order: order.iter().map(|&d| d.to_owned()).collect() })
    }

    /// Computes just the region of `stage` that one iteration of a loop reads, there; an output where all of it is computed so.
    pub fn compute_at(&mut self, stage: impl ToStage, at: impl ToLoop) -> &mut Self {
        let (stage, at) = (self.stage(stage), self.at(at));
        self.step(StepKind::ComputeAt { stage, at })
    }

    /// The element's expression replaces every read of it.
    pub fn compute_inline(&mut self, stage: impl ToStage) -> &mut Self {
        let stage = self.stage(stage);
        self.step(StepKind::ComputeInline { stage })
    }

    /// A new stage `name` computes the factor of `stage`'s terms that reads `tensor`, once for each of its positions.
    pub fn precompute(&mut self, stage: impl ToStage, tensor: impl ToStage, name: &str) -> &mut Self {
        let (stage, tensor) = (self.stage(stage), self.stage(tensor));
        self.step(StepKind::Precompute { stage, tensor, name: name.into() })
    }

    /// `stage` is computed into a new local stage `name` and copied out.
    pub fn cache_write(&mut self, stage: impl ToStage, name: &str, scope: Scope, at: impl ToLoop) -> &mut Self {
        let (stage, at) = (self.stage(stage), self.at(at));
        self.step(StepKind::CacheWrite { stage, name: name.into(), scope, at })
    }

    /// Reads of `tensor` in `stage` go through a new local copy `name`, its dimensions in the order
    /// `layout` (empty = unchanged).
    pub fn cache_read(
        &mut self,
        stage: impl ToStage,
        tensor: impl ToStage,
        name: &str,
        scope: Scope,
        at: impl ToLoop,
        layout: &[LayoutDim],
    ) -> &mut Self {
        let (stage, tensor, at) = (self.stage(stage), self.stage(tensor), CopyAt::Loop(self.at(at)));
        self.step(StepKind::CacheRead {
            stage,
            tensor,
            name: name.into(),
            scope,
            at,
            layout: layout.to_vec(),
            access: None,
        })
    }

    /// [`ScheduleBuilder::cache_read`] for the stage's `access`-th distinct read of the tensor only.
    #[allow(clippy::too_many_arguments)]
    pub fn cache_read_nth(
        &mut self,
        stage: impl ToStage,
        tensor: impl ToStage,
        access: usize,
        name: &str,
        scope: Scope,
        at: impl ToLoop,
        layout: &[LayoutDim],
    ) -> &mut Self {
        let (stage, tensor, at) = (self.stage(stage), self.stage(tensor), CopyAt::Loop(self.at(at)));
        let (name, layout, access) = (name.into(), layout.to_vec(), Some(access));
        self.step(StepKind::CacheRead { stage, tensor, name, scope, at, layout, access })
    }

    /// Reads of `tensor` in `stage` go through a new copy `name` in contiguous, aligned tiles, made for each iteration of
    /// loop `at`.
    pub fn pack(
        &mut self,
        stage: impl ToStage,
        tensor: impl ToStage,
        name: &str,
        scope: Scope,
        at: impl ToLoop,
        tiles: &[PackDim],
    ) -> &mut Self {
        let (stage, tensor, at) = (self.stage(stage), self.stage(tensor), CopyAt::Loop(self.at(at)));
        let (name, tiles, access) = (name.into(), tiles.to_vec(), None);
        self.step(StepKind::Pack { stage, tensor, name, scope, at, tiles, access })
    }

    /// [`ScheduleBuilder::pack`] of the const input `tensor`, made once and kept as long as the input is.
    pub fn pack_setup(
        &mut self,
        stage: impl ToStage,
        tensor: impl ToStage,
        name: &str,
        tiles: &[PackDim],
    ) -> &mut Self {
        let (stage, tensor, at) = (self.stage(stage), self.stage(tensor), CopyAt::Setup);
        let (name, scope, tiles, access) = (name.into(), Scope::Global, tiles.to_vec(), None);
        self.step(StepKind::Pack { stage, tensor, name, scope, at, tiles, access })
    }

    /// Whether what does not vary in a loop is read before it.
    pub fn hoist_loads(&mut self, target: impl ToLoop, on: bool) -> &mut Self {
        let target = self.at(target);
        self.step(StepKind::HoistLoads { target, on })
    }

    /// A new stage `name` computes the partial results of a reduction for each iteration of one of its loops.
    pub fn rfactor(&mut self, target: impl ToLoop, name: &str) -> &mut Self {
        let target = self.at(target);
        self.step(StepKind::Rfactor { target, name: name.into() })
    }

    /// Reads of the const input `tensor` in `stage` (all, or the `access`-th) go through a copy that is made once
    /// and kept as long as the input is.
    pub fn cache_read_setup(
        &mut self,
        stage: impl ToStage,
        tensor: impl ToStage,
        access: Option<usize>,
        name: &str,
        layout: &[LayoutDim],
    ) -> &mut Self {
        let (stage, tensor) = (self.stage(stage), self.stage(tensor));
        self.copy_outside((stage, tensor), access, name, layout, CopyAt::Setup)
    }

    fn copy_outside(
        &mut self,
        (stage, tensor): (String, String),
        access: Option<usize>,
        name: &str,
        layout: &[LayoutDim],
        at: CopyAt,
    ) -> &mut Self {
        let (name, layout, scope) = (name.into(), layout.to_vec(), Scope::Global);
        self.step(StepKind::CacheRead { stage, tensor, name, scope, at, layout, access })
    }

    /// Reads of `tensor` in `stage` (all, or the `access`-th) go through a copy of the whole tensor that a nest before the
    /// stage's makes.
    pub fn cache_read_before(
        &mut self,
        stage: impl ToStage,
        tensor: impl ToStage,
        access: Option<usize>,
        name: &str,
        layout: &[LayoutDim],
    ) -> &mut Self {
        let (stage, tensor) = (self.stage(stage), self.stage(tensor));
        self.copy_outside((stage, tensor), access, name, layout, CopyAt::Before)
    }

    /// Where an attached stage's buffer lives.
    pub fn set_scope(&mut self, stage: impl ToStage, scope: Scope) -> &mut Self {
        let stage = self.stage(stage);
        self.step(StepKind::SetScope { stage, scope })
    }

    /// A step as it is written in a `schedule` block: `remap S.b by lens(b)`, `op_split ..`, `tile ..`.
    pub fn text(&mut self, step: &str) -> &mut Self {
        let (steps, mut diags) = crate::parse::schedule::steps_of(step);
        self.diags.append(&mut diags);
        for s in steps {
            self.step(s.kind);
        }
        self
    }

    /// Independent neighbouring loops one after the other as one loop.
    pub fn hfuse<L: ToLoop>(&mut self, loops: &[L], name: &str) -> &mut Self {
        let mut refs = Vec::new();
        for l in loops {
            refs.push(l.to_loop(self.handles).unwrap_or_else(|| self.at("")));
        }
        self.step(StepKind::Hfuse { loops: refs, name: name.into() })
    }

    /// A loop and the loops inside it become one tile of the tensor instruction called `intrinsic`
    /// (`cora_ir::intrinsic`); an unknown name is an error of the step.
    pub fn tensorize(&mut self, target: impl ToLoop, intrinsic: &str) -> &mut Self {
        let target = self.at(target);
        match IntrinsicId::named(intrinsic) {
            Some(intrinsic) => self.step(StepKind::Tensorize { target, intrinsic }),
            None => {
                let d = Diagnostic::new("E0239", format!("there is no intrinsic `{intrinsic}`"));
                self.diags.push(d.hint(format!("there are {}", cora_ir::intrinsic::names())));
                self
            }
        }
    }

    /// A loop and all inside it become one product of matrices, given to a BLAS found at run time.
    pub fn offload(&mut self, target: impl ToLoop) -> &mut Self {
        let target = self.at(target);
        self.step(StepKind::Offload { target })
    }

    /// A loop and the loops inside it become one copy of a box by a GPU's copy engine.
    pub fn bulk_copy(&mut self, target: impl ToLoop) -> &mut Self {
        let target = self.at(target);
        self.step(StepKind::BulkCopy { target })
    }

    /// The pieces of 16 bytes in a tensor's lines of 128 bytes are permuted.
    pub fn swizzle(&mut self, tensor: impl ToStage) -> &mut Self {
        let tensor = self.stage(tensor);
        self.step(StepKind::Swizzle { tensor })
    }

    /// Each iteration of loop `at` asks the caches for what `stage` reads of `tensor` `distance` iterations later;
    /// `locality` is from 0 (used once) to 3 (kept in all caches).
    pub fn prefetch(
        &mut self,
        stage: impl ToStage,
        tensor: impl ToStage,
        at: impl ToLoop,
        distance: i64,
        locality: i64,
    ) -> &mut Self {
        let (stage, tensor, at) = (self.stage(stage), self.stage(tensor), self.at(at));
        self.step(StepKind::Prefetch { stage, tensor, at, inside: None, distance, locality })
    }

    /// As [`prefetch`](Self::prefetch), but the iterations of loop `inside`, which lies in `at`, ask for a share each.
    pub fn prefetch_in(
        &mut self,
        stage: impl ToStage,
        tensor: impl ToStage,
        (at, distance): (impl ToLoop, i64),
        inside: impl ToLoop,
        locality: i64,
    ) -> &mut Self {
        let (stage, tensor, at) = (self.stage(stage), self.stage(tensor), self.at(at));
        let inside = Some(self.at(inside));
        self.step(StepKind::Prefetch { stage, tensor, at, inside, distance, locality })
    }

    /// The buffer that a stage fills in a loop gets so many slots; later contents are made before these are used.
    pub fn double_buffer(&mut self, stage: impl ToStage, slots: i64) -> &mut Self {
        let stage = self.stage(stage);
        self.step(StepKind::DoubleBuffer { stage, slots })
    }

    /// Neighbours in a stored dimension lie a multiple of `multiple` elements and `offset` apart.
    pub fn storage_align(&mut self, tensor: impl ToStage, dim: &str, multiple: i64, offset: i64) -> &mut Self {
        let tensor = self.stage(tensor);
        self.step(StepKind::StorageAlign { tensor, dim: dim.into(), multiple, offset })
    }

    /// Iterations in which every tile is full, apart from those with a tail: `S.main` and `S.tail`.
    pub fn peel(&mut self, target: impl ToLoop) -> &mut Self {
        let target = self.at(target);
        self.step(StepKind::Peel { target, few: None })
    }

    /// Iterations whose tile has more than `few` iterations, apart from the others: `S.main` and `S.tail`.
    pub fn peel_few(&mut self, target: impl ToLoop, few: i64) -> &mut Self {
        let target = self.at(target);
        self.step(StepKind::Peel { target, few: Some(few) })
    }

    /// Drops the tail predicate of a local stage's loop.
    pub fn relax(&mut self, target: impl ToLoop) -> &mut Self {
        let target = self.at(target);
        self.step(StepKind::Relax { target, zero: false })
    }

    /// As [`Self::relax`]; surplus iterations read nothing and take zeros instead.
    pub fn relax_zero(&mut self, target: impl ToLoop) -> &mut Self {
        let target = self.at(target);
        self.step(StepKind::Relax { target, zero: true })
    }
}
