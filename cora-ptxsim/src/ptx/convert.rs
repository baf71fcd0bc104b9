//! Conversions between types.

use super::Fn1;
use super::alu::{Kind, Ty, bits16, bits32, bits64, f32_of, f64_of};
use half::{bf16, f16};

/// Whether a rounding, `.rn` and so on, is one to an integer or to nearest, where a conversion needs it.
fn rounding<'a>(mods: &[&'a str]) -> Option<&'a str> {
    mods.iter().copied().find(|m| matches!(*m, "rn" | "rna" | "rz" | "rni" | "rzi" | "rmi" | "rpi"))
}

/// `cvt` from one type to another.
pub(super) fn conversion(mods: &[&str], to: Ty, from: Ty) -> Option<Fn1> {
    use Kind::{BFloat, Float, Signed, Unsigned};
    if mods.iter().any(|m| matches!(*m, "ftz" | "sat" | "relu")) {
        return None;
    }
    let integer = |t: Ty| matches!(t.kind, Signed | Unsigned);
    match (integer(to), integer(from)) {
        (true, true) => widths(to, from),
        (false, true) => of_integer(mods, to, from),
        (true, false) => to_integer(mods, to, from),
        (false, false) => Some(match ((to.kind, to.bits), (from.kind, from.bits), rounding(mods)) {
            ((Float, 32), (Float, 64), Some("rn")) => |x| bits32(f64_of(x) as f32),
            ((Float, 64), (Float, 32), _) => |x| bits64(f64::from(f32_of(x))),
            ((Float, 32), (Float, 16), _) => |x| bits32(f16::from_bits(x as u16).to_f32()),
            ((Float, 64), (Float, 16), _) => |x| bits64(f16::from_bits(x as u16).to_f64()),
            ((Float, 32), (BFloat, 16), _) => |x| bits32(bf16::from_bits(x as u16).to_f32()),
            ((Float, 16), (Float, 32), Some("rn")) => |x| u64::from(f16::from_f32(f32_of(x)).to_bits()),
            ((Float, 16), (Float, 64), Some("rn")) => |x| u64::from(f16::from_f64(f64_of(x)).to_bits()),
            ((BFloat, 16), (Float, 32), Some("rn")) => |x| u64::from(bf16::from_f32(f32_of(x)).to_bits()),
            ((Float, 32), (Float, 32), Some("rzi")) => |x| bits32(f32_of(x).trunc()),
            ((Float, 32), (Float, 32), Some("rmi")) => |x| bits32(f32_of(x).floor()),
            ((Float, 32), (Float, 32), Some("rpi")) => |x| bits32(f32_of(x).ceil()),
            ((Float, 32), (Float, 32), Some("rni")) => |x| bits32(f32_of(x).round_ties_even()),
            ((Float, 64), (Float, 64), Some("rzi")) => |x| bits64(f64_of(x).trunc()),
            ((Float, 64), (Float, 64), Some("rmi")) => |x| bits64(f64_of(x).floor()),
            ((Float, 64), (Float, 64), Some("rpi")) => |x| bits64(f64_of(x).ceil()),
            ((Float, 64), (Float, 64), Some("rni")) => |x| bits64(f64_of(x).round_ties_even()),
            _ => return None,
        }),
    }
}

/// Halves away from zero, to 10 bits of fraction.
pub(super) fn tf32(x: u64) -> u64 {
    let bits = x as u32;
    if !f32_of(x).is_finite() { u64::from(bits) } else { u64::from(bits.wrapping_add(0x1000) & 0xffff_e000) }
}

/// Two numbers as one register of two.
pub(super) fn two_halves(kind: Kind) -> super::Fn2 {
    match kind {
        Kind::BFloat => |high, low| {
            let half = |x| u64::from(bf16::from_f32(f32_of(x)).to_bits());
            half(high) << 16 | half(low)
        },
        _ => |high, low| {
            let half = |x| u64::from(f16::from_f32(f32_of(x)).to_bits());
            half(high) << 16 | half(low)
        },
    }
}

fn extended(from: Ty) -> Option<Fn1> {
    Some(match (from.kind, from.bits) {
        (Kind::Signed, 8) => |x| x as i8 as i64 as u64,
        (Kind::Signed, 16) => |x| x as i16 as i64 as u64,
        (Kind::Signed, 32) => |x| x as i32 as i64 as u64,
        (Kind::Unsigned, 8) => |x| x & 0xff,
        (Kind::Unsigned, 16) => |x| x & 0xffff,
        (Kind::Unsigned, 32) => |x| x & 0xffff_ffff,
        (_, 64) => |x| x,
        _ => return None,
    })
}

fn widths(to: Ty, from: Ty) -> Option<Fn1> {
    macro_rules! narrowed {
        ($mask:expr) => {
            match (from.kind, from.bits) {
                (Kind::Signed, 8) => |x| x as i8 as i64 as u64 & $mask,
                (Kind::Signed, 16) => |x| x as i16 as i64 as u64 & $mask,
                (Kind::Signed, 32) => |x| x as i32 as i64 as u64 & $mask,
                (Kind::Unsigned, 8) => |x| x & 0xff & $mask,
                (Kind::Unsigned, 16) => |x| x & 0xffff & $mask,
                (Kind::Unsigned, 32) => |x| x & 0xffff_ffff & $mask,
                (_, 64) => |x| x & $mask,
                _ => return None,
            }
        };
    }
    Some(match (to.kind, to.bits) {
        // A register of 16 bits holds what is narrower extended by its sign.
        (Kind::Signed, 8) => |x| x as i8 as i16 as u16 as u64,
        (_, 8) => narrowed!(0xff),
        (_, 16) => narrowed!(0xffff),
        (_, 32) => narrowed!(0xffff_ffff),
        _ => return extended(from),
    })
}

