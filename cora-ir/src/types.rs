//! Scalar types, expression types and operators.

use crate::expr::{floor_div, floor_mod};
use std::fmt;

/// The type of one element, or of one lane of an expression.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum ScalarType {
    /// A truth value.
    Bool,
    /// Two's complement, 8 bits; arithmetic wraps.
    I8,
    /// Two's complement, 16 bits; arithmetic wraps.
    I16,
    /// Two's complement, 32 bits; arithmetic wraps.
    I32,
    /// Two's complement, 64 bits; arithmetic wraps.
    I64,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    BF16,
    /// IEEE single precision.
    F32,
    /// IEEE double precision.
    F64,
    /// A mathematical integer: loop variables, extents, offsets. Never the type of a stored element.
    Index,
}

impl ScalarType {
    /// Every type that a tensor element may have.
    pub const ELEMENTS: [ScalarType; 9] =
        [Self::Bool, Self::I8, Self::I16, Self::I32, Self::I64, Self::F16, Self::BF16, Self::F32, Self::F64];

    /// The name in text, such as `f32`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::I8 => "i8",
            Self::I16 => "i16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::Index => "index",
        }
    }

    /// The type with that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ELEMENTS.into_iter().chain([Self::Index]).find(|t| t.name() == name)
    }

    /// Bytes of one stored element (`Index` counts as 8).
    pub fn bytes(self) -> usize {
        match self {
            Self::Bool | Self::I8 => 1,
            Self::I16 | Self::F16 | Self::BF16 => 2,
            Self::I32 | Self::F32 => 4,
            Self::I64 | Self::F64 | Self::Index => 8,
        }
    }

    /// Whether it is a floating-point type.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::BF16 | Self::F32 | Self::F64)
    }

    /// Whether it is an integer type of limited width.
    pub fn is_int(self) -> bool {
        matches!(self, Self::I8 | Self::I16 | Self::I32 | Self::I64)
    }

    /// How many elements so many bytes of memory hold.
    pub fn elems_of(self, bytes: i64) -> i64 {
        let size = match self {
            Self::Bool | Self::I8 => 1,
            Self::I16 | Self::F16 | Self::BF16 => 2,
            Self::I32 | Self::F32 => 4,
            Self::I64 | Self::F64 | Self::Index => 8,
        };
        bytes / size
    }

    /// The smallest value of an integer type.
    pub fn int_min(self) -> i64 {
        match self {
            Self::Bool => 0,
            Self::I8 => i8::MIN.into(),
            Self::I16 => i16::MIN.into(),
            Self::I32 => i32::MIN.into(),
            _ => i64::MIN,
        }
    }

    /// The largest value of an integer type.
    pub fn int_max(self) -> i64 {
        match self {
            Self::Bool => 1,
            Self::I8 => i8::MAX.into(),
            Self::I16 => i16::MAX.into(),
            Self::I32 => i32::MAX.into(),
            _ => i64::MAX,
        }
    }
}

impl fmt::Display for ScalarType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The most lanes of a vector; many times what any machine's registers hold.
pub const MAX_LANES: u32 = 256;

/// The type of an expression: a scalar type and a number of lanes (1 = scalar).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Type {
    /// The type of each lane.
    pub scalar: ScalarType,
    /// How many lanes; 1 is a scalar.
    pub lanes: u32,
}

impl Type {
    /// A scalar of type `scalar`.
    pub fn scalar(scalar: ScalarType) -> Self {
        Self { scalar, lanes: 1 }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.lanes == 1 { write!(f, "{}", self.scalar) } else { write!(f, "vec<{} x {}>", self.lanes, self.scalar) }
    }
}

/// Binary operators. Comparisons give `Bool`; the others the type of their operands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum BinOp {
    /// `a + b`
    Add,
    /// `a - b`
    Sub,
    /// `a * b`
    Mul,
    /// Floating-point `a / b`.
    Div,
    /// Integer quotient rounded to minus infinity; 0 when `b` is 0.
    FloorDiv,
    /// Integer remainder with the sign of `b`; 0 when `b` is 0.
    Mod,
    /// The smaller; NaN if either is.
    Min,
    /// The larger; NaN if either is.
    Max,
    /// `a` to the power `b` (floating point).
    Pow,
    /// Logical and.
    And,
    /// Logical or.
    Or,
    /// `a < b`
    Lt,
    /// `a <= b`
    Le,
    /// `a == b`
    Eq,
    /// `a != b`
    Ne,
}

impl BinOp {
    /// Every operator.
    pub const ALL: [BinOp; 15] = [
        Self::Add,
        Self::Sub,
        Self::Mul,
        Self::Div,
        Self::FloorDiv,
        Self::Mod,
        Self::Min,
        Self::Max,
        Self::Pow,
        Self::And,
        Self::Or,
        Self::Lt,
        Self::Le,
        Self::Eq,
        Self::Ne,
    ];

