//! Operators on values in register form.

use cora_ir::{BinOp, Combiner, ScalarType, UnOp};

use super::EmitFault;
use super::builder::{Builder, Cmp, Elem, Ty, Val};
use super::library::Library;

/// What is known of the operands of an integer operator.
#[derive(Clone, Copy, Default)]
pub(crate) struct Facts {
    /// Both are known not to be negative.
    pub(crate) nonnegative: bool,
    /// The second is this constant.
    pub(crate) right: Option<i64>,
}

/// `a op b` on operands of type `ty`.
pub(crate) fn binary(
    b: &mut Builder,
    library: &mut Library,
    ty: ScalarType,
    op: BinOp,
    (x, y): (Val, Val),
    facts: Facts,
) -> Result<Val, EmitFault> {
    let undefined = || EmitFault::Operator { op: op.symbol().to_owned(), ty };
    Ok(match (op, ty) {
        (BinOp::Eq | BinOp::Ne | BinOp::Lt | BinOp::Le, _) => compare(b, ty, op, x, y),
        (BinOp::And, ScalarType::Bool) => b.bin("arith.andi", x, y),
        (BinOp::Or, ScalarType::Bool) => b.bin("arith.ori", x, y),
        (BinOp::Min, ScalarType::Bool) => b.bin("arith.andi", x, y),
        (BinOp::Max, ScalarType::Bool) => b.bin("arith.ori", x, y),
        (BinOp::And | BinOp::Or, _) | (_, ScalarType::Bool) => return Err(undefined()),
        (op, ty) if ty.is_float() => match op {
            BinOp::Add => b.bin("arith.addf", x, y),
            BinOp::Sub => b.bin("arith.subf", x, y),
            BinOp::Mul => b.bin("arith.mulf", x, y),
            BinOp::Div => b.bin("arith.divf", x, y),
            // NaN propagates; which of -0 and +0 is the smaller is left open, which saves half of the instructions.
            BinOp::Min => b.bin_with("arith.minimumf", " fastmath<nsz>", x, y),
            BinOp::Max => b.bin_with("arith.maximumf", " fastmath<nsz>", x, y),
            BinOp::Pow => library.pow(b, x, y),
            _ => return Err(undefined()),
        },
        (op, ty) => {
            // An index stands for a mathematical integer, so it does not overflow; a value wraps.
            let wraps = if ty == ScalarType::Index { " overflow<nsw>" } else { "" };
            match op {
                BinOp::Add => b.bin_with("arith.addi", wraps, x, y),
                BinOp::Sub => b.bin_with("arith.subi", wraps, x, y),
                BinOp::Mul => b.bin_with("arith.muli", wraps, x, y),
                BinOp::Min => b.bin("arith.minsi", x, y),
                BinOp::Max => b.bin("arith.maxsi", x, y),
                BinOp::FloorDiv => divide(b, x, y, facts).0,
                BinOp::Mod => divide(b, x, y, facts).1,
                _ => return Err(undefined()),
            }
        }
    })
}

fn compare(b: &mut Builder, ty: ScalarType, op: BinOp, x: Val, y: Val) -> Val {
    if ty.is_float() {
        let name = match op {
            BinOp::Eq => "oeq",
            BinOp::Ne => "une",
            BinOp::Lt => "olt",
            _ => "ole",
        };
        return b.cmpf(name, x, y);
    }
    let cmp = match op {
        BinOp::Eq => Cmp::Eq,
        BinOp::Ne => Cmp::Ne,
        BinOp::Lt => Cmp::Lt,
        _ => Cmp::Le,
    };
    b.cmpi(cmp, ty == ScalarType::Bool, x, y)
}

/// Quotient rounded down and remainder; both are written, and what is not used goes away in canonicalisation.
fn divide(b: &mut Builder, x: Val, y: Val, facts: Facts) -> (Val, Val) {
    let (x, y) = b.same_lanes(x, y);
    let ty = b.ty(x);
    match facts.right {
        // The shift and the mask round down for either sign.
        Some(c) if c > 0 && c.count_ones() == 1 => {
            let (shift, mask) = (b.int(ty, c.trailing_zeros().into()), b.int(ty, c - 1));
            (b.bin("arith.shrsi", x, shift), b.bin("arith.andi", x, mask))
        }
        Some(c) if c > 0 && facts.nonnegative => (b.bin("arith.divui", x, y), b.bin("arith.remui", x, y)),
        Some(c) if c > 0 => round_down(b, x, y, ty),
        _ if facts.nonnegative => {
            let (zero, one) = (b.int(ty, 0), b.int(ty, 1));
            let by_zero = b.cmpi(Cmp::Eq, false, y, zero);
            let safe = b.select(by_zero, one, y);
            let quotient = b.bin("arith.divui", x, safe);
            // By 1 the remainder is 0, as it has to be for a division by 0.
            (b.select(by_zero, zero, quotient), b.bin("arith.remui", x, safe))
        }
        _ => {
            let (zero, one, minus) = (b.int(ty, 0), b.int(ty, 1), b.int(ty, -1));
            let by_zero = b.cmpi(Cmp::Eq, false, y, zero);
            // By -1 the quotient may overflow, on which the machine traps.
            let by_minus = b.cmpi(Cmp::Eq, false, y, minus);
            let special = b.bin("arith.ori", by_zero, by_minus);
            let safe = b.select(special, one, y);
            let (quotient, remainder) = round_down(b, x, safe, ty);
            let negated = b.bin("arith.subi", zero, x);
            let quotient = b.select(by_minus, negated, quotient);
            (b.select(by_zero, zero, quotient), remainder)
        }
    }
}

