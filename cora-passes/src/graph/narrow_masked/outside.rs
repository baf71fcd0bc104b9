//! What tensors are on the far side of a bound of one of their dimensions.

use cora_ir::affine::{Poly, build, normalize, poly, with_quotients};
use cora_ir::env::Role;
use cora_ir::interp::{bin_f, un_f};
use cora_ir::tuple::Reduction;
use cora_ir::types::round_float;
use cora_ir::{BinOp, Combiner, DimId, Env, Expr, ExprId, ExprPool, Graph, Op, ScalarType, TensorId, UnOp, VarId};
use rustc_hash::{FxHashMap, FxHashSet};

/// What a comparison says of the variable `var`, or one of several that holds: with `(end, true)` it holds where `var < end`,
/// with `(end, false)` elsewhere. `end` is in normal form and free of the variable.
pub(super) fn compared(env: &mut Env, comparison: ExprId, var: VarId) -> Option<(ExprId, bool)> {
    if let Expr::Bin(BinOp::Or, a, b) = *env.pool.get(comparison) {
        let ((a, below), (b, other)) = (compared(env, a, var)?, compared(env, b, var)?);
        let farther = if below { env.pool.max(a, b) } else { env.pool.min(a, b) };
        return (below == other).then(|| (normalize(&mut env.pool, farther), below));
    }
    let Expr::Bin(op @ (BinOp::Lt | BinOp::Le), a, b) = *env.pool.get(comparison) else { return None };
    if env.pool.ty(a).scalar != ScalarType::Index || !env.pool.uses_var(comparison, var) {
        return None;
    }
    // It holds where this is positive.
    let mut room = env.pool.sub(b, a);
    if op == BinOp::Le {
        let one = env.pool.int(1);
        room = env.pool.add(room, one);
    }
    let mut rest = poly(&env.pool, room);
    let with_var = |m: &[ExprId]| m.iter().any(|&e| env.pool.uses_var(e, var));
    let mut own = rest.terms.iter().filter(|(m, _)| with_var(m)).map(|(m, &c)| (m.clone(), c));
    let ((term, sign), None) = (own.next()?, own.next()) else { return None };
    let &[atom] = term.as_slice() else { return None };
    rest.terms.remove(&term);
    // rest - c x > 0, or c x + rest > 0: not c x < 1 - rest
    let below = sign < 0;
    let end = if below { rest } else { Poly::constant(1).checked_add_scaled(&rest, -1)? };
    let end = build(&mut env.pool, &end);
    let end = with_quotients(&mut env.pool, end);
    let end = env.pool.ceil_div(end, sign.checked_abs()?);
    let end = match *env.pool.get(atom) {
        Expr::Var(_) => end,
        // A quotient by a constant is below it where what is divided is below the multiple.
        Expr::Bin(BinOp::FloorDiv, x, c) if env.pool.as_int(c).is_some_and(|c| c > 0) => {
            let mut others = poly(&env.pool, x);
            let alone = others.terms.remove(&vec![env.pool.var(var)]) == Some(1);
            let others = build(&mut env.pool, &others);
            if !alone || env.pool.uses_var(others, var) {
                return None;
            }
            let end = env.pool.mul(end, c);
            let end = env.pool.sub(end, others);
            normalize(&mut env.pool, end)
        }
        _ => return None,
    };
    Some((end, below))
}

/// The comparisons of positions that hold together where `comparison` does: of what is equal neither is less, of several the
/// greatest is no more than what none of them exceeds.
pub(super) fn both_ways(pool: &mut ExprPool, comparison: ExprId) -> Vec<ExprId> {
    let (op, a, b) = match *pool.get(comparison) {
        Expr::Bin(op @ (BinOp::Eq | BinOp::Lt | BinOp::Le), a, b) => (op, a, b),
        _ => return vec![comparison],
    };
    let (Some(a), Some(b)) = (positions(pool, a), positions(pool, b)) else { return vec![comparison] };
    let mut all = Vec::new();
    match op {
        BinOp::Eq => {
            no_more(pool, BinOp::Le, (a, b), &mut all);
            no_more(pool, BinOp::Le, (b, a), &mut all);
        }
        _ => no_more(pool, op, (a, b), &mut all),
    }
    all
}

