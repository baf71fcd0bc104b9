//! The analytic figures against the published values, where the length files are there; and by hand on small ones.

#[path = "../../tests/support/skip.rs"]
mod skip;

use cora_bench::analytic::{
    activation_memory, bulk_padded, flops, geomean, mean, peak_activation_memory, prelude_memory,
};
use cora_bench::datasets::{BATCH_SIZES, DEFAULT_DIR, Dataset, NAMES};
use skip::skip;
use std::path::{Path, PathBuf};

/// The folder of length files beside the checkout.
fn folder() -> Option<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(DEFAULT_DIR);
    if !dir.is_dir() {
        skip(&format!("published values: there is no folder {DEFAULT_DIR} of length files"));
        return None;
    }
    Some(dir)
}

fn load(dir: &Path, name: &str) -> Dataset {
    Dataset::load(dir, name).unwrap_or_else(|e| panic!("{name}: {e:?}"))
}

fn batches(d: &Dataset, size: usize, count: usize) -> Vec<&[i64]> {
    d.batches(size, count).unwrap_or_else(|e| panic!("{}/{size}: {e:?}", d.name))
}

/// `value` rounded to six significant digits is `printed`.
#[track_caller]
fn same_digits(what: &str, value: f64, printed: f64) {
    let places = (5 - value.abs().log10().floor() as i32).clamp(0, 12) as usize;
    assert_eq!(format!("{value:.places$}"), format!("{printed:.places$}"), "{what}");
}

/// (dense, real, ideal) for batch sizes 32, 64 and 128.
const FLOPS: [(&str, [[f64; 3]; 3]); 8] = [
    ("race", [[60.6412, 43.2172, 42.5435], [121.282, 85.401, 84.2254], [242.565, 169.039, 166.751]]),
    ("wiki512", [[60.6412, 48.4208, 48.1792], [121.282, 93.8859, 93.388], [242.565, 173.778, 172.894]]),
    ("squad", [[40.5633, 21.0941, 20.6728], [84.8646, 41.8666, 41.093], [173.816, 84.8005, 83.2994]]),
    ("wiki128", [[13.4868, 12.6732, 12.5591], [26.9736, 24.5485, 24.4006], [53.9471, 49.5098, 49.3058]]),
    ("mnli", [[10.738, 4.62065, 4.46199], [22.8983, 9.26735, 8.98564], [50.9373, 18.3863, 17.9287]]),
    ("xnli", [[13.4868, 7.55173, 7.2988], [26.9736, 15.137, 14.804], [53.9471, 29.863, 29.335]]),
    ("mrpc", [[8.83295, 6.33761, 6.09369], [18.949, 12.6345, 12.2288], [39.1411, 25.0167, 24.4056]]),
    ("cola", [[2.51685, 1.85381, 1.65013], [4.64437, 3.02991, 2.77519], [11.6718, 5.99485, 5.58478]]),
];

#[test]
fn flops_have_the_published_digits() {
    let Some(dir) = folder() else { return };
    for (name, golden) in FLOPS {
        let d = load(&dir, name);
        for (size, [dense, real, ideal]) in BATCH_SIZES.into_iter().zip(golden) {
            let f: Vec<_> = batches(&d, size, 10).into_iter().map(flops).collect();
            same_digits(&format!("{name}/{size} dense"), mean(&f, |f| f.dense), dense);
            same_digits(&format!("{name}/{size} real"), mean(&f, |f| f.real), real);
            same_digits(&format!("{name}/{size} ideal"), mean(&f, |f| f.ideal), ideal);
        }
    }
}

#[test]
fn overhead_of_partial_padding_is_the_published_one() {
    let Some(dir) = folder() else { return };
    for (size, golden) in [(32, "1.0349"), (128, "1.0227")] {
        let ratio = |name: &&str| {
            let d = load(&dir, name);
            let f: Vec<_> = batches(&d, size, 10).into_iter().map(flops).collect();
            mean(&f, |f| f.real) / mean(&f, |f| f.ideal)
        };
        assert_eq!(format!("{:.4}", geomean(&NAMES.iter().map(ratio).collect::<Vec<_>>())), golden);
    }
}

