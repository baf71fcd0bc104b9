//! Functions that code calls and the runtime finds in libraries.

use crate::error::Result;
use serde::{Deserialize, Serialize};

/// A function of a library. The code has a variable of the name [`Import::symbol`], which is set to the function's
/// address before anything runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Import {
    /// A [`GemmFn`] for `f32`.
    GemmF32,
    /// A [`GemmFn`] for `f64`.
    GemmF64,
}

/// `c[i, j] = sum over p < k of a[i, p] * b[p, j]`, added to what `c` holds where `accumulate` is not 0; a negative
/// size counts as 0. Element `(i, j)` of a matrix is `i * row + j * column` elements after its pointer. One of the two
/// strides of each matrix is 1, and its other one at least the number of elements along that one.
pub type GemmFn = unsafe extern "C" fn(
    m: i64,
    n: i64,
    k: i64,
    c: *mut u8,
    c_row: i64,
    c_column: i64,
    a: *const u8,
    a_row: i64,
    a_column: i64,
    b: *const u8,
    b_row: i64,
    b_column: i64,
    accumulate: i64,
);

impl Import {
    /// The name of the variable in the code. No kernel has it: kernels' names have no dots.
    pub fn symbol(self) -> &'static str {
        match self {
            Import::GemmF32 => "cora.gemm.f32",
            Import::GemmF64 => "cora.gemm.f64",
        }
    }

    /// The function's address, valid as long as the process.
    ///
    /// # Errors
    /// [`Error::Blas`](crate::Error::Blas) where there is no library that has it.
    pub fn resolve(self) -> Result<*const ()> {
        let function = match self {
            Import::GemmF32 => crate::blas::gemm_f32()?,
            Import::GemmF64 => crate::blas::gemm_f64()?,
        };
        Ok(function as *const ())
    }
}
