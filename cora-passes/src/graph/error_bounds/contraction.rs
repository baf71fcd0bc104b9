//! Bounds for sums of products of two elements: sums of products themselves, of magnitudes and bounds, which the
//! interpreter takes a row at a time.

use super::{Bounds, epsilon};
use cora_ir::graph::Op;
use cora_ir::{BinOp, Combiner, Dim, Expr, ExprId, ScalarType, Tensor, TensorDim, TensorId, UnOp};

/// Errors of different terms add up like independent ones (Higham and Mary, *A New Approach to Probabilistic Rounding
/// Error Analysis*, 2019): a sum is off by more than this many times the root of the sum of their squares only with a
/// probability below 1e-8. Sixteen terms at most cannot be off by more.
const DEVIATIONS: f64 = 4.0;

/// What follows from an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Companion {
    /// Its magnitude.
    Size,
    /// Its square.
    Square,
}

/// A factor: the tensor it is an element of, and where.
struct Factor {
    tensor: TensorId,
    index: Vec<ExprId>,
}

impl Bounds<'_> {
    /// The magnitudes of the terms added up, and what the terms' own errors add up to; nothing if the operator is not a
    /// sum of such products.
    pub(super) fn contraction(&mut self, op: &Op) -> Option<(TensorId, ExprId)> {
        // What follows from elements of a recurrence is not there before these.
        if self.recurring.contains(&op.tensor) {
            return None;
        }
        let (a, b) = self.factors(op)?;
        let (size_a, size_b) = (self.companion(a.tensor, Companion::Size), self.companion(b.tensor, Companion::Size));
        let terms = self.products(op, "terms", (&a, size_a), (&b, size_b));
        let squares = [&a, &b].map(|f| self.companion(f.tensor, Companion::Square));
        let bounds = [&a, &b].map(|f| {
            let bound = self.of.get(&f.tensor).copied()?;
            Some(self.companion(bound, Companion::Square))
        });
        let both = bounds.iter().all(Option::is_some);
        let mut carried = None;
        for (x, y) in [(bounds[0], Some(squares[1])), (Some(squares[0]), bounds[1]), (bounds[0], bounds[1])] {
            if let (Some(x), Some(y)) = (x, y) {
                let sum = self.products(op, "carried", (&a, x), (&b, y));
                let sum = self.at(sum, op);
                // The factors' errors may be the same ones, as in a square: (x + y)^2 <= 2 x^2 + 2 y^2.
                let sum = if both { self.times(sum, 2.0) } else { sum };
                carried = self.either(carried, Some(sum), BinOp::Add);
            }
        }
        // Each product is rounded once.
        let all = self.at(terms, op);
        let eps = epsilon(self.env.pool.ty(op.value).scalar);
        let own = self.times(all, eps);
        let error = match carried {
            Some(squares) => {
                let carried = self.likely(squares);
                self.env.pool.add(own, carried)
            }
            None => own,
        };
        Some((terms, error))
    }

    /// How far independent errors add up, from the sum of their squares: far more than they are likely to, and no less
    /// than they can where there are few.
    pub(super) fn likely(&mut self, squares: ExprId) -> ExprId {
        let root = self.env.pool.un(UnOp::Sqrt, squares);
        self.times(root, DEVIATIONS)
    }

    /// The sum of products of elements of `x` where factor `a` is and of `y` where `b` is.
    fn products(&mut self, op: &Op, what: &str, (a, x): (&Factor, TensorId), (b, y): (&Factor, TensorId)) -> TensorId {
        let x = self.env.pool.load(x, ScalarType::F64, a.index.iter().copied());
        let y = self.env.pool.load(y, ScalarType::F64, b.index.iter().copied());
        let term = self.env.pool.mul(x, y);
        self.define(op, what, Some(Combiner::Sum), term)
    }

    fn factors(&self, op: &Op) -> Option<(Factor, Factor)> {
        let &Expr::Bin(BinOp::Mul, a, b) = self.env.pool.get(op.value) else { return None };
        Some((self.factor(a)?, self.factor(b)?))
    }

    fn factor(&self, e: ExprId) -> Option<Factor> {
        let Expr::Load { tensor, part: 0, index, guard: None } = self.env.pool.get(e) else { return None };
        let t = &self.env.tensors[*tensor];
        let plain = t.ty.is_float() && t.tuple.is_none();
        plain.then(|| Factor { tensor: *tensor, index: index.to_vec() })
    }

    /// A tensor of what follows from each of another one's elements.
    fn companion(&mut self, t: TensorId, what: Companion) -> TensorId {
        if let Some(&found) = self.companions.get(&(t, what)) {
            return found;
        }
        let of = self.env.tensors[t].clone();
        let (mut spatial, mut index) = (Vec::new(), Vec::new());
        for d in &of.dims {
            let extent = self.env.pool.instantiate(d.extent, &index);
            let var = self.env.new_var(d.name.clone());
            spatial.push(self.env.dims.push(Dim { name: d.name.clone(), extent, var }));
            index.push(self.env.pool.var(var));
        }
        let name = self.env.fresh_tensor_name(&format!("{}.{what:?}", of.name).to_lowercase());
        let dims = of.dims.iter().map(|d| TensorDim { storage: d.extent, ..d.clone() }).collect();
        let tensor = self.env.tensors.push(Tensor::temp(name, ScalarType::F64, dims));
        let element = self.env.load(t, index);
        let element = self.env.pool.cast(ScalarType::F64, element);
        let value = match what {
            Companion::Size => self.env.pool.un(UnOp::Abs, element),
            Companion::Square => self.env.pool.mul(element, element),
        };
        self.ops.push(Op { tensor, spatial, reduce: Vec::new(), combiner: None, value });
        self.companions.insert((t, what), tensor);
        tensor
    }

    /// How many terms an element has: the innermost reduced dimension counts by its extent.
    pub(super) fn count(&mut self, op: &Op) -> ExprId {
        let Some((&inner, outer)) = op.reduce.split_last() else { return self.number(1.0) };
        let extent = self.env.dims[inner].extent;
        let count = self.env.pool.cast(ScalarType::F64, extent);
        if outer.is_empty() {
            return count;
        }
        let outer = Op { reduce: outer.to_vec(), ..op.clone() };
        let count = self.define(&outer, "count", Some(Combiner::Sum), count);
        self.at(count, op)
    }
}
