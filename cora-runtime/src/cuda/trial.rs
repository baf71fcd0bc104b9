//! What checks and measurements add to runs: memory that nobody wrote holds NaN, caches hold other data, and the time of
//! tables is measured.

use super::{Block, Device, Instant};
use crate::abi::{BufferKind, GridArg, TableKind};
use crate::array::Fill;
use crate::error::{Error, Result};
use crate::prelude::{Batch, Prelude};
use std::time::Duration;

/// How runs are tried.
#[derive(Default)]
pub(super) struct Trial {
    poison: bool,
    /// What is written before each run, so that caches hold nothing of the last one.
    scratch: Block,
    flushed: u64,
}

impl Trial {
    /// What padding of inputs holds.
    pub(super) fn padding(&self) -> Fill {
        if self.poison { Fill::Poison } else { Fill::Zero }
    }
}

impl Device {
    /// Fills padding of inputs that are set from now on, and before each run temporaries, outputs and the tables that
    /// kernels build, with 0xFF bytes: NaN for floats.
    pub fn poison(&mut self, on: bool) {
        self.trial.poison = on;
    }

    /// Writes this many bytes elsewhere before each run, so that the run finds nothing in the caches of the device; 0 for
    /// none.
    ///
    /// # Errors
    /// [`Error::Cuda`] where the device has too little memory.
    pub fn flush(&mut self, bytes: u64) -> Result<()> {
        self.trial.flushed = 0;
        self.context.reserve(&mut self.trial.scratch, bytes, "what is written between runs")?;
        self.trial.flushed = bytes;
        Ok(())
    }

    /// The times of building the tables of a batch from nothing, and of copying them; with their bytes.
    ///
    /// # Errors
    /// [`Error::Unbound`] where another batch or none is bound, and those of [`Device::bind`].
    pub fn time_tables(&mut self, batch: &Batch) -> Result<(Duration, Duration, u64)> {
        if !self.bound || !self.cache.update(batch, &self.limits, None)? {
            self.bound = false;
            return Err(Error::Unbound);
        }
        let prelude = Prelude::new(self.desc.clone())?;
        let start = Instant::now();
        let tables = prelude.build(batch, &self.limits)?;
        let built = start.elapsed();
        let bytes = tables.data().iter().map(|t| t.bytes() as u64).sum();
        let start = Instant::now();
        self.copy_tables()?;
        Ok((built, start.elapsed(), bytes))
    }

    /// Bytes read and written, and the time, of a copy on the device of what [`Device::flush`] writes: its median of 9.
    ///
    /// # Errors
    /// [`Error::Cuda`] where the device has too little memory for it twice.
    pub fn time_copy(&mut self) -> Result<(u64, Duration)> {
        let bytes = self.trial.flushed;
        let mut to = Block::default();
        self.context.reserve(&mut to, bytes, "a copy")?;
        let mut times = Vec::new();
        for _ in 0..9 {
            let start = self.context.mark()?;
            self.context.copy(&self.trial.scratch, &to, bytes)?;
            let end = self.context.mark()?;
            self.context.synchronize()?;
            times.push(start.until(&end)?);
        }
        Ok((2 * bytes, crate::exec::median(times)))
    }

    /// On the stream, before the kernels.
    pub(super) fn before_a_run(&self, setup: bool) -> Result<()> {
        if self.trial.poison {
            self.fill_unwritten(setup)?;
        }
        self.context.fill(&self.trial.scratch, 0, self.trial.flushed, 0)
    }

    fn fill_unwritten(&self, setup: bool) -> Result<()> {
        let whole = |block: &Block| self.context.fill(block, 0, block.bytes(), 0xFF);
        whole(&self.arena)?;
        for (b, buffer) in self.desc.buffers.iter().enumerate() {
            let unwritten = match buffer.kind {
                BufferKind::Output(_) => true,
                BufferKind::Temp | BufferKind::PerWorker => setup,
                BufferKind::Input(_) => false,
            };
            if unwritten && self.places[b].is_none() {
                whole(&self.buffers[b])?;
            }
        }
        let tables = self.cache.tables().ok_or(Error::Unbound)?;
        // What setup builds stays: it does not run again.
        let of_setup = |symbol: &str| self.desc.setup_kernels.iter().any(|k| k.symbol == symbol);
        let kept = |t: u32| {
            let takes = |a: &GridArg| matches!(*a, GridArg::Table(i) if i == t);
            self.grid.launches.iter().any(|l| of_setup(&l.symbol) && l.args.iter().any(takes))
        };
        for &t in &self.grid.builds {
            let given = matches!(self.desc.tables[t as usize].kind, TableKind::Input);
            if !given && !kept(t) {
                let bytes = tables.data()[t as usize].bytes() as u64;
                self.context.fill(&self.tables, self.table_offsets[t as usize], bytes, 0xFF)?;
            }
        }
        Ok(())
    }
}
