//! Elements of a reduction's results, computed where these leave the registers.
//!
//! ```text
//! for tile { acc = sum(k) ..;  T[i, j] = acc };  for i { for j { Y[i, j] = f(T[i, j], B[j]) } }
//!   =>  for tile { acc = sum(k) ..;  Y[i, j] = f(acc, B[j]) }
//! ```
//!
//! The intermediate is not stored, and no other pass over the elements reads it.

use super::contraction::Contraction;
use super::joined::join;
use super::nest::{Nest, is_along};
use super::{attempt, stages, step};
use crate::schedule::readers::element_reads;
use cora_ir::loops::{Block, BlockRole, For, LoopKind, LoopModule, Stmt};
use cora_ir::schedule::{LoopRef, StepKind};
use cora_ir::{BinOp, Expr, ExprId, Role, Scope, TensorId, UnOp, VarId};
use rustc_hash::FxHashMap;

/// Functions and divisions of an element, at most: each vector of a tile has code of its own.
const FEW: usize = 4;

/// Whether elements may be computed where the results of a contraction leave the registers here.
pub(super) fn is_epilogue(m: &LoopModule, stage: TensorId) -> bool {
    let Some(nest) = Nest::of(m, stage) else { return false };
    let tiled = |t: TensorId| Contraction::of(m, t).is_some_and(|c| !c.rows.is_empty() && !c.has_batches());
    nest.reads(m).into_iter().any(|(t, at)| {
        at == nest.block.index && m.env.tensors[t].role == Role::Temp && is_read_alone(m, t, &nest.block) && tiled(t)
    })
}

/// Computes elements where the results leave the registers that they are computed of; `elements` are the nests as they were.
pub(super) fn epilogues(m: &mut LoopModule, elements: &FxHashMap<TensorId, Stmt>) {
    for stage in stages(m) {
        if let Some(plain) = elements.get(&stage) {
            attempt(m, |m| epilogue(m, stage, plain));
        }
    }
}

fn epilogue(m: &mut LoopModule, stage: TensorId, plain: &Stmt) -> Option<()> {
    let nest = Nest::of(m, stage).filter(|n| !n.attached)?;
    let at = m.body.iter().position(|s| matches!(s, Stmt::For(l) if l.stage == stage))?;
    let [own] = blocks(plain)[..] else { return None };
    let own = own.clone();
    if blocks(&m.body[at]).iter().any(|b| b.stage != stage) || many_functions(m, own.value) {
        return None;
    }
    let mut read: Vec<TensorId> = nest.reads(m).into_iter().map(|r| r.0).collect();
    read.dedup();
    // Of several the last, which its other operands were computed before.
    let (from, results) = (0..at).rev().find_map(|n| {
        let Stmt::For(l) = &m.body[n] else { return None };
        let s = l.stage;
        (read.contains(&s) && is_read_alone(m, s, &own)).then_some((n, s))
    })?;
    let leaving = blocks(&m.body[from]).into_iter().filter(|b| b.tensor == results).collect::<Vec<_>>();
    let [leaving] = leaving[..] else { return None };
    let leaving = leaving.clone();
    let in_registers = loads(m, leaving.value).iter().any(|r| m.env.tensors[r.0].scope == Scope::Reg);
    let same_type = m.env.pool.ty(leaving.value).scalar == m.env.tensors[results].ty;
    if leaving.role != BlockRole::Compute || leaving.continues || !in_registers || !same_type {
        return None;
    }
    // The same elements, by the same loops.
    let formals: Vec<VarId> = own.index.iter().map(|&e| m.env.pool.as_var(e)).collect::<Option<_>>()?;
    let map: FxHashMap<VarId, ExprId> = formals.iter().copied().zip(leaving.index.iter().copied()).collect();
    let extent = |b: &Block, e: ExprId| {
        let var = m.env.pool.as_var(e)?;
        b.iters.iter().find(|i| i.var == var).map(|i| i.extent)
    };
    let extents = |b: &Block| b.index.iter().map(|&e| extent(b, e)).collect::<Option<Vec<_>>>();
    let (theirs, ours) = (extents(&leaving)?, extents(&own)?);
    let ours: Vec<ExprId> = ours.into_iter().map(|e| m.env.pool.substitute(e, &map)).collect();
    // Its vectors are theirs.
    let column = *formals.last()?;
    let along = loads(m, own.value).iter().all(|r| is_along(m, r, column));
    if theirs != ours || !along || own.iters.len() != formals.len() || !own.predicate.is_empty() {
        return None;
    }
    let value = m.env.pool.substitute(own.value, &map);
    let value = m.env.pool.rewrite(value, &mut |pool, e| {
        matches!(pool.get(e), Expr::Load { tensor, .. } if *tensor == results).then_some(leaving.value)
    });
    let block = Block { stage, tensor: stage, value, ..leaving };
    let beside: Vec<TensorId> = loads(m, own.value).into_iter().filter(|r| r.1 == own.index).map(|r| r.0).collect();
    m.body[at] = with_block(&m.body[from], results, &block);
    m.body.remove(from);
    for t in beside.into_iter().filter(|&t| t != results) {
        if !attempt(m, |m| join(m, stage, t)) {
            ask_ahead(m, stage, t);
        }
    }
    Some(())
}

