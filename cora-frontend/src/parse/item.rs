//! Items: declarations, functions, operators, outputs, schedules.

use super::{Parsed, Parser, describe};
use crate::ast::{CombinerDef, Def, DimUse, FnDef, Ident, Input, Item, ItemKind, PartDef, Range, Steps};
use crate::lex::{Token, TokenKind};
use crate::names::{is_item_keyword, item_keywords, suggest};
use cora_ir::schedule::Span;
use cora_ir::{Diagnostic, ScalarType};
use std::rc::Rc;

impl Parser {
    /// One statement, which may be several items (`dim a = 1, b = 2`).
    pub(super) fn items(&mut self, out: &mut Vec<Item>) -> Parsed<()> {
        let start = self.peek().span;
        let keyword = self.peek().clone();
        if keyword.kind != TokenKind::Name {
            return self.unexpected("a declaration or an operator");
        }
        if !is_item_keyword(&keyword.text) {
            return self.op_item(&keyword, out);
        }
        self.advance();
        match keyword.text.as_str() {
            "param" => self.comma_list(out, start, &mut |p| {
                let name = p.plain_name("a parameter")?;
                p.expect("in")?;
                Ok(ItemKind::Param(name, p.range()?))
            }),
            "const" if self.at("input") => {
                self.advance();
                self.comma_list(out, start, &mut |p| p.input(true))
            }
            "const" => self.comma_list(out, start, &mut |p| {
                let name = p.plain_name("a constant")?;
                p.expect("=")?;
                Ok(ItemKind::Const(name, p.expr()?))
            }),
            "extent" => self.comma_list(out, start, &mut |p| {
                let name = p.plain_name("an extent function")?;
                p.expect("(")?;
                let args = p.list(")", &mut Self::dim_use)?;
                p.expect("in")?;
                Ok(ItemKind::Extent(name, args, p.range()?))
            }),
            "dim" => self.comma_list(out, start, &mut |p| {
                let name = p.plain_name("a dimension")?;
                p.expect("=")?;
                Ok(ItemKind::Dim(name, p.expr()?))
            }),
            "input" => self.comma_list(out, start, &mut |p| p.input(false)),
            "output" => {
                let mut names = vec![self.name("a tensor")?];
                while self.eat(",") {
                    names.push(self.name("a tensor")?);
                }
                let next = self.peek();
                if !next.first && matches!(next.text.as_str(), "[" | "=" | ":") {
                    let (span, found) = (next.span, describe(next));
                    let name = &names[names.len() - 1].name;
                    let hint =
                        format!("`output {name}` and what `{name}` is are statements of their own: `{name}[..] = ..`");
                    let d = Diagnostic::new("E0106", format!("expected the end of the statement, found {found}"));
                    return self.fail(d.at(span).hint(hint));
                }
                self.push(out, start, ItemKind::Output(names));
                Ok(())
            }
            "fn" => {
                let f = self.function()?;
                self.push(out, start, ItemKind::Fn(Rc::new(f)));
                Ok(())
            }
            "combiner" => {
                let c = self.combiner()?;
                self.push(out, start, ItemKind::Combiner(Rc::new(c)));
                Ok(())
            }
            _ => self.schedule(out, start),
        }
    }

    /// `online(m = -inf, s = 0.0)(a, b) commutative = { locals; (results) }`
    fn combiner(&mut self) -> Parsed<CombinerDef> {
        let name = self.plain_name("a combiner")?;
        self.expect("(")?;
        let parts = self.list(")", &mut |p| {
            let name = p.plain_name("a component")?;
            let ty = if p.eat(":") { Some(p.scalar_type()?) } else { None };
            p.expect("=")?;
            Ok(PartDef { name, ty, identity: p.expr()? })
        })?;
        if let Some(twice) = (1..parts.len()).find(|&i| parts[..i].iter().any(|p| p.name.name == parts[i].name.name)) {
            let twice = &parts[twice].name;
            let d = Diagnostic::new("E0204", format!("component `{}` is declared twice", twice.name))
                .at(twice.span)
                .hint("give each component a name of its own");
            return self.fail(d);
        }
        self.expect("(")?;
        let left = self.plain_name("the tuple of earlier terms")?;
        self.expect(",")?;
        let right = self.plain_name("the tuple of later terms")?;
        self.expect(")")?;
        if left.name == right.name {
            let d = Diagnostic::new("E0204", format!("`{}` is declared twice", right.name)).at(right.span);
            return self.fail(d.hint("the two tuples have different names"));
        }
        let commutative = self.eat("commutative");
        self.expect("=")?;
        let braces = self.eat("{");
        let locals = if braces { self.locals()? } else { Vec::new() };
        let open = self.expect("(")?;
        let result = self.list(")", &mut Self::expr)?;
        let end = self.span_from(open);
        if braces {
            while self.eat(";") {}
            self.expect("}")?;
        }
        if parts.is_empty() || result.len() != parts.len() {
            let (want, got) = (parts.len(), result.len());
            let d = Diagnostic::new("E0253", format!("combiner `{}` has {want} components, {got} results", name.name));
            return self.fail(d.at(end).hint("write one result for each component: `= (x, y)`"));
        }
        Ok(CombinerDef { name, parts, left, right, commutative, locals, result })
    }

