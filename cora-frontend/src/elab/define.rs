//! Definitions: operators, their reductions and the locals of functions they call. Each part is a
//! draft until the operator's dimensions, and so the order of its parts' dimensions, are known.

use super::combiner::Tuples;
use super::value::Val;
use super::{Elab, Entity, Local, State};
use crate::ast::{Def, Expr, ExprKind, ReduceOp};
use cora_ir::graph::Place;
use cora_ir::schedule::Span;
use cora_ir::{Combiner, Diagnostic, DimId, ExprId, Op, Reduction, ScalarType, Tensor, TensorId};
use std::collections::BTreeSet;

/// An operator in the making.
pub(super) struct Draft {
    tensor: TensorId,
    /// Its dimensions: given, or free ones to be ordered like those of the frame's definition.
    dims: DraftDims,
    reduce: Vec<DimId>,
    combiner: Option<Reduction>,
    value: ExprId,
    span: Span,
}

enum DraftDims {
    Given(Vec<DimId>),
    Free(Vec<DimId>, usize),
}

/// What a definition's right-hand side turned out to be.
pub(super) enum Defined {
    Plain(Val),
    Reduce(Combiner, Vec<DimId>, Val),
    Tuples(Tuples),
}

/// One operator may have this many parts.
const MAX_PARTS: usize = 10_000;

