//! Where the elements of a ragged tensor are: level tables built by enumerating its extents, one
//! level a dimension, as in compressed sparse fibres. Independent of the compiler's own offsets.

use crate::interp::error::InterpError;

/// One dimension: from the position of the outer indices to the position with this index added.
#[derive(Clone, Debug)]
pub(crate) enum Level {
    /// Every outer position has this many indices.
    Dense(i64),
    /// Outer position `p` has the positions `starts[p]..starts[p + 1]`.
    Ragged(Vec<i64>),
    /// The outermost dimension where only some indices are kept: the position of each index, or -1.
    Kept(Vec<i64>),
}

/// The level tables of one tensor or function domain.
#[derive(Clone, Debug)]
pub(crate) struct Levels {
    pub levels: Vec<Level>,
    /// Number of positions.
    pub total: i64,
    /// The indices that a `Kept` level keeps, ascending.
    rows: Vec<i64>,
}

/// What is called with an index and a number that goes with it.
pub(crate) type Visit<'f> = dyn FnMut(&[i64], i64) -> Result<(), InterpError> + 'f;

/// The extent of a dimension and how many leading indices it depends on.
pub(crate) struct LevelExtent<'e> {
    /// The extent at the given outer indices.
    pub at: &'e mut dyn FnMut(&[i64]) -> Result<i64, InterpError>,
    /// It depends on this many leading indices at most; 0 = on none.
    pub depends: usize,
}

impl Levels {
    /// One dense dimension.
    pub fn flat(len: i64) -> Self {
        Self { levels: vec![Level::Dense(len)], total: len, rows: Vec::new() }
    }

    /// No dimension: one position.
    pub fn scalar() -> Self {
        Self { levels: Vec::new(), total: 1, rows: Vec::new() }
    }

    /// Adds a dimension inside the others. `limit` bounds the number of positions; `None` when it
    /// is exceeded.
    ///
    /// # Errors
    /// What `extent.at` gives, and [`InterpError::NoMemory`].
    pub fn push(&mut self, extent: LevelExtent<'_>, limit: i64) -> Result<Option<()>, InterpError> {
        if extent.depends == 0 {
            // Over nothing, the extent need not have a value.
            let n = if self.total == 0 { 0 } else { (extent.at)(&[])?.max(0) };
            self.levels.push(Level::Dense(n));
            self.total = match self.total.checked_mul(n) {
                Some(t) if t <= limit => t,
                _ => return Ok(None),
            };
            return Ok(Some(()));
        }
        let mut starts = super::buffer::room(usize::try_from(self.total).unwrap_or(0) + 1)?;
        let mut at = 0i64;
        let mut last: Option<(Vec<i64>, i64)> = None;
        let mut fits = true;
        starts.push(0);
        self.visit(self.levels.len(), &mut |index, _| {
            let key = &index[..extent.depends.min(index.len())];
            let n = match &last {
                Some((k, n)) if k == key => *n,
                _ => {
                    let n = (extent.at)(index)?.max(0);
                    last = Some((key.to_vec(), n));
                    n
                }
            };
            at = at.saturating_add(n);
            fits &= at <= limit;
            starts.push(at);
            Ok(())
        })?;
        self.levels.push(Level::Ragged(starts));
        self.total = at;
        Ok(fits.then_some(()))
    }

    /// Keeps only `rows` (ascending) of an outermost dimension with `extent` indices.
    pub fn kept(extent: i64, rows: &[i64]) -> Self {
        let mut map = vec![-1; usize::try_from(extent).unwrap_or(0)];
        let mut rank = 0;
        let mut kept = Vec::new();
        for &r in rows {
            if let Some(slot) = usize::try_from(r).ok().and_then(|r| map.get_mut(r)) {
                *slot = rank;
                rank += 1;
                kept.push(r);
            }
        }
        Self { levels: vec![Level::Kept(map)], total: rank, rows: kept }
    }

    /// The first position and number of indices below outer position `p` of dimension `d`.
    #[inline]
    pub fn row(&self, d: usize, p: i64) -> (i64, i64) {
        match &self.levels[d] {
            Level::Dense(n) => (p * n, *n),
            Level::Ragged(starts) => {
                let (a, b) = (starts[p as usize], starts[p as usize + 1]);
                (a, b - a)
            }
            Level::Kept(map) => (0, map.len() as i64),
        }
    }

