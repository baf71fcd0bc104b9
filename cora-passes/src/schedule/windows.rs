//! Parts of a value that move with sums of iterators, as those of a window do, over a position for each sum.
//!
//! ```text
//! for t in 0..n, u in 0..3: X[b, t + u - 1] else 0     =>   for w in 0..n + 2: X[b, w - 1] else 0,   w = t + u
//! for t in 0..n, u in 0..3: X[b, t - u] else 0         =>   for w in 0..n + 2: X[b, w - 2] else 0,   w = t - u + 2
//! for t in 0..n, u in 0..3: X[b, t + 4 * u - 4] else 0 =>   for w in 0..n + 8: X[b, w - 4] else 0,   w = t + 4 * u
//! for t in 0..n, u in 0..3: X[b, 2 * t + u] else 0     =>   for w in 0..2 * n + 1: X[b, w] else 0,    w = 2 * t + u
//! ```

use cora_ir::affine::{Poly, build, normalize, poly};
use cora_ir::loops::{Block, Iter, IterKind};
use cora_ir::{Env, Expr, ExprId, ExprPool, ScalarType, Type, VarId};

/// A part of a block's value, over positions of windows in the place of the iterators that they are sums of.
pub(crate) struct Windowed {
    pub value: ExprId,
    /// The block's iterators, those of each window replaced by its position.
    pub iters: Vec<Iter>,
    /// What each position is over the block's iterators.
    pub sums: Vec<(VarId, ExprId)>,
    /// In how many iterations of the windows' iterators a position is read, about, where all others have one.
    pub times: i64,
}

/// `e` over the positions of the windows at which it reads, or `None` if it has none or moves with their iterators apart
/// from these sums.
pub(crate) fn windowed(env: &mut Env, block: &Block, e: ExprId) -> Option<Windowed> {
    let all = windows(env, block, e)?;
    let mut iters = block.iters.clone();
    let (mut value, mut sums, mut times) = (e, Vec::new(), 1_i64);
    for window in all {
        let Window { lead, step, ref others } = window;
        let of = |v: VarId| block.iters.iter().find(|i| i.var == v);
        let extent = of(lead)?.extent;
        // How far the positions reach to both sides of the leading iterator's, and how many there are for each of those.
        let (mut before, mut behind, mut each) = (0_i64, 0_i64, 1_i64);
        for &(v, factor) in others {
            // Without an iteration there would be less than no position.
            let count = env.pool.as_int(of(v)?.extent).filter(|&n| n > 0)?;
            let reach = factor.checked_mul(count - 1).filter(|r| r.abs() <= MAX_REACH)?;
            before = before.checked_sub(reach.min(0))?;
            behind = behind.checked_add(reach.max(0))?;
            each = each.saturating_mul(count);
        }
        let at = iters.iter().position(|i| i.var == lead)?;
        let position = env.new_var(env.vars[lead].name.clone());
        let pool = &mut env.pool;
        let sum = window.sum(pool, before);
        value = over_position(pool, value, &window, (position, before))?;
        let (here, times_step, beyond) = (pool.var(position), pool.int(step), pool.int(before + behind + 1 - step));
        let whole = pool.mul(extent, times_step);
        let mut length = pool.add(whole, beyond);
        if before + behind + 1 < step {
            // Of nothing there would be less than no position.
            let zero = pool.int(0);
            length = pool.max(length, zero);
        }
        let length = normalize(pool, length);
        iters[at] = Iter { var: position, kind: IterKind::Spatial, extent: length, binding: here };
        times = times.saturating_mul(match (pool.as_int(extent), pool.as_int(length)) {
            (Some(n), Some(length)) if length > 0 => n.saturating_mul(each) / length,
            _ => each / step,
        });
        sums.push((position, sum));
        iters.retain(|i| !others.iter().any(|o| o.0 == i.var));
    }
    let pool = &mut env.pool;
    let value = normalize(pool, value);
    // What still moves with one of them, a value or an extent, has no one position.
    let gone = |v: VarId| block.iters.iter().any(|i| i.var == v) && !iters.iter().any(|i| i.var == v);
    let free = |e: ExprId| !pool.vars_of(e).into_iter().any(gone);
    (free(value) && iters.iter().all(|i| free(i.extent))).then_some(Windowed { value, iters, sums, times })
}

/// How far a window reaches, at most.
const MAX_REACH: i64 = 1 << 30;

/// `step * lead + sum of factor * other`, up to a constant.
#[derive(PartialEq)]
struct Window {
    lead: VarId,
    /// Positive.
    step: i64,
    others: Vec<(VarId, i64)>,
}

