//! A BLAS found at run time: OpenBLAS or MKL, for programs that offload products of matrices.
//!
//! `CORA_BLAS` names the library: `openblas`, `mkl`, or the path of a shared library with the C interface and 32-bit
//! integers. Without it the usual names of OpenBLAS, then of MKL, are tried. It is loaded once, when the first program
//! that needs it is, and stays. It runs on the calling thread alone: kernels call it from all workers at once.
//!
//! Which bits a product has is the library's affair; that of OpenBLAS depends on the sizes and the processor.

use crate::abi::GemmFn;
use crate::error::{Error, Result};
use libloading::{Library, Symbol};
use std::ffi::c_int;
use std::sync::OnceLock;

const OPENBLAS: [&str; 3] = ["libopenblas.so.0", "libopenblas.so", "libscipy_openblas.so"];
const MKL: [&str; 4] = ["libmkl_rt.so.3", "libmkl_rt.so.2", "libmkl_rt.so.1", "libmkl_rt.so"];

const ROW_MAJOR: c_int = 101;
const NO_TRANSPOSE: c_int = 111;
const TRANSPOSE: c_int = 112;

/// `cblas_sgemm` and `cblas_dgemm`.
type Cblas<T> = unsafe extern "C" fn(
    order: c_int,
    trans_a: c_int,
    trans_b: c_int,
    m: c_int,
    n: c_int,
    k: c_int,
    alpha: T,
    a: *const T,
    lda: c_int,
    b: *const T,
    ldb: c_int,
    beta: T,
    c: *mut T,
    ldc: c_int,
);

/// A loaded library.
struct Blas {
    name: String,
    sgemm: Cblas<f32>,
    dgemm: Cblas<f64>,
    /// Owns the code that the functions point to.
    _library: Library,
}

static BLAS: OnceLock<std::result::Result<Blas, String>> = OnceLock::new();

fn blas() -> Result<&'static Blas> {
    let name = || std::env::var_os("CORA_BLAS").map(|n| n.to_string_lossy().into_owned());
    let found = BLAS.get_or_init(|| find(name().as_deref()));
    found.as_ref().map_err(|why| Error::Blas(why.clone()))
}

/// The name of the library that products are given to.
///
/// # Errors
/// [`Error::Blas`].
pub fn library() -> Result<&'static str> {
    Ok(&blas()?.name)
}

/// The product of matrices of `f32`.
///
/// # Errors
/// [`Error::Blas`].
pub fn gemm_f32() -> Result<GemmFn> {
    blas().map(|_| sgemm as GemmFn)
}

/// The product of matrices of `f64`.
///
/// # Errors
/// [`Error::Blas`].
pub fn gemm_f64() -> Result<GemmFn> {
    blas().map(|_| dgemm as GemmFn)
}

/// The first library that loads; else what each said.
fn find(choice: Option<&str>) -> std::result::Result<Blas, String> {
    let names: Vec<&str> = match choice {
        None | Some("") => OPENBLAS.into_iter().chain(MKL).collect(),
        Some("openblas") => OPENBLAS.to_vec(),
        Some("mkl") => MKL.to_vec(),
        Some(path) => vec![path],
    };
    let mut said = Vec::new();
    for name in names {
        match load(name) {
            Ok(blas) => return Ok(blas),
            Err(why) => said.push(why),
        }
    }
    Err(said.join("; "))
}

fn load(name: &str) -> std::result::Result<Blas, String> {
    // SAFETY: a BLAS's initialisers may run at any time; a path that the user gives is the user's word for it.
    let library = unsafe { Library::new(name) }.map_err(|e| {
        // The loader's own words are the cause.
        let why = std::error::Error::source(&e).map_or_else(|| e.to_string(), ToString::to_string);
        if why.contains(name) { why } else { format!("{name}: {why}") }
    })?;
    let missing = |what: &str| format!("{name} has no {what}");
    // SAFETY: the C interface to BLAS fixes these signatures, with 32-bit integers in libraries of these names.
    unsafe {
        let sgemm = prefixed::<Cblas<f32>>(&library, "cblas_sgemm").ok_or_else(|| missing("cblas_sgemm"))?;
        let dgemm = prefixed::<Cblas<f64>>(&library, "cblas_dgemm").ok_or_else(|| missing("cblas_dgemm"))?;
        on_one_thread(&library);
        Ok(Blas { name: name.to_owned(), sgemm, dgemm, _library: library })
    }
}

/// A function by its name, or by that of SciPy's builds.
///
/// # Safety
/// As for [`Library::get`].
unsafe fn prefixed<T: Copy>(library: &Library, name: &str) -> Option<T> {
    let names = [name.to_owned(), format!("scipy_{name}")];
    // SAFETY: the caller vouches for the type.
    names.iter().find_map(|n| unsafe { library.get::<T>(n.as_bytes()) }.ok().map(|f: Symbol<T>| *f))
}

/// Tells OpenBLAS or MKL to use the calling thread only.
///
/// # Safety
/// The library is a BLAS, and no function of it has been called.
unsafe fn on_one_thread(library: &Library) {
    // SAFETY: signatures as in the libraries' headers; MKL's layers are chosen before its first other call.
    unsafe {
        if let Some(set) = prefixed::<unsafe extern "C" fn(c_int)>(library, "openblas_set_num_threads") {
            set(1);
        }
        // 0: 32-bit integers. 1: no threads.
        let layers = [("MKL_Set_Interface_Layer", 0), ("MKL_Set_Threading_Layer", 1)];
        for (name, layer) in layers {
            if let Ok(set) = library.get::<unsafe extern "C" fn(c_int) -> c_int>(name.as_bytes()) {
                set(layer);
            }
        }
    }
}

