//! A stand-in for the CUDA driver: a library with the driver's entry points that interprets PTX on the processor.
//!
//! ```text
//! cuModuleLoadDataEx -> ptx::Module::parse    cuLaunchKernel -> exec::launch    cuMemAlloc -> memory::Memory
//! ```
//! The runtime opens it in place of `libcuda.so`, so everything between a program and the device's memory runs as on a
//! device: tables, copies, launches, graphs, and the kernels' own instructions. Accesses outside of an allocation, threads
//! that wait where others do not come by, and calls that the driver forbids are errors.

mod driver;
pub mod exec;
pub mod memory;
pub mod ptx;
pub mod tensor_map;
