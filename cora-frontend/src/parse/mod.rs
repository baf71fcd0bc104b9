//! The parser: tokens to syntax tree, recovering at item boundaries so that several mistakes are
//! reported in one go. Recursive descent with a depth limit.

mod expr;
mod item;
pub(crate) mod schedule;

use crate::ast::{Ident, Program, ReduceOp};
use crate::lex::{Token, TokenKind, lex};
use crate::names::{KEYWORDS, instead_of_reserved, is_item_keyword, is_reserved, math_function, written_as};
use cora_ir::schedule::Span;
use cora_ir::{Diagnostic, ScalarType};

/// A construct could not be parsed; its diagnostic has been recorded.
pub(crate) struct Failed;

pub(crate) type Parsed<T> = Result<T, Failed>;

/// More errors than this are not worth printing.
pub(crate) const MAX_ERRORS: usize = 50;

pub(crate) struct Parser {
    tokens: Vec<Token>,
    pos: usize,
    pub(crate) diags: Vec<Diagnostic>,
    doubtful: Vec<Diagnostic>,
    depth: u32,
    /// Inside `then`, where `else` belongs to the `if` and not to an access.
    no_else: bool,
}

/// The syntax tree of `text` and what is wrong with it; items that cannot be parsed are left out.
pub fn parse_ast(text: &str) -> (Program, Vec<Diagnostic>) {
    let (tokens, diags) = lex(text);
    let mut parser = Parser::new(tokens);
    // What follows from a character that is none of the language says nothing new about its line.
    let unreadable: Vec<usize> = diags.iter().filter_map(|d| Some(line_of(text, d.span?.start))).collect();
    let mut program = parser.program();
    program.doubtful = parser.doubtful;
    let new = parser.diags.into_iter();
    let new = new.filter(|d| d.span.is_none_or(|s| !unreadable.contains(&line_of(text, s.start))));
    (program, diags.into_iter().chain(new).collect())
}

fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at.min(text.len())].iter().filter(|&&b| b == b'\n').count()
}

impl Parser {
    pub(crate) fn new(tokens: Vec<Token>) -> Self {
        Self { tokens, pos: 0, diags: Vec::new(), doubtful: Vec::new(), depth: 0, no_else: false }
    }

    fn program(&mut self) -> Program {
        let mut program = Program::default();
        while !self.at_end() && self.diags.len() < MAX_ERRORS {
            if self.eat(";") {
                continue;
            }
            let start = self.pos;
            let done = self.items(&mut program.items).and_then(|()| self.end_of_statement());
            if done.is_err() {
                self.recover(start, &mut program.broken);
            }
        }
        program
    }

    fn end_of_statement(&mut self) -> Parsed<()> {
        let t = self.peek();
        if t.first || t.text == ";" || t.kind == TokenKind::End {
            return Ok(());
        }
        let (span, found) = (t.span, describe(t));
        let hint = self.hint_for_more();
        let d = Diagnostic::new("E0106", format!("expected the end of the statement, found {found}"));
        self.fail(d.at(span).hint(hint))
    }

    /// What to write where something follows an expression that has ended.
    fn hint_for_more(&self) -> String {
        let (t, last) = (self.peek(), self.pos.checked_sub(1).map(|at| &self.tokens[at]));
        if t.text == "if" {
            return "a choice is written `if condition then x else y`".to_owned();
        }
        if t.text == "|" {
            return "of conditions write `or`; bits that no two integers share add up: `x + y`".to_owned();
        }
        match last.map(|t| t.text.as_str()) {
            Some(")") if t.kind == TokenKind::Name => {
                let inside = self.pos.checked_sub(3).filter(|&at| self.tokens[at].text == "(").map(|at| at + 1);
                let ty = inside.map(|at| self.tokens[at].text.as_str()).filter(|w| ScalarType::from_name(w).is_some());
                match (self.before_brackets(), self.before_brackets().and_then(written_as), ty) {
                    (_, Some(other), _) => format!("write `{other}`"),
                    (None, None, Some(ty)) => format!("a conversion is written `{ty}(x)`"),
                    _ => "only `sum prod max min argmax argmin` reduce what follows; of a function it stands in parentheses, `f(i)(x)`"
                        .to_owned(),
                }
            }
            Some("]") if self.before_brackets().is_some_and(|f| ReduceOp::from_name(f).is_some()) => {
                let f = self.before_brackets().unwrap_or_default();
                format!("dimensions that are reduced stand in parentheses: `{f}(i) x`")
            }
            Some(f) if math_function(f).is_some() || written_as(f).is_some() => {
                format!("what a function is of stands in parentheses: `{f}(..)`")
            }
            _ => "an operator may be missing before it; two statements on one line need `;` between them".to_owned(),
        }
    }