/// The comparisons that hold together where `op` does, which says that `a` is less than `b`, or no more.
fn no_more(pool: &mut ExprPool, op: BinOp, (a, b): (ExprId, ExprId), out: &mut Vec<ExprId>) {
    let (x, y) = match (pool.get(a).clone(), pool.get(b).clone()) {
        (Expr::Bin(BinOp::Max, x, y), _) => ((x, b), (y, b)),
        (_, Expr::Bin(BinOp::Min, x, y)) => ((a, x), (a, y)),
        _ => return out.push(pool.bin(op, a, b)),
    };
    no_more(pool, op, x, out);
    no_more(pool, op, y, out);
}

/// A position, also one that is counted in 64 bits: those are enough for differences of positions.
fn positions(pool: &mut ExprPool, e: ExprId) -> Option<ExprId> {
    if pool.ty(e).scalar == ScalarType::Index {
        return Some(e);
    }
    if pool.ty(e).scalar != ScalarType::I64 {
        return None;
    }
    match pool.get(e).clone() {
        Expr::Cast(_, x) if pool.ty(x).scalar == ScalarType::Index => Some(x),
        Expr::Lit(l) => Some(l.as_i64()).filter(|n| n.abs() <= i64::from(i32::MAX)).map(|n| pool.int(n)),
        Expr::Bin(op @ (BinOp::Add | BinOp::Sub | BinOp::Min | BinOp::Max), a, b) => {
            let (a, b) = (positions(pool, a)?, positions(pool, b)?);
            Some(pool.bin(op, a, b))
        }
        Expr::Un(UnOp::Abs, a) => {
            let (a, zero) = (positions(pool, a)?, pool.int(0));
            let negative = pool.sub(zero, a);
            Some(pool.max(a, negative))
        }
        _ => None,
    }
}

/// On which side of a bound a dimension goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Side {
    /// Below it: the bound is an end.
    Below,
    /// From it on: the bound is a beginning.
    From,
}

/// The positions of a dimension beyond a bound, for all positions of the dimensions that determine it: those on the side on
/// which the dimension does not go on.
#[derive(Clone, Debug)]
pub(super) struct Region {
    /// The dimension's variable.
    pub var: VarId,
    /// The bound.
    pub bound: ExprId,
    /// Where the positions are that are not beyond it, the inside.
    pub side: Side,
    /// The variables that the bound is over.
    pub outer: Vec<VarId>,
    /// Whether there are positions inside wherever there are any.
    pub never_empty: bool,
}

impl Region {
    /// Whether an element at `index` of `tensor` is beyond its bound exactly where its reader is.
    pub fn is_own(&self, graph: &Graph, tensor: TensorId, index: &[ExprId]) -> bool {
        let Some(op) = graph.op_of(tensor) else { return false };
        let own = |var: VarId| {
            let at = op.spatial.iter().position(|&d| graph.env.dims[d].var == var);
            at.is_some_and(|p| graph.env.pool.as_var(index[p]) == Some(var))
        };
        own(self.var) && self.outer.iter().all(|&v| own(v))
    }

    /// `e` where the position is inside: conditions that hold there are gone.
    pub fn inside(&self, graph: &mut Graph, e: ExprId) -> ExprId {
        let mut conditions = Vec::new();
        graph.env.pool.walk(e, &mut |id, _| conditions.push(id));
        conditions.retain(|&c| graph.env.pool.ty(c).scalar == ScalarType::Bool);
        let mut known: FxHashMap<ExprId, ExprId> = FxHashMap::default();
        for c in conditions {
            if let Some(holds) = self.holds(graph, c) {
                known.insert(c, graph.env.pool.bool(holds));
            }
        }
        graph.env.pool.rewrite(e, &mut |_, n| known.get(&n).copied())
    }

    /// The value of a condition at all positions inside.
    fn holds(&self, graph: &mut Graph, c: ExprId) -> Option<bool> {
        match graph.env.pool.get(c).clone() {
            Expr::Un(UnOp::Not, a) => self.holds(graph, a).map(|h| !h),
            Expr::Load { tensor, index, guard: None, .. } if self.is_own(graph, tensor, &index) => {
                let value = graph.op_of(tensor).filter(|op| op.combiner.is_none())?.value;
                self.holds(graph, value)
            }
            _ => self.decided(&mut graph.env, c, true),
        }
    }