impl Elab<'_> {
    /// A top-level operator.
    pub(super) fn operator(&mut self, def: &Def) {
        self.prefix.clone_from(&def.name.name);
        self.frames = vec![None];
        self.frame = 0;
        self.drafts.clear();
        self.dim_spans.clear();
        self.shared.clear();
        let before = self.graph.ops.len();
        let done = self.define_operator(def);
        let ops: Vec<TensorId> = self.graph.ops[before..].iter().map(|o| o.tensor).collect();
        let span = Span { start: def.name.span.start, end: def.value.span().end };
        let accesses = std::mem::take(&mut self.accesses);
        self.graph.places.push(Place { ops, span, accesses });
        self.drafts.clear();
        self.scope = super::Scope::default();
        let mine = |k: &str| k == "operator";
        if let Some(slot) = self.slots.get_mut(&def.name.name)
            && mine(slot.kind)
            && matches!(slot.state, State::Later)
        {
            slot.state = done.map_or(State::Poison, |t| State::Done(Entity::Tensor(t)));
        }
    }

    fn define_operator(&mut self, def: &Def) -> Option<TensorId> {
        let given = def.dims.as_ref().map(|uses| {
            let dims = self.index_list(uses)?;
            let ids: Vec<DimId> = dims.iter().map(|d| d.0).collect();
            self.check_order(&def.name, uses, &ids)?;
            Some(dims)
        });
        let defined = self.defined(&def.value);
        let (combiner, reduce, value) = self.finish_value(def, defined?)?;
        let dims = match given {
            Some(dims) => dims?,
            None => self.free_dims(value, &reduce).into_iter().map(|d| (d, 1)).collect(),
        };
        let ids: Vec<DimId> = dims.iter().map(|d| d.0).collect();
        self.check_bound(def, &ids, &reduce, value)?;
        self.frames[0] = Some(ids.clone());
        let value = self.emit_parts(value)?;
        if let Some(&tensor) = self.early.get(&def.name.name) {
            return self.define_early(def, Op { tensor, spatial: ids, reduce, combiner, value });
        }
        let tensor_dims = self.tensor_dims_of(&dims);
        let tensor = self.new_tensor(&def.name.name, value, combiner);
        self.graph.env.tensors[tensor].dims = tensor_dims;
        self.tensor_dims.insert(tensor, ids.clone());
        self.graph.ops.push(Op { tensor, spatial: ids, reduce, combiner, value });
        Some(tensor)
    }

    /// The right-hand side of a definition; a reduction or call at its root stays one.
    pub(super) fn defined(&mut self, e: &Expr) -> Option<Defined> {
        match e.kind() {
            ExprKind::Reduce(ReduceOp::Combine(c), dims, body) => {
                let dims = self.reduce_dims(dims, e.span());
                let value = self.value(body);
                Some(Defined::Reduce(*c, dims?, value?))
            }
            ExprKind::Call { base, dims, args } => {
                let id = self.ident(base)?;
                if let Some(Entity::Fn(f)) = self.resolve(&id.name) {
                    self.used.insert(id.name);
                    return self.inline(&f, dims.as_deref(), args, e.span());
                }
                if let Some(Entity::Combiner(c)) = self.resolve(&id.name) {
                    self.used.insert(id.name);
                    return self.tuples(&c, dims.as_deref(), args, e.span()).map(Defined::Tuples);
                }
                self.value(e).map(Defined::Plain)
            }
            _ => self.value(e).map(Defined::Plain),
        }
    }

    /// A definition's result where a plain value is wanted: a reduction becomes a part.
    pub(super) fn as_value(&mut self, defined: Defined, span: Span) -> Option<Val> {
        match defined {
            Defined::Plain(v) => Some(v),
            Defined::Reduce(c, dims, v) => {
                let value = self.typed_or_default(v, span)?;
                self.element_type(value, span)?;
                self.check_combiner(c, value, span)?;
                self.reduced(c, dims, value, span).map(Val::Typed)
            }
            Defined::Tuples(t) => self.unnamed_tuple(t.combiner(), span),
        }
    }

    /// Types the value of a definition and checks that its type can be stored.
    fn finish_value(&mut self, def: &Def, defined: Defined) -> Option<(Option<Reduction>, Vec<DimId>, ExprId)> {
        let span = def.value.span();
        let (combiner, reduce, v) = match defined {
            Defined::Tuples(t) => {
                if let Some(ty) = def.ty {
                    let d = Diagnostic::new("E0252", format!("`{}` is a tuple and not of type {ty}", def.name.name));
                    return self.error(span, d.hint("give types to the combiner's components: `m : f32 = 0.0`"));
                }
                let reduce = t.reduce.clone();
                let (c, value) = self.finish_tuples(t)?;
                return Some((Some(Reduction::Tuple(c)), reduce, value));
            }
            Defined::Plain(v) => (None, Vec::new(), v),
            Defined::Reduce(c, dims, v) => (Some(c), dims, v),
        };
        let value = match def.ty {
            Some(ty) if ty != ScalarType::Index && !self.is_index(&v) => self.adapt(v, ty, span)?,
            _ => self.typed_or_default(v, span)?,
        };
        self.element_type(value, span)?;
        if let Some(c) = combiner {
            self.check_combiner(c, value, span)?;
            if self.is_narrow_sum(c, value) {
                let sum = self.reduced(c, reduce, value, span)?;
                return Some((None, Vec::new(), sum));
            }
        }
        Some((combiner.map(Reduction::Op), reduce, value))
    }

    /// Whether terms have too few bits to be added up in their own type.
    fn is_narrow_sum(&self, c: Combiner, value: ExprId) -> bool {
        let ty = self.graph.env.pool.ty(value).scalar;
        matches!(c, Combiner::Sum | Combiner::Prod) && matches!(ty, ScalarType::F16 | ScalarType::BF16)
    }

    /// A reduction as a part of its own. A sum or product of too few bits is computed in f32, with the products and sums
    /// in its terms, and rounded once.
    pub(super) fn reduced(&mut self, c: Combiner, dims: Vec<DimId>, value: ExprId, span: Span) -> Option<ExprId> {
        if !self.is_narrow_sum(c, value) {
            return self.draft(c.name(), dims, Some(c), value, span);
        }
        let ty = self.graph.env.pool.ty(value).scalar;
        let wide = self.graph.env.pool.computed_in(ScalarType::F32, value);
        let sum = self.draft(c.name(), dims, Some(c), wide, span)?;
        Some(self.graph.env.pool.cast(ty, sum))
    }

    fn is_index(&self, v: &Val) -> bool {
        matches!(v, Val::Typed(e) if self.graph.env.pool.ty(*e).scalar == ScalarType::Index)
    }

    /// A local of a function. What reads no tensor, or is just one, is only a name for it.
    pub(super) fn local(&mut self, def: &Def) -> Option<Local> {
        let outer = std::mem::take(&mut self.prefix);
        self.prefix = format!("{outer}.{}", def.name.name);
        let frame = self.frame;
        let given = match &def.dims {
            Some(uses) => self.local_dims(def, uses).map(|d| {
                self.frames.push(Some(d.iter().map(|d| d.0).collect()));
                self.frame = self.frames.len() - 1;
                Some(d)
            }),
            None => Some(None),
        };
        let defined = self.defined(&def.value);
        self.frame = frame;
        let out = given.zip(defined).and_then(|(given, defined)| self.define_local(def, given, defined));
        self.prefix = outer;
        out
    }

    fn local_dims(&mut self, def: &Def, uses: &[crate::ast::DimUse]) -> Option<Vec<(DimId, i64)>> {
        if let Some(inline) = uses.iter().find(|u| u.extent.is_some()) {
            let d = Diagnostic::new("E0238", "a function cannot declare a dimension");
            return self.error(inline.name.span, d.hint("declare it outside: `dim i = ...`"));
        }
        let dims = self.index_list(uses)?;
        let ids: Vec<DimId> = dims.iter().map(|d| d.0).collect();
        self.check_order(&def.name, uses, &ids)?;
        Some(dims)
    }

    fn define_local(&mut self, def: &Def, given: Option<Vec<(DimId, i64)>>, defined: Defined) -> Option<Local> {
        if given.is_none()
            && def.ty.is_none()
            && let Defined::Plain(v) = &defined
        {
            let is_name = match v {
                Val::Typed(e) => {
                    let pool = &self.graph.env.pool;
                    let is_load = |e: &cora_ir::Expr| matches!(e, cora_ir::Expr::Load { .. });
                    is_load(pool.get(*e)) || !pool.any(*e, &mut |e| is_load(e))
                }
                _ => true,
            };
            if is_name {
                return Some(Local::value(v.clone()));
            }
        }
        let (combiner, reduce, value) = self.finish_value(def, defined)?;
        let name = self.part_name("");
        match given {
            None => {
                let (t, index) = self.draft_named(&name, reduce, combiner, value, def.value.span())?;
                if self.graph.env.tensors[t].tuple.is_some() {
                    return Some(self.local_components(&def.name.name, t, &index, false));
                }
                let e = self.graph.env.load(t, index);
                Some(Local::value(Val::Typed(e)))
            }
            Some(dims) => {
                let ids: Vec<DimId> = dims.iter().map(|d| d.0).collect();
                self.check_bound(def, &ids, &reduce, value)?;
                let tensor_dims = self.tensor_dims_of(&dims);
                let tensor = self.new_tensor(&name, value, combiner);
                self.graph.env.tensors[tensor].dims = tensor_dims;
                self.tensor_dims.insert(tensor, ids.clone());
                let index: Vec<ExprId> = ids.iter().map(|&d| self.dim_var(d)).collect();
                self.push_draft(Draft {
                    tensor,
                    dims: DraftDims::Given(ids),
                    reduce,
                    combiner,
                    value,
                    span: def.value.span(),
                })?;
                if self.graph.env.tensors[tensor].tuple.is_some() {
                    return Some(self.local_components(&def.name.name, tensor, &index, true));
                }
                let e = self.graph.env.load(tensor, index);
                Some(Local { value: Some(Val::Typed(e)), tensor: Some((tensor, 0)), parts: Vec::new() })
            }
        }
    }

    /// A part of the current operator; gives the read of it.
    pub(super) fn draft(
        &mut self,
        hint: &str,
        reduce: Vec<DimId>,
        combiner: Option<Combiner>,
        value: ExprId,
        span: Span,
    ) -> Option<ExprId> {
        let name = self.part_name(hint);
        let (t, index) = self.draft_named(&name, reduce, combiner.map(Reduction::Op), value, span)?;
        Some(self.graph.env.load(t, index))
    }

    fn draft_named(
        &mut self,
        name: &str,
        reduce: Vec<DimId>,
        combiner: Option<Reduction>,
        value: ExprId,
        span: Span,
    ) -> Option<(TensorId, Vec<ExprId>)> {
        let free = self.free_dims(value, &reduce);
        let tensor = self.new_tensor(name, value, combiner);
        let index: Vec<ExprId> = free.iter().map(|&d| self.dim_var(d)).collect();
        let dims = DraftDims::Free(free, self.frame);
        self.push_draft(Draft { tensor, dims, reduce, combiner, value, span })?;
        Some((tensor, index))
    }

    fn push_draft(&mut self, d: Draft) -> Option<()> {
        let span = d.span;
        self.drafts.push(d);
        if self.drafts.len() > MAX_PARTS {
            let d = Diagnostic::new("E0224", format!("an operator of more than {MAX_PARTS} parts"));
            return self.error(span, d);
        }
        Some(())
    }

    /// `prefix.hint`, made unique.
    fn part_name(&mut self, hint: &str) -> String {
        let base = if hint.is_empty() { self.prefix.clone() } else { format!("{}.{hint}", self.prefix) };
        let taken = |n: &str| self.graph.env.tensor_named(n).is_some() || self.slots.contains_key(n);
        if !taken(&base) {
            return base;
        }
        let first = self.part_numbers.get(&base).copied().unwrap_or(1);
        let found = (first..).map(|i| (i, format!("{base}.{i}"))).find(|(_, n)| !taken(n));
        let Some((number, name)) = found else { return base };
        self.part_numbers.insert(base, number + 1);
        name
    }

    fn new_tensor(&mut self, name: &str, value: ExprId, combiner: Option<Reduction>) -> TensorId {
        let (name, ty) = (name.to_owned(), self.graph.env.pool.ty(value).scalar);
        let tuple = match combiner {
            Some(Reduction::Tuple(c)) => Some(c),
            _ => None,
        };
        self.graph.env.tensors.push(Tensor { tuple, ..Tensor::temp(name, ty, Vec::new()) })
    }

    /// The dimensions that `value` needs outside the reduction, in order of first appearance, each
    /// after those that its extent needs.
    fn free_dims(&self, value: ExprId, reduce: &[DimId]) -> Vec<DimId> {
        let mut out = Vec::new();
        let mut wanted = self.dims_in(value);
        for &r in reduce {
            wanted.extend(self.dims_in(self.graph.env.dims[r].extent));
        }
        for d in wanted {
            self.push_with_needs(d, reduce, &mut out);
        }
        out
    }

    pub(super) fn push_with_needs(&self, d: DimId, reduce: &[DimId], out: &mut Vec<DimId>) {
        if reduce.contains(&d) || out.contains(&d) {
            return;
        }
        for need in self.dims_in(self.graph.env.dims[d].extent) {
            self.push_with_needs(need, reduce, out);
        }
        out.push(d);
    }

    /// Every dimension that the value or a reduced extent mentions is an index or reduced over.
    fn check_bound(&mut self, def: &Def, dims: &[DimId], reduce: &[DimId], value: ExprId) -> Option<()> {
        let name = &def.name.name;
        let mut ok = Some(());
        for &r in reduce {
            if dims.contains(&r) {
                let rn = self.dim_name(r);
                let d = Diagnostic::new("E0240", format!("dimension {rn} is an index of `{name}` and reduced over"));
                let hint = format!("remove {rn} from the index list, or declare a second dimension of the same extent");
                ok = self.error(def.value.span(), d.hint(hint));
            }
            for need in self.dims_in(self.graph.env.dims[r].extent) {
                if !dims.contains(&need) && !reduce.contains(&need) {
                    let (rn, nn) = (self.dim_name(r), self.dim_name(need));
                    let what = format!("the extent of {rn} depends on {nn}, which is not an index of `{name}`");
                    ok = self.error(
                        def.value.span(),
                        Diagnostic::new("E0241", what).hint("make that dimension an index too, or reduce over it"),
                    );
                }
            }
        }
        for d in self.dims_in(value) {
            if !dims.contains(&d) && !reduce.contains(&d) {
                let dn = self.dim_name(d);
                let span = self.dim_spans.get(&d).copied().unwrap_or(def.value.span());
                let diag = Diagnostic::new(
                    "E0242",
                    format!("dimension {dn} is neither an index of `{name}` nor reduced over"),
                );
                let hint = if def.value.reduces_over(&dn) {
                    format!("a reduction's body is one product: write parentheses around a sum, `sum({dn}) (a + b)`")
                } else {
                    format!("add {dn} to the index list, or reduce: `sum({dn}) ...`")
                };
                ok = self.error(span, diag.hint(hint));
            }
        }
        for (j, &d) in dims.iter().enumerate().filter(|_| def.dims.is_none()) {
            for need in self.dims_in(self.graph.env.dims[d].extent) {
                if !dims[..j].contains(&need) {
                    ok = self.inner_dependence(name, d, need, def.value.span());
                }
            }
        }
        ok
    }

    fn inner_dependence(&mut self, name: &str, d: DimId, need: DimId, span: Span) -> Option<()> {
        let (dn, nn) = (self.dim_name(d), self.dim_name(need));
        let diag =
            Diagnostic::new("E0206", format!("dim {dn} depends on {nn}, which is not an outer dimension of {name}"));
        self.error(
            span,
            diag.hint(format!("{nn} is reduced over here, so {dn} has no extent outside: reduce over {dn} too")),
        )
    }

    /// Orders the dimensions of the live parts, emits them as operators, and gives `value` with its
    /// reads of them in their final order.
    fn emit_parts(&mut self, value: ExprId) -> Option<ExprId> {
        let drafts = std::mem::take(&mut self.drafts);
        let mut live = BTreeSet::new();
        self.reads(value, &mut live);
        for d in drafts.iter().rev() {
            if live.contains(&d.tensor) {
                self.reads(d.value, &mut live);
            }
        }
        let mut ok = true;
        let mut orders: Vec<(TensorId, Vec<ExprId>)> = Vec::new();
        for mut d in drafts {
            if !live.contains(&d.tensor) {
                continue;
            }
            let dims = match d.dims {
                DraftDims::Given(dims) => dims,
                DraftDims::Free(free, frame) => {
                    let dims = self.ordered(&free, frame);
                    orders.push((d.tensor, dims.iter().map(|&x| self.dim_var(x)).collect()));
                    ok &= self.check_part(d.tensor, &dims, d.span).is_some();
                    dims
                }
            };
            d.value = self.reordered(d.value, &orders);
            let with_pads: Vec<(DimId, i64)> = dims.iter().map(|&x| (x, 1)).collect();
            if self.graph.env.tensors[d.tensor].dims.is_empty() {
                let tensor_dims = self.tensor_dims_of(&with_pads);
                self.graph.env.tensors[d.tensor].dims = tensor_dims;
            }
            self.tensor_dims.insert(d.tensor, dims.clone());
            let Draft { tensor, reduce, combiner, value, .. } = d;
            self.graph.ops.push(Op { tensor, spatial: dims, reduce, combiner, value });
        }
        ok.then(|| self.reordered(value, &orders))
    }

    fn reads(&self, e: ExprId, out: &mut BTreeSet<TensorId>) {
        self.graph.env.pool.walk(e, &mut |_, n| {
            if let cora_ir::Expr::Load { tensor, .. } = n {
                out.insert(*tensor);
            }
        });
    }

    /// `free` in the order of the frame's definition, then what that does not have, in the order in
    /// which it was found (dimensions of enclosing reductions).
    fn ordered(&self, free: &[DimId], frame: usize) -> Vec<DimId> {
        let frame = self.frames.get(frame).and_then(Option::as_deref).unwrap_or_default();
        let first = frame.iter().filter(|d| free.contains(d));
        first.chain(free.iter().filter(|d| !frame.contains(d))).copied().collect()
    }

    fn check_part(&mut self, tensor: TensorId, dims: &[DimId], span: Span) -> Option<()> {
        for (j, &d) in dims.iter().enumerate() {
            for need in self.dims_in(self.graph.env.dims[d].extent) {
                if !dims[..j].contains(&need) {
                    let name = self.graph.env.tensors[tensor].name.clone();
                    return self.inner_dependence(&name, d, need, span);
                }
            }
        }
        Some(())
    }

    fn reordered(&mut self, e: ExprId, orders: &[(TensorId, Vec<ExprId>)]) -> ExprId {
        let env = &mut self.graph.env;
        env.pool.rewrite(e, &mut |pool, e| {
            let &cora_ir::Expr::Load { tensor, part, .. } = pool.get(e) else { return None };
            let (_, index) = orders.iter().find(|(t, _)| *t == tensor)?;
            let ty = pool.ty(e).scalar;
            Some(pool.load_guarded((tensor, part), ty, index.iter().copied(), None))
        })
    }
}
