//! `cora-exec ARTIFACT`: loads an artifact, runs it on a batch, checks it, times it. Links no compiler.

use cora_runtime::abi::{DType, ProgramDesc, Role, TensorDesc};
use cora_runtime::array::{RaggedArray, TensorLayout};
use cora_runtime::artifact::{Artifact, Machine, Sample};
use cora_runtime::exec::{Instance, Options, median};
use cora_runtime::pool::Pool;
use cora_runtime::prelude::{Batch, Prelude};
use cora_runtime::{Error, Limits, lengths, library, npy};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

const USAGE: &str = "usage: cora-exec ARTIFACT [--sample] [--param NAME=N] [--lengths NAME=FILE] [--skip N] \
[--input NAME=FILE.npy] [--output NAME=FILE.npy] [--seed N] [--repeat N] [--threads N] [--info]

Runs a compiled program. Without --lengths the sample in the artifact is run, if it has one, and checked against the
results that are stored with it. Inputs that are not given are random from the seed.
";

/// Why it stops.
enum Stop {
    Usage(String),
    Failed(Error),
    Mismatch(String),
}

impl From<Error> for Stop {
    fn from(e: Error) -> Stop {
        Stop::Failed(e)
    }
}

#[derive(Default)]
struct Args {
    artifact: PathBuf,
    sample: bool,
    info: bool,
    params: Vec<(String, i64)>,
    lengths: Vec<(String, PathBuf)>,
    inputs: Vec<(String, PathBuf)>,
    outputs: Vec<(String, PathBuf)>,
    skip: u64,
    seed: u64,
    repeat: usize,
    threads: usize,
}

fn main() -> ExitCode {
    match parse(std::env::args().skip(1)).and_then(|a| run(&a)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Stop::Usage(text)) => {
            eprintln!("{text}");
            ExitCode::from(2)
        }
        Err(Stop::Failed(e)) => {
            eprintln!("error[{}]: {e}\n  help: {}", e.code(), e.hint());
            ExitCode::from(1)
        }
        Err(Stop::Mismatch(text)) => {
            eprintln!("{text}");
            ExitCode::from(3)
        }
    }
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Args, Stop> {
    let usage = |why: &str| Stop::Usage(format!("cora-exec: {why}\n{USAGE}"));
    let mut args = Args { repeat: 1, ..Args::default() };
    let mut artifact = None;
    while let Some(word) = words.next() {
        let (name, mut given) = match word.split_once('=') {
            Some((n, v)) if n.starts_with("--") => (n.to_owned(), Some(v.to_owned())),
            _ => (word.clone(), None),
        };
        let mut value = || given.take().or_else(|| words.next()).ok_or_else(|| usage(&format!("{name} wants a value")));
        let number = |v: String| v.parse::<u64>().map_err(|_| usage(&format!("`{v}` is not a number")));
        let pair = |v: String| match v.split_once('=') {
            Some((n, v)) => Ok((n.to_owned(), v.to_owned())),
            None => Err(usage(&format!("`{v}` is not NAME=VALUE"))),
        };
        match name.as_str() {
            "--help" | "-h" => return Err(Stop::Usage(USAGE.to_owned())),
            "--sample" => args.sample = true,
            "--info" => args.info = true,
            "--param" => {
                let (n, v) = pair(value()?)?;
                args.params.push((n, v.parse().map_err(|_| usage(&format!("`{v}` is not an integer")))?));
            }
            "--lengths" => args.lengths.push(pair(value()?).map(|(n, v)| (n, v.into()))?),
            "--input" => args.inputs.push(pair(value()?).map(|(n, v)| (n, v.into()))?),
            "--output" => args.outputs.push(pair(value()?).map(|(n, v)| (n, v.into()))?),
            "--skip" => args.skip = number(value()?)?,
            "--seed" => args.seed = number(value()?)?,
            "--repeat" => args.repeat = number(value()?)?.clamp(1, 1 << 20) as usize,
            "--threads" => args.threads = number(value()?)?.min(1024) as usize,
            flag if flag.starts_with('-') => return Err(usage(&format!("there is no option {flag}"))),
            _ if artifact.is_none() => artifact = Some(PathBuf::from(word)),
            _ => return Err(usage("more than one artifact")),
        }
    }
    args.artifact = artifact.ok_or_else(|| usage("which artifact?"))?;
    Ok(args)
}

