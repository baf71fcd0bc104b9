//! Turns vector loops into vector statements, and unrolled loops into copies.
//!
//! ```text
//! for %i in 0..16 vector { C[o + %i] = A[p + %i] * B[q] }
//!   =>  C[ramp(o, 1, 16)] = A[ramp(p, 1, 16)] * splat(B[q], 16)
//! ```
//!
//! An extent that is not constant becomes a mask. A store to one place from all lanes is a
//! reduction: the lanes are combined first. A serial loop of one iteration is its body. A loop that has no vector form (an inner loop whose
//! extent depends on the lane) runs serially.
//!
//! Requires: storage dialect, simplified. Ensures: serial and parallel loops only. Runs before
//! hoisting, so that what is uniform over the lanes is hoisted once.

use super::Simplifier;
use super::decide::decide_branches;
use super::sign::never_negative;
use cora_ir::affine::{build, poly};
use cora_ir::loops::LoopKind;
use cora_ir::storage::{Stmt, StorageModule};
use cora_ir::{BinOp, Combiner, Env, Expr, ExprId, ExprPool, ScalarType, Scope, TensorId, VarId};
use rustc_hash::{FxHashMap, FxHashSet};

/// Removes vector and unrolled loops from every kernel.
pub fn vectorize_and_unroll(m: &mut StorageModule, simplifier: &mut dyn Simplifier) {
    let env = &mut m.env;
    let tables: FxHashSet<TensorId> = m.tables.iter().map(|t| t.tensor).collect();
    for k in &mut m.kernels {
        let body = std::mem::take(&mut k.body);
        let body = lower(env, body, &mut Around { loops: Vec::new(), held: Vec::new(), tables: &tables, simplifier });
        k.body = decide_branches(env, body);
    }
}

/// What is known around a statement.
struct Around<'a> {
    /// Variables of loops and their extents.
    loops: Vec<(VarId, ExprId)>,
    /// Conditions that hold here in lanes that run, and in others need not.
    held: Vec<ExprId>,
    /// Their reads may be moved, so that their positions stay as they are.
    tables: &'a FxHashSet<TensorId>,
    simplifier: &'a mut dyn Simplifier,
}

impl Around<'_> {
    /// Whether a loop here runs at least once.
    fn runs(&mut self, env: &mut Env, extent: ExprId) -> bool {
        let (zero, one) = (env.pool.int(0), env.pool.int(1));
        let last = env.pool.sub(extent, one);
        let ranges: Vec<(ExprId, ExprId)> = self.loops.iter().map(|&(v, e)| (env.pool.var(v), e)).collect();
        let goal = env.pool.lt(zero, extent);
        never_negative(env, &ranges, last) || self.simplifier.prove(env, &self.loops, &[], goal)
    }
}

fn lower(env: &mut Env, body: Vec<Stmt>, around: &mut Around<'_>) -> Vec<Stmt> {
    let mut out = Vec::new();
    for s in body {
        match s {
            Stmt::For { var, extent, kind, body } if kind == LoopKind::Unroll || runs_once(env, var, extent, kind) => {
                unroll(env, var, extent, body, around, &mut out);
            }
            Stmt::For { var, extent, kind: LoopKind::Vector, body } => {
                let body = lower_inside(env, var, extent, body, around);
                match lanes_of(env, var, extent, &body, around) {
                    Some(stmts) => out.extend(where_any_lane_runs(env, (var, extent), &body, stmts, around)),
                    None => out.push(Stmt::For { var, extent, kind: LoopKind::Serial, body }),
                }
            }
            Stmt::For { var, extent, kind, body } => {
                let body = lower_inside(env, var, extent, body, around);
                out.push(Stmt::For { var, extent, kind, body });
            }
            Stmt::If { cond, then, other } => {
                let (then, other) = (lower(env, then, around), lower(env, other, around));
                out.push(Stmt::If { cond, then, other });
            }
            s => out.push(s),
        }
    }
    out
}

/// Whether a loop is there for schedules to name it only.
fn runs_once(env: &Env, var: VarId, extent: ExprId, kind: LoopKind) -> bool {
    kind == LoopKind::Serial && env.pool.as_int(extent) == Some(1) && env.vars[var].hoist.is_none()
}

