//! Expressions as Rust code over builder handles.

use super::expr::{Names, is_bare, literal};
use super::rust::Idents;
use super::{is_gather, read_name};
use crate::elab::in_bounds;
use cora_ir::{BinOp, Expr, ExprId, ScalarType, UnOp};

const ADD: u8 = 0;
const MUL: u8 = 1;
const UNARY: u8 = 2;
const PRIMARY: u8 = 3;

/// `e` where anything that converts to a `Value` may stand: literals stay bare.
pub(super) fn rust(names: &mut Names, ids: &Idents, e: ExprId) -> String {
    print(names, ids, e, false).0
}

/// `e` as an expression of type `Value`.
pub(super) fn rust_value(names: &mut Names, ids: &Idents, e: ExprId) -> String {
    let s = rust(names, ids, e);
    let is_value =
        !is_bare(&names.env, e) && !matches!(names.env.pool.get(e), Expr::Var(_) | Expr::Param(_) | Expr::Lit(_));
    if is_value { s } else { format!("Value::from({s})") }
}

/// `e` as the receiver of a method or the operand of a prefix.
fn receiver(names: &mut Names, ids: &Idents, e: ExprId) -> String {
    if is_bare(&names.env, e) {
        let ty = names.env.pool.ty(e).scalar;
        return format!("{}.cast(ScalarType::{ty:?})", rust_value(names, ids, e));
    }
    if matches!(names.env.pool.get(e), Expr::Var(_) | Expr::Param(_) | Expr::Lit(_)) {
        return rust_value(names, ids, e);
    }
    // Of a method's receiver the type must be known, which a literal in front of an operator does not tell.
    let (s, level) = print(names, ids, e, true);
    if level < PRIMARY { format!("({s})") } else { s }
}

fn operand(names: &mut Names, ids: &Idents, e: ExprId, level: u8, typed: bool) -> String {
    let (s, have) = print(names, ids, e, typed);
    if have < level { format!("({s})") } else { s }
}

/// `e`, and how strongly it binds; a number that it begins with has a type of its own if `typed`.
fn print(names: &mut Names, ids: &Idents, e: ExprId, typed: bool) -> (String, u8) {
    match names.env.pool.get(e).clone() {
        Expr::Int(v) => (if typed { format!("{v}_i64") } else { int(v) }, if v < 0 { UNARY } else { PRIMARY }),
        Expr::Lit(l) => {
            let s = match literal(l).as_str() {
                "inf" => "f64::INFINITY".to_owned(),
                "-inf" => "f64::NEG_INFINITY".to_owned(),
                "nan" => "f64::NAN".to_owned(),
                _ if l.ty.is_int() && typed => format!("{}_i64", l.as_i64()),
                _ if l.ty.is_int() => int(l.as_i64()),
                s if l.ty.is_float() && typed => format!("{s}_f64"),
                s => s.to_owned(),
            };
            let level = if s.starts_with('-') { UNARY } else { PRIMARY };
            (s, level)
        }
        Expr::Var(v) => (ids.vars.get(&v).cloned().unwrap_or_else(|| names.var(v)), PRIMARY),
        Expr::Param(p) => (ids.other[&names.env.params[p].name].clone(), PRIMARY),
        Expr::Call(f, args) => {
            let args = args.iter().map(|&a| rust(names, ids, a)).collect();
            (format!("{}.at({})", ids.other[&names.env.ufs[f].name], tuple(args)), PRIMARY)
        }
        Expr::Un(UnOp::Neg, a) => (format!("-{}", receiver(names, ids, a)), UNARY),
        Expr::Un(UnOp::Not, a) => (format!("!{}", receiver(names, ids, a)), UNARY),
        Expr::Un(op, a) => (format!("{}.{}()", receiver(names, ids, a), op.name()), PRIMARY),
        Expr::Bin(op, a, b) => binary(names, ids, op, (a, b), typed),
        Expr::Select(c, a, b) => {
            let c = rust(names, ids, c);
            let bare = is_bare(&names.env, a) && is_bare(&names.env, b);
            let a = if bare { receiver(names, ids, a) } else { rust(names, ids, a) };
            (format!("select({c}, {a}, {})", rust(names, ids, b)), PRIMARY)
        }
        Expr::Cast(to, a) => (format!("{}.cast(ScalarType::{to:?})", receiver(names, ids, a)), PRIMARY),
        Expr::Operand(n, _) => (names.operands.get(n as usize).cloned().unwrap_or_default(), PRIMARY),
        Expr::Load { tensor, part, index, guard } => {
            let at = index.iter().map(|&i| position(names, ids, i, guard.is_some())).collect();
            let mut s = format!("{}.at({})", ids.other[&read_name(&names.env, tensor, part)], tuple(at));
            if let Some((cond, other)) = guard {
                if in_bounds(&mut names.env, tensor, &index) != cond {
                    let cond = rust(names, ids, cond);
                    s.push_str(&format!(".when({cond}, {})", rust(names, ids, other)));
                } else {
                    s.push_str(&format!(".or_else({})", rust(names, ids, other)));
                }
            }
            (s, PRIMARY)
        }
        // Not in op graphs.
        Expr::Arg(_)
        | Expr::Tuple(_)
        | Expr::Ramp { .. }
        | Expr::Splat(..)
        | Expr::Search { .. }
        | Expr::Reduce(..) => ("unsupported".to_owned(), PRIMARY),
    }
}

