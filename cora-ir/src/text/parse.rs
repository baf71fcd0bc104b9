//! The parser's state: tokens, names in scope, limits.

use super::Stage;
use super::lex::{Name, Tok, Token, lex};
use crate::diag::Diagnostic;
use crate::env::Env;
use crate::ids::{CombinerId, EntityId, ExprId, ParamId, TensorId, UfId, VarId};
use crate::schedule::Span;
use rustc_hash::FxHashMap;

/// Result of parsing one thing.
pub(super) type Parse<T> = Result<T, Diagnostic>;

/// Deepest nesting of brackets and statements, and greatest height of an expression.
pub(super) const MAX_DEPTH: u32 = 256;

/// A recursive-descent parser over one module's text.
pub(super) struct Parser {
    tokens: Vec<Token>,
    pos: usize,
    depth: u32,
    /// What was declared so far.
    pub env: Env,
    pub params: FxHashMap<Name, ParamId>,
    pub ufs: FxHashMap<Name, UfId>,
    pub tensors: FxHashMap<Name, TensorId>,
    pub combiners: FxHashMap<Name, CombinerId>,
    /// Variables bound around the current place, innermost last.
    scope: Vec<(Name, VarId)>,
    /// Variables that declarations mention: they stand for the binder of that name, wherever it is.
    header: FxHashMap<Name, VarId>,
    /// Variables that nothing binds, `%?x`.
    free: FxHashMap<Name, VarId>,
    /// Whether declarations are being read.
    pub in_header: bool,
    /// Height of each expression of the pool.
    heights: Vec<u32>,
}

impl Parser {
    /// A parser at the beginning of `src`.
    pub(super) fn new(src: &str) -> Parse<Self> {
        Ok(Self {
            tokens: lex(src)?,
            pos: 0,
            depth: 0,
            env: Env::default(),
            params: FxHashMap::default(),
            ufs: FxHashMap::default(),
            tensors: FxHashMap::default(),
            combiners: FxHashMap::default(),
            scope: Vec::new(),
            header: FxHashMap::default(),
            free: FxHashMap::default(),
            in_header: false,
            heights: Vec::new(),
        })
    }

    /// Reads up to the `{` of a module of that stage; gives its name.
    pub(super) fn module(src: &str, stage: Stage) -> Parse<(Self, String)> {
        let mut p = Self::new(src)?;
        let found = Stage::ALL.into_iter().find(|s| p.is_word(s.keyword()));
        match found {
            Some(s) if s != stage => {
                let message = format!("this is a `{}`, not a `{}`", s.keyword(), stage.keyword());
                return Err(Diagnostic::new("E0507", message).at(p.span()));
            }
            Some(_) => p.pos += 1,
            None => return Err(p.expected(&format!("`{}`", stage.keyword()))),
        }
        let name = p.at_name("the module's name")?.0;
        p.punct("{")?;
        Ok((p, display(&name)))
    }

    /// Checks that nothing follows the module.
    pub(super) fn end(&self) -> Parse<()> {
        if *self.peek() == Tok::End { Ok(()) } else { Err(self.expected("the end of the text")) }
    }

    /// The current token.
    pub(super) fn peek(&self) -> &Tok {
        &self.tokens[self.pos].tok
    }

    /// The token after the current one.
    pub(super) fn peek2(&self) -> &Tok {
        let last = self.tokens.len() - 1;
        &self.tokens[(self.pos + 1).min(last)].tok
    }

    /// Where the current token stands.
    pub(super) fn span(&self) -> Span {
        self.tokens[self.pos].span
    }

    /// From `start` to the end of the token before the current one.
    pub(super) fn since(&self, start: Span) -> Span {
        let end = if self.pos == 0 { start.end } else { self.tokens[self.pos - 1].span.end };
        Span { start: start.start, end: end.max(start.start) }
    }

    /// Goes past the current token and gives it.
    pub(super) fn next(&mut self) -> Tok {
        let tok = self.peek().clone();
        if tok != Tok::End {
            self.pos += 1;
        }
        tok
    }

    /// `E0502` at the current token.
    pub(super) fn expected(&self, what: &str) -> Diagnostic {
        Diagnostic::new("E0502", format!("expected {what}, found {}", self.peek().describe())).at(self.span())
    }

