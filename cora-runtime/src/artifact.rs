//! Artifacts: a compiled program in one file, which this crate alone loads and runs.
//!
//! ```text
//! "CORAART\0"  version u32  sections u32  blake3 of all that follows [u8; 32]
//! for each section: kind u32, 0 u32, offset u64, length u64
//! the sections' bytes, in order, without gaps, up to the end of the file
//! ```
//! All numbers are little-endian. There are a manifest, the program's description, for a GPU its launches, the code
//! (a shared library, or PTX), and possibly samples: batches with inputs and expected outputs. Whatever a file holds,
//! decoding it gives a typed error or something that passed every check, and takes memory in proportion to the file's
//! size. The code itself is native and trusted: load only artifacts that you trust, as with any library. That goes for a
//! description too that was altered and given a right checksum: the code relies on the sizes it says. `cora-exec`
//! checks before a run that each input and output fits its buffer; of tables and temporaries only the code knows.

use crate::abi::{ABI_VERSION, GridDesc, ProgramDesc};
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The container's version.
pub const ARTIFACT_VERSION: u32 = 3;

const MAGIC: &[u8; 8] = b"CORAART\0";
const HEADER: usize = 8 + 4 + 4 + 32;
const ENTRY: usize = 24;
const MAX_SECTIONS: usize = 1 << 12;

/// What the code is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Machine {
    /// A shared library for a processor.
    Cpu {
        /// `x86_64` or `aarch64`.
        arch: String,
        /// LLVM's name of the processor it was tuned for.
        cpu: String,
        /// Every instruction set extension that the code may use, by LLVM's names.
        features: Vec<String>,
    },
    /// PTX for an NVIDIA GPU.
    Cuda {
        /// The least architecture, such as `sm_80`.
        arch: String,
    },
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Machine::Cpu { arch, cpu, .. } => write!(f, "{arch} ({cpu})"),
            Machine::Cuda { arch } => write!(f, "CUDA {arch}"),
        }
    }
}

/// What an artifact says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The program's name.
    pub program: String,
    /// The compiler's version.
    pub compiler: String,
    /// [`ABI_VERSION`] of the compiler.
    pub abi: u32,
    /// What the code is for.
    pub machine: Machine,
}

/// A batch with inputs and what the program makes of them, to check a machine by.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The value of each parameter.
    pub params: Vec<i64>,
    /// The entries of each extent function.
    pub lengths: Vec<Vec<i64>>,
    /// For each tensor of the description its elements in row-major ragged order: given for inputs, expected of outputs.
    pub tensors: Vec<Vec<u8>>,
    /// For each tensor the greatest difference allowed of each element; none where it has to be the same.
    pub allowed: Vec<Vec<f32>>,
}

/// A compiled program.
#[derive(Clone, Debug, PartialEq)]
pub struct Artifact {
    /// What it is.
    pub manifest: Manifest,
    /// The program.
    pub desc: ProgramDesc,
    /// For a GPU: how kernels are launched.
    pub grid: Option<GridDesc>,
    /// A shared library, or PTX.
    pub code: Vec<u8>,
    /// Batches to check by, a section each.
    pub samples: Vec<Sample>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kind {
    Manifest = 1,
    Program = 2,
    Grid = 3,
    Code = 4,
    Sample = 5,
}

impl Kind {
    fn new(n: u32) -> Option<Kind> {
        [Kind::Manifest, Kind::Program, Kind::Grid, Kind::Code, Kind::Sample].into_iter().find(|k| *k as u32 == n)
    }
}

fn bad(what: impl Into<String>) -> Error {
    Error::Artifact(what.into())
}

fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    postcard::to_allocvec(value).map_err(|e| bad(e.to_string()))
}

fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8], what: &str) -> Result<T> {
    let (value, rest) = postcard::take_from_bytes(bytes).map_err(|e| bad(format!("the {what}: {e}")))?;
    if rest.is_empty() { Ok(value) } else { Err(bad(format!("the {what} has {} bytes too many", rest.len()))) }
}

