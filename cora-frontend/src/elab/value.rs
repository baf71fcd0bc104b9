//! Expressions: names, accesses, operators and reductions to typed values.

use super::{Elab, Entity, Mode, State};
use crate::ast::{Expr, ExprKind, Handles, Ident, ReduceOp};
use crate::names::suggest;
use cora_ir::expr::{MAX_VALUE_DEPTH, MAX_VALUE_SIZE};
use cora_ir::schedule::Span;
use cora_ir::{BinOp, Combiner, Diagnostic, DimId, ExprId, Literal, ScalarType, TensorId, UnOp};
use std::rc::Rc;

/// A number without a type: a literal, or arithmetic on literals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Num {
    Int(i128),
    Float(f64),
}

impl Num {
    pub(super) fn as_f64(self) -> f64 {
        match self {
            Num::Int(v) => v as f64,
            Num::Float(v) => v,
        }
    }
}

/// The value of an expression.
#[derive(Clone, Debug)]
pub(super) enum Val {
    /// A number that takes the type of what it meets.
    Num(Num),
    /// A choice or operation on such numbers that cannot be computed now; takes a type the same way.
    Open(Rc<Open>),
    /// A value of definite type.
    Typed(ExprId),
}

/// An untyped value that is not just a number.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) kind: OpenKind,
    /// Number of nodes.
    size: u64,
}

/// What an [`Open`] value is.
#[derive(Debug)]
pub(super) enum OpenKind {
    Select(ExprId, Val, Val),
    Bin(BinOp, Val, Val),
    Un(UnOp, Val),
}

const MAX_OPEN_SIZE: u64 = 1000;