    fn push(&self, out: &mut Vec<Item>, start: Span, kind: ItemKind) {
        out.push(Item { kind, span: self.span_from(start), origin: None });
    }

    fn comma_list(
        &mut self,
        out: &mut Vec<Item>,
        start: Span,
        one: &mut dyn FnMut(&mut Self) -> Parsed<ItemKind>,
    ) -> Parsed<()> {
        loop {
            let kind = one(self)?;
            self.push(out, start, kind);
            if !self.eat(",") {
                return Ok(());
            }
        }
    }

    fn op_item(&mut self, first: &Token, out: &mut Vec<Item>) -> Parsed<()> {
        let next = self.peek_at(1);
        if !matches!(next.text.as_str(), "[" | "=" | ":") {
            let mut d = Diagnostic::new("E0114", format!("`{}` does not begin a statement", first.text)).at(first.span);
            d = match suggest(&first.text, item_keywords().iter().copied()) {
                Some(k) => d.hint(format!("did you mean `{k}`?")),
                None => d.hint("an operator is defined by `T[i] = ...` or `T = ...`"),
            };
            return self.fail(d);
        }
        let def = self.definition("an operator")?;
        self.push(out, first.span, ItemKind::Op(def));
        Ok(())
    }

    /// `name[dims] : type = value`
    fn definition(&mut self, what: &str) -> Parsed<Def> {
        let name = self.new_name(what)?;
        let dims = if self.eat("[") { Some(self.list("]", &mut Self::dim_use)?) } else { None };
        let ty = if self.eat(":") { Some(self.scalar_type()?) } else { None };
        self.expect("=")?;
        let value = self.expr()?;
        Ok(Def { name, dims, ty, value })
    }

    /// `q`, `c = 3`, `q pad 4`
    fn dim_use(&mut self) -> Parsed<DimUse> {
        let declares = self.peek_at(1).text == "=";
        let name = if declares { self.plain_name("a dimension")? } else { self.name("a dimension")? };
        let extent = if self.eat("=") { Some(self.expr()?) } else { None };
        let pad = if self.eat("pad") { Some(self.expr()?) } else { None };
        Ok(DimUse { name, extent, pad })
    }

    fn input(&mut self, constant: bool) -> Parsed<ItemKind> {
        let name = self.new_name("an input")?;
        self.expect("[")?;
        let dims = self.list("]", &mut Self::dim_use)?;
        self.expect(":")?;
        let ty = self.scalar_type()?;
        let range = if self.eat("in") { Some(self.range()?) } else { None };
        Ok(ItemKind::Input(Input { name, dims, ty, constant, range }))
    }

    fn range(&mut self) -> Parsed<Range> {
        let lo = self.expr()?;
        let inclusive = self.at("..=");
        if !inclusive && !self.at("..") {
            return self.unexpected("`..=` or `..`");
        }
        self.advance();
        let hi = self.expr()?;
        Ok(Range { lo, hi, inclusive })
    }

    fn scalar_type(&mut self) -> Parsed<ScalarType> {
        let t = self.peek().clone();
        match ScalarType::from_name(&t.text) {
            Some(ty) if ty != ScalarType::Index => {
                self.advance();
                Ok(ty)
            }
            _ if t.kind == TokenKind::Name => {
                let names: Vec<&str> = ScalarType::ELEMENTS.iter().map(|t| t.name()).collect();
                let signed = match t.text.as_str() {
                    "u8" | "uint8" => Some(ScalarType::I16),
                    "u16" | "uint16" => Some(ScalarType::I32),
                    "u32" | "uint32" => Some(ScalarType::I64),
                    _ => None,
                };
                let hint = match (signed, suggest(&t.text, names.iter().copied())) {
                    (Some(ty), _) => format!("there are no unsigned types: `{}` has all its values", ty.name()),
                    (None, Some(n)) => format!("did you mean `{n}`?"),
                    (None, None) => format!("element types are {}", names.join(", ")),
                };
                self.fail(
                    Diagnostic::new("E0115", format!("`{}` is not an element type", t.text)).at(t.span).hint(hint),
                )
            }
            _ => self.unexpected("an element type"),
        }
    }

