//! Declarations: constants, parameters, extent functions, dimensions, inputs. They may refer to
//! each other in any order, so each is resolved when it is first needed.

use super::{ConstValue, Decl, Elab, Entity, Mode, Num, Slot, State};
use crate::ast::{CombinerDef, DimUse, Expr, Ident, Input, ItemKind, Range};
use crate::names::{instead_of_reserved, is_reserved, suggest};
use cora_ir::schedule::Span;
use cora_ir::{Diagnostic, DimId, ExprId, Param, Role, Scope, Tensor, TensorDim, UfDef};

/// Declarations may refer to each other in chains of this length.
const MAX_CHAIN: usize = 128;

/// Integers below it are exact as fractions.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

impl<'a> Elab<'a> {
    /// Enters every declared name, so that the order of declarations does not matter.
    pub(super) fn collect(&mut self, consts: &[(String, ConstValue)]) {
        let program = self.program;
        for (index, item) in program.items.iter().enumerate() {
            self.origin.clone_from(&item.origin);
            let (name, kind) = match &item.kind {
                ItemKind::Param(n, _) => (n, "parameter"),
                ItemKind::Const(n, _) => (n, "constant"),
                ItemKind::Extent(n, dims, _) => {
                    self.collect_inline(dims);
                    (n, "extent function")
                }
                ItemKind::Dim(n, _) => (n, "dimension"),
                ItemKind::Input(i) => {
                    self.collect_inline(&i.dims);
                    (&i.name, "input")
                }
                ItemKind::Fn(f) => (&f.name, "function"),
                ItemKind::Combiner(c) => {
                    self.check_components(c);
                    (&c.name, "combiner")
                }
                ItemKind::Op(d) => {
                    self.collect_inline(d.dims.as_deref().unwrap_or_default());
                    (&d.name, "operator")
                }
                ItemKind::Schedule(n, ..) | ItemKind::ScheduleFn(n, ..) => {
                    self.check_name(n, "schedule");
                    continue;
                }
                ItemKind::Output(_) => continue,
            };
            let state = match &item.kind {
                ItemKind::Fn(f) => State::Done(Entity::Fn(f.clone())),
                ItemKind::Combiner(c) => State::Done(Entity::Combiner(c.clone())),
                ItemKind::Op(_) => State::Later,
                _ => State::Pending,
            };
            self.enter(name, kind, state, Decl::Item(index));
        }
        self.origin = None;
        for (name, value) in consts {
            match self.slots.get_mut(name) {
                Some(Slot { decl: decl @ (Decl::Item(_) | Decl::Override(..)), kind: "constant", .. }) => {
                    if let Decl::Item(item) | Decl::Override(item, _) = *decl {
                        *decl = Decl::Override(item, *value);
                    }
                }
                _ => {
                    let known = self.slots.iter().filter(|(_, s)| s.kind == "constant").map(|(n, _)| n.as_str());
                    let mut d = Diagnostic::new("E0231", format!("there is no constant `{name}` to override"));
                    d = d.hint(match suggest(name, known) {
                        Some(s) => format!("did you mean `{s}`?"),
                        None => "constants are declared as `const N = 8`; sizes of a batch are given with `--param`"
                            .to_owned(),
                    });
                    self.diags.push(d);
                }
            }
        }
        for name in &program.broken {
            self.slots.entry(name.clone()).or_insert(Slot {
                state: State::Poison,
                decl: Decl::None,
                span: Span::default(),
                kind: "operator",
            });
        }
    }

    fn collect_inline(&mut self, dims: &'a [DimUse]) {
        for d in dims {
            if let Some(extent) = &d.extent {
                self.enter(&d.name, "dimension", State::Pending, Decl::InlineDim(extent));
            }
        }
    }

