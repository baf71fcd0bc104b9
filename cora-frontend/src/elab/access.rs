//! Accesses of tensors: positions, gathers, borders.

use super::{Elab, Entity, Mode, bounds};
use crate::ast::{Expr, Ident};
use cora_ir::schedule::Span;
use cora_ir::{Diagnostic, ExprId, ScalarType, TensorId};

use super::value::Val;

impl Elab<'_> {
    /// `T[index]`, `T[index] else other`, `T[index] when cond else other`.
    pub(super) fn access(
        &mut self,
        base: &Expr,
        index: &[Expr],
        guard: Option<&(Option<Expr>, Expr)>,
        span: Span,
    ) -> Option<Val> {
        let id = self.ident(base)?;
        let tensor = self.tensor(&id);
        let mut at = Vec::new();
        let mut ok = true;
        for e in index {
            match self.position(e, guard.is_some()) {
                Some(i) => at.push(i),
                None => ok = false,
            }
        }
        let (tensor, part) = tensor?;
        let rank = self.tensor_dims.get(&tensor).map_or(0, Vec::len);
        if index.len() != rank {
            let name = &id.name;
            let mut d =
                Diagnostic::new("E0208", format!("`{name}` has {rank} dimensions, {} positions given", index.len()));
            let dims = self.tensor_dims.get(&tensor).cloned().unwrap_or_default();
            d = d.hint(format!("its dimensions are [{}]", self.dim_names(&dims)));
            return self.error(span, d);
        }
        if !ok {
            return None;
        }
        let ty = self.graph.env.part_types(tensor)[part as usize];
        let Some((cond, other)) = guard else {
            let load = self.graph.env.pool.load_guarded((tensor, part), ty, at, None);
            self.accesses.push((load, span));
            return Some(Val::Typed(load));
        };
        let other_value = self.value(other)?;
        let other = self.adapt(other_value, ty, other.span())?;
        let cond = match cond {
            Some(c) => self.condition(c)?,
            None => bounds::in_bounds(&mut self.graph.env, tensor, &at),
        };
        let load = self.graph.env.pool.load_guarded((tensor, part), ty, at, Some((cond, other)));
        self.accesses.push((load, span));
        Some(Val::Typed(load))
    }

    /// An `Index` value as it is; anything else is refused.
    pub(super) fn index_typed(&mut self, id: ExprId, span: Span) -> Option<ExprId> {
        let ty = self.graph.env.pool.ty(id).scalar;
        if ty == ScalarType::Index {
            return Some(id);
        }
        let mut d = Diagnostic::new("E0213", format!("a position or extent must be of type index, this is {ty}"));
        d = d.hint(if ty.is_int() {
            "an integer expression can be converted: `index(x)`"
        } else {
            "positions and extents are computed from indices, sizes and integers: convert with `index(i64(x))`"
        });
        self.error(span, d)
    }

    /// A position; an integer tensor's element (a gather) is converted if its values are known to
    /// lie in a range, or if the access is guarded.
    fn position(&mut self, e: &Expr, guarded: bool) -> Option<ExprId> {
        let v = self.value(e)?;
        let Val::Typed(id) = v else { return self.adapt(v, ScalarType::Index, e.span()) };
        let pool = &self.graph.env.pool;
        let ty = pool.ty(id).scalar;
        let cora_ir::Expr::Load { tensor, .. } = *pool.get(id) else { return self.index_typed(id, e.span()) };
        if !ty.is_int() {
            return self.index_typed(id, e.span());
        }
        let t = &self.graph.env.tensors[tensor];
        if t.range.is_none() && !guarded {
            let d = Diagnostic::new("E0215", format!("`{}` is used as an index but declares no range", t.name));
            let hint = match t.role {
                cora_ir::Role::Input | cora_ir::Role::ConstInput => {
                    format!("declare it: `input {}[...] : {ty} in 0..N`, or end the access with `else x`", t.name)
                }
                _ => "end the access with `else x`, which stands for positions that are not there".to_owned(),
            };
            return self.error(e.span(), d.hint(hint));
        }
        Some(self.graph.env.pool.cast(ScalarType::Index, id))
    }

    /// The tensor called `id`, which is about to be indexed.
    fn tensor(&mut self, id: &Ident) -> Option<(TensorId, u32)> {
        if let Some((_, local)) = self.scope.values.iter().rev().find(|(n, _)| *n == id.name) {
            if !local.parts.is_empty() {
                let parts = local.parts.clone();
                return self.not_one_value(&id.name, &parts, id.span);
            }
            local.value.as_ref()?;
            if local.tensor.is_some() {
                return local.tensor;
            }
            let d = Diagnostic::new("E0216", format!("`{}` has no order of dimensions and cannot be indexed", id.name));
            let hint = format!(
                "define it with an index list: `{}[i, j] = ...`; where it is a parameter, call the function with the name of a \
                 tensor that is defined so",
                id.name
            );
            return self.error(id.span, d.hint(hint));
        }
        self.used.insert(id.name.clone());
        // A definition may have the name of a component that it copies.
        let made = self.part_named(&id.name).is_some() || self.component(&id.name).is_some();
        if let Some(early) = if made { None } else { self.early_tensor(&id.name) } {
            self.allowed(Mode::Value, id)?;
            return Some((early, 0));
        }
        match self.resolve(&id.name) {
            Some(Entity::Tensor(t)) => {
                self.allowed(Mode::Value, id)?;
                match self.part_names(t) {
                    Some(parts) => self.not_one_value(&id.name, &parts, id.span),
                    None => Some((t, 0)),
                }
            }
            Some(Entity::Extent(_) | Entity::Fn(_) | Entity::Combiner(_)) => {
                let d = Diagnostic::new("E0216", format!("`{}` is a function and cannot be indexed", id.name));
                self.error(id.span, d.hint(format!("call it: `{}(...)`", id.name)))
            }
            Some(_) => self.error(
                id.span,
                Diagnostic::new("E0216", format!("`{}` is not a tensor", id.name))
                    .hint("index an input or an operator"),
            ),
            None => match self.part_named(&id.name).map(|t| (t, 0)).or_else(|| self.component(&id.name)) {
                Some(t) => {
                    self.allowed(Mode::Value, id)?;
                    Some(t)
                }
                None => self.unknown(id),
            },
        }
    }
}
