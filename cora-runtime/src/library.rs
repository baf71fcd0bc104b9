//! Loads the shared library of an artifact.

use crate::abi::{KernelFn, ProgramDesc};
use crate::artifact::Machine;
use crate::error::{Error, Result};
use crate::exec::KernelSource;
use libloading::Library;
use std::collections::HashMap;
use std::io::Write;

/// Kernels of a shared library.
pub struct LoadedKernels {
    kernels: HashMap<String, KernelFn>,
    /// Owns the code that the functions point to.
    _library: Library,
}

impl KernelSource for LoadedKernels {
    fn kernel(&self, symbol: &str) -> Option<KernelFn> {
        self.kernels.get(symbol).copied()
    }
}

/// Whether this machine runs code for `machine`.
///
/// # Errors
/// [`Error::Machine`].
pub fn check_machine(machine: &Machine) -> Result<()> {
    let Machine::Cpu { arch, features, .. } = machine else {
        return Err(Error::Machine { wanted: machine.to_string(), why: "it is for a GPU".to_owned() });
    };
    let fail = |why: String| Err(Error::Machine { wanted: machine.to_string(), why });
    if arch != std::env::consts::ARCH {
        return fail(format!("this is a {}", std::env::consts::ARCH));
    }
    match features.iter().find(|f| !has(f)) {
        Some(f) => fail(format!("this processor has no {f}")),
        None => Ok(()),
    }
}

/// Instruction set extensions that an artifact names if its code may use them.
pub const FEATURES: [&str; 10] =
    ["avx", "avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd", "avx512vnni", "avx512bf16"];

#[cfg(target_arch = "x86_64")]
fn has(feature: &str) -> bool {
    match feature {
        "avx" => is_x86_feature_detected!("avx"),
        "avx2" => is_x86_feature_detected!("avx2"),
        "fma" => is_x86_feature_detected!("fma"),
        "avx512f" => is_x86_feature_detected!("avx512f"),
        "avx512bw" => is_x86_feature_detected!("avx512bw"),
        "avx512dq" => is_x86_feature_detected!("avx512dq"),
        "avx512vl" => is_x86_feature_detected!("avx512vl"),
        "avx512cd" => is_x86_feature_detected!("avx512cd"),
        "avx512vnni" => is_x86_feature_detected!("avx512vnni"),
        "avx512bf16" => is_x86_feature_detected!("avx512bf16"),
        // A name that this version does not know may be anything.
        _ => false,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn has(feature: &str) -> bool {
    feature == "neon"
}

/// Loads the kernels of `desc` from a shared library's bytes.
///
/// # Safety
/// The bytes must be a library that the compiler made for `desc` and this machine: its code is run.
///
/// # Errors
/// [`Error::Machine`], [`Error::Library`], [`Error::Kernel`], [`Error::Blas`].
pub unsafe fn load(machine: &Machine, desc: &ProgramDesc, code: &[u8]) -> Result<LoadedKernels> {
    check_machine(machine)?;
    let fail = |e: &dyn std::fmt::Display| Error::Library(e.to_string());
    // The loader wants a file; it may go as soon as it is mapped.
    let path = std::env::temp_dir().join(format!("cora-{}-{:x}.so", std::process::id(), code.as_ptr() as usize));
    let written = std::fs::File::create_new(&path).and_then(|mut f| f.write_all(code));
    // SAFETY: the caller vouches for the library, initialisers included.
    let library = written.map_err(|e| fail(&e)).and_then(|()| unsafe { Library::new(&path) }.map_err(|e| fail(&e)));
    // What cannot be removed stays in the folder for temporary files.
    let _ = std::fs::remove_file(&path);
    let library = library?;
    for import in &desc.imports {
        let function = import.resolve()?;
        // SAFETY: the caller vouches that the library has a writable variable of pointer type for each import of its
        // description; nothing of it runs yet.
        unsafe {
            let variable = library.get::<*mut *const ()>(import.symbol().as_bytes());
            let variable = variable.map_err(|_| Error::Kernel { symbol: import.symbol().to_owned() })?;
            variable.write(function);
        }
    }
    let mut kernels = HashMap::new();
    for k in desc.kernels.iter().chain(&desc.setup_kernels) {
        // SAFETY: the caller vouches that functions of this description's symbols have the signature `KernelFn`.
        let f = unsafe { library.get::<KernelFn>(k.symbol.as_bytes()) };
        let f = f.map_err(|_| Error::Kernel { symbol: k.symbol.clone() })?;
        kernels.insert(k.symbol.clone(), *f);
    }
    Ok(LoadedKernels { kernels, _library: library })
}
