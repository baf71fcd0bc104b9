//! The blocks that read a tensor inside a loop, and what keeps their reads in bounds.

use super::defined::is_defined;
use super::tree::{Path, enclosing, loop_at, stmt_at, writes_below};
use crate::lower::sign::{inside, never_negative};
use crate::simplify::{Facts, Prover};
use cora_ir::loops::{Block, Iter, LoopModule, Stmt};
use cora_ir::{Env, Expr, ExprId, ExprPool, Scope, TensorId, VarId};
use rustc_hash::FxHashMap;

/// A block that reads the tensor: the loops between the attach loop and it, and the indices read.
#[derive(Clone)]
pub(super) struct Reader {
    pub block: Path,
    /// All loops around it, and how many of them the attach loop is inside or is.
    pub loops: Vec<(VarId, ExprId)>,
    pub outer: usize,
    pub accesses: Vec<Access>,
    /// The block's iterators.
    pub iters: Vec<Iter>,
    /// The block's own.
    pub predicate: Vec<ExprId>,
    /// Whether it reads something wherever the mask of the attached nest holds.
    pub certain: bool,
    /// What is written in the nest that it is in.
    pub beside: Vec<TensorId>,
}

/// A distinct read of the tensor in a block.
#[derive(Clone)]
pub(super) struct Access {
    /// The index over the block's own iterators.
    pub raw: Vec<ExprId>,
    /// The same over loop variables.
    pub index: Vec<ExprId>,
    /// Which positions are in bounds only where a guard or the block's predicate holds.
    pub conditional: Vec<bool>,
    /// The guard over loop variables.
    pub guard: Option<ExprId>,
}

/// The distinct reads of `tensor` for an element of the block: index and guard over its iterators.
pub(crate) fn element_reads(pool: &ExprPool, b: &Block, tensor: TensorId) -> Vec<(Vec<ExprId>, Option<ExprId>)> {
    let mut out = Vec::new();
    for &e in std::iter::once(&b.value).chain(&b.index) {
        pool.walk_loads_of(e, tensor, &mut |_, n| {
            if let Expr::Load { index, guard, .. } = n {
                let read = (index.to_vec(), guard.map(|g| g.0));
                if !out.contains(&read) {
                    out.push(read);
                }
            }
        });
    }
    out
}

/// The paths of all blocks in the statements of the loop at `path`, or of the module where that is empty.
pub(super) fn block_paths(body: &[Stmt], path: &[usize]) -> Vec<Path> {
    fn go(body: &[Stmt], here: &mut Path, out: &mut Vec<Path>) {
        for (i, s) in body.iter().enumerate() {
            here.push(i);
            match s {
                Stmt::For(l) => go(&l.body, here, out),
                Stmt::Block(_) => out.push(here.clone()),
            }
            here.pop();
        }
    }
    let mut blocks = Vec::new();
    go(body, &mut path.to_vec(), &mut blocks);
    blocks
}

/// The blocks below the loop at `path` that read `tensor` for their elements. What reads it to know
/// which elements there are is not among them.
pub(super) fn collect_readers(m: &mut LoopModule, tensor: TensorId, path: &Path) -> Vec<Reader> {
    let blocks = block_paths(&loop_at(&m.body, path).body, path);
    let beside = path.first().and_then(|&n| m.body.get(n)).map(|s| writes_below(std::slice::from_ref(s)));
    let beside = beside.unwrap_or_default();
    let mut readers = Vec::new();
    for p in blocks {
        let Some(Stmt::Block(b)) = stmt_at(&m.body, &p) else { continue };
        let raw = element_reads(&m.env.pool, b, tensor);
        if raw.is_empty() {
            continue;
        }
        let map: FxHashMap<VarId, ExprId> = b.iters.iter().map(|i| (i.var, i.binding)).collect();
        let (predicate, iters) = (b.predicate.clone(), b.iters.clone());
        let loops = enclosing(&m.body, &p).iter().map(|l| (l.var, l.extent)).collect();
        let pool = &mut m.env.pool;
        let accesses = raw.into_iter().map(|(raw, guard)| {
            let index: Vec<ExprId> = raw.iter().map(|&e| pool.substitute(e, &map)).collect();
            let guard = guard.map(|g| pool.substitute(g, &map));
            Access { raw, conditional: vec![false; index.len()], index, guard }
        });
        let accesses = accesses.collect();
        let beside = beside.clone();
        readers.push(Reader { block: p, loops, outer: path.len(), accesses, iters, predicate, certain: false, beside });
    }
    readers
}

/// Whether each reader reads all rows of one position of the dimensions outside: a loop of its own runs through each dimension
/// inside.
pub(super) fn read_whole(m: &mut LoopModule, tensor: TensorId, readers: &[Reader]) -> bool {
    let extents: Vec<ExprId> = m.env.tensors[tensor].dims.iter().map(|d| d.extent).collect();
    let mut whole = |r: &Reader, a: &Access| {
        let (pool, inner) = (&mut m.env.pool, &r.loops[r.outer..]);
        let around = |pool: &ExprPool, e| !inner.iter().any(|l| pool.uses_var(e, l.0));
        let from = a.index.iter().position(|&e| !around(pool, e)).unwrap_or(a.index.len());
        let mut through: Vec<VarId> = Vec::new();
        a.guard.is_none()
            && (from..a.index.len()).all(|d| {
                let extent = pool.instantiate(extents[d], &a.index[..d]);
                let own = pool.as_var(a.index[d]).and_then(|v| inner.iter().find(|l| l.0 == v));
                own.is_some_and(|l| {
                    l.1 == extent && !through.contains(&l.0) && {
                        through.push(l.0);
                        true
                    }
                })
            })
    };
    readers.iter().all(|r| r.accesses.iter().all(|a| whole(r, a)))
}

