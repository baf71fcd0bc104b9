//! Hash-consed expressions: one typed language for indices, extents, offsets and values.
//!
//! Equal expressions have equal ids within one [`ExprPool`]. `Index` expressions are mathematical
//! integers; other types compute as the machine does. Constructors fold constants and identities
//! (`x + 0`, `1 * x`), nothing that needs facts; that is the simplifier's work.

mod cast;
mod lineage;
mod rewrite;

pub use lineage::PoolState;

use crate::ids::{EntityId, ExprId, ParamId, TensorId, UfId, VarId};
use crate::tensor_set::TensorSet;
use crate::types::{BinOp, Combiner, Literal, ScalarType, Type, UnOp};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::hash::BuildHasher;

/// Operands of a call or a load.
pub type Args = SmallVec<[ExprId; 4]>;

/// One expression node.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Expr {
    /// An `Index` constant.
    Int(i64),
    /// A constant of another type.
    Lit(Literal),
    /// An index variable.
    Var(VarId),
    /// A run-time size parameter (`Index`).
    Param(ParamId),
    /// The n-th formal argument of the definition this expression belongs to: an uninterpreted
    /// function's arguments, or the outer indices of a tensor dimension's extent.
    Arg(u32),
    /// The n-th operand of the combiner that this expression belongs to (see [`crate::tuple`]).
    Operand(u32, ScalarType),
    /// Several values: the elements of a tensor of tuples. Only as the whole value of an operator or a block.
    Tuple(Args),
    /// A call of an uninterpreted function (`Index`).
    Call(UfId, Args),
    /// A unary operator.
    Un(UnOp, ExprId),
    /// A binary operator.
    Bin(BinOp, ExprId, ExprId),
    /// `if cond then a else b`, both evaluated.
    Select(ExprId, ExprId, ExprId),
    /// Conversion to a scalar type (lanes unchanged). Float to integer truncates and saturates.
    Cast(ScalarType, ExprId),
    /// An element of a tensor: multi-dimensional in the op graph and the loop dialect, one flat
    /// offset in the storage dialect.
    Load {
        /// What is read.
        tensor: TensorId,
        /// Which component, of a tensor of tuples; else 0.
        part: u32,
        /// The index, a position for each dimension.
        index: Args,
        /// `(condition, other)`: where the condition is false nothing is read and `other` is the value.
        guard: Option<(ExprId, ExprId)>,
    },
    /// `base + lane * stride` for each lane (`Index`, storage dialect).
    Ramp {
        /// Lane 0.
        base: ExprId,
        /// Distance between lanes.
        stride: i64,
        /// How many lanes.
        lanes: u32,
    },
    /// A scalar repeated in each lane (storage dialect).
    Splat(ExprId, u32),
    /// The greatest `x` in `0..len` with `table[base + x] <= value` (`Index`, storage dialect): the
    /// lowered form of a search function. `table[base..=base + len]` does not decrease.
    Search {
        /// A table of prefix sums.
        table: TensorId,
        /// Where its row begins.
        base: ExprId,
        /// How many rows the sums are over.
        len: ExprId,
        /// The flat position looked for.
        value: ExprId,
    },
    /// All lanes of a vector combined into a scalar, in an order fixed by the number of lanes.
    Reduce(Combiner, ExprId),
}

/// The arena of expressions of one module.
#[derive(Debug, Default)]
pub struct ExprPool {
    lineage: lineage::Lineage,
    nodes: Vec<Expr>,
    types: Vec<Type>,
    /// Which replaceable leaves may stand below each node (`rewrite`).
    leaves: Vec<u64>,
    /// Which tensors may be read at or below each node.
    loads: Vec<TensorSet>,
    index: FxHashMap<Expr, ExprId>,
    /// Normal forms that were computed; nodes never change, so that they stay true.
    normal: FxHashMap<ExprId, ExprId>,
    /// What has one, in the order in which it got it.
    normalized: Vec<ExprId>,
    /// Nodes that took the place of others in `index`.
    displaced: Vec<(ExprId, ExprId)>,
}

/// A length of a pool to come back to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    nodes: usize,
    displaced: usize,
    normalized: usize,
}

