//! Lengths files: integers separated by white space, or a one-dimensional integer `.npy` file.

use crate::error::{Error, Result};
use crate::npy::NpyArray;
use std::path::Path;

/// Reads all lengths of a file, `.npy` or text by its first bytes.
///
/// # Errors
/// [`Error::Io`], [`Error::LengthSyntax`], [`Error::LengthNegative`] and those of [`NpyArray::read`].
pub fn read(path: &Path) -> Result<Vec<i64>> {
    let name = path.display().to_string();
    let bytes = std::fs::read(path).map_err(|source| Error::Io { path: name.clone(), source })?;
    from_bytes(&name, &bytes)
}

/// As [`read`], from a file's bytes; `path` is for messages.
///
/// # Errors
/// As [`read`].
pub fn from_bytes(path: &str, bytes: &[u8]) -> Result<Vec<i64>> {
    if bytes.starts_with(b"\x93NUMPY") {
        let values = NpyArray::from_reader(path, bytes)?.to_integers()?;
        return match values.iter().position(|&v| v < 0) {
            Some(i) => Err(Error::LengthNegative { path: path.to_owned(), at: format!("entry {i}"), value: values[i] }),
            None => Ok(values),
        };
    }
    parse(path, &String::from_utf8_lossy(bytes))
}

/// Parses integers separated by white space.
///
/// # Errors
/// [`Error::LengthSyntax`] and [`Error::LengthNegative`], with the line.
pub fn parse(path: &str, text: &str) -> Result<Vec<i64>> {
    // Some editors begin a file with the mark of its encoding.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut values = Vec::new();
    for (i, line) in text.lines().enumerate() {
        for word in line.split_ascii_whitespace() {
            let value: i64 = word.parse().map_err(|_| Error::LengthSyntax {
                path: path.to_owned(),
                line: i + 1,
                text: word.chars().take(40).flat_map(char::escape_debug).collect(),
            })?;
            if value < 0 {
                let at = format!("line {}", i + 1);
                return Err(Error::LengthNegative { path: path.to_owned(), at, value });
            }
            values.push(value);
        }
    }
    Ok(values)
}

/// The `need` lengths of a function after the first `skip`; more may follow.
///
/// # Errors
/// [`Error::LengthsTooFew`].
pub fn select<'a>(path: &str, function: &str, values: &'a [i64], skip: u64, need: u64) -> Result<&'a [i64]> {
    let range = usize::try_from(skip).ok().zip(skip.checked_add(need).and_then(|e| usize::try_from(e).ok()));
    range.and_then(|(lo, hi)| values.get(lo..hi)).ok_or_else(|| {
        let have = values.len() as u64;
        Error::LengthsTooFew { path: path.to_owned(), function: function.to_owned(), need, skip, have }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::DType;
    use crate::array::{RaggedArray, Shape};

    #[test]
    fn text_and_npy() {
        assert_eq!(parse("l", "3\n 4\t5\n\n6").unwrap(), [3, 4, 5, 6]);
        assert_eq!(parse("l", "").unwrap(), [0; 0]);
        let npy = |v: &[i32]| {
            let shape = Shape::Dense(vec![v.len() as u64]);
            let mut out = Vec::new();
            let a = RaggedArray::from_slice(DType::I32, shape, v).unwrap();
            crate::npy::write_to(&mut out, &a).unwrap();
            from_bytes("l.npy", &out)
        };
        assert_eq!(npy(&[7, 0]).unwrap(), [7, 0]);
        assert_eq!(npy(&[7, -1]).unwrap_err().to_string(), "l.npy, entry 1: length -1 is negative");
    }

    #[test]
    fn errors_name_the_line() {
        let text = |s| parse("l.txt", s).unwrap_err().to_string();
        assert_eq!(text("1\n2 x3\n"), "l.txt, line 2: `x3` is not an integer of 64 bits");
        assert_eq!(text("1\n\n-2"), "l.txt, line 3: length -2 is negative");
        assert_eq!(text("99999999999999999999"), "l.txt, line 1: `99999999999999999999` is not an integer of 64 bits");
        assert_eq!(from_bytes("l", &[0xFF, 0xFE]).unwrap_err().code(), "E0327");
        assert_eq!(read(Path::new("/no/such/file")).unwrap_err().code(), "E0330");
    }

    #[test]
    fn selection() {
        let v = [1, 2, 3, 4];
        assert_eq!(select("l", "f", &v, 1, 2).unwrap(), [2, 3]);
        assert_eq!(select("l", "f", &v, 4, 0).unwrap(), [0; 0]);
        let e = select("l", "f", &v, 2, 3).unwrap_err().to_string();
        assert_eq!(e, "l: extent function `f` needs 3 entries after skipping 2, but there are 4");
        assert!(select("l", "f", &v, u64::MAX, 2).is_err());
    }
}
