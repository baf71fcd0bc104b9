//! Printer of the storage dialect.

use super::Stage;
use super::names::{EntityNames, quote};
use super::print::{Printer, Reach};
use super::print_loops::everything;
use crate::env::Env;
use crate::ids::{TensorId, VarId};
use crate::loops::LoopKind;
use crate::storage::{Beside, Matrix, Stmt, StorageModule, Table};

/// The canonical text of a module of the storage dialect.
pub fn print_storage(m: &StorageModule) -> String {
    let reach = reach_module(m);
    let tables: Vec<TensorId> = m.tables.iter().map(|t| t.tensor).collect();
    let mut p = Printer::with_first(&reach, &tables);
    p.module(Stage::Storage, &m.name);
    p.functions(&reach);
    p.tensors(&reach, &tables);
    if !m.buffers.is_empty() || !m.tables.is_empty() {
        p.gap();
    }
    for b in &m.buffers {
        p.line().text("buffer ").tensor(b.tensor).text(" elems = ").header_expr(b.elems);
        if let Some(offset) = b.offset {
            p.text(" offset = ").header_expr(offset);
        }
        p.end_line();
    }
    m.tables.iter().for_each(|t| p.table(t));
    let names = EntityNames::by_index(m.kernels.iter().enumerate().map(|(i, k)| (i, k.name.as_str())), quote);
    for (i, k) in m.kernels.iter().enumerate() {
        p.gap();
        p.line().text("kernel @").text(&names.at(i)).open();
        p.storage_stmts(&k.body);
        p.close().end_line();
    }
    p.close().end_line();
    p.finish()
}

/// The text of some statements alone, without declarations: for messages and explanations.
pub fn print_storage_stmts(env: &Env, body: &[Stmt]) -> String {
    let mut p = Printer::new(&everything(env));
    p.exprs.free = None;
    p.storage_stmts(body);
    p.finish()
}

fn reach_module(m: &StorageModule) -> Reach<'_> {
    let mut reach = Reach::new(&m.env);
    for b in &m.buffers {
        reach.tensor(b.tensor);
        [Some(b.elems), b.offset].into_iter().flatten().for_each(|e| reach.expr(e));
    }
    for t in &m.tables {
        reach.tensor(t.tensor);
        reach.uf(t.uf);
        t.domain.iter().chain([&t.entries]).chain(&t.body).for_each(|&e| reach.expr(e));
    }
    m.kernels.iter().flat_map(|k| &k.body).for_each(|s| reach_stmt(&mut reach, s));
    reach
}

fn reach_stmt(reach: &mut Reach<'_>, s: &Stmt) {
    s.walk(&mut |s| {
        s.writes().into_iter().chain(s.named_reads()).for_each(|t| reach.tensor(t));
        s.exprs().into_iter().for_each(|e| reach.expr(e));
    });
}

