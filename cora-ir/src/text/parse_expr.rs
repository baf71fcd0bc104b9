//! Parser of expressions: precedence climbing, the inverse of the printer.

use super::lex::{Name, Tok};
use super::names::{combiner, is_reserved};
use super::parse::{Parse, Parser, display, out_of_range, unknown};
use super::print_expr::{infix_level, level};
use crate::diag::Diagnostic;
use crate::expr::Expr;
use crate::ids::ExprId;
use crate::schedule::Span;
use crate::types::{BinOp, Literal, MAX_LANES, ScalarType, UnOp};

impl Parser {
    /// A whole expression.
    pub(super) fn expr(&mut self) -> Parse<ExprId> {
        self.infix(0)
    }

    /// Expressions up to the punctuation `close`.
    pub(super) fn exprs(&mut self, close: &str) -> Parse<Vec<ExprId>> {
        self.list(close, &mut |p| p.expr())
    }

    /// Operators of at least level `min`.
    fn infix(&mut self, min: u8) -> Parse<ExprId> {
        let start = self.span();
        let mut lhs = if self.is_word("not") { self.not(min)? } else { self.prefix()? };
        while let Some(op) = self.infix_op() {
            let own = infix_level(op).unwrap_or(0);
            if own < min {
                break;
            }
            self.next();
            let rhs = self.infix(own + 1)?;
            lhs = self.env.pool.bin(op, lhs, rhs);
            lhs = self.bounded(lhs, self.since(start))?;
            if op.is_comparison() && self.infix_op().is_some_and(BinOp::is_comparison) {
                let error = Diagnostic::new("E0502", "comparisons do not chain").at(self.span());
                return Err(error.hint("put one of the two in parentheses"));
            }
        }
        Ok(lhs)
    }

    fn infix_op(&self) -> Option<BinOp> {
        let symbol = match self.peek() {
            Tok::Punct(p) => *p,
            Tok::Word(n) if n.suffix.is_none() => n.base.as_str(),
            _ => return None,
        };
        BinOp::ALL.into_iter().find(|o| infix_level(*o).is_some() && o.symbol() == symbol)
    }

    fn not(&mut self, min: u8) -> Parse<ExprId> {
        if min > level::NOT {
            return Err(self.expected("an operand").hint("put `not ...` in parentheses"));
        }
        let start = self.span();
        self.next();
        let a = self.nested(&mut |p| p.infix(level::NOT))?;
        self.unary(UnOp::Not, a, start)
    }

    fn unary(&mut self, op: UnOp, a: ExprId, start: Span) -> Parse<ExprId> {
        let e = self.env.pool.un(op, a);
        self.bounded(e, self.since(start))
    }

    fn prefix(&mut self) -> Parse<ExprId> {
        let start = self.span();
        if !self.is_punct("-") {
            return self.primary();
        }
        let number = matches!(self.peek2(), Tok::Int(_) | Tok::Float(_));
        let infinity = matches!(self.peek2(), Tok::Word(n) if n.base == "inf");
        self.next();
        if number || infinity {
            return self.number("-", start);
        }
        let a = self.nested(&mut |p| p.prefix())?;
        self.unary(UnOp::Neg, a, start)
    }

    fn primary(&mut self) -> Parse<ExprId> {
        let span = self.span();
        match self.peek().clone() {
            Tok::Int(_) | Tok::Float(_) => self.number("", span),
            Tok::Var(name, free) => {
                self.next();
                let v = self.var_ref(name, free, span)?;
                let e = self.env.pool.var(v);
                self.bounded(e, span)
            }
            Tok::Arg(n) => {
                self.next();
                let e = match self.literal_type()? {
                    Some(ty) => self.env.pool.operand(n, ty),
                    None => self.env.pool.arg(n),
                };
                self.bounded(e, span)
            }
            Tok::At(_) => self.call_or_load(span),
            Tok::Punct("(") => self.nested(&mut |p| p.parenthesized(span)),
            Tok::Quoted(name) => self.param(&name, span),
            Tok::Word(name) if name.suffix.is_some() || !is_reserved(&name.base) => self.param(&name, span),
            Tok::Word(name) => self.keyword(&name.base, span),
            _ => Err(self.expected("an expression")),
        }
    }

