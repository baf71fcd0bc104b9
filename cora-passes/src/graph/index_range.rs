//! Which values index arithmetic can take, by declared ranges, in numbers wider than code has.
//!
//! `Index` expressions mean mathematical integers, and code computes with 64 bits. What an operator
//! computes with positions must therefore stay inside 64 bits for every batch that passes
//! validation. Extents of tensors need no proof: validation evaluates them, and refuses what does not fit.

use cora_ir::{BinOp, Diagnostic, Env, Expr, ExprId, ScalarType, TensorId, UfDef, UnOp};
use rustc_hash::{FxHashMap, FxHashSet};

/// Least and greatest value, both inclusive; ends of 64-bit operands never overflow it but in products
/// of values that are refused already.
type Range = (i128, i128);

const WORD: Range = (i64::MIN as i128, i64::MAX as i128);

/// What no parameter and no extent function goes beyond: more than any memory holds, and far enough from what a word
/// holds that sums of a few of them, in whatever order, are inside it.
const FARTHEST: i128 = 1 << 56;

/// The first parameter or extent function that may be farther from 0 than [`FARTHEST`].
pub(super) fn beyond_memory(env: &Env) -> Option<Diagnostic> {
    let mut ranges = Ranges::over(env);
    let refusal = |what: &str, name: &str| {
        let d = Diagnostic::new("E0250", format!("{what} `{name}` can be beyond 2^56"));
        d.hint("declare a tighter range, such as `0..=1000000`")
    };
    let far = |e: i64| i128::from(e).abs() > FARTHEST;
    let param = env.params.iter().find(|(_, p)| far(p.lo) || far(p.hi));
    let extents = env.ufs.iter().find_map(|(_, f)| match f.def {
        UfDef::Extent { hi, .. } => (ranges.of(hi).1 > FARTHEST).then_some(f),
        _ => None,
    });
    param.map(|(_, p)| refusal("parameter", &p.name)).or_else(|| extents.map(|f| refusal("extent", &f.name)))
}

/// The range of an index expression over dimensions.
pub(super) fn range(env: &Env, e: ExprId) -> Range {
    Ranges::over(env).of(e)
}

/// The first index expression below `value` that can be outside 64 bits where its value matters, or comparison one side of
/// which can be, and the range.
///
/// It does not matter in an arm of `select` that is not chosen, nor under a guard that does not hold: code computes
/// it there as well, and drops it.
pub(super) fn too_wide(env: &mut Env, value: ExprId) -> Option<(ExprId, Range)> {
    let mut nodes = Vec::new();
    env.pool.walk(value, &mut |id, _| nodes.push(id));
    let mut elements = FxHashMap::default();
    for &e in &nodes {
        if let Expr::Load { tensor, index, .. } = env.pool.get(e).clone() {
            elements.extend(env.range_at(tensor, &index).map(|range| (e, range)));
        }
    }
    let sides = nodes.into_iter().filter_map(|e| Some((e, sides(env, e)?))).collect();
    let ranges = Ranges { elements, ..Ranges::over(env) };
    Search { ranges, sides, seen: FxHashSet::default() }.below(value)
}

/// Looks at every expression below one, under the conditions on the way there.
struct Search<'a> {
    ranges: Ranges<'a>,
    /// Of every comparison of indices.
    sides: FxHashMap<ExprId, [Side; 2]>,
    /// What was looked at under the conditions that hold now.
    seen: FxHashSet<ExprId>,
}