    /// The position of index `i` of dimension `d` below outer position `p`, if there is one.
    #[inline]
    pub fn child(&self, d: usize, p: i64, i: i64) -> Option<i64> {
        if let Level::Kept(map) = &self.levels[d] {
            return usize::try_from(i).ok().and_then(|i| map.get(i)).copied().filter(|&r| r >= 0);
        }
        let (start, n) = self.row(d, p);
        ((i as u64) < n as u64).then_some(start + i)
    }

    /// The position of a whole index.
    pub fn position(&self, index: &[i64]) -> Option<i64> {
        if index.len() != self.levels.len() {
            return None;
        }
        let mut p = 0;
        for (d, &i) in index.iter().enumerate() {
            p = self.child(d, p, i)?;
        }
        Some(p)
    }

    /// Calls `f` with every index of the first `depth` dimensions and its position, in order.
    ///
    /// # Errors
    /// The first that `f` gives.
    pub fn visit(&self, depth: usize, f: &mut Visit<'_>) -> Result<(), InterpError> {
        let mut index = vec![0; depth];
        self.visit_from(0, 0, &mut index, f)
    }

    /// Calls `f` with every index of the first `depth` dimensions and the extent of the next one there.
    ///
    /// # Errors
    /// The first that `f` gives.
    pub fn visit_rows(&self, depth: usize, f: &mut Visit<'_>) -> Result<(), InterpError> {
        self.visit(depth, &mut |index, p| f(index, self.row(depth, p).1))
    }

    fn visit_from(&self, d: usize, p: i64, index: &mut Vec<i64>, f: &mut Visit<'_>) -> Result<(), InterpError> {
        if d == index.len() {
            return f(index, p);
        }
        if let Level::Kept(_) = self.levels[d] {
            for (rank, &row) in self.rows.iter().enumerate() {
                index[d] = row;
                self.visit_from(d + 1, rank as i64, index, f)?;
            }
            return Ok(());
        }
        let (start, n) = self.row(d, p);
        for i in 0..n {
            index[d] = i;
            self.visit_from(d + 1, start + i, index, f)?;
        }
        Ok(())
    }

    /// How many outermost indices are held (1 without dimensions).
    pub fn outer_len(&self) -> i64 {
        match self.levels.first() {
            None => 1,
            Some(Level::Kept(_)) => self.rows.len() as i64,
            Some(_) => self.row(0, 0).1,
        }
    }

    /// The outermost index with the given rank among those held.
    pub fn outer_index(&self, rank: i64) -> i64 {
        match self.levels.first() {
            Some(Level::Kept(_)) => self.rows[rank as usize],
            _ => rank,
        }
    }

    /// The first position below the outermost index of rank `rank`; `rank == outer_len()` gives the total.
    pub fn outer_start(&self, rank: i64) -> i64 {
        let mut p = rank;
        for level in self.levels.iter().skip(1) {
            p = match level {
                Level::Dense(n) => p * n,
                Level::Ragged(starts) => starts[p as usize],
                Level::Kept(_) => p,
            };
        }
        if self.levels.is_empty() { rank.min(1) } else { p }
    }

    /// The index at a position.
    pub fn index_of(&self, position: i64) -> Vec<i64> {
        let mut index = vec![0; self.levels.len()];
        let mut p = position;
        for (d, level) in self.levels.iter().enumerate().rev() {
            match level {
                Level::Dense(n) => {
                    let n = (*n).max(1);
                    (index[d], p) = (p % n, p / n);
                }
                Level::Ragged(starts) => {
                    let row = starts.partition_point(|&s| s <= p).saturating_sub(1);
                    (index[d], p) = (p - starts[row], row as i64);
                }
                Level::Kept(_) => index[d] = self.outer_index(p),
            }
        }
        index
    }

    /// Bytes that the tables take.
    pub fn bytes(&self) -> usize {
        self.levels
            .iter()
            .map(|l| match l {
                Level::Dense(_) => 0,
                Level::Ragged(t) | Level::Kept(t) => t.len() * 8,
            })
            .sum()
    }
}
