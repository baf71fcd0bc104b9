//! The loop dialect, executed as it stands.

use crate::env::{Env, Role, Scope};
use crate::expr::Expr;
use crate::ids::{ExprId, TensorId};
use crate::interp::buffer::{Held, Memory};
use crate::interp::compile::compile;
use crate::interp::context::{Context, Size};
use crate::interp::copy::{copy_nest, is_unpadded, logical_view};
use crate::interp::error::{InterpError, Stage};
use crate::interp::machine::{Outer, execute};
use crate::interp::nest::{Leaf, Loop, Node, mark_strips, place_attachments, used_tensors};
use crate::interp::{Batch, Options, Output, Results};
use crate::loops::{Block, BlockRole, LoopModule, Stmt};
use crate::tuple::{Components, Reduction, split_tuples};
use std::sync::{Arc, PoisonError};

/// Executes a program in the loop dialect that [`crate::verify::verify_loops`] accepts (another one may panic), serially,
/// whatever the kinds of its loops.
///
/// # Errors
/// A batch that does not fit, an access outside a tensor's storage, an undefined value that decides
/// something or is found in a result, or too little memory.
pub fn run_loops(module: &LoopModule, batch: &Batch, options: &Options) -> Result<Results, InterpError> {
    let mut env = module.env.clone();
    let components = split_tuples(&mut env);
    let stored = env.tensors.clone();
    let mut nests: Vec<Vec<Node>> = module.body.iter().map(|s| vec![node(&mut env, &components, s)]).collect();
    let hosted = |t: &TensorId| is_host(&env, batch, *t) && !is_unpadded(&env, *t);
    let padded: Vec<TensorId> = env.tensors.ids().filter(hosted).collect();
    let views = with_views(&mut env, &padded, |env, t| Ok((t, env.tensors[t].role == Role::Output, None)))?;
    let env = env;
    let locals: Vec<TensorId> = stored.iter().filter(|(_, t)| t.scope != Scope::Global).map(|(id, _)| id).collect();
    place_attachments(&env, &mut nests, &locals);
    nests.iter_mut().for_each(|n| mark_strips(&env, n));

    let mut context = Context::new(&env, batch, options, Stage::Loop)?;
    let mut memory = Memory::new(env.tensors.len());
    let used = used_tensors(&env, &nests);
    for (t, tensor) in stored.iter() {
        if tensor.role != Role::Output && !used.contains(&t) {
            continue;
        }
        context.prepare_tensor(t)?;
        let is_input = matches!(tensor.role, Role::Input | Role::ConstInput);
        let sized_in_loop = tensor.dims.iter().any(|d| env.pool.any(d.storage, &mut |e| matches!(e, Expr::Var(_))));
        if is_input && !batch.inputs.contains_key(&t) {
            // An error where it is read.
        } else if is_input && is_unpadded(&env, t) {
            put_input(&mut context, &mut memory, t, t)?;
        } else if !sized_in_loop {
            let levels = context.levels(t, Size::Storage, &[], None, None)?;
            memory.put(t, context.hold(t, levels)?);
        }
    }
    run_between_views(&mut context, &mut memory, &views, &nests, &[], &[])?;
    results(&context, &mut memory, &views)
}

/// A tensor that the host gives or takes, and its form without padding.
pub(crate) struct View {
    pub tensor: TensorId,
    pub view: TensorId,
    pub out: bool,
    nest: Vec<Node>,
}

/// Whether the batch gives, or the host takes, `t`.
pub(crate) fn is_host(env: &Env, batch: &Batch, t: TensorId) -> bool {
    match env.tensors[t].role {
        Role::Input | Role::ConstInput => batch.inputs.contains_key(&t),
        Role::Output => true,
        Role::Temp => false,
    }
}

/// Adds views of `tensors` to `env`; `describe` gives each one's tensor, direction and flat offset.
pub(crate) fn with_views<T: Copy>(
    env: &mut Env,
    tensors: &[T],
    describe: impl Fn(&Env, T) -> Result<(TensorId, bool, Option<crate::ids::ExprId>), InterpError>,
) -> Result<Vec<View>, InterpError> {
    let mut views = Vec::new();
    for &t in tensors {
        let (tensor, out, offset) = describe(env, t)?;
        let view = logical_view(env, tensor);
        let nest = copy_nest(env, tensor, view, offset, out);
        views.push(View { tensor, view, out, nest });
    }
    Ok(views)
}

/// Puts the batch's elements of input `t` in memory as tensor `view`.
pub(crate) fn put_input<'a>(
    context: &mut Context<'a>,
    memory: &mut Memory<'a>,
    t: TensorId,
    view: TensorId,
) -> Result<(), InterpError> {
    context.prepare_tensor(view)?;
    let levels = context.levels(view, Size::Extent, &[], None, Some(memory))?;
    let buf = context.input(t, &levels)?;
    memory.put(view, Held { levels: Arc::new(levels), buf });
    Ok(())
}

