//! `cora-bench accuracy`: every `f32` through the compiler's math functions, against `f64`.
//!
//! A one-operator program is compiled as any other for the CPU asked for, and run on consecutive bit patterns. The
//! bounds that it finds are those of `docs/bench.md`, and the code generator's tests hold them on samples.

use crate::measure::{Form, Ready};
use crate::workload::{self, Values};
use clap::builder::PossibleValuesParser;
use cora::codegen_llvm::llvm::TargetSpec;
use cora::console::Console;
use cora::driver::Failure;
use cora::ir::types::f32_ulps;
use cora::runtime::abi::DType;
use cora::runtime::array::{RaggedArray, Shape};
use cora::runtime::pool::Pool;
use cora::target::Target;
use serde_json::json;
use std::sync::Arc;

/// Elements of one run.
const CHUNK: u64 = 1 << 22;

#[link(name = "m")]
unsafe extern "C" {
    safe fn erf(x: f64) -> f64;
}

/// `e^x`, and 0 where that is less than all normal numbers of `f32`, as `exp` is defined.
fn normal_exp(x: f64) -> f64 {
    if x < f64::from(-87.336_55_f32) { 0.0 } else { x.exp() }
}

/// A function, its name in the language, and its value in `f64`.
type Function = (&'static str, fn(f64) -> f64);

/// What is checked.
pub const FUNCTIONS: [Function; 8] = [
    ("exp", normal_exp),
    ("log", f64::ln),
    ("tanh", f64::tanh),
    ("erf", |x| erf(x)),
    ("rsqrt", |x| 1.0 / x.sqrt()),
    ("sqrt", f64::sqrt),
    ("sin", f64::sin),
    ("cos", f64::cos),
];

/// Arguments of `cora-bench accuracy`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Functions, separated by commas; all if none is given.
    #[arg(long, value_delimiter = ',', value_parser = PossibleValuesParser::new(FUNCTIONS.map(|f| f.0)))]
    pub function: Vec<String>,
    /// Every `stride`-th bit pattern; 1 is all 2^32.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1 << 31))]
    pub stride: u64,
    /// The CPU to compile for, by LLVM's name; it must run here. Without fused multiply-add: x86-64-v2.
    #[arg(long, default_value = "host")]
    pub target_cpu: String,
    /// One JSON object a line.
    #[arg(long)]
    pub json: bool,
}

/// The greatest error of a function.
#[derive(Clone, Copy, Debug)]
pub struct Worst {
    /// In units in the last place of the result.
    pub ulps: f64,
    /// Where.
    pub at: f32,
    /// What was computed there.
    pub got: f32,
}

/// Measures; a result for each function.
///
/// # Errors
/// A CPU that LLVM does not know; whatever [`Ready::new`] says.
pub fn run(args: &Args, console: &mut dyn Console) -> Result<(), Failure> {
    let target = TargetSpec::new(&args.target_cpu).map_err(|e| Failure::User(format!("error[E0605]: {e}")))?;
    for (name, truth) in FUNCTIONS.iter().filter(|f| args.function.is_empty() || args.function.iter().any(|n| n == f.0))
    {
        let (count, worst) = sweep(name, *truth, &target, args.stride)?;
        let text = if args.json {
            json!({ "function": name, "target_cpu": target.cpu(), "arguments": count, "max_ulps": worst.ulps,
                "at": worst.at, "got": worst.got })
            .to_string()
        } else {
            format!("{name:<6} {:>8.4} ulp at {:e} -> {:e}   ({count} arguments)", worst.ulps, worst.at, worst.got)
        };
        console.result(&text);
    }
    Ok(())
}

/// The greatest error over the bit patterns `0, stride, 2 stride, ..`, and how many those are.
///
/// # Errors
/// Whatever [`Ready::new`] says.
pub fn sweep(name: &str, truth: fn(f64) -> f64, target: &TargetSpec, stride: u64) -> Result<(u64, Worst), Failure> {
    let total = (1_u64 << 32).div_ceil(stride);
    let chunk = total.min(CHUNK);
    let text = format!(
        "param N in 0..={CHUNK}\ndim i = N\ninput X[i] : f32\nY[i] = {name}(X[i])\noutput Y\n\
         schedule cpu {{ split Y.i 4096 -> t, e; vectorize Y.e 16; parallel Y.t }}\n"
    );
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let pool = Arc::new(Pool::new(threads)?);
    let values = Values::square(chunk as i64);
    let form = Form { target: Target::Cpu(target.clone()), ..Form::default() };
    let mut ready = Ready::new(&workload::source(name, &text)?, &values, &form, pool)?;
    let mut worst = Worst { ulps: 0.0, at: 0.0, got: 0.0 };
    let mut x = vec![0.0_f32; chunk as usize];
    for start in (0..total).step_by(chunk as usize) {
        // Beyond the last pattern the bits wrap around, and some are seen twice.
        x.iter_mut().enumerate().for_each(|(i, x)| *x = f32::from_bits(((start + i as u64) * stride) as u32));
        let input = RaggedArray::from_slice(DType::F32, Shape::Dense(vec![chunk]), &x)?;
        ready.set_input("X", &input)?;
        ready.run()?;
        let y = ready.output("Y")?;
        let found = greatest(&x, y.as_slice::<f32>()?, truth, threads);
        if found.ulps > worst.ulps {
            worst = found;
        }
    }
    Ok((total, worst))
}

fn greatest(x: &[f32], y: &[f32], truth: fn(f64) -> f64, threads: usize) -> Worst {
    let part = x.len().div_ceil(threads).max(1);
    let of = |x: &[f32], y: &[f32]| {
        let errors = x.iter().zip(y).map(|(&at, &got)| Worst { ulps: f32_ulps(got, truth(f64::from(at))), at, got });
        errors.fold(Worst { ulps: 0.0, at: 0.0, got: 0.0 }, |a, b| if b.ulps > a.ulps { b } else { a })
    };
    std::thread::scope(|s| {
        let parts: Vec<_> = x.chunks(part).zip(y.chunks(part)).map(|(x, y)| s.spawn(move || of(x, y))).collect();
        let all = parts.into_iter().filter_map(|p| p.join().ok());
        all.fold(Worst { ulps: 0.0, at: 0.0, got: 0.0 }, |a, b| if b.ulps > a.ulps { b } else { a })
    })
}