fn run(args: &Args) -> Result<(), Stop> {
    let path = args.artifact.display().to_string();
    let bytes = std::fs::read(&args.artifact).map_err(|source| Error::Io { path, source })?;
    let artifact = Artifact::from_bytes(&bytes)?;
    if args.info {
        describe(&artifact);
        return Ok(());
    }
    let desc = Arc::new(artifact.desc.clone());
    let stored =
        artifact.sample.as_ref().filter(|_| args.sample || (args.params.is_empty() && args.lengths.is_empty()));
    let batch = match stored {
        Some(s) => Batch { params: s.params.clone(), lengths: s.lengths.clone() },
        None => batch(args, &desc)?,
    };
    let limits = Limits::default();
    let tables = Prelude::new(desc.clone())?.build(&batch, &limits)?;
    let mut inputs = Vec::new();
    for (n, t) in desc.tensors.iter().enumerate().filter(|(_, t)| t.role != Role::Output) {
        let shape = TensorLayout::new(t).shape(tables.env(), &limits)?;
        let file = args.inputs.iter().rev().find(|(name, _)| *name == t.name);
        inputs.push((
            n,
            match (file, stored) {
                (Some((_, path)), _) => npy::NpyArray::read(path)?.into_array(t.dtype, shape)?,
                (None, Some(s)) => RaggedArray::from_bytes(t.dtype, shape, &s.tensors[n])?,
                (None, None) => random(t, shape, tables.env(), args.seed.wrapping_add(n as u64))?,
            },
        ));
    }
    let start = Instant::now();
    let threads =
        if args.threads > 0 { args.threads } else { std::thread::available_parallelism().map_or(1, usize::from) };
    let (outputs, times) = match &artifact.manifest.machine {
        Machine::Cpu { .. } => on_cpu(&artifact, &desc, &batch, &inputs, threads, args.repeat)?,
        Machine::Cuda { .. } => on_gpu(&artifact, &desc, &batch, &inputs, args.repeat)?,
    };
    let whole = start.elapsed();
    report(&artifact, &times, whole);
    for (n, array) in &outputs {
        let t = &desc.tensors[*n];
        if let Some((_, path)) = args.outputs.iter().rev().find(|(name, _)| *name == t.name) {
            npy::write(path, array)?;
        }
    }
    match stored {
        Some(s) => check(&desc, s, &outputs),
        None => Ok(()),
    }
}

type Outputs = Vec<(usize, RaggedArray)>;
/// The median time of a run, and of each kernel.
type Times = (Duration, Vec<(String, Duration)>);

fn on_cpu(
    artifact: &Artifact,
    desc: &Arc<ProgramDesc>,
    batch: &Batch,
    inputs: &[(usize, RaggedArray)],
    threads: usize,
    repeat: usize,
) -> Result<(Outputs, Times), Stop> {
    // SAFETY: the user asked for this artifact's code to be run; its checksum holds.
    let kernels = unsafe { library::load(&artifact.manifest.machine, desc, &artifact.code) }?;
    let pool = Arc::new(Pool::new(threads)?);
    // SAFETY: code and description come from one compilation.
    let mut instance = unsafe { Instance::new(desc.clone(), Arc::new(kernels), pool, Options::default()) }?;
    instance.bind(batch)?;
    for (n, array) in inputs {
        instance.set_input(*n, array)?;
    }
    let (mut totals, mut each): (Vec<Duration>, Vec<Vec<Duration>>) = (Vec::new(), Vec::new());
    for _ in 0..repeat {
        let start = Instant::now();
        instance.run()?;
        totals.push(start.elapsed());
        each.push(instance.kernel_times().map(|(_, t)| t).collect());
    }
    let kernels =
        desc.kernels.iter().enumerate().map(|(k, d)| (d.name.clone(), median(each.iter().map(|e| e[k]).collect())));
    let times = (median(totals), kernels.collect());
    let outputs = desc.tensors.iter().enumerate().filter(|(_, t)| t.role == Role::Output);
    let outputs = outputs.map(|(n, _)| Ok((n, instance.output(n)?))).collect::<Result<_, Error>>()?;
    Ok((outputs, times))
}

