//! Prints an op graph as calls of the Rust builder.

use super::expr::{Names, is_bare, unused};
use super::rust_expr::{rust, rust_value};
use super::{Declared, ExtentFunction, declared, pad_of, range_over};
use crate::names::is_reserved;
use cora_ir::schedule::{Binding, CopyAt, DimRef, LayoutDim, LoopRef, Part, StepKind};
use cora_ir::{Combiner, CombinerId, DimId, Expr, ExprId, Graph, Op, Reduction, Role, TensorDim, TensorId, VarId};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Rust identifiers of everything that the program declares.
pub(super) struct Idents {
    taken: BTreeSet<String>,
    pub(super) vars: BTreeMap<VarId, String>,
    /// Of parameters, extent functions and tensors, by name.
    pub(super) other: BTreeMap<String, String>,
}

const RUST_WORDS: [&str; 58] = [
    "as", "async", "await", "break", "const", "continue", "crate", "dyn", "else", "enum", "extern", "false", "fn",
    "for", "if", "impl", "in", "let", "loop", "match", "mod", "move", "mut", "pub", "ref", "return", "self", "static",
    "struct", "super", "trait", "true", "type", "unsafe", "use", "where", "while", "abstract", "become", "box", "do",
    "final", "gen", "macro", "override", "priv", "typeof", "unsized", "virtual", "yield", "try", "b", "s", "min",
    "max", "select", "l", "r",
];

impl Idents {
    fn fresh(&mut self, name: &str) -> String {
        let mut base = String::new();
        for c in name.chars() {
            if c == '.' {
                base.push('_');
            } else {
                base.push(c.to_ascii_lowercase());
            }
        }
        let bad =
            RUST_WORDS.contains(&base.as_str()) || is_reserved(&base) || base.starts_with(|c: char| !c.is_alphabetic());
        if bad {
            base.insert_str(0, "v_");
        }
        unused(&mut self.taken, &base)
    }

    fn declare(&mut self, name: &str) -> String {
        let id = self.fresh(name);
        self.other.insert(name.to_owned(), id.clone());
        id
    }
}

/// A Rust function that builds `graph` with [`crate::ProgramBuilder`]; it needs
/// `use cora_frontend::builder::*`.
pub fn to_builder_code(graph: &Graph) -> String {
    let mut names = Names::new(&graph.env);
    let mut ids = Idents { taken: BTreeSet::new(), vars: BTreeMap::new(), other: BTreeMap::new() };
    let plain: String = graph.name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    let function = ids.fresh(&plain);
    let mut out = format!("/// The program `{}`.\n", graph.name.escape_debug());
    let _ = writeln!(out, "pub fn {function}() -> Result<Graph, Vec<Diagnostic>> {{");
    let _ = writeln!(out, "    let mut b = ProgramBuilder::new({:?});", graph.name);
    for (_, p) in graph.env.params.iter() {
        let id = ids.declare(&p.name);
        let _ = writeln!(out, "    let {id} = b.param({:?}, {}..={});", p.name, p.lo, p.hi);
    }
    let inputs = declarations(&mut names, &mut ids, &mut out);
    for (t_id, t) in graph.env.tensors.iter() {
        let id = match t.role {
            Role::Input | Role::ConstInput => ids.declare(&t.name),
            Role::Output | Role::Temp => continue,
        };
        let method = if t.role == Role::Input { "input" } else { "const_input" };
        let dims = dim_list(&names, &ids, &inputs[&t_id], &t.dims);
        let _ = writeln!(out, "    let {id} = b.{method}({:?}, &[{dims}], ScalarType::{:?});", t.name, t.ty);
        if let Some((lo, hi)) = range_over(&mut names, t_id, &inputs[&t_id]) {
            let (lo, hi) = (rust_value(&mut names, &ids, lo), rust_value(&mut names, &ids, hi));
            let _ = writeln!(out, "    b.range({id}, {lo}..{hi});");
        }
    }
    for (c, _) in graph.env.combiners.iter() {
        combiner(&mut names, &mut ids, c, &mut out);
    }
    for (n, op) in graph.ops.iter().enumerate() {
        for later in graph.ops[n..].iter().filter(|o| graph.env.pool.reads(op.value, o.tensor)) {
            let t = &graph.env.tensors[later.tensor];
            if !ids.other.contains_key(&t.name) {
                let id = ids.declare(&t.name);
                let _ = writeln!(out, "    let {id} = b.later({:?}, ScalarType::{:?});", t.name, t.ty);
            }
        }
        match op.combiner {
            Some(Reduction::Tuple(c)) => tuples(&mut names, &mut ids, (graph, op), c, &mut out),
            _ => operator(&mut names, &mut ids, op, &mut out),
        }
    }
    for &t in &graph.outputs {
        let _ = writeln!(out, "    b.output({});", ids.other[&graph.env.tensors[t].name]);
    }
    for s in &graph.schedules {
        let _ = match s.features.as_slice() {
            [] => writeln!(out, "    b.schedule({:?}, |s| {{", s.name),
            features => writeln!(out, "    b.schedule_for({:?}, &{features:?}, |s| {{", s.name),
        };
        for step in &s.steps {
            let _ = writeln!(out, "        s.{};", step_call(&step.kind));
        }
        out.push_str("    });\n");
    }
    out.push_str("    b.finish()\n}\n");
    out
}

