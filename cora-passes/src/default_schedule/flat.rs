//! Rows without a search for them: where all that a nest reads and writes lies as its outer loops count, these are one loop,
//! and a position in memory is the position in that loop (the listing of the paper's introduction).
//!
//! ```text
//! for b { for t in 0..lens(b) { Y[b, t] = exp(X[b, t]) } }   =>   for f in 0..row(M) { Y[f] = exp(X[f]) }
//! ```
//!
//! Rows may be short: in tasks of one row or a part of one each task would look for its row.

use super::nest::{Loop, Nest};
use super::{Registers, TASK_ROWS, lowers_alone, step};
use crate::schedule::recurrent::is_recurrent;
use cora_ir::affine::normalize;
use cora_ir::intrinsic::Vectors;
use cora_ir::loops::{Block, BlockRole, For, LoopKind, LoopModule, Stmt};
use cora_ir::schedule::{LoopRef, StepKind, Tail};
use cora_ir::{BinOp, Expr, ExprId, Scope, TensorId, UfDef, VarId};
use rustc_hash::FxHashMap;

/// Elements of a task.
const TASK_ELEMENTS: i64 = 4096;

/// The nests of elements as no rule has touched them.
pub(super) fn elementwise(m: &LoopModule) -> FxHashMap<TensorId, Stmt> {
    let mut out = FxHashMap::default();
    for s in &m.body {
        if let [b] = blocks(std::slice::from_ref(s)).as_slice()
            && b.role == BlockRole::Compute
            && !is_recurrent(m, b.stage)
        {
            out.insert(b.stage, s.clone());
        }
    }
    out
}

/// Makes a nest of elements, `plain` before other rules, one loop as far as memory goes: all of its loops, or the outer ones.
pub(super) fn flat_elements(m: &mut LoopModule, n: usize, plain: &Stmt, vectors: Vectors) -> Option<()> {
    let Stmt::For(outer) = plain else { return None };
    let loops = perfect(outer);
    let vars: Vec<VarId> = loops.iter().map(|l| l.var).collect();
    let block = blocks(std::slice::from_ref(plain)).pop()?;
    let depth = (2..=vars.len()).rev().find(|&d| {
        let inside = loops[d..].iter().any(|l| vars[..d].iter().any(|&v| m.env.pool.uses_var(l.extent, v)));
        !inside && lies_as(m, &block, &vars[..d])
    })?;
    let constant = |l: &&For| m.env.pool.as_int(l.extent);
    // Constant sizes have no rows to look for.
    if loops.iter().all(|l| constant(l).is_some()) {
        return None;
    }
    let names: Vec<String> = vars[..depth].iter().map(|&v| m.env.vars[v].name.clone()).collect();
    let inside: i64 = loops[depth..].iter().map(|l| constant(l).unwrap_or(1)).fold(1, i64::saturating_mul);
    let stage = block.stage;
    m.body[n] = plain.clone();
    let pads: Vec<Option<i64>> = (0..depth).map(|d| padding(m, stage, d)).collect();
    let nest = Nest::of(m, stage)?;
    // A loop that is padded as memory is goes through the padding: rows then follow each other without gaps.
    for (name, multiple) in names.iter().zip(pads) {
        if let Some(multiple) = multiple {
            step(m, StepKind::PadLoop { target: nest.named(name), multiple })?;
        }
    }
    let fused = names.iter().map(|l| nest.named(l)).collect();
    step(m, StepKind::Fuse { loops: fused, name: "flat".to_owned(), pad: 1 })?;
    let factor = (TASK_ELEMENTS / inside.max(1)).clamp(TASK_ROWS, TASK_ELEMENTS);
    let width = Some(Registers::of(m, stage, vectors).lanes);
    let (outer, inner) = ("task".to_owned(), "near".to_owned());
    step(m, StepKind::Split { target: nest.named("flat"), factor, outer, inner, tail: Tail::Exact })?;
    if depth == vars.len() {
        step(m, StepKind::Vectorize { target: nest.named("near"), width })?;
    } else if super::innermost(m, stage, vectors).is_none() {
        super::attempt(m, |m| super::squares::squares(m, stage, vectors));
    }
    step(m, StepKind::Parallel { target: nest.named("task") })?;
    finds_no_row(m, n).then_some(())
}

/// The multiple that dimension `d` is stored as, where that is more than its extent.
fn padding(m: &LoopModule, tensor: TensorId, d: usize) -> Option<i64> {
    let dim = m.env.tensors[tensor].dims.get(d)?;
    let pool = &m.env.pool;
    if dim.storage == dim.extent {
        return None;
    }
    let mut found = None;
    pool.walk(dim.storage, &mut |_, e| {
        if let Expr::Bin(BinOp::FloorDiv, _, c) = e {
            found = found.or(pool.as_int(*c));
        }
    });
    found.filter(|&c| c > 1)
}

/// Spreads the rows of a nest over the workers as one loop, where none has to be found.
pub(super) fn flat_rows(m: &mut LoopModule, n: usize) -> Option<()> {
    let Stmt::For(outer) = m.body[n].clone() else { return None };
    let [Stmt::For(inner)] = outer.body.as_slice() else { return None };
    if inner.kind != LoopKind::Serial || m.env.pool.as_int(inner.extent).is_some() {
        return None;
    }
    let vars = [outer.var, inner.var];
    let mut dependent = false;
    for s in &inner.body {
        s.walk(&mut |s| {
            dependent |= matches!(s, Stmt::For(l) if vars.iter().any(|&v| m.env.pool.uses_var(l.extent, v)))
        });
    }
    if dependent || !blocks(&inner.body).iter().all(|b| lies_as(m, b, &vars)) {
        return None;
    }
    let named =
        |v: VarId, of: TensorId| LoopRef { stage: m.env.tensors[of].name.clone(), name: m.env.vars[v].name.clone() };
    let loops = vec![named(outer.var, outer.stage), named(inner.var, inner.stage)];
    let stage = loops[0].stage.clone();
    let at = |name: &str| LoopRef { stage: stage.clone(), name: name.to_owned() };
    step(m, StepKind::Fuse { loops, name: "flat".to_owned(), pad: 1 })?;
    let (outer, inner) = ("task".to_owned(), "near".to_owned());
    step(m, StepKind::Split { target: at("flat"), factor: TASK_ROWS, outer, inner, tail: Tail::Exact })?;
    step(m, StepKind::Parallel { target: at("task") })?;
    finds_no_row(m, n).then_some(())
}