/// Values nested deeper than this are refused, so that no stage can run out of stack.
pub const MAX_VALUE_DEPTH: u32 = 1000;
/// And so are values that would fill more than this many nodes when written out as a tree.
pub const MAX_VALUE_SIZE: u64 = 100_000;

impl ExprPool {
    /// The constant that `e` never exceeds, from its form.
    pub fn constant_bound(&self, e: ExprId) -> Option<i64> {
        match *self.get(e) {
            Expr::Int(v) => Some(v),
            Expr::Bin(BinOp::Min, a, b) => match (self.constant_bound(a), self.constant_bound(b)) {
                (Some(x), Some(y)) => Some(x.min(y)),
                (x, y) => x.or(y),
            },
            Expr::Bin(BinOp::Add, a, b) => self.constant_bound(a)?.checked_add(self.constant_bound(b)?),
            Expr::Bin(BinOp::FloorDiv, a, b) => {
                let c = self.as_int(b).filter(|&c| c > 0)?;
                Some(floor_div(self.constant_bound(a)?, c))
            }
            Expr::Bin(BinOp::Max, a, b) | Expr::Select(_, a, b) => {
                Some(self.constant_bound(a)?.max(self.constant_bound(b)?))
            }
            _ => None,
        }
    }

    /// `e`, which stands for `form`: where the form of `form` shows a constant bound and that of `e` none, with it. A
    /// simpler form must not take it away, since a block's shape is the constant bound of its thread loops.
    pub fn with_bound_of(&mut self, form: ExprId, e: ExprId) -> ExprId {
        match self.constant_bound(form) {
            Some(most) if self.constant_bound(e).is_none() => {
                let most = self.int(most);
                self.min(most, e)
            }
            _ => e,
        }
    }

    /// Depth of `e`, and the number of its nodes when written out as a tree.
    pub fn measure(&self, e: ExprId) -> (u32, u64) {
        self.measure_memo(e, &mut FxHashMap::default())
    }

    /// [`ExprPool::measure`] with a memo that the caller keeps.
    pub fn measure_memo<S: BuildHasher>(&self, e: ExprId, memo: &mut HashMap<ExprId, (u32, u64), S>) -> (u32, u64) {
        if let Some(&m) = memo.get(&e) {
            return m;
        }
        let (mut depth, mut size) = (0, 0_u64);
        for k in self.children(e) {
            let (d, s) = self.measure_memo(k, memo);
            depth = depth.max(d);
            size = size.saturating_add(s);
        }
        let m = (depth + 1, size.saturating_add(1));
        memo.insert(e, m);
        m
    }

    /// The node behind an id.
    pub fn get(&self, id: ExprId) -> &Expr {
        &self.nodes[id.index()]
    }

    /// The type of an expression.
    pub fn ty(&self, id: ExprId) -> Type {
        self.types[id.index()]
    }

    /// The number of distinct expressions.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The present length, for [`ExprPool::rollback`].
    pub(crate) fn mark(&self) -> Mark {
        Mark { nodes: self.nodes.len(), displaced: self.displaced.len(), normalized: self.normalized.len() }
    }

    /// Forgets every node that was built after the mark; their ids mean nothing any more.
    pub(crate) fn rollback(&mut self, mark: Mark) {
        if self.len() > mark.nodes {
            self.lineage = self.lineage.fork(mark.nodes);
        }
        for (n, node) in self.nodes.drain(mark.nodes..).enumerate() {
            if self.index.get(&node) == Some(&ExprId::from_index(mark.nodes + n)) {
                self.index.remove(&node);
            }
        }
        for (_, old) in self.displaced.drain(mark.displaced..).rev() {
            self.index.insert(self.nodes[old.index()].clone(), old);
        }
        self.types.truncate(mark.nodes);
        self.leaves.truncate(mark.nodes);
        self.loads.truncate(mark.nodes);
        let there = |id: &ExprId| id.index() < mark.nodes;
        for from in self.normalized.split_off(mark.normalized) {
            if there(&from) && self.normal.get(&from).is_some_and(there) {
                self.normalized.push(from);
            } else {
                self.normal.remove(&from);
            }
        }
    }

