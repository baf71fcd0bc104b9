//! Compiles a program, binds a batch and times it.

use crate::workload::Values;
use cora::codegen_cuda::GridProgram;
use cora::codegen_llvm::compile::{CompiledProgram, check_host};
use cora::codegen_llvm::llvm::TargetSpec;
use cora::driver::{self, Failure, Lowered, Source};
use cora::inputs;
use cora::ir::interp;
use cora::ir::{ScalarType, UfDef};
use cora::runtime::Limits;
use cora::runtime::abi::{DType, ProgramDesc, Role};
use cora::runtime::array::{RaggedArray, TensorLayout};
use cora::runtime::cuda::Device;
use cora::runtime::exec::{Instance, Options};
use cora::runtime::npy;
use cora::runtime::pool::Pool;
use cora::runtime::prelude::{Batch, Prelude, PreludeCache, Tables};
use cora::target::{Target, describe, for_gpu, native, no_device_prelude, not_loaded};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Median, least and greatest of some times, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Times {
    /// Median.
    pub median_ms: f64,
    /// Least.
    pub min_ms: f64,
    /// Greatest.
    pub max_ms: f64,
}

impl Times {
    /// The statistics of `ms`; of none, zeros.
    pub fn of(ms: &[f64]) -> Self {
        let mut ms = ms.to_vec();
        ms.sort_by(f64::total_cmp);
        let at = |i: usize| ms.get(i).copied().unwrap_or(0.0);
        Self { median_ms: at(ms.len() / 2), min_ms: at(0), max_ms: at(ms.len().wrapping_sub(1)) }
    }
}

/// How a program is compiled.
#[derive(Clone, Debug)]
pub struct Form {
    /// The machine.
    pub target: Target,
    /// The schedule's name; the target's own where none is given, the compiler's where the program has none for it.
    pub schedule: Option<String>,
    /// The rest: padded, loads that stay in their loops, position arrays, tables that kernels build.
    pub options: driver::Form,
}

impl Default for Form {
    /// Ragged, the `cpu` schedule, this machine.
    fn default() -> Self {
        Self { target: Target::Cpu(TargetSpec::host()), schedule: None, options: driver::Form::default() }
    }
}

/// Bytes written elsewhere before each run on a GPU: more than the second-level cache of any.
const FLUSH: u64 = 256 << 20;

/// Code of a form, for the machine that it was compiled for.
pub enum Code {
    /// Native.
    Cpu(Box<CompiledProgram>),
    /// PTX, with its launches.
    Gpu(Box<GridProgram>),
}

/// A compiled form of a program.
pub struct Compiled {
    lowered: Lowered,
    code: Code,
    time: Duration,
}

impl Compiled {
    /// Compiles a form of `source`; this needs no GPU.
    ///
    /// # Errors
    /// The program's mistakes, `E0610` a schedule for another kind of machine; a failure of code generation is a bug.
    pub fn new(source: &Source, form: &Form) -> Result<Self, Failure> {
        let start = Instant::now();
        let schedule = source.schedule(form.schedule.as_deref(), form.target.schedule(), |f| form.target.has(f))?;
        let options = driver::Form { grid: form.target.gpu(), features: form.target.features(), ..form.options };
        if options.device_prelude && options.grid.is_none() {
            return Err(no_device_prelude("cpu"));
        }
        let lowered = driver::lower_form(source, schedule, options, &mut |_| {})?;
        let code = match &form.target {
            Target::Cpu(target) => {
                check_host(target)?;
                Code::Cpu(Box::new(native(&lowered.storage, target)?))
            }
            Target::Gpu(target) => Code::Gpu(Box::new(for_gpu(&lowered.storage, target)?)),
        };
        Ok(Self { lowered, code, time: start.elapsed() })
    }

    /// The code.
    pub fn code(&self) -> &Code {
        &self.code
    }
}

/// What runs the kernels.
enum Machine {
    Cpu(Box<Instance>),
    Gpu(Box<Device>),
}

/// A compiled program with a batch bound and random inputs set.
pub struct Ready {
    machine: Machine,
    desc: Arc<ProgramDesc>,
    prelude: PreludeCache,
    batch: Batch,
    kernel_times: Vec<(String, Duration)>,
    /// Floating-point operations of the unpadded multiply-adds of one run (two for each).
    pub useful_flops: f64,
    /// From the op graph to code in memory.
    pub compile_time: Duration,
}