    /// The result for mathematical integers (0 and 1 for logic and comparisons); nothing if it does
    /// not fit, or for an operator that integers do not have.
    pub fn of_ints(self, a: i64, b: i64) -> Option<i64> {
        match self {
            Self::Add => a.checked_add(b),
            Self::Sub => a.checked_sub(b),
            Self::Mul => a.checked_mul(b),
            Self::FloorDiv => (a != i64::MIN || b != -1).then(|| floor_div(a, b)),
            Self::Mod => Some(floor_mod(a, b)),
            Self::Min => Some(a.min(b)),
            Self::Max => Some(a.max(b)),
            Self::And => Some(i64::from(a != 0 && b != 0)),
            Self::Or => Some(i64::from(a != 0 || b != 0)),
            Self::Lt => Some(i64::from(a < b)),
            Self::Le => Some(i64::from(a <= b)),
            Self::Eq => Some(i64::from(a == b)),
            Self::Ne => Some(i64::from(a != b)),
            Self::Div | Self::Pow => None,
        }
    }

    /// Whether the result is `Bool` whatever the operands.
    pub fn is_comparison(self) -> bool {
        matches!(self, Self::Lt | Self::Le | Self::Eq | Self::Ne)
    }

    /// The text form: an infix symbol, or a function's name.
    pub fn symbol(self) -> &'static str {
        match self {
            Self::Add => "+",
            Self::Sub => "-",
            Self::Mul => "*",
            Self::Div => "/",
            Self::FloorDiv => "//",
            Self::Mod => "%",
            Self::Min => "min",
            Self::Max => "max",
            Self::Pow => "pow",
            Self::And => "and",
            Self::Or => "or",
            Self::Lt => "<",
            Self::Le => "<=",
            Self::Eq => "==",
            Self::Ne => "!=",
        }
    }
}

/// Unary operators and math functions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum UnOp {
    /// `-a`
    Neg,
    /// Logical not.
    Not,
    /// Magnitude.
    Abs,
    /// e to the power a.
    Exp,
    /// Natural logarithm.
    Log,
    /// Square root.
    Sqrt,
    /// `1 / sqrt(a)`
    Rsqrt,
    /// Hyperbolic tangent.
    Tanh,
    /// Error function.
    Erf,
    /// Sine (radians).
    Sin,
    /// Cosine (radians).
    Cos,
    /// Rounded to minus infinity.
    Floor,
    /// Rounded to plus infinity.
    Ceil,
    /// Rounded to the nearest integer, ties to even.
    Round,
    /// Of `f32` only: rounded to the 10 bits of mantissa of TF32, ties away from zero.
    Tf32,
}

impl UnOp {
    /// Every operator.
    pub const ALL: [UnOp; 15] = [
        Self::Neg,
        Self::Not,
        Self::Abs,
        Self::Exp,
        Self::Log,
        Self::Sqrt,
        Self::Rsqrt,
        Self::Tanh,
        Self::Erf,
        Self::Sin,
        Self::Cos,
        Self::Floor,
        Self::Ceil,
        Self::Round,
        Self::Tf32,
    ];

    /// The function's name in text (`neg` and `not` print as prefixes `-` and `not`).
    pub fn name(self) -> &'static str {
        match self {
            Self::Neg => "neg",
            Self::Not => "not",
            Self::Abs => "abs",
            Self::Exp => "exp",
            Self::Log => "log",
            Self::Sqrt => "sqrt",
            Self::Rsqrt => "rsqrt",
            Self::Tanh => "tanh",
            Self::Erf => "erf",
            Self::Sin => "sin",
            Self::Cos => "cos",
            Self::Floor => "floor",
            Self::Ceil => "ceil",
            Self::Round => "round",
            Self::Tf32 => "tf32",
        }
    }
}

/// The associative and commutative operator of a reduction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Combiner {
    /// Over nothing: 0.
    Sum,
    /// Over nothing: 1.
    Prod,
    /// Over nothing: minus infinity, or the type's least value.
    Max,
    /// Over nothing: plus infinity, or the type's greatest value.
    Min,
}

impl Combiner {
    /// Every combiner.
    pub const ALL: [Combiner; 4] = [Self::Sum, Self::Prod, Self::Max, Self::Min];

