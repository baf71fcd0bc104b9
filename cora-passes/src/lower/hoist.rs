//! Load hoisting (paper section 5.3): table reads and searches move to the outermost loop where
//! their operands are known.
//!
//! ```text
//! for %b { for %i { B[row[%b] + %i] = .. } }  =>  for %b { let %r = row[%b]; for %i { B[%r + %i] = .. } }
//! ```
//!
//! The bounds of masks, guards and branches that loops do not change move out of them likewise, so that what is left
//! inside is a mask that is known before the loop.
//!
//! What a loop is marked with (`hoist on`, `hoist off`: the step `hoist_loads`) decides for that loop; `hoist-loads{off}`
//! for those without a mark. Out of a loop that keeps its loads nothing moves: they are read in each iteration.
//!
//! Requires: functions lowered to tables. Ensures: where loops allow it, an index expression that reads a table is a
//! `let` in the body of the loop that binds its innermost variable. Tables never change while
//! kernels run, and `lower_functions` made every read valid wherever its variables are bound, whatever
//! conditions hold there, so any read of a table may move. It leaves a branch only together with a loop: else it
//! would be read more often, not less. In a grid, branches keep threads beyond a block from reading, so reads
//! stay inside.

use cora_ir::storage::{Stmt, StorageModule};
use cora_ir::{Env, Expr, ExprId, ScalarType, TensorId, VarId};
use rustc_hash::{FxHashMap, FxHashSet};

/// Hoists in every kernel; `on`: also out of loops without a mark.
pub fn hoist_loads(m: &mut StorageModule, on: bool) {
    let tables: FxHashSet<TensorId> = m.tables.iter().map(|t| t.tensor).collect();
    let env = &mut m.env;
    for k in &mut m.kernels {
        let mut cx = Hoist { env, tables: &tables, bound: Vec::new(), grid: k.is_grid(), on };
        let body = std::mem::take(&mut k.body);
        k.body = cx.body(body);
    }
}

struct Hoist<'a> {
    env: &'a mut Env,
    tables: &'a FxHashSet<TensorId>,
    bound: Vec<VarId>,
    grid: bool,
    /// Whether loads leave loops without a mark.
    on: bool,
}

/// Expressions to be hoisted to one place.
#[derive(Default)]
struct Found {
    exprs: Vec<ExprId>,
    reads_seen: FxHashSet<ExprId>,
    bounds_seen: FxHashSet<ExprId>,
}

