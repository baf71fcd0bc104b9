//! GPU architectures.

use cora_codegen_llvm::llvm::TargetSpec;
use cora_codegen_llvm::mlir::GridOptions;
use cora_ir::intrinsic::capability;
use std::fmt;

/// Known architectures: name, PTX version (the least that has the architecture, so that old drivers take it), and
/// bytes of shared memory that a block can ask for (CUDA C++ Programming Guide, table of technical specifications).
pub const ARCHITECTURES: [(&str, u32, u64); 7] = [
    ("sm_70", 60, 96 << 10),
    ("sm_75", 63, 64 << 10),
    ("sm_80", 70, 163 << 10),
    ("sm_86", 71, 99 << 10),
    ("sm_89", 78, 99 << 10),
    ("sm_90", 78, 227 << 10),
    ("sm_90a", 80, 227 << 10),
];

/// The PTX version that has `cp.async.bulk.tensor`.
const BOXES_PTX: u32 = 80;

/// An NVIDIA GPU architecture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuTarget {
    name: &'static str,
    ptx: u32,
    shared: u64,
}

impl GpuTarget {
    /// The architecture called `name`; nothing for an unknown one.
    pub fn new(name: &str) -> Option<Self> {
        let &(name, ptx, shared) = ARCHITECTURES.iter().find(|a| a.0 == name)?;
        Some(Self { name, ptx, shared })
    }

    /// Its name, such as `sm_80`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Its compute capability: 80 for `sm_80`.
    pub fn capability(&self) -> u32 {
        capability(self.name)
    }

    /// Bytes of shared memory that a block can ask for.
    pub fn shared_memory(&self) -> u64 {
        self.shared
    }

    /// What kernels may use.
    pub fn options(&self) -> GridOptions {
        GridOptions { async_copies: self.capability() >= 80 }
    }

    /// What LLVM compiles for; boxes that the copy engine brings need a newer PTX than the architecture itself.
    pub(crate) fn spec(&self, boxes: bool) -> TargetSpec {
        let least = if boxes { BOXES_PTX } else { 0 };
        TargetSpec::nvptx(self.name, self.ptx.max(least))
    }
}

impl fmt::Display for GpuTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
