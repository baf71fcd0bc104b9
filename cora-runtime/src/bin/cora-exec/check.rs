//! Compares outputs with the stored ones.

use crate::report::{Check, Report};
use cora_runtime::Result;
use cora_runtime::abi::{DType, ProgramDesc};
use cora_runtime::array::RaggedArray;
use cora_runtime::artifact::Sample;

/// Compares each output, adds a row to the report, and gives a message for each that differs.
pub fn check(
    desc: &ProgramDesc,
    sample: &Sample,
    outputs: &[(usize, RaggedArray)],
    report: &mut Report,
) -> Result<Vec<String>> {
    let mut failed = Vec::new();
    for (n, array) in outputs {
        let t = &desc.tensors[*n];
        let want = RaggedArray::from_bytes(t.dtype, array.shape().clone(), &sample.tensors[*n])?;
        let c = compare(t.dtype, array.bytes(), want.bytes(), sample.tolerance[*n]);
        if let Some((at, got, want)) = &c.differs {
            failed.push(format!(
                "error[E0700]: output `{}` differs from the stored one at element {at}: {got}, expected {want} (allowed {:.3e})",
                t.name, c.allowed
            ));
        }
        report.checks.push(Check {
            output: t.name.clone(),
            elements: c.elements,
            max_error: c.greatest,
            allowed: c.allowed,
            ok: c.differs.is_none(),
        });
    }
    Ok(failed)
}

struct Comparison {
    elements: usize,
    /// Greatest difference, and what is allowed.
    greatest: f64,
    allowed: f64,
    /// The first element that differs by more, with both values.
    differs: Option<(usize, String, String)>,
}

fn compare(dtype: DType, got: &[u8], want: &[u8], tolerance: f64) -> Comparison {
    let size = dtype.size();
    let pairs = || got.chunks_exact(size).zip(want.chunks_exact(size));
    let mut c = Comparison { elements: got.len() / size, greatest: 0.0, allowed: 0.0, differs: None };
    if !matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64) {
        for (i, (g, w)) in pairs().enumerate().filter(|(_, (g, w))| g != w) {
            let (g, w) = (integer(g), integer(w));
            c.greatest = c.greatest.max(g.abs_diff(w) as f64);
            c.differs.get_or_insert_with(|| (i, g.to_string(), w.to_string()));
        }
        return c;
    }
    let finite = pairs().map(|(_, w)| float(dtype, w)).filter(|x| x.is_finite());
    c.allowed = tolerance * finite.fold(0.0, |a: f64, x| a.max(x.abs())).max(f64::MIN_POSITIVE);
    for (i, (g, w)) in pairs().enumerate() {
        let (g, w) = (float(dtype, g), float(dtype, w));
        if g == w || (g.is_nan() && w.is_nan()) {
            continue;
        }
        let error = if g.is_finite() && w.is_finite() { (g - w).abs() } else { f64::INFINITY };
        c.greatest = c.greatest.max(error);
        if error > c.allowed {
            c.differs.get_or_insert_with(|| (i, g.to_string(), w.to_string()));
        }
    }
    c
}

/// A little-endian integer of any size up to eight bytes.
fn integer(bytes: &[u8]) -> i64 {
    let negative = bytes.last().is_some_and(|b| b & 0x80 != 0);
    let mut all = [if negative { 0xff } else { 0 }; 8];
    all[..bytes.len()].copy_from_slice(bytes);
    i64::from_le_bytes(all)
}

fn float(dtype: DType, bytes: &[u8]) -> f64 {
    match (dtype, bytes) {
        (DType::BF16, &[a, b]) => f64::from(f32::from_le_bytes([0, 0, a, b])),
        (DType::F16, &[a, b]) => from_half(u16::from_le_bytes([a, b])),
        (DType::F32, &[a, b, c, d]) => f64::from(f32::from_le_bytes([a, b, c, d])),
        (_, b) => f64::from_le_bytes(b.try_into().unwrap_or_default()),
    }
}

fn from_half(h: u16) -> f64 {
    let (sign, e, m) = (if h & 0x8000 == 0 { 1.0 } else { -1.0 }, i32::from(h >> 10 & 31), f64::from(h & 0x3ff));
    match (e, m == 0.0) {
        (31, true) => sign * f64::INFINITY,
        (31, false) => f64::NAN,
        (0, _) => sign * m * 2f64.powi(-24),
        _ => sign * (1.0 + m / 1024.0) * 2f64.powi(e - 15),
    }
}

#[cfg(test)]
mod tests {
    use super::{compare, integer};
    use cora_runtime::abi::DType;

    #[test]
    fn integers_are_compared_exactly() {
        let (a, b) = ((1i64 << 53) + 1, 1i64 << 53);
        let c = compare(DType::I64, &a.to_le_bytes(), &b.to_le_bytes(), 0.0);
        assert_eq!(c.differs, Some((0, a.to_string(), b.to_string())));
        assert!(compare(DType::I64, &a.to_le_bytes(), &a.to_le_bytes(), 0.0).differs.is_none());
        assert_eq!((integer(&[0xff]), integer(&[0x7f, 0xff])), (-1, -129));
    }

    #[test]
    fn floats_may_differ_by_the_tolerance() {
        let of = |g: f32, w: f32| compare(DType::F32, &g.to_le_bytes(), &w.to_le_bytes(), 1e-3).differs.is_none();
        assert!(of(1.0, 1.0005) && !of(1.0, 1.1));
        assert!(of(f32::NAN, f32::NAN) && of(f32::INFINITY, f32::INFINITY));
        assert!(!of(f32::INFINITY, 1.0) && !of(1.0, f32::NAN));
    }
}