    /// What the parser sees to in text: a syntax tree may have come from elsewhere.
    fn check_name(&mut self, name: &Ident, kind: &'static str) {
        let n = name.name.as_str();
        let word = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        let tensor = matches!(kind, "operator" | "input");
        let d = if is_reserved(n) {
            Diagnostic::new(
                "E0105",
                format!("`{n}` is a reserved name and cannot be the name of {} {kind}", article(kind)),
            )
            .hint(instead_of_reserved(n, kind))
        } else if n.starts_with(|c: char| c.is_ascii_digit()) || !n.split('.').all(word) {
            Diagnostic::new("E0102", format!("`{}` is not a name", n.escape_debug()))
                .hint("names are ASCII letters, digits and `_`, and begin with a letter or `_`")
        } else if !tensor && n.contains('.') {
            Diagnostic::new("E0109", format!("the name `{n}` of {} {kind} contains a dot", article(kind)))
                .hint("only tensors may have dots in their names")
        } else {
            return;
        };
        self.report(name.span, d);
    }

    fn check_components(&mut self, c: &CombinerDef) {
        for (i, p) in c.parts.iter().enumerate() {
            self.check_name(&p.name, "component");
            if c.parts[..i].iter().any(|q| q.name.name == p.name.name) {
                let d = Diagnostic::new("E0204", format!("component `{}` is declared twice", p.name.name));
                self.report(p.name.span, d.hint("give each component a name of its own"));
            }
        }
    }

    fn enter(&mut self, name: &Ident, kind: &'static str, state: State, decl: Decl<'a>) {
        self.check_name(name, kind);
        if let Some(old) = self.slots.get_mut(&name.name) {
            if old.kind != kind {
                // Which of the two is meant where it is used?
                old.state = State::Poison;
            }
            let mut d = Diagnostic::new("E0204", format!("`{}` is declared twice", name.name));
            d = d.note(format!("it is already declared as {} {}", article(old.kind), old.kind));
            d = if kind == "dimension" && old.kind == "dimension" {
                d.hint(format!("to use the dimension again, write `{}` without an extent", name.name))
            } else {
                d.hint("give one of them another name")
            };
            return self.report(name.span, d);
        }
        self.slots.insert(name.name.clone(), Slot { state, decl, span: name.span, kind });
    }

    /// Resolves all declarations and creates the inputs.
    pub(super) fn declarations(&mut self) {
        let program = self.program;
        // Kind by kind: so the order of a printed program's declarations is the order of this one's.
        for phase in 0..3 {
            for item in &program.items {
                if self.has_enough() {
                    return;
                }
                self.origin.clone_from(&item.origin);
                match &item.kind {
                    ItemKind::Param(n, _) | ItemKind::Const(n, _) if phase == 0 => _ = self.resolve(&n.name),
                    ItemKind::Dim(n, _) if phase == 1 => _ = self.resolve(&n.name),
                    ItemKind::Extent(n, ..) if phase == 2 => _ = self.resolve(&n.name),
                    _ => {}
                }
                let dims: &[DimUse] = match &item.kind {
                    ItemKind::Extent(_, dims, _) => dims,
                    ItemKind::Input(i) => &i.dims,
                    ItemKind::Op(d) => d.dims.as_deref().unwrap_or_default(),
                    _ => &[],
                };
                for d in dims.iter().filter(|d| phase == 1 && d.extent.is_some()) {
                    self.resolve(&d.name.name);
                }
            }
        }
        for item in &program.items {
            if self.has_enough() {
                return;
            }
            if let ItemKind::Input(i) = &item.kind {
                self.origin.clone_from(&item.origin);
                self.input(i);
            }
        }
        self.origin = None;
    }

