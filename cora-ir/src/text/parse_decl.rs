//! Parser of declarations: parameters, uninterpreted functions, tensors.

use super::lex::Tok;
use super::parse::{Parse, Parser, display, out_of_range, twice, unknown};
use super::print::ROLES;
use crate::diag::Diagnostic;
use crate::env::{Param, Scope, Tensor, TensorDim, Uf, UfDef};
use crate::expr::Expr;
use crate::ids::{CombinerId, ExprId, TensorId};
use crate::layout::LayoutStep;
use crate::tuple::{Part, TupleCombiner};
use crate::types::ScalarType;

impl Parser {
    /// A declaration that every stage has, if one begins here.
    pub(super) fn declaration(&mut self) -> Parse<bool> {
        let tok = self.peek().clone();
        let Tok::Word(word) = tok else { return Ok(false) };
        self.in_header = true;
        match word.base.as_str() {
            "param" => self.param_decl()?,
            "uf" => self.uf_decl()?,
            "combiner" => self.combiner_decl()?,
            "tensor" => drop(self.tensor_decl()?),
            _ => {
                self.in_header = false;
                return Ok(false);
            }
        }
        self.in_header = false;
        Ok(true)
    }

    fn param_decl(&mut self) -> Parse<()> {
        self.next();
        let (name, span) = self.bare_name("the parameter's name")?;
        self.word("in")?;
        let lo = self.signed()?;
        self.punct("..=")?;
        let hi = self.signed()?;
        if self.params.contains_key(&name) {
            return Err(twice("parameter", &display(&name), span));
        }
        let id = self.env.params.push(Param { name: name.base.clone(), lo, hi });
        self.params.insert(name, id);
        Ok(())
    }

    fn element_type(&mut self) -> Parse<ScalarType> {
        let types: Vec<_> =
            ScalarType::ELEMENTS.into_iter().chain([ScalarType::Index]).map(|t| (t.name(), t)).collect();
        self.choice("an element type", &types)
    }

    /// `combiner @f(m: f32 = -inf:f32, s: f32 = 0.0:f32) = (.., ..) commutative`
    fn combiner_decl(&mut self) -> Parse<()> {
        self.next();
        let (name, span) = self.at_name("the combiner's name")?;
        if self.combiners.contains_key(&name) {
            return Err(twice("combiner", &format!("@{}", display(&name)), span));
        }
        self.punct("(")?;
        let parts = self.list(")", &mut |p| {
            let name = display(&p.bare_name("the component's name")?.0);
            p.punct(":")?;
            let ty = p.element_type()?;
            p.punct("=")?;
            let span = p.span();
            let e = p.expr()?;
            match *p.env.pool.get(e) {
                Expr::Lit(identity) if identity.ty == ty => Ok(Part { name, ty, identity }),
                _ => Err(Diagnostic::new("E0508", format!("an identity is a constant of type {ty}")).at(span)),
            }
        })?;
        self.punct("=")?;
        let span = self.span();
        let e = self.expr()?;
        let body = self.env.pool.components(e).to_vec();
        if body.len() != parts.len() || parts.is_empty() {
            let message = format!("{} components combined for tuples of {}", body.len(), parts.len());
            return Err(Diagnostic::new("E0508", message).at(self.since(span)));
        }
        let commutative = self.eat_word("commutative");
        let id = self.env.combiners.push(TupleCombiner { name: name.base.clone(), parts, body, commutative });
        self.combiners.insert(name, id);
        Ok(())
    }

    /// A declared combiner.
    pub(super) fn combiner_ref(&mut self) -> Parse<CombinerId> {
        let (name, span) = self.at_name("a combiner")?;
        self.combiners.get(&name).copied().ok_or_else(|| unknown("combiner", &format!("@{}", display(&name)), span))
    }

    fn uf_decl(&mut self) -> Parse<()> {
        self.next();
        let (name, span) = self.at_name("the function's name")?;
        if self.ufs.contains_key(&name) {
            return Err(twice("function", &format!("@{}", display(&name)), span));
        }
        self.punct("(")?;
        let args_span = self.span();
        // Whether each argument may equal its extent.
        let args = self.uf_args()?;
        let args_span = self.since(args_span);
        self.punct("=")?;
        let def = self.uf_def()?;
        for (j, &(_, closed)) in args.iter().enumerate() {
            let wanted = matches!(def, UfDef::PrefixSum { .. }) && j + 1 == args.len();
            if closed != wanted {
                let relation = if wanted { "<=" } else { "<" };
                let message = format!("argument `${j}` of this function is written `${j} {relation} ...`");
                return Err(Diagnostic::new("E0508", message).at(args_span));
            }
        }
        let domain = args.into_iter().map(|(e, _)| e).collect();
        let id = self.env.ufs.push(Uf { name: name.base.clone(), domain, def });
        self.ufs.insert(name, id);
        Ok(())
    }

