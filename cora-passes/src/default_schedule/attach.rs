//! Where a stage is computed beside its readers.
//!
//! A loop is a place for a stage if every reader is inside it, every loop down to it steers the
//! elements that are read (so nothing is computed twice), and enough is left inside for the stage to
//! be worth its own loops: the last dimension, or all rows and columns of a contraction, which copies a factor.

use super::columns::neighbours;
use super::constants::is_constant;
use super::contraction::Contraction;
use super::matches::goes_to_positions;
use super::nest::Nest;
use super::side_results::is_intermediate;
use super::step;
use crate::schedule::compute_at::reads_box;
use crate::schedule::readers::element_reads;
use crate::schedule::tree::is_reduction_var;
use cora_ir::loops::{Block, BlockRole, Body, For, LoopKind, LoopModule, Stmt};
use cora_ir::schedule::{LoopRef, StepKind};
use cora_ir::{BinOp, Expr, ExprId, ExprPool, TensorId, VarId};
use rustc_hash::{FxHashMap, FxHashSet};

/// Stages of a nest, at most: the time that its code takes to compile grows faster than its length.
const MOST_STAGES: usize = 64;

/// A read of the stage: the loops around it, and its index over their variables.
pub(super) struct Reader {
    loops: Vec<For>,
    pub block: Block,
    /// Over the block's own iterators, and over the loops' variables.
    pub raw: Vec<ExprId>,
    index: Vec<ExprId>,
}

/// Attaches `stage` at the innermost such loop, if there is one; neither `epilogues` nor anything in their loops.
pub(super) fn attach(m: &mut LoopModule, stage: TensorId, epilogues: &FxHashSet<TensorId>) -> Option<()> {
    if epilogues.contains(&stage) || !is_intermediate(m, stage) {
        return None;
    }
    // Of the positions in a part of the reader each term would be read for each part.
    if goes_to_positions(m, stage) {
        return None;
    }
    let block = m.blocks_of(stage).into_iter().find(|b| b.role != BlockRole::Init)?.clone();
    let contraction = Contraction::of(m, stage);
    // In a tile of rows it would copy its other factor for each tile again.
    let all_whole = contraction.is_some();
    let left: Vec<usize> = match contraction {
        Some(c) if !c.has_batches() => return None,
        Some(c) => c.tiled(m),
        None if block.role == BlockRole::Compute => vec![block.index.len().checked_sub(1)?],
        None if neighbours(m, &Nest::of(m, stage)?).is_some() => vec![block.index.len().checked_sub(1)?],
        None => Vec::new(),
    };
    let readers = readers(m, stage);
    let first = readers.first()?;
    // Once for given weights is enough.
    if is_constant(m, stage) && readers.iter().any(|r| !is_constant(m, r.block.tensor)) {
        return None;
    }
    // Those leave their own loops.
    if readers.iter().any(|r| epilogues.contains(&r.block.stage)) {
        return None;
    }
    let mut place = None;
    for (n, l) in first.loops.iter().enumerate() {
        let around = |r: &Reader| r.loops.get(n).is_some_and(|x| x.var == l.var);
        if !matches!(l.kind, LoopKind::Serial | LoopKind::Parallel) {
            break;
        }
        if !readers.iter().all(|r| around(r) && steers(m, r, first, l.var) && leaves(m, r, n, &left, all_whole)) {
            break;
        }
        place = Some(n);
    }
    let l = &first.loops[place?];
    if stages_beside(m, l) >= MOST_STAGES {
        return None;
    }
    let at = LoopRef { stage: m.env.tensors[l.stage].name.clone(), name: m.env.vars[l.var].name.clone() };
    // A tile of a loop over several rows is no box: there the stage keeps its own loops.
    if !reads_box(m, stage, &at) {
        return None;
    }
    step(m, StepKind::ComputeAt { stage: m.env.tensors[stage].name.clone(), at })
}

