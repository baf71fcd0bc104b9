//! Calls: extent functions, builtins and the program's own functions, which are inlined.

use super::define::Defined;
use super::value::{Num, OpenKind, Val};
use super::{Elab, Entity, Local, Mode, Scope};
use crate::ast::{Expr, ExprKind, FnDef, Ident};
use crate::names::{self, BUILTINS, suggest, written_as};
use cora_ir::schedule::Span;
use cora_ir::{BinOp, Diagnostic, ScalarType, UnOp};
use std::rc::Rc;

/// Calls of functions may nest this deep.
const MAX_CALLS: usize = 48;
/// One program may inline this many calls.
const MAX_EXPANSIONS: usize = 20_000;

impl Elab<'_> {
    /// `f(args)` or `f(dims)(args)` where a plain value is wanted.
    pub(super) fn call(&mut self, base: &Expr, dims: Option<&[Expr]>, args: &[Expr], span: Span) -> Option<Val> {
        let id = self.ident(base)?;
        if let Some(v) = self.builtin(&id, dims, args, span) {
            return v;
        }
        self.used.insert(id.name.clone());
        match self.resolve(&id.name) {
            Some(Entity::Extent(uf)) => {
                self.allowed(Mode::Extent, &id)?;
                let want = self.graph.env.ufs[uf].domain.len();
                if dims.is_some() || args.len() != want {
                    return self.arity(&id.name, want, args.len() + dims.map_or(0, <[_]>::len), span);
                }
                let mut values = Vec::new();
                for a in args {
                    values.push(self.index(a)?);
                }
                Some(Val::Typed(self.graph.env.pool.call(uf, values)))
            }
            Some(Entity::Fn(f)) => {
                self.allowed(Mode::Value, &id)?;
                let defined = self.inline(&f, dims, args, span)?;
                self.as_value(defined, span)
            }
            Some(Entity::Combiner(c)) => self.unnamed_tuple(&c, span),
            Some(_) => {
                let d = Diagnostic::new("E0203", format!("`{}` is not a function", id.name));
                self.error(id.span, d.hint(format!("an element is read with brackets: `{}[...]`", id.name)))
            }
            None if self.slots.contains_key(&id.name) => self.unknown(&id),
            None => {
                let d = Diagnostic::new("E0203", format!("unknown function `{}`", id.name));
                let own =
                    self.slots.iter().filter(|(_, s)| matches!(s.kind, "function" | "extent function" | "combiner"));
                let mut known: Vec<&str> = own.map(|(n, _)| n.as_str()).collect();
                let near = suggest(&id.name, known.iter().copied());
                known.extend(BUILTINS);
                known.extend(names::math_names());
                known.extend(["sum", "prod", "max", "min", "argmax", "argmin"]);
                let other = written_as(&id.name).filter(|_| near.is_none());
                let hint = match (args.last().and_then(type_named), other, near.or_else(|| suggest(&id.name, known))) {
                    (Some(to), ..) => format!("a conversion is written `{to}(x)`"),
                    (None, Some(other), _) => format!("write `{other}`"),
                    (None, None, Some(s)) => format!("did you mean `{s}`?"),
                    (None, None, None) if id.name.contains('.') => names::method_as(&id.name),
                    (None, None, None) if self.mode < Mode::Value => {
                        format!("sizes that come with each batch are declared: `extent {}(b) in 0..=64`", id.name)
                    }
                    (None, None, None) => format!("define it: `fn {}(..) = ..`", id.name),
                };
                self.error(id.span, d.hint(hint))
            }
        }
    }

    fn arity<T>(&mut self, name: &str, want: usize, got: usize, span: Span) -> Option<T> {
        let s = if want == 1 { "" } else { "s" };
        self.error(
            span,
            Diagnostic::new("E0222", format!("`{name}` takes {want} argument{s}, {got} given"))
                .hint("give it as many arguments as it takes"),
        )
    }

    /// The outer option says whether `id` is a builtin, the inner whether it could be evaluated.
    fn builtin(&mut self, id: &Ident, dims: Option<&[Expr]>, args: &[Expr], span: Span) -> Option<Option<Val>> {
        let want = match id.name.as_str() {
            "ceildiv" => 2,
            "size" | "sigmoid" | "relu" => 1,
            _ => return None,
        };
        if dims.is_some() || args.len() != want {
            return Some(self.arity(&id.name, want, args.len(), span));
        }
        Some(match id.name.as_str() {
            "size" => self.size(&args[0]),
            "ceildiv" => self.ceildiv(&args[0], &args[1], span),
            "relu" => self.value(&args[0]).and_then(|x| self.bin(BinOp::Max, x, Val::Num(Num::Int(0)), span)),
            _ => self.sigmoid(&args[0], span),
        })
    }

    /// The extent of a dimension.
    fn size(&mut self, dim: &Expr) -> Option<Val> {
        let id = self.ident(dim)?;
        let d = self.dim_named(&id)?;
        let extent = self.graph.env.dims[d].extent;
        for need in self.dims_in(extent) {
            self.dim_spans.entry(need).or_insert(dim.span());
        }
        self.allowed(Mode::Extent, &id)?;
        Some(Val::Typed(extent))
    }

    /// The quotient rounded up: of positions `(a + b - 1) / b` for `b > 0`, the form that sizes and
    /// their proofs have, else `-((-a) / b)`; of elements, whose sums may wrap,
    /// `a / b + select(a % b != 0, 1, 0)`.
    fn ceildiv(&mut self, a: &Expr, b: &Expr, span: Span) -> Option<Val> {
        let (va, vb) = (self.value(a), self.value(b));
        let (va, vb) = (va?, vb?);
        for (v, e) in [(&va, a), (&vb, b)] {
            let fraction = match v {
                Val::Num(Num::Float(_)) => Some("fractions".to_owned()),
                Val::Typed(t) => {
                    Some(self.graph.env.pool.ty(*t).scalar).filter(|t| t.is_float()).map(|t| t.to_string())
                }
                _ => None,
            };
            if let Some(what) = fraction {
                let d = Diagnostic::new("E0211", format!("`ceildiv` is not defined for {what}"));
                return self.error(e.span(), d.hint("it is for integers; `ceil(a / b)` rounds a fraction up"));
            }
        }
        let is_index = |v: &Val| matches!(v, Val::Typed(e) if self.graph.env.pool.ty(*e).scalar == ScalarType::Index);
        let numbers = matches!((&va, &vb), (Val::Num(_), Val::Num(_)));
        if !numbers && !is_index(&va) && !is_index(&vb) {
            let quotient = self.bin(BinOp::FloorDiv, va.clone(), vb.clone(), span)?;
            let rest = self.bin(BinOp::Mod, va, vb, span)?;
            let partial = self.bin(BinOp::Ne, rest, Val::Num(Num::Int(0)), span)?;
            let Val::Typed(partial) = partial else { return None };
            let one = self.open(OpenKind::Select(partial, Val::Num(Num::Int(1)), Val::Num(Num::Int(0))), span)?;
            return self.bin(BinOp::Add, quotient, one, span);
        }
        if !numbers && self.is_positive(&vb) {
            let minus_one = self.bin(BinOp::Sub, vb.clone(), Val::Num(Num::Int(1)), span)?;
            let sum = self.bin(BinOp::Add, va, minus_one, span)?;
            return self.bin(BinOp::FloorDiv, sum, vb, span);
        }
        let minus = self.un(UnOp::Neg, va, span)?;
        let quotient = self.bin(BinOp::FloorDiv, minus, vb, span)?;
        self.un(UnOp::Neg, quotient, span)
    }

    /// Whether `v` is greater than 0 by its form and declared range.
    fn is_positive(&self, v: &Val) -> bool {
        let env = &self.graph.env;
        match v {
            Val::Num(n) => matches!(n, Num::Int(1..)),
            Val::Open(_) => false,
            Val::Typed(e) => match env.pool.get(*e) {
                cora_ir::Expr::Int(c) => *c > 0,
                cora_ir::Expr::Param(p) => env.params[*p].lo > 0,
                cora_ir::Expr::Call(f, _) => match env.ufs[*f].def {
                    cora_ir::UfDef::Extent { lo, .. } => env.pool.as_int(lo).is_some_and(|lo| lo > 0),
                    _ => false,
                },
                _ => false,
            },
        }
    }

    /// `1 / (1 + exp(-x))`
    fn sigmoid(&mut self, x: &Expr, span: Span) -> Option<Val> {
        let one = || Val::Num(Num::Float(1.0));
        let x = self.value(x)?;
        let minus = self.un(UnOp::Neg, x, span)?;
        let e = self.un(UnOp::Exp, minus, span)?;
        let sum = self.bin(BinOp::Add, one(), e, span)?;
        self.bin(BinOp::Div, one(), sum, span)
    }

    /// Inlines a call: binds the arguments, defines the locals, and defines the result.
    pub(super) fn inline(
        &mut self,
        f: &Rc<FnDef>,
        dims: Option<&[Expr]>,
        args: &[Expr],
        span: Span,
    ) -> Option<Defined> {
        let name = &f.name.name;
        if self.calls.contains(name) {
            return self.error(
                span,
                Diagnostic::new("E0223", format!("function `{name}` calls itself")).hint(
                    "functions are expanded where they are called: write the steps out, or reduce over a dimension",
                ),
            );
        }
        self.expansions += 1;
        if self.expansions > MAX_EXPANSIONS + 1 {
            return None; // reported
        }
        if self.calls.len() >= MAX_CALLS || self.expansions > MAX_EXPANSIONS {
            let d = Diagnostic::new("E0224", format!("the program has too many function calls, at a call of `{name}`"));
            let hint = format!("at most {MAX_CALLS} nested and {MAX_EXPANSIONS} in all, counted after inlining");
            return self.error(span, d.hint(hint));
        }
        let dims = dims.unwrap_or_default();
        if dims.len() != f.dims.len() || args.len() != f.params.len() {
            let list = |ids: &[Ident]| ids.iter().map(|i| i.name.as_str()).collect::<Vec<_>>().join(", ");
            let d = Diagnostic::new("E0222", format!("wrong number of arguments for function `{name}`"));
            let first = if f.dims.is_empty() { String::new() } else { format!("({})", list(&f.dims)) };
            return self.error(span, d.hint(format!("its parameters are {name}{first}({})", list(&f.params))));
        }
        let mut scope = Scope::default();
        for (p, e) in f.dims.iter().zip(dims) {
            let id = self.ident(e)?;
            scope.dims.push((p.name.clone(), self.dim_named(&id)?));
        }
        for (p, e) in f.params.iter().zip(args) {
            let value = self.value(e)?;
            let tensor = self.bare_tensor(e);
            scope.values.push((p.name.clone(), Local { value: Some(value), tensor, parts: Vec::new() }));
        }
        let saved = std::mem::replace(&mut self.scope, scope);
        self.calls.push(name.clone());
        for local in &f.locals {
            let bound = self.local(local);
            let bound = bound.unwrap_or(Local { value: None, tensor: None, parts: Vec::new() });
            self.scope.values.push((local.name.name.clone(), bound));
        }
        let out = self.defined(&f.result);
        self.calls.pop();
        self.scope = saved;
        out
    }

    /// The tensor, if `e` is just a tensor's name.
    fn bare_tensor(&mut self, e: &Expr) -> Option<(cora_ir::TensorId, u32)> {
        let ExprKind::Name(name) = e.kind() else { return None };
        if let Some((_, local)) = self.scope.values.iter().rev().find(|(n, _)| n == name) {
            return local.tensor;
        }
        match self.slots.get(name).map(|s| &s.state) {
            Some(super::State::Done(Entity::Tensor(t))) => Some((*t, 0)),
            Some(_) => None,
            None => self.part_named(name).map(|t| (t, 0)).or_else(|| self.component(name)),
        }
    }
}

/// The scalar type that `e` names.
fn type_named(e: &Expr) -> Option<&str> {
    match e.kind() {
        ExprKind::Name(n) if ScalarType::from_name(n).is_some() => Some(n),
        _ => None,
    }
}
