//! Index expressions at a point and ragged boxes by enumeration, independent of passes and interpreters.

use cora_ir::{EntityId, Env, Expr, ExprId, UfDef, UfId, UnOp, VarId};
use rustc_hash::FxHashMap;

/// The entries of an extent function, by its arguments.
pub type Entries = FxHashMap<Vec<i64>, i64>;

/// What index expressions are evaluated in.
pub struct World<'a> {
    /// Where the expressions live.
    pub env: &'a Env,
    /// The value of each parameter.
    pub params: Vec<i64>,
    /// The entries of each extent function.
    pub tables: FxHashMap<UfId, Entries>,
}

impl World<'_> {
    /// The value of `e` over arguments and variables; nothing where it has none, or reads a tensor.
    pub fn eval(&self, e: ExprId, args: &[i64], vars: &[(VarId, i64)]) -> Option<i64> {
        let at = |e| self.eval(e, args, vars);
        match self.env.pool.get(e) {
            Expr::Int(v) => Some(*v),
            Expr::Lit(l) => Some(l.as_i64()),
            Expr::Param(p) => self.params.get(p.index()).copied(),
            Expr::Arg(n) => args.get(*n as usize).copied(),
            Expr::Var(v) => vars.iter().rev().find(|x| x.0 == *v).map(|x| x.1),
            Expr::Un(UnOp::Neg, a) => at(*a)?.checked_neg(),
            Expr::Un(UnOp::Not, a) => Some(i64::from(at(*a)? == 0)),
            Expr::Select(c, a, b) => at(if at(*c)? != 0 { *a } else { *b }),
            Expr::Bin(op, a, b) => op.of_ints(at(*a)?, at(*b)?),
            Expr::Call(f, args) => {
                let actuals: Option<Vec<i64>> = args.iter().map(|&a| at(a)).collect();
                self.call(*f, &actuals?)
            }
            _ => None,
        }
    }

    /// The value of a function by its definition.
    pub fn call(&self, f: UfId, args: &[i64]) -> Option<i64> {
        let uf = &self.env.ufs[f];
        match &uf.def {
            UfDef::Extent { .. } => self.tables.get(&f)?.get(args).copied(),
            UfDef::Map { body } => self.eval(*body, args, &[]),
            UfDef::PrefixSum { body } => {
                let (&last, outer) = args.split_last()?;
                (0..last).try_fold(0i64, |sum, i| sum.checked_add(self.eval(*body, &[outer, &[i]].concat(), &[])?))
            }
            UfDef::Search { sum } => {
                let (&r, outer) = args.split_last()?;
                let rows = self.eval(*self.env.ufs[*sum].domain.last()?, outer, &[])?;
                let begin = |x: i64| self.call(*sum, &[outer, &[x]].concat());
                (0..rows).find(|&x| begin(x).is_some_and(|p| p <= r) && begin(x + 1).is_some_and(|p| r < p))
            }
            UfDef::Max { body } => {
                let mut greatest = 0;
                for p in self.points(&uf.domain, &[])? {
                    greatest = greatest.max(self.eval(*body, &p, &[])?);
                }
                Some(greatest)
            }
            UfDef::SortDesc { .. } => None,
        }
    }

    /// Every index of the box whose extent `j` is over `Arg(0..j)`, in row-major order, given the outer ones.
    pub fn points(&self, extents: &[ExprId], outer: &[i64]) -> Option<Vec<Vec<i64>>> {
        let Some(&extent) = extents.get(outer.len()) else { return Some(vec![outer.to_vec()]) };
        let mut out = Vec::new();
        for i in 0..self.eval(extent, outer, &[])? {
            out.extend(self.points(extents, &[outer, &[i]].concat())?);
        }
        Some(out)
    }

    /// How many points [`World::points`] has.
    pub fn count(&self, extents: &[ExprId], outer: &[i64]) -> Option<u64> {
        let Some(&extent) = extents.get(outer.len()) else { return Some(1) };
        let n = self.eval(extent, outer, &[])?.max(0);
        let position = outer.len() as u32;
        let depends = extents[outer.len() + 1..].iter();
        let depends = depends.clone().any(|&e| self.env.pool.any(e, &mut |x| *x == Expr::Arg(position)));
        let inside = |i: i64| self.count(extents, &[outer, &[i]].concat());
        if n == 0 {
            return Some(0);
        }
        if !depends {
            return Some((n as u64).saturating_mul(inside(0)?));
        }
        (0..n).try_fold(0_u64, |total, i| Some(total.saturating_add(inside(i)?)))
    }

    /// How often the body of nested loops runs; nothing if that depends on data.
    pub fn trips(&self, loops: &[(VarId, ExprId)]) -> Option<u64> {
        self.trips_inside(loops, &mut Vec::new())
    }

    fn trips_inside(&self, loops: &[(VarId, ExprId)], bound: &mut Vec<(VarId, i64)>) -> Option<u64> {
        let Some((&(var, extent), rest)) = loops.split_first() else { return Some(1) };
        let n = self.eval(extent, &[], bound)?.max(0);
        // Loops inside that do not depend on this one run equally often in each iteration.
        let depends = rest.iter().any(|&(_, e)| self.env.pool.uses_var(e, var));
        if !depends {
            return Some(if n == 0 { 0 } else { (n as u64).saturating_mul(self.trips_inside(rest, bound)?) });
        }
        let mut total = 0u64;
        for i in 0..n {
            bound.push((var, i));
            let inside = self.trips_inside(rest, bound);
            bound.pop();
            total = total.saturating_add(inside?);
        }
        Some(total)
    }
}
