//! Rules of the storage dialect.

use super::{Allow, Checker, Loads, VerifyError};
use crate::env::{Role, Scope, UfDef};
use crate::expr::Expr;
use crate::ids::{ExprId, TensorId, UfId, VarId};
use crate::loops::{Axis, LoopKind};
use crate::storage::{
    BOX_UNIT, Beside, Buffer, Bulk, BulkDim, Gemm, Kernel, MOST_DIMS, MOST_EXTENT, SWIZZLED_LINE, Stmt, StorageModule,
    Table, Tile,
};
use crate::types::{Combiner, ScalarType, Type};
use rustc_hash::FxHashSet;

/// How far a module of the storage dialect has been lowered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum StorageForm {
    /// Vector and unrolled loops, and calls of functions that may get a table, are still there.
    Lowered,
    /// Ready for code generation.
    Legal,
}

/// Checks every invariant of the storage dialect; see the [module's header](self::super).
///
/// # Errors
/// Every invariant that is broken, each with its rule and place.
pub fn verify_storage(m: &StorageModule, form: StorageForm) -> Result<(), Vec<VerifyError>> {
    let mut c = Checker::new(&m.env);
    let tables: FxHashSet<TensorId> = m.tables.iter().map(|t| t.tensor).collect();
    c.declarations(true, &tables);
    c.distinct("kernel", m.kernels.iter().map(|k| k.name.as_str()));
    c.buffers(m, &tables, form);
    c.tables(m);
    let mut k = KernelChecker { c, m, tables, form, written: FxHashSet::default(), lanes: false, grid: false };
    for kernel in &m.kernels {
        k.kernel(kernel);
    }
    let KernelChecker { mut c, written, .. } = k;
    // The prelude alone has no kernels.
    if !m.kernels.is_empty() {
        c.all_written(&written, &m.tables);
    }
    c.finish()
}

impl Checker<'_> {
    fn buffers(&mut self, m: &StorageModule, tables: &FxHashSet<TensorId>, form: StorageForm) {
        let (nothing, mut seen) = (FxHashSet::default(), FxHashSet::default());
        let no_calls = (form == StorageForm::Legal).then_some("legal");
        for b in &m.buffers {
            let place = format!("buffer {}", self.tensor_name(b.tensor));
            self.within(place, |c| {
                if !c.exists(b.tensor) {
                    return;
                }
                if !seen.insert(b.tensor) {
                    c.error("buffers", "the tensor has two buffers");
                }
                let loads = Loads::Only(tables, "buffers");
                let vars = Some((&nothing, "buffers"));
                let mut allow = Allow { loads, args: (0, "buffers"), vars, no_calls, vectors: true };
                c.scalar(b.elems, ScalarType::Index, "buffers", "the size", &allow);
                if let Some(offset) = b.offset {
                    allow.args.0 = c.env.tensors[b.tensor].dims.len() as u32;
                    c.scalar(offset, ScalarType::Index, "buffers", "the offset", &allow);
                }
                c.buffer_scope(b);
            });
        }
    }

    fn buffer_scope(&mut self, b: &Buffer) {
        let t = &self.env.tensors[b.tensor];
        if t.role == Role::Temp && b.offset.is_some() {
            self.error("buffers", "an offset for a tensor that is neither input nor output");
        }
        if t.scope == Scope::Reg && self.known(b.elems) && self.env.pool.as_int(b.elems).is_none() {
            self.error("buffers", format!("the size `{}` of registers is no constant", self.show(b.elems)));
        }
    }

    fn tables(&mut self, m: &StorageModule) {
        let mut earlier: FxHashSet<TensorId> = FxHashSet::default();
        let mut functions: FxHashSet<UfId> = FxHashSet::default();
        for t in &m.tables {
            let place = format!("table {}", self.tensor_name(t.tensor));
            self.within(place, |c| {
                if !functions.insert(t.uf) || earlier.contains(&t.tensor) {
                    c.error("tables", "the function or the buffer has a table already");
                }
                c.table(t, &earlier);
            });
            earlier.insert(t.tensor);
        }
    }

    fn table(&mut self, t: &Table, earlier: &FxHashSet<TensorId>) {
        let Some(uf) = self.env.ufs.get(t.uf) else {
            return self.error("entities", format!("there is no {:?}", t.uf));
        };
        if !self.exists(t.tensor) {
            return;
        }
        let tensor = &self.env.tensors[t.tensor];
        if !matches!(tensor.ty, ScalarType::I32 | ScalarType::I64) {
            self.error("tables", format!("entries are of type {}", tensor.ty));
        }
        if t.domain.len() != uf.domain.len() {
            self.error("tables", format!("`@{}` has {} arguments", uf.name, uf.domain.len()));
        }
        let wrong_body = match uf.def {
            UfDef::Extent { .. } => t.body.is_some(),
            UfDef::Search { .. } => false,
            _ => t.body.is_none(),
        };
        if wrong_body {
            self.error("tables", "extent functions have no body, others have");
        }
        let nothing = FxHashSet::default();
        let allow = |args: usize| Allow {
            loads: Loads::Only(earlier, "tables"),
            args: (args as u32, "tables"),
            vars: Some((&nothing, "tables")),
            no_calls: Some("tables"),
            vectors: true,
        };
        self.scalar(t.entries, ScalarType::Index, "tables", "the number of entries", &allow(0));
        for (j, &e) in t.domain.iter().enumerate() {
            self.scalar(e, ScalarType::Index, "tables", "an argument's extent", &allow(j));
        }
        if let Some(e) = t.body {
            self.scalar(e, ScalarType::Index, "tables", "the body", &allow(t.domain.len()));
        }
    }
}

