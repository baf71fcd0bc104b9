//! The batch to run: the stored one, or what the command line gives.

use crate::args::Args;
use crate::failure::Failure;
use cora_runtime::abi::{DType, ProgramDesc, Role};
use cora_runtime::array::{RaggedArray, TensorLayout, ValueRanges};
use cora_runtime::artifact::{Artifact, Machine, Sample};
use cora_runtime::eval::{Env, eval};
use cora_runtime::exec::Instance;
use cora_runtime::prelude::{Batch, Prelude, Tables};
use cora_runtime::{Error, Limits, lengths, npy};
use std::sync::Arc;

/// Refuses names that the program lacks.
///
/// # Errors
/// `E0304` an unknown name, `E0606` an output to standard output.
pub fn check_names(args: &Args, desc: &ProgramDesc) -> Result<(), Failure> {
    let params = || desc.params.iter().map(|p| p.name.as_str());
    let extents = || desc.extents.iter().map(|e| e.name.as_str());
    let tensors = |output: bool| {
        let all = desc.tensors.iter().filter(move |t| (t.role == Role::Output) == output);
        all.map(|t| t.name.as_str())
    };
    if let Some((name, _)) = args.params.iter().find(|(n, _)| !params().any(|p| p == n)) {
        return Err(Failure::unknown("parameter", name, params()));
    }
    if let Some((name, _)) = args.lengths.iter().find(|(n, _)| !extents().any(|e| e == n)) {
        return Err(Failure::unknown("extent function", name, extents()));
    }
    if let Some((name, _)) = args.inputs.iter().find(|(n, _)| !tensors(false).any(|t| t == n)) {
        return Err(Failure::unknown("input", name, tensors(false)));
    }
    if let Some((name, _)) = args.outputs.iter().find(|(n, _)| !tensors(true).any(|t| t == n)) {
        return Err(Failure::unknown("output", name, tensors(true)));
    }
    match args.outputs.iter().find(|(_, path)| path.as_os_str() == "-") {
        None => Ok(()),
        Some((name, _)) => {
            let text = format!("output `{name}` cannot go to standard output");
            Err(Failure::new("E0606", text, "give a file: --output NAME=FILE.npy"))
        }
    }
}

/// Refuses options that mean nothing for the artifact's machine.
///
/// # Errors
/// `E0613` an option for GPUs, where the code is a processor's.
pub fn check_options(args: &Args, machine: &Machine) -> Result<(), Failure> {
    let Machine::Cpu { .. } = machine else { return Ok(()) };
    let wrong = [
        ("--graph", args.graph, "it captures kernels of a GPU"),
        ("--streams", args.streams > 1, "they are streams of a GPU"),
        ("--flush", args.flush > 0, "it writes memory of a GPU"),
    ];
    match wrong.into_iter().find(|w| w.1) {
        None => Ok(()),
        Some((option, _, why)) => {
            let text = format!("{option} means nothing for code of a processor");
            Err(Failure::new("E0613", text, format!("{why}: leave it away")))
        }
    }
}

/// The samples, where they are to be run.
///
/// # Errors
/// `E0339` a sample is asked for that the artifact lacks, or that the other options rule out.
pub fn stored<'a>(args: &Args, artifact: &'a Artifact) -> Result<&'a [Sample], Failure> {
    let given = args.has_batch();
    let stored = if given { &[] } else { artifact.samples.as_slice() };
    let other = |why: &str, options: &str| {
        Err(Failure::new("E0339", format!("the stored batch cannot be used: {why}"), format!("leave {options} away")))
    };
    let none = |why| Err(Error::Sample(why).into());
    match stored {
        [] if args.sample => none("the artifact has none"),
        [] if args.check && artifact.samples.is_empty() => none("--check compares with it, and the artifact has none"),
        [] if args.check => {
            other("--check compares with it, and another is given", "--param, --lengths and --input, or --check,")
        }
        [_, ..] if args.check && !args.inputs.is_empty() => {
            other("--check compares with what is stored for its inputs, and others are given", "--input, or --check,")
        }
        _ => Ok(stored),
    }
}

/// The batch of a sample.
pub fn of_sample(s: &Sample) -> Batch {
    Batch { params: s.params.clone(), lengths: s.lengths.clone() }
}