impl Printer<'_> {
    fn table(&mut self, t: &Table) {
        self.line().text("table ").tensor(t.tensor).text(" = ").uf(t.uf);
        self.text(" entries = ").header_expr(t.entries).text(" domain = [");
        for (j, &e) in t.domain.iter().enumerate() {
            self.text(if j > 0 { ", " } else { "" }).header_expr(e);
        }
        self.text("]");
        if let Some(body) = t.body {
            self.text(" body = ").header_expr(body);
        }
        self.end_line();
    }

    fn matrix(&mut self, m: &Matrix) -> &mut Self {
        self.tensor(m.tensor).text("[").list(&[m.offset, m.row, m.column]);
        if let Some(blocks) = m.blocks {
            self.text(", blocks ").list(&blocks);
        }
        self.text("]")
    }

    /// A body: what it binds is in scope to its end.
    fn storage_stmts(&mut self, body: &[Stmt]) {
        let mut scope = Vec::new();
        for s in body {
            self.storage_stmt(s, &mut scope);
        }
        self.leave(scope);
    }

    fn storage_stmt(&mut self, s: &Stmt, scope: &mut Vec<VarId>) {
        self.line();
        match s {
            Stmt::For { var, extent, kind, body } => {
                let name = self.text("for ").binder(*var);
                self.text(" in 0..").expr(*extent);
                if *kind != LoopKind::Serial {
                    self.text(" ").text(kind.name());
                }
                self.hoist(*var);
                self.open();
                let mut inner = Vec::new();
                self.enter(&mut inner, *var, name);
                self.storage_stmts(body);
                self.leave(inner);
                self.close().end_line();
            }
            Stmt::If { cond, then, other } => {
                self.text("if ").expr(*cond).open();
                self.storage_stmts(then);
                if !other.is_empty() {
                    self.close().text(" else").open();
                    self.storage_stmts(other);
                }
                self.close().end_line();
            }
            Stmt::Let { var, value } => {
                let name = self.text("let ").binder(*var);
                self.text(" = ").expr(*value).end_line();
                self.enter(scope, *var, name);
            }
            Stmt::Shuffle { to, from, xor } => {
                self.text("shuffle ").tensor(*to).text(" = ").tensor(*from);
                self.text(&format!(" xor {xor}")).end_line();
            }
            Stmt::Barrier => {
                self.text("barrier").end_line();
            }
            Stmt::Prefetch { tensor, index, locality } => {
                self.text("prefetch ").tensor(*tensor).text("[").expr(*index).text("]");
                self.text(&format!(" locality {locality}")).end_line();
            }
            Stmt::Tile(t) => {
                self.text("tile ").text(t.intrinsic.get().name).text(" ").matrix(&t.c);
                self.text(" = ").matrix(&t.a).text(" * ").matrix(&t.b).end_line();
            }
            Stmt::Bulk(b) => {
                self.text("bulk ").tensor(b.to).text("[").expr(b.offset).text("] slot ").expr(b.slot);
                self.text(" = ").tensor(b.from).text("[");
                for (n, d) in b.dims.iter().enumerate() {
                    self.text(if n > 0 { ", " } else { "" }).expr(d.at).text(" of ").expr(d.size);
                    self.text(&format!(" by {} for {}", d.step, d.extent));
                }
                self.text(if b.zeros { "] zeros" } else { "]" }).end_line();
            }
            Stmt::Await { tensor, slot } => {
                self.text("await ").tensor(*tensor).text(" slot ").expr(*slot).end_line();
            }
            Stmt::Gemm(g) => {
                self.text("gemm ").matrix(&g.c).text(" = ").matrix(&g.a).text(" * ").matrix(&g.b);
                self.text(" over ").list(&g.sizes);
                if g.accumulate {
                    self.text(" accumulate");
                }
                self.end_line();
            }
            Stmt::Copy { tensor, index, value, mask } => {
                self.text("copy ").tensor(*tensor).text("[").expr(*index).text("] = ").expr(*value);
                if let Some(mask) = mask {
                    self.text(" mask ").expr(*mask);
                }
                self.end_line();
            }
            Stmt::Atomic { tensor, index, combiner, value } => {
                self.text(&format!("atomic {} ", combiner.name())).tensor(*tensor);
                self.text("[").expr(*index).text("] = ").expr(*value).end_line();
            }
            Stmt::Commit => {
                self.text("commit").end_line();
            }
            Stmt::Wait { pending } => {
                self.text(&format!("wait {pending}")).end_line();
            }
            Stmt::Beside(Beside::Fence) => {
                self.text("fence").end_line();
            }
            Stmt::Beside(Beside::Commit) => {
                self.text("commit tiles").end_line();
            }
            Stmt::Beside(Beside::Wait { pending, results }) => {
                self.text(&format!("wait {pending} tiles"));
                results.iter().for_each(|&t| {
                    self.text(" ").tensor(t);
                });
                self.end_line();
            }
            Stmt::Store { tensor, index, value, mask, rest } => {
                self.tensor(*tensor).text("[").expr(*index).text("] = ").expr(*value);
                for &(t, e) in rest {
                    self.text(" also ").tensor(t).text(" = ").expr(e);
                }
                if let Some(mask) = mask {
                    self.text(" mask ").expr(*mask);
                }
                self.end_line();
            }
        }
    }
}
