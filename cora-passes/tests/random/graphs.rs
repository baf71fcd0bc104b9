//! Random op graphs whose accesses are in bounds by construction.

use super::shapes::Shapes;
use super::values::Val;
use cora_ir::graph::Op;
use cora_ir::{
    BinOp, Combiner, Dim, DimId, Env, Expr, ExprId, Graph, Literal, Reduction, Role, ScalarType, Tensor, TensorDim,
    TensorId, VarId,
};
use rand::prelude::*;
use rustc_hash::FxHashMap;

/// Whole numbers up to this are exact in every floating-point type used.
pub const EXACT: f64 = 16_000_000.0;

/// A graph, and how exactly each tensor is computed.
pub struct Made {
    pub graph: Graph,
    /// The greatest magnitude that occurs on the way to each tensor that is not exact.
    pub rounded: FxHashMap<TensorId, f64>,
}

/// A tensor that may be read.
#[derive(Clone, Copy)]
pub struct Known {
    pub id: TensorId,
    /// Greatest finite magnitude of an element.
    pub bound: f64,
    /// Whether every element is a whole number, an infinity or NaN, computed without rounding.
    pub exact: bool,
}

/// A dimension of the operator being made.
#[derive(Clone, Copy)]
pub struct OpDim {
    pub dim: DimId,
    pub var: VarId,
    pub index: ExprId,
    pub extent: ExprId,
}

/// The generator's state.
pub struct Gen<'r> {
    pub rng: &'r mut SmallRng,
    pub g: Graph,
    pub shapes: Shapes,
    pub known: Vec<Known>,
    /// Dimensions of the operator being made.
    pub dims: Vec<OpDim>,
    /// Whether results have their dimensions in the order in which they were made.
    pub in_order: bool,
}

/// A random graph of one to four operators.
pub fn graph(rng: &mut SmallRng) -> Made {
    let mut g = Graph { name: "random".to_owned(), ..Graph::default() };
    let shapes = Shapes::declare(&mut g.env, rng);
    let mut cx = Gen { rng, g, shapes, known: Vec::new(), dims: Vec::new(), in_order: false };
    if cx.rng.random_bool(0.18) {
        match cx.rng.random_range(0..21) {
            18.. => cx.recurrence(),
            16..18 => cx.heads(),
            14..16 => cx.convolution(),
            12..14 => cx.nested(),
            10..12 => cx.masked(),
            0..2 => cx.projection(),
            2..4 => cx.decoding(),
            4..6 => cx.added(),
            _ => cx.attention(),
        }
    } else if cx.rng.random_bool(0.2) {
        cx.contraction();
    } else {
        for _ in 0..cx.rng.random_range(1..=3) {
            cx.input();
        }
        for _ in 0..cx.rng.random_range(1..=4) {
            cx.op();
        }
    }
    cx.finish()
}