impl Search<'_> {
    fn below(&mut self, e: ExprId) -> Option<(ExprId, Range)> {
        if !self.seen.insert(e) {
            return None;
        }
        let pool = &self.ranges.env.pool;
        let found = match pool.get(e) {
            Expr::Select(c, a, b) => {
                let (c, a, b) = (*c, *a, *b);
                self.below(c).or_else(|| self.under(c, true, &[a])).or_else(|| self.under(c, false, &[b]))
            }
            Expr::Load { index, guard: Some((c, other)), .. } => {
                let (c, other, index) = (*c, *other, index.clone());
                self.below(c).or_else(|| self.under(c, true, &index)).or_else(|| self.under(c, false, &[other]))
            }
            _ => pool.children(e).into_iter().find_map(|k| self.below(k)),
        };
        found.or_else(|| {
            let index = self.ranges.env.pool.ty(e).scalar == ScalarType::Index;
            let range = if index { self.ranges.of(e) } else { (0, 0) };
            let sides = self.sides.get(&e).into_iter().flatten().map(|s| self.ranges.side(s));
            let wide = |r: &Range| r.0 < WORD.0 || r.1 > WORD.1;
            std::iter::once(range).chain(sides).find(wide).map(|r| (e, r))
        })
    }

    /// Below all of `es`, where `cond` has that value.
    fn under(&mut self, cond: ExprId, value: bool, es: &[ExprId]) -> Option<(ExprId, Range)> {
        let known = self.ranges.held.len();
        self.ranges.hold(cond, value);
        if self.ranges.held.len() == known {
            return es.iter().find_map(|&e| self.below(e));
        }
        let memo = std::mem::take(&mut self.ranges.memo);
        let seen = std::mem::take(&mut self.seen);
        let found = es.iter().find_map(|&e| self.below(e));
        self.ranges.held.truncate(known);
        (self.ranges.memo, self.seen) = (memo, seen);
        found
    }
}

/// Products with a positive factor each: one side of a comparison.
type Side = Vec<(Vec<ExprId>, i64)>;

/// The sides of a comparison of indices as code compares them: terms that are subtracted on one side are added on the
/// other. Nothing for other expressions.
fn sides(env: &mut Env, e: ExprId) -> Option<[Side; 2]> {
    let Expr::Bin(op, a, b) = *env.pool.get(e) else { return None };
    if !op.is_comparison() || env.pool.ty(a).scalar != ScalarType::Index {
        return None;
    }
    let difference = env.pool.sub(a, b);
    let terms = cora_ir::affine::poly(&env.pool, difference).terms;
    let side = |positive: bool| {
        let own = terms.iter().filter(|&(_, &c)| (c > 0) == positive);
        own.map(|(m, &c)| (m.to_vec(), c.saturating_abs())).collect()
    };
    Some([side(true), side(false)])
}

/// Why operator `stage` is refused.
pub(super) fn refusal(env: &Env, stage: &str, (e, (lo, hi)): (ExprId, Range)) -> Diagnostic {
    let names = cora_ir::text::Names::of(env, &[e]);
    let shown = cora_ir::text::print_expr(env, e, &names);
    let what = match env.pool.ty(e).scalar {
        ScalarType::Index => format!("the index {shown} can be outside 64 bits"),
        _ => format!(
            "one side of the comparison {shown} can be outside 64 bits, each term on the side where it is added"
        ),
    };
    Diagnostic::new("E0250", format!("in `{stage}`: {what}"))
        .note(format!("by declared ranges it is in {lo}..={hi}"))
        .hint("declare tighter ranges of parameters, lengths and index tensors, or limit its operands with `min` and `max`")
}

struct Ranges<'a> {
    env: &'a Env,
    /// The declared ranges of elements that have ranges of their own.
    elements: FxHashMap<ExprId, (ExprId, ExprId)>,
    /// What conditions say of expressions here.
    held: Vec<(ExprId, Range)>,
    memo: FxHashMap<ExprId, Range>,
}

impl<'a> Ranges<'a> {
    fn over(env: &'a Env) -> Self {
        Ranges { env, elements: FxHashMap::default(), held: Vec::new(), memo: FxHashMap::default() }
    }
}

