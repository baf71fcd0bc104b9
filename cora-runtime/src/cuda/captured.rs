//! Runs as one graph, with tables that kernels build from the lengths.
//!
//! ```text
//! bind(the longest rows) -> set_input(..)* -> capture() -> { set_lengths(..) -> replay() }* -> output(..)
//! ```

use super::Device;
use crate::abi::{GridArg, TableKind, TableWidth};
use crate::error::{Error, Result};
use std::time::Duration;

impl Device {
    /// Whether kernels build every table that kernels read and no batch gives.
    pub fn builds_tables(&self) -> bool {
        let read = |t: usize| {
            let takes = |a: &GridArg| matches!(*a, GridArg::Table(i) if i as usize == t);
            self.grid.launches.iter().any(|l| l.args.iter().any(takes))
        };
        let given = |t: usize| matches!(self.desc.tables[t].kind, TableKind::Input);
        let built = |t: usize| self.grid.builds.contains(&(t as u32));
        let mut tables = 0..self.desc.tables.len();
        // Without any such kernel sizes are for one batch.
        tables.clone().all(given) || (!self.grid.builds.is_empty() && tables.all(|t| given(t) || built(t) || !read(t)))
    }

    /// Gives the lengths of the next runs, none above that of the batch that is bound. Inputs and outputs have the shapes of
    /// these lengths then: inputs that were given before are to be given again where their shape is another.
    ///
    /// # Errors
    /// [`Error::Unbound`], [`Error::Unknown`] function, [`Error::LengthCount`], [`Error::LengthRange`] a length below the
    /// declared range or above the bound one; [`Error::Cuda`] where the host builds the tables.
    pub fn set_lengths(&mut self, function: &str, lengths: &[i64]) -> Result<()> {
        if !self.builds_tables() {
            return Err(Error::Cuda("the host builds the tables of this program: bind each batch".to_owned()));
        }
        let bound = self.cache.tables().filter(|_| self.bound).ok_or(Error::Unbound)?;
        let unknown = || Error::Unknown { what: "extent function", name: function.to_owned() };
        let index = self.desc.extents.iter().position(|f| f.name == function).ok_or_else(unknown)?;
        let f = &self.desc.extents[index];
        let table = &bound.data()[f.table as usize];
        let width = self.desc.tables[f.table as usize].width;
        let size = if width == TableWidth::I32 { 4 } else { 8 };
        let most: Vec<i64> = (0..table.bytes() / size).filter_map(|i| table.get(i)).collect();
        if most.len() != lengths.len() {
            let (want, got) = (most.len() as u64, lengths.len() as u64);
            return Err(Error::LengthCount { function: function.to_owned(), want, got });
        }
        let lo = crate::eval::eval(&f.lo, bound.env(), &[]).unwrap_or(0);
        let mut bytes = Vec::with_capacity(table.bytes());
        for (i, (&value, &hi)) in lengths.iter().zip(&most).enumerate() {
            if !(lo..=hi).contains(&value) {
                return Err(Error::LengthRange { function: function.to_owned(), index: vec![i as i64], value, lo, hi });
            }
            bytes.extend_from_slice(&value.to_le_bytes()[..size]);
        }
        let batch = self.cache.batch().ok_or(Error::Unbound)?;
        let mut now = self.shorter.take().unwrap_or_else(|| batch.clone());
        now.lengths[index] = lengths.to_vec();
        let other = now != *batch;
        self.shorter = Some(now);
        self.ran = false;
        let offset = self.table_offsets[f.table as usize];
        self.context.upload_at(&self.tables, offset, &bytes)?;
        if !other {
            self.shorter = None;
        }
        Ok(())
    }

    /// Captures a run of the kernels for [`Device::replay`]; setup runs first, by itself.
    ///
    /// # Errors
    /// As [`Device::run`].
    pub fn capture(&mut self) -> Result<()> {
        // Setup, and that the code runs at all.
        self.run()?;
        let desc = self.desc.clone();
        self.captured = Some(self.context.capture(|| desc.kernels.iter().try_for_each(|k| self.launch(k)))?);
        Ok(())
    }

    /// Puts the captured run on the stream, without waiting for anything; where const inputs are new, setup before it.
    ///
    /// # Errors
    /// [`Error::Unbound`] where nothing was captured for this batch, [`Error::InputMissing`], [`Error::Cuda`].
    pub fn replay(&mut self) -> Result<()> {
        if self.captured.is_some() {
            self.begin_run()?;
        }
        let graph = self.captured.as_ref().ok_or(Error::Unbound)?;
        self.context.launch_graph(graph)?;
        self.ran = true;
        Ok(())
    }

    /// Replays, waits, and gives the time by the device's clock.
    ///
    /// # Errors
    /// As [`Device::replay`].
    pub fn replay_timed(&mut self) -> Result<Duration> {
        if self.captured.is_some() {
            self.begin_run()?;
        }
        let graph = self.captured.as_ref().ok_or(Error::Unbound)?;
        let start = self.context.mark()?;
        self.context.launch_graph(graph)?;
        let end = self.context.mark()?;
        self.context.synchronize()?;
        self.ran = true;
        start.until(&end)
    }
}