    fn function(&mut self) -> Parsed<FnDef> {
        let name = self.plain_name("a function")?;
        self.expect("(")?;
        let mut param = |p: &mut Self| p.plain_name("a parameter");
        let mut groups = vec![self.list(")", &mut param)?];
        if self.eat("(") {
            groups.push(self.list(")", &mut param)?);
        }
        self.expect("=")?;
        let params = groups.pop().unwrap_or_default();
        let dims: Vec<Ident> = groups.pop().unwrap_or_default();
        self.distinct(&name.name, dims.iter().chain(&params));
        let mut locals = Vec::new();
        let result = if self.eat("{") {
            locals = self.locals()?;
            let result = self.expr()?;
            while self.eat(";") {}
            self.expect("}")?;
            result
        } else {
            self.expr()?
        };
        Ok(FnDef { name, dims, params, locals, result })
    }

    /// The definitions before a result.
    fn locals(&mut self) -> Parsed<Vec<Def>> {
        let mut locals = Vec::new();
        loop {
            while self.eat(";") {}
            if !self.at_local() {
                return Ok(locals);
            }
            locals.push(self.local()?);
            self.end_of_statement()?;
        }
    }

    fn distinct<'a>(&mut self, function: &str, params: impl Iterator<Item = &'a Ident>) {
        let mut seen = Vec::new();
        for p in params {
            if seen.contains(&&p.name) {
                let d = Diagnostic::new("E0204", format!("`{}` is declared twice", p.name)).at(p.span);
                self.diags
                    .push(d.note(format!("it is already a parameter of `{function}`")).hint("choose another name"));
            }
            seen.push(&p.name);
        }
    }

    fn local(&mut self) -> Parsed<Def> {
        let def = self.definition("a local")?;
        if def.name.name.contains('.') {
            let d = Diagnostic::new("E0109", format!("the name `{}` of a local contains a dot", def.name.name));
            return self.fail(d.at(def.name.span).hint("only tensors may have dots in their names"));
        }
        Ok(def)
    }

    /// Whether a definition comes next, and not the function's result.
    fn at_local(&self) -> bool {
        if self.peek().kind != TokenKind::Name {
            return false;
        }
        let mut ahead = 1;
        if self.peek_at(1).text == "[" {
            let mut open = 0_usize;
            loop {
                let t = self.peek_at(ahead);
                match t.text.as_str() {
                    "[" => open += 1,
                    "]" => open -= 1,
                    _ if t.kind == TokenKind::End => return false,
                    _ => {}
                }
                ahead += 1;
                if open == 0 {
                    break;
                }
            }
        }
        matches!(self.peek_at(ahead).text.as_str(), "=" | ":")
    }

    /// `schedule cpu { ... }` and `schedule fn tiles(stage) { ... }`; the steps stay tokens until stages are known.
    fn schedule(&mut self, out: &mut Vec<Item>, start: Span) -> Parsed<()> {
        let function = self.eat("fn");
        let name = self.plain_name("the name of a schedule")?;
        if !function && name.name == "default" {
            return self.fail(
                Diagnostic::new("E0105", "`default` is the compiler's own schedule")
                    .at(name.span)
                    .hint("choose another name; `cpu` and `cuda` are those of their targets"),
            );
        }
        let params = if function {
            self.expect("(")?;
            self.list(")", &mut |p| p.name("a parameter"))?
        } else {
            Vec::new()
        };
        let mut features = Vec::new();
        if !function && self.eat("for") {
            features.push(self.name("a feature of a machine")?);
            while self.eat(",") {
                features.push(self.name("a feature of a machine")?);
            }
        }
        let open = self.expect("{")?;
        let mut depth = 1;
        let mut body = Vec::new();
        loop {
            let t = self.advance();
            match t.text.as_str() {
                "{" => depth += 1,
                "}" => depth -= 1,
                _ if t.kind == TokenKind::End => {
                    return self.fail(
                        Diagnostic::new("E0107", "this `{` is never closed")
                            .at(open)
                            .hint("add the `}` that closes it"),
                    );
                }
                _ => {}
            }
            if depth == 0 {
                break;
            }
            body.push(t);
        }
        let kind = if function {
            ItemKind::ScheduleFn(name, params, body)
        } else {
            ItemKind::Schedule(name, features, Steps::Tokens(body))
        };
        self.push(out, start, kind);
        Ok(())
    }
}
