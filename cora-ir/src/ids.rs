//! Typed ids (`u32` newtypes) and the arenas that they index.

use std::marker::PhantomData;
use std::ops::{Index, IndexMut};
use std::sync::Arc;

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

/// Entities that are copied together when one of them changes in a clone.
const CHUNK: usize = 64;

/// A vector of `T` indexed by a typed id; entries are never removed. Clones share what is alike in both, so that to keep
/// an earlier state takes time and memory for what changes only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arena<I, T> {
    /// Each of [`CHUNK`] entities, but for the last.
    chunks: Arc<Vec<Arc<Vec<T>>>>,
    len: usize,
    marker: PhantomData<I>,
}

impl<I, T> Default for Arena<I, T> {
    fn default() -> Self {
        Self { chunks: Arc::default(), len: 0, marker: PhantomData }
    }
}

impl<I: EntityId, T> Arena<I, T> {
    /// The number of entities.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// All ids, in order of creation.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = I> + use<I, T> {
        (0..self.len).map(I::from_index)
    }
    /// All `(id, entity)` pairs, in order of creation.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (I, &T)> {
        let all = self.chunks.iter().enumerate();
        all.flat_map(|(c, chunk)| chunk.iter().enumerate().map(move |(i, t)| (I::from_index(c * CHUNK + i), t)))
    }
    /// The entity, or nothing if the id is of another arena.
    pub fn get(&self, id: I) -> Option<&T> {
        self.chunks.get(id.index() / CHUNK)?.get(id.index() % CHUNK)
    }
}

impl<I: EntityId, T: Clone> Arena<I, T> {
    /// Adds `item` and returns its id.
    pub fn push(&mut self, item: T) -> I {
        let chunks = Arc::make_mut(&mut self.chunks);
        if self.len.is_multiple_of(CHUNK) {
            chunks.push(Arc::new(Vec::with_capacity(CHUNK)));
        }
        if let Some(last) = chunks.last_mut() {
            Arc::make_mut(last).push(item);
        }
        self.len += 1;
        I::from_index(self.len - 1)
    }
}

impl<I: EntityId, T> Index<I> for Arena<I, T> {
    type Output = T;
    fn index(&self, id: I) -> &T {
        &self.chunks[id.index() / CHUNK][id.index() % CHUNK]
    }
}

impl<I: EntityId, T: Clone> IndexMut<I> for Arena<I, T> {
    fn index_mut(&mut self, id: I) -> &mut T {
        &mut Arc::make_mut(&mut Arc::make_mut(&mut self.chunks)[id.index() / CHUNK])[id.index() % CHUNK]
    }
}
