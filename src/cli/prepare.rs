//! Batches for `cora run`: parameters, lengths and inputs from options, files or at random.

use super::run::Args;
use crate::batch::{self, BatchValues};
use crate::driver::{Failure, Source, list};
use crate::inputs;
use cora_ir::interp;
use cora_ir::{Diagnostic, Env, Graph, Role, TensorId, UfDef};
use cora_runtime::Limits;
use cora_runtime::abi::ProgramDesc;
use cora_runtime::array::{RaggedArray, Shape, TensorLayout};
use cora_runtime::prelude::{Batch, Prelude, Tables};
use cora_runtime::{lengths, npy};
use rustc_hash::FxHashMap;
use std::path::PathBuf;
use std::sync::Arc;

/// A batch and its inputs, in the forms of the interpreter and of the runtime.
pub struct Prepared {
    /// Parameters and lengths for the reference interpreter.
    pub values: interp::Batch,
    /// For the runtime.
    pub runtime: Batch,
    /// Inputs by their number in the program's description, and the graph's tensors that they are.
    pub arrays: Vec<(usize, TensorId, RaggedArray)>,
    /// The form of each output.
    pub shapes: FxHashMap<TensorId, Shape>,
}

impl Prepared {
    /// Parameters by name.
    pub fn params(&self, graph: &Graph) -> Vec<(String, i64)> {
        graph.env.params.iter().zip(&self.values.params).map(|((_, p), &v)| (p.name.clone(), v)).collect()
    }

    /// The batch with its inputs for the reference interpreter, as elements of its own: for who needs them only.
    ///
    /// # Errors
    /// `E0313` too little memory.
    pub fn for_interpreter(&self) -> Result<interp::Batch, Failure> {
        let mut batch = self.values.clone();
        for (_, t, array) in &self.arrays {
            batch.inputs.insert(*t, inputs::to_data(array)?);
        }
        Ok(batch)
    }
}

/// A file of lengths that cannot be read, with the function whose lengths it was to give.
fn not_read(e: cora_runtime::Error, name: &str, path: &std::path::Path) -> Failure {
    let text = path.display().to_string();
    if !matches!(e, cora_runtime::Error::Io { .. }) {
        return e.into();
    }
    let d = Diagnostic::new(e.code(), format!("the lengths of `{name}` cannot be read: {e}"));
    let numbers = text.split(',').all(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
    d.hint(match numbers {
        true => format!("`--lengths {name}=FILE` takes a file of numbers: write them into one"),
        false => format!("`--lengths {name}=FILE`: check the path and its permissions"),
    })
    .into()
}

/// Makes a batch of the parameters given, the lengths and inputs that `args` name, and random ones.
///
/// # Errors
/// The user's mistakes in names, values and files.
pub fn prepare(
    args: &Args,
    params: &[(String, i64)],
    source: &Source,
    desc: &Arc<ProgramDesc>,
) -> Result<Prepared, Failure> {
    let env = &source.graph.env;
    known_tensors(args, env)?;
    let mut files = Vec::new();
    for (name, path) in &args.lengths {
        let all = lengths::read(path).map_err(|e| not_read(e, name, path))?;
        files.push((name.clone(), all));
    }
    let (skip, seed) = (args.skip, args.seed);
    let values = batch::resolve(env, &batch::Source { params, lengths: &files, files: &args.lengths, skip, seed })?;
    let runtime = runtime_batch(source, desc, &values)?;
    let limits = args.limits();
    let tables = Prelude::new(desc.clone())?.build(&runtime, &limits)?;
    let layouts: Vec<TensorLayout> = desc.tensors.iter().map(TensorLayout::new).collect();
    check_memory(desc, &layouts, &tables, &limits)?;
    let mut arrays = Vec::new();
    let mut shapes: FxHashMap<TensorId, Shape> = FxHashMap::default();
    for (n, t) in desc.tensors.iter().enumerate() {
        let Some(id) = env.tensor_named(&t.name) else { continue };
        let shape = layouts[n].shape(tables.env(), &limits)?;
        if t.role == cora_runtime::abi::Role::Output {
            shapes.insert(id, shape);
            continue;
        }
        let array = match args.inputs.iter().rev().find(|(name, _)| *name == t.name) {
            Some((_, path)) => npy::NpyArray::read(path)?.into_array(t.dtype, shape)?,
            None => {
                let ranges = layouts[n].value_ranges(tables.env(), &limits)?;
                inputs::random_array(env, id, shape, ranges.as_ref(), args.seed)?
            }
        };
        layouts[n].check(tables.env(), array.bytes(), &limits)?;
        arrays.push((n, id, array));
    }
    let values = interp::Batch { params: values.params, extents: values.extents, ..interp::Batch::default() };
    Ok(Prepared { values, runtime, arrays, shapes })
}

/// Refuses a batch whose inputs and outputs need more memory than the limit, before any is made.
fn check_memory(desc: &ProgramDesc, layouts: &[TensorLayout], tables: &Tables, limits: &Limits) -> Result<(), Failure> {
    let mut need = 0u64;
    for (t, layout) in desc.tensors.iter().zip(layouts) {
        let bytes = layout.elements(tables.env(), limits)?.saturating_mul(t.dtype.size() as u64);
        need = need.saturating_add(bytes);
        if need > limits.buffer_bytes {
            let (at, limit) = (format!("tensor `{}`", t.name), limits.buffer_bytes);
            return Err(cora_runtime::Error::Memory { at, need, limit }.into());
        }
    }
    Ok(())
}

/// Refuses names of tensors that the program does not have.
fn known_tensors(args: &Args, env: &Env) -> Result<(), Failure> {
    let check = |what: &str, given: &[(String, PathBuf)], is: fn(Role) -> bool| {
        let known: Vec<&str> = env.tensors.iter().filter(|(_, t)| is(t.role)).map(|(_, t)| t.name.as_str()).collect();
        match given.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            None => Ok(()),
            Some((name, _)) => Err(Diagnostic::new("E0304", format!("the program has no {what} `{name}`"))
                .hint(list(what, known.into_iter()))
                .into()),
        }
    };
    check("input", &args.inputs, |r| matches!(r, Role::Input | Role::ConstInput))?;
    check("output", &args.outputs, |r| r == Role::Output)
}

fn runtime_batch(source: &Source, desc: &ProgramDesc, values: &BatchValues) -> Result<Batch, Failure> {
    let env = &source.graph.env;
    let params = env.params.iter().zip(&values.params).map(|((_, p), &v)| (p.name.as_str(), v));
    let lengths = env
        .ufs
        .iter()
        .filter(|(_, u)| matches!(u.def, UfDef::Extent { .. }))
        .map(|(f, u)| (u.name.as_str(), values.extents.get(&f).cloned().unwrap_or_default()));
    Ok(Batch::from_named(desc, params, lengths)?)
}
