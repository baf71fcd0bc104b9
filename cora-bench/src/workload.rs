//! The workloads of `cora-bench bench`: an example program each, and the batch that it is timed on.

use crate::datasets::Dataset;
use cora::driver::{Failure, Source};
use cora::frontend::{parse_program, render};
use cora::runtime::lengths;
use std::path::Path;

/// What a workload's shape depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// `M` sequences of `lens` tokens.
    Sequences,
    /// `B` matrix products of `ms` x `ns` x `ks`.
    Products,
    /// Square matrices of `N` rows.
    Square,
}

/// A named program.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// The name on the command line.
    pub name: &'static str,
    /// The program's text.
    pub text: &'static str,
    /// What its shape depends on.
    pub shape: Shape,
}

impl Workload {
    /// The name that peers know it by: a program in another precision computes the same.
    pub fn computes(&self) -> &'static str {
        self.name.strip_suffix("-bf16").unwrap_or(self.name)
    }
}

macro_rules! workload {
    ($name:literal, $file:literal, $shape:ident) => {
        Workload { name: $name, text: include_str!(concat!("../", $file, ".cora")), shape: Shape::$shape }
    };
}

/// Every workload.
pub const WORKLOADS: &[Workload] = &[
    workload!("encoder", "../examples/encoder_layer", Sequences),
    workload!("encoder-bf16", "../examples/encoder_layer_bf16", Sequences),
    workload!("mha", "../examples/mha", Sequences),
    workload!("mha-pad-copies", "programs/mha_pad_copies", Sequences),
    workload!("sdpa", "../examples/sdpa", Sequences),
    workload!("masked-sdpa", "../examples/masked_sdpa", Sequences),
    workload!("proj1", "programs/proj1", Sequences),
    workload!("qkt", "../examples/qkt", Sequences),
    workload!("softmax", "programs/softmax", Sequences),
    workload!("attnv", "../examples/attnv", Sequences),
    workload!("proj2", "programs/proj2", Sequences),
    workload!("layer-norm", "../examples/layer_norm", Sequences),
    workload!("ff1", "programs/ff1", Sequences),
    workload!("ff2", "programs/ff2", Sequences),
    workload!("vgemm", "../examples/vgemm", Products),
    workload!("trmm", "../examples/trmm", Square),
    workload!("tradd", "../examples/tradd", Square),
    workload!("trmul", "../examples/trmul", Square),
];

/// The workload called `name`.
///
/// # Errors
/// `E0607` where there is none.
pub fn find(name: &str) -> Result<&'static Workload, Failure> {
    WORKLOADS.iter().find(|w| w.name == name).ok_or_else(|| {
        let names: Vec<&str> = WORKLOADS.iter().map(|w| w.name).collect();
        Failure::User(format!("error[E0607]: there is no workload `{name}`\n  help: one of {}", names.join(", ")))
    })
}

/// The names of a workload's schedules for `cpu` or `cuda` besides that target's own, on whatever machine.
pub fn schedules(w: &Workload, kind: &str) -> Vec<String> {
    let graph = parse_program(w.name, w.text, &[]).unwrap_or_default();
    let names = graph.schedules.into_iter().filter(|s| s.features.is_empty()).map(|s| s.name);
    names.filter(|n| n != kind && n.starts_with("cuda") == (kind == "cuda")).collect()
}

/// The program with the constant `length` in the place of `lens`: nothing is ragged.
pub fn dense(text: &str, length: i64) -> String {
    let lines = text.lines().filter(|l| !l.starts_with("extent lens("));
    lines.collect::<Vec<_>>().join("\n").replace("lens(batch)", &length.to_string()) + "\n"
}

/// Parses a program held in memory.
///
/// # Errors
/// Its mistakes, rendered.
pub fn source(name: &str, text: &str) -> Result<Source, Failure> {
    let path = format!("{name}.cora");
    match parse_program(name, text, &[]) {
        Ok(graph) => Ok(Source { graph, path, text: text.to_owned(), warnings: Vec::new() }),
        Err(errors) => Err(Failure::User(errors.iter().map(|d| render(d, &path, text)).collect::<Vec<_>>().join("\n"))),
    }
}

/// Values of a program's parameters and extent functions, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Values {
    /// Parameters.
    pub params: Vec<(String, i64)>,
    /// Entries of extent functions.
    pub lengths: Vec<(String, Vec<i64>)>,
}

impl Values {
    /// A batch of sequences.
    pub fn sequences(lens: &[i64]) -> Self {
        Self { params: vec![("M".to_owned(), lens.len() as i64)], lengths: vec![("lens".to_owned(), lens.to_vec())] }
    }

    /// Every length raised to the greatest of its function: the same program does what a padded one would.
    pub fn longest(&self) -> Self {
        let raise = |l: &Vec<i64>| vec![l.iter().copied().max().unwrap_or(0); l.len()];
        let lengths = self.lengths.iter().map(|(name, l)| (name.clone(), raise(l))).collect();
        Self { params: self.params.clone(), lengths }
    }

    /// Matrices of `n` rows.
    pub fn square(n: i64) -> Self {
        Self { params: vec![("N".to_owned(), n)], lengths: Vec::new() }
    }

    /// The first `count` products of `vgemm_mnk.txt` in `dir`: a line `M N K` each.
    ///
    /// # Errors
    /// The runtime's for a file that cannot be read, and one with fewer lines.
    pub fn products(dir: &Path, count: usize) -> Result<Self, Failure> {
        let path = dir.join("vgemm_mnk.txt");
        let shown = path.display().to_string();
        let text = std::fs::read_to_string(&path).map_err(|e| {
            Failure::User(format!(
                "error[E0600]: cannot read `{shown}`: {e}\n  help: name its folder with --lengths-dir DIR"
            ))
        })?;
        let mut columns = [const { Vec::new() }; 3];
        for line in text.lines().take(count) {
            // One number a line is what the parser of lengths takes.
            let entries = lengths::parse(&shown, &line.split_whitespace().collect::<Vec<_>>().join("\n"))?;
            let [m, n, k] = entries[..] else {
                return Err(Failure::User(format!("error[E0600]: `{shown}`: `{line}` is not `M N K`")));
            };
            columns.iter_mut().zip([m, n, k]).for_each(|(c, v)| c.push(v));
        }
        if columns[0].len() < count {
            return Err(Failure::User(format!(
                "error[E0329]: `{shown}` holds {} products, but {count} are needed\n  help: give a smaller --batch",
                columns[0].len()
            )));
        }
        let names = ["ms", "ns", "ks"].map(str::to_owned);
        Ok(Self { params: vec![("B".to_owned(), count as i64)], lengths: names.into_iter().zip(columns).collect() })
    }

    /// The first batch of `size` sequences of a dataset.
    ///
    /// # Errors
    /// As [`Dataset::batches`].
    pub fn of_dataset(dataset: &Dataset, size: usize) -> Result<Self, Failure> {
        Ok(dataset.batches(size, 1)?.first().map(|b| Self::sequences(b)).unwrap_or_default())
    }
}
