//! Elaboration: syntax tree to op graph. Resolves names, extents and types, inlines functions, and
//! gives every reduction and every function local an operator of its own.

mod access;
mod apply;
mod arith;
mod bounds;
mod combiner;
mod decl;
mod define;
mod recur;
mod value;

pub(crate) use bounds::in_bounds;

use crate::ast::{CombinerDef, Expr, FnDef, Ident, ItemKind, Program, Steps};
use crate::names::suggest;
use crate::parse::MAX_ERRORS;
use crate::parse::schedule::schedules;
use cora_ir::schedule::Span;
use cora_ir::{
    CombinerId, Diagnostic, DimId, EntityId, ExprId, Graph, Op, ParamId, Role, ScalarType, Tensor, TensorId, UfId,
    VarId,
};
use define::Draft;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;
use value::{Num, Val};

/// Greatest number of dimensions of a tensor, or arguments of an extent function.
const MAX_RANK: usize = 16;
/// Greatest number of bytes of a declared name; names of parts are longer.
const MAX_NAME: usize = 256;
/// Greatest number of tensors, so that those of a schedule fit what the runtime takes.
const MAX_TENSORS: usize = 1 << 13;

/// An elaborated program and what is suspicious about it.
#[derive(Clone, Debug)]
pub struct Elaborated {
    /// The op graph.
    pub graph: Graph,
    /// Diagnostics with codes `W....`: unused declarations, operators that no output needs.
    pub warnings: Vec<Diagnostic>,
}

/// What a `const` declaration is overridden with; the declaration keeps its kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ConstValue {
    /// An integer; a fraction's value too, where the declaration has a fraction.
    Int(i64),
    /// A fraction.
    Float(f64),
}

/// Elaborates a syntax tree; `consts` override `const` declarations by name.
///
/// # Errors
/// `E0108`, `E0113`, `E0201` to `E0242` and `E0251` to `E0255` for declarations and operators, `E0101` to `E0122` for
/// the steps of schedules; all that are found.
pub fn elaborate(
    name: &str,
    program: &Program,
    consts: &[(String, ConstValue)],
) -> Result<Elaborated, Vec<Diagnostic>> {
    let mut elab = Elab::new(name, program);
    elab.collect(consts);
    elab.declarations();
    elab.operators();
    elab.order_recurrences();
    elab.graph.schedules = schedules(program, &mut elab.diags);
    elab.outputs();
    elab.limits();
    if elab.diags.is_empty() {
        elab.used.extend(words_of_schedules(program));
        let warnings = elab.warnings();
        Ok(Elaborated { graph: elab.graph, warnings })
    } else {
        Err(elab.diags)
    }
}

/// The words of all schedules: formulas of steps name parameters and extent functions.
fn words_of_schedules(program: &Program) -> Vec<String> {
    let tokens = program.items.iter().filter_map(|i| match &i.kind {
        ItemKind::Schedule(_, _, Steps::Tokens(tokens)) | ItemKind::ScheduleFn(_, _, tokens) => Some(tokens),
        _ => None,
    });
    tokens.flatten().map(|t| t.text.clone()).collect()
}

/// What a declared name stands for.
#[derive(Clone, Debug)]
enum Entity {
    Const(Num),
    Param(ParamId),
    Extent(UfId),
    Dim(DimId),
    Tensor(TensorId),
    Fn(Rc<FnDef>),
    Combiner(Rc<CombinerDef>),
}

/// How far a name has been resolved.
#[derive(Clone, Debug)]
enum State {
    /// Declared by the item at this index, not looked at yet.
    Pending,
    /// Being resolved: meeting it again means a cycle.
    Busy,
    /// Resolved.
    Done(Entity),
    /// An operator further down.
    Later,
    /// Reported; using it is no further error.
    Poison,
}

struct Slot<'a> {
    state: State,
    decl: Decl<'a>,
    span: Span,
    kind: &'static str,
}

/// Where a name's meaning comes from.
#[derive(Clone, Copy)]
enum Decl<'a> {
    Item(usize),
    /// A dimension declared inside an index list, with its extent.
    InlineDim(&'a Expr),
    /// A `const` item with another value.
    Override(usize, ConstValue),
    None,
}

/// What kinds of things an expression may mention.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Mode {
    /// Constants.
    Const,
    /// Constants and parameters.
    Bound,
    /// Also dimensions and extent functions.
    Extent,
    /// Everything.
    Value,
}

