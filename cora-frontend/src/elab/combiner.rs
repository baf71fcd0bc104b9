//! User's combiners: instances for the types of the terms, their laws, components of their results.

use super::value::Val;
use super::{Elab, Entity, Local, Scope};
use crate::ast::{CombinerDef, Expr};
use cora_ir::schedule::Span;
use cora_ir::tuple::{Part, check_laws};
use cora_ir::{CombinerId, Diagnostic, DimId, Expr as Node, ExprId, Literal, ScalarType, TensorId, TupleCombiner};
use std::rc::Rc;

/// A reduction over tuples: the combiner, the dimensions, and the components of the term.
pub(super) struct Tuples {
    def: Rc<CombinerDef>,
    pub(super) reduce: Vec<DimId>,
    terms: Vec<(Val, Span)>,
    span: Span,
}

impl Tuples {
    pub(super) fn combiner(&self) -> &CombinerDef {
        &self.def
    }
}

impl Elab<'_> {
    /// `f(dims)(components)`
    pub(super) fn tuples(
        &mut self,
        def: &Rc<CombinerDef>,
        dims: Option<&[Expr]>,
        args: &[Expr],
        span: Span,
    ) -> Option<Tuples> {
        let name = &def.name.name;
        let usage = || {
            let terms: Vec<&str> = def.parts.iter().map(|p| p.name.name.as_str()).collect();
            format!("write `{name}(k)({})` to combine over dimension k", terms.join(", "))
        };
        let Some(dims) = dims.filter(|d| !d.is_empty()) else {
            let d = Diagnostic::new("E0108", format!("`{name}` has no dimension to reduce over"));
            return self.error(span, d.hint(usage()));
        };
        if args.len() != def.parts.len() {
            let (want, got) = (def.parts.len(), args.len());
            let d = Diagnostic::new("E0253", format!("`{name}` combines tuples of {want}, {got} components given"));
            return self.error(span, d.hint(usage()));
        }
        let reduce = self.reduce_dims(dims, span);
        let terms: Vec<Option<(Val, Span)>> = args.iter().map(|a| Some((self.value(a)?, a.span()))).collect();
        let terms = terms.into_iter().collect::<Option<_>>()?;
        Some(Tuples { def: def.clone(), reduce: reduce?, terms, span })
    }

    /// Types the terms: the combiner for these types, and the tuple.
    pub(super) fn finish_tuples(&mut self, t: Tuples) -> Option<(CombinerId, ExprId)> {
        let mut terms = Vec::new();
        for ((v, span), part) in t.terms.into_iter().zip(&t.def.parts) {
            let e = match part.ty {
                Some(ty) => self.adapt(v, ty, span)?,
                None => self.typed_or_default(v, span)?,
            };
            self.element_type(e, span)?;
            terms.push(e);
        }
        let types: Vec<ScalarType> = terms.iter().map(|&e| self.graph.env.pool.ty(e).scalar).collect();
        let c = self.instance(&t.def, types)?;
        if let Err(broken) = check_laws(&self.graph.env, c, &terms) {
            let d = Diagnostic::new("E0255", format!("combiner `{}` {broken}", t.def.name.name));
            let hint = if broken.contains("nan") {
                "a difference of infinities is no number: choose around it, `if a.m == -inf then 0.0 else exp(a.m - m)`"
            } else {
                "a reduction may combine neighbouring partial results in any grouping, and begins with the identity"
            };
            let d = d.hint(hint);
            let d = if terms.len() > 1 && broken.contains("associative") {
                d.note("components are sampled one by one: where one follows from another, write both in the reduction")
            } else {
                d
            };
            return self.error(t.span, d);
        }
        Some((c, self.graph.env.pool.make_tuple(&terms)))
    }

    /// The result of a reduction over tuples where one value is wanted.
    pub(super) fn not_one_value<T>(&mut self, name: &str, parts: &[String], span: Span) -> Option<T> {
        let read: Vec<String> = parts.iter().map(|p| format!("`{name}.{p}`")).collect();
        let d = Diagnostic::new("E0252", format!("`{name}` is a tuple, and one value is wanted here"));
        self.error(span, d.hint(format!("read a component: {}", read.join(", "))))
    }

    /// A combiner's result that is not given a name.
    pub(super) fn unnamed_tuple<T>(&mut self, def: &CombinerDef, span: Span) -> Option<T> {
        let (name, first) = (&def.name.name, &def.parts[0].name.name);
        let d = Diagnostic::new("E0252", format!("`{name}` gives a tuple, and one value is wanted here"));
        self.error(span, d.hint(format!("name it, `t = {name}(k)(...)`, and read its components, `t.{first}`")))
    }

    /// The names of a tensor's components, if it is of tuples.
    pub(super) fn part_names(&self, t: TensorId) -> Option<Vec<String>> {
        let c = self.graph.env.tensors[t].tuple?;
        Some(self.graph.env.combiners[c].parts.iter().map(|p| p.name.clone()).collect())
    }

    /// `st.m`: the tensor of tuples and which component it names.
    pub(super) fn component(&mut self, name: &str) -> Option<(TensorId, u32)> {
        let (base, part) = name.rsplit_once('.')?;
        let tensor = match self.slots.get(base).map(|s| s.state.clone()) {
            Some(super::State::Done(Entity::Tensor(t))) => t,
            Some(_) => return None,
            None => self.part_named(base)?,
        };
        let k = self.part_names(tensor)?.iter().position(|p| p == part)?;
        self.used.insert(base.to_owned());
        Some((tensor, k as u32))
    }

    /// Names for the components of a local tuple.
    pub(super) fn local_components(&mut self, name: &str, t: TensorId, index: &[ExprId], indexed: bool) -> Local {
        let parts = self.part_names(t).unwrap_or_default();
        for ((k, part), ty) in parts.iter().enumerate().zip(self.graph.env.part_types(t)) {
            let at = (t, k as u32);
            let e = self.graph.env.pool.load_guarded(at, ty, index.iter().copied(), None);
            let local = Local { value: Some(Val::Typed(e)), tensor: indexed.then_some(at), parts: Vec::new() };
            self.scope.values.push((format!("{name}.{part}"), local));
        }
        Local { value: None, tensor: None, parts }
    }

    /// The combiner for components of these types.
    fn instance(&mut self, def: &Rc<CombinerDef>, types: Vec<ScalarType>) -> Option<CombinerId> {
        let key = (def.name.name.clone(), types);
        if let Some(done) = self.instances.get(&key) {
            return *done;
        }
        let scope = std::mem::take(&mut self.scope);
        let shared = std::mem::take(&mut self.shared);
        let made = self.make_instance(def, &key.1);
        (self.scope, self.shared) = (scope, shared);
        self.instances.insert(key, made);
        made
    }

    fn make_instance(&mut self, def: &CombinerDef, types: &[ScalarType]) -> Option<CombinerId> {
        let mut parts = Vec::new();
        for (p, &ty) in def.parts.iter().zip(types) {
            let identity = self.identity(&p.identity, ty)?;
            parts.push(Part { name: p.name.name.clone(), ty, identity });
        }
        let mut scope = Scope::default();
        for (k, (side, p)) in
            [&def.left, &def.right].into_iter().flat_map(|s| parts.iter().map(move |p| (s, p))).enumerate()
        {
            let e = self.graph.env.pool.operand(k as u32, p.ty);
            scope.values.push((format!("{}.{}", side.name, p.name), Local::value(Val::Typed(e))));
        }
        self.scope = scope;
        for local in &def.locals {
            let v = self.value(&local.value)?;
            let v = match local.ty {
                Some(ty) => Val::Typed(self.adapt(v, ty, local.value.span())?),
                None => v,
            };
            self.scope.values.push((local.name.name.clone(), Local::value(v)));
        }
        let mut body = Vec::new();
        for (e, p) in def.result.iter().zip(&parts) {
            let v = self.value(e)?;
            let value = self.adapt(v, p.ty, e.span())?;
            if !self.graph.env.is_combiner_body(value) {
                let (a, b) = (&def.left.name, &def.right.name);
                let d = Diagnostic::new("E0254", format!("combiner `{}` reads more than its operands", def.name.name));
                return self.error(
                    e.span(),
                    d.hint(format!("components are made of those of `{a}` and `{b}`, and constants")),
                );
            }
            body.push(value);
        }
        let name = self.instance_name(&def.name.name);
        let combiner = TupleCombiner { name, parts, body, commutative: def.commutative };
        Some(self.graph.env.combiners.push(combiner))
    }

    fn identity(&mut self, e: &Expr, ty: ScalarType) -> Option<Literal> {
        let mode = std::mem::replace(&mut self.mode, super::Mode::Const);
        let v = self.value(e);
        self.mode = mode;
        let value = self.adapt(v?, ty, e.span())?;
        match *self.graph.env.pool.get(value) {
            Node::Lit(l) => Some(l),
            _ => self.error(
                e.span(),
                Diagnostic::new("E0229", "an identity is a number that is known now")
                    .hint("use numbers and constants only"),
            ),
        }
    }

    /// The declared name, with a number for other types.
    fn instance_name(&self, base: &str) -> String {
        let taken = |n: &str| self.graph.env.combiners.iter().any(|(_, c)| c.name == n);
        if !taken(base) {
            return base.to_owned();
        }
        let free = |n: &String| !taken(n) && !self.slots.contains_key(n);
        (1..).map(|i| format!("{base}_{i}")).find(free).unwrap_or_default()
    }
}
