//! Printer of the loop dialect.

use super::Stage;
use super::print::{Printer, Reach};
use crate::env::Env;
use crate::loops::{Block, BlockRole, For, IterKind, LoopKind, LoopModule, Stmt};

/// The canonical text of a module of the loop dialect.
pub fn print_loops(m: &LoopModule) -> String {
    let mut reach = Reach::new(&m.env);
    m.body.iter().for_each(|s| reach_stmt(&mut reach, s));
    let mut p = Printer::new(&reach);
    p.module(Stage::Loop, &m.name);
    p.functions(&reach);
    p.tensors(&reach, &[]);
    if !m.body.is_empty() {
        p.gap();
    }
    p.loop_stmts(&m.body);
    p.close().end_line();
    p.finish()
}

/// The text of some statements alone, without declarations: for messages and explanations.
pub fn print_loop_stmts(env: &Env, body: &[Stmt]) -> String {
    let mut p = Printer::new(&everything(env));
    p.exprs.free = None;
    p.loop_stmts(body);
    p.finish()
}

/// All entities, whether anything uses them or not.
pub(super) fn everything(env: &Env) -> Reach<'_> {
    let mut reach = Reach::new(env);
    env.tensors.ids().for_each(|t| reach.tensor(t));
    env.ufs.ids().for_each(|f| reach.uf(f));
    reach
}

fn reach_stmt(reach: &mut Reach<'_>, s: &Stmt) {
    match s {
        Stmt::For(l) => {
            reach.tensor(l.stage);
            reach.expr(l.extent);
            l.prefetch.iter().flat_map(|p| [p.stage, p.tensor]).for_each(|t| reach.tensor(t));
            l.body.iter().for_each(|s| reach_stmt(reach, s));
        }
        Stmt::Block(b) => {
            reach.tensor(b.stage);
            reach.tensor(b.tensor);
            b.iters.iter().flat_map(|i| [i.extent, i.binding]).for_each(|e| reach.expr(e));
            b.predicate.iter().chain(&b.index).chain([&b.value]).for_each(|&e| reach.expr(e));
        }
    }
}

impl Printer<'_> {
    fn loop_stmts(&mut self, body: &[Stmt]) {
        for s in body {
            match s {
                Stmt::For(l) => self.for_loop(l),
                Stmt::Block(b) => self.block(b),
            }
        }
    }

    fn for_loop(&mut self, l: &For) {
        let name = self.line().text("for ").binder(l.var);
        self.also(self.exprs.env.vars[l.var].also.as_deref()).text(" in 0..").expr(l.extent);
        if l.kind != LoopKind::Serial {
            self.text(" ").text(l.kind.name());
        }
        self.text(" stage ").tensor(l.stage);
        if l.init {
            self.text(" init");
        }
        self.hoist(l.var);
        for p in &l.prefetch {
            self.text(" prefetch ").tensor(p.stage).text(" ").tensor(p.tensor);
            if let Some(v) = p.of {
                self.text(" of ").binder(v);
            }
            self.text(&format!(" {} locality {}", p.distance, p.locality));
        }
        self.open();
        let mut scope = Vec::new();
        self.enter(&mut scope, l.var, name);
        self.loop_stmts(&l.body);
        self.leave(scope);
        self.close().end_line();
    }

    fn block(&mut self, b: &Block) {
        self.line().text("block ").tensor(b.stage).text(" ");
        match b.role {
            BlockRole::Compute => self.text("compute"),
            BlockRole::Init => self.text("init"),
            BlockRole::Update(c) => self.text("update ").reduction(c),
        };
        if b.continues {
            self.text(" continues");
        }
        if b.atomic {
            self.text(" atomic");
        }
        self.open();
        let mut scope = Vec::new();
        for i in &b.iters {
            let kind = match i.kind {
                IterKind::Spatial => "spatial ",
                IterKind::Reduce => "reduce ",
            };
            let name = self.line().text(kind).binder(i.var);
            self.text(" < ").expr(i.extent).text(" = ").expr(i.binding).end_line();
            self.enter(&mut scope, i.var, name);
        }
        for &cond in &b.predicate {
            self.line().text("where ").expr(cond).end_line();
        }
        self.line().tensor(b.tensor).text("[").list(&b.index).text("] = ").expr(b.value).end_line();
        self.leave(scope);
        self.close().end_line();
    }
}