fn lower_inside(env: &mut Env, var: VarId, extent: ExprId, body: Vec<Stmt>, around: &mut Around<'_>) -> Vec<Stmt> {
    around.loops.push((var, extent));
    let body = lower(env, body, around);
    around.loops.pop();
    body
}

/// What lanes share is evaluated for all of them, so only where there is one: reads that do not
/// depend on the lane may be invalid if the loop would not have run.
fn where_any_lane_runs(
    env: &mut Env,
    (var, extent): (VarId, ExprId),
    body: &[Stmt],
    stmts: Vec<Stmt>,
    around: &mut Around<'_>,
) -> Vec<Stmt> {
    if !body.iter().any(|s| shares_reads(&env.pool, s, var)) || around.runs(env, extent) {
        return stmts;
    }
    let zero = env.pool.int(0);
    let cond = env.pool.lt(zero, extent);
    vec![Stmt::If { cond, then: stmts, other: Vec::new() }]
}

fn shares_reads(pool: &ExprPool, s: &Stmt, lane: VarId) -> bool {
    let mut found = false;
    s.walk(&mut |s| {
        let Stmt::Store { value, rest, .. } = s else { return };
        for e in [*value].into_iter().chain(rest.iter().map(|r| r.1)) {
            pool.walk(e, &mut |id, n| found |= matches!(n, Expr::Load { .. }) && !pool.uses_var(id, lane));
        }
    });
    found
}

/// A loop of more iterations stays one.
const MOST_COPIES: i64 = 4096;

fn unroll(env: &mut Env, var: VarId, extent: ExprId, body: Vec<Stmt>, around: &mut Around<'_>, out: &mut Vec<Stmt>) {
    let Some(count) = env.pool.constant_bound(extent).filter(|&n| n <= MOST_COPIES) else {
        let body = lower_inside(env, var, extent, body, around);
        out.push(Stmt::For { var, extent, kind: LoopKind::Serial, body });
        return;
    };
    let exact = env.pool.as_int(extent).is_some();
    for i in 0..count {
        let value = env.pool.int(i);
        let map: FxHashMap<VarId, ExprId> = [(var, value)].into_iter().collect();
        let mut copy = substitute_all(env, &body, &map);
        decide(env, &mut copy, around);
        let copy = lower(env, copy, around);
        let cond = env.pool.lt(value, extent);
        if exact || env.pool.as_bool(cond) == Some(true) || (i == 0 && around.runs(env, extent)) {
            out.extend(copy);
        } else {
            out.push(Stmt::If { cond, then: copy, other: Vec::new() });
        }
    }
}

/// Clamped positions of a copy are often plain: `min(0, n - 12*o - 1)` is 0 wherever the loop of `o` runs.
fn decide(env: &mut Env, body: &mut [Stmt], around: &mut Around<'_>) {
    let mut memo = FxHashMap::default();
    for s in body {
        match s {
            Stmt::Store { index, value, .. } => {
                for e in [index, value] {
                    *e = decided(env, *e, around, &mut memo);
                }
            }
            s => s.bodies_mut().for_each(|b| decide(env, b, around)),
        }
    }
}

/// `e` with every minimum and maximum of positions that the loops around decide as that operand. What reads a table
/// stays: its guard is for where it may be moved to.
fn decided(env: &mut Env, e: ExprId, around: &mut Around<'_>, memo: &mut FxHashMap<ExprId, ExprId>) -> ExprId {
    if let Some(&done) = memo.get(&e) {
        return done;
    }
    let scalar = env.pool.ty(e) == cora_ir::Type::scalar(ScalarType::Index);
    let out = match *env.pool.get(e) {
        Expr::Load { tensor, .. } if around.tables.contains(&tensor) => e,
        Expr::Search { .. } => e,
        Expr::Bin(BinOp::Min | BinOp::Max, ..) if scalar => {
            let reads = |n: &Expr| matches!(n, Expr::Load { .. } | Expr::Search { .. } | Expr::Call(..));
            if env.pool.any(e, &mut |n| reads(n)) { e } else { around.simplifier.simplify(env, &around.loops, e) }
        }
        _ => {
            let kids = env.pool.children(e);
            let new: Vec<ExprId> = kids.iter().map(|&k| decided(env, k, around, memo)).collect();
            let same = kids.iter().eq(&new);
            let rebuilt = if same { e } else { env.pool.with_children(e, &new) };
            if same || !scalar { rebuilt } else { cora_ir::affine::normalize(&mut env.pool, rebuilt) }
        }
    };
    memo.insert(e, out);
    out
}

