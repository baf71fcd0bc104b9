//! Sets of tensors that are kept with code, so that a search for a tensor enters only where it may be found.

use crate::ids::{EntityId, TensorId};

/// A set of tensors in a few bits, one of which several tensors share: what it does not have is not there, what it has may
/// be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TensorSet(u128);

impl TensorSet {
    /// The set of one tensor.
    pub fn of(t: TensorId) -> Self {
        Self(1 << (t.index() % 128))
    }

    /// Whether the tensor may be in the set.
    pub fn may_have(self, t: TensorId) -> bool {
        self.meets(Self::of(t))
    }

    /// Whether there may be a tensor in both sets.
    pub fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether there is no tensor in the set.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The tensors of both.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl FromIterator<Self> for TensorSet {
    fn from_iter<T: IntoIterator<Item = Self>>(sets: T) -> Self {
        sets.into_iter().fold(Self::default(), Self::with)
    }
}