fn on_gpu(
    artifact: &Artifact,
    desc: &Arc<ProgramDesc>,
    batch: &Batch,
    inputs: &[(usize, RaggedArray)],
    repeat: usize,
) -> Result<(Outputs, Times), Stop> {
    let grid = artifact.grid.clone().unwrap_or_default();
    let ptx = String::from_utf8_lossy(&artifact.code).into_owned();
    let mut device = cora_runtime::cuda::Device::new(desc.clone(), grid, &ptx)?;
    device.bind(batch)?;
    for (n, array) in inputs {
        device.set_input(*n, array)?;
    }
    let (mut totals, mut each): (Vec<Duration>, Vec<Vec<Duration>>) = (Vec::new(), Vec::new());
    for _ in 0..repeat {
        let times = device.run_timed()?;
        totals.push(times.iter().map(|t| t.1).sum());
        each.push(times.iter().map(|t| t.1).collect());
    }
    let kernels =
        desc.kernels.iter().enumerate().map(|(k, d)| (d.name.clone(), median(each.iter().map(|e| e[k]).collect())));
    let times = (median(totals), kernels.collect());
    let outputs = desc.tensors.iter().enumerate().filter(|(_, t)| t.role == Role::Output);
    let outputs = outputs.map(|(n, _)| Ok((n, device.output(n)?))).collect::<Result<_, Error>>()?;
    Ok((outputs, times))
}

fn describe(artifact: &Artifact) {
    let (m, d) = (&artifact.manifest, &artifact.desc);
    println!("{} for {}, by cora {}, {} bytes of code", m.program, m.machine, m.compiler, artifact.code.len());
    d.params.iter().for_each(|p| println!("  param {} in {}..={}", p.name, p.lo, p.hi));
    d.extents.iter().for_each(|e| println!("  extent {}", e.name));
    d.tensors.iter().for_each(|t| println!("  {:?} {} : {}", t.role, t.name, t.dtype));
    d.setup_kernels.iter().for_each(|k| println!("  setup {}", k.name));
    d.kernels.iter().for_each(|k| println!("  kernel {}", k.name));
    println!("  {}", if artifact.sample.is_some() { "with a sample" } else { "without a sample" });
}

fn report(artifact: &Artifact, (total, kernels): &Times, whole: Duration) {
    let ms = |d: &Duration| d.as_secs_f64() * 1e3;
    println!("{} ({})", artifact.manifest.program, artifact.manifest.machine);
    for (name, time) in kernels {
        println!("  {name:<28} {:>10.3} ms", ms(time));
    }
    println!("  {:<28} {:>10.3} ms, {:.1} ms with loading", "total", ms(total), ms(&whole));
}

/// The batch that parameters and files of lengths give.
fn batch(args: &Args, desc: &Arc<ProgramDesc>) -> Result<Batch, Stop> {
    let params = args.params.iter().map(|(n, v)| (n.as_str(), *v));
    let none = desc.extents.iter().map(|e| (e.name.as_str(), Vec::new()));
    let mut batch = Batch::from_named(desc, params, none)?;
    let prelude = Prelude::new(desc.clone())?;
    // How many entries a function has follows from parameters and the functions before it: the check says.
    loop {
        let (function, want) = match prelude.build(&batch, &Limits::default()) {
            Ok(_) => return Ok(batch),
            Err(Error::LengthCount { function, want, got: 0 }) => (function, want),
            Err(e) => return Err(e.into()),
        };
        let file = args.lengths.iter().rev().find(|(n, _)| *n == function);
        let missing = || Error::Unknown { what: "file of lengths for", name: function.clone() };
        let (_, path) = file.ok_or_else(missing)?;
        let values = lengths::read(path)?;
        let n = desc.extents.iter().position(|e| e.name == function).ok_or_else(missing)?;
        batch.lengths[n] = lengths::select(&path.display().to_string(), &values, args.skip, want)?.to_vec();
    }
}