    /// The value of a comparison at all positions inside, or at all beyond the bound.
    fn decided(&self, env: &mut Env, comparison: ExprId, inside: bool) -> Option<bool> {
        let all = both_ways(&mut env.pool, comparison);
        let decided: Vec<Option<bool>> = all.into_iter().map(|c| self.decided_one(env, c, inside)).collect();
        if decided.contains(&Some(false)) {
            Some(false)
        } else {
            decided.into_iter().collect::<Option<Vec<_>>>().map(|_| true)
        }
    }

    fn decided_one(&self, env: &mut Env, comparison: ExprId, inside: bool) -> Option<bool> {
        let (end, below) = compared(env, comparison, self.var)?;
        let difference = env.pool.sub(end, self.bound);
        let farther = poly(&env.pool, difference).as_constant()?;
        // Whether all of them are below the comparison's own bound, or none is.
        let all_below = match inside == (self.side == Side::Below) {
            true => (farther >= 0).then_some(true),
            false => (farther <= 0).then_some(false),
        };
        all_below.map(|b| b == below)
    }
}

/// A constant beyond the bound. Truth values are 0 and 1.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Known {
    value: f64,
    /// Whether it may be NaN instead, where the same expression is NaN at all positions inside too.
    or_nan: bool,
}

impl Known {
    fn exact(value: f64) -> Self {
        Self { value, or_nan: false }
    }

    fn is(self, value: f64) -> bool {
        !self.or_nan && self.value == value
    }
}

/// Which elements are meant.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct At {
    /// Not beyond the bound.
    inside: bool,
    /// In the row of a position beyond it, where there are others inside.
    here: bool,
    /// Whether they may be the least of all, -inf, too.
    or_least: bool,
}

/// The constants that tensors are beyond a bound.
pub(super) struct Outside<'a> {
    region: &'a Region,
    values: FxHashMap<TensorId, Known>,
    /// Reductions over the dimension whose terms are their identity beyond the bound.
    reductions: FxHashSet<TensorId>,
    /// Whether those elements of tensors are finite.
    finite: FxHashMap<(TensorId, At), bool>,
    /// What is more than -inf, because a condition around says so.
    above: Vec<ExprId>,
}

impl<'a> Outside<'a> {
    pub fn new(region: &'a Region) -> Self {
        let (values, reductions, finite) = Default::default();
        Self { region, values, reductions, finite, above: Vec::new() }
    }

    /// The reductions that lose nothing by an end, or a beginning, at the bound.
    pub fn into_reductions(self) -> FxHashSet<TensorId> {
        self.reductions
    }

    /// Finds out about the result of `op`, after those of the operators before it; `fits` = its loops stand as the bound asks.
    pub fn add(&mut self, graph: &mut Graph, op: &Op, fits: bool) {
        let along = |dims: &[DimId]| dims.iter().any(|&d| graph.env.dims[d].var == self.region.var);
        let (spatial, reduced) = (along(&op.spatial), along(&op.reduce));
        if !fits || !(spatial || reduced) {
            return;
        }
        let Some(known) = self.value(graph, op.value) else { return };
        let identity = match op.combiner {
            Some(Reduction::Op(c)) => Some(c.identity(graph.env.tensors[op.tensor].ty).as_f64()),
            Some(Reduction::Tuple(_)) => return,
            None => None,
        };
        if identity.is_some_and(|i| i != known.value) {
            return;
        }
        if reduced {
            self.reductions.insert(op.tensor);
        } else {
            self.values.insert(op.tensor, known);
        }
    }

