//! Compiles a program for this machine, binds a batch and times it.

use crate::workload::Values;
use cora::codegen_llvm::compile::{CompileOptions, compile};
use cora::codegen_llvm::describe::program_desc;
use cora::codegen_llvm::llvm::TargetSpec;
use cora::driver::{self, Failure, Source};
use cora::inputs;
use cora::ir::UfDef;
use cora::ir::interp;
use cora::runtime::Limits;
use cora::runtime::abi::Role;
use cora::runtime::array::TensorLayout;
use cora::runtime::exec::{Instance, Options};
use cora::runtime::pool::Pool;
use cora::runtime::prelude::{Batch, Prelude, Tables};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Median, least and greatest of some times, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Times {
    /// Median.
    pub median_ms: f64,
    /// Least.
    pub min_ms: f64,
    /// Greatest.
    pub max_ms: f64,
}

impl Times {
    /// The statistics of `times`; of none, zeros.
    pub fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let ms = |d: Option<&Duration>| d.map_or(0.0, |d| d.as_secs_f64() * 1e3);
        Self { median_ms: ms(times.get(times.len() / 2)), min_ms: ms(times.first()), max_ms: ms(times.last()) }
    }
}

/// A compiled program with a batch bound and random inputs set.
pub struct Ready {
    instance: Instance,
    prelude: Prelude,
    batch: Batch,
    /// Floating-point operations of the unpadded multiply-adds of one run (two for each).
    pub useful_flops: f64,
}

impl Ready {
    /// Compiles the `cpu` schedule of `source` for this machine, fully padded if `padded`.
    ///
    /// # Errors
    /// The program's mistakes, a batch that it does not admit; a failure of code generation is a bug.
    pub fn new(source: &Source, values: &Values, padded: bool, pool: Arc<Pool>) -> Result<Self, Failure> {
        let bug = |e: &dyn std::fmt::Display| Failure::Bug(e.to_string());
        let lowered = driver::lower(source, source.schedule(None, "cpu")?, padded, &mut |_| {})?;
        let desc = Arc::new(program_desc(&lowered.storage).map_err(|e| bug(&e))?);
        let given = cora::batch::Source { params: &values.params, lengths: &values.lengths, skip: 0, seed: 0 };
        let env = &source.graph.env;
        let resolved = cora::batch::resolve(env, &given)?;
        let params = env.params.iter().zip(&resolved.params).map(|((_, p), &v)| (p.name.as_str(), v));
        let extents = env.ufs.iter().filter(|(_, u)| matches!(u.def, UfDef::Extent { .. }));
        let entries = extents.map(|(f, u)| (u.name.as_str(), resolved.extents.get(&f).cloned().unwrap_or_default()));
        let batch = Batch::from_named(&desc, params, entries)?;
        let program =
            compile(&lowered.storage, &TargetSpec::host(), &CompileOptions::default()).map_err(|e| bug(&e))?;
        let kernels = Arc::new(program.jit().map_err(|e| bug(&e))?);
        // SAFETY: the kernels were compiled from the module that `desc` describes.
        let mut instance = unsafe { Instance::new(desc.clone(), kernels, pool, Options::default()) }?;
        instance.bind(&batch)?;
        let prelude = Prelude::new(desc.clone())?;
        set_inputs(source, &prelude.build(&batch, &Limits::default())?, &mut instance)?;
        let plain = interp::Batch { params: resolved.params, extents: resolved.extents, inputs: Default::default() };
        let work = cora::work::kernel_flops(source, &lowered.loops, &plain);
        let useful_flops = work.iter().map(|w| w.0).sum();
        Ok(Self { instance, prelude, batch, useful_flops })
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

    /// Each kernel's name and its time in the last run.
    pub fn kernel_times(&self) -> Vec<(String, Duration)> {
        self.instance.kernel_times().map(|(n, t)| (n.to_owned(), t)).collect()
    }
}

fn set_inputs(source: &Source, tables: &Tables, instance: &mut Instance) -> Result<(), Failure> {
    let (env, limits) = (&source.graph.env, Limits::default());
    let desc = instance.desc().clone();
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
        instance.set_input(n, &inputs::to_array(env.tensors[id].ty, shape, &data)?)?;
    }
    Ok(())
}