    fn intern(&mut self, node: Expr, ty: Type) -> ExprId {
        // A load has its tensor's type, and a step that is refused gives up the ids of the tensors that it made.
        if let Some(&id) = self.index.get(&node)
            && self.types[id.index()] == ty
        {
            return id;
        }
        let id = ExprId::from_index(self.nodes.len());
        self.nodes.push(node.clone());
        let leaves = self.leaves_of(id);
        self.leaves.push(leaves);
        let loads = self.loads_of(id);
        self.loads.push(loads);
        self.types.push(ty);
        if let Some(old) = self.index.insert(node, id) {
            self.displaced.push((id, old));
        }
        id
    }

    /// An `Index` constant.
    pub fn int(&mut self, value: i64) -> ExprId {
        self.intern(Expr::Int(value), Type::scalar(ScalarType::Index))
    }

    /// A constant of another type.
    pub fn lit(&mut self, value: Literal) -> ExprId {
        self.intern(Expr::Lit(value), Type::scalar(value.ty))
    }

    /// A truth value.
    pub fn bool(&mut self, value: bool) -> ExprId {
        self.lit(Literal::int(ScalarType::Bool, value.into()))
    }

    /// An index variable.
    pub fn var(&mut self, v: VarId) -> ExprId {
        self.intern(Expr::Var(v), Type::scalar(ScalarType::Index))
    }

    /// A run-time size parameter.
    pub fn param(&mut self, p: ParamId) -> ExprId {
        self.intern(Expr::Param(p), Type::scalar(ScalarType::Index))
    }

    /// The n-th formal argument.
    pub fn arg(&mut self, n: u32) -> ExprId {
        self.intern(Expr::Arg(n), Type::scalar(ScalarType::Index))
    }

    /// The n-th operand of a combiner.
    pub fn operand(&mut self, n: u32, ty: ScalarType) -> ExprId {
        self.intern(Expr::Operand(n, ty), Type::scalar(ty))
    }

    /// A tuple: the value of an element of a tensor of tuples.
    pub fn make_tuple(&mut self, values: &[ExprId]) -> ExprId {
        let ty = values.first().map_or(Type::scalar(ScalarType::Index), |&v| self.ty(v));
        self.intern(Expr::Tuple(values.iter().copied().collect()), ty)
    }

    /// The components of a value: those of a tuple, or the value alone.
    pub fn components(&self, value: ExprId) -> Args {
        match self.get(value) {
            Expr::Tuple(values) => values.clone(),
            _ => [value].into_iter().collect(),
        }
    }

    /// A call of an uninterpreted function.
    pub fn call(&mut self, f: UfId, args: impl IntoIterator<Item = ExprId>) -> ExprId {
        let args: Args = args.into_iter().collect();
        let lanes = args.iter().map(|&a| self.ty(a).lanes).max().unwrap_or(1);
        self.intern(Expr::Call(f, args), Type { scalar: ScalarType::Index, lanes })
    }

    /// An unguarded element of a tensor with elements of type `ty`.
    pub fn load(&mut self, tensor: TensorId, ty: ScalarType, index: impl IntoIterator<Item = ExprId>) -> ExprId {
        self.load_guarded((tensor, 0), ty, index, None)
    }

    /// Component `part` of an element of a tensor (0 but for tuples), or the guard's `other` where the guard's
    /// condition is false.
    pub fn load_guarded(
        &mut self,
        (tensor, part): (TensorId, u32),
        ty: ScalarType,
        index: impl IntoIterator<Item = ExprId>,
        guard: Option<(ExprId, ExprId)>,
    ) -> ExprId {
        let guard = match guard {
            Some((c, _)) if self.as_bool(c) == Some(true) => None,
            Some((c, o)) if self.as_bool(c) == Some(false) => return o,
            g => g,
        };
        let index: Args = index.into_iter().collect();
        let mut lanes = index.iter().map(|&a| self.ty(a).lanes).max().unwrap_or(1);
        if let Some((c, o)) = guard {
            lanes = lanes.max(self.ty(c).lanes).max(self.ty(o).lanes);
        }
        self.intern(Expr::Load { tensor, part, index, guard }, Type { scalar: ty, lanes })
    }