/// Copies of statements with variables replaced. Loops and names of values get fresh ones, so copies stay independent.
pub(super) fn substitute_all(env: &mut Env, stmts: &[Stmt], map: &FxHashMap<VarId, ExprId>) -> Vec<Stmt> {
    let mut map = map.clone();
    let mut out = Vec::with_capacity(stmts.len());
    for s in stmts {
        if let Stmt::Let { var, value } = s {
            let value = replaced(env, *value, &map);
            let (fresh, known) = renamed(env, *var, &map);
            map = known;
            out.push(Stmt::Let { var: fresh, value });
        } else {
            out.push(substitute(env, s, &map));
        }
    }
    out
}

/// [`substitute_all`] of one statement that defines no name.
pub(super) fn substitute(env: &mut Env, s: &Stmt, map: &FxHashMap<VarId, ExprId>) -> Stmt {
    match s {
        Stmt::For { var, extent, kind, body } => {
            let extent = replaced(env, *extent, map);
            let (fresh, map) = renamed(env, *var, map);
            Stmt::For { var: fresh, extent, kind: *kind, body: substitute_all(env, body, &map) }
        }
        s => {
            let mut s = s.clone();
            s.map_exprs(&mut |e| replaced(env, e, map));
            s.bodies_mut().for_each(|b| *b = substitute_all(env, b, map));
            s
        }
    }
}

fn replaced(env: &mut Env, e: ExprId, map: &FxHashMap<VarId, ExprId>) -> ExprId {
    let e = env.pool.substitute(e, map);
    cora_ir::affine::normalize(&mut env.pool, e)
}

fn renamed(env: &mut Env, var: VarId, map: &FxHashMap<VarId, ExprId>) -> (VarId, FxHashMap<VarId, ExprId>) {
    let fresh = env.copy_var(var);
    let mut map = map.clone();
    let e = env.pool.var(fresh);
    map.insert(var, e);
    (fresh, map)
}

struct Lanes {
    var: VarId,
    extent: ExprId,
    count: u32,
    /// Lanes that run, if not all.
    mask: Option<ExprId>,
    /// What is computed and read inside.
    passed_on: FxHashSet<TensorId>,
}

fn lanes_of(env: &mut Env, var: VarId, extent: ExprId, body: &[Stmt], around: &mut Around<'_>) -> Option<Vec<Stmt>> {
    let count = env.pool.constant_bound(extent)?;
    if count < 1 {
        return Some(Vec::new());
    }
    if count == 1 {
        let zero = env.pool.int(0);
        let map: FxHashMap<VarId, ExprId> = [(var, zero)].into_iter().collect();
        let stmts = substitute_all(env, body, &map);
        let cond = env.pool.lt(zero, extent);
        return Some(match env.pool.as_bool(cond) {
            Some(true) => stmts,
            _ => vec![Stmt::If { cond, then: stmts, other: Vec::new() }],
        });
    }
    let lanes = u32::try_from(count).ok()?;
    let mask = env.pool.as_int(extent).is_none().then(|| {
        let zero = env.pool.int(0);
        let iota = env.pool.ramp(zero, 1, lanes);
        let e = env.pool.splat(extent, lanes);
        env.pool.lt(iota, e)
    });
    let l = Lanes { var, extent, count: lanes, mask, passed_on: passed_on(&env.pool, body) };
    let mut out = Vec::new();
    for s in body {
        vector_stmt(env, &l, s, l.mask, around, &mut out)?;
    }
    Some(out)
}

/// The tensors of which one statement stores elements and something else reads some.
fn passed_on(pool: &ExprPool, body: &[Stmt]) -> FxHashSet<TensorId> {
    let (mut stored, mut read) = (FxHashSet::default(), FxHashSet::default());
    for s in body {
        s.walk(&mut |s| {
            let own = if let Stmt::Store { tensor, .. } = s { Some(*tensor) } else { None };
            stored.extend(own);
            for e in s.exprs() {
                pool.walk(e, &mut |_, n| {
                    if let Expr::Load { tensor, .. } = n
                        && own != Some(*tensor)
                    {
                        read.insert(*tensor);
                    }
                });
            }
        });
    }
    stored.retain(|t| read.contains(t));
    stored
}

