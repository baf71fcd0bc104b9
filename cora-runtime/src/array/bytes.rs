//! Aligned byte buffers and typed views of them.

use crate::abi::{DType, MAX_ALIGN};
use crate::error::{Error, Result};

/// A cache line pair: the unit of allocation.
#[derive(Clone, Copy)]
#[repr(C, align(128))]
struct Line([u8; LINE]);

const LINE: usize = 128;
const _: () = assert!(LINE == MAX_ALIGN as usize && align_of::<Line>() == LINE);

/// A byte buffer aligned to [`MAX_ALIGN`], kept and reused when resized.
#[derive(Clone, Default)]
pub struct AlignedBytes {
    lines: Vec<Line>,
    len: usize,
}

impl AlignedBytes {
    /// `len` zero bytes, all touched.
    ///
    /// # Errors
    /// [`Error::Alloc`].
    pub fn zeroed(len: usize) -> Result<AlignedBytes> {
        let mut bytes = AlignedBytes::default();
        bytes.reset(len)?;
        Ok(bytes)
    }

    /// Makes the length `len`. Where memory suffices it is kept, with whatever it holds; otherwise new zeroed memory
    /// takes its place.
    ///
    /// # Errors
    /// [`Error::Alloc`]; the buffer is then empty.
    pub fn reset(&mut self, len: usize) -> Result<()> {
        let lines = len.div_ceil(LINE);
        self.len = 0;
        if lines > self.lines.len() {
            self.lines = Vec::new();
            self.lines.try_reserve_exact(lines).map_err(|_| Error::Alloc { at: "buffer".into(), bytes: len as u64 })?;
            self.lines.resize(lines, Line([0; LINE]));
        }
        self.len = len;
        Ok(())
    }

    /// Bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `lines` is `len.div_ceil(LINE)` or more lines of `LINE` initialised bytes each, contiguous.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }

    /// Bytes.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`; every byte pattern is a valid line.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of memory held.
    pub fn capacity(&self) -> usize {
        self.lines.len() * LINE
    }
}

impl PartialEq for AlignedBytes {
    fn eq(&self, other: &AlignedBytes) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl std::fmt::Debug for AlignedBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedBytes({} bytes)", self.len)
    }
}

/// A Rust type that element bytes can be viewed as. Half-precision types are viewed as their bits, `u16`; `bool` as a
/// byte.
///
/// # Safety
/// The type is plain data: every byte pattern is valid and it has no padding; its alignment is at most [`MAX_ALIGN`].
pub unsafe trait Element: Copy + Default + 'static {
    /// Whether it is the view of this element type.
    fn views(dtype: DType) -> bool;
}

macro_rules! element {
    ($($ty:ty: $($dtype:ident)|+;)*) => {$(
        // SAFETY: a primitive number.
        unsafe impl Element for $ty {
            fn views(dtype: DType) -> bool {
                matches!(dtype, $(DType::$dtype)|+)
            }
        }
    )*};
}

element! {
    u8: Bool;
    i8: I8;
    i16: I16;
    i32: I32;
    i64: I64;
    u16: F16 | BF16;
    f32: F32;
    f64: F64;
}

/// The elements of `bytes`, which must be a whole number of aligned ones.
pub(crate) fn view<T: Element>(bytes: &[u8]) -> Option<&[T]> {
    // SAFETY: `Element` promises that any bytes are valid values.
    let (head, body, tail) = unsafe { bytes.align_to::<T>() };
    (head.is_empty() && tail.is_empty()).then_some(body)
}

/// The elements of `bytes`, which must be a whole number of aligned ones.
pub(crate) fn view_mut<T: Element>(bytes: &mut [u8]) -> Option<&mut [T]> {
    // SAFETY: `Element` promises that any bytes are valid values, and that its values are valid bytes.
    let (head, body, tail) = unsafe { bytes.align_to_mut::<T>() };
    (head.is_empty() && tail.is_empty()).then_some(body)
}

/// The bytes of `elements`.
pub(crate) fn bytes_of<T: Element>(elements: &[T]) -> &[u8] {
    // SAFETY: `Element` promises plain data without padding.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}
