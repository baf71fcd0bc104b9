//! Operators on expression handles, with numbers on either side.

use super::{Dim, Param, Tensor, Value};
use cora_ir::{BinOp, UnOp};
use std::ops::{Add, BitAnd, BitOr, Div, Mul, Neg, Not, Rem, Sub};

macro_rules! left {
    ($trait:ident $method:ident $op:ident: $($t:ty),*) => {
        $(impl<R: Into<Value>> $trait<R> for $t {
            type Output = Value;
            fn $method(self, other: R) -> Value {
                Value::bin(BinOp::$op, self.into(), other.into())
            }
        })*
    };
}

macro_rules! right {
    ($trait:ident $method:ident $op:ident $number:ty: $($t:ty),*) => {
        $(impl $trait<$t> for $number {
            type Output = Value;
            fn $method(self, other: $t) -> Value {
                Value::bin(BinOp::$op, self.into(), other.into())
            }
        })*
    };
}

macro_rules! arithmetic {
    ($($trait:ident $method:ident $op:ident;)*) => {
        $(
            left!($trait $method $op: Value, &Value, Dim, Param, Tensor);
            right!($trait $method $op f64: Value, &Value, Dim, Param, Tensor);
            right!($trait $method $op f32: Value, &Value, Dim, Param, Tensor);
            right!($trait $method $op i32: Value, &Value, Dim, Param, Tensor);
            right!($trait $method $op i64: Value, &Value, Dim, Param, Tensor);
        )*
    };
}

arithmetic! {
    Add add Add;
    Sub sub Sub;
    Mul mul Mul;
    Div div Div;
    Rem rem Mod;
}

left!(BitAnd bitand And: Value, &Value);
left!(BitOr bitor Or: Value, &Value);

macro_rules! prefix {
    ($($t:ty),*) => {
        $(
            impl Neg for $t {
                type Output = Value;
                fn neg(self) -> Value {
                    Value::un(UnOp::Neg, self.into())
                }
            }
            impl Not for $t {
                type Output = Value;
                fn not(self) -> Value {
                    Value::un(UnOp::Not, self.into())
                }
            }
        )*
    };
}

prefix!(Value, &Value, Dim, Param, Tensor);