impl Gen<'_> {
    pub fn env(&mut self) -> &mut Env {
        &mut self.g.env
    }

    pub fn int(&mut self, v: i64) -> ExprId {
        self.env().pool.int(v)
    }

    /// A literal of type `ty`.
    pub fn literal(&mut self, ty: ScalarType, v: i64) -> ExprId {
        let l = if ty.is_float() {
            Literal::float(ty, v as f64)
        } else if ty == ScalarType::Bool {
            Literal::int(ty, i64::from(v > 0))
        } else {
            Literal::int(ty, v)
        };
        self.env().pool.lit(l)
    }

    fn element_type(&mut self) -> ScalarType {
        use ScalarType::{BF16, Bool, F16, F32, F64, I8, I16, I32, I64};
        let types = [F32, F32, F32, F32, F32, F32, F32, F32, F32, F64, F16, BF16, I8, I16, I32, I64, Bool];
        *types.choose(self.rng).unwrap_or(&F32)
    }

    fn input(&mut self) {
        let rank = self.rng.random_range(1..=4);
        let extents = self.shapes.random(&mut self.g.env, self.rng, rank);
        let ty = self.element_type();
        let role = if self.rng.random_bool(0.1) { Role::ConstInput } else { Role::Input };
        self.declare_input(ty, role, &extents, None);
    }

    /// An input; `range` bounds the values of an index tensor.
    pub fn declare_input(
        &mut self,
        ty: ScalarType,
        role: Role,
        extents: &[ExprId],
        range: Option<(ExprId, ExprId)>,
    ) -> TensorId {
        let name = format!("I{}", self.g.env.tensors.len());
        let dims = named_dims(extents);
        let id = self.g.env.tensors.push(Tensor { role, range, ..Tensor::temp(name, ty, dims) });
        if range.is_none() {
            self.known.push(Known { id, bound: 4.0, exact: true });
        }
        id
    }

    /// A new dimension of the operator being made.
    pub fn add_dim(&mut self, extent: ExprId) -> OpDim {
        let name = ["b", "i", "j", "k", "l", "m", "n", "o", "p"][self.dims.len().min(8)];
        let var = self.env().new_var(name);
        let index = self.env().pool.var(var);
        let dim = self.g.env.dims.push(Dim { name: name.to_owned(), extent, var });
        let d = OpDim { dim, var, index, extent };
        self.dims.push(d);
        d
    }

    /// One random operator.
    pub fn op(&mut self) {
        self.dims.clear();
        let Some(main) = self.pick_operand() else { return };
        if self.rng.random_bool(0.08) && self.position_of_extreme(main) {
            return;
        }
        let mut loads = Vec::new();
        loads.extend(self.load(main, 0.9));
        let more = self.rng.random_range(0..=2);
        for _ in 0..more {
            if let Some(t) = self.pick_operand() {
                let open = if self.dims.len() < 4 { 0.3 } else { 0.0 };
                loads.extend(self.load(t, open));
            }
        }
        if self.dims.len() < 4 && self.rng.random_bool(0.15) {
            let extent = self.shapes.extent_of_dims(&mut self.g.env, self.rng, &self.dims);
            self.add_dim(extent);
        }
        let chance = if self.dims.len() > 3 { 0.9 } else { 0.5 };
        let reduced = if self.rng.random_bool(chance) { self.reduced_set() } else { Vec::new() };
        let exact = loads.iter().all(|v| v.exact);
        let ty = match (self.element_type(), exact) {
            (ty, true) => ty,
            (ScalarType::F64, false) => ScalarType::F64,
            _ => ScalarType::F32,
        };
        let value = self.value(&loads, ty);
        if value.exact && ty != ScalarType::Bool && !reduced.is_empty() && self.rng.random_bool(0.2) {
            return self.define_tuple(ty, &reduced, value);
        }
        self.define(ty, &reduced, value);
    }

    /// Where the greatest or least element of each row is, as the language defines `argmax` and `argmin`.
    fn position_of_extreme(&mut self, t: Known) -> bool {
        let tensor = self.g.env.tensors[t.id].clone();
        if tensor.dims.is_empty() || tensor.ty == ScalarType::Bool || !t.exact {
            return false;
        }
        let best = *[Combiner::Max, Combiner::Min].choose(self.rng).unwrap_or(&Combiner::Max);
        let (dims, k) = self.dims_of(t.id);
        let x = self.read(t.id, &dims);
        let extreme = self.define_with(tensor.ty, &[k.dim], Some(best), x);
        let (dims, k) = self.dims_of(t.id);
        let (x, m) = (self.read(t.id, &dims), self.read(extreme, &dims[..dims.len() - 1]));
        let none = self.literal(ScalarType::I64, i64::MAX);
        let pool = &mut self.g.env.pool;
        let (is_best, is_nan) = (pool.bin(BinOp::Eq, x.e, m.e), pool.bin(BinOp::Ne, x.e, x.e));
        let chosen = if tensor.ty.is_float() { pool.bin(BinOp::Or, is_best, is_nan) } else { is_best };
        let at = pool.cast(ScalarType::I64, k.index);
        let e = pool.select(chosen, at, none);
        let first = Val { e, bound: i64::MAX as f64, exact: true };
        self.define_with(ScalarType::I64, &[k.dim], Some(Combiner::Min), first);
        true
    }

    /// New dimensions for all of a tensor, and the last of them.
    fn dims_of(&mut self, t: TensorId) -> (Vec<OpDim>, OpDim) {
        self.dims.clear();
        let mut index: Vec<ExprId> = Vec::new();
        for dim in self.g.env.tensors[t].dims.clone() {
            let extent = self.g.env.pool.instantiate(dim.extent, &index);
            index.push(self.add_dim(extent).index);
        }
        (self.dims.clone(), self.dims[self.dims.len() - 1])
    }

    /// Mostly the latest tensors, so that operators form chains.
    fn pick_operand(&mut self) -> Option<Known> {
        let n = self.known.len();
        let last = n.checked_sub(1)?;
        let at = if self.rng.random_bool(0.55) { last } else { self.rng.random_range(0..n) };
        self.known.get(at).copied()
    }

    fn depends(&self, d: &OpDim, on: &OpDim) -> bool {
        self.g.env.pool.uses_var(d.extent, on.var)
    }

    /// Dimensions to reduce over: a random one, some others, and all that depend on them.
    fn reduced_set(&mut self) -> Vec<DimId> {
        let dims = self.dims.clone();
        let mut reduced: Vec<OpDim> = Vec::new();
        let first = if dims.is_empty() { 0 } else { self.rng.random_range(0..dims.len()) };
        // Reducing the outer dimensions of everything leaves scalars: rarer.
        let first = if self.rng.random_bool(0.6) { dims.len().saturating_sub(1) } else { first };
        for (n, d) in dims.iter().enumerate() {
            let forced = reduced.iter().any(|r| self.depends(d, r));
            if forced || n == first || (n > 0 && self.rng.random_bool(0.2)) {
                reduced.push(*d);
            }
        }
        reduced.into_iter().map(|d| d.dim).collect()
    }

    /// A random order in which each dimension comes after those its extent depends on.
    fn ordered(&mut self, mut left: Vec<OpDim>) -> Vec<OpDim> {
        let shuffled = !self.in_order && self.rng.random_bool(0.35);
        let mut out = Vec::new();
        while !left.is_empty() {
            let ready: Vec<usize> =
                (0..left.len()).filter(|&n| !left.iter().any(|o| self.depends(&left[n], o))).collect();
            let at = if shuffled { *ready.choose(self.rng).unwrap_or(&0) } else { ready[0] };
            out.push(left.remove(at));
        }
        out
    }

    /// Adds the operator over the current dimensions, of which `reduced` are reduced over.
    fn define(&mut self, mut ty: ScalarType, reduced: &[DimId], mut value: Val) {
        if reduced.len() > 2 && !value.exact {
            // The order of a sum of thousands of f32 matters by more than results may differ.
            (ty, value.e) = (ScalarType::F64, self.env().pool.cast(ScalarType::F64, value.e));
        }
        let (mut value, combiner) =
            if reduced.is_empty() { (self.small(value, EXACT), None) } else { self.term(ty, value) };
        if let Some(c) = combiner {
            value.e = self.at_positions(ty, reduced, c, value.e);
        }
        self.define_with(ty, reduced, combiner, value);
    }

    pub fn define_with(
        &mut self,
        ty: ScalarType,
        reduced: &[DimId],
        combiner: Option<Combiner>,
        value: Val,
    ) -> TensorId {
        let id = self.define_op(ty, reduced, combiner.map(Reduction::Op), value.e);
        let bound = match combiner {
            Some(Combiner::Sum) => value.bound * 2500.0,
            Some(Combiner::Prod) => 1e9,
            _ => value.bound,
        };
        self.known.push(Known { id, bound, exact: value.exact });
        id
    }

    /// Adds an operator, which is not yet read by others.
    pub fn define_op(
        &mut self,
        ty: ScalarType,
        reduced: &[DimId],
        combiner: Option<Reduction>,
        value: ExprId,
    ) -> TensorId {
        let (inner, outer): (Vec<OpDim>, Vec<OpDim>) =
            self.dims.clone().into_iter().partition(|d| reduced.contains(&d.dim));
        let (outer, inner) = (self.ordered(outer), self.ordered(inner));
        let extents = self.over_args(&outer);
        let name = format!("T{}", self.g.env.tensors.len());
        let mut dims = named_dims(&extents);
        for (t, d) in dims.iter_mut().zip(&outer) {
            t.name.clone_from(&self.g.env.dims[d.dim].name);
        }
        let id = self.g.env.tensors.push(Tensor::temp(name, ty, dims));
        let dim_ids = |dims: &[OpDim]| dims.iter().map(|d| d.dim).collect();
        self.g.ops.push(Op { tensor: id, spatial: dim_ids(&outer), reduce: dim_ids(&inner), combiner, value });
        id
    }

    /// A combiner, and the term in a form whose reduction is exact.
    fn term(&mut self, ty: ScalarType, v: Val) -> (Val, Option<Combiner>) {
        use Combiner::{Max, Min, Prod, Sum};
        let all: &[Combiner] = match (ty, v.exact) {
            (ScalarType::Bool, _) => &[Max, Min],
            // A sum of many would be rounded.
            (ScalarType::F16 | ScalarType::BF16, _) => &[Max, Min, Prod],
            (_, true) => &[Sum, Sum, Sum, Max, Min, Prod],
            (_, false) => &[Sum, Sum, Max, Min],
        };
        let c = *all.choose(self.rng).unwrap_or(&Sum);
        let v = match c {
            Sum => self.small(v, 100.0),
            Prod => self.power_of_two(v),
            Max | Min => self.small(v, EXACT),
        };
        (v, Some(c))
    }

    fn finish(mut self) -> Made {
        let read: Vec<TensorId> = {
            let (mut read, mut defined) = (Vec::new(), Vec::new());
            for op in &self.g.ops {
                self.g.env.pool.walk(op.value, &mut |_, n| {
                    // What a recurrence reads of itself may be a result of nobody else.
                    if let Expr::Load { tensor, .. } = n
                        && defined.contains(tensor)
                    {
                        read.push(*tensor);
                    }
                });
                defined.push(op.tensor);
            }
            read
        };
        // Now and then most of what is computed is a result.
        let often = if self.rng.random_bool(0.2) { 0.6 } else { 0.1 };
        for t in self.g.ops.iter().map(|o| o.tensor).collect::<Vec<_>>() {
            let scalar = self.g.env.tensors[t].tuple.is_none();
            if !read.contains(&t) || (scalar && self.rng.random_bool(often)) {
                self.g.env.tensors[t].role = Role::Output;
                self.g.outputs.push(t);
            }
        }
        let rounded = self.known.iter().filter(|k| !k.exact).map(|k| (k.id, k.bound)).collect();
        Made { graph: self.g, rounded }
    }

    /// Self-attention over ragged rows, as five operators.
    fn attention(&mut self) {
        use ScalarType::F32;
        self.in_order = true;
        let (rows, depth) = (self.shapes.rows, self.rng.random_range(1..=3));
        let (a0, d) = (self.env().pool.arg(0), self.int(depth));
        let row = self.shapes.row_extent(&mut self.g.env, a0);
        let shape = [rows, row, d];
        let q = self.declare_input(F32, Role::Input, &shape, None);
        let k = self.declare_input(F32, Role::Input, &shape, None);
        let causal = self.rng.random_bool(0.4);
        let scores = self.attention_scores(q, k, rows, d, causal);
        // Softmax, with the greatest score taken away.
        let e = self.attention_dims(rows, causal);
        let score = self.read(scores, &e[..3]);
        let greatest = self.define_with(F32, &[e[2].dim], Some(Combiner::Max), score);
        let e = self.attention_dims(rows, causal);
        let (s, m) = (self.read(scores, &e[..3]), self.read(greatest, &e[..2]));
        let shifted = self.arith(BinOp::Sub, s, m);
        let exp = self.exp(shifted);
        let exp = self.define_with(F32, &[], None, exp);
        let e = self.attention_dims(rows, causal);
        let weight = self.read(exp, &e[..3]);
        let total = self.define_with(F32, &[e[2].dim], Some(Combiner::Sum), weight);
        let [b, q_dim, k_dim] = self.attention_dims(rows, causal);
        let depth = self.add_dim(d);
        let (p, v) = (self.read(exp, &[b, q_dim, k_dim]), self.read(q, &[b, k_dim, depth]));
        let total = self.read(total, &[b, q_dim]);
        let weight = self.arith(BinOp::Div, p, total);
        let mut term = self.arith(BinOp::Mul, weight, v);
        term.bound = 8.0;
        self.define_with(F32, &[k_dim.dim], Some(Combiner::Sum), term);
    }

    fn attention_dims(&mut self, rows: ExprId, causal: bool) -> [OpDim; 3] {
        self.dims.clear();
        let b = self.add_dim(rows);
        let extent = self.shapes.row_extent(&mut self.g.env, b.index);
        let q = self.add_dim(extent);
        let one = self.int(1);
        let upto = self.env().pool.add(q.index, one);
        let k = self.add_dim(if causal { upto } else { extent });
        [b, q, k]
    }

    fn attention_scores(&mut self, q: TensorId, k: TensorId, rows: ExprId, d: ExprId, causal: bool) -> TensorId {
        let [b, q_dim, k_dim] = self.attention_dims(rows, causal);
        let depth = self.add_dim(d);
        let (x, y) = (self.read(q, &[b, q_dim, depth]), self.read(k, &[b, k_dim, depth]));
        let term = self.arith(BinOp::Mul, x, y);
        self.define_with(ScalarType::F32, &[depth.dim], Some(Combiner::Sum), term)
    }

    pub fn read(&mut self, t: TensorId, dims: &[OpDim]) -> Val {
        let e = self.env().load(t, dims.iter().map(|d| d.index));
        let known = self.known.iter().find(|k| k.id == t);
        Val { e, bound: known.map_or(4.0, |k| k.bound), exact: known.is_none_or(|k| k.exact) }
    }
}

fn named_dims(extents: &[ExprId]) -> Vec<TensorDim> {
    let names = ["b", "i", "j", "k", "l", "m"];
    extents.iter().zip(names).map(|(&extent, name)| TensorDim::new(name, extent)).collect()
}
