//! Provides `libMLIR-C.so`, the shared MLIR C API, which Debian does not package.
//!
//! `mlir-sys` in shared mode links `-lMLIR -lMLIR-C -lLLVM-22`. The packages hold the C API only as
//! static archives (`libMLIRCAPI*.a`), so this script writes a linker script of that name which groups the
//! archives with the two shared libraries. Its folder travels to every final link as a search path.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// Where Debian installs LLVM 22, unless `MLIR_SYS_220_PREFIX` names another prefix.
const DEFAULT_PREFIX: &str = "/usr/lib/llvm-22";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=MLIR_SYS_220_PREFIX");

    let prefix = env::var("MLIR_SYS_220_PREFIX").unwrap_or_else(|_| DEFAULT_PREFIX.to_owned());
    println!("cargo:rustc-env=CORA_LLVM_PREFIX={prefix}");

    let libraries = Path::new(&prefix).join("lib");
    println!("cargo:rerun-if-changed={}", libraries.join("libMLIR.so").display());
    let mut members = capi_archives(&libraries)?;
    if members.is_empty() {
        return Err(
            format!("no libMLIRCAPI*.a in {}; run scripts/setup.sh (or `make setup`)", libraries.display()).into()
        );
    }
    members.push(libraries.join("libMLIR.so"));
    members.push(libraries.join("libLLVM-22.so"));

    let mut script = String::from("GROUP (");
    for member in &members {
        script.push(' ');
        script.push_str(member.to_str().ok_or("a library path is not UTF-8")?);
    }
    script.push_str(" )\n");

    let folder = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(folder.join("libMLIR-C.so"), script)?;
    println!("cargo:rustc-link-search=native={}", folder.display());
    Ok(())
}

/// The static archives of the MLIR C API, sorted so that the script is the same on every run.
fn capi_archives(libraries: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let mut archives = Vec::new();
    for entry in fs::read_dir(libraries)
        .map_err(|error| format!("cannot read {}: {error}; run scripts/setup.sh", libraries.display()))?
    {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
        if name.starts_with("libMLIRCAPI") && name.ends_with(".a") {
            archives.push(path);
        }
    }
    archives.sort();
    Ok(archives)
}
