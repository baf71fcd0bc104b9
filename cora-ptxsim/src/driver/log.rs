//! The log: a line for each call that matters, in the order of the calls.
//!
//! ```text
//! load sm_90a
//! alloc 4096
//! host_alloc 512
//! htod pinned 384
//! htod pageable 1024
//! launch cora_S 4 1 1 threads 128 1 1 shared 0
//! synchronize
//! ```
//! Where work is counted, a kernel that has run leaves
//! `work cora_S instructions 960 passes 64 sectors 512 distinct 256 products 0`. A call that fails leaves
//! `cuMemAlloc_v2 -> 2`, a kernel's fault `kernel NAME: FAULT`, memory that is still allocated when the context goes
//! `leak 4096`.

use std::fs::{File, OpenOptions};
use std::io::Write;

/// Where lines go, if anywhere.
#[derive(Default)]
pub(super) struct Log {
    file: Option<File>,
    /// Kept for tests of this crate.
    #[cfg(test)]
    pub lines: Vec<String>,
}

impl Log {
    /// The file that `PTXSIM_LOG` names.
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub(super) fn from_env() -> Result<Log, String> {
        let Some(path) = std::env::var_os("PTXSIM_LOG") else { return Ok(Log::default()) };
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let file = file.map_err(|e| format!("PTXSIM_LOG: {}: {e}", path.display()))?;
        Ok(Log {
            file: Some(file),
            #[cfg(test)]
            lines: Vec::new(),
        })
    }

    pub(super) fn line(&mut self, text: &str) {
        let text = text.replace('\n', " ");
        if let Some(file) = &mut self.file {
            // One write, so that lines of several processes do not mix. A full disk is no business of the program's.
            let _ = file.write_all(format!("{text}\n").as_bytes());
        }
        #[cfg(test)]
        self.lines.push(text);
    }
}
