//! Bounds inference: ranges of index expressions over loops (paper section 5.2, figure on ranges
//! of fused loops), and sizes that hold for every iteration of the enclosing loops.

use crate::lower::sign::never_negative;
use crate::simplify::{Facts, Prover, interval};
use cora_ir::affine::{greatest_operands, least_operands, normalize, poly, shift_max, shift_min};
use cora_ir::{BinOp, Env, Expr, ExprId, ExprPool, ScalarType, UfDef, UfId, UnOp, VarId};
use rustc_hash::FxHashMap;

/// Lowest and highest value, both attained or overestimated.
pub type Range = (ExprId, ExprId);

/// Whether `e` has a value whatever the batch, without any loop: functions are called where they are
/// defined even if there are no rows at all.
fn is_known(env: &Env, e: ExprId) -> bool {
    let whole = |f: UfId, args: &[ExprId]| match (&env.ufs[f].def, args) {
        (UfDef::Max { .. }, _) => true,
        (UfDef::PrefixSum { .. }, [x]) => env.ufs[f].domain.last() == Some(x),
        _ => false,
    };
    !env.pool.any(e, &mut |n| match n {
        Expr::Var(_) | Expr::Load { .. } => true,
        Expr::Call(f, args) => !whole(*f, args),
        _ => false,
    })
}

/// The range of `e` while each of `loops[from..]` (outermost first) runs over `0..extent`; nothing if
/// no rule applies. The other variables stay symbolic.
pub fn range_over(env: &mut Env, e: ExprId, loops: &[(VarId, ExprId)], from: usize) -> Option<Range> {
    range_within(env, e, loops, from, 0)
}

/// The loops around, and in how many bounds of lengths of ranges this is.
#[derive(Clone, Copy)]
struct Around<'a> {
    loops: &'a [(ExprId, ExprId)],
    nested: u32,
}

/// Bounds of lengths inside each other, at most: each may ask for two more.
const MOST_NESTED: u32 = 2;

fn range_within(env: &mut Env, e: ExprId, loops: &[(VarId, ExprId)], from: usize, nested: u32) -> Option<Range> {
    let e = normalize(&mut env.pool, e);
    let (mut lo, mut hi) = (e, e);
    let around: Vec<(ExprId, ExprId)> = loops.iter().map(|&(v, e)| (env.pool.var(v), e)).collect();
    for (n, &(v, extent)) in loops.iter().enumerate().skip(from).rev() {
        let one = env.pool.int(1);
        let last = env.pool.sub(extent, one);
        let zero = env.pool.int(0);
        let around = Around { loops: &around[..n], nested };
        lo = range_of_var(env, lo, v, (zero, last), around)?.0;
        hi = range_of_var(env, hi, v, (zero, last), around)?.1;
        lo = normalize(&mut env.pool, lo);
        hi = normalize(&mut env.pool, hi);
        hi = rejoined(&mut env.pool, hi);
    }
    Some((lo, hi))
}

/// `min(a, b) + max(p, q)` as `a + p` where `a - b` is `q - p`: the end of a range by where it begins and how long it is.
fn rejoined(pool: &mut ExprPool, e: ExprId) -> ExprId {
    let mut all = least_operands(pool, e);
    let before = all.len();
    'again: loop {
        for i in 1..all.len() {
            for j in 0..i {
                if let Some(one) = rejoined_pair(pool, all[i], all[j]) {
                    all.remove(i);
                    all.remove(j);
                    if !all.contains(&one) {
                        all.push(one);
                    }
                    continue 'again;
                }
            }
        }
        break;
    }
    if all.len() == before {
        return e;
    }
    let first = all.remove(0);
    all.into_iter().fold(first, |least, e| pool.min(least, e))
}

/// The lesser of two that have a maximum as a term, if it is that of the maximum's operands which they differ by.
fn rejoined_pair(pool: &mut ExprPool, x: ExprId, y: ExprId) -> Option<ExprId> {
    let apart = pool.sub(x, y);
    let apart = normalize(pool, apart);
    let maxima: Vec<(ExprId, ExprId, ExprId)> = poly(pool, x)
        .terms
        .iter()
        .filter_map(|(mono, &k)| match (mono.as_slice(), k) {
            (&[a], 1) => match *pool.get(a) {
                Expr::Bin(BinOp::Max, p, q) => Some((a, p, q)),
                _ => None,
            },
            _ => None,
        })
        .collect();
    for (atom, p, q) in maxima {
        for (p, q) in [(p, q), (q, p)] {
            let between = pool.sub(q, p);
            if normalize(pool, between) == apart {
                let rest = pool.sub(x, atom);
                let sum = pool.add(rest, p);
                return Some(normalize(pool, sum));
            }
        }
    }
    None
}

