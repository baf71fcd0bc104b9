//! Rows that are all full but the last, as tiles are: what is before one needs no table.
//!
//! ```text
//! row x of x < ceil(n / 8) has min(8, n - 8*x):    8*x before row x, n in all, position p is in row p // 8
//! row x of x < ceil(n / 8) has the tiles of 3 of such a row, min(3, ceil((n - 8*x) / 3)):
//!                                                  3*x before row x, 3*(ceil(n / 8) - 1) + the last row's in all
//! ```

use crate::affine::{affine_in_arg, poly};
use crate::{BinOp, Env, Expr, ExprId};

/// Sums of rows that are all full but the last.
pub(crate) struct FullRows {
    /// Size of a full row, over the arguments outside.
    pub size: ExprId,
    /// The size of all rows together, over the arguments outside.
    pub total: ExprId,
}

impl Env {
    /// The sums of `body` over `Arg(n)` in `0..extent`, if all rows but the last are full; both are over `Arg(0..n)`.
    pub(crate) fn full_rows(&mut self, extent: ExprId, body: ExprId, n: u32) -> Option<FullRows> {
        let (factor, rows) = self.factor_and_rows(body, n)?;
        let operands = self.clamped(rows);
        let mut full = operands.iter().filter_map(|&e| self.pool.as_int(e));
        let (c, None) = (full.next().filter(|&c| c > 0)?, full.next()) else { return None };
        let others: Vec<ExprId> = operands.into_iter().filter(|&e| self.pool.as_int(e).is_none()).collect();
        let bounds = self.clamped(extent);
        if !others.iter().all(|&e| bounds.iter().any(|&b| self.full_but_last(e, n, c, b))) {
            return None;
        }
        let size = self.pool.int(c);
        let total = self.elements(&others, n, c, &bounds).unwrap_or_else(|| self.full_and_last(rows, n, c, extent));
        let zero = self.pool.int(0);
        let total = if self.least(total).is_some_and(|n| n >= 0) { total } else { self.pool.max(total, zero) };
        Some(FullRows { size: self.pool.mul(factor, size), total: self.pool.mul(factor, total) })
    }

    /// `k` and `e` of `k * e`, where `k` does not depend on `Arg(n)`.
    fn factor_and_rows(&mut self, body: ExprId, n: u32) -> Option<(ExprId, ExprId)> {
        let arg = Expr::Arg(n);
        let p = poly(&self.pool, body);
        let (1, Some((atoms, &k))) = (p.terms.len(), p.terms.first_key_value()) else { return None };
        let mut rows = atoms.iter().copied().filter(|&a| self.pool.any(a, &mut |e| *e == arg));
        let (Some(row), None) = (rows.next(), rows.next()) else { return None };
        let k = self.pool.int(k);
        let factor = atoms.iter().filter(|&&a| a != row).fold(k, |k, &a| self.pool.mul(k, a));
        Some((factor, row))
    }

    /// The operands of a minimum, which may be at least 0.
    fn clamped(&self, e: ExprId) -> Vec<ExprId> {
        match *self.pool.get(e) {
            Expr::Bin(BinOp::Max, a, b) if self.pool.as_int(b) == Some(0) => self.clamped(a),
            Expr::Bin(BinOp::Max, a, b) if self.pool.as_int(a) == Some(0) => self.clamped(b),
            Expr::Bin(BinOp::Min, a, b) => [self.clamped(a), self.clamped(b)].concat(),
            _ => vec![e],
        }
    }

    /// `e` as `(u, k)` of `u // k`, k positive.
    fn quotient(&mut self, e: ExprId) -> (ExprId, i64) {
        let mut p = poly(&self.pool, e);
        let more = p.terms.remove(&Vec::new()).unwrap_or(0);
        if let (1, Some((atoms, 1))) = (p.terms.len(), p.terms.first_key_value())
            && let [a] = atoms[..]
            && let Expr::Bin(BinOp::FloorDiv, u, k) = *self.pool.get(a)
            && let Some(k) = self.pool.as_int(k).filter(|&k| k > 0)
            && let Some(more) = more.checked_mul(k)
        {
            let more = self.pool.int(more);
            return (self.pool.add(u, more), k);
        }
        (e, 1)
    }

    /// Whether `e` is at least `c` at each `Arg(n)` below `bound - 1`: it falls by a step s with each, and there are at most
    /// `bound` = `v // s` rows.
    fn full_but_last(&mut self, e: ExprId, n: u32, c: i64, bound: ExprId) -> bool {
        let mut least = || {
            let (u, k) = self.quotient(e);
            let (slope, constant) = affine_in_arg(&mut self.pool, u, n)?;
            let step = self.pool.as_int(slope).and_then(i64::checked_neg).filter(|&s| s > 0)?;
            // At the last row but one, 2 below the bound.
            let constant = poly(&self.pool, constant);
            let rest = match self.pool.as_int(bound) {
                Some(rows) => constant.as_constant()?.checked_sub(step.checked_mul(rows)?)?,
                None => {
                    let (v, by) = self.quotient(bound);
                    let v = poly(&self.pool, v);
                    let rest = constant.checked_add_scaled(&v, -1)?.as_constant()?;
                    if by == step { rest } else { return None }
                }
            };
            Some(rest.checked_add(step.checked_mul(2)?)?.div_euclid(k))
        };
        least().is_some_and(|least| least >= c)
    }

    /// The number of elements that are cut into rows of `c`: each of `rows` is what is left of a number of them.
    fn elements(&mut self, rows: &[ExprId], n: u32, c: i64, bounds: &[ExprId]) -> Option<ExprId> {
        let mut numbers = Vec::new();
        for &e in rows {
            let (slope, constant) = affine_in_arg(&mut self.pool, e, n)?;
            if self.pool.as_int(slope) != c.checked_neg() {
                return None;
            }
            numbers.push(constant);
        }
        let covered = bounds.iter().all(|&b| numbers.iter().any(|&n| self.is_ceil(b, n, c)));
        let all = numbers.into_iter().reduce(|a, b| self.pool.min(a, b));
        all.filter(|_| covered)
    }

    /// Whether `rows` is `ceil(elements / c)`.
    fn is_ceil(&mut self, rows: ExprId, elements: ExprId, c: i64) -> bool {
        if let (Some(rows), Some(elements)) = (self.pool.as_int(rows), self.pool.as_int(elements)) {
            return rows.checked_sub(1).and_then(|r| r.checked_mul(c)).is_some_and(|before| before < elements)
                && rows.checked_mul(c).is_some_and(|all| all >= elements);
        }
        let (v, by) = self.quotient(rows);
        let v = poly(&self.pool, v);
        let elements = poly(&self.pool, elements);
        by == c && v.checked_add_scaled(&elements, -1).and_then(|d| d.as_constant()) == Some(c - 1)
    }

    /// `c * (extent - 1)` and what the last row has.
    fn full_and_last(&mut self, rows: ExprId, n: u32, c: i64, extent: ExprId) -> ExprId {
        let one = self.pool.int(1);
        let last = self.pool.sub(extent, one);
        let mut at: Vec<ExprId> = (0..n).map(|a| self.pool.arg(a)).collect();
        at.push(last);
        let in_last = self.pool.instantiate(rows, &at);
        let c = self.pool.int(c);
        let before = self.pool.mul(c, last);
        self.pool.add(before, in_last)
    }
}
