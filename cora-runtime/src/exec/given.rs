//! Which inputs have been given, and whether setup has run for them: on processors and GPUs alike.

use crate::abi::{Ix, ProgramDesc, Role};
use crate::error::{Error, Result};
use crate::prelude::Batch;

/// What outlives a batch is forgotten only where the batch changes what it depends on.
pub(crate) struct Given {
    reads: SetupReads,
    /// The values of what setup reads, for the batch that was bound last.
    key: Vec<i64>,
    is_set: Vec<bool>,
    /// Whether setup has run for the const inputs.
    pub setup_done: bool,
}

impl Given {
    /// Nothing yet.
    pub fn new(desc: &ProgramDesc) -> Given {
        let is_set = vec![false; desc.tensors.len()];
        Given { reads: SetupReads::of(desc), key: Vec::new(), is_set, setup_done: false }
    }

    /// Forgets inputs, and const inputs and setup only where `batch` changes what they depend on.
    pub fn next_batch(&mut self, desc: &ProgramDesc, batch: &Batch) {
        let keep = !self.reads.update(batch, &mut self.key);
        self.setup_done &= keep;
        for (t, set) in desc.tensors.iter().zip(&mut self.is_set) {
            *set &= t.role == Role::ConstInput && keep;
        }
    }

    /// Forgets everything, because its memory is gone.
    pub fn forget_all(&mut self) {
        self.setup_done = false;
        self.is_set.fill(false);
    }

    /// An input is about to be overwritten.
    pub fn take(&mut self, tensor: usize, is_const: bool) {
        self.is_set[tensor] = false;
        self.setup_done &= !is_const;
    }

    /// An input is there.
    pub fn set(&mut self, tensor: usize) {
        self.is_set[tensor] = true;
    }

    /// Whether all inputs are there.
    ///
    /// # Errors
    /// [`Error::InputMissing`] names the first that is not.
    pub fn complete(&self, desc: &ProgramDesc) -> Result<()> {
        let missing = desc.tensors.iter().zip(&self.is_set).find(|(t, set)| t.role != Role::Output && !**set);
        missing.map_or(Ok(()), |(t, _)| Err(Error::InputMissing { tensor: t.name.clone() }))
    }
}

/// The parameters that the sizes around setup read, and whether they read tables. When these change, const inputs and
/// setup are redone.
struct SetupReads {
    params: Vec<u32>,
    tables: bool,
}

impl SetupReads {
    fn of(desc: &ProgramDesc) -> SetupReads {
        fn go(ix: &Ix, reads: &mut SetupReads) {
            match ix {
                Ix::Param(p) => reads.params.push(*p),
                Ix::Table(..) | Ix::Search(..) => reads.tables = true,
                _ => {}
            }
            ix.operands().for_each(|x| go(x, reads));
        }
        let mut reads = SetupReads { params: Vec::new(), tables: false };
        for t in desc.tensors.iter().filter(|t| t.role == Role::ConstInput) {
            t.dims.iter().flat_map(|d| [&d.extent, &d.storage]).for_each(|ix| go(ix, &mut reads));
            t.value_range.iter().for_each(|(lo, hi)| [lo, hi].into_iter().for_each(|ix| go(ix, &mut reads)));
            go(&t.offset, &mut reads);
            go(&desc.buffers[t.buffer as usize].elems, &mut reads);
        }
        for k in &desc.setup_kernels {
            k.trip.iter().for_each(|ix| go(ix, &mut reads));
            k.writes.iter().for_each(|&b| go(&desc.buffers[b as usize].elems, &mut reads));
        }
        reads.params.sort_unstable();
        reads.params.dedup();
        reads
    }

    /// Makes `key` that of `batch`; whether it changed.
    fn update(&self, batch: &Batch, key: &mut Vec<i64>) -> bool {
        let params = self.params.iter().map(|&p| batch.params[p as usize]);
        let lengths = batch.lengths.iter().filter(|_| self.tables);
        let lengths = lengths.flat_map(|l| std::iter::once(l.len() as i64).chain(l.iter().copied()));
        let all = if self.tables { &batch.params[..] } else { &[] };
        let new = params.chain(all.iter().copied()).chain(lengths);
        if new.clone().eq(key.iter().copied()) {
            return false;
        }
        key.clear();
        key.extend(new);
        true
    }
}
