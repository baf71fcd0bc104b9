//! Expressions over loops as ones over the positions that the loops give.

use crate::simplify::{Facts, interval};
use cora_ir::affine::{Monomial, Poly, build, normalize, poly};
use cora_ir::{Env, ExprId, ExprPool, VarId};
use rustc_hash::FxHashMap;

/// `e` with each position's binding, and the loop variables of a binding that follow from the position, given by the
/// position. `known` has bindings over loops with what they are bound to; what follows from none of them stays.
pub(super) fn in_terms_of(env: &mut Env, facts: &Facts, e: ExprId, known: &[(ExprId, ExprId)]) -> ExprId {
    let mut known: Vec<_> = known.iter().filter(|k| env.pool.as_int(k.0).is_none()).copied().collect();
    // What a binding is made of was made before it: the greatest first, each where it is whole.
    known.sort_by_key(|&(binding, _)| std::cmp::Reverse(binding));
    let mut e = e;
    for &(binding, position) in &known {
        e = env.pool.rewrite(e, &mut |_, x| (x == binding).then_some(position));
    }
    for (binding, position) in known {
        let vars = env.pool.vars_of(binding);
        if env.pool.as_var(binding).is_some() || !uses_any(&env.pool, e, &vars) {
            continue;
        }
        let p = poly(&env.pool, binding);
        let solutions = [difference(env, &p, position), digits(env, facts, &p, position)];
        for map in solutions.into_iter().flatten() {
            let solved = env.pool.substitute(e, &map);
            let solved = normalize(&mut env.pool, solved);
            if !uses_any(&env.pool, solved, &vars) {
                e = solved;
                break;
            }
        }
    }
    e
}

fn uses_any(pool: &ExprPool, e: ExprId, vars: &[VarId]) -> bool {
    vars.iter().any(|&v| pool.uses_var(e, v))
}

/// The variable that a monomial is.
fn only(pool: &ExprPool, m: &Monomial) -> Option<VarId> {
    if let [e] = m.as_slice() { pool.as_var(*e) } else { None }
}

/// A variable that is the position less the other terms.
fn difference(env: &mut Env, p: &Poly, position: ExprId) -> Option<FxHashMap<VarId, ExprId>> {
    let one = p.terms.iter().find(|(m, c)| **c == 1 && only(&env.pool, m).is_some())?.0;
    let v = only(&env.pool, one)?;
    let mut rest = p.clone();
    rest.terms.remove(one);
    let rest = build(&mut env.pool, &rest);
    if env.pool.uses_var(rest, v) {
        return None;
    }
    let at = env.pool.sub(position, rest);
    Some([(v, at)].into_iter().collect())
}

/// The variables as the digits of the position: each term is more than all smaller ones together can be.
fn digits(env: &mut Env, facts: &Facts, p: &Poly, position: ExprId) -> Option<FxHashMap<VarId, ExprId>> {
    let mut terms: Vec<(&Monomial, i64)> = p.terms.iter().map(|(m, &c)| (m, c)).collect();
    terms.sort_by_key(|&(_, c)| std::cmp::Reverse(c));
    let mut rest = p.clone();
    let mut left = position;
    let mut map = FxHashMap::default();
    for (term, c) in terms {
        let v = only(&env.pool, term)?;
        rest.terms.remove(term);
        let smaller = build(&mut env.pool, &rest);
        let range = interval::bounds(env, facts, smaller);
        if c < 1 || range.lo.is_none_or(|lo| lo < 0) || range.hi.is_none_or(|hi| hi >= c) {
            return None;
        }
        let c = env.pool.int(c);
        let digit = env.pool.floor_div(left, c);
        map.insert(v, digit);
        left = env.pool.modulo(left, c);
    }
    Some(map)
}
