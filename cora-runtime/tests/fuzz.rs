//! Readers of files that others wrote: any bytes give values or an error with a code, and quickly.

use cora_runtime::array::Shape;
use cora_runtime::npy::NpyArray;
use cora_runtime::{Error, lengths};
use rand::prelude::*;

/// A good file of each kind of element.
fn good() -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    for (kind, size) in [("<f4", 4), ("<f8", 8), ("<i8", 8), ("<i4", 4), ("|b1", 1), ("<i2", 2), ("|i1", 1), ("<f2", 2)]
    {
        for shape in ["(3,)", "(2, 2)", "()", "(0,)", "(2, 0, 5)"] {
            let mut header = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}");
            while (10 + header.len() + 1) % 64 != 0 {
                header.push(' ');
            }
            header.push('\n');
            let mut file = b"\x93NUMPY\x01\x00".to_vec();
            file.extend((header.len() as u16).to_le_bytes());
            file.extend(header.as_bytes());
            file.extend(std::iter::repeat_n(1u8, 4 * size));
            out.push(file);
        }
    }
    out
}

fn mutate(rng: &mut SmallRng, file: &mut Vec<u8>) {
    for _ in 0..rng.random_range(1..=4) {
        let at = rng.random_range(0..file.len().max(1));
        match rng.random_range(0..7) {
            0 => file.truncate(at),
            1 if at < file.len() => file[at] = rng.random(),
            2 if at < file.len() => file[at] ^= 1 << rng.random_range(0..8),
            3 => file.insert(at.min(file.len()), *b"09(),'-<f[{"[..].choose(rng).unwrap_or(&b'0')),
            4 if at < file.len() => {
                file.remove(at);
            }
            5 => {
                // A number becomes huge.
                let digits = b"99999999999999999999";
                let from = at.min(file.len());
                file.splice(from..from, digits.iter().copied());
            }
            _ => file.extend((0..rng.random_range(0..9)).map(|_| rng.random::<u8>())),
        }
    }
}

fn is_coded(e: &Error) -> bool {
    e.code().len() == 5 && e.code().starts_with("E0") && !e.to_string().is_empty()
}

#[test]
fn npy_bytes() {
    let (mut rng, files) = (SmallRng::seed_from_u64(1), good());
    let (mut read, mut refused) = (0, 0);
    for n in 0..20_000 {
        let mut file = files[n % files.len()].clone();
        if n >= files.len() {
            mutate(&mut rng, &mut file);
        }
        match NpyArray::from_reader("x.npy", &file[..]) {
            Ok(array) => {
                read += 1;
                assert!(array.data.len() <= file.len(), "more data than there are bytes");
                let _ = array.into_array(cora_runtime::abi::DType::F32, Shape::Dense(vec![3]));
            }
            Err(e) => {
                refused += 1;
                assert!(is_coded(&e), "{e}");
            }
        }
    }
    assert!(read > 100 && refused > 100, "{read} read, {refused} refused");
}

#[test]
fn lengths_text() {
    let mut rng = SmallRng::seed_from_u64(2);
    let words =
        ["1", "0", "-1", " ", "\n", "\t", "99999999999999999999", "x", "1.5", "\u{e9}", "+3", "\r\n", ",", "0x10"];
    for _ in 0..20_000 {
        let n = rng.random_range(0..20);
        let text: String = (0..n).map(|_| *words.choose(&mut rng).unwrap_or(&"1")).collect();
        match lengths::from_bytes("l.txt", text.as_bytes()) {
            Ok(all) => assert!(all.iter().all(|&v| v >= 0)),
            Err(e) => assert!(is_coded(&e), "{e}"),
        }
    }
}
