//! What instructions compute from registers alone: a function of the bits for each opcode and type.
//!
//! Registers hold their bits in the low end of 64, zeros above. Subnormals are kept, as without `.ftz`.

use super::{Fn1, Fn2, Fn3, Fn4};
use half::{bf16, f16};
use std::cmp::Ordering;

/// What the bits of a type mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Bits,
    Unsigned,
    Signed,
    Float,
    BFloat,
    Pred,
}

/// A type of so many bits; a predicate has 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ty {
    pub kind: Kind,
    pub bits: u32,
}

impl Ty {
    pub(super) fn parse(name: &str) -> Option<Ty> {
        let at = name.find(|c: char| c.is_ascii_digit()).unwrap_or(name.len());
        let kind = match &name[..at] {
            "b" => Kind::Bits,
            "u" => Kind::Unsigned,
            "s" => Kind::Signed,
            "f" => Kind::Float,
            "bf" => Kind::BFloat,
            "pred" => return Some(Ty { kind: Kind::Pred, bits: 8 }),
            _ => return None,
        };
        let bits: u32 = name[at..].parse().ok()?;
        let known = match kind {
            Kind::Float => matches!(bits, 16 | 32 | 64),
            Kind::BFloat => bits == 16,
            _ => matches!(bits, 8 | 16 | 32 | 64),
        };
        known.then_some(Ty { kind, bits })
    }
}

pub(super) fn f32_of(x: u64) -> f32 {
    f32::from_bits(x as u32)
}

pub(super) fn f64_of(x: u64) -> f64 {
    f64::from_bits(x)
}

pub(super) fn bits32(x: f32) -> u64 {
    // The one NaN that the hardware makes.
    if x.is_nan() { 0x7fff_ffff } else { u64::from(x.to_bits()) }
}

pub(super) fn bits64(x: f64) -> u64 {
    if x.is_nan() { 0x7fff_ffff_ffff_ffff } else { x.to_bits() }
}

/// A function of integers of each width, from one on the Rust types.
macro_rules! ints {
    ($ty:expr, |$a:ident, $b:ident| $e:expr) => {
        match ($ty.kind, $ty.bits) {
            (Kind::Signed, 16) => ints!(@ i16, u16, $a, $b, $e),
            (Kind::Signed, 32) => ints!(@ i32, u32, $a, $b, $e),
            (Kind::Signed, 64) => ints!(@ i64, u64, $a, $b, $e),
            (Kind::Unsigned | Kind::Bits, 16) => ints!(@ u16, u16, $a, $b, $e),
            (Kind::Unsigned | Kind::Bits, 32) => ints!(@ u32, u32, $a, $b, $e),
            (Kind::Unsigned | Kind::Bits, 64) => ints!(@ u64, u64, $a, $b, $e),
            _ => return None,
        }
    };
    (@ $t:ty, $u:ty, $a:ident, $b:ident, $e:expr) => {{
        let f: Fn2 = |x, y| {
            let ($a, $b) = (x as $t, y as $t);
            ($e) as $u as u64
        };
        f
    }};
}

/// A number of 16 bits as one of 32, and back: results of one operation are the same as if it were rounded once.
pub(super) fn f16_of(x: u64) -> f32 {
    f16::from_bits(x as u16).to_f32()
}

pub(super) fn bits16(x: f32) -> u64 {
    if x.is_nan() { 0x7fff } else { f16::from_f32(x).to_bits().into() }
}

pub(super) fn bf16_of(x: u64) -> f32 {
    bf16::from_bits(x as u16).to_f32()
}

pub(super) fn bits_b16(x: f32) -> u64 {
    if x.is_nan() { 0x7fff } else { bf16::from_f32(x).to_bits().into() }
}

