//! How kernels are launched on a grid of blocks and threads.

use super::{Ix, MAX_ITEMS, MAX_IX_DEPTH, MAX_NAME, ProgramDesc};
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// Greatest number of threads of a block.
pub const MAX_THREADS: u32 = 1024;
/// Greatest number of bytes of shared memory of a block, on any device.
pub const MAX_SHARED: u32 = 1 << 20;

/// What a kernel takes: 8 bytes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GridArg {
    /// The device address of a buffer.
    Buffer(u32),
    /// The device address of a prelude table.
    Table(u32),
    /// The value of a parameter.
    Param(u32),
}

/// The launch of one kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GridLaunch {
    /// The kernel's symbol in the code and in the program's description.
    pub symbol: String,
    /// Number of blocks along x, y, z; over parameters and tables, no `Arg`. With no block nothing is launched.
    pub blocks: [Ix; 3],
    /// Threads of a block along x, y, z.
    pub threads: [u32; 3],
    /// Bytes of shared memory to ask for at launch.
    pub shared: u32,
    /// Arguments, in order.
    pub args: Vec<GridArg>,
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
            if !fits || l.shared > MAX_SHARED || l.symbol.len() > MAX_NAME || l.args.len() > MAX_ITEMS {
                return fail(format!("launch of `{}`: impossible shape", l.symbol));
            }
            for a in &l.args {
                let (i, n) = match *a {
                    GridArg::Buffer(i) => (i, desc.buffers.len()),
                    GridArg::Table(i) => (i, desc.tables.len()),
                    GridArg::Param(i) => (i, desc.params.len()),
                };
                if i as usize >= n {
                    return fail(format!("launch of `{}`: argument {i} of {n}", l.symbol));
                }
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
