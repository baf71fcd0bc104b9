//! What calls answer where they do not succeed.

use std::ffi::CStr;
use std::fmt;

/// A `CUresult`, not that of success.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Code(pub u32);

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Code {
    pub(super) const INVALID_VALUE: Code = Code(1);
    pub(super) const OUT_OF_MEMORY: Code = Code(2);
    pub(super) const NOT_INITIALIZED: Code = Code(3);
    pub(super) const INVALID_DEVICE: Code = Code(101);
    pub(super) const INVALID_CONTEXT: Code = Code(201);
    pub(super) const INVALID_PTX: Code = Code(218);
    pub(super) const UNSUPPORTED_PTX_VERSION: Code = Code(222);
    pub(super) const INVALID_HANDLE: Code = Code(400);
    pub(super) const ILLEGAL_STATE: Code = Code(401);
    pub(super) const NOT_FOUND: Code = Code(500);
    pub(super) const NOT_READY: Code = Code(600);
    pub(super) const ILLEGAL_ADDRESS: Code = Code(700);
    pub(super) const LAUNCH_FAILED: Code = Code(719);
    pub(super) const NOT_SUPPORTED: Code = Code(801);
    pub(super) const CAPTURE_UNSUPPORTED: Code = Code(900);
    pub(super) const CAPTURE_INVALIDATED: Code = Code(901);
    pub(super) const CAPTURE_WRONG_THREAD: Code = Code(908);
    pub(super) const UNKNOWN: Code = Code(999);

    /// The driver's words for it, and for success; nothing for a number that is not of a result.
    pub(super) fn text(self) -> Option<&'static CStr> {
        Some(match self.0 {
            0 => c"no error",
            1 => c"invalid argument",
            2 => c"out of memory",
            3 => c"initialization error",
            100 => c"no CUDA-capable device is detected",
            101 => c"invalid device ordinal",
            201 => c"invalid device context",
            218 => c"a PTX JIT compilation failed",
            222 => c"the provided PTX was compiled with an unsupported toolchain.",
            400 => c"invalid resource handle",
            401 => c"the operation cannot be performed in the present state",
            500 => c"named symbol not found",
            600 => c"device not ready",
            700 => c"an illegal memory access was encountered",
            719 => c"unspecified launch failure",
            801 => c"operation not supported",
            803 => c"system has unsupported display driver / cuda driver combination",
            900 => c"operation not permitted when stream is capturing",
            901 => c"operation failed due to a previous error during capture",
            908 => c"attempt to terminate a thread-local capture sequence from another thread",
            999 => c"unknown error",
            _ => return None,
        })
    }
}