/// What is known outside the attached nest of whether anything is read: the conjuncts that every
/// reader has, and that the loops around a single reader run. Where it fails the nest need not run,
/// and functions may have no value.
pub(super) fn shared_mask(m: &mut LoopModule, path: &Path, readers: &[Reader]) -> Vec<ExprId> {
    let mut outer: Vec<VarId> = enclosing(&m.body, path).iter().map(|l| l.var).collect();
    outer.push(loop_at(&m.body, path).var);
    let [first, others @ ..] = readers else { return Vec::new() };
    let mut mask: Vec<ExprId> =
        first.predicate.iter().copied().filter(|c| others.iter().all(|r| r.predicate.contains(c))).collect();
    if others.is_empty() {
        let zero = m.env.pool.int(0);
        for n in first.outer..first.loops.len() {
            if !first.runs(&mut m.env, n) {
                mask.push(m.env.pool.lt(zero, first.loops[n].1));
            }
        }
    }
    mask.retain(|&c| m.env.pool.vars_of(c).iter().all(|v| outer.contains(v)) && !first.reads_attached(&m.env, c));
    mask
}

impl Reader {
    /// Whether `e` reads a tensor that is attached in a loop: its values may not be there yet.
    pub(super) fn reads_attached(&self, env: &Env, e: ExprId) -> bool {
        env.pool.any(e, &mut |n| {
            matches!(n, Expr::Load { tensor, .. }
                if env.tensors[*tensor].scope != Scope::Global || self.beside.contains(tensor))
        })
    }

    /// Whether loop `n` around it is plainly not empty.
    pub(super) fn runs(&self, env: &mut Env, n: usize) -> bool {
        let ranges: Vec<(ExprId, ExprId)> = self.loops[..n].iter().map(|&(v, e)| (env.pool.var(v), e)).collect();
        let one = env.pool.int(1);
        let last = env.pool.sub(self.loops[n].1, one);
        never_negative(env, &ranges, last)
    }

    /// The ranges of the loops outside, and of those inside that `e` depends on.
    fn ranges(&self, env: &mut Env, e: ExprId) -> Vec<(ExprId, ExprId)> {
        let mut used = env.pool.vars_of(e);
        let mut out = Vec::new();
        for (n, &(v, extent)) in self.loops.iter().enumerate().rev() {
            if n < self.outer || used.contains(&v) {
                used.extend(env.pool.vars_of(extent));
                out.push((env.pool.var(v), extent));
            }
        }
        out.reverse();
        out
    }
}

/// Marks the positions that are in bounds only under a guard, under a conjunct that is not in `mask`
/// or because loops are not empty that may be. Whether there is any that is not plainly in bounds,
/// or has no value everywhere.
pub(super) fn mark_conditional(m: &mut LoopModule, tensor: TensorId, readers: &mut [Reader], mask: &[ExprId]) -> bool {
    let mut unproved = false;
    let mut prover = Prover::new();
    let zero = m.env.pool.int(0);
    for r in readers {
        let mut certain = r.predicate.iter().all(|c| mask.contains(c));
        for n in r.outer..r.loops.len() {
            let runs = m.env.pool.lt(zero, r.loops[n].1);
            certain &= mask.contains(&runs) || r.runs(&mut m.env, n);
        }
        r.certain = certain;
        for at in 0..r.accesses.len() {
            for d in 0..r.accesses[at].index.len() {
                let index = r.accesses[at].index.clone();
                let ranges = r.ranges(&mut m.env, index[d]);
                let extent = m.env.extent_at(tensor, d, &index);
                let facts = facts_of(&m.env, &ranges);
                unproved = unproved || !is_defined(&mut m.env, &mut prover, &facts, index[d]);
                if !inside(&mut m.env, &ranges, index[d], extent)
                    && !proved_inside(&mut m.env, &mut prover, &ranges, index[d], extent)
                {
                    unproved = true;
                    r.accesses[at].conditional[d] = !certain || r.accesses[at].guard.is_some();
                }
            }
        }
    }
    unproved
}

/// Whether `0 <= index < extent` follows from the ranges by the prover, where signs alone do not show it.
fn proved_inside(
    env: &mut Env,
    prover: &mut Prover,
    ranges: &[(ExprId, ExprId)],
    index: ExprId,
    extent: ExprId,
) -> bool {
    let facts = facts_of(env, ranges);
    let zero = env.pool.int(0);
    let (low, high) = (env.pool.le(zero, index), env.pool.lt(index, extent));
    prover.prove(env, &facts, low).is_proved() && prover.prove(env, &facts, high).is_proved()
}

fn facts_of(env: &Env, ranges: &[(ExprId, ExprId)]) -> Facts {
    Facts::in_loops(ranges.iter().filter_map(|&(v, e)| env.pool.as_var(v).map(|v| (v, e))))
}
