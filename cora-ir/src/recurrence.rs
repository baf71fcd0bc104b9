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
//! position before, or, of operators further up, of the same. That has to follow from what is known where the read stands: in
//! `%j < %i` of `sum[%j] @X[%b, %j]`, from the extent of `%j`.

mod earlier;

use crate::affine::{normalize, poly};
use crate::env::Env;
use crate::expr::{Expr, ExprPool};
use crate::graph::{Graph, Op};
use crate::ids::{DimId, ExprId, TensorId, VarId};
use crate::loops::{BlockRole, LoopModule, Stmt};
use crate::types::BinOp;
use earlier::Known;
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

/// Where what is read stands, seen from the position that reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// At the same position.
    Same,
    /// Before it: the first part of the index that is less than the position's own is one of these.
    Before(Vec<usize>),
    /// That is not known.
    Unknown,
}

/// A read in an expression.
#[derive(Clone, Debug)]
pub struct Read {
    /// What is read.
    pub tensor: TensorId,
    /// Which element.
    pub index: Vec<ExprId>,
    /// Where that is.
    pub place: Place,
}

/// The reads of tensors in `value`, seen from the position `at`, where variables are in their extents.
pub fn reads(env: &Env, value: ExprId, tensors: &[TensorId], vars: &[(VarId, ExprId)], at: &[VarId]) -> Vec<Read> {
    let mut cx = Reads { env, tensors, at, found: Vec::new() };
    cx.read_in(value, &Known::in_extents(env, vars), &mut FxHashSet::default());
    cx.found
}

struct Reads<'a> {
    env: &'a Env,
    tensors: &'a [TensorId],
    at: &'a [VarId],
    found: Vec<Read>,
}

impl<'a> Reads<'a> {
    /// Looks into an expression where this is known, unless it was `seen` there.
    fn read_in(&mut self, e: ExprId, known: &Known<'a>, seen: &mut FxHashSet<ExprId>) {
        if !seen.insert(e) {
            return;
        }
        let env = self.env;
        match env.pool.get(e) {
            Expr::Select(c, a, b) => {
                self.read_in(*c, known, seen);
                self.read_under((*c, true), *a, known);
                self.read_under((*c, false), *b, known);
            }
            Expr::Bin(BinOp::And, a, b) => {
                self.read_in(*a, known, seen);
                self.read_under((*a, true), *b, known);
            }
            Expr::Load { tensor, index, guard, .. } => {
                let mut known = known.clone();
                if let Some((c, other)) = guard {
                    self.read_in(*c, &known, seen);
                    self.read_under((*c, false), *other, &known);
                    known.assume(*c, true);
                }
                index.iter().for_each(|&i| self.read_in(i, &known, &mut FxHashSet::default()));
                if self.tensors.contains(tensor) {
                    let place = known.place(index, self.at);
                    self.found.push(Read { tensor: *tensor, index: index.to_vec(), place });
                }
            }
            _ => env.pool.children(e).into_iter().for_each(|e| self.read_in(e, known, seen)),
        }
    }

    /// Looks into what is used only where a condition holds, or does not.
    fn read_under(&mut self, (cond, holds): (ExprId, bool), e: ExprId, known: &Known<'a>) {
        if !self.tensors.iter().any(|&t| self.env.pool.reads(e, t)) {
            return;
        }
        let mut known = known.clone();
        known.assume(cond, holds);
        self.read_in(e, &known, &mut FxHashSet::default());
    }
}

impl Recurrence {
    /// The reads of the recurrence's own results that are not known to be of positions before: reader and what it reads.
    pub fn unordered(&self, graph: &Graph) -> Vec<(TensorId, Read)> {
        let members: Vec<TensorId> = graph.ops[self.ops.clone()].iter().map(|op| op.tensor).collect();
        let place = |t: TensorId| members.iter().position(|&m| m == t);
        let mut all = self.own_reads(graph);
        all.retain(|(reader, read)| match read.place {
            Place::Before(_) => false,
            Place::Same => place(read.tensor) >= place(*reader),
            Place::Unknown => true,
        });
        all
    }

    /// Which of its results its operators read at the same position: reader and what it reads.
    pub fn same_positions(&self, graph: &Graph) -> Vec<(TensorId, TensorId)> {
        let all = self.own_reads(graph).into_iter();
        all.filter(|(_, read)| read.place == Place::Same).map(|(reader, read)| (reader, read.tensor)).collect()
    }

    /// What its operators read of its results.
    fn own_reads(&self, graph: &Graph) -> Vec<(TensorId, Read)> {
        let env = &graph.env;
        let at: Vec<VarId> = self.dims.iter().map(|&d| env.dims[d].var).collect();
        let members: Vec<TensorId> = graph.ops[self.ops.clone()].iter().map(|op| op.tensor).collect();
        let of_op = |op: &Op| {
            let dims = op.spatial.iter().chain(&op.reduce);
            let vars: Vec<(VarId, ExprId)> = dims.map(|&d| (env.dims[d].var, env.dims[d].extent)).collect();
            let found = reads(env, op.value, &members, &vars, &at);
            found.into_iter().map(|r| (op.tensor, r)).collect::<Vec<_>>()
        };
        graph.ops[self.ops.clone()].iter().flat_map(of_op).collect()
    }
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

#[cfg(test)]
mod tests {
    use super::recurrences;
    use crate::text::parse_graph;

