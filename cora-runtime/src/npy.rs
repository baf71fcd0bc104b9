//! `.npy` files: versions 1 to 3, C order, little-endian.
//!
//! A ragged array is a one-dimensional file. `bf16`, which the format does not know, is written as its bits, `<u2`,
//! and read from `<u2` or from the two-byte raw type that other libraries write.

use crate::abi::DType;
use crate::array::{RaggedArray, Shape};
use crate::error::{Error, Result};
use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::Path;

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// Longer headers are no arrays of plain numbers.
const MAX_HEADER: u32 = 1 << 16;

/// The contents of a `.npy` file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NpyArray {
    /// Where it is from, for messages.
    pub path: String,
    /// Element type as the file spells it, such as `<f4`.
    pub descr: String,
    /// Extents.
    pub shape: Vec<u64>,
    /// Elements, in C order.
    pub data: Vec<u8>,
}

fn io(path: &str) -> impl Fn(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { path: path.clone(), source }
}

impl NpyArray {
    /// Reads a file.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Npy`], [`Error::NpyTruncated`], [`Error::NpyFortran`].
    pub fn read(path: &Path) -> Result<NpyArray> {
        let name = path.display().to_string();
        let file = File::open(path).map_err(io(&name))?;
        NpyArray::from_reader(&name, BufReader::new(file))
    }

    /// Reads a file's bytes; `path` is for messages.
    ///
    /// # Errors
    /// As [`NpyArray::read`].
    pub fn from_reader(path: &str, mut from: impl Read) -> Result<NpyArray> {
        let bad = |why: &str| Error::Npy { path: path.to_owned(), why: why.to_owned() };
        let exactly = |from: &mut dyn Read, bytes: &mut [u8]| {
            from.read_exact(bytes).map_err(|e| match e.kind() {
                std::io::ErrorKind::UnexpectedEof => bad("its header is incomplete"),
                _ => io(path)(e),
            })
        };
        let mut start = [0; 8];
        exactly(&mut from, &mut start)?;
        if &start[..6] != MAGIC {
            return Err(bad("wrong magic number"));
        }
        let mut len = [0; 4];
        match start[6] {
            1 => exactly(&mut from, &mut len[..2])?,
            2 | 3 => exactly(&mut from, &mut len)?,
            _ => return Err(bad("unknown version")),
        }
        let len = u32::from_le_bytes(len);
        if len > MAX_HEADER {
            return Err(bad("its header is too long"));
        }
        let mut header = vec![0; len as usize];
        exactly(&mut from, &mut header)?;
        let header = std::str::from_utf8(&header).map_err(|_| bad("its header is not text"))?;
        let field = |name| dict_value(header, name).ok_or_else(|| bad("its header is malformed"));
        let descr = quoted(field("descr")?).ok_or_else(|| bad("its elements are not plain numbers"))?;
        let shape = tuple(field("shape")?).ok_or_else(|| bad("its shape is malformed"))?;
        let fortran = field("fortran_order")?.starts_with("True");
        if fortran && shape.len() > 1 {
            return Err(Error::NpyFortran { path: path.to_owned() });
        }
        let size = element_size(descr).ok_or_else(|| bad(&format!("unknown element type `{descr}`")))?;
        let count = Shape::Dense(shape.clone()).elements();
        let want = count.and_then(|n| n.checked_mul(size)).ok_or_else(|| bad("its shape is too large"))?;
        // Memory grows with the bytes that are there, not with what the header claims.
        let mut data = Vec::new();
        from.by_ref().take(want).read_to_end(&mut data).map_err(io(path))?;
        let got = data.len() as u64;
        if got < want {
            return Err(Error::NpyTruncated { path: path.to_owned(), want, got });
        }
        if from.read(&mut [0]).map_err(io(path))? != 0 {
            return Err(bad(&format!("bytes follow the {want} that its shape needs")));
        }
        Ok(NpyArray { path: path.to_owned(), descr: descr.to_owned(), shape, data })
    }

