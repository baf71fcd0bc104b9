//! The storage dialect, executed as it stands.

use crate::env::{Env, Role, Scope};
use crate::expr::Expr;
use crate::ids::{ExprId, TensorId};
use crate::interp::buffer::Memory;
use crate::interp::context::Context;
use crate::interp::error::{InterpError, Stage};
use crate::interp::grid::{Shadow, SlotSync, Sync};
use crate::interp::levels::Levels;
use crate::interp::loops::{Grid, is_host, results, run_between_views, with_views};
use crate::interp::nest::{Leaf, Loop, Node, mark_strips, place_attachments};
use crate::interp::prelude::build_table;
use crate::interp::tile::{self, Factors};
use crate::interp::{Batch, BufferUse, Options, Results};
use crate::loops::{Axis, LoopKind};
use crate::storage::{Beside, Buffer, Kernel, Stmt, StorageModule};
use crate::types::{BinOp, Combiner};
use std::sync::{Mutex, PoisonError};

/// Executes a program in the storage dialect that [`crate::verify::verify_storage`] accepts (another one may panic): its prelude,
/// then its kernels, serially.
///
/// # Errors
/// As [`crate::interp::run_loops`]; besides, a prelude table that does not have its declared size.
pub fn run_storage(module: &StorageModule, batch: &Batch, options: &Options) -> Result<Results, InterpError> {
    let mut env = module.env.clone();
    let hosts: Vec<&Buffer> = module.buffers.iter().filter(|b| is_host(&env, batch, b.tensor)).collect();
    let views = with_views(&mut env, &hosts, |env, b| match b.offset {
        Some(offset) => Ok((b.tensor, env.tensors[b.tensor].role == Role::Output, Some(offset))),
        None => Err(InterpError::Unsupported {
            stage: Stage::Storage,
            what: format!("`{}` is an input or a result and has no offset", env.tensors[b.tensor].name),
        }),
    })?;
    let factors = Factors::new(&mut env, module);
    let kernels = per_thread(&mut env, module, factors);
    let env = env;
    let mut nests: Vec<Vec<Node>> = kernels.iter().map(|k| nodes(&env, &k.body, factors)).collect();
    let locals: Vec<TensorId> =
        module.buffers.iter().map(|b| b.tensor).filter(|&t| env.tensors[t].scope != Scope::Global).collect();
    place_attachments(&env, &mut nests, &locals);
    let mut context = Context::new(&env, batch, options, Stage::Storage)?;
    if options.races && (module.is_grid() || is_parallel(module)) {
        let other = if module.is_grid() { "another block" } else { "another iteration of the parallel loop" };
        context.declared = module.env.tensors.len();
        context.shadow = Some(Mutex::new(Shadow::new(shared(module), other)));
    } else {
        nests.iter_mut().for_each(|n| mark_strips(&env, n));
    }
    let mut memory = Memory::new(env.tensors.len());
    for table in &module.tables {
        build_table(&mut context, &mut memory, table)?;
    }
    for b in &module.buffers {
        let missing = matches!(env.tensors[b.tensor].role, Role::Input | Role::ConstInput)
            && !batch.inputs.contains_key(&b.tensor);
        if missing || memory.get(b.tensor).is_some() {
            continue;
        }
        let elems = context.size(b.elems, &memory, &env.tensors[b.tensor].name)?.max(0);
        let copies = kernels.iter().flat_map(|k| &k.copies).find(|c| c.0 == b.tensor).map_or(1, |c| c.1);
        let elems = elems.saturating_mul(copies);
        if elems > context.room() {
            return Err(context.too_large(b.tensor));
        }
        let mut held = context.hold(b.tensor, Levels::flat(elems))?;
        if options.usage && env.tensors[b.tensor].scope != Scope::Global && copies == 1 {
            held.buf.remember()?;
        }
        memory.put(b.tensor, held);
    }
    for t in factors.into_iter().flat_map(Factors::tensors) {
        memory.put(t, context.hold(t, Levels::flat(Factors::ELEMENTS))?);
    }
    let grids: Vec<Grid> = module.kernels.iter().map(|k| (k.name.clone(), rows(module, k))).collect();
    run_between_views(&mut context, &mut memory, &views, &nests, &grids, &built(module))?;
    let mut found = results(&context, &mut memory, &views)?;
    for &tensor in locals.iter().filter(|_| options.usage) {
        let written = memory.get(tensor).and_then(|held| held.buf.ever_written());
        found.used.extend(written.map(|written| BufferUse { tensor, written }));
    }
    if let Some(shadow) = context.shadow.take() {
        found.shared = shadow.into_inner().unwrap_or_else(PoisonError::into_inner).traffic();
    }
    Ok(found)
}