/// Whether `y` exceeds `x` by a constant, or is equal.
fn exceeds(pool: &mut ExprPool, y: ExprId, x: ExprId) -> bool {
    let apart = pool.sub(y, x);
    let apart = normalize(pool, apart);
    pool.as_int(apart).is_some_and(|n| n >= 0)
}

/// A maximum without operands that others exceed by a constant.
pub(super) fn without_lesser(pool: &mut ExprPool, e: ExprId) -> ExprId {
    let mut kept: Vec<ExprId> = Vec::new();
    for e in greatest_operands(pool, e) {
        if !kept.iter().any(|&k| exceeds(pool, k, e)) {
            kept.retain(|&k| !exceeds(pool, e, k));
            kept.push(e);
        }
    }
    let first = kept.remove(0);
    kept.into_iter().fold(first, |greatest, e| pool.max(greatest, e))
}

/// Whether `x <= y` is plain: by a constant, or operand by operand of minima or maxima.
pub(super) fn plainly_below(pool: &mut ExprPool, x: ExprId, y: ExprId) -> bool {
    if exceeds(pool, y, x) {
        return true;
    }
    let (low, high) = (least_operands(pool, x), least_operands(pool, y));
    if high.iter().all(|&h| low.iter().any(|&l| exceeds(pool, h, l))) {
        return true;
    }
    let (low, high) = (greatest_operands(pool, x), greatest_operands(pool, y));
    low.iter().all(|&l| high.iter().any(|&h| exceeds(pool, h, l)))
}

fn occurrences(env: &Env, e: ExprId, v: VarId) -> usize {
    match env.pool.get(e) {
        Expr::Var(x) => usize::from(*x == v),
        _ => env.pool.children(e).into_iter().map(|k| occurrences(env, k, v)).sum(),
    }
}

fn range_of_var(env: &mut Env, e: ExprId, v: VarId, r: Range, around: Around<'_>) -> Option<Range> {
    if !env.pool.uses_var(e, v) {
        return Some((e, e));
    }
    if occurrences(env, e, v) > 1 {
        return range_of_several(env, e, v, r, around);
    }
    match env.pool.get(e).clone() {
        Expr::Var(_) => Some(r),
        // A tile that is relaxed begins where its first position is, of those that there are.
        Expr::Bin(BinOp::Min, a, b) => {
            let (ra, rb) = (range_of_var(env, a, v, r, around)?, range_of_var(env, b, v, r, around)?);
            Some((lesser(env, ra.0, rb.0, around.loops), env.pool.min(ra.1, rb.1)))
        }
        Expr::Bin(op @ (BinOp::Add | BinOp::Max), a, b) => {
            let (ra, rb) = (range_of_var(env, a, v, r, around)?, range_of_var(env, b, v, r, around)?);
            Some((env.pool.bin(op, ra.0, rb.0), env.pool.bin(op, ra.1, rb.1)))
        }
        Expr::Bin(BinOp::Sub, a, b) => {
            let (ra, rb) = (range_of_var(env, a, v, r, around)?, range_of_var(env, b, v, r, around)?);
            Some((env.pool.sub(ra.0, rb.1), env.pool.sub(ra.1, rb.0)))
        }
        Expr::Un(UnOp::Neg, a) => {
            let ra = range_of_var(env, a, v, r, around)?;
            Some((env.pool.un(UnOp::Neg, ra.1), env.pool.un(UnOp::Neg, ra.0)))
        }
        Expr::Bin(BinOp::Mul, a, b) => {
            let (x, k) = if env.pool.as_int(b).is_some() { (a, b) } else { (b, a) };
            let c = env.pool.as_int(k)?;
            let rx = range_of_var(env, x, v, r, around)?;
            let (p, q) = (env.pool.mul(rx.0, k), env.pool.mul(rx.1, k));
            Some(if c >= 0 { (p, q) } else { (q, p) })
        }
        Expr::Bin(BinOp::FloorDiv, a, b) => {
            env.pool.as_int(b).filter(|&c| c > 0)?;
            let ra = range_of_var(env, a, v, r, around)?;
            Some((env.pool.floor_div(ra.0, b), env.pool.floor_div(ra.1, b)))
        }
        // All remainders, or none but the dividend itself.
        Expr::Bin(BinOp::Mod, a, b) => {
            let c = env.pool.as_int(b).filter(|&c| c > 0)?;
            let ra = range_of_var(env, a, v, r, around)?;
            match (env.pool.as_int(ra.0)?, env.pool.as_int(ra.1)?) {
                (lo, hi) if lo >= 0 && hi < c => Some(ra),
                (lo, hi) if hi.checked_sub(lo)? >= c - 1 => Some((env.pool.int(0), env.pool.int(c - 1))),
                _ => None,
            }
        }
        Expr::Call(f, args) if matches!(env.ufs[f].def, UfDef::PrefixSum { .. } | UfDef::Search { .. }) => {
            // Both are monotone in their last argument.
            let (&last, outer) = args.split_last()?;
            let rl = range_of_var(env, last, v, r, around)?;
            let outer = outer.to_vec();
            let mut at = |position: ExprId| {
                let position = existing(env, f, &outer, position, around.loops);
                env.pool.call(f, outer.iter().copied().chain([position]))
            };
            let (lo, hi) = (at(rl.0), at(rl.1));
            Some((lo, hi))
        }
        _ => one_value(env, e, v, r, around).map(|e| (e, e)),
    }
}