fn int(v: i64) -> String {
    if i32::try_from(v).is_ok() { v.to_string() } else { format!("{v}_i64") }
}

fn position(names: &mut Names, ids: &Idents, i: ExprId, guarded: bool) -> String {
    if let Expr::Cast(ScalarType::Index, inner) = *names.env.pool.get(i)
        && let Expr::Load { tensor, .. } = *names.env.pool.get(inner)
        && is_gather(&names.env, tensor, guarded)
    {
        return rust(names, ids, inner);
    }
    rust(names, ids, i)
}

fn tuple(items: Vec<String>) -> String {
    match items.len() {
        1 => format!("[{}]", items[0]),
        0..=8 => format!("({})", items.join(", ")),
        _ => format!("[{}]", items.iter().map(|i| format!("Value::from({i})")).collect::<Vec<_>>().join(", ")),
    }
}

fn binary(names: &mut Names, ids: &Idents, op: BinOp, (a, b): (ExprId, ExprId), typed: bool) -> (String, u8) {
    let bare = is_bare(&names.env, a) && is_bare(&names.env, b);
    let (left, right) = match op {
        BinOp::Add | BinOp::Sub => (ADD, MUL),
        BinOp::Mul | BinOp::Div | BinOp::FloorDiv | BinOp::Mod => (MUL, UNARY),
        _ => {
            let method = match op {
                BinOp::Lt => "lt",
                BinOp::Le => "le",
                BinOp::Eq => "equals",
                BinOp::Ne => "differs",
                BinOp::And => "and",
                BinOp::Or => "or",
                BinOp::Pow => "pow",
                BinOp::Min => "min",
                _ => "max",
            };
            // A literal in front of its neighbour gives way to the typed operand's method.
            let s = if is_bare(&names.env, a) && !bare {
                format!("{}.{method}({})", rust_value(names, ids, a), rust(names, ids, b))
            } else {
                format!("{}.{method}({})", receiver(names, ids, a), rust(names, ids, b))
            };
            return (s, PRIMARY);
        }
    };
    let symbol = match op {
        BinOp::FloorDiv => "/",
        op => op.symbol(),
    };
    let a = if bare { receiver(names, ids, a) } else { operand(names, ids, a, left, typed) };
    let b = operand(names, ids, b, right, false);
    (format!("{a} {symbol} {b}"), left)
}
