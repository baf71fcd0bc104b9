//! Which positions of a dimension one thread writes, where those are not all from the first one to the last.
//!
//! ```text
//! for %g in 0..4 { for %t in 0..2 thread.y { @R[%g * 2 + %t] = .. } }   each thread writes every other position
//! ```
//!
//! Counted from the thread's first position they are numbers whose digits are the loops inside the thread. A thread may
//! read what its own loops write in such digits: the box from the first position to the last has others' positions too.

use cora_ir::affine::poly;
use cora_ir::{Env, ExprId, VarId};

/// What an iteration of each loop adds to the position, and at most how many iterations it has; the least addend first.
pub(super) struct Digits(Vec<(i64, Option<i64>)>);

impl Digits {
    /// The digits of index `e` in `loops`; `None` where all positions between are written too, as far as that is known:
    /// an index that is not a sum of loops counts as such.
    pub(super) fn of(env: &mut Env, e: ExprId, loops: &[(VarId, ExprId)]) -> Option<Self> {
        let mut digits = Vec::new();
        for (m, c) in poly(&env.pool, e).terms {
            let Some(&(_, extent)) = loops.iter().find(|&&(v, _)| m.iter().any(|&a| env.pool.uses_var(a, v))) else {
                continue;
            };
            let [atom] = m[..] else { return None };
            env.pool.as_var(atom)?;
            digits.push((c.checked_abs()?, env.pool.constant_bound(extent)));
        }
        digits.sort_unstable_by_key(|d| d.0);
        // How many positions from the first one on have no gap.
        let mut reach = Some(1_i64);
        for &(c, n) in &digits {
            if reach.is_some_and(|r| c > r) {
                return Some(Self(digits));
            }
            reach = reach.zip(n).and_then(|(r, n)| r.checked_add(c.checked_mul(n.max(1) - 1)?));
        }
        None
    }

    /// Whether `offset`, which is no less than the first position and no greater than the last one, is written wherever
    /// `loops` run.
    pub(super) fn have(&self, env: &mut Env, offset: ExprId, loops: &[(VarId, ExprId)]) -> bool {
        let Some(top) = self.0.len().checked_sub(1) else { return false };
        // The greatest value of each digit.
        let mut greatest = vec![Some(0_i64); self.0.len()];
        for (m, c) in poly(&env.pool, offset).terms {
            let Some(digit) = self.0.iter().rposition(|d| c % d.0 == 0) else { return false };
            let most = match m[..] {
                [] => Some(1),
                [atom] => env.pool.as_var(atom).and_then(|v| {
                    let &(_, extent) = loops.iter().find(|l| l.0 == v)?;
                    Some(env.pool.constant_bound(extent)?.max(1) - 1)
                }),
                _ => None,
            };
            if c < 0 && digit != top {
                return false;
            }
            let term = most.and_then(|n| n.checked_mul(c / self.0[digit].0));
            greatest[digit] = greatest[digit].zip(term).and_then(|(a, b)| a.checked_add(b));
        }
        // The last one has no bound but that of the positions.
        self.0.iter().zip(greatest).take(top).all(|(d, g)| d.1.zip(g).is_some_and(|(n, g)| g < n))
    }
}