/// The names that a function body sees besides the program's.
#[derive(Clone, Default)]
struct Scope {
    dims: Vec<(String, DimId)>,
    values: Vec<(String, Local)>,
}

#[derive(Clone)]
struct Local {
    /// Nothing if its definition failed.
    value: Option<Val>,
    /// The tensor and the component, where the local can be indexed.
    tensor: Option<(TensorId, u32)>,
    /// The components' names of a tuple, which are locals of their own.
    parts: Vec<String>,
}

impl Local {
    fn value(v: Val) -> Self {
        Self { value: Some(v), tensor: None, parts: Vec::new() }
    }
}

struct Elab<'a> {
    program: &'a Program,
    graph: Graph,
    diags: Vec<Diagnostic>,
    slots: BTreeMap<String, Slot<'a>>,
    used: BTreeSet<String>,
    /// Names whose resolution is under way, innermost last.
    stack: Vec<String>,
    mode: Mode,
    scope: Scope,
    /// Functions being inlined, innermost last.
    calls: Vec<String>,
    /// Function calls inlined so far.
    expansions: usize,
    /// Dimensions of each finished tensor.
    tensor_dims: HashMap<TensorId, Vec<DimId>>,
    /// The dimension of each variable.
    dim_of_var: HashMap<VarId, DimId>,
    /// Where each dimension was first mentioned in the current operator.
    dim_spans: BTreeMap<DimId, Span>,
    /// Accesses of the definition at hand, and where they are written.
    accesses: Vec<(ExprId, Span)>,
    /// Reductions and locals of the current operator.
    drafts: Vec<Draft>,
    /// The tensors of operators that were read before they were defined.
    early: BTreeMap<String, TensorId>,
    /// Those of them whose definitions state no type.
    assumed: BTreeSet<TensorId>,
    /// Name that the current definition's parts start with.
    prefix: String,
    /// The number from which parts of a name may be free.
    part_numbers: HashMap<String, u64>,
    /// Which explicit definition orders the parts' dimensions; 0 is the operator itself.
    frame: usize,
    frames: Vec<Option<Vec<DimId>>>,
    /// Depth and written-out size of each expression made so far.
    measures: HashMap<ExprId, (u32, u64)>,
    /// Values of shared builder expressions in the current operator (nothing: they have none).
    shared: HashMap<usize, Option<Val>>,
    /// Combiners by name and types of the components; nothing where there is something wrong.
    instances: HashMap<(String, Vec<ScalarType>), Option<CombinerId>>,
    /// Rust position of the builder call being elaborated.
    origin: Option<String>,
}

impl<'a> Elab<'a> {
    fn new(name: &str, program: &'a Program) -> Self {
        Self {
            program,
            graph: Graph { name: name.to_owned(), ..Graph::default() },
            diags: Vec::new(),
            slots: BTreeMap::new(),
            used: BTreeSet::new(),
            stack: Vec::new(),
            mode: Mode::Value,
            scope: Scope::default(),
            calls: Vec::new(),
            expansions: 0,
            tensor_dims: HashMap::new(),
            dim_of_var: HashMap::new(),
            dim_spans: BTreeMap::new(),
            accesses: Vec::new(),
            drafts: Vec::new(),
            early: BTreeMap::new(),
            assumed: BTreeSet::new(),
            prefix: String::new(),
            part_numbers: HashMap::new(),
            frame: 0,
            frames: Vec::new(),
            measures: HashMap::new(),
            shared: HashMap::new(),
            instances: HashMap::new(),
            origin: None,
        }
    }

    /// Records a mistake; gives nothing, so that `return self.error(...)` reads well.
    fn error<T>(&mut self, span: Span, d: Diagnostic) -> Option<T> {
        self.report(span, d);
        None
    }

    fn report(&mut self, span: Span, mut d: Diagnostic) {
        if span != Span::default() {
            d = d.at(span);
        } else if let Some(o) = &self.origin {
            d = d.note(format!("at {o}"));
        }
        if ["E0209", "E0210", "E0211"].contains(&d.code)
            && let Some(name) = self.assumed_here()
        {
            d = d.note(format!(
                "`{name}` is taken for f32 until it is defined: state its type, as in `{name}[..] : i32 = ..`"
            ));
        }
        // Shared and inlined expressions are seen several times.
        if !self.diags.contains(&d) {
            self.diags.push(d);
        }
    }

