//! `cache_read S.T -> Tl at S.i layout(..)`: a stage reads a tensor through a local copy.
//!
//! A new stage `Tl` copies `T` (dimensions in the order that `layout` gives), the reads in `S` are
//! redirected, and the copy is attached at the loop by the rules of `compute_at`.
//!
//! Requires: `S` reads `T` inside the loop; the layout keeps a dimension inside those its extent
//! depends on. Ensures: the same values.

use super::compute_at::compute_at;
use super::tree::{find_loop, find_stage, loop_at_mut};
use cora_ir::loops::{Block, BlockRole, For, Iter, IterKind, LoopKind, LoopModule, Stmt};
use cora_ir::schedule::LoopRef;
use cora_ir::{Diagnostic, Expr, ExprId, Role, Scope, Tensor, TensorDim, TensorId, VarId};

/// What to copy and where.
pub struct CacheRead<'a> {
    /// The reading stage.
    pub stage: &'a str,
    /// The tensor that it reads.
    pub tensor: &'a str,
    /// Name of the new stage.
    pub name: &'a str,
    /// Scope of the copy.
    pub scope: Scope,
    /// The loop whose each iteration copies one region.
    pub at: &'a LoopRef,
    /// Positions of the tensor's dimensions in the copy; empty = unchanged.
    pub layout: &'a [usize],
    /// Which distinct read of the tensor, in order of appearance; nothing = all.
    pub access: Option<usize>,
}

/// Inserts the copy.
///
/// # Errors
/// `E0401`/`E0402` unknown stage or loop, `E0460` the name is taken, `E0463` unknown tensor or one
/// that the stage does not read there, `E0464` a layout that is not a permutation or that puts a
/// dimension outside one it depends on, `E0466` a tensor that the loop itself computes; and those of
/// `compute_at`.
pub fn cache_read(m: &mut LoopModule, c: &CacheRead) -> Result<(), Diagnostic> {
    let stage = find_stage(m, c.stage)?;
    let path = find_loop(m, c.at)?;
    let Some(source) = m.env.tensor_named(c.tensor) else {
        return Err(Diagnostic::new("E0463", format!("there is no tensor `{}`", c.tensor))
            .hint("name a tensor that the stage reads"));
    };
    if m.env.tensor_named(c.name).is_some() {
        return Err(Diagnostic::new("E0460", format!("there already is a tensor `{}`", c.name))
            .hint("choose another name for the copy"));
    }
    let inside = super::tree::loop_at(&m.body, &path);
    if m.env.tensors[source].role == Role::Temp && inside.body.iter().any(|s| writes(s, source)) {
        return Err(Diagnostic::new(
            "E0466",
            format!(
                "`{}` is computed inside loop `{}.{}`, so it cannot be copied there",
                c.tensor, c.at.stage, c.at.name
            ),
        )
        .hint("name a loop inside the one in which it is attached"));
    }
    let rank = m.env.tensors[source].dims.len();
    let layout: Vec<usize> = if c.layout.is_empty() { (0..rank).collect() } else { c.layout.to_vec() };
    check_layout(m, source, &layout)?;
    let saved = m.clone();
    let (new, nest) = copy_stage(m, source, &layout, c.name);
    let ty = m.env.tensors[source].ty;
    let mut redirected = false;
    let pool = &mut m.env.pool;
    for s in &mut loop_at_mut(&mut m.body, &path).body {
        s.blocks_mut(&mut |b| {
            if b.stage != stage {
                return;
            }
            let mut reads = Vec::new();
            pool.walk(b.value, &mut |id, n| {
                if matches!(n, Expr::Load { tensor, .. } if *tensor == source) {
                    reads.push(id);
                }
            });
            let chosen = c.access.map(|n| reads.get(n).copied());
            let value = pool.rewrite(b.value, &mut |p, e| match p.get(e).clone() {
                Expr::Load { tensor, index, guard } if tensor == source && chosen.is_none_or(|c| c == Some(e)) => {
                    Some(p.load_guarded(new, ty, layout.iter().map(|&d| index[d]), guard))
                }
                _ => None,
            });
            redirected |= value != b.value;
            b.value = value;
        });
    }
    if !redirected {
        *m = saved;
        return Err(Diagnostic::new(
            "E0463",
            format!("stage `{}` does not read `{}` in loop `{}.{}`", c.stage, c.tensor, c.at.stage, c.at.name),
        )
        .hint("name a tensor that the stage reads inside that loop"));
    }
    m.body.insert(path[0], nest);
    let result = compute_at(m, c.name, c.at);
    if result.is_err() {
        *m = saved;
        return result;
    }
    m.env.tensors[new].scope = c.scope;
    Ok(())
}

