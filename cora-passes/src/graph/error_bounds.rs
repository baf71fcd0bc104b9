//! How far a correctly compiled program may be from exact arithmetic, as a program of its own.
//!
//! For each tensor `T` that rounding can touch the companion graph has `T.error`, of the same
//! dimensions in f64: a bound on the difference between an element as any schedule computes it and
//! as the reference does. It follows from the operators by first-order error analysis (Higham,
//! *Accuracy and Stability of Numerical Algorithms*, chapters 3 and 4): each operation adds its
//! rounding, `eps` of its type times its magnitude, and passes on what its operands carry. A sum of
//! n terms adds `eps * (4 + 2 sqrt(n)) * sum |term|`, whatever the order, so cancellation is covered
//! by the magnitude of the terms and not of the result, and `eps * n / 4 * |sum|`, for equal terms
//! are all rounded one way where the sum grows past a power of two; errors that the terms carry add
//! up like independent ones. A reduction over tuples carries the bounds of
//! its components along, combined like them in the reference's order; other orders are covered by a
//! factor.
//!
//! Requires: a graph that can be interpreted. Ensures: the operators of the graph are unchanged; the
//! new ones come last.

mod contraction;

use contraction::Companion;
use cora_ir::graph::Op;
use cora_ir::recurrence::recurrences;
use cora_ir::tuple::Part;
use cora_ir::{
    BinOp, Combiner, CombinerId, DimId, Env, Expr, ExprId, Graph, Literal, Reduction, Role, ScalarType, Tensor,
    TensorDim, TensorId, TupleCombiner, UnOp,
};
use rustc_hash::{FxHashMap, FxHashSet};

/// How much further off the result of another order of combining tuples may be.
const OTHER_ORDERS: f64 = 8.0;

/// The greatest distance between neighbouring numbers of TF32, relative to them.
const TF32_STEP: f64 = 9.765_625e-4;

/// Exponents in recurrences that errors are looked at of: far more than any that tells something.
const MOST_GROWN: f64 = 100.0;

/// Math functions may be off by this many units in the last place.
const FUNCTION_ULPS: f64 = 8.0;

/// The distance from 1 to the next greater number of the type; 0 of exact types.
pub fn epsilon(ty: ScalarType) -> f64 {
    match ty {
        ScalarType::F64 => f64::EPSILON,
        ScalarType::F32 => f64::from(f32::EPSILON),
        ScalarType::F16 => 9.765_625e-4,
        ScalarType::BF16 => 7.812_5e-3,
        _ => 0.0,
    }
}

/// Whether a result is near enough to the one that is wanted: within twice the first-order `bound`, for
/// terms of higher order and for results that are flushed to zero. A bound that is infinite or NaN says
/// nothing (so many errors were added up, or infinite values cancel where it was computed); then, and
/// without one, `loose` is what is allowed. Infinite values are wanted exactly.
pub fn within(got: f64, want: f64, bound: Option<f64>, loose: f64) -> bool {
    let near = || want.is_finite() && (got - want).abs() <= allowed(bound, loose);
    got == want || (got.is_nan() && want.is_nan()) || near()
}

/// The difference that [`within`] allows.
pub fn allowed(bound: Option<f64>, loose: f64) -> f64 {
    bound.filter(|b| b.is_finite()).map_or(loose, |b| 2.0 * b + f64::from(f32::MIN_POSITIVE))
}

