//! How kernels are launched on a grid of blocks and threads.

use super::{Ix, MAX_ITEMS, MAX_IX_DEPTH, MAX_NAME, ProgramDesc};
use crate::error::{Error, Result};
use crate::eval::{Env, eval};
use serde::{Deserialize, Serialize};

/// Greatest number of threads of a block.
pub const MAX_THREADS: u32 = 1024;
/// Greatest number of bytes of shared memory of a block, on any device.
pub const MAX_SHARED: u32 = 1 << 20;

/// What a kernel takes: 8 bytes each, but for tensor maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GridArg {
    /// A device address in a buffer.
    Buffer {
        /// The buffer.
        buffer: u32,
        /// How many bytes of it lie before.
        first: u64,
    },
    /// The device address of a prelude table.
    Table(u32),
    /// The value of a parameter.
    Param(u32),
    /// A tensor map of the launch, 128 bytes by value.
    Map(u32),
}

/// The most dimensions of a tensor map.
pub const MAX_MAP_DIMS: usize = 5;
/// The most positions of a box along one dimension.
pub const MAX_BOX: u32 = 256;
/// Steps, and the bytes of a box that lie side by side, are multiples of so many bytes.
pub const MAP_UNIT: u64 = 16;
/// The bytes of a box that lie side by side, where they are swizzled.
pub const SWIZZLED_BYTES: u64 = 128;

/// A dimension of a tensor map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapDim {
    /// How many positions there are; over parameters and tables, no `Arg`.
    pub size: Ix,
    /// Elements of the buffer from one position to the next; 1 for the first dimension.
    pub step: u64,
    /// Positions of a box.
    pub extent: u32,
}

/// A buffer as a copy engine sees it: boxes of it are brought into shared memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GridMap {
    /// The buffer.
    pub buffer: u32,
    /// The dimensions, the innermost of the box first.
    pub dims: Vec<MapDim>,
    /// Whether lines of 128 bytes of the box are swizzled in shared memory.
    pub swizzled: bool,
}

impl GridMap {
    /// Whether a device can have such a map, whatever the sizes are.
    fn is_possible(&self, desc: &ProgramDesc) -> bool {
        let Some(buffer) = desc.buffers.get(self.buffer as usize) else { return false };
        let size = buffer.dtype.size() as u64;
        let Some(first) = self.dims.first().filter(|_| self.dims.len() <= MAX_MAP_DIMS) else { return false };
        let line = u64::from(first.extent) * size;
        let far = |d: &MapDim| d.step.checked_mul(size).is_some_and(|b| b % MAP_UNIT == 0 && (1..1 << 40).contains(&b));
        first.step == 1
            && line.is_multiple_of(MAP_UNIT)
            && (!self.swizzled || line == SWIZZLED_BYTES)
            && self.dims[1..].iter().all(far)
            && self.dims.iter().all(|d| (1..=MAX_BOX).contains(&d.extent) && closed(&d.size, desc, 0))
    }

    /// The sizes of the dimensions for a batch; all 1 where a dimension has no position.
    ///
    /// # Errors
    /// [`Error::Cuda`] a size that no device takes, or a map that goes beyond its buffer's `elems` elements;
    /// [`Error::Index`].
    pub(crate) fn sizes(&self, tables: Env<'_>, elems: u64) -> Result<Option<Vec<u64>>> {
        let beyond = |what: &str| Error::Cuda(format!("a tensor map of buffer {} {what}", self.buffer));
        let (mut sizes, mut last) = (Vec::new(), 0u64);
        for d in &self.dims {
            let at = || format!("a tensor map of buffer {}", self.buffer);
            let n = eval(&d.size, tables, &[]).map_err(|fault| Error::Index { at: at(), fault })?;
            if n > i64::from(i32::MAX) {
                return Err(beyond("has more positions than a device takes"));
            }
            if n <= 0 {
                return Ok(None);
            }
            let reach = (n as u64 - 1).checked_mul(d.step).and_then(|r| last.checked_add(r));
            last = reach.ok_or_else(|| beyond("goes beyond it"))?;
            sizes.push(n as u64);
        }
        if last >= elems {
            return Err(beyond("goes beyond it"));
        }
        Ok(Some(sizes))
    }
}

/// The launch of one kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GridLaunch {
    /// The kernel's symbol in the program's description.
    pub symbol: String,
    /// The symbol of its function in the code, which kernels may share that differ in their arguments.
    pub function: String,
    /// Number of blocks along x, y, z; over parameters and tables, no `Arg`. With no block nothing is launched.
    pub blocks: [Ix; 3],
    /// Threads of a block along x, y, z.
    pub threads: [u32; 3],
    /// Bytes of shared memory to ask for at launch.
    pub shared: u32,
    /// Arguments, in order.
    pub args: Vec<GridArg>,
    /// The tensor maps among them.
    pub maps: Vec<GridMap>,
}

