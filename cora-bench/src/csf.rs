//! The tables that past work needs for the tensors of a six-layer encoder, built for comparison.
//!
//! A sparse compiler stores a ragged tensor in compressed levels: an array of positions for each level
//! whose rows vary, with one entry a row and one for the end, for each tensor by itself. Token tensors
//! have one row a sequence, Q, K and V three, and attention matrices a level of sequences and one of
//! rows, padded as in the paper's model of prelude memory (`analytic::prelude_memory`).

use crate::analytic::{HEADS, bulk_padded, round_up};

/// Tensors of the six layers with one row a sequence.
const TOKEN_TENSORS: usize = 14;
/// Tensors with a row for each of query, key and value.
const QKV_TENSORS: usize = 4;
/// Attention matrices.
const ATTENTION_TENSORS: usize = 4;

/// Position arrays, by tensor and level.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CsfTables {
    /// Each array's entries.
    pub positions: Vec<Vec<i32>>,
}

/// Running sums of the sizes of rows, and their total.
fn positions(rows: impl ExactSizeIterator<Item = i64>) -> Vec<i32> {
    let mut out = Vec::with_capacity(rows.len() + 1);
    let mut at = 0;
    for n in rows {
        out.push(at);
        at += n as i32;
    }
    out.push(at);
    out
}

impl CsfTables {
    /// The arrays of one batch.
    pub fn build(lengths: &[i64]) -> Self {
        let p = bulk_padded(lengths);
        let mut out = Self::default();
        for _ in 0..TOKEN_TENSORS {
            out.positions.push(positions(p.iter().copied()));
        }
        for _ in 0..QKV_TENSORS {
            let rows: Vec<i64> = p.iter().flat_map(|&l| [l; 3]).collect();
            out.positions.push(positions(rows.into_iter()));
        }
        for _ in 0..ATTENTION_TENSORS {
            let padded = || p.iter().map(|&l| round_up(64, l));
            out.positions.push(positions(p.iter().map(|&l| HEADS * round_up(64, l))));
            let rows: Vec<i64> = padded().flat_map(|l| std::iter::repeat_n(l, (HEADS * l) as usize)).collect();
            out.positions.push(positions(rows.into_iter()));
        }
        out
    }

    /// Bytes of all arrays.
    pub fn bytes(&self) -> u64 {
        self.positions.iter().map(|p| size_of_val(p.as_slice()) as u64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analytic::prelude_memory;

    #[test]
    fn sizes_are_those_of_the_model() {
        for lengths in [vec![1, 17, 512, 64], vec![0], vec![30; 128]] {
            let bytes = CsfTables::build(&lengths).bytes();
            assert_eq!(bytes as f64 / 1024.0, prelude_memory(&lengths).sparse, "{lengths:?}");
        }
    }

    #[test]
    fn positions_end_with_the_number_of_elements() {
        let t = CsfTables::build(&[3, 5]);
        assert!(t.positions.iter().all(|p| p.is_sorted() && p[0] == 0));
        let elements: i64 = bulk_padded(&[3, 5]).iter().sum();
        assert_eq!(t.positions[0].last(), Some(&(elements as i32)));
    }
}
