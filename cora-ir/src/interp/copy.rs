//! Inputs into padded tensors and results out of them, as nests of their own.

use crate::env::{Env, Tensor};
use crate::ids::{ExprId, TensorId};
use crate::interp::nest::{Leaf, Loop, Node};

/// The tensor `t` without padding: the form in which the host gives and takes it.
pub(crate) fn logical_view(env: &mut Env, t: TensorId) -> TensorId {
    let mut dims = env.tensors[t].dims.clone();
    dims.iter_mut().for_each(|d| d.storage = d.extent);
    let Tensor { name, ty, range, .. } = env.tensors[t].clone();
    env.tensors.push(Tensor { range, ..Tensor::temp(name, ty, dims) })
}

/// Whether `t` has no padding.
pub(crate) fn is_unpadded(env: &Env, t: TensorId) -> bool {
    env.tensors[t].dims.iter().all(|d| d.storage == d.extent)
}

/// Copies all valid elements between `t` and its view, into the view if `out`. `offset` is the flat
/// offset of an element of `t` over its index, where it is a flat buffer.
pub(crate) fn copy_nest(env: &mut Env, t: TensorId, view: TensorId, offset: Option<ExprId>, out: bool) -> Vec<Node> {
    let dims = env.tensors[t].dims.clone();
    let ty = env.tensors[t].ty;
    let mut loops = Vec::new();
    let mut index: Vec<ExprId> = Vec::new();
    for d in &dims {
        let extent = env.pool.instantiate(d.extent, &index);
        let var = env.new_var(d.name.clone());
        index.push(env.pool.var(var));
        loops.push((var, extent));
    }
    let stored = match offset {
        Some(o) => vec![env.pool.instantiate(o, &index)],
        None => index.clone(),
    };
    let leaf = if out {
        let value = env.pool.load(t, ty, stored);
        Leaf::store(view, index, value)
    } else {
        let value = env.pool.load(view, ty, index);
        Leaf::store(t, stored, value)
    };
    let mut nodes = vec![Node::Leaf(leaf)];
    for (k, (var, extent)) in loops.into_iter().rev().enumerate() {
        let strip = k == 0;
        nodes = vec![Node::For(Loop { strip, ..Loop::new(var, extent, Some(t), nodes) })];
    }
    nodes
}
