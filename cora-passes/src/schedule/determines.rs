//! Whether values determine a variable: no two values of it give the same ones.
//!
//! ```text
//! b = row.at(f), i = f - row(b)          determine f = i + row(b)
//! x // n and x % n                       determine x where n is determined
//! 32 * o + i where i < 32                determines o and i
//! order(a, x), sorted by `remap`         determines x where a is determined
//! x dealt to n pieces by `remap`         determines x
//! ```
//!
//! What is known is closed under such inversions, so a fused loop's variable follows from the indices that it stands for,
//! however many loops were fused. No prover is asked.

use super::remap::dealt;
use cora_ir::affine::{normalize, poly};
use cora_ir::{BinOp, Env, Expr, ExprId, ExprPool, UfDef, UfId, VarId};

/// Whether two values of `v` never give the same `values`, whatever the other variables of the loops `moving` (with their
/// extents) are in either case; variables of no such loop are the same in both.
pub(super) fn determines(env: &mut Env, values: &[ExprId], moving: &[(VarId, ExprId)], v: VarId) -> bool {
    let sorts = |f: UfId| matches!(env.ufs[f].def, UfDef::SortDesc { .. });
    determines_by(&mut env.pool, &sorts, values, moving, v)
}

/// [`determines`], where a function is a permutation if it `sorts`.
fn determines_by(
    pool: &mut ExprPool,
    sorts: &dyn Fn(UfId) -> bool,
    values: &[ExprId],
    moving: &[(VarId, ExprId)],
    v: VarId,
) -> bool {
    let wanted = pool.var(v);
    let mut known: Vec<ExprId> = values.iter().map(|&e| normalize(pool, e)).collect();
    // As they are written sums have a minimum as a term, which is distributed over the others otherwise.
    known.extend(values.iter().filter(|&e| !known.contains(e)).copied().collect::<Vec<_>>());
    // Each round adds parts of expressions that are there, so their number ends it.
    let mut next = 0;
    while next < known.len() {
        if known.contains(&wanted) {
            return true;
        }
        let found = from_order(pool, sorts, known[next], &known, moving)
            .or_else(|| from_dealt(pool, known[next], moving))
            .or_else(|| from_sum(pool, known[next], &known, moving))
            .or_else(|| from_digits(pool, known[next], &known, moving));
        match found.filter(|e| !known.contains(e)) {
            // What was of no use before may be now.
            Some(e) => {
                known.push(e);
                next = 0;
            }
            None => next += 1,
        }
    }
    known.contains(&wanted)
}

/// `x` of `order(a, x)`, which a function that sorts gives, where `a` is known.
fn from_order(
    pool: &ExprPool,
    sorts: &dyn Fn(UfId) -> bool,
    e: ExprId,
    known: &[ExprId],
    moving: &[(VarId, ExprId)],
) -> Option<ExprId> {
    let Expr::Call(f, args) = pool.get(e) else { return None };
    let (&x, outer) = args.split_last()?;
    (sorts(*f) && outer.iter().all(|&a| is_known(pool, a, known, moving))).then_some(x)
}

/// The variable of a loop whose iterations are dealt to a number of pieces by `e`.
fn from_dealt(pool: &mut ExprPool, e: ExprId, moving: &[(VarId, ExprId)]) -> Option<ExprId> {
    let Expr::Bin(BinOp::Min, ..) = pool.get(e) else { return None };
    let mut pieces = Vec::new();
    pool.any(e, &mut |n| {
        if let Expr::Bin(BinOp::Mod, x, n) = *n
            && let (Some(v), Some(n)) = (pool.as_var(x), pool.as_int(n))
        {
            pieces.extend(moving.iter().find(|l| l.0 == v).map(|l| (x, l.1, n)));
        }
        false
    });
    let e = normalize(pool, e);
    pieces.into_iter().find_map(|(x, extent, n)| {
        let order = dealt(pool, extent, x, n);
        (normalize(pool, order) == e).then_some(x)
    })
}

/// Of a sum's terms that are not known, the one with the greatest coefficient, if the others together are always less: they
/// are digits of it.
fn from_sum(pool: &mut ExprPool, e: ExprId, known: &[ExprId], moving: &[(VarId, ExprId)]) -> Option<ExprId> {
    let p = poly(pool, e);
    let mut open = Vec::new();
    for (m, &c) in p.terms.iter().filter(|(m, _)| !m.iter().all(|&a| is_known(pool, a, known, moving))) {
        let [a] = m[..] else { return None };
        open.push((c.checked_abs()?, c, a));
    }
    open.sort_unstable();
    let (size, _, greatest) = open.pop()?;
    let mut rest: i64 = 0;
    for (_, c, a) in open {
        let v = pool.as_var(a)?;
        let n = pool.constant_bound(moving.iter().find(|l| l.0 == v)?.1)?;
        rest = rest.checked_add(c.checked_abs()?.checked_mul(n.max(1) - 1)?)?;
    }
    (rest < size).then_some(greatest)
}