    pub(super) fn is_punct(&self, p: &str) -> bool {
        matches!(self.peek(), Tok::Punct(q) if *q == p)
    }

    pub(super) fn eat_punct(&mut self, p: &str) -> bool {
        let hit = self.is_punct(p);
        self.pos += usize::from(hit);
        hit
    }

    pub(super) fn punct(&mut self, p: &str) -> Parse<()> {
        if self.eat_punct(p) { Ok(()) } else { Err(self.expected(&format!("`{p}`"))) }
    }

    pub(super) fn is_word(&self, w: &str) -> bool {
        matches!(self.peek(), Tok::Word(n) if n.suffix.is_none() && n.base == w)
    }

    pub(super) fn eat_word(&mut self, w: &str) -> bool {
        let hit = self.is_word(w);
        self.pos += usize::from(hit);
        hit
    }

    pub(super) fn word(&mut self, w: &str) -> Parse<()> {
        if self.eat_word(w) { Ok(()) } else { Err(self.expected(&format!("`{w}`"))) }
    }

    /// One of the words of a table.
    pub(super) fn choice<T: Copy>(&mut self, what: &str, table: &[(&str, T)]) -> Parse<T> {
        match table.iter().find(|(w, _)| self.is_word(w)) {
            Some(&(_, value)) => {
                self.pos += 1;
                Ok(value)
            }
            None => {
                let words: Vec<&str> = table.iter().map(|(w, _)| *w).collect();
                Err(self.expected(what).hint(format!("one of: {}", words.join(", "))))
            }
        }
    }

    /// A bare or quoted name.
    pub(super) fn bare_name(&mut self, what: &str) -> Parse<(Name, Span)> {
        let span = self.span();
        match self.peek().clone() {
            Tok::Word(n) | Tok::Quoted(n) => {
                self.pos += 1;
                Ok((n, span))
            }
            _ => Err(self.expected(what)),
        }
    }

    /// `@name`
    pub(super) fn at_name(&mut self, what: &str) -> Parse<(Name, Span)> {
        let span = self.span();
        match self.peek().clone() {
            Tok::At(n) => {
                self.pos += 1;
                Ok((n, span))
            }
            _ => Err(self.expected(&format!("{what} (`@name`)"))),
        }
    }

    /// `%name` where it is bound.
    pub(super) fn binder(&mut self) -> Parse<(Name, Span)> {
        let span = self.span();
        match self.peek().clone() {
            Tok::Var(n, false) => {
                self.pos += 1;
                Ok((n, span))
            }
            _ => Err(self.expected("a variable (`%name`)")),
        }
    }

    /// A declared tensor.
    pub(super) fn tensor_ref(&mut self) -> Parse<TensorId> {
        let (name, span) = self.at_name("a tensor")?;
        self.tensors.get(&name).copied().ok_or_else(|| unknown("tensor", &format!("@{}", display(&name)), span))
    }

    /// A declared uninterpreted function.
    pub(super) fn uf_ref(&mut self) -> Parse<UfId> {
        let (name, span) = self.at_name("a function")?;
        self.ufs.get(&name).copied().ok_or_else(|| unknown("function", &format!("@{}", display(&name)), span))
    }

    /// `-3`, as a number of the text and not an expression.
    pub(super) fn signed(&mut self) -> Parse<i64> {
        let start = self.span();
        let minus = if self.eat_punct("-") { "-" } else { "" };
        let Tok::Int(digits) = self.peek().clone() else { return Err(self.expected("an integer")) };
        self.pos += 1;
        format!("{minus}{digits}").parse().map_err(|_| out_of_range("64 bits", self.since(start)))
    }

    /// An integer in `1..=max`.
    pub(super) fn count(&mut self, max: u32) -> Parse<u32> {
        let start = self.span();
        let value = self.signed()?;
        u32::try_from(value)
            .ok()
            .filter(|v| (1..=max).contains(v))
            .ok_or_else(|| out_of_range(&format!("1..={max}"), self.since(start)))
    }

    /// `item, item, ...` up to the punctuation `close`, which is consumed.
    pub(super) fn list<T>(&mut self, close: &str, item: &mut dyn FnMut(&mut Self) -> Parse<T>) -> Parse<Vec<T>> {
        let mut out = Vec::new();
        if self.eat_punct(close) {
            return Ok(out);
        }
        loop {
            out.push(item(self)?);
            if self.eat_punct(close) {
                return Ok(out);
            }
            if !self.eat_punct(",") {
                return Err(self.expected(&format!("`,` or `{close}`")));
            }
        }
    }

