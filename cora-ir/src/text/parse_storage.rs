//! Parser of the storage dialect.

use super::Stage;
use super::lex::Tok;
use super::parse::{Parse, Parser, display, out_of_range, twice};
use crate::diag::Diagnostic;
use crate::ids::{ExprId, TensorId};
use crate::intrinsic::IntrinsicId;
use crate::storage::{
    Beside, Buffer, Bulk, BulkDim, Gemm, Kernel, MOST_DIMS, Matrix, Stmt, StorageModule, Table, Tile,
};
use crate::types::Combiner;
use rustc_hash::FxHashSet;

/// Reads a module of the storage dialect.
///
/// # Errors
/// `E0501` to `E0508`, with the place; at the first error.
pub fn parse_storage(src: &str) -> Result<StorageModule, Diagnostic> {
    let (mut p, name) = Parser::module(src, Stage::Storage)?;
    let mut m = StorageModule { name, ..StorageModule::default() };
    let mut seen = FxHashSet::default();
    while !p.eat_punct("}") {
        if p.declaration()? {
            continue;
        }
        if p.eat_word("buffer") {
            p.in_header = true;
            m.buffers.push(p.buffer()?);
        } else if p.eat_word("table") {
            p.in_header = true;
            m.tables.push(p.table()?);
        } else if p.eat_word("kernel") {
            let (name, span) = p.at_name("the kernel's name")?;
            if !seen.insert(name.clone()) {
                return Err(twice("kernel", &format!("@{}", display(&name)), span));
            }
            p.punct("{")?;
            m.kernels.push(Kernel { name: name.base, body: p.storage_body()? });
        } else {
            return Err(p.expected("a declaration, `buffer`, `table`, `kernel` or `}`"));
        }
        p.in_header = false;
    }
    p.end()?;
    m.env = p.env;
    Ok(m)
}

impl Parser {
    fn buffer(&mut self) -> Parse<Buffer> {
        let tensor = self.tensor_ref()?;
        self.word("elems")?;
        self.punct("=")?;
        let elems = self.expr()?;
        let mut offset = None;
        if self.eat_word("offset") {
            self.punct("=")?;
            offset = Some(self.expr()?);
        }
        Ok(Buffer { tensor, elems, offset })
    }

    fn table(&mut self) -> Parse<Table> {
        let tensor = self.tensor_ref()?;
        self.punct("=")?;
        let uf = self.uf_ref()?;
        self.word("entries")?;
        self.punct("=")?;
        let entries = self.expr()?;
        self.word("domain")?;
        self.punct("=")?;
        self.punct("[")?;
        let domain = self.exprs("]")?;
        let mut body = None;
        if self.eat_word("body") {
            self.punct("=")?;
            body = Some(self.expr()?);
        }
        Ok(Table { uf, tensor, entries, domain, body })
    }

    /// Statements and the `}`; what they bind is in scope to there.
    fn storage_body(&mut self) -> Parse<Vec<Stmt>> {
        let depth = self.scope_depth();
        let mut out = Vec::new();
        while !self.eat_punct("}") {
            out.push(self.storage_stmt()?);
        }
        self.leave(depth);
        Ok(out)
    }

    fn storage_stmt(&mut self) -> Parse<Stmt> {
        if self.is_word("for") {
            return self.nested(&mut |p| p.storage_for());
        }
        if self.is_word("if") {
            return self.nested(&mut |p| p.storage_if());
        }
        if self.eat_word("let") {
            let (name, span) = self.binder()?;
            self.punct("=")?;
            let value = self.expr()?;
            return Ok(Stmt::Let { var: self.bind(name, span)?, value });
        }
        if self.eat_word("shuffle") {
            let to = self.tensor_ref()?;
            self.punct("=")?;
            let from = self.tensor_ref()?;
            self.word("xor")?;
            let xor = self.signed()?;
            return Ok(Stmt::Shuffle { to, from, xor: u32::try_from(xor).unwrap_or(0) });
        }
        if self.eat_word("barrier") {
            return Ok(Stmt::Barrier);
        }
        if self.eat_word("copy") {
            let (tensor, index) = self.element()?;
            self.punct("=")?;
            let value = self.expr()?;
            let mask = if self.eat_word("mask") { Some(self.expr()?) } else { None };
            return Ok(Stmt::Copy { tensor, index, value, mask });
        }
        if self.eat_word("atomic") {
            let combiner = self.choice("a combiner", &Combiner::ALL.map(|c| (c.name(), c)))?;
            let (tensor, index) = self.element()?;
            self.punct("=")?;
            return Ok(Stmt::Atomic { tensor, index, combiner, value: self.expr()? });
        }
        if self.eat_word("bulk") {
            return Ok(Stmt::Bulk(Box::new(self.bulk()?)));
        }
        if self.eat_word("await") {
            let tensor = self.tensor_ref()?;
            self.word("slot")?;
            return Ok(Stmt::Await { tensor, slot: self.expr()? });
        }
        if self.eat_word("commit") {
            return Ok(if self.eat_word("tiles") { Stmt::Beside(Beside::Commit) } else { Stmt::Commit });
        }
        if self.eat_word("wait") {
            let span = self.span();
            let pending = u32::try_from(self.signed()?).map_err(|_| out_of_range("a number of groups", span))?;
            if !self.eat_word("tiles") {
                return Ok(Stmt::Wait { pending });
            }
            let mut results = Vec::new();
            // What follows without an index is a name: a store has one.
            while matches!(self.peek(), Tok::At(_)) && self.peek2() != &Tok::Punct("[") {
                results.push(self.tensor_ref()?);
            }
            return Ok(Stmt::Beside(Beside::Wait { pending, results }));
        }
        if self.eat_word("fence") {
            return Ok(Stmt::Beside(Beside::Fence));
        }
        if self.eat_word("prefetch") {
            let (tensor, index) = self.element()?;
            self.word("locality")?;
            return Ok(Stmt::Prefetch { tensor, index, locality: self.signed()? });
        }
        if self.eat_word("gemm") {
            return Ok(Stmt::Gemm(Box::new(self.gemm()?)));
        }
        if self.eat_word("tile") {
            return Ok(Stmt::Tile(Box::new(self.instruction()?)));
        }
        if !matches!(self.peek(), Tok::At(_)) {
            return Err(self.expected(
                "`for`, `if`, `let`, `gemm`, `tile`, `prefetch`, `shuffle`, `barrier`, `atomic`, `copy`, `bulk`, `await`, `commit`, `wait`, `fence`, a store or `}`",
            ));
        }
        let (tensor, index) = self.element()?;
        self.punct("=")?;
        let value = self.expr()?;
        let mut rest = Vec::new();
        while self.eat_word("also") {
            let tensor = self.tensor_ref()?;
            self.punct("=")?;
            rest.push((tensor, self.expr()?));
        }
        let mask = if self.eat_word("mask") { Some(self.expr()?) } else { None };
        Ok(Stmt::Store { tensor, index, value, mask, rest })
    }

