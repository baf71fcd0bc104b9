//! Sizes that are enough for shorter rows too, for programs whose lengths change without a word to the host.
//!
//! ```text
//! for %t in 0..@f(M) block.x { .. }     with @f = prefix_sum max((@lens($0) + 15) // 16 - @lens($0) // 64 * 4, 0)
//!   =>  for %t in 0..@f.most(M) block.x { if %t < @f(M) { .. } }       with @f.most = prefix_sum min(.., 4)
//! ```
//!
//! The host computes sizes of buffers and numbers of blocks once, from the longest rows that may come. Most of them grow
//! with every length; any other becomes the upper end of its range while each length goes from its declared least value
//! to the one that the host knows: a symbolic interval, and for differences of quotients also what their slopes leave.
//! The length of a row that is itself one of a row's counts as its declared bound.
//!
//! Requires: calls of functions not lowered yet. Ensures: every size of a buffer and extent of a block loop is at least
//! what it was, for the lengths that the host knows and for shorter ones. Runs before `lower-functions` where kernels
//! build tables.

use super::sign::never_negative;
use cora_ir::affine::{normalize, poly};
use cora_ir::storage::{Stmt, StorageModule};
use cora_ir::{BinOp, Diagnostic, Env, Expr, ExprId, UfDef, UfId, UnOp};
use rustc_hash::FxHashMap;

/// Makes every size one that is enough for shorter rows.
///
/// # Errors
/// `E0614` a size for which no upper end is known.
pub fn capacities(m: &mut StorageModule) -> Result<(), Diagnostic> {
    let mut cx = Capacities { env: &mut m.env, most: FxHashMap::default() };
    // The table of a function of several arguments has a row for each of the first ones.
    for f in cx.env.ufs.ids().collect::<Vec<_>>() {
        let uf = cx.env.ufs[f].clone();
        let has_rows = matches!(uf.def, UfDef::PrefixSum { .. } | UfDef::Map { .. });
        if has_rows && !uf.domain.iter().skip(1).all(|&d| cx.size(d) == Some(d)) {
            let hint =
                "build the prelude on the host: its rows are themselves as many as another row of the batch is long";
            return Err(refusal(format!("the table of `{}`", uf.name)).hint(hint));
        }
    }
    for b in &mut m.buffers {
        let name = cx.env.tensors[b.tensor].name.clone();
        b.elems = cx.size(b.elems).ok_or_else(|| refusal(format!("the size of `{name}`")))?;
    }
    for k in &mut m.kernels {
        cx.blocks(&mut k.body).ok_or_else(|| refusal(format!("the number of blocks of kernel `{}`", k.name)))?;
    }
    Ok(())
}

fn refusal(what: String) -> Diagnostic {
    Diagnostic::new(
        "E0614",
        format!("the prelude cannot be built on the device: {what} is not known to be enough for shorter rows"),
    )
    .hint("build the prelude on the host, or give the size in a form that grows with every length")
}

/// The least and the greatest value.
#[derive(Clone, Copy)]
struct Range {
    lo: ExprId,
    hi: ExprId,
}

struct Capacities<'a> {
    env: &'a mut Env,
    /// For each function that was met one that is at least as great for all shorter rows.
    most: FxHashMap<UfId, Option<UfId>>,
}