/// A condition that holds where `conds` do in a lane that runs, in which those before them are `held`.
fn any_lane(env: &mut Env, l: &Lanes, held: &[ExprId], conds: &[ExprId]) -> ExprId {
    let conds = [held, conds].concat();
    let at = |env: &mut Env, cond: ExprId, lane: i64| {
        let lane = env.pool.int(lane);
        let map: FxHashMap<VarId, ExprId> = [(l.var, lane)].into_iter().collect();
        env.pool.substitute(cond, &map)
    };
    // Conditions that fail from some lane on hold in the first if in any.
    if conds.iter().all(|&c| slope(env, l.var, c).is_some_and(|s| s <= 0)) {
        let cond = env.pool.all(conds);
        return at(env, cond, 0);
    }
    // Those that hold from some lane on, in the last if in any.
    let all_run = env.pool.as_int(l.extent).is_some_and(|n| n >= l.count.into());
    if all_run && conds.iter().all(|&c| slope(env, l.var, c).is_some_and(|s| s >= 0)) {
        let cond = env.pool.all(conds);
        return at(env, cond, i64::from(l.count) - 1);
    }
    let lane = env.pool.var(l.var);
    let mut cond = env.pool.lt(lane, l.extent);
    for c in conds {
        let c = mask_loads(env, c, Some(cond));
        cond = env.pool.and(cond, c);
    }
    (0..i64::from(l.count)).fold(env.pool.bool(false), |any, i| {
        let holds = at(env, cond, i);
        env.pool.bin(BinOp::Or, any, holds)
    })
}

/// What each step of `var` adds to `b - a` of a comparison `a < b` or `a <= b` of indices.
fn slope(env: &mut Env, var: VarId, c: ExprId) -> Option<i64> {
    let Expr::Bin(BinOp::Lt | BinOp::Le, a, b) = *env.pool.get(c) else { return None };
    if env.pool.ty(a).scalar != ScalarType::Index {
        return None;
    }
    let difference = env.pool.sub(b, a);
    let mut p = poly(&env.pool, difference);
    let v = env.pool.var(var);
    let slope = p.terms.remove(&vec![v]).unwrap_or(0);
    (!p.terms.keys().flatten().any(|&a| env.pool.uses_var(a, var))).then_some(slope)
}

