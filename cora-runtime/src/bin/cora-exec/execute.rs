//! Loads the code and runs it as often as asked for.

use crate::args::Args;
use crate::report::{Kernel, Report};
use cora_runtime::abi::{ProgramDesc, Role};
use cora_runtime::array::RaggedArray;
use cora_runtime::artifact::Artifact;
use cora_runtime::cuda::Device;
use cora_runtime::exec::{Instance, Options, median};
use cora_runtime::pool::Pool;
use cora_runtime::prelude::Batch;
use cora_runtime::{Error, Result, library};
use std::sync::Arc;
use std::time::Duration;

/// What a run gives.
pub struct Ran {
    pub outputs: Vec<(usize, RaggedArray)>,
    pub report: Report,
}

/// On this processor.
pub fn on_cpu(
    args: &Args,
    artifact: &Artifact,
    desc: &Arc<ProgramDesc>,
    batch: &Batch,
    inputs: &[(usize, RaggedArray)],
) -> Result<Ran> {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if args.threads > 0 { args.threads } else { cores() };
    let pool = Arc::new(Pool::new(threads)?);
    // SAFETY: the user asked for this artifact's code to be run; its checksum holds.
    let kernels = unsafe { library::load(&artifact.manifest.machine, desc, &artifact.code) }?;
    let options = Options { poison: args.poison, ..Options::default() };
    // SAFETY: code and description come from one compilation.
    let mut instance = unsafe { Instance::new(desc.clone(), Arc::new(kernels), pool, options) }?;
    instance.bind(batch)?;
    for (n, array) in inputs {
        instance.set_input(*n, array)?;
    }
    let (mut totals, mut each): (Vec<Duration>, Vec<Vec<Duration>>) = (Vec::new(), Vec::new());
    if args.repeat > 1 {
        instance.run()?;
    }
    for _ in 0..args.repeat {
        instance.run()?;
        totals.push(instance.run_time());
        each.push(instance.kernel_times().map(|(_, t)| t).collect());
    }
    let mut report = report(artifact, batch, threads, totals, &each);
    report.prelude_ms = Some(ms(instance.prelude().build_time()));
    report.setup = instance.setup_times().map(|(n, t)| Kernel { kernel: n.to_owned(), ms: ms(t) }).collect();
    report.memory = Some(instance.memory());
    Ok(Ran { outputs: outputs(desc, |n| instance.output(n))?, report })
}

/// On the first GPU.
pub fn on_gpu(
    args: &Args,
    artifact: &Artifact,
    desc: &Arc<ProgramDesc>,
    batch: &Batch,
    inputs: &[(usize, RaggedArray)],
) -> Result<Ran> {
    if args.poison {
        return Err(Error::Cuda("--poison is for processors".to_owned()));
    }
    let grid = artifact.grid.clone().unwrap_or_default();
    let ptx = String::from_utf8_lossy(&artifact.code).into_owned();
    // SAFETY: the user asked for this artifact's code to be run; its checksum holds, and code, launches and
    // description come from one compilation.
    let mut device = unsafe { Device::new(desc.clone(), grid, &ptx) }?;
    device.bind(batch)?;
    for (n, array) in inputs {
        device.set_input(*n, array)?;
    }
    let (mut totals, mut each): (Vec<Duration>, Vec<Vec<Duration>>) = (Vec::new(), Vec::new());
    if args.repeat > 1 {
        device.run_timed()?;
    }
    for _ in 0..args.repeat {
        let times = device.run_timed()?;
        totals.push(times.iter().map(|t| t.1).sum());
        each.push(times.iter().map(|t| t.1).collect());
    }
    let report = report(artifact, batch, 0, totals, &each);
    Ok(Ran { outputs: outputs(desc, |n| device.output(n))?, report })
}

fn outputs(desc: &ProgramDesc, get: impl Fn(usize) -> Result<RaggedArray>) -> Result<Vec<(usize, RaggedArray)>> {
    let outputs = desc.tensors.iter().enumerate().filter(|(_, t)| t.role == Role::Output);
    outputs.map(|(n, _)| Ok((n, get(n)?))).collect()
}

fn report(artifact: &Artifact, batch: &Batch, threads: usize, totals: Vec<Duration>, each: &[Vec<Duration>]) -> Report {
    let desc = &artifact.desc;
    let time = |k: usize| ms(median(each.iter().map(|e| e[k]).collect()));
    Report {
        program: artifact.manifest.program.clone(),
        target: artifact.manifest.machine.to_string(),
        batch: desc.params.iter().map(|p| p.name.clone()).zip(batch.params.iter().copied()).collect(),
        threads,
        total_ms: ms(median(totals)),
        kernels: desc.kernels.iter().enumerate().map(|(k, d)| Kernel { kernel: d.name.clone(), ms: time(k) }).collect(),
        ..Report::default()
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
