//! Parser of the loop dialect.

use super::Stage;
use super::parse::{Parse, Parser};
use crate::diag::Diagnostic;
use crate::ids::VarId;
use crate::loops::{Block, BlockRole, For, Iter, IterKind, LoopKind, LoopModule, Prefetch, Stmt};
use crate::recurrence::recurrent_stages;
use crate::tuple::Reduction;
use crate::types::Combiner;

/// Reads a module of the loop dialect.
///
/// # Errors
/// `E0501` to `E0508`, with the place; at the first error.
pub fn parse_loops(src: &str) -> Result<LoopModule, Diagnostic> {
    let (mut p, name) = Parser::module(src, Stage::Loop)?;
    let mut body = Vec::new();
    while !p.eat_punct("}") {
        if !p.declaration()? {
            body.push(p.loop_stmt("a declaration, `for`, `block` or `}`")?);
        }
    }
    p.end()?;
    let mut m = LoopModule { name, env: p.env, body: body.into() };
    m.env.recurrent = recurrent_stages(&m);
    Ok(m)
}

impl Parser {
    /// A loop's kind, if it is not serial.
    pub(super) fn loop_kind(&mut self) -> LoopKind {
        LoopKind::ALL.into_iter().find(|k| self.eat_word(k.name())).unwrap_or(LoopKind::Serial)
    }

    fn loop_stmt(&mut self, what: &str) -> Parse<Stmt> {
        if self.is_word("for") {
            return self.nested(&mut |p| p.for_loop()).map(Stmt::For);
        }
        if self.is_word("block") {
            return self.block().map(Stmt::Block);
        }
        Err(self.expected(what))
    }

    /// ` hoist off`: the mark of a loop, if it has one.
    pub(super) fn hoist(&mut self, var: VarId) -> Parse<()> {
        if self.eat_word("hoist") {
            let on = self.switch()?;
            self.env.vars[var].hoist = Some(on);
        }
        Ok(())
    }

    fn for_loop(&mut self) -> Parse<For> {
        self.word("for")?;
        let (name, span) = self.binder()?;
        let also = self.also()?;
        self.word("in")?;
        self.zero_to()?;
        let extent = self.expr()?;
        let kind = self.loop_kind();
        self.word("stage")?;
        let stage = self.tensor_ref()?;
        let init = self.eat_word("init");
        let depth = self.scope_depth();
        let var = self.bind(name, span)?;
        self.env.vars[var].also = also;
        self.hoist(var)?;
        let mut prefetch = Vec::new();
        while self.eat_word("prefetch") {
            let (stage, tensor) = (self.tensor_ref()?, self.tensor_ref()?);
            let of = if self.eat_word("of") { Some(self.mention()?) } else { None };
            let distance = self.signed()?;
            self.word("locality")?;
            prefetch.push(Prefetch { of, stage, tensor, distance, locality: self.signed()? });
        }
        self.punct("{")?;
        let mut body = Vec::new();
        while !self.eat_punct("}") {
            body.push(self.loop_stmt("`for`, `block` or `}`")?);
        }
        self.leave(depth);
        Ok(For { var, stage, extent, kind, prefetch, init, body: body.into() })
    }

    /// `0..`
    pub(super) fn zero_to(&mut self) -> Parse<()> {
        match self.peek() {
            super::lex::Tok::Int(s) if s == "0" => self.next(),
            _ => return Err(self.expected("`0..`")),
        };
        self.punct("..")
    }

    fn block(&mut self) -> Parse<Block> {
        self.word("block")?;
        let stage = self.tensor_ref()?;
        let role = match self.choice("the block's role", &[("compute", 0), ("init", 1), ("update", 2)])? {
            0 => BlockRole::Compute,
            1 => BlockRole::Init,
            _ => BlockRole::Update(self.combiner()?),
        };
        let continues = matches!(role, BlockRole::Update(_)) && self.eat_word("continues");
        let atomic = matches!(role, BlockRole::Update(_)) && self.eat_word("atomic");
        self.punct("{")?;
        let depth = self.scope_depth();
        let mut iters = Vec::new();
        loop {
            let kind = match (self.eat_word("spatial"), self.is_word("reduce")) {
                (true, _) => IterKind::Spatial,
                (_, true) => {
                    self.next();
                    IterKind::Reduce
                }
                _ => break,
            };
            let (name, span) = self.binder()?;
            self.punct("<")?;
            let extent = self.expr()?;
            self.punct("=")?;
            let binding = self.expr()?;
            iters.push(Iter { var: self.bind(name, span)?, kind, extent, binding });
        }
        let mut predicate = Vec::new();
        while self.eat_word("where") {
            predicate.push(self.expr()?);
        }
        let tensor = self.tensor_ref()?;
        self.punct("[")?;
        let index = self.exprs("]")?;
        self.punct("=")?;
        let value = self.expr()?;
        self.punct("}")?;
        self.leave(depth);
        Ok(Block { stage, role, continues, atomic, iters, predicate, tensor, index, value })
    }

    /// A combiner's name, or `reduce @f` for a user's.
    pub(super) fn combiner(&mut self) -> Parse<Reduction> {
        if self.eat_word("reduce") {
            return Ok(Reduction::Tuple(self.combiner_ref()?));
        }
        let table = Combiner::ALL.map(|c| (c.name(), c));
        self.choice("a combiner", &table).map(Reduction::Op)
    }
}