    fn param(&mut self, name: &Name, span: Span) -> Parse<ExprId> {
        let p = *self.params.get(name).ok_or_else(|| unknown("parameter", &display(name), span))?;
        self.next();
        let e = self.env.pool.param(p);
        self.bounded(e, span)
    }

    /// `(e)`, or a guarded load `(@A[i] if c else o)`.
    fn parenthesized(&mut self, start: Span) -> Parse<ExprId> {
        self.punct("(")?;
        let inner = self.span();
        if self.eat_punct(")") {
            return Err(Diagnostic::new("E0502", "a tuple has components").at(self.since(start)));
        }
        let e = self.expr()?;
        let loaded = self.since(inner);
        if self.eat_punct(",") {
            let mut values = vec![e];
            if !self.is_punct(")") {
                values.extend(self.exprs(")")?);
            } else {
                self.punct(")")?;
            }
            let e = self.env.pool.make_tuple(&values);
            return self.bounded(e, self.since(start));
        }
        if !self.eat_word("if") {
            self.punct(")")?;
            return Ok(e);
        }
        let cond = self.expr()?;
        self.word("else")?;
        let other = self.expr()?;
        self.punct(")")?;
        let Expr::Load { tensor, part, index, guard: None } = self.env.pool.get(e).clone() else {
            return Err(Diagnostic::new("E0508", "only a load has a guard").at(loaded).hint("use `select(c, a, b)`"));
        };
        let ty = self.env.pool.ty(e).scalar;
        let e = self.env.pool.load_guarded((tensor, part), ty, index, Some((cond, other)));
        self.bounded(e, self.since(start))
    }

    fn call_or_load(&mut self, start: Span) -> Parse<ExprId> {
        let e = match self.peek2() {
            Tok::Punct("(") => {
                let f = self.uf_ref()?;
                self.next();
                let args = self.nested(&mut |p| p.exprs(")"))?;
                self.env.pool.call(f, args)
            }
            _ => self.load(0)?,
        };
        self.bounded(e, self.since(start))
    }

    /// Component `part` of an element.
    fn load(&mut self, part: u32) -> Parse<ExprId> {
        let tensor = self.tensor_ref()?;
        let start = self.span();
        self.punct("[")?;
        let index = self.nested(&mut |p| p.exprs("]"))?;
        let ty = self.env.part_types(tensor).get(part as usize).copied();
        let ty = ty.ok_or_else(|| out_of_range("the tensor's components", self.since(start)))?;
        Ok(self.env.pool.load_guarded((tensor, part), ty, index, None))
    }

    /// A constant, or a function that is part of the language.
    fn keyword(&mut self, word: &str, start: Span) -> Parse<ExprId> {
        match word {
            "inf" | "nan" => return self.number("", start),
            "true" | "false" => {
                self.next();
                let e = self.env.pool.bool(word == "true");
                return self.bounded(e, start);
            }
            "if" | "else" | "and" | "or" => return Err(self.expected("an expression")),
            _ => self.next(),
        };
        let e = self.nested(&mut |p| p.builtin(word))?;
        self.bounded(e, self.since(start))
    }

    fn builtin(&mut self, word: &str) -> Parse<ExprId> {
        if word == "search" {
            return self.search();
        }
        if word == "part" {
            let span = self.span();
            let part = self.signed()?;
            self.word("of")?;
            let part = u32::try_from(part).map_err(|_| out_of_range("the tensor's components", span))?;
            return self.load(part);
        }
        self.punct("(")?;
        if word == "select" {
            let [c, a, b] = self.args()?;
            return Ok(self.env.pool.select(c, a, b));
        }
        if word == "ramp" {
            let base = self.expr()?;
            self.punct(",")?;
            let stride = self.signed()?;
            self.punct(",")?;
            let lanes = self.count(MAX_LANES)?;
            self.punct(")")?;
            return Ok(self.env.pool.ramp(base, stride, lanes));
        }
        if word == "splat" {
            let a = self.expr()?;
            self.punct(",")?;
            let lanes = self.count(MAX_LANES)?;
            self.punct(")")?;
            return Ok(self.env.pool.splat(a, lanes));
        }
        if let Some(op) = BinOp::ALL.into_iter().find(|o| infix_level(*o).is_none() && o.symbol() == word) {
            let [a, b] = self.args()?;
            return Ok(self.env.pool.bin(op, a, b));
        }
        if let Some(c) = word.strip_prefix("reduce_").and_then(combiner) {
            let [a] = self.args()?;
            return Ok(self.env.pool.reduce(c, a));
        }
        if let Some(ty) = ScalarType::from_name(word) {
            let [a] = self.args()?;
            return Ok(self.env.pool.cast(ty, a));
        }
        match UnOp::ALL.into_iter().find(|o| o.name() == word) {
            Some(op) => {
                let [a] = self.args()?;
                Ok(self.env.pool.un(op, a))
            }
            None => Err(self.expected("an expression")),
        }
    }