    /// A unary operator.
    pub fn un(&mut self, op: UnOp, a: ExprId) -> ExprId {
        match (op, self.get(a).clone()) {
            (UnOp::Neg, Expr::Int(v)) if v != i64::MIN => return self.int(-v),
            (UnOp::Not, Expr::Lit(l)) => return self.bool(l.as_i64() == 0),
            (UnOp::Not, Expr::Un(UnOp::Not, inner)) => return inner,
            (UnOp::Neg, Expr::Lit(l)) if l.ty.is_float() => return self.lit(Literal::float(l.ty, -l.as_f64())),
            _ => {}
        }
        let ty = self.ty(a);
        self.intern(Expr::Un(op, a), ty)
    }

    /// A binary operator; folds `Index` constants and identities.
    pub fn bin(&mut self, op: BinOp, a: ExprId, b: ExprId) -> ExprId {
        if let Some(folded) = self.fold_bin(op, a, b) {
            return folded;
        }
        let (ta, tb) = (self.ty(a), self.ty(b));
        let lanes = ta.lanes.max(tb.lanes);
        let scalar = if op.is_comparison() { ScalarType::Bool } else { ta.scalar };
        self.intern(Expr::Bin(op, a, b), Type { scalar, lanes })
    }

    fn fold_bin(&mut self, op: BinOp, a: ExprId, b: ExprId) -> Option<ExprId> {
        let (ca, cb) = (self.as_int(a), self.as_int(b));
        if let (Some(x), Some(y)) = (ca, cb) {
            let by_zero = matches!(op, BinOp::FloorDiv | BinOp::Mod) && y == 0;
            let value = op.of_ints(x, y).filter(|_| !by_zero)?;
            return Some(if op.is_comparison() { self.bool(value != 0) } else { self.int(value) });
        }
        if self.ty(a).scalar == ScalarType::Index && self.ty(a).lanes == self.ty(b).lanes {
            match (op, ca, cb) {
                (BinOp::Add, Some(0), _) => return Some(b),
                (BinOp::Add | BinOp::Sub, _, Some(0)) => return Some(a),
                (BinOp::Mul, Some(1), _) => return Some(b),
                (BinOp::Mul | BinOp::FloorDiv, _, Some(1)) => return Some(a),
                (BinOp::Mul, Some(0), _) | (BinOp::Mul, _, Some(0)) | (BinOp::Mod, _, Some(1)) => {
                    return (self.ty(a).lanes == 1).then(|| self.int(0));
                }
                (BinOp::FloorDiv, _, Some(c)) if c > 0 && self.ty(a).lanes == 1 => {
                    if let Some(once) = self.divided_once(a, c) {
                        return Some(once);
                    }
                }
                _ => {}
            }
            if a == b && self.ty(a).lanes == 1 {
                match op {
                    BinOp::Sub => return Some(self.int(0)),
                    BinOp::Min | BinOp::Max => return Some(a),
                    BinOp::Lt | BinOp::Ne => return Some(self.bool(false)),
                    BinOp::Le | BinOp::Eq => return Some(self.bool(true)),
                    _ => {}
                }
            }
        }
        let (ba, bb) = (self.as_bool(a), self.as_bool(b));
        match (op, ba, bb) {
            (BinOp::And, Some(true), _) | (BinOp::Or, Some(false), _) => Some(b),
            (BinOp::And, _, Some(true)) | (BinOp::Or, _, Some(false)) => Some(a),
            (BinOp::And, Some(false), _) | (BinOp::Or, Some(true), _) if self.ty(b).lanes == 1 => Some(a),
            (BinOp::And, _, Some(false)) | (BinOp::Or, _, Some(true)) if self.ty(a).lanes == 1 => Some(b),
            (BinOp::And | BinOp::Or, _, _) if a == b => Some(a),
            _ => None,
        }
    }