/// Has the next tile's elements of a tensor come in while this tile's terms are summed.
fn ask_ahead(m: &mut LoopModule, stage: TensorId, tensor: TensorId) -> Option<()> {
    let nest = m.body.iter().find_map(|s| match s {
        Stmt::For(l) => (l.stage == stage).then_some(l),
        Stmt::Block(_) => None,
    });
    let mut loops = vec![nest?];
    // Down to the tile.
    while let [Stmt::For(l)] = loops.last()?.body.as_slice() {
        loops.push(l);
    }
    let tile = loops.last().filter(|l| l.stage == stage && l.kind == LoopKind::Serial)?;
    let mut sums = None;
    for s in &tile.body {
        s.walk(&mut |s| {
            if let Stmt::For(l) = s
                && l.stage != stage
                && l.kind == LoopKind::Serial
                && !l.init
            {
                sums = Some(l);
            }
        });
    }
    let named = |l: &For| LoopRef { stage: m.env.tensors[l.stage].name.clone(), name: m.env.vars[l.var].name.clone() };
    let (at, inside) = (named(tile), Some(named(sums?)));
    let (stage, tensor) = (at.stage.clone(), m.env.tensors[tensor].name.clone());
    attempt(m, |m| step(m, StepKind::Prefetch { stage, tensor, at, inside, distance: 1, locality: 3 })).then_some(())
}

/// Whether a block, and nothing else, reads an intermediate: each element where it computes its own.
pub(super) fn is_read_alone(m: &LoopModule, results: TensorId, by: &Block) -> bool {
    let t = &m.env.tensors[results];
    let of_it = |b: &&Block| b.stage == by.stage;
    let readers = m.blocks_reading(results);
    let mut sizes = false;
    for s in &m.body {
        s.walk(&mut |s| sizes |= matches!(s, Stmt::For(l) if m.env.pool.reads(l.extent, results)));
    }
    let reads = element_reads(&m.env.pool, by, results);
    let own = reads.len() == 1 && reads.iter().all(|(index, guard)| index == &by.index && guard.is_none());
    let plain = t.role == Role::Temp && t.scope == Scope::Global && t.tuple.is_none();
    plain && own && !sizes && readers.iter().all(of_it)
}

/// Whether an element takes more functions and divisions than a vector's code may have.
fn many_functions(m: &LoopModule, value: ExprId) -> bool {
    let mut count = 0;
    m.env.pool.walk(value, &mut |_, n| {
        let plain = matches!(n, Expr::Un(UnOp::Neg | UnOp::Abs | UnOp::Not, _));
        count += usize::from(matches!(n, Expr::Un(..)) && !plain);
        count += usize::from(matches!(n, Expr::Bin(BinOp::Div | BinOp::Pow, ..) | Expr::Call(..)));
    });
    count > FEW
}

fn loads(m: &LoopModule, value: ExprId) -> Vec<(TensorId, Vec<ExprId>)> {
    let mut out = Vec::new();
    m.env.pool.walk(value, &mut |_, n| {
        if let Expr::Load { tensor, index, .. } = n {
            out.push((*tensor, index.to_vec()));
        }
    });
    out
}

pub(super) fn blocks(s: &Stmt) -> Vec<&Block> {
    let mut out = Vec::new();
    s.walk(&mut |s| {
        if let Stmt::Block(b) = s {
            out.push(b);
        }
    });
    out
}

/// The loops of a stage as another one's, with its block in the place of theirs.
fn with_block(s: &Stmt, of: TensorId, block: &Block) -> Stmt {
    match s {
        Stmt::Block(b) if b.tensor == of => Stmt::Block(block.clone()),
        Stmt::Block(_) => s.clone(),
        Stmt::For(l) => {
            let stage = if l.stage == of { block.stage } else { l.stage };
            let body: Vec<Stmt> = l.body.iter().map(|s| with_block(s, of, block)).collect();
            Stmt::For(For { stage, body: body.into(), ..l.clone() })
        }
    }
}
