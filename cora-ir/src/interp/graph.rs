//! The op graph, evaluated naively: what a program means.

use crate::env::Env;
use crate::expr::Expr;
use crate::graph::{Graph, Op};
use crate::ids::{EntityId, ExprId, TensorId, VarId};
use crate::interp::buffer::{Buffer, Cells, Held, Memory, Slot, room};
use crate::interp::compile::compile;
use crate::interp::context::{Context, Size, held_bytes};
use crate::interp::error::{InterpError, Stage};
use crate::interp::instr::{LANES, Program};
use crate::interp::levels::Levels;
use crate::interp::machine::{Outer, execute};
use crate::interp::nest::{Coefficients, Fold, Folding, Leaf, Loop, Node};
use crate::interp::{Batch, Options, Output, Results};
use crate::recurrence::{Recurrence, recurrences};
use crate::tuple::{Components, Reduction, split_tuples};
use rayon::prelude::*;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// Worker threads, at most.
const MOST_THREADS: usize = 1024;

/// Evaluates a graph that [`crate::verify::verify_graph`] accepts (another one may panic) by its definition: operators in
/// order, each in f64, each element rounded to its tensor's type when it is stored.
///
/// # Errors
/// A batch that does not fit, a read outside a tensor's extents, or too little memory.
pub fn run_graph(graph: &Graph, batch: &Batch, options: &Options) -> Result<Results, InterpError> {
    let mut env = graph.env.clone();
    for (_, d) in graph.env.dims.iter() {
        env.pool.var(d.var);
    }
    let recurrences = recurrences(graph);
    let (graph, components) = &split(graph, &mut env);
    let env = &env;
    let mut context = Context::new(env, batch, options, Stage::Graph)?;
    let needs = needs(graph, (components, &recurrences), &mut context, options)?;
    let mut held: Vec<Option<Held<'_>>> = env.tensors.ids().map(|_| None).collect();
    let pool = worker_pool(options, &context)?;
    for (k, op) in graph.ops.iter().enumerate() {
        let Some(rows) = needs.get(&op.tensor) else { continue };
        check(op, &context)?;
        let recurrence = recurrences.iter().find(|r| r.ops.contains(&k));
        let members: Vec<TensorId> =
            recurrence.iter().flat_map(|r| &graph.ops[r.ops.clone()]).map(|o| o.tensor).collect();
        for t in reads(&context, op) {
            if held[t.index()].is_none() && !members.contains(&t) {
                if op_of(graph, components, t).is_some() {
                    let name = context.tensor_name(t);
                    return Err(context.unsupported(format!("`{name}` is read before it is defined")));
                }
                held[t.index()] = Some(input(&mut context, t)?);
            }
        }
        let mut done = std::slice::from_ref(op);
        let (targets, results) = match recurrence {
            // All of it at once, after what its last operator reads.
            Some(r) if k + 1 < r.ops.end => continue,
            Some(r) => {
                done = &graph.ops[r.ops.clone()];
                let results = recur(&mut context, done, r, &held)?;
                (members, results)
            }
            None => {
                let rows: Option<Vec<i64>> = rows.as_ref().map(|r| r.iter().copied().collect());
                let targets = components.of(op.tensor);
                let results = evaluate(&mut context, op, &targets, rows.as_deref(), &held, &pool)?;
                (targets, results)
            }
        };
        for (t, result) in targets.into_iter().zip(results) {
            held[t.index()] = Some(result);
        }
        let read: BTreeSet<TensorId> = done.iter().flat_map(|o| reads(&context, o)).collect();
        for t in read {
            let later =
                graph.ops[k + 1..].iter().any(|o| needs.contains_key(&o.tensor) && reads(&context, o).contains(&t));
            if later || graph.outputs.contains(&t) {
                continue;
            }
            // Inputs are borrowed from the batch.
            if let (Some(dead), Some(_)) = (held[t.index()].take(), op_of(graph, components, t)) {
                context.release(held_bytes(&dead.levels));
            }
        }
    }
    outputs(graph, &mut context, &needs, held)
}

/// The graph whose operators over tuples give each component to a tensor of its own. The value of such an operator is
/// the new tuple, over `Operand(0..)` for the old one.
fn split(graph: &Graph, env: &mut Env) -> (Graph, Components) {
    let types: Vec<_> = env.tensors.ids().map(|t| env.part_types(t)).collect();
    let components = split_tuples(env);
    let mut graph = graph.clone();
    for op in &mut graph.ops {
        op.value = components.expr(&mut env.pool, op.value);
        if let Some(r @ Reduction::Tuple(_)) = op.combiner {
            let types = types[op.tensor.index()].iter().enumerate();
            let old: Vec<ExprId> = types.map(|(k, &ty)| env.pool.operand(k as u32, ty)).collect();
            let old = env.pool.make_tuple(&old);
            op.value = env.combined(r, old, op.value);
        }
    }
    (graph, components)
}

