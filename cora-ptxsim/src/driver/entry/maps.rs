//! Tensor maps.

use super::within;
use crate::driver::code::Code;
use crate::driver::state::State;
use crate::tensor_map::{self, TensorMap};
use std::ffi::{c_uint, c_void};

/// Bytes of an element of each of the driver's types for tensor maps.
const ELEM_BYTES: [u64; 13] = [1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4];
/// Pieces of lines of 128 bytes permuted, of the ways that there are to do it.
const SWIZZLE_128B: c_uint = 3;
/// Alignment of a map, in bytes.
const MAP_ALIGN: usize = 64;
/// A map has at most so many dimensions.
const MOST_RANK: c_uint = 5;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuTensorMapEncodeTiled(
    map: *mut c_void,
    ty: c_uint,
    rank: c_uint,
    address: *mut c_void,
    sizes: *const u64,
    strides: *const u64,
    extents: *const c_uint,
    every: *const c_uint,
    interleave: c_uint,
    swizzle: c_uint,
    _promotion: c_uint,
    fill: c_uint,
) -> u32 {
    within("cuTensorMapEncodeTiled", |s| {
        let elem_bytes = *ELEM_BYTES.get(ty as usize).ok_or(Code::INVALID_VALUE)?;
        let lists = !sizes.is_null() && !extents.is_null() && !every.is_null() && (rank == 1 || !strides.is_null());
        let placed = !map.is_null() && map.addr().is_multiple_of(MAP_ALIGN);
        if !lists || !placed || !(1..=MOST_RANK).contains(&rank) {
            return Err(Code::INVALID_VALUE);
        }
        let n = rank as usize;
        // SAFETY: the lists have an entry for each dimension, that of strides one fewer, by the manual.
        let list = |p: *const c_uint| unsafe { std::slice::from_raw_parts(p, n) };
        if interleave != 0 || fill != 0 || ![0, SWIZZLE_128B].contains(&swizzle) || list(every).iter().any(|&e| e != 1)
        {
            return Err(Code::NOT_SUPPORTED);
        }
        // SAFETY: as above.
        let (sizes, strides) = unsafe {
            let strides = if n == 1 { &[][..] } else { std::slice::from_raw_parts(strides, n - 1) };
            (std::slice::from_raw_parts(sizes, n).to_vec(), strides.to_vec())
        };
        let (extents, swizzled) = (list(extents).to_vec(), swizzle == SWIZZLE_128B);
        let what = TensorMap { elem_bytes, address: address.addr() as u64, sizes, strides, extents, swizzled };
        let bytes = s.tensor_map(&what)?;
        // SAFETY: a map's place, of 128 bytes, by the manual.
        unsafe { map.cast::<[u8; 128]>().write(bytes) };
        Ok(())
    })
}

impl State {
    /// A map of memory that is allocated.
    fn tensor_map(&mut self, what: &TensorMap) -> Result<[u8; 128], Code> {
        if self.settings.version < 12_000 || self.settings.arch < 90 {
            return Err(Code::NOT_SUPPORTED);
        }
        let steps = std::iter::once(what.elem_bytes).chain(what.strides.iter().copied());
        let last = what
            .sizes
            .iter()
            .zip(steps)
            .try_fold(0u64, |sum, (&size, step)| sum.checked_add(size.checked_sub(1)?.checked_mul(step)?));
        let bytes = last.and_then(|l| l.checked_add(what.elem_bytes)).ok_or(Code::INVALID_VALUE)?;
        self.inside(what.address, bytes)?;
        tensor_map::encode(what).map_err(|why| {
            self.log.line(&format!("tensor map: {why}"));
            Code::INVALID_VALUE
        })
    }
}
