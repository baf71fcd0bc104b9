//! Loads the code and runs it as often as asked for.

use crate::args::Args;
use crate::batch::Inputs;
use crate::report::{Kernel, Report};
use cora_runtime::abi::{ProgramDesc, Role};
use cora_runtime::array::RaggedArray;
use cora_runtime::artifact::{Artifact, Machine};
use cora_runtime::cuda::Device;
use cora_runtime::exec::{Instance, Options, median};
use cora_runtime::pool::Pool;
use cora_runtime::prelude::Batch;
use cora_runtime::{Result, library};
use std::sync::Arc;
use std::time::Duration;

type Arrays = Vec<(usize, RaggedArray)>;

/// What a run gives.
pub struct Ran {
    /// Those of each instance.
    pub outputs: Vec<Arrays>,
    pub report: Report,
}

/// A program that is ready for batches.
pub enum Loaded {
    /// On this processor, with as many threads.
    Cpu(Box<Instance>, usize),
    /// Instances on the first GPU.
    Gpu(Vec<Device>),
}

impl Loaded {
    /// Loads an artifact's code.
    ///
    /// # Errors
    /// Code that this machine cannot run or load (`E0334`, `E0335`), no GPU (`E0336`), no BLAS (`E0338`), a description
    /// that is wrong, or too many threads.
    pub fn new(args: &Args, artifact: &Artifact, desc: &Arc<ProgramDesc>) -> Result<Loaded> {
        match &artifact.manifest.machine {
            Machine::Cpu { .. } => on_cpu(args, artifact, desc),
            Machine::Cuda { .. } => on_gpu(args, artifact, desc),
        }
    }

