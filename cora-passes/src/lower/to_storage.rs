//! Lowers the loop dialect to the storage dialect: accesses become flat offsets, blocks become
//! stores, predicates become `if`s.
//!
//! ```text
//! block @B { %x = %b, %y = %i; @B[%x, %y] = .. }  =>  @B[row(%b) + %i] = ..
//! ```
//!
//! Global tensors are laid out by their storage extents (see `layout`). A local tensor is a dense
//! box: the region that its writers cover in one iteration of the loop around all its uses, sized
//! for the largest iteration of this batch (or by a constant where the form gives one).
//!
//! Requires: verified loops. Ensures: every load has one index; functions are still calls. Runs
//! after scheduling; `lower_functions` runs after it, once simplification has had its chance to
//! make calls disappear.

mod boxes;
mod digits;
mod first_terms;
mod found_rows;

use super::Simplifier;
use super::bulk;
use super::csf::Positions;
use super::grid;
use super::layout::{Layout, sizes};
use super::offload;
use super::prefetch;
use super::sign::as_size;
use super::spread::Spread;
use super::stored::Stored;
use super::tensorize;
use super::warp;
use crate::schedule::region::bound_above;
use crate::schedule::tree::{reads_below, writes_below};
use crate::standard::StandardSimplifier;
use cora_ir::affine::normalize;
use cora_ir::loops::{Axis, Block, BlockRole, For, LoopKind, LoopModule, Stmt as LoopStmt};
use cora_ir::storage::{Buffer, Kernel, Stmt, StorageModule};
use cora_ir::tuple::{Components, split_tuples};
use cora_ir::{
    Arena, BinOp, Diagnostic, Env, Expr, ExprId, ExprPool, Reduction, Role, ScalarType, Scope, Tensor, TensorId, UnOp,
    VarId,
};
use rustc_hash::{FxHashMap, FxHashSet};

/// The storage form of `m`, one kernel for each top-level nest.
///
/// # Errors
/// `E0490` a local buffer whose size no rule bounds; `E0491` a register buffer of variable size; `E0455` to `E0458`
/// offloaded tiles that are no products of matrices; `E0425` to `E0428` and `E0439` tiles that are none of their
/// instruction's.
pub fn lower_to_storage(m: &LoopModule, simplifier: &mut dyn Simplifier) -> Result<StorageModule, Diagnostic> {
    lower(&mut m.clone(), simplifier, Form { csf: false, alone: false })
}

/// The same with each global tensor addressed through position arrays of its own (see `csf`).
///
/// # Errors
/// As [`lower_to_storage`].
pub fn lower_to_csf(m: &LoopModule, simplifier: &mut dyn Simplifier) -> Result<StorageModule, Diagnostic> {
    lower(&mut m.clone(), simplifier, Form { csf: true, alone: false })
}

/// What `say` says of the storage form of the nests at these positions, as `prepare` makes them in a module that has no
/// others, or of what refuses it. The module stays as it is.
pub(crate) fn lowered_alone<T>(
    m: &mut LoopModule,
    nests: &[usize],
    prepare: impl FnOnce(&mut LoopModule),
    say: impl FnOnce(Result<&mut StorageModule, Diagnostic>) -> T,
) -> T {
    let saved = m.checkpoint();
    m.body = nests.iter().map(|&n| m.body[n].clone()).collect();
    prepare(m);
    let said = match lower(m, &mut StandardSimplifier::new(), Form { csf: false, alone: true }) {
        Ok(mut s) => {
            let said = say(Ok(&mut s));
            m.env.pool = s.env.pool;
            said
        }
        Err(d) => say(Err(d)),
    };
    m.restore(saved);
    said
}

/// After so many conditions without a proof the rest are left as they are: each may take the solver its full time.
const MOST_UNPROVED: usize = 200;

/// Whether a condition compares positions, none of which is an element.
fn compares_positions(pool: &ExprPool, c: ExprId) -> bool {
    let Expr::Bin(BinOp::Lt | BinOp::Le | BinOp::Eq | BinOp::Ne, a, _) = *pool.get(c) else { return false };
    pool.ty(a).scalar == ScalarType::Index && !pool.any(c, &mut |n| matches!(n, Expr::Load { .. }))
}