/// The value of `e` where it is the same in all iterations, of which there must be one: an element of a tensor is read
/// where the iterations are not.
fn one_value(env: &mut Env, e: ExprId, v: VarId, r: Range, around: Around<'_>) -> Option<ExprId> {
    let kids = env.pool.children(e);
    if kids.is_empty() {
        return None;
    }
    let variables = around.loops.iter().filter_map(|&(v, extent)| Some((env.pool.as_var(v)?, extent)));
    let facts = Facts::in_loops(variables);
    let mut prover = Prover::new();
    let mut below = |env: &mut Env, x: ExprId, y: ExprId| {
        let goal = env.pool.le(x, y);
        prover.prove(env, &facts, goal).is_proved()
    };
    if !below(env, r.0, r.1) {
        return None;
    }
    let mut values = Vec::with_capacity(kids.len());
    for k in kids {
        let (lo, hi) = range_of_var(env, k, v, r, around)?;
        if lo != hi && !(env.pool.ty(lo).scalar == ScalarType::Index && below(env, hi, lo)) {
            return None;
        }
        values.push(lo);
    }
    Some(env.pool.with_children(e, &values))
}

/// Of an expression in which a variable occurs more than once, and so is correlated with itself.
fn range_of_several(env: &mut Env, e: ExprId, v: VarId, r: Range, around: Around<'_>) -> Option<Range> {
    // In different operands of one minimum or maximum.
    let shifted = shift_min(&mut env.pool, e);
    if let Expr::Bin(BinOp::Min, a, b) = *env.pool.get(shifted) {
        let (ra, rb) = (range_of_var(env, a, v, r, around)?, range_of_var(env, b, v, r, around)?);
        return Some((lesser(env, ra.0, rb.0, around.loops), lesser(env, ra.1, rb.1, around.loops)));
    }
    let shifted = shift_max(&mut env.pool, e);
    if let Expr::Bin(BinOp::Max, a, b) = *env.pool.get(shifted)
        && shifted != e
    {
        let (ra, rb) = (range_of_var(env, a, v, r, around)?, range_of_var(env, b, v, r, around)?);
        return Some((env.pool.max(ra.0, rb.0), env.pool.max(ra.1, rb.1)));
    }
    // What a remainder leaves is a multiple: `i - i % 4`.
    let quotients = env.pool.rewrite(e, &mut |pool, x| match *pool.get(x) {
        Expr::Bin(BinOp::Mod, a, c) if pool.as_int(c).is_some_and(|c| c > 0) => {
            let q = pool.floor_div(a, c);
            let whole = pool.mul(q, c);
            Some(pool.sub(a, whole))
        }
        _ => None,
    });
    let quotients = normalize(&mut env.pool, quotients);
    if occurrences(env, quotients, v) == 1 {
        return range_of_var(env, quotients, v, r, around);
    }
    // Term by term, which is loose: for a range whose length has a constant bound only.
    let terms: Vec<(Vec<ExprId>, i64)> =
        poly(&env.pool, quotients).terms.iter().map(|(mono, &k)| (mono.clone(), k)).collect();
    if terms.len() < 2 {
        return None;
    }
    let (mut lo, mut hi) = (env.pool.int(0), env.pool.int(0));
    for (mono, k) in terms {
        let k = env.pool.int(k);
        let term = mono.iter().fold(k, |product, &x| env.pool.mul(product, x));
        let (l, h) = range_of_var(env, term, v, r, around)?;
        lo = env.pool.add(lo, l);
        hi = env.pool.add(hi, h);
    }
    let length = env.pool.sub(hi, lo);
    let loops: Vec<(VarId, ExprId)> =
        around.loops.iter().filter_map(|&(v, extent)| Some((env.pool.as_var(v)?, extent))).collect();
    let nested = Some(around.nested + 1).filter(|&n| n <= MOST_NESTED)?;
    let most = Known { loops: &loops, nested, bounds: FxHashMap::default() }.of(env, length)?;
    env.pool.as_int(most).map(|_| (lo, hi))
}