/// From the machine's division, which rounds to zero.
fn round_down(b: &mut Builder, x: Val, y: Val, ty: Ty) -> (Val, Val) {
    let zero = b.int(ty, 0);
    let quotient = b.bin("arith.divsi", x, y);
    let remainder = b.bin("arith.remsi", x, y);
    let inexact = b.cmpi(Cmp::Ne, false, remainder, zero);
    let signs = b.bin("arith.xori", remainder, y);
    let differ = b.cmpi(Cmp::Lt, false, signs, zero);
    let adjust = b.bin("arith.andi", inexact, differ);
    let one = b.int(ty, 1);
    let below = b.bin("arith.subi", quotient, one);
    let moved = b.bin("arith.addi", remainder, y);
    (b.select(adjust, below, quotient), b.select(adjust, moved, remainder))
}

/// `op a` on an operand of type `ty`.
pub(crate) fn unary(
    b: &mut Builder,
    library: &mut Library,
    ty: ScalarType,
    op: UnOp,
    a: Val,
) -> Result<Val, EmitFault> {
    if ty.is_float() {
        return Ok(match op {
            UnOp::Neg => b.un("arith.negf", a),
            UnOp::Abs => b.un("math.absf", a),
            UnOp::Sqrt => b.un("math.sqrt", a),
            UnOp::Rsqrt => {
                let (root, one) = (b.un("math.sqrt", a), b.float(b.ty(a), 1.0));
                b.bin("arith.divf", one, root)
            }
            UnOp::Floor => b.un("math.floor", a),
            UnOp::Ceil => b.un("math.ceil", a),
            UnOp::Round => b.un("math.roundeven", a),
            UnOp::Tf32 if ty == ScalarType::F32 => tf32(b, a),
            UnOp::Exp | UnOp::Log | UnOp::Tanh | UnOp::Erf | UnOp::Sin | UnOp::Cos => library.math(b, op, a),
            UnOp::Not | UnOp::Tf32 => return Err(EmitFault::Operator { op: op.name().to_owned(), ty }),
        });
    }
    match (op, ty) {
        (UnOp::Not, ScalarType::Bool) => {
            let one = b.int(b.ty(a), 1);
            Ok(b.bin("arith.xori", a, one))
        }
        (_, ScalarType::Bool) => Err(EmitFault::Operator { op: op.name().to_owned(), ty }),
        (UnOp::Neg, _) => {
            let zero = b.int(b.ty(a), 0);
            Ok(b.bin("arith.subi", zero, a))
        }
        (UnOp::Abs, _) => {
            let zero = b.int(b.ty(a), 0);
            let negated = b.bin("arith.subi", zero, a);
            Ok(b.bin("arith.maxsi", a, negated))
        }
        (UnOp::Floor | UnOp::Ceil | UnOp::Round, _) => Ok(a),
        _ => Err(EmitFault::Operator { op: op.name().to_owned(), ty }),
    }
}

/// `v` rounded to the 10 bits of mantissa of TF32, ties away from zero; what is not finite stays.
fn tf32(b: &mut Builder, v: Val) -> Val {
    let word = b.ty(v).with_elem(Elem::I32);
    let bits = b.bitcast(v, Elem::I32);
    let (half, kept) = (b.int(word, 1 << 12), b.int(word, -1 << 13));
    let sum = b.bin("arith.addi", bits, half);
    let rounded = b.bin("arith.andi", sum, kept);
    let rounded = b.bitcast(rounded, Elem::F32);
    let (size, infinite) = (b.un("math.absf", v), b.float(b.ty(v), f64::INFINITY));
    let finite = b.cmpf("olt", size, infinite);
    b.select(finite, rounded, v)
}

/// All lanes of `v` combined: the upper half with the lower half, again and again; the last lane of an odd number waits
/// until the end. The order depends on the number of lanes only, so every target gives the same bits.
pub(crate) fn reduce(
    b: &mut Builder,
    library: &mut Library,
    ty: ScalarType,
    combiner: Combiner,
    v: Val,
) -> Result<Val, EmitFault> {
    let (mut v, mut waiting) = (v, Vec::new());
    loop {
        let lanes = b.ty(v).lanes;
        if lanes == 1 {
            break;
        }
        let half = lanes / 2;
        if lanes % 2 == 1 {
            waiting.push(b.extract(v, lanes - 1));
        }
        let (low, high) = (b.slice(v, 0, half), b.slice(v, half, half));
        v = binary(b, library, ty, combiner.op(), (low, high), Facts::default())?;
    }
    while let Some(lane) = waiting.pop() {
        v = binary(b, library, ty, combiner.op(), (v, lane), Facts::default())?;
    }
    Ok(v)
}

/// `base + lane * stride` of `i64`.
pub(crate) fn ramp(b: &mut Builder, base: Val, stride: i64, lanes: u32) -> Val {
    let steps = b.int_lanes(Ty { elem: Elem::I64, lanes }, |lane| lane.wrapping_mul(stride));
    b.bin("arith.addi", base, steps)
}