    /// Runs a batch; gives the outputs that are `wanted`.
    ///
    /// # Errors
    /// A batch that does not fit the program, an input that cannot be given, memory beyond the limits, a GPU that
    /// fails.
    pub fn run(
        &mut self,
        args: &Args,
        artifact: &Artifact,
        (batch, inputs): (&Batch, &Inputs<'_>),
        wanted: &dyn Fn(usize) -> bool,
    ) -> Result<Ran> {
        match self {
            Loaded::Cpu(instance, threads) => {
                run_on_cpu((args, artifact), (batch, inputs), (instance, *threads), wanted)
            }
            Loaded::Gpu(devices) => run_on_gpu((args, artifact), (batch, inputs), devices, wanted),
        }
    }
}

fn on_cpu(args: &Args, artifact: &Artifact, desc: &Arc<ProgramDesc>) -> Result<Loaded> {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if args.threads > 0 { args.threads } else { cores() };
    let pool = Arc::new(Pool::new(threads)?);
    // SAFETY: the user asked for this artifact's code to be run; its checksum holds.
    let kernels = unsafe { library::load(&artifact.manifest.machine, desc, &artifact.code) }?;
    let options = Options { poison: args.poison, limits: args.limits };
    // SAFETY: code and description come from one compilation.
    let instance = unsafe { Instance::new(desc.clone(), Arc::new(kernels), pool, options) }?;
    Ok(Loaded::Cpu(Box::new(instance), threads))
}

fn run_on_cpu(
    (args, artifact): (&Args, &Artifact),
    (batch, inputs): (&Batch, &Inputs<'_>),
    (instance, threads): (&mut Instance, usize),
    wanted: &dyn Fn(usize) -> bool,
) -> Result<Ran> {
    instance.bind(batch)?;
    inputs.tensors().try_for_each(|n| inputs.give(n, instance))?;
    let (mut totals, mut each): (Vec<Duration>, Vec<Vec<Duration>>) = (Vec::new(), Vec::new());
    if args.repeat > 1 {
        instance.run()?;
    }
    for _ in 0..args.repeat {
        instance.run()?;
        totals.push(instance.run_time());
        each.push(instance.kernel_times().map(|(_, t)| t).collect());
    }
    let mut report = report(artifact, batch, Some(threads), totals, &each);
    report.prelude_ms = Some(ms(instance.prelude().build_time()));
    report.setup = instance.setup_times().map(|(n, t)| Kernel { kernel: n.to_owned(), ms: ms(t) }).collect();
    report.memory = Some(instance.memory());
    Ok(Ran { outputs: vec![outputs(&artifact.desc, wanted, |n| instance.output(n))?], report })
}

fn on_gpu(args: &Args, artifact: &Artifact, desc: &Arc<ProgramDesc>) -> Result<Loaded> {
    let grid = artifact.grid.clone().unwrap_or_default();
    let ptx = String::from_utf8_lossy(&artifact.code).into_owned();
    let mut devices = Vec::new();
    for _ in 0..args.streams {
        // SAFETY: the user asked for this artifact's code to be run; its checksum holds, and code, launches and
        // description come from one compilation.
        let mut device = unsafe { Device::new(desc.clone(), grid.clone(), &ptx) }?;
        device.set_limits(args.limits);
        device.poison(args.poison);
        device.flush(args.flush.saturating_mul(1 << 20))?;
        devices.push(device);
    }
    Ok(Loaded::Gpu(devices))
}

fn run_on_gpu(
    (args, artifact): (&Args, &Artifact),
    (batch, inputs): (&Batch, &Inputs<'_>),
    devices: &mut [Device],
    wanted: &dyn Fn(usize) -> bool,
) -> Result<Ran> {
    devices.iter_mut().try_for_each(|d| d.bind(batch).map(|_| ()))?;
    for n in inputs.tensors() {
        let array = inputs.array(n)?;
        devices.iter_mut().try_for_each(|d| d.set_input(n, &array))?;
    }
    let (mut totals, mut each): (Vec<Duration>, Vec<Vec<Duration>>) = (Vec::new(), Vec::new());
    if let [device] = devices
        && !args.graph
    {
        if args.repeat > 1 {
            device.run_timed()?;
        }
        for _ in 0..args.repeat {
            let times = device.run_timed()?;
            totals.push(times.iter().map(|t| t.1).sum());
            each.push(times.iter().map(|t| t.1).collect());
        }
    } else {
        for device in devices.iter_mut() {
            device.capture()?;
            other_lengths(device, batch)?;
        }
        // Reading outputs waits for the stream, so all instances run at once.
        for _ in 0..if devices.len() > 1 { args.repeat } else { 0 } {
            devices.iter_mut().try_for_each(Device::replay)?;
        }
        if let [device] = devices {
            for _ in 0..args.repeat {
                totals.push(device.replay_timed()?);
            }
        }
    }
    let mut all = Vec::new();
    for device in devices.iter() {
        all.push(outputs(&artifact.desc, wanted, |n| device.output(n))?);
    }
    let mut report = report(artifact, batch, None, totals, &each);
    let mut tables = Vec::new();
    for _ in 0..args.repeat {
        tables.push(devices[0].time_tables(batch)?);
    }
    report.prelude_ms = Some(ms(median(tables.iter().map(|t| t.0).collect())));
    report.copy_ms = Some(ms(median(tables.iter().map(|t| t.1).collect())));
    report.table_bytes = tables.first().map(|t| t.2);
    report.device_tables = devices[0].builds_tables();
    report.memory = Some(devices[0].memory());
    Ok(Ran { outputs: all, report })
}

/// Where kernels build the tables: a replay in which every innermost row is as short as the shortest, so that those that
/// follow have to build the batch's own tables again.
fn other_lengths(device: &mut Device, batch: &Batch) -> Result<()> {
    if !device.builds_tables() {
        return Ok(());
    }
    let depths: Vec<usize> = device.desc().extents.iter().map(|e| e.domain.len()).collect();
    let deepest = depths.iter().copied().max().unwrap_or(0);
    let short = depths.iter().zip(&batch.lengths).map(|(&depth, lengths)| {
        let least = lengths.iter().copied().min().unwrap_or(0);
        if depth == deepest { vec![least; lengths.len()] } else { lengths.clone() }
    });
    let short: Vec<Vec<i64>> = short.collect();
    device.set_lengths(&short)?;
    device.replay()?;
    device.set_lengths(&batch.lengths)
}

fn outputs(
    desc: &ProgramDesc,
    wanted: &dyn Fn(usize) -> bool,
    get: impl Fn(usize) -> Result<RaggedArray>,
) -> Result<Arrays> {
    let outputs = desc.tensors.iter().enumerate().filter(|(n, t)| t.role == Role::Output && wanted(*n));
    outputs.map(|(n, _)| Ok((n, get(n)?))).collect()
}

fn report(
    artifact: &Artifact,
    batch: &Batch,
    threads: Option<usize>,
    totals: Vec<Duration>,
    each: &[Vec<Duration>],
) -> Report {
    let desc = &artifact.desc;
    let time = |k: usize| ms(median(each.iter().map(|e| e[k]).collect()));
    let kernels = desc.kernels.iter().enumerate().filter(|_| !each.is_empty());
    Report {
        program: artifact.manifest.program.clone(),
        target: artifact.manifest.machine.to_string(),
        batch: desc.params.iter().map(|p| p.name.clone()).zip(batch.params.iter().copied()).collect(),
        threads,
        total_ms: ms(median(totals)),
        kernels: kernels.map(|(k, d)| Kernel { kernel: d.name.clone(), ms: time(k) }).collect(),
        ..Report::default()
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
