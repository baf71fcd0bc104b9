//! Prints op graphs: as canonical `.cora` text and as calls of the Rust builder.

mod expr;
mod rust;
mod rust_expr;
mod schedule;

pub use rust::to_builder_code;
pub use schedule::print_step;

use cora_ir::tuple::Part;
use cora_ir::{
    CombinerId, DimId, EntityId, Env, Expr, ExprId, Graph, Op, Reduction, Role, TensorDim, TensorId, UfDef, UfId,
};
use expr::{Names, text};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The canonical text of `graph`: constants folded, functions inlined, every operator's dimensions
/// and type written out. Parsing it gives a graph that prints the same.
pub fn print_program(graph: &Graph) -> String {
    let mut names = Names::new(&graph.env);
    let mut out = String::new();
    for (_, p) in graph.env.params.iter() {
        let _ = writeln!(out, "param {} in {}..={}", p.name, p.lo, p.hi);
    }
    let Declared { extents, inputs, invented } = declared(&mut names);
    for (name, args, lo, hi) in &extents {
        let args: Vec<String> = args.iter().map(|&d| names.dim(d).to_owned()).collect();
        let (lo, hi) = (text(&mut names, *lo), text(&mut names, *hi));
        let _ = writeln!(out, "extent {name}({}) in {lo}..={hi}", args.join(", "));
    }
    let dims: Vec<(DimId, ExprId)> = names.env.dims.iter().map(|(id, d)| (id, d.extent)).collect();
    let (known, extra) = dims.split_at(dims.len() - invented);
    for &(d, extent) in extra.iter().chain(known) {
        let extent = text(&mut names, extent);
        let _ = writeln!(out, "dim {} = {extent}", names.dim(d));
    }
    for (id, t) in graph.env.tensors.iter() {
        let keyword = match t.role {
            Role::Input => "input",
            Role::ConstInput => "const input",
            Role::Output | Role::Temp => continue,
        };
        let dims = index_list(&names, &inputs[&id], &t.dims);
        let _ = write!(out, "{keyword} {}[{dims}] : {}", t.name, t.ty);
        if let Some((lo, hi)) = range_over(&mut names, id, &inputs[&id]) {
            let (lo, hi) = (text(&mut names, lo), text(&mut names, hi));
            let _ = write!(out, " in {lo}..{hi}");
        }
        out.push('\n');
    }
    for (c, _) in graph.env.combiners.iter() {
        combiner(&mut names, c, &mut out);
    }
    for op in &graph.ops {
        operator(&mut names, op, &mut out);
    }
    if !graph.outputs.is_empty() {
        let outputs: Vec<&str> = graph.outputs.iter().map(|&t| graph.env.tensors[t].name.as_str()).collect();
        let _ = writeln!(out, "output {}", outputs.join(", "));
    }
    for s in &graph.schedules {
        let features = if s.features.is_empty() { String::new() } else { format!(" for {}", s.features.join(", ")) };
        let _ = writeln!(out, "schedule {}{features} {{", s.name);
        for step in &s.steps {
            let _ = writeln!(out, "  {}", print_step(&step.kind));
        }
        out.push_str("}\n");
    }
    out
}

/// `combiner f(m : f32 = -inf)(a, b) = (..)`
fn combiner(names: &mut Names, c: CombinerId, out: &mut String) {
    let f = names.env.combiners[c].clone();
    let part = |p: &Part| format!("{} : {} = {}", p.name, p.ty, expr::literal(p.identity));
    let parts: Vec<String> = f.parts.iter().map(part).collect();
    names.operands = ["a", "b"].iter().flat_map(|s| f.parts.iter().map(move |p| format!("{s}.{}", p.name))).collect();
    let results: Vec<String> = f.body.iter().map(|&e| expr::anchored(names, e, 0)).collect();
    let word = if f.commutative { " commutative" } else { "" };
    let _ = writeln!(out, "combiner {}({})(a, b){word} = ({})", f.name, parts.join(", "), results.join(", "));
}

fn operator(names: &mut Names, op: &Op, out: &mut String) {
    if let Some(Reduction::Tuple(c)) = op.combiner {
        let terms = names.env.pool.components(op.value);
        let terms: Vec<String> = terms.iter().map(|&e| expr::anchored(names, e, 0)).collect();
        let over: Vec<&str> = op.reduce.iter().map(|&d| names.dim(d)).collect();
        let (t, f) = (&names.env.tensors[op.tensor], &names.env.combiners[c].name);
        let dims = index_list(names, &op.spatial, &t.dims);
        let _ = writeln!(out, "{}[{dims}] = {f}({})({})", t.name, over.join(", "), terms.join(", "));
        return;
    }
    let t = &names.env.tensors[op.tensor];
    let (name, ty) = (t.name.clone(), t.ty);
    let _ = write!(out, "{name}[{}] : {ty} = ", index_list(names, &op.spatial, &t.dims));
    match op.combiner {
        None => out.push_str(&text(names, op.value)),
        Some(c) => {
            let over: Vec<&str> = op.reduce.iter().map(|&d| names.dim(d)).collect();
            let _ = write!(out, "{}({}) ", names.env.reduction_name(c), over.join(", "));
            out.push_str(&expr::term(names, op.value, op.reduce.len()));
        }
    }
    out.push('\n');
}

