//! Expression handles of the builder and the functions on them; operators are in [`super::ops`].

use super::{Dim, Param, Tensor};
use crate::ast::{Expr, ExprKind, ReduceOp};
use cora_ir::schedule::Span;
use cora_ir::{BinOp, Combiner, ScalarType, UnOp};

/// An expression. Numbers take the type of what they meet; nothing else is converted.
#[derive(Clone, Debug)]
pub struct Value(pub(crate) Expr);

impl Value {
    pub(crate) fn new(kind: ExprKind) -> Self {
        Self(Expr::new(kind, Span::default()))
    }

    pub(crate) fn handle(h: u64) -> Self {
        Self::new(ExprKind::Handle(h))
    }

    pub(crate) fn bin(op: BinOp, a: Value, b: Value) -> Self {
        Self::new(ExprKind::Bin(op, a.0, b.0))
    }

    pub(crate) fn un(op: UnOp, a: Value) -> Self {
        Self::new(ExprKind::Un(op, a.0))
    }

    /// This access, or `other` where the position does not exist (nothing is read there).
    #[must_use]
    pub fn or_else(self, other: impl Into<Value>) -> Self {
        self.guarded(None, other.into())
    }

    /// This access where `cond` holds, else `other` (nothing is read there).
    #[must_use]
    pub fn when(self, cond: impl Into<Value>, other: impl Into<Value>) -> Self {
        self.guarded(Some(cond.into().0), other.into())
    }

    fn guarded(self, cond: Option<Expr>, other: Value) -> Self {
        match self.0.kind() {
            ExprKind::Access { base, index, guard: None } => {
                let guard = Some((cond, other.0));
                Self::new(ExprKind::Access { base: base.clone(), index: index.clone(), guard })
            }
            _ => Self::new(ExprKind::Misuse("only an access `tensor.at(...)` can have an alternative")),
        }
    }

    /// Conversion to `ty`; float to integer truncates and saturates.
    #[must_use]
    pub fn cast(self, ty: ScalarType) -> Self {
        Self::new(ExprKind::Cast(ty, self.0))
    }

    /// Integers divided and rounded up.
    #[must_use]
    pub fn ceil_div(self, other: impl Into<Value>) -> Self {
        let base = Self::new(ExprKind::Name("ceildiv".to_owned())).0;
        Self::new(ExprKind::Call { base, dims: None, args: vec![self.0, other.into().0] })
    }
}

