//! Typed ids (`u32` newtypes) and the arenas that they index.

use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

/// An id that indexes an [`Arena`].
pub trait EntityId: Copy + Eq + Ord {
    /// The id of the entity at `index`.
    fn from_index(index: usize) -> Self;
    /// The entity's position in its arena.
    fn index(self) -> usize;
}

macro_rules! entity {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub struct $name(u32);
        impl EntityId for $name {
            fn from_index(index: usize) -> Self {
                Self(u32::try_from(index).expect("more than 2^32 entities in one arena"))
            }
            fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}

entity!(
    /// A hash-consed expression in an [`crate::expr::ExprPool`].
    ExprId
);
entity!(
    /// An index variable: a loop variable, a block iterator or a `let`.
    VarId
);
entity!(
    /// A run-time size parameter.
    ParamId
);
entity!(
    /// An uninterpreted function.
    UfId
);
entity!(
    /// A tensor (in the storage dialect: a buffer).
    TensorId
);
entity!(
    /// A user's combiner of tuples.
    CombinerId
);
entity!(
    /// A named dimension.
    DimId
);

/// A vector of `T` indexed by a typed id; entries are never removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arena<I, T> {
    items: Vec<T>,
    marker: PhantomData<I>,
}

impl<I, T> Default for Arena<I, T> {
    fn default() -> Self {
        Self { items: Vec::new(), marker: PhantomData }
    }
}

impl<I: EntityId, T> Arena<I, T> {
    /// Adds `item` and returns its id.
    pub fn push(&mut self, item: T) -> I {
        self.items.push(item);
        I::from_index(self.items.len() - 1)
    }
    /// The number of entities.
    pub fn len(&self) -> usize {
        self.items.len()
    }
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
    /// All ids, in order of creation.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = I> + use<I, T> {
        (0..self.items.len()).map(I::from_index)
    }
    /// All `(id, entity)` pairs, in order of creation.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (I, &T)> {
        self.items.iter().enumerate().map(|(i, t)| (I::from_index(i), t))
    }
    /// The entity, or nothing if the id is of another arena.
    pub fn get(&self, id: I) -> Option<&T> {
        self.items.get(id.index())
    }
}

impl<I: EntityId, T> Index<I> for Arena<I, T> {
    type Output = T;
    fn index(&self, id: I) -> &T {
        &self.items[id.index()]
    }
}

impl<I: EntityId, T> IndexMut<I> for Arena<I, T> {
    fn index_mut(&mut self, id: I) -> &mut T {
        &mut self.items[id.index()]
    }
}
