//! Evaluates index expressions and uninterpreted functions by definition, for counting work and
//! entries. Slow next to the prelude, and independent of it.

use cora_ir::{BinOp, EntityId, Env, Expr, ExprId, UfDef, UfId, VarId};
use rustc_hash::FxHashMap;
use std::cell::RefCell;

/// Values of variables by id.
pub type Vars = FxHashMap<VarId, i64>;

/// A prefix sum and the outer arguments of one of its rows.
type Row = (UfId, Vec<i64>);

/// An evaluator for one batch.
pub struct Evaluator<'a> {
    env: &'a Env,
    params: &'a [i64],
    entries: FxHashMap<(UfId, Vec<i64>), i64>,
    sums: RefCell<FxHashMap<Row, Vec<i64>>>,
    maxima: RefCell<FxHashMap<UfId, i64>>,
}

impl<'a> Evaluator<'a> {
    /// An evaluator that knows the parameters and the entries of some extent functions (row-major
    /// ragged order of their domains).
    pub fn new(env: &'a Env, params: &'a [i64], extents: &FxHashMap<UfId, Vec<i64>>) -> Self {
        let mut new =
            Self { env, params, entries: FxHashMap::default(), sums: RefCell::default(), maxima: RefCell::default() };
        for f in env.ufs.ids() {
            if let Some(values) = extents.get(&f) {
                new.add(f, values);
            }
        }
        new
    }

    /// Adds the entries of an extent function whose domain depends on those before it.
    pub fn add(&mut self, f: UfId, values: &[i64]) {
        let mut points = Vec::new();
        self.each_point(&self.env.ufs[f].domain, &mut Vec::new(), &mut |p| {
            points.push(p.to_vec());
            points.len() < values.len()
        });
        self.entries.extend(points.into_iter().zip(values).map(|(p, &v)| ((f, p), v)));
    }

    /// The number of points of a box (extents outermost first, over the indices before them as
    /// `Arg`s); nothing if there are more than `limit`, or more rows to look at.
    pub fn count_points(&self, extents: &[ExprId], limit: usize) -> Option<usize> {
        let mut left = limit;
        self.count_below(extents, &mut Vec::new(), &mut left)
    }

    fn count_below(&self, extents: &[ExprId], args: &mut Vec<i64>, left: &mut usize) -> Option<usize> {
        let Some(&extent) = extents.get(args.len()) else { return Some(1) };
        let mut count = 0;
        for i in 0..self.closed(extent, args) {
            *left = left.checked_sub(1)?;
            args.push(i);
            let below = self.count_below(extents, args, left);
            args.pop();
            count += below?;
        }
        Some(count)
    }

    /// Calls `f` for each point of a box until it says stop.
    pub fn each_point(&self, domain: &[ExprId], args: &mut Vec<i64>, f: &mut dyn FnMut(&[i64]) -> bool) -> bool {
        if args.len() == domain.len() {
            return f(args);
        }
        for i in 0..self.closed(domain[args.len()], args) {
            args.push(i);
            let go = self.each_point(domain, args, f);
            args.pop();
            if !go {
                return false;
            }
        }
        true
    }

    /// The value of an expression over `Arg`s.
    pub fn closed(&self, e: ExprId, args: &[i64]) -> i64 {
        self.value(e, args, &Vars::default())
    }

    /// The value of an expression over `Arg`s and variables.
    pub fn value(&self, e: ExprId, args: &[i64], vars: &Vars) -> i64 {
        let at = |x: ExprId| self.value(x, args, vars);
        match self.env.pool.get(e) {
            Expr::Int(v) => *v,
            Expr::Lit(l) => l.as_i64(),
            Expr::Param(p) => self.params.get(p.index()).copied().unwrap_or(0),
            Expr::Arg(n) => args.get(*n as usize).copied().unwrap_or(0),
            Expr::Var(v) => vars.get(v).copied().unwrap_or(0),
            Expr::Call(f, a) => {
                let a: Vec<i64> = a.iter().map(|&x| at(x)).collect();
                self.call(*f, a)
            }
            Expr::Select(c, a, b) => at(if at(*c) != 0 { *a } else { *b }),
            Expr::Un(cora_ir::UnOp::Neg, a) => at(*a).saturating_neg(),
            Expr::Un(cora_ir::UnOp::Not, a) => i64::from(at(*a) == 0),
            Expr::Bin(op, a, b) => binary(*op, at(*a), at(*b)),
            _ => 0,
        }
    }

    fn call(&self, f: UfId, mut args: Vec<i64>) -> i64 {
        let uf = &self.env.ufs[f];
        match uf.def {
            UfDef::Extent { .. } => self.entries.get(&(f, args)).copied().unwrap_or(0),
            UfDef::Map { body } => self.closed(body, &args),
            UfDef::Max { body } => {
                if let Some(&m) = self.maxima.borrow().get(&f) {
                    return m;
                }
                let mut max = 0;
                self.each_point(&uf.domain, &mut Vec::new(), &mut |p| {
                    max = max.max(self.closed(body, p));
                    true
                });
                self.maxima.borrow_mut().insert(f, max);
                max
            }
            UfDef::PrefixSum { .. } => {
                let x = args.pop().unwrap_or(0);
                self.with_sums(f, args, |s| usize::try_from(x).ok().and_then(|x| s.get(x)).copied().unwrap_or(0))
            }
            UfDef::Search { sum } => {
                let r = args.pop().unwrap_or(0);
                self.with_sums(sum, args, |s| {
                    let rows = s.len().saturating_sub(1);
                    s[..rows].partition_point(|&v| v <= r).saturating_sub(1) as i64
                })
            }
            UfDef::SortDesc { .. } => args.last().copied().unwrap_or(0),
        }
    }

    fn with_sums<T>(&self, f: UfId, outer: Vec<i64>, read: impl FnOnce(&[i64]) -> T) -> T {
        if let Some(s) = self.sums.borrow().get(&(f, outer.clone())) {
            return read(s);
        }
        let uf = &self.env.ufs[f];
        let UfDef::PrefixSum { body } = uf.def else { return read(&[0]) };
        let n = uf.domain.last().map_or(0, |&e| self.closed(e, &outer));
        let mut point = outer.clone();
        let mut sums = vec![0];
        let mut total = 0;
        for i in 0..n {
            point.push(i);
            total += self.closed(body, &point);
            point.pop();
            sums.push(total);
        }
        let out = read(&sums);
        self.sums.borrow_mut().insert((f, outer), sums);
        out
    }
}

/// A result that 64 bits do not hold is more than anybody counts; validation refuses it later.
fn binary(op: BinOp, x: i64, y: i64) -> i64 {
    op.of_ints(x, y).unwrap_or(i64::MAX)
}
