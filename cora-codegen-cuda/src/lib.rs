//! The storage dialect's way to PTX: which architectures there are, what a block may have on each, the lowering of
//! MLIR for NVIDIA GPUs, and the description of launches for the runtime.
//!
//! The mapping of grids to MLIR text is shared with the CPU ([`cora_codegen_llvm::mlir`]); it makes no choice that a
//! pass could have made visible. Neither a GPU nor a CUDA toolkit is needed to build or test this crate: LLVM writes
//! PTX, and the driver of the machine that runs it assembles it.
//!
//! ```text
//! StorageModule ─ mlir::emit_grid ─► MLIR text ─ GPU_PIPELINE ─► llvm dialect ─► LLVM IR ─ O3 ─► PTX
//!               └ describe::grid_desc ─► ProgramDesc, GridDesc
//! ```
//!
//! ```
//! use cora_codegen_cuda::{GpuTarget, compile};
//!
//! let text = "storage.module @twice {
//!     param M in 0..=64
//!     tensor @A[i: M] : f32 input
//!     tensor @B[i: M] : f32 output
//!     buffer @A elems = M offset = $0
//!     buffer @B elems = M offset = $0
//!     kernel @B { for %i in 0..M block.x { @B[%i] = 2.0:f32 * @A[%i] } }
//! }";
//! let module = cora_ir::text::parse_storage(text)?;
//! let target = GpuTarget::new("sm_80").expect("a known architecture");
//! let program = compile(&module, &target)?;
//! assert!(program.ptx.contains(".target sm_80") && program.grid.launches.len() == 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod target;

use cora_codegen_llvm::describe::{self, DescribeError};
use cora_codegen_llvm::llvm::{CodegenError, LlvmModule, MlirModule};
use cora_codegen_llvm::mlir::{self, EmitError, GridArg as Emitted};
use cora_ir::intrinsic::Needs;
use cora_ir::storage::{Stmt, StorageModule};
use cora_runtime::abi::{GridArg, GridDesc, GridLaunch, ProgramDesc};

pub use target::{ARCHITECTURES, GpuTarget};

/// Lowers `llvm`, `nvvm`, `scf`, `arith`, `math` and `vector` to what LLVM's NVPTX back end takes.
pub const GPU_PIPELINE: &str = "builtin.module(\
    canonicalize,\
    cse,\
    convert-scf-to-cf,\
    convert-vector-to-llvm{reassociate-fp-reductions=1},\
    convert-math-to-llvm,\
    convert-arith-to-llvm,\
    convert-ub-to-llvm,\
    convert-index-to-llvm,\
    convert-cf-to-llvm,\
    convert-nvvm-to-llvm,\
    cse,\
    reconcile-unrealized-casts)";