/// A matrix as a pointer and two strides.
#[derive(Clone, Copy)]
struct Strided<P> {
    at: P,
    row: i64,
    column: i64,
}

impl<P: Copy> Strided<P> {
    fn transposed(self) -> Self {
        Strided { at: self.at, row: self.column, column: self.row }
    }

    /// How a row-major BLAS reads `rows` x `columns`: whether transposed, and the distance of lines. Nothing if it
    /// does not.
    fn lines(self, rows: i64, columns: i64) -> Option<(c_int, c_int)> {
        // Of a single line the distance to the next does not matter.
        let line = |step: i64, length: i64, line: i64, count: i64| {
            let distance = if count <= 1 { length.max(1) } else { line };
            let fits = (step == 1 || length <= 1) && distance >= length.max(1);
            c_int::try_from(distance).ok().filter(|_| fits)
        };
        let plain = line(self.column, columns, self.row, rows).map(|d| (NO_TRANSPOSE, d));
        plain.or_else(|| line(self.row, rows, self.column, columns).map(|d| (TRANSPOSE, d)))
    }
}

/// A product under way.
#[derive(Clone, Copy)]
struct Product<T> {
    sizes: [i64; 3],
    c: Strided<*mut T>,
    a: Strided<*const T>,
    b: Strided<*const T>,
    accumulate: bool,
}

trait Real: Copy + std::ops::Add<Output = Self> + std::ops::Mul<Output = Self> {
    const ZERO: Self;
    const ONE: Self;
}

impl Real for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;
}

impl Real for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;
}

impl<T: Real> Product<T> {
    /// The same of all matrices transposed.
    fn transposed(self) -> Self {
        let [m, n, k] = self.sizes;
        let (c, a, b) = (self.c.transposed(), self.b.transposed(), self.a.transposed());
        Product { sizes: [n, m, k], c, a, b, ..self }
    }

    /// # Safety
    /// Pointers, sizes and strides are as [`GemmFn`] says.
    unsafe fn run(self, gemm: Cblas<T>) {
        let [m, n, k] = self.sizes;
        if m <= 0 || n <= 0 {
            return;
        }
        if k > 0 {
            // SAFETY: as the caller's.
            let by_rows = unsafe { self.call(gemm) };
            // SAFETY: as the caller's.
            if by_rows || unsafe { self.transposed().call(gemm) } {
                return;
            }
        }
        // SAFETY: as the caller's.
        unsafe { self.one_by_one() }
    }

    /// Calls the library if it takes the result as rows; whether it does.
    ///
    /// # Safety
    /// As for [`Product::run`].
    unsafe fn call(self, gemm: Cblas<T>) -> bool {
        let [m, n, k] = self.sizes;
        let lines = (self.c.lines(m, n), self.a.lines(m, k), self.b.lines(k, n));
        let (Some((NO_TRANSPOSE, ldc)), Some((ta, lda)), Some((tb, ldb))) = lines else { return false };
        let [Ok(m), Ok(n), Ok(k)] = [m, n, k].map(c_int::try_from) else { return false };
        let beta = if self.accumulate { T::ONE } else { T::ZERO };
        // SAFETY: the matrices are as `lines` says, in memory that the caller vouches for.
        unsafe {
            gemm(ROW_MAJOR, ta, tb, m, n, k, T::ONE, self.a.at, lda, self.b.at, ldb, beta, self.c.at, ldc);
        }
        true
    }

    /// What no BLAS takes: sums of nothing, and sizes or distances beyond 32 bits.
    ///
    /// # Safety
    /// As for [`Product::run`].
    unsafe fn one_by_one(self) {
        let [m, n, k] = self.sizes;
        for i in 0..m {
            for j in 0..n {
                // SAFETY: elements of the matrices, in memory that the caller vouches for.
                unsafe {
                    let c = self.c.at.offset((i * self.c.row + j * self.c.column) as isize);
                    let mut sum = if self.accumulate { *c } else { T::ZERO };
                    for p in 0..k {
                        let a = *self.a.at.offset((i * self.a.row + p * self.a.column) as isize);
                        sum = sum + a * *self.b.at.offset((p * self.b.row + j * self.b.column) as isize);
                    }
                    *c = sum;
                }
            }
        }
    }
}

macro_rules! entry {
    ($name:ident, $ty:ty, $field:ident) => {
        unsafe extern "C" fn $name(
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
        ) {
            // Its address is given out only after the library was found.
            let Some(Ok(blas)) = BLAS.get() else { return };
            let product = Product::<$ty> {
                sizes: [m, n, k],
                c: Strided { at: c.cast(), row: c_row, column: c_column },
                a: Strided { at: a.cast(), row: a_row, column: a_column },
                b: Strided { at: b.cast(), row: b_row, column: b_column },
                accumulate: accumulate != 0,
            };
            // SAFETY: whoever calls keeps to `GemmFn`.
            unsafe { product.run(blas.$field) }
        }
    };
}

entry!(sgemm, f32, sgemm);
entry!(dgemm, f64, dgemm);

#[cfg(test)]
mod tests;