/// Whether what a block reads of loops lies in memory as these count, element after element.
pub(super) fn lies_side_by_side(m: &mut LoopModule, block: &Block, loops: &[Loop]) -> bool {
    let vars: Vec<VarId> = loops.iter().map(|l| l.var).collect();
    let map: FxHashMap<VarId, ExprId> = block.iters.iter().map(|i| (i.var, i.binding)).collect();
    let mut reads = Vec::new();
    m.env.pool.walk(block.value, &mut |_, x| {
        if let Expr::Load { index, .. } = x {
            reads.push(index.to_vec());
        }
    });
    let mut moves = |e: ExprId| {
        let e = m.env.pool.substitute(e, &map);
        vars.iter().any(|&v| m.env.pool.uses_var(e, v))
    };
    reads.iter().all(|index| index.len() == vars.len() || !index.iter().any(|&e| moves(e))) && lies_as(m, block, &vars)
}

/// Whether the terms of several loops may be counted as one: rows are not looked for, term by term.
pub(super) fn one_after_another(m: &mut LoopModule, block: &Block, reduced: &[Loop]) -> bool {
    let constant = reduced.iter().all(|k| m.env.pool.as_int(k.extent).is_some());
    let loops: Vec<VarId> = reduced.iter().map(|k| k.var).collect();
    loops.len() < 2 || constant || lies_as(m, block, &loops)
}

/// The loops of a perfect nest.
fn perfect(outer: &For) -> Vec<&For> {
    let mut loops = vec![outer];
    while let Some([Stmt::For(l)]) = loops.last().map(|l| l.body.as_slice()) {
        loops.push(l);
    }
    loops
}

fn blocks(body: &[Stmt]) -> Vec<Block> {
    let mut out = Vec::new();
    for s in body {
        s.walk(&mut |s| {
            if let Stmt::Block(b) = s {
                out.push(b.clone());
            }
        });
    }
    out
}

/// Whether a block uses the loops only to index tensors by them, in their order, before all other positions.
pub(super) fn lies_as(m: &mut LoopModule, block: &Block, loops: &[VarId]) -> bool {
    let map: FxHashMap<VarId, ExprId> = block.iters.iter().map(|i| (i.var, i.binding)).collect();
    let uses = |m: &LoopModule, e: ExprId| loops.iter().any(|&v| m.env.pool.uses_var(e, v));
    let mut indices = vec![(block.tensor, block.index.clone())];
    for &e in std::iter::once(&block.value).chain(&block.predicate) {
        m.env.pool.walk(e, &mut |_, x| {
            if let Expr::Load { tensor, index, .. } = x {
                indices.push((*tensor, index.to_vec()));
            }
        });
    }
    // What is computed of positions would have to know them.
    let pool = &m.env.pool;
    let iters: Vec<VarId> = block.iters.iter().filter(|i| uses(m, i.binding)).map(|i| i.var).collect();
    let computes = block.predicate.iter().chain([&block.value]).any(|&e| beyond_indices(pool, e, &iters));
    if computes || block.predicate.iter().any(|&p| uses(m, p)) {
        return false;
    }
    indices.into_iter().all(|(tensor, index)| {
        let index: Vec<ExprId> = index
            .iter()
            .map(|&e| {
                let e = m.env.pool.substitute(e, &map);
                normalize(&mut m.env.pool, e)
            })
            .collect();
        let first = index.iter().zip(loops).filter(|&(&e, &v)| m.env.pool.as_var(e) == Some(v)).count() == loops.len();
        let local = m.env.tensors[tensor].scope != Scope::Global;
        let moved = index.iter().any(|&e| uses(m, e));
        !moved || local || (first && !index[loops.len()..].iter().any(|&e| uses(m, e)))
    })
}

/// Whether an expression uses iterators elsewhere than as an index by themselves.
fn beyond_indices(pool: &cora_ir::ExprPool, e: ExprId, iters: &[VarId]) -> bool {
    match pool.get(e) {
        Expr::Var(v) => iters.contains(v),
        Expr::Load { index, guard, .. } => {
            let inside = |&i: &ExprId| pool.as_var(i).is_none() && beyond_indices(pool, i, iters);
            let guarded =
                guard.is_some_and(|(c, other)| beyond_indices(pool, c, iters) || beyond_indices(pool, other, iters));
            guarded || index.iter().any(inside)
        }
        _ => pool.children(e).iter().any(|&k| beyond_indices(pool, k, iters)),
    }
}

/// Whether a nest is lowered to code that looks for no row.
pub(super) fn finds_no_row(m: &mut LoopModule, n: usize) -> bool {
    lowers_alone(m, n, |lowered| {
        let env = &lowered.env;
        let search = |x: &Expr| matches!(x, Expr::Call(f, _) if matches!(env.ufs[*f].def, UfDef::Search { .. }));
        !lowered
            .kernels
            .iter()
            .flat_map(|k| &k.body)
            .any(|s| s.any(&mut |s| s.exprs().into_iter().any(|e| env.pool.any(e, &mut |x| search(x)))))
    })
}
