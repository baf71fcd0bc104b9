//! Innermost loops with a condition that they do not change become a branch around two loops.
//!
//! ```text
//! for %d in 0..4 { @C[ramp(%d * 16, 1, 16)] = select(splat(%k < %n, 16), a, b) }
//!   =>  if %k < %n { for %d in 0..4 { @C[ramp(%d * 16, 1, 16)] = a } } else { for %d in 0..4 { @C[ramp(%d * 16, 1, 16)] = b } }
//! ```
//!
//! Of conditions one of which follows from another the one that most follow from is asked first: there is a loop for each number of
//! them that hold.
//!
//! The choice between two values, a guarded read and a mask are work in each iteration, of all lanes; the branch is one for all
//! iterations. What only prefetches ask for in a loop that is left as it is becomes a choice between two lines. On a grid
//! threads would run both loops one after the other, and a predicate costs little: there they stay.
//!
//! Requires: no vector or unrolled loops, reads of tables outside of the loops. Ensures: the same statements in the same
//! order.

use super::cut_tails::{copy, failing, is_innermost, without};
use cora_ir::affine::normalize;
use cora_ir::loops::LoopKind;
use cora_ir::storage::{Stmt, StorageModule};
use cora_ir::{BinOp, Env, Expr, ExprId, ScalarType, TensorId, UnOp, VarId};
use rustc_hash::FxHashSet;

/// Conditions of one loop that become branches: each doubles what it holds.
const MOST_CONDITIONS: usize = 2;
/// Conditions one of which follows from the other, as those of the rows of a tile do: there are as many loops as conditions.
const MOST_IN_A_ROW: usize = 8;
/// Loops with more statements are copied at a price.
const MOST_STATEMENTS: usize = 16;
/// The same where all conditions follow from one: each copy has fewer statements than the one before it.
const MOST_STATEMENTS_IN_A_ROW: usize = 64;

/// Moves such conditions out of loops, in every kernel that is none of a grid.
pub fn unswitch(m: &mut StorageModule) {
    for k in m.kernels.iter_mut().filter(|k| !k.is_grid()) {
        let body = std::mem::take(&mut k.body);
        k.body = in_body(&mut m.env, body);
    }
}

fn in_body(env: &mut Env, stmts: Vec<Stmt>) -> Vec<Stmt> {
    let mut out = Vec::with_capacity(stmts.len());
    for s in stmts {
        match s {
            Stmt::For { var, extent, kind: LoopKind::Serial, body } if is_innermost(&body) => {
                out.extend(loops(env, (var, extent), body, (MOST_CONDITIONS, MOST_IN_A_ROW)));
            }
            mut s => {
                for inner in s.bodies_mut() {
                    *inner = in_body(env, std::mem::take(inner));
                }
                out.push(s);
            }
        }
    }
    out
}

/// A loop without such a condition, once where it holds and once where it does not.
fn loops(
    env: &mut Env,
    (var, extent): (VarId, ExprId),
    body: Vec<Stmt>,
    (left, in_a_row): (usize, usize),
) -> Vec<Stmt> {
    let mut statements = 0;
    body.iter().for_each(|s| s.walk(&mut |_| statements += 1));
    let all = conditions(env, &body);
    let known = if left == 0 || statements > MOST_STATEMENTS_IN_A_ROW {
        Vec::new()
    } else {
        known_before(env, var, &body, &all)
    };
    let whole = |env: &mut Env, body: Vec<Stmt>| {
        vec![Stmt::For { var, extent, kind: LoopKind::Serial, body: choose_lines(env, var, body) }]
    };
    let Some(cond) = decisive(env, &known) else {
        return whole(env, body);
    };
    // What follows where it holds, and what would have it follow.
    let follows: Vec<ExprId> = known.iter().copied().filter(|&c| c == cond || implies(env, cond, c)).collect();
    if statements > MOST_STATEMENTS && follows.len() < known.len() {
        return whole(env, body);
    }
    let opposite = opposite(env, cond);
    let stronger: Vec<ExprId> = known.iter().copied().filter(|&c| c == cond || implies(env, c, cond)).collect();
    let those = |cs: &[ExprId]| all.iter().copied().filter(|&a| cs.contains(&single(env, a))).collect::<FxHashSet<_>>();
    let (own, other, failed) = (those(&follows), those(&[opposite]), those(&stronger));
    let then = without(env, &body, &own);
    let then = failing(env, &then, &other);
    let otherwise = without(env, &body, &other);
    let otherwise = failing(env, &otherwise, &failed);
    // Each loop has names of its own.
    let again = env.new_var(env.vars[var].name.clone());
    let map = [(var, env.pool.var(again))].into_iter().collect();
    let otherwise = copy(env, &otherwise, &map);
    let row = follows.len() > 1 && in_a_row > 0;
    let rest = if row { (left, in_a_row - 1) } else { (left - 1, in_a_row) };
    let [then, other] =
        [(var, then, (left - 1, in_a_row)), (again, otherwise, rest)].map(|(v, part, left)| match part.as_slice() {
            [] => Vec::new(),
            _ => loops(env, (v, extent), part, left),
        });
    vec![Stmt::If { cond, then, other }]
}

/// Prefetches under conditions that are known before the loop, without a branch: where a condition fails the tensor's first line is
/// asked for, which costs nothing once it is there.
fn choose_lines(env: &mut Env, var: VarId, body: Vec<Stmt>) -> Vec<Stmt> {
    let mut out = Vec::with_capacity(body.len());
    for s in &body {
        let mut lines = Vec::new();
        let before = |c: &ExprId| !known_before(env, var, &body, &[*c]).is_empty();
        if !matches!(s, Stmt::If { .. })
            || !prefetches(env, s, &[], &mut lines)
            || !lines.iter().flat_map(|l| &l.0).all(before)
        {
            out.push(s.clone());
            continue;
        }
        for (conds, tensor, index, locality) in lines {
            let (cond, first) = (env.pool.all(conds), env.pool.int(0));
            out.push(Stmt::Prefetch { tensor, index: env.pool.select(cond, index, first), locality });
        }
    }
    out
}

