//! Conversions between scalar types, and between the form of a value in memory and in registers.
//!
//! In registers `index` is `i64`, `bool` is `i1`, and **`f16` and `bf16` are `f32`**: arithmetic on them is done in `f32`
//! and rounds to the narrow type only where a value is stored or explicitly cast. In memory `bool` is a byte. `bf16` is
//! packed and unpacked by integer arithmetic (`i16` in memory), because LLVM has no conversion for CPUs without
//! AVX512-BF16 and flushes denormals on those that have it; so all CPUs give the same bits.

use cora_ir::{ScalarType, Type};

use super::builder::{Builder, Cmp, Elem, Ty, Val};

/// The element type in registers.
pub(crate) fn register_elem(ty: ScalarType) -> Elem {
    match ty {
        ScalarType::Bool => Elem::I1,
        ScalarType::I8 => Elem::I8,
        ScalarType::I16 => Elem::I16,
        ScalarType::I32 => Elem::I32,
        ScalarType::I64 | ScalarType::Index => Elem::I64,
        ScalarType::F16 | ScalarType::BF16 | ScalarType::F32 => Elem::F32,
        ScalarType::F64 => Elem::F64,
    }
}

/// The element type in memory.
pub(crate) fn memory_elem(ty: ScalarType) -> Elem {
    match ty {
        ScalarType::Bool => Elem::I8,
        ScalarType::BF16 => Elem::I16,
        ScalarType::F16 => Elem::F16,
        other => register_elem(other),
    }
}

/// The type of an expression's value.
pub(crate) fn register_type(ty: Type) -> Ty {
    Ty { elem: register_elem(ty.scalar), lanes: ty.lanes }
}

/// Whether a value looks the same in memory and in registers.
pub(crate) fn same_in_memory(ty: ScalarType) -> bool {
    register_elem(ty) == memory_elem(ty)
}

/// What was loaded, in register form.
pub(crate) fn from_memory(b: &mut Builder, ty: ScalarType, v: Val) -> Val {
    match ty {
        ScalarType::Bool => {
            let zero = b.int(b.ty(v), 0);
            b.cmpi(Cmp::Ne, false, v, zero)
        }
        ScalarType::F16 => b.convert("arith.extf", v, Elem::F32),
        ScalarType::BF16 => {
            let wide = b.convert("arith.extui", v, Elem::I32);
            let sixteen = b.int(b.ty(wide), 16);
            let bits = b.bin("arith.shli", wide, sixteen);
            b.bitcast(bits, Elem::F32)
        }
        _ => v,
    }
}

/// What is to be stored, in memory form: rounds to nearest, ties to even.
pub(crate) fn to_memory(b: &mut Builder, ty: ScalarType, v: Val) -> Val {
    match ty {
        ScalarType::Bool => b.convert("arith.extui", v, Elem::I8),
        ScalarType::F16 => b.convert("arith.truncf", v, Elem::F16),
        ScalarType::BF16 => round_to_bf16(b, v),
        _ => v,
    }
}

fn round_to_bf16(b: &mut Builder, v: Val) -> Val {
    let bits = b.bitcast(v, Elem::I32);
    let ty = b.ty(bits);
    let (one, sixteen, half, quiet) = (b.int(ty, 1), b.int(ty, 16), b.int(ty, 0x7FFF), b.int(ty, 0x0040_0000));
    let kept = b.bin("arith.shrui", bits, sixteen);
    let odd = b.bin("arith.andi", kept, one);
    let up = b.bin("arith.addi", bits, half);
    let up = b.bin("arith.addi", up, odd);
    // Rounding could carry a NaN's payload into infinity, so a NaN keeps its upper half and becomes quiet.
    let nan = b.cmpf("uno", v, v);
    let quieted = b.bin("arith.ori", bits, quiet);
    let rounded = b.select(nan, quieted, up);
    let high = b.bin("arith.shrui", rounded, sixteen);
    b.convert("arith.trunci", high, Elem::I16)
}

