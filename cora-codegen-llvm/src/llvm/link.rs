//! Shared libraries from objects, through the lld binary.

use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{env, fs};

use super::error::CodegenError;

/// Links an object into a shared library that needs only libm and libc, and returns its bytes.
///
/// Works for every architecture lld knows: nothing of the target's system is read. Needs `ld.lld` of the LLVM that this
/// crate was built with, or `ld.lld` or `rust-lld` on the `PATH`.
///
/// # Errors
///
/// [`CodegenError::Link`] when no lld is found or it fails, [`CodegenError::Io`] when its temporary files cannot be
/// used.
pub fn link_shared(object: &[u8]) -> Result<Vec<u8>, CodegenError> {
    let folder = TemporaryFolder::new()?;
    let input = folder.0.join("kernel.o");
    let libm = folder.0.join("libm.so.6");
    let output = folder.0.join("kernel.so");
    fs::write(&input, object).map_err(at(&input))?;
    // The loader finds `expf` and friends only if the library asks for libm. A stand-in with libm's name gives that
    // entry without the target's real library; its content does not matter, so it is made from the same object.
    lld(&["-shared", "-soname", "libm.so.6", "-o"], &[&libm, &input])?;
    // No build id and no path of ours in the output: the same object gives the same bytes.
    lld(
        &["-shared", "--no-as-needed", "--build-id=none", "-z", "noexecstack", "-z", "now", "-o"],
        &[&output, &input, &libm],
    )?;
    fs::read(&output).map_err(at(&output))
}

/// Runs the first lld that exists.
fn lld(flags: &[&str], files: &[&Path]) -> Result<(), CodegenError> {
    let packaged = Path::new(env!("CORA_LLVM_PREFIX")).join("bin/ld.lld");
    let candidates: [(&Path, &[&str]); 3] =
        [(&packaged, &[]), (Path::new("ld.lld"), &[]), (Path::new("rust-lld"), &["-flavor", "gnu"])];
    for (program, flavor) in candidates {
        let output = match Command::new(program).args(flavor).args(flags).args(files).output() {
            Ok(output) => output,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(source) => return Err(CodegenError::Io { path: program.to_owned(), source }),
        };
        if output.status.success() {
            return Ok(());
        }
        let message = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
        return Err(CodegenError::Link { message });
    }
    Err(CodegenError::NoLinker)
}

/// A folder of our own that goes away with the value.
struct TemporaryFolder(PathBuf);

impl TemporaryFolder {
    fn new() -> Result<Self, CodegenError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("cora-link-{}-{number}", process::id()));
        // `create_dir` fails on a folder that exists, so no one else's files are used.
        fs::create_dir(&path).map_err(at(&path))?;
        Ok(Self(path))
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        // A folder that cannot be removed is litter in the temporary folder, not a failed link.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn at(path: &Path) -> impl Fn(std::io::Error) -> CodegenError + '_ {
    |source| CodegenError::Io { path: path.to_owned(), source }
}
