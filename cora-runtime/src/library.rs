//! Loads the shared library of an artifact.

use crate::abi::{KernelFn, ProgramDesc};
use crate::artifact::Machine;
use crate::cpu;
use crate::error::{Error, Result};
use crate::exec::KernelSource;
use libloading::Library;
use std::collections::HashMap;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Kernels of a shared library.
pub struct LoadedKernels {
    kernels: HashMap<String, KernelFn>,
    /// Owns the code that the functions point to.
    _library: Library,
}

impl std::fmt::Debug for LoadedKernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoadedKernels").field("kernels", &self.kernels.keys()).finish_non_exhaustive()
    }
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
        return Err(Error::Machine { wanted: machine.to_string(), why: "this is a processor".to_owned() });
    };
    let fail = |why: String| Err(Error::Machine { wanted: machine.to_string(), why });
    if arch != std::env::consts::ARCH {
        return fail(format!("this is a {}", std::env::consts::ARCH));
    }
    match features.iter().find(|f| !cpu::has(f)) {
        Some(f) => fail(format!("it uses {f}, which this processor or its system lacks")),
        None => Ok(()),
    }
}

/// A new file in the folder for temporary files. One that is there already belongs to somebody else, and stays. No name
/// comes twice: the system's loader takes a file of the name of a library in memory for that library.
fn temporary_file() -> std::io::Result<(PathBuf, File)> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let first = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut n = first;
    loop {
        let path = std::env::temp_dir().join(format!("cora-{}-{n}.so", std::process::id()));
        match File::create_new(&path) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists && n < first + (1 << 16) => {
                n = NEXT.fetch_add(1, Ordering::Relaxed);
            }
            opened => return opened.map(|file| (path, file)),
        }
    }
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
    let (path, mut file) = temporary_file().map_err(|e| fail(&e))?;
    let written = file.write_all(code).map_err(|e| fail(&e));
    drop(file);
    // SAFETY: the caller vouches for the library, initialisers included.
    let library = written.and_then(|()| unsafe { Library::new(&path) }.map_err(|e| fail(&e)));
    // The loader wants a file; it may go as soon as it is mapped.
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

#[cfg(test)]
mod tests {
    use super::temporary_file;

    #[test]
    fn files_of_others_stay() {
        let (first, file) = temporary_file().unwrap();
        let (second, _) = temporary_file().unwrap();
        assert_ne!(first, second);
        assert!(first.exists());
        drop(file);
        [first, second].iter().for_each(|p| std::fs::remove_file(p).unwrap());
    }

    #[test]
    fn no_name_comes_twice() {
        let (first, _) = temporary_file().expect("a file");
        std::fs::remove_file(&first).expect("it is ours");
        let (second, _) = temporary_file().expect("a file");
        std::fs::remove_file(&second).expect("it is ours");
        assert_ne!(first, second, "the loader would take the second for the first");
    }
}
