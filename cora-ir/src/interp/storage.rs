//! The storage dialect, executed as it stands.

use crate::env::{Env, Role, Scope};
use crate::expr::Expr;
use crate::ids::{ExprId, TensorId};
use crate::interp::buffer::Memory;
use crate::interp::context::Context;
use crate::interp::error::{InterpError, Stage};
use crate::interp::levels::Levels;
use crate::interp::loops::{is_host, results, run_between_views, with_views};
use crate::interp::nest::{Leaf, Loop, Node, mark_strips, place_attachments};
use crate::interp::prelude::build_table;
use crate::interp::{Batch, Options, Results};
use crate::storage::{Buffer, Stmt, StorageModule};
use crate::types::{BinOp, Combiner};

/// Executes a program in the storage dialect: its prelude, then its kernels, serially.
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
    let env = env;
    let mut nests: Vec<Vec<Node>> = module.kernels.iter().map(|k| nodes(&env, &k.body)).collect();
    let locals: Vec<TensorId> =
        module.buffers.iter().map(|b| b.tensor).filter(|&t| env.tensors[t].scope != Scope::Global).collect();
    place_attachments(&env, &mut nests, &locals);
    nests.iter_mut().for_each(|n| mark_strips(&env, n));

    let mut context = Context::new(&env, batch, options, Stage::Storage)?;
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
        if elems > context.room() {
            return Err(context.too_large(b.tensor));
        }
        memory.put(b.tensor, context.hold(b.tensor, Levels::flat(elems))?);
    }
    run_between_views(&mut context, &mut memory, &views, &nests)?;
    results(&context, &mut memory, &views)
}

fn nodes(env: &Env, body: &[Stmt]) -> Vec<Node> {
    body.iter().map(|s| node(env, s)).collect()
}

fn node(env: &Env, s: &Stmt) -> Node {
    match s {
        Stmt::For { var, extent, body, .. } => Node::For(Loop::new(*var, *extent, target(body), nodes(env, body))),
        Stmt::If { cond, then, other } => match then.as_slice() {
            // One guarded store: its lanes may be decided one by one.
            [Stmt::Store { tensor, index, value, mask }] if other.is_empty() => {
                let mut leaf = store(env, *tensor, *index, *value, *mask);
                leaf.predicate.push(*cond);
                Node::Leaf(leaf)
            }
            _ => Node::If { cond: *cond, then: nodes(env, then), other: nodes(env, other) },
        },
        Stmt::Let { var, value } => Node::Let { var: *var, value: *value },
        Stmt::Store { tensor, index, value, mask } => Node::Leaf(store(env, *tensor, *index, *value, *mask)),
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

fn store(env: &Env, tensor: TensorId, index: ExprId, value: ExprId, mask: Option<ExprId>) -> Leaf {
    let leaf = Leaf { mask, ..Leaf::store(tensor, vec![index], value) };
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
    let is_old = |e: ExprId| matches!(pool.get(e), Expr::Load { tensor: t, index: i, guard: None } if *t == tensor && i.as_slice() == [index]);
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