/// A prefetch: its conditions, tensor, index and locality.
type Line = (Vec<ExprId>, TensorId, ExprId, i64);

/// Whether there is nothing but prefetches in a statement; all of them under their conditions, one by one.
fn prefetches(env: &Env, s: &Stmt, around: &[ExprId], out: &mut Vec<Line>) -> bool {
    match s {
        Stmt::Prefetch { tensor, index, locality } => {
            // Where conditions fail it has to be possible to compute, too.
            let fails = env.pool.any(*index, &mut |n| match *n {
                Expr::Load { .. } | Expr::Search { .. } => true,
                Expr::Bin(BinOp::FloorDiv | BinOp::Mod, _, by) => env.pool.as_int(by).is_none_or(|by| by == 0),
                _ => false,
            });
            if fails {
                return false;
            }
            out.push((around.to_vec(), *tensor, *index, *locality));
            true
        }
        Stmt::If { cond, then, other } if other.is_empty() => {
            let conds = [around, &env.pool.conjuncts(*cond)].concat();
            then.iter().all(|s| prefetches(env, s, &conds, out))
        }
        _ => false,
    }
}

/// The one that most others follow from.
fn decisive(env: &mut Env, known: &[ExprId]) -> Option<ExprId> {
    let mut best: Option<(usize, ExprId)> = None;
    for &c in known {
        let count = known.iter().filter(|&&other| implies(env, c, other)).count();
        if best.is_none_or(|(n, _)| count > n) {
            best = Some((count, c));
        }
    }
    best.map(|b| b.1)
}

/// Whether `b` holds where `a` does, both `x < y` or `x <= y` of integers that differ by constants.
fn implies(env: &mut Env, a: ExprId, b: ExprId) -> bool {
    // How much room there is, at least 0 where the condition holds.
    let mut room = |c: ExprId| {
        let (x, y, least) = match *env.pool.get(c) {
            Expr::Bin(BinOp::Lt, x, y) => (x, y, 1),
            Expr::Bin(BinOp::Le, x, y) => (x, y, 0),
            _ => return None,
        };
        if env.pool.ty(x).scalar != ScalarType::Index {
            return None;
        }
        let least = env.pool.int(least);
        let room = env.pool.sub(y, x);
        Some(env.pool.sub(room, least))
    };
    let (Some(a), Some(b)) = (room(a), room(b)) else { return false };
    let more = env.pool.sub(b, a);
    let more = normalize(&mut env.pool, more);
    env.pool.as_int(more).is_some_and(|n| n >= 0)
}

/// The conditions of branches, masks, choices and guarded reads.
fn conditions(env: &Env, body: &[Stmt]) -> Vec<ExprId> {
    let mut all = Vec::new();
    for s in body {
        s.walk(&mut |s| {
            match s {
                Stmt::If { cond, .. } => all.push(*cond),
                Stmt::Store { mask: Some(m), .. } => all.push(*m),
                _ => {}
            }
            for e in s.exprs() {
                env.pool.walk(e, &mut |_, n| match n {
                    Expr::Load { guard: Some((c, _)), .. } | Expr::Select(c, ..) => all.push(*c),
                    _ => {}
                });
            }
        });
    }
    all.into_iter().flat_map(|c| env.pool.conjuncts(c)).collect()
}

/// The conditions, of one lane, that are known before the loop.
fn known_before(env: &Env, var: VarId, body: &[Stmt], all: &[ExprId]) -> Vec<ExprId> {
    let mut own: FxHashSet<VarId> = [var].into_iter().collect();
    for s in body {
        s.walk(&mut |s| {
            if let Stmt::Let { var, .. } = s {
                own.insert(*var);
            }
        });
    }
    let known = |c: &ExprId| {
        let reads = env.pool.any(*c, &mut |n| matches!(n, Expr::Load { .. } | Expr::Search { .. }));
        // Of floats that are no numbers neither a comparison holds nor its opposite.
        let compares = match *env.pool.get(*c) {
            Expr::Bin(BinOp::Lt | BinOp::Le | BinOp::Eq | BinOp::Ne, a, _) => !env.pool.ty(a).scalar.is_float(),
            _ => false,
        };
        compares && env.pool.ty(*c).lanes == 1 && !reads && !own.iter().any(|&v| env.pool.uses_var(*c, v))
    };
    let mut found: Vec<ExprId> = Vec::new();
    for c in all.iter().map(|&c| single(env, c)).filter(known) {
        if !found.contains(&c) {
            found.push(c);
        }
    }
    found
}

/// What holds where a comparison of integers does not.
fn opposite(env: &mut Env, cond: ExprId) -> ExprId {
    match *env.pool.get(cond) {
        Expr::Bin(BinOp::Lt, a, b) => env.pool.le(b, a),
        Expr::Bin(BinOp::Le, a, b) => env.pool.lt(b, a),
        Expr::Bin(BinOp::Eq, a, b) => env.pool.bin(BinOp::Ne, a, b),
        Expr::Bin(BinOp::Ne, a, b) => env.pool.bin(BinOp::Eq, a, b),
        _ => env.pool.un(UnOp::Not, cond),
    }
}

/// The condition that all lanes have in common, or the same.
fn single(env: &Env, c: ExprId) -> ExprId {
    match *env.pool.get(c) {
        Expr::Splat(c, _) => c,
        _ => c,
    }
}
