//! What the compiler's own schedules ask of a GPU, counted on the stand-in for the driver, beside schedules by hand: at most
//! twice as much.
//!
//! Counts become cycles of a multiprocessor of an H100 that always has a warp to run: 4 instructions, one pass over shared
//! memory and two sectors from the cache a cycle, 14.5 bytes of each sector's first reading from memory, 1024 products on
//! matrix units. The greatest of them is a kernel's time. No latencies and no launches are in it; it is no measurement.

use crate::examples::load;
use crate::harness::Case;
use crate::simulated_gpu::{device, on_the_stand_in, run};
use crate::support::batches::plan;
use crate::support::{files, root, stem};
use cora::ir::schedule::Schedule;
use std::collections::BTreeMap;

type Example<'a> = (&'a str, &'a [(&'a str, i64)], i64, &'a [i64]);

/// What is an `encoder_layer` six times.
const LEFT_OUT: &[&str] = &["encoder6"];

/// The other examples, their constants, and a batch: the parameter, and the entries of every extent function.
const EXAMPLES: &[Example] = &[
    ("attnv", &[("H", 1)], 2, &[130, 33]),
    ("cross_attention", &[("H", 1)], 2, &[130, 33]),
    ("embedding_pool", &[("V", 512)], 4, &[130, 33, 64, 7]),
    ("encoder_layer", &[("H", 1), ("DM", 64), ("FF", 128)], 2, &[130, 33]),
    ("encoder_layer_bf16", &[("H", 1), ("DM", 64), ("FF", 128)], 2, &[130, 33]),
    ("gru", &[("D", 64)], 2, &[60, 33]),
    ("images", &[], 2, &[150, 70]),
    ("layer_norm", &[], 3, &[60, 33]),
    ("listing1", &[], 64, &[500, 33, 64]),
    ("masked_sdpa", &[("H", 1)], 2, &[130, 33]),
    ("mha", &[("H", 1), ("DM", 64)], 2, &[130, 33]),
    ("moe", &[("DM", 64), ("FF", 128)], 2, &[130, 33]),
    ("nested", &[], 5, &[9, 33, 20]),
    ("projection_bf16", &[], 2, &[60, 33]),
    ("projection_f16", &[], 2, &[60, 33]),
    ("qkt", &[("H", 1)], 2, &[130, 33]),
    ("ragged_softmax", &[], 64, &[500, 33, 64]),
    ("row_statistics", &[], 64, &[500, 33, 64]),
    ("sdpa", &[("H", 1)], 2, &[130, 33]),
    ("tradd", &[], 300, &[]),
    ("trmm", &[], 150, &[]),
    ("trmul", &[], 300, &[]),
    ("vgemm", &[], 1, &[130]),
    ("vgemm_tf32", &[], 1, &[130]),
];

/// The cycles of the kernels that the lines of a log tell of.
fn cycles(log: &str) -> f64 {
    let works = log.lines().filter_map(|l| l.strip_prefix("work "));
    let cycles = works.map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let counts: BTreeMap<&str, f64> =
            words[1..].chunks_exact(2).map(|c| (c[0], c[1].parse().expect("a count"))).collect();
        let by =
            [("instructions", 4.0), ("passes", 1.0), ("sectors", 2.0), ("distinct", 14.5 / 32.0), ("products", 1024.0)];
        by.iter().map(|(name, rate)| counts[name] / rate).fold(0.0, f64::max)
    });
    cycles.sum()
}

#[test]
fn no_example_is_forgotten() {
    let mut known: Vec<&str> = EXAMPLES.iter().map(|e| e.0).chain(LEFT_OUT.iter().copied()).collect();
    known.sort_unstable();
    assert_eq!(known, files("examples", "cora").iter().map(|p| stem(p)).collect::<Vec<_>>());
}

#[test]
fn defaults_ask_for_little_more() {
    on_the_stand_in("default_work::defaults_ask_for_little_more", "count=1", || {
        let log = std::env::var("PTXSIM_LOG").expect("the log's name");
        let mut worst = Vec::new();
        for &(name, consts, param, lengths) in EXAMPLES {
            let source = load(&root().join(format!("examples/{name}.cora")), consts).expect("an example");
            let case = Case::new(&source, &plan("some rows", param, lengths), 1, |_, _| None).expect("inputs");
            let taken = |schedule: Option<&Schedule>| {
                let begun = std::fs::read_to_string(&log).map_or(0, |t| t.len());
                let mut device = device(&source, schedule, false, "sm_80").expect("it compiles").expect("code");
                assert_eq!(run(&mut device, &source, &case).expect("it runs"), None, "{name}");
                cycles(&std::fs::read_to_string(&log).expect("a log")[begun..])
            };
            let own = source.graph.schedule("cuda");
            assert!(own.is_some(), "{name}");
            let (hand, default) = (taken(own), taken(None));
            println!("{name:16} by hand {hand:9.0}, by rules {default:9.0}: {:.2}", default / hand);
            if default > 2.0 * hand {
                worst.push(name);
            }
        }
        assert_eq!(worst, Vec::<&str>::new());
    });
}