/// A function of floats of each width.
macro_rules! floats {
    ($ty:expr, |$a:ident, $b:ident| $e:expr) => {
        match $ty.bits {
            16 if $ty.kind == Kind::BFloat => {
                let f: Fn2 = |x, y| {
                    let ($a, $b) = (bf16_of(x), bf16_of(y));
                    bits_b16($e)
                };
                f
            }
            16 => {
                let f: Fn2 = |x, y| {
                    let ($a, $b) = (f16_of(x), f16_of(y));
                    bits16($e)
                };
                f
            }
            32 => {
                let f: Fn2 = |x, y| {
                    let ($a, $b) = (f32_of(x), f32_of(y));
                    bits32($e)
                };
                f
            }
            64 => {
                let f: Fn2 = |x, y| {
                    let ($a, $b) = (f64_of(x), f64_of(y));
                    bits64($e)
                };
                f
            }
            _ => return None,
        }
    };
}

/// A function of how two numbers of a type compare; nothing = one is not a number.
macro_rules! compares {
    ($ty:expr, $holds:expr) => {
        match ($ty.kind, $ty.bits) {
            (Kind::Float, 16) => compares!(@ f16_of, $holds),
            (Kind::BFloat, 16) => compares!(@ bf16_of, $holds),
            (Kind::Float, 32) => compares!(@ f32_of, $holds),
            (Kind::Float, 64) => compares!(@ f64_of, $holds),
            (Kind::Signed, 16) => compares!(@ |x: u64| x as i16, $holds),
            (Kind::Signed, 32) => compares!(@ |x: u64| x as i32, $holds),
            (Kind::Signed, 64) => compares!(@ |x: u64| x as i64, $holds),
            (Kind::Unsigned | Kind::Bits, 16) => compares!(@ |x: u64| x as u16, $holds),
            (Kind::Unsigned | Kind::Bits, 32) => compares!(@ |x: u64| x as u32, $holds),
            (Kind::Unsigned | Kind::Bits, 64) => compares!(@ |x: u64| x, $holds),
            _ => return None,
        }
    };
    (@ $get:expr, $holds:expr) => {{
        let f: Fn2 = |x, y| {
            let holds: fn(Option<Ordering>) -> bool = $holds;
            u64::from(holds(($get)(x).partial_cmp(&($get)(y))))
        };
        f
    }};
}

/// A comparison; of floats the plain ones want two numbers, those that end in `u` hold if one is none.
pub(super) fn comparison(name: &str, ty: Ty) -> Option<Fn2> {
    use Ordering::{Equal, Greater, Less};
    let float = matches!(ty.kind, Kind::Float | Kind::BFloat);
    Some(match name {
        "eq" => compares!(ty, |o| o == Some(Equal)),
        "ne" => compares!(ty, |o| matches!(o, Some(Less | Greater))),
        "lt" | "lo" => compares!(ty, |o| o == Some(Less)),
        "le" | "ls" => compares!(ty, |o| matches!(o, Some(Less | Equal))),
        "gt" | "hi" => compares!(ty, |o| o == Some(Greater)),
        "ge" | "hs" => compares!(ty, |o| matches!(o, Some(Greater | Equal))),
        _ if !float => return None,
        "equ" => compares!(ty, |o| matches!(o, None | Some(Equal))),
        "neu" => compares!(ty, |o| o != Some(Equal)),
        "ltu" => compares!(ty, |o| matches!(o, None | Some(Less))),
        "leu" => compares!(ty, |o| o != Some(Greater)),
        "gtu" => compares!(ty, |o| matches!(o, None | Some(Greater))),
        "geu" => compares!(ty, |o| o != Some(Less)),
        "num" => compares!(ty, |o| o.is_some()),
        "nan" => compares!(ty, |o| o.is_none()),
        _ => return None,
    })
}

