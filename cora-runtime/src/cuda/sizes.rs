//! What a batch needs: bytes of buffers, lives of temporaries, blocks of launches.

use crate::abi::{BufferDesc, BufferKind, GridLaunch, KernelDesc, ProgramDesc, Role};
use crate::error::{Error, Result};
use crate::eval::eval;
use crate::limits::Limits;
use crate::plan::Request;
use crate::prelude::Tables;

/// Greatest numbers of blocks along x, y, z (CUDA, all architectures).
const MOST_BLOCKS: [i64; 3] = [i32::MAX as i64, 65_535, 65_535];

/// Whether each buffer's contents outlive a batch: const inputs, and what setup writes.
pub(super) fn lasting(desc: &ProgramDesc) -> Vec<bool> {
    let is_const = |t: u32| desc.tensors[t as usize].role == Role::ConstInput;
    let of = |b: &BufferDesc| matches!(b.kind, BufferKind::Input(t) if is_const(t));
    let mut lasts: Vec<bool> = desc.buffers.iter().map(of).collect();
    desc.setup_kernels.iter().flat_map(|k| &k.writes).for_each(|&b| lasts[b as usize] = true);
    lasts
}

/// Bytes of each buffer for a batch.
pub(super) fn sizes(desc: &ProgramDesc, tables: &Tables, limits: &Limits) -> Result<Vec<u64>> {
    let mut left = limits.buffer_bytes;
    let mut out = Vec::new();
    for b in &desc.buffers {
        let at = || format!("buffer `{}`", b.name);
        let elems = eval(&b.elems, tables.env(), &[]).map_err(|fault| Error::Index { at: at(), fault })?;
        let negative = |_| Error::NegativeExtent { at: at(), dim: 0, extent: elems };
        let bytes = u64::try_from(elems).map_err(negative)?.saturating_mul(b.dtype.size() as u64);
        let need = (limits.buffer_bytes - left).saturating_add(bytes);
        let beyond = || Error::Memory { at: at(), need, limit: limits.buffer_bytes };
        left = left.checked_sub(bytes).ok_or_else(beyond)?;
        out.push(bytes);
    }
    Ok(out)
}

/// The temporaries that share the arena, and when each is live.
pub(super) fn temporaries(desc: &ProgramDesc, sizes: &[u64], kept: &[bool]) -> (Vec<Request>, Vec<usize>) {
    let (mut requests, mut temps) = (Vec::new(), Vec::new());
    let end = desc.kernels.len().saturating_sub(1);
    for (b, buffer) in desc.buffers.iter().enumerate() {
        if !matches!(buffer.kind, BufferKind::Temp | BufferKind::PerWorker) || kept[b] {
            continue;
        }
        let uses = |k: &KernelDesc| k.reads.contains(&(b as u32)) || k.writes.contains(&(b as u32));
        let users: Vec<usize> = desc.kernels.iter().enumerate().filter(|(_, k)| uses(k)).map(|(i, _)| i).collect();
        let (first, last) = users.first().zip(users.last()).map_or((0, end), |(f, l)| (*f, *l));
        requests.push(Request { bytes: sizes[b], first, last });
        temps.push(b);
    }
    (requests, temps)
}

/// The number of blocks along each axis; nothing if there is none to launch.
pub(super) fn blocks(kernel: &KernelDesc, launch: &GridLaunch, tables: &Tables) -> Result<Option<[u32; 3]>> {
    let mut out = [0; 3];
    for (d, ix) in launch.blocks.iter().enumerate() {
        let at = || format!("the blocks of kernel `{}`", kernel.name);
        let n = eval(ix, tables.env(), &[]).map_err(|fault| Error::Index { at: at(), fault })?;
        if n > MOST_BLOCKS[d] {
            return Err(Error::Cuda(format!(
                "kernel `{}` would need {n} blocks along {}, there are at most {}",
                kernel.name,
                ["x", "y", "z"][d],
                MOST_BLOCKS[d]
            )));
        }
        if n <= 0 {
            return Ok(None);
        }
        out[d] = n as u32;
    }
    Ok(Some(out))
}