/// `v` of type `from` converted to `to`, both in register form.
///
/// Float to integer truncates and saturates, NaN gives 0; integers wrap; to `bool` is `!= 0`; float to float rounds to
/// nearest even, once.
pub(crate) fn cast(b: &mut Builder, from: ScalarType, to: ScalarType, v: Val) -> Val {
    use ScalarType::{BF16, Bool, F16, F32, F64, Index};
    let (re, rt) = (register_elem(from), register_elem(to));
    if from == to {
        return v;
    }
    let int = |t: ScalarType| t.is_int() || t == Index;
    match (from, to) {
        (f, Bool) if f.is_float() => {
            let zero = b.float(b.ty(v), 0.0);
            b.cmpf("une", v, zero)
        }
        (_, Bool) => {
            let zero = b.int(b.ty(v), 0);
            b.cmpi(Cmp::Ne, false, v, zero)
        }
        (Bool, t) if t.is_float() => b.convert("arith.uitofp", v, rt),
        (Bool, _) => b.convert("arith.extui", v, rt),
        (f, t) if int(f) && int(t) => {
            let op = if re.bits() < rt.bits() { "arith.extsi" } else { "arith.trunci" };
            b.convert(op, v, rt)
        }
        // A wide integer may need two roundings on the way to a narrow float; from f64, narrowing rounds once.
        (f, F16 | BF16) if int(f) && re.bits() > 16 => {
            let exact = if re == Elem::I64 { exact_or_odd(b, v) } else { v };
            let wide = b.convert("arith.sitofp", exact, Elem::F64);
            cast(b, F64, to, wide)
        }
        (f, t) if int(f) => {
            let wide = b.convert("arith.sitofp", v, rt);
            if t == BF16 || t == F16 { cast(b, F32, t, wide) } else { wide }
        }
        (f, t) if f.is_float() && int(t) => saturate(b, v, rt),
        (F64, F16 | BF16) => {
            let narrow = to_f32_odd(b, v);
            cast(b, F32, to, narrow)
        }
        (_, F16 | BF16) => {
            let stored = to_memory(b, to, v);
            from_memory(b, to, stored)
        }
        (_, F64) => b.convert("arith.extf", v, Elem::F64),
        (F64, _) => b.convert("arith.truncf", v, Elem::F32),
        _ => v,
    }
}

/// `v` truncated, the nearest integer of the type where there is none, 0 for NaN. LLVM's instruction for it takes vectors
/// apart.
fn saturate(b: &mut Builder, v: Val, to: Elem) -> Val {
    let from = b.ty(v);
    let ty = from.with_elem(to);
    if ty.lanes == 1 || !b.libm() {
        return b.pure(ty, &[v], &format!("llvm.call_intrinsic \"llvm.fptosi.sat\"({v}) : ({from}) -> {ty}"));
    }
    let end = 2.0_f64.powi(to.bits() as i32 - 1);
    let (above, least, zero) = (b.float(from, end), b.float(from, -end), b.float(from, 0.0));
    let fits = b.cmpf("olt", v, above);
    let x = b.select(fits, v, zero);
    let below = b.cmpf("olt", x, least);
    let x = b.select(below, least, x);
    let wide = if to.bits() < 32 { Elem::I32 } else { to };
    let whole = b.convert("arith.fptosi", x, wide);
    let whole = b.convert("arith.trunci", whole, to);
    let greatest = b.int(ty, i64::MAX >> (64 - to.bits()));
    let over = b.cmpf("oge", v, above);
    b.select(over, greatest, whole)
}

/// An `i64` that `f64` has: `v`, or of its neighbours among the multiples of 2048 the odd one, so that rounding it further
/// rounds as `v` itself does (as [`to_f32_odd`]).
fn exact_or_odd(b: &mut Builder, v: Val) -> Val {
    let ty = b.ty(v);
    let [low, unit, high] = [(1 << 11) - 1, 1 << 11, -(1 << 11)].map(|n| b.int(ty, n));
    let (offset, twice, zero) = (b.int(ty, 1 << 53), b.int(ty, 1 << 54), b.int(ty, 0));
    let shifted = b.bin("arith.addi", v, offset);
    let fits = b.cmpi(Cmp::Le, true, shifted, twice);
    let rest = b.bin("arith.andi", v, low);
    let exact = b.cmpi(Cmp::Eq, false, rest, zero);
    let sticky = b.bin("arith.ori", v, unit);
    let odd = b.bin("arith.andi", sticky, high);
    let keep = b.bin("arith.ori", fits, exact);
    b.select(keep, v, odd)
}

/// `v` rounded to `f32` so that an inexact result has an odd significand: a second rounding, to a type with at least two
/// bits less, then gives what one rounding of `v` gives (Boldo and Melquiond, "Emulation of FMA and correctly rounded
/// sums", 2008).
fn to_f32_odd(b: &mut Builder, v: Val) -> Val {
    let near = b.convert("arith.truncf", v, Elem::F32);
    let back = b.convert("arith.extf", near, Elem::F64);
    let inexact = b.cmpf("one", back, v);
    let (size, wanted) = (b.un("math.absf", back), b.un("math.absf", v));
    let above = b.cmpf("ogt", size, wanted);
    let bits = b.bitcast(near, Elem::I32);
    let ty = b.ty(bits);
    let (one, minus) = (b.int(ty, 1), b.int(ty, -1));
    // Of the two neighbours of an inexact value exactly one is odd: the nearest, or the one on the other side of `v`.
    let step = b.select(above, minus, one);
    let other = b.bin("arith.addi", bits, step);
    let low = b.bin("arith.andi", bits, one);
    let zero = b.int(ty, 0);
    let even = b.cmpi(Cmp::Eq, false, low, zero);
    let move_on = b.bin("arith.andi", inexact, even);
    let odd = b.select(move_on, other, bits);
    b.bitcast(odd, Elem::F32)
}