/// Functions of two operands. `mods` are the opcode's parts between its name and its type.
pub(super) fn two(name: &str, mods: &[&str], ty: Ty) -> Option<Fn2> {
    let has = |m: &str| mods.contains(&m);
    let nan = has("NaN");
    if matches!(ty.kind, Kind::Float | Kind::BFloat) {
        return Some(match name {
            "add" => floats!(ty, |a, b| a + b),
            "sub" => floats!(ty, |a, b| a - b),
            "mul" => floats!(ty, |a, b| a * b),
            "div" if !has("approx") && !has("full") => floats!(ty, |a, b| a / b),
            "min" if nan => floats!(ty, |a, b| if a.is_nan() || b.is_nan() { a + b } else { a.min(b) }),
            "max" if nan => floats!(ty, |a, b| if a.is_nan() || b.is_nan() { a + b } else { a.max(b) }),
            "min" => floats!(ty, |a, b| a.min(b)),
            "max" => floats!(ty, |a, b| a.max(b)),
            "copysign" => floats!(ty, |a, b| b.copysign(a)),
            _ => return None,
        });
    }
    if ty.kind == Kind::Pred {
        return Some(match name {
            "and" => |a, b| a & b,
            "or" => |a, b| a | b,
            "xor" => |a, b| a ^ b,
            _ => return None,
        });
    }
    Some(match name {
        "add" => ints!(ty, |a, b| a.wrapping_add(b)),
        "sub" => ints!(ty, |a, b| a.wrapping_sub(b)),
        "mul" if has("lo") => ints!(ty, |a, b| a.wrapping_mul(b)),
        "mul" if has("wide") => wide(ty)?,
        "mul" if has("hi") => high(ty)?,
        // Division by zero is all ones, here as there.
        "div" => ints!(ty, |a, b| if b == 0 { !0 } else { a.wrapping_div(b) }),
        "rem" => ints!(ty, |a, b| if b == 0 { a } else { a.wrapping_rem(b) }),
        "min" => ints!(ty, |a, b| a.min(b)),
        "max" => ints!(ty, |a, b| a.max(b)),
        "and" => ints!(ty, |a, b| a & b),
        "or" => ints!(ty, |a, b| a | b),
        "xor" => ints!(ty, |a, b| a ^ b),
        "shl" | "shr" => return shift(name, ty),
        _ => return None,
    })
}

/// Shifts by as many bits as there are, or more, leave zeros or signs.
fn shift(name: &str, ty: Ty) -> Option<Fn2> {
    macro_rules! shifted {
        ($t:ty, $u:ty) => {
            match name {
                "shl" => |a, b| (a as $u).checked_shl(b as u32).unwrap_or(0) as u64,
                _ => |a, b| ((a as $t) >> (b as u32).min(<$t>::BITS - 1)) as $u as u64,
            }
        };
    }
    macro_rules! unsigned {
        ($u:ty) => {
            match name {
                "shl" => |a, b| (a as $u).checked_shl(b as u32).unwrap_or(0) as u64,
                _ => |a, b| (a as $u).checked_shr(b as u32).unwrap_or(0) as u64,
            }
        };
    }
    Some(match (ty.kind, ty.bits) {
        (Kind::Signed, 16) => shifted!(i16, u16),
        (Kind::Signed, 32) => shifted!(i32, u32),
        (Kind::Signed, 64) => shifted!(i64, u64),
        (Kind::Unsigned | Kind::Bits, 16) => unsigned!(u16),
        (Kind::Unsigned | Kind::Bits, 32) => unsigned!(u32),
        (Kind::Unsigned | Kind::Bits, 64) => unsigned!(u64),
        _ => return None,
    })
}

fn wide(ty: Ty) -> Option<Fn2> {
    Some(match (ty.kind, ty.bits) {
        (Kind::Signed, 16) => |a, b| (i32::from(a as i16) * i32::from(b as i16)) as u32 as u64,
        (Kind::Signed, 32) => |a, b| (i64::from(a as i32) * i64::from(b as i32)) as u64,
        (Kind::Unsigned, 16) => |a, b| u64::from(a as u16) * u64::from(b as u16),
        (Kind::Unsigned, 32) => |a, b| u64::from(a as u32) * u64::from(b as u32),
        _ => return None,
    })
}