/// The operator that defines `t`, or the tuple that `t` is a component of.
fn op_of<'g>(graph: &'g Graph, components: &Components, t: TensorId) -> Option<&'g Op> {
    graph.ops.iter().find(|o| o.tensor == t || components.rest(o.tensor).contains(&t))
}

/// The outermost indices needed of each tensor: all, or some.
type Needs = FxHashMap<TensorId, Option<BTreeSet<i64>>>;

fn needs(
    graph: &Graph,
    (components, recurrences): (&Components, &[Recurrence]),
    context: &mut Context<'_>,
    options: &Options,
) -> Result<Needs, InterpError> {
    let (env, mut needs) = (context.env, Needs::default());
    for &t in &graph.outputs {
        let Some(n) = options.only_outer else {
            needs.insert(t, None);
            continue;
        };
        let Some(first) = env.tensors[t].dims.first() else {
            needs.insert(t, None);
            continue;
        };
        let extent = context.size(first.extent, &Memory::default(), &env.tensors[t].name)?;
        require(&mut needs, t, Some(evenly(n, extent)));
    }
    for (k, op) in graph.ops.iter().enumerate().rev() {
        let members = recurrences.iter().find(|r| r.ops.contains(&k)).map_or(0..0, |r| r.ops.clone());
        if graph.ops[members.clone()].iter().any(|o| needs.contains_key(&o.tensor)) {
            graph.ops[members].iter().for_each(|o| require(&mut needs, o.tensor, None));
        }
        for &t in components.rest(op.tensor) {
            if let Some(rows) = needs.get(&t).cloned() {
                require(&mut needs, op.tensor, rows);
            }
        }
        let Some(rows) = needs.get(&op.tensor).cloned() else { continue };
        let outermost = op.spatial.first().map(|&d| env.dims[d].var);
        env.pool.walk(op.value, &mut |_, node| {
            let Expr::Load { tensor, index, .. } = node else { return };
            let same = index.first().and_then(|&i| env.pool.as_var(i));
            let rows = if same.is_some() && same == outermost { rows.clone() } else { None };
            require(&mut needs, *tensor, rows);
        });
    }
    Ok(needs)
}

fn require(needs: &mut Needs, t: TensorId, rows: Option<BTreeSet<i64>>) {
    let merged = match (needs.remove(&t), rows) {
        (None, rows) => rows,
        (Some(Some(mut a)), Some(b)) => {
            a.extend(b);
            Some(a)
        }
        _ => None,
    };
    needs.insert(t, merged);
}

/// `n` indices spread evenly over `0..extent`, both ends among them.
fn evenly(n: usize, extent: i64) -> BTreeSet<i64> {
    let n = i64::try_from(n).unwrap_or(i64::MAX);
    if n >= extent {
        return (0..extent).collect();
    }
    (0..n)
        .map(|k| if n == 1 { 0 } else { (i128::from(k) * i128::from(extent - 1) / i128::from(n - 1)) as i64 })
        .collect()
}

fn reads(context: &Context<'_>, op: &Op) -> Vec<TensorId> {
    let mut out = Vec::new();
    context.env.pool.walk(op.value, &mut |_, n| {
        if let Expr::Load { tensor: t, .. } = n
            && !out.contains(t)
        {
            out.push(*t);
        }
    });
    out
}

fn check(op: &Op, context: &Context<'_>) -> Result<(), InterpError> {
    let name = || context.tensor_name(op.tensor);
    if op.spatial.len() != context.env.tensors[op.tensor].dims.len() {
        return Err(context.unsupported(format!("the definition of `{}` has another rank than the tensor", name())));
    }
    if op.combiner.is_none() && !op.reduce.is_empty() {
        return Err(context.unsupported(format!("`{}` is reduced without a combiner", name())));
    }
    Ok(())
}

fn input<'a>(context: &mut Context<'a>, t: TensorId) -> Result<Held<'a>, InterpError> {
    context.prepare_tensor(t)?;
    let levels = context.levels(t, Size::Extent, &[], None, None)?;
    let buf = context.input(t, &levels)?;
    Ok(Held { levels: Arc::new(levels), buf })
}

