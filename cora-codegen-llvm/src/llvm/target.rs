//! Which machine to compile for: triple, CPU, features.

use std::collections::BTreeSet;
use std::fmt;

use super::error::CodegenError;
use super::mlir_module::MlirModule;
use super::{cpus, features, ffi};

const X86_64_TRIPLE: &str = "x86_64-unknown-linux-gnu";
const AARCH64_TRIPLE: &str = "aarch64-unknown-linux-gnu";
const NVPTX_TRIPLE: &str = "nvptx64-nvidia-cuda";

/// A machine to compile for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TargetSpec {
    triple: String,
    cpu: String,
    features: String,
    /// Every feature the CPU has, as LLVM names it (`avx512f`, `neon`).
    enabled: BTreeSet<String>,
}

impl TargetSpec {
    /// The machine this process runs on, with exactly the features that the system lets it use.
    pub fn host() -> Self {
        ffi::initialize();
        // SAFETY: both functions return fresh strings that `LLVMDisposeMessage` frees, and `take_message` is their only
        // user.
        let (cpu, features) =
            unsafe { (ffi::take_message(ffi::LLVMGetHostCPUName()), ffi::take_message(ffi::LLVMGetHostCPUFeatures())) };
        let mut enabled = enabled_features(features.split(','));
        // LLVM does not ask whether the system gives this process tile registers.
        if enabled.contains("amx-tile") && !cora_runtime::cpu::has("amx-tile") {
            enabled.retain(|f| !f.starts_with("amx-"));
        }
        let triple = if cfg!(target_arch = "aarch64") { AARCH64_TRIPLE } else { X86_64_TRIPLE };
        Self { triple: triple.to_owned(), cpu, features, enabled }
    }

    /// An x86-64 or AArch64 CPU by LLVM's name (`znver4`, `haswell`, `x86-64-v3`, `neoverse-n1`), or `host`.
    ///
    /// # Errors
    ///
    /// [`CodegenError::UnknownTarget`] when LLVM has no 64-bit CPU of this name. LLVM itself would compile for a
    /// baseline CPU and say nothing.
    pub fn new(name: &str) -> Result<Self, CodegenError> {
        if matches!(name, "host" | "native") {
            return Ok(Self::host());
        }
        let triple = if cpus::X86_64.contains(&name) {
            X86_64_TRIPLE
        } else if cpus::AARCH64.contains(&name) {
            AARCH64_TRIPLE
        } else {
            return Err(CodegenError::UnknownTarget { name: name.to_owned(), hint: hint(name) });
        };
        let enabled = features_of_cpu(triple, name)?;
        Ok(Self { triple: triple.to_owned(), cpu: name.to_owned(), features: String::new(), enabled })
    }

    /// An NVIDIA GPU: `architecture` such as `sm_80` or `sm_90a`, and the PTX version as LLVM writes it (70 for 7.0).
    ///
    /// The pair is not checked: LLVM ends the process when the version is too low for the architecture.
    pub fn nvptx(architecture: &str, ptx_version: u32) -> Self {
        Self {
            triple: NVPTX_TRIPLE.to_owned(),
            cpu: architecture.to_owned(),
            features: format!("+ptx{ptx_version}"),
            enabled: BTreeSet::from([format!("ptx{ptx_version}")]),
        }
    }

    /// The target triple, such as `x86_64-unknown-linux-gnu`.
    pub fn triple(&self) -> &str {
        &self.triple
    }

    /// The CPU as LLVM names it.
    pub fn cpu(&self) -> &str {
        &self.cpu
    }

    /// Features beyond those the CPU implies, as LLVM reads them (`+a,-b`); empty for a CPU given by name.
    pub fn features(&self) -> &str {
        &self.features
    }

    /// Whether the target has a feature, by LLVM's name: `avx2`, `avx512f`, `avx512bf16`, `neon`, `sve`.
    pub fn has_feature(&self, feature: &str) -> bool {
        self.enabled.contains(feature)
    }

    /// The names of all of its features.
    pub fn enabled_features(&self) -> impl Iterator<Item = &str> {
        self.enabled.iter().map(String::as_str)
    }

    /// The first part of the triple, such as `x86_64`.
    pub fn arch(&self) -> &str {
        self.triple.split('-').next().unwrap_or_default()
    }

    /// The features that code for this target may depend on: all but tuning and what only systems use.
    pub fn code_features(&self) -> impl Iterator<Item = &str> {
        self.enabled.iter().map(String::as_str).filter(|f| features::matters(&self.triple, f))
    }
}

impl fmt::Display for TargetSpec {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.triple, self.cpu)
    }
}

/// The features with a `+`, without it.
fn enabled_features<'a>(features: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
    features.filter_map(|feature| feature.trim().strip_prefix('+')).map(str::to_owned).collect()
}