impl Hoist<'_> {
    /// Puts `let`s at the head of a body for what can be computed here but not further out.
    fn body(&mut self, mut stmts: Vec<Stmt>) -> Vec<Stmt> {
        let mut found = Found::default();
        for s in &stmts {
            self.collect(s, false, &mut found);
        }
        let mut lets = Vec::new();
        let mut map: FxHashMap<ExprId, ExprId> = FxHashMap::default();
        let mut memo = FxHashMap::default();
        for e in found.exprs {
            let var = self.env.new_var("t");
            // Searches in it stand before it and have names already.
            let kids = self.env.pool.children(e);
            let kids: Vec<ExprId> = kids.iter().map(|&k| replace_expr(self.env, k, &map, &mut memo)).collect();
            let value = self.env.pool.with_children(e, &kids);
            memo.clear();
            lets.push(Stmt::Let { var, value });
            let v = self.env.pool.var(var);
            map.insert(e, v);
            self.bound.push(var);
        }
        if !map.is_empty() {
            let mut memo = FxHashMap::default();
            for s in &mut stmts {
                replace(self.env, s, &map, &mut memo);
            }
        }
        let mut own = Vec::new();
        for s in stmts {
            let s = match s {
                Stmt::For { var, extent, kind, body } => {
                    let depth = self.bound.len();
                    self.bound.push(var);
                    let body = self.body(body);
                    self.bound.truncate(depth);
                    Stmt::For { var, extent, kind, body }
                }
                Stmt::If { cond, then, other } => {
                    let depth = self.bound.len();
                    let then = self.body(then);
                    self.bound.truncate(depth);
                    let other = self.body(other);
                    self.bound.truncate(depth);
                    Stmt::If { cond, then, other }
                }
                Stmt::Let { var, value } => {
                    self.bound.push(var);
                    Stmt::Let { var, value }
                }
                s => s,
            };
            own.push(s);
        }
        lets.extend(own);
        lets
    }

    /// The greatest subexpressions below `s` that read a table and whose variables are all bound here, and before each
    /// the searches in it: others may share them. `leaving`: whether there is a loop in between.
    fn collect(&self, s: &Stmt, leaving: bool, out: &mut Found) {
        match s {
            Stmt::For { var, extent, body, .. } => {
                self.reads(*extent, out);
                if self.env.vars[*var].hoist.unwrap_or(self.on) {
                    body.iter().for_each(|s| self.collect(s, true, out));
                }
            }
            Stmt::If { cond, then, other } => {
                self.condition(*cond, leaving, out);
                self.reads(*cond, out);
                if leaving && !self.grid {
                    then.iter().chain(other).for_each(|s| self.collect(s, true, out));
                }
            }
            Stmt::Let { value, .. } => self.reads(*value, out),
            Stmt::Barrier | Stmt::Commit | Stmt::Wait { .. } | Stmt::Beside(_) | Stmt::Shuffle { .. } => {}
            // Sizes are computed by the host.
            Stmt::Bulk(b) => {
                let at = b.dims.iter().map(|d| d.at);
                [b.offset, b.slot].into_iter().chain(at).for_each(|e| self.reads(e, out));
            }
            Stmt::Copy { .. } | Stmt::Atomic { .. } | Stmt::Await { .. } => {
                s.exprs().into_iter().for_each(|e| self.reads(e, out))
            }
            Stmt::Prefetch { index, .. } => self.reads(*index, out),
            Stmt::Gemm(g) => g.exprs().into_iter().for_each(|e| self.reads(e, out)),
            Stmt::Tile(t) => t.exprs().into_iter().for_each(|e| self.reads(e, out)),
            Stmt::Store { index, value, mask, rest, .. } => {
                if let Some(m) = mask {
                    self.condition(*m, leaving, out);
                    self.reads(*m, out);
                }
                let values = || std::iter::once(*value).chain(rest.iter().map(|r| r.1));
                let mut guards = Vec::new();
                for value in values() {
                    self.env.pool.walk(value, &mut |_, n| {
                        if let Expr::Load { guard: Some((c, _)), .. } = n {
                            guards.push(*c);
                        }
                    });
                }
                guards.into_iter().for_each(|c| self.condition(c, leaving, out));
                self.reads(*index, out);
                values().for_each(|v| self.reads(v, out));
            }
        }
    }

    /// The greatest index expressions of a condition that are known outside the loop.
    fn condition(&self, e: ExprId, leaving: bool, out: &mut Found) {
        if !leaving || self.grid || !out.bounds_seen.insert(e) {
            return;
        }
        if !self.hoistable(e) {
            self.env.pool.children(e).into_iter().for_each(|k| self.condition(k, leaving, out));
        } else if self.costs(e) && out.reads_seen.insert(e) {
            out.exprs.push(e);
        }
    }

    /// Whether a name is worth while: more than sums and multiples.
    fn costs(&self, e: ExprId) -> bool {
        use cora_ir::BinOp::{FloorDiv, Max, Min, Mod};
        self.env.pool.any(e, &mut |n| matches!(n, Expr::Bin(Min | Max | FloorDiv | Mod, ..) | Expr::Select(..)))
    }

    fn reads(&self, e: ExprId, out: &mut Found) {
        if !out.reads_seen.insert(e) {
            return;
        }
        if self.reads_table(e) {
            if self.hoistable(e) {
                self.env.pool.walk(e, &mut |id, n| {
                    if (id == e || matches!(n, Expr::Search { .. })) && !out.exprs.contains(&id) {
                        out.exprs.push(id);
                    }
                });
                return;
            }
            for k in self.env.pool.children(e) {
                self.reads(k, out);
            }
        }
    }

    fn reads_table(&self, e: ExprId) -> bool {
        self.env.pool.any(e, &mut |x| match x {
            Expr::Load { tensor, .. } => self.tables.contains(tensor),
            Expr::Search { .. } => true,
            _ => false,
        })
    }

    /// A scalar index of bound variables that reads nothing but tables.
    fn hoistable(&self, e: ExprId) -> bool {
        let ty = self.env.pool.ty(e);
        ty.scalar == ScalarType::Index
            && ty.lanes == 1
            && !self.env.pool.any(e, &mut |x| match x {
                Expr::Var(v) => !self.bound.contains(v),
                Expr::Load { tensor, .. } => !self.tables.contains(tensor),
                _ => false,
            })
    }
}

fn replace(env: &mut Env, s: &mut Stmt, map: &FxHashMap<ExprId, ExprId>, memo: &mut FxHashMap<ExprId, ExprId>) {
    s.map_exprs(&mut |e| replace_expr(env, e, map, memo));
    s.bodies_mut().flatten().for_each(|s| replace(env, s, map, memo));
}

/// Replaces top-down, since the keys are whole subexpressions.
fn replace_expr(
    env: &mut Env,
    e: ExprId,
    map: &FxHashMap<ExprId, ExprId>,
    memo: &mut FxHashMap<ExprId, ExprId>,
) -> ExprId {
    if let Some(&v) = map.get(&e) {
        return v;
    }
    if let Some(&done) = memo.get(&e) {
        return done;
    }
    let kids = env.pool.children(e);
    let new: Vec<ExprId> = kids.iter().map(|&k| replace_expr(env, k, map, memo)).collect();
    let out = if new[..] == kids[..] { e } else { env.pool.with_children(e, &new) };
    memo.insert(e, out);
    out
}