#[derive(Clone, Copy)]
struct Form {
    /// Global tensors are addressed through position arrays.
    csf: bool,
    /// What no nest uses has no buffer.
    alone: bool,
}

/// What `m` has goes into its storage form; of a module that is refused the expressions stay, with others.
fn lower(m: &mut LoopModule, simplifier: &mut dyn Simplifier, form: Form) -> Result<StorageModule, Diagnostic> {
    let spreads = tensorize::spreads(m)?;
    let (stages, body) = (m.env.tensors.clone(), m.body.clone());
    let mut env = std::mem::take(&mut m.env);
    // Other names are for schedules.
    for t in stages.ids().filter(|&t| stages[t].dims.iter().any(|d| d.also.is_some())) {
        env.tensors[t].dims.iter_mut().for_each(|d| d.also = None);
    }
    let used = used_tensors(&env, &body, form);
    let uses = boxes::uses(&env, &body);
    let used_in_grid = body.iter().filter(|s| is_grid(s)).flat_map(|s| used_below(&env, std::slice::from_ref(s)));
    let used_in_grid = used_in_grid.collect();
    let first_terms = first_terms::unrolled_reductions(&env, &body);
    let components = split_tuples(&mut env);
    let mut cx = Lowering {
        env,
        components,
        simplifier,
        offsets: FxHashMap::default(),
        csf: form.csf,
        arrays: FxHashMap::default(),
        boxes: FxHashMap::default(),
        rows: FxHashMap::default(),
        spreads,
        counted: prefetch::counted(&body),
        first_terms,
        used_in_grid,
        loops: Vec::new(),
        unproved: 0,
        threads: Vec::new(),
        in_grid: false,
        fault: None,
        partial: None,
        masks: Vec::new(),
        registers: Vec::new(),
    };
    match cx.module(&stages, &body, &uses, &used) {
        Ok((buffers, kernels)) => {
            Ok(StorageModule { name: m.name.clone(), env: cx.env, buffers, tables: Vec::new(), kernels })
        }
        Err(d) => {
            m.env = cx.env;
            Err(d)
        }
    }
}

fn is_grid(s: &LoopStmt) -> bool {
    let mut found = false;
    s.walk(&mut |s| found |= matches!(s, LoopStmt::For(l) if l.kind.axis().is_some()));
    found
}

/// The first loop that is offloaded.
fn offloaded(s: &LoopStmt) -> Option<&For> {
    let mut found = None;
    s.walk(&mut |s| {
        if let LoopStmt::For(l) = s
            && l.kind == LoopKind::Offload
        {
            found = found.or(Some(l));
        }
    });
    found
}

fn stage_of(s: &LoopStmt) -> TensorId {
    match s {
        LoopStmt::For(l) => l.stage,
        LoopStmt::Block(b) => b.stage,
    }
}

/// The tensors that statements read or write.
fn used_below(env: &Env, body: &[LoopStmt]) -> FxHashSet<TensorId> {
    reads_below(&env.pool, body).into_iter().chain(writes_below(body)).collect()
}

fn used_tensors(env: &Env, body: &[LoopStmt], form: Form) -> FxHashSet<TensorId> {
    let mut used = used_below(env, body);
    if !form.alone {
        used.extend(env.tensors.iter().filter(|(_, t)| t.role != Role::Temp).map(|(id, _)| id));
    }
    used
}

#[derive(Clone)]
struct DenseBox {
    lo: Vec<ExprId>,
    size: Vec<ExprId>,
    /// The variables in `lo` that stand for the thread that accesses its own part.
    threads: Vec<(Axis, VarId)>,
}

/// Where a local tensor keeps its own layout, from one position of the dimensions outside on.
#[derive(Clone, Copy)]
struct Rows {
    /// An element's position, over its indices `Arg(0..rank)`.
    offset: ExprId,
    /// What all positions of the dimensions outside have at most.
    elems: ExprId,
}

