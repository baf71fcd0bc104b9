//! Build times of the prelude's tables, ours beside the models of the paper's table (section 7.4, appendix).
//!
//! The models are the paper's numbers of entries, filled as a prelude fills them: running sums for row offsets, one entry
//! an element for fused loops. *Redundant* is a set for each operator, *optimised* one that operators share.

use crate::analytic::bulk_padded;
use crate::datasets::{self, Dataset};
use crate::measure::{Form, Ready, Times, ms};
use crate::tables::{ENCODER6, ProgramTables};
use crate::workload::{self, Values};
use cora::driver::Failure;
use cora::runtime::pool::Pool;
use cora::target::Target;
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Times and sizes for one batch, of a six-layer encoder.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PreludeRecord {
    /// The dataset.
    pub dataset: String,
    /// Sequences.
    pub batch: usize,
    /// What was built: a name, bytes, time.
    pub rows: Vec<PreludeRow>,
}

/// One way to build tables.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PreludeRow {
    /// Its name.
    pub name: String,
    /// Bytes of its tables.
    pub bytes: u64,
    /// Build time.
    pub times: Times,
    /// The time of copying them to a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy: Option<Times>,
}

/// The operators of an encoder layer as programs of their own, and how often a layer has each.
const OPERATORS: [(&str, usize); 8] =
    [("proj1", 1), ("qkt", 1), ("softmax", 1), ("attnv", 1), ("proj2", 1), ("layer-norm", 2), ("ff1", 1), ("ff2", 1)];

/// Times of 20 builds, after two.
fn clock(mut build: impl FnMut() -> Result<u64, Failure>) -> Result<(u64, Times), Failure> {
    let (mut bytes, mut times) = (0, Vec::new());
    for round in 0..22 {
        let start = Instant::now();
        bytes = build()?;
        if round >= 2 {
            times.push(ms(start.elapsed()));
        }
    }
    Ok((bytes, Times::of(&times)))
}

/// Measures the first batch of a dataset.
///
/// # Errors
/// Length files that are not there; the runtime's.
pub fn measure(dataset: &str, batch: usize, lengths_dir: Option<&Path>) -> Result<PreludeRecord, Failure> {
    let data = Dataset::load(&datasets::folder(lengths_dir)?, dataset)?;
    let lens = data.batches(batch, 1)?.first().map(|b| b.to_vec()).unwrap_or_default();
    let padded = bulk_padded(&lens);
    let tables = ProgramTables::compile("encoder6", ENCODER6)?;
    let mut rows = Vec::new();
    let mut row = |name: &str, (bytes, times): (u64, Times)| {
        rows.push(PreludeRow { name: name.to_owned(), bytes, times, copy: None });
    };
    row("ours, all tables", clock(|| tables.bytes(&lens).map(|b| b.storage + b.fusion))?);
    row("sparse storage", clock(|| Ok(sparse(&padded)))?);
    row("storage, redundant", clock(|| Ok((0..22).map(|_| offsets(padded.iter().copied())).sum()))?);
    row("storage, shared", clock(|| Ok((0..9).map(|_| offsets(padded.iter().copied())).sum()))?);
    row("fusion, redundant", clock(|| Ok((0..7).map(|_| tokens(&padded)).sum::<u64>() + tiles(&padded)))?);
    row("fusion, shared", clock(|| Ok(tokens(&padded) + tiles(&padded)))?);
    Ok(PreludeRecord { dataset: dataset.to_owned(), batch, rows })
}