fn high(ty: Ty) -> Option<Fn2> {
    Some(match (ty.kind, ty.bits) {
        (Kind::Signed, 32) => |a, b| ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32 as u64,
        (Kind::Signed, 64) => |a, b| ((i128::from(a as i64) * i128::from(b as i64)) >> 64) as u64,
        (Kind::Unsigned, 16) => |a, b| (u64::from(a as u16) * u64::from(b as u16)) >> 16,
        (Kind::Signed, 16) => |a, b| u64::from(((i32::from(a as i16) * i32::from(b as i16)) >> 16) as u16),
        (Kind::Unsigned, 32) => |a, b| (u64::from(a as u32) * u64::from(b as u32)) >> 32,
        (Kind::Unsigned, 64) => |a, b| ((u128::from(a) * u128::from(b)) >> 64) as u64,
        _ => return None,
    })
}

/// Functions of one operand.
pub(super) fn one(name: &str, ty: Ty) -> Option<Fn1> {
    use Kind::{BFloat, Bits, Float, Pred, Signed};
    Some(match (name, ty.kind, ty.bits) {
        // True is written as -1.
        ("mov", Pred, _) => |a| u64::from(a != 0),
        ("mov", _, 64) => |a| a,
        ("mov", _, 32) => |a| a & 0xffff_ffff,
        ("mov", _, 16) => |a| a & 0xffff,
        ("not", Pred, _) => |a| a ^ 1,
        ("not", Bits, 16) => |a| u64::from(!(a as u16)),
        ("not", Bits, 32) => |a| u64::from(!(a as u32)),
        ("not", Bits, 64) => |a| !a,
        ("neg", Signed, 16) => |a| (a as u16).wrapping_neg().into(),
        ("neg", Signed, 32) => |a| (a as u32).wrapping_neg().into(),
        ("neg", Signed, 64) => |a| a.wrapping_neg(),
        ("abs", Signed, 16) => |a| (a as i16).unsigned_abs().into(),
        ("abs", Signed, 32) => |a| u64::from((a as i32).unsigned_abs()),
        ("abs", Signed, 64) => |a| (a as i64).unsigned_abs(),
        ("popc", Bits, 32) => |a| u64::from((a as u32).count_ones()),
        ("popc", Bits, 64) => |a| u64::from(a.count_ones()),
        ("clz", Bits, 32) => |a| u64::from((a as u32).leading_zeros()),
        ("clz", Bits, 64) => |a| u64::from(a.leading_zeros()),
        ("neg", Float | BFloat, 16) => |a| (a as u16 ^ 0x8000).into(),
        ("abs", Float | BFloat, 16) => |a| a & 0x7fff,
        ("neg", Float, 32) => |a| (a as u32 ^ 0x8000_0000).into(),
        ("neg", Float, 64) => |a| a ^ (1 << 63),
        ("abs", Float, 32) => |a| a & 0x7fff_ffff,
        ("abs", Float, 64) => |a| a & !(1 << 63),
        ("sqrt", Float, 32) => |a| bits32(f32_of(a).sqrt()),
        ("sqrt", Float, 64) => |a| bits64(f64_of(a).sqrt()),
        ("rcp", Float, 32) => |a| bits32(1.0 / f32_of(a)),
        ("rcp", Float, 64) => |a| bits64(1.0 / f64_of(a)),
        _ => return None,
    })
}

