//! Aligned byte buffers and typed views of them.

use crate::abi::{DType, MAX_ALIGN};
use crate::error::{Error, Result};
use std::alloc::Layout;
use std::ptr::NonNull;

/// A cache line pair: the unit of allocation.
#[derive(Clone, Copy)]
#[repr(C, align(128))]
struct Line([u8; LINE]);

const LINE: usize = 128;
const _: () = assert!(LINE == MAX_ALIGN as usize && align_of::<Line>() == LINE);

/// Bytes from which a buffer is worth large pages: streams through small ones spend their time in page walks.
const HUGE: usize = 1 << 21;

/// Zeroed lines, touched. A large block begins at a large page's border and asks for large pages.
struct Block {
    lines: NonNull<Line>,
    count: usize,
}

// SAFETY: a block owns its plain bytes.
unsafe impl Send for Block {}
// SAFETY: shared access only reads.
unsafe impl Sync for Block {}

impl Default for Block {
    fn default() -> Block {
        Block { lines: NonNull::dangling(), count: 0 }
    }
}

impl Block {
    fn layout(count: usize) -> Option<Layout> {
        let bytes = count.checked_mul(LINE)?;
        Layout::from_size_align(bytes, if bytes >= HUGE { HUGE } else { LINE }).ok()
    }

    fn zeroed(count: usize) -> Option<Block> {
        if count == 0 {
            return Some(Block::default());
        }
        let layout = Block::layout(count)?;
        // SAFETY: the layout has a size.
        let lines = NonNull::new(unsafe { std::alloc::alloc(layout) })?.cast::<Line>();
        if layout.align() == HUGE {
            advise_huge(lines.as_ptr().cast(), layout.size());
        }
        // SAFETY: `count` lines were allocated; zero bytes are a valid line.
        unsafe { lines.as_ptr().write_bytes(0, count) };
        Some(Block { lines, count })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let (1.., Some(layout)) = (self.count, Block::layout(self.count)) {
            // SAFETY: allocated with this layout in `zeroed`.
            unsafe { std::alloc::dealloc(self.lines.as_ptr().cast(), layout) };
        }
    }
}

#[cfg(target_os = "linux")]
fn advise_huge(at: *mut u8, bytes: usize) {
    unsafe extern "C" {
        fn madvise(at: *mut u8, bytes: usize, advice: i32) -> i32;
    }
    const MADV_HUGEPAGE: i32 = 14;
    // SAFETY: the range is ours and begins at a page; this advice never changes contents. A refusal is harmless.
    unsafe { madvise(at, bytes, MADV_HUGEPAGE) };
}

#[cfg(not(target_os = "linux"))]
fn advise_huge(_at: *mut u8, _bytes: usize) {}

/// A byte buffer aligned to [`MAX_ALIGN`], kept and reused when resized.
#[derive(Default)]
pub struct AlignedBytes {
    block: Block,
    len: usize,
}

impl Clone for AlignedBytes {
    fn clone(&self) -> AlignedBytes {
        let mut copy = AlignedBytes::default();
        if copy.reset(self.len).is_err() {
            std::alloc::handle_alloc_error(Layout::new::<Line>());
        }
        copy.as_mut_slice().copy_from_slice(self.as_slice());
        copy
    }
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
    /// takes its place, a quarter more than before at least.
    ///
    /// # Errors
    /// [`Error::Alloc`]; the buffer is then empty.
    pub fn reset(&mut self, len: usize) -> Result<()> {
        let lines = len.div_ceil(LINE);
        self.len = 0;
        if lines > self.block.count {
            // Memory that grows again and again, as with a sequence that gets longer, grows by more than is asked for.
            let more = self.block.count + self.block.count / 4;
            self.block = Block::default();
            self.block = Block::zeroed(lines.max(more))
                .or_else(|| Block::zeroed(lines))
                .ok_or(Error::Alloc { at: "buffer".into(), bytes: len as u64 })?;
        }
        self.len = len;
        Ok(())
    }

    /// Bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the block is `len.div_ceil(LINE)` or more lines of `LINE` initialised bytes each, contiguous.
        unsafe { std::slice::from_raw_parts(self.block.lines.as_ptr().cast(), self.len) }
    }

    /// Bytes.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`; every byte pattern is a valid line.
        unsafe { std::slice::from_raw_parts_mut(self.block.lines.as_ptr().cast(), self.len) }
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
        self.block.count * LINE
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