    /// What `name` stands for; nothing if it is unknown, poisoned or not resolvable (then reported).
    pub(super) fn resolve(&mut self, name: &str) -> Option<Entity> {
        let slot = self.slots.get_mut(name)?;
        match &slot.state {
            State::Done(e) => return Some(e.clone()),
            State::Poison | State::Later => return None,
            State::Busy => return self.cycle(name),
            State::Pending => {}
        }
        let (decl, span) = (slot.decl, slot.span);
        if matches!(decl, Decl::Item(i) if matches!(self.program.items[i].kind, ItemKind::Input(_))) {
            return None; // created later, in order
        }
        if self.stack.len() >= MAX_CHAIN {
            slot.state = State::Poison;
            let d =
                Diagnostic::new("E0233", format!("more than {MAX_CHAIN} declarations depend on each other in a chain"));
            return self.error(span, d.hint("declare the ones in the middle of the chain by numbers or parameters"));
        }
        slot.state = State::Busy;
        self.stack.push(name.to_owned());
        let saved = (self.mode, std::mem::take(&mut self.scope));
        let entity = self.resolve_decl(name, decl);
        (self.mode, self.scope) = saved;
        self.stack.pop();
        let state = match &entity {
            Some(e) => State::Done(e.clone()),
            None => State::Poison,
        };
        if let Some(slot) = self.slots.get_mut(name) {
            slot.state = state;
        }
        entity
    }

    fn cycle(&mut self, name: &str) -> Option<Entity> {
        let from = self.stack.iter().position(|n| n == name).unwrap_or(0);
        let mut chain = self.stack[from..].join("` needs `");
        chain.push_str("` needs `");
        chain.push_str(name);
        let span = self.slots[name].span;
        self.error(
            span,
            Diagnostic::new("E0205", format!("`{name}` depends on itself: `{chain}`"))
                .hint("declare one of them without the next: sizes are computed one after the other"),
        )
    }

    fn resolve_decl(&mut self, name: &str, decl: Decl<'a>) -> Option<Entity> {
        let program = self.program;
        let item = match decl {
            Decl::Item(i) => &program.items[i].kind,
            Decl::InlineDim(extent) => return self.dim(name, extent),
            Decl::Override(i, v) => return self.overridden(name, &program.items[i].kind, v),
            Decl::None => return None,
        };
        match item {
            ItemKind::Const(_, value) => {
                self.mode = Mode::Const;
                self.constant(value).map(Entity::Const)
            }
            ItemKind::Param(n, range) => {
                self.mode = Mode::Const;
                let (lo, hi) = (self.const_int(&range.lo), self.const_int(&range.hi));
                let (lo, hi) = (lo?, hi?);
                let hi = if range.inclusive { hi } else { hi.saturating_sub(1) };
                if lo > hi {
                    let span = join(&range.lo, &range.hi);
                    return self.error(
                        span,
                        Diagnostic::new("E0226", format!("the range of `{}` is empty", n.name))
                            .hint("write the smallest value first: `in 0..=64`"),
                    );
                }
                Some(Entity::Param(self.graph.env.params.push(Param { name: n.name.clone(), lo, hi })))
            }
            ItemKind::Dim(_, extent) => self.dim(name, extent),
            ItemKind::Extent(n, args, range) => self.extent_function(n, args, range),
            _ => None,
        }
    }

    /// A constant with a value from outside, of the kind that the declaration has.
    fn overridden(&mut self, name: &str, item: &ItemKind, value: ConstValue) -> Option<Entity> {
        let ItemKind::Const(_, declared) = item else { return None };
        self.mode = Mode::Const;
        let declared = self.constant(declared)?;
        let value = match (declared, value) {
            (Num::Float(_), ConstValue::Int(v)) => Num::Float(v as f64),
            (_, ConstValue::Int(v)) => Num::Int(v.into()),
            (Num::Float(_), ConstValue::Float(v)) => Num::Float(v),
            (Num::Int(old), ConstValue::Float(v)) => {
                let d = Diagnostic::new("E0229", format!("constant `{name}` is an integer and cannot be {v}"));
                let span = self.slots[name].span;
                let hint = if v.fract() != 0.0 {
                    format!("declare it as a fraction: `const {name} = {old}.0`")
                } else if v.abs() < MAX_EXACT {
                    format!("write it without a fraction: `{name}={v}`")
                } else {
                    format!("it is at most {}", i64::MAX)
                };
                return self.error(span, d.hint(hint));
            }
        };
        Some(Entity::Const(value))
    }

