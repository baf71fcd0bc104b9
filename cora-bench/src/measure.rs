//! Compiles a program, binds a batch and times it.

use crate::workload::Values;
use cora::cli::compile::{describe, native, not_loaded};
use cora::codegen_llvm::compile::check_host;
use cora::codegen_llvm::llvm::TargetSpec;
use cora::driver::{self, Failure, Source};
use cora::inputs;
use cora::ir::UfDef;
use cora::ir::interp;
use cora::runtime::Limits;
use cora::runtime::abi::{ProgramDesc, Role};
use cora::runtime::array::{RaggedArray, TensorLayout};
use cora::runtime::exec::{Instance, Options};
use cora::runtime::npy;
use cora::runtime::pool::Pool;
use cora::runtime::prelude::{Batch, Prelude, Tables};
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
    /// Every extent raised to the batch's greatest, the surplus masked.
    pub padded: bool,
    /// The schedule's name; the compiler's own where the program has none of this name and it is `cpu`.
    pub schedule: String,
    /// The machine.
    pub target: TargetSpec,
}

impl Default for Form {
    /// Ragged, the `cpu` schedule, this machine.
    fn default() -> Self {
        Self { padded: false, schedule: "cpu".to_owned(), target: TargetSpec::host() }
    }
}

/// A compiled program with a batch bound and random inputs set.
pub struct Ready {
    instance: Instance,
    prelude: Prelude,
    batch: Batch,
    /// Floating-point operations of the unpadded multiply-adds of one run (two for each).
    pub useful_flops: f64,
    /// From the op graph to code in memory.
    pub compile_time: Duration,
}

impl Ready {
    /// Compiles a form of `source`, binds `values` and sets random inputs.
    ///
    /// # Errors
    /// The program's mistakes, a batch that it does not admit; a failure of code generation is a bug.
    pub fn new(source: &Source, values: &Values, form: &Form, pool: Arc<Pool>) -> Result<Self, Failure> {
        check_host(&form.target)?;
        let start = Instant::now();
        let schedule = if form.schedule == "cpu" { None } else { Some(form.schedule.as_str()) };
        let lowered = driver::lower(source, source.schedule(schedule, "cpu")?, form.padded, &mut |_| {})?;
        let desc = Arc::new(describe(&lowered.storage)?);
        let program = native(&lowered.storage, &form.target)?;
        let kernels = Arc::new(program.jit().map_err(not_loaded)?);
        let compile_time = start.elapsed();
        let given = cora::batch::Source { params: &values.params, lengths: &values.lengths, skip: 0, seed: 0 };
        let env = &source.graph.env;
        let resolved = cora::batch::resolve(env, &given)?;
        let params = env.params.iter().zip(&resolved.params).map(|((_, p), &v)| (p.name.as_str(), v));
        let extents = env.ufs.iter().filter(|(_, u)| matches!(u.def, UfDef::Extent { .. }));
        let entries = extents.map(|(f, u)| (u.name.as_str(), resolved.extents.get(&f).cloned().unwrap_or_default()));
        let batch = Batch::from_named(&desc, params, entries)?;
        // SAFETY: the kernels were compiled from the module that `desc` describes.
        let mut instance = unsafe { Instance::new(desc.clone(), kernels, pool, Options::default()) }?;
        instance.bind(&batch)?;
        let prelude = Prelude::new(desc)?;
        let tables = prelude.build(&batch, &Limits::default())?;
        each_input(source, &tables, &instance.desc().clone(), &mut |n, _, array| Ok(instance.set_input(n, array)?))?;
        let plain = interp::Batch { params: resolved.params, extents: resolved.extents, inputs: Default::default() };
        let work = cora::work::kernel_flops(source, &lowered.loops, &plain);
        let useful_flops = work.iter().map(|w| w.0).sum();
        Ok(Self { instance, prelude, batch, useful_flops, compile_time })
    }

    /// Runs all kernels once; the prelude's tables are there already.
    ///
    /// # Errors
    /// The runtime's.
    pub fn run(&mut self) -> Result<Duration, Failure> {
        let start = Instant::now();
        self.instance.run()?;
        Ok(start.elapsed())
    }

    /// Checks the batch and builds the tables from nothing.
    ///
    /// # Errors
    /// The runtime's.
    pub fn build_prelude(&self) -> Result<(Duration, Tables), Failure> {
        let start = Instant::now();
        let tables = self.prelude.build(&self.batch, &Limits::default())?;
        Ok((start.elapsed(), tables))
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
        self.instance.kernel_times().map(|(n, t)| (n.to_owned(), t)).collect()
    }

    /// Gives an input by name.
    ///
    /// # Errors
    /// The runtime's.
    pub fn set_input(&mut self, name: &str, array: &RaggedArray) -> Result<(), Failure> {
        Ok(self.instance.set_input(self.instance.tensor(name)?, array)?)
    }

    /// The elements of an output of the last run, in row-major ragged order.
    ///
    /// # Errors
    /// The runtime's.
    pub fn output(&self, name: &str) -> Result<RaggedArray, Failure> {
        Ok(self.instance.output(self.instance.tensor(name)?)?)
    }

    /// The names of the outputs.
    pub fn outputs(&self) -> Vec<String> {
        let outputs = self.instance.desc().tensors.iter().filter(|t| t.role == Role::Output);
        outputs.map(|t| t.name.clone()).collect()
    }

    /// Writes the inputs that [`Ready::new`] made for `source` as `.npy` files in `dir`.
    ///
    /// # Errors
    /// The runtime's, of files too.
    pub fn write_inputs(&self, source: &Source, dir: &Path) -> Result<Vec<(String, PathBuf)>, Failure> {
        let mut files = Vec::new();
        let tables = self.build_prelude()?.1;
        each_input(source, &tables, self.instance.desc(), &mut |_, name, array| {
            let path = dir.join(format!("{name}.npy"));
            npy::write(&path, array)?;
            files.push((name.to_owned(), path));
            Ok(())
        })?;
        Ok(files)
    }
}

/// In milliseconds.
pub fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

type Visit<'a> = &'a mut dyn FnMut(usize, &str, &RaggedArray) -> Result<(), Failure>;

/// Shows `visit` each input's number, name and random elements, always the same ones.
fn each_input(source: &Source, tables: &Tables, desc: &ProgramDesc, visit: Visit) -> Result<(), Failure> {
    let (env, limits) = (&source.graph.env, Limits::default());
    for (n, t) in desc.tensors.iter().enumerate() {
        let Some(id) = env.tensor_named(&t.name).filter(|_| t.role != Role::Output) else { continue };
        let shape = TensorLayout::new(t).shape(tables.env(), &limits)?;
        let count = shape.elements().and_then(|n| usize::try_from(n).ok());
        let count = count.ok_or_else(|| Failure::User(format!("error[E0312]: input `{}` is too large", t.name)))?;
        let range = t.value_range.as_ref().map(|(lo, hi)| {
            let at = |ix| cora::runtime::eval::eval(ix, tables.env(), &[]).unwrap_or(0);
            (at(lo), at(hi))
        });
        let data = inputs::random(env, id, count, range, 0);
        visit(n, &t.name, &inputs::to_array(env.tensors[id].ty, shape, &data)?)?;
    }
    Ok(())
}