    /// `@L[o] slot s = @A[at of size by step for extent, ..] zeros`.
    fn bulk(&mut self) -> Parse<Bulk> {
        let (to, offset) = self.element()?;
        self.word("slot")?;
        let slot = self.expr()?;
        self.punct("=")?;
        let from = self.tensor_ref()?;
        self.punct("[")?;
        let mut dims = Vec::new();
        while dims.is_empty() || (dims.len() < MOST_DIMS && self.eat_punct(",")) {
            let at = self.expr()?;
            self.word("of")?;
            let size = self.expr()?;
            self.word("by")?;
            let step = self.signed()?;
            self.word("for")?;
            dims.push(BulkDim { at, size, step, extent: self.signed()? });
        }
        self.punct("]")?;
        Ok(Bulk { to, offset, slot, from, dims, zeros: self.eat_word("zeros") })
    }

    /// `@T[index]`.
    fn element(&mut self) -> Parse<(TensorId, ExprId)> {
        let tensor = self.tensor_ref()?;
        self.punct("[")?;
        let index = self.expr()?;
        self.punct("]")?;
        Ok((tensor, index))
    }

    /// `@C[o, r, c] = @A[o, r, c] * @B[o, r, c] over m, n, k accumulate`.
    fn gemm(&mut self) -> Parse<Gemm> {
        let c = self.matrix()?;
        self.punct("=")?;
        let a = self.matrix()?;
        self.punct("*")?;
        let b = self.matrix()?;
        self.word("over")?;
        let m = self.expr()?;
        self.punct(",")?;
        let n = self.expr()?;
        self.punct(",")?;
        let k = self.expr()?;
        Ok(Gemm { sizes: [m, n, k], c, a, b, accumulate: self.eat_word("accumulate") })
    }

    /// `mma.m16n8k16.f32.bf16 @C[o, r, c] = @A[o, r, c] * @B[o, r, c]`.
    fn instruction(&mut self) -> Parse<Tile> {
        let all = IntrinsicId::ALL.map(|i| (i.get().name, i));
        let intrinsic = self.choice("an intrinsic", &all)?;
        let c = self.matrix()?;
        self.punct("=")?;
        let a = self.matrix()?;
        self.punct("*")?;
        Ok(Tile { intrinsic, c, a, b: self.matrix()? })
    }

    fn matrix(&mut self) -> Parse<Matrix> {
        let tensor = self.tensor_ref()?;
        self.punct("[")?;
        let offset = self.expr()?;
        self.punct(",")?;
        let row = self.expr()?;
        self.punct(",")?;
        let column = self.expr()?;
        let mut blocks = None;
        if self.eat_punct(",") {
            self.word("blocks")?;
            let rows = self.expr()?;
            self.punct(",")?;
            blocks = Some([rows, self.expr()?]);
        }
        self.punct("]")?;
        Ok(Matrix { tensor, offset, row, column, blocks })
    }

    fn storage_for(&mut self) -> Parse<Stmt> {
        self.word("for")?;
        let (name, span) = self.binder()?;
        self.word("in")?;
        self.zero_to()?;
        let extent = self.expr()?;
        let kind = self.loop_kind();
        let depth = self.scope_depth();
        let var = self.bind(name, span)?;
        self.hoist(var)?;
        self.punct("{")?;
        let body = self.storage_body()?;
        self.leave(depth);
        Ok(Stmt::For { var, extent, kind, body })
    }

    fn storage_if(&mut self) -> Parse<Stmt> {
        self.word("if")?;
        let cond = self.expr()?;
        self.punct("{")?;
        let then = self.storage_body()?;
        let mut other = Vec::new();
        if self.eat_word("else") {
            self.punct("{")?;
            other = self.storage_body()?;
        }
        Ok(Stmt::If { cond, then, other })
    }
}
