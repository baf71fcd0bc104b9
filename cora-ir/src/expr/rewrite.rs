//! Walks over expressions and replacements in them.
//!
//! Each node has a set of the leaves that may stand below it, so that where nothing can be found or replaced nothing is
//! visited.

use super::{Args, BinOp, Expr, ExprPool, UnOp};
use crate::ScalarType;
use crate::TensorSet;
use crate::ids::{EntityId, ExprId, TensorId, VarId};
use rustc_hash::FxHashMap;

/// The bit that stands for formal arguments and operands; the others stand for variables.
const FORMALS: u64 = 1 << 63;

/// The bit of integers of 64 bits that become indices.
const WIDE: u64 = 1 << 62;

/// The bit of a variable in [`ExprPool`]'s sets of leaves; several variables may share one.
fn variable_bit(v: VarId) -> u64 {
    1 << (v.index() % 62)
}

impl ExprPool {
    /// Which leaves may stand at or below a node whose operands have their sets.
    pub(super) fn leaves_of(&self, id: ExprId) -> u64 {
        let own = match *self.get(id) {
            Expr::Var(v) => variable_bit(v),
            Expr::Arg(_) | Expr::Operand(..) => FORMALS,
            Expr::Cast(ScalarType::Index, a) if self.ty(a).scalar == ScalarType::I64 => WIDE,
            _ => 0,
        };
        self.children(id).iter().fold(own, |all, k| all | self.leaves[k.index()])
    }

    /// Which tensors may be read at or below a node whose operands have their sets.
    pub(super) fn loads_of(&self, id: ExprId) -> TensorSet {
        let own = match *self.get(id) {
            Expr::Load { tensor, .. } => TensorSet::of(tensor),
            _ => TensorSet::default(),
        };
        self.children(id).iter().fold(own, |all, &k| all.with(self.loads(k)))
    }

    /// The tensors that the expression may read.
    pub fn loads(&self, id: ExprId) -> TensorSet {
        self.loads[id.index()]
    }

    /// Whether an index may be as far from 0 as an integer type of 64 bits goes: an element of that type is in it. A sum
    /// that the program has not written may leave 64 bits.
    pub fn may_be_wide(&self, id: ExprId) -> bool {
        self.leaves[id.index()] & WIDE != 0
    }

    /// Whether the expression reads `tensor`.
    pub fn reads(&self, id: ExprId, tensor: TensorId) -> bool {
        let mut found = false;
        self.walk_loads_of(id, tensor, &mut |_, _| found = true);
        found
    }

    /// Visits each distinct read of `tensor` at or below `id` once, operands first.
    pub fn walk_loads_of(&self, id: ExprId, tensor: TensorId, f: &mut dyn FnMut(ExprId, &Expr)) {
        let mut seen = rustc_hash::FxHashSet::default();
        let of_tensor = |n: &Expr| matches!(n, Expr::Load { tensor: t, .. } if *t == tensor);
        self.walk_loads(id, TensorSet::of(tensor), &mut seen, &mut |e, n| {
            if of_tensor(n) {
                f(e, n);
            }
        });
    }

    fn walk_loads(
        &self,
        id: ExprId,
        of: TensorSet,
        seen: &mut rustc_hash::FxHashSet<ExprId>,
        f: &mut dyn FnMut(ExprId, &Expr),
    ) {
        if !self.loads(id).meets(of) || !seen.insert(id) {
            return;
        }
        for k in self.children(id) {
            self.walk_loads(k, of, seen, f);
        }
        f(id, self.get(id));
    }

    /// Rewrites bottom-up: `f` sees each node after its operands were rewritten, and gives its
    /// replacement or nothing to keep it. Shared nodes are visited once.
    pub fn rewrite(&mut self, id: ExprId, f: &mut dyn FnMut(&mut Self, ExprId) -> Option<ExprId>) -> ExprId {
        let mut memo = FxHashMap::default();
        self.rewrite_memo(id, &mut memo, f)
    }

    /// [`ExprPool::rewrite`] with a memo that the caller keeps between calls with the same `f`.
    pub fn rewrite_memo(
        &mut self,
        id: ExprId,
        memo: &mut FxHashMap<ExprId, ExprId>,
        f: &mut dyn FnMut(&mut Self, ExprId) -> Option<ExprId>,
    ) -> ExprId {
        if let Some(&done) = memo.get(&id) {
            return done;
        }
        let kids = self.children(id);
        let new: Args = kids.iter().map(|&k| self.rewrite_memo(k, memo, f)).collect();
        let rebuilt = if new == kids { id } else { self.with_children(id, &new) };
        let out = f(self, rebuilt).unwrap_or(rebuilt);
        memo.insert(id, out);
        out
    }

    /// [`ExprPool::rewrite`] by `f`, which must depend on nothing but the node and must always be the same
    /// function: what was rewritten once is kept for good.
    pub(crate) fn rewrite_once(
        &mut self,
        id: ExprId,
        f: &mut dyn FnMut(&mut Self, ExprId) -> Option<ExprId>,
    ) -> ExprId {
        if let Some(&done) = self.normal.get(&id) {
            return done;
        }
        let kids = self.children(id);
        let new: Args = kids.iter().map(|&k| self.rewrite_once(k, f)).collect();
        let rebuilt = if new == kids { id } else { self.with_children(id, &new) };
        let out = f(self, rebuilt).unwrap_or(rebuilt);
        self.normal.insert(id, out);
        self.normalized.push(id);
        out
    }