impl Ready {
    /// Compiles a form of `source`, binds `values` and sets random inputs.
    ///
    /// # Errors
    /// Those of [`Compiled::new`], a batch that the program does not admit; `E0336` there is no GPU to run on.
    pub fn new(source: &Source, values: &Values, form: &Form, pool: Arc<Pool>) -> Result<Self, Failure> {
        let Compiled { lowered, code, time: mut compile_time } = Compiled::new(source, form)?;
        let start = Instant::now();
        let (mut machine, desc) = match code {
            Code::Cpu(program) => {
                let desc = Arc::new(describe(&lowered.storage)?);
                let kernels = Arc::new(program.jit().map_err(not_loaded)?);
                // SAFETY: the kernels were compiled from the module that `desc` describes.
                let instance = unsafe { Instance::new(desc.clone(), kernels, pool, Options::default()) }?;
                (Machine::Cpu(Box::new(instance)), desc)
            }
            Code::Gpu(program) => {
                let desc = Arc::new(program.desc);
                // SAFETY: description, launches and code come from one compilation.
                let mut device = unsafe { Device::new(desc.clone(), program.grid, &program.ptx) }?;
                device.flush(FLUSH)?;
                (Machine::Gpu(Box::new(device)), desc)
            }
        };
        compile_time += start.elapsed();
        let given =
            cora::batch::Source { params: &values.params, lengths: &values.lengths, files: &[], skip: 0, seed: 0 };
        let env = &source.graph.env;
        let resolved = cora::batch::resolve(env, &given)?;
        let params = env.params.iter().zip(&resolved.params).map(|((_, p), &v)| (p.name.as_str(), v));
        let extents = env.ufs.iter().filter(|(_, u)| matches!(u.def, UfDef::Extent { .. }));
        let entries = extents.map(|(f, u)| (u.name.as_str(), resolved.extents.get(&f).cloned().unwrap_or_default()));
        let batch = Batch::from_named(&desc, params, entries)?;
        let mut prelude = PreludeCache::new(Arc::new(Prelude::new(desc.clone())?));
        prelude.update(&batch, &Limits::default(), None)?;
        _ = match &mut machine {
            Machine::Cpu(i) => i.bind(&batch)?,
            Machine::Gpu(d) => d.bind(&batch)?,
        };
        each_input(source, tables(&prelude)?, &desc, &mut |n, _, array| Ok(machine.set_input(n, array)?))?;
        let plain = interp::Batch { params: resolved.params, extents: resolved.extents, inputs: Default::default() };
        let work = cora::work::kernel_flops(&lowered, &plain);
        let useful_flops = work.iter().map(|w| w.0).sum();
        Ok(Self { machine, desc, prelude, batch, kernel_times: Vec::new(), useful_flops, compile_time })
    }

    /// Runs all kernels once; the prelude's tables are there already. On a GPU the time is the kernels' by its own clock.
    ///
    /// # Errors
    /// The runtime's.
    pub fn run(&mut self) -> Result<Duration, Failure> {
        let start = Instant::now();
        match &mut self.machine {
            Machine::Cpu(instance) => {
                instance.run()?;
                let time = start.elapsed();
                self.kernel_times = instance.kernel_times().map(|(n, t)| (n.to_owned(), t)).collect();
                Ok(time)
            }
            Machine::Gpu(device) => {
                self.kernel_times = device.run_timed()?;
                Ok(self.kernel_times.iter().map(|k| k.1).sum())
            }
        }
    }

    /// The device's name, and bytes a second of a copy on it; nothing on a CPU.
    ///
    /// # Errors
    /// The runtime's.
    pub fn device(&mut self) -> Result<Option<(String, f64)>, Failure> {
        let Machine::Gpu(device) = &mut self.machine else { return Ok(None) };
        let (bytes, time) = device.time_copy()?;
        Ok(Some((device.name().to_owned(), bytes as f64 / time.as_secs_f64().max(1e-9))))
    }

    /// Copies the tables to the device again; the time of that, nothing on a CPU.
    ///
    /// # Errors
    /// The runtime's.
    pub fn copy_tables(&mut self) -> Result<Option<Duration>, Failure> {
        let Machine::Gpu(device) = &mut self.machine else { return Ok(None) };
        let (_, copied, _) = device.time_tables(&self.batch)?;
        Ok(Some(copied))
    }

    /// Checks the batch and builds its tables as for one that is new, on one thread and, as from batch to batch, in
    /// memory that is there.
    ///
    /// # Errors
    /// The runtime's.
    pub fn build_prelude(&mut self) -> Result<Duration, Failure> {
        self.prelude.forget();
        let start = Instant::now();
        self.prelude.update(&self.batch, &Limits::default(), None)?;
        Ok(start.elapsed())
    }

