//! Runs programs on an NVIDIA GPU, through the driver that is found when the program starts.
//!
//! ```text
//! Device::new(desc, grid, ptx) -> bind(batch) -> set_input(..)* -> run() -> output(..)
//! ```
//! Tables are built on the host into one pinned buffer and copied in one piece, when the batch's lengths change.
//! Buffers of the device are kept from batch to batch and grow when they must; temporaries share one arena by
//! liveness, as on a processor. Everything runs on one stream.
//!
//! Where kernels build the tables (`--device-prelude`), the batch that is bound says how long rows may be; shorter ones
//! need their lengths only, and a run is one graph within which the host never waits (`captured`).

mod captured;
mod driver;
mod sizes;
mod trial;

use crate::abi::{BufferKind, GridArg, GridDesc, GridMap, KernelDesc, ProgramDesc, Role};
use crate::array::{AlignedBytes, RaggedArray, TensorLayout};
use crate::error::{Error, Result};
use crate::eval::Env;
use crate::exec::{Given, MemoryReport};
use crate::limits::Limits;
use crate::plan::place;
use crate::prelude::{Batch, Prelude, PreludeCache, Tables};
use driver::{Arg, Block, Context, Function, Graph, Module, Pinned, TensorMap};
use sizes::{blocks, lasting, sizes, temporaries};
use std::cell::OnceCell;
use std::sync::Arc;
use std::time::{Duration, Instant};
use trial::Trial;

/// Alignment of buffers in the arena and of tables: the widest access.
const ALIGN: u64 = 256;

/// A program on a GPU.
pub struct Device {
    // Dropped in this order: the context last.
    functions: Vec<(String, Function)>,
    _module: Module,
    buffers: Vec<Block>,
    arena: Block,
    /// Zeros, where a tensor map has no position.
    nothing: Block,
    tables: Block,
    pinned: Pinned,
    trial: Trial,
    /// The kernels of a run, captured for the batch that is bound.
    captured: Option<Graph>,
    context: Context,
    desc: Arc<ProgramDesc>,
    grid: GridDesc,
    cache: PreludeCache,
    layouts: Vec<TensorLayout>,
    limits: Limits,
    /// Where each buffer is: its own block, or an offset in the arena.
    places: Vec<Option<u64>>,
    sizes: Vec<u64>,
    /// Bytes of the arena that temporaries take.
    temps: u64,
    table_offsets: Vec<u64>,
    /// The lengths that were given since the tables were copied, where they are not those bound.
    shorter: Option<Shorter>,
    given: Given,
    /// Whether each buffer's contents outlive a batch.
    lasts: Vec<bool>,
    /// Whether each buffer's memory is that of `sizes`.
    sized: bool,
    bound: bool,
    ran: bool,
}

/// Lengths of runs other than those bound, and the host's own tables of them once a shape is asked for.
struct Shorter {
    batch: Batch,
    tables: OnceCell<Tables>,
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device").field("program", &self.desc.name).finish_non_exhaustive()
    }
}