/// The dimensions `at`, with what the storage of a tensor pads them to.
fn index_list(names: &Names, at: &[DimId], dims: &[TensorDim]) -> String {
    let one = |(&at, d): (&DimId, &TensorDim)| match pad_of(&names.env, d) {
        Some(pad) => format!("{} pad {pad}", names.dim(at)),
        None => names.dim(at).to_owned(),
    };
    at.iter().zip(dims).map(one).collect::<Vec<_>>().join(", ")
}

/// The declared range of an input over the dimensions `at`.
fn range_over(names: &mut Names, t: TensorId, at: &[DimId]) -> Option<(ExprId, ExprId)> {
    let index: Vec<ExprId> = at.iter().map(|&d| names.env.pool.var(names.env.dims[d].var)).collect();
    names.env.range_at(t, &index)
}

/// What a dimension's storage is rounded up to a multiple of.
fn pad_of(env: &Env, d: &TensorDim) -> Option<i64> {
    if d.storage == d.extent {
        return None;
    }
    match env.pool.get(d.storage) {
        Expr::Bin(cora_ir::BinOp::Mul, _, m) => env.pool.as_int(*m),
        // Both are constants: any multiple that rounds one to the other, a power of two if there is one.
        _ => {
            let (extent, storage) = (env.pool.as_int(d.extent)?, env.pool.as_int(d.storage).filter(|n| *n > 0)?);
            let rounds = |m: &i64| extent.checked_add(m - 1).is_some_and(|e| e.div_euclid(*m) * m == storage);
            (1..32).map(|k| 1 << k).find(rounds).or(Some(storage))
        }
    }
}

/// The domain of an extent function, as dimensions to be written between its parentheses.
type ExtentFunction = (String, Vec<DimId>, ExprId, ExprId);

/// What a program declares before its operators.
struct Declared {
    extents: Vec<ExtentFunction>,
    /// The dimensions of each input.
    inputs: BTreeMap<TensorId, Vec<DimId>>,
    /// How many dimensions had to be invented (added to the environment's end) because no declared dimension has the
    /// extent of a function's argument or of an input's dimension.
    invented: usize,
}

fn declared(names: &mut Names) -> Declared {
    let declared = names.env.dims.len();
    let mut extents = Vec::new();
    for uf in names.env.ufs.ids().collect::<Vec<UfId>>() {
        let UfDef::Extent { lo, hi } = names.env.ufs[uf].def else { continue };
        let (name, domain) = (names.env.ufs[uf].name.clone(), names.env.ufs[uf].domain.clone());
        let args = match find_args(&mut names.env, declared, &domain) {
            Some(args) => args,
            None => invent_args(names, &name, &domain),
        };
        extents.push((name, args, lo, hi));
    }
    let mut inputs = BTreeMap::new();
    for t in names.env.tensors.ids().collect::<Vec<TensorId>>() {
        let tensor = names.env.tensors[t].clone();
        if !matches!(tensor.role, Role::Input | Role::ConstInput) {
            continue;
        }
        let domain: Vec<ExprId> = tensor.dims.iter().map(|d| d.extent).collect();
        let found =
            args_of_names(&mut names.env, &tensor.dims).or_else(|| find_args(&mut names.env, declared, &domain));
        inputs.insert(t, found.unwrap_or_else(|| invent_args(names, &tensor.name, &domain)));
    }
    Declared { extents, inputs, invented: names.env.dims.len() - declared }
}

/// The dimensions with the names of a tensor's, if those have its extents.
fn args_of_names(env: &mut Env, dims: &[TensorDim]) -> Option<Vec<DimId>> {
    let mut found: Vec<DimId> = Vec::new();
    let mut actuals = Vec::new();
    for d in dims {
        let (id, dim) = env.dims.iter().find(|(id, dim)| dim.name == d.name && !found.contains(id))?;
        let (extent, var) = (dim.extent, dim.var);
        if env.pool.instantiate(d.extent, &actuals) != extent {
            return None;
        }
        found.push(id);
        actuals.push(env.pool.var(var));
    }
    Some(found)
}

/// How many places are tried for a function's arguments before dimensions of its own are declared for them.
const MAX_TRIES: u32 = 100_000;