/// `graph` with the bounds as additional operators, which are its only outputs; and for each output
/// of `graph` its bound. Outputs without one are exact.
pub fn error_bounds(graph: &Graph) -> (Graph, FxHashMap<TensorId, TensorId>) {
    let mut bounded = Graph { schedules: Vec::new(), outputs: Vec::new(), ..graph.clone() };
    let mut cx = Bounds {
        env: &mut bounded.env,
        of: FxHashMap::default(),
        tuples: FxHashMap::default(),
        operands: None,
        companions: FxHashMap::default(),
        recurring: FxHashSet::default(),
        given: &graph.ops,
        ops: Vec::new(),
    };
    let recurrences = recurrences(graph);
    for (n, op) in graph.ops.iter().enumerate() {
        if let Some(r) = recurrences.iter().find(|r| r.ops.start == n) {
            cx.recurrence(&graph.ops[r.ops.clone()]);
        }
        cx.op(op);
    }
    let (of, ops) = (cx.of, cx.ops);
    bounded.ops.extend(ops);
    for &t in &graph.outputs {
        bounded.env.tensors[t].role = Role::Temp;
    }
    let outputs: FxHashMap<TensorId, TensorId> =
        graph.outputs.iter().filter_map(|&t| Some((t, *of.get(&t)?))).collect();
    for &t in &graph.outputs {
        if let Some(&bound) = outputs.get(&t) {
            bounded.env.tensors[bound].role = Role::Output;
            bounded.outputs.push(bound);
        }
    }
    (bounded, outputs)
}

struct Bounds<'a> {
    env: &'a mut Env,
    /// The bound of each tensor that is not exact.
    of: FxHashMap<TensorId, TensorId>,
    /// For each tensor of tuples, the one that holds the bounds too, and for each component where its bound is in it.
    tuples: FxHashMap<TensorId, (TensorId, Vec<Option<u32>>)>,
    /// In a combiner's body: the number of its components, and which are exact.
    operands: Option<(u32, Vec<bool>)>,
    /// Tensors of what follows from the elements of others.
    companions: FxHashMap<(TensorId, Companion), TensorId>,
    /// Those of recurrences whose bounds are recurrences themselves.
    recurring: FxHashSet<TensorId>,
    given: &'a [Op],
    ops: Vec<Op>,
}

