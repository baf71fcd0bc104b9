//! What the rows or columns of a tile have in common of an extent that differs from one to the next.

use cora_ir::loops::LoopModule;
use cora_ir::schedule::Formula;
use cora_ir::{BinOp, Env, Expr, ExprId, UfDef, VarId};

/// The greatest value that `extent` may have in a tile, in tiles of `tile` iterations of each of `loops`: a formula at the
/// loop that has this extent. Nothing if it is not made of sums, multiples, quotients, minima and maxima of what moves.
pub(crate) fn greatest(m: &LoopModule, extent: ExprId, loops: &[VarId], tile: i64) -> Option<Formula> {
    Tiles { env: &m.env, loops, tile }.bound(extent, true)
}

/// The least value that `extent` may have in a tile, as [`greatest`] the greatest.
pub(super) fn least(m: &LoopModule, extent: ExprId, loops: &[VarId], tile: i64) -> Option<Formula> {
    Tiles { env: &m.env, loops, tile }.bound(extent, false)
}

struct Tiles<'a> {
    env: &'a Env,
    loops: &'a [VarId],
    tile: i64,
}

impl Tiles<'_> {
    /// The upper or lower bound of `e` in a tile.
    fn bound(&self, e: ExprId, upper: bool) -> Option<Formula> {
        let pool = &self.env.pool;
        let moves = |e: ExprId| self.loops.iter().any(|&v| pool.uses_var(e, v));
        let constant = |e: ExprId| pool.as_int(e);
        match *pool.get(e) {
            _ if !moves(e) => self.formula(e),
            Expr::Var(v) => {
                let name = Formula::Name(self.env.vars[v].name.clone());
                let first = times(call("floordiv", name, Formula::Int(self.tile)), self.tile);
                Some(if upper { sum('+', first, Formula::Int(self.tile - 1)) } else { first })
            }
            Expr::Bin(BinOp::Add, a, b) => Some(sum('+', self.bound(a, upper)?, self.bound(b, upper)?)),
            Expr::Bin(BinOp::Sub, a, b) => Some(sum('-', self.bound(a, upper)?, self.bound(b, !upper)?)),
            Expr::Bin(BinOp::Mul, a, b) => {
                let (c, x) = constant(a).map(|c| (c, b)).or_else(|| constant(b).map(|c| (c, a)))?;
                Some(times(self.bound(x, upper == (c >= 0))?, c))
            }
            Expr::Bin(op @ (BinOp::Min | BinOp::Max), a, b) => {
                Some(call(if op == BinOp::Min { "min" } else { "max" }, self.bound(a, upper)?, self.bound(b, upper)?))
            }
            Expr::Bin(BinOp::FloorDiv, a, b) if constant(b)? > 0 => {
                Some(call("floordiv", self.bound(a, upper)?, self.formula(b)?))
            }
            _ => None,
        }
    }

    /// What does not move in a tile, as it is.
    fn formula(&self, e: ExprId) -> Option<Formula> {
        let both = |a: ExprId, b: ExprId| Some((self.formula(a)?, self.formula(b)?));
        match self.env.pool.get(e) {
            Expr::Int(n) => Some(Formula::Int(*n)),
            Expr::Var(v) => Some(Formula::Name(self.env.vars[*v].name.clone())),
            Expr::Param(p) => Some(Formula::Name(self.env.params[*p].name.clone())),
            Expr::Bin(op, a, b) => {
                let (a, b) = both(*a, *b)?;
                match op {
                    BinOp::Add => Some(sum('+', a, b)),
                    BinOp::Sub => Some(sum('-', a, b)),
                    BinOp::Mul => Some(sum('*', a, b)),
                    BinOp::Min => Some(call("min", a, b)),
                    BinOp::Max => Some(call("max", a, b)),
                    BinOp::FloorDiv => Some(call("floordiv", a, b)),
                    _ => None,
                }
            }
            Expr::Call(f, args) => {
                let uf = &self.env.ufs[*f];
                let args = args.iter().map(|&a| self.formula(a)).collect::<Option<_>>()?;
                matches!(uf.def, UfDef::Extent { .. }).then(|| Formula::Call(uf.name.clone(), args))
            }
            _ => None,
        }
    }
}

fn sum(op: char, a: Formula, b: Formula) -> Formula {
    Formula::Bin(op, Box::new(a), Box::new(b))
}

fn times(f: Formula, c: i64) -> Formula {
    sum('*', f, Formula::Int(c))
}

fn call(name: &str, a: Formula, b: Formula) -> Formula {
    Formula::Call(name.to_owned(), vec![a, b])
}
