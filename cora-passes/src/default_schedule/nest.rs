//! The loops and the main block of a stage that is still as it was lowered or attached.

use crate::lower::declared::{Indices, bounds};
use crate::schedule::tree::{Path, is_reduction_var, loop_at, stage_loops};
use cora_ir::affine::{poly, slope};
use cora_ir::loops::{Block, BlockRole, LoopModule, Stmt};
use cora_ir::schedule::LoopRef;
use cora_ir::{BinOp, Expr, ExprId, ExprPool, TensorId, VarId};
use rustc_hash::FxHashMap;

/// One loop of the stage.
#[derive(Clone)]
pub(crate) struct Loop {
    pub name: String,
    pub var: VarId,
    pub extent: ExprId,
    pub reduced: bool,
}

/// A stage's own loops, outermost first, and its main block: those inside all loops that other stages are in, too.
#[derive(Clone)]
pub(crate) struct Nest {
    pub stage: String,
    pub loops: Vec<Loop>,
    pub block: Block,
    /// Whether it is in a loop that other stages are in, too.
    pub attached: bool,
}

/// Whether there are blocks of other stages.
pub(super) fn has_others(body: &[Stmt], stage: TensorId) -> bool {
    let mut found = false;
    for s in body {
        s.walk(&mut |s| found |= matches!(s, Stmt::Block(b) if b.stage != stage));
    }
    found
}

impl Nest {
    pub(crate) fn of(m: &LoopModule, stage: TensorId) -> Option<Self> {
        let block = m.blocks_of(stage).into_iter().find(|b| b.role != BlockRole::Init)?.clone();
        let all = stage_loops(m, stage);
        let others = |p: &Path| has_others(&loop_at(&m.body, p).body, stage);
        let shared = all.iter().rposition(others).map_or(0, |n| n + 1);
        let paths = &all[shared..];
        let loops = paths
            .iter()
            .map(|p| {
                let l = loop_at(&m.body, p);
                let reduced = is_reduction_var(&m.env.pool, &block, l.var);
                Loop { name: m.env.vars[l.var].name.clone(), var: l.var, extent: l.extent, reduced }
            })
            .collect();
        let attached = shared > 0 || paths.first().is_some_and(|p| p.len() > 1);
        Some(Self { stage: m.env.tensors[stage].name.clone(), loops, block, attached })
    }

    /// The iterator that is a loop's variable.
    pub(crate) fn iterator(&self, m: &LoopModule, l: VarId) -> Option<VarId> {
        self.block.iters.iter().find(|i| m.env.pool.as_var(i.binding) == Some(l)).map(|i| i.var)
    }

    /// The dimension of the result that a loop runs.
    pub(crate) fn dim_of(&self, m: &LoopModule, l: VarId) -> Option<usize> {
        let iter = self.iterator(m, l)?;
        self.block.index.iter().position(|&e| m.env.pool.as_var(e) == Some(iter))
    }

    /// Iterations of some of its loops together, at most by declared ranges.
    pub(crate) fn most<'a>(&self, m: &LoopModule, of: impl IntoIterator<Item = &'a Loop>) -> i64 {
        let loops: Vec<_> = self.loops.iter().map(|l| (l.var, l.extent)).collect();
        let most = |l: &Loop| bounds(&m.env, l.extent, Indices { args: &[], loops: &loops }).hi.unwrap_or(i64::MAX);
        of.into_iter().map(most).fold(1_i64, i64::saturating_mul)
    }

    pub(crate) fn named(&self, name: &str) -> LoopRef {
        LoopRef { stage: self.stage.clone(), name: name.to_owned() }
    }

    pub(crate) fn at(&self, l: &Loop) -> LoopRef {
        self.named(&l.name)
    }

    /// Every distinct read.
    pub(crate) fn reads(&self, m: &LoopModule) -> Vec<(TensorId, Vec<ExprId>)> {
        let mut out = Vec::new();
        m.env.pool.walk(self.block.value, &mut |_, n| {
            if let Expr::Load { tensor, index, .. } = n {
                out.push((*tensor, index.to_vec()));
            }
        });
        out
    }

    /// Which of several reads of the same tensor `read` is.
    pub(crate) fn access(&self, m: &LoopModule, read: &(TensorId, Vec<ExprId>)) -> Option<usize> {
        let same: Vec<_> = self.reads(m).into_iter().filter(|r| r.0 == read.0).collect();
        if same.len() > 1 { same.iter().position(|r| r.1 == read.1) } else { None }
    }

    /// Whether the last dimension of every access that moves with iterator `var` is `var` itself.
    pub(crate) fn contiguous(&self, m: &LoopModule, var: VarId) -> bool {
        let written = (self.block.tensor, self.block.index.clone());
        self.reads(m).iter().chain([&written]).all(|r| is_along(m, r, var))
    }
}

/// Whether an access of a tensor either does not move with `var`, or goes from neighbour to neighbour: innermost dimensions of
/// one position are none in memory.
pub(super) fn is_along(m: &LoopModule, (tensor, index): &(TensorId, Vec<ExprId>), var: VarId) -> bool {
    let dims = &m.env.tensors[*tensor].dims;
    let one = |d: usize| dims.get(d).is_some_and(|d| m.env.pool.as_int(d.storage) == Some(1));
    let unit = (0..index.len()).rev().take_while(|&d| one(d)).count();
    moves_by_one(m, &index[..index.len() - unit], var)
}