    /// `$0 < extent, $1 <= extent)`
    fn uf_args(&mut self) -> Parse<Vec<(ExprId, bool)>> {
        let mut next = 0;
        self.list(")", &mut |p| {
            let span = p.span();
            match p.next() {
                Tok::Arg(n) if n == next => next += 1,
                _ => {
                    return Err(Diagnostic::new("E0508", format!("argument `${next}` is expected here")).at(span));
                }
            }
            let closed = p.eat_punct("<=");
            if !closed {
                p.punct("<")?;
            }
            Ok((p.expr()?, closed))
        })
    }

    fn uf_def(&mut self) -> Parse<UfDef> {
        let kind = self.choice(
            "a definition",
            &[("extent", 0), ("prefix_sum", 1), ("search", 2), ("max", 3), ("map", 4), ("sort_desc", 5)],
        )?;
        if kind == 2 {
            return Ok(UfDef::Search { sum: self.uf_ref()? });
        }
        if kind == 0 {
            self.word("in")?;
            let lo = self.expr()?;
            self.punct("..=")?;
            return Ok(UfDef::Extent { lo, hi: self.expr()? });
        }
        let body = self.expr()?;
        Ok(match kind {
            1 => UfDef::PrefixSum { body },
            3 => UfDef::Max { body },
            4 => UfDef::Map { body },
            _ => UfDef::SortDesc { key: body },
        })
    }

    /// ` as ki`: another name of a dimension or a loop, if it has one.
    pub(super) fn also(&mut self) -> Parse<Option<String>> {
        Ok(if self.eat_word("as") { Some(display(&self.bare_name("another name")?.0)) } else { None })
    }

    fn tensor_decl(&mut self) -> Parse<TensorId> {
        self.next();
        let (name, span) = self.at_name("the tensor's name")?;
        if self.tensors.contains_key(&name) {
            return Err(twice("tensor", &format!("@{}", display(&name)), span));
        }
        self.punct("[")?;
        let dims = self.list("]", &mut |p| {
            let name = display(&p.bare_name("the dimension's name")?.0);
            let also = p.also()?;
            p.punct(":")?;
            let extent = p.expr()?;
            let storage = if p.eat_word("pad") { p.expr()? } else { extent };
            Ok(TensorDim { name, also, extent, storage })
        })?;
        self.punct(":")?;
        let tuple = if matches!(self.peek(), Tok::At(_)) { Some(self.combiner_ref()?) } else { None };
        let ty = match tuple {
            Some(c) => self.env.combiners[c].parts.first().map_or(ScalarType::Index, |p| p.ty),
            None => self.element_type()?,
        };
        let role = self.choice("the tensor's role", &ROLES.map(|(r, n)| (n, r)))?;
        let scope = Scope::ALL.into_iter().find(|s| self.eat_word(s.name())).unwrap_or(Scope::Global);
        let mut range = None;
        if self.eat_word("range") {
            let lo = self.expr()?;
            self.punct("..")?;
            range = Some((lo, self.expr()?));
        }
        let mut layout = Vec::new();
        if self.eat_word("layout") {
            self.punct("(")?;
            layout = self.list(")", &mut |p| p.layout_step())?;
        }
        let id = self.env.tensors.push(Tensor { name: name.base.clone(), ty, tuple, dims, role, scope, range, layout });
        self.tensors.insert(name, id);
        Ok(id)
    }

    /// `split 1 32 -> io ii`, `fuse 0 2 -> t`, `align 0 16 4`, `slots 2`, `swizzle`, `fold 1 2` or `reorder 1 0 2`; whether it fits, the verifier says.
    fn layout_step(&mut self) -> Parse<LayoutStep> {
        match self.choice(
            "a layout step",
            &[("split", 0), ("fuse", 1), ("align", 2), ("slots", 3), ("swizzle", 4), ("fold", 5), ("reorder", 6)],
        )? {
            0 => {
                let (dim, factor) = (self.position()?, self.signed()?);
                self.punct("->")?;
                let outer = display(&self.bare_name("a dimension's name")?.0);
                let inner = display(&self.bare_name("a dimension's name")?.0);
                Ok(LayoutStep::Split { dim, factor, outer, inner })
            }
            1 => {
                let (first, count) = (self.position()?, self.position()?);
                self.punct("->")?;
                Ok(LayoutStep::Fuse { first, count, name: display(&self.bare_name("a dimension's name")?.0) })
            }
            2 => Ok(LayoutStep::Align { dim: self.position()?, multiple: self.signed()?, offset: self.signed()? }),
            3 => Ok(LayoutStep::Slots(self.signed()?)),
            4 => Ok(LayoutStep::Swizzle),
            5 => Ok(LayoutStep::Fold { dim: self.position()?, count: self.signed()? }),
            _ => {
                let mut order = Vec::new();
                while matches!(self.peek(), Tok::Int(_)) {
                    order.push(self.position()?);
                }
                Ok(LayoutStep::Reorder { order })
            }
        }
    }

    fn position(&mut self) -> Parse<usize> {
        let span = self.span();
        usize::try_from(self.signed()?).map_err(|_| out_of_range("the tensor's dimensions", span))
    }
}
