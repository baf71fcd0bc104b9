//! The kernels of the encoder layer and the prelude, on the sample lengths.
//!
//! Each iteration runs the whole layer; what is reported for a kernel is its own share of that time.

use cora::runtime::lengths;
use cora::runtime::pool::Pool;
use cora_bench::measure::{Form, Ready};
use cora_bench::workload::{self, Values};
use criterion::{Criterion, criterion_group, criterion_main};
use std::sync::Arc;
use std::time::Duration;

const SAMPLE: &str = include_str!("../../examples/data/lengths_sample.txt");

fn kernels(c: &mut Criterion) {
    let lens = lengths::parse("lengths_sample.txt", SAMPLE).expect("the sample is well formed");
    // Criterion's test mode runs each once: a small batch keeps it quick.
    let count = if std::env::args().any(|a| a == "--bench") { 32 } else { 2 };
    let source =
        workload::source("encoder_layer", workload::find("encoder").expect("a workload").text).expect("it parses");
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let pool = Arc::new(Pool::new(threads).expect("threads can be started"));
    let values = Values::sequences(&lens[..count.min(lens.len())]);
    let mut ready = Ready::new(&source, &values, &Form::default(), pool).expect("the encoder layer compiles");
    ready.run().expect("it runs");
    let names: Vec<String> = ready.kernel_times().into_iter().map(|(n, _)| n).collect();
    let mut group = c.benchmark_group("encoder_layer");
    group.sample_size(10).warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    group.bench_function("prelude", |b| b.iter(|| ready.build_prelude().expect("it builds")));
    group.bench_function("all kernels", |b| b.iter(|| ready.run().expect("it runs")));
    for (k, name) in names.iter().enumerate() {
        group.bench_function(format!("kernel {name}"), |b| {
            b.iter_custom(|n| {
                (0..n)
                    .map(|_| {
                        ready.run().expect("it runs");
                        ready.kernel_times()[k].1
                    })
                    .sum::<Duration>()
            });
        });
    }
    group.finish();
}

criterion_group!(benches, kernels);
criterion_main!(benches);
