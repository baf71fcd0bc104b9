//! Maps of tensors for the copy engine, in 128 bytes that only this crate reads.

/// Bytes of a map.
pub const BYTES: usize = 128;
/// What a map begins with.
const MAGIC: u32 = 0x7e50_0a70;
/// Dimensions at most.
const MOST_DIMS: usize = 5;

/// A tensor in global memory, and the box of it that is copied at once; the innermost dimension first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMap {
    /// Bytes of an element.
    pub elem_bytes: u64,
    /// Where the tensor begins.
    pub address: u64,
    /// Positions of each dimension.
    pub sizes: Vec<u64>,
    /// Bytes from a position to the next, from the second dimension on.
    pub strides: Vec<u64>,
    /// Positions of the box.
    pub extents: Vec<u32>,
    /// Whether lines of 128 bytes are swizzled.
    pub swizzled: bool,
}

/// The map's bytes.
///
/// # Errors
/// Why a driver would not make this map.
pub fn encode(what: &TensorMap) -> Result<[u8; BYTES], String> {
    let dims = what.sizes.len();
    if !(1..=MOST_DIMS).contains(&dims) || what.strides.len() + 1 != dims || what.extents.len() != dims {
        return Err(format!("{dims} dimensions"));
    }
    if !what.address.is_multiple_of(16) {
        return Err(format!("the tensor begins at {:#x}, no multiple of 16", what.address));
    }
    if let Some(s) = what.strides.iter().find(|s| !s.is_multiple_of(16) || **s >= 1 << 40) {
        return Err(format!("a stride of {s} bytes"));
    }
    if let Some(s) = what.sizes.iter().find(|s| !(1..=1 << 32).contains(*s)) {
        return Err(format!("a size of {s}"));
    }
    if let Some(e) = what.extents.iter().find(|e| !(1..=256).contains(*e)) {
        return Err(format!("a box of {e} positions"));
    }
    let line = u64::from(what.extents[0]) * what.elem_bytes;
    if !matches!(what.elem_bytes, 1 | 2 | 4 | 8) || !line.is_multiple_of(16) || what.swizzled && line > 128 {
        return Err(format!("lines of {line} bytes"));
    }
    let mut out = Vec::with_capacity(BYTES);
    out.extend(MAGIC.to_le_bytes());
    out.extend([dims as u8, what.elem_bytes as u8, u8::from(what.swizzled), 0]);
    out.extend(what.address.to_le_bytes());
    // Sizes are at most 2^32, strides below 2^40 and multiples of 16.
    what.sizes.iter().for_each(|s| out.extend(((s - 1) as u32).to_le_bytes()));
    what.strides.iter().for_each(|s| out.extend(s.to_le_bytes()));
    what.extents.iter().for_each(|e| out.extend(e.to_le_bytes()));
    out.resize(BYTES, 0);
    out.try_into().map_err(|_| "it does not fit".to_owned())
}

impl TensorMap {
    /// A map from its bytes, if they are one's.
    pub fn decode(bytes: &[u8]) -> Option<TensorMap> {
        let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let long = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        if word(0)? != MAGIC {
            return None;
        }
        let (dims, elem_bytes) = (usize::from(bytes[4]), u64::from(bytes[5]));
        let strides_at = 16 + 4 * dims;
        let extents_at = strides_at + 8 * (dims - 1);
        Some(TensorMap {
            elem_bytes,
            address: long(8)?,
            sizes: (0..dims).map(|d| Some(u64::from(word(16 + 4 * d)?) + 1)).collect::<Option<_>>()?,
            strides: (0..dims - 1).map(|d| long(strides_at + 8 * d)).collect::<Option<_>>()?,
            extents: (0..dims).map(|d| word(extents_at + 4 * d)).collect::<Option<_>>()?,
            swizzled: bytes[6] != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_come_back() {
        let mut map = TensorMap {
            elem_bytes: 2,
            address: 0x7f00_0000_0000,
            sizes: vec![1 << 32, 7, 3],
            strides: vec![1 << 36, 1 << 39],
            extents: vec![64, 8, 1],
            swizzled: true,
        };
        assert_eq!(TensorMap::decode(&encode(&map).expect("a map")), Some(map.clone()));
        assert_eq!(TensorMap::decode(&[0; BYTES]), None);
        map.extents[0] = 65;
        assert_eq!(encode(&map), Err("lines of 130 bytes".to_owned()));
    }
}