/// `min(x, y)`, or the one of them that is proved to be no greater.
fn lesser(env: &mut Env, x: ExprId, y: ExprId, around: &[(ExprId, ExprId)]) -> ExprId {
    let variables = around.iter().filter_map(|&(v, extent)| Some((env.pool.as_var(v)?, extent)));
    let facts = Facts::in_loops(variables);
    least_of(env, &facts, &[x, y])
}

/// `position`, or the last one that there is: masked iterations may be beyond it.
fn existing(env: &mut Env, f: UfId, outer: &[ExprId], position: ExprId, around: &[(ExprId, ExprId)]) -> ExprId {
    let Some(&size) = env.ufs[f].domain.last() else { return position };
    let size = env.pool.instantiate(size, outer);
    let one = env.pool.int(1);
    let last = match env.ufs[f].def {
        UfDef::PrefixSum { .. } => size,
        _ => env.pool.sub(size, one),
    };
    let room = env.pool.sub(last, position);
    if never_negative(env, around, room) { position } else { env.pool.min(position, last) }
}

/// Of two upper bounds the lower one, a constant where one of them is: then what is declared of the other counts.
pub fn least(env: &mut Env, x: ExprId, y: ExprId) -> ExprId {
    let (constant, other) = match (env.pool.as_int(x), env.pool.as_int(y)) {
        (Some(c), None) => (c, y),
        (None, Some(c)) => (c, x),
        _ => return env.pool.min(x, y),
    };
    let most = interval::bounds(env, &Facts::new(), other).hi;
    env.pool.int(most.map_or(constant, |n| n.min(constant)).max(0))
}

/// A minimum of more than two as the least of those that matter: where a tile is one of tiles, bounds of both are in its
/// extent.
pub(super) fn without_greater(env: &mut Env, around: &Facts, e: ExprId) -> ExprId {
    let operands = least_operands(&mut env.pool, e);
    if operands.len() < 3 {
        return e;
    }
    least_of(env, around, &operands)
}

/// The least of `operands`, without those that are proved to be no less than another.
fn least_of(env: &mut Env, around: &Facts, operands: &[ExprId]) -> ExprId {
    let mut prover = Prover::new();
    let mut below = |env: &mut Env, a: ExprId, b: ExprId| {
        let goal = env.pool.le(a, b);
        prover.prove(env, around, goal).is_proved()
    };
    let mut kept: Vec<ExprId> = Vec::new();
    for &new in operands {
        if !kept.iter().any(|&old| below(env, old, new)) {
            kept.retain(|&old| !below(env, new, old));
            kept.push(new);
        }
    }
    let first = kept.remove(0);
    kept.into_iter().fold(first, |least, e| env.pool.min(least, e))
}