    /// The name in text.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Max => "max",
            Self::Min => "min",
        }
    }

    /// The binary operator that combines two partial results.
    pub fn op(self) -> BinOp {
        match self {
            Self::Sum => BinOp::Add,
            Self::Prod => BinOp::Mul,
            Self::Max => BinOp::Max,
            Self::Min => BinOp::Min,
        }
    }

    /// The identity as a literal of type `ty`.
    pub fn identity(self, ty: ScalarType) -> Literal {
        match (self, ty.is_float()) {
            (Self::Sum, true) => Literal::float(ty, 0.0),
            (Self::Prod, true) => Literal::float(ty, 1.0),
            (Self::Max, true) => Literal::float(ty, f64::NEG_INFINITY),
            (Self::Min, true) => Literal::float(ty, f64::INFINITY),
            (Self::Sum, false) => Literal::int(ty, 0),
            (Self::Prod, false) => Literal::int(ty, 1),
            (Self::Max, false) => Literal::int(ty, ty.int_min()),
            (Self::Min, false) => Literal::int(ty, ty.int_max()),
        }
    }
}

/// A typed constant that is not an `Index`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Literal {
    /// The constant's type.
    pub ty: ScalarType,
    /// The bits of an `f64` for a floating-point type, else of an `i64`.
    bits: u64,
}

impl Literal {
    /// A floating-point constant, rounded to `ty`.
    pub fn float(ty: ScalarType, value: f64) -> Self {
        Self { ty, bits: round_float(ty, value).to_bits() }
    }
    /// Whether all bits of the constant in memory are 0.
    pub fn is_zero_bits(self) -> bool {
        self.bits == 0
    }
    /// An integer or truth-value constant.
    pub fn int(ty: ScalarType, value: i64) -> Self {
        Self { ty, bits: value as u64 }
    }
    /// The value as a float (integers are converted).
    pub fn as_f64(self) -> f64 {
        if self.ty.is_float() { f64::from_bits(self.bits) } else { self.bits as i64 as f64 }
    }
    /// The value as an integer (floats are truncated).
    pub fn as_i64(self) -> i64 {
        if self.ty.is_float() { f64::from_bits(self.bits) as i64 } else { self.bits as i64 }
    }
}

/// The nearest `f32`, or of two neighbours the one with an odd significand: rounded once more, to a
/// type that is at least two bits shorter, it gives what rounding once would have given.
fn round_to_odd(value: f64) -> f32 {
    let near = value as f32;
    let back = f64::from(near);
    if back == value || !near.is_finite() || near.to_bits() & 1 == 1 {
        return near;
    }
    let bits = near.to_bits();
    f32::from_bits(if back.abs() > value.abs() { bits - 1 } else { bits + 1 })
}

/// How far `got` is from the true value `want`, in units in the last place of an `f32` of `want`'s size.
///
/// Denormal numbers have the unit of the least normal ones. NaN and infinity must be met exactly, but that rounding
/// up to infinity is right within one unit of the greatest number; anything else there is infinitely far off.
pub fn f32_ulps(got: f32, want: f64) -> f64 {
    let near = want as f32;
    if want.is_nan() || near.is_infinite() || got.is_nan() || got.is_infinite() {
        let same = got.is_nan() == want.is_nan() && (want.is_nan() || got == near);
        let at_end = (f64::from(got).abs().min(f64::from(f32::MAX)) - want.abs()).abs() < 2e31;
        return if same || (!want.is_nan() && at_end) { 0.0 } else { f64::INFINITY };
    }
    let bits = near.abs().to_bits().max(f32::MIN_POSITIVE.to_bits());
    let spacing = f64::from(f32::from_bits(bits + 1)) - f64::from(f32::from_bits(bits));
    (f64::from(got) - want).abs() / spacing
}

/// `value` rounded to the nearest value of the floating-point type `ty` (unchanged for other types).
pub fn round_float(ty: ScalarType, value: f64) -> f64 {
    match ty {
        ScalarType::F32 => f64::from(value as f32),
        ScalarType::F16 => half::f16::from_f32(round_to_odd(value)).to_f64(),
        ScalarType::BF16 => half::bf16::from_f32(round_to_odd(value)).to_f64(),
        _ => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Just above a tie between two short numbers: rounding to `f32` first would make it the tie.
    #[test]
    fn rounds_once() {
        let tie = 1.0 + 1.0 / 256.0;
        assert_eq!(round_float(ScalarType::BF16, tie), 1.0);
        assert_eq!(round_float(ScalarType::BF16, tie + 1e-12), 1.0 + 1.0 / 128.0);
        assert_eq!(round_float(ScalarType::BF16, -(tie + 1e-12)), -1.0 - 1.0 / 128.0);
        let tie = 1.0 + 1.0 / 2048.0;
        assert_eq!(round_float(ScalarType::F16, tie), 1.0);
        assert_eq!(round_float(ScalarType::F16, tie + 1e-12), 1.0 + 1.0 / 1024.0);
        assert_eq!(round_float(ScalarType::BF16, f64::MAX), f64::INFINITY);
        assert!(round_float(ScalarType::BF16, f64::NAN).is_nan());
        assert_eq!(round_float(ScalarType::F16, 6e-8), half::f16::from_f64(6e-8).to_f64());
    }
}