#[test]
fn prelude_memory_has_the_published_digits() {
    let Some(dir) = folder() else { return };
    for (name, size, golden) in [
        ("cola", 32, ["267.969", "2.922", "32.141", "1.195", "5.267"]),
        ("cola", 128, ["1047.219", "11.172", "104.216", "4.570", "17.493"]),
        ("race", 32, ["1607.969", "2.922", "666.534", "1.195", "106.861"]),
        ("race", 128, ["6300.019", "11.172", "2609.582", "4.570", "418.059"]),
    ] {
        let d = load(&dir, name);
        let m: Vec<_> = batches(&d, size, 10).into_iter().map(prelude_memory).collect();
        let got = [
            mean(&m, |m| m.sparse),
            mean(&m, |m| m.storage_redundant),
            mean(&m, |m| m.fusion_redundant),
            mean(&m, |m| m.storage_optimized),
            mean(&m, |m| m.fusion_optimized),
        ];
        assert_eq!(got.map(|v| format!("{v:.3}")), golden.map(str::to_owned), "{name}/{size}");
    }
}

#[test]
fn activation_memory_has_the_published_ratios() {
    let Some(dir) = folder() else { return };
    for (count, golden) in [(10, "1.813"), (20, "1.776"), (50, "1.792"), (200, "1.785")] {
        let ratio = |name: &&str| {
            let d = load(&dir, name);
            let a = peak_activation_memory(&batches(&d, 64, count));
            a.dense / a.ragged
        };
        assert_eq!(format!("{:.3}", geomean(&NAMES.iter().map(ratio).collect::<Vec<_>>())), golden, "{count} batches");
    }
}

/// Two sequences of 3 and 5 tokens: the pad sequence has 56, so p = (3, 5, 56), n = 3.
#[test]
fn a_small_batch_agrees_with_arithmetic_by_hand() {
    let l = [3, 5];
    assert_eq!(bulk_padded(&l), [3, 5, 56]);
    // A token: 787968 + 262656 + 2048 + 1052672 + 1049088 + 2048.
    let token = 3_156_480.0;
    let f = flops(&l);
    let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} is not {b}");
    // 512 * 50 + 40 * 50 + 512 * 50 = 53200; ideal sums squares: 34.
    close(f.dense, (10.0 * token + 53_200.0) / 1e9);
    close(f.ideal, (8.0 * token + 1064.0 * 34.0) / 1e9);
    // QK^T 3 * 64^2; softmax 3*32 + 5*32 + 56*64 = 3840; AttnV (16 + 16 + 64) * 64 = 6144.
    close(f.real, (64.0 * token + 512.0 * 12_288.0 + 40.0 * 3840.0 + 512.0 * 6144.0) / 1e9);
    let m = prelude_memory(&l);
    // s = 4, P = 10, A = 4 + 8 * 192 + 1 = 1541; tokens 131, QK^T tiles 10, AttnV tiles 12.
    close(m.sparse, (56.0 + 40.0 + 6164.0) * 4.0 / 1024.0);
    close(m.storage_redundant, 88.0 * 4.0 / 1024.0);
    close(m.storage_optimized, 36.0 * 4.0 / 1024.0);
    close(m.fusion_redundant, (917.0 + 10.0 + 12.0) * 4.0 / 1024.0);
    close(m.fusion_optimized, 153.0 * 4.0 / 1024.0);
    let a = activation_memory(&l);
    // dense: T = 10, T64 = 128, Q = 2 * 64^2; ragged: 64 tokens, Q = 9 + 25 + 3136.
    close(a.dense, 4.0 * (4608.0 * 10.0 + 2048.0 * 128.0 + 16.0 * 8192.0) / 1_048_576.0);
    close(a.ragged, 4.0 * (6656.0 * 64.0 + 16.0 * 3170.0) / 1_048_576.0);
}

#[test]
fn a_sum_that_is_a_multiple_of_64_gets_a_whole_pad_sequence() {
    assert_eq!(bulk_padded(&[60, 4]), [60, 4, 64]);
    assert_eq!(bulk_padded(&[]), [64]);
}

#[test]
fn batches_are_consecutive_lines_and_a_rest_is_none() {
    let d = Dataset { name: "d".to_owned(), lengths: vec![4, 9, 1, 7, 2] };
    assert_eq!(batches(&d, 2, 10), [&[4, 9][..], &[1, 7]]);
    assert_eq!(batches(&d, 2, 1), [&[4, 9][..]]);
    assert!(d.batches(6, 1).is_err());
    let s = d.summary(4);
    assert_eq!((s.sequences, s.min, s.mean, s.max), (4, 1, 5.25, 9));
    assert_eq!(d.summary(0).sequences, 0);
}