    /// `(x // d) // c` as `x // (d*c)` and `(x // d + k) // c` as `(x + k*d) // (d*c)`, so that a size in tiles of tiles
    /// is one division however it was written.
    fn divided_once(&mut self, a: ExprId, c: i64) -> Option<ExprId> {
        let (quotient, k) = self.constant_apart(a);
        let Expr::Bin(BinOp::FloorDiv, x, d) = *self.get(quotient) else { return None };
        let d = self.as_int(d).filter(|&d| d > 0)?;
        let (x, k0) = self.constant_apart(x);
        let (k, by) = (k.checked_mul(d)?.checked_add(k0)?, d.checked_mul(c)?);
        if k != 0 && self.may_be_wide(x) {
            return None;
        }
        let (k, by) = (self.int(k), self.int(by));
        let sum = self.add(x, k);
        Some(self.floor_div(sum, by))
    }

    /// `(x, k)` with `x + k` the expression.
    fn constant_apart(&self, e: ExprId) -> (ExprId, i64) {
        match *self.get(e) {
            Expr::Bin(BinOp::Add, x, k) => self.as_int(k).map_or((e, 0), |k| (x, k)),
            _ => (e, 0),
        }
    }

    /// `a + b`
    pub fn add(&mut self, a: ExprId, b: ExprId) -> ExprId {
        self.bin(BinOp::Add, a, b)
    }
    /// `a - b`
    pub fn sub(&mut self, a: ExprId, b: ExprId) -> ExprId {
        self.bin(BinOp::Sub, a, b)
    }
    /// `a * b`
    pub fn mul(&mut self, a: ExprId, b: ExprId) -> ExprId {
        self.bin(BinOp::Mul, a, b)
    }
    /// `floor(a / b)` of integers.
    pub fn floor_div(&mut self, a: ExprId, b: ExprId) -> ExprId {
        self.bin(BinOp::FloorDiv, a, b)
    }
    /// `a mod b` of integers, with the sign of `b`.
    pub fn modulo(&mut self, a: ExprId, b: ExprId) -> ExprId {
        self.bin(BinOp::Mod, a, b)
    }
    /// `ceil(a / c)` of integers for a constant `c > 0`.
    pub fn ceil_div(&mut self, a: ExprId, c: i64) -> ExprId {
        let k = self.int(c.saturating_sub(1));
        let c = self.int(c);
        let sum = self.add(a, k);
        self.floor_div(sum, c)
    }
    /// `a` rounded up to a multiple of `c > 0` (the paper's bulk padding of extents).
    pub fn round_up(&mut self, a: ExprId, c: i64) -> ExprId {
        let q = self.ceil_div(a, c);
        let c = self.int(c);
        self.mul(q, c)
    }
    /// The smaller.
    pub fn min(&mut self, a: ExprId, b: ExprId) -> ExprId {
        self.bin(BinOp::Min, a, b)
    }
    /// The larger.
    pub fn max(&mut self, a: ExprId, b: ExprId) -> ExprId {
        self.bin(BinOp::Max, a, b)
    }
    /// `a < b`
    pub fn lt(&mut self, a: ExprId, b: ExprId) -> ExprId {
        self.bin(BinOp::Lt, a, b)
    }
    /// `a <= b`
    pub fn le(&mut self, a: ExprId, b: ExprId) -> ExprId {
        self.bin(BinOp::Le, a, b)
    }
    /// `a and b`
    pub fn and(&mut self, a: ExprId, b: ExprId) -> ExprId {
        self.bin(BinOp::And, a, b)
    }
    /// The conjunction of all; `true` of none.
    pub fn all(&mut self, conds: impl IntoIterator<Item = ExprId>) -> ExprId {
        let mut acc = self.bool(true);
        for c in conds {
            acc = self.and(acc, c);
        }
        acc
    }

    /// The conditions whose conjunction `e` is, in order; itself if it is none.
    pub fn conjuncts(&self, e: ExprId) -> Vec<ExprId> {
        match *self.get(e) {
            Expr::Bin(BinOp::And, a, b) => [self.conjuncts(a), self.conjuncts(b)].concat(),
            _ => vec![e],
        }
    }

    /// `if cond then a else b`; folds a constant condition.
    pub fn select(&mut self, cond: ExprId, a: ExprId, b: ExprId) -> ExprId {
        match self.as_bool(cond) {
            Some(true) => return a,
            Some(false) => return b,
            None if a == b => return a,
            None => {}
        }
        let lanes = self.ty(cond).lanes.max(self.ty(a).lanes).max(self.ty(b).lanes);
        let scalar = self.ty(a).scalar;
        self.intern(Expr::Select(cond, a, b), Type { scalar, lanes })
    }

