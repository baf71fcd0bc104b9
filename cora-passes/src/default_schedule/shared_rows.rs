//! Dimensions whose positions share a factor of a sum in groups: those of a group are its rows.
//!
//! ```text
//! S[b, h, k] = sum(d) Q[b, h, d] * K[b, k, h / 4, d];  P[b, h, k] = f(S[b, h, k]);  O[b, h, d] = sum(k) P[b, h, k] * ..
//!   =>  S[b, g, r, k] = sum(d) Q[b, 4 * g + r, d] * K[b, k, g, d];  P[b, g, r, k] = ..;  O[b, 4 * g + r, d] = ..
//! ```
//!
//! So are the rows of a tile of windows, which begin together (see `narrow_masked`): `q` is taken apart where keys lie at
//! `f(q / 48) + k`, and its tiles are tasks.
//!
//! A sum that has rows already reads the factor once for all of them; one that has none would read it again for each position
//! of a group. The stages that are computed beside each other take the dimension apart alike, and the intermediates between
//! them have two instead; inputs, results and what a product without batches reads or makes keep the one.

use super::contraction::Contraction;
use super::own_names::parts_of;
use super::{TASK_ROWS, attempt, row_tasks, stages};
use crate::schedule::inits::place_init;
use crate::schedule::precompute::{naive, nest};
use crate::schedule::recurrent::is_recurrent;
use cora_ir::loops::{Block, BlockRole, Iter, IterKind, LoopModule};
use cora_ir::{BinOp, Expr, ExprId, ExprPool, Role, TensorDim, TensorId, VarId};
use rustc_hash::FxHashMap;

/// Takes such dimensions apart.
pub(super) fn shared_rows(m: &mut LoopModule) {
    for stage in stages(m) {
        attempt(m, |m| {
            let (iter, group) = shared(m, stage)?;
            take_apart(m, stage, iter, group)
        });
    }
}

/// The iterator of a sum without rows whose positions share, so many in a group, the factor that moves with the columns.
fn shared(m: &LoopModule, stage: TensorId) -> Option<(VarId, i64)> {
    let c = Contraction::of(m, stage).filter(|c| c.rows.is_empty() && c.a.is_some())?;
    let groups = c.batches.iter().filter_map(|l| {
        let iter = c.nest.iterator(m, l.var)?;
        let group = divisor(&m.env.pool, &c.b.1, iter)?;
        let several = m.env.pool.as_int(l.extent).is_none_or(|size| group < size);
        (group > 1 && several).then_some((iter, group))
    });
    groups.max_by_key(|g| g.1)
}

/// The number by which an iterator is divided wherever an index moves with it.
fn divisor(pool: &ExprPool, index: &[ExprId], iter: VarId) -> Option<i64> {
    fn go(pool: &ExprPool, e: ExprId, iter: VarId, found: &mut Vec<Option<i64>>) {
        match *pool.get(e) {
            Expr::Bin(BinOp::FloorDiv, x, by) if pool.as_var(x) == Some(iter) => found.push(pool.as_int(by)),
            Expr::Var(v) if v == iter => found.push(None),
            _ => pool.children(e).iter().for_each(|&k| go(pool, k, iter, found)),
        }
    }
    let mut found = Vec::new();
    index.iter().for_each(|&e| go(pool, e, iter, &mut found));
    let first = (*found.first()?)?;
    found.iter().all(|f| *f == Some(first)).then_some(first)
}

/// What is taken apart: iterators of stages, and dimensions of intermediates.
#[derive(Default)]
struct Apart {
    stages: FxHashMap<TensorId, VarId>,
    tensors: FxHashMap<TensorId, usize>,
}