    /// Runs `f` one level deeper.
    pub(super) fn nested<T>(&mut self, f: &mut dyn FnMut(&mut Self) -> Parse<T>) -> Parse<T> {
        if self.depth >= MAX_DEPTH {
            return Err(too_deep(self.span()));
        }
        self.depth += 1;
        let out = f(self);
        self.depth -= 1;
        out
    }

    /// Checks a new expression's height, so that everything else may recurse over it.
    pub(super) fn bounded(&mut self, e: ExprId, span: Span) -> Parse<ExprId> {
        for i in self.heights.len()..self.env.pool.len() {
            let kids = self.env.pool.children(ExprId::from_index(i));
            let below = kids.iter().map(|k| self.heights[k.index()]).max().unwrap_or(0);
            self.heights.push(below + 1);
        }
        if self.heights[e.index()] > MAX_DEPTH { Err(too_deep(span)) } else { Ok(e) }
    }

    /// How many variables are bound here; for [`Parser::leave`].
    pub(super) fn scope_depth(&self) -> usize {
        self.scope.len()
    }

    /// Forgets the variables bound since.
    pub(super) fn leave(&mut self, depth: usize) {
        self.scope.truncate(depth);
    }

    /// Binds a variable from here on: the one of that name in the declarations, else a new one.
    pub(super) fn bind(&mut self, name: Name, span: Span) -> Parse<VarId> {
        if self.scope.iter().any(|(n, _)| *n == name) {
            let message = format!("`%{}` is already bound here", display(&name));
            return Err(Diagnostic::new("E0505", message).at(span).hint("a suffix makes it another: `%q#1`"));
        }
        let v = match self.header.get(&name) {
            Some(&v) => v,
            None => self.env.new_var(name.base.clone()),
        };
        self.scope.push((name, v));
        Ok(v)
    }

    /// A variable in scope.
    pub(super) fn mention(&mut self) -> Parse<VarId> {
        let (name, span) = self.binder()?;
        self.var_ref(name, false, span)
    }

    /// The variable that a mention stands for.
    pub(super) fn var_ref(&mut self, name: Name, free: bool, span: Span) -> Parse<VarId> {
        if free {
            return Ok(self.free_var(name));
        }
        if let Some(&(_, v)) = self.scope.iter().rev().find(|(n, _)| *n == name) {
            return Ok(v);
        }
        if let Some(&v) = self.header.get(&name) {
            return Ok(v);
        }
        if self.in_header {
            return Ok(self.header_var(name));
        }
        Err(unknown("variable", &format!("%{}", display(&name)), span))
    }

    fn free_var(&mut self, name: Name) -> VarId {
        if let Some(&v) = self.free.get(&name) {
            return v;
        }
        let v = self.env.new_var(name.base.clone());
        self.free.insert(name, v);
        v
    }

    /// A variable of the declarations.
    pub(super) fn header_var(&mut self, name: Name) -> VarId {
        if let Some(&v) = self.header.get(&name) {
            return v;
        }
        let v = self.env.new_var(name.base.clone());
        self.header.insert(name, v);
        v
    }
}

/// The name as it is written, for messages and for names that are no entity's.
pub(super) fn display(name: &Name) -> String {
    match name.suffix {
        Some(s) => format!("{}#{s}", name.base),
        None => name.base.clone(),
    }
}

/// `E0504`
pub(super) fn unknown(kind: &str, name: &str, span: Span) -> Diagnostic {
    Diagnostic::new("E0504", format!("no {kind} is called `{name}`")).at(span).hint("declare it before it is used")
}

/// `E0505`
pub(super) fn twice(kind: &str, name: &str, span: Span) -> Diagnostic {
    Diagnostic::new("E0505", format!("the {kind} `{name}` is declared twice")).at(span)
}

/// `E0506`
pub(super) fn out_of_range(range: &str, span: Span) -> Diagnostic {
    Diagnostic::new("E0506", format!("the number is outside {range}")).at(span)
}

/// `E0503`
pub(super) fn too_deep(span: Span) -> Diagnostic {
    Diagnostic::new("E0503", format!("nested more than {MAX_DEPTH} levels deep")).at(span)
}
