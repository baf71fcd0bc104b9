//! Runs a compiled program: buffers, const inputs, setup, kernels on the pool, outputs.
//!
//! ```text
//! bind(batch) -> set_input(..)* -> run() -> output(..)
//! ```
//! Binding the batch that is bound already keeps tables, sizes and inputs. Memory is kept and reused when it suffices,
//! and touched when it is taken, so a steady state neither allocates nor faults.

mod given;
mod memory;

use crate::abi::{Ix, KernelDesc, KernelFn, ProgramDesc, Role};
use crate::array::{Fill, RaggedArray, Shape, TensorLayout};
use crate::error::{Error, Result};
use crate::eval::{Env, eval};
use crate::limits::Limits;
use crate::pool::Pool;
use crate::prelude::{Batch, Prelude, PreludeCache, Tables};
pub(crate) use given::Given;
use memory::Memory;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time in the middle of several; 0 of none.
pub fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// Where a program's native code is: a JIT, a loaded library, or functions linked in.
pub trait KernelSource: Send + Sync {
    /// The function of a symbol, valid as long as `self` is.
    fn kernel(&self, symbol: &str) -> Option<KernelFn>;
}

impl KernelSource for HashMap<String, KernelFn> {
    fn kernel(&self, symbol: &str) -> Option<KernelFn> {
        self.get(symbol).copied()
    }
}

/// How to run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Fills padding, temporaries, worker slots and outputs with 0xFF bytes (NaN for floats) before each run, so that
    /// reading what nobody wrote shows.
    pub poison: bool,
    /// Bounds on memory and work.
    pub limits: Limits,
}

/// Bytes of each kind of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct MemoryReport {
    /// Prelude tables.
    pub tables: u64,
    /// Inputs, const inputs, and what setup prepares from them.
    pub inputs: u64,
    /// Outputs.
    pub outputs: u64,
    /// Temporaries, shared by liveness.
    pub temps: u64,
    /// Slots of all workers.
    pub slots: u64,
}

/// A kernel ready to run for the bound batch.
struct Stage {
    function: KernelFn,
    trip: Option<i64>,
    grain: i64,
    flops: Option<i64>,
    time: Duration,
}

/// A program, its memory and its tables.
pub struct Instance {
    desc: Arc<ProgramDesc>,
    /// Keeps the functions of the stages alive.
    _source: Arc<dyn KernelSource>,
    pool: Arc<Pool>,
    options: Options,
    cache: PreludeCache,
    layouts: Vec<TensorLayout>,
    memory: Memory,
    kernels: Vec<Stage>,
    setup: Vec<Stage>,
    given: Given,
    bound: bool,
    ran: bool,
    run_time: Duration,
}

impl std::fmt::Debug for Instance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Instance").field("program", &self.desc.name).field("bound", &self.bound).finish_non_exhaustive()
    }
}

impl Instance {
    /// Validates a description and finds its kernels.
    ///
    /// # Safety
    /// The functions that `source` gives must keep to [`KernelFn`] for this description: touch nothing but the
    /// buffers and tables it describes, and only inside them, for any batch within the declared ranges.
    ///
    /// # Errors
    /// [`Error::Desc`], [`Error::Kernel`].
    pub unsafe fn new(
        desc: Arc<ProgramDesc>,
        source: Arc<dyn KernelSource>,
        pool: Arc<Pool>,
        options: Options,
    ) -> Result<Instance> {
        let prelude = Arc::new(Prelude::new(Arc::clone(&desc))?);
        let stage = |k: &KernelDesc| {
            let missing = || Error::Kernel { symbol: k.symbol.clone() };
            let function = source.kernel(&k.symbol).ok_or_else(missing)?;
            Ok(Stage { function, trip: None, grain: 1, flops: None, time: Duration::ZERO })
        };
        let kernels = desc.kernels.iter().map(stage).collect::<Result<_>>()?;
        let setup = desc.setup_kernels.iter().map(stage).collect::<Result<_>>()?;
        Ok(Instance {
            _source: source,
            options,
            cache: PreludeCache::new(prelude),
            layouts: desc.tensors.iter().map(TensorLayout::new).collect(),
            memory: Memory::new(&desc, pool.threads()),
            pool,
            kernels,
            setup,
            given: Given::new(&desc),
            bound: false,
            ran: false,
            run_time: Duration::ZERO,
            desc,
        })
    }