    /// `base + lane * stride` for `lanes` lanes.
    pub fn ramp(&mut self, base: ExprId, stride: i64, lanes: u32) -> ExprId {
        self.intern(Expr::Ramp { base, stride, lanes }, Type { scalar: ScalarType::Index, lanes })
    }

    /// A scalar in each of `lanes` lanes.
    pub fn splat(&mut self, a: ExprId, lanes: u32) -> ExprId {
        if lanes == 1 || self.ty(a).lanes == lanes {
            return a;
        }
        let scalar = self.ty(a).scalar;
        self.intern(Expr::Splat(a, lanes), Type { scalar, lanes })
    }

    /// All lanes combined.
    pub fn reduce(&mut self, combiner: Combiner, a: ExprId) -> ExprId {
        let ty = Type::scalar(self.ty(a).scalar);
        self.intern(Expr::Reduce(combiner, a), ty)
    }

    /// The greatest `x` in `0..len` with `table[base + x] <= value`.
    pub fn search(&mut self, table: TensorId, base: ExprId, len: ExprId, value: ExprId) -> ExprId {
        self.intern(Expr::Search { table, base, len, value }, Type::scalar(ScalarType::Index))
    }

    /// The value of an `Index` constant.
    pub fn as_int(&self, id: ExprId) -> Option<i64> {
        match self.get(id) {
            Expr::Int(v) => Some(*v),
            _ => None,
        }
    }

    /// The value of a constant condition.
    pub fn as_bool(&self, id: ExprId) -> Option<bool> {
        match self.get(id) {
            Expr::Lit(l) if l.ty == ScalarType::Bool => Some(l.as_i64() != 0),
            _ => None,
        }
    }

    /// Whether the value, or each lane of it, is the constant whose bits are all zero.
    pub fn is_zero_bits(&self, id: ExprId) -> bool {
        match *self.get(id) {
            Expr::Splat(one, _) => self.is_zero_bits(one),
            Expr::Lit(l) => l.is_zero_bits(),
            _ => false,
        }
    }

    /// The variable, if the expression is just one.
    pub fn as_var(&self, id: ExprId) -> Option<VarId> {
        match self.get(id) {
            Expr::Var(v) => Some(*v),
            _ => None,
        }
    }

    /// The direct operands, in order.
    pub fn children(&self, id: ExprId) -> Args {
        match self.get(id) {
            Expr::Int(_) | Expr::Lit(_) | Expr::Var(_) | Expr::Param(_) | Expr::Arg(_) | Expr::Operand(..) => {
                Args::new()
            }
            Expr::Call(_, args) | Expr::Tuple(args) => args.clone(),
            Expr::Un(_, a) | Expr::Cast(_, a) | Expr::Splat(a, _) | Expr::Reduce(_, a) => [*a].into_iter().collect(),
            Expr::Ramp { base, .. } => [*base].into_iter().collect(),
            Expr::Bin(_, a, b) => [*a, *b].into_iter().collect(),
            Expr::Search { base, len, value, .. } => [*base, *len, *value].into_iter().collect(),
            Expr::Select(c, a, b) => [*c, *a, *b].into_iter().collect(),
            Expr::Load { index, guard, .. } => {
                let mut all = index.clone();
                if let Some((c, o)) = guard {
                    all.push(*c);
                    all.push(*o);
                }
                all
            }
        }
    }

