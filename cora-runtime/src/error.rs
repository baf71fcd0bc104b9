//! What can go wrong at run time, each with a stable code and a hint.

use crate::abi::{DType, DescError};
use crate::array::Shape;
use crate::eval::IxFault;
use thiserror::Error;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of this crate. [`Error::code`] is stable; the text is for people.
#[derive(Debug, Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message of each variant names its fields")]
pub enum Error {
    #[error("invalid program description: {0}")]
    Desc(#[from] DescError),
    #[error("program description cannot be decoded: {0}")]
    Decode(String),
    #[error("the program has {want} {what}, {got} were given")]
    Count { what: &'static str, want: usize, got: usize },
    #[error("there is no {what} `{name}`")]
    Unknown { what: &'static str, name: String },
    #[error("parameter `{name}` = {value} is outside its declared range {lo}..={hi}")]
    ParamRange { name: String, value: i64, lo: i64, hi: i64 },
    #[error("{function}({}) = {value} is outside its declared range {lo}..={hi}", list(index))]
    LengthRange { function: String, index: Vec<i64>, value: i64, lo: i64, hi: i64 },
    #[error("extent function `{function}` takes {want} lengths for this batch, {got} were given")]
    LengthCount { function: String, want: u64, got: u64 },
    #[error("{at}: the extent of dim {dim} is negative ({extent})")]
    NegativeExtent { at: String, dim: usize, extent: i64 },
    #[error("{at}: {fault}")]
    Index { at: String, fault: IxFault },
    #[error("table `{table}`: entry {entry} is {value}, which does not fit in 32 bits")]
    Narrow { table: String, entry: u64, value: i64 },
    #[error("{at}: more than {limit} steps")]
    Steps { at: String, limit: u64 },
    #[error("{at}: with what comes before it {need} bytes are needed, {limit} are allowed")]
    Memory { at: String, need: u64, limit: u64 },
    #[error("{at}: {bytes} bytes could not be allocated")]
    Alloc { at: String, bytes: u64 },
    #[error("tensor `{tensor}`, dim {dim}: storage extent {storage} is less than the extent {extent}")]
    Storage { tensor: String, dim: usize, extent: i64, storage: i64 },
    #[error("tensor `{tensor}`: offset {offset} is outside its buffer of {elems} elements")]
    Offset { tensor: String, offset: i64, elems: u64 },
    #[error("{what} has {got} elements, {want} are needed")]
    Elements { what: String, want: u64, got: u64 },
    #[error("the array for tensor `{tensor}` has shape {got}, {want} is needed")]
    Shape { tensor: String, want: Shape, got: Shape },
    #[error("{what} has elements of type {got}, {want} is needed")]
    DType { what: String, want: DType, got: String },
    #[error("{path} has elements of type {got}, lengths are integers, little-endian")]
    NotIntegers { path: String, got: String },
    #[error("tensor `{tensor}`: element {element} is {value}, outside its declared range {lo}..{hi}")]
    Value { tensor: String, element: u64, value: i64, lo: i64, hi: i64 },
    #[error("{what}: element {element} is {value}, which is neither 0 nor 1")]
    Bool { what: String, element: u64, value: u8 },
    #[error("input `{tensor}` has not been given for this batch")]
    InputMissing { tensor: String },
    #[error("tensor `{tensor}` is not an {wanted}")]
    Role { tensor: String, wanted: &'static str },
    #[error("no batch has been bound")]
    Unbound,
    #[error("the program has not been run for this batch")]
    NotRun,
    #[error("kernel `{symbol}` is not in the program's code")]
    Kernel { symbol: String },
    #[error("{path}: cannot be read as a .npy file: {why}")]
    Npy { path: String, why: String },
    #[error("{path}: its shape is {got:?}, {want:?} is needed")]
    NpyShape { path: String, want: Vec<u64>, got: Vec<u64> },
    #[error("{path}: truncated: {got} bytes of data, its shape needs {want}")]
    NpyTruncated { path: String, want: u64, got: u64 },
    #[error("{path}: Fortran order is not supported")]
    NpyFortran { path: String },
    #[error("{path}, line {line}: `{text}` is not an integer of 64 bits")]
    LengthSyntax { path: String, line: usize, text: String },
    #[error("{path}, {at}: length {value} is negative")]
    LengthNegative { path: String, at: String, value: i64 },
    #[error("{path}: extent function `{function}` needs {need} entries after skipping {skip}, but there are {have}")]
    LengthsTooFew { path: String, function: String, need: u64, skip: u64, have: u64 },
    #[error("{path}: {source}")]
    Io { path: String, source: std::io::Error },
    #[error("not an artifact")]
    NotArtifact,
    #[error("not an artifact that can be used: {0}")]
    Artifact(String),
    #[error("code for {wanted} does not run here: {why}")]
    Machine { wanted: String, why: String },
    #[error("the stored batch cannot be used: {0}")]
    Sample(&'static str),
    #[error("the artifact's code cannot be loaded: {0}")]
    Library(String),
    #[error("{0}")]
    Cuda(String),
    #[error("the program multiplies matrices by a BLAS, and none can be loaded: {0}")]
    Blas(String),
    #[error("worker threads cannot be started: {0}")]
    Threads(std::io::Error),
    #[error("{want} worker threads are more than {limit}")]
    ManyThreads { want: usize, limit: usize },
}

fn list(index: &[i64]) -> String {
    index.iter().map(i64::to_string).collect::<Vec<_>>().join(", ")
}

impl Error {
    /// The stable code, `E0301` onwards.
    pub fn code(&self) -> &'static str {
        match self {
            Error::Desc(_) => "E0301",
            Error::Decode(_) => "E0302",
            Error::Count { .. } => "E0303",
            Error::Unknown { .. } => "E0304",
            Error::ParamRange { .. } => "E0305",
            Error::LengthRange { .. } => "E0306",
            Error::LengthCount { .. } => "E0307",
            Error::NegativeExtent { .. } => "E0308",
            Error::Index { .. } => "E0309",
            Error::Narrow { .. } => "E0310",
            Error::Steps { .. } => "E0311",
            Error::Memory { .. } => "E0312",
            Error::Alloc { .. } => "E0313",
            Error::Storage { .. } => "E0314",
            Error::Offset { .. } => "E0315",
            Error::Elements { .. } => "E0316",
            Error::DType { .. } | Error::NotIntegers { .. } => "E0317",
            Error::Value { .. } => "E0318",
            Error::Bool { .. } => "E0319",
            Error::InputMissing { .. } => "E0320",
            Error::Role { .. } => "E0321",
            Error::Unbound => "E0322",
            Error::NotRun => "E0332",
            Error::Kernel { .. } => "E0323",
            Error::Npy { .. } => "E0324",
            Error::Shape { .. } | Error::NpyShape { .. } => "E0333",
            Error::NpyTruncated { .. } => "E0325",
            Error::NpyFortran { .. } => "E0326",
            Error::LengthSyntax { .. } => "E0327",
            Error::LengthNegative { .. } => "E0328",
            Error::LengthsTooFew { .. } => "E0329",
            Error::Io { .. } => "E0330",
            Error::Threads(_) | Error::ManyThreads { .. } => "E0331",
            Error::NotArtifact | Error::Artifact(_) => "E0337",
            Error::Sample(_) => "E0339",
            Error::Machine { .. } => "E0334",
            Error::Library(_) => "E0335",
            Error::Cuda(_) => "E0336",
            Error::Blas(_) => "E0338",
        }
    }

    /// Whether nothing that a user gives can cause it where the description comes straight from the compiler: then it is
    /// the compiler's fault. Of an artifact it may also say that it is damaged.
    pub fn is_fault(&self) -> bool {
        matches!(
            self,
            Error::Desc(_) | Error::Decode(_) | Error::Storage { .. } | Error::Offset { .. } | Error::Kernel { .. }
        )
    }

    /// What the user can do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Error::Desc(_) | Error::Decode(_) => {
                "the artifact is damaged or was made by another version; compile it again"
            }
            Error::Count { .. } => "give one value or list for each, in the order of declaration",
            Error::Unknown { .. } => "check the spelling against the program's declarations",
            Error::ParamRange { .. } | Error::LengthRange { .. } => {
                "correct the value, or widen the declared range and compile again"
            }
            Error::LengthCount { .. } => {
                "give one length for each point of the function's domain, in row-major ragged order"
            }
            Error::NegativeExtent { .. } => "clamp the extent with max(.., 0) in the program",
            Error::Index { .. } | Error::Narrow { .. } => {
                "use smaller lengths or parameters, and declare the ranges they have"
            }
            Error::Steps { .. } => {
                "make the batch or the program's constants smaller; callers of the library can raise the limit"
            }
            Error::Memory { .. } => {
                "use a smaller batch, or raise the limit: --memory-limit BYTES (`Limits` in the library)"
            }
            Error::Alloc { .. } => "use a smaller batch, or free memory",
            Error::Storage { .. } | Error::Offset { .. } => {
                "the program's storage is too small for this batch: a fault of its compiler, or its artifact was altered"
            }
            Error::Elements { .. } => "give the elements in row-major ragged order, without padding",
            Error::DType { .. } | Error::NotIntegers { .. } => "convert the data first; nothing is converted silently",
            Error::Value { lo, hi, .. } if lo >= hi => {
                "its declared range has no value in this batch: choose parameters or lengths for which it has one"
            }
            Error::Value { .. } => "correct the index tensor, or widen its declared range and compile again",
            Error::Bool { .. } => "write booleans as bytes 0 and 1",
            Error::InputMissing { .. } => "set every input after binding a batch",
            Error::Role { .. } => "inputs are set, outputs are read",
            Error::Unbound => "bind parameters and lengths first",
            Error::NotRun => "run it, then read the outputs",
            Error::Kernel { .. } => "the code and the description do not belong together",
            Error::Npy { .. } => "write the file with numpy.save",
            Error::NpyShape { .. } => {
                "reshape the array; a ragged tensor's file has one dimension, its elements in row-major order"
            }
            Error::Shape { .. } => {
                "reshape the array; one of one dimension is taken for the elements in row-major ragged order"
            }
            Error::NpyTruncated { .. } => "the file is incomplete; write it again",
            Error::NpyFortran { .. } => "save numpy.ascontiguousarray(a) instead",
            Error::LengthSyntax { .. } => "a lengths file holds integers separated by white space",
            Error::LengthNegative { .. } => "lengths count elements; 0 is allowed",
            Error::LengthsTooFew { .. } => "give a longer file, a smaller parameter, or a smaller --skip",
            Error::Io { .. } => "check the path and its permissions",
            Error::Threads(_) | Error::ManyThreads { .. } => "ask for fewer threads",
            Error::NotArtifact => "write one with `cora compile PROGRAM --emit artifact -o FILE`",
            Error::Artifact(_) => "compile it again with this version, and copy the file whole",
            Error::Sample(_) => "write an artifact with a sample with `cora run PROGRAM ... --artifact FILE`",
            Error::Machine { .. } => "compile it for this machine, with --target-cpu host on it",
            Error::Library(_) => "the folder for temporary files must be writable and allow execution",
            Error::Blas(_) => "install OpenBLAS or MKL, or name its library: CORA_BLAS=/path/to/libopenblas.so.0",
            Error::Cuda(_) => {
                "run it where there is a CUDA driver and a device that is recent enough and has memory left, or interpret its \
                 kernels on the processor: `cora run .. --emulate --check`"
            }
        }
    }
}