    /// The program.
    pub fn desc(&self) -> &ProgramDesc {
        &self.desc
    }

    /// Binds a batch: checks it, builds its tables and sizes all memory. True where it was bound already; then
    /// nothing is built and inputs stay. Otherwise inputs are to be set again; const inputs only where the batch
    /// changes a size that they or their setup depend on.
    ///
    /// # Errors
    /// As [`Prelude::build`], and for sizes beyond the limits. No batch is bound then.
    pub fn bind(&mut self, batch: &Batch) -> Result<bool> {
        let was_bound = std::mem::replace(&mut self.bound, false);
        if self.cache.update(batch, &self.options.limits, Some(&self.pool))? && was_bound {
            self.bound = true;
            return Ok(true);
        }
        self.ran = false;
        let tables = self.cache.tables().ok_or(Error::Unbound)?;
        let threads = self.pool.threads();
        let stages = [(&self.desc.kernels, &mut self.kernels), (&self.desc.setup_kernels, &mut self.setup)];
        for (descs, stages) in stages {
            for (desc, stage) in descs.iter().zip(stages) {
                prepare(desc, stage, tables, threads)?;
            }
        }
        // Forget first: should sizing fail, nothing of the last batch may be taken for set.
        self.given.next_batch(&self.desc, batch);
        if !self.memory.resize(&self.desc, tables, &self.options.limits)? {
            self.given.forget_all();
        }
        self.bound = true;
        Ok(false)
    }

    /// Index of a tensor by name.
    ///
    /// # Errors
    /// [`Error::Unknown`].
    pub fn tensor(&self, name: &str) -> Result<usize> {
        let unknown = || Error::Unknown { what: "tensor", name: name.to_owned() };
        self.desc.tensors.iter().position(|t| t.name == name).ok_or_else(unknown)
    }

    fn layout(&self, tensor: usize) -> Result<&TensorLayout> {
        let unknown = || Error::Unknown { what: "tensor", name: tensor.to_string() };
        self.layouts.get(tensor).ok_or_else(unknown)
    }

    /// The tables of the bound batch.
    ///
    /// # Errors
    /// [`Error::Unbound`].
    pub fn tables(&self) -> Result<&Tables> {
        self.cache.tables().filter(|_| self.bound).ok_or(Error::Unbound)
    }

    /// The prelude's cache, for reports.
    pub fn prelude(&self) -> &PreludeCache {
        &self.cache
    }

    /// Form of a tensor for the bound batch.
    ///
    /// # Errors
    /// [`Error::Unknown`], [`Error::Unbound`], and those of [`TensorLayout::shape`].
    pub fn shape(&self, tensor: usize) -> Result<Shape> {
        self.layout(tensor)?.shape(self.tables()?.env(), &self.options.limits)
    }

    /// Gives an input or const input: elements in row-major ragged order, without padding.
    ///
    /// # Errors
    /// [`Error::Role`] for an output, and those of [`TensorLayout::check`] and [`TensorLayout::pack`].
    pub fn set_input_bytes(&mut self, tensor: usize, logical: &[u8]) -> Result<()> {
        self.input_role(tensor)?;
        self.layouts[tensor].check(self.tables()?.env(), logical, &self.options.limits)?;
        self.pack_input(tensor, logical)
    }

    fn pack_input(&mut self, tensor: usize, logical: &[u8]) -> Result<()> {
        self.place_input(tensor, |layout, env, storage, fill, limits| layout.pack(env, logical, storage, fill, limits))
    }