impl Device {
    /// Compiles a program's PTX for the first device of this machine.
    ///
    /// # Safety
    /// The kernels of `ptx` must keep to `desc` and `grid`, as a compiler wrote all three: touch nothing but the buffers
    /// and tables that they are given, and only inside them, for any batch within the declared ranges.
    ///
    /// # Errors
    /// [`Error::Cuda`] where there is no driver, no device, one too old, or code that the driver refuses, with its log;
    /// [`Error::Desc`], [`Error::Decode`], [`Error::Kernel`].
    pub unsafe fn new(desc: Arc<ProgramDesc>, grid: GridDesc, ptx: &str) -> Result<Device> {
        let cache = PreludeCache::new(Arc::new(Prelude::new(desc.clone())?));
        grid.validate(&desc)?;
        let context = Context::new()?;
        let maps = grid.launches.iter().any(|l| !l.maps.is_empty());
        if maps {
            context.can_map()?;
        }
        let module = context.load(ptx)?;
        let mut functions = Vec::new();
        for l in &grid.launches {
            functions.push((l.symbol.clone(), module.function(&l.function, l.shared)?));
        }
        let n = desc.buffers.len();
        let mut nothing = Block::default();
        if maps {
            context.reserve(&mut nothing, ALIGN, "zeros")?;
            context.fill(&nothing, 0, ALIGN, 0)?;
        }
        Ok(Device {
            functions,
            _module: module,
            buffers: std::iter::repeat_with(Block::default).take(n).collect(),
            arena: Block::default(),
            nothing,
            tables: Block::default(),
            pinned: Pinned::default(),
            context,
            cache,
            layouts: desc.tensors.iter().map(TensorLayout::new).collect(),
            limits: Limits::default(),
            places: vec![None; n],
            sizes: vec![0; n],
            temps: 0,
            table_offsets: Vec::new(),
            shorter: None,
            given: Given::new(&desc),
            lasts: lasting(&desc),
            sized: false,
            bound: false,
            ran: false,
            captured: None,
            trial: Trial::default(),
            desc,
            grid,
        })
    }