impl Artifact {
    /// The bytes of the file; the same artifact gives the same bytes.
    ///
    /// # Errors
    /// [`Error::Artifact`], [`Error::Decode`] for a description beyond the ABI's bounds.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut sections = vec![(Kind::Manifest, encode(&self.manifest)?), (Kind::Program, self.desc.to_bytes()?)];
        if let Some(grid) = &self.grid {
            sections.push((Kind::Grid, encode(grid)?));
        }
        sections.push((Kind::Code, self.code.clone()));
        for sample in &self.samples {
            sections.push((Kind::Sample, encode(sample)?));
        }
        let mut body = Vec::new();
        let mut at = HEADER + ENTRY * sections.len();
        for (kind, bytes) in &sections {
            body.extend((*kind as u32).to_le_bytes());
            body.extend(0u32.to_le_bytes());
            body.extend((at as u64).to_le_bytes());
            body.extend((bytes.len() as u64).to_le_bytes());
            at += bytes.len();
        }
        sections.iter().for_each(|(_, bytes)| body.extend(bytes));
        let mut out = MAGIC.to_vec();
        out.extend(ARTIFACT_VERSION.to_le_bytes());
        out.extend((sections.len() as u32).to_le_bytes());
        out.extend(blake3::hash(&body).as_bytes());
        out.extend(body);
        Ok(out)
    }

    /// Reads a file and decodes it. Of a file that does not begin as an artifact no more is read.
    ///
    /// # Errors
    /// [`Error::Io`] where it cannot be read, and those of [`Artifact::from_bytes`].
    pub fn read(path: &Path) -> Result<Artifact> {
        let io = |source| Error::Io { path: path.display().to_string(), source };
        let mut file = File::open(path).map_err(io)?;
        let mut bytes = Vec::new();
        file.by_ref().take(MAGIC.len() as u64).read_to_end(&mut bytes).map_err(io)?;
        if bytes != MAGIC {
            return Err(Error::NotArtifact);
        }
        file.read_to_end(&mut bytes).map_err(io)?;
        Self::from_bytes(&bytes)
    }

    /// Decodes and validates a file's bytes.
    ///
    /// # Errors
    /// [`Error::NotArtifact`] for any other file; [`Error::Artifact`] for one that is truncated, damaged, of another version or inconsistent;
    /// [`Error::Decode`] and [`Error::Desc`] for an invalid description.
    pub fn from_bytes(bytes: &[u8]) -> Result<Artifact> {
        let sections = sections(bytes)?;
        let find = |kind: Kind| sections.iter().find(|s| s.0 == kind).map(|s| s.1);
        let need = |kind: Kind| find(kind).ok_or_else(|| bad(format!("section {kind:?} is missing")));
        let manifest: Manifest = decode(need(Kind::Manifest)?, "manifest")?;
        if manifest.abi != ABI_VERSION {
            return Err(bad(format!("it is for version {} of the runtime, this is {ABI_VERSION}", manifest.abi)));
        }
        let desc = ProgramDesc::from_bytes(need(Kind::Program)?)?;
        let grid: Option<GridDesc> = find(Kind::Grid).map(|b| decode(b, "launches")).transpose()?;
        match (&manifest.machine, &grid) {
            (Machine::Cuda { .. }, Some(grid)) => grid.validate(&desc)?,
            (Machine::Cpu { .. }, None) => {}
            _ => return Err(bad("a GPU's code and launches come together")),
        }
        let stored = sections.iter().filter(|s| s.0 == Kind::Sample);
        let samples: Vec<Sample> = stored.map(|s| decode(s.1, "sample")).collect::<Result<_>>()?;
        for s in &samples {
            let sizes = [
                (s.params.len(), desc.params.len()),
                (s.lengths.len(), desc.extents.len()),
                (s.tensors.len(), desc.tensors.len()),
                (s.allowed.len(), desc.tensors.len()),
            ];
            if sizes.iter().any(|(a, b)| a != b) {
                return Err(bad("the sample does not fit the program"));
            }
        }
        Ok(Artifact { manifest, desc, grid, code: need(Kind::Code)?.to_vec(), samples })
    }
}

/// The sections of a file whose checksum is right.
fn sections(bytes: &[u8]) -> Result<Vec<(Kind, &[u8])>> {
    if !bytes.starts_with(MAGIC) {
        return Err(Error::NotArtifact);
    }
    let header = bytes.get(..HEADER).ok_or_else(|| bad("the file is too short"))?;
    let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    if word(8) != ARTIFACT_VERSION {
        return Err(bad(format!("the file is of version {}, this runtime reads {ARTIFACT_VERSION}", word(8))));
    }
    let count = word(12) as usize;
    if count > MAX_SECTIONS {
        return Err(bad(format!("{count} sections")));
    }
    let body = &bytes[HEADER..];
    let table = body.get(..count * ENTRY).ok_or_else(|| bad("the file is truncated"))?;
    if blake3::hash(body).as_bytes() != &header[16..] {
        return Err(bad("the checksum is wrong: the file is truncated or damaged"));
    }
    let mut out: Vec<(Kind, &[u8])> = Vec::new();
    let mut end = HEADER + count * ENTRY;
    for entry in table.chunks_exact(ENTRY) {
        let long = |at: usize| {
            let mut b = [0; 8];
            b.copy_from_slice(&entry[at..at + 8]);
            usize::try_from(u64::from_le_bytes(b)).ok()
        };
        let kind = u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]);
        let kind = Kind::new(kind).ok_or_else(|| bad(format!("a section of unknown kind {kind}")))?;
        let (offset, len) = long(8).zip(long(16)).ok_or_else(|| bad("a section beyond the file"))?;
        let stop = offset.checked_add(len).filter(|&e| e <= bytes.len() && offset == end);
        let stop = stop.ok_or_else(|| bad("a section beyond the file, or not behind the one before it"))?;
        if kind != Kind::Sample && out.iter().any(|(k, _)| *k == kind) {
            return Err(bad(format!("section {kind:?} occurs twice")));
        }
        out.push((kind, &bytes[offset..stop]));
        end = stop;
    }
    if end == bytes.len() { Ok(out) } else { Err(bad("bytes behind the last section")) }
}