    fn dim(&mut self, name: &str, extent: &Expr) -> Option<Entity> {
        self.mode = Mode::Extent;
        let span = extent.span();
        let extent = self.index(extent)?;
        if let Some(n) = self.graph.env.pool.as_int(extent)
            && n < 0
        {
            return self.error(
                span,
                Diagnostic::new("E0226", format!("the extent of `{name}` is {n}")).hint("an extent is at least 0"),
            );
        }
        Some(Entity::Dim(self.new_dim(name, extent)))
    }

    fn extent_function(&mut self, name: &Ident, args: &[DimUse], range: &Range) -> Option<Entity> {
        let mut dims = Vec::new();
        for a in args {
            if let Some(pad) = &a.pad {
                let d = Diagnostic::new("E0230", "an argument of an extent function has no storage to pad");
                return self.error(pad.span(), d.hint("take the `pad` away; inputs and operators have storage to pad"));
            }
            dims.push(self.dim_named(&a.name)?);
        }
        let mut domain = Vec::new();
        for (j, &d) in dims.iter().enumerate() {
            let extent = self.graph.env.dims[d].extent;
            if let Some(missing) = self.dims_in(extent).into_iter().find(|m| !dims[..j].contains(m)) {
                let (dn, mn) = (self.dim_name(d), self.dim_name(missing));
                let d = Diagnostic::new(
                    "E0228",
                    format!("argument {dn} of `{}` depends on {mn}, which is not an earlier argument", name.name),
                );
                let mut all = Vec::new();
                dims.iter().for_each(|&d| self.push_with_needs(d, &[], &mut all));
                let all: Vec<_> = all.into_iter().map(|d| self.dim_name(d)).collect();
                return self.error(args[j].name.span, d.hint(format!("write `{}({})`", name.name, all.join(", "))));
            }
            domain.push(self.over_args(extent, &dims));
        }
        self.mode = Mode::Bound;
        let (lo, hi) = self.bounds(range)?;
        let pool = &mut self.graph.env.pool;
        let hi = if range.inclusive {
            hi
        } else {
            let one = pool.int(1);
            pool.sub(hi, one)
        };
        let (clo, chi) = (pool.as_int(lo), pool.as_int(hi));
        let span = join(&range.lo, &range.hi);
        if clo.is_some_and(|lo| lo < 0) {
            let d = Diagnostic::new("E0226", format!("`{}` could be negative", name.name));
            return self.error(span, d.hint("an extent is at least 0"));
        }
        if matches!((clo, chi), (Some(lo), Some(hi)) if lo > hi) {
            let d = Diagnostic::new("E0226", format!("the range of `{}` is empty", name.name));
            return self.error(span, d.hint("write the smallest value first: `in 0..=64`"));
        }
        Some(Entity::Extent(self.graph.env.uf(&name.name, domain, UfDef::Extent { lo, hi })))
    }

    fn bounds(&mut self, range: &Range) -> Option<(ExprId, ExprId)> {
        let lo = self.index(&range.lo);
        let hi = self.index(&range.hi);
        Some((lo?, hi?))
    }