    /// Whether there are as many mistakes as are told.
    fn has_enough(&self) -> bool {
        self.diags.len() >= MAX_ERRORS
    }

    fn operators(&mut self) {
        let program = self.program;
        for item in &program.items {
            if self.has_enough() {
                break;
            }
            if let ItemKind::Op(def) = &item.kind {
                self.origin.clone_from(&item.origin);
                self.operator(def);
            }
        }
        self.origin = None;
    }

    fn outputs(&mut self) {
        let program = self.program;
        let mut any = false;
        for item in &program.items {
            self.origin.clone_from(&item.origin);
            if let ItemKind::Output(names) = &item.kind {
                any = true;
                for name in names {
                    if !self.has_enough() {
                        self.output(name);
                    }
                }
            }
        }
        if !any && self.diags.is_empty() && self.program.broken.is_empty() {
            // The last operator is the likeliest result; without any, the last thing that is said.
            let ops = || program.items.iter().filter(|i| matches!(i.kind, ItemKind::Op(_)));
            let last = ops().next_back().or(program.items.last());
            self.origin = last.and_then(|i| i.origin.clone());
            let d = Diagnostic::new("E0218", "the program has no output").hint("add `output T` for each result T");
            self.report(last.map_or_else(Span::default, |i| i.span), d);
        }
    }

    fn output(&mut self, name: &Ident) {
        self.used.insert(name.name.clone());
        let tensor = match self.slots.get(&name.name).map(|s| &s.state) {
            Some(State::Done(Entity::Tensor(t))) => Some(*t),
            Some(State::Poison) => return,
            Some(State::Done(_)) => None,
            _ => self.graph.env.tensor_named(&name.name),
        };
        let tensor = tensor.or_else(|| self.component_output(&name.name));
        let Some(t) = tensor else {
            let base = name.name.rsplit_once('.').and_then(|(base, _)| self.slots.get(base));
            if self.program.broken.contains(&name.name) || base.is_some_and(|s| matches!(s.state, State::Poison)) {
                return;
            }
            let names: Vec<String> = self.graph.env.tensors.iter().map(|(_, t)| t.name.clone()).collect();
            let d = Diagnostic::new("E0217", format!("output `{}` is not defined by any operator", name.name));
            let hint = match suggest(&name.name, names.iter().map(String::as_str)) {
                Some(s) => format!("did you mean `{s}`?"),
                None => format!("write an operator for it, `{}[..] = ..`", name.name),
            };
            self.report(name.span, d.hint(hint));
            return;
        };
        if let Some(parts) = self.part_names(t) {
            let _: Option<()> = self.not_one_value(&name.name, &parts, name.span);
            return;
        }
        match self.graph.env.tensors[t].role {
            Role::Temp => {
                self.graph.env.tensors[t].role = Role::Output;
                self.graph.outputs.push(t);
            }
            Role::Output => {
                let d = Diagnostic::new("E0219", format!("`{}` is already an output", name.name))
                    .hint("name each output once");
                self.report(name.span, d);
            }
            Role::Input | Role::ConstInput => {
                let d = Diagnostic::new("E0220", format!("output `{}` is an input", name.name))
                    .hint("outputs are results of operators");
                self.report(name.span, d);
            }
        }
    }

    /// A copy of a component of tuples, which is called like it.
    fn component_output(&mut self, name: &str) -> Option<TensorId> {
        let (source, part) = self.component(name)?;
        let env = &mut self.graph.env;
        let ty = env.part_types(source)[part as usize];
        let tensor = env.tensors.push(Tensor { name: name.to_owned(), ty, tuple: None, ..env.tensors[source].clone() });
        let spatial = self.tensor_dims.get(&source).cloned().unwrap_or_default();
        let index: Vec<ExprId> = spatial.iter().map(|&d| self.dim_var(d)).collect();
        let value = self.graph.env.pool.load_guarded((source, part), ty, index, None);
        self.tensor_dims.insert(tensor, spatial.clone());
        self.graph.ops.push(Op { tensor, spatial, reduce: Vec::new(), combiner: None, value });
        Some(tensor)
    }

