//! Recurrences: operators that read what they, or operators after them, define at earlier positions.
//!
//! ```text
//! op @H.sum[%b, %t, %j] = sum[%k] (@H[%b, %t - 1, %k] if 0 <= %t - 1 else 0) * @U[%j, %k]
//! op @H[%b, %t, %j] = tanh(@X[%b, %t, %j] + @H.sum[%b, %t, %j])
//! ```
//!
//! The operators of a recurrence follow one another. Its positions are over dimensions that all of them have first, as few as
//! will do: `b` and `t` here. Its meaning is a loop over the positions in lexicographic order, which computes at each of them
//! what every operator has there, one operator after the other. So each read of a recurrence's own results has to be of a
//! position before, or, of operators further up, of the same.

use crate::affine::{normalize, poly};
use crate::env::Env;
use crate::expr::{Expr, ExprPool};
use crate::graph::{Graph, Op};
use crate::ids::{DimId, ExprId, TensorId, VarId};
use crate::loops::{BlockRole, LoopModule, Stmt};
use crate::types::BinOp;
use rustc_hash::{FxHashMap, FxHashSet};
use std::ops::Range;

/// Operators that read each other's results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recurrence {
    /// Where they stand in the graph.
    pub ops: Range<usize>,
    /// The dimensions of its positions, outermost first.
    pub dims: Vec<DimId>,
}

/// The recurrences of a graph, in its order.
pub fn recurrences(graph: &Graph) -> Vec<Recurrence> {
    let at: FxHashMap<TensorId, usize> = graph.ops.iter().enumerate().map(|(n, op)| (op.tensor, n)).collect();
    let mut found: Vec<Range<usize>> = Vec::new();
    for (n, op) in graph.ops.iter().enumerate() {
        let mut last = None;
        graph.env.pool.walk(op.value, &mut |_, e| {
            if let Expr::Load { tensor, .. } = e {
                last = last.max(at.get(tensor).copied().filter(|&m| m >= n));
            }
        });
        let Some(last) = last else { continue };
        match found.last_mut() {
            Some(open) if n < open.end => open.end = open.end.max(last + 1),
            _ => found.push(n..last + 1),
        }
    }
    let of = |ops: Range<usize>| {
        let shared = shared_dims(&graph.ops[ops.clone()]);
        let first = |n: usize| Recurrence { ops: ops.clone(), dims: shared[..n].to_vec() };
        (1..shared.len()).map(first).find(|r| r.unordered(graph).is_empty()).unwrap_or_else(|| first(shared.len()))
    };
    found.into_iter().map(of).collect()
}

/// The stages of a module's nests that read what is written there later, all that stand in such a nest, and how many of their
/// dimensions may be positions: those of loops that all are in, or of the one stage.
pub fn recurrent_stages(m: &LoopModule) -> Vec<(TensorId, usize)> {
    let mut out = Vec::new();
    let mut written = FxHashSet::default();
    for s in &m.body {
        let (mut stages, mut later) = (Vec::new(), Vec::new());
        let mut again = false;
        s.walk(&mut |s| {
            let Stmt::Block(b) = s else { return };
            if !stages.contains(&b.stage) {
                stages.push(b.stage);
            }
            m.env.pool.walk(b.value, &mut |_, e| {
                if let Expr::Load { tensor, .. } = e
                    && !written.contains(tensor)
                {
                    later.push(*tensor);
                }
            });
            again |= later.contains(&b.tensor);
            if b.role != BlockRole::Init {
                written.insert(b.tensor);
            }
        });
        if again {
            let mut shared = 0;
            let mut inner = s;
            while let Stmt::For(l) = inner {
                shared += 1;
                let [next] = l.body.as_slice() else { break };
                inner = next;
            }
            let rank = |t: TensorId| m.env.tensors[t].dims.len();
            out.extend(stages.into_iter().map(|t| (t, shared.min(rank(t)))));
        }
    }
    out
}

/// The dimensions that all operators have first.
fn shared_dims(ops: &[Op]) -> Vec<DimId> {
    let mut shared = ops.first().map(|o| o.spatial.clone()).unwrap_or_default();
    for op in ops {
        let same = shared.iter().zip(&op.spatial).take_while(|(a, b)| a == b).count();
        shared.truncate(same);
    }
    shared
}

/// What an operator reads, and where.
fn reads(env: &Env, op: &Op) -> Vec<(TensorId, Vec<ExprId>)> {
    let mut out = Vec::new();
    env.pool.walk(op.value, &mut |_, e| {
        if let Expr::Load { tensor, index, .. } = e {
            out.push((*tensor, index.to_vec()));
        }
    });
    out
}

impl Recurrence {
    /// The reads of the recurrence's own results that are not of positions before: reader, tensor, index.
    pub fn unordered(&self, graph: &Graph) -> Vec<(TensorId, TensorId, Vec<ExprId>)> {
        let vars: Vec<VarId> = self.dims.iter().map(|&d| graph.env.dims[d].var).collect();
        let mut out = Vec::new();
        for (n, op) in self.ops.clone().zip(&graph.ops[self.ops.clone()]) {
            for (tensor, index) in reads(&graph.env, op) {
                let Some(m) = self.ops.clone().find(|&m| graph.ops[m].tensor == tensor) else { continue };
                let earlier = match differs_before(&graph.env.pool, &vars, &index) {
                    Some(None) => m < n,
                    Some(Some(_)) => true,
                    None => false,
                };
                if !earlier {
                    out.push((op.tensor, tensor, index));
                }
            }
        }
        out
    }
}

/// Where an index is before the position `at`: the first of its parts that differs; `Some(None)` where none does, nothing if it is
/// not a constant number less.
pub fn differs_before(pool: &ExprPool, at: &[VarId], index: &[ExprId]) -> Option<Option<usize>> {
    for (p, &var) in at.iter().enumerate() {
        match plus_constant(pool, *index.get(p)?, var)? {
            0 => {}
            n => return (n < 0).then_some(Some(p)),
        }
    }
    Some(None)
}

/// How many positions before the last one of dimension `d`, of this extent over the indices outside, an index is.
pub fn before_last(pool: &mut ExprPool, (extent, d): (ExprId, usize), index: &[ExprId]) -> Option<i64> {
    let size = pool.instantiate(extent, &index[..d]);
    let after = pool.sub(size, index[d]);
    let after = normalize(pool, after);
    poly(pool, after).as_constant()?.checked_sub(1).filter(|&n| n >= 0)
}

/// The `n` of `var + n`.
pub fn plus_constant(pool: &ExprPool, e: ExprId, var: VarId) -> Option<i64> {
    match *pool.get(e) {
        Expr::Var(v) => (v == var).then_some(0),
        Expr::Bin(BinOp::Sub, a, n) => plus_constant(pool, a, var)?.checked_sub(pool.as_int(n)?),
        Expr::Bin(BinOp::Add, a, b) => {
            let (a, n) = if pool.as_int(a).is_some() { (b, a) } else { (a, b) };
            plus_constant(pool, a, var)?.checked_add(pool.as_int(n)?)
        }
        _ => None,
    }
}
