//! Register tiles of contractions, by a processor's vector registers.

use super::{Form, Registers};

/// A register tile, and the rows of a task: tiles that use a panel of columns while it is near.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    pub rows: i64,
    pub columns: i64,
    pub task: i64,
    /// Elements of a vector.
    pub lanes: i64,
    /// Whether it had better leave the registers whole than under masks, which cost short vectors a branch or a slow store.
    pub whole: bool,
}

impl Tile {
    /// With as many rows as may be of `count` without leaving much of the last tile empty, no less than two thirds.
    pub fn of_rows(self, count: i64) -> Tile {
        let computed = |rows: i64| count.saturating_add(rows - 1) / rows * rows;
        let full = |&rows: &i64| (computed(rows) - count) * 16 <= count;
        let all = || (self.rows - self.rows / 3..=self.rows).rev();
        let rows = all().find(full).or_else(|| all().min_by_key(|&rows| computed(rows))).unwrap_or(self.rows);
        Tile { rows, task: self.task / rows * rows, ..self }
    }

    /// How many tiles side by side use the rows of one while these are near.
    pub fn group(self) -> i64 {
        (PANEL / self.columns).max(1)
    }

    /// With more rows in a task where each is little work: a task looks for its first row.
    pub fn of_work(self, row: Option<i64>) -> Tile {
        let times = row.map_or(1, |n| TASK_WORK / self.task.saturating_mul(n.max(1)));
        Tile { task: self.task * times.clamp(1, MOST_WORK), ..self }
    }
}

/// Columns of a factor's panel that are copied for a task.
const PANEL: i64 = 64;
/// Multiply-adds of a task, at least, and how many times as many rows a task may have for it.
const TASK_WORK: i64 = 1 << 18;
const MOST_WORK: i64 = 16;

impl Registers {
    /// For columns that need not fill many vectors: 28 accumulators where there are registers for them.
    pub(super) fn narrow(self) -> Tile {
        match self.form() {
            Form::Long => Tile { rows: 14, columns: 2 * self.lanes, task: 56, ..self.broad() },
            _ => self.broad(),
        }
    }

    /// Where there are many columns: fewer rows to broadcast from. Besides accumulators, 24, 16 or 12 of them, registers
    /// hold the columns of a step and elements of rows, of four steps at once where vectors are as short as that.
    pub(super) fn broad(self) -> Tile {
        let (rows, vectors) = match self.form() {
            Form::Long => (6, 4),
            Form::Short => (8, 2),
            Form::Few => (6, 2),
        };
        let whole = !matches!(self.form(), Form::Long);
        Tile { rows, columns: vectors * self.lanes, task: 96, lanes: self.lanes, whole }
    }

    /// Tiles like the broad ones that leave the least of `columns` empty in the vectors of their last tile.
    pub(super) fn fitting(self, columns: i64) -> Tile {
        let broad = self.broad();
        let others: &[(i64, i64)] = match self.form() {
            Form::Long => &[(8, 3), (5, 5)],
            Form::Short => &[(5, 3)],
            Form::Few => &[(4, 3)],
        };
        let vectors = |t: &Tile| columns.saturating_add(t.columns - 1) / t.columns * (t.columns / self.lanes);
        let of = |&(rows, v): &(i64, i64)| Tile { rows, columns: v * self.lanes, task: 96 / rows * rows, ..broad };
        std::iter::once(broad).chain(others.iter().map(of)).min_by_key(vectors).unwrap_or(broad)
    }

    /// Where there are more columns from row to row: whole tiles of rows side by side fill one of columns.
    pub(super) fn slanted(self) -> Tile {
        let (rows, vectors) = match self.form() {
            Form::Long => (8, 3),
            Form::Short => (8, 2),
            Form::Few => (4, 3),
        };
        Tile { rows, columns: vectors * self.lanes, ..self.broad() }
    }
}