/// The stages of the nest with this loop.
fn stages_beside(m: &LoopModule, of: &For) -> usize {
    let enters = |s: &Stmt| s.concerned().may_have(of.stage);
    let has = |s: &&Stmt| {
        let mut found = false;
        s.walk_where(&enters, &mut |s| found |= matches!(s, Stmt::For(l) if l.var == of.var));
        found
    };
    let Some(nest) = m.body.iter().find(has) else { return 0 };
    let mut stages = FxHashSet::default();
    nest.walk(&mut |s| {
        if let Stmt::Block(b) = s {
            stages.insert(b.stage);
        }
    });
    stages.len()
}

/// Whether different iterations of the loop read different elements, the same ones as the first reader:
/// the loop moves dimensions of the reader's own, and these are positions of what is read.
fn steers(m: &LoopModule, r: &Reader, first: &Reader, var: VarId) -> bool {
    let pool = &m.env.pool;
    // Where it is one position by itself, others may move as they like.
    let itself = |p: usize| pool.as_var(r.index[p]) == Some(var) && first.index[p] == r.index[p];
    if (0..r.index.len()).any(itself) {
        return !is_reduction_var(pool, &r.block, var);
    }
    let moved: Vec<usize> = (0..r.index.len()).filter(|&p| follows(pool, r.index[p], var)).collect();
    let own = |p: &usize| pool.as_var(r.raw[*p]).is_some() && r.index[*p] == first.index[*p];
    let also = (0..r.index.len()).filter(|&p| follows(pool, first.index[p], var)).count();
    !moved.is_empty() && moved.len() == also && moved.iter().all(own) && !is_reduction_var(pool, &r.block, var)
}

/// Whether a position moves with the variable, and not only the end of the row where it is held.
fn follows(pool: &ExprPool, e: ExprId, var: VarId) -> bool {
    match pool.get(e) {
        Expr::Var(v) => *v == var,
        Expr::Bin(BinOp::Min, a, b) => follows(pool, *a, var) && follows(pool, *b, var),
        _ => pool.children(e).iter().any(|&k| follows(pool, k, var)),
    }
}

/// Whether the positions `left` still move inside loop `n`; the last dimension of all stays whole, or all of them do.
fn leaves(m: &LoopModule, r: &Reader, n: usize, left: &[usize], all_whole: bool) -> bool {
    let pool = &m.env.pool;
    let itself = |p: usize, l: &For| (0..r.index.len()).any(|q| q != p && pool.as_var(r.index[q]) == Some(l.var));
    let moves = |p: usize, l: &For| r.index.get(p).is_some_and(|&e| pool.uses_var(e, l.var)) && !itself(p, l);
    left.iter().all(|&p| {
        let whole = (!all_whole && p + 1 < r.index.len()) || !r.loops[..=n].iter().any(|l| moves(p, l));
        whole && r.loops[n + 1..].iter().any(|l| moves(p, l))
    })
}

pub(super) fn readers(m: &mut LoopModule, stage: TensorId) -> Vec<Reader> {
    fn go(enters: &dyn Fn(&Stmt) -> bool, body: &[Stmt], loops: &mut Vec<For>, out: &mut Vec<(Vec<For>, Block)>) {
        for s in body {
            match s {
                s if !enters(s) => {}
                Stmt::For(l) => {
                    loops.push(For { body: Body::default(), ..l.clone() });
                    go(enters, &l.body, loops, out);
                    loops.pop();
                }
                Stmt::Block(b) => out.push((loops.clone(), b.clone())),
            }
        }
    }
    let mut blocks = Vec::new();
    go(&|s| s.read(&m.env.pool).may_have(stage), &m.body, &mut Vec::new(), &mut blocks);
    let mut out = Vec::new();
    for (loops, block) in blocks {
        let found = element_reads(&m.env.pool, &block, stage);
        let map: FxHashMap<VarId, ExprId> = block.iters.iter().map(|i| (i.var, i.binding)).collect();
        for (index, _) in found {
            let pool = &mut m.env.pool;
            let over = |e: &ExprId| {
                let e = pool.substitute(*e, &map);
                cora_ir::affine::normalize(pool, e)
            };
            let at = index.iter().map(over).collect();
            out.push(Reader { loops: loops.clone(), block: block.clone(), raw: index, index: at });
        }
    }
    out
}