impl Window {
    fn terms(&self) -> impl Iterator<Item = (VarId, i64)> + '_ {
        std::iter::once((self.lead, self.step)).chain(self.others.iter().copied())
    }

    /// The sum, and a constant.
    fn sum(&self, pool: &mut ExprPool, constant: i64) -> ExprId {
        let mut sum = pool.int(constant);
        for (v, factor) in self.terms() {
            let (v, factor) = (pool.var(v), pool.int(factor));
            let term = pool.mul(v, factor);
            sum = pool.add(sum, term);
        }
        normalize(pool, sum)
    }
}

/// `e` with `position - before` for the window's sum; nothing where it moves with the iterators apart from that.
fn over_position(pool: &mut ExprPool, e: ExprId, w: &Window, (position, before): (VarId, i64)) -> Option<ExprId> {
    if w.terms().all(|t| !pool.uses_var(e, t.0)) {
        return Some(e);
    }
    if pool.ty(e) == Type::scalar(ScalarType::Index)
        && let Some(over) = linear(pool, e, w, (position, before))
    {
        return Some(over);
    }
    if let Expr::Bin(op, a, b) = *pool.get(e)
        && op.is_comparison()
        && pool.ty(a) == Type::scalar(ScalarType::Index)
    {
        // Its sides are what is added on each.
        let difference = pool.sub(a, b);
        let over = linear(pool, difference, w, (position, before))?;
        let zero = pool.int(0);
        let over = pool.bin(op, over, zero);
        return Some(normalize(pool, over));
    }
    let kids = pool.children(e);
    if kids.is_empty() {
        return None;
    }
    let new = kids.iter().map(|&k| over_position(pool, k, w, (position, before))).collect::<Option<Vec<_>>>()?;
    Some(pool.with_children(e, &new))
}

/// A multiple of the sum, and what does not move with its iterators.
fn linear(pool: &mut ExprPool, e: ExprId, w: &Window, (position, before): (VarId, i64)) -> Option<ExprId> {
    let mut rest = poly(pool, e);
    let monomial = |pool: &mut ExprPool, v: VarId| vec![pool.var(v)];
    let lead = monomial(pool, w.lead);
    let times = rest.terms.get(&lead).filter(|&k| k % w.step == 0)? / w.step;
    for (v, factor) in w.terms() {
        let term = monomial(pool, v);
        if rest.terms.remove(&term) != times.checked_mul(factor) {
            return None;
        }
    }
    let here = monomial(pool, position);
    let at = Poly { terms: [(here, times), (Vec::new(), times.checked_mul(before)?.checked_neg()?)].into() };
    let rest = rest.checked_add_scaled(&at, 1)?;
    let over = build(pool, &rest);
    w.terms().all(|t| !pool.uses_var(over, t.0)).then_some(over)
}

/// The windows at which `e` reads, no iterator in two of them.
fn windows(env: &mut Env, block: &Block, e: ExprId) -> Option<Vec<Window>> {
    let pool = &mut env.pool;
    let mut positions = Vec::new();
    pool.walk(e, &mut |_, x| {
        if let Expr::Load { index, .. } = x {
            positions.extend(index.iter().copied());
        }
    });
    let place = |v: VarId| block.iters.iter().position(|i| i.var == v);
    let mut found: Vec<Window> = Vec::new();
    for position in positions {
        if pool.vars_of(position).into_iter().filter_map(place).count() < 2 {
            continue;
        }
        let mut terms = Vec::new();
        for (monomial, factor) in poly(pool, position).terms {
            match monomial.as_slice() {
                [] => {}
                &[atom] => terms.push((pool.as_var(atom).filter(|&v| place(v).is_some())?, factor)),
                _ => return None,
            }
        }
        terms.sort_by_key(|t| place(t.0));
        // One that moves by single positions, if there is such; of those the one of a variable extent, or of the greatest.
        let extent = |v: VarId| block.iters.iter().find(|i| i.var == v).and_then(|i| pool.as_int(i.extent));
        let others_known = |n: usize| (0..terms.len()).all(|k| k == n || extent(terms[k].0).is_some());
        let leads = (0..terms.len()).rev().filter(|&n| (1..=MAX_REACH).contains(&terms[n].1) && others_known(n));
        let first = |n: usize| (terms[n].1 == 1, extent(terms[n].0).unwrap_or(i64::MAX));
        let (lead, step) = terms.remove(leads.max_by_key(|&n| first(n))?);
        let window = Window { lead, step, others: terms };
        if found.contains(&window) {
            continue;
        }
        let of = |w: &Window, v: VarId| w.lead == v || w.others.iter().any(|o| o.0 == v);
        if found.iter().any(|w| of(w, lead) || window.others.iter().any(|o| of(w, o.0))) {
            return None;
        }
        found.push(window);
    }
    found.sort_by_key(|w| place(w.lead));
    (!found.is_empty()).then_some(found)
}
