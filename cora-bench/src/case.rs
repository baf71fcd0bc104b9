//! What a measurement is of: a workload on a batch, from the command line.

use crate::datasets::{self, Dataset};
use crate::workload::{self, Shape, Values, WORKLOADS, Workload};
use cora::driver::Failure;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Arguments that choose a workload and its batch.
#[derive(Clone, Debug, clap::Args)]
pub struct CaseArgs {
    /// What to time.
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(WORKLOADS.iter().map(|w| w.name)))]
    pub workload: String,
    /// The dataset whose first batch is used, for workloads on sequences; `equal=512` is a batch of equal lengths.
    #[arg(long, default_value = "race", value_parser = dataset_name)]
    pub dataset: String,
    /// Sequences or products in the batch.
    #[arg(long, default_value_t = 32, value_parser = crate::paper::batch_size)]
    pub batch: usize,
    /// Rows of the matrices, for trmm, tradd and trmul.
    #[arg(long, default_value_t = 512, value_parser = crate::paper::batch_size)]
    pub size: usize,
    /// The folder of length files; `../shared/lengths` where it exists.
    #[arg(long)]
    pub lengths_dir: Option<PathBuf>,
}

fn equal(name: &str) -> Option<i64> {
    name.strip_prefix("equal=")?.parse().ok().filter(|n| (0..=1 << 20).contains(n))
}

fn dataset_name(text: &str) -> Result<String, String> {
    if datasets::NAMES.contains(&text) || equal(text).is_some() {
        return Ok(text.to_owned());
    }
    Err(format!("the datasets are {}, and equal=LENGTH", datasets::NAMES.join(", ")))
}

/// A workload with its batch.
pub struct Case {
    /// The program and what its shape depends on.
    pub workload: &'static Workload,
    /// The batch.
    pub values: Values,
    /// The dataset, for sequences.
    pub dataset: Option<String>,
    /// Sequences or products.
    pub batch: Option<usize>,
    /// Rows, for square matrices.
    pub size: Option<usize>,
}

impl Case {
    /// The case that `args` ask for.
    ///
    /// # Errors
    /// Length files that are not there or too short.
    pub fn new(args: &CaseArgs) -> Result<Self, Failure> {
        let workload = workload::find(&args.workload)?;
        let folder = || datasets::folder(args.lengths_dir.as_deref());
        let values = match (workload.shape, equal(&args.dataset)) {
            (Shape::Square, _) => Values::square(args.size as i64),
            (Shape::Products, _) => Values::products(&folder()?, args.batch)?,
            (Shape::Sequences, Some(length)) => Values::sequences(&vec![length; args.batch]),
            (Shape::Sequences, None) => Values::of_dataset(&Dataset::load(&folder()?, &args.dataset)?, args.batch)?,
        };
        let sequences = workload.shape == Shape::Sequences;
        let square = workload.shape == Shape::Square;
        Ok(Self {
            workload,
            values,
            dataset: sequences.then(|| args.dataset.clone()),
            batch: (!square).then_some(args.batch),
            size: square.then_some(args.size),
        })
    }

    /// The one length of all sequences, where they have one by construction.
    pub fn equal_length(&self) -> Option<i64> {
        equal(self.dataset.as_deref()?)
    }

    /// For people: `race, batch 32`.
    pub fn label(&self) -> String {
        match (&self.dataset, self.batch, self.size) {
            (Some(d), Some(b), _) => format!("{d}, batch {b}"),
            (_, Some(b), _) => format!("batch {b}"),
            (_, _, size) => format!("n = {}", size.unwrap_or(0)),
        }
    }

    /// What a peer has to know of it.
    pub fn message(&self, threads: usize) -> Value {
        let column = |name: &str| {
            let found = self.values.lengths.iter().find(|l| l.0 == name);
            found.map_or(&[][..], |l| &l.1)
        };
        let products: Vec<[i64; 3]> =
            column("ms").iter().zip(column("ns")).zip(column("ks")).map(|((m, n), k)| [*m, *n, *k]).collect();
        json!({
            "workload": self.workload.computes(),
            "threads": threads,
            "lens": column("lens"),
            "products": products,
            "size": self.size,
        })
    }
}