    /// The name before the parentheses or brackets that end here.
    fn before_brackets(&self) -> Option<&str> {
        let mut open = 0;
        for (n, t) in self.tokens[..self.pos].iter().enumerate().rev() {
            match t.text.as_str() {
                ")" | "]" => open += 1,
                "(" | "[" => open -= 1,
                _ => {}
            }
            if open == 0 {
                let before = n.checked_sub(1).map(|before| &self.tokens[before])?;
                return (before.kind == TokenKind::Name).then_some(before.text.as_str());
            }
        }
        None
    }

    /// Skips to the next thing that looks like an item and notes the names that were skipped.
    fn recover(&mut self, start: usize, broken: &mut Vec<String>) {
        let mut braces = 0_usize;
        for t in &self.tokens[start..self.pos.min(self.tokens.len())] {
            match t.text.as_str() {
                "{" => braces += 1,
                "}" => braces = braces.saturating_sub(1),
                _ => {}
            }
        }
        if self.pos == start {
            self.advance();
        }
        while !self.at_end() {
            let t = self.peek();
            let item = t.kind == TokenKind::Name && (is_item_keyword(&t.text) || (braces == 0 && self.looks_like_op()));
            if t.first && item {
                break;
            }
            match t.text.as_str() {
                "{" => braces += 1,
                "}" => braces = braces.saturating_sub(1),
                _ => {}
            }
            self.advance();
        }
        for w in self.tokens[start..self.pos].windows(2) {
            if w[0].kind == TokenKind::Name && !KEYWORDS.contains(&w[0].text.as_str()) {
                broken.push(w[0].text.clone());
            }
        }
    }

    fn looks_like_op(&self) -> bool {
        matches!(self.peek_at(1).text.as_str(), "[" | "=" | ":")
    }

    /// Whether a line begins here that defines an operator: `T[..] =`.
    fn defines(&self) -> bool {
        if !self.peek().first || self.peek().kind != TokenKind::Name {
            return false;
        }
        let (mut depth, mut ahead) = (0, 1);
        loop {
            match self.peek_at(ahead).text.as_str() {
                "[" => depth += 1,
                "]" => depth -= 1,
                "=" => return depth == 0,
                "" => return false,
                _ if depth == 0 => return false,
                _ => {}
            }
            ahead += 1;
        }
    }

    fn peek(&self) -> &Token {
        self.peek_at(0)
    }

    fn peek_at(&self, ahead: usize) -> &Token {
        &self.tokens[(self.pos + ahead).min(self.tokens.len() - 1)]
    }

    fn at_end(&self) -> bool {
        self.peek().kind == TokenKind::End
    }

    fn advance(&mut self) -> Token {
        let t = self.peek().clone();
        self.pos = (self.pos + 1).min(self.tokens.len());
        t
    }

    fn at(&self, text: &str) -> bool {
        let t = self.peek();
        t.text == text && matches!(t.kind, TokenKind::Punct | TokenKind::Name)
    }

    fn eat(&mut self, text: &str) -> bool {
        let found = self.at(text);
        if found {
            self.advance();
        }
        found
    }

    fn expect(&mut self, text: &str) -> Parsed<Span> {
        if self.at(text) { Ok(self.advance().span) } else { self.unexpected(&format!("`{text}`")) }
    }

    fn prev_end(&self) -> usize {
        if self.pos == 0 { 0 } else { self.tokens[self.pos - 1].span.end }
    }

    fn span_from(&self, start: Span) -> Span {
        Span { start: start.start, end: self.prev_end().max(start.end) }
    }

    fn fail<T>(&mut self, d: Diagnostic) -> Parsed<T> {
        self.diags.push(d);
        Err(Failed)
    }

    fn unexpected<T>(&mut self, wanted: &str) -> Parsed<T> {
        if let Some(d) = self.ended_early(wanted) {
            return self.fail(d);
        }
        let t = self.peek();
        let (span, found) = (t.span, describe(t));
        let code = if t.kind == TokenKind::End { "E0107" } else { "E0103" };
        let hint = match t.kind {
            TokenKind::End if !t.text.is_empty() => format!("{} ends too early: add {wanted}", t.text),
            TokenKind::End => format!("the text ends too early: add {wanted}"),
            _ if self.diags.is_empty() => {
                format!("put {wanted} here, or take {found} away; docs/language.md has the grammar")
            }
            _ => format!("put {wanted} here, or take {found} away"),
        };
        let hint = self.other_form(wanted).map_or(hint, str::to_owned);
        self.fail(Diagnostic::new(code, format!("expected {wanted}, found {found}")).at(span).hint(hint))
    }