impl Ranges<'_> {
    /// The declared range of an element.
    fn declared(&self, load: ExprId, tensor: TensorId) -> Option<(ExprId, ExprId)> {
        let t = &self.env.tensors[tensor];
        let same = || t.range.filter(|_| !t.range_by_position(&self.env.pool));
        self.elements.get(&load).copied().or_else(same)
    }

    /// Takes what `cond` having that value says of the ranges of its operands.
    fn hold(&mut self, cond: ExprId, value: bool) {
        match (self.env.pool.get(cond).clone(), value) {
            (Expr::Un(UnOp::Not, a), _) => self.hold(a, !value),
            (Expr::Bin(BinOp::And, a, b), true) | (Expr::Bin(BinOp::Or, a, b), false) => {
                self.hold(a, value);
                self.hold(b, value);
            }
            (Expr::Bin(BinOp::Eq, a, b), true) | (Expr::Bin(BinOp::Ne, a, b), false) => {
                self.at_most(a, b, 0);
                self.at_most(b, a, 0);
            }
            (Expr::Bin(BinOp::Lt, a, b), true) | (Expr::Bin(BinOp::Le, b, a), false) => self.at_most(a, b, 1),
            (Expr::Bin(BinOp::Le, a, b), true) | (Expr::Bin(BinOp::Lt, b, a), false) => self.at_most(a, b, 0),
            _ => {}
        }
    }

    /// `a + less <= b` holds.
    fn at_most(&mut self, a: ExprId, b: ExprId, less: i128) {
        if self.env.pool.ty(a).scalar != ScalarType::Index {
            return;
        }
        let (x, y) = (self.operand(a), self.operand(b));
        self.held.push((a, (WORD.0, y.1 - less)));
        self.held.push((b, (x.0 + less, WORD.1)));
        self.memo.clear();
    }

    /// The range of a sum of products.
    fn side(&mut self, side: &Side) -> Range {
        let mut sum: Range = (0, 0);
        for (product, factor) in side {
            let mut r: Range = (i128::from(*factor), i128::from(*factor));
            for &e in product {
                // Products beyond 64 bits are refused already.
                r = binary(BinOp::Mul, (r.0.max(WORD.0), r.1.min(WORD.1)), self.operand(e));
            }
            sum = (sum.0 + r.0, sum.1 + r.1);
        }
        sum
    }

    fn of(&mut self, e: ExprId) -> Range {
        if let Some(&r) = self.memo.get(&e) {
            return r;
        }
        let mut r = self.node(e);
        // Where the conditions contradict each other nothing is computed; then any end is right.
        for (_, (lo, hi)) in self.held.iter().filter(|h| h.0 == e) {
            r = (r.0.max(*lo).min(r.1), r.1.min(*hi).max(r.0));
        }
        self.memo.insert(e, r);
        r
    }

    /// [`Self::of`] as an operand: what is outside is reported where it arises.
    fn operand(&mut self, e: ExprId) -> Range {
        let (lo, hi) = self.of(e);
        (lo.clamp(WORD.0, WORD.1), hi.clamp(WORD.0, WORD.1))
    }

    fn node(&mut self, e: ExprId) -> Range {
        match self.env.pool.get(e) {
            Expr::Int(v) => (i128::from(*v), i128::from(*v)),
            Expr::Param(p) => {
                let p = &self.env.params[*p];
                (p.lo.into(), p.hi.into())
            }
            Expr::Var(v) => {
                let extent = self.env.dims.iter().find(|(_, d)| d.var == *v).map(|(_, d)| d.extent);
                let hi = extent.map_or(WORD.1, |x| self.operand(x).1);
                (0, (hi - 1).max(0))
            }
            Expr::Call(f, _) => match self.env.ufs[*f].def {
                UfDef::Extent { lo, hi } => (self.operand(lo).0, self.operand(hi).1),
                UfDef::Map { .. } => WORD,
                _ => (0, WORD.1),
            },
            Expr::Cast(ScalarType::Index, a) => self.source(*a),
            Expr::Un(op, a) => {
                let (lo, hi) = self.operand(*a);
                match op {
                    UnOp::Neg => (-hi, -lo),
                    UnOp::Abs => (if lo <= 0 && hi >= 0 { 0 } else { lo.abs().min(hi.abs()) }, lo.abs().max(hi.abs())),
                    _ => WORD,
                }
            }
            Expr::Bin(op, a, b) => {
                let (x, y) = (self.operand(*a), self.operand(*b));
                binary(*op, x, y)
            }
            Expr::Select(_, a, b) => hull(self.operand(*a), self.operand(*b)),
            _ => WORD,
        }
    }

    /// An element that becomes an index.
    fn source(&mut self, e: ExprId) -> Range {
        match *self.env.pool.get(e) {
            Expr::Lit(l) if l.ty.is_int() => (l.as_i64().into(), l.as_i64().into()),
            Expr::Load { tensor, guard, .. } if let Some((lo, hi)) = self.declared(e, tensor) => {
                let inside = (self.operand(lo).0, self.operand(hi).1 - 1);
                guard.map_or(inside, |(_, other)| hull(inside, self.source(other)))
            }
            Expr::Select(_, a, b) => hull(self.source(a), self.source(b)),
            _ => {
                let ty = self.env.pool.ty(e).scalar;
                if ty.is_int() { (ty.int_min().into(), ty.int_max().into()) } else { WORD }
            }
        }
    }
}

