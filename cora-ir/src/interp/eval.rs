//! One expression at one point, by a walk of its tree: for extents, function bodies and tables.

use crate::env::Env;
use crate::expr::Expr;
use crate::ids::{EntityId, ExprId, TensorId, VarId};
use crate::interp::buffer::Memory;
use crate::interp::error::{InterpError, Stage};
use crate::interp::functions::Functions;
use crate::interp::ops;
use crate::types::{BinOp, round_float};

/// The value of an expression.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value {
    I(i64),
    F(f64),
}

impl Value {
    fn int(self) -> i64 {
        match self {
            Self::I(x) => x,
            Self::F(x) => x as i64,
        }
    }
    fn float(self) -> f64 {
        match self {
            Self::I(x) => x as f64,
            Self::F(x) => x,
        }
    }
}

/// Values of variables in scope.
pub(crate) type Bindings = [(VarId, i64)];

/// What an expression may refer to.
#[derive(Clone, Copy)]
pub(crate) struct Scalars<'c> {
    pub env: &'c Env,
    pub params: &'c [i64],
    pub functions: &'c Functions,
    /// Flat buffers, for expressions that read tables.
    pub memory: Option<&'c Memory<'c>>,
    pub stage: Stage,
}

impl Scalars<'_> {
    /// An integer, or nothing where it is undefined.
    ///
    /// # Errors
    /// As [`Self::value`].
    pub fn int(&self, e: ExprId, args: &[i64], vars: &Bindings) -> Result<Option<i64>, InterpError> {
        Ok(self.value(e, args, vars)?.map(Value::int))
    }

    fn unsupported(&self, what: impl Into<String>) -> InterpError {
        InterpError::Unsupported { stage: self.stage, what: what.into() }
    }

    /// The value, or nothing where it is undefined: an element that was never written, an index outside 64 bits.
    ///
    /// # Errors
    /// [`InterpError::Unsupported`] for what has no value in this stage, [`InterpError::OutOfBounds`] for a read
    /// outside its tensor.
    pub fn value(&self, e: ExprId, args: &[i64], vars: &Bindings) -> Result<Option<Value>, InterpError> {
        let pool = &self.env.pool;
        let ty = pool.ty(e).scalar;
        Ok(match pool.get(e) {
            Expr::Int(v) => Some(Value::I(*v)),
            Expr::Lit(l) if l.ty.is_float() => Some(Value::F(l.as_f64())),
            Expr::Lit(l) => Some(Value::I(l.as_i64())),
            Expr::Param(p) => self.params.get(p.index()).map(|&v| Value::I(v)),
            Expr::Arg(n) => match args.get(*n as usize) {
                Some(&v) => Some(Value::I(v)),
                None => return Err(self.unsupported(format!("formal argument {n} has no value here"))),
            },
            Expr::Var(v) => match vars.iter().find(|(x, _)| x == v) {
                Some(&(_, value)) => Some(Value::I(value)),
                None => {
                    let name = self.env.vars.get(*v).map_or("?", |i| i.name.as_str());
                    return Err(self.unsupported(format!("variable `{name}` has no value here")));
                }
            },
            Expr::Call(f, actuals) => {
                let Some(actuals) = self.ints(actuals, args, vars)? else { return Ok(None) };
                self.functions.get(*f, &actuals).map(Value::I)
            }
            Expr::Un(op, a) => self.value(*a, args, vars)?.and_then(|a| match a {
                Value::F(x) => Some(Value::F(ops::un_f(*op, x))),
                Value::I(x) => ops::checked_un_i(*op, ty, x).map(Value::I),
            }),
            Expr::Bin(op, a, b) => self.binary(*op, *a, *b, args, vars)?,
            Expr::Select(c, a, b) => {
                let (c, a, b) = (self.int(*c, args, vars)?, self.value(*a, args, vars)?, self.value(*b, args, vars)?);
                match c {
                    None => None,
                    Some(0) => b,
                    Some(_) => a,
                }
            }
            Expr::Cast(to, a) => self.value(*a, args, vars)?.map(|a| match (a, to.is_float()) {
                (Value::F(x), true) => Value::F(round_float(*to, x)),
                (Value::F(x), false) => Value::I(ops::cast_fi(*to, x)),
                (Value::I(x), true) => Value::F(ops::cast_if(*to, x)),
                (Value::I(x), false) => Value::I(ops::wrap(*to, x)),
            }),
            Expr::Operand(..) | Expr::Tuple(_) | Expr::Load { part: 1.., .. } => {
                return Err(self.unsupported("a tuple in a scalar expression"));
            }
            Expr::Load { tensor, part: 0, index, guard } => {
                if let Some((cond, other)) = guard {
                    match self.int(*cond, args, vars)? {
                        Some(0) => return self.value(*other, args, vars),
                        Some(_) => {}
                        None => return Ok(None),
                    }
                }
                match self.ints(index, args, vars)? {
                    Some(index) => self.load(*tensor, &index)?,
                    None => None,
                }
            }
            Expr::Search { table, base, len, value } => {
                let Some(found) = self.ints(&[*base, *len, *value], args, vars)? else { return Ok(None) };
                self.search(*table, found[0], found[1], found[2])?
            }
            Expr::Splat(a, _) => self.value(*a, args, vars)?,
            Expr::Ramp { .. } | Expr::Reduce(..) => return Err(self.unsupported("a vector in a scalar expression")),
        })
    }

    fn ints(&self, es: &[ExprId], args: &[i64], vars: &Bindings) -> Result<Option<Vec<i64>>, InterpError> {
        es.iter().map(|&e| self.int(e, args, vars)).collect()
    }

    fn binary(
        &self,
        op: BinOp,
        a: ExprId,
        b: ExprId,
        args: &[i64],
        vars: &Bindings,
    ) -> Result<Option<Value>, InterpError> {
        let ty = self.env.pool.ty(a).scalar;
        let (x, y) = (self.value(a, args, vars)?, self.value(b, args, vars)?);
        let decided = |v: Option<Value>, by: bool| v.is_some_and(|v| (v.int() != 0) == by);
        match op {
            BinOp::And if decided(x, false) || decided(y, false) => return Ok(Some(Value::I(0))),
            BinOp::Or if decided(x, true) || decided(y, true) => return Ok(Some(Value::I(1))),
            _ => {}
        }
        let (Some(x), Some(y)) = (x, y) else { return Ok(None) };
        Ok(match (ty.is_float(), op.is_comparison()) {
            (true, true) => Some(Value::I(ops::cmp_f(op, x.float(), y.float()).into())),
            (true, false) => Some(Value::F(ops::bin_f(op, x.float(), y.float()))),
            (false, _) => ops::checked_i(op, ty, x.int(), y.int()).map(Value::I),
        })
    }

    fn out_of_bounds(&self, tensor: TensorId, index: &[i64]) -> InterpError {
        InterpError::OutOfBounds {
            stage: self.stage,
            tensor: self.env.tensors[tensor].name.clone(),
            index: index.to_vec(),
            write: false,
        }
    }

    fn load(&self, tensor: TensorId, index: &[i64]) -> Result<Option<Value>, InterpError> {
        let Some(held) = self.memory.and_then(|m| m.get(tensor)) else {
            return Err(self.unsupported(format!("`{}` is read before it exists", self.env.tensors[tensor].name)));
        };
        let at = held.levels.position(index).ok_or_else(|| self.out_of_bounds(tensor, index))? as usize;
        let value =
            || if held.buf.ty.is_float() { Value::F(held.buf.float_at(at)) } else { Value::I(held.buf.int_at(at)) };
        Ok(held.buf.defined(at).then(value))
    }

    fn search(&self, table: TensorId, base: i64, len: i64, value: i64) -> Result<Option<Value>, InterpError> {
        let Some(held) = self.memory.and_then(|m| m.get(table)) else {
            return Err(self.unsupported(format!("`{}` is searched before it exists", self.env.tensors[table].name)));
        };
        if len <= 0 {
            return Ok(None);
        }
        let row = table_row(held.buf.len(), base, len).ok_or_else(|| self.out_of_bounds(table, &[base, len]))?;
        if !held.buf.range_defined(row.start, row.len()) {
            return Ok(None);
        }
        let found = greatest_not_above(row.len().saturating_sub(1), value, |i| held.buf.int_at(row.start + i));
        Ok(Some(Value::I(found.unwrap_or(0))))
    }
}

/// `base..=base + len` as a range of a table with `entries` entries, if it is within it.
pub(crate) fn table_row(entries: usize, base: i64, len: i64) -> Option<std::ops::Range<usize>> {
    let start = usize::try_from(base).ok()?;
    let end = usize::try_from(base.checked_add(len.max(0))?.checked_add(1)?).ok()?;
    (start < end && end <= entries).then_some(start..end)
}

/// The greatest `x` in `0..len` with `at(x) <= value`, for `at` that does not decrease.
pub(crate) fn greatest_not_above(len: usize, value: i64, at: impl Fn(usize) -> i64) -> Option<i64> {
    let (mut lo, mut hi) = (0, len);
    while lo < hi {
        let mid = lo + (hi - lo) / 2;
        if at(mid) <= value {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    (lo > 0).then(|| lo as i64 - 1)
}