/// Functions of three operands.
pub(super) fn three(name: &str, mods: &[&str], ty: Ty) -> Option<Fn3> {
    use Kind::{BFloat, Bits, Float, Signed, Unsigned};
    let is = |m: &str| mods.contains(&m);
    Some(match (name, ty.kind, ty.bits) {
        // The product and the sum are exact in 64 bits but for sums of very different magnitude.
        ("fma", Float, 16) => |a, b, c| {
            let exact = f64::from(f16_of(a)) * f64::from(f16_of(b)) + f64::from(f16_of(c));
            if exact.is_nan() { 0x7fff } else { f16::from_f64(exact).to_bits().into() }
        },
        ("fma", BFloat, 16) => |a, b, c| {
            let exact = f64::from(bf16_of(a)) * f64::from(bf16_of(b)) + f64::from(bf16_of(c));
            if exact.is_nan() { 0x7fff } else { bf16::from_f64(exact).to_bits().into() }
        },
        ("fma", Float, 32) => |a, b, c| bits32(f32_of(a).mul_add(f32_of(b), f32_of(c))),
        ("fma", Float, 64) => |a, b, c| bits64(f64_of(a).mul_add(f64_of(b), f64_of(c))),
        ("mad", _, 16) if is("lo") => |a, b, c| u64::from((a as u16).wrapping_mul(b as u16).wrapping_add(c as u16)),
        ("mad", _, 32) if is("lo") => |a, b, c| u64::from((a as u32).wrapping_mul(b as u32).wrapping_add(c as u32)),
        ("mad", _, 64) if is("lo") => |a, b, c| a.wrapping_mul(b).wrapping_add(c),
        ("mad", Signed, 32) if is("wide") => {
            |a, b, c| (i64::from(a as i32) * i64::from(b as i32)).wrapping_add(c as i64) as u64
        }
        ("mad", Unsigned, 32) if is("wide") => |a, b, c| (u64::from(a as u32) * u64::from(b as u32)).wrapping_add(c),
        ("selp", _, _) => |a, b, p| if p == 0 { b } else { a },
        ("bfe", Unsigned, 32) => |a, at, n| field(a as u32 as u64, at, n),
        ("bfe", Unsigned, 64) => field,
        ("bfe", Signed, 32) => |a, at, n| signed_field(a, at, n, 32) as u32 as u64,
        ("bfe", Signed, 64) => |a, at, n| signed_field(a, at, n, 64) as u64,
        ("prmt", Bits, 32) => permute,
        ("shf", Bits, 32) if is("l") && is("wrap") => {
            |a, b, n| ((((b << 32) | (a & 0xffff_ffff)) << (n & 31)) >> 32) as u32 as u64
        }
        ("shf", Bits, 32) if is("r") && is("wrap") => {
            |a, b, n| (((b << 32) | (a & 0xffff_ffff)) >> (n & 31)) as u32 as u64
        }
        _ => return None,
    })
}

/// Functions of four operands.
pub(super) fn four(name: &str, ty: Ty) -> Option<Fn4> {
    Some(match (name, ty.kind, ty.bits) {
        ("bfi", Kind::Bits, 32) => |a, b, at, n| insert(a, b, at, n) as u32 as u64,
        ("bfi", Kind::Bits, 64) => insert,
        _ => return None,
    })
}

/// `b` with the lowest `n` bits of `a` from bit `at` on; those beyond its highest are lost.
fn insert(a: u64, b: u64, at: u64, n: u64) -> u64 {
    let mask = field(u64::MAX, 0, n).checked_shl((at & 0xff) as u32).unwrap_or(0);
    let moved = a.checked_shl((at & 0xff) as u32).unwrap_or(0);
    (b & !mask) | (moved & mask)
}

/// `n` bits of `a` from bit `at` on.
fn field(a: u64, at: u64, n: u64) -> u64 {
    let (at, n) = (at & 0xff, n & 0xff);
    let moved = a.checked_shr(at as u32).unwrap_or(0);
    if n >= 64 { moved } else { moved & ((1 << n) - 1) }
}

/// `n` bits of a number of `bits` from bit `at` on, the highest of them, or of the number, repeated before them.
fn signed_field(a: u64, at: u64, n: u64, bits: u64) -> i64 {
    let (at, n) = (at & 0xff, n & 0xff);
    if n == 0 {
        return 0;
    }
    let before = 64 - (at + n).min(bits);
    ((a << before) as i64 >> before) >> at.min(63)
}