/// Measures our tables of a six-layer encoder for a GPU, built by the host and copied there: one set for all layers
/// (*shared*), one for each operator of each layer (*redundant*), and one with the position arrays of sparse compilers.
///
/// # Errors
/// Length files that are not there; the runtime's, where there is no GPU too.
pub fn on_device(
    target: &Target,
    dataset: &str,
    batch: usize,
    lengths_dir: Option<&Path>,
) -> Result<PreludeRecord, Failure> {
    let values = Values::of_dataset(&Dataset::load(&datasets::folder(lengths_dir)?, dataset)?, batch)?;
    let pool = Arc::new(Pool::new(1)?);
    let ready = |name: &str, text: &str, csf: bool| {
        let options = cora::driver::Form { csf, ..Default::default() };
        let form = Form { target: target.clone(), schedule: None, options };
        Ready::new(&workload::source(name, text)?, &values, &form, pool.clone())
    };
    let mut rows = Vec::new();
    let mut row = |name: &str, mut programs: Vec<(Ready, usize)>| -> Result<(), Failure> {
        let (mut bytes, mut built, mut copied) = (0, Vec::new(), Vec::new());
        for _ in 0..20 {
            let (mut build, mut copy) = (0.0, 0.0);
            bytes = 0;
            for (program, times) in &mut programs {
                build += ms(program.build_prelude()?) * *times as f64;
                bytes += program.table_bytes() * *times as u64;
                copy += program.copy_tables()?.map_or(0.0, ms) * *times as f64;
            }
            built.push(build);
            copied.push(copy);
        }
        let (times, copy) = (Times::of(&built), Some(Times::of(&copied)));
        rows.push(PreludeRow { name: name.to_owned(), bytes, times, copy });
        Ok(())
    };
    row("ours, shared", vec![(ready("encoder6", ENCODER6, false)?, 1)])?;
    let mut alone = Vec::new();
    for (name, times) in OPERATORS {
        alone.push((ready(name, workload::find(name)?.text, false)?, 6 * times));
    }
    row("ours, redundant", alone)?;
    row("position arrays", vec![(ready("encoder6", ENCODER6, true)?, 1)])?;
    Ok(PreludeRecord { dataset: dataset.to_owned(), batch, rows })
}

/// Bytes of a table of running sums, one entry more than there are `extents`.
fn offsets(extents: impl ExactSizeIterator<Item = i64>) -> u64 {
    let mut table = Vec::with_capacity(extents.len() + 1);
    let mut sum = 0_i32;
    table.push(sum);
    for e in extents {
        sum = sum.wrapping_add(e as i32);
        table.push(sum);
    }
    4 * black_box(table).len() as u64
}

/// CSF-like storage: positions for each level of the encoder's tensors, attention's down to its rows.
fn sparse(p: &[i64]) -> u64 {
    let up = |x: i64, to: i64| (x + to - 1) / to * to;
    let heads: Vec<i64> = p.iter().flat_map(|&n| [n; 3]).collect();
    let rows: Vec<i64> = p.iter().flat_map(|&n| std::iter::repeat_n(n, 8 * up(n, 64) as usize)).collect();
    let repeat = |times: usize, of: &[i64]| (0..times).map(|_| offsets(of.iter().copied())).sum::<u64>();
    repeat(14, p) + repeat(4, &heads) + repeat(4, p) + repeat(4, &rows)
}

/// A map from each position of a fused loop to its row and its place there, and the rows' starts.
fn element_maps(extents: &[i64]) -> u64 {
    let total: i64 = extents.iter().sum();
    let (mut outer, mut inner) = (Vec::with_capacity(total as usize), Vec::with_capacity(total as usize));
    for (o, &n) in extents.iter().enumerate() {
        outer.extend(std::iter::repeat_n(o as i32, n as usize));
        inner.extend(0..n as i32);
    }
    let maps = 4 * (black_box(outer).len() + black_box(inner).len()) as u64;
    maps + offsets(extents.iter().copied())
}

fn tokens(p: &[i64]) -> u64 {
    element_maps(p)
}

fn tiles(p: &[i64]) -> u64 {
    let squares: Vec<i64> = p.iter().map(|&n| ((n + 63) / 64).pow(2)).collect();
    let rows: Vec<i64> = p.iter().map(|&n| (n + 31) / 32).collect();
    element_maps(&squares) + element_maps(&rows)
}