    /// The dimension called `id`: one of the function's parameters or of the program's.
    pub(super) fn dim_named(&mut self, id: &Ident) -> Option<DimId> {
        if let Some((_, d)) = self.scope.dims.iter().rev().find(|(n, _)| *n == id.name) {
            return Some(*d);
        }
        self.used.insert(id.name.clone());
        if let Some(slot) = self.slots.get(&id.name)
            && slot.kind != "dimension"
        {
            if matches!(slot.state, State::Poison) {
                return None;
            }
            let d = Diagnostic::new(
                "E0232",
                format!("`{}` is {} {}, not a dimension", id.name, article(slot.kind), slot.kind),
            );
            let hint = match slot.kind {
                "parameter" | "constant" => format!("declare a dimension of another name: `dim {0}_ = {0}`", id.name),
                "extent function" => format!("declare a dimension: `dim i = {}(..)`", id.name),
                _ => "write a dimension there; what has elements is indexed by dimensions, `T[i]`".to_owned(),
            };
            return self.error(id.span, d.hint(hint));
        }
        match self.resolve(&id.name) {
            Some(Entity::Dim(d)) => Some(d),
            Some(_) => None,
            None if self.slots.contains_key(&id.name) => None,
            None => {
                let known: Vec<&str> = self.scope.dims.iter().map(|(n, _)| n.as_str()).collect();
                let dims = self.slots.iter().filter(|(_, s)| s.kind == "dimension").map(|(n, _)| n.as_str());
                let mut d = Diagnostic::new("E0202", format!("unknown dimension `{}`", id.name));
                d = match suggest(&id.name, known.into_iter().chain(dims)) {
                    Some(s) => d.hint(format!("did you mean `{s}`?")),
                    None => d.hint(format!("declare it: `dim {} = ...`", id.name)),
                };
                self.error(id.span, d)
            }
        }
    }

    fn input(&mut self, input: &Input) {
        let entity = self.make_input(input).map(Entity::Tensor);
        if let Some(slot) = self.slots.get_mut(&input.name.name)
            && matches!(slot.state, State::Pending)
        {
            slot.state = entity.map_or(State::Poison, State::Done);
        }
    }

    fn make_input(&mut self, input: &Input) -> Option<cora_ir::TensorId> {
        let dims = self.index_list(&input.dims)?;
        let ids: Vec<DimId> = dims.iter().map(|d| d.0).collect();
        self.check_order(&input.name, &input.dims, &ids)?;
        let mut range = None;
        if let Some(r) = &input.range {
            let span = join(&r.lo, &r.hi);
            if !input.ty.is_int() {
                let d = Diagnostic::new(
                    "E0234",
                    format!("`{}` has type {}, so it has no range", input.name.name, input.ty),
                );
                return self.error(span, d.hint("only integer tensors, which may be used as indices, declare a range"));
            }
            self.mode = Mode::Extent;
            let bounds = self.bounds(r);
            self.mode = Mode::Value;
            let (lo, hi) = bounds?;
            for (e, at) in [(lo, &r.lo), (hi, &r.hi)] {
                if let Some(other) = self.dims_in(e).into_iter().find(|d| !ids.contains(d)) {
                    let (name, other) = (&input.name.name, self.dim_name(other));
                    let d = Diagnostic::new(
                        "E0228",
                        format!("the range of `{name}` depends on {other}, which it does not have"),
                    );
                    let hint = format!(
                        "a range is of parameters, extent functions and the tensor's dimensions, {}",
                        self.dim_names(&ids)
                    );
                    return self.error(at.span(), d.hint(hint));
                }
            }
            let (lo, mut hi) = (self.over_args(lo, &ids), self.over_args(hi, &ids));
            let pool = &mut self.graph.env.pool;
            if r.inclusive {
                let one = pool.int(1);
                hi = pool.add(hi, one);
            }
            if matches!((pool.as_int(lo), pool.as_int(hi)), (Some(lo), Some(hi)) if lo > hi) {
                let d = Diagnostic::new("E0226", format!("the range of `{}` is empty", input.name.name));
                return self.error(span, d.hint("write the smallest value first: `in 0..N`"));
            }
            let of_type = (input.ty.int_min(), input.ty.int_max());
            let (first, last) = (pool.as_int(lo), pool.as_int(hi).map(|h| h.saturating_sub(1)));
            if first.is_some_and(|v| v < of_type.0) || last.is_some_and(|v| v > of_type.1) {
                let d = Diagnostic::new(
                    "E0212",
                    format!("the range of `{}` is more than {} holds", input.name.name, input.ty),
                );
                return self.error(span, d.hint(format!("{} holds {}..={}", input.ty, of_type.0, of_type.1)));
            }
            range = Some((lo, hi));
        }
        let role = if input.constant { Role::ConstInput } else { Role::Input };
        let tensor_dims = self.tensor_dims_of(&dims);
        let t = self.graph.env.tensors.push(Tensor {
            tuple: None,
            name: input.name.name.clone(),
            ty: input.ty,
            dims: tensor_dims,
            role,
            scope: Scope::Global,
            range,
            layout: vec![],
        });
        self.tensor_dims.insert(t, ids);
        Some(t)
    }