/// Four of the eight bytes of `b:a`, each chosen by four bits of `which`, the highest of which repeats the byte's sign.
fn permute(a: u64, b: u64, which: u64) -> u64 {
    let bytes = (a & 0xffff_ffff) | b << 32;
    (0..4).fold(0, |out, n| {
        let choice = which >> (4 * n) & 0xf;
        let byte = (bytes >> (8 * (choice & 7))) as u8;
        let byte = if choice & 8 == 0 { byte } else { ((byte as i8) >> 7) as u8 };
        out | u64::from(byte) << (8 * n)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ty(name: &str) -> Ty {
        Ty::parse(name).expect("a type")
    }

    #[test]
    fn integers_wrap_at_their_width() {
        let add = two("add", &[], ty("s32")).expect("known");
        assert_eq!(add(0xffff_ffff, 1), 0);
        let shr = two("shr", &[], ty("s32")).expect("known");
        assert_eq!((shr(0x8000_0000, 31), shr(0x8000_0000, 99)), (0xffff_ffff, 0xffff_ffff));
        let shl = two("shl", &[], ty("b64")).expect("known");
        assert_eq!((shl(1, 63), shl(1, 64)), (1 << 63, 0));
        let abs = |t: &str| one("abs", ty(t)).expect("known");
        assert_eq!((abs("s16")(0xfffe), abs("s16")(0x8000), abs("s32")(0x8000_0000)), (2, 0x8000, 0x8000_0000));
        let div = two("div", &[], ty("s64")).expect("known");
        assert_eq!((div((-7i64) as u64, 2) as i64, div(1, 0)), (-3, u64::MAX));
    }

    #[test]
    fn not_a_number_is_neither_less_nor_greater() {
        let nan = bits32(f32::NAN);
        let holds = |name, a, b| comparison(name, ty("f32")).expect("known")(a, b) == 1;
        assert!(!holds("lt", nan, 0) && !holds("ne", nan, 0) && holds("neu", nan, 0) && holds("nan", 0, nan));
        let max = |mods: &[&str]| two("max", mods, ty("f32")).expect("known");
        assert_eq!((max(&[])(nan, bits32(1.0)), max(&["NaN"])(nan, bits32(1.0))), (bits32(1.0), nan));
    }

    #[test]
    fn bytes_and_fields() {
        let prmt = three("prmt", &[], ty("b32")).expect("known");
        assert_eq!(prmt(0x1122_3344, 0x5566_7788, 0x5410), 0x7788_3344);
        let bfi = four("bfi", ty("b32")).expect("known");
        assert_eq!((bfi(0xab, 0x1111_1111, 8, 8), bfi(0xab, 0x11, 0, 4)), (0x1111_ab11, 0x1b));
        assert_eq!((bfi(0xab, 7, 28, 8), bfi(0xab, 7, 40, 8), bfi(0xab, 7, 4, 0)), (0xb000_0007, 7, 7));
        let bfe = three("bfe", &[], ty("u32")).expect("known");
        assert_eq!(bfe(0xabcd, 4, 8), 0xbc);
        let bfe = three("bfe", &[], ty("s64")).expect("known");
        let minus = |n: i64| (-n) as u64;
        assert_eq!((bfe(0x10, 4, 1), bfe(0xef, 4, 1), bfe(0xabcd, 4, 8)), (minus(1), 0, minus(0x44)));
        assert_eq!((bfe(minus(8), 60, 9), bfe(7, 1, 0), bfe(0xabcd, 4, 60)), (minus(1), 0, 0xabc));
        let bfe = three("bfe", &[], ty("s32")).expect("known");
        assert_eq!((bfe(0x8000_0000, 31, 4), bfe(0x7000_0000, 28, 4)), (0xffff_ffff, 7));
    }
}