/// A module being lowered.
pub(super) struct Lowering<'a> {
    pub(super) env: Env,
    /// The tensors of the components of what were tensors of tuples.
    pub(super) components: Components,
    pub(super) simplifier: &'a mut dyn Simplifier,
    offsets: FxHashMap<TensorId, ExprId>,
    /// Whether global tensors are addressed through position arrays.
    csf: bool,
    arrays: FxHashMap<TensorId, Positions>,
    boxes: FxHashMap<TensorId, DenseBox>,
    /// The local tensors of which this says more than their box.
    rows: FxHashMap<TensorId, Rows>,
    /// The buffers in the registers of warps' lanes.
    pub(super) spreads: FxHashMap<TensorId, Spread>,
    /// The tensors that nests use which are grids. Elsewhere nothing shares a block's memory: each worker has its own.
    used_in_grid: FxHashSet<TensorId>,
    /// The loops whose iterations prefetches count.
    pub(super) counted: FxHashMap<VarId, prefetch::Counted<'a>>,
    /// The loops whose first iterations have the first of the partial results that a tensor of tuples combines.
    first_terms: FxHashMap<TensorId, Vec<VarId>>,
    /// The loops around, with their extents.
    pub(super) loops: Vec<(VarId, ExprId)>,
    /// How many conditions could not be proved.
    unproved: usize,
    /// The thread loops around.
    pub(super) threads: Vec<(Axis, VarId)>,
    /// Whether the nest has loops of a grid.
    in_grid: bool,
    /// The first thing that cannot be lowered.
    fault: Option<Diagnostic>,
    /// The conditions under which the block at hand runs.
    masks: Vec<ExprId>,
    /// Where a lane's partial result goes, inside a loop over lanes.
    partial: Option<Vec<TensorId>>,
    /// Registers of one element for partial results.
    registers: Vec<TensorId>,
}