/// The tables that kernels write.
fn built(module: &StorageModule) -> Vec<TensorId> {
    let writes =
        |t: TensorId| module.kernels.iter().flat_map(|k| &k.body).any(|s| s.any(&mut |s| s.writes().contains(&t)));
    module.tables.iter().map(|t| t.tensor).filter(|&t| writes(t)).collect()
}

/// The threads of a kernel's blocks along x and y.
fn rows(module: &StorageModule, k: &Kernel) -> [u32; 2] {
    k.threads(&module.env).map_or([1, 1], |[x, y, _]| [x as u32, y as u32])
}

/// Whether a loop's iterations are spread over workers.
fn is_parallel(module: &StorageModule) -> bool {
    let mut found = false;
    let parallel = |s: &Stmt| matches!(s, Stmt::For { kind: LoopKind::Parallel, .. });
    module.kernels.iter().flat_map(|k| &k.body).for_each(|s| s.walk(&mut |s| found |= parallel(s)));
    found
}

/// What threads (`false`) or blocks as well (`true`) share, by tensor.
fn shared(module: &StorageModule) -> Vec<Option<bool>> {
    let written = |t: TensorId| !matches!(module.env.tensors[t].role, Role::Input | Role::ConstInput);
    let of = |t: TensorId| match module.env.tensors[t].scope {
        Scope::Global => Some(true),
        Scope::Shared => Some(false),
        Scope::Local | Scope::Reg => None,
    };
    module.env.tensors.ids().map(|t| of(t).filter(|_| written(t) && module.buffer(t).is_some())).collect()
}

/// A kernel whose threads have instances of their own of what is private to them.
struct PerThread {
    body: Vec<Stmt>,
    /// Private tensors that outlive a thread loop, and the number of instances.
    copies: Vec<(TensorId, i64)>,
}

fn per_thread(env: &mut Env, module: &StorageModule, factors: Option<Factors>) -> Vec<PerThread> {
    let mut out = Vec::new();
    for k in &module.kernels {
        let mut p = PerThread { body: plain(env, &k.body), copies: Vec::new() };
        if let Some(threads) = k.threads(env).filter(|_| k.is_grid()) {
            let private: Vec<&Buffer> = module
                .buffers
                .iter()
                .filter(|b| matches!(env.tensors[b.tensor].scope, Scope::Local | Scope::Reg))
                .collect();
            let (sizes, spanning) = spanning(env, &private, &p.body);
            p.copies = spanning.iter().map(|&t| (t, threads.iter().product())).collect();
            let mut at = [None; 3];
            p.body.iter_mut().for_each(|s| instances(env, s, (&spanning, &sizes), threads, &mut at, factors));
        }
        out.push(p);
    }
    out
}

/// The statements with products of matrices as the loops that they mean.
fn plain(env: &mut Env, body: &[Stmt]) -> Vec<Stmt> {
    let mut out = Vec::new();
    for s in body {
        match s {
            Stmt::Gemm(g) => out.extend(g.as_loops(env)),
            Stmt::Tile(t) if t.intrinsic.get().lanes == 1 => out.extend(t.as_loops(env)),
            // What is stored next, as many elements as the box has, is the engine's doing.
            Stmt::Bulk(b) => out.extend([s.clone(), b.as_loops(env)]),
            Stmt::For { var, extent, kind, body } => {
                out.push(Stmt::For { var: *var, extent: *extent, kind: *kind, body: plain(env, body) });
            }
            Stmt::If { cond, then, other } => {
                out.push(Stmt::If { cond: *cond, then: plain(env, then), other: plain(env, other) });
            }
            s => out.push(s.clone()),
        }
    }
    out
}

