//! Runs as one graph, with tables that kernels build from the lengths.
//!
//! ```text
//! bind(the longest rows) -> set_input(..)* -> capture() -> { set_lengths(..) -> replay() }* -> output(..)
//! ```

use super::{Device, Shorter};
use crate::abi::{GridArg, TableKind, TableWidth};
use crate::error::{Error, Result};
use crate::eval::eval;
use crate::prelude::Batch;
use std::cell::OnceCell;
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

    /// Gives the lengths of the next runs: the entries of each extent function in order of declaration, as in [`Batch`]. Those
    /// of functions of one argument are at most the bound ones; those of rows of rows at most as declared, and no more of
    /// them than are bound. Inputs and outputs have the shapes of these lengths then: inputs that were given before are to
    /// be given again where their shape is another.
    ///
    /// # Errors
    /// [`Error::Unbound`], [`Error::Count`] of lists, [`Error::LengthCount`], [`Error::LengthRange`] a length below the
    /// declared range or above the greatest one; [`Error::Cuda`] where the host builds the tables.
    pub fn set_lengths(&mut self, lengths: &[Vec<i64>]) -> Result<()> {
        if !self.builds_tables() {
            return Err(Error::Cuda("the host builds the tables of this program: bind each batch".to_owned()));
        }
        let bound = self.cache.tables().filter(|_| self.bound).ok_or(Error::Unbound)?;
        let batch = self.cache.batch().ok_or(Error::Unbound)?;
        let (want, got) = (self.desc.extents.len(), lengths.len());
        if want != got {
            return Err(Error::Count { what: "lists of lengths", want, got });
        }
        let now = Batch { params: batch.params.clone(), lengths: lengths.to_vec() };
        // How many rows of rows there are depends on the lengths around, which the host's own tables say.
        let nested = self.desc.extents.iter().any(|f| f.domain.len() > 1);
        let tables = nested.then(|| self.cache.prelude().build(&now, &self.limits)).transpose()?;
        let mut copies = Vec::new();
        for (f, (values, most)) in self.desc.extents.iter().zip(lengths.iter().zip(&batch.lengths)) {
            let function = || f.name.clone();
            let rows = f.domain.len() > 1;
            if values.len() > most.len() || (!rows && values.len() < most.len()) {
                let (want, got) = (most.len() as u64, values.len() as u64);
                return Err(Error::LengthCount { function: function(), want, got });
            }
            if !rows {
                let at = |fault| Error::Index { at: format!("extent function `{}`, lower bound", f.name), fault };
                let lo = eval(&f.lo, bound.env(), &[]).map_err(at)?;
                let outside = values.iter().zip(most).position(|(v, hi)| !(lo..=*hi).contains(v));
                if let Some(i) = outside {
                    let (value, hi) = (values[i], most[i]);
                    return Err(Error::LengthRange { function: function(), index: vec![i as i64], value, lo, hi });
                }
            }
            let size = if self.desc.tables[f.table as usize].width == TableWidth::I32 { 4 } else { 8 };
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes().into_iter().take(size)).collect();
            copies.push((self.table_offsets[f.table as usize], bytes));
        }
        let other = now != *batch;
        self.ran = false;
        // Should a copy fail, the next bind copies all tables.
        self.shorter = Some(Shorter { batch: now, tables: tables.map_or_else(OnceCell::new, OnceCell::from) });
        for (offset, bytes) in copies {
            self.context.upload_at(&self.tables, offset, &bytes)?;
        }
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