/// Dimensions in their order, each after the extent functions that it calls; then the other functions. The dimensions
/// of each input.
fn declarations(names: &mut Names, ids: &mut Idents, out: &mut String) -> BTreeMap<TensorId, Vec<DimId>> {
    let Declared { mut extents, inputs, invented } = declared(names);
    let mut dims: Vec<DimId> = names.env.dims.ids().collect();
    dims.rotate_right(invented);
    for d in dims {
        let (extent, var) = (names.env.dims[d].extent, names.env.dims[d].var);
        let mut calls = BTreeSet::new();
        names.env.pool.walk(extent, &mut |_, e| {
            if let Expr::Call(f, _) = e {
                calls.insert(names.env.ufs[*f].name.clone());
            }
        });
        extents.retain(|e| !calls.contains(&e.0) || !extent_function(names, ids, e, out));
        let extent = rust(names, ids, extent);
        let name = names.dim(d).to_owned();
        let id = ids.fresh(&name);
        let _ = writeln!(out, "    let {id} = b.dim({name:?}, {extent});");
        ids.vars.insert(var, id);
    }
    for e in &extents {
        extent_function(names, ids, e, out);
    }
    inputs
}

/// Declares an extent function; not if a dimension that it is over is not declared yet.
fn extent_function(
    names: &mut Names,
    ids: &mut Idents,
    (name, args, lo, hi): &ExtentFunction,
    out: &mut String,
) -> bool {
    let dims: Option<Vec<String>> = args.iter().map(|&d| ids.vars.get(&names.env.dims[d].var).cloned()).collect();
    let Some(dims) = dims else { return false };
    let plain = names.env.pool.as_int(*lo).is_some() && names.env.pool.as_int(*hi).is_some();
    let value = if plain { rust } else { rust_value };
    let (lo, hi) = (value(names, ids, *lo), value(names, ids, *hi));
    let id = ids.declare(name);
    let _ = writeln!(out, "    let {id} = b.extent({name:?}, &[{}], {lo}..={hi});", dims.join(", "));
    true
}

/// The dimensions `at`, with what the storage of a tensor pads them to.
fn dim_list(names: &Names, ids: &Idents, at: &[DimId], dims: &[TensorDim]) -> String {
    let one = |(&at, d): (&DimId, &TensorDim)| {
        let id = &ids.vars[&names.env.dims[at].var];
        match pad_of(&names.env, d) {
            Some(pad) => format!("{id}.padded({pad})"),
            None => id.clone(),
        }
    };
    at.iter().zip(dims).map(one).collect::<Vec<_>>().join(", ")
}

/// An expression of type `Value`, of exactly its type.
fn typed(names: &mut Names, ids: &Idents, e: ExprId) -> String {
    let value = rust_value(names, ids, e);
    let ty = names.env.pool.ty(e).scalar;
    if is_bare(&names.env, e) { format!("{value}.cast(ScalarType::{ty:?})") } else { value }
}

fn combiner(names: &mut Names, ids: &mut Idents, c: CombinerId, out: &mut String) {
    let f = names.env.combiners[c].clone();
    let part = |names: &mut Names, p: &cora_ir::tuple::Part| {
        let e = names.env.pool.lit(p.identity);
        format!("({:?}, ScalarType::{:?}, {})", p.name, p.ty, rust_value(names, ids, e))
    };
    let parts: Vec<String> = f.parts.iter().map(|p| part(names, p)).collect();
    let n = f.parts.len();
    names.operands = ["l", "r"].iter().flat_map(|s| (0..n).map(move |k| format!("{s}[{k}].clone()"))).collect();
    let results: Vec<String> = f.body.iter().map(|&e| typed(names, ids, e)).collect();
    let method = if f.commutative { "commutative_combiner" } else { "combiner" };
    let (name, parts, results) = (&f.name, parts.join(", "), results.join(", "));
    let id = ids.declare(name);
    let _ = writeln!(out, "    let {id} = b.{method}({name:?}, [{parts}], |l, r| [{results}]);");
}