fn vector_stmt(
    env: &mut Env,
    l: &Lanes,
    s: &Stmt,
    mask: Option<ExprId>,
    around: &mut Around<'_>,
    out: &mut Vec<Stmt>,
) -> Option<()> {
    if only_asks(s) {
        // The line of the first lane, where that runs.
        let zero = env.pool.int(0);
        let first = substitute(env, s, &[(l.var, zero)].into_iter().collect());
        let cond = env.pool.lt(zero, l.extent);
        let runs = l.mask.is_none() || around.simplifier.prove(env, &around.loops, &[], cond);
        out.push(if runs { first } else { Stmt::If { cond, then: vec![first], other: Vec::new() } });
        return Some(());
    }
    match s {
        Stmt::For { var, extent, kind, body } => {
            if env.pool.uses_var(*extent, l.var) {
                return None;
            }
            let mut inner = Vec::new();
            around.loops.push((*var, *extent));
            let done = body.iter().try_for_each(|s| vector_stmt(env, l, s, mask, around, &mut inner));
            around.loops.pop();
            done?;
            out.push(Stmt::For { var: *var, extent: *extent, kind: *kind, body: inner });
        }
        Stmt::If { cond, then, other } => {
            if env.pool.uses_var(*cond, l.var) {
                if !other.is_empty() {
                    return None;
                }
                // What all lanes agree on stays a branch: it may protect what they share.
                let (varying, mut shared): (Vec<ExprId>, Vec<ExprId>) =
                    env.pool.conjuncts(*cond).into_iter().partition(|&c| env.pool.uses_var(c, l.var));
                // What does not depend on the lane is read once for all, which is right only if there is one.
                if then.iter().any(|s| shares_reads(&env.pool, s, l.var)) {
                    let any = any_lane(env, l, &around.held, &varying);
                    if !around.simplifier.prove(env, &around.loops, &shared, any) {
                        shared.push(any);
                    }
                }
                let cond = env.pool.all(varying.iter().copied());
                let c = vector_expr(env, l, cond)?;
                let c = mask_loads(env, c, mask);
                let both = match mask {
                    Some(m) => env.pool.bin(BinOp::And, m, c),
                    None => c,
                };
                let mut stmts = Vec::new();
                let before = around.held.len();
                around.held.extend(varying);
                let done = then.iter().try_for_each(|s| vector_stmt(env, l, s, Some(both), around, &mut stmts));
                around.held.truncate(before);
                done?;
                if shared.is_empty() {
                    out.extend(stmts);
                } else {
                    let cond = env.pool.all(shared);
                    out.push(Stmt::If { cond, then: stmts, other: Vec::new() });
                }
            } else {
                let (mut t, mut o) = (Vec::new(), Vec::new());
                for s in then {
                    vector_stmt(env, l, s, mask, around, &mut t)?;
                }
                for s in other {
                    vector_stmt(env, l, s, mask, around, &mut o)?;
                }
                out.push(Stmt::If { cond: *cond, then: t, other: o });
            }
        }
        Stmt::Let { var, value } => {
            if env.pool.uses_var(*value, l.var) {
                return None;
            }
            out.push(Stmt::Let { var: *var, value: *value });
        }
        Stmt::Gemm(_)
        | Stmt::Tile(_)
        | Stmt::Atomic { .. }
        | Stmt::Copy { .. }
        | Stmt::Shuffle { .. }
        | Stmt::Barrier
        | Stmt::Prefetch { .. }
        | Stmt::Commit
        | Stmt::Wait { .. }
        | Stmt::Bulk(_)
        | Stmt::Await { .. }
        | Stmt::Beside(_) => {
            return None;
        }
        Stmt::Store { tensor, index, value, mask: own, rest } => {
            if own.is_some() || env.pool.ty(*value).lanes != 1 || env.pool.ty(*index).lanes != 1 {
                return None;
            }
            if env.pool.uses_var(*index, l.var) {
                if !lanes_apart(env, l, *tensor, *index) {
                    return None;
                }
                let at = vector_expr(env, l, *index)?;
                let at = mask_loads(env, at, mask);
                let mut lanes = |e: ExprId| {
                    let v = vector_expr(env, l, e)?;
                    let v = mask_loads(env, v, mask);
                    Some(env.pool.splat(v, l.count))
                };
                let value = lanes(*value)?;
                let rest = rest.iter().map(|&(t, e)| Some((t, lanes(e)?))).collect::<Option<_>>()?;
                out.push(Stmt::Store { tensor: *tensor, index: at, value, mask, rest });
            } else if !rest.is_empty() {
                // Tuples are combined one after the other.
                return None;
            } else {
                out.push(reduce_lanes(env, l, *tensor, *index, *value, mask)?);
            }
        }
    }
    Some(())
}

/// Whether nothing is done but to ask the caches.
fn only_asks(s: &Stmt) -> bool {
    match s {
        Stmt::Prefetch { .. } => true,
        Stmt::For { .. } | Stmt::If { .. } => {
            s.bodies().flatten().next().is_some() && s.bodies().flatten().all(only_asks)
        }
        _ => false,
    }
}

/// Whether lanes write different elements: a schedule says so of what is in memory, and of a buffer only its position, which
/// may be one that each iteration writes anew. So may one in memory that is read beside it, unless the lane is a position.
fn lanes_apart(env: &mut Env, l: &Lanes, tensor: TensorId, index: ExprId) -> bool {
    let in_memory = env.tensors[tensor].scope == Scope::Global;
    if in_memory && !l.passed_on.contains(&tensor) {
        return true;
    }
    let index = poly(&env.pool, index);
    let pool = &env.pool;
    let is_lane = |e: &ExprId| pool.as_var(*e) == Some(l.var);
    let position = index.terms.keys().any(|m| m.iter().all(is_lane) && !m.is_empty());
    let plain = index.terms.keys().flatten().all(|e| is_lane(e) || !pool.uses_var(*e, l.var));
    plain || in_memory && position
}