    /// The array as one of a tensor. A dense tensor's file has its shape, or is one-dimensional.
    ///
    /// # Errors
    /// [`Error::DType`] naming both types, [`Error::Elements`], [`Error::NpyShape`], [`Error::Bool`].
    pub fn into_array(self, dtype: DType, shape: Shape) -> Result<RaggedArray> {
        if !accepts(dtype, &self.descr) {
            let got = describe(&self.descr);
            return Err(Error::DType { what: self.path, want: dtype, got });
        }
        let want = shape.elements().unwrap_or(u64::MAX);
        let got = Shape::Dense(self.shape.clone()).elements().unwrap_or(u64::MAX);
        if want != got {
            return Err(Error::Elements { what: self.path, want, got });
        }
        if self.shape.len() != 1 && self.shape != shape.npy() {
            return Err(Error::NpyShape { path: self.path, want: shape.npy(), got: self.shape });
        }
        let odd = self.data.iter().position(|&b| b > 1).filter(|_| dtype == DType::Bool);
        if let Some(at) = odd {
            return Err(Error::Bool { what: self.path, element: at as u64, value: self.data[at] });
        }
        RaggedArray::from_bytes(dtype, shape, &self.data)
    }

    /// The values of a one-dimensional integer array.
    ///
    /// # Errors
    /// [`Error::NotIntegers`], [`Error::Npy`] for more dims or a value beyond `i64`.
    pub fn to_integers(&self) -> Result<Vec<i64>> {
        let (order, kind, size) = split(&self.descr);
        if self.shape.len() != 1 {
            let why = format!("{} dims, lengths have one", self.shape.len());
            return Err(Error::Npy { path: self.path.clone(), why });
        }
        if !matches!(kind, 'i' | 'u') || order == '>' {
            return Err(Error::NotIntegers { path: self.path.clone(), got: describe(&self.descr) });
        }
        let chunks = self.data.chunks_exact(size.max(1) as usize);
        let value = |c: &[u8]| {
            let sign = if kind == 'i' && c.last().is_some_and(|b| b & 0x80 != 0) { 0xFF } else { 0 };
            let wide = std::array::from_fn(|i| c.get(i).copied().unwrap_or(sign));
            let value = i64::from_le_bytes(wide);
            let why = || "a value is beyond 64-bit integers".to_owned();
            let fits = kind == 'i' || value >= 0;
            fits.then_some(value).ok_or_else(|| Error::Npy { path: self.path.clone(), why: why() })
        };
        chunks.map(value).collect()
    }
}

/// Writes an array to a file.
///
/// # Errors
/// [`Error::Io`].
pub fn write(path: &Path, array: &RaggedArray) -> Result<()> {
    let name = path.display().to_string();
    let mut file = File::create(path).map_err(io(&name))?;
    write_to(&mut file, array).map_err(io(&name))
}

/// Writes an array as the bytes of a file.
///
/// # Errors
/// Those of `to`.
pub fn write_to(mut to: impl Write, array: &RaggedArray) -> std::io::Result<()> {
    let descr = match array.dtype() {
        DType::Bool => "|b1",
        DType::I8 => "|i1",
        DType::I16 => "<i2",
        DType::I32 => "<i4",
        DType::I64 => "<i8",
        DType::F16 => "<f2",
        DType::BF16 => "<u2",
        DType::F32 => "<f4",
        DType::F64 => "<f8",
    };
    let dims: Vec<String> = array.shape().npy().iter().map(u64::to_string).collect();
    let comma = if dims.len() == 1 { "," } else { "" };
    let dims = dims.join(", ");
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({dims}{comma}), }}");
    // The data starts at a multiple of 64 bytes. At most 16 dims keep the header within version 1.
    let unpadded = 10 + header.len() + 1;
    header.extend(std::iter::repeat_n(' ', unpadded.next_multiple_of(64) - unpadded));
    header.push('\n');
    let len = u16::try_from(header.len()).map_err(std::io::Error::other)?;
    to.write_all(MAGIC)?;
    to.write_all(&[1, 0])?;
    to.write_all(&len.to_le_bytes())?;
    to.write_all(header.as_bytes())?;
    to.write_all(array.bytes())
}