impl Capacities<'_> {
    fn blocks(&mut self, body: &mut [Stmt]) -> Option<()> {
        for s in body {
            if let Stmt::For { var, extent, kind, body } = s
                && kind.is_block()
            {
                let most = self.size(*extent)?;
                if most != *extent {
                    let v = self.env.pool.var(*var);
                    let cond = self.env.pool.lt(v, *extent);
                    *extent = most;
                    *body = vec![Stmt::If { cond, then: std::mem::take(body), other: Vec::new() }];
                }
            }
            s.bodies_mut().try_for_each(|b| self.blocks(b))?;
        }
        Some(())
    }

    /// An upper end of `e`, and `e` itself where it grows with every length.
    fn size(&mut self, e: ExprId) -> Option<ExprId> {
        let hi = self.range(e)?.hi;
        let distance = self.env.pool.sub(hi, e);
        let distance = normalize(&mut self.env.pool, distance);
        Some(if self.env.pool.as_int(distance) == Some(0) { e } else { hi })
    }

    fn fixed(&self, e: ExprId) -> bool {
        !self.env.pool.any(e, &mut |n| matches!(n, Expr::Call(..) | Expr::Load { .. } | Expr::Search { .. }))
    }

    fn range(&mut self, e: ExprId) -> Option<Range> {
        if self.fixed(e) {
            return Some(Range { lo: e, hi: e });
        }
        let r = match self.env.pool.get(e).clone() {
            Expr::Call(f, args) => self.call(f, &args)?,
            Expr::Un(UnOp::Neg, a) => {
                let a = self.range(a)?;
                Range { lo: self.env.pool.un(UnOp::Neg, a.hi), hi: self.env.pool.un(UnOp::Neg, a.lo) }
            }
            Expr::Select(_, a, b) => {
                let (a, b) = (self.range(a)?, self.range(b)?);
                Range { lo: self.env.pool.min(a.lo, b.lo), hi: self.env.pool.max(a.hi, b.hi) }
            }
            Expr::Bin(op, a, b) => self.binary(op, a, b)?,
            _ => return None,
        };
        let hi = match self.slopes(e) {
            Some(most) => {
                let most = self.env.pool.int(most);
                self.env.pool.min(r.hi, most)
            }
            None => r.hi,
        };
        Some(Range { hi, ..r })
    }

    fn binary(&mut self, op: BinOp, left: ExprId, right: ExprId) -> Option<Range> {
        let (a, b) = (self.range(left)?, self.range(right)?);
        let divisor = || Some(right).filter(|&c| self.env.pool.as_int(c).is_some_and(|c| c > 0));
        match op {
            BinOp::Add | BinOp::Min | BinOp::Max => {
                Some(Range { lo: self.env.pool.bin(op, a.lo, b.lo), hi: self.env.pool.bin(op, a.hi, b.hi) })
            }
            BinOp::Sub => Some(Range { lo: self.env.pool.sub(a.lo, b.hi), hi: self.env.pool.sub(a.hi, b.lo) }),
            BinOp::FloorDiv => {
                let c = divisor()?;
                Some(Range { lo: self.env.pool.floor_div(a.lo, c), hi: self.env.pool.floor_div(a.hi, c) })
            }
            BinOp::Mod => {
                let c = divisor()?;
                let (zero, one) = (self.env.pool.int(0), self.env.pool.int(1));
                let mut hi = self.env.pool.sub(c, one);
                if never_negative(self.env, &[], a.lo) {
                    hi = self.env.pool.min(hi, a.hi);
                }
                Some(Range { lo: zero, hi })
            }
            BinOp::Mul => Some(self.product(a, b)),
            _ => None,
        }
    }

    fn product(&mut self, a: Range, b: Range) -> Range {
        let not_negative = |cx: &mut Self, r: Range| never_negative(cx.env, &[], r.lo);
        if not_negative(self, a) && not_negative(self, b) {
            return Range { lo: self.env.pool.mul(a.lo, b.lo), hi: self.env.pool.mul(a.hi, b.hi) };
        }
        let ends = [(a.lo, b.lo), (a.lo, b.hi), (a.hi, b.lo), (a.hi, b.hi)];
        let [p, q, r, s] = ends.map(|(x, y)| self.env.pool.mul(x, y));
        let pool = &mut self.env.pool;
        let (lo, hi) = ((pool.min(p, q), pool.min(r, s)), (pool.max(p, q), pool.max(r, s)));
        Range { lo: pool.min(lo.0, lo.1), hi: pool.max(hi.0, hi.1) }
    }

    fn call(&mut self, f: UfId, args: &[ExprId]) -> Option<Range> {
        let (def, domain) = (self.env.ufs[f].def.clone(), self.env.ufs[f].domain.clone());
        let zero = self.env.pool.int(0);
        let outer_fixed = args.iter().rev().skip(1).all(|&a| self.fixed(a));
        match def {
            UfDef::Extent { lo, hi } => {
                // Which row it is of moves with the lengths of the rows before.
                let known = args.len() == 1 && self.fixed(args[0]);
                let hi = if known { self.env.pool.call(f, args.iter().copied()) } else { hi };
                Some(Range { lo, hi })
            }
            UfDef::PrefixSum { .. } if outer_fixed => {
                let (last, outer) = args.split_last()?;
                let last = self.range(*last)?.hi;
                let most = self.most(f)?;
                Some(Range { lo: zero, hi: self.env.pool.call(most, outer.iter().copied().chain([last])) })
            }
            UfDef::Max { .. } => {
                let most = self.most(f)?;
                Some(Range { lo: zero, hi: self.env.pool.call(most, []) })
            }
            UfDef::Map { body } => {
                let body = self.env.pool.instantiate(body, args);
                self.range(body)
            }
            UfDef::SortDesc { .. } | UfDef::Search { .. } => {
                let rows = match def {
                    UfDef::Search { sum } => *self.env.ufs[sum].domain.last()?,
                    _ => *domain.last()?,
                };
                let rows = self.env.pool.instantiate(rows, args);
                let one = self.env.pool.int(1);
                let last = self.range(rows)?.hi;
                let last = self.env.pool.sub(last, one);
                Some(Range { lo: zero, hi: self.env.pool.max(last, zero) })
            }
            UfDef::PrefixSum { .. } => None,
        }
    }

    /// A function whose values are at least those of `f` for all shorter rows.
    fn most(&mut self, f: UfId) -> Option<UfId> {
        if let Some(&known) = self.most.get(&f) {
            return known;
        }
        let uf = self.env.ufs[f].clone();
        let domain: Option<Vec<ExprId>> = uf.domain.iter().map(|&d| self.size(d)).collect();
        let body = uf.def.body().and_then(|b| self.size(b));
        let most = domain.zip(body).map(|(domain, body)| {
            let def = match uf.def {
                UfDef::PrefixSum { .. } => UfDef::PrefixSum { body },
                _ => UfDef::Max { body },
            };
            self.env.uf(&format!("{}.most", uf.name), domain, def)
        });
        self.most.insert(f, most);
        most
    }

    /// What is left of a sum of quotients whose slopes cancel: `(x + 15) // 16 - x // 64 * 4` is at most 4.
    fn slopes(&mut self, e: ExprId) -> Option<i64> {
        let p = poly(&self.env.pool, e);
        let mut scale: i64 = 1;
        for atoms in p.terms.keys() {
            if let [a] = atoms[..]
                && let Expr::Bin(BinOp::FloorDiv, _, c) = *self.env.pool.get(a)
            {
                scale = scale.checked_mul(self.env.pool.as_int(c).filter(|&c| c > 0)?).filter(|&s| s < 1 << 30)?;
            }
        }
        // Everything times `scale`, quotients as fractions: above by nothing, below by less than one.
        let mut sum = cora_ir::affine::Poly::constant(0);
        for (atoms, &k) in &p.terms {
            let scaled = k.checked_mul(scale)?;
            let quotient = match atoms[..] {
                [a] => match *self.env.pool.get(a) {
                    Expr::Bin(BinOp::FloorDiv, x, c) => self.env.pool.as_int(c).map(|c| (x, c)),
                    _ => None,
                },
                _ => None,
            };
            match quotient {
                Some((x, c)) => {
                    let x = poly(&self.env.pool, x);
                    sum = sum.checked_add_scaled(&x, scaled / c)?;
                    let less = if scaled < 0 { (scaled / c).checked_mul(1 - c)? } else { 0 };
                    sum = sum.checked_add_scaled(&cora_ir::affine::Poly::constant(less), 1)?;
                }
                None if sum.add_term(atoms.clone(), scaled) => {}
                None => return None,
            }
        }
        sum.as_constant().map(|c| cora_ir::expr::floor_div(c, scale))
    }
}
