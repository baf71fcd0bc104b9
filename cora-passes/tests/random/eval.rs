//! Index expressions at a point and ragged boxes by enumeration, independent of the compiler.

use cora_ir::expr::{floor_div, floor_mod};
use cora_ir::{BinOp, EntityId, Env, Expr, ExprId, UfDef, UfId, UnOp, VarId};
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
    /// The value of `e`; panics where it has none.
    pub fn eval(&self, e: ExprId, args: &[i64], vars: &[(VarId, i64)]) -> i64 {
        let at = |e| self.eval(e, args, vars);
        match self.env.pool.get(e) {
            Expr::Int(v) => *v,
            Expr::Lit(l) => l.as_i64(),
            Expr::Param(p) => self.params[p.index()],
            Expr::Arg(n) => args[*n as usize],
            Expr::Var(v) => vars.iter().rev().find(|x| x.0 == *v).unwrap_or_else(|| panic!("unbound {v:?}")).1,
            Expr::Un(UnOp::Neg, a) => -at(*a),
            Expr::Select(c, a, b) => at(if at(*c) != 0 { *a } else { *b }),
            Expr::Bin(op, a, b) => binary(*op, at(*a), at(*b)),
            Expr::Call(f, args) => {
                let actuals: Vec<i64> = args.iter().map(|&a| at(a)).collect();
                self.call(*f, &actuals)
            }
            other => panic!("no index expression: {other:?}"),
        }
    }

    /// The value of a function by its definition.
    pub fn call(&self, f: UfId, args: &[i64]) -> i64 {
        let uf = &self.env.ufs[f];
        match &uf.def {
            UfDef::Extent { .. } => {
                *self.tables[&f].get(args).unwrap_or_else(|| panic!("@{}{args:?} is outside its domain", uf.name))
            }
            UfDef::Map { body } => self.eval(*body, args, &[]),
            UfDef::PrefixSum { body } => {
                let (&last, outer) = args.split_last().expect("a sum has arguments");
                (0..last).map(|i| self.eval(*body, &[outer, &[i]].concat(), &[])).sum()
            }
            UfDef::Search { sum } => {
                let (&r, outer) = args.split_last().expect("a search has arguments");
                let extent = *self.env.ufs[*sum].domain.last().expect("a sum has arguments");
                let rows = self.eval(extent, outer, &[]).max(0);
                let holds = |x: i64| {
                    let p = |x| self.call(*sum, &[outer, &[x]].concat());
                    p(x) <= r && r < p(x + 1)
                };
                (0..rows).find(|&x| holds(x)).unwrap_or_else(|| panic!("no row of @{} holds {r}", uf.name))
            }
            UfDef::Max { body } => {
                self.points(&uf.domain, &[]).iter().map(|p| self.eval(*body, p, &[])).fold(0, i64::max)
            }
            UfDef::SortDesc { .. } => panic!("sorting is not used here"),
        }
    }

    /// Every index of the box whose extent `j` is over `Arg(0..j)`, in row-major order, given the outer ones.
    pub fn points(&self, extents: &[ExprId], outer: &[i64]) -> Vec<Vec<i64>> {
        let Some(&extent) = extents.get(outer.len()) else { return vec![outer.to_vec()] };
        let n = self.eval(extent, outer, &[]);
        (0..n).flat_map(|i| self.points(extents, &[outer, &[i]].concat())).collect()
    }

    /// How often the body of nested loops runs.
    pub fn trips(&self, loops: &[(VarId, ExprId)]) -> u64 {
        let mut bound = Vec::new();
        self.trips_inside(loops, &mut bound)
    }

    fn trips_inside(&self, loops: &[(VarId, ExprId)], bound: &mut Vec<(VarId, i64)>) -> u64 {
        let Some((&(var, extent), rest)) = loops.split_first() else { return 1 };
        let n = self.eval(extent, &[], bound).max(0);
        if rest.is_empty() {
            return n as u64;
        }
        let mut total = 0;
        for i in 0..n {
            bound.push((var, i));
            total += self.trips_inside(rest, bound);
            bound.pop();
        }
        total
    }
}

fn binary(op: BinOp, a: i64, b: i64) -> i64 {
    match op {
        BinOp::Add => a + b,
        BinOp::Sub => a - b,
        BinOp::Mul => a * b,
        BinOp::FloorDiv => floor_div(a, b),
        BinOp::Mod => floor_mod(a, b),
        BinOp::Min => a.min(b),
        BinOp::Max => a.max(b),
        BinOp::And => i64::from(a != 0 && b != 0),
        BinOp::Or => i64::from(a != 0 || b != 0),
        BinOp::Lt => i64::from(a < b),
        BinOp::Le => i64::from(a <= b),
        BinOp::Eq => i64::from(a == b),
        BinOp::Ne => i64::from(a != b),
        BinOp::Div | BinOp::Pow => panic!("no index operator"),
    }
}
