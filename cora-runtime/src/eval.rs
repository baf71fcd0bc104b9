//! Tables as data, and the evaluation of one index expression at one point.

use crate::abi::{Ix, TableWidth};
use thiserror::Error;

/// The entries of one prelude table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableData {
    /// 32-bit entries.
    I32(Vec<i32>),
    /// 64-bit entries.
    I64(Vec<i64>),
}

impl TableData {
    /// An empty table.
    pub fn new(width: TableWidth) -> TableData {
        match width {
            TableWidth::I32 => TableData::I32(Vec::new()),
            TableWidth::I64 => TableData::I64(Vec::new()),
        }
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        match self {
            TableData::I32(v) => v.len(),
            TableData::I64(v) => v.len(),
        }
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the entries.
    pub fn bytes(&self) -> usize {
        match self {
            TableData::I32(v) => size_of_val(v.as_slice()),
            TableData::I64(v) => size_of_val(v.as_slice()),
        }
    }

    /// An entry.
    pub fn get(&self, index: usize) -> Option<i64> {
        match self {
            TableData::I32(v) => v.get(index).map(|&x| i64::from(x)),
            TableData::I64(v) => v.get(index).copied(),
        }
    }

    /// The entries as 64-bit integers.
    pub fn to_vec(&self) -> Vec<i64> {
        match self {
            TableData::I32(v) => v.iter().map(|&x| i64::from(x)).collect(),
            TableData::I64(v) => v.clone(),
        }
    }

    /// The first entry, for a kernel.
    pub fn as_ptr(&self) -> *const u8 {
        match self {
            TableData::I32(v) => v.as_ptr().cast(),
            TableData::I64(v) => v.as_ptr().cast(),
        }
    }

    pub(crate) fn clear(&mut self) {
        match self {
            TableData::I32(v) => v.clear(),
            TableData::I64(v) => v.clear(),
        }
    }

    /// Makes the table `len` entries long, of any value; nothing happens where the system has no memory for it.
    pub(crate) fn resize(&mut self, len: usize) -> Option<()> {
        match self {
            TableData::I32(v) => {
                v.try_reserve_exact(len.saturating_sub(v.len())).ok()?;
                v.resize(len, 0);
            }
            TableData::I64(v) => {
                v.try_reserve_exact(len.saturating_sub(v.len())).ok()?;
                v.resize(len, 0);
            }
        }
        Some(())
    }
}

/// What index expressions are evaluated over, apart from index variables.
#[derive(Clone, Copy, Debug)]
pub struct Env<'a> {
    /// Parameter values.
    pub params: &'a [i64],
    /// Tables built so far.
    pub tables: &'a [TableData],
}

/// Why an index expression has no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum IxFault {
    /// A result beyond 64 bits.
    #[error("index arithmetic overflows 64 bits")]
    Overflow,
    /// A table index out of range.
    #[error("entry {index} of table {table} does not exist (it has {len})")]
    Entry {
        /// The table.
        table: u32,
        /// The index.
        index: i64,
        /// Entries of the table.
        len: usize,
    },
    /// A parameter, variable or table that is not there (an expression that was not validated).
    #[error("index expression refers to something that is not there")]
    Unbound,
    /// Nesting beyond the ABI's bound (an expression that was not validated).
    #[error("index expression is too deep")]
    Depth,
}

/// The value of `ix` where index variable `j` is `args[j]`.
///
/// # Errors
/// See [`IxFault`]; only what lazy evaluation reaches can fail.
pub fn eval(ix: &Ix, env: Env<'_>, args: &[i64]) -> Result<i64, IxFault> {
    eval_at(ix, env, args, crate::abi::MAX_IX_DEPTH)
}

fn eval_at(ix: &Ix, env: Env<'_>, args: &[i64], depth: usize) -> Result<i64, IxFault> {
    let depth = depth.checked_sub(1).ok_or(IxFault::Depth)?;
    let ev = |x: &Ix| eval_at(x, env, args, depth);
    let value = match ix {
        Ix::Const(v) => *v,
        Ix::Param(p) => *env.params.get(*p as usize).ok_or(IxFault::Unbound)?,
        Ix::Arg(a) => *args.get(*a as usize).ok_or(IxFault::Unbound)?,
        Ix::Table(t, i) => {
            let table = env.tables.get(*t as usize).ok_or(IxFault::Unbound)?;
            let index = ev(i)?;
            let entry = usize::try_from(index).ok().and_then(|i| table.get(i));
            entry.ok_or(IxFault::Entry { table: *t, index, len: table.len() })?
        }
        Ix::Add(a, b) => ev(a)?.checked_add(ev(b)?).ok_or(IxFault::Overflow)?,
        Ix::Sub(a, b) => ev(a)?.checked_sub(ev(b)?).ok_or(IxFault::Overflow)?,
        Ix::Mul(a, b) => ev(a)?.checked_mul(ev(b)?).ok_or(IxFault::Overflow)?,
        Ix::FloorDiv(a, b) => divided(ev(a)?, ev(b)?).ok_or(IxFault::Overflow)?.0,
        Ix::Mod(a, b) => divided(ev(a)?, ev(b)?).ok_or(IxFault::Overflow)?.1,
        Ix::Min(a, b) => ev(a)?.min(ev(b)?),
        Ix::Max(a, b) => ev(a)?.max(ev(b)?),
        Ix::Lt(a, b) => i64::from(ev(a)? < ev(b)?),
        Ix::Le(a, b) => i64::from(ev(a)? <= ev(b)?),
        Ix::Eq(a, b) => i64::from(ev(a)? == ev(b)?),
        Ix::And(a, b) => i64::from(ev(a)? != 0 && ev(b)? != 0),
        Ix::Or(a, b) => i64::from(ev(a)? != 0 || ev(b)? != 0),
        Ix::Not(a) => i64::from(ev(a)? == 0),
        Ix::Select(c, a, b) => {
            if ev(c)? != 0 {
                ev(a)?
            } else {
                ev(b)?
            }
        }
        Ix::Search(t, base, len, value) => {
            let table = env.tables.get(*t as usize).ok_or(IxFault::Unbound)?;
            search(table, ev(base)?, ev(len)?, ev(value)?).map_err(|index| IxFault::Entry {
                table: *t,
                index,
                len: table.len(),
            })?
        }
    };
    Ok(value)
}