    /// The dimensions of an index list, with what each is padded to a multiple of.
    pub(super) fn index_list(&mut self, dims: &[DimUse]) -> Option<Vec<(DimId, i64)>> {
        let mut out: Vec<(DimId, i64)> = Vec::new();
        let mut ok = true;
        for d in dims {
            let pad = self.pad(d.pad.as_ref());
            let (Some(id), Some(pad)) = (self.dim_named(&d.name), pad) else {
                ok = false;
                continue;
            };
            if out.iter().any(|(o, _)| *o == id) {
                let name = &d.name.name;
                let d = Diagnostic::new("E0207", format!("dimension `{name}` appears twice"));
                self.report(dims[out.len()].name.span, d.hint("declare a second dimension of the same extent"));
                ok = false;
                continue;
            }
            out.push((id, pad));
        }
        ok.then_some(out)
    }

    fn pad(&mut self, pad: Option<&Expr>) -> Option<i64> {
        let Some(e) = pad else { return Some(1) };
        let saved = std::mem::replace(&mut self.mode, Mode::Const);
        let v = self.const_int(e);
        self.mode = saved;
        match v? {
            n if n > 0 => Some(n),
            n => self.error(
                e.span(),
                Diagnostic::new("E0230", format!("cannot pad to a multiple of {n}"))
                    .hint("pad to a multiple of a positive integer"),
            ),
        }
    }

    /// Every dimension's extent may use only dimensions to its left.
    pub(super) fn check_order(&mut self, name: &Ident, uses: &[DimUse], dims: &[DimId]) -> Option<()> {
        let mut ok = Some(());
        for (j, &d) in dims.iter().enumerate() {
            let extent = self.graph.env.dims[d].extent;
            for need in self.dims_in(extent) {
                if !dims[..j].contains(&need) {
                    let (dn, nn) = (self.dim_name(d), self.dim_name(need));
                    let what = &name.name;
                    let diag = Diagnostic::new(
                        "E0206",
                        format!("dim {dn} depends on {nn}, which is not an outer dimension of {what}"),
                    )
                    .hint(format!(
                        "put {nn} before {dn} in the index list; what is reduced over {nn} is indexed by a dimension whose \
                         extent does not depend on it, `dim m = 8`, and reads `A[{nn}, m] else 0`"
                    ));
                    let span = uses.get(j).map_or(name.span, |u| u.name.span);
                    ok = self.error(span, diag);
                }
            }
        }
        ok
    }

    /// Extents over `Arg`s and padded storage.
    pub(super) fn tensor_dims_of(&mut self, dims: &[(DimId, i64)]) -> Vec<TensorDim> {
        let ids: Vec<DimId> = dims.iter().map(|d| d.0).collect();
        let mut out = Vec::new();
        for &(d, pad) in dims {
            let extent = self.graph.env.dims[d].extent;
            let extent = self.over_args(extent, &ids);
            let storage = if pad == 1 { extent } else { self.graph.env.pool.round_up(extent, pad) };
            out.push(TensorDim { name: self.dim_name(d), also: None, extent, storage });
        }
        out
    }
}

pub(super) fn article(kind: &str) -> &'static str {
    if kind.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" }
}

fn join(a: &Expr, b: &Expr) -> Span {
    Span { start: a.span().start, end: b.span().end }
}