fn worker_pool(options: &Options, context: &Context<'_>) -> Result<Option<rayon::ThreadPool>, InterpError> {
    if options.threads == 1 {
        return Ok(None);
    }
    let threads = options.threads.min(MOST_THREADS);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    pool.map(Some).map_err(|e| context.unsupported(format!("worker threads: {e}")))
}

fn outputs<'a>(
    graph: &Graph,
    context: &mut Context<'a>,
    needs: &Needs,
    mut held: Vec<Option<Held<'a>>>,
) -> Result<Results, InterpError> {
    let mut outputs = Vec::new();
    for (k, &tensor) in graph.outputs.iter().enumerate() {
        let result = match held[tensor.index()].take() {
            Some(h) => h,
            None => input(context, tensor)?,
        };
        let rows = match needs.get(&tensor) {
            Some(Some(rows)) if graph.op_of(tensor).is_some() => Some(rows),
            _ => None,
        };
        let (outer, ranges) = match rows {
            Some(rows) => {
                let whole = context.levels(tensor, Size::Extent, &[], None, None)?;
                let range = |&i: &i64| whole.outer_start(i) as usize..whole.outer_start(i + 1) as usize;
                (Some(rows.iter().copied().collect()), rows.iter().map(range).collect())
            }
            None => (None, std::iter::once(0..result.buf.len()).collect()),
        };
        // A tensor may be listed twice.
        if graph.outputs[k + 1..].contains(&tensor) {
            held[tensor.index()] = Some(result.clone());
        }
        outputs.push(Output { tensor, data: result.buf.into_data(), outer, ranges });
    }
    Ok(Results { outputs, ..Results::default() })
}

/// What is known about one operator before it is compiled.
struct Shape {
    spatial: Vec<(VarId, ExprId)>,
    reduce: Vec<(VarId, ExprId)>,
    /// Typical extents, spatial ones first.
    typical: Vec<i64>,
}

fn shape(context: &mut Context<'_>, op: &Op) -> Result<Shape, InterpError> {
    let env = context.env;
    let dim = |&d: &crate::ids::DimId| (env.dims[d].var, env.dims[d].extent);
    let (spatial, reduce): (Vec<_>, Vec<_>) =
        (op.spatial.iter().map(dim).collect(), op.reduce.iter().map(dim).collect());
    let mut middle = Vec::new();
    let mut typical = Vec::new();
    for &(var, extent) in spatial.iter().chain(&reduce) {
        context.prepare(extent)?;
        let n = context.scalars(None).int(extent, &[], &middle)?.unwrap_or(64).max(0);
        middle.push((var, n / 2));
        typical.push(n);
    }
    Ok(Shape { spatial, reduce, typical })
}

/// Whether the last spatial loop gives the lanes (else the last reduced one does): the cheaper of
/// the two by a rough count of nanoseconds a term.
fn lanes_are_spatial(context: &Context<'_>, op: &Op, s: &Shape, partial: bool, around: usize) -> bool {
    if s.spatial.len() == around {
        return false;
    }
    let (Some(&(spatial, _)), Some(&(reduced, _))) = (s.spatial.last(), s.reduce.last()) else {
        return !s.spatial.is_empty();
    };
    let varies = s.reduce.iter().any(|&(_, e)| context.env.pool.uses_var(e, spatial));
    if varies || (partial && s.spatial.len() == 1) {
        return false;
    }
    let cost = |var: VarId, typical: i64| {
        let lanes = typical.clamp(1, LANES as i64) as f64;
        let aliases = FxHashMap::default();
        let mut c = Coefficients { env: context.env, var, aliases: &aliases, memo: FxHashMap::default() };
        let mut ns = 60.0 / lanes;
        context.env.pool.walk(op.value, &mut |_, node| {
            let Expr::Load { index, .. } = node else { return };
            let all: Vec<Option<i64>> = index.iter().map(|&i| c.of(i)).collect();
            ns += match all.split_last() {
                Some((Some(1), rest)) if rest.iter().all(|&r| r == Some(0)) => 0.3,
                _ if all.iter().all(|&r| r == Some(0)) => 15.0 / lanes,
                _ => 3.0,
            };
        });
        ns
    };
    let terms: i64 = s.typical[s.spatial.len()..].iter().fold(1, |a, &n| a.saturating_mul(n.max(1)));
    let by_spatial = cost(spatial, s.typical[s.spatial.len() - 1]);
    let by_reduced = cost(reduced, *s.typical.last().unwrap_or(&1)) + 0.3 + 100.0 / terms as f64;
    by_spatial <= by_reduced
}

