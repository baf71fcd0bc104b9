//! How a tensor is laid out: what happens to its dimensions before they are stored row-major.
//!
//! Loops, blocks and accesses speak of a tensor's own (logical) dimensions throughout the loop
//! dialect. A layout says by which steps storage lowering makes the stored dimensions of them:
//! a dimension becomes blocks and positions in a block, neighbours become one, the order changes
//! (paper section 5.1). No steps: the logical dimensions themselves.

/// One change of the stored dimensions; positions count the dimensions as they are before it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LayoutStep {
    /// Dimension `dim` becomes `(dim / factor, dim % factor)`; its size is rounded up to blocks.
    Split {
        /// The dimension's position.
        dim: usize,
        /// Positions in a block, at least 1.
        factor: i64,
        /// Name of the dimension that counts blocks.
        outer: String,
        /// Name of the dimension inside a block.
        inner: String,
    },
    /// Neighbours `first..first + count` become one: their elements in row-major ragged order.
    Fuse {
        /// The outermost one's position.
        first: usize,
        /// How many, at least 2.
        count: usize,
        /// Name of the fused dimension.
        name: String,
    },
    /// Neighbours in dimension `dim` are a multiple of `multiple` elements and `offset` apart, the nearest that holds
    /// what lies inside, which is stored as one dimension.
    Align {
        /// The dimension's position; at least one is inside.
        dim: usize,
        /// At least 1.
        multiple: i64,
        /// From 0, less than `multiple`.
        offset: i64,
    },
    /// The buffer, which lives in a loop, has so many slots, at least two: iteration `i` has its contents in slot
    /// `i % slots`. The dimensions stay.
    Slots(i64),
    /// Of each 8 neighbouring lines of 128 bytes the pieces of 16 bytes are permuted: piece `p` of line `l` lies where piece
    /// `p xor l % 8` would, so that the same piece of 8 lines is in all banks of shared memory. The dimensions stay.
    Swizzle,
    /// Dimension `dim`, on which no size depends, has room for `count` positions: `p` lies where `p % count` does, and takes
    /// the place of the one that was there.
    Fold {
        /// The dimension's position.
        dim: usize,
        /// At least 1.
        count: i64,
    },
    /// The stored dimensions are these, outermost first: a permutation.
    Reorder {
        /// Positions before the step.
        order: Vec<usize>,
    },
}

impl LayoutStep {
    /// The dimensions' names after the step, given those before; nothing where it does not fit them.
    pub fn rename(&self, mut names: Vec<String>) -> Option<Vec<String>> {
        match self {
            Self::Split { dim, factor, outer, inner } => {
                if *dim >= names.len() || *factor < 1 {
                    return None;
                }
                names.splice(*dim..=*dim, [outer.clone(), inner.clone()]);
                Some(names)
            }
            Self::Fuse { first, count, name } => {
                let end = first.checked_add(*count)?;
                if *count < 2 || end > names.len() {
                    return None;
                }
                names.splice(*first..end, [name.clone()]);
                Some(names)
            }
            Self::Align { dim, multiple, offset } => {
                let inside = dim.checked_add(1).filter(|&d| d < names.len())?;
                let last = names.pop()?;
                names.truncate(inside);
                names.push(last);
                (0..*multiple).contains(offset).then_some(names)
            }
            Self::Slots(n) => (*n >= 2).then_some(names),
            Self::Swizzle => Some(names),
            Self::Fold { dim, count } => (*dim < names.len() && *count >= 1).then_some(names),
            Self::Reorder { order } => {
                let mut sorted = order.clone();
                sorted.sort_unstable();
                let all = sorted.iter().copied().eq(0..names.len());
                all.then(|| order.iter().map(|&d| names[d].clone()).collect())
            }
        }
    }
}

/// The stored dimensions' names, outermost first, of a tensor whose own are `names`; nothing where
/// the steps do not fit.
pub fn stored_names(steps: &[LayoutStep], names: Vec<String>) -> Option<Vec<String>> {
    steps.iter().try_fold(names, |names, s| s.rename(names))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(of: &[&str]) -> Vec<String> {
        of.iter().map(|&n| n.to_owned()).collect()
    }

    #[test]
    fn names_follow_the_steps() {
        let split = LayoutStep::Split { dim: 1, factor: 4, outer: "io".into(), inner: "ii".into() };
        let fuse = LayoutStep::Fuse { first: 0, count: 2, name: "t".into() };
        let reorder = LayoutStep::Reorder { order: vec![0, 2, 1] };
        let steps = [split, fuse, reorder];
        assert_eq!(stored_names(&steps, names(&["b", "i", "d"])), Some(names(&["t", "d", "ii"])));
        assert_eq!(stored_names(&[], names(&["b"])), Some(names(&["b"])));
        let align = LayoutStep::Align { dim: 0, multiple: 4, offset: 1 };
        assert_eq!(stored_names(&[LayoutStep::Slots(2), align], names(&["b", "i", "d"])), Some(names(&["b", "d"])));
    }

    #[test]
    fn steps_that_do_not_fit() {
        let split = |dim, factor| LayoutStep::Split { dim, factor, outer: "o".into(), inner: "i".into() };
        let fuse = |first, count| LayoutStep::Fuse { first, count, name: "t".into() };
        let reorder = |order: &[usize]| LayoutStep::Reorder { order: order.to_vec() };
        let align = |dim, multiple, offset| LayoutStep::Align { dim, multiple, offset };
        for bad in [
            align(1, 4, 0),
            align(usize::MAX, 4, 0),
            align(0, 0, 0),
            align(0, 4, 4),
            align(0, 4, -1),
            split(2, 4),
            split(0, 0),
            fuse(0, 1),
            fuse(1, 2),
            fuse(usize::MAX, 2),
            reorder(&[0, 0]),
            reorder(&[0]),
            LayoutStep::Fold { dim: 2, count: 2 },
            LayoutStep::Fold { dim: 0, count: 0 },
        ] {
            assert_eq!(bad.rename(names(&["a", "b"])), None, "{bad:?}");
        }
    }
}
