//! The sequence lengths of eight text datasets, in batches as the paper's evaluation makes them.
//!
//! A dataset is a text file of lengths, one a line (paper, section 7, "Datasets"; the files come with its
//! artifact). A batch of size `B` is `B` consecutive lines in file order; a rest of fewer lines is no batch.

use cora::driver::Failure;
use cora::runtime::lengths;
use std::path::{Path, PathBuf};

/// The datasets' names, in the paper's order; the lengths of each are in `NAME.txt`.
pub const NAMES: [&str; 8] = ["race", "wiki512", "squad", "wiki128", "mnli", "xnli", "mrpc", "cola"];

/// Batch sizes of the paper's experiments.
pub const BATCH_SIZES: [usize; 3] = [32, 64, 128];

/// How many sequences the paper's table of datasets is over.
pub const TABLE_SEQUENCES: usize = 1280;

/// Where length files are looked for if no folder is given.
pub const DEFAULT_DIR: &str = "../shared/lengths";

/// The folder to read length files from: the one given, else [`DEFAULT_DIR`].
///
/// # Errors
/// `E0600` it is not a folder.
pub fn folder(given: Option<&Path>) -> Result<PathBuf, Failure> {
    let dir = given.unwrap_or(Path::new(DEFAULT_DIR));
    if dir.is_dir() {
        return Ok(dir.to_owned());
    }
    let what = if given.is_some() { "there is no folder" } else { "no length files: there is no folder" };
    Err(Failure::User(format!(
        "error[E0600]: {what} `{}`\n  help: name the folder that holds race.txt, cola.txt, ... with --lengths-dir DIR",
        dir.display()
    )))
}

/// A dataset's lengths, in file order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dataset {
    /// Its name, one of [`NAMES`].
    pub name: String,
    /// One length a sequence.
    pub lengths: Vec<i64>,
}

/// Least, mean and greatest length of some sequences.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// How many sequences.
    pub sequences: usize,
    /// Least length.
    pub min: i64,
    /// Mean length; the paper prints it rounded down.
    pub mean: f64,
    /// Greatest length.
    pub max: i64,
}

impl Dataset {
    /// Reads `NAME.txt` in `dir`.
    ///
    /// # Errors
    /// The runtime's for a file that cannot be read or is not a list of lengths.
    pub fn load(dir: &Path, name: &str) -> Result<Self, Failure> {
        let lengths = lengths::read(&dir.join(format!("{name}.txt")))?;
        Ok(Self { name: name.to_owned(), lengths })
    }

    /// The first `count` batches of `size` sequences; fewer where the file ends before.
    ///
    /// # Errors
    /// The file does not hold a single batch.
    pub fn batches(&self, size: usize, count: usize) -> Result<Vec<&[i64]>, Failure> {
        let batches: Vec<&[i64]> = self.lengths.chunks_exact(size.max(1)).take(count).collect();
        if batches.is_empty() {
            return Err(Failure::User(format!(
                "error[E0329]: dataset `{}` has {} lengths, too few for a batch of {size}\n  help: give a smaller --batch",
                self.name,
                self.lengths.len()
            )));
        }
        Ok(batches)
    }

    /// Least, mean and greatest of the first `sequences` lengths; of none, zeros.
    pub fn summary(&self, sequences: usize) -> Summary {
        let l = &self.lengths[..sequences.min(self.lengths.len())];
        let sum: i64 = l.iter().sum();
        Summary {
            sequences: l.len(),
            min: l.iter().copied().min().unwrap_or(0),
            mean: if l.is_empty() { 0.0 } else { sum as f64 / l.len() as f64 },
            max: l.iter().copied().max().unwrap_or(0),
        }
    }
}
