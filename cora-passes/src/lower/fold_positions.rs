//! Results of a recurrence that only its next positions read have room for these alone.
//!
//! ```text
//! for %b { for %t { @S[%b, %t, %d] = @S[%b, %t - 1, %d] * .. + ..; @O[%b, %t] = .. @S[%b, %t, 0] .. } }
//!   =>  @S is stored as [b, 2, d], position %t in place %t % 2
//! ```
//!
//! Positions follow each other in order (`schedule/recurrent.rs`), whatever became of the loops over them. So what is written
//! `n` positions after another may take its place if all reads are of fewer positions before. After the last position the
//! last `n` are still there: a read of a sequence's last state finds it.
//!
//! Requires: a scheduled module. Ensures: the same values; only layouts change. Runs before `to-storage`.

use crate::schedule::recurrent::positions;
use cora_ir::layout::LayoutStep;
use cora_ir::loops::{Block, IterKind, LoopModule, Stmt};
use cora_ir::recurrence::{before_last, plus_constant};
use cora_ir::{Env, Expr, ExprId, Role, Scope, TensorId, VarId};

/// At most so many positions are kept apart from the others.
const MOST_KEPT: i64 = 16;

/// Folds the intermediates of every recurrence.
pub fn fold_positions(m: &mut LoopModule) {
    for n in 0..m.body.len() {
        let nest = m.body[n].clone();
        let members = members(m, &nest);
        let Some(carried) = carried(m, &nest, &members) else { continue };
        for &t in &members {
            if let Some(count) = kept(m, n, (t, carried)) {
                m.env.tensors[t].layout.push(LayoutStep::Fold { dim: carried, count });
            }
        }
    }
}

/// The results of a recurrence's stages in a nest that are stored by their positions.
fn members(m: &LoopModule, nest: &Stmt) -> Vec<TensorId> {
    let mut found = Vec::new();
    nest.walk(&mut |s| {
        if let Stmt::Block(b) = s
            && positions(m, b.stage).is_some()
            && m.env.tensors[b.tensor].scope == Scope::Global
            && !found.contains(&b.tensor)
        {
            found.push(b.tensor);
        }
    });
    found
}

/// The reads of a tensor in a block: their indices.
fn reads(env: &Env, b: &Block, t: TensorId) -> Vec<Vec<ExprId>> {
    let mut out = Vec::new();
    let bounds = b.iters.iter().flat_map(|i| [i.extent, i.binding]);
    for e in [b.value].into_iter().chain(b.index.iter().copied()).chain(b.predicate.iter().copied()).chain(bounds) {
        env.pool.walk(e, &mut |_, n| {
            if let Expr::Load { tensor, index, .. } = n
                && *tensor == t
            {
                out.push(index.to_vec());
            }
        });
    }
    out
}

/// The iterators of a block for its positions.
fn own(b: &Block, count: usize) -> Vec<VarId> {
    b.iters.iter().filter(|i| i.kind == IterKind::Spatial).map(|i| i.var).take(count).collect()
}

/// The outermost dimension in which reads are of positions before; nothing where there is none, or where that is not known.
fn carried(m: &LoopModule, nest: &Stmt, members: &[TensorId]) -> Option<usize> {
    let mut outermost = None;
    let mut known = true;
    nest.walk(&mut |s| {
        let Stmt::Block(b) = s else { return };
        for &t in members {
            for index in reads(&m.env, b, t) {
                let count = positions(m, b.stage);
                let vars = own(b, count.unwrap_or(0));
                let differs = vars.iter().zip(&index).position(|(&v, &e)| plus_constant(&m.env.pool, e, v) != Some(0));
                known &= count.is_some();
                if let Some(d) = differs {
                    outermost = Some(outermost.map_or(d, |o: usize| o.min(d)));
                }
            }
        }
    });
    outermost.filter(|_| known)
}

/// How many positions of dimension `d` of `t`, which nest `home` writes, have to be kept; nothing where all have.
fn kept(m: &mut LoopModule, home: usize, (t, d): (TensorId, usize)) -> Option<i64> {
    let tensor = &m.env.tensors[t];
    let plain = tensor.role == Role::Temp && tensor.scope == Scope::Global && tensor.layout.is_empty();
    let steers = |e: ExprId| m.env.pool.any(e, &mut |n| *n == Expr::Arg(d as u32));
    let alone = tensor.dims.iter().all(|x| x.extent == x.storage && !steers(x.extent));
    if !plain || !alone || tensor.tuple.is_some() || d >= tensor.dims.len() {
        return None;
    }
    let extent = tensor.dims[d].extent;
    let mut count = 1;
    for n in 0..m.body.len() {
        let mut blocks = Vec::new();
        m.body[n].walk(&mut |s| {
            if let Stmt::Block(b) = s {
                blocks.push(b.clone());
            }
        });
        for b in blocks {
            let reads = reads(&m.env, &b, t);
            if b.tensor == t && n != home || n < home && !reads.is_empty() {
                return None;
            }
            for index in reads {
                let before = if n == home {
                    distance(m, &b, &index, d)?
                } else {
                    before_last(&mut m.env.pool, (extent, d), &index)?
                };
                count = count.max(before + 1);
            }
        }
    }
    let small = m.env.pool.as_int(extent).is_some_and(|n| n <= count);
    (count <= MOST_KEPT && !small).then_some(count)
}

/// How many positions of dimension `d` before its own a stage of the recurrence reads, the dimensions outside being its own.
fn distance(m: &LoopModule, b: &Block, index: &[ExprId], d: usize) -> Option<i64> {
    let vars = own(b, positions(m, b.stage)?);
    let at = |q: usize| plus_constant(&m.env.pool, *index.get(q)?, *vars.get(q)?);
    (0..d).all(|q| at(q) == Some(0)).then(|| at(d))?.and_then(i64::checked_neg).filter(|&n| n >= 0)
}