/// Why a program could not be compiled for a GPU.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    /// The module is not what emission requires, or uses a function that GPUs do not have.
    #[error(transparent)]
    Emit(#[from] EmitError),
    /// The module cannot be described to the runtime.
    #[error(transparent)]
    Describe(#[from] DescribeError),
    /// MLIR or LLVM failed.
    #[error(transparent)]
    Codegen(#[from] CodegenError),
    /// An instruction that the target does not have.
    #[error("kernel `{kernel}` uses `{intrinsic}`, which GPUs have from sm_{least} on, and is compiled for {target}")]
    Intrinsic {
        /// The kernel.
        kernel: String,
        /// The instruction.
        intrinsic: &'static str,
        /// The least compute capability that has it.
        least: u32,
        /// The architecture.
        target: String,
    },
    /// An instruction that only another architecture has.
    #[error("kernel `{kernel}` uses `{intrinsic}`, which only {only} has, and is compiled for {target}")]
    Architecture {
        /// The kernel.
        kernel: String,
        /// The instruction.
        intrinsic: &'static str,
        /// The architecture that has it.
        only: &'static str,
        /// The architecture.
        target: String,
    },
    /// More memory of its own than a thread has.
    #[error("kernel `{kernel}` needs {bytes} bytes of memory for each thread, and a thread has {most}")]
    Local {
        /// The kernel.
        kernel: String,
        /// What it needs.
        bytes: u64,
        /// What there is.
        most: u64,
    },
    /// More shared memory than a block of the target has.
    #[error("kernel `{kernel}` needs {bytes} bytes of shared memory, a block on {target} has {most}")]
    Shared {
        /// The kernel.
        kernel: String,
        /// What it needs.
        bytes: u64,
        /// What there is.
        most: u64,
        /// The architecture.
        target: String,
    },
}

/// A program for one GPU architecture.
#[derive(Clone, Debug)]
pub struct GridProgram {
    /// The MLIR text as emitted, before any pass.
    pub mlir: String,
    /// The optimised LLVM IR.
    pub llvm: String,
    /// The kernels.
    pub ptx: String,
    /// What the runtime needs to know.
    pub desc: ProgramDesc,
    /// How each kernel is launched.
    pub grid: GridDesc,
    /// What it was compiled for.
    pub target: GpuTarget,
}

/// The compute capability from which on there is a copy engine for boxes.
const BOXES: u32 = 90;

fn has_boxes(module: &StorageModule) -> bool {
    module.kernels.iter().flat_map(|k| &k.body).any(|s| s.any(&mut |s| matches!(s, Stmt::Bulk(_))))
}

/// Refuses instructions that the target does not have: LLVM aborts on them.
fn check_intrinsics(module: &StorageModule, target: &GpuTarget) -> Result<(), CompileError> {
    let (mut missing, capability) = (None, target.capability());
    for k in &module.kernels {
        k.body.iter().for_each(|s| {
            s.walk(&mut |s| {
                if matches!(s, Stmt::Bulk(_)) && capability < BOXES {
                    let (kernel, target) = (k.name.clone(), target.name().to_owned());
                    let fault = CompileError::Intrinsic { kernel, intrinsic: "bulk_copy", least: BOXES, target };
                    missing.get_or_insert(fault);
                }
                let Stmt::Tile(t) = s else { return };
                let (kernel, intrinsic) = (k.name.clone(), t.intrinsic.get().name);
                let target = target.name().to_owned();
                let fault = match t.intrinsic.get().needs {
                    Needs::Gpu(least) if capability < least => {
                        CompileError::Intrinsic { kernel, intrinsic, least, target }
                    }
                    Needs::GpuOnly(only) if target != only => {
                        CompileError::Architecture { kernel, intrinsic, only, target }
                    }
                    _ => return,
                };
                missing.get_or_insert(fault);
            });
        });
    }
    missing.map_or(Ok(()), Err)
}

/// A module's description, its kernels in MLIR, and how they are launched.
type Emission = (ProgramDesc, Vec<describe::GridShape>, String, Vec<mlir::GridKernel>);

/// What comes before MLIR: nothing that the target lacks is left.
fn emit(module: &StorageModule, target: &GpuTarget) -> Result<Emission, CompileError> {
    let (desc, shapes) = describe::grid_desc(module)?;
    check_intrinsics(module, target)?;
    let (text, kernels) = mlir::emit_grid(module, &target.options())?;
    if let Some(k) = kernels.iter().find(|k| k.shared > target.shared_memory()) {
        return Err(CompileError::Shared {
            kernel: k.symbol.clone(),
            bytes: k.shared,
            most: target.shared_memory(),
            target: target.name().to_owned(),
        });
    }
    Ok((desc, shapes, text, kernels))
}

/// Refuses what the target lacks, as [`compile`] does, without making code: for those who interpret the module. Only
/// what a thread needs of its own is not known before there is code.
///
/// # Errors
///
/// [`CompileError`], as [`compile`]'s but for [`CompileError::Local`].
pub fn check(module: &StorageModule, target: &GpuTarget) -> Result<(), CompileError> {
    emit(module, target).map(drop)
}

/// Compiles a verified, legalised module; the same module and target give the same bytes.
///
/// # Errors
///
/// [`CompileError`]; for modules that meet the requirements, only what the target lacks.
pub fn compile(module: &StorageModule, target: &GpuTarget) -> Result<GridProgram, CompileError> {
    let (desc, shapes, mlir, kernels) = emit(module, target)?;
    let mut launches = Vec::new();
    for (k, shape) in kernels.iter().zip(shapes) {
        let args = k.args.iter().map(|a| match *a {
            Emitted::Buffer(buffer, first) => GridArg::Buffer { buffer, first },
            Emitted::Table(i) => GridArg::Table(i),
            Emitted::Param(i) => GridArg::Param(i),
            Emitted::Map(i) => GridArg::Map(i),
        });
        launches.push(GridLaunch {
            symbol: k.symbol.clone(),
            function: k.function.clone(),
            blocks: shape.blocks,
            threads: k.threads,
            // Bounded by the target.
            shared: if k.dynamic { k.shared as u32 } else { 0 },
            args: args.collect(),
            maps: shape.maps,
        });
    }
    let mut parsed = MlirModule::parse(&mlir)?;
    parsed.run_pipeline(GPU_PIPELINE)?;
    let mut llvm = LlvmModule::from_mlir(&parsed, &target.spec(has_boxes(module)))?;
    llvm.optimize("default<O3>")?;
    let ptx = llvm.emit_asm()?;
    let llvm = llvm.to_ir_string();
    check_local(&ptx)?;
    Ok(GridProgram {
        mlir,
        llvm,
        ptx,
        desc,
        grid: GridDesc { launches, builds: builds(module) },
        target: target.clone(),
    })
}

/// Bytes of local memory of a thread (CUDA C++ Programming Guide, table of technical specifications).
const LOCAL: u64 = 512 << 10;

/// Whether the threads of each kernel have the memory that it declares for them.
fn check_local(ptx: &str) -> Result<(), CompileError> {
    let mut kernel = "";
    for line in ptx.lines() {
        if let Some((_, name)) = line.split_once(".entry ") {
            kernel = name.split('(').next().unwrap_or(name).trim();
        }
        let size = line.split_once("__local_depot").and_then(|(_, size)| size.split_once('['));
        let bytes = size.and_then(|(_, n)| n.split(']').next()?.parse().ok());
        if let Some(bytes) = bytes.filter(|&n| n > LOCAL) {
            return Err(CompileError::Local { kernel: kernel.to_owned(), bytes, most: LOCAL });
        }
    }
    Ok(())
}

/// The tables that kernels write.
fn builds(module: &StorageModule) -> Vec<u32> {
    let writes = |t| module.kernels.iter().flat_map(|k| &k.body).any(|s| s.any(&mut |s| s.writes().contains(&t)));
    let written = module.tables.iter().enumerate().filter(|(_, t)| writes(t.tensor));
    written.map(|(n, _)| n as u32).collect()
}