    /// Gives an input or const input that `write` makes where it is kept, a stretch of neighbours after the other in
    /// row-major ragged order: no second copy of it is in memory.
    ///
    /// # Errors
    /// Those of [`Instance::set_input_bytes`], and of [`TensorLayout::generate`].
    pub fn generate_input(&mut self, tensor: usize, write: &mut dyn FnMut(&mut [u8])) -> Result<()> {
        self.input_role(tensor)?;
        self.tables()?;
        self.place_input(tensor, |layout, env, storage, fill, limits| {
            layout.generate(env, storage, fill, limits, write)
        })
    }

    fn input_role(&self, tensor: usize) -> Result<()> {
        let desc = self.layout(tensor)?.desc();
        match desc.role {
            Role::Output => Err(Error::Role { tensor: desc.name.clone(), wanted: "input" }),
            _ => Ok(()),
        }
    }

    fn place_input(
        &mut self,
        tensor: usize,
        place: impl FnOnce(&TensorLayout, Env<'_>, &mut [u8], Fill, &Limits) -> Result<()>,
    ) -> Result<()> {
        let desc = self.layout(tensor)?.desc();
        let (buffer, is_const) = (desc.buffer as usize, desc.role == Role::ConstInput);
        let fill = if self.options.poison { Fill::Poison } else { Fill::Zero };
        self.given.take(tensor, is_const);
        self.ran = false;
        let env = self.cache.tables().ok_or(Error::Unbound)?.env();
        place(&self.layouts[tensor], env, self.memory.own_mut(buffer), fill, &self.options.limits)?;
        self.given.set(tensor);
        Ok(())
    }

    /// Gives an input or const input: an array of the tensor's form for the bound batch, or of one dimension with the
    /// elements in row-major ragged order.
    ///
    /// # Errors
    /// [`Error::Role`] for an output, and those of [`TensorLayout::check_array`] and [`TensorLayout::pack`].
    pub fn set_input(&mut self, tensor: usize, array: &RaggedArray) -> Result<()> {
        self.input_role(tensor)?;
        self.layouts[tensor].check_array(self.tables()?.env(), array, &self.options.limits)?;
        self.pack_input(tensor, array.bytes())
    }

    /// Runs the kernels (and setup, where const inputs are new).
    ///
    /// # Errors
    /// [`Error::Unbound`], [`Error::InputMissing`].
    pub fn run(&mut self) -> Result<()> {
        self.tables()?;
        self.given.complete(&self.desc)?;
        let tables = self.cache.tables().ok_or(Error::Unbound)?;
        if self.options.poison {
            self.memory.poison(!self.given.setup_done, &self.desc);
        }
        self.memory.point(tables);
        if !self.given.setup_done {
            run_stages(&mut self.setup, &self.memory, tables, &self.pool);
            self.given.setup_done = true;
        }
        let start = Instant::now();
        run_stages(&mut self.kernels, &self.memory, tables, &self.pool);
        self.run_time = start.elapsed();
        self.ran = true;
        Ok(())
    }

    /// How long the last run took: all kernels, without setup and without what comes before the first.
    pub fn run_time(&self) -> Duration {
        self.run_time
    }

    /// An output of the last run, in row-major ragged order without padding.
    ///
    /// # Errors
    /// [`Error::NotRun`], [`Error::Role`], and those of [`TensorLayout::unpack`].
    pub fn output(&self, tensor: usize) -> Result<RaggedArray> {
        let shape = self.shape(tensor)?;
        let mut array = RaggedArray::zeros(self.layout(tensor)?.desc().dtype, shape)?;
        self.output_bytes(tensor, array.bytes_mut())?;
        Ok(array)
    }

    /// As [`Instance::output`], into memory of exactly the right size.
    ///
    /// # Errors
    /// As [`Instance::output`], and [`Error::Elements`].
    pub fn output_bytes(&self, tensor: usize, logical: &mut [u8]) -> Result<()> {
        let layout = self.layout(tensor)?;
        let desc = layout.desc();
        if desc.role != Role::Output {
            return Err(Error::Role { tensor: desc.name.clone(), wanted: "output" });
        }
        let env = self.tables()?.env();
        if !self.ran {
            return Err(Error::NotRun);
        }
        layout.unpack(env, self.memory.own(desc.buffer as usize), logical, &self.options.limits)
    }

    /// How long each kernel took in the last run.
    pub fn kernel_times(&self) -> impl Iterator<Item = (&str, Duration)> {
        let names = self.desc.kernels.iter().map(|k| k.name.as_str());
        names.zip(self.kernels.iter().map(|s| s.time))
    }

    /// How long each setup kernel took when it last ran.
    pub fn setup_times(&self) -> impl Iterator<Item = (&str, Duration)> {
        let names = self.desc.setup_kernels.iter().map(|k| k.name.as_str());
        names.zip(self.setup.iter().map(|s| s.time))
    }

    /// Useful floating-point operations of each kernel for the bound batch, where the program says.
    pub fn kernel_flops(&self) -> impl Iterator<Item = Option<i64>> {
        self.kernels.iter().map(|s| s.flops)
    }

    /// Bytes in use for the bound batch.
    pub fn memory(&self) -> MemoryReport {
        let tables = self.cache.tables().map_or(0, Tables::bytes);
        MemoryReport { tables, ..self.memory.report(&self.desc) }
    }
}

/// Evaluates a kernel's trip count for a batch and chooses its chunk size.
fn prepare(desc: &KernelDesc, stage: &mut Stage, tables: &Tables, threads: usize) -> Result<()> {
    let at = || format!("kernel `{}`", desc.name);
    let value = |ix: &Option<Ix>| {
        let value = ix.as_ref().map(|ix| eval(ix, tables.env(), &[])).transpose();
        value.map_err(|fault| Error::Index { at: at(), fault })
    };
    stage.trip = value(&desc.trip)?;
    stage.flops = value(&desc.stage_flops)?;
    if let Some(extent) = stage.trip.filter(|&n| n < 0) {
        return Err(Error::NegativeExtent { at: at(), dim: 0, extent });
    }
    stage.grain = grain(stage.trip.unwrap_or(1), stage.flops, threads as i64);
    Ok(())
}

/// Iterations of a chunk: as few as possible, so that long ones balance, but enough that claiming a chunk costs little
/// beside running it.
fn grain(trip: i64, flops: Option<i64>, threads: i64) -> i64 {
    /// Operations that make a chunk worth claiming: about a microsecond of one core.
    const CHUNK_FLOPS: i64 = 1 << 16;
    let fewest = match flops {
        Some(flops) if flops > 0 => (CHUNK_FLOPS / (flops / trip.max(1)).max(1)).max(1),
        _ => trip / (32 * threads),
    };
    fewest.min(trip / (4 * threads)).max(1)
}

fn run_stages(stages: &mut [Stage], memory: &Memory, tables: &Tables, pool: &Pool) {
    for stage in stages {
        let start = Instant::now();
        let function = stage.function;
        let scalars = tables.params();
        let call = |worker: usize, lo: i64, hi: i64| {
            let (bufs, table_ptrs) = memory.pointers(worker);
            // SAFETY: whoever made the instance promised that the function keeps to the ABI. The pointers were taken
            // in `Memory::point` for this batch, no other reference to the memory is alive during the run, and only
            // this worker has `worker`'s slots.
            unsafe {
                function(bufs.as_ptr(), table_ptrs.as_ptr(), scalars.as_ptr(), lo, hi, worker as i64);
            }
        };
        match stage.trip {
            None => call(0, 0, 1),
            Some(trip) => pool.run(trip, stage.grain, &call),
        }
        stage.time = start.elapsed();
    }
}

#[cfg(test)]
mod tests;