fn hull(a: Range, b: Range) -> Range {
    (a.0.min(b.0), a.1.max(b.1))
}

/// The range of an operator from those of its operands, which fit 64 bits.
fn binary(op: BinOp, x: Range, y: Range) -> Range {
    let corners = |ys: &[i128], f: &dyn Fn(i128, i128) -> i128| {
        let all = ys.iter().flat_map(|&b| [f(x.0, b), f(x.1, b)]);
        all.fold(None, |r: Option<Range>, v| Some(r.map_or((v, v), |r| hull(r, (v, v))))).unwrap_or((0, 0))
    };
    match op {
        BinOp::Add => (x.0 + y.0, x.1 + y.1),
        BinOp::Sub => (x.0 - y.1, x.1 - y.0),
        BinOp::Mul => corners(&[y.0, y.1], &|a, b| a * b),
        BinOp::Min => (x.0.min(y.0), x.1.min(y.1)),
        BinOp::Max => (x.0.max(y.0), x.1.max(y.1)),
        // Monotone in each operand but across a divisor of 0, where the quotient is 0.
        BinOp::FloorDiv => {
            let ends: Vec<i128> = [y.0, y.1, -1, 0, 1].into_iter().filter(|b| y.0 <= *b && *b <= y.1).collect();
            corners(&ends, &|a, b| if b == 0 { 0 } else { a.div_euclid(b) - i128::from(b < 0 && a.rem_euclid(b) != 0) })
        }
        BinOp::Mod => {
            let below = if x.0 >= 0 && y.0 >= 0 { x.1 } else { i128::MAX };
            ((y.0 + 1).min(0), (y.1 - 1).max(0).min(below))
        }
        _ => WORD,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The range of each operator holds its results, and the ends of sums, products and quotients are met.
    #[test]
    fn ranges_hold_results() {
        for (lo, hi) in [(-5, 7), (0, 3), (-4, -1), (2, 2)] {
            for (bl, bh) in [(-3, 4), (1, 5), (-6, -2), (0, 0), (0, 2)] {
                for op in [BinOp::Add, BinOp::Sub, BinOp::Mul, BinOp::Min, BinOp::Max, BinOp::FloorDiv, BinOp::Mod] {
                    let pairs = (lo..=hi).flat_map(|a| (bl..=bh).map(move |b| (a, b)));
                    let values: Vec<i128> = pairs.filter_map(|(a, b)| op.of_ints(a, b)).map(i128::from).collect();
                    let met = (*values.iter().min().unwrap(), *values.iter().max().unwrap());
                    let range = binary(op, (lo.into(), hi.into()), (bl.into(), bh.into()));
                    assert_eq!(hull(range, met), range, "{op:?} of {lo}..={hi} and {bl}..={bh}");
                    assert!(op == BinOp::Mod || range == met, "{op:?} of {lo}..={hi} and {bl}..={bh}: {range:?}");
                }
            }
        }
    }
}