/// An upper bound of `e` that holds for all values of `loops` (outermost first), over parameters
/// and functions without arguments; constants are preferred where the form gives one.
pub fn bound_above(env: &mut Env, e: ExprId, loops: &[(VarId, ExprId)]) -> Option<ExprId> {
    Known { loops, nested: 0, bounds: FxHashMap::default() }.of(env, e)
}

/// Bounds of the parts of an expression, each of which is met in many forms of the whole.
struct Known<'a> {
    loops: &'a [(VarId, ExprId)],
    nested: u32,
    bounds: FxHashMap<ExprId, Option<ExprId>>,
}

/// Forms of an expression and of its parts that are looked at.
const MAX_FORMS: usize = 256;

impl Known<'_> {
    fn of(&mut self, env: &mut Env, e: ExprId) -> Option<ExprId> {
        let e = normalize(&mut env.pool, e);
        if let Some(&bound) = self.bounds.get(&e) {
            return bound;
        }
        if self.bounds.len() >= MAX_FORMS {
            return is_known(env, e).then_some(e);
        }
        self.bounds.insert(e, None);
        let bound = bound_of_forms(env, e, self);
        self.bounds.insert(e, bound);
        bound
    }
}

fn bound_of_forms(env: &mut Env, e: ExprId, known: &mut Known) -> Option<ExprId> {
    let loops = known.loops;
    if is_known(env, e) {
        return Some(e);
    }
    let mut bound = bound_of_form(env, e, loops, known);
    if bound.is_none()
        && let Some(e) = joined_quotients(&mut env.pool, e)
    {
        bound = known.of(env, e);
    }
    for within in [within_quotient(&mut env.pool, e), within_row(env, e)].into_iter().flatten() {
        if let Some(other) = known.of(env, within) {
            bound = Some(bound.map_or(other, |b| least(env, b, other)));
        }
    }
    // `max(c*i + 8, x) - min(c*i, n)` is the greatest of four differences.
    if bound.is_none_or(|b| env.pool.as_int(b).is_none()) && choices(&env.pool, e) <= MAX_CHOICES {
        let shifted = shift_max(&mut env.pool, e);
        if shifted != e
            && let Expr::Bin(BinOp::Max, x, y) = *env.pool.get(shifted)
            && let (Some(x), Some(y)) = (known.of(env, x), known.of(env, y))
            && let (Some(m), Some(n)) = (env.pool.as_int(x), env.pool.as_int(y))
        {
            let other = env.pool.int(m.max(n));
            bound = Some(bound.map_or(other, |b| least(env, b, other)));
        }
    }
    // `min(c*i + 8, n) - c*i` is at most 8, whatever `n` is.
    let shifted = shift_min(&mut env.pool, e);
    if shifted == e || !matches!(env.pool.get(shifted), Expr::Bin(BinOp::Min, ..)) {
        return bound;
    }
    match (bound, known.of(env, shifted)) {
        (Some(x), Some(y)) => Some(least(env, x, y)),
        (x, y) => x.or(y),
    }
}

/// Differences of more minima and maxima than this are not taken apart.
const MAX_CHOICES: usize = 8;

/// How many minima and maxima are in `e`.
pub(super) fn choices(pool: &ExprPool, e: ExprId) -> usize {
    let mut n = 0;
    pool.walk(e, &mut |_, x| n += usize::from(matches!(x, Expr::Bin(BinOp::Min | BinOp::Max, ..))));
    n
}

/// `k*a - k*c*(a // c) + r` as `k*(c - 1) + r`, which is no less: the remainder by its greatest value.
fn within_quotient(pool: &mut ExprPool, e: ExprId) -> Option<ExprId> {
    let p = poly(pool, e);
    let (q, times, a, c) = p.terms.iter().find_map(|(mono, &k)| match mono.as_slice() {
        [q] if k < 0 => match *pool.get(*q) {
            Expr::Bin(BinOp::FloorDiv, a, c) => {
                let c = pool.as_int(c).filter(|&c| c > 0 && k % c == 0)?;
                Some((*q, -(k / c), a, c))
            }
            _ => None,
        },
        _ => None,
    })?;
    let whole = poly(pool, a);
    // Otherwise nothing is gained.
    if !whole.terms.iter().any(|(mono, _)| !mono.is_empty() && p.terms.contains_key(mono)) {
        return None;
    }
    let blocks = pool.int(times.checked_mul(c)?);
    let blocks = pool.mul(q, blocks);
    let times = pool.int(times);
    let rest = pool.int(c - 1);
    let rest = pool.sub(rest, a);
    let rest = pool.mul(rest, times);
    let e = pool.add(e, blocks);
    let e = pool.add(e, rest);
    Some(normalize(pool, e))
}

