//! Conversions of values.

use super::{Expr, ExprPool};
use crate::ids::ExprId;
use crate::types::{BinOp, Literal, ScalarType, Type};

impl ExprPool {
    /// Conversion; a cast to the type it has is the operand itself, and one of a float literal to another float a literal.
    pub fn cast(&mut self, to: ScalarType, a: ExprId) -> ExprId {
        let from = self.ty(a);
        if from.scalar == to {
            return a;
        }
        if let Expr::Lit(l) = self.get(a)
            && to == ScalarType::Index
            && from.scalar.is_int()
        {
            let v = l.as_i64();
            return self.int(v);
        }
        if let Expr::Lit(l) = self.get(a)
            && from.scalar.is_float()
            && to.is_float()
        {
            let v = l.as_f64();
            return self.lit(Literal::float(to, v));
        }
        if let Some(v) = self.as_int(a) {
            return if to.is_float() {
                self.lit(Literal::float(to, v as f64))
            } else {
                self.intern(Expr::Cast(to, a), Type::scalar(to))
            };
        }
        if to == ScalarType::Index && from.scalar.is_int() && from.lanes == 1 {
            // Of integers these are what they are of numbers, so that what bounds an element bounds the index.
            match *self.get(a) {
                Expr::Bin(op @ (BinOp::Min | BinOp::Max), x, y) => {
                    let (x, y) = (self.cast(to, x), self.cast(to, y));
                    return self.bin(op, x, y);
                }
                Expr::Bin(op @ (BinOp::Mod | BinOp::FloorDiv), x, y) if self.positive_literal(y) => {
                    let (x, y) = (self.cast(to, x), self.cast(to, y));
                    return self.bin(op, x, y);
                }
                _ => {}
            }
        }
        self.intern(Expr::Cast(to, a), Type { scalar: to, lanes: from.lanes })
    }

    fn positive_literal(&self, e: ExprId) -> bool {
        matches!(self.get(e), Expr::Lit(l) if l.ty.is_int() && l.as_i64() > 0)
    }
}