    /// The same node over other operands (as many as [`ExprPool::children`] gives), folded again.
    ///
    /// # Panics
    /// Where there are fewer.
    pub fn with_children(&mut self, id: ExprId, kids: &[ExprId]) -> ExprId {
        match self.get(id).clone() {
            Expr::Int(_) | Expr::Lit(_) | Expr::Var(_) | Expr::Param(_) | Expr::Arg(_) | Expr::Operand(..) => id,
            Expr::Tuple(_) => self.make_tuple(kids),
            Expr::Call(f, _) => self.call(f, kids.iter().copied()),
            Expr::Un(op, _) => self.un(op, kids[0]),
            Expr::Cast(to, _) => self.cast(to, kids[0]),
            Expr::Splat(_, n) => self.splat(kids[0], n),
            Expr::Reduce(c, _) => self.reduce(c, kids[0]),
            Expr::Ramp { stride, lanes, .. } => self.ramp(kids[0], stride, lanes),
            Expr::Bin(op, _, _) => self.bin(op, kids[0], kids[1]),
            Expr::Search { table, .. } => self.search(table, kids[0], kids[1], kids[2]),
            Expr::Select(..) => self.select(kids[0], kids[1], kids[2]),
            Expr::Load { tensor, part, index, guard } => {
                let n = index.len();
                let guard = guard.map(|_| (kids[n], kids[n + 1]));
                let ty = self.ty(id).scalar;
                self.load_guarded((tensor, part), ty, kids[..n].iter().copied(), guard)
            }
        }
    }
}

/// Quotient rounded to minus infinity; 0 when `b` is 0. The one quotient that 64 bits do not hold wraps,
/// as in compiled code.
pub fn floor_div(a: i64, b: i64) -> i64 {
    if b == 0 {
        return 0;
    }
    let (q, r) = (a.wrapping_div(b), a.wrapping_rem(b));
    if r != 0 && (r < 0) != (b < 0) { q - 1 } else { q }
}

/// Remainder with the sign of `b`; 0 when `b` is 0.
pub fn floor_mod(a: i64, b: i64) -> i64 {
    match a.checked_rem(b) {
        Some(r) if r != 0 && (r < 0) != (b < 0) => r + b,
        Some(r) => r,
        None => 0,
    }
}

impl ExprPool {
    /// The id of a node that already exists.
    pub fn lookup(&self, node: &Expr) -> Option<ExprId> {
        self.index.get(node).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The id of a tensor that was given up goes to another one, perhaps of another type.
    #[test]
    fn loads_have_the_type_that_is_asked_for() {
        let mut p = ExprPool::default();
        let t = TensorId::from_index(3);
        let old = p.load(t, ScalarType::F64, []);
        let sum = p.add(old, old);
        let new = p.load(t, ScalarType::F16, []);
        let other = p.add(new, new);
        assert_eq!([sum, other].map(|e| p.ty(e).scalar), [ScalarType::F64, ScalarType::F16]);
        assert_eq!(p.load(t, ScalarType::F16, []), new);
    }

    #[test]
    fn leaves_are_replaced_once() {
        let mut pool = ExprPool::default();
        let (a, b, zero) = (pool.arg(0), pool.arg(1), pool.int(0));
        let sum = pool.add(a, b);
        assert_eq!(pool.instantiate(sum, &[b, zero]), b);
        let (x, y) = (VarId::from_index(0), VarId::from_index(1));
        let (vx, vy) = (pool.var(x), pool.var(y));
        let sum = pool.add(vx, vy);
        let map = [(x, vy), (y, zero)].into_iter().collect();
        assert_eq!(pool.substitute(sum, &map), vy);
    }

    #[test]
    fn a_pool_goes_back_to_a_mark() {
        let mut p = ExprPool::default();
        let (v, tensor) = (VarId::from_index(0), TensorId::from_index(0));
        let x = p.var(v);
        let load = p.load(tensor, ScalarType::F32, [x]);
        let before = p.clone();
        let mark = p.mark();
        let one = p.int(1);
        let next = p.add(x, one);
        crate::affine::normalize(&mut p, next);
        // The same node with another type takes the place of the first one.
        let other = p.load(tensor, ScalarType::F64, [x]);
        assert_ne!(other, load);
        assert_eq!(p.load(tensor, ScalarType::F64, [x]), other);
        p.rollback(mark);
        assert_eq!(p.len(), before.len());
        assert_eq!(p.load(tensor, ScalarType::F32, [x]), load);
        assert_eq!((p.index.clone(), p.leaves.clone()), (before.index, before.leaves));
        assert!(p.normal.iter().all(|(from, to)| from.index() < p.len() && to.index() < p.len()));
        assert!(p.displaced.is_empty());
        let two = p.int(2);
        assert_eq!(two.index(), before.nodes.len());
    }
}