    /// The constant that `e` is beyond the bound.
    fn value(&mut self, graph: &mut Graph, e: ExprId) -> Option<Known> {
        let ty = graph.env.pool.ty(e).scalar;
        let known = match graph.env.pool.get(e).clone() {
            Expr::Lit(l) => Known::exact(l.as_f64()),
            Expr::Int(v) => Known::exact(v as f64),
            Expr::Cast(to, a) if to.is_float() => self.value(graph, a)?,
            Expr::Load { tensor, index, guard, .. } => {
                if let Some((c, other)) = guard {
                    let c = self.value(graph, c).filter(|c| !c.or_nan)?;
                    if c.value == 0.0 {
                        return self.value(graph, other);
                    }
                }
                let own = self.region.is_own(graph, tensor, &index);
                self.values.get(&tensor).copied().filter(|_| own)?
            }
            Expr::Select(c, a, b) => match self.value(graph, c) {
                Some(c) if c.or_nan => return None,
                // What is NaN inside has to be chosen there too.
                Some(c) => self.value(graph, if c.value == 0.0 { b } else { a }).filter(|k| !k.or_nan)?,
                None => {
                    let a = self.value_where(graph, a, (c, true))?;
                    let b = self.value_where(graph, b, (c, false)).filter(|b| b.value == a.value)?;
                    let (or_nan, of_row) = (a.or_nan || b.or_nan, !graph.env.pool.uses_var(c, self.region.var));
                    Some(Known { or_nan, ..a }).filter(|k| of_row || !k.or_nan)?
                }
            },
            Expr::Un(op, a) => {
                let Known { value: a, or_nan } = self.value(graph, a)?;
                let value = un_f(op, a);
                Known { value, or_nan }
            }
            Expr::Bin(op, a, b) => match self.region.decided(&mut graph.env, e, false) {
                Some(holds) => Known::exact(f64::from(holds)),
                None => self.binary(graph, op, (a, b))?,
            },
            _ => return None,
        };
        let value = if ty.is_float() { round_float(ty, known.value) } else { known.value };
        // Integers beyond are not exact, and those of few bits wrap; NaN says nothing.
        let exact = ty.is_float() || matches!(graph.env.pool.get(e), Expr::Lit(_)) && value.abs() < 2.0f64.powi(53);
        let fits = exact || value.abs() <= 127.0;
        (fits && !value.is_nan()).then_some(Known { value, ..known })
    }

    /// The same where the condition has this value.
    fn value_where(&mut self, graph: &mut Graph, e: ExprId, (c, holds): (ExprId, bool)) -> Option<Known> {
        let before = self.above.len();
        self.above.extend(more_than_least(&graph.env.pool, c, holds));
        let known = self.value(graph, e);
        self.above.truncate(before);
        known
    }

    fn binary(&mut self, graph: &mut Graph, op: BinOp, (a, b): (ExprId, ExprId)) -> Option<Known> {
        match (self.value(graph, a), self.value(graph, b)) {
            (Some(x), Some(y)) => {
                let or_nan = x.or_nan || y.or_nan;
                let strict = matches!(op, BinOp::Add | BinOp::Sub | BinOp::Mul | BinOp::Div);
                let value = bin_f(op, x.value, y.value);
                (strict || !or_nan).then_some(Known { value, or_nan })
            }
            (Some(x), None) => match op {
                BinOp::Sub => self.less(graph, x, (a, b)),
                // By 0 or NaN, which the quotients inside are divided by too.
                BinOp::Div if x.value == 0.0 && !graph.env.pool.uses_var(b, self.region.var) => {
                    self.region.never_empty.then_some(Known { value: 0.0, or_nan: true })
                }
                _ => self.with_unknown(graph, op, x, b),
            },
            (None, Some(y)) => match op {
                BinOp::Sub => self.with_unknown(graph, BinOp::Add, Known { value: -y.value, ..y }, a),
                BinOp::Div => None,
                _ => self.with_unknown(graph, op, y, a),
            },
            (None, None) => None,
        }
    }

    /// `a - b`, `a` being known: where `b` is the greatest `a` or more, it is no number only if no `a - b` is.
    fn less(&mut self, graph: &mut Graph, known: Known, (a, b): (ExprId, ExprId)) -> Option<Known> {
        if let Some(known) = self.with_unknown(graph, BinOp::Add, known, b) {
            return Some(known);
        }
        let negative = known.value == f64::NEG_INFINITY;
        (negative && self.is_number_or_greatest(graph, b, a)).then_some(Known { or_nan: true, ..known })
    }