/// `T[x] = T[x] op term(lane)` for all lanes: the lanes are combined, then added.
fn reduce_lanes(
    env: &mut Env,
    l: &Lanes,
    tensor: cora_ir::TensorId,
    index: ExprId,
    value: ExprId,
    mask: Option<ExprId>,
) -> Option<Stmt> {
    let Expr::Bin(op, old, term) = *env.pool.get(value) else { return None };
    let is_old = matches!(env.pool.get(old), Expr::Load { tensor: t, index: i, guard: None, .. } if *t == tensor && i[..] == [index]);
    let combiner = Combiner::ALL.into_iter().find(|c| c.op() == op)?;
    if !is_old {
        return None;
    }
    let v = vector_expr(env, l, term)?;
    let v = mask_loads(env, v, mask);
    let mut v = env.pool.splat(v, l.count);
    if let Some(m) = mask {
        let ty = env.pool.ty(v).scalar;
        let id = env.identity(combiner, ty);
        let id = env.pool.splat(id, l.count);
        v = env.pool.select(m, v, id);
    }
    let sum = env.pool.reduce(combiner, v);
    let value = env.pool.bin(op, old, sum);
    Some(Stmt::Store { tensor, index, value, mask: None, rest: Vec::new() })
}

/// Nothing is read in lanes that do not run.
fn mask_loads(env: &mut Env, e: ExprId, mask: Option<ExprId>) -> ExprId {
    let Some(mask) = mask else { return e };
    let lanes = env.pool.ty(mask).lanes;
    env.pool.rewrite(e, &mut |p, x| match p.get(x).clone() {
        Expr::Load { tensor, part, index, guard } if p.ty(index[0]).lanes == lanes => {
            let ty = p.ty(x).scalar;
            let guard = match guard {
                Some((c, o)) => {
                    let c = p.splat(c, lanes);
                    (p.and(mask, c), o)
                }
                None => {
                    let z = crate::schedule::compute_inline::zero_of(p, ty);
                    (mask, p.splat(z, lanes))
                }
            };
            Some(p.load_guarded((tensor, part), ty, index.iter().copied(), Some(guard)))
        }
        _ => None,
    })
}

/// `e` for all lanes at once; a scalar where it does not depend on the lane.
fn vector_expr(env: &mut Env, l: &Lanes, e: ExprId) -> Option<ExprId> {
    if !env.pool.uses_var(e, l.var) {
        return Some(e);
    }
    let ty = env.pool.ty(e);
    if ty.lanes != 1 {
        return None;
    }
    if ty.scalar == ScalarType::Index
        && let Some(ramp) = as_ramp(env, l, e)
    {
        return Some(ramp);
    }
    let kids = env.pool.children(e);
    match env.pool.get(e).clone() {
        Expr::Call(..) | Expr::Search { .. } | Expr::Ramp { .. } | Expr::Reduce(..) => None,
        Expr::Load { tensor, part, index, guard } => {
            let at = vector_expr(env, l, index[0])?;
            let at = env.pool.splat(at, l.count);
            let guard = match guard {
                None => None,
                Some((c, o)) => {
                    let (c, o) = (vector_expr(env, l, c)?, vector_expr(env, l, o)?);
                    Some((env.pool.splat(c, l.count), env.pool.splat(o, l.count)))
                }
            };
            Some(env.pool.load_guarded((tensor, part), ty.scalar, [at], guard))
        }
        _ => {
            let mut new = Vec::new();
            for k in kids {
                let v = vector_expr(env, l, k)?;
                new.push(env.pool.splat(v, l.count));
            }
            Some(env.pool.with_children(e, &new))
        }
    }
}

/// `base + stride * lane`, where the index is affine in the lane with a constant stride.
fn as_ramp(env: &mut Env, l: &Lanes, e: ExprId) -> Option<ExprId> {
    let mut p = poly(&env.pool, e);
    let v = env.pool.lookup(&Expr::Var(l.var))?;
    let stride = p.terms.remove(&vec![v])?;
    if p.terms.keys().any(|m| m.iter().any(|&a| env.pool.uses_var(a, l.var))) {
        return None;
    }
    let base = build(&mut env.pool, &p);
    Some(env.pool.ramp(base, stride, l.count))
}
