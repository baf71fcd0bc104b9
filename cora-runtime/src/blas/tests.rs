//! Products in every orientation, against loops.

#[path = "../../../tests/support/skip.rs"]
mod skip;

use super::*;
use skip::skip;

/// A matrix of `rows` x `columns` in a larger one: its elements, strides, and the buffer.
fn matrix(rows: i64, columns: i64, by_rows: bool, first: f64) -> (Vec<f64>, i64, i64) {
    let (lines, length) = if by_rows { (rows, columns) } else { (columns, rows) };
    let distance = length + 3;
    let data = (0..(lines * distance + 1)).map(|x| first + (x % 7) as f64).collect();
    if by_rows { (data, distance, 1) } else { (data, 1, distance) }
}

#[test]
fn every_orientation() {
    let Ok(gemm) = gemm_f64() else {
        skip("every_orientation: no BLAS");
        return;
    };
    let sizes = [[0, 3, 2], [3, 0, 2], [2, 3, 0], [1, 1, 1], [1, 4, 3], [4, 1, 3], [4, 3, 1], [5, 7, 6], [-1, 2, 2]];
    for ([m, n, k], orientation) in sizes.into_iter().flat_map(|s| (0..16).map(move |o| (s, o))) {
        let by_rows = |bit: i32| orientation & bit == 0;
        let (mut c, c_row, c_column) = matrix(m.max(0), n, by_rows(1), 1.0);
        let (a, a_row, a_column) = matrix(m.max(0), k, by_rows(2), -2.0);
        let (b, b_row, b_column) = matrix(k, n, by_rows(4), 0.5);
        let accumulate = i64::from(by_rows(8));
        if accumulate == 0 && m * n > 0 {
            // What the result held is not read.
            c[0] = f64::NAN;
        }
        let mut want = c.clone();
        for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
            let at = (i * c_row + j * c_column) as usize;
            let sum: f64 =
                (0..k).map(|p| a[(i * a_row + p * a_column) as usize] * b[(p * b_row + j * b_column) as usize]).sum();
            want[at] = sum + if accumulate == 0 { 0.0 } else { c[at] };
        }
        // SAFETY: the matrices lie in their vectors, and lines are further apart than they are long.
        unsafe {
            let (pc, pa, pb) = (c.as_mut_ptr().cast(), a.as_ptr().cast(), b.as_ptr().cast());
            gemm(m, n, k, pc, c_row, c_column, pa, a_row, a_column, pb, b_row, b_column, accumulate);
        }
        assert_eq!(c, want, "{m} x {n} x {k}, orientation {orientation}");
    }
}

#[test]
fn no_library() {
    let why = find(Some("/nowhere/libblas.so")).err().expect("there is none");
    assert!(why.contains("/nowhere/libblas.so"), "{why}");
    let why = find(Some("libc.so.6")).err().expect("libc is no BLAS");
    assert!(why.contains("cblas_sgemm"), "{why}");
}