fn tuples(names: &mut Names, ids: &mut Idents, (graph, op): (&Graph, &Op), c: CombinerId, out: &mut String) {
    let name = names.env.tensors[op.tensor].name.clone();
    let dims = dim_list(names, ids, &op.spatial, &names.env.tensors[op.tensor].dims);
    let terms: Vec<String> = names.env.pool.components(op.value).iter().map(|&e| typed(names, ids, e)).collect();
    let over: Vec<String> = op.reduce.iter().map(|&d| ids.vars[&names.env.dims[d].var].clone()).collect();
    let f = names.env.combiners[c].clone();
    let (of, over, terms) = (ids.other[&f.name].clone(), over.join(", "), terms.join(", "));
    let id = ids.declare(&name);
    let _ = writeln!(out, "    let {id} = b.reduce_tuples({name:?}, &[{dims}], {of}, &[{over}], |_, _| [{terms}]);");
    let reads = |k: u32| {
        let of = |e: &Expr| matches!(e, Expr::Load { tensor, part, .. } if (*tensor, *part) == (op.tensor, k));
        graph.ops.iter().any(|o| graph.env.pool.any(o.value, &mut |e| of(e)))
    };
    for (_, p) in (0..).zip(&f.parts).filter(|(k, _)| reads(*k)) {
        let part = ids.declare(&format!("{name}.{}", p.name));
        let _ = writeln!(out, "    let {part} = b.part({id}, {:?});", p.name);
    }
}

fn operator(names: &mut Names, ids: &mut Idents, op: &Op, out: &mut String) {
    let name = names.env.tensors[op.tensor].name.clone();
    let dims = dim_list(names, ids, &op.spatial, &names.env.tensors[op.tensor].dims);
    let bare = is_bare(&names.env, op.value);
    let value = if bare { rust_value(names, ids, op.value) } else { rust(names, ids, op.value) };
    let ty = names.env.tensors[op.tensor].ty;
    let value = if bare { format!("{value}.cast(ScalarType::{ty:?})") } else { value };
    let id = ids.declare(&name);
    let _ = match op.combiner {
        None => writeln!(out, "    let {id} = b.compute({name:?}, &[{dims}], |_| {value});"),
        Some(c) => {
            let over: Vec<String> = op.reduce.iter().map(|&d| ids.vars[&names.env.dims[d].var].clone()).collect();
            let over = over.join(", ");
            let c = c.op().unwrap_or(Combiner::Sum);
            writeln!(out, "    let {id} = b.reduce({name:?}, &[{dims}], Combiner::{c:?}, &[{over}], |_, _| {value});")
        }
    };
}

/// The layout of a copy as a Rust array.
fn layout_list(layout: &[LayoutDim]) -> String {
    let dim = |d: &DimRef| match d {
        DimRef::At(position) => position.to_string(),
        DimRef::Named(name) => format!("{name:?}"),
    };
    let one = |d: &LayoutDim| match d.part {
        Part::Whole => format!("LayoutDim::whole({})", dim(&d.dim)),
        Part::Div(c) => format!("LayoutDim::div({}, {c})", dim(&d.dim)),
        Part::Mod(c) => format!("LayoutDim::modulo({}, {c})", dim(&d.dim)),
    };
    format!("[{}]", layout.iter().map(one).collect::<Vec<_>>().join(", "))
}