    /// Whether `T` reads only what is before its own position, and how many of its dimensions are positions.
    fn ordered(reduced: &str, value: &str) -> Option<usize> {
        let text = format!(
            "graph.module @g {{
               param M in 0..=8
               param D in 1..=4
               param Z in 0..=4
               uf @n($0 < M) = extent in 0..=9
               dim %b = M
               dim %i = @n(%b)
               dim %j = %i + 1
               dim %s = {reduced}
               tensor @p[b: M, i: @n($0)] : i32 input range -1..9
               tensor @near[b: M, i: @n($0)] : i32 input range 1..4
               tensor @up[b: M, i: @n($0)] : i32 input range -1..$1
               tensor @left[b: M, i: @n($0)] : i32 input range @n($0) - $1..@n($0) + 1
               tensor @T[b: M, i: @n($0), j: $1 + 1] : f32 output
               op @T[%b, %i, %j] = sum[%s] ({value})
               output @T
             }}"
        );
        let graph = parse_graph(&text).unwrap_or_else(|d| panic!("{d:?}"));
        let [r] = recurrences(&graph).try_into().ok()?;
        r.unordered(&graph).is_empty().then_some(r.dims.len())
    }

    #[test]
    fn earlier_positions_follow_from_extents_ranges_and_conditions() {
        let earlier = [
            ("%i", "@T[%b, %s, %j]", 2),
            ("%j", "@T[%b, %i, %s]", 3),
            ("min(%i, %j)", "@T[%b, %s, %s]", 2),
            ("@n(%b)", "select(%s < %i, @T[%b, %s, %j], 0.0:f32)", 2),
            ("@n(%b)", "select(%i <= %s, 0.0:f32, @T[%b, %s, %j])", 2),
            ("%i", "@T[%b, %i - 1 - %s, 0]", 2),
            ("%i", "@T[%b, %i - D, 0]", 2),
            ("%i", "@T[%b, (%i - 1) // 2, 0] if 0 <= (%i - 1) // 2 else 0.0:f32", 2),
            ("%i", "@T[%b, %i - 1 - %s % 4, 0]", 2),
            ("%i", "@T[%b, max(%s - Z, 0), 0]", 2),
            ("%i", "@T[%b, min(index(@p[%b, %i]), %i - 1), 0]", 2),
            ("%i", "@T[%b, %i - index(@near[%b, %i]), 0]", 2),
            ("%i", "@T[%b, index(@up[%b, %i]), 0] if 0 <= index(@up[%b, %i]) else 0.0:f32", 2),
            ("%i", "@T[%b, index(@up[%b, %s + 1]), 0] if 0 <= index(@up[%b, %s + 1]) else 0.0:f32", 2),
            ("%i", "@T[%b, @n(%b) - 1 - index(@left[%b, %i]), 0]", 2),
            (
                "%i",
                "select(index(@p[%b, %i]) < %i and 0 <= index(@p[%b, %i]), @T[%b, index(@p[%b, %i]), 0], 0.0:f32)",
                2,
            ),
            ("%j", "select(%i != %j, @T[%b, %j, %s], 0.0:f32)", 2),
            ("%j", "@T[%b, %j, %s]", 3),
            ("%j", "select(%i == 0, 0.0:f32, @T[%b, (%i - 1) // 2, 0])", 2),
            ("%i", "@T[%b, %i // D * D - 1, 0]", 2),
            ("%i", "@T[%b, %i - index((@near[%b, %i] if %j < 3 else 0:i32)), 0] if %j < 3 else 0.0:f32", 2),
        ];
        for (reduced, value, positions) in earlier {
            assert_eq!(ordered(reduced, value), Some(positions), "{value} over {reduced}");
        }
        let unknown = [
            ("%i + 1", "@T[%b, %s, %j]"),
            ("%j + 1", "@T[%b, %i, %s]"),
            ("@n(%b)", "select(%s <= %i, @T[%b, %s, %j], 0.0:f32)"),
            ("@n(%b)", "select(%s < %i, 0.0:f32, @T[%b, %s, %j])"),
            ("%i", "@T[%b, %i - Z, 0]"),
            ("%i", "@T[%b, (%i + 1) // 2, 0]"),
            ("%i", "@T[%b, %s + 1, 0]"),
            ("%i", "@T[%b, max(%s, Z), 0]"),
            ("%i", "@T[%b, index(@p[%b, %i]), 0]"),
            ("%i", "@T[%b, %i + 1 - index(@near[%b, %i]), 0]"),
            ("%i", "select(%i != %s, @T[%b, %i + %s, 0], 0.0:f32)"),
            ("%j + 1", "@T[%b, %j, %s]"),
            ("%i", "@T[%b, %i // D * D, 0]"),
            ("%i", "@T[%b, %i // Z * Z - 1 + Z, 0]"),
            ("%i", "@T[%b, %i - index((@near[%b, %i] if %j < 3 else 0:i32)), 0]"),
        ];
        for (reduced, value) in unknown {
            assert_eq!(ordered(reduced, value), None, "{value} over {reduced}");
        }
    }
}
