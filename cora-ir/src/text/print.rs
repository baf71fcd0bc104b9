//! What the printers of all stages share: reachable entities, declarations, scopes, indentation.

use super::names::{EntityNames, Names, quote, quote_param};
use super::print_expr::{ExprPrinter, literal};
use crate::env::{Env, Role, Scope, Tensor, Uf, UfDef};
use crate::expr::Expr;
use crate::ids::{ExprId, TensorId, UfId, VarId};
use crate::layout::LayoutStep;
use crate::tuple::{Part, Reduction};
use rustc_hash::FxHashSet;

/// The entities that a module's text must declare.
pub(super) struct Reach<'a> {
    env: &'a Env,
    exprs: FxHashSet<ExprId>,
    tensors: FxHashSet<TensorId>,
    ufs: FxHashSet<UfId>,
}

impl<'a> Reach<'a> {
    /// All inputs, outputs and extent functions, and what they need.
    pub(super) fn new(env: &'a Env) -> Self {
        let mut reach =
            Self { env, exprs: FxHashSet::default(), tensors: FxHashSet::default(), ufs: FxHashSet::default() };
        for (id, f) in env.ufs.iter() {
            if matches!(f.def, UfDef::Extent { .. }) {
                reach.uf(id);
            }
        }
        for (id, t) in env.tensors.iter() {
            if t.role != Role::Temp {
                reach.tensor(id);
            }
        }
        reach
    }

    pub(super) fn tensor(&mut self, id: TensorId) {
        let Some(t) = self.env.tensors.get(id) else { return };
        if self.tensors.insert(id) {
            for d in &t.dims {
                self.expr(d.extent);
                self.expr(d.storage);
            }
            for e in t.range.iter().flat_map(|&(lo, hi)| [lo, hi]) {
                self.expr(e);
            }
        }
    }

    pub(super) fn uf(&mut self, id: UfId) {
        let Some(f) = self.env.ufs.get(id) else { return };
        if self.ufs.insert(id) {
            f.domain.iter().for_each(|&e| self.expr(e));
            match f.def {
                UfDef::Extent { lo, hi } => [lo, hi].into_iter().for_each(|e| self.expr(e)),
                UfDef::Search { sum } => self.uf(sum),
                _ => f.def.body().into_iter().for_each(|e| self.expr(e)),
            }
        }
    }

    pub(super) fn expr(&mut self, e: ExprId) {
        let (mut ufs, mut tensors) = (Vec::new(), Vec::new());
        self.env.pool.walk_seen(e, &mut self.exprs, &mut |_, n| match n {
            Expr::Call(f, _) => ufs.push(*f),
            Expr::Load { tensor, .. } | Expr::Search { table: tensor, .. } => tensors.push(*tensor),
            _ => {}
        });
        ufs.into_iter().for_each(|f| self.uf(f));
        tensors.into_iter().for_each(|t| self.tensor(t));
    }
}

/// Text under construction.
pub(super) struct Printer<'a> {
    pub exprs: ExprPrinter<'a>,
    out: String,
    depth: usize,
}

impl<'a> Printer<'a> {
    pub(super) fn new(reach: &Reach<'a>) -> Self {
        Self::with_first(reach, &[])
    }

    /// A printer that declares the tensors `first` before the others; names that clash are told apart
    /// in the order of declaration.
    pub(super) fn with_first(reach: &Reach<'a>, first: &[TensorId]) -> Self {
        let env = reach.env;
        let ufs = env.ufs.iter().filter(|(i, _)| reach.ufs.contains(i)).map(|(i, f)| (i, f.name.as_str()));
        let order = declared_order(reach, first);
        let tensors = order.iter().map(|&i| (i, env.tensors[i].name.as_str()));
        let exprs = ExprPrinter {
            env,
            params: EntityNames::new(env.params.iter().map(|(i, p)| (i, p.name.as_str())), quote_param),
            ufs: EntityNames::new(ufs, quote),
            tensors: EntityNames::new(tensors, quote),
            combiners: EntityNames::new(env.combiners.iter().map(|(i, c)| (i, c.name.as_str())), quote),
            names: Names::default(),
            free: Some(Names::default()),
        };
        Self { exprs, out: String::new(), depth: 0 }
    }

    pub(super) fn finish(self) -> String {
        self.out
    }

    /// Begins a line.
    pub(super) fn line(&mut self) -> &mut Self {
        self.out.extend(std::iter::repeat_n("  ", self.depth));
        self
    }

    pub(super) fn text(&mut self, s: &str) -> &mut Self {
        self.out.push_str(s);
        self
    }

    pub(super) fn expr(&mut self, e: ExprId) -> &mut Self {
        self.exprs.expr(&mut self.out, e);
        self
    }

