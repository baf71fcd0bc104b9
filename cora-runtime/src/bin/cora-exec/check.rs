//! Compares outputs with the stored ones.

use crate::report::{Check, Report};
use cora_runtime::Result;
use cora_runtime::abi::{DType, ProgramDesc};
use cora_runtime::array::RaggedArray;
use cora_runtime::artifact::Sample;

/// Compares each output, adds a row to the report, and gives a message for each that differs.
///
/// # Errors
/// Stored elements that do not fit the output. Outputs that differ are no error here.
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
        let c = compare(t.dtype, array.bytes(), want.bytes(), &sample.allowed[*n]);
        if let Some((at, got, want)) = &c.differs {
            failed.push(format!(
                "error[E0700]: output `{}` differs from the stored one at element {at}: {got}, expected {want} (allowed {:.3e})",
                t.name, c.allowed
            ));
        }
        report.checks.push(Check {
            output: t.name.clone(),
            elements: c.elements,
            difference: c.greatest,
            allowed: c.allowed,
            ok: c.differs.is_none(),
        });
    }
    Ok(failed)
}

struct Comparison {
    elements: usize,
    /// The difference of the element that differs most for what is allowed of it, and that.
    greatest: f64,
    allowed: f64,
    /// The first element that differs by more than is allowed of it, with both values.
    differs: Option<(usize, String, String)>,
}

impl Comparison {
    fn element(&mut self, at: usize, error: f64, allowed: f64, texts: impl FnOnce() -> (String, String)) {
        if error * self.allowed > self.greatest * allowed || (self.allowed == 0.0 && error >= self.greatest) {
            (self.greatest, self.allowed) = (error, allowed);
        }
        if error > allowed && self.differs.is_none() {
            let (got, want) = texts();
            self.differs = Some((at, got, want));
        }
    }
}

/// Compares element by element; `allowed` holds a difference for each, or nothing where they have to be the same.
fn compare(dtype: DType, got: &[u8], want: &[u8], allowed: &[f32]) -> Comparison {
    let size = dtype.size();
    let pairs = got.chunks_exact(size).zip(want.chunks_exact(size)).enumerate();
    let mut c = Comparison { elements: got.len() / size, greatest: 0.0, allowed: 0.0, differs: None };
    let is_float = matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64);
    for (i, (g, w)) in pairs {
        let allowed = allowed.get(i).map_or(0.0, |&a| f64::from(a));
        if is_float {
            let (g, w) = (float(dtype, g), float(dtype, w));
            if g == w || (g.is_nan() && w.is_nan()) {
                continue;
            }
            let error = if g.is_finite() && w.is_finite() { (g - w).abs() } else { f64::INFINITY };
            c.element(i, error, allowed, || (g.to_string(), w.to_string()));
        } else if g != w {
            let (g, w) = (integer(g), integer(w));
            c.element(i, g.abs_diff(w) as f64, allowed, || (g.to_string(), w.to_string()));
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
        let c = compare(DType::I64, &a.to_le_bytes(), &b.to_le_bytes(), &[]);
        assert_eq!(c.differs, Some((0, a.to_string(), b.to_string())));
        assert!(compare(DType::I64, &a.to_le_bytes(), &a.to_le_bytes(), &[]).differs.is_none());
        assert_eq!((integer(&[0xff]), integer(&[0x7f, 0xff])), (-1, -129));
    }

    #[test]
    fn floats_may_differ_by_the_tolerance() {
        let of = |g: f32, w: f32| compare(DType::F32, &g.to_le_bytes(), &w.to_le_bytes(), &[1e-3]).differs.is_none();
        assert!(of(1.0, 1.0005) && !of(1.0, 1.1));
        assert!(of(f32::NAN, f32::NAN) && of(f32::INFINITY, f32::INFINITY));
        assert!(!of(f32::INFINITY, 1.0) && !of(1.0, f32::NAN));
    }
}