/// `x` of `x // n`, where `x % n` and `n` are known as well. Divisors in bindings are factors and extents of fused loops:
/// where one is 0 there is no iteration.
fn from_digits(pool: &mut ExprPool, e: ExprId, known: &[ExprId], moving: &[(VarId, ExprId)]) -> Option<ExprId> {
    let Expr::Bin(BinOp::FloorDiv, x, n) = *pool.get(e) else { return None };
    let rest = pool.bin(BinOp::Mod, x, n);
    (known.contains(&rest) && is_known(pool, n, known, moving)).then_some(x)
}

/// Whether `e` is a function of what is known and of what does not move.
fn is_known(pool: &ExprPool, e: ExprId, known: &[ExprId], moving: &[(VarId, ExprId)]) -> bool {
    known.contains(&e)
        || match pool.get(e) {
            Expr::Var(v) => !moving.iter().any(|l| l.0 == *v),
            // What is read may be written between the two.
            Expr::Load { .. } => false,
            _ => pool.children(e).iter().all(|&k| is_known(pool, k, known, moving)),
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cora_ir::ids::EntityId;
    use cora_ir::{TensorId, UfId};

    #[test]
    fn fused_loops_follow_from_their_indices() {
        let mut pool = ExprPool::default();
        let [f, other] = [0, 1].map(VarId::from_index);
        let [row, at, len] = [0, 1, 2].map(UfId::from_index);
        let x = pool.var(f);
        let b = pool.call(at, [x]);
        let before = pool.call(row, [b]);
        let inside = pool.sub(x, before);
        let n = pool.call(len, [b]);
        let h = pool.bin(BinOp::FloorDiv, inside, n);
        let q = pool.bin(BinOp::Mod, inside, n);
        let step = pool.mul(h, n);
        let also_q = pool.sub(inside, step);
        let o = pool.var(other);
        let (many, few) = (pool.call(len, [o]), pool.int(8));
        let (alone, both) = (&[(f, many)][..], &[(f, many), (other, few)][..]);
        let order = UfId::from_index(3);
        let sorts = |f: UfId| f == order;
        let determines = |pool: &mut ExprPool, values: &[ExprId], moving: &[(VarId, ExprId)], v: VarId| {
            determines_by(pool, &sorts, values, moving, v)
        };
        let mut yes = |values: &[ExprId], moving| determines(&mut pool, values, moving, f);
        assert!(yes(&[b, inside], alone));
        assert!(yes(&[b, h, q], alone));
        assert!(yes(&[q, h, b], both));
        assert!(yes(&[b, h, also_q], alone));
        assert!(!yes(&[b, h], alone) && !yes(&[b, q], alone) && !yes(&[h, q], alone) && !yes(&[inside], alone));
        // Something else moves, too.
        let mixed = pool.add(x, o);
        assert!(determines(&mut pool, &[mixed], alone, f));
        assert!(!determines(&mut pool, &[mixed], both, f));
        assert!(determines(&mut pool, &[mixed, o], both, f));
        for (factor, enough) in [(7, false), (8, true), (-9, true)] {
            let by = pool.int(factor);
            let steps = pool.mul(x, by);
            let sum = pool.add(steps, o);
            assert_eq!(determines(&mut pool, &[sum], both, f), enough, "{factor}");
        }
        let sorted = pool.call(order, [x]);
        let first = pool.call(at, [sorted]);
        let start = pool.call(row, [first]);
        let rest = pool.sub(sorted, start);
        assert!(determines(&mut pool, &[first, rest], alone, f) && !determines(&mut pool, &[first], alone, f));
        let in_row = pool.call(order, [o, x]);
        assert!(determines(&mut pool, &[in_row], alone, f) && determines(&mut pool, &[in_row, o], both, f));
        assert!(!determines(&mut pool, &[in_row], both, f));
        let order = dealt(&mut pool, many, x, 4);
        let tail = pool.sub(order, n);
        let order = normalize(&mut pool, order);
        for e in [order, tail] {
            assert!(determines(&mut pool, &[e, b], alone, f), "{e:?}");
        }
        let other_extent = dealt(&mut pool, few, x, 4);
        assert!(!determines(&mut pool, &[other_extent], alone, f));
        let read = pool.load(TensorId::from_index(0), cora_ir::ScalarType::I32, [b]);
        let moved = pool.add(x, read);
        assert!(!determines(&mut pool, &[b, moved], alone, f));
    }
}