/// Declared dimensions with the extents `domain` (over `Arg`s).
fn find_args(env: &mut Env, declared: usize, domain: &[ExprId]) -> Option<Vec<DimId>> {
    let deps = |e: ExprId| (0..domain.len()).filter(|&a| env.pool.any(e, &mut |x| *x == Expr::Arg(a as u32))).collect();
    let deps: Vec<Vec<usize>> = domain.iter().map(|&e| deps(e)).collect();
    // An extent that depends on others says which dimensions those are.
    let order: Vec<usize> = (0..domain.len()).rev().filter(|&j| !deps[j].is_empty()).collect();
    let slots = vec![None; domain.len()];
    let mut search = Places { env, declared, domain, deps, slots, tries: MAX_TRIES };
    let found = search.dependent(&order);
    let slots = search.slots;
    if found { slots.into_iter().collect() } else { None }
}

/// A search for dimensions with given extents, by backtracking.
struct Places<'a> {
    env: &'a mut Env,
    declared: usize,
    domain: &'a [ExprId],
    /// The arguments that each extent depends on.
    deps: Vec<Vec<usize>>,
    slots: Vec<Option<DimId>>,
    tries: u32,
}

impl Places<'_> {
    fn free(&self) -> Vec<DimId> {
        (0..self.declared).map(DimId::from_index).filter(|d| !self.slots.contains(&Some(*d))).collect()
    }

    /// Fills the places `order`, whose extents depend on others, with the places that they depend on; then the rest.
    fn dependent(&mut self, order: &[usize]) -> bool {
        let Some((&j, rest)) = order.split_first() else { return self.independent() };
        let given = self.slots[j];
        let candidates = given.map_or_else(|| self.free(), |d| vec![d]);
        for d in candidates {
            self.slots[j] = Some(d);
            if self.outer(j, d, 0, rest) {
                return true;
            }
            self.slots[j] = given;
        }
        false
    }

    /// Fills the places that place `j`, with dimension `d`, depends on from the `n`-th on.
    fn outer(&mut self, j: usize, d: DimId, n: usize, rest: &[usize]) -> bool {
        if self.tries == 0 {
            return false;
        }
        self.tries -= 1;
        let extent = self.env.dims[d].extent;
        let Some(&a) = self.deps[j].get(n) else {
            let vars: Vec<_> = self.slots.iter().map(|s| s.map(|d| self.env.dims[d].var)).collect();
            let pool = &mut self.env.pool;
            let place = |v: Option<cora_ir::VarId>| match v {
                Some(v) => pool.var(v),
                None => pool.int(0),
            };
            let actuals: Vec<ExprId> = vars.into_iter().map(place).collect();
            return pool.instantiate(self.domain[j], &actuals) == extent && self.dependent(rest);
        };
        if self.slots[a].is_some() {
            return self.outer(j, d, n + 1, rest);
        }
        let vars = self.env.pool.vars_of(extent);
        for o in self.free().into_iter().filter(|&o| vars.contains(&self.env.dims[o].var)).collect::<Vec<_>>() {
            self.slots[a] = Some(o);
            if self.outer(j, d, n + 1, rest) {
                return true;
            }
            self.slots[a] = None;
        }
        false
    }

    /// Fills the places whose extents depend on nothing: those of one extent are all alike.
    fn independent(&mut self) -> bool {
        let before = self.slots.clone();
        for j in (0..self.domain.len()).filter(|&j| self.deps[j].is_empty()).collect::<Vec<_>>() {
            let candidates = self.slots[j].map_or_else(|| self.free(), |d| vec![d]);
            let fits = candidates.into_iter().find(|&d| self.env.dims[d].extent == self.domain[j]);
            if fits.is_none() {
                self.slots = before;
                return false;
            }
            self.slots[j] = fits;
        }
        true
    }
}

/// Dimensions of their own for what is called `of`.
fn invent_args(names: &mut Names, of: &str, domain: &[ExprId]) -> Vec<DimId> {
    let mut args = Vec::new();
    let mut actuals = Vec::new();
    for (j, &extent) in domain.iter().enumerate() {
        let name = names.fresh(&format!("{of}_{j}"));
        let extent = names.env.pool.instantiate(extent, &actuals);
        let var = names.env.new_var(name.clone());
        args.push(names.env.dims.push(cora_ir::Dim { name, extent, var }));
        names.var_names.insert(var, names.env.dims[args[j]].name.clone());
        actuals.push(names.env.pool.var(var));
    }
    args
}

/// The name of a tensor, or of a component of one of tuples.
fn read_name(env: &Env, tensor: TensorId, part: u32) -> String {
    let t = &env.tensors[tensor];
    match t.tuple {
        Some(c) => format!("{}.{}", t.name, env.combiners[c].parts[part as usize].name),
        None => t.name.clone(),
    }
}

/// Whether a read of `tensor` may be an index without a cast in the text.
fn is_gather(env: &Env, tensor: TensorId, guarded: bool) -> bool {
    let t = &env.tensors[tensor];
    t.ty.is_int() && (guarded || t.range.is_some())
}