/// The private tensors that statements outside one single outermost thread loop use, and parts of tuples with them.
fn spanning(env: &Env, private: &[&Buffer], body: &[Stmt]) -> (Vec<ExprId>, Vec<TensorId>) {
    let uses = |s: &Stmt, t: TensorId| {
        let loads = |e| env.pool.any(e, &mut |n| matches!(n, Expr::Load { tensor, .. } if *tensor == t));
        s.any(&mut |s| s.writes().contains(&t) || s.named_reads().contains(&t) || s.exprs().into_iter().any(loads))
    };
    fn regions<'s>(body: &'s [Stmt], out: &mut Vec<&'s Stmt>) {
        for s in body {
            match s {
                Stmt::For { kind, body, .. } if kind.is_thread() && !body.iter().any(has_threads) => out.push(s),
                Stmt::For { .. } | Stmt::If { .. } => s.bodies().for_each(|b| regions(b, out)),
                s => out.push(s),
            }
        }
    }
    let mut parts = Vec::new();
    regions(body, &mut parts);
    let exchanged = |s: &Stmt, t: TensorId| {
        let mut found = false;
        s.walk(&mut |s| match s {
            Stmt::Shuffle { to, from, .. } => found |= *to == t || *from == t,
            Stmt::Tile(tile) => found |= tile.c.tensor == t,
            _ => {}
        });
        found
    };
    let several =
        |t: TensorId| parts.iter().filter(|s| uses(s, t)).count() > 1 || parts.iter().any(|s| exchanged(s, t));
    // Parts of tuples that are stored together have one index.
    let together = |t: TensorId| {
        let mut all = vec![t];
        let mut join = |s: &Stmt| match s {
            Stmt::Store { tensor, rest, .. } if *tensor == t || rest.iter().any(|r| r.0 == t) => {
                all.push(*tensor);
                all.extend(rest.iter().map(|r| r.0));
            }
            _ => {}
        };
        body.iter().for_each(|s| s.walk(&mut join));
        all
    };
    private.iter().filter(|b| together(b.tensor).into_iter().any(several)).map(|b| (b.elems, b.tensor)).unzip()
}

fn has_threads(s: &Stmt) -> bool {
    s.any(&mut |s| matches!(s, Stmt::For { kind, .. } if kind.is_thread()))
}

/// An exchange between lanes as a loop over the lanes: `to` of each becomes `from` of another.
fn exchange(env: &mut Env, (to, from): (TensorId, TensorId), xor: u32, base: ExprId, lanes: i64) -> Stmt {
    let var = env.new_var("lane");
    let lane = env.pool.var(var);
    // lane ^ xor = lane + sum over the bits of xor of bit * (1 - 2 * (lane / bit % 2))
    let mut other = lane;
    for bit in (0..32).map(|b| 1i64 << b).filter(|&b| i64::from(xor) & b != 0) {
        let (b, one, two) = (env.pool.int(bit), env.pool.int(1), env.pool.int(2));
        let set = env.pool.floor_div(lane, b);
        let set = env.pool.modulo(set, two);
        let step = env.pool.mul(set, two);
        let step = env.pool.sub(one, step);
        let step = env.pool.mul(step, b);
        other = env.pool.add(other, step);
    }
    let (at, read) = (env.pool.add(base, lane), env.pool.add(base, other));
    let value = env.load(from, [read]);
    let store = Stmt::Store { tensor: to, index: at, value, mask: None, rest: vec![] };
    let extent = env.pool.int(lanes);
    Stmt::For { var, extent, kind: LoopKind::Serial, body: vec![store] }
}

