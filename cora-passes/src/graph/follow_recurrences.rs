//! What uses up the states of a recurrence is computed at its positions, so that states need not be kept.
//!
//! ```text
//! S[b, t, d, e] = a * S[b, t - 1, d, e] + K[b, t, d] * V[b, t, e]     in the loops over b and t: S, then O
//! O[b, t, e] = sum(d) Q[b, t, d] * S[b, t, d, e]
//! ```
//!
//! A reduction that reads each element of a state once gains nothing from all positions at once. Where all that reads the
//! states is of this kind, or reads the last one, it follows the recurrence at each position, and `fold-positions` leaves
//! room for the last states alone. A result whose dimensions come in another order is copied from one that has those of the
//! positions first.
//!
//! Requires: checked accesses. Ensures: the same results. Runs for programs without a schedule: stages of a recurrence
//! cannot be moved.

use cora_ir::env::{Role, Tensor, TensorDim};
use cora_ir::recurrence::{Recurrence, before_last, recurrences};
use cora_ir::{DimId, Env, Expr, ExprId, Graph, Op, TensorId, VarId};
use rustc_hash::FxHashMap;

/// Has the operators that use up states follow their recurrences.
pub fn follow_recurrences(graph: &mut Graph) {
    let mut done: Vec<TensorId> = Vec::new();
    while let Some(r) = recurrences(graph).into_iter().find(|r| !done.contains(&graph.ops[r.ops.start].tensor)) {
        done.push(graph.ops[r.ops.start].tensor);
        let followers = followers(graph, &r);
        let mut copies = 0;
        for (n, from) in followers.into_iter().enumerate() {
            let before = graph.ops.len();
            follow(graph, &r, from + copies, r.ops.end + n);
            copies += graph.ops.len() - before;
        }
    }
}

/// The operators that follow a recurrence, by their places.
fn followers(graph: &mut Graph, r: &Recurrence) -> Vec<usize> {
    let members: Vec<TensorId> = graph.ops[r.ops.clone()].iter().map(|op| op.tensor).collect();
    let mut found = Vec::new();
    for &state in &members {
        let temp = graph.env.tensors[state].role == Role::Temp;
        if !temp || graph.env.tensors[state].dims.len() <= r.dims.len() {
            continue;
        }
        let readers: Vec<usize> = (0..graph.ops.len())
            .filter(|n| !r.ops.contains(n))
            .filter(|&n| !reads_of(&graph.env, &graph.ops[n], state).is_empty())
            .collect();
        let mut using = Vec::new();
        let all = readers.into_iter().all(|n| {
            let op = graph.ops[n].clone();
            let fits = uses_up(graph, r, (&op, state), &members);
            using.extend(fits.then_some(n));
            let d = r.dims.len() - 1;
            let along = (graph.env.tensors[state].dims[d].extent, d);
            let reads = reads_of(&graph.env, &op, state);
            fits || reads.iter().all(|index| before_last(&mut graph.env.pool, along, index) == Some(0))
        });
        if all {
            found.extend(using);
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

fn reads_of(env: &Env, op: &Op, tensor: TensorId) -> Vec<Vec<ExprId>> {
    let mut out = Vec::new();
    env.pool.walk(op.value, &mut |_, e| {
        if let Expr::Load { tensor: t, index, .. } = e
            && *t == tensor
        {
            out.push(index.to_vec());
        }
    });
    out
}

/// Whether a reduction reads each element of a state once, at its own position, and nothing else that is not there before the
/// recurrence.
fn uses_up(graph: &Graph, r: &Recurrence, (op, state): (&Op, TensorId), members: &[TensorId]) -> bool {
    let env = &graph.env;
    let var = |d: &DimId| env.dims[*d].var;
    let at_positions = r.dims.iter().all(|d| op.spatial.contains(d));
    if op.combiner.is_none() || env.tensors[op.tensor].tuple.is_some() || !at_positions {
        return false;
    }
    let mut inside: Vec<VarId> = op.spatial.iter().filter(|d| !r.dims.contains(d)).chain(&op.reduce).map(var).collect();
    inside.sort_unstable();
    let own = |index: &[ExprId]| r.dims.iter().zip(index).all(|(d, &e)| env.pool.as_var(e) == Some(var(d)));
    let mut fits = true;
    env.pool.walk(op.value, &mut |_, e| {
        let Expr::Load { tensor, index, guard, .. } = e else { return };
        if *tensor == state {
            let rest: Option<Vec<VarId>> = index[r.dims.len()..].iter().map(|&e| env.pool.as_var(e)).collect();
            let once = rest.is_some_and(|mut rest| {
                rest.sort_unstable();
                rest == inside
            });
            fits &= guard.is_none() && once;
        }
        fits &= match graph.ops.iter().position(|o| o.tensor == *tensor) {
            Some(_) if members.contains(tensor) => own(index),
            Some(n) => n < r.ops.start,
            None => true,
        };
    });
    fits
}

/// Moves the operator at `from` behind a recurrence, to place `to`.
fn follow(graph: &mut Graph, r: &Recurrence, from: usize, to: usize) {
    let op = graph.ops.remove(from);
    let rest = op.spatial.iter().filter(|d| !r.dims.contains(d));
    let spatial: Vec<DimId> = r.dims.iter().chain(rest).copied().collect();
    let env = &mut graph.env;
    let moved = if spatial == op.spatial {
        op
    } else {
        let tensor = env.tensors[op.tensor].clone();
        let mut dims = Vec::new();
        let mut at: FxHashMap<VarId, ExprId> = FxHashMap::default();
        for (n, &d) in spatial.iter().enumerate() {
            let (name, var) = (env.dims[d].name.clone(), env.dims[d].var);
            let extent = env.pool.substitute(env.dims[d].extent, &at);
            dims.push(TensorDim { name, also: None, extent, storage: extent });
            at.insert(var, env.pool.arg(n as u32));
        }
        let first = env.tensors.push(Tensor::temp(format!("{}.at", tensor.name), tensor.ty, dims));
        let index: Vec<ExprId> = spatial.iter().map(|&d| env.pool.var(env.dims[d].var)).collect();
        let value = env.pool.load(first, tensor.ty, index);
        let copy = Op { tensor: op.tensor, spatial: op.spatial.clone(), reduce: Vec::new(), combiner: None, value };
        graph.ops.insert(from, copy);
        Op { tensor: first, spatial, ..op }
    };
    graph.env.recurrent.push((moved.tensor, r.dims.len()));
    graph.ops.insert(to, moved);
}