    fn search(&mut self) -> Parse<ExprId> {
        let table = self.tensor_ref()?;
        self.punct("[")?;
        let start = self.span();
        let operands = self.exprs("]")?;
        let &[base, len, value] = operands.as_slice() else {
            return Err(self.wrong_count(3, operands.len(), start));
        };
        Ok(self.env.pool.search(table, base, len, value))
    }

    /// `N` operands and the `)`.
    fn args<const N: usize>(&mut self) -> Parse<[ExprId; N]> {
        let start = self.span();
        let args = self.exprs(")")?;
        let found = args.len();
        args.try_into().map_err(|_| self.wrong_count(N, found, start))
    }

    fn wrong_count(&self, wanted: usize, found: usize, start: Span) -> Diagnostic {
        Diagnostic::new("E0502", format!("expected {wanted} operands, found {found}")).at(self.since(start))
    }

    /// A number after its sign: `3`, `3:i32`, `1.5:f32`, `inf:f32`, `nan(0x...):f64`.
    fn number(&mut self, sign: &str, start: Span) -> Parse<ExprId> {
        let tok = self.next();
        let mut bits = None;
        if matches!(&tok, Tok::Word(n) if n.base == "nan") && self.eat_punct("(") {
            let Tok::Hex(b) = *self.peek() else { return Err(self.expected("the bits of a NaN (`0x...`)")) };
            self.next();
            self.punct(")")?;
            bits = Some(b);
        }
        let ty = self.literal_type()?;
        let text = match &tok {
            Tok::Int(s) | Tok::Float(s) => format!("{sign}{s}"),
            Tok::Word(n) => format!("{sign}{}", n.base),
            _ => String::new(),
        };
        let malformed = |p: &Self, what: &str| {
            Diagnostic::new("E0501", format!("{what}: `{text}`"))
                .at(p.since(start))
                .hint("write `3`, `3:i32` or `1.5:f32`")
        };
        let integer = matches!(tok, Tok::Int(_));
        let e = match ty {
            None if integer => {
                let value = text.parse().map_err(|_| out_of_range("64 bits", self.since(start)))?;
                self.env.pool.int(value)
            }
            None => return Err(malformed(self, "a number with a point needs a type")),
            Some(ty) if ty.is_float() => {
                let value = match (bits.map(f64::from_bits), ty) {
                    (Some(v), _) => Some(v).filter(|v| v.is_nan()),
                    (None, ScalarType::F64) => text.parse().ok(),
                    (None, _) => text.parse::<f32>().ok().map(f64::from),
                };
                let value = value.ok_or_else(|| malformed(self, "not a number of this type"))?;
                self.env.pool.lit(Literal::float(ty, value))
            }
            Some(ty) if integer => {
                let value = text.parse().map_err(|_| out_of_range("64 bits", self.since(start)))?;
                self.env.pool.lit(Literal::int(ty, value))
            }
            Some(_) => return Err(malformed(self, "not a number of this type")),
        };
        self.bounded(e, self.since(start))
    }

    /// `:f32`, if it is there.
    fn literal_type(&mut self) -> Parse<Option<ScalarType>> {
        if !self.eat_punct(":") {
            return Ok(None);
        }
        let table = ScalarType::ELEMENTS.map(|t| (t.name(), Some(t)));
        if self.eat_word("index") {
            return Ok(Some(ScalarType::Index));
        }
        self.choice("a type", &table)
    }
}