/// Whether an access either does not move with `var`, or goes from neighbour to neighbour.
pub(crate) fn moves_by_one(m: &LoopModule, index: &[ExprId], var: VarId) -> bool {
    let pool = &m.env.pool;
    let last = index.len().wrapping_sub(1);
    index.iter().enumerate().all(|(d, &e)| !pool.uses_var(e, var) || (d == last && is_var_plus(pool, e, var)))
}

/// Whether an expression is `var` and terms that do not move with it.
fn is_var_plus(pool: &ExprPool, e: ExprId, var: VarId) -> bool {
    match *pool.get(e) {
        Expr::Var(v) => v == var,
        Expr::Bin(BinOp::Add, x, y) => match (pool.uses_var(x, var), pool.uses_var(y, var)) {
            (true, false) => is_var_plus(pool, x, var),
            (false, true) => is_var_plus(pool, y, var),
            _ => false,
        },
        Expr::Bin(BinOp::Sub, x, y) => !pool.uses_var(y, var) && is_var_plus(pool, x, var),
        _ => false,
    }
}

/// Iterations that are looked at one by one, at most.
const LOOKED_AT: i64 = 512;

/// Whether an access goes from neighbour to neighbour, or stays where it is, in each block of `lanes` of the `count` values of
/// `var`, as `d % 32` does and `(d + 32) % 64`; one that reads may also go to and fro within a few vectors, as `d / 2` does.
pub(super) fn moves_in_blocks(
    m: &mut LoopModule,
    index: &[ExprId],
    var: VarId,
    (count, lanes): (i64, i64),
    reads: bool,
) -> bool {
    if count > LOOKED_AT {
        return false;
    }
    let pool = &mut m.env.pool;
    let last = index.len().wrapping_sub(1);
    let mut position = |e: ExprId, n: i64| {
        let n = pool.int(n);
        let at = pool.substitute(e, &FxHashMap::from_iter([(var, n)]));
        poly(pool, at)
    };
    // How far each position is from that of the first of its block.
    let mut apart = |e: ExprId| -> Option<Vec<(i64, i64)>> {
        let of = |n: i64| {
            let first = n / lanes * lanes;
            let (here, there) = (position(e, first), position(e, n));
            let apart = there.checked_add_scaled(&here, -1).and_then(|d| d.as_constant());
            apart.map(|d| (n - first, d))
        };
        (0..count).map(of).collect()
    };
    index.iter().enumerate().all(|(d, &e)| {
        let Some(all) = apart(e) else { return false };
        let still = all.iter().all(|&(_, d)| d == 0);
        let runs = all.iter().all(|&(n, d)| d == n);
        let near = || all.iter().all(|&(_, d)| d.unsigned_abs() < (NEAR_VECTORS * lanes).unsigned_abs());
        still || d == last && (runs || reads && near())
    })
}

/// Whether an access goes on by a few elements at a time, in either direction.
pub(super) fn strides(m: &mut LoopModule, (tensor, index): &(TensorId, Vec<ExprId>), var: VarId) -> bool {
    if is_along(m, &(*tensor, index.clone()), var) {
        return true;
    }
    // Innermost dimensions of constant size are one with that outside them.
    let (mut last, mut scale, mut inner) = (m.env.pool.int(0), m.env.pool.int(1), 0);
    for (&e, dim) in index.iter().zip(&m.env.tensors[*tensor].dims).rev() {
        let at = m.env.pool.mul(e, scale);
        last = m.env.pool.add(last, at);
        inner += 1;
        if m.env.pool.as_int(dim.storage).is_none() || !m.env.tensors[*tensor].layout.is_empty() {
            break;
        }
        scale = m.env.pool.mul(scale, dim.storage);
    }
    let others = &index[..index.len() - inner];
    let pool = &mut m.env.pool;
    if others.iter().any(|&e| pool.uses_var(e, var)) {
        return false;
    }
    slope(pool, last, var).is_some_and(|s| s.abs() <= NEAR_VECTORS)
}

/// Whether an access goes from neighbour to neighbour but for where its positions are clamped, as those of an image's edges are.
pub(super) fn clamped(m: &LoopModule, index: &[ExprId], var: VarId) -> bool {
    fn moves(pool: &ExprPool, e: ExprId, var: VarId) -> bool {
        let side = |e: ExprId| pool.uses_var(e, var);
        match *pool.get(e) {
            Expr::Bin(BinOp::Min | BinOp::Max | BinOp::Add, x, y) if side(x) != side(y) => {
                moves(pool, if side(x) { x } else { y }, var)
            }
            Expr::Bin(BinOp::Sub, x, y) if !side(y) => moves(pool, x, var),
            _ => is_var_plus(pool, e, var),
        }
    }
    let Some((&last, others)) = index.split_last() else { return false };
    !others.iter().any(|&e| m.env.pool.uses_var(e, var)) && moves(&m.env.pool, last, var)
}

/// Vectors that one is shuffled of.
const NEAR_VECTORS: i64 = 4;