/// Byte order, kind and size of an element type such as `<f4`; size 0 where malformed.
fn split(descr: &str) -> (char, char, u64) {
    let mut chars = descr.chars();
    let (order, kind) = (chars.next().unwrap_or(' '), chars.next().unwrap_or(' '));
    (order, kind, chars.as_str().parse().unwrap_or(0))
}

fn element_size(descr: &str) -> Option<u64> {
    let (order, kind, size) = split(descr);
    let known = matches!(order, '<' | '>' | '|' | '=') && matches!(kind, 'b' | 'i' | 'u' | 'f' | 'c' | 'V');
    (known && (1..=32).contains(&size)).then_some(size)
}

fn accepts(dtype: DType, descr: &str) -> bool {
    let (order, kind, size) = split(descr);
    let kind_fits = match dtype {
        DType::Bool => matches!(kind, 'b' | 'u'),
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => kind == 'i',
        DType::F16 | DType::F32 | DType::F64 => kind == 'f',
        DType::BF16 => matches!(kind, 'u' | 'V'),
    };
    kind_fits && size == dtype.size() as u64 && (order == '<' || order == '|' || size == 1)
}

/// An element type for people, such as ``f4 (`<f4`)`` spelt as programs do.
fn describe(descr: &str) -> String {
    let (order, kind, size) = split(descr);
    let name = match kind {
        'b' => "bool".to_owned(),
        'i' | 'u' | 'f' => format!("{kind}{}", size * 8),
        _ => return format!("`{descr}`"),
    };
    let big = if order == '>' { " big-endian" } else { "" };
    format!("{name}{big} (`{descr}`)")
}

/// The text after `'name':` in a Python dictionary.
fn dict_value<'a>(header: &'a str, name: &str) -> Option<&'a str> {
    let rest = header.trim().strip_prefix('{')?;
    let key = [format!("'{name}'"), format!("\"{name}\"")];
    let (at, len) = key.iter().find_map(|k| rest.find(k.as_str()).map(|at| (at, k.len())))?;
    Some(rest[at + len..].trim_start().strip_prefix(':')?.trim_start())
}

fn quoted(text: &str) -> Option<&str> {
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    text[1..].split_once(quote).map(|(inside, _)| inside)
}

