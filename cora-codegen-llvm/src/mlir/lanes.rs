//! Vectors of indices: which are `base + lane * stride`, and masks that follow from that.

use cora_ir::affine::normalize;
use cora_ir::{BinOp, Expr, ExprId, UnOp};

use super::EmitFault;
use super::builder::{Cmp, Elem, Ty, Val};
use super::expr::Emitter;

/// `base + lane * stride`, `base` a scalar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Affine {
    pub(super) base: ExprId,
    pub(super) stride: i64,
}

/// The affine form of a scalar or vector `Index` expression, if it has one by its form.
pub(super) fn affine(s: &mut Emitter<'_>, e: ExprId) -> Option<Affine> {
    if s.pool.ty(e).lanes == 1 {
        return Some(Affine { base: e, stride: 0 });
    }
    match *s.pool.get(e) {
        Expr::Ramp { base, stride, .. } if s.pool.ty(base).lanes == 1 => Some(Affine { base, stride }),
        Expr::Splat(base, _) => Some(Affine { base, stride: 0 }),
        Expr::Un(UnOp::Neg, x) => {
            let x = affine(s, x)?;
            Some(Affine { base: s.pool.un(UnOp::Neg, x.base), stride: x.stride.checked_neg()? })
        }
        Expr::Bin(op @ (BinOp::Add | BinOp::Sub), x, y) => {
            let (x, y) = (affine(s, x)?, affine(s, y)?);
            let stride = if op == BinOp::Add { x.stride.checked_add(y.stride) } else { x.stride.checked_sub(y.stride) };
            Some(Affine { base: s.pool.bin(op, x.base, y.base), stride: stride? })
        }
        Expr::Bin(BinOp::Mul, x, y) => {
            let (x, y) = (affine(s, x)?, affine(s, y)?);
            let stride = match (s.pool.as_int(x.base), s.pool.as_int(y.base)) {
                _ if x.stride == 0 && y.stride == 0 => 0,
                (_, Some(k)) if y.stride == 0 => x.stride.checked_mul(k)?,
                (Some(k), _) if x.stride == 0 => y.stride.checked_mul(k)?,
                _ => return None,
            };
            Some(Affine { base: s.pool.mul(x.base, y.base), stride })
        }
        _ => None,
    }
}

/// How far the element of each lane is from that of the first, where these are numbers, and the index of the first.
pub(super) fn distances(s: &mut Emitter<'_>, e: ExprId) -> Option<(ExprId, Vec<i64>)> {
    let lanes = s.pool.ty(e).lanes;
    let first = of_lane(s, e, 0)?;
    let mut all = Vec::new();
    for lane in 0..lanes {
        let here = of_lane(s, e, lane)?;
        let apart = s.pool.sub(here, first);
        let apart = normalize(s.pool, apart);
        all.push(s.pool.as_int(apart)?);
    }
    Some((first, all))
}

/// An index vector in one of its lanes, if it reads nothing.
fn of_lane(s: &mut Emitter<'_>, e: ExprId, lane: u32) -> Option<ExprId> {
    if s.pool.ty(e).lanes == 1 {
        return Some(e);
    }
    match s.pool.get(e).clone() {
        Expr::Ramp { base, stride, .. } if s.pool.ty(base).lanes == 1 => {
            let by = s.pool.int(stride.checked_mul(i64::from(lane))?);
            Some(s.pool.add(base, by))
        }
        Expr::Splat(base, _) => Some(base),
        Expr::Un(UnOp::Neg, x) => {
            let x = of_lane(s, x, lane)?;
            Some(s.pool.un(UnOp::Neg, x))
        }
        Expr::Bin(op @ (BinOp::Add | BinOp::Sub | BinOp::Mul | BinOp::FloorDiv | BinOp::Mod), x, y) => {
            let (x, y) = (of_lane(s, x, lane)?, of_lane(s, y, lane)?);
            Some(s.pool.bin(op, x, y))
        }
        _ => None,
    }
}

/// `x < y` or `x <= y` of `Index` vectors as one comparison of lane numbers with a scalar clamped to the number of lanes,
/// where the difference of the two sides moves by 0 or 1 from lane to lane.
pub(super) fn mask(s: &mut Emitter<'_>, op: BinOp, x: ExprId, y: ExprId) -> Result<Option<Val>, EmitFault> {
    let lanes = s.pool.ty(x).lanes.max(s.pool.ty(y).lanes);
    if lanes == 1 {
        return Ok(None);
    }
    let (Some(x), Some(y)) = (affine(s, x), affine(s, y)) else { return Ok(None) };
    let strict = i64::from(op == BinOp::Lt);
    match x.stride.checked_sub(y.stride) {
        Some(0) => {
            let cond = s.pool.bin(op, x.base, y.base);
            let cond = s.emit(cond)?;
            Ok(Some(s.b.broadcast(cond, lanes)))
        }
        // lane < y.base - x.base, one more if the bound itself is let in
        Some(1) => {
            let (numbers, bound) = clamped(s, [y.base, x.base], 1 - strict, lanes)?;
            Ok(Some(s.b.cmpi(Cmp::Lt, false, numbers, bound)))
        }
        // lane >= x.base - y.base, one more if strict
        Some(-1) => {
            let (numbers, bound) = clamped(s, [x.base, y.base], strict, lanes)?;
            Ok(Some(s.b.cmpi(Cmp::Le, false, bound, numbers)))
        }
        _ => Ok(None),
    }
}

/// The numbers of the lanes and `a - b + more` limited to `0..=lanes` in each lane, in an integer type that holds them: one
/// as wide as a register divided by the lanes, so that the comparison is one instruction.
fn clamped(s: &mut Emitter<'_>, [a, b]: [ExprId; 2], more: i64, lanes: u32) -> Result<(Val, Val), EmitFault> {
    let vector = "the bound of a mask is a vector";
    let (least, most) = (s.b.i64(0), s.b.i64(lanes.into()));
    let (mut v, nonnegative);
    if [a, b].into_iter().any(|e| s.pool.may_be_wide(e)) {
        // Elements may be as far apart as an integer can say, and farther.
        let (a, b) = (s.emit_scalar(a, vector)?, s.emit_scalar(b, vector)?);
        let ty = s.b.ty(a);
        let text = format!("llvm.call_intrinsic \"llvm.ssub.sat\"({a}, {b}) : ({ty}, {ty}) -> {ty}");
        v = s.b.pure(ty, &[a, b], &text);
        v = s.b.bin("arith.minsi", v, most);
        let more = s.b.i64(more);
        (v, nonnegative) = (s.b.bin("arith.addi", v, more), false);
    } else {
        let (bound, more) = (s.pool.sub(a, b), s.pool.int(more));
        let bound = s.pool.add(bound, more);
        nonnegative = s.nonnegative(bound);
        v = s.emit_scalar(bound, vector)?;
    }
    v = s.b.bin("arith.minsi", v, most);
    if !nonnegative {
        v = s.b.bin("arith.maxsi", v, least);
    }
    let elem = match lanes {
        ..=16 => Elem::I32,
        17..=32 => Elem::I16,
        33..=64 => Elem::I8,
        65..=16384 => Elem::I16,
        _ => Elem::I32,
    };
    let narrow = s.b.convert("arith.trunci", v, elem);
    let bound = s.b.broadcast(narrow, lanes);
    let numbers = s.b.int_lanes(Ty { elem, lanes }, |lane| lane);
    Ok((numbers, bound))
}