    /// Bytes of the batch's tables.
    pub fn table_bytes(&self) -> u64 {
        self.prelude.sizes().map(|(_, bytes)| bytes).sum()
    }

    /// One turn: a run to warm up, unless it takes `min_ms` already, then timed runs until they take `min_ms` together or
    /// are `max_runs`. In milliseconds.
    ///
    /// # Errors
    /// The runtime's.
    pub fn turn(&mut self, min_ms: f64, max_runs: usize) -> Result<Vec<f64>, Failure> {
        let first = ms(self.run()?);
        let mut times = if first < min_ms { Vec::new() } else { vec![first] };
        while times.len() < max_runs && times.iter().sum::<f64>() < min_ms {
            times.push(ms(self.run()?));
        }
        Ok(times)
    }

    /// Each kernel's name and its time in the last run.
    pub fn kernel_times(&self) -> Vec<(String, Duration)> {
        self.kernel_times.clone()
    }

    /// Gives an input by name.
    ///
    /// # Errors
    /// The runtime's.
    pub fn set_input(&mut self, name: &str, array: &RaggedArray) -> Result<(), Failure> {
        let tensor = self.tensor(name)?;
        Ok(self.machine.set_input(tensor, array)?)
    }

    /// The elements of an output of the last run, in row-major ragged order.
    ///
    /// # Errors
    /// The runtime's.
    pub fn output(&self, name: &str) -> Result<RaggedArray, Failure> {
        let tensor = self.tensor(name)?;
        Ok(match &self.machine {
            Machine::Cpu(i) => i.output(tensor)?,
            Machine::Gpu(d) => d.output(tensor)?,
        })
    }

    fn tensor(&self, name: &str) -> Result<usize, Failure> {
        let found = self.desc.tensors.iter().position(|t| t.name == name);
        found.ok_or_else(|| Failure::Bug(format!("the program has no tensor `{name}`")))
    }

    /// The names of the outputs.
    pub fn outputs(&self) -> Vec<String> {
        let outputs = self.desc.tensors.iter().filter(|t| t.role == Role::Output);
        outputs.map(|t| t.name.clone()).collect()
    }

    /// Writes the inputs that [`Ready::new`] made for `source` as `.npy` files in `dir`.
    ///
    /// # Errors
    /// The runtime's, of files too.
    pub fn write_inputs(&self, source: &Source, dir: &Path) -> Result<Vec<(String, PathBuf)>, Failure> {
        let mut files = Vec::new();
        each_input(source, tables(&self.prelude)?, &self.desc, &mut |_, name, array| {
            let path = dir.join(format!("{name}.npy"));
            // The format does not know bf16.
            let wide = match array.dtype() {
                DType::BF16 => {
                    Some(inputs::to_array(ScalarType::F32, array.shape().clone(), &inputs::to_data(array)?)?)
                }
                _ => None,
            };
            npy::write(&path, wide.as_ref().unwrap_or(array))?;
            files.push((name.to_owned(), path));
            Ok(())
        })?;
        Ok(files)
    }
}

impl Machine {
    fn set_input(&mut self, tensor: usize, array: &RaggedArray) -> cora::runtime::Result<()> {
        match self {
            Self::Cpu(i) => i.set_input(tensor, array),
            Self::Gpu(d) => d.set_input(tensor, array),
        }
    }
}

/// In milliseconds.
pub fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The tables of a batch that was given.
fn tables(prelude: &PreludeCache) -> Result<&Tables, Failure> {
    prelude.tables().ok_or_else(|| Failure::Bug("a prelude without tables".to_owned()))
}

type Visit<'a> = &'a mut dyn FnMut(usize, &str, &RaggedArray) -> Result<(), Failure>;

/// Shows `visit` each input's number, name and random elements, always the same ones.
fn each_input(source: &Source, tables: &Tables, desc: &ProgramDesc, visit: Visit) -> Result<(), Failure> {
    let (env, limits) = (&source.graph.env, Limits::default());
    for (n, t) in desc.tensors.iter().enumerate() {
        let Some(id) = env.tensor_named(&t.name).filter(|_| t.role != Role::Output) else { continue };
        let layout = TensorLayout::new(t);
        let shape = layout.shape(tables.env(), &limits)?;
        let ranges = layout.value_ranges(tables.env(), &limits)?;
        let count = shape.elements().and_then(|n| usize::try_from(n).ok());
        let count = count.ok_or_else(|| Failure::User(format!("error[E0312]: input `{}` is too large", t.name)))?;
        let data = inputs::random(env, id, count, ranges.as_ref(), 0);
        visit(n, &t.name, &inputs::to_array(env.tensors[id].ty, shape, &data)?)?;
    }
    Ok(())
}