/// Takes an iterator of a stage apart, and with it those of the stages beside it.
fn take_apart(m: &mut LoopModule, stage: TensorId, iter: VarId, group: i64) -> Option<()> {
    let mut apart = Apart::default();
    let mut rest = vec![(stage, iter)];
    while let Some((s, v)) = rest.pop() {
        if let Some(&known) = apart.stages.get(&s) {
            (known == v).then_some(())?;
            continue;
        }
        apart.stages.insert(s, v);
        rest.extend(beside(m, s, v));
    }
    for (&s, &v) in &apart.stages {
        let Some(p) = position(m, &block_of(m, s)?.index, v).filter(|_| m.env.tensors[s].role == Role::Temp) else {
            continue;
        };
        let with_it = |b: &Block| {
            let known = apart.stages.get(&b.stage);
            reads_of(&m.env.pool, b, s).iter().all(|i| known.is_some_and(|&w| m.env.pool.as_var(i[p]) == Some(w)))
        };
        if m.env.tensors[s].layout.is_empty() && m.blocks_reading(s).into_iter().all(with_it) {
            apart.tensors.insert(s, p);
        }
    }
    for (&t, &p) in &apart.tensors {
        dims_apart(m, t, p, group);
    }
    // In the order of the nests, so that names and numbers are the same each time.
    stages(m).into_iter().filter(|s| apart.stages.contains_key(s)).try_for_each(|s| stage_apart(m, s, &apart, group))
}

/// The stages whose elements at a position of an iterator are read at just that position, by a stage or of it, and their
/// iterators; none that is a sum of products without batches, or of a recurrence.
fn beside(m: &LoopModule, stage: TensorId, iter: VarId) -> Vec<(TensorId, VarId)> {
    let pool = &m.env.pool;
    let fits = |s: TensorId| !is_recurrent(m, s) && Contraction::of(m, s).is_none_or(|c| c.has_batches());
    let Some(own) = block_of(m, stage) else { return Vec::new() };
    let mut found = Vec::new();
    let mut reads = Vec::new();
    pool.walk(own.value, &mut |_, n| {
        if let Expr::Load { tensor, index, .. } = n
            && m.env.tensors[*tensor].role == Role::Temp
        {
            reads.extend(position(m, index, iter).map(|p| (*tensor, p)));
        }
    });
    for (t, p) in reads {
        found.extend(block_of(m, t).and_then(|b| pool.as_var(b.index[p])).map(|v| (t, v)).filter(|_| fits(t)));
    }
    if let Some(p) = position(m, &own.index, iter).filter(|_| m.env.tensors[stage].role == Role::Temp) {
        for b in m.blocks_reading(stage).into_iter().filter(|b| fits(b.stage)) {
            let spatial = |v: &VarId| b.iters.iter().any(|i| i.var == *v && i.kind == IterKind::Spatial);
            let of = |index: Vec<ExprId>| pool.as_var(index[p]).filter(spatial).map(|v| (b.stage, v));
            found.extend(reads_of(pool, b, stage).into_iter().filter_map(of));
        }
    }
    found
}

fn block_of(m: &LoopModule, stage: TensorId) -> Option<&Block> {
    m.blocks_of(stage).into_iter().find(|b| b.role != BlockRole::Init)
}

/// Where an index is an iterator.
fn position(m: &LoopModule, index: &[ExprId], iter: VarId) -> Option<usize> {
    index.iter().position(|&e| m.env.pool.as_var(e) == Some(iter))
}

/// The indices at which a block reads a tensor.
fn reads_of(pool: &ExprPool, b: &Block, tensor: TensorId) -> Vec<Vec<ExprId>> {
    let mut found = Vec::new();
    pool.walk_loads_of(b.value, tensor, &mut |_, n| {
        if let Expr::Load { index, .. } = n {
            found.push(index.to_vec());
        }
    });
    found
}

/// How many groups there are of `size`, and how many positions of a dimension that group `number` has.
fn sizes(pool: &mut ExprPool, size: ExprId, group: i64, number: ExprId) -> [ExprId; 2] {
    let most = pool.int(group);
    let count = pool.ceil_div(size, group);
    if pool.as_int(size).is_some_and(|n| n % group == 0) {
        return [count, most];
    }
    let before = pool.mul(number, most);
    let left = pool.sub(size, before);
    [count, pool.min(most, left)]
}

/// `e`, where position `old` of a dimension is `inner` of group `outer`.
fn apart(
    pool: &mut ExprPool,
    e: ExprId,
    (old, [outer, inner], group): (ExprId, [ExprId; 2], i64),
    other: &mut dyn FnMut(&mut ExprPool, ExprId) -> Option<ExprId>,
) -> ExprId {
    let by = pool.int(group);
    let first = pool.mul(outer, by);
    let whole = pool.add(first, inner);
    pool.rewrite(e, &mut |pool, e| match *pool.get(e) {
        _ if e == old => Some(whole),
        Expr::Bin(BinOp::FloorDiv, x, d) if x == whole && d == by => Some(outer),
        Expr::Bin(BinOp::Mod, x, d) if x == whole && d == by => Some(inner),
        _ => other(pool, e),
    })
}