/// The batch that parameters and files of lengths give.
///
/// # Errors
/// `E0339` a parameter or lengths that are not given; as `Batch::from_named`, `Prelude::new`, `Prelude::build` and
/// `lengths::read`.
pub fn of_args(args: &Args, desc: &Arc<ProgramDesc>, has_sample: bool) -> Result<Batch, Failure> {
    let given = |i: &usize| args.params.iter().any(|(n, _)| *n == desc.params[*i].name);
    let missing: Vec<usize> = (0..desc.params.len()).filter(|i| !given(i)).collect();
    if !missing.is_empty() {
        return Err(Failure::params(desc, &missing, has_sample));
    }
    let params = args.params.iter().map(|(n, v)| (n.as_str(), *v));
    let none = desc.extents.iter().map(|e| (e.name.as_str(), Vec::new()));
    let mut batch = Batch::from_named(desc, params, none)?;
    let prelude = Prelude::new(desc.clone())?;
    // How many entries a function has follows from parameters and the functions before it: the check says.
    loop {
        let (function, want) = match prelude.build(&batch, &args.limits) {
            Ok(_) => return Ok(batch),
            Err(Error::LengthCount { function, want, got: 0 }) => (function, want),
            Err(e) => return Err(e.into()),
        };
        let file = args.lengths.iter().rev().find(|(n, _)| *n == function);
        let missing = || Failure::lengths(&function, want, has_sample);
        let (_, path) = file.ok_or_else(missing)?;
        let values = lengths::read(path)?;
        let n = desc.extents.iter().position(|e| e.name == function).ok_or_else(missing)?;
        let path = path.display().to_string();
        batch.lengths[n] = lengths::select(&path, &function, &values, args.skip, want)?.to_vec();
    }
}

/// Every input: from its file, else from the sample, else random, which is made where it is needed.
pub struct Inputs<'a> {
    desc: Arc<ProgramDesc>,
    tables: Tables,
    stored: Option<&'a Sample>,
    files: Vec<(usize, RaggedArray)>,
    seed: u64,
    limits: Limits,
}

impl<'a> Inputs<'a> {
    /// Reads the files.
    ///
    /// # Errors
    /// A file that cannot be read or has another shape or type; as `Prelude::build`; `E0314` and `E0315` for storage
    /// that contradicts the description.
    pub fn new(args: &Args, desc: &Arc<ProgramDesc>, batch: &Batch, stored: Option<&'a Sample>) -> Result<Self, Error> {
        let limits = args.limits;
        let tables = Prelude::new(desc.clone())?.build(batch, &limits)?;
        check_storage(desc, tables.env(), &limits)?;
        let mut files = Vec::new();
        for (n, t) in desc.tensors.iter().enumerate() {
            if let Some((_, path)) = args.inputs.iter().find(|(name, _)| *name == t.name) {
                let shape = TensorLayout::new(t).shape(tables.env(), &limits)?;
                files.push((n, npy::NpyArray::read(path)?.into_array(t.dtype, shape)?));
            }
        }
        Ok(Self { desc: desc.clone(), tables, stored, files, seed: args.seed, limits })
    }

    /// The tensors that are inputs.
    pub fn tensors(&self) -> impl Iterator<Item = usize> + use<> {
        let desc = self.desc.clone();
        (0..desc.tensors.len()).filter(move |&n| desc.tensors[n].role != Role::Output)
    }

    /// Gives an instance input `n`.
    ///
    /// # Errors
    /// Elements that do not fit the input, or no memory for them.
    pub fn give(&self, n: usize, instance: &mut Instance) -> Result<(), Error> {
        match (self.file(n), self.stored) {
            (Some(array), _) => instance.set_input(n, array),
            (None, Some(s)) => instance.set_input_bytes(n, &s.tensors[n]),
            (None, None) => instance.generate_input(n, &mut self.random(n)?),
        }
    }

    /// Input `n` as an array.
    ///
    /// # Errors
    /// Elements that do not fit the input, or no memory for them.
    pub fn array(&self, n: usize) -> Result<RaggedArray, Error> {
        if let Some(array) = self.file(n) {
            return Ok(array.clone());
        }
        let t = &self.desc.tensors[n];
        let shape = TensorLayout::new(t).shape(self.tables.env(), &self.limits)?;
        if let Some(s) = self.stored {
            return RaggedArray::from_bytes(t.dtype, shape, &s.tensors[n]);
        }
        let mut array = RaggedArray::zeros(t.dtype, shape)?;
        self.random(n)?(array.bytes_mut());
        Ok(array)
    }