    /// Whether `e` is finite, or the greatest `a` of a row that has some inside, whatever the row's own conditions choose.
    fn is_number_or_greatest(&mut self, graph: &mut Graph, e: ExprId, a: ExprId) -> bool {
        match *graph.env.pool.get(e) {
            Expr::Select(c, x, y) if !graph.env.pool.uses_var(c, self.region.var) => {
                [(x, true), (y, false)].into_iter().all(|(arm, holds)| {
                    let before = self.above.len();
                    self.above.extend(more_than_least(&graph.env.pool, c, holds));
                    let fits = self.is_number_or_greatest(graph, arm, a);
                    self.above.truncate(before);
                    fits
                })
            }
            _ => self.region.never_empty && self.is_greatest(graph, e, a) || self.is_number(graph, e),
        }
    }

    /// Whether `e` is finite beyond the bound where the conditions around hold.
    fn is_number(&mut self, graph: &mut Graph, e: ExprId) -> bool {
        let or_least = self.above.contains(&e);
        self.is_finite(graph, e, At { inside: false, here: true, or_least })
    }

    /// Whether `e` is the greatest `a` of the row, or the greater one of that and of what the row has once.
    fn is_greatest(&self, graph: &Graph, e: ExprId, a: ExprId) -> bool {
        match graph.env.pool.get(e) {
            Expr::Bin(BinOp::Max, x, y) => {
                let once = |e: ExprId| !graph.env.pool.uses_var(e, self.region.var);
                let either = self.is_greatest(graph, *x, a) || self.is_greatest(graph, *y, a);
                either && once(*x) && once(*y)
            }
            Expr::Load { tensor, index, guard: None, .. } => {
                let Some(op) = graph.op_of(*tensor).filter(|op| is_of_row(graph, op, index)) else { return false };
                match op.combiner {
                    None => self.is_greatest(graph, op.value, a),
                    Some(Reduction::Op(Combiner::Max)) => {
                        op.reduce.len() == 1 && op.value == a && self.reductions.contains(tensor)
                    }
                    Some(_) => false,
                }
            }
            _ => false,
        }
    }

    /// `known op e`, where that does not depend on a finite `e`.
    fn with_unknown(&mut self, graph: &mut Graph, op: BinOp, known: Known, e: ExprId) -> Option<Known> {
        let absorbs = match op {
            BinOp::And => known.is(0.0),
            BinOp::Or => known.is(1.0),
            BinOp::Mul | BinOp::Div => known.value == 0.0,
            BinOp::Add => known.value.is_infinite(),
            _ => false,
        };
        (absorbs && self.is_number(graph, e)).then_some(known)
    }

    /// Whether `e` is finite for finite inputs, if nothing overflows, nothing is divided by 0 and no root is of less than 0.
    fn is_finite(&mut self, graph: &mut Graph, e: ExprId, at: At) -> bool {
        if !graph.env.pool.ty(e).scalar.is_float() {
            return true;
        }
        match graph.env.pool.get(e).clone() {
            Expr::Lit(l) => l.as_f64().is_finite() || at.or_least && l.as_f64() == f64::NEG_INFINITY,
            Expr::Un(UnOp::Log, _) => false,
            Expr::Select(c, a, b) => {
                let holds = if at.inside { self.region.holds(graph, c) } else { None };
                (holds == Some(false) || self.is_finite(graph, a, at))
                    && (holds == Some(true) || self.is_finite(graph, b, at))
            }
            Expr::Load { tensor, index, guard, .. } => {
                guard.is_none_or(|(_, other)| self.is_finite(graph, other, at))
                    && self.has_finite(graph, tensor, &index, at)
            }
            Expr::Cast(_, a) => self.is_finite(graph, a, at),
            Expr::Bin(BinOp::Min, a, b) => self.is_finite(graph, a, at) && self.is_finite(graph, b, at),
            // The greater one of two is finite where one is, and the other no more than that.
            Expr::Bin(BinOp::Max, a, b) => {
                let least = At { or_least: true, ..at };
                self.is_finite(graph, a, least)
                    && self.is_finite(graph, b, least)
                    && (at.or_least || self.is_finite(graph, a, at) || self.is_finite(graph, b, at))
            }
            Expr::Un(UnOp::Exp, a) => self.is_finite(graph, a, At { or_least: true, ..at }),
            Expr::Un(_, a) => self.is_finite(graph, a, At { or_least: false, ..at }),
            Expr::Bin(BinOp::Add, a, b) if at.or_least => self.is_finite(graph, a, at) && self.is_finite(graph, b, at),
            Expr::Bin(BinOp::Sub, a, b) if at.or_least => {
                self.is_finite(graph, a, at) && self.is_finite(graph, b, At { or_least: false, ..at })
            }
            Expr::Bin(_, a, b) => {
                let at = At { or_least: false, ..at };
                self.is_finite(graph, a, at) && self.is_finite(graph, b, at)
            }
            _ => false,
        }
    }

