//! A stand-in for the CUDA driver: a library with the driver's entry points that interprets PTX on the processor.
//!
//! ```text
//! cuModuleLoadDataEx -> ptx::Module::parse    cuLaunchKernel -> exec::launch    cuMemAlloc -> memory::Memory
//! ```
//! The runtime opens it in place of `libcuda.so`, so everything between a program and the device's memory runs as on a
//! device: tables, copies, launches, graphs, and the kernels' own instructions. Accesses outside of an allocation, threads
//! that wait where others do not come by, and calls that the driver forbids are errors.
//!
//! Each thread of a block stores its index:
//!
//! ```
//! use cora_ptxsim::{exec, memory::Memory, ptx::Module};
//!
//! let module = Module::parse(
//!     r"
//! .version 8.0
//! .target sm_80
//! .address_size 64
//! .visible .entry iota(.param .u64 out)
//! {
//!     .reg .b32 %r<2>;
//!     .reg .b64 %rd<4>;
//!     ld.param.u64 %rd1, [out];
//!     mov.u32 %r1, %tid.x;
//!     mul.wide.u32 %rd2, %r1, 4;
//!     add.s64 %rd3, %rd1, %rd2;
//!     st.global.u32 [%rd3], %r1;
//!     ret;
//! }",
//! )?;
//! let mut memory = Memory::default();
//! let out = memory.allocate(16).ok_or("no memory")?;
//! let grid = exec::Grid { blocks: [1, 1, 1], threads: [4, 1, 1], dynamic_shared: 0 };
//! exec::launch(&module, "iota", grid, &[out.to_le_bytes().to_vec()], &mut memory, None)?;
//! assert_eq!(memory.bytes(out + 8, 4)?, 2_u32.to_le_bytes());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod driver;
pub mod exec;
pub mod memory;
pub mod ptx;
pub mod tensor_map;
