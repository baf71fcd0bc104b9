//! Parser of the op graph's text.

use super::Stage;
use super::lex::Tok;
use super::parse::{Parse, Parser, display, twice, unknown};
use crate::diag::Diagnostic;
use crate::env::Dim;
use crate::graph::{Graph, Op};
use crate::ids::{DimId, VarId};
use crate::schedule::{Schedule, Step};
use rustc_hash::FxHashMap;

/// Reads an op graph.
///
/// # Errors
/// `E0501` to `E0508`, with the place; at the first error.
pub fn parse_graph(src: &str) -> Result<Graph, Diagnostic> {
    let (mut p, name) = Parser::module(src, Stage::Graph)?;
    let mut g = Graph { name, ..Graph::default() };
    let mut dims = FxHashMap::default();
    while !p.eat_punct("}") {
        if p.declaration()? {
            continue;
        }
        if p.eat_word("dim") {
            p.dim(&mut dims)?;
        } else if p.eat_word("op") {
            g.ops.push(p.op(&dims)?);
        } else if p.eat_word("output") {
            g.outputs.push(p.tensor_ref()?);
        } else if p.eat_word("schedule") {
            g.schedules.push(p.schedule()?);
        } else {
            return Err(p.expected("a declaration, `dim`, `op`, `output`, `schedule` or `}`"));
        }
    }
    p.end()?;
    g.env = p.env;
    Ok(g)
}

/// Dimensions by the variable that each owns.
type Dims = FxHashMap<VarId, DimId>;

impl Parser {
    fn dim(&mut self, dims: &mut Dims) -> Parse<()> {
        let (var_name, span) = self.binder()?;
        let shown = format!("%{}", display(&var_name));
        let mut name = var_name.base.clone();
        let var = self.header_var(var_name);
        if self.eat_word("as") {
            name = display(&self.bare_name("the dimension's name")?.0);
        }
        self.punct("=")?;
        self.in_header = true;
        let extent = self.expr()?;
        self.in_header = false;
        let id = self.env.dims.push(Dim { name, extent, var });
        match dims.insert(var, id) {
            Some(_) => Err(twice("dimension", &shown, span)),
            None => Ok(()),
        }
    }

    /// `%a, %b]`
    fn dim_list(&mut self, dims: &Dims) -> Parse<Vec<DimId>> {
        self.list("]", &mut |p| {
            let (name, span) = p.binder()?;
            let shown = format!("%{}", display(&name));
            let var = p.var_ref(name, false, span)?;
            dims.get(&var).copied().ok_or_else(|| unknown("dimension", &shown, span))
        })
    }

    fn op(&mut self, dims: &Dims) -> Parse<Op> {
        let tensor = self.tensor_ref()?;
        self.punct("[")?;
        let spatial = self.dim_list(dims)?;
        self.punct("=")?;
        let (mut combiner, mut reduce) = (None, Vec::new());
        // `max[` begins a reduction, `max(` an expression.
        let users = self.is_word("reduce") && matches!(self.peek2(), Tok::At(_));
        if users || (matches!(self.peek(), Tok::Word(_)) && *self.peek2() == Tok::Punct("[")) {
            if !self.eat_word("over") {
                combiner = Some(self.combiner()?);
            }
            self.punct("[")?;
            reduce = self.dim_list(dims)?;
        }
        Ok(Op { tensor, spatial, reduce, combiner, value: self.expr()? })
    }

    fn schedule(&mut self) -> Parse<Schedule> {
        let name = display(&self.bare_name("the schedule's name")?.0);
        let mut features = Vec::new();
        if self.eat_word("for") {
            features.push(display(&self.bare_name("a feature")?.0));
            while self.eat_punct(",") {
                features.push(display(&self.bare_name("a feature")?.0));
            }
        }
        self.punct("{")?;
        let mut steps = Vec::new();
        while !self.eat_punct("}") {
            let start = self.span();
            let kind = self.step()?;
            steps.push(Step { span: self.since(start), ..Step::from(kind) });
        }
        Ok(Schedule { name, features, steps })
    }
}