/// A kernel's name, and the threads of its blocks along x and y.
pub(crate) type Grid = (String, [u32; 2]);

/// Copies inputs in, runs the nests, of which `grids` may be the kernels, copies results out.
///
/// Of the tables `built` nothing is known when the kernels begin; they must come out as they were.
pub(crate) fn run_between_views<'a>(
    context: &mut Context<'a>,
    memory: &mut Memory<'a>,
    views: &[View],
    nests: &[Vec<Node>],
    grids: &[Grid],
    built: &[TensorId],
) -> Result<(), InterpError> {
    for v in views.iter().filter(|v| !v.out) {
        if memory.get(v.tensor).is_none() {
            // Given, and not used.
            continue;
        }
        put_input(context, memory, v.tensor, v.view)?;
        run_nest(context, memory, &v.nest)?;
        memory.take(v.view);
    }
    let wanted = super::prelude::forget(memory, built);
    for (n, nest) in nests.iter().enumerate() {
        let grid = grids.get(n);
        run_on(context, memory, nest, grid.map_or([1, 1], |g| g.1))?;
        if let (Some(s), Some((kernel, _))) = (&context.shadow, grid) {
            s.lock().unwrap_or_else(PoisonError::into_inner).end(kernel.clone());
        }
    }
    super::prelude::check_built(context, memory, &wanted)?;
    for v in views.iter().filter(|v| v.out) {
        context.prepare_tensor(v.view)?;
        let levels = context.levels(v.view, Size::Extent, &[], None, Some(memory))?;
        memory.put(v.view, context.hold(v.view, levels)?);
        run_nest(context, memory, &v.nest)?;
        memory.take(v.tensor);
    }
    Ok(())
}

fn run_nest(context: &mut Context<'_>, memory: &mut Memory<'_>, nest: &[Node]) -> Result<(), InterpError> {
    run_on(context, memory, nest, [1, 1])
}

/// Runs a nest whose blocks have so many threads along x and y.
fn run_on(
    context: &mut Context<'_>,
    memory: &mut Memory<'_>,
    nest: &[Node],
    threads: [u32; 2],
) -> Result<(), InterpError> {
    let program = compile(context, nest)?;
    if let Some(s) = &context.shadow {
        s.lock().unwrap_or_else(PoisonError::into_inner).kernel(threads);
    }
    execute(context, &program, memory, Outer::All)
}

/// Takes the results out of memory, all elements of which must be defined.
pub(crate) fn results(context: &Context<'_>, memory: &mut Memory<'_>, views: &[View]) -> Result<Results, InterpError> {
    let mut outputs = Vec::new();
    for (tensor, info) in context.env.tensors.iter().filter(|(_, t)| t.role == Role::Output) {
        let source = views.iter().find(|v| v.out && v.tensor == tensor).map_or(tensor, |v| v.view);
        let Some(held) = memory.take(source) else {
            return Err(context.unsupported(format!("result `{}` is not in memory", info.name)));
        };
        if let Some(at) = held.buf.first_undefined() {
            return Err(context.undefined_output(tensor, &held.levels, at));
        }
        let data = held.buf.into_data();
        let ranges = std::iter::once(0..data.len()).collect();
        outputs.push(Output { tensor, data, outer: None, ranges });
    }
    Ok(Results { outputs, ..Results::default() })
}

fn node(env: &mut Env, components: &Components, s: &Stmt) -> Node {
    match s {
        Stmt::For(l) => {
            let extent = components.expr(&mut env.pool, l.extent);
            let body = l.body.iter().map(|s| node(env, components, s)).collect();
            Node::For(Loop::new(l.var, extent, Some(l.stage), body))
        }
        Stmt::Block(b) => Node::Leaf(leaf(env, components, b)),
    }
}

fn leaf(env: &mut Env, components: &Components, b: &Block) -> Leaf {
    let mut all = |es: &[ExprId]| es.iter().map(|&e| components.expr(&mut env.pool, e)).collect::<Vec<_>>();
    let bindings = all(&b.iters.iter().map(|i| i.binding).collect::<Vec<_>>());
    let (predicate, index, value) = (all(&b.predicate), all(&b.index), all(&[b.value])[0]);
    let targets = components.of(b.tensor);
    let (combine, value) = match b.role {
        BlockRole::Update(Reduction::Op(c)) => (Some(c), value),
        BlockRole::Update(r) => {
            let old: Vec<ExprId> = targets.iter().map(|&t| env.load(t, index.iter().copied())).collect();
            let old = env.pool.make_tuple(&old);
            (None, env.combined(r, old, value))
        }
        BlockRole::Compute | BlockRole::Init => (None, value),
    };
    let values = env.pool.components(value);
    let rest = targets.into_iter().zip(values.iter().copied()).skip(1).collect();
    let binds = b.iters.iter().map(|i| i.var).zip(bindings).collect();
    Leaf { binds, predicate, combine, rest, ..Leaf::store(b.tensor, index, values[0]) }
}
