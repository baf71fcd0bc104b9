//! What can go wrong between MLIR text and callable code.

use std::path::PathBuf;

/// An error of the MLIR and LLVM driver.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CodegenError {
    /// MLIR rejected the text, a pass failed, or the translation to LLVM IR failed.
    #[error("MLIR: {stage} failed{}", indented(.diagnostics))]
    Mlir {
        /// What was being done: `parse`, the text of the pass, or `translate to LLVM IR`.
        stage: String,
        /// Captured diagnostics, each `LINE:COLUMN: error: MESSAGE` where the position is known, with notes on lines
        /// below.
        diagnostics: Vec<String>,
    },
    /// LLVM reported an error.
    #[error("LLVM: {stage} failed: {message}")]
    Llvm {
        /// What was being done, such as `optimize` or `emit object`.
        stage: String,
        /// LLVM's own words.
        message: String,
    },
    /// No CPU of this name is known to LLVM.
    #[error("unknown target CPU `{name}`: {hint}")]
    UnknownTarget {
        /// The name asked for.
        name: String,
        /// Names that exist, the nearest first.
        hint: String,
    },
    /// A loaded object does not define the symbol that was looked up.
    #[error("the loaded object defines no symbol `{name}`")]
    MissingSymbol {
        /// The symbol looked up.
        name: String,
    },
    /// A loaded object calls functions that this process does not have.
    #[error("the loaded object needs symbols that this process lacks: {}", .names.join(", "))]
    UnresolvedSymbols {
        /// The symbols that were not found.
        names: Vec<String>,
    },
    /// There is no lld.
    #[error("no lld found")]
    NoLinker,
    /// lld failed.
    #[error("linking failed: {message}")]
    Link {
        /// lld's own words, or what to install.
        message: String,
    },
    /// A file that the driver needs could not be read or written.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// One diagnostic a line, below the headline.
fn indented(diagnostics: &[String]) -> String {
    let mut text = String::new();
    for line in diagnostics.iter().flat_map(|diagnostic| diagnostic.lines()) {
        text.push_str("\n  ");
        text.push_str(line);
    }
    text
}