/// The verification of kernels under way.
struct KernelChecker<'a> {
    c: Checker<'a>,
    m: &'a StorageModule,
    tables: FxHashSet<TensorId>,
    form: StorageForm,
    written: FxHashSet<TensorId>,
    /// Whether a loop over `thread.x` is around.
    lanes: bool,
    /// Whether the kernel runs on a grid.
    grid: bool,
}

type Vars = FxHashSet<VarId>;

impl KernelChecker<'_> {
    fn kernel(&mut self, k: &Kernel) {
        self.c.place.push(format!("kernel @{}", k.name));
        self.grid = k.is_grid();
        let parallel = |s: &Stmt| matches!(s, Stmt::For { kind: LoopKind::Parallel, .. });
        let last = k.body.len().saturating_sub(1);
        for (i, s) in k.body.iter().enumerate() {
            if parallel(s) && (i != last || !k.body[..i].iter().all(|s| matches!(s, Stmt::Let { .. }))) {
                self.c.error("kernel-parallel", "a parallel loop that is not alone");
            }
        }
        self.body(&k.body, &Vars::default(), 0, false);
        self.c.place.pop();
    }

    /// Registers of one element and one type, lanes that a warp has, not all of them inside a loop over them.
    fn shuffle(&mut self, (to, from): (TensorId, TensorId), xor: u32) {
        if !(1..32).contains(&xor) {
            self.c.error("shuffle", format!("lanes whose numbers differ by {xor}; a warp has 32"));
        }
        if self.lanes {
            self.c.error("shuffle", "an exchange between lanes inside a loop over lanes");
        }
        for t in [to, from] {
            let register = self.c.env.tensors.get(t).is_some_and(|t| t.scope == Scope::Reg);
            let one = self.m.buffer(t).is_some_and(|b| self.c.env.pool.as_int(b.elems) == Some(1));
            if !register || !one {
                let name = self.c.tensor_name(t);
                self.c.error("shuffle", format!("`{name}` is not a register of one element"));
            }
        }
        let ty = |t: TensorId| self.c.env.tensors.get(t).map(|t| t.ty);
        if ty(to) != ty(from) || to == from {
            self.c.error("shuffle", "lanes exchange two registers of one type");
        }
    }

    fn body(&mut self, body: &[Stmt], outer: &Vars, depth: usize, threads: bool) {
        let mut scope = outer.clone();
        for s in body {
            self.stmt(s, &mut scope, depth, threads);
        }
    }

    /// `depth`: statements around; `threads`: whether a thread loop is among them.
    fn stmt(&mut self, s: &Stmt, scope: &mut Vars, depth: usize, threads: bool) {
        match s {
            Stmt::For { var, extent, kind, body } => {
                self.c.place.push(format!("for {}", self.c.var_name(*var)));
                self.scalar(*extent, ScalarType::Index, "the extent", scope);
                if *kind == LoopKind::Parallel && depth > 0 {
                    self.c.error("kernel-parallel", "a parallel loop inside another statement");
                }
                if *kind == LoopKind::Offload {
                    self.c.error("offload", "a loop of kind offload: a `gemm` takes its place");
                }
                if *kind == LoopKind::Bulk {
                    self.c.error("bulk", "a loop of kind bulk: a `bulk` takes its place");
                }
                if matches!(kind, LoopKind::Tensorize(_)) {
                    self.c.error("tile", "a loop of a tensor instruction's kind: a `tile` takes its place");
                }
                if self.form == StorageForm::Legal
                    && matches!(kind, LoopKind::Vector | LoopKind::Unroll | LoopKind::Virtual)
                {
                    self.c.error("legal", format!("a loop of kind {}", kind.name()));
                }
                let mut inner = scope.clone();
                self.bind(*var, &mut inner);
                let lanes = self.lanes;
                self.lanes |= *kind == LoopKind::Bound(Axis::ThreadX);
                self.body(body, &inner, depth + 1, threads || kind.is_thread());
                self.lanes = lanes;
                self.c.place.pop();
            }
            Stmt::If { cond, then, other } => {
                self.scalar(*cond, ScalarType::Bool, "the condition", scope);
                self.body(then, scope, depth + 1, threads);
                self.body(other, scope, depth + 1, threads);
            }
            Stmt::Let { var, value } => {
                self.scalar(*value, ScalarType::Index, "the value", scope);
                self.bind(*var, scope);
            }
            Stmt::Shuffle { to, from, xor } => {
                self.written.insert(*to);
                self.shuffle((*to, *from), *xor);
            }
            Stmt::Barrier | Stmt::Commit | Stmt::Wait { .. } => {
                if threads {
                    self.c.error("barrier", "a barrier inside a thread loop, which not all threads may reach");
                }
            }
            Stmt::Beside(b) => {
                if *b == Beside::Fence && threads {
                    self.c.error("barrier", "a fence inside a thread loop");
                }
                if self.lanes {
                    self.c.error("beside", "waiting for tiles inside a loop over lanes, which execute them together");
                }
                if let Beside::Wait { results, .. } = b {
                    for &t in results {
                        if self.c.exists(t) {
                            self.access(t, None);
                        }
                    }
                }
            }
            Stmt::Copy { tensor, index, value, mask } => {
                self.c.place.push(format!("copy {}", self.c.tensor_name(*tensor)));
                self.store(*tensor, [Some(*index), Some(*value), *mask], scope);
                if !crate::storage::is_copy(self.c.env, *tensor, *value) {
                    self.c
                        .error("copy", "not elements of a global buffer of the same type, or zeros, for a shared one");
                }
                self.c.place.pop();
            }
            Stmt::Atomic { tensor, index, combiner, value } => {
                self.c.place.push(format!("atomic {}", self.c.tensor_name(*tensor)));
                self.store(*tensor, [Some(*index), Some(*value), None], scope);
                self.atomic((*tensor, *combiner), *value);
                self.c.place.pop();
            }
            Stmt::Prefetch { tensor, index, .. } => {
                self.scalar(*index, ScalarType::Index, "the index", scope);
                if self.c.exists(*tensor) {
                    self.access(*tensor, None);
                }
            }
            Stmt::Tile(t) => {
                self.c.place.push(format!("tile {}", self.c.tensor_name(t.c.tensor)));
                self.tile(t, scope);
                self.c.place.pop();
            }
            Stmt::Bulk(b) => {
                self.c.place.push(format!("bulk {}", self.c.tensor_name(b.to)));
                if threads {
                    self.c.error("bulk", "a box is asked for inside a thread loop; one thread of the block does it");
                }
                self.bulk(b, scope);
                self.c.place.pop();
            }
            Stmt::Await { tensor, slot } => {
                if threads {
                    self.c.error("barrier", "waiting for a box inside a thread loop");
                }
                self.scalar(*slot, ScalarType::Index, "the slot", scope);
                if self.c.exists(*tensor) {
                    self.access(*tensor, None);
                }
            }
            Stmt::Gemm(g) => {
                self.c.place.push(format!("gemm {}", self.c.tensor_name(g.c.tensor)));
                self.gemm(g, scope);
                self.c.place.pop();
            }
            Stmt::Store { tensor, index, value, mask, rest } => {
                for (k, &(t, value)) in [(*tensor, *value)].iter().chain(rest).enumerate() {
                    self.c.place.push(format!("store {}", self.c.tensor_name(t)));
                    self.store(t, [Some(*index), Some(value), *mask], scope);
                    if rest[..k.saturating_sub(1)].iter().any(|r| r.0 == t) || (k > 0 && t == *tensor) {
                        self.c.error("store-target", "one statement writes it twice");
                    }
                    self.c.place.pop();
                }
            }
        }
    }

    /// One element of a global buffer of a grid, that memory can combine.
    fn atomic(&mut self, (tensor, combiner): (TensorId, Combiner), value: ExprId) {
        let Some(t) = self.c.env.tensors.get(tensor) else { return };
        if t.scope != Scope::Global || !self.grid {
            self.c.error("atomic", "not of a global buffer in a grid");
        }
        if !crate::storage::is_atomic(combiner, t.ty) {
            self.c.error("atomic", format!("{} of {} is not what memory combines", combiner.name(), t.ty));
        }
        if self.c.known(value) && self.c.env.pool.ty(value).lanes != 1 {
            self.c.error("atomic", "a vector");
        }
    }

    /// Whether a kernel may write a table: on a grid one whose values do not come with the batch.
    fn may_build(&self, table: TensorId) -> bool {
        let given = |t: &Table| matches!(self.c.env.ufs.get(t.uf).map(|u| &u.def), None | Some(UfDef::Extent { .. }));
        self.grid && self.m.tables.iter().any(|t| t.tensor == table && !given(t))
    }

    fn bind(&mut self, v: VarId, scope: &mut Vars) {
        if self.c.env.vars.get(v).is_none() {
            self.c.error("entities", format!("there is no {v:?}"));
        }
        if !scope.insert(v) {
            self.c.error("bound-once", format!("`{}` is already bound", self.c.var_name(v)));
        }
    }

    fn expr(&mut self, e: ExprId, scope: &Vars) {
        let no_calls = (self.form == StorageForm::Legal).then_some("legal");
        let vars = Some((scope, "bound"));
        let allow = Allow { loads: Loads::Flat, args: (0, "formal-args"), vars, no_calls, vectors: true };
        self.c.expr(e, &allow);
        if !self.c.known(e) {
            return;
        }
        let mut reads = Vec::new();
        self.c.env.pool.walk(e, &mut |_, n| match n {
            Expr::Load { tensor, index, .. } => reads.push((*tensor, index.first().copied())),
            Expr::Search { table, .. } => reads.push((*table, None)),
            _ => {}
        });
        for (tensor, index) in reads {
            self.access(tensor, index);
        }
    }

    fn scalar(&mut self, e: ExprId, ty: ScalarType, what: &str, scope: &Vars) {
        self.expr(e, scope);
        if self.c.known(e) && self.c.env.pool.ty(e) != Type::scalar(ty) {
            let found = self.c.env.pool.ty(e);
            self.c.error("scalars", format!("{what} `{}` is of type {found}", self.c.show(e)));
        }
    }

    /// An access to a tensor at a flat offset.
    fn access(&mut self, tensor: TensorId, index: Option<ExprId>) {
        let Some(t) = self.c.env.tensors.get(tensor) else { return };
        if t.tuple.is_some() {
            self.c.error("tensor-tuple", format!("`@{}` is of tuples", t.name));
        }
        if self.m.buffer(tensor).is_none() && !self.tables.contains(&tensor) {
            self.c.error("buffers", format!("`@{}` has no buffer", t.name));
        }
        let pool = &self.c.env.pool;
        let constant = |e: ExprId| match *pool.get(e) {
            Expr::Ramp { base, .. } => pool.as_int(base).is_some(),
            _ => pool.as_int(e).is_some(),
        };
        if self.form == StorageForm::Legal
            && t.scope == Scope::Reg
            && let Some(index) = index
            && !constant(index)
        {
            self.c.error("legal", format!("`{}` is no constant index of registers", self.c.show(index)));
        }
    }

    fn tile(&mut self, t: &Tile, scope: &Vars) {
        for e in t.exprs() {
            self.scalar(e, ScalarType::Index, "an offset or stride", scope);
        }
        let env = self.c.env;
        if !t.matrices().iter().all(|m| self.c.exists(m.tensor)) {
            return;
        }
        let i = t.intrinsic.get();
        let of = &env.tensors[t.c.tensor];
        if matches!(of.role, Role::Input | Role::ConstInput) || self.tables.contains(&t.c.tensor) {
            self.c.error("store-target", "it is not to be written");
        }
        if [t.a.tensor, t.b.tensor].contains(&t.c.tensor) {
            self.c.error("tile", "a factor is the result itself");
        }
        if i.lanes > 1 && self.lanes {
            self.c.error("tile", "an instruction of several lanes inside a loop over lanes");
        }
        for (m, f) in t.matrices().into_iter().zip([i.c, i.a, i.b]) {
            let (name, ty, scope) =
                (&env.tensors[m.tensor].name, env.tensors[m.tensor].ty, env.tensors[m.tensor].scope);
            self.access(m.tensor, Some(m.offset).filter(|_| scope == Scope::Reg));
            if ty != f.ty {
                self.c.error("tile", format!("`@{name}` is of type {ty}, not {}", f.ty));
            }
            if !f.scopes.contains(&scope) {
                self.c.error("tile", format!("`@{name}` is {}", scope.name()));
            }
            let strides = [m.row, m.column].map(|e| self.c.known(e).then(|| env.pool.as_int(e)).flatten());
            if m.blocks.is_some() != f.blocks.is_some() {
                let what = if m.blocks.is_some() { "lies in blocks" } else { "does not lie in blocks" };
                self.c.error("tile", format!("`@{name}` {what}"));
            }
            if scope == Scope::Reg && i.lanes > 1 && strides != [Some(0); 2] {
                self.c.error("tile", format!("`@{name}` is in registers of lanes, and has strides"));
            }
        }
        self.written.insert(t.c.tensor);
    }

    /// A box that a copy engine can bring: from a global buffer to a shared one of the same type.
    fn bulk(&mut self, b: &Bulk, scope: &Vars) {
        for e in b.exprs() {
            self.scalar(e, ScalarType::Index, "an offset, a slot, a position or a size", scope);
        }
        if !self.c.exists(b.to) || !self.c.exists(b.from) {
            return;
        }
        self.access(b.to, None);
        self.access(b.from, None);
        self.written.insert(b.to);
        let (to, from) = (&self.c.env.tensors[b.to], &self.c.env.tensors[b.from]);
        if to.scope != Scope::Shared || from.scope != Scope::Global || to.ty != from.ty {
            self.c.error("bulk", "not elements of a global buffer of the same type for a shared one");
        }
        let fits = |d: &BulkDim| (1..=MOST_EXTENT).contains(&d.extent) && d.step >= 1;
        let Some(first) =
            b.dims.first().filter(|d| d.step == 1 && b.dims.len() <= MOST_DIMS && b.dims.iter().all(fits))
        else {
            self.c.error(
                "bulk",
                format!("1 to {MOST_DIMS} dimensions of 1 to {MOST_EXTENT} positions, the first contiguous"),
            );
            return;
        };
        let unit = to.ty.elems_of(BOX_UNIT);
        if first.extent % unit != 0 || b.dims[1..].iter().any(|d| d.step % unit != 0) {
            let fact = format!("positions side by side, and steps between others, are multiples of {BOX_UNIT} bytes");
            self.c.error("bulk", fact);
        }
        let swizzled = b.is_swizzled(self.c.env);
        if swizzled && first.extent != to.ty.elems_of(SWIZZLED_LINE) {
            self.c.error("bulk", format!("{SWIZZLED_LINE} bytes lie side by side where they are swizzled"));
        }
        // Until it is legal the buffer may still have one slot.
        let slots = if self.form == StorageForm::Legal { b.slots(self.c.env) } else { 1 };
        let elems = self.m.buffer(b.to).and_then(|x| self.c.env.pool.as_int(x.elems));
        if elems.is_some_and(|n| b.elems() > n / slots.max(1)) {
            self.c.error("bulk", format!("a box of {} elements is larger than a slot", b.elems()));
        }
    }

    fn gemm(&mut self, g: &Gemm, scope: &Vars) {
        for e in g.exprs() {
            self.scalar(e, ScalarType::Index, "a size, offset or stride", scope);
        }
        let env = self.c.env;
        if ![&g.c, &g.a, &g.b].iter().all(|m| self.c.exists(m.tensor)) {
            return;
        }
        let t = &env.tensors[g.c.tensor];
        if matches!(t.role, Role::Input | Role::ConstInput) || self.tables.contains(&g.c.tensor) {
            self.c.error("store-target", "it is not to be written");
        }
        if [g.a.tensor, g.b.tensor].contains(&g.c.tensor) {
            self.c.error("offload", "a factor is the result itself");
        }
        for m in [&g.c, &g.a, &g.b] {
            let (name, ty, scope) = {
                let t = &env.tensors[m.tensor];
                (&t.name, t.ty, t.scope)
            };
            self.access(m.tensor, None);
            if !matches!(ty, ScalarType::F32 | ScalarType::F64) || ty != t.ty {
                self.c.error("offload", format!("`@{name}` is of type {ty}"));
            }
            if scope == Scope::Reg {
                self.c.error("offload", format!("`@{name}` is in registers, which have no address"));
            }
        }
        self.written.insert(g.c.tensor);
    }

    fn store(&mut self, tensor: TensorId, [index, value, mask]: [Option<ExprId>; 3], scope: &Vars) {
        for e in [index, value, mask].into_iter().flatten() {
            self.expr(e, scope);
        }
        let env = self.c.env;
        if !self.c.exists(tensor) || [index, value, mask].iter().flatten().any(|&e| !self.c.known(e)) {
            return;
        }
        let t = &env.tensors[tensor];
        if matches!(t.role, Role::Input | Role::ConstInput)
            || (self.tables.contains(&tensor) && !self.may_build(tensor))
        {
            self.c.error("store-target", "it is not to be written");
        }
        self.access(tensor, index);
        self.written.insert(tensor);
        let wanted = [(index, ScalarType::Index), (value, t.ty), (mask, ScalarType::Bool)];
        let types = wanted.into_iter().filter_map(|(e, ty)| e.map(|e| (env.pool.ty(e), ty, e)));
        let mut lanes = Vec::new();
        for (found, ty, e) in types {
            lanes.push(found.lanes);
            if found.scalar != ty {
                self.c.error("store-type", format!("`{}` is of type {}, not {ty}", self.c.show(e), found.scalar));
            }
        }
        if lanes.iter().any(|&l| l != lanes[0]) {
            self.c.error("store-type", "index, value and mask have different numbers of lanes");
        }
    }
}
