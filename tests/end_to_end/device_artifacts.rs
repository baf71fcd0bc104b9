//! Random programs on grids as artifacts with samples, for machines that have a GPU and no compiler
//! (`scripts/gpu/bundle.py`).
//!
//! `CORA_DEVICE_DIR` is the folder they are written to, `CORA_DEVICE_ARCH` the architecture, `CORA_DEVICE_KERNELS` how many
//! kernels there are at least, `CORA_DEVICE_BATCHES` how many batches each program has, and `CORA_DEVICE_SEED` the seed of
//! the first. One half is under the compiler's own schedule for grids, one under random steps. Without a
//! folder they are made and read again, and not kept.

use crate::random::check::{Case, case};
use crate::random::report::{catch_quietly, guarded};
use crate::random_native::setting;
use crate::random_ptx::{REFUSED, on_grid};
use cora::check::allowed_differences;
use cora::codegen_cuda::{CompileError, GpuTarget, compile};
use cora::inputs;
use cora::ir::interp::{Batch, Data, Results};
use cora::ir::{TensorId, UfDef};
use cora::runtime::abi::{ABI_VERSION, ProgramDesc};
use cora::runtime::array::{Shape, TensorLayout};
use cora::runtime::artifact::{Artifact, Machine, Manifest, Sample};
use cora::runtime::prelude::{self, Prelude};
use cora::runtime::{Error, Limits};
use rand::prelude::*;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Bytes of an element list as the runtime holds them, in row-major ragged order.
fn bytes(case: &Case, tensor: TensorId, data: &Data) -> Vec<u8> {
    let ty = case.made.graph.env.tensors[tensor].ty;
    let array = inputs::to_array(ty, Shape::Dense(vec![data.len() as u64]), data).expect("as many elements");
    array.bytes().to_vec()
}

/// A batch with its results; nothing where the runtime refuses the batch (a negative extent, which the interpreters take
/// for none).
fn sample(case: &Case, desc: &Arc<ProgramDesc>, batch: &Batch, want: &Results) -> Option<Sample> {
    let env = &case.made.graph.env;
    let params = env.params.iter().zip(&batch.params).map(|((_, p), &v)| (p.name.as_str(), v));
    let lengths = env.ufs.iter().filter(|(_, u)| matches!(u.def, UfDef::Extent { .. }));
    let lengths = lengths.map(|(f, u)| (u.name.as_str(), batch.extents[&f].clone()));
    let given = prelude::Batch::from_named(desc, params, lengths).expect("the program's own names");
    let limits = Limits::default();
    let tables = match Prelude::new(desc.clone()).and_then(|p| p.build(&given, &limits)) {
        Ok(t) => t,
        Err(e @ Error::NegativeExtent { .. }) => {
            assert_eq!(e.code(), "E0308");
            return None;
        }
        Err(e) => panic!("{e}"),
    };
    let graph = &case.made.graph;
    let mut allowed =
        allowed_differences(graph, graph, batch, &cora::ir::interp::Options::default(), &want.outputs).ok()?;
    let mut sample = Sample { params: given.params.clone(), lengths: given.lengths.clone(), ..Sample::default() };
    for t in &desc.tensors {
        let id = env.tensor_named(&t.name).expect("the program's own name");
        let data = batch.inputs.get(&id).or_else(|| want.output(id).map(|o| &o.data)).expect("given or computed");
        let stored = bytes(case, id, data);
        let shape = TensorLayout::new(t).shape(tables.env(), &limits).ok()?;
        assert_eq!(shape.elements().map(|n| n as usize * t.dtype.size()), Some(stored.len()), "{}", t.name);
        sample.tensors.push(stored);
        let allowed = allowed.remove(&id).unwrap_or_default();
        sample.allowed.push(allowed.into_iter().map(|x| (x as f32).next_up()).collect());
    }
    Some(sample)
}