impl Lowering<'_> {
    /// The buffers and kernels of nests; `stages` are the tensors before those of tuples were split.
    fn module(
        &mut self,
        stages: &Arena<TensorId, Tensor>,
        body: &[LoopStmt],
        uses: &boxes::Uses<'_>,
        used: &FxHashSet<TensorId>,
    ) -> Result<(Vec<Buffer>, Vec<Kernel>), Diagnostic> {
        for t in stages.ids() {
            if stages[t].scope == Scope::Shared && !self.used_in_grid.contains(&t) {
                self.env.tensors[t].scope = Scope::Local;
            }
            if stages[t].scope != Scope::Global {
                self.infer_box(body, uses.get(&t).map_or(&[], Vec::as_slice), t)?;
                for &part in &self.components.of(t)[1..] {
                    if let Some(same) = self.boxes.get(&t).cloned() {
                        self.boxes.insert(part, same);
                    }
                    if let Some(&same) = self.rows.get(&t) {
                        self.rows.insert(part, same);
                    }
                }
            }
        }
        let (mut kernels, mut names): (Vec<Kernel>, FxHashSet<String>) = Default::default();
        for s in body {
            let base = stages[stage_of(s)].name.clone();
            let taken = |n: &str| names.contains(n);
            let name = if taken(&base) {
                (1..).map(|i| format!("{base}.{i}")).find(|n| !taken(n)).unwrap_or_default()
            } else {
                base
            };
            self.in_grid = is_grid(s);
            let mut stmts = Vec::new();
            self.stmt(s, &mut stmts);
            if let Some(fault) = self.fault.take() {
                return Err(fault);
            }
            names.insert(name.clone());
            let mut kernel = Kernel { name, body: stmts };
            if kernel.is_grid()
                && let Some(l) = offloaded(s)
            {
                return Err(offload::in_grid(&self.env, l));
            }
            tensorize::check_place(&self.env, s, self.in_grid)?;
            bulk::check_place(&self.env, s, self.in_grid)?;
            bulk::check_kernel(&self.env, &kernel.body)?;
            warp::check_rows(&self.env, &kernel)?;
            if let Some(threads) = kernel.threads(&self.env).filter(|_| kernel.is_grid()) {
                grid::distribute(&mut self.env, &mut kernel.body, threads);
            }
            kernels.push(kernel);
        }
        let one = self.env.pool.int(1);
        let mut buffers: Vec<Buffer> =
            self.registers.iter().map(|&tensor| Buffer { tensor, elems: one, offset: None }).collect();
        for t in stages.ids().filter(|t| used.contains(t)) {
            for part in self.components.of(t) {
                let buffer = self.buffer(part);
                buffers.push(buffer);
            }
        }
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        Ok((buffers, kernels))
    }

    /// The size of a local tensor's dimension: that of its storage where it was padded and the box covers it all.
    fn padded(&self, tensor: TensorId, d: usize, bound: ExprId) -> ExprId {
        let dim = &self.env.tensors[tensor].dims[d];
        let int = |e| self.env.pool.as_int(e);
        match (int(dim.extent), int(dim.storage), int(bound)) {
            (Some(extent), Some(storage), Some(size)) if extent == size && storage > size => dim.storage,
            _ => bound,
        }
    }

    /// Whether the nest has loops of a grid.
    pub(super) fn in_grid(&self) -> bool {
        self.in_grid
    }

    pub(super) fn buffer(&mut self, tensor: TensorId) -> Buffer {
        if let Some(&spread) = self.spreads.get(&tensor)
            && let Some(b) = self.boxes.get(&tensor)
        {
            let sizes = b.size.clone();
            match spread.registers(&mut self.env, tensor, &sizes) {
                Ok(elems) => return Buffer { tensor, elems, offset: None },
                Err(fault) => self.fault = self.fault.take().or(Some(fault)),
            }
        }
        if let Some(Rows { elems, .. }) = self.rows.get(&tensor).copied() {
            let elems = self.simplifier.simplify(&mut self.env, &[], elems);
            return Buffer { tensor, elems, offset: None };
        }
        if let Some(b) = self.boxes.get(&tensor) {
            let sizes = self.stored(tensor, b.size.clone()).extents;
            let mut elems = self.env.pool.int(1);
            // A bound found from the last iteration of a loop is negative where the loop has none.
            for s in sizes {
                let s = as_size(&mut self.env, &[], s);
                elems = self.env.pool.mul(elems, s);
            }
            let elems = self.simplifier.simplify(&mut self.env, &[], elems);
            // A stack and shared memory hold nothing of no size: what has no element gets one.
            let elems = if self.env.pool.as_int(elems) == Some(0) { self.env.pool.int(1) } else { elems };
            return Buffer { tensor, elems, offset: None };
        }
        let t = self.env.tensors[tensor].clone();
        let name = format!("{}.row", t.name);
        let extents = self.storage_sizes(tensor);
        let extents = self.stored(tensor, extents).extents;
        let elems = match self.csf {
            true => self.positions(tensor).elems,
            false => Layout { extents: &extents, name: &name }.volume(&mut self.env, 0),
        };
        let offset = (t.role != Role::Temp).then(|| self.global_offset(tensor));
        Buffer { tensor, elems, offset }
    }

    fn storage_sizes(&mut self, tensor: TensorId) -> Vec<ExprId> {
        let extents: Vec<ExprId> = self.env.tensors[tensor].dims.iter().map(|d| d.storage).collect();
        sizes(&mut self.env, &extents)
    }

    fn global_offset(&mut self, tensor: TensorId) -> ExprId {
        if let Some(&o) = self.offsets.get(&tensor) {
            return o;
        }
        let name = format!("{}.row", self.env.tensors[tensor].name);
        let extents = self.storage_sizes(tensor);
        let stored = self.stored(tensor, extents);
        let o = match self.csf {
            true => self.positions(tensor).offset,
            false => Layout { extents: &stored.extents, name: &name }.offset(&mut self.env),
        };
        let o = self.env.pool.instantiate(o, &stored.index);
        self.offsets.insert(tensor, o);
        o
    }

    /// The position arrays of a global tensor, made when it is first asked for.
    fn positions(&mut self, tensor: TensorId) -> Positions {
        if let Some(p) = self.arrays.get(&tensor) {
            return *p;
        }
        let extents = self.storage_sizes(tensor);
        let extents = self.stored(tensor, extents).extents;
        let name = self.env.tensors[tensor].name.clone();
        let made = Positions::new(&mut self.env, &name, &extents);
        self.arrays.insert(tensor, made);
        made
    }

    /// The stored dimensions of a tensor whose own have `sizes` positions.
    fn stored(&mut self, tensor: TensorId, sizes: Vec<ExprId>) -> Stored {
        let t = &self.env.tensors[tensor];
        let (name, steps) = (format!("{}.row", t.name), t.layout.clone());
        Stored::addressed(&mut self.env, &name, sizes, &steps)
    }

    /// The sizes of a local tensor's box, and an element's position in it.
    pub(super) fn inside_box(&mut self, tensor: TensorId, index: &[ExprId]) -> (Vec<ExprId>, Vec<ExprId>) {
        let Some(b) = self.boxes.get(&tensor) else { return (Vec::new(), Vec::new()) };
        let (lo, size) = (b.lo.clone(), b.size.clone());
        let mut here: FxHashMap<VarId, ExprId> = FxHashMap::default();
        for &(axis, v) in &b.threads {
            if let Some(&(_, own)) = self.threads.iter().find(|t| t.0 == axis) {
                here.insert(v, self.env.pool.var(own));
            }
        }
        let lo: Vec<ExprId> = lo.into_iter().map(|e| self.env.pool.substitute(e, &here)).collect();
        let lo: Vec<ExprId> = lo.into_iter().map(|e| self.value(e, &mut FxHashMap::default())).collect();
        let at = index.iter().zip(lo).map(|(&i, l)| {
            let at = self.env.pool.sub(i, l);
            normalize(&mut self.env.pool, at)
        });
        (size, at.collect())
    }

    pub(super) fn flat(&mut self, tensor: TensorId, index: &[ExprId]) -> ExprId {
        let e = if let Some(&spread) = self.spreads.get(&tensor) {
            let (sizes, at) = self.inside_box(tensor, index);
            let register = spread.index(&mut self.env, &sizes, &at);
            self.same_for_all_lanes(register)
        } else if let Some(rows) = self.rows.get(&tensor) {
            self.env.pool.instantiate(rows.offset, index)
        } else if self.boxes.contains_key(&tensor) {
            let (size, rel) = self.inside_box(tensor, index);
            let stored = self.stored(tensor, size);
            let mut sum = self.env.pool.int(0);
            for (size, at) in stored.extents.into_iter().zip(stored.index) {
                let at = self.env.pool.instantiate(at, &rel);
                sum = self.env.pool.mul(sum, size);
                sum = self.env.pool.add(sum, at);
            }
            sum
        } else {
            let offset = self.global_offset(tensor);
            self.env.pool.instantiate(offset, index)
        };
        let e = self.simplifier.simplify(&mut self.env, &self.loops, e);
        if !found_rows::divides_by_a_size(&self.env.pool, e) {
            return e;
        }
        // Where the tile of a fused loop is masked, only the mask says that there is a row.
        let mut known = self.rows_that_are_found(e);
        known.extend(&self.masks);
        if known.is_empty() {
            return e;
        }
        self.simplifier.simplify_under(&mut self.env, &self.loops, &known, e)
    }

    fn stmt(&mut self, s: &LoopStmt, out: &mut Vec<Stmt>) {
        match s {
            LoopStmt::For(l) if l.kind == LoopKind::Offload => {
                let outcome = self.offload(l, out);
                self.fault = self.fault.take().or(outcome.err());
            }
            LoopStmt::For(l) if l.kind == LoopKind::Bulk => {
                let outcome = self.bulk(l, out);
                self.fault = self.fault.take().or(outcome.err());
            }
            LoopStmt::For(For { kind: LoopKind::Tensorize(id), .. }) => {
                if let LoopStmt::For(l) = s {
                    let outcome = self.tensorize(l, *id, out);
                    self.fault = self.fault.take().or(outcome.err());
                }
            }
            LoopStmt::For(l) if l.kind == LoopKind::Bound(Axis::ThreadX) && self.partial.is_none() => {
                match warp::lanes(&self.env, l) {
                    warp::Lanes::Apart => self.loop_stmt(l, out),
                    warp::Lanes::Reduced(b, r) => self.reduce_over_lanes(l, b, r, out),
                    warp::Lanes::Mixed(tensor) => {
                        let fault = warp::not_alone(&self.env, l, tensor);
                        self.fault.get_or_insert(fault);
                    }
                }
            }
            LoopStmt::For(l) => self.loop_stmt(l, out),
            LoopStmt::Block(b) => self.block(b, out),
        }
    }

    /// A loop whose lanes combine into one element: each has a partial result in registers, then they exchange them.
    fn reduce_over_lanes(&mut self, l: &For, b: &Block, r: Reduction, out: &mut Vec<Stmt>) {
        let components = self.components.of(b.tensor);
        let lanes = warp::registers(&mut self.env, &components);
        self.registers.extend(lanes.own.iter().chain(&lanes.other));
        out.push(warp::begin(&mut self.env, &lanes.own, r));
        self.partial = Some(lanes.own.clone());
        self.loop_stmt(l, out);
        if let Some(s) = out.last_mut() {
            warp::all_lanes(&mut self.env, s);
        }
        self.partial = None;
        warp::exchange(&mut self.env, &lanes, r, out);
        let at = self.index_of(b);
        let finish = match r.op().filter(|_| b.atomic) {
            Some(combiner) => {
                let value = warp::element(&mut self.env, r, &lanes.own);
                Stmt::Atomic { tensor: b.tensor, index: at, combiner, value }
            }
            None => warp::finish(&mut self.env, (&components, at), &lanes.own, r),
        };
        out.extend(self.guarded(&warp::conditions(&self.env, l, b), finish));
    }

    fn loop_stmt(&mut self, l: &For, out: &mut Vec<Stmt>) {
        let written = self.value(l.extent, &mut FxHashMap::default());
        let mut extent = self.simplifier.simplify(&mut self.env, &self.loops, written);
        if l.kind.is_thread() {
            extent = self.env.pool.with_bound_of(written, extent);
        }
        let (mut launched, mut guard) = (extent, None);
        if l.kind.is_block() && self.loops.iter().any(|&(v, _)| self.env.pool.uses_var(extent, v)) {
            // The grid is a box: blocks beyond this row's end have nothing to do.
            match bound_above(&mut self.env, l.extent, &self.loops) {
                Some(bound) => {
                    launched = self.simplifier.simplify(&mut self.env, &[], bound);
                    let v = self.env.pool.var(l.var);
                    guard = Some(self.env.pool.lt(v, extent));
                }
                None => {
                    let fault = grid::unbounded_blocks(&self.env, l);
                    self.fault.get_or_insert(fault);
                }
            }
        }
        self.loops.push((l.var, extent));
        let axis = l.kind.axis().filter(|a| a.is_thread());
        if let Some(a) = axis.filter(|&a| self.threads.iter().any(|t| t.0 == a)) {
            let fault = grid::axis_twice(&self.env, l, a);
            self.fault.get_or_insert(fault);
        }
        self.threads.extend(axis.map(|a| (a, l.var)));
        let mut body = Vec::new();
        if !self.in_grid {
            self.prefetches(l, extent, &mut body);
        }
        for s in &l.body {
            self.stmt(s, &mut body);
        }
        self.loops.pop();
        if axis.is_some() {
            self.threads.pop();
        }
        if let Some(cond) = guard {
            body = vec![Stmt::If { cond, then: body, other: Vec::new() }];
        }
        let extent = launched;
        out.push(Stmt::For { var: l.var, extent, kind: l.kind, body });
    }

    /// The flat offset of the element that a block writes.
    fn index_of(&mut self, b: &Block) -> ExprId {
        let map: FxHashMap<VarId, ExprId> = b.iters.iter().map(|i| (i.var, i.binding)).collect();
        let mut memo = FxHashMap::default();
        let index: Vec<ExprId> = b.index.iter().map(|&e| self.env.pool.substitute(e, &map)).collect();
        let index: Vec<ExprId> = index.into_iter().map(|e| self.value(e, &mut memo)).collect();
        self.flat(b.tensor, &index)
    }

    fn block(&mut self, b: &Block, out: &mut Vec<Stmt>) {
        self.masks.clone_from(&b.predicate);
        self.block_under_masks(b, out);
        self.masks.clear();
    }

    fn block_under_masks(&mut self, b: &Block, out: &mut Vec<Stmt>) {
        let map: FxHashMap<VarId, ExprId> = b.iters.iter().map(|i| (i.var, i.binding)).collect();
        let mut memo = FxHashMap::default();
        let partial = self.partial.clone().filter(|_| b.role != BlockRole::Init);
        let (target, at) = match &partial {
            Some(own) => (own[0], self.env.pool.int(0)),
            None => (b.tensor, self.index_of(b)),
        };
        let value = self.env.pool.substitute(b.value, &map);
        let value = self.value(value, &mut memo);
        let atomic = b.atomic && partial.is_none();
        let targets = partial.unwrap_or_else(|| self.components.of(b.tensor));
        if let (BlockRole::Update(r), true) = (b.role, atomic)
            && let Some(combiner) = r.op()
        {
            let update = Stmt::Atomic { tensor: target, index: at, combiner, value };
            out.extend(self.guarded(&b.predicate, update));
            return;
        }
        let store = |cx: &mut Self, value| {
            let values = cx.env.pool.components(value);
            let rest = targets.iter().copied().zip(values.iter().copied()).skip(1).collect();
            Stmt::Store { tensor: target, index: at, value: values[0], mask: None, rest }
        };
        let BlockRole::Update(r) = b.role else {
            let written = store(self, value);
            out.extend(self.guarded(&b.predicate, written));
            return;
        };
        let olds: Vec<ExprId> = targets.iter().map(|&t| self.env.load(t, [at])).collect();
        let old = if r.op().is_some() { olds[0] } else { self.env.pool.make_tuple(&olds) };
        let combined = self.env.combined(r, old, value);
        let mut update = store(self, combined);
        if let Some(loops) = self.first_terms.get(&b.tensor) {
            let zero = self.env.pool.int(0);
            let pool = &mut self.env.pool;
            let done = loops.iter().fold(zero, |sum, &v| {
                let v = pool.var(v);
                pool.add(sum, v)
            });
            let later = pool.lt(zero, done);
            update = Stmt::If { cond: later, then: vec![update], other: vec![store(self, value)] };
        }
        out.extend(self.guarded(&b.predicate, update));
    }

    /// A statement that runs where all conditions hold.
    fn guarded(&mut self, conditions: &[ExprId], s: Stmt) -> Vec<Stmt> {
        let mut left = Vec::new();
        // What a condition reads is read whether it holds or not.
        let masks = std::mem::take(&mut self.masks);
        for &p in conditions {
            let p = self.value(p, &mut FxHashMap::default());
            let p = self.simplifier.simplify(&mut self.env, &self.loops, p);
            if self.env.pool.as_bool(p) != Some(true) {
                left.push(p);
            }
        }
        self.masks = masks;
        super::under(&mut self.env, left, vec![s])
    }

    /// A condition of positions without what always holds here; of elements as it is. On a grid only what is simple to see
    /// is gone: without the conditions of copies into shared memory ptxas keeps more of these under way, 185 registers in
    /// the place of 148 in trmm, and fewer blocks fit.
    fn condition(&mut self, c: ExprId) -> ExprId {
        let c = self.simplifier.simplify(&mut self.env, &self.loops, c);
        if self.in_grid {
            return c;
        }
        let mut left = self.env.pool.conjuncts(c);
        if !left.iter().all(|&e| compares_positions(&self.env.pool, e)) {
            return c;
        }
        left.retain(|&e| !self.holds(e));
        if let [only] = left[..] {
            let never = self.env.pool.un(UnOp::Not, only);
            if self.holds(never) {
                return self.env.pool.bool(false);
            }
        }
        self.env.pool.all(left)
    }

    /// Whether a condition provably holds in the loops around.
    fn holds(&mut self, c: ExprId) -> bool {
        let asked = self.unproved < MOST_UNPROVED;
        let proved = asked && self.simplifier.prove(&mut self.env, &self.loops, &[], c);
        self.unproved += usize::from(!proved);
        proved
    }

    /// Flattens the loads of a value, innermost first (an index may itself be loaded).
    pub(super) fn value(&mut self, e: ExprId, memo: &mut FxHashMap<ExprId, ExprId>) -> ExprId {
        if let Some(&done) = memo.get(&e) {
            return done;
        }
        let kids: Vec<ExprId> = self.env.pool.children(e).iter().map(|&k| self.value(k, memo)).collect();
        let out = match self.env.pool.get(e).clone() {
            Expr::Load { tensor, part, index, guard } => {
                let tensor = self.components.of(tensor)[part as usize];
                let at = self.flat(tensor, &kids[..index.len()]);
                let guard = guard.map(|_| {
                    let c = self.condition(kids[index.len()]);
                    (c, kids[index.len() + 1])
                });
                let ty = self.env.tensors[tensor].ty;
                self.env.pool.load_guarded((tensor, 0), ty, [at], guard)
            }
            Expr::Select(..) => {
                let c = self.condition(kids[0]);
                self.env.pool.select(c, kids[1], kids[2])
            }
            _ => self.env.pool.with_children(e, &kids),
        };
        memo.insert(e, out);
        out
    }
}