fn step_call(step: &StepKind) -> String {
    let at = |r: &LoopRef| format!("\"{}.{}\"", r.stage, r.name);
    match step {
        StepKind::Split { target, factor, outer, inner, tail } => {
            format!("split({}, {factor}, {outer:?}, {inner:?}, Tail::{tail:?})", at(target))
        }
        StepKind::Fuse { loops, name, pad } => {
            let loops: Vec<String> = loops.iter().map(at).collect();
            format!("fuse(&[{}], {name:?}, {pad})", loops.join(", "))
        }
        StepKind::Reorder { stage, order } => format!("reorder({stage:?}, &{order:?})"),
        StepKind::Vectorize { target, width } => format!("vectorize({}, {width:?})", at(target)),
        StepKind::Unroll { target } => format!("unroll({})", at(target)),
        StepKind::Parallel { target } => format!("parallel({})", at(target)),
        StepKind::Bind { target, to, atomic } => {
            let to = match to {
                Binding::Axis(axis) => format!("Axis(Axis::{axis:?})"),
                to => format!("{to:?}"),
            };
            format!("bind{}({}, Binding::{to})", if *atomic { "_atomic" } else { "" }, at(target))
        }
        StepKind::PadLoop { target, multiple } => format!("pad_loop({}, {multiple})", at(target)),
        StepKind::SplitDim { tensor, dim, factor, outer, inner } => {
            format!("split_dim({tensor:?}, {dim:?}, {factor}, {outer:?}, {inner:?})")
        }
        StepKind::FuseDims { tensor, dims, name } => format!("fuse_dims({tensor:?}, &{dims:?}, {name:?})"),
        StepKind::ReorderDims { tensor, order } => format!("reorder_dims({tensor:?}, &{order:?})"),
        StepKind::PadDim { tensor, dim, multiple } => format!("pad_dim({tensor:?}, {dim:?}, {multiple})"),
        StepKind::ComputeAt { stage, at: r } => format!("compute_at({stage:?}, {})", at(r)),
        StepKind::ComputeInline { stage } => format!("compute_inline({stage:?})"),
        StepKind::Precompute { stage, tensor, name } => format!("precompute({stage:?}, {tensor:?}, {name:?})"),
        StepKind::CacheWrite { stage, name, scope, at: r } => {
            format!("cache_write({stage:?}, {name:?}, Scope::{scope:?}, {})", at(r))
        }
        StepKind::CacheRead { stage, tensor, name, scope, at: r, layout, access } => {
            let order = layout_list(layout);
            match (r, access) {
                (CopyAt::Setup, _) => {
                    format!("cache_read_setup({stage:?}, {tensor:?}, {access:?}, {name:?}, &{order})")
                }
                (CopyAt::Before, _) => {
                    format!("cache_read_before({stage:?}, {tensor:?}, {access:?}, {name:?}, &{order})")
                }
                (CopyAt::Loop(r), None) => {
                    format!("cache_read({stage:?}, {tensor:?}, {name:?}, Scope::{scope:?}, {}, &{order})", at(r))
                }
                (CopyAt::Loop(r), Some(n)) => format!(
                    "cache_read_nth({stage:?}, {tensor:?}, {n}, {name:?}, Scope::{scope:?}, {}, &{order})",
                    at(r)
                ),
            }
        }
        StepKind::SetScope { stage, scope } => format!("set_scope({stage:?}, Scope::{scope:?})"),
        StepKind::Rfactor { target, name } => format!("rfactor({}, {name:?})", at(target)),
        StepKind::HoistLoads { target, on } => format!("hoist_loads({}, {on})", at(target)),
        StepKind::Remap { .. }
        | StepKind::OpSplit { .. }
        | StepKind::Tile { .. }
        | StepKind::Pack { .. }
        | StepKind::PadLoopTo { .. } => {
            format!("text({:?})", crate::print::schedule::print_step(step))
        }
        StepKind::Hfuse { loops, name } => {
            let loops: Vec<String> = loops.iter().map(at).collect();
            format!("hfuse(&[{}], {name:?})", loops.join(", "))
        }
        StepKind::Tensorize { target, intrinsic } => format!("tensorize({}, {:?})", at(target), intrinsic.get().name),
        StepKind::Offload { target } => format!("offload({})", at(target)),
        StepKind::BulkCopy { target } => format!("bulk_copy({})", at(target)),
        StepKind::Swizzle { tensor } => format!("swizzle({tensor:?})"),
        StepKind::Prefetch { stage, tensor, at: r, inside: None, distance, locality } => {
            format!("prefetch({stage:?}, {tensor:?}, {}, {distance}, {locality})", at(r))
        }
        StepKind::Prefetch { stage, tensor, at: r, inside: Some(l), distance, locality } => {
            format!("prefetch_in({stage:?}, {tensor:?}, ({}, {distance}), {}, {locality})", at(r), at(l))
        }
        StepKind::DoubleBuffer { stage, slots } => format!("double_buffer({stage:?}, {slots})"),
        StepKind::StorageAlign { tensor, dim, multiple, offset } => {
            format!("storage_align({tensor:?}, {dim:?}, {multiple}, {offset})")
        }
        StepKind::Peel { target, few: None } => format!("peel({})", at(target)),
        StepKind::Peel { target, few: Some(n) } => format!("peel_few({}, {n})", at(target)),
        StepKind::Relax { target, zero: false } => format!("relax({})", at(target)),
        StepKind::Relax { target, zero: true } => format!("relax_zero({})", at(target)),
    }
}