/// The program of that seed with its samples; nothing where it has no meaning or no code for GPUs.
fn artifact(seed: u64, batches: usize, target: &GpuTarget) -> Result<Option<Artifact>, String> {
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x6465_7669_6365);
    let made = case(&mut rng, batches).map_err(|f| format!("seed {seed}: {}\n{}", f.kind, f.detail))?;
    let Some(made) = made else { return Ok(None) };
    let Some(storage) = on_grid(&made.made.graph, seed.is_multiple_of(2), false, &mut rng) else { return Ok(None) };
    let program = match compile(&storage, target) {
        Ok(p) => p,
        Err(CompileError::Intrinsic { .. }) => return Ok(None),
        Err(e) if REFUSED.iter().any(|r| e.to_string().contains(r)) => return Ok(None),
        Err(e) => return Err(format!("seed {seed}: {e}")),
    };
    let desc = Arc::new(program.desc.clone());
    let cases = made.batches.iter().zip(&made.expected);
    let samples: Vec<Sample> = cases.filter_map(|((_, b), want)| sample(&made, &desc, b, want)).collect();
    if samples.is_empty() || desc.kernels.is_empty() {
        return Ok(None);
    }
    let machine = Machine::Cuda { arch: target.name().to_owned() };
    let compiler = env!("CARGO_PKG_VERSION").to_owned();
    let manifest = Manifest { program: format!("random-{seed}"), compiler, abi: ABI_VERSION, machine };
    let code = program.ptx.into_bytes();
    Ok(Some(Artifact { manifest, desc: program.desc, grid: Some(program.grid), code, samples }))
}

/// Makes artifacts from seed to seed until they have so many kernels: the next seed, and how many kernels and samples there are.
pub fn make(
    dir: Option<&Path>,
    (first, wanted): (u64, u64),
    batches: usize,
    target: &GpuTarget,
) -> Result<(u64, u64, u64), String> {
    catch_quietly();
    let (next, kernels, samples) = (AtomicU64::new(first), AtomicU64::new(0), AtomicU64::new(0));
    let failures = Mutex::new(Vec::new());
    let one = |seed: u64| -> Result<(), String> {
        let made = guarded(|| Ok(artifact(seed, batches, target))).map_err(|f| format!("seed {seed}: {}", f.detail))?;
        let Some(artifact) = made? else { return Ok(()) };
        let bytes = artifact.to_bytes().map_err(|e| e.to_string())?;
        if Artifact::from_bytes(&bytes).map_err(|e| format!("seed {seed}: {e}"))? != artifact {
            return Err(format!("seed {seed}: another artifact is read than was written"));
        }
        if let Some(dir) = dir {
            std::fs::write(dir.join(format!("random-{seed}.artifact")), bytes).map_err(|e| e.to_string())?;
        }
        kernels.fetch_add((artifact.desc.kernels.len() + artifact.desc.setup_kernels.len()) as u64, Ordering::Relaxed);
        samples.fetch_add(artifact.samples.len() as u64, Ordering::Relaxed);
        Ok(())
    };
    std::thread::scope(|s| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            s.spawn(|| {
                while kernels.load(Ordering::Relaxed) < wanted && failures.lock().is_ok_and(|f| f.len() < 3) {
                    if let Err(e) = one(next.fetch_add(1, Ordering::Relaxed)) {
                        failures.lock().expect("no panic while it is held").push(e);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("no panic while it was held");
    let made = (next.into_inner(), kernels.into_inner(), samples.into_inner());
    if failures.is_empty() { Ok(made) } else { Err(format!("{} failures\n{}", failures.len(), failures.join("\n"))) }
}

#[test]
fn random_artifacts() {
    let dir = std::env::var_os("CORA_DEVICE_DIR").map(PathBuf::from);
    let seeds = (setting("CORA_DEVICE_SEED", 1), setting("CORA_DEVICE_KERNELS", 20));
    let batches = setting("CORA_DEVICE_BATCHES", 6) as usize;
    let arch = std::env::var("CORA_DEVICE_ARCH").unwrap_or_else(|_| "sm_90".to_owned());
    let target = GpuTarget::new(&arch).expect("a known architecture");
    match make(dir.as_deref(), seeds, batches, &target) {
        Ok((next, kernels, samples)) => println!("{kernels} kernels, {samples} samples; the next seed is {next}"),
        Err(e) => panic!("{e}"),
    }
}