/// `T[i]` becomes `T[i + thread * size]`.
fn instances(
    env: &mut Env,
    s: &mut Stmt,
    (private, sizes): (&[TensorId], &[ExprId]),
    threads: [i64; 3],
    at: &mut [Option<ExprId>; 3],
    factors: Option<Factors>,
) {
    if private.is_empty() && factors.is_none() {
        return;
    }
    let thread = |env: &mut Env, at: &[Option<ExprId>; 3]| {
        let mut lin = env.pool.int(0);
        for d in (0..3).rev() {
            let (n, x) = (env.pool.int(threads[d]), at[d].unwrap_or_else(|| env.pool.int(0)));
            lin = env.pool.mul(lin, n);
            lin = env.pool.add(lin, x);
        }
        lin
    };
    let moved = |env: &mut Env, at: &[Option<ExprId>; 3], t: TensorId, i: ExprId| {
        let Some(n) = private.iter().position(|&p| p == t) else { return i };
        let lin = thread(env, at);
        let base = env.pool.mul(lin, sizes[n]);
        let lanes = env.pool.ty(i).lanes;
        let base = env.pool.splat(base, lanes);
        env.pool.add(i, base)
    };
    let redirect = |env: &mut Env, at: &[Option<ExprId>; 3], e: ExprId| {
        let bases: Vec<ExprId> = sizes
            .iter()
            .map(|&s| {
                let l = thread(env, at);
                env.pool.mul(l, s)
            })
            .collect();
        env.pool.rewrite(e, &mut |p, x| match p.get(x).clone() {
            Expr::Load { tensor, part, index, guard } => {
                let n = private.iter().position(|&t| t == tensor)?;
                let lanes = p.ty(index[0]).lanes;
                let (base, ty) = (p.splat(bases[n], lanes), p.ty(x).scalar);
                let i = p.add(index[0], base);
                Some(p.load_guarded((tensor, part), ty, [i], guard))
            }
            _ => None,
        })
    };
    match s {
        Stmt::For { var, kind, body, .. } => {
            let outer = *at;
            if let Some(axis) = kind.axis().filter(|a| a.is_thread()) {
                at[axis.dimension()] = Some(env.pool.var(*var));
            }
            body.iter_mut().for_each(|s| instances(env, s, (private, sizes), threads, at, factors));
            *at = outer;
        }
        Stmt::Shuffle { to, from, xor } => {
            // Registers of one element: an element a thread, the first lane's at this thread's number.
            let base = thread(env, at);
            *s = exchange(env, (*to, *from), *xor, base, threads[0]);
        }
        Stmt::Tile(t) => {
            let mut tile = t.clone();
            tile.map(&mut |e| redirect(env, at, e));
            let c = tile.c.tensor;
            let size = private.iter().position(|&t| t == c).map(|n| sizes[n]);
            let base = thread(env, at);
            if let Some(factors) = factors {
                *s = tile::statements(env, &tile, (base, size), factors);
            }
        }
        s => {
            s.map_exprs(&mut |e| redirect(env, at, e));
            // The components of a tuple have the same size and uses: they are all private or none is.
            if let Stmt::Store { tensor, index, .. } = s {
                *index = moved(env, at, *tensor, *index);
            }
            s.bodies_mut().flatten().for_each(|s| instances(env, s, (private, sizes), threads, at, factors));
        }
    }
}

fn nodes(env: &Env, body: &[Stmt], factors: Option<Factors>) -> Vec<Node> {
    body.iter().map(|s| node(env, s, factors)).collect()
}