/// The launches of a program's kernels, setup included.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GridDesc {
    /// One for each kernel.
    pub launches: Vec<GridLaunch>,
    /// The tables that kernels write, ascending.
    pub builds: Vec<u32>,
}

impl GridDesc {
    /// The launch of a kernel.
    pub fn launch(&self, symbol: &str) -> Option<&GridLaunch> {
        self.launches.iter().find(|l| l.symbol == symbol)
    }

    /// Checks the launches against the program: each kernel has one, and nothing refers to what is not there.
    ///
    /// # Errors
    /// [`Error::Decode`] that says what is wrong.
    pub fn validate(&self, desc: &ProgramDesc) -> Result<()> {
        let fail = |what: String| Err(Error::Decode(what));
        if let Some(t) = self.builds.iter().find(|&&t| t as usize >= desc.tables.len()) {
            return fail(format!("there is no table {t} for kernels to build"));
        }
        if self.launches.len() > MAX_ITEMS {
            return fail(format!("{} launches", self.launches.len()));
        }
        for k in desc.kernels.iter().chain(&desc.setup_kernels) {
            if self.launch(&k.symbol).is_none() {
                return fail(format!("kernel `{}` has no launch", k.symbol));
            }
        }
        for l in &self.launches {
            let total = l.threads.iter().try_fold(1u32, |n, &t| n.checked_mul(t));
            let fits = total.is_some_and(|n| (1..=MAX_THREADS).contains(&n));
            if !fits
                || l.shared > MAX_SHARED
                || l.symbol.len().max(l.function.len()) > MAX_NAME
                || l.args.len() > MAX_ITEMS
            {
                return fail(format!("launch of `{}`: impossible shape", l.symbol));
            }
            for a in &l.args {
                let (i, n) = match *a {
                    GridArg::Buffer { buffer, .. } => (buffer, desc.buffers.len()),
                    GridArg::Table(i) => (i, desc.tables.len()),
                    GridArg::Param(i) => (i, desc.params.len()),
                    GridArg::Map(i) => (i, l.maps.len()),
                };
                if i as usize >= n {
                    return fail(format!("launch of `{}`: argument {i} of {n}", l.symbol));
                }
            }
            if l.maps.len() > MAX_ITEMS || !l.maps.iter().all(|m| m.is_possible(desc)) {
                return fail(format!("launch of `{}`: an impossible tensor map", l.symbol));
            }
            for b in &l.blocks {
                if !closed(b, desc, 0) {
                    return fail(format!("launch of `{}`: the number of blocks cannot be computed", l.symbol));
                }
            }
        }
        Ok(())
    }
}

/// Whether an expression uses nothing but parameters and tables that there are, and is not too deep.
fn closed(ix: &Ix, desc: &ProgramDesc, depth: usize) -> bool {
    let known = match ix {
        Ix::Param(p) => (*p as usize) < desc.params.len(),
        Ix::Arg(_) => false,
        Ix::Table(t, _) | Ix::Search(t, ..) => (*t as usize) < desc.tables.len(),
        _ => true,
    };
    known && depth < MAX_IX_DEPTH && ix.operands().all(|o| closed(o, desc, depth + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_stay_inside_their_buffers() {
        let params = [7];
        let env = Env { params: &params, tables: &[] };
        let map = |rows: Ix| GridMap {
            buffer: 0,
            dims: vec![
                MapDim { size: Ix::Const(8), step: 1, extent: 8 },
                MapDim { size: rows, step: 64, extent: 128 },
                MapDim { size: Ix::Const(8), step: 8, extent: 4 },
            ],
            swizzled: false,
        };
        assert_eq!(map(Ix::Param(0)).sizes(env, 7 * 64).expect("fits"), Some(vec![8, 7, 8]));
        assert!(map(Ix::Param(0)).sizes(env, 7 * 64 - 1).is_err(), "one element too few");
        assert_eq!(map(Ix::Const(0)).sizes(env, 0).expect("nothing is read"), None);
        assert!(map(Ix::Const(1 << 31)).sizes(env, u64::MAX).is_err(), "positions are 31 bits");
        let far = GridMap { dims: vec![MapDim { size: Ix::Const(3), step: u64::MAX, extent: 1 }], ..map(Ix::Const(1)) };
        assert!(far.sizes(env, u64::MAX).is_err(), "no overflow");
    }
}