/// `k*(x - P(at(x))) + r` as `k*(n(at(x)) - 1) + r`, which is no less: `at(x)` is the row of the flat position `x`, which begins
/// at `P(at(x))` and has `n(at(x))` positions.
fn within_row(env: &mut Env, e: ExprId) -> Option<ExprId> {
    let p = poly(&env.pool, e);
    let (begin, times, body, args, x) = p.terms.iter().find_map(|(mono, &k)| {
        let &[begin] = mono.as_slice() else { return None };
        let Expr::Call(sum, args) = env.pool.get(begin) else { return None };
        let (UfDef::PrefixSum { body }, [outer @ .., row]) = (&env.ufs[*sum].def, args.as_slice()) else { return None };
        let Expr::Call(search, within) = env.pool.get(*row) else { return None };
        let [around @ .., x] = within.as_slice() else { return None };
        let found = k < 0 && around == outer && matches!(env.ufs[*search].def, UfDef::Search { sum: s } if s == *sum);
        found.then(|| (begin, -k, *body, args.to_vec(), *x))
    })?;
    // Otherwise nothing is gained.
    let flat = poly(&env.pool, x);
    if !flat.terms.iter().any(|(mono, _)| !mono.is_empty() && p.terms.contains_key(mono)) {
        return None;
    }
    let size = env.pool.instantiate(body, &args);
    let one = env.pool.int(1);
    let last = env.pool.sub(size, one);
    let beyond = env.pool.sub(begin, x);
    let rest = env.pool.add(beyond, last);
    let times = env.pool.int(times);
    let rest = env.pool.mul(rest, times);
    let e = env.pool.add(e, rest);
    Some(normalize(&mut env.pool, e))
}

/// `a // c - b // c + r` as `(a - b + c - 1) // c + r`, which is no less: the tiles that a stretch touches, by its length.
fn joined_quotients(pool: &mut ExprPool, e: ExprId) -> Option<ExprId> {
    let quotients: Vec<(i64, ExprId, ExprId, ExprId)> = poly(pool, e)
        .terms
        .iter()
        .filter_map(|(mono, &k)| match (mono.as_slice(), k) {
            ([q], 1 | -1) => match *pool.get(*q) {
                Expr::Bin(BinOp::FloorDiv, a, c) if pool.as_int(c).is_some_and(|c| c > 0) => Some((k, *q, a, c)),
                _ => None,
            },
            _ => None,
        })
        .collect();
    let (above, below) = quotients.iter().find_map(|x| {
        let other = quotients.iter().find(|y| x.0 == 1 && y.0 == -1 && x.3 == y.3)?;
        Some((x, other))
    })?;
    let one = pool.int(1);
    let both = pool.sub(above.1, below.1);
    let rest = pool.sub(e, both);
    let length = pool.sub(above.2, below.2);
    let last = pool.sub(above.3, one);
    let length = pool.add(length, last);
    let length = normalize(pool, length);
    let tiles = pool.floor_div(length, above.3);
    let joined = pool.add(tiles, rest);
    Some(normalize(pool, joined))
}

