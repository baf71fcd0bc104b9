//! Tensors that have no element whatever the batch, by the form of their extents and by declared ranges.

use crate::affine::normalize;
use crate::env::{Env, Tensor, UfDef};
use crate::expr::{Expr, ExprPool, floor_div};
use crate::ids::{EntityId, ExprId, UfId};
use crate::storage::Table;
use crate::types::{BinOp, ScalarType, UnOp};

/// Dimensions of a constant size with more positions than this, all together, are not looked at one by one.
const MOST_POSITIONS: i64 = 4096;

/// Whether some extent is never more than 0: by ranges, or at all positions of the dimensions that it depends on, if
/// these have constant sizes.
pub(super) fn is_empty(env: &Env, tables: &[Table], t: &Tensor) -> bool {
    if !t.dims.iter().all(|d| d.extent.index() < env.pool.len()) {
        return false;
    }
    let mut positions: Vec<Range> = Vec::new();
    for d in &t.dims {
        let extent = range(env, tables, d.extent, &positions);
        if extent.hi.is_some_and(|n| n <= 0) {
            return true;
        }
        positions.push(Range { lo: Some(0), hi: extent.hi.and_then(|n| n.checked_sub(1)) });
    }
    (0..t.dims.len()).any(|d| has_no_position(env, t, d))
}

/// The least and the greatest value, where known.
#[derive(Clone, Copy, Default)]
struct Range {
    lo: Option<i64>,
    hi: Option<i64>,
}

impl Range {
    fn corners(self, other: Self, op: impl Fn(i64, i64) -> Option<i64>) -> Self {
        let (Some(a), Some(b), Some(c), Some(d)) = (self.lo, self.hi, other.lo, other.hi) else {
            return Self::default();
        };
        let all: Option<Vec<i64>> = [(a, c), (a, d), (b, c), (b, d)].into_iter().map(|(x, y)| op(x, y)).collect();
        all.map_or(Self::default(), |all| Self { lo: all.iter().min().copied(), hi: all.iter().max().copied() })
    }

    fn ends(self, other: Self, op: impl Fn(i64, i64) -> Option<i64>) -> Self {
        let both = |x: Option<i64>, y: Option<i64>| x.zip(y).and_then(|(x, y)| op(x, y));
        Self { lo: both(self.lo, other.lo), hi: both(self.hi, other.hi) }
    }

    fn negated(self) -> Self {
        Self { lo: self.hi.and_then(i64::checked_neg), hi: self.lo.and_then(i64::checked_neg) }
    }
}

/// The range of an index expression whose argument `n` is in `args[n]`.
fn range(env: &Env, tables: &[Table], e: ExprId, args: &[Range]) -> Range {
    let of = |e| range(env, tables, e, args);
    match *env.pool.get(e) {
        Expr::Int(v) => Range { lo: Some(v), hi: Some(v) },
        Expr::Arg(n) => args.get(n as usize).copied().unwrap_or_default(),
        Expr::Param(p) => env.params.get(p).map_or(Range::default(), |p| Range { lo: Some(p.lo), hi: Some(p.hi) }),
        Expr::Call(f, _) => declared(env, tables, f),
        Expr::Cast(ScalarType::Index, a) => match env.pool.get(a) {
            Expr::Load { tensor, guard: None, .. } => {
                let table = tables.iter().find(|t| t.tensor == *tensor);
                table.map_or(Range::default(), |t| declared(env, tables, t.uf))
            }
            _ => Range::default(),
        },
        Expr::Un(UnOp::Neg, a) => of(a).negated(),
        Expr::Bin(BinOp::Add, a, b) => of(a).ends(of(b), i64::checked_add),
        Expr::Bin(BinOp::Sub, a, b) => of(a).ends(of(b).negated(), i64::checked_add),
        Expr::Bin(BinOp::Mul, a, b) => of(a).corners(of(b), i64::checked_mul),
        Expr::Bin(BinOp::FloorDiv, a, b) => match env.pool.as_int(b) {
            Some(c) if c > 0 => {
                let a = of(a);
                Range { lo: a.lo.map(|x| floor_div(x, c)), hi: a.hi.map(|x| floor_div(x, c)) }
            }
            _ => Range::default(),
        },
        Expr::Bin(BinOp::Mod, _, b) => match env.pool.as_int(b) {
            Some(c) if c > 0 => Range { lo: Some(0), hi: Some(c - 1) },
            _ => Range::default(),
        },
        Expr::Bin(BinOp::Min, a, b) => {
            let (a, b) = (of(a), of(b));
            let hi = a.hi.zip(b.hi).map(|(x, y)| x.min(y)).or(a.hi).or(b.hi);
            Range { lo: a.lo.zip(b.lo).map(|(x, y)| x.min(y)), hi }
        }
        Expr::Bin(BinOp::Max, a, b) => {
            let (a, b) = (of(a), of(b));
            let lo = a.lo.zip(b.lo).map(|(x, y)| x.max(y)).or(a.lo).or(b.lo);
            Range { lo, hi: a.hi.zip(b.hi).map(|(x, y)| x.max(y)) }
        }
        Expr::Select(_, a, b) => {
            let (a, b) = (of(a), of(b));
            Range { lo: a.lo.zip(b.lo).map(|(x, y)| x.min(y)), hi: a.hi.zip(b.hi).map(|(x, y)| x.max(y)) }
        }
        _ => Range::default(),
    }
}

/// The range of a function's values.
fn declared(env: &Env, tables: &[Table], f: UfId) -> Range {
    match env.ufs.get(f).map(|f| &f.def) {
        Some(&UfDef::Extent { lo, hi }) => {
            Range { lo: range(env, tables, lo, &[]).lo, hi: range(env, tables, hi, &[]).hi }
        }
        _ => Range::default(),
    }
}

fn has_no_position(env: &Env, t: &Tensor, d: usize) -> bool {
    let mut pool = env.pool.clone();
    let uses = |pool: &ExprPool, e, a: usize| pool.any(e, &mut |n| matches!(n, Expr::Arg(k) if *k as usize == a));
    let steers: Vec<usize> = (0..d).filter(|&a| uses(&pool, t.dims[d].extent, a)).collect();
    let sizes: Option<Vec<i64>> = steers.iter().map(|&a| pool.as_int(t.dims[a].extent)).collect();
    let Some(sizes) = sizes.filter(|s| !s.is_empty()) else { return false };
    let Some(count) = sizes.iter().try_fold(1_i64, |n, &s| n.checked_mul(s)).filter(|&n| n <= MOST_POSITIONS) else {
        return false;
    };
    (0..count).all(|mut at| {
        let mut index = vec![pool.int(0); d];
        for (&a, &size) in steers.iter().zip(&sizes) {
            index[a] = pool.int(at % size);
            at /= size;
        }
        let extent = pool.instantiate(t.dims[d].extent, &index);
        let extent = normalize(&mut pool, extent);
        pool.as_int(extent).is_some_and(|n| n <= 0)
    })
}
