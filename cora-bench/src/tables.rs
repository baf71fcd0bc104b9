//! The prelude tables that the compiler really builds for the six-layer encoder, and what they serve.
//!
//! A table counts as *storage* if the layout of a tensor uses it: the number of elements of a buffer, a tensor's
//! dims or the offset of an element, or the definition of another storage table. An offset table's last entry is
//! its buffer's size, so this reaches every table that an offset in a kernel reads; `lens` and row offsets, which
//! fused loops read as well, are storage. Every other table serves fused loops only (their trip counts and the
//! search for a row) and counts as *fusion*.

use cora::codegen_llvm::describe::program_desc;
use cora::driver::{self, Failure, Form, Source};
use cora::runtime::Limits;
use cora::runtime::abi::{Ix, IxOp, ProgramDesc, TableKind};
use cora::runtime::prelude::{Batch, Prelude};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The program that is measured.
pub const ENCODER6: &str = include_str!("../../examples/encoder6.cora");

/// Bytes of the tables of one batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableBytes {
    /// Tables that storage uses.
    pub storage: u64,
    /// Tables that only fused loops use.
    pub fusion: u64,
}

/// A program's tables, ready to be built for any batch.
pub struct ProgramTables {
    prelude: Prelude,
    storage: Vec<bool>,
}

impl ProgramTables {
    /// Compiles a program's `cpu` schedule as far as the storage dialect, and its prelude.
    ///
    /// # Errors
    /// The program's mistakes, rendered.
    pub fn compile(name: &str, text: &str) -> Result<Self, Failure> {
        let source = crate::workload::source(name, text)?;
        Self::of(&source)
    }

    /// As [`ProgramTables::compile`], of a parsed program.
    ///
    /// # Errors
    /// The program's mistakes, rendered.
    pub fn of(source: &Source) -> Result<Self, Failure> {
        Self::of_form(source, Form::default())
    }

    /// As [`ProgramTables::compile`], with the position arrays of sparse compilers, one for each level of each tensor.
    ///
    /// # Errors
    /// The program's mistakes, rendered.
    pub fn compile_csf(name: &str, text: &str) -> Result<Self, Failure> {
        let source = crate::workload::source(name, text)?;
        Self::of_form(&source, Form { csf: true, ..Form::default() })
    }

    fn of_form(source: &Source, form: Form) -> Result<Self, Failure> {
        let lowered = driver::lower_form(source, source.schedule(None, "cpu", |_| false)?, form, &mut |_| {})?;
        let desc = program_desc(&lowered.storage).map_err(|e| Failure::Bug(e.to_string()))?;
        let storage = storage_tables(&desc);
        Ok(Self { prelude: Prelude::new(Arc::new(desc))?, storage })
    }

    /// Builds the tables of a batch of `lens`, for a program whose shape depends on parameter `M`, the number of
    /// sequences, and on `lens` alone.
    ///
    /// # Errors
    /// The runtime's, for lengths that the program does not admit.
    pub fn bytes(&self, lens: &[i64]) -> Result<TableBytes, Failure> {
        let batch = Batch::from_named(self.prelude.desc(), [("M", lens.len() as i64)], [("lens", lens.to_vec())])?;
        let tables = self.prelude.build(&batch, &Limits::default())?;
        let mut bytes = TableBytes::default();
        for (table, &storage) in tables.data().iter().zip(&self.storage) {
            *(if storage { &mut bytes.storage } else { &mut bytes.fusion }) += table.bytes() as u64;
        }
        Ok(bytes)
    }

    /// Median time of `repeat` builds of a batch's tables on one core, checks of the batch included.
    ///
    /// # Errors
    /// As [`ProgramTables::bytes`].
    pub fn build_time(&self, lens: &[i64], repeat: usize) -> Result<Duration, Failure> {
        let batch = Batch::from_named(self.prelude.desc(), [("M", lens.len() as i64)], [("lens", lens.to_vec())])?;
        let mut times = Vec::new();
        for _ in 0..repeat.max(1) {
            let start = Instant::now();
            let tables = self.prelude.build(&batch, &Limits::default())?;
            times.push(start.elapsed());
            drop(tables);
        }
        times.sort_unstable();
        Ok(times[times.len() / 2])
    }

    /// Name of each table and whether it counts as storage, in building order.
    pub fn roles(&self) -> impl Iterator<Item = (&str, bool)> {
        self.prelude.desc().tables.iter().map(|t| t.name.as_str()).zip(self.storage.iter().copied())
    }
}

/// Which tables the layouts of a program's tensors use, directly or through other tables.
pub fn storage_tables(desc: &ProgramDesc) -> Vec<bool> {
    let mut used = vec![false; desc.tables.len()];
    for b in &desc.buffers {
        mark(&b.elems, &mut used);
    }
    for t in &desc.tensors {
        mark(&t.offset, &mut used);
        for d in &t.dims {
            mark(&d.extent, &mut used);
            mark(&d.storage, &mut used);
        }
    }
    // A table reads earlier ones only, so one pass from the last to the first closes the set.
    for (i, t) in desc.tables.iter().enumerate().rev() {
        if !used[i] {
            continue;
        }
        match &t.kind {
            TableKind::Input => {
                for e in desc.extents.iter().filter(|e| e.table as usize == i) {
                    e.domain.iter().for_each(|x| mark(x, &mut used));
                }
            }
            TableKind::Map { domain, value }
            | TableKind::PrefixSum { domain, value }
            | TableKind::ReduceMax { domain, value }
            | TableKind::ReduceSum { domain, value }
            | TableKind::SortDesc { domain, key: value } => {
                domain.iter().chain([value]).for_each(|x| mark(x, &mut used));
            }
        }
    }
    used
}

fn mark(ix: &Ix, used: &mut [bool]) {
    if let IxOp::Table(t) | IxOp::Search(t) = ix.op()
        && let Some(u) = used.get_mut(t as usize)
    {
        *u = true;
    }
    ix.operands().for_each(|x| mark(x, used));
}