/// The loops of an operator inside those over its first `around` dimensions.
fn nest(
    context: &Context<'_>,
    op: &Op,
    (targets, index): (&[TensorId], Vec<ExprId>),
    s: &Shape,
    partial: bool,
    around: usize,
) -> Vec<Node> {
    let spatial_lanes = lanes_are_spatial(context, op, s, partial, around);
    let values = context.env.pool.components(op.value);
    let mut leaf = Leaf::store(op.tensor, index, values[0]);
    leaf.rest = targets.iter().zip(values).skip(1).map(|(&t, v)| (t, v)).collect();
    if let Some(reduction) = op.combiner {
        let (combiner, strip) = match reduction {
            Reduction::Op(c) => (Folding::Op(c), !spatial_lanes && !s.reduce.is_empty()),
            Reduction::Tuple(c) => {
                (Folding::Tuple(context.env.combiners[c].parts.iter().map(|p| p.identity).collect()), false)
            }
        };
        leaf.fold = Some(Fold { combiner, loops: s.reduce.clone(), strip });
    }
    // A strip of lanes goes outside the loops that its extent does not depend on: what a reduction
    // reads for one strip stays in cache.
    let mut order: Vec<usize> = (around..s.spatial.len()).collect();
    if spatial_lanes
        && op.combiner.is_some()
        && let Some(last) = order.pop()
    {
        let pool = &context.env.pool;
        let needed = s.spatial.iter().rposition(|&(v, _)| pool.uses_var(s.spatial[last].1, v));
        order.insert(needed.map_or(0, |n| (n + 1).saturating_sub(around)), last);
    }
    let mut nodes = vec![Node::Leaf(leaf)];
    for k in order.into_iter().rev() {
        let (var, extent) = s.spatial[k];
        let strip = spatial_lanes && k + 1 == s.spatial.len();
        let l = Loop { strip, outer: k == 0, ..Loop::new(var, extent, Some(op.tensor), nodes) };
        nodes = vec![Node::For(l)];
    }
    nodes
}

/// The index at which an operator writes.
fn index(context: &Context<'_>, s: &Shape) -> Result<Vec<ExprId>, InterpError> {
    let index = s.spatial.iter().map(|&(var, _)| context.env.pool.lookup(&Expr::Var(var)));
    let index: Option<Vec<ExprId>> = index.collect();
    index.ok_or_else(|| context.unsupported("a dimension whose variable was never used"))
}

/// Evaluates the operators of a recurrence, position by position.
fn recur<'a>(
    context: &mut Context<'a>,
    ops: &[Op],
    r: &Recurrence,
    held: &[Option<Held<'a>>],
) -> Result<Vec<Held<'a>>, InterpError> {
    let mut nodes = Vec::new();
    let mut memory = Memory { slots: held.iter().map(|h| h.as_ref().map_or(Slot::Absent, Slot::Shared)).collect() };
    let mut around = Vec::new();
    for op in ops {
        context.prepare_tensor(op.tensor)?;
        let levels = Arc::new(context.levels(op.tensor, Size::Extent, &[], None, None)?);
        context.charge_levels(op.tensor, &levels)?;
        let buf = Buffer::untracked(context.env.tensors[op.tensor].ty, levels.total as usize)?;
        memory.put(op.tensor, Held { levels, buf });
        let s = shape(context, op)?;
        let index = index(context, &s)?;
        nodes.extend(nest(context, op, (&[op.tensor], index), &s, false, r.dims.len()));
        around = s.spatial[..r.dims.len()].to_vec();
    }
    for (var, extent) in around.into_iter().rev() {
        nodes = vec![Node::For(Loop::new(var, extent, ops.last().map(|o| o.tensor), nodes))];
    }
    let program = compile(context, &nodes)?;
    execute(context, &program, &mut memory, Outer::All)?;
    let taken = ops.iter().map(|op| {
        let done = memory.take(op.tensor).ok_or_else(|| context.unsupported("a lost result"))?;
        Ok(Held { levels: done.levels.clone(), buf: done.buf.into_owned() })
    });
    taken.collect()
}