    pub(super) fn list(&mut self, es: &[ExprId]) -> &mut Self {
        self.exprs.list(&mut self.out, es);
        self
    }

    pub(super) fn tensor(&mut self, t: TensorId) -> &mut Self {
        self.out.push('@');
        self.out.push_str(&self.exprs.tensors.get(t));
        self
    }

    pub(super) fn uf(&mut self, f: UfId) -> &mut Self {
        self.out.push('@');
        self.out.push_str(&self.exprs.ufs.get(f));
        self
    }

    pub(super) fn end_line(&mut self) {
        self.out.push('\n');
    }

    /// Ends a line with `{`; what follows is indented.
    pub(super) fn open(&mut self) {
        self.out.push_str(" {\n");
        self.depth += 1;
    }

    /// Ends a block; the rest of its line is up to the caller.
    pub(super) fn close(&mut self) -> &mut Self {
        self.depth = self.depth.saturating_sub(1);
        self.line().text("}")
    }

    /// A blank line before a section, unless it is the first.
    pub(super) fn gap(&mut self) {
        if !self.out.ends_with("{\n") && !self.out.is_empty() {
            self.out.push('\n');
        }
    }

    /// Writes the binder's name, not yet in scope: `%q`.
    pub(super) fn binder(&mut self, v: VarId) -> String {
        let pinned = self.exprs.names.get(v).map(str::to_owned);
        let name = pinned.unwrap_or_else(|| self.exprs.names.choose(self.exprs.env, v));
        self.out.push_str(&format!("%{name}"));
        name
    }

    /// Writes the other name of a dimension or a loop, if it has one: ` as ki`.
    pub(super) fn also(&mut self, name: Option<&str>) -> &mut Self {
        match name {
            Some(n) => self.text(" as ").text(&quote(n)),
            None => self,
        }
    }

    /// Writes the mark of a loop, if it has one: ` hoist off`.
    pub(super) fn hoist(&mut self, v: VarId) {
        if let Some(on) = self.exprs.env.vars[v].hoist {
            self.text(" hoist ").text(super::steps::switch(on));
        }
    }

    /// Brings a binder's name into scope. A name that the header gave stays for good.
    pub(super) fn enter(&mut self, scope: &mut Vec<VarId>, v: VarId, name: String) {
        if self.exprs.names.get(v).is_none() {
            self.exprs.names.insert(v, name);
            scope.push(v);
        }
    }

    /// Leaves a scope.
    pub(super) fn leave(&mut self, scope: Vec<VarId>) {
        for v in scope {
            self.exprs.names.remove(v, None);
        }
    }

    /// Names variables of the header: they keep that name in the whole module.
    fn pin(&mut self, e: ExprId) {
        for v in self.exprs.env.pool.vars_of(e) {
            self.exprs.names.add(self.exprs.env, v);
        }
    }

    /// Writes an expression of the header.
    pub(super) fn header_expr(&mut self, e: ExprId) -> &mut Self {
        self.pin(e);
        self.expr(e)
    }

    /// Stage keyword and name.
    pub(super) fn module(&mut self, stage: super::Stage, name: &str) {
        self.text(stage.keyword()).text(" @").text(&quote(name));
        self.open();
    }

    /// Parameters and uninterpreted functions.
    pub(super) fn functions(&mut self, reach: &Reach<'a>) {
        let env = reach.env;
        for (id, p) in env.params.iter() {
            let name = self.exprs.params.get(id);
            self.line().text(&format!("param {name} in {}..={}", p.lo, p.hi)).end_line();
        }
        for (id, f) in env.ufs.iter() {
            if reach.ufs.contains(&id) {
                self.uf_decl(id, f);
            }
        }
        self.combiners(env);
    }

    /// Users' combiners: `combiner @f(m: f32 = -inf:f32, s: f32 = 0.0:f32) = (.., ..) commutative`.
    fn combiners(&mut self, env: &Env) {
        for (id, c) in env.combiners.iter() {
            let name = self.exprs.combiners.get(id);
            let part = |p: &Part| format!("{}: {} = {}", quote(&p.name), p.ty, literal(p.identity));
            let parts: Vec<String> = c.parts.iter().map(part).collect();
            self.line().text(&format!("combiner @{name}({}) = (", parts.join(", ")));
            self.list(&c.body).text(if c.parts.len() == 1 { ",)" } else { ")" });
            self.text(if c.commutative { " commutative" } else { "" }).end_line();
        }
    }

