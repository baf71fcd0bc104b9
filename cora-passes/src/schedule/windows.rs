//! Parts of a value that move with sums of iterators, as those of a window do, over a position for each sum.
//!
//! ```text
//! for t in 0..n, u in 0..3: X[b, t + u - 1] else 0     =>   for w in 0..n + 2: X[b, w - 1] else 0,   w = t + u
//! for t in 0..n, u in 0..3: X[b, t - u] else 0         =>   for w in 0..n + 2: X[b, w - 2] else 0,   w = t - u + 2
//! for t in 0..n, u in 0..3: X[b, t + 4 * u - 4] else 0 =>   for w in 0..n + 8: X[b, w - 4] else 0,   w = t + 4 * u
//! ```

use cora_ir::affine::{normalize, poly};
use cora_ir::loops::{Block, Iter, IterKind};
use cora_ir::{Env, Expr, ExprId, VarId};
use rustc_hash::FxHashMap;

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
    let (mut over, mut sums, mut times) = (FxHashMap::default(), Vec::new(), 1_i64);
    for Window { lead, others } in all {
        let of = |v: VarId| block.iters.iter().find(|i| i.var == v);
        let extent = of(lead)?.extent;
        // How far the positions reach to both sides of the leading iterator's, and how many there are for each of those.
        let (mut before, mut behind, mut each) = (0_i64, 0_i64, 1_i64);
        for &(v, factor) in &others {
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
        let (here, first, shift) = (pool.var(position), pool.var(lead), pool.int(before));
        let mut moved = shift;
        for (v, factor) in others {
            let (v, factor) = (pool.var(v), pool.int(factor));
            let term = pool.mul(v, factor);
            moved = pool.add(moved, term);
        }
        let (sum, rest, reach) = (pool.add(first, moved), pool.sub(here, moved), pool.int(before + behind));
        let length = pool.add(extent, reach);
        let (sum, length) = (normalize(pool, sum), normalize(pool, length));
        over.insert(lead, rest);
        iters[at] = Iter { var: position, kind: IterKind::Spatial, extent: length, binding: here };
        times = times.saturating_mul(match (pool.as_int(extent), pool.as_int(length)) {
            (Some(n), Some(length)) if length > 0 => n.saturating_mul(each) / length,
            _ => each,
        });
        sums.push((position, sum));
        let gone: Vec<VarId> = pool.vars_of(moved);
        iters.retain(|i| !gone.contains(&i.var));
    }
    let pool = &mut env.pool;
    let value = pool.substitute(e, &over);
    let value = normalize(pool, value);
    // What still moves with one of them, a value or an extent, has no one position.
    let gone = |v: VarId| block.iters.iter().any(|i| i.var == v) && !iters.iter().any(|i| i.var == v);
    let free = |e: ExprId| !pool.vars_of(e).into_iter().any(gone);
    (free(value) && iters.iter().all(|i| free(i.extent))).then_some(Windowed { value, iters, sums, times })
}

/// How far a window reaches, at most.
const MAX_REACH: i64 = 1 << 30;

/// `lead + sum of factor * other`, up to a constant.
#[derive(PartialEq)]
struct Window {
    lead: VarId,
    others: Vec<(VarId, i64)>,
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
        // The one of a variable extent, or of the greatest.
        let extent = |v: VarId| block.iters.iter().find(|i| i.var == v).and_then(|i| pool.as_int(i.extent));
        let leads = (0..terms.len()).rev().filter(|&n| terms[n].1 == 1);
        let (lead, _) = terms.remove(leads.max_by_key(|&n| extent(terms[n].0).unwrap_or(i64::MAX))?);
        let window = Window { lead, others: terms };
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