/// Evaluates one operator, for all outermost indices or for `rows`.
fn evaluate<'a>(
    context: &mut Context<'a>,
    op: &Op,
    targets: &[TensorId],
    rows: Option<&[i64]>,
    held: &[Option<Held<'a>>],
    pool: &Option<rayon::ThreadPool>,
) -> Result<Vec<Held<'a>>, InterpError> {
    let env = context.env;
    context.prepare_tensor(op.tensor)?;
    let levels = Arc::new(context.levels(op.tensor, Size::Extent, &[], rows, None)?);
    targets.iter().try_for_each(|&t| context.charge_levels(t, &levels))?;
    let s = shape(context, op)?;
    let index = index(context, &s)?;
    let nodes = nest(context, op, (targets, index), &s, rows.is_some(), 0);
    let program = compile(context, &nodes)?;

    let terms = s.typical[s.spatial.len()..].iter().fold(1i64, |a, &n| a.saturating_mul(n.max(1)));
    let chunks = match pool {
        Some(pool) if levels.total.saturating_mul(terms) > 1 << 16 => chunks(&levels, 8 * pool.current_num_threads()),
        _ => std::iter::once(0..levels.outer_len()).collect(),
    };
    let context = &*context;
    let run = |ranks: &Range<i64>| evaluate_part(context, targets, &program, &levels, ranks, rows.is_some(), held);
    let parts: Vec<Result<Vec<Buffer<'static>>, InterpError>> = match pool {
        Some(pool) if chunks.len() > 1 => pool.install(|| chunks.par_iter().map(run).collect()),
        _ => chunks.iter().map(run).collect(),
    };
    let parts = parts.into_iter().collect::<Result<Vec<_>, _>>()?;
    let one = parts.len() == 1;
    let mut of_target: Vec<Vec<Buffer<'static>>> = targets.iter().map(|_| Vec::new()).collect();
    for part in parts {
        part.into_iter().zip(&mut of_target).for_each(|(buf, all)| all.push(buf));
    }
    let whole = |(&t, mut parts): (&TensorId, Vec<Buffer<'static>>)| {
        let only = if one { parts.pop() } else { None };
        let joined = || join(env.tensors[t].ty, levels.total as usize, parts);
        Ok(Held { levels: levels.clone(), buf: only.map_or_else(joined, Ok)? })
    };
    targets.iter().zip(of_target).map(whole).collect()
}

/// Ranges of outermost ranks with about as many elements each.
fn chunks(levels: &Levels, n: usize) -> Vec<Range<i64>> {
    let target = (levels.total / n.max(1) as i64).max(1);
    let mut out = Vec::new();
    let mut lo = 0;
    for hi in 1..=levels.outer_len() {
        if levels.outer_start(hi) - levels.outer_start(lo) >= target || hi == levels.outer_len() {
            out.push(lo..hi);
            lo = hi;
        }
    }
    if out.is_empty() {
        out.push(0..levels.outer_len());
    }
    out
}

fn evaluate_part(
    context: &Context<'_>,
    targets: &[TensorId],
    program: &Program,
    levels: &Arc<Levels>,
    ranks: &Range<i64>,
    partial: bool,
    held: &[Option<Held<'_>>],
) -> Result<Vec<Buffer<'static>>, InterpError> {
    let (lo, hi) = (levels.outer_start(ranks.start), levels.outer_start(ranks.end));
    let slots = held.iter().map(|h| h.as_ref().map_or(Slot::Absent, Slot::Shared)).collect();
    let mut memory = Memory { slots };
    for &t in targets {
        let mut buf = Buffer::untracked(context.env.tensors[t].ty, (hi - lo) as usize)?;
        buf.first = lo;
        memory.put(t, Held { levels: levels.clone(), buf });
    }
    let list: Vec<i64> = if partial { ranks.clone().map(|r| levels.outer_index(r)).collect() } else { Vec::new() };
    let outer = if partial { Outer::List(&list) } else { Outer::Range(ranks.start, ranks.end) };
    execute(context, program, &mut memory, outer)?;
    let mut out = Vec::new();
    for &t in targets {
        let done = memory.take(t).map(|h| h.buf);
        let mut buf = done.ok_or_else(|| context.unsupported("a lost result"))?.into_owned();
        buf.first = 0;
        out.push(buf);
    }
    Ok(out)
}

fn join(ty: crate::types::ScalarType, len: usize, parts: Vec<Buffer<'static>>) -> Result<Buffer<'static>, InterpError> {
    let mut all = Buffer::untracked(ty, 0)?;
    match &mut all.cells {
        Cells::F(v) => *v = room(len)?.into(),
        Cells::I(v) => *v = room(len)?.into(),
    }
    for part in parts {
        match (&mut all.cells, part.cells) {
            (Cells::F(v), Cells::F(p)) => v.to_mut().extend_from_slice(&p),
            (Cells::I(v), Cells::I(p)) => v.to_mut().extend_from_slice(&p),
            _ => {}
        }
    }
    Ok(all)
}
