//! Ragged arrays: elements in row-major ragged order without padding, and their packing into storage layouts.

mod bytes;
mod layout;

pub use bytes::{AlignedBytes, Element};
pub use layout::{Fill, TensorLayout, ValueRanges};

pub(crate) use bytes::view;

use crate::abi::DType;
use crate::error::{Error, Result};

/// What is known of an array's form apart from its elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Every extent is one number.
    Dense(Vec<u64>),
    /// Some extent depends on an outer index.
    Ragged {
        /// Number of dims.
        rank: usize,
        /// Number of elements.
        elements: u64,
    },
}

impl Shape {
    /// Number of elements; `None` beyond 64 bits.
    pub fn elements(&self) -> Option<u64> {
        match self {
            Shape::Dense(dims) => {
                let empty = dims.contains(&0);
                if empty { Some(0) } else { dims.iter().try_fold(1u64, |n, &d| n.checked_mul(d)) }
            }
            Shape::Ragged { elements, .. } => Some(*elements),
        }
    }

    /// The shape of its `.npy` file: a ragged array's is one-dimensional.
    pub fn npy(&self) -> Vec<u64> {
        match self {
            Shape::Dense(dims) => dims.clone(),
            Shape::Ragged { elements, .. } => vec![*elements],
        }
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Shape::Dense(dims) => write!(f, "{dims:?}"),
            Shape::Ragged { rank, elements } => write!(f, "ragged with {rank} dims and {elements} elements"),
        }
    }
}

/// An array in logical form: elements in row-major ragged order, without padding.
#[derive(Clone, Debug, PartialEq)]
pub struct RaggedArray {
    dtype: DType,
    shape: Shape,
    data: AlignedBytes,
}

impl RaggedArray {
    /// An array of zeros.
    ///
    /// # Errors
    /// [`Error::Alloc`].
    pub fn zeros(dtype: DType, shape: Shape) -> Result<RaggedArray> {
        let bytes = shape.elements().and_then(|n| n.checked_mul(dtype.size() as u64));
        let alloc = || Error::Alloc { at: "array".into(), bytes: u64::MAX };
        let bytes = bytes.and_then(|b| usize::try_from(b).ok()).ok_or_else(alloc)?;
        Ok(RaggedArray { dtype, shape, data: AlignedBytes::zeroed(bytes)? })
    }

    /// An array of the given bytes.
    ///
    /// # Errors
    /// [`Error::Elements`] where the shape has another number of elements.
    pub fn from_bytes(dtype: DType, shape: Shape, bytes: &[u8]) -> Result<RaggedArray> {
        let want = shape.elements().unwrap_or(u64::MAX);
        let got = bytes.len().div_ceil(dtype.size()) as u64;
        if want != got || !bytes.len().is_multiple_of(dtype.size()) {
            return Err(Error::Elements { what: "array".into(), want, got });
        }
        let mut array = RaggedArray::zeros(dtype, shape)?;
        array.data.as_mut_slice().copy_from_slice(bytes);
        Ok(array)
    }

    /// An array of the given elements.
    ///
    /// # Errors
    /// [`Error::Elements`], [`Error::DType`].
    pub fn from_slice<T: Element>(dtype: DType, shape: Shape, elements: &[T]) -> Result<RaggedArray> {
        check_view::<T>(dtype)?;
        RaggedArray::from_bytes(dtype, shape, bytes::bytes_of(elements))
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Form.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Number of elements.
    pub fn elements(&self) -> u64 {
        (self.data.len() / self.dtype.size()) as u64
    }

    /// The elements as bytes.
    pub fn bytes(&self) -> &[u8] {
        self.data.as_slice()
    }

    /// The elements as bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.data.as_mut_slice()
    }

    /// The elements.
    ///
    /// # Errors
    /// [`Error::DType`] where `T` is not the view of the element type.
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        check_view::<T>(self.dtype)?;
        Ok(view(self.data.as_slice()).unwrap_or_default())
    }

    /// The elements.
    ///
    /// # Errors
    /// [`Error::DType`] where `T` is not the view of the element type.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        check_view::<T>(self.dtype)?;
        Ok(bytes::view_mut(self.data.as_mut_slice()).unwrap_or_default())
    }
}

fn check_view<T: Element>(dtype: DType) -> Result<()> {
    if T::views(dtype) {
        return Ok(());
    }
    let got = std::any::type_name::<T>().to_owned();
    Err(Error::DType { what: "the view of an array".into(), want: dtype, got })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_are_typed_and_aligned() {
        let shape = Shape::Ragged { rank: 2, elements: 3 };
        let mut a = RaggedArray::from_slice(DType::F32, shape.clone(), &[1.0f32, 2.0, 3.0]).unwrap();
        assert_eq!(a.bytes().as_ptr() as usize % 64, 0);
        a.as_mut_slice::<f32>().unwrap()[1] = 5.0;
        assert_eq!(a.as_slice::<f32>().unwrap(), [1.0, 5.0, 3.0]);
        assert_eq!(a.as_slice::<f64>().unwrap_err().code(), "E0317");
        let short = RaggedArray::from_slice(DType::F32, shape, &[1.0f32]);
        assert_eq!(short.unwrap_err().code(), "E0316");
        let huge = Shape::Dense(vec![u64::MAX, 2]);
        assert_eq!(RaggedArray::zeros(DType::F64, huge).unwrap_err().code(), "E0313");
        let empty = RaggedArray::zeros(DType::F64, Shape::Dense(vec![u64::MAX, 0])).unwrap();
        assert_eq!(empty.as_slice::<f64>().unwrap(), []);
    }

    #[test]
    fn buffers_keep_their_memory() {
        let mut b = AlignedBytes::zeroed(1000).unwrap();
        let at = b.as_slice().as_ptr();
        b.reset(10).unwrap();
        b.reset(1000).unwrap();
        assert_eq!(b.as_slice().as_ptr(), at);
        assert_eq!((b.len(), b.capacity()), (1000, 1024));
        assert_eq!(b.reset(usize::MAX).unwrap_err().code(), "E0313");
        assert!(b.is_empty());
    }
}
