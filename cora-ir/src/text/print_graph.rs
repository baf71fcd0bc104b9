//! Printer of the op graph.

use super::Stage;
use super::names::quote;
use super::print::{Printer, Reach};
use super::steps::print_step;
use crate::graph::{Graph, Op};
use crate::ids::DimId;

/// The canonical text of an op graph, with its named dimensions and its schedules.
pub fn print_graph(g: &Graph) -> String {
    let mut reach = Reach::new(&g.env);
    g.env.dims.iter().for_each(|(_, d)| reach.expr(d.extent));
    for op in &g.ops {
        reach.tensor(op.tensor);
        reach.expr(op.value);
    }
    g.outputs.iter().for_each(|&t| reach.tensor(t));
    let mut p = Printer::new(&reach);
    p.module(Stage::Graph, &g.name);
    p.functions(&reach);
    for (_, d) in g.env.dims.iter() {
        p.exprs.names.add(&g.env, d.var);
    }
    for (id, _) in g.env.dims.iter() {
        p.dim(g, id);
    }
    p.tensors(&reach, &[]);
    if !g.ops.is_empty() || !g.outputs.is_empty() {
        p.gap();
    }
    g.ops.iter().for_each(|op| p.op(g, op));
    for &t in &g.outputs {
        p.line().text("output ").tensor(t).end_line();
    }
    for s in &g.schedules {
        p.gap();
        let features: Vec<String> = s.features.iter().map(|f| quote(f)).collect();
        let features = if features.is_empty() { String::new() } else { format!(" for {}", features.join(", ")) };
        p.line().text("schedule ").text(&quote(&s.name)).text(&features).open();
        for step in &s.steps {
            p.line().text(&print_step(&step.kind)).end_line();
        }
        p.close().end_line();
    }
    p.close().end_line();
    p.finish()
}

impl Printer<'_> {
    fn dim(&mut self, g: &Graph, id: DimId) {
        let d = &g.env.dims[id];
        self.line().text("dim ").binder(d.var);
        if g.env.vars.get(d.var).is_none_or(|v| v.name != d.name) {
            self.text(" as ").text(&quote(&d.name));
        }
        self.text(" = ").header_expr(d.extent).end_line();
    }

    fn dims(&mut self, g: &Graph, dims: &[DimId]) -> &mut Self {
        self.text("[");
        for (i, &d) in dims.iter().enumerate() {
            self.text(if i > 0 { ", " } else { "" });
            match g.env.dims.get(d) {
                Some(d) => drop(self.binder(d.var)),
                None => drop(self.text("%\"?\"")),
            }
        }
        self.text("]")
    }

    fn op(&mut self, g: &Graph, op: &Op) {
        self.line().text("op ").tensor(op.tensor).dims(g, &op.spatial).text(" = ");
        match (op.combiner, op.reduce.is_empty()) {
            (None, true) => {}
            (combiner, _) => {
                match combiner {
                    Some(c) => self.reduction(c),
                    None => self.text("over"),
                };
                self.dims(g, &op.reduce).text(" ");
            }
        }
        self.expr(op.value).end_line();
    }
}
