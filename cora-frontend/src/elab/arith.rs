//! Typing of operators: literals take the type of what they meet; nothing else is converted.

use super::Elab;
use super::value::{Num, OpenKind, Val};
use cora_ir::expr::{floor_div, floor_mod};
use cora_ir::schedule::Span;
use cora_ir::{BinOp, Diagnostic, ExprId, Literal, ScalarType, UnOp};

/// What to do about an integer beyond the widest type.
const TOO_LONG: &str =
    "the greatest integer is 9223372036854775807, of i64: write a smaller number, or compute in a floating-point type";

impl Elab<'_> {
    /// `v` as a value of type `ty`: a number takes the type, a typed value must have it.
    pub(super) fn adapt(&mut self, v: Val, ty: ScalarType, span: Span) -> Option<ExprId> {
        match v {
            Val::Typed(e) => {
                let have = self.graph.env.pool.ty(e).scalar;
                if have == ty { Some(e) } else { self.mismatch(ty, have, span) }
            }
            Val::Num(n) => self.number(n, ty, span),
            Val::Open(open) => match &open.kind {
                OpenKind::Select(c, a, b) => {
                    let a = self.adapt(a.clone(), ty, span)?;
                    let b = self.adapt(b.clone(), ty, span)?;
                    Some(self.graph.env.pool.select(*c, a, b))
                }
                OpenKind::Bin(op, a, b) => {
                    let a = self.adapt(a.clone(), ty, span)?;
                    let b = self.adapt(b.clone(), ty, span)?;
                    self.typed_bin(*op, a, b, span)
                }
                OpenKind::Un(op, a) => {
                    let a = self.adapt(a.clone(), ty, span)?;
                    self.typed_un(*op, a, span)
                }
            },
        }
    }

    fn number(&mut self, n: Num, ty: ScalarType, span: Span) -> Option<ExprId> {
        let pool = &mut self.graph.env.pool;
        match (n, ty) {
            (Num::Int(_) | Num::Float(_), t) if t.is_float() => {
                let lit = Literal::float(t, n.as_f64());
                if lit.as_f64().is_infinite() && n.as_f64().is_finite() {
                    let d = Diagnostic::new("E0212", format!("{} is too large for {ty}", n.as_f64()))
                        .hint("use a wider type");
                    return self.error(span, d);
                }
                Some(pool.lit(lit))
            }
            (Num::Int(v), ScalarType::Index) if i64::try_from(v).is_ok() => Some(pool.int(v as i64)),
            (Num::Int(v), t) if t.is_int() && (t.int_min().into()..=t.int_max().into()).contains(&v) => {
                Some(pool.lit(Literal::int(t, v as i64)))
            }
            (_, ScalarType::Bool) => {
                let d = Diagnostic::new("E0209", "expected bool, found a number").hint(
                    "write `true` or `false`, or compare; `f32(x)` makes 1 or 0 of the other side, a condition x",
                );
                self.error(span, d)
            }
            (Num::Int(v), _) => {
                let hint = if i64::try_from(v).is_ok() { "use a wider type" } else { TOO_LONG };
                self.error(span, Diagnostic::new("E0212", format!("{v} does not fit {ty}")).hint(hint))
            }
            (Num::Float(v), ScalarType::Index) => self.error(
                span,
                Diagnostic::new("E0213", format!("a position or extent must be an integer, this is {v:?}"))
                    .hint("write it without a fraction"),
            ),
            (Num::Float(v), _) => {
                let d = Diagnostic::new("E0212", format!("{v:?} is not of the integer type {ty}"))
                    .hint("write it without a fraction, or convert the other side to a float type");
                self.error(span, d)
            }
        }
    }

    fn mismatch<T>(&mut self, want: ScalarType, have: ScalarType, span: Span) -> Option<T> {
        let d = Diagnostic::new("E0209", format!("expected {want}, found {have}"));
        let hint = if want == ScalarType::Bool {
            "compare it: `x != 0`".to_owned()
        } else {
            format!("types are never converted silently: cast with `{want}(x)`")
        };
        self.error(span, d.hint(hint))
    }

    /// A typed value; a bare number becomes f32 or i64.
    pub(super) fn typed_or_default(&mut self, v: Val, span: Span) -> Option<ExprId> {
        match v {
            Val::Typed(e) => Some(e),
            v => {
                let ty = if has_float(&v) { ScalarType::F32 } else { ScalarType::I64 };
                self.adapt(v, ty, span)
            }
        }
    }

    /// Refuses `Index` as the type of something stored.
    pub(super) fn element_type(&mut self, e: ExprId, span: Span) -> Option<ScalarType> {
        match self.graph.env.pool.ty(e).scalar {
            ScalarType::Index => {
                let d = Diagnostic::new("E0210", "an index cannot be stored as an element");
                self.error(
                    span,
                    d.hint("convert it: `f32(i)` or `i64(i)`; of a reduction, each term: `sum(b) i64(lens(b))`"),
                )
            }
            ty => Some(ty),
        }
    }

    /// Both operands with one type, at least one of them being typed.
    pub(super) fn unify(&mut self, a: Val, b: Val, span: Span) -> Option<(ExprId, ExprId)> {
        match (a, b) {
            (Val::Typed(a), Val::Typed(b)) => {
                let (ta, tb) = (self.graph.env.pool.ty(a).scalar, self.graph.env.pool.ty(b).scalar);
                if ta == tb {
                    return Some((a, b));
                }
                let d = Diagnostic::new("E0209", format!("the operands have different types, {ta} and {tb}"));
                let to = if tb == ScalarType::Index || (ta.is_float() && !tb.is_float()) { ta } else { tb };
                let way = if to.is_int() && [ta, tb].contains(&ScalarType::Index) {
                    format!("`index(x)` of the {to} for a position, `{to}(x)` of the index for a value")
                } else {
                    format!("cast one with `{to}(x)`")
                };
                self.error(span, d.hint(format!("types are never converted silently: {way}")))
            }
            (Val::Typed(a), b) => {
                let ty = self.graph.env.pool.ty(a).scalar;
                Some((a, self.adapt(b, ty, span)?))
            }
            (a, Val::Typed(b)) => {
                let ty = self.graph.env.pool.ty(b).scalar;
                Some((self.adapt(a, ty, span)?, b))
            }
            (a, b) => {
                let float = has_float(&a) || has_float(&b);
                let ty = if float { ScalarType::F32 } else { ScalarType::I64 };
                Some((self.adapt(a, ty, span)?, self.adapt(b, ty, span)?))
            }
        }
    }

    /// A binary operator.
    pub(super) fn bin(&mut self, op: BinOp, a: Val, b: Val, span: Span) -> Option<Val> {
        match (&a, &b) {
            (Val::Num(x), Val::Num(y)) => {
                let (x, y) = (*x, *y);
                return self.fold_bin(op, x, y, span);
            }
            (Val::Typed(_), _) | (_, Val::Typed(_)) => {}
            _ if op.is_comparison() || matches!(op, BinOp::And | BinOp::Or) => {}
            _ => return self.open(OpenKind::Bin(op, a, b), span),
        }
        if let BinOp::And | BinOp::Or = op {
            for v in [&a, &b] {
                if let Val::Typed(e) = *v
                    && let ty = self.graph.env.pool.ty(e).scalar
                    && ty != ScalarType::Bool
                {
                    return self.undefined(op, ty, span);
                }
            }
        }
        let (a, b) = self.unify(a, b, span)?;
        self.typed_bin(op, a, b, span).map(Val::Typed)
    }

    fn typed_bin(&mut self, op: BinOp, a: ExprId, b: ExprId, span: Span) -> Option<ExprId> {
        let ty = self.graph.env.pool.ty(a).scalar;
        let (bool_ty, float) = (ty == ScalarType::Bool, ty.is_float());
        let op = if op == BinOp::Div && !float { BinOp::FloorDiv } else { op };
        let ok = match op {
            BinOp::And | BinOp::Or => bool_ty,
            BinOp::Eq | BinOp::Ne => true,
            BinOp::Div | BinOp::Pow => float,
            BinOp::FloorDiv | BinOp::Mod => !float && !bool_ty,
            BinOp::Add | BinOp::Sub | BinOp::Mul | BinOp::Min | BinOp::Max | BinOp::Lt | BinOp::Le => !bool_ty,
        };
        if !ok {
            return self.undefined(op, ty, span);
        }
        Some(self.graph.env.pool.bin(op, a, b))
    }

    fn undefined<T>(&mut self, op: BinOp, ty: ScalarType, span: Span) -> Option<T> {
        let d = Diagnostic::new("E0211", format!("`{}` is not defined for {ty}", written(op)));
        let hint = match op {
            BinOp::And | BinOp::Or => "its operands are conditions: compare with `!= 0`",
            BinOp::Mod | BinOp::FloorDiv if ty.is_float() => "it is for integers",
            BinOp::Pow => "cast to a floating-point type: `f32(x)`",
            _ => "combine truth values with `and`, `or`, `not`, `select`; `f32(x)` makes 1 or 0 of one",
        };
        self.error(span, d.hint(hint))
    }

    fn fold_bin(&mut self, op: BinOp, x: Num, y: Num, span: Span) -> Option<Val> {
        if let (Num::Int(a), Num::Int(b)) = (x, y) {
            let small = |v: i128| i64::try_from(v).ok();
            let v = match op {
                BinOp::Add => a.checked_add(b),
                BinOp::Sub => a.checked_sub(b),
                BinOp::Mul => a.checked_mul(b),
                BinOp::Div if b != 0 && a % b != 0 => {
                    let d = Diagnostic::new("E0214", format!("{a} / {b} is not an integer"));
                    let hint = format!("write `{a}.0 / {b}.0` for a fraction or `floordiv({a}, {b})`");
                    return self.error(span, d.hint(hint));
                }
                BinOp::Div | BinOp::FloorDiv | BinOp::Mod if b == 0 => {
                    return self
                        .error(span, Diagnostic::new("E0214", "division by zero").hint("divide by something else"));
                }
                BinOp::Div => a.checked_div(b),
                BinOp::FloorDiv => small(a).zip(small(b)).map(|(a, b)| floor_div(a, b).into()),
                BinOp::Mod => small(a).zip(small(b)).map(|(a, b)| floor_mod(a, b).into()),
                BinOp::Min => Some(a.min(b)),
                BinOp::Max => Some(a.max(b)),
                BinOp::Lt | BinOp::Le | BinOp::Eq | BinOp::Ne => {
                    let holds = compare(op, &a, &b);
                    return Some(Val::Typed(self.graph.env.pool.bool(holds)));
                }
                BinOp::Pow => return Some(Val::Num(Num::Float((a as f64).powf(b as f64)))),
                BinOp::And | BinOp::Or => return self.mismatch(ScalarType::Bool, ScalarType::I64, span),
            };
            return match v.filter(|v| i128::from(i64::MIN) <= *v && *v <= i128::from(u64::MAX)) {
                Some(v) => Some(Val::Num(Num::Int(v))),
                None => self.error(
                    span,
                    Diagnostic::new("E0212", "the result does not fit 64 bits").hint("compute it in floats: `1e20`"),
                ),
            };
        }
        let (a, b) = (x.as_f64(), y.as_f64());
        let v = match op {
            BinOp::Add => a + b,
            BinOp::Sub => a - b,
            BinOp::Mul => a * b,
            BinOp::Div => a / b,
            BinOp::Pow => a.powf(b),
            BinOp::Min => {
                if a.is_nan() || a < b {
                    a
                } else {
                    b
                }
            }
            BinOp::Max => {
                if a.is_nan() || a > b {
                    a
                } else {
                    b
                }
            }
            BinOp::Lt | BinOp::Le | BinOp::Eq | BinOp::Ne => {
                let holds = compare(op, &a, &b);
                return Some(Val::Typed(self.graph.env.pool.bool(holds)));
            }
            BinOp::FloorDiv | BinOp::Mod => {
                let d = Diagnostic::new("E0211", format!("`{}` is not defined for fractions", written(op)));
                return self.error(span, d.hint("it is for integers"));
            }
            BinOp::And | BinOp::Or => return self.mismatch(ScalarType::Bool, ScalarType::F32, span),
        };
        Some(Val::Num(Num::Float(v)))
    }

    /// A unary operator or math function.
    pub(super) fn un(&mut self, op: UnOp, a: Val, span: Span) -> Option<Val> {
        let n = match a {
            Val::Typed(e) => return self.typed_un(op, e, span).map(Val::Typed),
            Val::Num(n) => n,
            Val::Open(_) if op == UnOp::Not => return self.mismatch(ScalarType::Bool, ScalarType::I64, span),
            Val::Open(_) => return self.open(OpenKind::Un(op, a), span),
        };
        let x = n.as_f64();
        let v = match (op, n) {
            (UnOp::Neg, Num::Int(v)) => Num::Int(-v),
            (UnOp::Abs, Num::Int(v)) => Num::Int(v.abs()),
            (UnOp::Not, _) => return self.mismatch(ScalarType::Bool, ScalarType::I64, span),
            (UnOp::Erf | UnOp::Tf32, _) => return self.open(OpenKind::Un(op, Val::Num(Num::Float(x))), span),
            (UnOp::Neg, _) => Num::Float(-x),
            (UnOp::Abs, _) => Num::Float(x.abs()),
            (UnOp::Exp, _) => Num::Float(x.exp()),
            (UnOp::Log, _) => Num::Float(x.ln()),
            (UnOp::Sqrt, _) => Num::Float(x.sqrt()),
            (UnOp::Rsqrt, _) => Num::Float(1.0 / x.sqrt()),
            (UnOp::Tanh, _) => Num::Float(x.tanh()),
            (UnOp::Sin, _) => Num::Float(x.sin()),
            (UnOp::Cos, _) => Num::Float(x.cos()),
            (UnOp::Floor, _) => Num::Float(x.floor()),
            (UnOp::Ceil, _) => Num::Float(x.ceil()),
            (UnOp::Round, _) => Num::Float(x.round_ties_even()),
        };
        Some(Val::Num(v))
    }

    fn typed_un(&mut self, op: UnOp, a: ExprId, span: Span) -> Option<ExprId> {
        let ty = self.graph.env.pool.ty(a).scalar;
        let ok = match op {
            UnOp::Not => ty == ScalarType::Bool,
            UnOp::Neg => ty != ScalarType::Bool,
            UnOp::Abs => ty.is_float() || ty.is_int(),
            UnOp::Tf32 => ty == ScalarType::F32,
            _ => ty.is_float(),
        };
        if ok {
            return Some(self.graph.env.pool.un(op, a));
        }
        let d = Diagnostic::new("E0211", format!("`{}` is not defined for {ty}", op.name()));
        let hint = match op {
            UnOp::Not => "compare it: `x != 0`",
            UnOp::Neg => "negate a condition with `not x`",
            UnOp::Abs if ty == ScalarType::Index => "write `max(x, -x)`, or cast to an integer type: `i64(x)`",
            UnOp::Tf32 => "cast to f32: `tf32(f32(x))`",
            UnOp::Abs => "cast to an integer type: `i64(x)`",
            _ => "cast to a floating-point type: `f32(x)`",
        };
        self.error(span, d.hint(hint))
    }

    /// `ty(x)`
    pub(super) fn cast(&mut self, to: ScalarType, v: Val, span: Span) -> Option<ExprId> {
        let e = match v {
            Val::Typed(e) => e,
            Val::Num(Num::Float(x)) if to.is_int() => {
                let x = x.trunc();
                if x.is_nan() || x.abs() > 2_f64.powi(63) {
                    let d = Diagnostic::new("E0212", format!("{x} does not fit {to}"));
                    return self.error(span, d.hint(TOO_LONG));
                }
                return self.number(Num::Int(x as i128), to, span);
            }
            v @ Val::Open(_) if has_float(&v) && !to.is_float() => self.typed_or_default(v, span)?,
            v => return self.adapt(v, to, span),
        };
        let from = self.graph.env.pool.ty(e).scalar;
        if to == ScalarType::Bool && from != ScalarType::Bool {
            return self.mismatch(to, from, span);
        }
        if to == ScalarType::Index && !from.is_int() && from != ScalarType::Index {
            let d = Diagnostic::new("E0213", format!("{from} cannot become an index"));
            return self.error(span, d.hint("convert to an integer type first: `index(i64(x))`"));
        }
        Some(self.graph.env.pool.cast(to, e))
    }
}

/// The operator as programs write it.
fn written(op: BinOp) -> &'static str {
    if op == BinOp::FloorDiv { "floordiv" } else { op.symbol() }
}

fn compare<T: PartialOrd>(op: BinOp, a: &T, b: &T) -> bool {
    match op {
        BinOp::Lt => a < b,
        BinOp::Le => a <= b,
        BinOp::Eq => a == b,
        _ => a != b,
    }
}

/// Whether an untyped value has a floating-point number in it.
fn has_float(v: &Val) -> bool {
    match v {
        Val::Typed(_) => false,
        Val::Num(n) => matches!(n, Num::Float(_)),
        Val::Open(o) => match &o.kind {
            OpenKind::Select(_, a, b) | OpenKind::Bin(_, a, b) => has_float(a) || has_float(b),
            OpenKind::Un(_, a) => has_float(a),
        },
    }
}