/// Elements from the seed: small numbers, and positions within the declared range.
fn random(
    t: &TensorDesc,
    shape: cora_runtime::array::Shape,
    env: cora_runtime::eval::Env<'_>,
    seed: u64,
) -> Result<RaggedArray, Stop> {
    let mut array = RaggedArray::zeros(t.dtype, shape)?;
    let range = match &t.value_range {
        Some((lo, hi)) => {
            let value =
                |ix| cora_runtime::eval::eval(ix, env, &[]).map_err(|fault| Error::Index { at: t.name.clone(), fault });
            Some((value(lo)?, value(hi)?))
        }
        None => None,
    };
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let size = t.dtype.size();
    for bytes in array.bytes_mut().chunks_exact_mut(size) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let unit = (state >> 11) as f64 / (1u64 << 53) as f64;
        let (lo, hi) = range.unwrap_or((-8, 8));
        let int = lo + (unit * (hi - lo) as f64) as i64;
        let float = 2.0 * unit - 1.0;
        match t.dtype {
            DType::Bool => bytes[0] = (state & 1) as u8,
            DType::I8 | DType::I16 | DType::I32 | DType::I64 => bytes.copy_from_slice(&int.to_le_bytes()[..size]),
            DType::F64 => bytes.copy_from_slice(&float.to_le_bytes()),
            DType::F32 => bytes.copy_from_slice(&(float as f32).to_le_bytes()),
            DType::BF16 => bytes.copy_from_slice(&(float as f32).to_le_bytes()[2..]),
            // A half in -1..1 by truncation: sign, 5 bits of exponent, 10 of significand.
            DType::F16 => bytes.copy_from_slice(&half(float as f32).to_le_bytes()),
        }
    }
    Ok(array)
}

fn half(x: f32) -> u16 {
    let b = x.to_bits();
    let (sign, exponent) = ((b >> 16) as u16 & 0x8000, (b >> 23 & 0xff) as i32 - 112);
    if exponent <= 0 { sign } else { sign | (exponent as u16) << 10 | (b >> 13) as u16 & 0x3ff }
}

/// Compares the outputs with those of the sample.
fn check(desc: &ProgramDesc, sample: &Sample, outputs: &Outputs) -> Result<(), Stop> {
    for (n, array) in outputs {
        let t = &desc.tensors[*n];
        let want = RaggedArray::from_bytes(t.dtype, array.shape().clone(), &sample.tensors[*n])?;
        let (got, want) = (numbers(t.dtype, array.bytes()), numbers(t.dtype, want.bytes()));
        let greatest = want.iter().copied().filter(|x| x.is_finite()).fold(0.0, |a: f64, x| a.max(x.abs()));
        let allowed = sample.tolerance[*n] * greatest.max(f64::MIN_POSITIVE);
        let differs = |(g, w): (&f64, &f64)| !((g == w) || (g.is_nan() && w.is_nan()) || (g - w).abs() <= allowed);
        if let Some(i) = got.iter().zip(&want).position(differs) {
            return Err(Stop::Mismatch(format!(
                "error[E0700]: output `{}` differs from the stored one at element {i}: {}, expected {} (allowed {allowed:.3e})",
                t.name, got[i], want[i]
            )));
        }
        println!("  check {:<22} ok: {} elements, allowed {allowed:.3e}", t.name, got.len());
    }
    Ok(())
}

fn numbers(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    let one = |b: &[u8]| -> f64 {
        match (dtype, b) {
            (DType::Bool | DType::I8, &[a]) => f64::from(a as i8),
            (DType::I16, &[a, b]) => f64::from(i16::from_le_bytes([a, b])),
            (DType::BF16, &[a, b]) => f64::from(f32::from_le_bytes([0, 0, a, b])),
            (DType::F16, &[a, b]) => from_half(u16::from_le_bytes([a, b])),
            (DType::I32, &[a, b, c, d]) => f64::from(i32::from_le_bytes([a, b, c, d])),
            (DType::F32, &[a, b, c, d]) => f64::from(f32::from_le_bytes([a, b, c, d])),
            (DType::I64, b) => i64::from_le_bytes(b.try_into().unwrap_or_default()) as f64,
            (_, b) => f64::from_le_bytes(b.try_into().unwrap_or_default()),
        }
    };
    bytes.chunks_exact(dtype.size()).map(one).collect()
}

fn from_half(h: u16) -> f64 {
    let (sign, e, m) = (if h & 0x8000 == 0 { 1.0 } else { -1.0 }, i32::from(h >> 10 & 31), f64::from(h & 0x3ff));
    match (e, m == 0.0) {
        (31, true) => sign * f64::INFINITY,
        (31, false) => f64::NAN,
        (0, _) => sign * m * 2f64.powi(-24),
        _ => sign * (1.0 + m / 1024.0) * 2f64.powi(e - 15),
    }
}