    /// What to write instead of a form of other languages.
    fn other_form(&self, wanted: &str) -> Option<&'static str> {
        let last = self.pos.checked_sub(1).map_or("", |at| self.tokens[at].text.as_str());
        Some(match (last, self.peek().text.as_str(), wanted) {
            ("*", "*", _) => "a power is `pow(x, y)`",
            (_, ".", "an expression") => "a number begins with a digit: `0.5`",
            (_, "+" | "-" | "*" | "/", "`=`") => {
                "an operator is defined once, `T[i] = ..`: to add to what was there reduce, `sum(k) x`, or define another one"
            }
            ("<", "<", "an expression") => "bits move up by a product: `x * 4` for two of them",
            (">", ">", "an expression") => {
                "bits move down by a quotient, which is rounded down: `x / 4` for two of them"
            }
            (_, "if", _) => "a choice is written `if condition then x else y`",
            (_, "[", "`,` or `]`") => {
                "a tensor has dimensions, not positions that are read: `H[v] = sum(i) (if index(ids[i]) == v then x[i] else 0)` collects by those"
            }
            (_, "<" | "<=", "`,` or `]`") => {
                "of a tensor a dimension of that length is declared: `dim k = i + 1` for positions before and at each `i`"
            }
            (_, ":", "`[`") => "a scalar has no dimensions: `input x[] : f32`",
            (_, "elif", _) => "write `else if`",
            (":", "=", "an element type") => "an operator is defined with `=` alone: `T[i] = ..`",
            (_, "[" | "(", "`in`") => "a size for each position of a dimension is an `extent lens(b) in 0..=64`",
            _ => return None,
        })
    }

    /// What follows is another statement: the mistake is at the end of the line before.
    fn ended_early(&self, wanted: &str) -> Option<Diagnostic> {
        let t = self.peek();
        let next = t.kind == TokenKind::Name && t.first && (is_item_keyword(&t.text) || self.looks_like_op());
        let last = self.pos.checked_sub(1).filter(|_| next).map(|at| &self.tokens[at])?;
        let d = Diagnostic::new("E0103", format!("expected {wanted} after {}", describe(last))).at(last.span);
        let reduced = last.text == ")" && self.before_brackets().is_some_and(|f| ReduceOp::from_name(f).is_some());
        Some(d.hint(match self.before_brackets().filter(|_| reduced) {
            Some(f) => format!("what is reduced follows the dimensions: `{f}(i) x`"),
            None => format!("put {wanted} there; the statement ends with its line"),
        }))
    }

    /// Any name that is not a keyword.
    fn name(&mut self, what: &str) -> Parsed<Ident> {
        let t = self.peek().clone();
        if t.kind != TokenKind::Name {
            return self.unexpected(what);
        }
        if KEYWORDS.contains(&t.text.as_str()) {
            if let Some(d) = self.ended_early(what) {
                return self.fail(d);
            }
            return self.fail(
                Diagnostic::new("E0103", format!("expected {what}, found the keyword `{}`", t.text))
                    .at(t.span)
                    .hint(format!("put {what} before it; a keyword cannot be a name")),
            );
        }
        self.advance();
        Ok(Ident { name: t.text, span: t.span })
    }

    /// A name that is being declared: not one that means something already.
    fn new_name(&mut self, what: &str) -> Parsed<Ident> {
        let t = self.peek().clone();
        if t.kind == TokenKind::Name && is_reserved(&t.text) {
            self.advance();
            return self.fail(
                Diagnostic::new("E0105", format!("`{}` is a reserved name and cannot be the name of {what}", t.text))
                    .at(t.span)
                    .hint(instead_of_reserved(&t.text, what.trim_start_matches("an ").trim_start_matches("a "))),
            );
        }
        self.name(what)
    }

    /// A name without dots that is being declared: everything but a tensor.
    fn plain_name(&mut self, what: &str) -> Parsed<Ident> {
        let id = self.new_name(what)?;
        if id.name.contains('.') {
            return self.fail(
                Diagnostic::new("E0109", format!("the name `{}` of {what} contains a dot", id.name))
                    .at(id.span)
                    .hint("only tensors may have dots in their names"),
            );
        }
        Ok(id)
    }

    /// `one (, one)*` up to `close`, which is consumed; a trailing comma is fine.
    fn list<T>(&mut self, close: &str, one: &mut dyn FnMut(&mut Self) -> Parsed<T>) -> Parsed<Vec<T>> {
        let mut out = Vec::new();
        while !self.eat(close) {
            out.push(one(self)?);
            if !self.at(close) && !self.eat(",") {
                return self.unexpected(&format!("`,` or `{close}`"));
            }
        }
        Ok(out)
    }
}

pub(crate) fn describe(t: &Token) -> String {
    match t.kind {
        // A schedule's steps are parsed as a text of their own.
        TokenKind::End if t.text.is_empty() => "the end of the text".to_owned(),
        TokenKind::End => format!("the end of {}", t.text),
        _ => format!("`{}`", t.text),
    }
}