fn of_integer(mods: &[&str], to: Ty, from: Ty) -> Option<Fn1> {
    rounding(mods).filter(|m| *m == "rn")?;
    let signed = from.kind == Kind::Signed;
    Some(match (to.kind, to.bits, signed, from.bits) {
        (Kind::Float, 16, true, 16) => |x| bits16(f32::from(x as i16)),
        (Kind::Float, 16, true, 32) => |x| f16::from_f64(f64::from(x as i32)).to_bits().into(),
        (Kind::Float, 16, true, 64) => |x| f16::from_f64(x as i64 as f64).to_bits().into(),
        (Kind::Float, 16, false, 16) => |x| bits16(f32::from(x as u16)),
        (Kind::Float, 16, false, 32) => |x| f16::from_f64(f64::from(x as u32)).to_bits().into(),
        (Kind::Float, 16, false, 64) => |x| f16::from_f64(x as f64).to_bits().into(),
        (Kind::Float, 32, true, 8) => |x| bits32(f32::from(x as i8)),
        (Kind::Float, 32, true, 16) => |x| bits32(f32::from(x as i16)),
        (Kind::Float, 32, true, 32) => |x| bits32(x as i32 as f32),
        (Kind::Float, 32, true, 64) => |x| bits32(x as i64 as f32),
        (Kind::Float, 32, false, 8) => |x| bits32(f32::from(x as u8)),
        (Kind::Float, 32, false, 16) => |x| bits32(f32::from(x as u16)),
        (Kind::Float, 32, false, 32) => |x| bits32(x as u32 as f32),
        (Kind::Float, 32, false, 64) => |x| bits32(x as f32),
        (Kind::Float, 64, true, 8) => |x| bits64(f64::from(x as i8)),
        (Kind::Float, 64, true, 16) => |x| bits64(f64::from(x as i16)),
        (Kind::Float, 64, true, 32) => |x| bits64(f64::from(x as i32)),
        (Kind::Float, 64, true, 64) => |x| bits64(x as i64 as f64),
        (Kind::Float, 64, false, 8) => |x| bits64(f64::from(x as u8)),
        (Kind::Float, 64, false, 16) => |x| bits64(f64::from(x as u16)),
        (Kind::Float, 64, false, 32) => |x| bits64(f64::from(x as u32)),
        (Kind::Float, 64, false, 64) => |x| bits64(x as f64),
        _ => return None,
    })
}

/// What is out of range is at its end, and what is no number 0. Every float is exact in 64 bits.
fn to_integer(mods: &[&str], to: Ty, from: Ty) -> Option<Fn1> {
    macro_rules! rounded {
        ($of:expr) => {
            match rounding(mods)? {
                "rzi" => rounded!($of, f64::trunc),
                "rni" => rounded!($of, f64::round_ties_even),
                "rmi" => rounded!($of, f64::floor),
                "rpi" => rounded!($of, f64::ceil),
                _ => return None,
            }
        };
        ($of:expr, $round:expr) => {
            match (to.kind == Kind::Signed, to.bits) {
                (true, 16) => |x| $round($of(x)) as i16 as u16 as u64,
                (true, 32) => |x| $round($of(x)) as i32 as u32 as u64,
                (true, 64) => |x| $round($of(x)) as i64 as u64,
                (false, 16) => |x| $round($of(x)) as u16 as u64,
                (false, 32) => |x| $round($of(x)) as u32 as u64,
                (false, 64) => |x| $round($of(x)) as u64,
                _ => return None,
            }
        };
    }
    Some(match (from.kind, from.bits) {
        (Kind::Float, 16) => rounded!(|x| f16::from_bits(x as u16).to_f64()),
        (Kind::BFloat, 16) => rounded!(|x| bf16::from_bits(x as u16).to_f64()),
        (Kind::Float, 32) => rounded!(|x| f64::from(f32_of(x))),
        (Kind::Float, 64) => rounded!(f64_of),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cvt(mods: &[&str], to: &str, from: &str, x: u64) -> u64 {
        let ty = |n| Ty::parse(n).expect("a type");
        conversion(mods, ty(to), ty(from)).expect("known")(x)
    }

    #[test]
    fn signs_and_widths() {
        assert_eq!(cvt(&[], "s64", "s32", 0xffff_ffff), u64::MAX);
        assert_eq!(cvt(&[], "u64", "u32", 0xffff_ffff), 0xffff_ffff);
        assert_eq!(cvt(&[], "u32", "u64", 0x1_0000_0002), 2);
        assert_eq!(cvt(&["rzi"], "s32", "f32", bits32(-2.5)), (-2i32) as u32 as u64);
        assert_eq!(cvt(&["rzi"], "s16", "f64", bits64(-40000.5)), 0x8000, "at the end of the range");
        assert_eq!((cvt(&["rni"], "u16", "f32", bits32(2.5)), cvt(&["rpi"], "s64", "f16", 0x3e00)), (2, 2));
        assert_eq!(cvt(&["rzi"], "s64", "f64", bits64(f64::NAN)), 0);
        assert_eq!(cvt(&["rn"], "bf16", "f32", bits32(1.0)), 0x3f80);
        assert_eq!(tf32(0x3f80_1000), 0x3f80_2000);
    }
}