fn tuple(text: &str) -> Option<Vec<u64>> {
    let (inside, _) = text.strip_prefix('(')?.split_once(')')?;
    let parts = inside.split(',').map(str::trim);
    parts.filter(|p| !p.is_empty()).map(|p| p.trim_end_matches('L').parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(version: u8, header: &str, data: &[u8]) -> Vec<u8> {
        let len = (header.len() as u32).to_le_bytes();
        let len = if version == 1 { &len[..2] } else { &len[..] };
        [MAGIC, &[version, 0][..], len, header.as_bytes(), data].concat()
    }

    fn header(descr: &str, fortran: &str, shape: &str) -> String {
        format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}\n")
    }

    fn parse(bytes: &[u8]) -> Result<NpyArray> {
        NpyArray::from_reader("a.npy", bytes)
    }

    #[test]
    fn round_trips() {
        let all = [
            DType::Bool,
            DType::I8,
            DType::I16,
            DType::I32,
            DType::I64,
            DType::F16,
            DType::BF16,
            DType::F32,
            DType::F64,
        ];
        let shapes = [
            Shape::Dense(vec![2, 3]),
            Shape::Dense(vec![]),
            Shape::Dense(vec![0, 4]),
            Shape::Ragged { rank: 3, elements: 5 },
        ];
        for dtype in all {
            for shape in &shapes {
                let n = shape.elements().unwrap() as usize * dtype.size();
                let bytes: Vec<u8> = (0..n).map(|i| (i % 2) as u8).collect();
                let a = RaggedArray::from_bytes(dtype, shape.clone(), &bytes).unwrap();
                let mut out = Vec::new();
                write_to(&mut out, &a).unwrap();
                assert_eq!((out.len() - n) % 64, 0);
                let back = parse(&out).unwrap().into_array(dtype, shape.clone()).unwrap();
                assert_eq!(back, a);
            }
        }
    }

    #[test]
    fn versions_and_spellings() {
        for version in [1, 2, 3] {
            let a = parse(&file(version, &header("<i4", "False", "(2,)"), &[1, 0, 0, 0, 255, 255, 255, 255]));
            assert_eq!(a.unwrap().to_integers().unwrap(), [1, -1]);
        }
        let u = parse(&file(1, &header("|u1", "True", "(2L,)"), &[7, 200])).unwrap();
        assert_eq!(u.to_integers().unwrap(), [7, 200]);
        let big = parse(&file(1, &header("<u8", "False", "(1,)"), &[255; 8])).unwrap();
        assert_eq!(big.to_integers().unwrap_err().code(), "E0324");
    }

    #[test]
    fn damaged_files_are_typed_errors() {
        let ok = file(1, &header("<f4", "False", "(2, 2)"), &[0; 16]);
        let code = |bytes: &[u8]| parse(bytes).unwrap_err().code();
        (0..ok.len()).for_each(|n| assert!(matches!(code(&ok[..n]), "E0324" | "E0325"), "{n}"));
        assert_eq!(code(&ok[..ok.len() - 1]), "E0325");
        assert_eq!(code(b"PK\x03\x04 not an array"), "E0324");
        assert_eq!(code(&file(9, "", &[])), "E0324");
        assert_eq!(code(&file(1, &header("<f4", "True", "(2, 2)"), &[0; 16])), "E0326");
        for h in [
            header("<f4", "False", "(2, x)"),
            header("<f4", "False", "(-2,)"),
            header("<f4", "False", "2"),
            header("<O8", "False", "(2,)"),
            header("é", "False", "(2,)"),
            header("<f4", "False", "(18446744073709551615, 3)"),
            "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }".into(),
            "{}".into(),
            String::new(),
        ] {
            assert_eq!(code(&file(1, &h, &[0; 16])), "E0324", "{h}");
        }
        let huge = header("<f4", "False", "(4611686018427387903,)");
        assert_eq!(code(&file(1, &huge, &[0; 16])), "E0325");
        assert_eq!(code(&file(2, &"x".repeat(1 << 17), &[])), "E0324");
    }

    #[test]
    fn wrong_types_and_counts_are_named() {
        let a = parse(&file(1, &header("<f8", "False", "(2,)"), &[0; 16])).unwrap();
        let dense = |n| Shape::Dense(vec![n]);
        let e = a.clone().into_array(DType::F32, dense(2)).unwrap_err();
        let text = "a.npy has elements of type f64 (`<f8`), f32 is needed";
        assert_eq!((e.code(), e.to_string()), ("E0317", text.to_owned()));
        assert_eq!(a.clone().into_array(DType::F64, dense(3)).unwrap_err().code(), "E0316");
        assert_eq!(a.to_integers().unwrap_err().code(), "E0317");
        let big = parse(&file(1, &header(">f8", "False", "(2,)"), &[0; 16])).unwrap();
        assert!(big.into_array(DType::F64, dense(2)).unwrap_err().to_string().contains("big-endian"));
        let square = parse(&file(1, &header("<f8", "False", "(1, 2)"), &[0; 16])).unwrap();
        let other = square.into_array(DType::F64, Shape::Dense(vec![2, 1]));
        assert_eq!(other.unwrap_err().code(), "E0333");
        let b = parse(&file(1, &header("|b1", "False", "(2,)"), &[1, 2])).unwrap();
        assert_eq!(b.into_array(DType::Bool, dense(2)).unwrap_err().code(), "E0319");
    }
}