/// Asks LLVM for all features of a CPU.
///
/// The LLVM C API cannot list what a CPU implies, but MLIR's `llvm-target-to-target-features` pass writes the
/// subtarget's features onto the module.
fn features_of_cpu(triple: &str, cpu: &str) -> Result<BTreeSet<String>, CodegenError> {
    let mut module = MlirModule::parse(&format!(
        "module attributes {{llvm.target = #llvm.target<triple = \"{triple}\", chip = \"{cpu}\">}} {{}}"
    ))?;
    module.run_pipeline("builtin.module(llvm-target-to-target-features)")?;
    // The features are the quoted strings of the printed attribute that start with `+`.
    Ok(enabled_features(module.to_string().split('"')))
}

/// The names nearest to a wrong one, then a few common ones.
fn hint(wrong: &str) -> String {
    let mut near: Vec<(usize, &str)> = cpus::X86_64
        .iter()
        .chain(cpus::AARCH64)
        .map(|name| (edit_distance(wrong, name), *name))
        .filter(|(distance, _)| *distance <= 2)
        .collect();
    near.sort_unstable();
    let common = cpus::COMMON.join(", ");
    if near.is_empty() {
        format!("known are host, {common} and the other CPU names of LLVM")
    } else {
        let names: Vec<_> = near.iter().take(3).map(|(_, name)| format!("`{name}`")).collect();
        format!("did you mean {}? Also known are host, {common} and others", names.join(" or "))
    }
}

/// Levenshtein distance, by the usual two-row table.
fn edit_distance(left: &str, right: &str) -> usize {
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in right.bytes().enumerate() {
            let substitute = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = substitute.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::{TargetSpec, cpus, edit_distance};
    use crate::llvm::CodegenError;
    use cora_ir::intrinsic::Features;

    #[test]
    fn features_come_from_llvm() {
        let cases = [
            ("znver4", 64, ["avx512f", "avx512bf16"].as_slice(), ["amx-tile"].as_slice()),
            ("sapphirerapids", 64, &["avx512f", "amx-tile"], &["neon"]),
            ("haswell", 32, &["avx2", "fma"], &["avx512f"]),
            ("x86-64", 16, &["sse2"], &["avx"]),
            ("neoverse-n1", 16, &["neon"], &["sve"]),
            ("neoverse-v1", 16, &["neon", "sve"], &["sve2"]),
        ];
        for (name, bytes, present, absent) in cases {
            let target = TargetSpec::new(name).unwrap();
            assert_eq!(Features::of(|f| target.has_feature(f)).vectors().bytes, bytes, "{name}");
            assert!(present.iter().all(|feature| target.has_feature(feature)), "{name}: {target:?}");
            assert!(!absent.iter().any(|feature| target.has_feature(feature)), "{name}: {target:?}");
        }
    }

    /// LLVM falls back to a baseline without these features when it does not know a name.
    #[test]
    fn llvm_knows_every_name() {
        for (names, baseline) in [(cpus::X86_64, "64bit"), (cpus::AARCH64, "fp-armv8")] {
            for name in names {
                assert!(TargetSpec::new(name).unwrap().has_feature(baseline), "{name}");
            }
        }
        assert!(cpus::COMMON.iter().all(|name| TargetSpec::new(name).is_ok()));
    }

    /// A feature of a new LLVM has to go into the runtime's list or into that of what does not matter.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn the_runtime_knows_what_code_depends_on() {
        let unknown: std::collections::BTreeSet<_> = cpus::X86_64
            .iter()
            .flat_map(|name| TargetSpec::new(name).unwrap().code_features().map(str::to_owned).collect::<Vec<_>>())
            .filter(|f| !cora_runtime::cpu::knows(f))
            .collect();
        assert!(unknown.is_empty(), "{unknown:?}");
        let host = TargetSpec::host();
        assert_eq!(host.code_features().find(|f| !cora_runtime::cpu::has(f)), None, "{host:?}");
        let n1 = TargetSpec::new("neoverse-n1").unwrap();
        let n1: Vec<_> = n1.code_features().collect();
        assert_eq!(
            n1,
            ["aes", "crc", "dotprod", "fp-armv8", "fullfp16", "lse", "neon", "rcpc", "rdm", "sha2", "ssbs"],
            "not tuning, but all that code may use"
        );
    }

    #[test]
    fn unknown_names_give_a_hint() {
        let Err(CodegenError::UnknownTarget { name, hint }) = TargetSpec::new("znvr4") else {
            panic!("`znvr4` was accepted");
        };
        assert_eq!(name, "znvr4");
        assert!(hint.starts_with("did you mean `znver4`"), "{hint}");
        let error = TargetSpec::new("pentium\"").unwrap_err().to_string();
        assert!(error.contains("sapphirerapids"), "{error}");
    }

    #[test]
    fn host_is_a_name_too() {
        assert_eq!(TargetSpec::new("host").unwrap(), TargetSpec::host());
    }

    #[test]
    fn edit_distances() {
        for (left, right, distance) in
            [("", "abc", 3), ("abc", "abc", 0), ("znvr4", "znver4", 1), ("kitten", "sitting", 3)]
        {
            assert_eq!(edit_distance(left, right), distance, "{left} {right}");
        }
    }
}
