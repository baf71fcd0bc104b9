//! Lists of statements that clones share until one of them changes.

use super::Stmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// What a loop or a module runs, in order. A clone takes no time; a change of a statement copies the lists on the way to
/// it, whose other statements stay shared. So to keep the state before a change costs what the change is, and lists that
/// are shared need not be compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Body(Arc<Vec<Stmt>>);

impl Deref for Body {
    type Target = Vec<Stmt>;
    fn deref(&self) -> &Vec<Stmt> {
        &self.0
    }
}

impl DerefMut for Body {
    fn deref_mut(&mut self) -> &mut Vec<Stmt> {
        Arc::make_mut(&mut self.0)
    }
}

impl From<Vec<Stmt>> for Body {
    fn from(stmts: Vec<Stmt>) -> Self {
        Self(Arc::new(stmts))
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
        Arc::unwrap_or_clone(self.0).into_iter()
    }
}

impl<'a> IntoIterator for &'a Body {
    type Item = &'a Stmt;
    type IntoIter = std::slice::Iter<'a, Stmt>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<'a> IntoIterator for &'a mut Body {
    type Item = &'a mut Stmt;
    type IntoIter = std::slice::IterMut<'a, Stmt>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}