    /// What the runtime takes of one program.
    fn limits(&mut self) {
        let mut long = Vec::new();
        for (name, slot) in self.slots.iter().filter(|(n, _)| n.len() > MAX_NAME) {
            let start: String = name.chars().take(20).collect();
            let d = Diagnostic::new("E0251", format!("the name `{start}...` has {} bytes", name.len()));
            long.push((slot.span, d.hint(format!("a name has at most {MAX_NAME}"))));
        }
        let count = self.graph.env.tensors.len();
        if count > MAX_TENSORS {
            let d =
                Diagnostic::new("E0251", format!("the program has {count} inputs, operators and parts of operators"));
            long.push((Span::default(), d.hint(format!("it has at most {MAX_TENSORS}"))));
        }
        let ranks = self.graph.env.tensors.iter().map(|(_, t)| ("tensor", &t.name, t.dims.len()));
        let arities = self.graph.env.ufs.iter().map(|(_, f)| ("extent function", &f.name, f.domain.len()));
        for (what, name, rank) in ranks.chain(arities).filter(|r| r.2 > MAX_RANK) {
            // A part of an operator stands where the operator does.
            let owner = self.slots.get(name).or_else(|| self.slots.get(name.split('.').next().unwrap_or_default()));
            let d = Diagnostic::new("E0251", format!("{what} `{name}` has {rank} dimensions"));
            long.push((owner.map_or(Span::default(), |s| s.span), d.hint(format!("it has at most {MAX_RANK}"))));
        }
        for (span, d) in long {
            self.report(span, d);
        }
    }

    fn warnings(&self) -> Vec<Diagnostic> {
        let mut out = Vec::new();
        for (name, slot) in &self.slots {
            if slot.kind != "operator" && !self.used.contains(name) {
                let d = Diagnostic::new("W0201", format!("{} `{name}` is never used", slot.kind));
                let d = d.hint("remove it, or use it in what an output needs");
                out.push(if slot.span == Span::default() { d } else { d.at(slot.span) });
            }
        }
        let mut live: BTreeSet<TensorId> = self.graph.outputs.iter().copied().collect();
        let mut before = 0;
        // Recurrences read what comes later.
        while before < live.len() {
            before = live.len();
            for op in self.graph.ops.iter().rev() {
                if live.contains(&op.tensor) {
                    self.graph.env.pool.walk(op.value, &mut |_, e| {
                        if let cora_ir::Expr::Load { tensor, .. } = e {
                            live.insert(*tensor);
                        }
                    });
                }
            }
        }
        for op in &self.graph.ops {
            let name = &self.graph.env.tensors[op.tensor].name;
            if !live.contains(&op.tensor)
                && let Some(slot) = self.slots.get(name)
            {
                let d = Diagnostic::new("W0202", format!("no output needs `{name}`"));
                let d = d.hint(format!("remove it, or write `output {name}`"));
                out.push(if slot.span == Span::default() { d } else { d.at(slot.span) });
            }
        }
        out.sort_by_key(|d| d.span.map_or((0, 0), |s| (s.start, s.end)));
        out
    }

    fn dim_var(&mut self, d: DimId) -> ExprId {
        let v = self.graph.env.dims[d].var;
        self.graph.env.pool.var(v)
    }

    /// The dimensions whose indices `e` mentions, in order of first appearance.
    fn dims_in(&self, e: ExprId) -> Vec<DimId> {
        self.graph.env.pool.vars_of(e).iter().filter_map(|v| self.dim_of_var.get(v).copied()).collect()
    }

    /// `e` with the variable of `dims[j]` replaced by `Arg(j)`.
    fn over_args(&mut self, e: ExprId, dims: &[DimId]) -> ExprId {
        let pool = &mut self.graph.env.pool;
        let map = dims.iter().enumerate().map(|(j, &d)| (self.graph.env.dims[d].var, pool.arg(j as u32))).collect();
        pool.substitute(e, &map)
    }

    fn dim_name(&self, d: DimId) -> String {
        self.graph.env.dims[d].name.clone()
    }

    /// The names of dimensions, for messages.
    fn dim_names(&self, dims: &[DimId]) -> String {
        dims.iter().map(|&d| self.graph.env.dims[d].name.as_str()).collect::<Vec<_>>().join(", ")
    }

    fn new_dim(&mut self, name: &str, extent: ExprId) -> DimId {
        let var = self.graph.env.new_var(name);
        let dim = self.graph.env.dims.push(cora_ir::Dim { name: name.to_owned(), extent, var });
        self.dim_of_var.insert(var, dim);
        debug_assert!(dim.index() < self.graph.env.vars.len());
        dim
    }
}