fn node(env: &Env, s: &Stmt, factors: Option<Factors>) -> Node {
    let nodes = |body: &[Stmt]| nodes(env, body, factors);
    match s {
        Stmt::For { var, extent, kind, body } => {
            let axis = if *kind == LoopKind::Parallel { Some(Axis::BlockX) } else { kind.axis() };
            let mut inner = nodes(body);
            if factors.is_some_and(|f| f.beside == *var) {
                inner.insert(0, Node::Sync(Sync::BeginTile));
                inner.push(Node::Sync(Sync::EndTile));
            }
            Node::For(Loop { axis, ..Loop::new(*var, *extent, target(body), inner) })
        }
        Stmt::If { cond, then, other } => match then.as_slice() {
            // One guarded store: its lanes may be decided one by one.
            [Stmt::Store { tensor, index, value, mask, rest }] if other.is_empty() => {
                let mut leaf = store(env, (*tensor, *value), *index, *mask, rest);
                leaf.predicate.push(*cond);
                Node::Leaf(leaf)
            }
            _ => Node::If { cond: *cond, then: nodes(then), other: nodes(other) },
        },
        Stmt::Let { var, value } => Node::Let { var: *var, value: *value },
        Stmt::Prefetch { index, .. } => Node::Address(*index),
        // One thread after the other: nothing to wait for. Products of matrices and exchanges between lanes are loops by
        // now.
        Stmt::Gemm(_) | Stmt::Tile(_) | Stmt::Shuffle { .. } | Stmt::Barrier => Node::Sync(Sync::Barrier),
        Stmt::Bulk(b) => {
            let how = SlotSync::Ask { elems: b.elems(), begin: b.begin(env), slots: b.slots(env) };
            Node::Slot { tensor: b.to, slot: b.slot, how }
        }
        Stmt::Await { tensor, slot } => Node::Slot { tensor: *tensor, slot: *slot, how: SlotSync::Await },
        Stmt::Commit => Node::Sync(Sync::Commit),
        Stmt::Wait { pending } => Node::Sync(Sync::Wait(*pending)),
        Stmt::Beside(Beside::Fence) => Node::Sync(Sync::Fence),
        Stmt::Beside(Beside::Commit) => Node::Sync(Sync::CommitTiles),
        Stmt::Beside(Beside::Wait { pending, .. }) => Node::Sync(Sync::WaitTiles(*pending)),
        Stmt::Copy { tensor, index, value, mask } => {
            Node::Leaf(Leaf { mask: *mask, copy: true, ..Leaf::store(*tensor, vec![*index], *value) })
        }
        Stmt::Atomic { tensor, index, combiner, value } => {
            let leaf = Leaf::store(*tensor, vec![*index], *value);
            Node::Leaf(Leaf { combine: Some(*combiner), atomic: true, ..leaf })
        }
        Stmt::Store { tensor, index, value, mask, rest } => {
            Node::Leaf(store(env, (*tensor, *value), *index, *mask, rest))
        }
    }
}

fn target(body: &[Stmt]) -> Option<TensorId> {
    let mut first = None;
    for s in body {
        s.walk(&mut |s| {
            if let (Stmt::Store { tensor, .. }, None) = (s, first) {
                first = Some(*tensor);
            }
        });
    }
    first
}

fn store(
    env: &Env,
    (tensor, value): (TensorId, ExprId),
    index: ExprId,
    mask: Option<ExprId>,
    rest: &[(TensorId, ExprId)],
) -> Leaf {
    let leaf = Leaf { mask, rest: rest.to_vec(), ..Leaf::store(tensor, vec![index], value) };
    if !rest.is_empty() {
        return leaf;
    }
    match combination(env, tensor, index, value) {
        Some((combiner, term)) if mask.is_none() => Leaf { combine: Some(combiner), value: term, ..leaf },
        _ => leaf,
    }
}

/// `tensor[index] = tensor[index] op term` on scalars, where `term` does not read `tensor`.
fn combination(env: &Env, tensor: TensorId, index: ExprId, value: ExprId) -> Option<(Combiner, ExprId)> {
    let pool = &env.pool;
    if pool.ty(index).lanes > 1 || pool.ty(value).scalar != env.tensors[tensor].ty {
        return None;
    }
    let &Expr::Bin(op, a, b) = pool.get(value) else { return None };
    let combiner = match op {
        BinOp::Add => Combiner::Sum,
        BinOp::Mul => Combiner::Prod,
        BinOp::Min => Combiner::Min,
        BinOp::Max => Combiner::Max,
        _ => return None,
    };
    let is_old = |e: ExprId| matches!(pool.get(e), Expr::Load { tensor: t, index: i, guard: None, .. } if *t == tensor && i.as_slice() == [index]);
    let reads = |e: ExprId| {
        pool.any(e, &mut |n| matches!(n, Expr::Load { tensor: t, .. } | Expr::Search { table: t, .. } if *t == tensor))
    };
    let term = if is_old(a) {
        b
    } else if is_old(b) {
        a
    } else {
        return None;
    };
    (!reads(term) && !reads(index)).then_some((combiner, term))
}
