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
use std::fmt::Write;

/// The canonical text of `graph`: constants folded, functions inlined, every operator's dimensions
/// and type written out. Parsing it gives a graph that prints the same.
pub fn print_program(graph: &Graph) -> String {
    let mut names = Names::new(&graph.env);
    let mut out = String::new();
    for (_, p) in graph.env.params.iter() {
        let _ = writeln!(out, "param {} in {}..={}", p.name, p.lo, p.hi);
    }
    let (extents, extra) = extent_functions(&mut names);
    for (name, args, lo, hi) in &extents {
        let args: Vec<String> = args.iter().map(|&d| names.dim(d).to_owned()).collect();
        let (lo, hi) = (text(&mut names, *lo), text(&mut names, *hi));
        let _ = writeln!(out, "extent {name}({}) in {lo}..={hi}", args.join(", "));
    }
    let dims: Vec<(DimId, ExprId)> = names.env.dims.iter().map(|(id, d)| (id, d.extent)).collect();
    let (known, extra) = dims.split_at(dims.len() - extra);
    for &(d, extent) in extra.iter().chain(known) {
        let extent = text(&mut names, extent);
        let _ = writeln!(out, "dim {} = {extent}", names.dim(d));
    }
    for (_, t) in graph.env.tensors.iter() {
        let keyword = match t.role {
            Role::Input => "input",
            Role::ConstInput => "const input",
            Role::Output | Role::Temp => continue,
        };
        let dims = index_list(&names.env, &t.dims);
        let _ = write!(out, "{keyword} {}[{dims}] : {}", t.name, t.ty);
        if let Some((lo, hi)) = t.range {
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
        let _ = writeln!(out, "schedule {} {{", s.name);
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
        let dims = index_list(&names.env, &t.dims);
        let _ = writeln!(out, "{}[{dims}] = {f}({})({})", t.name, over.join(", "), terms.join(", "));
        return;
    }
    let t = &names.env.tensors[op.tensor];
    let (name, ty) = (t.name.clone(), t.ty);
    let _ = write!(out, "{name}[{}] : {ty} = ", index_list(&names.env, &names.env.tensors[op.tensor].dims));
    match op.combiner {
        None => out.push_str(&text(names, op.value)),
        Some(c) => {
            let over: Vec<&str> = op.reduce.iter().map(|&d| names.dim(d)).collect();
            let _ = write!(out, "{}({}) ", names.env.reduction_name(c), over.join(", "));
            out.push_str(&expr::term(names, op.value));
        }
    }
    out.push('\n');
}

fn index_list(env: &Env, dims: &[TensorDim]) -> String {
    let one = |d: &TensorDim| match pad_of(env, d) {
        Some(pad) => format!("{} pad {pad}", d.name),
        None => d.name.clone(),
    };
    dims.iter().map(one).collect::<Vec<_>>().join(", ")
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

/// All extent functions; the number tells how many dimensions had to be invented (added to the
/// environment's end) because no declared dimension has an argument's extent.
fn extent_functions(names: &mut Names) -> (Vec<ExtentFunction>, usize) {
    let declared = names.env.dims.len();
    let mut out = Vec::new();
    for uf in names.env.ufs.ids().collect::<Vec<UfId>>() {
        let UfDef::Extent { lo, hi } = names.env.ufs[uf].def else { continue };
        let domain = names.env.ufs[uf].domain.clone();
        let mut args = Vec::new();
        if !find_args(&mut names.env, declared, &domain, &mut args) {
            args = invent_args(names, uf, &domain);
        }
        out.push((names.env.ufs[uf].name.clone(), args, lo, hi));
    }
    (out, names.env.dims.len() - declared)
}

/// Looks for declared dimensions with the extents `domain` (over `Arg`s), by backtracking.
fn find_args(env: &mut Env, declared: usize, domain: &[ExprId], args: &mut Vec<DimId>) -> bool {
    let j = args.len();
    let Some(&extent) = domain.get(j) else { return true };
    let actuals: Vec<ExprId> = args.iter().map(|&d| env.dims[d].var).map(|v| env.pool.var(v)).collect();
    let wanted = env.pool.instantiate(extent, &actuals);
    for d in (0..declared).map(DimId::from_index) {
        if env.dims[d].extent == wanted && !args.contains(&d) {
            args.push(d);
            if find_args(env, declared, domain, args) {
                return true;
            }
            args.pop();
        }
    }
    false
}

fn invent_args(names: &mut Names, uf: UfId, domain: &[ExprId]) -> Vec<DimId> {
    let mut args = Vec::new();
    let mut actuals = Vec::new();
    for (j, &extent) in domain.iter().enumerate() {
        let name = format!("{}_{j}", names.env.ufs[uf].name);
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