    /// Replaces variables.
    pub fn substitute(&mut self, id: ExprId, map: &FxHashMap<VarId, ExprId>) -> ExprId {
        if map.is_empty() {
            return id;
        }
        let leaf = |n: &Expr| if let Expr::Var(v) = n { map.get(v).copied() } else { None };
        let which = map.keys().fold(0, |all, &v| all | variable_bit(v));
        self.replace_leaves(id, which, &mut FxHashMap::default(), &leaf)
    }

    /// Replaces the formal arguments `Arg(0)`, `Arg(1)`, ... by `actuals`.
    pub fn instantiate(&mut self, id: ExprId, actuals: &[ExprId]) -> ExprId {
        let leaf = |n: &Expr| if let Expr::Arg(n) = n { actuals.get(*n as usize).copied() } else { None };
        self.replace_leaves(id, FORMALS, &mut FxHashMap::default(), &leaf)
    }

    /// Replaces the operands `Operand(0)`, `Operand(1)`, ... of a combiner by `actuals`.
    pub fn with_operands(&mut self, id: ExprId, actuals: &[ExprId]) -> ExprId {
        let leaf = |n: &Expr| if let Expr::Operand(n, _) = n { actuals.get(*n as usize).copied() } else { None };
        self.replace_leaves(id, FORMALS, &mut FxHashMap::default(), &leaf)
    }

    /// Replaces leaves (only of those in the set `which`), all at once: what comes in is not replaced
    /// again, even where a node around it folds away (`$0 + $1` at `[$1, 0]` is `$1`).
    fn replace_leaves(
        &mut self,
        id: ExprId,
        which: u64,
        memo: &mut FxHashMap<ExprId, ExprId>,
        leaf: &dyn Fn(&Expr) -> Option<ExprId>,
    ) -> ExprId {
        if self.leaves[id.index()] & which == 0 {
            return id;
        }
        if let Some(&done) = memo.get(&id) {
            return done;
        }
        let kids = self.children(id);
        let out = if kids.is_empty() {
            leaf(self.get(id)).unwrap_or(id)
        } else {
            let new: Args = kids.iter().map(|&k| self.replace_leaves(k, which, memo, leaf)).collect();
            if new == kids { id } else { self.with_children(id, &new) }
        };
        memo.insert(id, out);
        out
    }

    /// The value in another type in which its sums, differences, products and choices are computed too, down to what is
    /// something else.
    pub fn computed_in(&mut self, ty: ScalarType, id: ExprId) -> ExprId {
        self.computed_in_memo(ty, id, &mut FxHashMap::default())
    }

    fn computed_in_memo(&mut self, ty: ScalarType, id: ExprId, memo: &mut FxHashMap<ExprId, ExprId>) -> ExprId {
        if let Some(&done) = memo.get(&id) {
            return done;
        }
        let out = match *self.get(id) {
            Expr::Bin(op @ (BinOp::Add | BinOp::Sub | BinOp::Mul), a, b) => {
                let [a, b] = [a, b].map(|e| self.computed_in_memo(ty, e, memo));
                self.bin(op, a, b)
            }
            Expr::Un(UnOp::Neg, a) => {
                let a = self.computed_in_memo(ty, a, memo);
                self.un(UnOp::Neg, a)
            }
            Expr::Select(c, a, b) => {
                let [a, b] = [a, b].map(|e| self.computed_in_memo(ty, e, memo));
                self.select(c, a, b)
            }
            _ => self.cast(ty, id),
        };
        memo.insert(id, out);
        out
    }

    /// Visits each distinct node below `id` once, operands first.
    pub fn walk(&self, id: ExprId, f: &mut dyn FnMut(ExprId, &Expr)) {
        let mut seen = rustc_hash::FxHashSet::default();
        self.walk_seen(id, &mut seen, f);
    }

    /// [`ExprPool::walk`] with a set of already visited nodes that the caller keeps.
    pub fn walk_seen(&self, id: ExprId, seen: &mut rustc_hash::FxHashSet<ExprId>, f: &mut dyn FnMut(ExprId, &Expr)) {
        if !seen.insert(id) {
            return;
        }
        for k in self.children(id) {
            self.walk_seen(k, seen, f);
        }
        f(id, self.get(id));
    }

    /// Whether any node below `id` satisfies `pred`.
    pub fn any(&self, id: ExprId, pred: &mut dyn FnMut(&Expr) -> bool) -> bool {
        let mut found = false;
        self.walk(id, &mut |_, e| found = found || pred(e));
        found
    }

    /// Whether the expression mentions variable `v`.
    pub fn uses_var(&self, id: ExprId, v: VarId) -> bool {
        self.leaves[id.index()] & variable_bit(v) != 0 && self.any(id, &mut |e| *e == Expr::Var(v))
    }

    /// The variables mentioned, in order of first visit.
    pub fn vars_of(&self, id: ExprId) -> Vec<VarId> {
        let mut out = Vec::new();
        if self.leaves[id.index()] & !(FORMALS | WIDE) == 0 {
            return out;
        }
        self.walk(id, &mut |_, e| {
            if let Expr::Var(v) = e
                && !out.contains(v)
            {
                out.push(*v);
            }
        });
        out
    }
}
