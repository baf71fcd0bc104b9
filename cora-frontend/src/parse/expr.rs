//! Expressions, loosest binding first: `or`, `and`, `not`, comparison, `+ -`, `* / %`, unary and
//! reductions (whose body is one `*`-level term), accesses and calls.

use super::{Failed, Parsed, Parser, describe};
use crate::ast::{Expr, ExprKind, MAX_DEPTH, ReduceOp};
use crate::lex::TokenKind;
use crate::names::{KEYWORDS, math_function};
use cora_ir::schedule::Span;
use cora_ir::{BinOp, Diagnostic, ScalarType, UnOp};

impl Parser {
    pub(super) fn expr(&mut self) -> Parsed<Expr> {
        self.nested(Self::or_expr)
    }

    /// Runs `f` one level deeper, or reports that the nesting is too deep.
    pub(super) fn nested<T>(&mut self, f: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.depth >= MAX_DEPTH {
            let span = self.peek().span;
            return self.fail(too_deep(span));
        }
        self.depth += 1;
        let out = f(self);
        self.depth -= 1;
        out
    }

    /// Inside brackets an `else` belongs to the nearest access again.
    fn bracketed<T>(&mut self, f: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        let saved = std::mem::replace(&mut self.no_else, false);
        let out = f(self);
        self.no_else = saved;
        out
    }

    fn make(&mut self, kind: ExprKind, span: Span) -> Parsed<Expr> {
        let e = Expr::new(kind, span);
        if matches!(e.kind(), ExprKind::TooDeep) {
            return self.fail(too_deep(span));
        }
        Ok(e)
    }

    fn bin(&mut self, op: BinOp, a: Expr, b: Expr) -> Parsed<Expr> {
        let span = Span { start: a.span().start.min(b.span().start), end: a.span().end.max(b.span().end) };
        self.make(ExprKind::Bin(op, a, b), span)
    }

    fn or_expr(&mut self) -> Parsed<Expr> {
        let mut a = self.and_expr()?;
        while self.eat("or") {
            let b = self.and_expr()?;
            a = self.bin(BinOp::Or, a, b)?;
        }
        Ok(a)
    }

    fn and_expr(&mut self) -> Parsed<Expr> {
        let mut a = self.not_expr()?;
        while self.eat("and") {
            let b = self.not_expr()?;
            a = self.bin(BinOp::And, a, b)?;
        }
        Ok(a)
    }

    fn not_expr(&mut self) -> Parsed<Expr> {
        if !self.at("not") {
            return self.comparison();
        }
        let start = self.advance().span;
        let a = self.nested(Self::not_expr)?;
        let span = self.span_from(start);
        self.make(ExprKind::Un(UnOp::Not, a), span)
    }

    fn comparison(&mut self) -> Parsed<Expr> {
        let a = self.sum()?;
        let Some((op, swap)) = self.comparison_op() else { return Ok(a) };
        self.advance();
        let b = self.sum()?;
        if self.comparison_op().is_some() {
            let span = self.peek().span;
            return self.fail(
                Diagnostic::new("E0112", "comparisons cannot be chained")
                    .at(span)
                    .hint("write `a < b and b < c`, or use parentheses"),
            );
        }
        if swap { self.bin(op, b, a) } else { self.bin(op, a, b) }
    }

    fn comparison_op(&self) -> Option<(BinOp, bool)> {
        let t = self.peek();
        if t.kind != TokenKind::Punct {
            return None;
        }
        Some(match t.text.as_str() {
            "<" => (BinOp::Lt, false),
            "<=" => (BinOp::Le, false),
            ">" => (BinOp::Lt, true),
            ">=" => (BinOp::Le, true),
            "==" => (BinOp::Eq, false),
            "!=" => (BinOp::Ne, false),
            _ => return None,
        })
    }

    fn sum(&mut self) -> Parsed<Expr> {
        let mut a = self.product()?;
        loop {
            let op = if self.at("+") {
                BinOp::Add
            } else if self.at("-") {
                BinOp::Sub
            } else {
                return Ok(a);
            };
            self.advance();
            let b = self.product()?;
            a = self.bin(op, a, b)?;
        }
    }

    fn product(&mut self) -> Parsed<Expr> {
        let mut a = self.unary()?;
        loop {
            let op = if self.at("*") {
                BinOp::Mul
            } else if self.at("/") {
                BinOp::Div
            } else if self.at("%") {
                BinOp::Mod
            } else {
                return Ok(a);
            };
            self.advance();
            let b = self.unary()?;
            a = self.bin(op, a, b)?;
        }
    }

    fn unary(&mut self) -> Parsed<Expr> {
        if !self.at("-") {
            return self.primary();
        }
        let start = self.advance().span;
        let a = self.nested(Self::unary)?;
        let span = self.span_from(start);
        self.make(ExprKind::Un(UnOp::Neg, a), span)
    }