/// The same by the outermost operator.
fn bound_of_form(env: &mut Env, e: ExprId, loops: &[(VarId, ExprId)], known: &mut Known) -> Option<ExprId> {
    match env.pool.get(e).clone() {
        Expr::Var(v) => {
            let &(_, extent) = loops.iter().find(|(x, _)| *x == v)?;
            let b = known.of(env, extent)?;
            let one = env.pool.int(1);
            Some(env.pool.sub(b, one))
        }
        Expr::Bin(BinOp::Min, a, b) => {
            let (x, y) = (known.of(env, a), known.of(env, b));
            match (x, y) {
                (Some(x), Some(y)) => Some(least(env, x, y)),
                (x, y) => x.or(y),
            }
        }
        Expr::Bin(op @ (BinOp::Max | BinOp::Add), a, b) => {
            let (x, y) = (known.of(env, a)?, known.of(env, b)?);
            Some(env.pool.bin(op, x, y))
        }
        Expr::Bin(BinOp::Sub, a, b) => {
            // What is subtracted is taken at its least value.
            if let Some((_, hi)) = range_within(env, e, loops, 0, known.nested).filter(|r| is_known(env, r.1)) {
                return Some(hi);
            }
            let x = known.of(env, a)?;
            if env.pool.as_int(b).is_some() {
                return Some(env.pool.sub(x, b));
            }
            let subtracts = |env: &mut Env| {
                let zero = env.pool.int(0);
                let goal = env.pool.le(zero, b);
                Prover::new().prove(env, &Facts::in_loops(loops.iter().copied()), goal).is_proved()
            };
            (never_negative(env, &[], b) || subtracts(env)).then_some(x)
        }
        Expr::Bin(BinOp::Mul, a, b) => {
            let ranges: Vec<(ExprId, ExprId)> = loops.iter().map(|&(v, e)| (env.pool.var(v), e)).collect();
            let (x, k) = if env.pool.as_int(b).is_some() { (a, b) } else { (b, a) };
            if env.pool.as_int(k).is_some_and(|c| c < 0) {
                return never_negative(env, &ranges, x).then(|| env.pool.int(0));
            }
            if env.pool.as_int(k).is_some() {
                let x = known.of(env, x)?;
                return Some(env.pool.mul(x, k));
            }
            if !never_negative(env, &ranges, a) || !never_negative(env, &ranges, b) {
                return None;
            }
            let (x, y) = (known.of(env, a)?, known.of(env, b)?);
            Some(env.pool.mul(x, y))
        }
        Expr::Bin(BinOp::FloorDiv, a, b) if env.pool.as_int(b).is_some_and(|c| c > 0) => {
            let x = known.of(env, a)?;
            Some(env.pool.floor_div(x, b))
        }
        // By 1 or more a quotient is no greater, and by 0 it is 0: loose, for dimensions that only must exist.
        Expr::Bin(BinOp::FloorDiv, a, b) => {
            let ranges: Vec<(ExprId, ExprId)> = loops.iter().map(|&(v, e)| (env.pool.var(v), e)).collect();
            (never_negative(env, &ranges, a) && never_negative(env, &ranges, b)).then(|| known.of(env, a)).flatten()
        }
        Expr::Bin(BinOp::Mod, _, b) => {
            // The remainder of a division by 0 is 0.
            let (zero, one) = (env.pool.int(0), env.pool.int(1));
            let c = known.of(env, b)?;
            let last = env.pool.sub(c, one);
            Some(env.pool.max(last, zero))
        }
        Expr::Call(f, args) if matches!(env.ufs[f].def, UfDef::Search { .. }) => {
            let UfDef::Search { sum } = env.ufs[f].def else { return None };
            let rows = *env.ufs[sum].domain.last()?;
            let rows = env.pool.instantiate(rows, &args[..args.len() - 1]);
            let one = env.pool.int(1);
            let rows = known.of(env, rows)?;
            Some(env.pool.sub(rows, one))
        }
        Expr::Call(f, _) => {
            // The greatest value over the whole domain, taken from this batch by the prelude.
            let mut domain = env.ufs[f].domain.clone();
            let mut args: Vec<ExprId> = (0..domain.len() as u32).map(|a| env.pool.arg(a)).collect();
            if let UfDef::PrefixSum { .. } = env.ufs[f].def {
                // It does not decrease: greatest at the end of a row, which is no index of the row.
                args.pop();
                args.extend(domain.pop());
            }
            let body = env.pool.call(f, args);
            let name = format!("{}.max", env.ufs[f].name);
            let max = env.uf(&name, domain, UfDef::Max { body });
            Some(env.pool.call(max, []))
        }
        _ => {
            let (_, hi) = range_within(env, e, loops, 0, known.nested)?;
            is_known(env, hi).then_some(hi)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cora_ir::Param;

    #[test]
    fn a_part_that_ends_before_the_first_iteration_has_no_size() {
        let mut env = Env::default();
        let p = env.params.push(Param { name: "N".into(), lo: 1, hi: 4 });
        let (n, below) = (env.pool.param(p), env.pool.int(-1));
        assert_eq!(least(&mut env, n, below), env.pool.int(0));
    }
}