    /// Whether the elements of `tensor` that are read at `index` are finite.
    fn has_finite(&mut self, graph: &mut Graph, tensor: TensorId, index: &[ExprId], at: At) -> bool {
        if matches!(graph.env.tensors[tensor].role, Role::Input | Role::ConstInput) {
            return true;
        }
        let Some(op) = graph.op_of(tensor).cloned() else { return false };
        let inside = at.inside && self.region.is_own(graph, tensor, index);
        let at = At { inside, here: at.here && is_of_row(graph, &op, index), ..at };
        if let Some(&known) = self.finite.get(&(tensor, at)) {
            return known;
        }
        // A recurrence is finite at a position if it is where what is before it is.
        self.finite.insert((tensor, at), true);
        let ends = self.reductions.contains(&tensor);
        let counted = |d: &DimId| match (graph.env.dims[*d].var == self.region.var) && ends {
            true => self.region.never_empty && at.here,
            false => graph.env.pool.as_int(graph.env.dims[*d].extent).is_some_and(|n| n > 0),
        };
        let some = match op.combiner {
            Some(Reduction::Op(Combiner::Max)) => at.or_least || op.reduce.iter().all(counted),
            Some(Reduction::Op(Combiner::Min)) => op.reduce.iter().all(counted),
            Some(Reduction::Tuple(_)) => false,
            _ => true,
        };
        let or_least = at.or_least && matches!(op.combiner, None | Some(Reduction::Op(Combiner::Max | Combiner::Min)));
        let finite = some && self.is_finite(graph, op.value, At { inside: at.inside || ends, or_least, ..at });
        if !finite {
            // That it is may have been taken for granted.
            self.finite.retain(|_, known| !*known);
        }
        self.finite.insert((tensor, at), finite);
        finite
    }
}

/// Whether the result of `op` is read at the positions that its own dimensions have for the reader.
fn is_of_row(graph: &Graph, op: &Op, index: &[ExprId]) -> bool {
    let mut dims = op.spatial.iter().zip(index);
    dims.all(|(&d, &i)| graph.env.pool.as_var(i) == Some(graph.env.dims[d].var))
}

/// What a condition says is more than -inf: it is compared with a number, or with -inf itself.
fn more_than_least(pool: &ExprPool, c: ExprId, holds: bool) -> Option<ExprId> {
    let least = |e: ExprId| matches!(pool.get(e), Expr::Lit(l) if l.as_f64() == f64::NEG_INFINITY);
    let some = |e: ExprId| matches!(pool.get(e), Expr::Lit(l) if !l.as_f64().is_nan());
    match *pool.get(c) {
        Expr::Un(UnOp::Not, c) => more_than_least(pool, c, !holds),
        Expr::Bin(BinOp::Eq, a, b) if !holds => least(b).then_some(a).or(least(a).then_some(b)),
        Expr::Bin(BinOp::Ne, a, b) if holds => least(b).then_some(a).or(least(a).then_some(b)),
        Expr::Bin(BinOp::Lt, a, b) if holds => some(a).then_some(b),
        Expr::Bin(BinOp::Le, a, b) if !holds => some(b).then_some(a),
        Expr::Bin(BinOp::Le, a, b) if holds => (some(a) && !least(a)).then_some(b),
        Expr::Bin(BinOp::Lt, a, b) if !holds => (some(b) && !least(b)).then_some(a),
        _ => None,
    }
}