/// The greatest `x` in `0..len` with `table[base + x] <= value`, 0 where there is none; the index of an
/// entry that does not exist. It halves as compiled code does, and reads nothing for `len <= 1`.
pub(crate) fn search(table: &TableData, base: i64, len: i64, value: i64) -> Result<i64, i64> {
    let (mut x, mut n) = (0, len);
    while n > 1 {
        let half = n / 2;
        let at = base.saturating_add(x + half);
        let entry = usize::try_from(at).ok().and_then(|at| table.get(at)).ok_or(at)?;
        if entry <= value {
            x += half;
        }
        n -= half;
    }
    Ok(x)
}

/// The quotient rounded down and the remainder with the sign of the divisor, both 0 for a divisor of 0; nothing where 64
/// bits do not hold the quotient.
pub(crate) fn divided(a: i64, b: i64) -> Option<(i64, i64)> {
    if b == 0 {
        return Some((0, 0));
    }
    let (q, r) = (a.checked_div(b)?, a.checked_rem(b)?);
    Some(if r != 0 && (r < 0) != (b < 0) { (q - 1, r + b) } else { (q, r) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(ix: Ix, want: Result<i64, IxFault>) {
        let tables = [TableData::I32(vec![5, 0, 7])];
        let env = Env { params: &[10, i64::MAX], tables: &tables };
        assert_eq!(eval(&ix, env, &[-7, 2]), want, "{ix:?}");
    }

    #[test]
    fn values_and_faults() {
        check(Ix::Param(0) * Ix::Arg(1) - 1, Ok(19));
        check(Ix::Arg(0).floor_div(2), Ok(-4));
        check(Ix::Arg(0).modulo(2), Ok(1));
        check(Ix::table(0, Ix::Arg(1)).ceil_div(4), Ok(2));
        check(Ix::Param(1) + 1, Err(IxFault::Overflow));
        check(Ix::Param(1) * Ix::Param(1), Err(IxFault::Overflow));
        check(Ix::Const(1).floor_div(0), Ok(0));
        check(Ix::Const(1).modulo(0), Ok(0));
        check(Ix::Const(1).floor_div(-3), Ok(-1));
        check(Ix::Const(1).modulo(-3), Ok(-2));
        check(Ix::Const(i64::MIN).floor_div(-1), Err(IxFault::Overflow));
        check(Ix::Const(i64::MIN).floor_div(1), Ok(i64::MIN));
        let beyond = IxFault::Entry { table: 0, index: 3, len: 3 };
        check(Ix::table(0, Ix::Arg(1) + 1), Err(beyond));
        check(Ix::table(0, Ix::Arg(0)), Err(IxFault::Entry { table: 0, index: -7, len: 3 }));
        check(Ix::Param(9), Err(IxFault::Unbound));
    }

    #[test]
    fn searches() {
        let tables = [TableData::I32(vec![9, 0, 0, 3, 3, 7])];
        let env = Env { params: &[], tables: &tables };
        let find = |base: i64, len: i64, value: i64| {
            let operands = [base, len, value].map(|v| Box::new(Ix::Const(v)));
            let [base, len, value] = operands;
            eval(&Ix::Search(0, base, len, value), env, &[])
        };
        for (value, want) in [(0, 1), (1, 1), (2, 1), (3, 3), (6, 3), (7, 4), (99, 4)] {
            assert_eq!(find(1, 5, value), Ok(want), "{value}");
        }
        // Nothing is read where there is at most one row.
        assert_eq!((find(99, 1, 5), find(-4, 0, 5), find(0, -1, 5)), (Ok(0), Ok(0), Ok(0)));
        assert_eq!(find(4, 4, 9), Err(IxFault::Entry { table: 0, index: 6, len: 6 }));
        assert_eq!(find(i64::MAX, 2, 9), Err(IxFault::Entry { table: 0, index: i64::MAX, len: 6 }));
    }

    #[test]
    fn what_is_not_chosen_cannot_fail() {
        let bad = Ix::table(0, 99.into());
        check(Ix::select(Ix::Arg(1).lt(0), bad.clone(), 4), Ok(4));
        check(Ix::And(Box::new(0.into()), Box::new(bad.clone())), Ok(0));
        check(Ix::Or(Box::new(3.into()), Box::new(bad)), Ok(1));
    }
}