    /// Other bounds than the usual ones, for batches that are bound from now on.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
        self.cache.forget();
        self.bound = false;
    }

    /// The program.
    pub fn desc(&self) -> &ProgramDesc {
        &self.desc
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        self.context.name()
    }

    /// The tables of the batch that is bound.
    pub fn prelude(&self) -> &PreludeCache {
        &self.cache
    }

    /// Bytes in use for the batch that is bound, without the room to grow.
    pub fn memory(&self) -> MemoryReport {
        let own = |output: bool| {
            let counts = |b: &usize| matches!(self.desc.buffers[*b].kind, BufferKind::Output(_)) == output;
            let own = (0..self.sizes.len()).filter(|&b| self.places[b].is_none());
            own.filter(counts).map(|b| self.sizes[b]).sum()
        };
        let tables = self.cache.tables().map_or(0, Tables::bytes);
        MemoryReport { tables, inputs: own(false), outputs: own(true), temps: self.temps, slots: 0 }
    }

    /// Binds a batch: checks it, builds and copies its tables, sizes memory. True where it was bound already; then
    /// nothing is copied (but its tables, where other lengths were given since), and inputs stay. Otherwise inputs are to be set again; const inputs only where the batch
    /// changes a size that they or their setup depend on.
    ///
    /// # Errors
    /// As [`Prelude::build`], for sizes beyond the limits, and [`Error::Cuda`] where the device has too little memory.
    pub fn bind(&mut self, batch: &Batch) -> Result<bool> {
        let was_bound = std::mem::replace(&mut self.bound, false);
        if self.cache.update(batch, &self.limits, None)? && was_bound {
            if self.shorter.is_some() {
                self.ran = false;
                self.copy_tables()?;
            }
            self.bound = true;
            return Ok(true);
        }
        self.ran = false;
        // Memory may move.
        self.captured = None;
        // Forget first: should sizing fail, nothing of the last batch may be taken for set.
        self.given.next_batch(&self.desc, batch);
        let tables = self.cache.tables().ok_or(Error::Unbound)?;
        let sizes = sizes(&self.desc, tables, &self.limits)?;
        let same = |b: usize| !self.lasts[b] || self.sizes[b] == sizes[b];
        if !std::mem::replace(&mut self.sized, false) || !(0..sizes.len()).all(same) {
            self.given.forget_all();
        }
        self.sizes = sizes;
        let (requests, temps) = temporaries(&self.desc, &self.sizes, &self.lasts);
        let beyond = || Error::Memory { at: "temporaries".to_owned(), need: u64::MAX, limit: self.limits.buffer_bytes };
        let (offsets, total) = place(&requests, ALIGN).ok_or_else(beyond)?;
        self.context.reserve(&mut self.arena, total, "temporaries")?;
        self.temps = total;
        self.places.fill(None);
        for (&b, offset) in temps.iter().zip(offsets) {
            self.places[b] = Some(offset);
        }
        for b in 0..self.buffers.len() {
            if self.places[b].is_none() {
                let name = format!("buffer `{}`", self.desc.buffers[b].name);
                self.context.reserve(&mut self.buffers[b], self.sizes[b], &name)?;
            }
        }
        self.sized = true;
        self.copy_tables()?;
        self.bound = true;
        Ok(false)
    }

    /// All tables through one pinned buffer, in one copy.
    fn copy_tables(&mut self) -> Result<()> {
        let tables = self.cache.tables().ok_or(Error::Unbound)?;
        let mut at = 0u64;
        self.table_offsets.clear();
        for t in tables.data() {
            self.table_offsets.push(at);
            at += (t.bytes() as u64).next_multiple_of(ALIGN);
        }
        self.context.reserve(&mut self.tables, at, "the tables")?;
        let host = self.context.pin(&mut self.pinned, at)?;
        for (t, &offset) in tables.data().iter().zip(&self.table_offsets) {
            let to = &mut host[offset as usize..][..t.bytes()];
            // SAFETY: a table's pointer is to `bytes()` bytes that live as long as the table.
            to.copy_from_slice(unsafe { std::slice::from_raw_parts(t.as_ptr(), t.bytes()) });
        }
        self.context.upload(&self.tables, host)?;
        self.shorter = None;
        Ok(())
    }

    /// Calls `f` with the parameters and tables of the lengths that runs have.
    fn in_env<T>(&self, f: impl FnOnce(Env<'_>) -> Result<T>) -> Result<T> {
        let bound = self.cache.tables().filter(|_| self.bound).ok_or(Error::Unbound)?;
        match &self.shorter {
            None => f(bound.env()),
            Some(Shorter { batch, tables }) => match tables.get() {
                Some(tables) => f(tables.env()),
                None => {
                    let built = self.cache.prelude().build(batch, &self.limits)?;
                    f(tables.get_or_init(|| built).env())
                }
            },
        }
    }

    /// Gives an input or const input.
    ///
    /// # Errors
    /// As [`crate::exec::Instance::set_input`], and [`Error::Cuda`].
    pub fn set_input(&mut self, tensor: usize, array: &RaggedArray) -> Result<()> {
        let unknown = || Error::Unknown { what: "tensor", name: tensor.to_string() };
        let layout = self.layouts.get(tensor).ok_or_else(unknown)?;
        let desc = layout.desc();
        if desc.role == Role::Output {
            return Err(Error::Role { tensor: desc.name.clone(), wanted: "input" });
        }
        let b = desc.buffer as usize;
        let mut storage = AlignedBytes::default();
        self.in_env(|env| {
            layout.check_array(env, array, &self.limits)?;
            storage = AlignedBytes::zeroed(self.sizes[b] as usize)?;
            layout.pack(env, array.bytes(), storage.as_mut_slice(), self.trial.padding(), &self.limits)
        })?;
        self.given.take(tensor, desc.role == Role::ConstInput);
        self.ran = false;
        self.context.upload(&self.buffers[b], storage.as_slice())?;
        self.given.set(tensor);
        Ok(())
    }

    /// Runs the kernels (and setup, where const inputs are new) and waits for them.
    ///
    /// # Errors
    /// [`Error::Unbound`], [`Error::InputMissing`], [`Error::Cuda`].
    pub fn run(&mut self) -> Result<()> {
        self.launch_all(false).map(drop)
    }

    /// Runs, and gives each kernel's time by the device's clock.
    ///
    /// # Errors
    /// As [`Device::run`].
    pub fn run_timed(&mut self) -> Result<Vec<(String, Duration)>> {
        self.launch_all(true)
    }

    fn launch_all(&mut self, timed: bool) -> Result<Vec<(String, Duration)>> {
        if !self.bound {
            return Err(Error::Unbound);
        }
        let desc = self.desc.clone();
        self.begin_run()?;
        let mut marks = Vec::new();
        if timed {
            marks.push(self.context.mark()?);
        }
        for k in &desc.kernels {
            self.launch(k)?;
            if timed {
                marks.push(self.context.mark()?);
            }
        }
        self.context.synchronize()?;
        self.ran = true;
        let names = desc.kernels.iter().map(|k| k.name.clone());
        names.zip(marks.windows(2)).map(|(n, w)| Ok((n, w[0].until(&w[1])?))).collect()
    }

    /// On the stream, before the kernels: setup, where const inputs are new.
    fn begin_run(&mut self) -> Result<()> {
        self.given.complete(&self.desc)?;
        self.before_a_run(!self.given.setup_done)?;
        if !self.given.setup_done {
            self.desc.setup_kernels.iter().try_for_each(|k| self.launch(k))?;
            self.given.setup_done = true;
        }
        Ok(())
    }

    fn launch(&self, kernel: &KernelDesc) -> Result<()> {
        let missing = || Error::Kernel { symbol: kernel.symbol.clone() };
        let launch = self.grid.launch(&kernel.symbol).ok_or_else(missing)?;
        let function = self.functions.iter().find(|f| f.0 == kernel.symbol).ok_or_else(missing)?;
        let tables = self.cache.tables().ok_or(Error::Unbound)?;
        let Some(blocks) = blocks(kernel, launch, tables)? else { return Ok(()) };
        let mut maps = Vec::new();
        for m in &launch.maps {
            maps.push(self.tensor_map(m, tables)?);
        }
        let mut args: Vec<Arg> = Vec::new();
        for a in &launch.args {
            args.push(match *a {
                // An empty buffer has no such place, and nothing is read there.
                GridArg::Buffer { buffer, first } => Arg::Word(self.address(buffer as usize).wrapping_add(first)),
                GridArg::Table(t) => Arg::Word(self.tables.address() + self.table_offsets[t as usize]),
                GridArg::Param(p) => Arg::Word(tables.params()[p as usize] as u64),
                GridArg::Map(m) => Arg::Map(maps[m as usize]),
            });
        }
        self.context.launch(&function.1, blocks, launch.threads, launch.shared, &mut args)
    }

    /// Where a buffer is on the device.
    fn address(&self, buffer: usize) -> u64 {
        match self.places[buffer] {
            Some(offset) => self.arena.address() + offset,
            None => self.buffers[buffer].address(),
        }
    }

    /// A buffer as the copy engine sees it, for the batch that is bound.
    fn tensor_map(&self, m: &GridMap, tables: &Tables) -> Result<TensorMap> {
        let b = m.buffer as usize;
        let dtype = self.desc.buffers[b].dtype;
        match m.sizes(tables.env(), self.sizes[b] / dtype.size() as u64)? {
            Some(sizes) => self.context.tensor_map(m, dtype, self.address(b), &sizes),
            // Nothing is there: all that is read is outside of one position, which is zero.
            None => self.context.tensor_map(m, dtype, self.nothing.address(), &vec![1; m.dims.len()]),
        }
    }

    /// An output of the last run, in row-major ragged order without padding.
    ///
    /// # Errors
    /// As [`crate::exec::Instance::output`], and [`Error::Cuda`].
    pub fn output(&self, tensor: usize) -> Result<RaggedArray> {
        let unknown = || Error::Unknown { what: "tensor", name: tensor.to_string() };
        let layout = self.layouts.get(tensor).ok_or_else(unknown)?;
        let desc = layout.desc();
        if desc.role != Role::Output {
            return Err(Error::Role { tensor: desc.name.clone(), wanted: "output" });
        }
        if !self.ran {
            return Err(Error::NotRun);
        }
        let b = desc.buffer as usize;
        let mut storage = AlignedBytes::zeroed(self.sizes[b] as usize)?;
        self.context.download(&self.buffers[b], storage.as_mut_slice())?;
        self.in_env(|env| {
            let mut array = RaggedArray::zeros(desc.dtype, layout.shape(env, &self.limits)?)?;
            layout.unpack(env, storage.as_slice(), array.bytes_mut(), &self.limits)?;
            Ok(array)
        })
    }
}