impl Elab<'_> {
    /// The value of `e`; nothing if that is impossible (then reported).
    pub(super) fn value(&mut self, e: &Expr) -> Option<Val> {
        let key = e.shared_key().filter(|_| self.calls.is_empty() && self.mode == Mode::Value);
        if let Some(done) = key.and_then(|k| self.shared.get(&k)) {
            return done.clone();
        }
        let mut v = self.value_of(e);
        if let Some(Val::Typed(id)) = v
            && self.check_depth(id, e.span()).is_none()
        {
            v = None;
        }
        if let Some(k) = key {
            self.shared.insert(k, v.clone());
        }
        v
    }

    fn value_of(&mut self, e: &Expr) -> Option<Val> {
        let span = e.span();
        match e.kind() {
            ExprKind::Int(v) => Some(Val::Num(Num::Int(*v))),
            ExprKind::Float(v) => Some(Val::Num(Num::Float(*v))),
            ExprKind::Bool(b) => Some(Val::Typed(self.graph.env.pool.bool(*b))),
            ExprKind::Name(_) | ExprKind::Handle(_) => {
                let id = self.ident(e)?;
                self.named_value(&id)
            }
            ExprKind::Access { base, index, guard } => self.access(base, index, guard.as_ref(), span),
            ExprKind::Call { base, dims, args } => self.call(base, dims.as_deref(), args, span),
            ExprKind::Un(op, a) => {
                let a = self.value(a)?;
                self.un(*op, a, span)
            }
            ExprKind::Bin(op, a, b) => {
                let (va, vb) = (self.value(a), self.value(b));
                self.bin(*op, va?, vb?, span)
            }
            ExprKind::If(c, a, b) => {
                let cond = self.condition(c);
                let (va, vb) = (self.value(a), self.value(b));
                let (cond, va, vb) = (cond?, va?, vb?);
                if let (Val::Typed(_), _) | (_, Val::Typed(_)) = (&va, &vb) {
                    let (a, b) = self.unify(va, vb, span)?;
                    return Some(Val::Typed(self.graph.env.pool.select(cond, a, b)));
                }
                self.open(OpenKind::Select(cond, va, vb), span)
            }
            ExprKind::Cast(to, a) => {
                let a = self.value(a)?;
                self.cast(*to, a, span).map(Val::Typed)
            }
            ExprKind::Reduce(op, dims, body) => self.reduce_value(*op, dims, body, span),
            ExprKind::TooDeep => {
                let d = Diagnostic::new("E0113", "expression nested too deeply");
                self.error(span, d.hint("define a part of it as an operator of its own"))
            }
            ExprKind::Misuse(why) => self.error(span, Diagnostic::new("E0239", *why)),
        }
    }

    /// Keeps values small enough for every later stage to walk and print.
    fn check_depth(&mut self, e: ExprId, span: Span) -> Option<()> {
        // Operands were measured when they were made, so this does not recurse far.
        let (depth, size) = self.graph.env.pool.measure_memo(e, &mut self.measures);
        if depth > MAX_VALUE_DEPTH || size > MAX_VALUE_SIZE {
            let what = if depth > MAX_VALUE_DEPTH { "deep" } else { "large" };
            let d = Diagnostic::new("E0225", format!("after inlining, this expression is too {what}"));
            return self.error(span, d.hint("define a part of it as an operator of its own"));
        }
        Some(())
    }

    /// An untyped value that is not just a number.
    pub(super) fn open(&mut self, kind: OpenKind, span: Span) -> Option<Val> {
        let of = |v: &Val| if let Val::Open(o) = v { o.size } else { 1 };
        let size = match &kind {
            OpenKind::Select(_, a, b) | OpenKind::Bin(_, a, b) => of(a) + of(b) + 1,
            OpenKind::Un(_, a) => of(a) + 1,
        };
        if size > MAX_OPEN_SIZE {
            let d = Diagnostic::new("E0225", "after inlining, this expression is too large");
            return self.error(span, d.hint("give it a type: `f32(x)`"));
        }
        Some(Val::Open(Rc::new(Open { kind, size })))
    }

    /// The name behind a name or builder handle.
    pub(super) fn ident(&mut self, e: &Expr) -> Option<Ident> {
        let name = match e.kind() {
            ExprKind::Name(n) => Some(n.clone()),
            ExprKind::Handle(h) => self.program.handles.get(*h).map(str::to_owned),
            _ => None,
        };
        match name {
            Some(name) => Some(Ident { name, span: e.span() }),
            None => self.error(e.span(), Handles::foreign()),
        }
    }

    fn named_value(&mut self, id: &Ident) -> Option<Val> {
        if let Some((_, local)) = self.scope.values.iter().rev().find(|(n, _)| *n == id.name) {
            if !local.parts.is_empty() {
                let parts = local.parts.clone();
                return self.not_one_value(&id.name, &parts, id.span);
            }
            return local.value.clone();
        }
        if let Some((_, d)) = self.scope.dims.iter().rev().find(|(n, _)| *n == id.name) {
            let d = *d;
            return Some(self.dim_value(d, id.span));
        }
        self.used.insert(id.name.clone());
        let entity = self.resolve(&id.name).or_else(|| self.part_named(&id.name).map(Entity::Tensor));
        let component = if entity.is_none() { self.component(&id.name) } else { None };
        let Some(entity) = entity.or(component.map(|(t, _)| Entity::Tensor(t))) else { return self.unknown(id) };
        let needs = match &entity {
            Entity::Const(_) => Mode::Const,
            Entity::Param(_) => Mode::Bound,
            Entity::Extent(_) | Entity::Dim(_) => Mode::Extent,
            Entity::Tensor(_) | Entity::Fn(_) | Entity::Combiner(_) => Mode::Value,
        };
        self.allowed(needs, id)?;
        match entity {
            Entity::Const(n) => Some(Val::Num(n)),
            Entity::Param(p) => Some(Val::Typed(self.graph.env.pool.param(p))),
            Entity::Dim(d) => Some(self.dim_value(d, id.span)),
            Entity::Tensor(t) => {
                if component.is_none()
                    && let Some(parts) = self.part_names(t)
                {
                    return self.not_one_value(&id.name, &parts, id.span);
                }
                let dims = self.tensor_dims.get(&t).cloned().unwrap_or_default();
                let mut index = Vec::new();
                for d in dims {
                    self.dim_spans.entry(d).or_insert(id.span);
                    index.push(self.dim_var(d));
                }
                let part = component.map_or(0, |(_, k)| k);
                let ty = self.graph.env.part_types(t)[part as usize];
                let load = self.graph.env.pool.load_guarded((t, part), ty, index, None);
                self.accesses.push((load, id.span));
                Some(Val::Typed(load))
            }
            Entity::Extent(_) | Entity::Fn(_) | Entity::Combiner(_) => {
                let d = Diagnostic::new("E0222", format!("`{}` is a function and needs arguments", id.name));
                self.error(id.span, d.hint(format!("write `{}(...)`", id.name)))
            }
        }
    }

    /// A finished part of an earlier operator, such as `P.sum`.
    pub(super) fn part_named(&self, name: &str) -> Option<TensorId> {
        self.graph.env.tensor_named(name).filter(|t| !self.slots.contains_key(name) && self.tensor_dims.contains_key(t))
    }

    fn dim_value(&mut self, d: DimId, span: Span) -> Val {
        self.dim_spans.entry(d).or_insert(span);
        Val::Typed(self.dim_var(d))
    }

    /// Whether a name of this kind may be mentioned here.
    pub(super) fn allowed(&mut self, needs: Mode, id: &Ident) -> Option<()> {
        if needs <= self.mode {
            return Some(());
        }
        let may = match self.mode {
            Mode::Const => "only constants can be used here",
            Mode::Bound => "only constants and parameters can be used here",
            _ => "an extent is made of constants, parameters, dimensions and extent functions",
        };
        let d = Diagnostic::new("E0227", format!("`{}` cannot be used here", id.name)).hint(may);
        self.error(id.span, d)
    }

    /// Reports a name that does not resolve, unless that has been reported already.
    pub(super) fn unknown<T>(&mut self, id: &Ident) -> Option<T> {
        match self.slots.get(&id.name) {
            Some(slot) => {
                let later = matches!(slot.state, State::Later | State::Pending);
                if later && self.mode < Mode::Value {
                    return self.allowed(Mode::Value, id).and(None);
                }
                if later {
                    if self.prefix.split('.').next() == Some(&id.name) {
                        let d = Diagnostic::new("E0221", format!("`{}` reads itself", id.name));
                        let name = &id.name;
                        return self.error(id.span, d.hint(format!("name its dimensions and read it at an earlier position of one: `{name}[b, t] = .. {name}[b, t - 1] else 0 ..`")));
                    }
                    let d = Diagnostic::new("E0221", format!("`{}` is used before its definition", id.name));
                    return self.error(id.span, d.hint("operators are defined in order: move its definition up"));
                }
                None
            }
            None => {
                let mut d = Diagnostic::new("E0201", format!("unknown name `{}`", id.name));
                let locals = self.scope.values.iter().map(|(n, _)| n.as_str());
                let dims = self.scope.dims.iter().map(|(n, _)| n.as_str());
                let tensors = self.graph.env.tensors.iter().map(|(_, t)| t.name.as_str());
                let known = locals.chain(dims).chain(self.slots.keys().map(String::as_str)).chain(tensors);
                d = d.hint(match suggest(&id.name, known) {
                    _ if ["True", "False"].contains(&id.name.as_str()) => {
                        format!("write `{}`", id.name.to_lowercase())
                    }
                    Some(s) => format!("did you mean `{s}`?"),
                    None => "declare it, as a dimension, a parameter, a constant, an extent, an input, a function or an operator".to_owned(),
                });
                self.error(id.span, d)
            }
        }
    }

    /// An `Index` value: the value of an extent, a position or an argument of an extent function.
    pub(super) fn index(&mut self, e: &Expr) -> Option<ExprId> {
        let v = self.value(e)?;
        if let Val::Typed(id) = v {
            return self.index_typed(id, e.span());
        }
        self.adapt(v, ScalarType::Index, e.span())
    }

    /// A truth value.
    pub(super) fn condition(&mut self, e: &Expr) -> Option<ExprId> {
        let v = self.value(e)?;
        match v {
            Val::Typed(id) if self.graph.env.pool.ty(id).scalar == ScalarType::Bool => Some(id),
            _ => {
                let what = match v {
                    Val::Typed(id) => self.graph.env.pool.ty(id).scalar.name(),
                    _ => "a number",
                };
                let d = Diagnostic::new("E0235", format!("a condition must be bool, this is {what}"));
                self.error(e.span(), d.hint("compare it: `x != 0`"))
            }
        }
    }

    /// A constant.
    pub(super) fn constant(&mut self, e: &Expr) -> Option<Num> {
        match self.value(e)? {
            Val::Num(n) => Some(n),
            _ => self.error(
                e.span(),
                Diagnostic::new("E0229", "this is not a number that is known now")
                    .hint("use numbers and constants only: sizes come with each batch"),
            ),
        }
    }

    /// A constant integer that fits `i64`.
    pub(super) fn const_int(&mut self, e: &Expr) -> Option<i64> {
        let n = self.constant(e)?;
        match n {
            Num::Int(v) if i64::try_from(v).is_ok() => i64::try_from(v).ok(),
            _ => {
                let d = Diagnostic::new("E0212", "this must be an integer of 64 bits")
                    .hint("write an integer from -9223372036854775808 to 9223372036854775807");
                self.error(e.span(), d)
            }
        }
    }

    /// The dimensions of a reduction, each at most once.
    pub(super) fn reduce_dims(&mut self, dims: &[Expr], span: Span) -> Option<Vec<DimId>> {
        if dims.is_empty() {
            let d = Diagnostic::new("E0108", "a reduction has no dimension to reduce over");
            return self.error(span, d.hint("name one, as in `sum(i) x`"));
        }
        let mut out: Vec<DimId> = Vec::new();
        for e in dims {
            let id = self.ident(e)?;
            let d = self.dim_named(&id)?;
            if out.contains(&d) {
                let d = Diagnostic::new("E0207", format!("dimension `{}` appears twice", id.name));
                return self.error(e.span(), d.hint("name each dimension that is reduced once"));
            }
            let extent = self.graph.env.dims[d].extent;
            for (later, need) in dims.iter().zip(self.late_needs(extent, d, dims)) {
                if let Some(need) = need {
                    let (dn, nn) = (self.dim_name(d), self.dim_name(need));
                    let diag =
                        Diagnostic::new("E0236", format!("dim {dn} depends on {nn}, which is reduced inside it"));
                    return self.error(later.span(), diag.hint(format!("put {nn} before {dn}")));
                }
            }
            out.push(d);
        }
        Some(out)
    }

    /// For each of `dims` that stands at or after `d` and that `extent` needs: that dimension.
    fn late_needs(&mut self, extent: ExprId, d: DimId, dims: &[Expr]) -> Vec<Option<DimId>> {
        let needs = self.dims_in(extent);
        let mut seen = false;
        let mut out = Vec::new();
        for e in dims {
            let id = self.ident(e).and_then(|id| self.dim_named(&id));
            seen |= id == Some(d);
            out.push(id.filter(|i| seen && needs.contains(i)));
        }
        out
    }

    fn reduce_value(&mut self, op: ReduceOp, dims: &[Expr], body: &Expr, span: Span) -> Option<Val> {
        if self.mode != Mode::Value {
            let id = Ident { name: op.name().to_owned(), span };
            self.allowed(Mode::Value, &id)?;
        }
        let ids = self.reduce_dims(dims, span);
        let value = self.value(body);
        let (ids, value) = (ids?, value?);
        let value = self.typed_or_default(value, body.span())?;
        self.element_type(value, body.span())?;
        match op {
            ReduceOp::Combine(c) => {
                self.check_combiner(c, value, span)?;
                self.reduced(c, ids, value, span).map(Val::Typed)
            }
            ReduceOp::ArgMax | ReduceOp::ArgMin => self.arg_reduce(op, ids, value, span).map(Val::Typed),
        }
    }

    pub(super) fn check_combiner(&mut self, c: Combiner, value: ExprId, span: Span) -> Option<()> {
        // The greatest of truth values is whether any holds, the least whether all do.
        let ordered = matches!(c, Combiner::Max | Combiner::Min);
        if ordered || self.graph.env.pool.ty(value).scalar != ScalarType::Bool {
            return Some(());
        }
        let d = Diagnostic::new("E0211", format!("`{}` of bool values", c.name()));
        self.error(span, d.hint(format!("choose numbers: `{}(k) select(c, 1, 0)`", c.name())))
    }

    /// argmax: the best value, then the least index that has it (a NaN counts as the best).
    fn arg_reduce(&mut self, op: ReduceOp, dims: Vec<DimId>, x: ExprId, span: Span) -> Option<ExprId> {
        let [dim] = dims[..] else {
            let d = Diagnostic::new(
                "E0237",
                format!("`{}` gives an index of one dimension, {} given", op.name(), dims.len()),
            )
            .hint(format!(
                "reduce over one dimension at a time, `{}(k) x`, or over one `k` for both, with `k / n` and `k % n` as their positions",
                op.name()
            ));
            return self.error(span, d);
        };
        let best = if op == ReduceOp::ArgMax { Combiner::Max } else { Combiner::Min };
        self.check_combiner(best, x, span)?;
        // Both reductions read the same rounded values.
        let pool = &self.graph.env.pool;
        let stored = !pool.ty(x).scalar.is_float() || matches!(pool.get(x), cora_ir::Expr::Load { .. });
        let x = if stored { x } else { self.draft("of", Vec::new(), None, x, span)? };
        let m = self.draft(best.name(), vec![dim], Some(best), x, span)?;
        let var = self.dim_var(dim);
        let pool = &mut self.graph.env.pool;
        let mut hit = pool.bin(BinOp::Eq, x, m);
        if pool.ty(x).scalar.is_float() {
            let nan = pool.bin(BinOp::Ne, x, x);
            hit = pool.bin(BinOp::Or, hit, nan);
        }
        let position = pool.cast(ScalarType::I64, var);
        let none = pool.lit(Literal::int(ScalarType::I64, i64::MAX));
        let term = pool.select(hit, position, none);
        let first = self.draft(op.name(), vec![dim], Some(Combiner::Min), term, span)?;
        let pool = &mut self.graph.env.pool;
        let empty = pool.bin(BinOp::Eq, first, none);
        let minus = pool.lit(Literal::int(ScalarType::I64, -1));
        Some(pool.select(empty, minus, first))
    }
}