macro_rules! binary_methods {
    ($($(#[$doc:meta])* $name:ident $op:ident;)*) => {
        impl Value {
            $($(#[$doc])*
            #[must_use]
            pub fn $name(self, other: impl Into<Value>) -> Self {
                Self::bin(BinOp::$op, self, other.into())
            })*
        }
    };
}

binary_methods! {
    /// Integers divided and rounded to minus infinity.
    floor_div FloorDiv;
    /// The smaller; NaN if either is.
    min Min;
    /// The larger; NaN if either is.
    max Max;
    /// To the power of `other`.
    pow Pow;
    /// `self < other`
    lt Lt;
    /// `self <= other`
    le Le;
    /// `self == other`
    equals Eq;
    /// `self != other`
    differs Ne;
    /// Both hold.
    and And;
    /// One holds.
    or Or;
}

impl Value {
    /// `self > other`
    #[must_use]
    pub fn gt(self, other: impl Into<Value>) -> Self {
        other.into().lt(self)
    }

    /// `self >= other`
    #[must_use]
    pub fn ge(self, other: impl Into<Value>) -> Self {
        other.into().le(self)
    }

    /// `1 / (1 + exp(-self))`
    #[must_use]
    pub fn sigmoid(self) -> Self {
        1.0 / (1.0 + (-self).exp())
    }

    /// `max(self, 0)`
    #[must_use]
    pub fn relu(self) -> Self {
        self.max(0)
    }
}

macro_rules! unary_methods {
    ($($(#[$doc:meta])* $name:ident $op:ident;)*) => {
        impl Value {
            $($(#[$doc])*
            #[must_use]
            pub fn $name(self) -> Self {
                Self::un(UnOp::$op, self)
            })*
        }
    };
}

unary_methods! {
    /// Magnitude.
    abs Abs;
    /// e to the power of it.
    exp Exp;
    /// Natural logarithm.
    log Log;
    /// Square root.
    sqrt Sqrt;
    /// One over the square root.
    rsqrt Rsqrt;
    /// Hyperbolic tangent.
    tanh Tanh;
    /// Error function.
    erf Erf;
    /// Sine (radians).
    sin Sin;
    /// Cosine (radians).
    cos Cos;
    /// Rounded to minus infinity.
    floor Floor;
    /// Rounded to plus infinity.
    ceil Ceil;
    /// Rounded to the nearest integer, ties to even.
    round Round;
    /// Of `f32`: rounded to the 10 bits of mantissa of TF32, ties away from zero.
    tf32 Tf32;
}

/// `if cond then a else b`
pub fn select(cond: impl Into<Value>, a: impl Into<Value>, b: impl Into<Value>) -> Value {
    Value::new(ExprKind::If(cond.into().0, a.into().0, b.into().0))
}

/// The smaller; NaN if either is.
pub fn min(a: impl Into<Value>, b: impl Into<Value>) -> Value {
    a.into().min(b)
}

/// The larger; NaN if either is.
pub fn max(a: impl Into<Value>, b: impl Into<Value>) -> Value {
    a.into().max(b)
}

/// The extent of a dimension, at the indices around it.
pub fn size(dim: Dim) -> Value {
    let base = Value::new(ExprKind::Name("size".to_owned())).0;
    Value::new(ExprKind::Call { base, dims: None, args: vec![Value::from(dim).0] })
}

fn reduction(op: ReduceOp, dims: &[Dim], body: impl Into<Value>) -> Value {
    let dims = dims.iter().map(|&d| Value::from(d).0).collect();
    Value::new(ExprKind::Reduce(op, dims, body.into().0))
}

/// The sum over `dims`; 0 over nothing.
pub fn sum(dims: &[Dim], body: impl Into<Value>) -> Value {
    reduction(ReduceOp::Combine(Combiner::Sum), dims, body)
}

/// The product over `dims`; 1 over nothing.
pub fn prod(dims: &[Dim], body: impl Into<Value>) -> Value {
    reduction(ReduceOp::Combine(Combiner::Prod), dims, body)
}

/// The greatest value over `dims`; minus infinity over nothing.
pub fn max_over(dims: &[Dim], body: impl Into<Value>) -> Value {
    reduction(ReduceOp::Combine(Combiner::Max), dims, body)
}

/// The least value over `dims`; plus infinity over nothing.
pub fn min_over(dims: &[Dim], body: impl Into<Value>) -> Value {
    reduction(ReduceOp::Combine(Combiner::Min), dims, body)
}

/// The least index of the greatest value over `dim`, as i64; -1 over nothing.
pub fn argmax(dim: Dim, body: impl Into<Value>) -> Value {
    reduction(ReduceOp::ArgMax, &[dim], body)
}

/// The least index of the least value over `dim`, as i64; -1 over nothing.
pub fn argmin(dim: Dim, body: impl Into<Value>) -> Value {
    reduction(ReduceOp::ArgMin, &[dim], body)
}

macro_rules! from_int {
    ($($t:ty),*) => {
        $(impl From<$t> for Value {
            fn from(v: $t) -> Self {
                Self::new(ExprKind::Int(v.into()))
            }
        })*
    };
}

from_int!(i32, i64, u32);

impl From<f64> for Value {
    fn from(v: f64) -> Self {
        Self::new(ExprKind::Float(v))
    }
}

impl From<f32> for Value {
    fn from(v: f32) -> Self {
        Self::new(ExprKind::Float(v.into()))
    }
}

impl From<bool> for Value {
    fn from(v: bool) -> Self {
        Self::new(ExprKind::Bool(v))
    }
}

impl From<&Value> for Value {
    fn from(v: &Value) -> Self {
        v.clone()
    }
}

impl From<Dim> for Value {
    fn from(d: Dim) -> Self {
        Self::handle(d.handle)
    }
}

impl From<Param> for Value {
    fn from(p: Param) -> Self {
        Self::handle(p.0)
    }
}

/// The tensor indexed by its own dimensions.
impl From<Tensor> for Value {
    fn from(t: Tensor) -> Self {
        Self::handle(t.0)
    }
}

/// A list of positions: one value, an array, a vector or a tuple of values.
pub trait Indices {
    /// The positions as expressions.
    fn into_exprs(self) -> Vec<Expr>;
}

impl<T: Into<Value>, const N: usize> Indices for [T; N] {
    fn into_exprs(self) -> Vec<Expr> {
        self.into_iter().map(|v| v.into().0).collect()
    }
}

impl<T: Into<Value> + Clone, const N: usize> Indices for &[T; N] {
    fn into_exprs(self) -> Vec<Expr> {
        self.iter().map(|v| v.clone().into().0).collect()
    }
}

impl<T: Into<Value>> Indices for Vec<T> {
    fn into_exprs(self) -> Vec<Expr> {
        self.into_iter().map(|v| v.into().0).collect()
    }
}

impl Indices for Value {
    fn into_exprs(self) -> Vec<Expr> {
        vec![self.0]
    }
}

impl Indices for Dim {
    fn into_exprs(self) -> Vec<Expr> {
        vec![Value::from(self).0]
    }
}

impl Indices for () {
    fn into_exprs(self) -> Vec<Expr> {
        Vec::new()
    }
}

macro_rules! tuple_indices {
    ($(($($t:ident $n:tt),*))*) => {
        $(impl<$($t: Into<Value>),*> Indices for ($($t,)*) {
            fn into_exprs(self) -> Vec<Expr> {
                vec![$(self.$n.into().0),*]
            }
        })*
    };
}

tuple_indices! {
    (A 0)
    (A 0, B 1)
    (A 0, B 1, C 2)
    (A 0, B 1, C 2, D 3)
    (A 0, B 1, C 2, D 3, E 4)
    (A 0, B 1, C 2, D 3, E 4, F 5)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7)
}