/// Has a tensor two dimensions in the place of one.
fn dims_apart(m: &mut LoopModule, tensor: TensorId, dim: usize, group: i64) {
    let mut dims = m.env.tensors[tensor].dims.clone();
    let pool = &mut m.env.pool;
    let [old, next] = [dim, dim + 1].map(|n| pool.arg(n as u32));
    for d in &mut dims[dim + 1..] {
        let moved = |pool: &mut ExprPool, e| {
            apart(pool, e, (old, [old, next], group), &mut |pool, e| match *pool.get(e) {
                Expr::Arg(n) if n as usize > dim => Some(pool.arg(n + 1)),
                _ => None,
            })
        };
        (d.extent, d.storage) = (moved(pool, d.extent), moved(pool, d.storage));
    }
    let names = parts_of(&dims[dim].name);
    let [extents, stored] = [dims[dim].extent, dims[dim].storage].map(|size| sizes(pool, size, group, old));
    let parts = names.into_iter().zip(extents).zip(stored);
    let parts = parts.map(|((name, extent), storage)| TensorDim { storage, ..TensorDim::new(name, extent) });
    dims.splice(dim..=dim, parts);
    m.env.tensors[tensor].dims = dims;
}

/// Has a stage two loops in the place of one.
fn stage_apart(m: &mut LoopModule, stage: TensorId, all: &Apart, group: i64) -> Option<()> {
    let (top, block) = naive(m, stage)?;
    let iter = *all.stages.get(&stage)?;
    let at = block.iters.iter().position(|i| i.var == iter && i.kind == IterKind::Spatial)?;
    let [outer, inner] = parts_of(&m.env.vars[iter].name);
    let outer = if group >= TASK_ROWS { row_tasks::TASK.to_owned() } else { outer };
    let vars = [outer, inner].map(|name| m.env.new_var(name));
    let old = m.env.pool.var(iter);
    let [outer, inner] = vars.map(|v| m.env.pool.var(v));
    let change = |m: &mut LoopModule, e: ExprId| {
        apart(&mut m.env.pool, e, (old, [outer, inner], group), &mut |pool, e| match pool.get(e).clone() {
            Expr::Load { tensor, part, index, guard } => {
                let &dim = all.tensors.get(&tensor)?;
                let mut index = index.to_vec();
                // All that read it do so at such an iterator of theirs.
                index.splice(dim..=dim, [outer, inner]);
                let ty = pool.ty(e).scalar;
                Some(pool.load_guarded((tensor, part), ty, index, guard))
            }
            _ => None,
        })
    };
    let mut iters = block.iters.clone();
    for i in &mut iters[at + 1..] {
        i.extent = change(m, i.extent);
    }
    let sizes = sizes(&mut m.env.pool, block.iters[at].extent, group, outer);
    let parts = [(vars[0], outer, sizes[0]), (vars[1], inner, sizes[1])].map(|(var, binding, extent)| Iter {
        var,
        kind: IterKind::Spatial,
        extent,
        binding,
    });
    iters.splice(at..=at, parts);
    let value = change(m, block.value);
    let mut index: Vec<ExprId> = block.index.clone();
    match all.tensors.get(&stage) {
        Some(&dim) => drop(index.splice(dim..=dim, [outer, inner])),
        None => index.iter_mut().for_each(|e| *e = change(m, *e)),
    }
    let mut new = nest(&mut m.env, &iters, value, stage);
    new.blocks_mut(&mut |b| {
        let own: FxHashMap<VarId, ExprId> =
            iters.iter().zip(&b.iters).map(|(old, new)| (old.var, m.env.pool.var(new.var))).collect();
        b.role = block.role;
        b.iters.iter_mut().zip(&iters).for_each(|(new, old)| new.kind = old.kind);
        b.index = index.iter().map(|&e| m.env.pool.substitute(e, &own)).collect();
    });
    m.body[top] = new;
    place_init(m, stage);
    Some(())
}