    fn primary(&mut self) -> Parsed<Expr> {
        let t = self.peek().clone();
        match t.kind {
            TokenKind::Int | TokenKind::Float => self.number(),
            TokenKind::Punct if t.text == "(" => {
                self.advance();
                let e = self.bracketed(Self::expr)?;
                self.expect(")")?;
                Ok(e)
            }
            TokenKind::Name => match t.text.as_str() {
                "true" | "false" => {
                    self.advance();
                    self.make(ExprKind::Bool(t.text == "true"), t.span)
                }
                "inf" | "nan" => {
                    self.advance();
                    let v = if t.text == "inf" { f64::INFINITY } else { f64::NAN };
                    self.make(ExprKind::Float(v), t.span)
                }
                "if" => self.if_expr(),
                _ => self.named(),
            },
            _ => self.unexpected("an expression"),
        }
    }

    fn number(&mut self) -> Parsed<Expr> {
        let t = self.advance();
        let kind = if t.kind == TokenKind::Int {
            t.text.parse::<i128>().ok().filter(|v| *v <= i128::from(u64::MAX)).map(ExprKind::Int)
        } else {
            t.text.parse::<f64>().ok().filter(|v| v.is_finite()).map(ExprKind::Float)
        };
        match kind {
            Some(kind) => self.make(kind, t.span),
            None if t.text.bytes().all(|b| b.is_ascii_digit() || b".eE+-".contains(&b)) => self.fail(
                Diagnostic::new("E0110", format!("the number `{}` is too large", if t.text.len() > 40 { format!("{}...", &t.text[..40]) } else { t.text.clone() }))
                    .at(t.span)
                    .hint(match t.kind {
                        TokenKind::Int => "the greatest integer is 9223372036854775807; floats are written with a point or an exponent, `1e40`",
                        _ => "the greatest number is about 1.79e308, of f64; `inf` is infinity",
                    }),
            ),
            None => Err(Failed), // the lexer has reported it
        }
    }

    fn if_expr(&mut self) -> Parsed<Expr> {
        let start = self.expect("if")?;
        let c = self.bracketed(Self::expr)?;
        self.expect("then")?;
        let saved = std::mem::replace(&mut self.no_else, true);
        let a = self.expr();
        self.no_else = saved;
        let a = a?;
        self.expect("else")?;
        let b = self.expr()?;
        let span = self.span_from(start);
        self.make(ExprKind::If(c, a, b), span)
    }

    /// Something that starts with a name: a variable, an access, a call or a reduction.
    fn named(&mut self) -> Parsed<Expr> {
        let id = self.name("an expression")?;
        let base = self.make(ExprKind::Name(id.name.clone()), id.span)?;
        // A bracket that starts a line starts something new: a function's result after its locals.
        if self.at("[") && !self.peek().first {
            return self.access(base, id.span);
        }
        if !self.at("(") || self.peek().first {
            return Ok(base);
        }
        self.advance();
        let args = self.bracketed(|p| p.list(")", &mut Self::expr))?;
        if let Some(op) = ReduceOp::from_name(&id.name)
            && self.is_reduction(op, &args)
        {
            return self.reduction(op, args, id.span);
        }
        self.call(base, &id.name, args, id.span)
    }

    /// `max(a, b)` is a function and `max(i, j) x` a reduction: the body stands on the same line.
    fn is_reduction(&self, op: ReduceOp, args: &[Expr]) -> bool {
        let two_sided = matches!(op.name(), "min" | "max");
        if !two_sided || args.len() < 2 {
            return true;
        }
        let t = self.peek();
        let starts = match t.kind {
            TokenKind::Int | TokenKind::Float => true,
            TokenKind::Name => !KEYWORDS.contains(&t.text.as_str()) || ["if", "not"].contains(&t.text.as_str()),
            TokenKind::Punct => t.text == "(",
            TokenKind::End => false,
        };
        starts && !t.first && args.iter().all(|a| matches!(a.kind(), ExprKind::Name(_)))
    }

    fn reduction(&mut self, op: ReduceOp, dims: Vec<Expr>, start: Span) -> Parsed<Expr> {
        let head = self.span_from(start);
        if dims.is_empty() {
            return self.fail(
                Diagnostic::new("E0108", format!("`{}` has no dimension to reduce over", op.name()))
                    .at(head)
                    .hint(format!("write `{}(k) x`", op.name())),
            );
        }
        if self.defines() {
            return self.unexpected("what is reduced");
        }
        if let Some(bad) = dims.iter().find(|d| !matches!(d.kind(), ExprKind::Name(_))) {
            return self.fail(
                Diagnostic::new("E0111", format!("`{}` reduces over dimensions, given by name", op.name()))
                    .at(bad.span())
                    .hint(format!("`{}(k) x` reduces x over dimension k; put the term after the list", op.name())),
            );
        }
        let body = self.nested(Self::product)?;
        let span = self.span_from(start);
        self.make(ExprKind::Reduce(op, dims, body), span)
    }