impl Bounds<'_> {
    /// Declares the bounds of a recurrence, which read each other, where it is not exact.
    fn recurrence(&mut self, ops: &[Op]) {
        let rounds = |op: &Op| self.env.tensors[op.tensor].ty.is_float() || self.is_rounded(op.value);
        if !ops.iter().any(rounds) {
            return;
        }
        for op in ops {
            let bound = self.declare(op, "error");
            self.of.insert(op.tensor, bound);
            self.recurring.insert(op.tensor);
        }
    }

    fn op(&mut self, op: &Op) {
        if let Some(Reduction::Tuple(c)) = op.combiner {
            return self.tuple(op, c);
        }
        let error = match self.place_of_extreme(op) {
            Some((hit, place)) => self.other_place(op, hit, place),
            None => self.error(op.value),
        };
        let ty = self.env.tensors[op.tensor].ty;
        let bound = match op.combiner {
            None => match error.or_else(|| self.exact_in_recurrence(op)) {
                Some(e) => e,
                None => return,
            },
            Some(Reduction::Op(Combiner::Max | Combiner::Min)) => {
                let Some(e) = error.or_else(|| self.exact_in_recurrence(op)) else { return };
                let greatest = self.define(op, "error.max", Some(Combiner::Max), e);
                let zero = self.number(0.0);
                let e = self.at(greatest, op);
                // Over nothing the greatest is minus infinity.
                self.env.pool.max(e, zero)
            }
            Some(_) if !ty.is_float() && error.is_none() && !self.recurring.contains(&op.tensor) => return,
            Some(Reduction::Op(Combiner::Prod)) => self.product(op, error, epsilon(ty)),
            Some(_) => self.sum(op, error, epsilon(ty)),
        };
        let declared = self.of.get(&op.tensor).copied();
        let tensor = declared.unwrap_or_else(|| self.declare(op, "error"));
        self.define_as(tensor, op, None, bound);
        self.of.insert(op.tensor, tensor);
    }

    /// The bound of what is exact by itself, where one was declared.
    fn exact_in_recurrence(&mut self, op: &Op) -> Option<ExprId> {
        self.recurring.contains(&op.tensor).then(|| self.number(0.0))
    }

    /// The condition and the value of the least `place` where an element equals the extreme of them all, if `op` is that.
    fn place_of_extreme(&self, op: &Op) -> Option<(ExprId, ExprId)> {
        let pool = &self.env.pool;
        let Expr::Select(hit, place, none) = *pool.get(op.value) else { return None };
        let never = matches!(pool.get(none), Expr::Lit(l) if *l == Literal::int(ScalarType::I64, i64::MAX));
        let equal = match *pool.get(hit) {
            Expr::Bin(BinOp::Or, equal, _) => equal,
            _ => hit,
        };
        let Expr::Bin(BinOp::Eq, x, extreme) = *pool.get(equal) else { return None };
        let Expr::Load { tensor, .. } = pool.get(extreme) else { return None };
        let of = self.given.iter().find(|o| o.tensor == *tensor)?;
        let same = of.value == x && of.reduce == op.reduce;
        let known = matches!(of.combiner, Some(Reduction::Op(Combiner::Max | Combiner::Min))) && same;
        let first = op.combiner == Some(Reduction::Op(Combiner::Min)) && never;
        (first && known).then_some((hit, place))
    }

    /// How far from the reference's place another one is that may have the extreme too: one of them has it.
    fn other_place(&mut self, op: &Op, hit: ExprId, place: ExprId) -> Option<ExprId> {
        let turns = self.turns(hit)?;
        let first = self.at(op.tensor, op);
        let (place, first, zero) = (self.f64(place), self.f64(first), self.number(0.0));
        let apart = self.env.pool.sub(place, first);
        let apart = self.env.pool.un(UnOp::Abs, apart);
        Some(self.env.pool.select(turns, apart, zero))
    }

    /// The reduction once more, with a bound beside each component that is not exact: `(v.., e..)` for `(v..)`.
    fn tuple(&mut self, op: &Op, c: CombinerId) {
        let own = self.env.combiners[c].clone();
        let n = own.parts.len() as u32;
        let errors: Vec<Option<ExprId>> =
            self.env.pool.components(op.value).into_iter().map(|v| self.error(v)).collect();
        // The operands of the new combiner: (v.., e..) and (v.., e..).
        let operand = |k: u32, p: &Part| (if k < n { k } else { k + n }, p.ty);
        let operands: Vec<(u32, ScalarType)> =
            own.parts.iter().chain(&own.parts).zip(0..).map(|(p, k)| operand(k, p)).collect();
        let operands: Vec<ExprId> = operands.into_iter().map(|(k, ty)| self.env.pool.operand(k, ty)).collect();
        let body: Vec<ExprId> = own.body.iter().map(|&e| self.env.pool.with_operands(e, &operands)).collect();
        // A component that is exact in all terms stays so if combining it is.
        let mut exact: Vec<bool> = errors.iter().map(Option::is_none).collect();
        let combined = loop {
            self.operands = Some((n, exact.clone()));
            let combined: Vec<Option<ExprId>> = body.iter().map(|&e| self.error(e)).collect();
            let next: Vec<bool> = combined.iter().zip(&exact).map(|(e, &x)| e.is_none() && x).collect();
            if next == exact {
                break combined;
            }
            exact = next;
        };
        self.operands = None;
        if exact.iter().all(|&e| e) {
            return;
        }
        let zero = self.number(0.0);
        let bound = |p: &Part| Part {
            name: format!("{}.error", p.name),
            ty: ScalarType::F64,
            identity: Literal::float(ScalarType::F64, 0.0),
        };
        let parts = own.parts.iter().cloned().chain(own.parts.iter().map(bound)).collect();
        let body = body.into_iter().chain(combined.into_iter().map(|e| e.unwrap_or(zero))).collect();
        let name = format!("{}.error", own.name);
        let doubled = self.env.combiners.push(TupleCombiner { name, parts, body, commutative: own.commutative });
        let errors = errors.into_iter().map(|e| e.unwrap_or(zero));
        let values: Vec<ExprId> = self.env.pool.components(op.value).into_iter().chain(errors).collect();
        let value = self.env.pool.make_tuple(&values);
        let of = self.env.tensors[op.tensor].clone();
        let dims = of.dims.iter().map(|d| TensorDim { storage: d.extent, ..d.clone() }).collect();
        let name = self.env.fresh_tensor_name(&format!("{}.error", of.name));
        let tensor = self.env.tensors.push(Tensor {
            name,
            tuple: Some(doubled),
            dims,
            layout: Vec::new(),
            role: Role::Temp,
            ..of
        });
        self.ops.push(Op { tensor, combiner: Some(Reduction::Tuple(doubled)), value, ..op.clone() });
        let places = exact.iter().zip(n..).map(|(&exact, k)| (!exact).then_some(k)).collect();
        self.tuples.insert(op.tensor, (tensor, places));
    }

    fn sum(&mut self, op: &Op, error: Option<ExprId>, eps: f64) -> ExprId {
        let products = self.contraction(op);
        let terms = match products {
            Some((terms, _)) => terms,
            None => {
                let magnitude = self.magnitude(op.value);
                self.define(op, "terms", Some(Combiner::Sum), magnitude)
            }
        };
        let (terms, count) = (self.at(terms, op), self.count(op));
        let root = self.env.pool.un(UnOp::Sqrt, count);
        let (two, four) = (self.number(2.0), self.number(4.0));
        let grown = self.env.pool.mul(two, root);
        let grown = self.env.pool.add(four, grown);
        let mut rounding = self.env.pool.mul(grown, terms);
        if eps <= epsilon(ScalarType::F32) {
            let total = self.at(op.tensor, op);
            let total = self.magnitude(total);
            let quarter = self.number(0.25);
            let one_way = self.env.pool.mul(quarter, count);
            let one_way = self.env.pool.mul(one_way, total);
            rounding = self.env.pool.add(rounding, one_way);
        }
        let eps = self.number(eps);
        let rounding = self.env.pool.mul(eps, rounding);
        match (products, error) {
            (Some((_, carried)), _) => self.env.pool.add(carried, rounding),
            (None, None) => rounding,
            // What a recurrence carries is of one origin: no part of it cancels another.
            (None, Some(e)) if self.recurring.contains(&op.tensor) => {
                let all = self.define(op, "carried", Some(Combiner::Sum), e);
                let all = self.at(all, op);
                self.env.pool.add(all, rounding)
            }
            (None, Some(e)) => {
                let square = self.env.pool.mul(e, e);
                let squares = self.define(op, "carried", Some(Combiner::Sum), square);
                let squares = self.at(squares, op);
                let carried = self.likely(squares);
                self.env.pool.add(carried, rounding)
            }
        }
    }

    /// Relative errors of the factors add up.
    fn product(&mut self, op: &Op, error: Option<ExprId>, eps: f64) -> ExprId {
        let mut relative = self.number(eps.max(f64::EPSILON));
        if let Some(e) = error {
            let size = self.magnitude(op.value);
            let own = self.quotient(e, size);
            relative = self.env.pool.add(relative, own);
        }
        let sum = self.define(op, "relative", Some(Combiner::Sum), relative);
        let sum = self.at(sum, op);
        let value = self.at(op.tensor, op);
        let size = self.magnitude(value);
        self.env.pool.mul(size, sum)
    }

    fn at(&mut self, t: TensorId, op: &Op) -> ExprId {
        let index: Vec<ExprId> = op.spatial.iter().map(|&d| self.env.pool.var(self.env.dims[d].var)).collect();
        self.env.load(t, index)
    }

    /// A new operator like `op` that computes `value`.
    fn define(&mut self, op: &Op, what: &str, combiner: Option<Combiner>, value: ExprId) -> TensorId {
        let tensor = self.declare(op, what);
        self.define_as(tensor, op, combiner, value);
        tensor
    }

    /// A tensor like that of `op`.
    fn declare(&mut self, op: &Op, what: &str) -> TensorId {
        let of = &self.env.tensors[op.tensor];
        let dims: Vec<TensorDim> = of.dims.iter().map(|d| TensorDim { storage: d.extent, ..d.clone() }).collect();
        let name = self.env.fresh_tensor_name(&format!("{}.{what}", of.name));
        self.env.tensors.push(Tensor::temp(name, ScalarType::F64, dims))
    }

    fn define_as(&mut self, tensor: TensorId, op: &Op, combiner: Option<Combiner>, value: ExprId) {
        let reduce: Vec<DimId> = if combiner.is_some() { op.reduce.clone() } else { Vec::new() };
        let combiner = combiner.map(Reduction::Op);
        self.ops.push(Op { tensor, spatial: op.spatial.clone(), reduce, combiner, value });
    }

    fn number(&mut self, v: f64) -> ExprId {
        self.env.pool.lit(Literal::float(ScalarType::F64, v))
    }

    fn f64(&mut self, e: ExprId) -> ExprId {
        self.env.pool.cast(ScalarType::F64, e)
    }

    fn magnitude(&mut self, e: ExprId) -> ExprId {
        let v = self.f64(e);
        self.env.pool.un(UnOp::Abs, v)
    }

    fn quotient(&mut self, a: ExprId, b: ExprId) -> ExprId {
        let tiny = self.number(f64::MIN_POSITIVE);
        let b = self.env.pool.max(b, tiny);
        self.env.pool.bin(BinOp::Div, a, b)
    }

    fn either(&mut self, a: Option<ExprId>, b: Option<ExprId>, op: BinOp) -> Option<ExprId> {
        match (a, b) {
            (Some(a), Some(b)) => Some(self.env.pool.bin(op, a, b)),
            (a, b) => a.or(b),
        }
    }

    /// `error + scale * eps * |e|`
    fn rounded(&mut self, error: Option<ExprId>, e: ExprId, scale: f64) -> Option<ExprId> {
        let eps = epsilon(self.env.pool.ty(e).scalar);
        if eps == 0.0 {
            return error;
        }
        let size = self.magnitude(e);
        // An infinite result is not rounded: masks are minus infinity, exactly.
        let size = self.finite(size);
        let unit = self.number(eps * scale);
        let own = self.env.pool.mul(unit, size);
        self.either(error, Some(own), BinOp::Add)
    }

    /// An infinite magnitude is exact: 0.
    fn finite(&mut self, size: ExprId) -> ExprId {
        let (zero, infinite) = (self.number(0.0), self.number(f64::INFINITY));
        let below = self.env.pool.lt(size, infinite);
        self.env.pool.select(below, size, zero)
    }

    /// Whether rounding may turn the condition over; nothing if it never does. What is compared is as far apart as
    /// both may be off, or the condition is not a comparison.
    fn turns(&mut self, c: ExprId) -> Option<ExprId> {
        if !self.is_rounded(c) {
            return None;
        }
        match *self.env.pool.get(c) {
            Expr::Un(UnOp::Not, a) => self.turns(a),
            Expr::Bin(_, a, b) if self.env.pool.ty(a).scalar == ScalarType::Bool => {
                let (x, y) = (self.turns(a), self.turns(b));
                self.either(x, y, BinOp::Or)
            }
            // Is it a number?
            Expr::Bin(_, a, b) if a == b => None,
            Expr::Bin(op, a, b) if op.is_comparison() => {
                let (x, y) = (self.error(a), self.error(b));
                let off = self.either(x, y, BinOp::Add)?;
                let (a, b, zero) = (self.f64(a), self.f64(b), self.number(0.0));
                let apart = self.env.pool.sub(a, b);
                let apart = self.env.pool.un(UnOp::Abs, apart);
                let (near, inexact) = (self.env.pool.le(apart, off), self.env.pool.lt(zero, off));
                Some(self.env.pool.and(near, inexact))
            }
            Expr::Load { .. } => {
                let (error, zero) = (self.error(c)?, self.number(0.0));
                Some(self.env.pool.lt(zero, error))
            }
            _ => Some(self.env.pool.bool(true)),
        }
    }

    /// A bound on the error of `e`; nothing if it is exact.
    fn error(&mut self, e: ExprId) -> Option<ExprId> {
        match self.env.pool.get(e).clone() {
            Expr::Load { tensor, part, index, guard } => self.load((tensor, part), &index, guard),
            Expr::Operand(k, _) => {
                let (n, exact) = self.operands.clone()?;
                let part = k % (2 * n);
                let inexact = part < n && !exact[part as usize];
                inexact.then(|| self.env.pool.operand(k + n, ScalarType::F64))
            }
            Expr::Cast(_, a) if self.env.pool.ty(a).scalar == ScalarType::Bool => self.error(a),
            Expr::Un(..) | Expr::Bin(..) | Expr::Cast(..) if self.env.pool.ty(e).scalar == ScalarType::Bool => {
                let turns = self.turns(e)?;
                let (one, zero) = (self.number(1.0), self.number(0.0));
                Some(self.env.pool.select(turns, one, zero))
            }
            Expr::Cast(to, a) => {
                let error = self.error(a);
                if to.is_int() && self.env.pool.ty(a).scalar.is_float() {
                    // Truncation may go to either side of a whole number.
                    return error.map(|x| self.plus(x, 1.0));
                }
                self.rounded(error, e, 1.0)
            }
            Expr::Select(c, a, b) => {
                let (x, y) = (self.error(a), self.error(b));
                let turns = self.turns(c);
                if x.is_none() && y.is_none() && turns.is_none() {
                    return None;
                }
                let zero = self.number(0.0);
                let chosen = self.env.pool.select(c, x.unwrap_or(zero), y.unwrap_or(zero));
                let Some(turns) = turns else { return Some(chosen) };
                let widest = self.either(x, y, BinOp::Max);
                let (a, b) = (self.f64(a), self.f64(b));
                let apart = self.env.pool.sub(a, b);
                let apart = self.env.pool.un(UnOp::Abs, apart);
                let either = self.either(widest, Some(apart), BinOp::Add).unwrap_or(apart);
                Some(self.env.pool.select(turns, either, chosen))
            }
            Expr::Un(op, a) => self.unary(e, op, a),
            Expr::Bin(op, a, b) => self.binary(e, op, a, b),
            _ => None,
        }
    }

    fn load(
        &mut self,
        (t, part): (TensorId, u32),
        index: &[ExprId],
        guard: Option<(ExprId, ExprId)>,
    ) -> Option<ExprId> {
        let of_tuple = self.tuples.get(&t).and_then(|(b, places)| Some((*b, places[part as usize]?)));
        let bound = of_tuple.or(self.of.get(&t).map(|&b| (b, 0)));
        let other = guard.and_then(|(_, o)| self.error(o));
        if bound.is_none() && other.is_none() {
            return None;
        }
        let zero = self.number(0.0);
        let Some(bound) = bound else {
            return guard.map(|(c, _)| self.env.pool.select(c, zero, other.unwrap_or(zero)));
        };
        let guard = guard.map(|(c, _)| (c, other.unwrap_or(zero)));
        let bound = self.env.pool.load_guarded(bound, ScalarType::F64, index.iter().copied(), guard);
        Some(if of_tuple.is_some() { self.times(bound, OTHER_ORDERS) } else { bound })
    }

    /// Whether a condition or an index depends on anything that is not exact.
    fn is_rounded(&mut self, e: ExprId) -> bool {
        let mut computed = false;
        self.env.pool.walk(e, &mut |id, n| {
            let rounds =
                matches!(n, Expr::Un(..) | Expr::Bin(..) | Expr::Cast(..)) && self.env.pool.ty(id).scalar.is_float();
            let reads = match n {
                Expr::Load { tensor, part, .. } => {
                    let of_tuple = self.tuples.get(tensor).is_some_and(|(_, p)| p[*part as usize].is_some());
                    of_tuple || self.of.contains_key(tensor)
                }
                Expr::Operand(k, _) => self.operands.as_ref().is_some_and(|(n, exact)| !exact[(k % n) as usize]),
                _ => false,
            };
            computed = computed || rounds || reads;
        });
        computed
    }

    fn plus(&mut self, e: ExprId, v: f64) -> ExprId {
        let v = self.number(v);
        self.env.pool.add(e, v)
    }

    fn times(&mut self, e: ExprId, v: f64) -> ExprId {
        let v = self.number(v);
        self.env.pool.mul(e, v)
    }

    fn unary(&mut self, e: ExprId, op: UnOp, a: ExprId) -> Option<ExprId> {
        let error = self.error(a);
        match op {
            UnOp::Neg | UnOp::Abs => error,
            UnOp::Not => None,
            UnOp::Floor | UnOp::Ceil | UnOp::Round => error.map(|x| self.plus(x, 1.0)),
            // What is exact is rounded the same way everywhere; anything else may be rounded to the neighbour.
            UnOp::Tf32 => error.map(|x| {
                let (size, unit) = (self.magnitude(e), self.number(TF32_STEP));
                let step = self.env.pool.mul(unit, size);
                self.env.pool.add(x, step)
            }),
            UnOp::Exp => {
                // |exp(a + d) - exp(a)| = exp(a) * |exp(d) - 1|
                let carried = error.map(|mut x| {
                    if !self.recurring.is_empty() {
                        // What grows without end stays a number.
                        let most = self.number(MOST_GROWN);
                        x = self.env.pool.min(x, most);
                    }
                    let grown = self.env.pool.un(UnOp::Exp, x);
                    let grown = self.plus(grown, -1.0);
                    let size = self.magnitude(e);
                    self.env.pool.mul(size, grown)
                });
                self.rounded(carried, e, FUNCTION_ULPS)
            }
            UnOp::Log => {
                let carried = error.map(|x| {
                    let size = self.magnitude(a);
                    let least = self.env.pool.sub(size, x);
                    self.quotient(x, least)
                });
                self.rounded(carried, e, FUNCTION_ULPS)
            }
            UnOp::Sqrt | UnOp::Rsqrt => {
                let carried = error.map(|x| {
                    let size = self.magnitude(a);
                    let least = self.env.pool.sub(size, x);
                    let relative = self.quotient(x, least);
                    let root_size = self.magnitude(e);
                    let steep = self.env.pool.mul(root_size, relative);
                    if op != UnOp::Sqrt {
                        return steep;
                    }
                    // Where all of it may be an error the slope at it says nothing.
                    let root = self.env.pool.un(UnOp::Sqrt, x);
                    let known = self.env.pool.lt(x, size);
                    let least = self.env.pool.min(root, steep);
                    self.env.pool.select(known, least, root)
                });
                self.rounded(carried, e, FUNCTION_ULPS)
            }
            UnOp::Tanh | UnOp::Erf | UnOp::Sin | UnOp::Cos => {
                // No steeper than erf at 0, and at most 1.
                let carried = error.map(|x| {
                    let steepest = self.times(x, 1.2);
                    if op != UnOp::Tanh {
                        return steepest;
                    }
                    // The slope is 1 - tanh^2, the second derivative below 0.8.
                    let (y, one) = (self.f64(e), self.number(1.0));
                    let square = self.env.pool.mul(y, y);
                    let slope = self.env.pool.sub(one, square);
                    let half = self.times(x, 0.4);
                    let slope = self.env.pool.add(slope, half);
                    let near = self.env.pool.mul(slope, x);
                    let least = self.env.pool.min(near, steepest);
                    // Between -1 and 1.
                    let two = self.number(2.0);
                    self.env.pool.min(least, two)
                });
                let eps = epsilon(self.env.pool.ty(e).scalar);
                let own = self.number(eps * FUNCTION_ULPS);
                self.either(carried, Some(own), BinOp::Add)
            }
        }
    }

    fn binary(&mut self, e: ExprId, op: BinOp, a: ExprId, b: ExprId) -> Option<ExprId> {
        let (x, y) = (self.error(a), self.error(b));
        let float = self.env.pool.ty(e).scalar.is_float();
        if !float && x.is_none() && y.is_none() {
            return None;
        }
        match op {
            BinOp::Min | BinOp::Max => {
                let (inexact, error, exact) = match (x, y) {
                    (Some(x), None) => (a, x, b),
                    (None, Some(y)) => (b, y, a),
                    _ => return self.either(x, y, BinOp::Max),
                };
                // Nothing is passed on where the exact one is chosen whatever the other may be.
                let (inexact, exact, zero) = (self.f64(inexact), self.f64(exact), self.number(0.0));
                let reach = self.times(error, 2.0);
                let pool = &mut self.env.pool;
                let beyond = match op {
                    BinOp::Max => {
                        let most = pool.add(inexact, reach);
                        pool.le(most, exact)
                    }
                    _ => {
                        let least = pool.sub(inexact, reach);
                        pool.le(exact, least)
                    }
                };
                Some(pool.select(beyond, zero, error))
            }
            BinOp::Add | BinOp::Sub => {
                let carried = self.either(x, y, BinOp::Add);
                self.rounded(carried, e, 1.0)
            }
            BinOp::Mul => {
                let (by_a, by_b) = (self.scaled(x, b), self.scaled(y, a));
                let mut carried = self.either(by_a, by_b, BinOp::Add);
                if let (Some(x), Some(y)) = (x, y) {
                    let both = self.env.pool.mul(x, y);
                    carried = self.either(carried, Some(both), BinOp::Add);
                }
                self.rounded(carried, e, 1.0)
            }
            BinOp::Div => {
                let by_b = self.scaled(y, e);
                let mut carried = self.either(x, by_b, BinOp::Add);
                if let Some(c) = carried {
                    let size = self.magnitude(b);
                    let least = match y {
                        Some(y) => self.env.pool.sub(size, y),
                        None => size,
                    };
                    let mut quotient = self.quotient(c, least);
                    if let Some(most) = self.greatest_quotient(a, b) {
                        let most = self.number(most);
                        quotient = self.env.pool.min(quotient, most);
                    }
                    carried = Some(quotient);
                }
                self.rounded(carried, e, 1.0)
            }
            BinOp::Pow => {
                // The derivatives are e * b / a and e * ln a.
                let (size_a, size_b) = (self.magnitude(a), self.magnitude(b));
                let by_a = x.map(|x| {
                    let relative = self.quotient(x, size_a);
                    self.env.pool.mul(size_b, relative)
                });
                let by_b = y.map(|y| {
                    let log = self.env.pool.un(UnOp::Log, size_a);
                    let log = self.env.pool.un(UnOp::Abs, log);
                    self.env.pool.mul(log, y)
                });
                let relative = self.either(by_a, by_b, BinOp::Add);
                let carried = self.scaled(relative, e);
                self.rounded(carried, e, FUNCTION_ULPS)
            }
            BinOp::FloorDiv | BinOp::Mod => Some(self.number(f64::INFINITY)),
            _ => None,
        }
    }

    /// The greatest magnitude of a logistic function, `c / (d + exp(x))`.
    fn greatest_quotient(&self, a: ExprId, b: ExprId) -> Option<f64> {
        let literal = |e: ExprId| match self.env.pool.get(e) {
            Expr::Lit(l) => Some(l.as_f64()),
            _ => None,
        };
        let Expr::Bin(BinOp::Add, x, y) = *self.env.pool.get(b) else { return None };
        let is_exp = |e: ExprId| matches!(self.env.pool.get(e), Expr::Un(UnOp::Exp, _));
        let d = if is_exp(y) { literal(x)? } else { literal(y).filter(|_| is_exp(x))? };
        literal(a).filter(|_| d > 0.0).map(|c| (c / d).abs())
    }

    fn scaled(&mut self, error: Option<ExprId>, by: ExprId) -> Option<ExprId> {
        error.map(|x| {
            let size = self.magnitude(by);
            self.env.pool.mul(size, x)
        })
    }
}