    fn file(&self, n: usize) -> Option<&RaggedArray> {
        self.files.iter().find(|f| f.0 == n).map(|f| &f.1)
    }

    /// Writes elements of input `n`, one stretch after the other.
    fn random(&self, n: usize) -> Result<impl FnMut(&mut [u8]) + use<>, Error> {
        let t = &self.desc.tensors[n];
        let ranges = TensorLayout::new(t).value_ranges(self.tables.env(), &self.limits)?;
        Ok(random(t.dtype, ranges, self.seed.wrapping_add(n as u64)))
    }
}

/// Whether every tensor's buffer holds it. Compilers see to that, so this tells of an altered description before the
/// code writes outside a buffer that it made too small.
fn check_storage(desc: &ProgramDesc, env: Env<'_>, limits: &Limits) -> Result<(), Error> {
    for t in &desc.tensors {
        let buffer = &desc.buffers[t.buffer as usize];
        let at = || format!("buffer `{}`", buffer.name);
        let elems = eval(&buffer.elems, env, &[]).map_err(|fault| Error::Index { at: at(), fault })?;
        let negative = |_| Error::NegativeExtent { at: at(), dim: 0, extent: elems };
        TensorLayout::new(t).check_storage(env, usize::try_from(elems).map_err(negative)?, limits)?;
    }
    Ok(())
}

/// Elements from the seed, in order: small numbers, and positions within the declared ranges.
fn random(dtype: DType, ranges: Option<ValueRanges>, seed: u64) -> impl FnMut(&mut [u8]) + use<> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let size = dtype.size();
    let mut numbers = 0u64..;
    let mut element = move |bytes: &mut [u8]| {
        let number = numbers.next();
        let range = |r: &ValueRanges| number.and_then(|n| r.of(n));
        let (lo, hi) = ranges.as_ref().map_or(Some((-8, 8)), range).unwrap_or((0, 0));
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let int = within(lo, hi, state >> 11);
        let float = 2.0 * ((state >> 11) as f64 / (1u64 << 53) as f64) - 1.0;
        match dtype {
            DType::Bool => bytes[0] = (state & 1) as u8,
            DType::I8 | DType::I16 | DType::I32 | DType::I64 => bytes.copy_from_slice(&int.to_le_bytes()[..size]),
            DType::F64 => bytes.copy_from_slice(&float.to_le_bytes()),
            DType::F32 => bytes.copy_from_slice(&(float as f32).to_le_bytes()),
            DType::BF16 => bytes.copy_from_slice(&(float as f32).to_le_bytes()[2..]),
            // A half in -1..1 by truncation: sign, 5 bits of exponent, 10 of significand.
            DType::F16 => bytes.copy_from_slice(&half(float as f32).to_le_bytes()),
        }
    };
    move |bytes: &mut [u8]| bytes.chunks_exact_mut(size).for_each(&mut element)
}

/// The part `unit / 2^53` of the way from `lo` to `hi`, which is not reached.
fn within(lo: i64, hi: i64, unit: u64) -> i64 {
    let width = (i128::from(hi) - i128::from(lo)).max(0);
    (i128::from(lo) + ((width * i128::from(unit)) >> 53)) as i64
}

fn half(x: f32) -> u16 {
    let b = x.to_bits();
    let (sign, exponent) = ((b >> 16) as u16 & 0x8000, (b >> 23 & 0xff) as i32 - 112);
    if exponent <= 0 { sign } else { sign | (exponent as u16) << 10 | (b >> 13) as u16 & 0x3ff }
}

#[cfg(test)]
mod tests {
    use super::within;

    #[test]
    fn wide_ranges_do_not_overflow() {
        let last = (1 << 53) - 1;
        assert_eq!((within(-8, 8, 0), within(-8, 8, last)), (-8, 7));
        assert_eq!(within(i64::MIN, i64::MAX, 0), i64::MIN);
        assert!(within(i64::MIN, i64::MAX, last) > i64::MAX - (1 << 12));
        assert_eq!(within(3, 3, last), 3);
    }
}