    fn call(&mut self, base: Expr, name: &str, mut args: Vec<Expr>, start: Span) -> Parsed<Expr> {
        let span = self.span_from(start);
        let kind = if let Some(ty) = ScalarType::from_name(name) {
            self.arity(name, &args, 1, span)?;
            ExprKind::Cast(ty, args.remove(0))
        } else if let Some(op) = math_function(name) {
            self.arity(name, &args, 1, span)?;
            ExprKind::Un(op, args.remove(0))
        } else if let "min" | "max" = name {
            let op = if name == "min" { BinOp::Min } else { BinOp::Max };
            self.arity(name, &args[..args.len().min(2)], 2, span)?;
            let last = args.remove(args.len() - 1);
            let mut all = args.remove(0);
            for x in args {
                all = self.make(ExprKind::Bin(op, all, x), span)?;
            }
            ExprKind::Bin(op, all, last)
        } else if let "pow" | "floordiv" = name {
            self.arity(name, &args, 2, span)?;
            let op = if name == "pow" { BinOp::Pow } else { BinOp::FloorDiv };
            let b = args.remove(1);
            ExprKind::Bin(op, args.remove(0), b)
        } else if name == "select" {
            self.arity(name, &args, 3, span)?;
            let b = args.remove(2);
            let a = args.remove(1);
            ExprKind::If(args.remove(0), a, b)
        } else if self.at("(") && !self.peek().first {
            self.advance();
            let values = self.bracketed(|p| p.list(")", &mut Self::expr))?;
            let span = self.span_from(start);
            return self.make(ExprKind::Call { base, dims: Some(args), args: values }, span);
        } else {
            ExprKind::Call { base, dims: None, args }
        };
        self.make(kind, span)
    }

    fn arity(&mut self, name: &str, args: &[Expr], want: usize, span: Span) -> Parsed<()> {
        if args.len() == want {
            return Ok(());
        }
        let s = if want == 1 { "" } else { "s" };
        self.fail(
            Diagnostic::new("E0104", format!("`{name}` takes {want} argument{s}, {} given", args.len()))
                .at(span)
                .hint("give it as many arguments as it takes"),
        )
    }

    fn access(&mut self, base: Expr, start: Span) -> Parsed<Expr> {
        self.expect("[")?;
        let index = self.bracketed(|p| p.list("]", &mut Self::expr))?;
        let mut guard = None;
        if self.at("when") {
            self.advance();
            let saved = std::mem::replace(&mut self.no_else, true);
            let cond = self.expr();
            self.no_else = saved;
            let cond = cond?;
            self.expect("else")?;
            guard = Some((Some(cond), self.other()?));
        } else if !self.no_else && self.eat("else") {
            guard = Some((None, self.other()?));
        }
        if self.at("[") && !self.peek().first {
            let found = describe(self.peek());
            let span = self.peek().span;
            return self.fail(
                Diagnostic::new("E0103", format!("expected an operator, found {found}"))
                    .at(span)
                    .hint("all positions of an access go into one pair of brackets"),
            );
        }
        let span = self.span_from(start);
        self.make(ExprKind::Access { base, index, guard }, span)
    }

    /// The operand of an access's `else`.
    fn other(&mut self) -> Parsed<Expr> {
        let start = self.peek().span;
        let parentheses = self.at("(");
        let other = self.nested(Self::unary)?;
        let plain = matches!(other.kind(), ExprKind::Int(_) | ExprKind::Float(_)) || is_minus_infinity(&other);
        if !parentheses && !plain && ["+", "-", "*", "/", "%"].iter().any(|op| self.at(op)) {
            let next = self.peek().text.clone();
            let d = Diagnostic::new("W0204", format!("this `else` ends before `{next}`")).at(self.span_from(start));
            self.doubtful.push(
                d.hint(format!("it takes one operand: write `(T[..] else x) {next} y`, or `T[..] else (x {next} y)`")),
            );
        }
        Ok(other)
    }
}

fn is_minus_infinity(e: &Expr) -> bool {
    matches!(e.kind(), ExprKind::Un(UnOp::Neg, x) if matches!(x.kind(), ExprKind::Float(v) if v.is_infinite()))
}

fn too_deep(span: Span) -> Diagnostic {
    Diagnostic::new("E0113", format!("expression nested deeper than {MAX_DEPTH} levels"))
        .at(span)
        .hint("define a part of it as an operator of its own")
}