fn writes(s: &Stmt, t: TensorId) -> bool {
    let mut found = false;
    s.walk(&mut |s| found |= matches!(s, Stmt::Block(b) if b.tensor == t));
    found
}

fn check_layout(m: &LoopModule, source: TensorId, layout: &[usize]) -> Result<(), Diagnostic> {
    let dims = &m.env.tensors[source].dims;
    let name = &m.env.tensors[source].name;
    let mut sorted = layout.to_vec();
    sorted.sort_unstable();
    if sorted != (0..dims.len()).collect::<Vec<_>>() {
        return Err(Diagnostic::new(
            "E0464",
            format!("the layout names each of the {} dimensions of `{name}` once", dims.len()),
        )
        .hint("list every dimension, outermost first"));
    }
    for (at, &d) in layout.iter().enumerate() {
        for &later in &layout[at + 1..] {
            let needs = |e| m.env.pool.any(e, &mut |x| *x == Expr::Arg(later as u32));
            if needs(dims[d].extent) || needs(dims[d].storage) {
                return Err(Diagnostic::new(
                    "E0464",
                    format!(
                        "the layout puts `{}` outside `{}`, which its extent depends on",
                        dims[d].name, dims[later].name
                    ),
                )
                .hint("a dimension stays inside those that its extent depends on"));
            }
        }
    }
    Ok(())
}

/// The tensor and the naive nest of a copy of `source` with its dimensions permuted.
fn copy_stage(m: &mut LoopModule, source: TensorId, layout: &[usize], name: &str) -> (TensorId, Stmt) {
    let env = &mut m.env;
    let t = env.tensors[source].clone();
    // Arg(old position) -> Arg(new position).
    let mut renumber: Vec<ExprId> = vec![env.pool.int(0); layout.len()];
    for (at, &d) in layout.iter().enumerate() {
        renumber[d] = env.pool.arg(at as u32);
    }
    let dims: Vec<TensorDim> = layout
        .iter()
        .map(|&d| TensorDim {
            name: t.dims[d].name.clone(),
            extent: env.pool.instantiate(t.dims[d].extent, &renumber),
            storage: env.pool.instantiate(t.dims[d].extent, &renumber),
        })
        .collect();
    let new = env.tensors.push(Tensor {
        name: name.to_owned(),
        ty: t.ty,
        dims: dims.clone(),
        role: Role::Temp,
        scope: Scope::Global,
        range: None,
        layout: vec![],
    });
    let mut loops: Vec<(VarId, ExprId)> = Vec::new();
    let mut iters: Vec<Iter> = Vec::new();
    let (mut outer, mut inner): (Vec<ExprId>, Vec<ExprId>) = (Vec::new(), Vec::new());
    for d in &dims {
        let (lv, bv) = (env.new_var(d.name.clone()), env.new_var(d.name.clone()));
        let loop_extent = env.pool.instantiate(d.extent, &outer);
        let extent = env.pool.instantiate(d.extent, &inner);
        loops.push((lv, loop_extent));
        let binding = env.pool.var(lv);
        iters.push(Iter { var: bv, kind: IterKind::Spatial, extent, binding });
        outer.push(binding);
        inner.push(env.pool.var(bv));
    }
    let mut read = vec![env.pool.int(0); layout.len()];
    for (at, &d) in layout.iter().enumerate() {
        read[d] = inner[at];
    }
    let value = env.load(source, read);
    let block = Block {
        stage: new,
        role: BlockRole::Compute,
        continues: false,
        iters,
        predicate: Vec::new(),
        tensor: new,
        index: inner,
        value,
    };
    let mut nest = Stmt::Block(block);
    for (var, extent) in loops.into_iter().rev() {
        nest = Stmt::For(For { var, stage: new, extent, kind: LoopKind::Serial, init: false, body: vec![nest] });
    }
    (new, nest)
}