    /// The word for how a reduction combines: `sum`, or `reduce @f`.
    pub(super) fn reduction(&mut self, r: Reduction) -> &mut Self {
        match r {
            Reduction::Op(c) => self.text(c.name()),
            Reduction::Tuple(c) => {
                let name = self.exprs.combiners.get(c);
                self.text(&format!("reduce @{name}"))
            }
        }
    }

    fn uf_decl(&mut self, id: UfId, f: &Uf) {
        self.line().text("uf ").uf(id).text("(");
        let closed = matches!(f.def, UfDef::PrefixSum { .. });
        for (j, &extent) in f.domain.iter().enumerate() {
            let relation = if closed && j + 1 == f.domain.len() { "<=" } else { "<" };
            let comma = if j > 0 { ", " } else { "" };
            self.text(&format!("{comma}${j} {relation} ")).header_expr(extent);
        }
        self.text(") = ");
        match f.def {
            UfDef::Extent { lo, hi } => {
                self.text("extent in ").header_expr(lo).text("..=").header_expr(hi);
            }
            UfDef::PrefixSum { body } => {
                self.text("prefix_sum ").header_expr(body);
            }
            UfDef::Search { sum } => {
                self.text("search ").uf(sum);
            }
            UfDef::Max { body } => {
                self.text("max ").header_expr(body);
            }
            UfDef::Map { body } => {
                self.text("map ").header_expr(body);
            }
            UfDef::SortDesc { key } => {
                self.text("sort_desc ").header_expr(key);
            }
        }
        self.end_line();
    }

    /// Declares the tensors, `first` before the others: the extents of those may read them.
    pub(super) fn tensors(&mut self, reach: &Reach<'a>, first: &[TensorId]) {
        for id in declared_order(reach, first) {
            self.tensor_decl(id, &reach.env.tensors[id]);
        }
    }

    fn tensor_decl(&mut self, id: TensorId, t: &Tensor) {
        self.line().text("tensor ").tensor(id).text("[");
        for (j, d) in t.dims.iter().enumerate() {
            let comma = if j > 0 { ", " } else { "" };
            self.text(comma).text(&quote(&d.name)).also(d.also.as_deref()).text(": ").header_expr(d.extent);
            if d.storage != d.extent {
                self.text(" pad ").header_expr(d.storage);
            }
        }
        let ty = match t.tuple {
            Some(c) => format!("@{}", self.exprs.combiners.get(c)),
            None => t.ty.name().to_owned(),
        };
        self.text("] : ").text(&ty).text(" ").text(role_name(t.role));
        if t.scope != Scope::Global {
            self.text(" ").text(t.scope.name());
        }
        if let Some((lo, hi)) = t.range {
            self.text(" range ").header_expr(lo).text("..").header_expr(hi);
        }
        if !t.layout.is_empty() {
            let steps: Vec<String> = t.layout.iter().map(layout_step).collect();
            self.text(&format!(" layout({})", steps.join(", ")));
        }
        self.end_line();
    }
}

/// `split 1 32 -> io ii`, `fuse 0 2 -> t`, `align 0 16 4`, `slots 2`, `swizzle`, `fold 1 2`, `reorder 1 0 2`.
fn layout_step(s: &LayoutStep) -> String {
    match s {
        LayoutStep::Split { dim, factor, outer, inner } => {
            format!("split {dim} {factor} -> {} {}", quote(outer), quote(inner))
        }
        LayoutStep::Fuse { first, count, name } => format!("fuse {first} {count} -> {}", quote(name)),
        LayoutStep::Align { dim, multiple, offset } => format!("align {dim} {multiple} {offset}"),
        LayoutStep::Slots(n) => format!("slots {n}"),
        LayoutStep::Swizzle => "swizzle".to_owned(),
        LayoutStep::Fold { dim, count } => format!("fold {dim} {count}"),
        LayoutStep::Reorder { order } => {
            let order: Vec<String> = order.iter().map(usize::to_string).collect();
            format!("reorder {}", order.join(" "))
        }
    }
}

/// Reachable tensors, each once: those of `first`, then the others by id.
fn declared_order(reach: &Reach, first: &[TensorId]) -> Vec<TensorId> {
    let mut order: Vec<TensorId> = Vec::new();
    for id in first.iter().copied().chain(reach.env.tensors.ids()) {
        if reach.tensors.contains(&id) && !order.contains(&id) {
            order.push(id);
        }
    }
    order
}

/// Every role and its name in text.
pub(super) const ROLES: [(Role, &str); 4] =
    [(Role::Input, "input"), (Role::ConstInput, "const_input"), (Role::Output, "output"), (Role::Temp, "temp")];

fn role_name(role: Role) -> &'static str {
    ROLES.iter().find(|(r, _)| *r == role).map_or("temp", |(_, n)| n)
}
