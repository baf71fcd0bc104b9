//! Which pools give an id of an expression the same meaning.
//!
//! A pool grows, is cloned, and goes back to an earlier length. What is remembered by ids of one state holds in a later one
//! if no node that there was then has been given up since.

use super::ExprPool;
use std::sync::atomic::{AtomicU64, Ordering};

/// Earlier states that are remembered.
const MOST: usize = 16;

/// A pool as long as it only grows.
#[derive(Debug)]
pub(super) struct Lineage {
    id: u64,
    /// What it was before, and how many nodes there were when it became another.
    before: Vec<(u64, usize)>,
}

impl Default for Lineage {
    fn default() -> Self {
        Self { id: next(), before: Vec::new() }
    }
}

fn next() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Lineage {
    /// Another one, with the first `nodes` nodes of this.
    pub(super) fn fork(&self, nodes: usize) -> Self {
        let known = self.before.len().saturating_sub(MOST - 1);
        let before = self.before[known..].iter().copied().chain([(self.id, nodes)]).collect();
        Self { id: next(), before }
    }
}

/// The state of a pool at some time: see [`ExprPool::continues`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolState {
    lineage: u64,
    nodes: usize,
}

impl Clone for ExprPool {
    fn clone(&self) -> Self {
        Self {
            lineage: self.lineage.fork(self.len()),
            nodes: self.nodes.clone(),
            types: self.types.clone(),
            leaves: self.leaves.clone(),
            loads: self.loads.clone(),
            index: self.index.clone(),
            normal: self.normal.clone(),
            normalized: self.normalized.clone(),
            displaced: self.displaced.clone(),
        }
    }
}

impl ExprPool {
    /// The present state, for [`ExprPool::continues`].
    pub fn state(&self) -> PoolState {
        PoolState { lineage: self.lineage.id, nodes: self.len() }
    }

    /// Whether every id of the pool that was in this state means the same here: it is that pool, or a clone of what it became.
    pub fn continues(&self, state: PoolState) -> bool {
        if self.lineage.id == state.lineage {
            return true;
        }
        let before = &self.lineage.before;
        let from = before.iter().position(|b| b.0 == state.lineage);
        from.is_some_and(|n| before[n..].iter().all(|b| b.1 >= state.nodes))
    }
}

#[cfg(test)]
mod tests {
    use crate::expr::ExprPool;

    #[test]
    fn a_clone_continues_what_there_was() {
        let mut pool = ExprPool::default();
        pool.int(1);
        let before = pool.state();
        let mut copy = pool.clone();
        assert!(copy.continues(before) && pool.continues(before));
        let (a, b) = (pool.int(2), copy.int(3));
        assert_eq!(a, b);
        assert!(!copy.continues(pool.state()) && !pool.continues(copy.state()));
        assert!(copy.continues(before));
        assert!(!ExprPool::default().continues(before));
    }

    #[test]
    fn what_is_given_up_is_known() {
        let mut pool = ExprPool::default();
        let (mark, before) = (pool.mark(), pool.state());
        pool.int(1);
        let longer = pool.state();
        pool.rollback(mark);
        pool.int(2);
        assert!(pool.continues(before) && !pool.continues(longer));
        for n in 3..40 {
            let mark = pool.mark();
            pool.int(n);
            pool.rollback(mark);
        }
        assert!(!pool.continues(longer));
    }
}
