//! The paper's analytic figures for one batch of lengths: work, prelude memory, activation memory.
//!
//! Sources: section 7.2 and the appendix of the paper, and the constants of its published artifact, which the
//! text leaves out. The model is the encoder layer of BERT's size: 8 heads of 64, model dimension 512, hidden
//! dimension 2048, fp32. A batch is *padded in bulk* by one more sequence that brings the number of tokens to a
//! multiple of 64 ([`bulk_padded`]); the partial padding of attention is to multiples of 16, 32 and 64.

/// Heads.
pub const HEADS: i64 = 8;
/// Size of a head.
pub const HEAD_SIZE: i64 = 64;
/// Model dimension.
pub const MODEL: i64 = 512;
/// Hidden dimension of the feed-forward part.
pub const HIDDEN: i64 = 2048;

/// `x` rounded up to a multiple of `p`.
pub fn round_up(p: i64, x: i64) -> i64 {
    (x + p - 1).div_euclid(p) * p
}

/// The batch with the pad sequence that brings its sum to a multiple of 64: one of 64 where it is one already.
pub fn bulk_padded(lengths: &[i64]) -> Vec<i64> {
    let sum: i64 = lengths.iter().sum();
    let pad = round_up(64, sum) - sum;
    let mut p = lengths.to_vec();
    p.push(if pad == 0 { 64 } else { pad });
    p
}

/// The mean of `f` over batches; of none, zero.
pub fn mean<T>(batches: &[T], f: impl Fn(&T) -> f64) -> f64 {
    if batches.is_empty() { 0.0 } else { batches.iter().map(f).sum::<f64>() / batches.len() as f64 }
}

/// The geometric mean of positive numbers; of none, one.
pub fn geomean(values: &[f64]) -> f64 {
    if values.is_empty() { 1.0 } else { (values.iter().map(|v| v.ln()).sum::<f64>() / values.len() as f64).exp() }
}

fn longest(lengths: &[i64]) -> i64 {
    lengths.iter().copied().max().unwrap_or(0)
}

fn sum(lengths: &[i64], f: impl Fn(i64) -> i64) -> i64 {
    lengths.iter().map(|&l| f(l)).sum()
}

/// Work of one encoder layer on one batch, in 10^9 multiply-adds (any other operation counts as one).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Flops {
    /// Every sequence padded to the longest.
    pub dense: f64,
    /// With the paper's bulk and partial padding.
    pub real: f64,
    /// Without padding.
    pub ideal: f64,
}

/// [`Flops`] of one encoder layer on a batch.
pub fn flops(lengths: &[i64]) -> Flops {
    let (d, f) = (MODEL, HIDDEN);
    // Proj1, Proj2, layer norm, FF1, FF2, layer norm: a token each.
    let token = (3 * d * d + 3 * d) + (d * d + d) + 4 * d + (f * d + 2 * f) + (f * d + d) + 4 * d;
    // Then QK^T, softmax (five operations an element) and AttnV.
    let total = |tokens: i64, qkt: i64, softmax: i64, attnv: i64| {
        let attention = HEADS * HEAD_SIZE * (qkt + attnv) + 5 * HEADS * softmax;
        (token * tokens + attention) as f64 / 1e9
    };
    let (n, m) = (lengths.len() as i64, longest(lengths));
    let p = bulk_padded(lengths);
    let square = sum(lengths, |l| l * l);
    Flops {
        dense: total(n * m, n * m * m, n * m * m, n * m * m),
        real: total(
            sum(&p, |l| l),
            sum(&p, |l| round_up(64, l) * round_up(64, l)),
            sum(&p, |l| l * round_up(32, l)),
            sum(&p, |l| round_up(16, l) * round_up(64, l)),
        ),
        ideal: total(sum(lengths, |l| l), square, square, square),
    }
}

/// Bytes/1024 of the prelude's tables of a six-layer encoder, by the model behind the paper's table.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PreludeMemory {
    /// Storage in the manner of a sparse compiler: positions and coordinates of each level.
    pub sparse: f64,
    /// The paper's storage tables, built by every operator for itself.
    pub storage_redundant: f64,
    /// The paper's tables of fused loops, built by every operator for itself.
    pub fusion_redundant: f64,
    /// Storage tables, each built once.
    pub storage_optimized: f64,
    /// Tables of fused loops, each built once.
    pub fusion_optimized: f64,
}

/// [`PreludeMemory`] for a batch.
pub fn prelude_memory(lengths: &[i64]) -> PreludeMemory {
    let p = bulk_padded(lengths);
    let n = p.len() as i64;
    let row_offsets = n + 1;
    let positions = 3 * n + 1;
    let attention = (n + 1) + HEADS * sum(&p, |l| round_up(64, l)) + 1;
    // Fused tokens, tiles of 64 x 64 of QK^T, tiles of 32 of AttnV.
    let tokens = 2 * sum(&p, |l| l) + n;
    let qkt = 2 * sum(&p, |l| (round_up(64, l) / 64).pow(2)) + n + 1;
    let attnv = 2 * sum(&p, |l| round_up(32, l) / 32) + n + 1;
    let kb = |entries: i64| (4 * entries) as f64 / 1024.0;
    PreludeMemory {
        sparse: kb(14 * row_offsets + 4 * positions + 4 * attention),
        storage_redundant: kb(22 * row_offsets),
        fusion_redundant: kb(7 * tokens + qkt + attnv),
        storage_optimized: kb(9 * row_offsets),
        fusion_optimized: kb(tokens + qkt + attnv),
    }
}

/// Forward activations of one encoder layer, in MiB.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ActivationMemory {
    /// Every sequence padded to the longest, attention to a multiple of 64.
    pub dense: f64,
    /// Ragged, as published: bulk padding is counted, partial padding is not.
    pub ragged: f64,
}

/// [`ActivationMemory`] for a batch.
pub fn activation_memory(lengths: &[i64]) -> ActivationMemory {
    // Input; Q, K and V; scores and weights; attention's result; Proj2 and layer norm; hidden; FF2 and layer norm.
    let mib = |t: i64, t64: i64, square: i64| {
        let d = MODEL;
        let elements = d * t + 3 * d * t64 + 2 * HEADS * square + d * t64 + 2 * d * t + HIDDEN * t + 2 * d * t;
        (4 * elements) as f64 / (1024.0 * 1024.0)
    };
    let (n, m) = (lengths.len() as i64, longest(lengths));
    let m64 = round_up(64, m);
    let p = bulk_padded(lengths);
    let tokens = sum(&p, |l| l);
    ActivationMemory { dense: mib(n * m, n * m64, n * m64 * m64), ragged: mib(tokens, tokens, sum(&p, |l| l * l)) }
}

/// The greatest [`ActivationMemory`] over batches, part by part.
pub fn peak_activation_memory(batches: &[&[i64]]) -> ActivationMemory {
    batches.iter().map(|b| activation_memory(b)).fold(ActivationMemory::default(), |a, b| ActivationMemory {
        dense: a.dense.max(b.dense),
        ragged: a.ragged.max(b.ragged),
    })
}
