//! Lists of statements that clones share until one of them changes.

use super::Stmt;
use crate::expr::ExprPool;
use crate::tensor_set::TensorSet;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock};

/// What a loop or a module runs, in order. A clone takes no time; a change of a statement copies the lists on the way to
/// it, whose other statements stay shared. So to keep the state before a change costs what the change is, and lists that
/// are shared need not be compared.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Body(Arc<Shared>);

#[derive(Default)]
struct Shared {
    stmts: Vec<Stmt>,
    /// The stages that the statements are of, and the tensors that they write; once it was asked for.
    concerned: OnceLock<TensorSet>,
    /// The tensors that they read; once it was asked for.
    read: OnceLock<TensorSet>,
}

impl Shared {
    fn new(stmts: Vec<Stmt>) -> Self {
        Self { stmts, concerned: OnceLock::new(), read: OnceLock::new() }
    }
}

/// The copy is there to be changed.
impl Clone for Shared {
    fn clone(&self) -> Self {
        Self::new(self.stmts.clone())
    }
}

impl PartialEq for Shared {
    fn eq(&self, other: &Self) -> bool {
        self.stmts == other.stmts
    }
}

impl Eq for Shared {}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.stmts.fmt(f)
    }
}

impl Body {
    /// The stages that statements here may be of, and the tensors that they may write.
    pub(super) fn concerned(&self) -> TensorSet {
        *self.0.concerned.get_or_init(|| self.iter().map(Stmt::concerned).collect())
    }

    /// The tensors that statements here may read.
    pub(super) fn read(&self, pool: &ExprPool) -> TensorSet {
        *self.0.read.get_or_init(|| self.iter().map(|s| s.read(pool)).collect())
    }
}

impl Deref for Body {
    type Target = Vec<Stmt>;
    fn deref(&self) -> &Vec<Stmt> {
        &self.0.stmts
    }
}

impl DerefMut for Body {
    fn deref_mut(&mut self) -> &mut Vec<Stmt> {
        let own = Arc::make_mut(&mut self.0);
        (own.concerned, own.read) = (OnceLock::new(), OnceLock::new());
        &mut own.stmts
    }
}

impl From<Vec<Stmt>> for Body {
    fn from(stmts: Vec<Stmt>) -> Self {
        Self(Arc::new(Shared::new(stmts)))
    }
}

impl FromIterator<Stmt> for Body {
    fn from_iter<T: IntoIterator<Item = Stmt>>(stmts: T) -> Self {
        Vec::from_iter(stmts).into()
    }
}

impl IntoIterator for Body {
    type Item = Stmt;
    type IntoIter = std::vec::IntoIter<Stmt>;
    fn into_iter(self) -> Self::IntoIter {
        Arc::unwrap_or_clone(self.0).stmts.into_iter()
    }
}

impl<'a> IntoIterator for &'a Body {
    type Item = &'a Stmt;
    type IntoIter = std::slice::Iter<'a, Stmt>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.stmts.iter()
    }
}

impl<'a> IntoIterator for &'a mut Body {
    type Item = &'a mut Stmt;
    type IntoIter = std::slice::IterMut<'a, Stmt>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}
